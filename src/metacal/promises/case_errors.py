"""Promises about cases: MaxCaseErrors, MinCaseRecall and MaxErrorsPerCase.

A *case* is a document, a tweet or a run of an agent. It has *items*, such as the fields of the
document, each with a score and perhaps with a type (`groups=`) that has its own threshold.
`ScoreGate.fit` takes the case of each item as `cases=`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from metacal.certificates.quantities import (
    AUTOMATED_CASE_ERRORS,
    CASE_ERRORS,
    CASE_RECALL,
    ERRORS_PER_CASE,
)
from metacal.certificates.quantity import Limits, Quantity
from metacal.certification.case_procedures import (
    CASE_BLOCKS,
    CASE_ORDER_STATISTIC,
    CaseCutoffProcedure,
)
from metacal.certification.case_sequence_procedure import (
    CASE_BETS,
    CASE_SEQUENCE,
    CaseSequenceProcedure,
)
from metacal.errors import InputError, UnsupportedPromiseError
from metacal.promises.promise import Promise
from metacal.rows.arrays import check_choice, check_fraction

# Users may declare at most this number as the largest number of errors per case.
_MAX_LARGEST = 10**6


class CasePromise(Promise):
    """Base class of the promises about cases."""

    # Whether the scores of all item types are on the same scale.
    same_scale: bool

    @property
    def largest_number_of_errors(self) -> int | None:
        """Largest number of errors that counts in a case, or None without such a cap."""
        return None


@dataclass(frozen=True)
class MaxCaseErrors(CasePromise):
    """At most a share `limit` of the cases contains an incorrect accepted item.

    Parameters
    ----------
    limit : float
        Largest share of cases with an incorrect accepted item.

    delta : float or None, default=0.1
        The promise fails with at most this probability over the calibration cases. If None, it holds
        in expectation, which is not available among automated cases.

    among : {"all", "automated"}, default="all"
        The cases that the share is about: all cases, or the cases with an accepted item.

    same_scale : bool, default=False
        Whether the scores of all item types have one scale, because one model computes them. Then
        fewer cases are needed to compare the types.

    Notes
    -----
    An item is accepted iff its score is strictly above the threshold of its type. An item without a
    score, or of a type that the calibration cases do not have, is never accepted. A case without
    items, or without accepted ones, has no error, and counts among all cases.

    With item types, at least a fifth of the cases only fit the scale on which the types are compared.
    Among automated cases, a third of the cases fixes the thresholds to test.
    `metacal.certification.case_cutoffs` and `case_sequences` have the rules and their proofs.

    Examples
    --------
    >>> import numpy as np
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> document = np.repeat(np.arange(400), 3)
    >>> field = np.tile(["date", "name", "total"], 400)
    >>> score = rng.random(1200)
    >>> correct = rng.random(1200) < score
    >>> gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=document, groups=field)
    >>> gate.certificate_.statement
    'At most 10% of all cases contain an incorrect accepted item, with 90% confidence.'
    >>> counts = gate.certificate_.cases
    >>> counts.n_tested, counts.n_broken, counts.n_pilot
    (312, 23, 88)
    """

    limit: float
    delta: float | None = 0.1
    among: Literal["all", "automated"] = "all"
    same_scale: bool = False

    quantities: ClassVar = {"limit": CASE_ERRORS}
    rules: ClassVar = (CASE_ORDER_STATISTIC, CASE_ORDER_STATISTIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("among", self.among, "all", "automated")
        if self.among == "automated":
            _require_delta(self)

    @property
    def limits(self) -> Limits:
        """Quantity that the promise limits, with its limit."""
        return ((self._quantity, float(self.limit)),)

    @property
    def rule(self) -> str:
        """Name of the rule for one type of items."""
        return self.possible_rules[0]

    @property
    def possible_rules(self) -> tuple[str, ...]:
        """Names of the rules that may certify the promise, depending on the item types."""
        if self.among == "automated":
            return (CASE_SEQUENCE,)
        return (CASE_ORDER_STATISTIC, CASE_BLOCKS)

    @property
    def _quantity(self) -> Quantity:
        """Quantity that the promise limits."""
        return AUTOMATED_CASE_ERRORS if self.among == "automated" else CASE_ERRORS

    def procedure(self) -> CaseCutoffProcedure | CaseSequenceProcedure:
        """Return the procedure that certifies the promise on cases of items."""
        procedure = CaseCutoffProcedure if self.among == "all" else CaseSequenceProcedure
        return procedure(self._quantity, self.limit, same_scale=self.same_scale)


@dataclass(frozen=True)
class MinCaseRecall(CasePromise):
    """Every true item is accepted in at least a share `target` of the cases with one.

    A correct item is a true one, such as a word that is a name and has to be masked. Accepted items
    are those that the gate finds. A true item that no candidate covers is passed with the score NaN.
    It counts as missed.

    Parameters
    ----------
    target : float
        Smallest share of the cases with a true item in which no true item is missed.

    delta : float or None, default=0.1
        The promise fails with at most this probability over the calibration cases. If None, it holds
        in expectation.

    same_scale : bool, default=False
        Whether the scores of all item types have one scale, because one model computes them.

    Notes
    -----
    An item is accepted iff its score is at least the threshold of its type. Every item with a score is
    accepted if its type is one that the calibration cases do not have, because a true item of that
    type must not be missed. If more cases have a true item without a score than the promise
    tolerates, `fit` raises an `InfeasibleTargetError` with their number.

    Examples
    --------
    >>> import numpy as np
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> tweet = np.repeat(np.arange(400), 10)
    >>> is_name = rng.random(4000) < 0.1
    >>> score = rng.normal(size=4000) + 3 * is_name
    >>> gate = mc.ScoreGate(mc.MinCaseRecall(0.9)).fit(score, is_name, cases=tweet)
    >>> print(gate.certificate_.statement)
    In at least 90% of the cases with a true item, every true item is accepted, with 90% confidence.
    """

    target: float
    delta: float | None = 0.1
    same_scale: bool = False

    quantities: ClassVar = {"target": CASE_RECALL}
    rules: ClassVar = (CASE_ORDER_STATISTIC, CASE_ORDER_STATISTIC)

    @property
    def possible_rules(self) -> tuple[str, ...]:
        """Names of the rules that may certify the promise, depending on the item types."""
        return (CASE_ORDER_STATISTIC, CASE_BLOCKS)

    def procedure(self) -> CaseCutoffProcedure:
        """Return the procedure that certifies the promise on cases of items."""
        return CaseCutoffProcedure(CASE_RECALL, self.target, same_scale=self.same_scale)


@dataclass(frozen=True)
class MaxErrorsPerCase(CasePromise):
    """A case contains at most `limit` incorrect accepted items on average.

    Parameters
    ----------
    limit : float
        Largest mean number of incorrect accepted items of a case.

    largest : int
        Largest number of incorrect accepted items that counts in a case. A case with more counts as one
        with this number. Without it, a rare case with very many errors could not be excluded. If it
        is large, `MaxCaseErrors` accepts more.

    delta : float, default=0.1
        The promise fails with at most this probability over the calibration cases.

    same_scale : bool, default=False
        Whether the scores of all item types have one scale, because one model computes them.

    Examples
    --------
    >>> MaxErrorsPerCase(0.1)
    Traceback (most recent call last):
    metacal.errors.InputError: MaxErrorsPerCase requires largest, the largest number of errors ...
    """

    limit: float
    largest: int | None = None
    delta: float | None = 0.1
    same_scale: bool = False

    quantities: ClassVar = {"limit": ERRORS_PER_CASE}
    rules: ClassVar = (CASE_BETS,)

    def __post_init__(self) -> None:
        _require_delta(self)
        check_fraction("delta", self.delta)
        if self.largest is None:
            raise InputError(
                "MaxErrorsPerCase requires largest, the largest number of errors that one case"
                " can count. Pass, for example, the number of fields: MaxErrorsPerCase(0.1,"
                " largest=4)."
            )
        is_integer = isinstance(self.largest, int) and not isinstance(self.largest, bool)
        if not is_integer or not 1 <= self.largest <= _MAX_LARGEST:
            raise InputError(
                f"largest must be an integer between 1 and {_MAX_LARGEST:,}, but got"
                f" {self.largest!r}."
            )
        is_number = isinstance(self.limit, int | float) and not isinstance(self.limit, bool)
        if not is_number or not 0.0 < self.limit < self.largest:
            raise InputError(
                f"limit must be a number between 0 and largest={self.largest}, but got"
                f" {self.limit!r}."
            )

    @property
    def largest_number_of_errors(self) -> int | None:
        """Largest number of errors that counts in a case."""
        return self.largest

    def procedure(self) -> CaseSequenceProcedure:
        """Return the procedure that certifies the promise on cases of items."""
        return CaseSequenceProcedure(
            ERRORS_PER_CASE, self.limit, same_scale=self.same_scale, max_counted_errors=self.largest
        )


def _require_delta(promise: CasePromise) -> None:
    """Raise InputError if a promise that is certified by tests has no delta."""
    if promise.delta is None:
        raise UnsupportedPromiseError(
            f"{type(promise).__name__} requires a delta, but got None. Pass, for example,"
            " delta=0.1."
        )
