"""Intervals of AUROC, AURC, excess AURC and AUGRC hold with few incorrect rows (see
`benchmarks.area_intervals`).
"""

import numpy as np
import pytest

from benchmarks.area_intervals import AREAS, made_populations
from metacal.metrics import auroc, interval
from metacal.metrics.area_intervals import compute_area_limits
from metacal.metrics.intervals import clopper_pearson
from metacal.metrics.ranked_errors import Ranking
from metacal.metrics.registry import METRICS
from metacal.metrics.replicates import Target
from metacal.metrics.resampling import Resampling

DRAWS = 60


@pytest.mark.parametrize(
    ("name", "n_incorrect", "n_rows"),
    [
        ("3% of errors first", 10, 300),
        pytest.param("binormal, distance 3", 5, 200, marks=pytest.mark.slow),
        pytest.param("10% of errors first", 10, 300, marks=pytest.mark.slow),
        pytest.param("10% of correct last", 50, 60, marks=pytest.mark.slow),
    ],
)
def test_intervals_hold_with_few_incorrect_or_few_correct_rows(name, n_incorrect, n_rows):
    population = made_populations(n_incorrect / n_rows)[name]
    true_areas = population.areas()
    random = np.random.default_rng(0)
    missed = dict.fromkeys(AREAS, 0)
    for draw in range(DRAWS):
        ranking = population.drawn(n_rows, random)
        targets = {area: Target(METRICS[area].prepare_statistic(ranking)) for area in AREAS}
        found = Resampling(n_resamples=300, random_state=draw).resample_statistics(targets, n_rows)
        for area, own in found.items():
            missed[area] += not (np.isnan(own.estimate) or own.low <= true_areas[area] <= own.high)
    assert max(missed.values()) <= DRAWS * (0.05 + 3 * np.sqrt(0.05 * 0.95 / DRAWS))


def test_a_sample_without_errors_does_not_show_that_there_are_none():
    ranking = Ranking(np.arange(100.0), np.ones(100, dtype=np.bool_))
    found = Resampling().resample_statistics(
        {"aurc": Target(METRICS["aurc"].prepare_statistic(ranking))}, 100
    )["aurc"]
    assert found.estimate == 0.0
    # If 3% of the rows are incorrect, one sample of 100 rows in 20 holds no incorrect row.
    assert found.high > 0.03


def test_auroc_against_very_many_correct_rows_is_a_proportion():
    """Each incorrect row ranks before or behind all correct rows, so the exact interval is
    known.
    """
    score = np.concatenate([np.zeros(7), np.full(13, 2.0), np.ones(50_000)])
    correct = np.arange(len(score)) >= 20
    found = interval(auroc, score, correct, n_resamples=10_000)
    exact = clopper_pearson(13, 20)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.01)


def test_merging_the_blocks_of_many_errors_hardly_moves_the_limits(monkeypatch):
    random = np.random.default_rng(0)
    correct = random.random(4_000) > 0.4
    score = random.normal(0.0, 1.0, 4_000) + 1.5 * ~correct
    statistics = {area: METRICS[area].prepare_statistic(Ranking(score, correct)) for area in AREAS}
    merged = compute_area_limits(statistics, 1_000, 0.025, np.random.default_rng(1))
    monkeypatch.setattr("metacal.metrics.area_intervals._N_UNMERGED_BLOCKS", 4_000)
    single = compute_area_limits(statistics, 1_000, 0.025, np.random.default_rng(2))
    for area in AREAS:
        assert merged[area] == pytest.approx(
            single[area], abs=0.12 * (single[area][1] - single[area][0])
        )
