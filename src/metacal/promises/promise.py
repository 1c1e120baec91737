"""What every promise is: from two columns, ranking score and whether the prediction is right, to a `Certificate`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InfeasibleTargetError, InputError
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate, Guarantee, accepts
from metacal.promises.contradiction import impossible_labels, impossible_stages, other_promise
from metacal.promises.notes import Note
from metacal.promises.quantity import COVERAGE_ACCURACY, MISCOVERAGE, Limits
from metacal.rows.validate import fraction

if TYPE_CHECKING:
    from metacal.promises.sequential.answers import Answers, Standing

Scores = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Promise(ABC):
    """A promise: a dataclass of its limits and `delta`, which says four things and inherits the rest.

    A subclass is a `@dataclass` with

    - `limits`: what is promised, each quantity with its limit;
    - `rules`: the names of the rules that its certificates may have (`words.register_rule`), the usual one first;
    - `certify(scores, correct)`: the threshold, given to `_certificate`; InfeasibleTargetError where the rows cannot
      carry the target;
    - `impossible(certificate)`: what in a certificate's counts cannot be, whatever the rows were.

    `split`, `for_base` and `guarantee` are overridden where threshold and calibrator must not share rows, or where
    nothing is guaranteed. A row in `promises.kinds` makes it a kind that files can hold.
    """

    #: The calibrator that goes with it, by its name on the command line; None: the usual one.
    calibrator: ClassVar[str | None] = None
    #: The rules that certify it of a cascade, without people in it and with; none where there are none.
    cascade_rules: ClassVar[tuple[str, ...]] = ()
    #: The promise fails with at most this probability; None: it holds in expectation.
    delta: float | None

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it."""

    @property
    @abstractmethod
    def rules(self) -> Sequence[str]:
        """The rules that its certificates may have, the usual one first."""

    @abstractmethod
    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """The threshold and its certificate."""

    @abstractmethod
    def impossible(self, certificate: Certificate) -> str | None:
        """What in the counts of a certificate cannot be under this promise; None when all agrees."""

    @property
    def guarantee(self) -> Guarantee:
        """What its certificates call it."""
        return "in expectation" if self.delta is None else "certified"

    def split(self, correct: Flags) -> tuple[Flags, Flags]:
        """All rows for both purposes: the score looks at no label, so threshold and calibrator may share them."""
        everything = np.ones(len(correct), dtype=bool)
        return everything, everything

    def for_base(self, available: Flags, scores: Scores, correct: Flags, certificate: Certificate) -> Flags:
        """All of them: a calibrator learns from errors, and accepted rows have few."""
        return available

    def contradiction(self, certificate: Certificate) -> str | None:
        """What in a certificate is not as this promise makes it, or cannot be true; None when all agrees."""
        rules, stages = self.rules, certificate.stages
        if stages is not None:
            rules = self.cascade_rules[stages.people :][:1]  # without people in it, or with
        return (
            other_promise(
                certificate, self, limits=self.limits, delta=self.delta, guarantee=self.guarantee, rules=rules
            )
            or impossible_labels(certificate, some_will_do=self.walks)
            or impossible_stages(certificate)
            or self.at(certificate.circumstances.share).impossible(certificate)
        )

    @property
    def walks(self) -> bool:
        """Whether labels from the surest row upward certify it step by step (`metacal.promises.sequential.answers`)."""
        return False

    def standing(self, answers: Answers) -> Standing:
        """Where labels that arrive have led; a promise that does not walk needs all of them."""
        from metacal.promises.sequential.answers import Standing

        n = len(answers.scores)
        if not answers.complete:
            return Standing(None, np.inf, n)
        try:
            threshold = self.certify_answers(answers).threshold
        except InfeasibleTargetError:
            return Standing(None, None, n)
        return Standing(threshold, threshold, n)

    def certify_answers(self, answers: Answers) -> Certificate:
        """What labels that arrive certify by now; InfeasibleTargetError where it is nothing."""
        n, labels = len(answers.scores), answers.labels
        if not answers.complete:
            target = self.limits[0][1]
            raise InfeasibleTargetError(
                f"{type(self).__name__} is certified once all {n:,} rows that were drawn have a label; "
                f"{n - labels:,} are missing.",
                target=target,
                best=None,
                rows_needed=n,
            )
        return replace(self.certify(answers.scores, answers.right == 1), labels=n)

    def at(self, share: float) -> Self:
        """The same promise with a share of its delta: several of them hold together where the shares add up to one.

        Examples
        --------
        >>> from metacal.promises.rules.miscoverage import MaxMiscoverage
        >>> MaxMiscoverage(0.05).at(0.5)
        MaxMiscoverage(alpha=0.05, delta=0.05)
        """
        if share == 1.0 or self.delta is None:
            return self
        return type(self)(**{**self.get_params(), "delta": self.delta * share})

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, so that scikit-learn can clone it and search over it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place, checked as in the constructor."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}.")
            setattr(self, name, value)
        type(self)(**self.get_params())
        return self

    @property
    def needs_labels(self) -> bool:
        """Whether it can be certified only from labelled rows."""
        return any(quantity.needs_labels for quantity, _ in self.limits)

    def _certificate(
        self, scores: Scores, correct: Flags | None, threshold: float, notes: tuple[Note, ...] = ()
    ) -> Certificate:
        """A certificate for `threshold`, settled, with what the calibration rows look like under it.

        The scores are grid points: settling the threshold moves it past none of them. Rows without labels have no
        `correct`.
        """
        threshold = RELATIVE.settled(threshold)
        accept = accepts(scores, threshold)
        n_accepted = int(np.count_nonzero(accept))
        outcome = Outcome(
            n_rows=len(scores),
            n_correct=0 if correct is None else int(np.count_nonzero(correct)),
            n_accepted=n_accepted,
            n_correct_accepted=0 if correct is None else int(np.count_nonzero(accept & correct)),
            highest_accepted=float(np.where(accept, scores, -np.inf).max()) if n_accepted else None,
            lowest_rejected=float(np.where(accept, np.inf, scores).min()) if n_accepted < len(scores) else None,
        )
        return self._certified(threshold, outcome, notes, labelled=correct is not None)

    def _certified(
        self, threshold: float, outcome: Outcome, notes: tuple[Note, ...] = (), *, labelled: bool = True
    ) -> Certificate:
        """The same where it is known what the rows look like under the threshold, which is settled."""
        (quantity, target), *second = self.limits
        return Certificate(
            quantity=quantity,
            target=target,
            delta=self.delta,
            guarantee=self.guarantee,
            threshold=threshold,
            rule=self.rules[0],
            **outcome._asdict(),
            notes=notes,
            max_miscoverage=second[0][1] if second else None,
            labelled=labelled,
        )


class Outcome(NamedTuple):
    """What calibration rows look like under a threshold, as a certificate has it."""

    n_rows: int
    n_correct: int
    n_accepted: int
    n_correct_accepted: int
    highest_accepted: float | None
    lowest_rejected: float | None


def promised(*, beta: float | None = None, alpha: float | None = None) -> Limits:
    """The limits of a promise on the accuracy, on the miscoverage, or on both, in the order of certificates.

    Examples
    --------
    >>> promised(alpha=0.1, beta=0.97)
    (('coverage accuracy', 0.97), ('miscoverage', 0.1))
    """
    first: Limits = () if beta is None else ((COVERAGE_ACCURACY, float(beta)),)
    return first if alpha is None else (*first, (MISCOVERAGE, float(alpha)))


def check_shares(promise: Promise, *names: str) -> None:
    """Raise unless each of these parameters is a number strictly between 0 and 1; `delta` may be None."""
    for name in names:
        if name != "delta" or promise.delta is not None:
            fraction(name, getattr(promise, name))


def require_some_correct(correct: Flags) -> None:
    """Raise when the classifier got every calibration row wrong."""
    if not correct.any():
        raise none_correct(len(correct))


def none_correct(n_rows: int) -> InputError:
    """What is said when the classifier got every calibration row wrong."""
    return InputError(
        f"no calibration row is classified correctly (n_samples={n_rows}): nothing can be promised. "
        "Check that the labels and the columns use the same class order."
    )


def columns(scores: Any, correct: Any, *, part: bool = False) -> tuple[Scores, Flags]:
    """The two columns a promise sees, checked; the scores on the grid, where `metacal.scores.named` puts its own.

    Of rows that are only a part of all, none need be correct.
    """
    scores, correct = np.asarray(scores, dtype=np.float64), np.asarray(correct)
    if scores.ndim != 1 or scores.shape != correct.shape or correct.dtype != bool:
        raise InputError(
            f"certify needs one score and one boolean per row; got shapes {scores.shape} and {correct.shape} "
            f"({correct.dtype})."
        )
    if np.isnan(scores).any():
        raise InputError("certify needs a score for every row; some are NaN.")
    if not part:
        require_some_correct(correct)
    return RELATIVE.rounded(scores), correct
