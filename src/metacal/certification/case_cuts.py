r"""Cuts that at most a tolerated number of cases break: one order statistic, or learned cuts.

The terms are those of `metacal.certification.case_items`. A case *breaks* under some cuts if a
harmful item of it is cleared. Let n cases be tested, and let k = k(n, limit) be the largest number
with P(Bin(n, limit) <= k) <= delta, or -1 if there is none.

**One type.** Let T_i be the safety of the safest harmful item of case i, -inf without one. The cut is
the (k+1)-th largest T_i. If it is -inf, every item is cleared.

**Proof.**

1. Let t* = inf{t: P(T > t) <= limit}. The cut t is bad if P(T > t) > limit, that is if t < t*. Then
   at most k of the n cases have T_i >= t*.
2. P(T >= t*) >= limit, so this has probability at most P(Bin(n, limit) <= k) <= delta.
3. Ties and the mass at -inf are in it. The share of breaking cases falls as the cut rises, so a
   single test suffices and no share of delta is spent. Without ties it has the distribution
   Beta(k+1, n-k), whose mean is (k+1)/(n+1): in expectation, k = floor(limit (n+1)) - 1. ∎

**Several types: learned cuts.** At least a fifth of the cases are pilot cases. They fit a scale from
safety to merit. Start with all cuts at +inf. Repeat k+1 times on the n tested cases: each type has a
correction theta, the number of cuts that fell on it so far relative to the number that the scale
expects; take the harmful item of largest merit minus log(theta) in the cases that are left; lower
every cut to the safety that has this merit; remove the case of the item. If no harmful item is left,
every item is cleared.

**Proof** (statistically equivalent blocks: Tukey 1947, Fraser 1951, Kemperman 1956).

1. Let A_s be the cases that break under none of the first s cuts. Given the pilot cases and the s
   removed cases with all their items and labels, the n-s cases that are left are i.i.d. from the
   source restricted to A_s, and the scale and the corrections of the next cut are fixed.
2. The next cut is the largest of n-s i.i.d. values, so the share of A_s beyond it has the
   distribution Beta(1, n-s), or is less with ties.
3. So 1 - P(a new case breaks) is at least a product of independent Beta(n-s, 1), s = 0..k. That is,
   P(a new case breaks) is at most a Beta(k+1, n-k): P(it exceeds the limit) <= P(Bin(n, limit) <= k)
   <= delta, and its mean is (k+1)/(n+1). ∎

The corrections learn from every case that was cut, at no cost, because step 1 conditions on these
cases. They may not read the cases that are left, neither labels nor scores.

**A shortcut that is not valid**: to clear every item of a type for free once no case left has a
harmful item of it. That no harmful item is left is a fact about the cases left, so step 1 fails. With
60 types that are each harmful in 0.0012 of the cases, n = 132 and a limit of 0.05, this broke the
promise in each of 200 draws. `tests/guarantees/test_cases.py` fails if a type is cleared for free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from metacal.certification.case_items import CaseItems
from metacal.certification.case_scale import TypeScale
from metacal.formulas import Codes, Flags, Float
from metacal.statistics import bounds

#: Numerator and denominator of the share of cases that are tested if there are pilot cases.
TESTED_SHARE = (4, 5)

# Number of cuts that the scale is trusted for: a correction is (5 + cuts) / (5 + expected cuts).
_N_PRIOR_CUTS = 5.0


def count_tolerated_cases(n_cases: int, limit: float, delta: float | None) -> int:
    """Count the broken cases with which n cases certify a limit, -1 if none certify it.

    Examples
    --------
    >>> [count_tolerated_cases(n, 0.1, 0.1) for n in (21, 22, 300)]
    [-1, 0, 22]
    >>> count_tolerated_cases(99, 0.05, None)
    4
    """
    rank = bounds.smallest_rank_keeping_miscoverage(n_cases, limit, delta)
    return n_cases - rank


def count_tested_cases(n_cases: int, limit: float, delta: float | None) -> int:
    """Count the cases to test if the others are pilot cases.

    At most four fifths of the cases are tested. Of all numbers that tolerate as many broken cases, it
    is the smallest, so the additional pilot cases cost nothing.

    Examples
    --------
    >>> count_tested_cases(300, 0.1, 0.1), count_tolerated_cases(240, 0.1, 0.1)
    (233, 17)
    """
    numerator, denominator = TESTED_SHARE
    n_tested = n_cases * numerator // denominator
    n_tolerated = count_tolerated_cases(n_tested, limit, delta)
    while n_tested > 1 and count_tolerated_cases(n_tested - 1, limit, delta) == n_tolerated:
        n_tested -= 1
    return n_tested


def find_single_cut(
    harmful_safety: Float, cases: Codes, is_uncovered: Flags, n_tolerated: int
) -> float:
    """Find the cut of one type, the (k+1)-th largest safety of a safest harmful item.

    Parameters
    ----------
    harmful_safety : array of float of shape (n_harmful,)
        Safety of the harmful items.

    cases : array of int of shape (n_harmful,)
        Tested case of each of these items.

    is_uncovered : array of bool of shape (n_cases,)
        Whether each tested case breaks under every cut.

    n_tolerated : int
        Tolerated number k of broken cases, at least 0.

    Returns
    -------
    float
        Cut, -inf if every item is cleared, or +inf if no cut is high enough.

    Examples
    --------
    >>> safety, cases = np.array([0.9, 0.5, 0.7]), np.array([0, 0, 2])
    >>> [find_single_cut(safety, cases, np.zeros(4, dtype=bool), k) for k in (0, 1, 2)]
    [0.9, 0.7, -inf]
    """
    safest = np.where(is_uncovered, math.inf, -math.inf)
    np.maximum.at(safest, cases, harmful_safety)
    if n_tolerated >= len(safest):
        return -math.inf
    return float(np.sort(safest)[::-1][n_tolerated])


@dataclass(frozen=True, eq=False)
class _ExpectedCuts:
    """Expected number of harmful items beyond a cut, by the scale and the pilot items of a type.

    Attributes
    ----------
    sorted_safety : array of float of shape (n_pilot_items,)
        Safety of the pilot items of the type, in decreasing order.

    cumulative_harm : array of float of shape (n_pilot_items + 1,)
        Expected number of harmful items among the first ones, for as many cases as are tested.
    """

    sorted_safety: Float
    cumulative_harm: Float

    def count_beyond(self, cut: float) -> float:
        """Return the expected number of harmful items with a safety above a cut."""
        n_beyond = int(np.searchsorted(-self.sorted_safety, -cut, side="left"))
        return float(self.cumulative_harm[n_beyond])


def find_learned_cuts(
    tested_items: CaseItems,
    is_uncovered: Flags,
    pilot_items: CaseItems,
    cases_ratio: float,
    scale: TypeScale,
    n_tolerated: int,
) -> Float:
    """Find the cuts of several types on a scale that learns from every case that is cut.

    Parameters
    ----------
    tested_items : CaseItems
        Items of the tested cases. Cases with harmful items are numbered from 0.

    is_uncovered : array of bool of shape (n_tested_cases,)
        Whether each tested case breaks under every cut.

    pilot_items : CaseItems
        Items of the pilot cases.

    cases_ratio : float
        Number of tested cases per pilot case.

    scale : TypeScale
        Scale that was fitted on the pilot cases.

    n_tolerated : int
        Tolerated number k of broken cases, at least 0.

    Returns
    -------
    array of float of shape (n_types,)
        Cut of each type. All are -inf if every item is cleared, and +inf if no cut is high enough.
    """
    n_types = tested_items.n_types
    n_cuts = n_tolerated + 1 - int(is_uncovered.sum())
    cuts = np.full(n_types, math.inf)
    if n_cuts <= 0:
        return cuts
    expected_cuts = _expect_cuts(pilot_items, scale, cases_ratio)
    harmful_items = tested_items.take(tested_items.is_harmful)
    queues = [_HarmfulQueue.from_items(harmful_items, code) for code in range(n_types)]
    n_cuts_of_type = np.zeros(n_types)
    is_removed = is_uncovered.copy()
    for _ in range(n_cuts):
        safest = _find_safest_left(queues, is_removed)
        if np.isneginf(safest).all():
            return np.full(n_types, -math.inf)
        log_theta = _compute_log_theta(expected_cuts, cuts, n_cuts_of_type)
        merit = scale.compute_merit(safest, np.arange(n_types)) - log_theta
        merit[np.isneginf(safest)] = -math.inf
        cut_type = int(np.argmax(merit))
        new_cuts = scale.convert_to_safety(merit[cut_type] + log_theta)
        new_cuts[cut_type] = safest[cut_type]
        n_cuts_of_type[cut_type] += 1
        is_removed[queues[cut_type].safest_case] = True
        # An item that is left has at most this merit, but rounding may lower its cut below it.
        new_cuts = np.maximum(new_cuts, _find_safest_left(queues, is_removed))
        cuts = np.minimum(cuts, new_cuts)
    return cuts


def _compute_log_theta(
    expected_cuts: list[_ExpectedCuts], cuts: Float, n_cuts_of_type: Float
) -> Float:
    """Compute the logarithm of the correction of each type: its cuts relative to the expected ones."""
    expected = np.array([one.count_beyond(cut) for one, cut in zip(expected_cuts, cuts)])
    return np.log((_N_PRIOR_CUTS + n_cuts_of_type) / (_N_PRIOR_CUTS + expected))


def _find_safest_left(queues: list[_HarmfulQueue], is_removed: Flags) -> Float:
    """Return the safety of the safest harmful item of each type in the cases that are left."""
    return np.array([queue.find_safest_left(is_removed) for queue in queues])


@dataclass(eq=False)
class _HarmfulQueue:
    """Harmful items of one type, the safest first.

    Attributes
    ----------
    safety : array of float of shape (n_items,)
        Safety of the items, in decreasing order.

    cases : array of int of shape (n_items,)
        Case of each item.

    position : int
        Number of first items whose cases were removed.
    """

    safety: Float
    cases: Codes
    position: int = 0

    @classmethod
    def from_items(cls, harmful_items: CaseItems, code: int) -> _HarmfulQueue:
        """Sort the harmful items of a type."""
        items_of_type = harmful_items.take(harmful_items.types == code)
        order = np.argsort(-items_of_type.safety, kind="stable")
        return cls(items_of_type.safety[order], items_of_type.cases[order])

    @property
    def safest_case(self) -> int:
        """Case of the safest item that is left."""
        return int(self.cases[self.position])

    def find_safest_left(self, is_removed: Flags) -> float:
        """Return the safety of the safest item in the cases that are left, -inf without one."""
        while self.position < len(self.cases) and is_removed[self.cases[self.position]]:
            self.position += 1
        if self.position == len(self.cases):
            return -math.inf
        return float(self.safety[self.position])


def _expect_cuts(
    pilot_items: CaseItems, scale: TypeScale, cases_ratio: float
) -> list[_ExpectedCuts]:
    """Compute the expected harmful items of each type, for `cases_ratio` times the pilot cases."""
    merit = scale.compute_merit(pilot_items.safety, pilot_items.types)
    harm = cases_ratio * expit(-merit)
    expected_cuts = []
    for code in range(pilot_items.n_types):
        type_items = np.flatnonzero(pilot_items.types == code)
        order = type_items[np.argsort(-pilot_items.safety[type_items], kind="stable")]
        expected_cuts.append(
            _ExpectedCuts(
                sorted_safety=pilot_items.safety[order],
                cumulative_harm=np.concatenate([[0.0], np.cumsum(harm[order])]),
            )
        )
    return expected_cuts
