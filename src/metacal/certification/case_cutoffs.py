r"""Cutoffs that break at most an allowed number of cases.

The terms are those of `metacal.certification.case_items`. A case *breaks* under some cutoffs if a
harmful item of it is cleared. Let n cases be tested, and let k = k(n, limit) be the largest number
with P(Bin(n, limit) <= k) <= delta, or -1 if there is none.

**One type.** Let T_i be the safety of the safest harmful item of case i, -inf without one. The cutoff is
the (k+1)-th largest T_i. If it is -inf, every item is cleared.

**Proof.**

1. Let t* = inf{t: P(T > t) <= limit}. The cutoff t is bad if P(T > t) > limit, that is if t < t*. Then
   at most k of the n cases have T_i >= t*.
2. P(T >= t*) >= limit, so this has probability at most P(Bin(n, limit) <= k) <= delta.
3. Ties and the mass at -inf are in it. The share of breaking cases falls as the cutoff rises, so a
   single test suffices and no share of delta is spent. Without ties it has the distribution
   Beta(k+1, n-k), whose mean is (k+1)/(n+1): in expectation, k = floor(limit (n+1)) - 1. ∎

**Several types: learned cutoffs.** At least a fifth of the cases are pilot cases. They fit a model that
converts the safety of an item to its log-odds of being harmless. Start with all cutoffs at +inf. Repeat
k+1 times on the n tested cases:

- Each type has a correction theta, the number of cases removed by its items so far relative to the
  number that the model expects.
- Take the harmful item with the largest log-odds minus log(theta) in the cases that are left.
- Lower every cutoff to the safety that has these corrected log-odds.
- Remove the case of the item.

If no harmful item is left, every item is cleared.

**Proof** (statistically equivalent blocks: Tukey 1947, Fraser 1951, Kemperman 1956).

1. Let A_s be the cases that break under none of the first s cutoffs. Given the pilot cases and the s
   removed cases with all their items and labels, the n-s cases that are left are i.i.d. from the
   source restricted to A_s, and the model and the corrections of the next cutoff are fixed.
2. The next cutoff is the largest of n-s i.i.d. values, so the share of A_s beyond it has the
   distribution Beta(1, n-s), or is less with ties.
3. So 1 - P(a new case breaks) is at least a product of independent Beta(n-s, 1), s = 0..k. That is,
   P(a new case breaks) is at most a Beta(k+1, n-k): P(it exceeds the limit) <= P(Bin(n, limit) <= k)
   <= delta, and its mean is (k+1)/(n+1). ∎

The corrections learn from every case that was removed, at no cost, because step 1 conditions on these
cases. They may not read the cases that are left, neither labels nor scores.

**A shortcut that is not valid**: to clear every item of a type for free once no case left has a
harmful item of it. That no harmful item is left is a fact about the cases left, so step 1 fails. With
60 types that are each harmful in 0.0012 of the cases, n = 132 and a limit of 0.05, this broke the
promise in each of 200 draws. `tests/guarantees/test_cases.py` fails if a type is cleared for free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.special import expit

from metacal.certification.case_items import CLEAR_EVERY_ITEM, CLEAR_NO_ITEM, CaseItems
from metacal.certification.case_scale import HarmlessnessModel
from metacal.formulas import Codes, Flags, Float
from metacal.statistics import bounds

# Fraction of the cases that are tested if the remaining cases are pilot cases.
TESTED_CASE_FRACTION = Fraction(4, 5)

# Pseudo-count of the ratio of removed cases to expected harmful items of a type.
# A larger pseudo-count corrects the model more slowly.
_PSEUDO_COUNT_OF_CORRECTION = 5.0


def compute_max_broken_cases(n_cases: int, limit: float, delta: float | None) -> int:
    """Compute the largest number of broken cases that certifies a limit.

    Examples
    --------
    >>> [compute_max_broken_cases(n, 0.1, 0.1) for n in (21, 22, 300)]
    [-1, 0, 22]
    >>> compute_max_broken_cases(99, 0.05, None)
    4
    """
    # Unbroken cases correspond to accepted correct rows in the bound on the miscoverage.
    min_unbroken_cases = bounds.smallest_rank_keeping_miscoverage(n_cases, limit, delta)
    return n_cases - min_unbroken_cases


def count_tested_cases(n_cases: int, limit: float, delta: float | None) -> int:
    """Compute the number of cases to test if the remaining cases are pilot cases.

    At most four fifths of the cases are tested. Of all numbers that allow as many broken cases, it is
    the smallest, so the additional pilot cases cost nothing.

    Examples
    --------
    >>> count_tested_cases(300, 0.1, 0.1), compute_max_broken_cases(240, 0.1, 0.1)
    (233, 17)
    """
    n_tested = math.floor(n_cases * TESTED_CASE_FRACTION)
    max_broken_cases = compute_max_broken_cases(n_tested, limit, delta)
    while n_tested > 1 and compute_max_broken_cases(n_tested - 1, limit, delta) == max_broken_cases:
        n_tested -= 1
    return n_tested


def find_single_cutoff(
    harmful_safety: Float, cases: Codes, breaks_at_every_cutoff: Flags, max_broken_cases: int
) -> float:
    """Find the lowest cutoff that breaks at most a given number of cases.

    It is the (k+1)-th largest safety, where each case has the safety of its safest harmful item.

    Parameters
    ----------
    harmful_safety : array of float of shape (n_harmful,)
        Safety of the harmful items.

    cases : array of int of shape (n_harmful,)
        Tested case of each of these items.

    breaks_at_every_cutoff : array of bool of shape (n_cases,)
        Whether each tested case breaks under every cutoff.

    max_broken_cases : int
        Largest allowed number k of broken cases, at least 0.

    Returns
    -------
    float
        Cutoff, -inf if every item is cleared, or +inf if no cutoff is high enough.

    Examples
    --------
    >>> safety, cases = np.array([0.9, 0.5, 0.7]), np.array([0, 0, 2])
    >>> [find_single_cutoff(safety, cases, np.zeros(4, dtype=bool), k) for k in (0, 1, 2)]
    [0.9, 0.7, -inf]
    """
    # A case is broken if the cutoff is below the highest safety of its harmful items.
    highest_harmful_safety_by_case = np.where(breaks_at_every_cutoff, math.inf, -math.inf)
    np.maximum.at(highest_harmful_safety_by_case, cases, harmful_safety)
    n_cases = len(highest_harmful_safety_by_case)
    if max_broken_cases >= n_cases:
        return CLEAR_EVERY_ITEM
    decreasing_safety = np.sort(highest_harmful_safety_by_case)[::-1]
    return float(decreasing_safety[max_broken_cases])


@dataclass(frozen=True, eq=False)
class _ExpectedHarmfulItems:
    """Expected number of harmful items of one type above any cutoff.

    Attributes
    ----------
    decreasing_safety : array of float of shape (n_pilot_items,)
        Safety of the pilot items of the type, in decreasing order.

    cumulative_expected_harmful : array of float of shape (n_pilot_items + 1,)
        Expected number of harmful items among the first 0, 1, 2, ... of these items, for as many
        cases as are tested.
    """

    decreasing_safety: Float
    cumulative_expected_harmful: Float

    def compute_number_above(self, cutoff: float) -> float:
        """Return the expected number of harmful items with a safety above a cutoff."""
        n_items_above = int(np.searchsorted(-self.decreasing_safety, -cutoff, side="left"))
        return float(self.cumulative_expected_harmful[n_items_above])


def find_learned_cutoffs(
    tested_items: CaseItems,
    breaks_at_every_cutoff: Flags,
    pilot_items: CaseItems,
    tested_cases_per_pilot_case: float,
    harmlessness_model: HarmlessnessModel,
    max_broken_cases: int,
) -> Float:
    """Find cutoffs of several item types that break at most a number of cases.

    The cutoffs are lowered together. Each time they reach a harmful item, its case is removed, until
    one case more than allowed is removed. That case is not broken, because the item that equals its
    cutoff is not cleared.

    Parameters
    ----------
    tested_items : CaseItems
        Items of the tested cases. Cases with harmful items are numbered from 0.

    breaks_at_every_cutoff : array of bool of shape (n_tested_cases,)
        Whether each tested case breaks under every cutoff.

    pilot_items : CaseItems
        Items of the pilot cases.

    tested_cases_per_pilot_case : float
        Number of tested cases per pilot case.

    harmlessness_model : HarmlessnessModel
        Model that was fitted on the pilot cases.

    max_broken_cases : int
        Largest allowed number k of broken cases, at least 0.

    Returns
    -------
    array of float of shape (n_types,)
        Cutoff of each type. All are -inf if every item is cleared, and +inf if no cutoff is high
        enough.
    """
    n_types = tested_items.n_types
    n_always_broken_cases = int(breaks_at_every_cutoff.sum())
    if n_always_broken_cases > max_broken_cases:
        return np.full(n_types, CLEAR_NO_ITEM)
    lowered_cutoffs = _LoweredCutoffs(
        harmful_item_queues=_queue_harmful_items_by_type(tested_items),
        is_removed_case=breaks_at_every_cutoff.copy(),
        n_removed_by_type=np.zeros(n_types),
        cutoffs=np.full(n_types, CLEAR_NO_ITEM),
    )
    expected_harmful_by_type = _estimate_harmful_items_by_type(
        pilot_items, harmlessness_model, tested_cases_per_pilot_case
    )
    max_further_broken_cases = max_broken_cases - n_always_broken_cases
    # An item at its cutoff is not cleared, so the last case lowers the cutoffs without breaking.
    for _ in range(max_further_broken_cases + 1):
        if not lowered_cutoffs.has_remaining_harmful_item:
            return np.full(n_types, CLEAR_EVERY_ITEM)
        lowered_cutoffs.lower_to_item_of_next_case(harmlessness_model, expected_harmful_by_type)
    return lowered_cutoffs.cutoffs


@dataclass(eq=False)
class _LoweredCutoffs:
    """Cutoffs that are lowered step by step, and the cases that were removed.

    A case is removed when the cutoffs reach one of its harmful items.

    Attributes
    ----------
    harmful_item_queues : list of _HarmfulItemQueue
        Harmful items of each type, the safest first.

    is_removed_case : array of bool of shape (n_tested_cases,)
        Whether each case was removed.

    n_removed_by_type : array of float of shape (n_types,)
        Number of cases that were removed because of an item of each type.

    cutoffs : array of float of shape (n_types,)
        Current cutoff of each type.
    """

    harmful_item_queues: list[_HarmfulItemQueue]
    is_removed_case: Flags
    n_removed_by_type: Float
    cutoffs: Float

    @property
    def has_remaining_harmful_item(self) -> bool:
        """Whether any remaining case has a harmful item."""
        return not bool(np.isneginf(self._find_highest_remaining_safety_by_type()).all())

    def lower_to_item_of_next_case(
        self,
        harmlessness_model: HarmlessnessModel,
        expected_harmful_by_type: list[_ExpectedHarmfulItems],
    ) -> None:
        """Lower all cutoffs to the safest remaining harmful item, and remove its case.

        The cutoffs of all types have the same corrected log-odds, which are the highest ones of a
        harmful item that is left. One cutoff is the safety of this item.
        """
        highest_safety_by_type = self._find_highest_remaining_safety_by_type()
        harmless_log_odds = harmlessness_model.compute_harmless_log_odds(
            highest_safety_by_type, types=np.arange(len(self.cutoffs))
        )
        log_correction_by_type = self._compute_log_correction_by_type(expected_harmful_by_type)
        corrected_log_odds_by_type = harmless_log_odds - log_correction_by_type
        has_no_harmful_item = np.isneginf(highest_safety_by_type)
        corrected_log_odds_by_type[has_no_harmful_item] = -math.inf
        type_of_next_item = int(np.argmax(corrected_log_odds_by_type))
        new_cutoffs = harmlessness_model.convert_log_odds_to_safety(
            corrected_log_odds_by_type[type_of_next_item] + log_correction_by_type
        )
        # The safety is copied, because its conversion to log-odds and back has a rounding error.
        new_cutoffs[type_of_next_item] = highest_safety_by_type[type_of_next_item]
        self._remove_case_of_safest_item(type_of_next_item)
        # A rounding error must not lower a cutoff below the harmful item of a remaining case.
        new_cutoffs = np.maximum(new_cutoffs, self._find_highest_remaining_safety_by_type())
        self.cutoffs = np.minimum(self.cutoffs, new_cutoffs)

    def _remove_case_of_safest_item(self, type_code: int) -> None:
        """Remove the case of the safest remaining harmful item of a type."""
        removed_case = self.harmful_item_queues[type_code].case_of_safest_item
        self.is_removed_case[removed_case] = True
        self.n_removed_by_type[type_code] += 1

    def _find_highest_remaining_safety_by_type(self) -> Float:
        """Return the highest safety of the remaining harmful items per item type."""
        for queue in self.harmful_item_queues:
            queue.drop_safest_items_of_removed_cases(self.is_removed_case)
        return np.array([queue.highest_safety for queue in self.harmful_item_queues])

    def _compute_log_correction_by_type(
        self, expected_harmful_by_type: list[_ExpectedHarmfulItems]
    ) -> Float:
        """Compute the log ratio of removed cases to expected harmful items per type."""
        n_expected_harmful_by_type = np.array(
            [
                expected_harmful.compute_number_above(cutoff)
                for expected_harmful, cutoff in zip(expected_harmful_by_type, self.cutoffs)
            ]
        )
        return np.log(
            (_PSEUDO_COUNT_OF_CORRECTION + self.n_removed_by_type)
            / (_PSEUDO_COUNT_OF_CORRECTION + n_expected_harmful_by_type)
        )


@dataclass(eq=False)
class _HarmfulItemQueue:
    """Queue of the harmful items of one type, sorted by decreasing safety.

    Attributes
    ----------
    decreasing_safety : array of float of shape (n_items,)
        Safety of the items, in decreasing order.

    cases : array of int of shape (n_items,)
        Case of each item.

    n_dropped_items : int
        Number of first items that were dropped.
    """

    decreasing_safety: Float
    cases: Codes
    n_dropped_items: int = 0

    @classmethod
    def from_items(cls, harmful_items: CaseItems, type_code: int) -> _HarmfulItemQueue:
        """Sort the harmful items of a type by decreasing safety."""
        items_of_type = harmful_items.take(harmful_items.types == type_code)
        item_order = np.argsort(-items_of_type.safety, kind="stable")
        return cls(
            decreasing_safety=items_of_type.safety[item_order],
            cases=items_of_type.cases[item_order],
        )

    @property
    def is_empty(self) -> bool:
        """Whether the queue has no remaining item."""
        return self.n_dropped_items == len(self.cases)

    @property
    def case_of_safest_item(self) -> int:
        """Case of the safest remaining item."""
        return int(self.cases[self.n_dropped_items])

    @property
    def highest_safety(self) -> float:
        """Safety of the safest remaining item, or -inf if the queue is empty."""
        if self.is_empty:
            return -math.inf
        return float(self.decreasing_safety[self.n_dropped_items])

    def drop_safest_items_of_removed_cases(self, is_removed_case: Flags) -> None:
        """Drop items from the front of the queue while their case is removed."""
        while not self.is_empty and is_removed_case[self.case_of_safest_item]:
            self.n_dropped_items += 1


def _queue_harmful_items_by_type(items: CaseItems) -> list[_HarmfulItemQueue]:
    """Build the queue of harmful items for each type."""
    harmful_items = items.take(items.is_harmful)
    return [
        _HarmfulItemQueue.from_items(harmful_items, type_code) for type_code in range(items.n_types)
    ]


def _estimate_harmful_items_by_type(
    pilot_items: CaseItems,
    harmlessness_model: HarmlessnessModel,
    tested_cases_per_pilot_case: float,
) -> list[_ExpectedHarmfulItems]:
    """Estimate the number of harmful items above any cutoff, per item type."""
    harmless_log_odds = harmlessness_model.compute_harmless_log_odds(
        pilot_items.safety, pilot_items.types
    )
    harmful_probabilities = expit(-harmless_log_odds)
    expected_harmful_per_item = tested_cases_per_pilot_case * harmful_probabilities
    expected_harmful_by_type = []
    for type_code in range(pilot_items.n_types):
        indices_of_type = np.flatnonzero(pilot_items.types == type_code)
        item_order = np.argsort(-pilot_items.safety[indices_of_type], kind="stable")
        sorted_indices = indices_of_type[item_order]
        cumulative_expected_harmful = np.cumsum(expected_harmful_per_item[sorted_indices])
        expected_harmful_by_type.append(
            _ExpectedHarmfulItems(
                decreasing_safety=pilot_items.safety[sorted_indices],
                cumulative_expected_harmful=np.concatenate([[0.0], cumulative_expected_harmful]),
            )
        )
    return expected_harmful_by_type
