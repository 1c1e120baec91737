"""Promise: the base class of all promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np

from metacal.certification.arriving import sequential_procedure
from metacal.certification.audit import find_contradiction, find_contradiction_of_clusters
from metacal.certification.certify import certify
from metacal.certification.clusters import WHOLE_CLUSTERS
from metacal.certification.procedures import Procedure, SubgroupProcedure
from metacal.certification.rows import CalibrationRows
from metacal.certification.scopes import EachSubgroup
from metacal.certification.statements import confidence_phrase
from metacal.certification.two_sides import TwoSides
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.promises.certificate import Certificate, Guarantee
from metacal.promises.counts import impossible_labels, other_marks, other_traffic
from metacal.promises.quantity import Limits, Quantity
from metacal.promises.sample import Evidence
from metacal.rows.arrays import fraction


class Promise(ABC):
    """Base class of all promises.

    A promise is data: a dataclass with its limits and `delta`. A subclass defines

    - `limited`: the quantity that each parameter limits, for example {"beta": COVERAGE_ACCURACY};
    - `rules`: the names of its rules (`words.register_rule`), with a delta and in expectation;
    - `procedure()`: how calibration rows are certified, and how a certificate that was read from a
      file is checked (`metacal.certification.procedures.Procedure`).

    `split`, `for_base` and `guarantee` are overridden if the threshold and the calibrator must not
    share rows, or if nothing is guaranteed. A row in `promises.kinds` makes the promise known to
    files.
    """

    #: Parameter -> what it limits, in the order of certificates. A parameter that is None limits
    #: nothing.
    limited: ClassVar[Mapping[str, Quantity]]
    #: The rules of its certificates: that with a delta, and that in expectation.
    rules: ClassVar[Sequence[str]]
    #: The rules that certify it of a cascade, without people in it and with; none where there are
    #: none.
    cascade_rules: ClassVar[tuple[str, ...]] = ()
    #: The calibrator that goes with it, by its name on the command line; None: the usual one.
    calibrator: ClassVar[str | None] = None
    #: Whether it is about a loss of each row, a number between 0 and 1, and not only about right
    #: and wrong.
    takes_losses: ClassVar[bool] = False
    #: The promise fails with at most this probability; None: it holds in expectation.
    delta: float | None

    def __post_init__(self) -> None:
        """Raise unless each limit and delta is a number strictly between 0 and 1; None where that
        is allowed.
        """
        optional = {"delta", *(field.name for field in fields(self) if field.default is None)}  # type: ignore[arg-type]
        for name in (*self.limited, "delta"):
            if (value := getattr(self, name)) is not None or name not in optional:
                fraction(name, value)

    def certify(self, evidence: Any, correct: Any = None) -> Certificate:
        """Certify the promise.

        Parameters
        ----------
        evidence : array-like of shape (n_rows,), CalibrationRows or Evidence
            Ranking scores, or rows with more columns, or `Passes` over rows that are only counted,
            or labels that arrive.

        correct : array-like of bool of shape (n_rows,), optional
            Whether each prediction is correct, if `evidence` has the scores.

        Returns
        -------
        Certificate

        Raises
        ------
        InfeasibleTargetError
            If the rows do not support the target.

        Examples
        --------
        >>> import metacal as mc
        >>> mc.MaxReview(0.05).certify(np.arange(100.0), np.ones(100, dtype=bool)).n_accepted
        99
        """
        if isinstance(evidence, Evidence):
            return evidence.certify(self)
        if isinstance(evidence, CalibrationRows):
            return certify(self, evidence)
        return certify(self, CalibrationRows.from_columns(evidence, correct))

    @abstractmethod
    def procedure(self) -> Procedure:
        """Return how calibration rows are certified."""

    @property
    def scope(self) -> EachSubgroup | None:
        """Scope of a promise for each subgroup. None for all rows together."""
        return None

    @property
    def sided(self) -> bool:
        """Whether the promise is about the rows that are called by one of two classes."""
        return isinstance(self.procedure(), TwoSides)

    def impossible(self, certificate: Certificate) -> str | None:
        """Return what in the counts of a certificate cannot be true, or None."""
        return find_contradiction(self, certificate)

    @property
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it: each quantity with its limit."""
        values = ((quantity, getattr(self, name)) for name, quantity in self.limited.items())
        return tuple((quantity, float(value)) for quantity, value in values if value is not None)

    @property
    def rule(self) -> str:
        """The rule of its certificates."""
        return self.rules[-1 if self.delta is None else 0]

    @property
    def all_rules(self) -> tuple[str, ...]:
        """The rules that its certificates may have, where the rows decide among several."""
        return (self.rule,)

    def rules_for(self, certificate: Certificate) -> tuple[str, ...]:
        """Those that a certificate like this one may have."""
        stages = certificate.stages
        return self.all_rules if stages is None else self.cascade_rules[: stages.people + 1]

    @property
    def guarantee(self) -> Guarantee:
        """What its certificates call it."""
        return "in expectation" if self.delta is None else "certified"

    @property
    def surely(self) -> str:
        """Confidence level as it is written in messages."""
        return confidence_phrase(self.delta)

    @property
    def needs_labels(self) -> bool:
        """Whether it can be certified only from labelled rows."""
        return any(quantity.needs_labels for quantity, _ in self.limits)

    @property
    def split_seed(self) -> int | None:
        """The seed that the user gave for `split`; None: `split` draws nothing, or derives its seed
        from the rows.
        """
        return None

    def split(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """All rows for both purposes: the score looks at no label, so threshold and calibrator may
        share them.
        """
        everything = np.ones(len(correct), dtype=bool)
        return everything, everything

    def for_base(
        self, available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """All of them: a calibrator learns from errors, and accepted rows have few."""
        return available

    def at(self, share: float) -> Self:
        """The same promise with a share of its delta: several of them hold together where the
        shares add up to one.
        """
        return self if share == 1.0 or self.delta is None else self.at_level(self.delta * share)

    def at_level(self, delta: float | None) -> Self:
        """The same promise with another delta."""
        return type(self)(**{**self.get_params(), "delta": delta})

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, so that scikit-learn can clone it and search over it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place, checked as in the constructor."""
        known = self.get_params(deep=False)
        for name, value in params.items():
            if name not in known:
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}."
                )
            setattr(self, name, value)
        type(self)(**self.get_params(deep=False))
        return self

    # ── certificates that are read from a file ────────────────────────────────────────────────────

    def contradiction(self, certificate: Certificate) -> str | None:
        """What in a certificate is not as this promise makes it, or cannot be true; None when all
        agrees.

        Rule, limits and counts are recomputed from one another. They need the counts alone, not the
        rows: an umbrella order statistic is certified by how many right rows it keeps, a binomial
        test by how many accepted rows are wrong, whatever sequence of tests led there.

        >>> from dataclasses import replace
        >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
        >>> promise = MaxMiscoverage(0.05)
        >>> certificate = promise.certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
        >>> promise.contradiction(certificate)
        >>> promise.contradiction(replace(certificate, rule="paper-algorithm-1"))
        'the rule is none that this promise uses'
        """
        # The paper's split shows the certificate a part of the rows; any other rule sees them all.
        split, around = self.guarantee == "none", certificate.circumstances
        wrong = around.impossible(
            max(certificate.n_rows, around.folds) if split else certificate.n_rows, self.delta
        )
        if wrong is not None:
            return wrong
        said = (certificate.limits, certificate.delta, certificate.guarantee)
        if said != (self._limits_in(certificate), self.delta, around.guarantee(self.guarantee)):
            return f"it does not belong to the promise {self!r}; fit again"
        stages = certificate.stages
        by_units, mine = around.whole_units, self.at(around.share)
        if certificate.rule not in ((WHOLE_CLUSTERS,) if by_units else self.rules_for(certificate)):
            return "the rule is none that this promise uses"
        return (
            other_traffic(certificate, split or by_units or around.aside > 0)
            or (None if stages is None else stages.contradiction(certificate))
            or other_marks(certificate)
            or impossible_labels(certificate, some_will_do=sequential_procedure(self) is not None)
            or (find_contradiction_of_clusters if by_units else find_contradiction)(
                mine, certificate
            )
        )

    def _limits_in(self, certificate: Certificate) -> Limits:
        """The limits that a certificate of this promise has: its own."""
        return self.limits


class SubgroupPromise(Promise):
    """Base class of the promises that can also be made for each subgroup (`PerClass`, `PerGroup`)."""

    @abstractmethod
    def procedure(self) -> SubgroupProcedure:
        """Return how calibration rows, or those of a subgroup, are certified."""
