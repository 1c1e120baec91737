r"""Sequences of cuts for limits that no order statistic certifies.

The terms are those of `metacal.certification.case_items`. Pilot cases fix a scale and a sequence of
cuts from strict to lax. Each is tested at delta on the other cases, and the sequence stops at the
first failure. The last cuts that passed are certified.

**Errors among automated cases.** A case is *automated* if it has a cleared item. At cuts t, N of the
tested cases are automated, and E of them have a harmful cleared item. The cuts pass if
P(Bin(N, limit) <= E) <= delta.

**Proof.**

1. The cuts are fixed by the pilot cases. Given N, E is Bin(N, R(t)), where R(t) is the share of
   automated cases with a harmful cleared item. So cuts with R(t) > limit pass with probability at
   most delta.
2. Fixed sequence: if the certified cuts break the limit, then the first cuts of the sequence that
   break it have passed. This has probability at most delta. R need not rise along the sequence. ∎

**A shortcut that is not valid**: to test ranks of the tested cases, sorted by their safest item. A
case changes from "without an error" to "with an error" as more of its items are cleared, so its
outcome is not a fixed property of its rank.

**Mean number of errors.** W_i(t) is the number of harmful cleared items of case i, at most B. The cuts
pass if bets on W_i / B in random order of the cases certify that their mean is at most limit / B
(`metacal.statistics.replicating_bets`).

**Proof.**

1. A test at fixed cuts errs with probability at most delta (Ville 1939).
2. The mean of W(t) falls as the cuts rise. Let t* be the first cuts of the sequence with a mean above
   the limit. A broken result has passed at t* (Bates et al. 2021). Any sequence will do. ∎
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from metacal.certification.case_items import CaseItems
from metacal.certification.case_scale import TypeScale
from metacal.formulas import Codes, Float
from metacal.statistics import bounds, replicating_bets

# Largest number of cuts in a sequence.
_N_CANDIDATES = 200

# The first cuts are expected to automate this multiple of the cases that an error-free test needs.
_FIRST_CASES_FACTOR = 2.0


def plan_cut_sequence(
    pilot_items: CaseItems, scale: TypeScale, min_share_of_cases: float, n_pilot_cases: int
) -> list[Float]:
    """Plan the cuts to test, from strict to lax.

    Parameters
    ----------
    pilot_items : CaseItems
        Items of the pilot cases.

    scale : TypeScale
        Scale that was fitted on the pilot cases. Items of a type that it does not know are never
        cleared.

    min_share_of_cases : float
        Share of the pilot cases that the first cuts automate, if there are such cuts.

    n_pilot_cases : int
        Number of pilot cases.

    Returns
    -------
    list of array of shape (n_types,)
        Cuts of the types. The last ones clear every item of the known types.
    """
    merit = scale.compute_merit(pilot_items.safety, pilot_items.types)
    order = np.argsort(-merit, kind="stable")
    first_items = np.unique(pilot_items.cases[order], return_index=True)[1]
    # The number of automated cases rises by one at the first item of each case.
    n_needed = math.ceil(min_share_of_cases * n_pilot_cases)
    first_rank = len(merit)
    if n_needed <= len(first_items):
        first_rank = int(np.sort(first_items)[max(n_needed, 1) - 1]) + 1
    ranks = np.unique(np.linspace(first_rank, len(merit), _N_CANDIDATES).astype(np.intp))
    sorted_merit = merit[order]
    # The cut of a rank is the merit of the item after it, which is not cleared.
    cut_merits = [float(sorted_merit[rank]) for rank in ranks if rank < len(merit)]
    sequence = [scale.convert_to_safety(cut_merit) for cut_merit in dict.fromkeys(cut_merits)]
    sequence.append(np.full(scale.n_types, -math.inf))
    return [np.where(scale.is_fitted, cuts, math.inf) for cuts in sequence]


def compute_first_share(limit: float, delta: float, n_tested_cases: int) -> float:
    """Compute the share of cases that the first cuts of a sequence automate at least.

    >>> round(compute_first_share(0.1, 0.1, 240), 3)
    0.182
    """
    n_error_free_cases = math.log(delta) / math.log1p(-limit)
    return _FIRST_CASES_FACTOR * n_error_free_cases / n_tested_cases


def drop_cuts_before_safest(
    sequence: list[Float],
    pilot_items: CaseItems,
    scale: TypeScale,
    limit: float,
    cases_ratio: float,
) -> list[Float]:
    """Drop the cuts before those that pass most certainly by the scale.

    The sequence stops at its first failure, and the strictest cuts automate few cases, so a single
    error there could end it.

    Parameters
    ----------
    sequence : list of array of shape (n_types,)
        Cuts from strict to lax.

    pilot_items : CaseItems
        Items of the pilot cases. Their scores are read, not their labels.

    scale : TypeScale
        Scale, whose merit is the log-odds that an item is harmless.

    limit : float
        Limit of the share of automated cases that break.

    cases_ratio : float
        Number of tested cases per pilot case.

    Returns
    -------
    list of array of shape (n_types,)
    """
    merit = scale.compute_merit(pilot_items.safety, pilot_items.types)
    log_harmless = -np.logaddexp(0.0, -merit)
    margins = []
    for cuts in sequence:
        is_cleared = pilot_items.find_cleared(cuts)
        cases_of_cleared = pilot_items.cases[is_cleared]
        log_unbroken = np.bincount(cases_of_cleared, log_harmless[is_cleared])
        n_automated = cases_ratio * len(np.unique(cases_of_cleared))
        n_broken = cases_ratio * float(-np.expm1(log_unbroken).sum())
        std_at_limit = math.sqrt(max(n_automated, 1.0) * limit * (1.0 - limit))
        margins.append((limit * n_automated - n_broken) / std_at_limit)
    return sequence[int(np.argmax(margins)) :]


def find_last_passing(sequence: list[Float], passes: Callable[[Float], bool]) -> Float | None:
    """Return the last cuts of a sequence before the first failure, or None if the first ones fail."""
    last_passing = None
    for cuts in sequence:
        if not passes(cuts):
            break
        last_passing = cuts
    return last_passing


def passes_automated_error_test(
    n_automated: int, n_broken: int, limit: float, delta: float
) -> bool:
    """Test whether at most a share `limit` of the automated cases breaks.

    >>> passes_automated_error_test(22, 0, 0.1, 0.1), passes_automated_error_test(21, 0, 0.1, 0.1)
    (True, False)
    """
    if n_automated == 0:
        return False
    return bool(bounds.binomial_p_value(n_broken, n_automated, limit) <= delta)


def passes_mean_error_test(n_errors: Codes, largest: int, limit: float, delta: float) -> bool:
    """Test whether the mean number of errors of a case, each at most `largest`, is at most a limit.

    Parameters
    ----------
    n_errors : array of int of shape (n_cases,)
        Number of errors of each case, in random order.

    largest : int
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
    relative_errors = np.minimum(n_errors, largest) / largest
    relative_limit = limit / largest
    if relative_errors.mean() > relative_limit:
        return False
    return replicating_bets.certifies_mean_below(
        relative_errors, relative_limit, delta, losses_are_rare=True
    )
