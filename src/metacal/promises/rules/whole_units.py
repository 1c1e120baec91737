r"""Whole units: a promise about rows where rows belong together, by bets on what each unit adds to
both sides of it.

Rows of one patient, document or video are not independent, and units have many sizes. "At most a
share q of the rows that are looked at is bad" says of a random unit, with B its bad rows and A
those that are looked at,

    E[B] <= q·E[A],     or     E[X] <= 0     with     X = (B - q·A) / S,     -q <= X <= 1 - q,

S being the most rows that a unit can have. (For an accuracy of at least beta: the wrong ones of the
accepted rows, q = 1 - beta. For a miscoverage: the rejected ones of the right rows. For a review
budget: the rejected ones of all.) Units are independent draws, so whoever bets that X + q is below
q on average gets rich only where the promise is kept (`promises.rules.betting`): a threshold that
breaks it passes with probability at most the level of its test.

*Which thresholds.* The proof of the rank rule (`accuracy.certified_prefix`) is about independent
rows and does not carry over. Thresholds must not depend on what is tested: a tenth of the units,
drawn at random, is set aside, and the quantiles of their scores are the thresholds. Where they
begin and how many there are follows from these units, too; the others are tested. Given the tenth,
hypotheses and their order are fixed.

*In sequence.* Where accepting can break the promise: from a start upward, each threshold at the
whole level until one fails. Two starts share delta, .9 and .1; a walk that reaches the next start
hands its share on (Wiens 2003). A start is where the tenth says that a clean sheet would win
several times over: log capital Σ q·A/S of 4, and of 10, times log(1/level). Where accepting is
safe, from the largest threshold downward, all of delta.

*Means of units.* Where a unit counts as one, by the share of bad ones among its rows that are
looked at (the precision of the labels that a row is given, averaged over rows), it is the same with
B/A for B, 1[A > 0] for A and S = 1: E[B/A | A > 0] <= q says E[X] <= 0 with X = (B/A - q)·1[A > 0].
Nothing need be known of the size of units.

S must be known before the rows are seen. Where the largest unit of these rows stands for it, a
larger one may come, and the certificate is called approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from metacal.errors import InfeasibleTargetError
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.notes import too_few_units
from metacal.promises.promise import WHOLE_UNITS, Promise
from metacal.promises.rules import betting
from metacal.promises.rules.betting import UnitCounts
from metacal.promises.rules.bounds import SLACK
from metacal.promises.rules.sequence import fallback
from metacal.promises.sample import Sample, WholeUnits

#: Of every so many units one is set aside, and at least so many.
_ASIDE, _FEWEST = 10, 5
#: Thresholds, at equal steps of the rows set aside.
_STEPS = 100
#: Where walks start, in multiples of what a clean sheet must win, and their shares of delta.
_STARTS = ((4.0, 0.9), (10.0, 0.1))


class OfUnits(Promise):
    """A promise that can be made about every row where rows belong together."""

    def from_units(self, sample: Sample) -> Certificate:
        """By bets on whole units; InfeasibleTargetError where they cannot carry it."""
        delta, ((quantity, target),) = self.delta, self.limits
        if delta is None:
            return super().from_units(sample)
        aside, tested, units = _parted(sample)
        # Quantiles of the scores that were set aside, rising, and what accepts every row.
        steps = np.unique(np.linspace(1, len(aside), min(_STEPS, len(aside))).astype(np.intp))
        thresholds = [*np.unique(np.sort(aside.score)[steps - 1]).tolist(), math.inf]

        def walked(limit: float) -> float | None:
            def passes(threshold: float, share: float) -> bool:
                seen = UnitCounts.of_rows(
                    quantity, units, accepts(tested.score, threshold), tested.correct
                )
                few_bad = seen.bad.sum() <= limit * seen.of.sum()
                return bool(few_bad) and betting.is_below(seen.values(limit), limit, share * delta)

            if quantity.accepting_is_safe:
                return fallback([(1.0, thresholds[::-1])], passes)
            return fallback(_walks(aside, thresholds, limit, delta, units.number), passes)

        found = walked(quantity.limit_on_bad(target))
        if found is None and not quantity.accepting_is_safe:
            raise _infeasible(self, tested, units.number, walked)
        notes = (
            ()
            if found is not None
            else (too_few_units(units=units.number, rows=len(tested)).warned(),)
        )
        return replace(
            self._certificate(tested, math.inf if found is None else found, notes), rule=WHOLE_UNITS
        )

    def impossible_of_units(self, certificate: Certificate) -> str | None:
        """What in the counts cannot be: too many bad rows, or fewer than the boldest bets on a
        clean sheet need.
        """
        ((quantity, target),), around = self.limits, certificate.circumstances
        means, size = around.units == "mean", around.largest_unit
        if certificate.accepts_everything and quantity.accepting_is_safe:
            return None
        limit, of = quantity.limit_on_bad(target), certificate.n_accepted
        bad = of - certificate.n_correct_accepted
        if quantity.accepting_is_safe:
            labelled = quantity.needs_labels
            of = certificate.n_correct if labelled else certificate.n_rows
            bad = of - (certificate.n_correct_accepted if labelled else certificate.n_accepted)
        most = (
            limit / (1.0 - limit) * of / (1 if means else size or 1)
        )  # of means: each unit with a single row
        if (means or bad <= SLACK * limit * of) and SLACK * most >= -math.log(self.delta or 1.0):
            return None
        return (
            f"{bad:,} bad of {of:,} rows, in units of up to {size:,}, do not certify the limit"
            f" {target:g}"
        )


def _parted(sample: Sample) -> tuple[Sample, Sample, WholeUnits]:
    """The units set aside, those that are tested, and the numbers of the latter."""
    assert sample.units is not None
    n = sample.units.number
    few = min(max(n // _ASIDE, _FEWEST), n - 1)
    aside = (
        np.unique(sample.units.code, return_inverse=True)[1] < few
    )  # clusters are numbered in random order
    tested = sample.take(~aside)
    assert tested.units is not None
    return sample.take(aside), tested, tested.units


def _walks(
    aside: Sample, thresholds: Sequence[float], limit: float, delta: float, n_units: int
) -> list[tuple[float, Sequence[float]]]:
    """What share of delta each walk brings, and its thresholds: up to where the next one starts."""
    assert aside.units is not None
    units, looked_at = aside.units, aside.score
    if units.mean:  # a unit is looked at once its first row is
        order = np.lexsort((aside.score, units.code))
        looked_at = aside.score[order][np.unique(units.code[order], return_index=True)[1]]
    rows = np.searchsorted(np.sort(looked_at), thresholds, side="right") / units.number
    won = (
        n_units * rows * limit / (1 if units.mean else units.largest)
    )  # by bets on units without a bad row
    starts: dict[int, float] = {}
    for multiple, share in _STARTS:
        at = int(np.searchsorted(won, -multiple * math.log(share * delta)))
        at = max([min(at, len(thresholds) - 1), *starts])  # never before the walk that it follows
        starts[at] = starts.get(at, 0.0) + share
    ends = [*starts, len(thresholds)][1:]
    return [(share, thresholds[start:end]) for (start, share), end in zip(starts.items(), ends)]


def _infeasible(
    promise: Promise, tested: Sample, n_units: int, walked: Callable[[float], float | None]
) -> InfeasibleTargetError:
    ((quantity, target),) = promise.limits
    _, high = betting.halved(
        lambda limit: walked(limit) is not None, quantity.limit_on_bad(target), 12
    )
    best = math.floor(1e4 * (1.0 - high)) / 1e4 if high < 1.0 else None
    of = (
        "on average over units" if tested.units is not None and tested.units.mean else "of all rows"
    )
    can = "nothing" if best is None else f"{best:.4f} at most"
    rows = f"these {n_units:,} units of {len(tested):,} rows certify {can} {promise.surely}"
    do = (
        "lower the target, bring more units, or promise about a random row of each unit, which"
        " takes fewer"
    )
    said = f"{quantity} {target:g} {of} cannot be certified: {rows}; {do}."
    return InfeasibleTargetError(said, target=target, best=best)
