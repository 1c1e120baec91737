"""Was a promise kept on labelled rows? What was measured, its exact interval, its exact test, and one word."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from metacal.display import outward
from metacal.errors import InputError
from metacal.promises.quantity import Quantity, quantity
from metacal.promises.rules import betting, bounds
from metacal.promises.rules.noninferiority import GAMMA, difference_interval, kept_p_value
from metacal.rows.draws import generator

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate
    from metacal.promises.rules.costs import Losses

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Seen:
    """What rows say about one promised limit: `bad` of `n` rows count against it.

    Of a mean cost `bad` rows cost anything, `total` is what all of them cost, and `limit` and what is `noticed` are
    shares of the `largest` cost of a row; where costs are of many sizes, `costs` has them as such shares, in random
    order, always the same: bets on rows that a file has sorted would see a drift that is none. Of the loss of a cascade
    `bad` rows are answered worse than by its last model alone, and as many as `better` better.
    """

    quantity: Quantity
    target: float
    value: float | None
    bad: int
    n: int
    largest: float = 1.0
    total: float | None = None
    costs: NDArray[np.float64] | None = None
    better: int | None = None

    @classmethod
    def of(
        cls, promised: Quantity, target: float, accept: Flags, correct: Flags | None, losses: Losses | None = None
    ) -> Seen:
        """What these rows say; `losses`, what each costs, is needed where a cost or a loss is promised."""
        if promised.paired:
            if losses is None:
                raise InputError(
                    f"the {promised} of a cascade shows where all of its models have answered: give their tables."
                )
            worse, better = (int((sign * losses.answered > 0.0).sum()) for sign in (1.0, -1.0))
            n = len(losses.answered)
            return cls(promised, target, (worse - better) / n, worse, n, better=better)
        if not promised.mean:
            (hit, n), (bad, _) = promised.share(accept, correct), promised.bad(accept, correct)
            return cls(promised, target, hit / n if n else None, bad, n)
        promised.flags(accept, correct)  # without labels nobody knows what an answer costs
        if losses is None:
            raise InputError(
                f"whether the {promised} is kept shows only where it is known what each row costs: give losses."
            )
        paid = generator(0).permutation(losses.of(promised, accept))
        mean = float(paid.mean()) if len(paid) else None
        costs, bad = paid / losses.largest, int((paid > 0.0).sum())
        total = float(losses.largest * costs.sum())
        sizes = None if losses.all_or_nothing else costs
        return cls(promised, target, mean, bad, len(paid), losses.largest, total, sizes)

    @property
    def limit(self) -> float:
        """The largest share of bad rows that is allowed."""
        return self.quantity.limit_on_bad(self.target) / self.largest

    @property
    def counted(self) -> bool:
        """Whether bad rows alone are counted, so that tests are binomial."""
        return self.costs is None and self.better is None

    def interval(self, level: float) -> tuple[float, float]:
        """What the truth lies between: Clopper-Pearson for a share, bets for a mean cost, exact tests for a loss."""
        assert self.value is not None
        if self.better is not None:
            return difference_interval(self.bad, self.better, self.n, level)
        each, guess = (1.0 - level) / 2.0, min(0.5, self.limit)
        if self.costs is None:
            hit = self.bad if self.quantity.at_most else self.n - self.bad
            low = bounds.clopper_pearson_lower(hit, self.n, each)
            high = bounds.clopper_pearson_upper(hit, self.n, each)
        else:
            low, high = betting.lower_mean(self.costs, each, guess), betting.upper_mean(self.costs, each, guess)
        return min(self.largest * low, self.value), max(self.largest * high, self.value)

    def p_value(self, level: float) -> float:
        """How likely so many bad rows, or so much, are if the promise is just kept: P(Bin(n, limit) >= bad).

        Small is bad news. Bets stake what suits a test at `level`.

        >>> right = np.arange(20) >= 3
        >>> seen = Seen.of(quantity("coverage accuracy"), 0.95, np.ones(20, dtype=bool), right)
        >>> round(seen.p_value(0.05), 4)
        0.0755
        """
        if self.better is not None:
            return kept_p_value(self.bad, self.better, self.n, self.target, GAMMA * level)
        if self.costs is not None:
            return betting.p_value_above(self.costs, self.limit, level) if self.limit < 1.0 else 1.0
        # P(Bin(n, p) >= k) is the incomplete beta function I_p(k, n - k + 1).
        return float(betainc(self.bad, self.n - self.bad + 1, self.limit)) if self.bad else 1.0

    def noticed(self, level: float) -> float | None:
        """The smallest rate of bad rows that n rows refute with 80% chance; None when no count would refute."""
        if not self.counted:
            return None
        n, counts = self.n, range(1, self.n + 1)
        fewest = 1 + bisect_left(counts, True, key=lambda k: betainc(k, n - k + 1, self.limit) <= level)
        return float(betaincinv(fewest, n - fewest + 1, 0.8)) if fewest <= n else None


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
    seen : Seen or None
        The rows behind it.
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
    seen: Seen | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantity", quantity(self.quantity))

    @classmethod
    def of(cls, seen: Seen, level: float, part: str | None = None) -> Verdict:
        """What was measured, with its interval at this level."""
        promised, target, value = seen.quantity, seen.target, seen.value
        if value is None:
            return cls(promised, target, None, None, None, level, None, False, part=part, seen=seen)
        low, high = seen.interval(level)
        kept, refuted = promised.kept(value, target), promised.refuted(low, high, target)
        return cls(promised, target, value, low, high, level, kept, refuted, part=part, seen=seen)

    @property
    def parts(self) -> tuple[Verdict, ...]:
        """One verdict per promised quantity, each about itself alone."""
        if self.also is None:
            return (self,)
        assert self.seen is not None
        return Verdict.of(self.seen, self.level), self.also

    @property
    def heads(self) -> tuple[Verdict, ...]:
        """What is said first: one for each quantity or, where there are parts, the one with the most against it."""
        return (replace(self, of_parts=self.of_parts[:0]),) if self.of_parts else self.parts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {**vars(self), "quantity": self.quantity.name}
        also, part, of_parts, _ = (plain.pop(name) for name in ("also", "part", "of_parts", "seen"))
        plain |= {} if part is None else {"part": part}
        plain |= {"of_parts": [own.to_dict() for own in of_parts]} if of_parts else {}
        return plain if also is None else {**plain, "also": also.to_dict()}

    def __str__(self) -> str:
        if self.of_parts:
            bad = sum(not own.kept for own in self.of_parts)
            head = f"{len(self.of_parts) - bad:,} of {len(self.of_parts):,} kept"
            return f"{head}; worst {self.part}: {self.of_parts[0].short}"
        return "; ".join(part.short.rstrip(".") for part in self.parts) + "."

    @property
    def short(self) -> str:
        """What was measured and whether it keeps the promise, on one line."""
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
    accept: Flags,
    correct: Flags | None,
    level: float,
    losses: Losses | None = None,
    names: NDArray[Any] | None = None,
) -> Verdict:
    """Measure on labelled rows what the certificate promises.

    `correct` may be None where nothing is promised that needs labels; `losses`, what each row costs, is needed where a
    cost is promised (`Gate.losses`). `names` are the predicted classes or the groups of the rows, where each has its
    own promise: their intervals hold at this level for all of them together (Bonferroni).

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
    seen = (Seen.of(promised, limit, accept, correct, losses) for promised, limit in certificate.limits)
    first, *more = (Verdict.of(one, level) for one in seen)
    if not more:
        return first
    known = [part.kept for part in (first, *more)]
    kept = None if None in known and False not in known else all(known)
    return replace(first, kept=kept, refuted=first.refuted or more[0].refuted, also=more[0])


def _judge_parts(certificate: Certificate, accept: Flags, correct: Flags, level: float, names: Any) -> Verdict:
    assert certificate.parts is not None
    if names is None:
        raise InputError(f"this promise is for each {certificate.parts.by}; say which one every row belongs to.")
    limit = certificate.quantity, certificate.target
    own = [
        (part.name, Seen.of(part.quantity or limit[0], part.target or limit[1], accepted, right))
        for part, accepted, right in certificate.parts.judged(names, accept, correct)
    ]
    own = sorted(((name, seen) for name, seen in own if seen.n), key=lambda pair: pair[1].p_value(level))
    if not own:
        return Verdict.of(Seen.of(*limit, accept & False, correct & False), level)
    each = round(1.0 - (1.0 - level) / len(own), 12)
    parts = tuple(Verdict.of(seen, each, name) for name, seen in own)
    kept, refuted = all(verdict.kept for verdict in parts), any(verdict.refuted for verdict in parts)
    return replace(parts[0], kept=kept, refuted=refuted, of_parts=parts)


def _digits(value: float, target: float) -> str:
    """As many digits as it takes to tell the value from the target."""
    return next((text for n in range(4, 17) if float(text := f"{value:.{n}f}") != target), repr(value))
