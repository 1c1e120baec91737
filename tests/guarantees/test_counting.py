"""Rows that belong together, and known shift: broken where rows are counted as they come, kept
where they are drawn.

The embedded sets are the truth. A promise may be broken in `DELTA` of the draws and three standard
errors: 17% of 150. Whoever forgets the groups breaks it in a quarter of them at five copies,
whoever forgets the weights in 40% to all.
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal.certification.importance import Importance
from metacal.certification.row_selection import build_row_selection

DELTA, DRAWS = 0.1, 150
LIMIT = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / DRAWS)


def truth(whole, weights=None):
    """F0 and F1 of any threshold, on the whole set or on its reweighting."""
    order = np.argsort(whole.scores, kind="stable")
    scores, correct = whole.scores[order], whole.correct[order]
    mass = np.ones(len(order)) if weights is None else weights[order]
    right, rows = np.cumsum(mass * correct), np.cumsum(mass)

    def at(threshold):
        last = np.searchsorted(scores, threshold, side="right") - 1
        return 1.0 - right[last] / right[-1], right[last] / rows[last]

    return at


def kept(promise, certificate, at):
    miscoverage, accuracy = at(certificate.threshold)
    return (
        miscoverage <= promise.alpha
        if isinstance(promise, mc.MaxMiscoverage)
        else accuracy >= promise.beta
    )


def broken(promise, draw, at):
    count = 0
    for i in range(DRAWS):
        try:
            count += not kept(promise, promise.certify(*draw(i)), at)
        except mc.InfeasibleTargetError:
            continue
    return count / DRAWS


def promises(whole):
    return mc.MaxMiscoverage(0.1, DELTA), mc.MinAccuracy(whole.beta, DELTA)


def drawn(data, chosen, units=None, importance=None):
    """Those of the chosen rows that count, drawn with the seed that is derived from them."""
    selection = build_row_selection(len(chosen), units, importance)
    return chosen[selection.draw(data.scores[chosen], data.correct[chosen]).indices]


@pytest.mark.slow
@pytest.mark.parametrize("copies", [2, 5])
def test_copies_break_promises_and_groups_keep_them(embedded_set, copies):
    at, rng = truth(embedded_set), np.random.default_rng(copies)
    n = 1000

    def rows():
        return np.repeat(rng.integers(0, len(embedded_set.scores), n), copies)

    def as_they_come(i):
        chosen = rows()
        return embedded_set.scores[chosen], embedded_set.correct[chosen]

    def one_of_each(i):
        chosen = rows()
        chosen = drawn(embedded_set, chosen, np.repeat(np.arange(n), copies))
        return embedded_set.scores[chosen], embedded_set.correct[chosen]

    for promise in promises(embedded_set):
        assert broken(promise, as_they_come, at) > DELTA + 0.02
        assert broken(promise, one_of_each, at) <= LIMIT


@pytest.mark.slow
def test_groups_of_unequal_size_and_mixed_rows(embedded_set):
    """A group is a stretch of similar rows, more of them the surer they are; a new row is any row
    of a new group.
    """
    order = np.argsort(embedded_set.scores, kind="stable")
    size = 1 + (np.arange(len(order)) % 97 < np.linspace(97, 0, len(order))).astype(int) * 4
    group = np.repeat(np.arange(len(order)), size)[: len(order)]
    members = np.bincount(group)
    at, rng = (
        truth(embedded_set, weights=_spread(order, 1.0 / members[group])),
        np.random.default_rng(0),
    )
    starts = np.concatenate(([0], np.cumsum(members)[:-1]))

    def draw(i):
        groups = rng.integers(0, len(members), 700)
        places = np.concatenate([np.arange(starts[g], starts[g] + members[g]) for g in groups])
        ids = np.repeat(np.arange(700), members[groups])
        chosen = drawn(embedded_set, order[places], ids)
        return embedded_set.scores[chosen], embedded_set.correct[chosen]

    for promise in promises(embedded_set):
        assert broken(promise, draw, at) <= LIMIT


def _spread(order, values):
    found = np.empty(len(order))
    found[order] = values
    return found


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 1000, 5000])
def test_known_label_shift(embedded_set, n):
    """The classes with the most errors come four times as often in the target: ignoring it breaks
    the accuracy.
    """
    labels, correct = embedded_set.labels, embedded_set.correct
    wrong = np.bincount(labels, ~correct) / np.bincount(labels)
    weights = np.where(wrong > np.median(wrong), 1.6, 0.4)[labels]
    at, rng = truth(embedded_set, weights), np.random.default_rng(n)

    def ignored(i):
        chosen = rng.integers(0, len(labels), n)
        return embedded_set.scores[chosen], correct[chosen]

    def weighted(i):
        chosen = rng.integers(0, len(labels), n)
        chosen = drawn(embedded_set, chosen, importance=Importance(weights[chosen], largest=1.6))
        return embedded_set.scores[chosen], correct[chosen]

    for promise in promises(embedded_set):
        assert broken(promise, weighted, at) <= LIMIT
    if n > 300:
        assert broken(promises(embedded_set)[1], ignored, at) > 0.3


@pytest.mark.slow
def test_known_covariate_shift_with_the_largest_weight_of_the_rows(embedded_set):
    """Weights that rise with the score, and a bound taken from the rows themselves."""
    rank = np.argsort(np.argsort(embedded_set.scores)) / len(embedded_set.scores)
    weights = 0.5 + rank
    at, rng = truth(embedded_set, weights), np.random.default_rng(1)

    def weighted(i):
        chosen = rng.integers(0, len(rank), 800)
        chosen = drawn(embedded_set, chosen, importance=weights[chosen])
        return embedded_set.scores[chosen], embedded_set.correct[chosen]

    for promise in promises(embedded_set):
        assert broken(promise, weighted, at) <= LIMIT


@pytest.mark.slow
def test_label_shift_estimated_from_unlabelled_rows(embedded_set):
    """Called approximate, and it is: weights from the predictions of new rows bring the accuracy
    back, nearly.
    """
    labels, correct, logits = embedded_set.labels, embedded_set.correct, embedded_set.logits
    wrong = np.bincount(labels, ~correct) / np.bincount(labels)
    weights = np.where(wrong > np.median(wrong), 1.6, 0.4)[labels]
    at, rng = truth(embedded_set, weights), np.random.default_rng(2)
    chance = weights / weights.sum()

    def estimated(i):
        chosen, new = rng.integers(0, len(labels), 2000), rng.choice(len(labels), 2000, p=chance)
        found = Importance.from_unlabelled(logits[chosen], labels[chosen], logits[new])
        chosen = drawn(embedded_set, chosen, importance=found)
        return embedded_set.scores[chosen], correct[chosen]

    found = [broken(promise, estimated, at) for promise in promises(embedded_set)]
    assert max(found) <= LIMIT + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["accuracy", "miscoverage"])
def test_how_many_of_the_next_rows_go_to_review(embedded_set, kind):
    """A 90% interval covers about as much; the plain binomial, which takes the calibration's share
    for true, less.
    """
    promise = promises(embedded_set)[kind == "accuracy"]
    rng, inside, plain, n, draws = np.random.default_rng(3), 0, 0, 1000, 500
    for _ in range(draws):
        rows = rng.integers(0, len(embedded_set.scores), n)
        certificate = promise.certify(embedded_set.scores[rows], embedded_set.correct[rows])
        new = embedded_set.scores[rng.integers(0, len(embedded_set.scores), 1000)]
        reviewed = int((new > certificate.threshold).sum())
        found = certificate.next_rows(1000)
        inside += found.fewest <= reviewed <= found.most
        share = 1.0 - certificate.coverage
        plain += abs(reviewed - 1000 * share) <= 1.645 * np.sqrt(1000 * share * (1 - share)) + 0.5
    assert 0.86 <= inside / draws <= 0.94
    assert plain / draws < 0.8
