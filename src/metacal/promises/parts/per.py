"""A promise in parts: one threshold for each class or group, from rows that are looked at part by part.

Given how many rows fall into each part, the rows of a part are i.i.d., and those of two parts independent. So whatever
certifies a threshold for all rows certifies one for a part, and how delta is shared may depend on these counts.

*Together.* Parts that cannot pass a test at their share, however few errors they have, get none: with the counts in
falling order, the k largest share delta where k is the largest number whose k-th count is enough for a test at delta/k.
Each is tested at delta/k, so the union bound says that all promises hold together with probability 1 - delta.

*Recycling* (Holm's step-down). A part whose every test has passed accepts everything and needs no level; what is left
is shared by those still open, which are tested again, at the same ranks, at delta over their number. It holds: call a
part vulnerable if a threshold that breaks the promise is among its tests, and let there be v of them. A test that
passes at one level passes at any higher one, and at level l a breaking test of a vulnerable part passes with
probability at most l. So with probability 1 - v·(delta/v) none does at delta/v. On that event no vulnerable part ever
has all its tests passed: the levels that are passed on are those of other parts, at most delta/v is reached, and no
breaking test passes.

*Each.* Every part is tested at delta. Each promise then fails with probability at most delta, and the expected share
of broken promises, of however many, is at most delta.

*Pooled.* Which parts have few rows, less than twice what a test takes, is asked of every fourth row alone; these parts
become one, which is tested on its other rows. Given the first quarter, the other rows in the pool are i.i.d. from the
pool's own mixture: the promise holds for the pooled parts taken together, and for no single one of them. (Were the pool
chosen by all its counts, parts that happen to have few rows would go into it, and its rows would be no sample of what
comes.)

Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 1979.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InfeasibleTargetError, InputError
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.contradiction import SLACK
from metacal.promises.parts.part import By, Name, Part, Parts, Shares
from metacal.promises.promise import Flags, Promise, Scores, columns
from metacal.promises.quantity import Limits
from metacal.promises.shares import at_least

#: Every so many rows one that says which parts are pooled: those with fewer than twice the rows that a test takes at
#: least. So few pass only where hardly any of them is wrong.
_SCOUTS = 4
_ENOUGH = 2


class Settled(NamedTuple):
    """A part's threshold, None where no test passed, and whether every test did."""

    threshold: float | None
    complete: bool


@runtime_checkable
class InParts(Protocol):
    """What a promise must be able to do to be made for each part."""

    delta: float | None
    #: The threshold of a part that has too few rows, or fails: -inf, or +inf where accepting breaks nothing.
    unproven: float

    @property
    def limits(self) -> Limits:
        """What is promised."""
        ...

    @property
    def rules(self) -> Sequence[str]:
        """The rules that its certificates may have, the usual one first."""
        ...

    def fewest(self, level: float) -> int:
        """How many rows that it counts a test at this level takes at least."""
        ...

    def counted(self, correct: Flags) -> int:
        """How many of these rows it counts."""
        ...

    def settle(self, scores: Scores, correct: Flags, level: float, planned: float) -> Settled:
        """The threshold at a level, by tests that were laid out for the planned one."""
        ...

    def lacking(self, scores: Scores, correct: Flags, level: float) -> tuple[float | None, int | None]:
        """The limit that rows which fail could carry, and how many rows would do."""
        ...

    def at(self, share: float) -> Any:
        """The same promise with a share of its delta."""
        ...

    def part_impossible(self, part: Part) -> str | None:
        """What in the counts of a part cannot be; None when all agrees."""
        ...


@dataclass
class Parted(Promise):
    """A promise for each part: a threshold each, delta shared or for each."""

    promise: Any
    shares: Shares = "together"
    fallback: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.promise, InParts) or isinstance(self.promise, type):
            raise InputError(
                f"{type(self).__name__} takes MinAccuracy(...) or MaxMiscoverage(...); got {self.promise!r}."
            )
        if self.promise.delta is None:
            raise InputError(
                f"{type(self).__name__} shares a delta; give the promise one, say delta=0.1: in expectation nothing "
                "can be said of all parts."
            )
        if self.shares not in ("together", "each"):
            raise InputError(f"shares must be 'together' or 'each', got {self.shares!r}.")
        if self.fallback not in (None, "pooled"):
            raise InputError(f"fallback must be None or 'pooled', got {self.fallback!r}.")

    @property
    @abstractmethod
    def by(self) -> By:
        """What makes the parts."""

    @property
    def delta(self) -> float:  # type: ignore[override]
        """The promise fails with at most this probability: all together, or each."""
        return float(self.promise.delta)

    @property
    def limits(self) -> Limits:
        """What is promised of each part."""
        return self.promise.limits  # type: ignore[no-any-return]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rule of its certificates: that of the promise, for each part."""
        return (self.promise.rules[0],)

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """Two columns do not say which part a row belongs to."""
        raise InputError(
            f"{type(self).__name__} certifies rows of known {self.by}: call certify_parts, or fit a MetaCal."
        )

    def certify_parts(
        self, scores: Scores, correct: Flags, codes: NDArray[np.intp], names: Sequence[Name]
    ) -> Certificate:
        """A threshold for each part; `codes` says which of the `names` each row belongs to."""
        scores, correct = columns(scores, correct)
        members = self._pooled(correct, codes, len(names))
        chosen = [_rows_of(codes, own, len(own) > 1) for own in members]
        table = [(scores[rows], correct[rows]) for rows in chosen]
        settled = settle_parts(self.promise, table, self.delta, self.shares)
        spare = self._level_of_one_more(sum(level is not None for _, level in settled))
        parts = tuple(
            _part(self.promise, tuple(names[i] for i in own), *pair, *found, spare)
            for own, pair, found in zip(members, table, settled)
        )
        if all(part.status == "always rejected" for part in parts):
            raise self._infeasible(parts, len(scores))
        return self._with_parts(scores, correct, codes, names, Parts(self.by, self.shares, parts))

    def impossible(self, certificate: Certificate) -> str | None:
        """What in the parts cannot be; None when all agrees."""
        parts = certificate.parts
        if parts is None or parts.by != self.by or parts.shares != self.shares:
            return f"it does not belong to the promise {self!r}; fit again"
        if parts.pooled and self.fallback != "pooled":
            return f"{parts.plural} are pooled, which was not asked for"
        for part in parts.items:
            if part.status != "always rejected" and (found := self.promise.part_impossible(part)) is not None:
                return f"{self.by} {part.name}: {found}"
        return self._impossible_levels(parts)

    def at(self, share: float) -> Self:
        """The same with a share of delta."""
        return replace(self, promise=self.promise.at(share))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments and, as scikit-learn has it, those of the promise inside."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        inner = self.promise.get_params() if deep and hasattr(self.promise, "get_params") else {}
        return {**own, **{f"promise__{name}": value for name, value in inner.items()}}

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place, those of the promise as `promise__beta`."""
        inner = {name.removeprefix("promise__"): params.pop(name) for name in [*params] if name.startswith("promise__")}
        known = self.get_params(deep=False)
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}.")
            setattr(self, name, value)
        if inner:
            self.promise.set_params(**inner)
        type(self)(**self.get_params(deep=False))
        return self

    def _pooled(self, correct: Flags, codes: NDArray[np.intp], n_parts: int) -> list[tuple[int, ...]]:
        """The numbers of the classes or groups in each part; those with too few rows are one, the last."""
        alone: list[tuple[int, ...]] = [(i,) for i in range(n_parts)]
        if self.fallback is None:
            return alone
        level = self.delta / n_parts if self.shares == "together" else self.delta
        scouts = np.arange(len(codes)) % _SCOUTS == 0
        few = [
            i
            for i in range(n_parts)
            if _SCOUTS * self.promise.counted(correct[scouts & (codes == i)]) < _ENOUGH * self.promise.fewest(level)
        ]
        return alone if len(few) < 2 else [own for own in alone if own[0] not in few] + [tuple(few)]

    def _level_of_one_more(self, tested: int) -> float:
        """What a part that has no share would be tested at."""
        return self.delta if self.shares == "each" else self.delta / (tested + 1)

    def _with_parts(
        self, scores: Scores, correct: Flags, codes: NDArray[np.intp], names: Sequence[Name], parts: Parts
    ) -> Certificate:
        own = {name: part.threshold for part in parts.items for name in part.names}
        accept = accepts(scores, np.array([own[name] for name in names])[codes])
        whole = self._certificate(scores, correct, -math.inf)
        return replace(
            whole,
            n_accepted=int(accept.sum()),
            n_correct_accepted=int((accept & correct).sum()),
            lowest_rejected=None,
            parts=parts,
        )

    def _infeasible(self, parts: Sequence[Part], n_rows: int) -> InfeasibleTargetError:
        (quantity, target), *_ = self.limits
        needed = [part.rows_needed for part in parts if part.rows_needed is not None]
        best = max((part.best for part in parts if part.best is not None), default=None)
        can = "" if best is None else f" the best that one of them certifies is {best:.4f};"
        do = (
            f"lower the target, or bring about {min(needed):,} rows of a {self.by}"
            if needed
            else "lower the target: more rows would not help"
        )
        return InfeasibleTargetError(
            f"{quantity} {target:g} cannot be certified for any {self.by} of these {n_rows:,} rows ({len(parts)} of "
            f"them) at {at_least(1.0 - self.delta)} confidence;{can} {do}.",
            target=target,
            best=best,
            rows_needed=min(needed, default=None),
        )

    def _impossible_levels(self, parts: Parts) -> str | None:
        levels = [part.delta for part in parts.items if part.delta is not None]
        still = sum(part.delta is not None and not part.accepts_everything for part in parts.items)
        most = self.delta if self.shares == "each" else self.delta / max(1, still)
        if any(not 0.0 < level <= SLACK * most for level in levels):
            return f"a {self.by} was tested at more than its share of delta {self.delta:g}"
        return None


def shared_by(counts: Sequence[int], promise: InParts, delta: float, shares: Shares) -> list[int]:
    """The parts that have a share of delta, by their counts alone: those that a test at it can pass.

    Examples
    --------
    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> shared_by([400, 20, 90, 60], MinAccuracy(0.95), 0.1, "together")
    [0, 2]
    """
    if shares == "each":
        return [i for i, n in enumerate(counts) if n >= promise.fewest(delta)]
    order = sorted(range(len(counts)), key=lambda i: -counts[i])
    share = sum(counts[part] >= promise.fewest(delta / (k + 1)) for k, part in enumerate(order))
    return sorted(order[:share])


def settle_parts(
    promise: InParts, table: Sequence[tuple[Scores, Flags]], delta: float, shares: Shares
) -> list[tuple[Settled, float | None]]:
    """Threshold and level of each part; a level of None where there was nothing to test."""
    found: list[tuple[Settled, float | None]] = [(Settled(None, False), None)] * len(table)
    still = shared_by([promise.counted(correct) for _, correct in table], promise, delta, shares)
    planned = level = delta if shares == "each" else delta / max(1, len(still))
    while still:
        for i in still:
            found[i] = promise.settle(*table[i], level, planned), level
        left = [i for i in still if not found[i][0].complete]
        if shares == "each" or len(left) == len(still):
            break
        still, level = left, delta / max(1, len(left))
    return found


def _rows_of(codes: NDArray[np.intp], own: tuple[int, ...], pooled: bool) -> Flags:
    if not pooled:
        return np.asarray(codes == own[0])
    return np.asarray(np.isin(codes, own) & (np.arange(len(codes)) % _SCOUTS != 0))


def _part(
    promise: InParts,
    names: tuple[Name, ...],
    scores: Scores,
    correct: Flags,
    settled: Settled,
    level: float | None,
    spare: float,
) -> Part:
    threshold = RELATIVE.settled(promise.unproven if settled.threshold is None else settled.threshold)
    accept = accepts(scores, threshold)
    lacking: tuple[float | None, int | None] = (None, None)
    if settled.threshold is None:
        lacking = promise.lacking(scores, correct, spare if level is None else level)
    return Part(
        names,
        len(scores),
        int(correct.sum()),
        int(accept.sum()),
        int((accept & correct).sum()),
        threshold,
        float(scores[accept].max()) if accept.any() else None,
        float(scores[~accept].min()) if not accept.all() else None,
        level,
        *lacking,
    )
