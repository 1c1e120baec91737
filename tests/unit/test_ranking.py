"""Learned ranking scores: fitted on rows of their own, then a score like any other."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import metacal as mc
from metacal.errors import InputError
from metacal.scores.learned import LogisticRanker, PairwiseRanker, compute_row_features, split_rows

RANKERS = [LogisticRanker(), PairwiseRanker(max_pairs=20_000)]


@pytest.fixture(params=RANKERS, ids=lambda ranker: ranker.__name__)
def ranker(request):
    return clone(request.param)


@pytest.fixture
def parts(cifar10):
    return split_rows(cifar10.logits, cifar10.labels, share=0.2, random_state=1)


def test_ranks_errors_last(ranker, parts):
    (train_x, train_y), (rest_x, rest_y) = parts
    score = clone(ranker).fit(train_x, train_y)(rest_x)
    right = rest_x.argmax(axis=1) == rest_y
    entropy = mc.metrics.auroc(mc.scores.score_rows(mc.Rows(rest_x), "entropy"), right)
    assert mc.metrics.auroc(score, right) > entropy - 0.01


def test_is_a_score_of_metacal(ranker, parts):
    (train_x, train_y), (rest_x, rest_y) = parts
    fitted = clone(ranker).fit(train_x, train_y)
    gate = mc.MetaCal(mc.MinAccuracy(0.97), score=fitted, n_jobs=2).fit(rest_x, rest_y)
    assert gate.certificate_.score == type(ranker).__name__
    assert 0.7 < gate.accepts(rest_x).mean() < 1.0
    # A cloned MetaCal keeps the trained score: it is no part of what is fitted again.
    again = clone(gate).fit(rest_x, rest_y)
    assert again.threshold_ == gate.threshold_


def test_same_bits_again_and_after_pickling(ranker, parts):
    (train_x, train_y), (rest_x, _) = parts
    score = clone(ranker).fit(train_x, train_y)
    assert np.array_equal(score(rest_x), clone(ranker).fit(train_x, train_y)(rest_x))
    assert np.array_equal(score(rest_x), pickle.loads(pickle.dumps(score))(rest_x))
    # A product of matrices may take another road for fewer rows: the same numbers, rounded
    # elsewhere.
    np.testing.assert_allclose(score(rest_x[:100]), score(rest_x)[:100], rtol=1e-12, atol=1e-12)


def test_few_ties(ranker, parts):
    (train_x, train_y), (rest_x, _) = parts
    score = clone(ranker).fit(train_x, train_y)(rest_x)
    assert len(np.unique(score)) > 0.99 * len(score)


def test_strange_rows_still_have_a_number(ranker):
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 3.0, (400, 4))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    fitted = clone(ranker).fit(logits, labels)
    strange = np.array(
        [[0.0, -np.inf, -np.inf, -np.inf], [1e9, 0, 0, 0], [7, 7, 7, 7], [1e-9, 0, 0, 0]]
    )
    with np.errstate(invalid="raise", over="raise", divide="raise"):
        assert np.isfinite(fitted(strange)).all()
    sure, unsure = np.array([[9.0, 0, 0, 0]]), np.array([[1.0, 0.9, 0.8, 0.7]])
    assert fitted(sure) < fitted(unsure)


def test_two_classes_and_names(ranker):
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 1.0, (300, 2))
    labels = np.array(["no", "yes"])[(logits + rng.gumbel(size=logits.shape)).argmax(axis=1)]
    fitted = clone(ranker)
    fitted.classes = ["no", "yes"]
    assert fitted.fit(logits, labels)(logits).shape == (300,)


def test_what_is_wrong_is_said(ranker):
    fresh = clone(ranker)
    with pytest.raises(InputError, match="is not trained"):
        fresh(np.zeros((2, 3)))
    with pytest.raises(InputError, match="0 of 3"):
        fresh.fit(np.eye(3), [0, 1, 2])
    fresh.fit(np.eye(3), [0, 1, 1])
    with pytest.raises(InputError, match="3 classes"):
        fresh(np.zeros((2, 4)))
    fresh.n_top = 1
    with pytest.raises(InputError, match="n_top"):
        fresh.fit(np.eye(3), [0, 1, 1])


@pytest.mark.parametrize("kind", [LogisticRanker, PairwiseRanker])
def test_penalty_is_checked(kind):
    with pytest.raises(InputError, match="penalty"):
        kind(penalty=0.0).fit(np.eye(3), [0, 1, 1])


@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_logistic_is_scikit_learns(parts, penalty):
    """Its own solver, so that the mathematics needs no scikit-learn: the same minimum."""
    from sklearn.linear_model import LogisticRegression

    (x, y), _ = parts
    ranker = LogisticRanker(penalty=penalty).fit(x, y)
    features, wrong = (
        ranker._standardise(compute_row_features(x, ranker.n_top)),
        x.argmax(axis=1) != y,
    )
    exact = LogisticRegression(
        C=1.0 / penalty, solver="newton-cholesky", tol=1e-10, max_iter=1000
    ).fit(features, wrong)
    np.testing.assert_allclose(ranker.coefficients_, exact.coef_[0], rtol=1e-6, atol=1e-6)


def test_pairs_drawn_or_all_agree(parts):
    (x, y), (new, _) = parts
    few_x, few_y = x[:600], y[:600]
    every = PairwiseRanker(max_pairs=10**9).fit(few_x, few_y)
    drawn = PairwiseRanker(max_pairs=20_000).fit(few_x, few_y)
    assert np.corrcoef(every(new), drawn(new))[0, 1] > 0.98


def test_features_do_not_depend_on_the_order_of_classes():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 7))
    assert compute_row_features(logits[:, rng.permutation(7)]) == pytest.approx(
        compute_row_features(logits)
    )


def test_split_rows():
    logits, labels = np.arange(20.0).reshape(10, 2), np.arange(10)
    (train_x, train_y), (rest_x, rest_y) = split_rows(logits, labels, 0.3, random_state=5)
    assert sorted([*train_y, *rest_y]) == list(range(10))
    assert (train_x[:, 0] == 2 * train_y).all()
    assert (rest_x[:, 0] == 2 * rest_y).all()
    assert np.array_equal(split_rows(logits, labels, 0.3, random_state=5)[0][1], train_y)
    for share in (0.0, 1.0, 20):
        with pytest.raises(InputError, match="share"):
            split_rows(logits, labels, share)
    with pytest.raises(InputError, match="one label per row"):
        split_rows(logits, labels[:5])
