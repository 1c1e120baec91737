"""Was a promise kept on labelled rows? The share that was measured, its exact interval, and one word."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from metacal.display import outward
from metacal.errors import InputError
from metacal.promises.certificate import Certificate
from metacal.promises.quantity import Quantity, quantity
from metacal.promises.rules import betting, bounds
from metacal.promises.rules.costs import Losses
from metacal.promises.rules.noninferiority import difference_interval


@dataclass(frozen=True)
class Verdict:
    """What labelled rows say about a promise.

    Attributes
    ----------
    quantity, target : Quantity, float
        What was promised.
    value, low, high, level : float or None
        What was measured, and its interval: Clopper-Pearson for a share, betting for a mean cost; None when no row
        speaks about it.
    kept : bool or None
        Whether the measured value keeps the target; where two things are promised, whether both do.
    refuted : bool
        Whether the whole interval lies on the wrong side of a target: more than bad luck.
    also : Verdict or None
        The second promise, where there are two.
    part : str or None
        The class or group that it is about; None: all rows.
    of_parts : tuple of Verdict
        Where each class or group has its own promise: every one that rows speak about, the strongest evidence against
        it first. Numbers and words are then those of the first, `kept` and `refuted` are about all.
    """

    quantity: Quantity
    target: float
    value: float | None
    low: float | None
    high: float | None
    level: float
    kept: bool | None
    refuted: bool
    also: Verdict | None = None
    part: str | None = None
    of_parts: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantity", quantity(self.quantity))

    @property
    def parts(self) -> tuple[Verdict, ...]:
        """One verdict per promised quantity, each about itself alone."""
        own = _measured(self.quantity, self.target, self.value, self.low, self.high, self.level)
        return (own,) if self.also is None else (own, self.also)

    @property
    def heads(self) -> tuple[Verdict, ...]:
        """What is said first: one for each quantity or, where there are parts, the one with the most against it."""
        return (replace(self, of_parts=self.of_parts[:0]),) if self.of_parts else self.parts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {**vars(self), "quantity": self.quantity.name}
        also, part, of_parts = (plain.pop(name) for name in ("also", "part", "of_parts"))
        plain |= {} if part is None else {"part": part}
        plain |= {"of_parts": [own.to_dict() for own in of_parts]} if of_parts else {}
        return plain if also is None else {**plain, "also": also.to_dict()}

    def __str__(self) -> str:
        if self.of_parts:
            bad = sum(not own.kept for own in self.of_parts)
            head = f"{len(self.of_parts) - bad:,} of {len(self.of_parts):,} kept"
            return f"{head}; worst {self.part}: {self.of_parts[0]._words()}"
        return "; ".join(part._words().rstrip(".") for part in self.parts) + "."

    @property
    def short(self) -> str:
        """What was measured and whether it keeps the promise, on one line."""
        return self._words()

    def _words(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return f"{self.quantity}: no row here speaks about it."
        measured = f"{self.quantity} {self.value:.4f} {outward(self.low, self.high)}"
        if self.kept:
            return f"{measured}: kept."
        bare = f"{measured}: not kept: {_digits(self.value, self.target)} {self.quantity.broken_sign} {self.target:g}"
        interval = f"the {100 * self.level:g}% interval"
        if self.refuted:
            return f"{bare}, and {interval} excludes {self.target:g}: these rows refute the promise."
        return f"{bare}, but {interval} includes {self.target:g}: these rows do not refute the promise."


def judge(
    certificate: Certificate,
    accept: NDArray[np.bool_],
    correct: NDArray[np.bool_] | None,
    level: float,
    losses: Losses | None = None,
    names: NDArray[Any] | None = None,
) -> Verdict:
    """Measure on labelled rows what the certificate promises.

    `correct` may be None where nothing is promised that needs labels; `losses`, what each row costs, is needed where a
    cost is promised (`Gate.losses`). `names` are the predicted classes or the groups of the rows, where each has its
    own promise: their intervals hold at this level for all of them together (Bonferroni).

    Examples
    --------
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> right = np.ones(100, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), right)
    >>> print(judge(certificate, np.arange(100) >= 4, right, 0.95))
    miscoverage 0.0400 [0.0110, 0.0993]: kept.
    """
    if certificate.parts is not None:
        if correct is None:
            raise InputError("what each class or group is promised needs labels; give them.")
        return _judge_parts(certificate, accept, correct, level, names)
    limits = certificate.limits
    first, *more = (_judge_one(promised, limit, accept, correct, level, losses) for promised, limit in limits)
    if not more:
        return first
    known = [part.kept for part in (first, *more)]
    kept = None if None in known and False not in known else all(known)
    return replace(first, kept=kept, refuted=first.refuted or more[0].refuted, also=more[0])


def _judge_parts(
    certificate: Certificate, accept: NDArray[np.bool_], correct: NDArray[np.bool_], level: float, names: Any
) -> Verdict:
    assert certificate.parts is not None
    ((promised, target),) = certificate.limits
    if names is None:
        raise InputError(f"this promise is for each {certificate.parts.by}; say which one every row belongs to.")
    own = [(part.name, accept[rows], correct[rows]) for part, rows in certificate.parts.rows(names)]
    own = [(name, kept, right) for name, kept, right in own if promised.share(kept, right).of]
    each = round(1.0 - (1.0 - level) / max(1, len(own)), 12)
    found = [
        (
            against(promised, target, kept, right),
            replace(_judge_one(promised, target, kept, right, each, None), part=name),
        )
        for name, kept, right in own
    ]
    parts = tuple(verdict for _, verdict in sorted(found, key=lambda pair: pair[0]))
    if not parts:
        return _judge_one(promised, target, accept & False, correct & False, level, None)
    kept, refuted = all(verdict.kept for verdict in parts), any(verdict.refuted for verdict in parts)
    return replace(parts[0], kept=kept, refuted=refuted, of_parts=parts)


def against(promised: Quantity, target: float, accept: NDArray[np.bool_], correct: NDArray[np.bool_] | None) -> float:
    """P(Bin(n, limit) >= bad): how likely so many bad rows are if the promise is just kept. Small is bad news.

    Examples
    --------
    >>> right = np.arange(20) >= 3
    >>> round(against(quantity("coverage accuracy"), 0.95, np.ones(20, dtype=bool), right), 4)
    0.0755
    """
    bad, n = promised.bad(accept, correct)
    # P(Bin(n, p) >= k) is the incomplete beta function I_p(k, n - k + 1).
    return float(betainc(bad, n - bad + 1, promised.limit_on_bad(target))) if bad else 1.0


def _judge_one(
    promised: Quantity,
    target: float,
    accept: NDArray[np.bool_],
    correct: NDArray[np.bool_] | None,
    level: float,
    losses: Losses | None,
) -> Verdict:
    if promised.paired:
        worse, better, n = differences(promised, losses)
        return _measured(promised, target, (worse - better) / n, *difference_interval(worse, better, n, level), level)
    if promised.mean:
        promised.flags(accept, correct)  # without labels nobody knows what an answer costs
        return _measured(promised, target, *_mean(costs_of(promised, accept, losses), target, level), level)
    hit, of = promised.share(accept, correct)
    if of == 0:
        return _measured(promised, target, None, None, None, level)
    return _measured(promised, target, *_share(hit, of, level), level)


def _share(hit: int, of: int, level: float) -> tuple[float, float, float]:
    """A share and its exact interval (Clopper & Pearson 1934)."""
    share, tail = hit / of, (1.0 - level) / 2.0
    low, high = bounds.clopper_pearson_lower(hit, of, tail), bounds.clopper_pearson_upper(hit, of, tail)
    return share, min(low, share), max(high, share)


@dataclass(frozen=True, eq=False)
class SharedCosts:
    """Costs as shares of the largest that there can be, and that one; their mean in the user's unit."""

    values: NDArray[np.float64]
    mean: float | None
    largest: float
    all_or_nothing: bool


def costs_of(promised: Quantity, accept: NDArray[np.bool_], losses: Losses | None) -> SharedCosts:
    """What each row costs that the quantity looks at, as a share of the most that one can cost.

    In random order, always the same: bets on rows that a file has sorted would see a drift that is none.
    """
    if losses is None:
        raise InputError(
            f"whether the {promised} is kept shows only where it is known what each row costs: give losses."
        )
    paid = np.random.default_rng(0).permutation(losses.of(promised, accept))
    mean = float(paid.mean()) if len(paid) else None
    return SharedCosts(paid / losses.largest, mean, losses.largest, losses.all_or_nothing)


def differences(promised: Quantity, losses: Losses | None) -> tuple[int, int, int]:
    """How many rows are answered worse than by the last model alone, how many better, of how many."""
    if losses is None:
        raise InputError(f"the {promised} of a cascade shows where all of its models have answered: give their tables.")
    return int((losses.answered > 0.0).sum()), int((losses.answered < 0.0).sum()), len(losses.answered)


def _mean(costs: SharedCosts, target: float, level: float) -> tuple[float | None, float | None, float | None]:
    """The mean cost and its interval, in the user's unit."""
    values, largest, mean = costs.values, costs.largest, costs.mean
    if mean is None:
        return None, None, None
    if costs.all_or_nothing:
        _, low, high = _share(int((values > 0.0).sum()), len(values), level)
        return mean, min(largest * low, mean), max(largest * high, mean)
    each, guess = (1.0 - level) / 2, min(0.5, target / largest)
    low, high = betting.lower_mean(values, each, guess), betting.upper_mean(values, each, guess)
    return mean, min(largest * low, mean), max(largest * high, mean)


def _measured(
    promised: Quantity, target: float, value: float | None, low: float | None, high: float | None, level: float
) -> Verdict:
    if value is None or low is None or high is None:
        return Verdict(promised, target, None, None, None, level, None, False)
    kept, refuted = promised.kept(value, target), promised.refuted(low, high, target)
    return Verdict(promised, target, value, low, high, level, kept, refuted)


def _digits(value: float, target: float) -> str:
    """As many digits as it takes to tell the value from the target."""
    return next((text for n in range(4, 17) if float(text := f"{value:.{n}f}") != target), repr(value))
