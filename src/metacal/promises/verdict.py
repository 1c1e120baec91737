"""Verdict: whether labelled rows show that a promise is kept, with the measured value and its exact
interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from scipy.special import betainc, ndtri

from metacal.certificates.fingerprint import FitRows
from metacal.certificates.quantity import Quantity
from metacal.certification.cluster_counts import ClusterCounts, count_clusters
from metacal.certification.rows import Clusters
from metacal.display import format_interval
from metacal.errors import InputError
from metacal.formulas import Flags, Float
from metacal.rows.draws import RowDraws
from metacal.statistics import betting, bounds
from metacal.statistics.noninferiority import (
    NUISANCE_LEVEL_FRACTION,
    difference_interval,
    noninferiority_p_value,
)

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import Name, SubgroupCertificate
    from metacal.certification.row_losses import Losses


#: As many times as many rows are named as what it would take; nobody labels more.
_TIMES = 100


@dataclass(frozen=True, eq=False)
class Measurement:
    """What rows say about one promised limit: `bad` of `n` rows count against it.

    Of a mean cost `bad` rows cost anything, `total` is what all of them cost, and `limit` is a
    share of the `largest` cost of a row; where costs are of many sizes, `costs` has them as such
    shares, in random order, always the same: bets on rows that a file has sorted would see a drift
    that is none. Of the loss of a cascade `bad` rows are answered worse than by its last model
    alone, and as many as `better` better. Where rows belong together, `units` has the counts of
    each: bets are then on whole units (`metacal.certification.clusters`).
    """

    quantity: Quantity
    target: float
    value: float | None
    n_bad: int
    n_rows: int
    largest_cost: float = 1.0
    total_cost: float | None = None
    relative_costs: Float | None = None
    n_better: int | None = None
    cluster_counts: ClusterCounts | None = None

    @classmethod
    def from_rows(
        cls,
        promised: Quantity,
        target: float,
        accept: Flags,
        correct: Flags | None,
        losses: Losses | None = None,
        units: Clusters | None = None,
    ) -> Measurement:
        """What these rows say; `losses`, what each costs, is needed where a cost or a loss is
        promised.
        """
        if units is not None and (promised.is_paired_difference or promised.is_mean_cost):
            raise InputError(
                f"{promised} is tested on independent rows; fit with units: one row of each is"
                " tested."
            )
        if promised.is_paired_difference:
            if losses is None:
                raise InputError(
                    f"the {promised} of a cascade shows where all models have answered: give their"
                    " tables."
                )
            worse, better = (int((sign * losses.answered > 0.0).sum()) for sign in (1.0, -1.0))
            n = len(losses.answered)
            return cls(promised, target, (worse - better) / n, worse, n, n_better=better)
        if not promised.is_mean_cost:
            (hit, n), (bad, _) = (
                promised.count_events(accept, correct),
                promised.count_violations(accept, correct),
            )
            value, together = hit / n if n else None, None
            if units is not None:
                together = count_clusters(promised, units, accept, correct)
                value = (
                    together.bad_share
                    if promised.has_upper_limit or together.bad_share is None
                    else 1.0 - together.bad_share
                )
            return cls(promised, target, value, bad, n, cluster_counts=together)
        promised.compute_masks(accept, correct)  # without labels nobody knows what an answer costs
        if losses is None:
            raise InputError(
                f"whether the {promised} is kept shows only where each row's cost is known: give"
                " losses."
            )
        unordered = losses.of(promised, accept)
        paid = unordered[RowDraws(unordered).order("order of bets")]
        mean = float(paid.mean()) if len(paid) else None
        costs, bad = paid / losses.largest, int((paid > 0.0).sum())
        total = float(losses.largest * costs.sum())
        sizes = None if losses.all_or_nothing else costs
        return cls(promised, target, mean, bad, len(paid), losses.largest, total, sizes)

    @property
    def max_bad_share(self) -> float:
        """The largest share of bad rows that is allowed."""
        return self.quantity.max_violation_rate(self.target) / self.largest_cost

    def compute_interval(self, level: float) -> tuple[float, float]:
        """What the truth lies between: Clopper-Pearson for a share, bets for a mean cost, exact
        tests for a loss.
        """
        assert self.value is not None
        if self.n_better is not None:
            return difference_interval(self.n_bad, self.n_better, self.n_rows, level)
        each, guess = (1.0 - level) / 2.0, min(0.5, self.max_bad_share)
        if self.cluster_counts is not None:
            low, high = self.cluster_counts.confidence_interval(each)
            low, high = (low, high) if self.quantity.has_upper_limit else (1.0 - high, 1.0 - low)
        elif self.relative_costs is None:
            hit = self.n_bad if self.quantity.has_upper_limit else self.n_rows - self.n_bad
            low = bounds.clopper_pearson_lower(hit, self.n_rows, each)
            high = bounds.clopper_pearson_upper(hit, self.n_rows, each)
        else:
            low, high = (
                betting.mean_lower_bound(self.relative_costs, each, guess),
                betting.mean_upper_bound(self.relative_costs, each, guess),
            )
        return min(self.largest_cost * low, self.value), max(self.largest_cost * high, self.value)

    def compute_p_value(self, level: float) -> float:
        """How likely so many bad rows, or so much, are if the promise is just kept: P(Bin(n, limit)
        >= bad).

        Small is bad news. Bets stake what suits a test at `level`.

        >>> from metacal.certificates.quantity import COVERAGE_ACCURACY
        >>> import numpy as np
        >>> right = np.arange(20) >= 3
        >>> seen = Measurement.from_rows(COVERAGE_ACCURACY, 0.95, np.ones(20, dtype=bool), right)
        >>> round(seen.compute_p_value(0.05), 4)
        0.0755
        """
        if self.n_better is not None:
            return noninferiority_p_value(
                self.n_bad, self.n_better, self.n_rows, self.target, NUISANCE_LEVEL_FRACTION * level
            )
        if self.cluster_counts is not None:
            return betting.p_value_of_mean_above(
                self.cluster_counts.to_unit_interval(self.max_bad_share), self.max_bad_share, level
            )
        if self.relative_costs is not None:
            return (
                betting.p_value_of_mean_above(self.relative_costs, self.max_bad_share, level)
                if self.max_bad_share < 1.0
                else 1.0
            )
        # P(Bin(n, p) >= k) is the incomplete beta function I_p(k, n - k + 1).
        return (
            float(betainc(self.n_bad, self.n_rows - self.n_bad + 1, self.max_bad_share))
            if self.n_bad
            else 1.0
        )


@dataclass(frozen=True)
class Verdict:
    """What labelled rows show about a promise: kept, undecided or refuted; not judged on rows of
    the fit.

    Attributes
    ----------
    quantity, target : Quantity, float
        What was promised.
    value, low, high, level : float or None
        What was measured, and its interval: Clopper-Pearson for a share, betting for a mean cost;
        None when no row speaks about it.
    kept : bool
        Whether what was measured keeps the target; where two things are promised, both.
    refuted : bool
        Whether the whole interval lies on the wrong side of a target: more than bad luck. With
        neither what was measured misses the target, which the interval includes: these rows do not
        decide.
    measurement : Measurement
        The rows behind it.
    part : str or None
        The predicted class or the group whose rows were counted; None: all rows.
    about : str, int or None
        For promises about two classes: the class that the quantity is about, as in "recall of
        fraud".
    fit_rows : FitRows or None
        Rows that were part of the fit. If there are any, the rows do not judge the promise: nothing
        is measured.
    several : tuple of Verdict
        Where there are several: of each promised quantity or, where each class or group has its own
        promise, of every one that rows speak about, the strongest evidence against it first.
        Numbers and words are then those of the first, `kept` and `refuted` are about all.
    """

    quantity: Quantity
    target: float
    value: float | None
    low: float | None
    high: float | None
    level: float
    kept: bool
    refuted: bool
    measurement: Measurement = field(repr=False, compare=False)
    subgroup: str | None = None
    class_name: Name | None = None
    components: tuple[Verdict, ...] = ()
    fit_rows: FitRows | None = None

    @classmethod
    def from_measurement(
        cls, seen: Measurement, level: float, part: str | None = None, about: Name | None = None
    ) -> Verdict:
        """What was measured, with its interval at this level."""
        promised, target, value = seen.quantity, seen.target, seen.value
        low, high = (None, None) if value is None else seen.compute_interval(level)
        kept = value is not None and promised.is_kept(value, target)
        refuted = low is not None and high is not None and promised.is_refuted(low, high, target)
        return cls(promised, target, value, low, high, level, kept, refuted, seen, part, about)

    @classmethod
    def not_judged(cls, certificate: Certificate, fit_rows: FitRows, level: float) -> Verdict:
        """Build the verdict on rows that were part of the fit."""
        several = []
        for promised, target in certificate.limits:
            nothing = Measurement(promised, target, None, 0, 0)
            several.append(
                cls(
                    promised,
                    target,
                    None,
                    None,
                    None,
                    level,
                    False,
                    False,
                    nothing,
                    fit_rows=fit_rows,
                )
            )
        return cls.combine(several)

    @classmethod
    def combine(cls, several: list[Verdict]) -> Verdict:
        """Several at once: kept where all are, refuted where one is."""
        first, *more = several
        if not more and first.subgroup is None:
            return first
        kept, refuted = all(one.kept for one in several), any(one.refuted for one in several)
        return replace(first, kept=kept, refuted=refuted, components=tuple(several))

    @property
    def word(self) -> str:
        """Kept, undecided, refuted or not judged: the same word in Python, on the command line and
        on every page.
        """
        if self.fit_rows is not None:
            return "not judged"
        if self.refuted:
            return "refuted"
        return "kept" if self.kept else "undecided"

    @property
    def tests(self) -> tuple[Verdict, ...]:
        """One verdict per promised quantity, or for each class or group, each about itself
        alone.
        """
        return self.components or (self,)

    @property
    def subgroup_verdicts(self) -> tuple[Verdict, ...]:
        """Those of classes or groups, where each has its own promise."""
        return () if self.subgroup is None else self.components

    @property
    def measured_quantity(self) -> str:
        """The quantity with the class that it is about: "recall of fraud"."""
        return self.quantity.name_with_class(self.class_name)

    @property
    def headline_verdicts(self) -> tuple[Verdict, ...]:
        """What is said first: one for each quantity or, where there are parts, the one with the
        most against it.
        """
        return (replace(self, components=()),) if self.subgroup_verdicts else self.tests

    @property
    def p_value(self) -> float:
        """The chance of as many bad rows or more, in these rows alone, if the promise is just
        kept.
        """
        return self.measurement.compute_p_value(0.5 * (1.0 - self.level))

    @property
    def advice(self) -> str:
        """What to do now, in one sentence."""
        if self.fit_rows is not None:
            return self.fit_rows.advice
        if self.refuted:
            return (
                "check that these rows and their labels come from the same source as the"
                " calibration rows; if they do, fit again on recent labelled rows, and have a"
                " person look at what is accepted until then."
            )
        open_ones = [one for one in self.tests if not one._beyond_chance]
        if not open_ones:
            return "nothing."
        if any(one.value is None for one in open_ones):
            return "label rows that the promise is about: there is none here."
        more = max(one._times_as_many for one in open_ones)
        enough = "twice as many" if more == 2 else f"about {more} times as many"
        enough = enough if more <= _TIMES else f"more than {_TIMES} times as many"
        if self.kept:
            return f"nothing; {enough} labelled rows would rule out chance."
        return (
            f"label more rows before you rely on it: {enough} would decide, if they look the same."
        )

    @property
    def _beyond_chance(self) -> bool:
        """Whether the whole interval lies on the right side of the target."""
        ends = (self.low, self.high)
        return all(end is not None and self.quantity.is_kept(end, self.target) for end in ends)

    @property
    def _times_as_many(self) -> int:
        """About how many times as many rows would decide, if the measured value stays."""
        assert self.value is not None
        apart = self.value - self.target
        if abs(apart) < 1e-12:
            return _TIMES + 1
        if (
            self.measurement.relative_costs is None
            and self.measurement.n_better is None
            and self.measurement.cluster_counts is None
        ):  # tests are binomial
            sure = float(ndtri(0.5 + 0.5 * self.level))
            limit = self.measurement.max_bad_share
            times = (
                sure**2
                * limit
                * (1.0 - limit)
                / (apart / self.measurement.largest_cost) ** 2
                / self.measurement.n_rows
            )
        else:  # ends draw near as the root of the number of rows
            end = self.low if apart > 0.0 else self.high
            assert end is not None
            times = ((self.value - end) / apart) ** 2
        return max(2, math.ceil(min(times, _TIMES + 1)))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        names = ("target", "value", "low", "high", "level", "kept", "refuted")
        plain = {
            "quantity": self.quantity.name,
            **{name: getattr(self, name) for name in names},
            "verdict": self.word,
        }
        plain |= {} if self.subgroup is None else {"part": self.subgroup}
        plain |= {} if self.class_name is None else {"class": self.class_name}
        plain |= (
            {"of_parts": [own.to_dict() for own in self.subgroup_verdicts]}
            if self.subgroup_verdicts
            else {}
        )
        return (
            {**plain, "also": self.components[1].to_dict()}
            if self.components and not self.subgroup_verdicts
            else plain
        )

    def __str__(self) -> str:
        if self.fit_rows is not None:
            return self.summary
        if self.subgroup_verdicts:
            kept, bad = (
                sum(getattr(own, name) for own in self.subgroup_verdicts)
                for name in ("kept", "refuted")
            )
            counts = f"{kept:,} kept, {len(self.subgroup_verdicts) - kept - bad:,} undecided, {bad:,} refuted"
            return (
                f"{self.word}: of {len(self.subgroup_verdicts):,}, {counts}; worst {self.subgroup},"
                f" {self.subgroup_verdicts[0].summary}"
            )
        return "; ".join(part.summary.rstrip(".") for part in self.tests) + "."

    @property
    def summary(self) -> str:
        """The word and what was measured, on one line."""
        if self.fit_rows is not None:
            return f"{self.word}: {self.fit_rows}."
        if self.value is None or self.low is None or self.high is None:
            return f"{self.word}: no row here says anything about the {self.measured_quantity}."
        measured = f"{_digits(self.value, self.target)} {format_interval(self.low, self.high)}"
        return (
            f"{self.word}: {self.measured_quantity} {measured}, promised {self.quantity.direction}"
            f" {self.target:g}."
        )


def judge(
    certificate: Certificate,
    accept: Flags,
    correct: Flags | None,
    level: float,
    losses: Losses | None = None,
    names: NDArray[Any] | None = None,
    units: Clusters | None = None,
    fit_rows: FitRows | None = None,
) -> Verdict:
    """Measure on labelled rows what the certificate promises.

    `correct` may be None where nothing is promised that needs labels; `losses`, what each row
    costs, is needed where a cost is promised (`Gate.losses`). `names` are the predicted classes or
    the groups of the rows, where each has its own promise. Where several limits are promised their
    intervals hold at this level together (Bonferroni), so that a promise that is kept is called
    refuted with probability at most (1 - level) / 2. `units` are those of the rows where they
    belong together, and every one counts. If there are `fit_rows` among the rows, nothing is
    measured: the verdict is "not judged".

    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> import numpy as np
    >>> right = np.ones(100, dtype=bool)
    >>> certificate = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), right)
    >>> print(judge(certificate, np.arange(100) >= 4, right, 0.95))
    kept: miscoverage 0.0400 [0.0110, 0.0993], promised at most 0.05.
    """
    if fit_rows is not None:
        return Verdict.not_judged(certificate, fit_rows, level)
    limit, parts = certificate.limits[0], certificate.parts
    seen: list[tuple[SubgroupCertificate | None, Measurement]] = []
    if parts is None:
        seen += [
            (None, Measurement.from_rows(*one, accept, correct, losses, units))
            for one in certificate.limits
        ]
    elif correct is None:
        raise InputError("what each class or group is promised needs labels; give them.")
    elif names is None:
        raise InputError(
            f"this promise is for each {parts.by}; say which one every row belongs to."
        )
    else:
        for part, rows, accepted, right in parts.iterate_judged_rows(names, accept, correct):
            promised = part.quantity or limit[0], part.target or limit[1]
            own = Measurement.from_rows(
                *promised, accepted, right, units=None if units is None else units.take(rows)
            )
            seen += [(part, own)] if own.n_rows else []
        seen.sort(key=lambda pair: pair[1].compute_p_value(level))
    if not seen:
        return Verdict.from_measurement(
            Measurement.from_rows(*limit, accept & False, accept & False), level
        )
    each = round(1.0 - (1.0 - level) / len(seen), 12)  # where so many hold together (Bonferroni)
    verdicts = []
    for subgroup, one in seen:
        if subgroup is None:
            verdicts.append(Verdict.from_measurement(one, each))
        else:
            # The two sides of all rows are about all rows, and no subgroup of them.
            name = (
                None
                if parts is None or parts.is_two_sided_without_groups
                else subgroup.name_without_side
            )
            verdicts.append(Verdict.from_measurement(one, each, name, subgroup.about))
    return Verdict.combine(verdicts)


def _digits(value: float, target: float) -> str:
    """As many digits as it takes to tell the value from the target."""
    return next(
        (text for n in range(4, 17) if float(text := f"{value:.{n}f}") != target), repr(value)
    )
