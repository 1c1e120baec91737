r"""Sequences of cutoffs that are tested one after the other on cases.

The terms are those of `metacal.certification.case_items`. Pilot cases fix a model of harmless items and a sequence of
cutoffs from strict to lax. Each is tested at delta on the other cases, and the sequence stops at the
first failure. The last cutoffs that passed are certified.

**Errors among automated cases.** A case is *automated* if it has a cleared item. At cutoffs t, N of the
tested cases are automated, and E of them have a harmful cleared item. The cutoffs pass if
P(Bin(N, limit) <= E) <= delta.

**Proof.**

1. The cutoffs are fixed by the pilot cases. Given N, E is Bin(N, R(t)), where R(t) is the share of
   automated cases with a harmful cleared item. So cutoffs with R(t) > limit pass with probability at
   most delta.
2. Fixed sequence: if the certified cutoffs break the limit, then the first cutoffs of the sequence that
   break it have passed. This has probability at most delta. R need not rise along the sequence. ∎

**A shortcut that is not valid**: to test ranks of the tested cases, sorted by their safest item. A
case changes from "without an error" to "with an error" as more of its items are cleared, so its
outcome is not a fixed property of its rank.

**Mean number of errors.** W_i(t) is the number of harmful cleared items of case i, at most B. The cutoffs
pass if bets on W_i / B in random order of the cases certify that their mean is at most limit / B
(`metacal.statistics.replicating_bets`).

**Proof.**

1. A test at fixed cutoffs errs with probability at most delta (Ville 1939).
2. The mean of W(t) falls as the cutoffs rise. Let t* be the first cutoffs of the sequence with a mean above
   the limit. A broken result has passed at t* (Bates et al. 2021). Any sequence will do. ∎
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from metacal.certification.case_items import CLEAR_EVERY_ITEM, CLEAR_NO_ITEM, CaseItems
from metacal.certification.case_scale import HarmlessnessModel
from metacal.formulas import Codes, Float
from metacal.statistics import bounds, replicating_bets

# Largest number of cutoffs in a sequence.
_MAX_CUTOFFS_IN_SEQUENCE = 200

# Ratio of the cases automated by the first cutoffs to the fewest cases that can pass a test.
_FIRST_AUTOMATED_CASES_FACTOR = 2.0


def plan_cutoff_sequence(
    pilot_items: CaseItems,
    harmlessness_model: HarmlessnessModel,
    min_automated_fraction: float,
    n_pilot_cases: int,
) -> list[Float]:
    """Plan the cutoffs to test, from strict to lax.

    Parameters
    ----------
    pilot_items : CaseItems
        Items of the pilot cases.

    harmlessness_model : HarmlessnessModel
        Model that was fitted on the pilot cases. Items of a type without pilot items are never
        cleared.

    min_automated_fraction : float
        Fraction of the pilot cases that the first cutoffs automate, if there are such cutoffs.

    n_pilot_cases : int
        Number of pilot cases.

    Returns
    -------
    list of array of shape (n_types,)
        Cutoffs of the types. The last ones clear every item of the types with pilot items.
    """
    harmless_log_odds = harmlessness_model.compute_harmless_log_odds(
        pilot_items.safety, pilot_items.types
    )
    n_items = len(harmless_log_odds)
    item_order = np.argsort(-harmless_log_odds, kind="stable")
    min_cleared_items = _find_number_of_items_to_clear(
        pilot_items.cases[item_order],
        n_automated_cases=math.ceil(min_automated_fraction * n_pilot_cases),
    )
    cleared_item_counts = np.linspace(min_cleared_items, n_items, _MAX_CUTOFFS_IN_SEQUENCE).astype(
        np.intp
    )
    partial_item_counts = np.unique(cleared_item_counts[cleared_item_counts < n_items])
    # The cutoff that accepts the m safest items is the log-odds of the item with index m.
    decreasing_log_odds = harmless_log_odds[item_order]
    cutoff_log_odds = decreasing_log_odds[partial_item_counts]
    distinct_log_odds = dict.fromkeys(cutoff_log_odds.tolist())
    cutoff_sequence = [
        harmlessness_model.convert_log_odds_to_safety(log_odds) for log_odds in distinct_log_odds
    ]
    # The last cutoffs of the sequence accept every item.
    cutoff_sequence.append(np.full(harmlessness_model.n_types, CLEAR_EVERY_ITEM))
    return [
        np.where(harmlessness_model.type_has_pilot_items, cutoffs, CLEAR_NO_ITEM)
        for cutoffs in cutoff_sequence
    ]


def _find_number_of_items_to_clear(case_by_rank: Codes, n_automated_cases: int) -> int:
    """Find the number of safest items to accept to automate a number of cases.

    A case is automated by its first cleared item. If there are fewer cases with items, all items
    must be cleared.

    Parameters
    ----------
    case_by_rank : array of int of shape (n_items,)
        Case of each item, in order of decreasing safety.

    n_automated_cases : int
        Number of cases to automate. 0 counts as 1.

    Returns
    -------
    int
    """
    _, index_of_safest_item_by_case = np.unique(case_by_rank, return_index=True)
    n_cases_with_items = len(index_of_safest_item_by_case)
    if n_automated_cases > n_cases_with_items:
        return len(case_by_rank)
    sorted_indices = np.sort(index_of_safest_item_by_case)
    index_of_last_case = max(n_automated_cases, 1) - 1
    return int(sorted_indices[index_of_last_case]) + 1


def compute_first_automated_fraction(limit: float, delta: float, n_tested_cases: int) -> float:
    """Compute the fraction of cases that the first cutoffs must automate.

    >>> round(compute_first_automated_fraction(0.1, 0.1, 240), 3)
    0.182
    """
    n_error_free_cases = math.log(delta) / math.log1p(-limit)
    return _FIRST_AUTOMATED_CASES_FACTOR * n_error_free_cases / n_tested_cases


def drop_cutoffs_before_likeliest_to_pass(
    sequence: list[Float],
    pilot_items: CaseItems,
    harmlessness_model: HarmlessnessModel,
    limit: float,
    tested_cases_per_pilot_case: float,
) -> list[Float]:
    """Drop the cutoffs that come before the cutoffs most likely to pass.

    The sequence stops at its first failure, and the strictest cutoffs automate few cases, so a single
    error there could end it.

    Parameters
    ----------
    sequence : list of array of shape (n_types,)
        Cutoffs from strict to lax.

    pilot_items : CaseItems
        Items of the pilot cases. Their scores are read, not their labels.

    harmlessness_model : HarmlessnessModel
        Model of the log-odds that an item is harmless.

    limit : float
        Limit of the share of automated cases that break.

    tested_cases_per_pilot_case : float
        Number of tested cases per pilot case.

    Returns
    -------
    list of array of shape (n_types,)
    """
    harmless_log_odds = harmlessness_model.compute_harmless_log_odds(
        pilot_items.safety, pilot_items.types
    )
    log_harmless_probabilities = -np.logaddexp(0.0, -harmless_log_odds)
    standardized_margins = []
    for cutoffs in sequence:
        is_cleared = pilot_items.find_cleared(cutoffs)
        cases_of_cleared_items = pilot_items.cases[is_cleared]
        # The probability that a case is unbroken is a product over its accepted items.
        log_unbroken_probabilities = np.bincount(
            cases_of_cleared_items, log_harmless_probabilities[is_cleared]
        )
        n_automated_pilot_cases = len(np.unique(cases_of_cleared_items))
        expected_automated_cases = tested_cases_per_pilot_case * n_automated_pilot_cases
        expected_broken_pilot_cases = float(-np.expm1(log_unbroken_probabilities).sum())
        expected_broken_cases = tested_cases_per_pilot_case * expected_broken_pilot_cases
        std_at_limit = math.sqrt(max(expected_automated_cases, 1.0) * limit * (1.0 - limit))
        standardized_margins.append(
            (limit * expected_automated_cases - expected_broken_cases) / std_at_limit
        )
    index_of_largest_margin = int(np.argmax(standardized_margins))
    return sequence[index_of_largest_margin:]


def find_last_passing(sequence: list[Float], passes: Callable[[Float], bool]) -> Float | None:
    """Return the last cutoffs that pass before the first failure, or None."""
    last_passing_cutoffs = None
    for cutoffs in sequence:
        if not passes(cutoffs):
            break
        last_passing_cutoffs = cutoffs
    return last_passing_cutoffs


def passes_automated_error_test(
    n_automated: int, n_broken: int, limit: float, delta: float
) -> bool:
    """Test whether the error rate of the automated cases is within a limit.

    >>> passes_automated_error_test(22, 0, 0.1, 0.1), passes_automated_error_test(21, 0, 0.1, 0.1)
    (True, False)
    """
    if n_automated == 0:
        return False
    p_value = bounds.binomial_p_value(n_broken, n_automated, error_rate=limit)
    return bool(p_value <= delta)


def passes_mean_error_test(
    n_errors_per_case: Codes, max_counted_errors: int, limit: float, delta: float
) -> bool:
    """Test by bets whether the mean number of errors per case is within a limit.

    More errors of a case than `max_counted_errors` count as this many.

    Parameters
    ----------
    n_errors_per_case : array of int of shape (n_cases,)
        Number of errors of each case, in random order.

    max_counted_errors : int
        Largest number of errors that counts in a case.

    limit : float
        Limit of the mean.

    delta : float
        Significance level.

    Returns
    -------
    bool

    Examples
    --------
    >>> errors = np.zeros(400, dtype=int)
    >>> passes_mean_error_test(errors, 4, 0.1, 0.1), passes_mean_error_test(errors[:50], 4, 0.1, 0.1)
    (True, False)
    """
    case_losses = np.minimum(n_errors_per_case, max_counted_errors) / max_counted_errors
    mean_loss_limit = limit / max_counted_errors
    # The observed mean is checked, because a betting test may pass even if the mean is too high.
    if case_losses.mean() > mean_loss_limit:
        return False
    return replicating_bets.certifies_mean_below(
        case_losses, mean_loss_limit, delta, losses_are_rare=True
    )
