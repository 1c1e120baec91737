"""What is said where nothing is certified: "no threshold that accepts c of the rows or more is that
accurate".
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal.certification.ranking import Ranking
from metacal.certification.ruled_out import find_smallest_ruled_out_coverage

BETA, DELTA = 0.9, 0.1
#: The error rate along the ranking, and the largest share that a threshold accepts with accuracy
#: .9.
POPULATIONS = {
    "a thin accurate top": (lambda u: np.where(u < 0.02, 0.0, 0.9), 0.0225),
    "at the limit, then wrong": (lambda u: np.where(u < 0.3, 0.1, 1.0), 0.3),
    "at the limit throughout": (lambda u: np.full_like(u, 0.1), 1.0),
    "bad first, then good": (lambda u: np.where(u < 0.2, 0.3, 0.05), 1.0),
}


@pytest.mark.parametrize("marks", [None, 25])
@pytest.mark.parametrize("population", POPULATIONS)
def test_the_sentence_is_seldom_false(population, marks):
    """At most delta of the draws, and three standard errors, state a share that a good threshold
    exceeds.
    """
    rate, largest = POPULATIONS[population]
    n_draws, n_false = 300, 0
    for seed in range(n_draws):
        rng = np.random.default_rng(seed)
        place = rng.random(500)
        if marks is not None:  # of equal scores; errors are those of the middle of the mark
            place = (np.floor(place * marks) + 0.5) / marks
        share = find_smallest_ruled_out_coverage(
            Ranking.from_scores(place, rng.random(500) >= rate(place)), BETA, DELTA
        )
        largest_seen = largest if marks is None else np.floor(largest * marks) / marks
        n_false += share is not None and share <= largest_seen
    assert n_false / n_draws <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / n_draws)


def test_an_accurate_top_is_not_denied():
    """Of rare correct rows, those that are surest may well be accurate: only larger shares are
    ruled out.
    """
    rng = np.random.default_rng(0)
    place = rng.random(1000)
    with pytest.raises(mc.InfeasibleTargetError) as caught:
        mc.MinAccuracy(0.97).certify(place, rng.random(1000) < np.where(place < 0.01, 1.0, 0.05))
    message = str(caught.value)
    assert caught.value.rows_needed is None
    assert "no part of the ranking" not in message
    assert "no number of rows" not in message
    assert "With 90% confidence, no threshold that accepts" in message
    assert f"{caught.value.min_rows_needed:,} rows" in message


def test_nothing_is_ruled_out_without_a_proof():
    """Graded losses, promises in expectation, and rows that do not reject: no sentence about
    thresholds.
    """
    rng = np.random.default_rng(0)
    scores = rng.random(25)
    losses = np.clip(0.5 + 0.3 * rng.standard_normal(25), 0.01, 0.99)
    with pytest.raises(mc.InfeasibleTargetError) as graded:
        mc.ScoreGate(mc.MaxRisk(0.1), higher_is="doubtful").fit(scores, loss=losses)
    with pytest.raises(mc.InfeasibleTargetError) as expected:
        mc.MinAccuracy(0.99, delta=None).certify(scores, rng.random(25) > 0.5)
    for caught in (graded, expected):
        assert "no threshold" not in str(caught.value)
        assert "no number of rows" not in str(caught.value)
    assert (
        find_smallest_ruled_out_coverage(
            Ranking.from_scores(scores, rng.random(25) > 0.05), BETA, DELTA
        )
        is None
    )


def test_what_holds_for_errors_holds_for_losses_of_zero_and_one():
    rng = np.random.default_rng(0)
    lost = (rng.random(500) < 0.6).astype(int)
    with pytest.raises(
        mc.InfeasibleTargetError, match=r"no threshold that accepts .* has so low a"
    ):
        mc.ScoreGate(mc.MaxRisk(0.1)).fit(rng.random(500), loss=lost)
