"""Peeling reads the least certain rows from the bottom, in whole tie blocks, and nothing above."""

from __future__ import annotations

import numpy as np
import pytest

from metacal.certification.peeling import LeastCertainRowReader, read_until_loss_is_low
from metacal.certification.ranking import Ranking


def ranking_of(correct, scores=None):
    """Rank rows that are given from the most certain one."""
    correct = np.asarray(correct, dtype=bool)
    if scores is None:
        scores = np.arange(len(correct))
    return Ranking.from_scores(np.asarray(scores, dtype=float), correct)


def peeled(rows, window_loss=0.775, min_unread_rows=29):
    read_until_loss_is_low(rows, max_window_loss=window_loss, min_unread_rows=min_unread_rows)
    return rows.n_unread_rows


def test_labels_of_unread_rows_make_no_difference():
    """Whatever the labels up to the last unread row are, the same rows are read."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        correct = rng.random(600) < np.linspace(0.6, 0.0, 600)
        n_unread_rows = peeled(LeastCertainRowReader.from_ranking(ranking_of(correct)))
        assert 29 <= n_unread_rows < 600
        other_labels = correct.copy()
        other_labels[:n_unread_rows] = rng.random(n_unread_rows) < rng.random()
        assert peeled(LeastCertainRowReader.from_ranking(ranking_of(other_labels))) == n_unread_rows


def test_scores_of_unread_rows_make_no_difference():
    """Ties among unread rows are as invisible as their labels."""
    rng = np.random.default_rng(1)
    correct = rng.random(600) < np.linspace(0.6, 0.0, 600)
    n_unread_rows = peeled(LeastCertainRowReader.from_ranking(ranking_of(correct)))
    tied = np.arange(600)
    tied[:n_unread_rows] = 0
    assert peeled(LeastCertainRowReader.from_ranking(ranking_of(correct, tied))) == n_unread_rows


def test_rows_are_read_until_the_window_contains_enough_correct_rows():
    assert peeled(LeastCertainRowReader.from_ranking(ranking_of(np.arange(1000) < 100))) == 98
    # All rows are correct: only the first window is read.
    assert peeled(LeastCertainRowReader.from_ranking(ranking_of(np.ones(1000)))) == 960
    # No row is correct: as many rows as a test requires stay unread.
    assert 29 <= peeled(LeastCertainRowReader.from_ranking(ranking_of(np.zeros(1000)))) <= 30
    # Too few rows for a window: none is read.
    assert peeled(LeastCertainRowReader.from_ranking(ranking_of(np.zeros(30)))) == 30


def test_tie_blocks_are_read_as_a_whole():
    scores = np.repeat([0.0, 1.0, 2.0], [100, 50, 850])
    rows = LeastCertainRowReader.from_ranking(ranking_of(scores == 0.0, scores))
    rows.read_down_to_rank(999)
    assert rows.n_unread_rows == 150
    rows.read_down_to_rank(120)
    assert rows.n_unread_rows == 100
    # A part of a block has the mean loss of the block.
    assert rows.compute_mean_loss_next_to_unread_rows(20) == 1.0
    assert rows.compute_mean_ties_next_to_unread_rows(50) == 49.0
    assert rows.compute_mean_ties_next_to_unread_rows(60) == (50 * 49 + 10 * 849) / 60


def test_kept_scores_are_never_read():
    scores = np.repeat([0.0, 1.0, 2.0], [100, 50, 850])
    ranking = ranking_of(scores == 0.0, scores)
    assert peeled(LeastCertainRowReader.from_ranking(ranking, max_score_kept_unread=0.0)) == 100
    assert peeled(LeastCertainRowReader.from_ranking(ranking)) == 0
    assert peeled(LeastCertainRowReader.from_ranking(ranking, max_score_kept_unread=2.0)) == 1000


def test_the_probability_of_ties_is_about_rows_that_were_read():
    scores = np.concatenate([np.zeros(100), np.arange(100) // 4 + 1.0, np.full(800, 50.0)])
    rows = LeastCertainRowReader.from_ranking(ranking_of(scores == 0.0, scores))
    assert rows.compute_tie_probability() == 0.0
    rows.read_down_to_rank(100)
    assert rows.n_unread_rows == 100
    # The block of 800 rows is left out. Each of the 100 others is tied with three of 99.
    assert rows.compute_tie_probability() == pytest.approx(3 / 99)
    other_scores = np.where(scores == 0.0, np.arange(1000) / 1000.0, scores)
    others = LeastCertainRowReader.from_ranking(ranking_of(scores == 0.0, other_scores))
    others.read_down_to_rank(100)
    assert others.compute_tie_probability() == rows.compute_tie_probability()


def test_facts_about_unread_rows_are_refused():
    rows = LeastCertainRowReader.from_ranking(ranking_of(np.arange(100) < 50))
    with pytest.raises(ValueError, match="were read"):
        rows.compute_mean_loss_next_to_unread_rows(1)
    rows.read_down_to_rank(60)
    with pytest.raises(ValueError, match="were read"):
        rows.compute_mean_loss_next_to_unread_rows(41)
    with pytest.raises(ValueError, match="were read"):
        rows.compute_mean_ties_next_to_unread_rows(41)
    # Rows cannot be put back.
    rows.read_down_to_rank(80)
    assert rows.n_unread_rows == 60
    public = {name for name in dir(rows) if not name.startswith("_")}
    assert public == {
        "compute_tie_probability",
        "from_losses",
        "from_ranking",
        "compute_mean_loss_next_to_unread_rows",
        "compute_mean_ties_next_to_unread_rows",
        "n_read_rows",
        "n_rows",
        "n_unread_rows",
        "read_down_to_rank",
    }


def test_graded_losses_of_0_and_1_are_errors():
    rng = np.random.default_rng(2)
    scores = np.sort(rng.integers(0, 300, 1000)).astype(float)
    correct = rng.random(1000) < np.linspace(0.7, 0.0, 1000)
    ranking = ranking_of(correct, scores)
    sorted_losses = (~correct).astype(float)
    of_errors = peeled(LeastCertainRowReader.from_ranking(ranking))
    assert peeled(LeastCertainRowReader.from_losses(ranking, sorted_losses)) == of_errors
    assert (
        peeled(LeastCertainRowReader.from_losses(ranking, 0.5 * sorted_losses), 0.3875) == of_errors
    )
