"""Promise: the base class of all promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np

from metacal.certificates.certificate import Certificate, Guarantee
from metacal.certificates.counts import (
    find_label_contradiction,
    find_score_value_contradiction,
    find_traffic_contradiction,
)
from metacal.certificates.quantity import Limits, Quantity
from metacal.certification.arriving import get_sequential_procedure
from metacal.certification.audit import find_contradiction, find_contradiction_of_clusters
from metacal.certification.certify import certify
from metacal.certification.clusters import WHOLE_CLUSTERS
from metacal.certification.procedures import Procedure, SubgroupProcedure
from metacal.certification.ranking import Evidence
from metacal.certification.rows import CalibrationRows
from metacal.certification.scopes import EachSubgroup
from metacal.certification.statements import format_confidence_level, format_promise_mismatch
from metacal.certification.two_sides import TwoClassProcedure
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.rows.arrays import check_fraction


class Promise(ABC):
    """Base class of all promises.

    A promise is data: a frozen dataclass with its limits and `delta`. A subclass defines

    - `quantities`: the quantity that each parameter limits, for example {"beta": COVERAGE_ACCURACY};
    - `rules`: the names of its rules (`words.register_rule`), with a delta and in expectation;
    - `procedure()`: how calibration rows are certified, and how a certificate that was read from a
      file is checked (`metacal.certification.procedures.Procedure`).

    `split`, `select_base_map_rows` and `guarantee` are overridden if the threshold and the calibrator must not
    share rows, or if nothing is guaranteed. A row in `promises.kinds` makes the promise known to
    files.
    """

    # Quantity that each parameter limits, in the order of certificates. A parameter that is None
    # limits nothing.
    quantities: ClassVar[Mapping[str, Quantity]]

    # Names of the rules of its certificates: with a delta, and in expectation.
    rules: ClassVar[Sequence[str]]

    # Names of the rules for a cascade, without people in it and with people.
    cascade_rules: ClassVar[tuple[str, ...]] = ()

    # Calibrator that belongs to the promise, by its name on the command line. None for the default.
    default_calibrator: ClassVar[str | None] = None

    # Whether the promise is about a loss of each row in [0, 1], and not only about correctness.
    supports_row_losses: ClassVar[bool] = False

    # The promise fails with at most this probability. None if it holds in expectation.
    delta: float | None

    def __post_init__(self) -> None:
        """Check that each limit and delta is strictly between 0 and 1, or None if allowed."""
        optional = {"delta"}
        for field in fields(self):  # type: ignore[arg-type]
            if field.default is None:
                optional.add(field.name)
        for name in (*self.quantities, "delta"):
            value = getattr(self, name)
            if value is not None or name not in optional:
                check_fraction(name, value)

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
    def is_two_sided(self) -> bool:
        """Whether the promise is about the rows that are called by one of two classes."""
        return isinstance(self.procedure(), TwoClassProcedure)

    def find_count_contradiction(self, certificate: Certificate) -> str | None:
        """Return what in the counts of a certificate cannot be true, or None."""
        return find_contradiction(self, certificate)

    @property
    def limits(self) -> Limits:
        """Promised quantities with their limits, in the order of certificates."""
        limits = []
        for name, quantity in self.quantities.items():
            value = getattr(self, name)
            if value is not None:
                limits.append((quantity, float(value)))
        return tuple(limits)

    @property
    def rule(self) -> str:
        """Name of the rule of its certificates."""
        if self.delta is None:
            return self.rules[-1]
        return self.rules[0]

    @property
    def possible_rules(self) -> tuple[str, ...]:
        """Names of all rules that its certificates may have, if the rows determine the rule."""
        return (self.rule,)

    def rules_allowed_in(self, certificate: Certificate) -> tuple[str, ...]:
        """Return the names of the rules that a certificate of this kind may have."""
        stages = certificate.stages
        if stages is None:
            return self.possible_rules
        return self.cascade_rules[: stages.has_human_review + 1]

    @property
    def guarantee(self) -> Guarantee:
        """Kind of guarantee of its certificates."""
        if self.delta is None:
            return "in expectation"
        return "certified"

    @property
    def confidence_phrase(self) -> str:
        """Confidence level as it is written in messages."""
        return format_confidence_level(self.delta)

    @property
    def needs_labels(self) -> bool:
        """Whether only labelled rows can certify the promise."""
        return any(quantity.needs_labels for quantity, _ in self.limits)

    @property
    def split_seed(self) -> int | None:
        """Seed that the user passed for `split`. None if there is none."""
        return None

    def split(self, correct: Flags, score: Float | None = None) -> tuple[Flags, Flags]:
        """Split the rows into those for the threshold and those for the base map.

        All rows serve both purposes, because the score does not depend on labels.

        Returns
        -------
        is_for_threshold, is_for_base : arrays of bool of shape (n_rows,)
        """
        all_rows = np.ones(len(correct), dtype=bool)
        return all_rows, all_rows

    def select_base_map_rows(
        self, available: Flags, scores: Float, correct: Flags, certificate: Certificate
    ) -> Flags:
        """Return a mask of the rows on which the base map is fitted.

        These are all available rows, because a calibrator learns from errors, and accepted rows
        have few of them.
        """
        return available

    def with_delta_fraction(self, share: float) -> Self:
        """Return the promise with a share of its delta.

        Several promises hold together if their shares add up to one.
        """
        if share == 1.0 or self.delta is None:
            return self
        return self.with_delta(self.delta * share)

    def with_delta(self, delta: float | None) -> Self:
        """Return the promise with another delta."""
        return type(self)(**{**self.get_params(), "delta": delta})

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor, as scikit-learn's `clone` needs them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Return a copy with other parameters. A promise is frozen and does not change.

        The `set_params` of an estimator replaces its promise by this copy, so that a grid search
        over `promise__beta` works.
        """
        known = self.get_params(deep=False)
        for name in params:
            if name not in known:
                raise InputError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}."
                )
        return type(self)(**{**known, **params})

    def contradiction(self, certificate: Certificate) -> str | None:
        """Return what in a certificate from a file cannot be true, or None.

        Rule, limits and counts are recomputed from one another (`metacal.certification.audit`).

        Parameters
        ----------
        certificate : Certificate
            Certificate to check.

        Returns
        -------
        str or None
            Sentence without a full stop. None if no contradiction was found.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from metacal.promises.miscoverage import MaxMiscoverage
        >>> promise = MaxMiscoverage(0.05)
        >>> certificate = promise.certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
        >>> promise.contradiction(certificate)
        >>> promise.contradiction(replace(certificate, rule="paper-algorithm-1"))
        'the rule is none that this promise uses'
        """
        circumstances = certificate.circumstances
        counts_clusters = circumstances.counts_whole_units
        # The paper's split certifies on some of the rows. Every other rule uses all of them.
        splits_rows = self.guarantee == "none"
        max_folds = certificate.n_rows
        if splits_rows:
            max_folds = max(max_folds, circumstances.n_folds)
        contradiction = circumstances.find_contradiction(max_folds, self.delta)
        if contradiction is not None:
            return contradiction
        if not self._states_same(certificate):
            return format_promise_mismatch(self)
        rule_names = (WHOLE_CLUSTERS,) if counts_clusters else self.rules_allowed_in(certificate)
        if certificate.rule not in rule_names:
            return "the rule is none that this promise uses"

        withholds_rows = splits_rows or counts_clusters or circumstances.n_pilot_rows > 0
        contradiction = (
            find_traffic_contradiction(certificate, withholds_rows)
            or (certificate.stages and certificate.stages.find_contradiction(certificate))
            or find_score_value_contradiction(certificate)
            or find_label_contradiction(
                certificate, allows_missing_labels=get_sequential_procedure(self) is not None
            )
        )
        if contradiction:
            return contradiction
        tested_promise = self.with_delta_fraction(circumstances.delta_share)
        if counts_clusters:
            return find_contradiction_of_clusters(tested_promise, certificate)
        return find_contradiction(tested_promise, certificate)

    def _states_same(self, certificate: Certificate) -> bool:
        """Check whether a certificate has the limits, the delta and the guarantee of the promise."""
        guarantee = certificate.circumstances.weaken_guarantee(self.guarantee)
        stated = (certificate.limits, certificate.delta, certificate.guarantee)
        return stated == (self._expected_limits(certificate), self.delta, guarantee)

    def _expected_limits(self, certificate: Certificate) -> Limits:
        """Return the limits that a certificate of this promise has."""
        return self.limits


class SubgroupPromise(Promise):
    """Base class of the promises that can also be made for each subgroup (`PerClass`, `PerGroup`)."""

    @abstractmethod
    def procedure(self) -> SubgroupProcedure:
        """Return how calibration rows, or those of a subgroup, are certified."""
