"""Choice of the thresholds to test, and of their order, from pilot clusters.

`certification.clusters` defines the terms and has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metacal.certification.candidates import CandidateSequence
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import ACCEPT_ALL_ROWS
from metacal.formulas import Float

# Largest number of finite thresholds that are tested.
_MAX_FINITE_THRESHOLDS = 100


@dataclass(frozen=True)
class _SequenceStart:
    """Position and significance level of one test sequence.

    Attributes
    ----------
    capital_margin : float
        Expected log capital at the starting threshold if no row is a violation, as a
        multiple of the log capital at which the test passes. A larger margin gives a
        later starting threshold that tolerates more violations.

    level_fraction : float
        Fraction of the significance level that the sequence receives.
    """

    capital_margin: float
    level_fraction: float


# Starts of the test sequences, from the lowest threshold to the highest.
_SEQUENCE_STARTS = (
    _SequenceStart(capital_margin=4.0, level_fraction=0.9),
    _SequenceStart(capital_margin=10.0, level_fraction=0.1),
)


def choose_thresholds(pilot_rows: CalibrationRows) -> list[float]:
    """Return quantiles of the pilot scores and +inf, in increasing order."""
    n_rows = len(pilot_rows)
    n_quantiles = min(_MAX_FINITE_THRESHOLDS, n_rows)
    quantile_ranks = np.unique(np.linspace(1, n_rows, n_quantiles).astype(np.intp))
    sorted_scores = np.sort(pilot_rows.scores)
    # The ranks start at 1, but array indices start at 0.
    quantiles = np.unique(sorted_scores[quantile_ranks - 1])
    return [*quantiles.tolist(), ACCEPT_ALL_ROWS]


def build_increasing_sequences(
    pilot_rows: CalibrationRows,
    increasing_thresholds: list[float],
    *,
    n_test_clusters: int,
    limit: float,
    significance_level: float,
) -> tuple[CandidateSequence[float], ...]:
    """Divide the thresholds into sequences that start at thresholds likely to pass.

    A low threshold accepts too few rows for its test to pass, and the first failure
    ends a sequence. Each sequence therefore starts at a threshold whose test would
    pass with a margin if no row were a violation. It ends where the next sequence starts.

    Parameters
    ----------
    pilot_rows : CalibrationRows
        Rows of the pilot clusters.

    increasing_thresholds : list of float
        Thresholds in increasing order.

    n_test_clusters : int
        Number of test clusters.

    limit : float
        Largest allowed rate of violations.

    significance_level : float
        Significance level of all tests together.

    Returns
    -------
    tuple of CandidateSequence
        Sequences in increasing order of threshold. Starts that fall on the same
        threshold are merged into one sequence with the sum of their levels.
    """
    log_capital_by_threshold = _estimate_error_free_log_capital(
        pilot_rows, increasing_thresholds, n_test_clusters=n_test_clusters, limit=limit
    )
    last_index = len(increasing_thresholds) - 1
    previous_start_index = 0
    # The start indices are inserted in increasing order, which the dictionary keeps.
    level_fraction_by_start: dict[int, float] = {}
    for sequence_start in _SEQUENCE_STARTS:
        sequence_level = sequence_start.level_fraction * significance_level
        required_log_capital = -math.log(sequence_level)
        log_capital_with_margin = sequence_start.capital_margin * required_log_capital
        # The log capital increases with the threshold, so binary search applies.
        first_index_reaching_margin = int(
            np.searchsorted(log_capital_by_threshold, log_capital_with_margin)
        )
        start_index = max(min(first_index_reaching_margin, last_index), previous_start_index)
        previous_start_index = start_index
        level_fraction_by_start.setdefault(start_index, 0.0)
        level_fraction_by_start[start_index] += sequence_start.level_fraction
    return _divide_at_starts(increasing_thresholds, level_fraction_by_start)


def _divide_at_starts(
    thresholds: list[float], level_fraction_by_start: dict[int, float]
) -> tuple[CandidateSequence[float], ...]:
    """Divide thresholds into sequences that begin at the given indices."""
    start_indices = list(level_fraction_by_start)
    stop_indices = [*start_indices[1:], len(thresholds)]
    test_sequences = []
    for start_index, stop_index in zip(start_indices, stop_indices):
        test_sequence = CandidateSequence(
            level_fraction=level_fraction_by_start[start_index],
            candidates=tuple(thresholds[start_index:stop_index]),
        )
        test_sequences.append(test_sequence)
    return tuple(test_sequences)


def _estimate_error_free_log_capital(
    pilot_rows: CalibrationRows,
    thresholds: list[float],
    *,
    n_test_clusters: int,
    limit: float,
) -> Float:
    """Estimate the log capital at each threshold if no row is a violation.

    A bet on a cluster with A accepted rows and no violation multiplies the capital by about
    1 + limit A / S, where S is the largest number of rows of a cluster. Because log(1 + x) is about
    x, the log capital is about the sum of limit A / S over all test clusters.

    Parameters
    ----------
    pilot_rows : CalibrationRows
        Rows of the pilot clusters. Only their scores are read.

    thresholds : list of float
        Thresholds of the tests.

    n_test_clusters : int
        Number of test clusters.

    limit : float
        Largest allowed rate of violations.

    Returns
    -------
    array of float of shape (n_thresholds,)
    """
    assert pilot_rows.clusters is not None
    if pilot_rows.clusters.uses_cluster_means:
        # Each cluster counts as one row, and is accepted if its lowest score is accepted.
        scores_of_counted_rows = _find_lowest_score_per_cluster(pilot_rows)
        max_counted_rows_per_cluster = 1
    else:
        scores_of_counted_rows = pilot_rows.scores
        max_counted_rows_per_cluster = pilot_rows.clusters.max_size

    n_accepted_by_threshold = np.searchsorted(
        np.sort(scores_of_counted_rows), thresholds, side="right"
    )
    mean_accepted_per_cluster = n_accepted_by_threshold / pilot_rows.clusters.n_clusters
    n_accepted_in_test_clusters = n_test_clusters * mean_accepted_per_cluster
    return n_accepted_in_test_clusters * limit / max_counted_rows_per_cluster


def _find_lowest_score_per_cluster(rows: CalibrationRows) -> Float:
    """Return the lowest score of each cluster, in the order of the cluster codes."""
    assert rows.clusters is not None
    # After sorting by cluster and score, the first row of a cluster has its lowest score.
    row_order = np.lexsort((rows.scores, rows.clusters.codes))
    sorted_codes = rows.clusters.codes[row_order]
    sorted_scores = rows.scores[row_order]
    _, first_row_indices = np.unique(sorted_codes, return_index=True)
    return sorted_scores[first_row_indices]
