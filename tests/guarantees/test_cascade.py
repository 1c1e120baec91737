"""Cascades keep their promises: violations at most delta + 3 standard errors, on pairs of networks
and on adversaries.

A pair of real networks on the same rows is taken as the whole truth; calibration sets are drawn
from it with replacement. Power is asked for too: a small model that answers nothing keeps every
promise.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from metacal import datasets
from metacal.errors import InfeasibleTargetError
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.cascade import MaxLoss
from metacal.promises.cascade_candidates import (
    Candidate,
    CascadePlan,
    PairedPredictions,
    count_outcomes,
)
from metacal.promises.two_model_cascade import TwoModelEvidence
from metacal.rows import Rows
from metacal.scores import score_rows

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data"

DELTA = 0.1
DRAWS = 100
PAIRS = [
    ("cifar10-resnet110", "cifar10-wrn32"),
    ("cifar10-densenet40", "cifar10-wrn32"),
    ("cifar10-wrn32", "cifar10-resnet110"),  # the "large" model is the worse one
    ("cifar100-resnet110", "cifar100-wrn32"),
    ("cifar100-densenet40", "cifar100-resnet110sd"),
    ("cifar100-resnet110sd", "cifar100-wrn32"),
]
SIZES = [300, 1000, 5000]
#: Of pairs that begin with these: ten and a hundred classes. The others say the same.
TELLING = ("cifar10-resnet110", "cifar10-wrn32", "cifar100-resnet110")


@cache
def truth(small, large):
    """Both networks on the same images: the files are in the same order."""
    one, other = (
        datasets.load(name, folder=None if name in datasets.names() else DATA)
        for name in (small, large)
    )
    assert np.array_equal(one.labels, other.labels)
    answers = [each.logits.argmax(axis=1) for each in (one, other)]
    scores = [score_rows(Rows(each.logits), "entropy") for each in (one, other)]
    right = [answer == one.labels for answer in answers]
    return PairedPredictions(
        *scores, *right, answers[0] == answers[1], np.ones(len(one.labels), dtype=bool)
    )


def certified(population, n, promise, plan=None, draws=DRAWS, seed=0):
    """Thresholds certified on each draw; None where the rows cannot carry it."""
    rng = np.random.default_rng([seed, n])
    for draw in range(draws):
        rows = population.take(rng.integers(len(population), size=n))
        try:
            found = promise.certify(TwoModelEvidence(rows, plan or CascadePlan(random_state=draw)))
        except InfeasibleTargetError:
            yield None
        else:
            assert promise.contradiction(found) is None
            yield Candidate(*(stage.threshold for stage in found.stages.models))


def loss(population, candidate):
    seen = count_outcomes(population, candidate)
    return (seen.n_worse - seen.n_better) / len(population)


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, marks=[pytest.mark.long] * (pair[0] not in TELLING), id="-".join(pair))
        for pair in PAIRS
    ],
)
def test_the_loss_against_the_large_model_is_kept(pair, n):
    population = truth(*pair)
    draws = DRAWS if n < 5000 else 20
    found = [f for f in certified(population, n, MaxLoss(0.01), draws=draws) if f is not None]
    broken = sum(loss(population, f) > 0.01 for f in found)
    assert broken / draws <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)
    shares = [count_outcomes(population, f).n_small / len(population) for f in found]
    assert np.mean(shares) >= {300: 0.3, 1000: 0.5, 5000: 0.58}[n]


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[4]], ids="-".join)
@pytest.mark.parametrize("people", [False, True], ids=["two", "three"])
def test_the_accuracy_of_what_is_answered_is_kept(pair, n, people):
    population = truth(*pair)
    own = float(population.large_correct.mean())
    beta = round(own + (0.03 if people else -0.01), 3)
    draws = 60 if n < 5000 else 25
    broken = answered = 0
    for seed in range(draws):
        promise, plan = MinAccuracy(beta), CascadePlan(people, random_state=seed)
        (found,) = certified(population, n, promise, plan, draws=1, seed=seed)
        if found is not None:
            seen = count_outcomes(population, found)
            broken += seen.n_errors > (1.0 - beta) * seen.n_answered
            answered += seen.n_answered / len(population)
    assert broken / draws <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)
    if n == 5000:
        assert answered / draws >= 0.75


def made(n, worse, better, seed=0):
    """A population where, at rank u of the score, the small model alone is wrong with chance
    worse(u), and so on.
    """
    rng = np.random.default_rng(seed)
    u = (np.arange(n) + 0.5) / n
    draw = rng.random(n)
    small = ~(draw < worse(u))
    large = ~((draw >= worse(u)) & (draw < worse(u) + better(u)))
    return u, small, large


ADVERSARIES = {
    # Just above the limit wherever one stops: accepting anything breaks the promise.
    "at the limit": (lambda u: np.where(u < 0.02, 0.52, 0.0), lambda u: np.zeros_like(u)),
    # All disagreement in a narrow band, the band where a threshold would like to stand.
    "concentrated": (lambda u: np.where((u > 0.5) & (u < 0.54), 0.5, 0.0), lambda u: 0.0 * u),
    # The two disagree a lot, and the small one is worse by a hair more than is allowed.
    "noisy": (lambda u: np.full_like(u, 0.1106), lambda u: np.full_like(u, 0.1)),
    # It swings around the limit along the score.
    "swinging": (lambda u: 0.03 + 0.03 * np.sin(40 * u), lambda u: 0.02 - 0.02 * np.sin(40 * u)),
}


@pytest.mark.slow
@pytest.mark.parametrize("digits", [1, 12], ids=["mass points", "distinct"])
@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("n", [300, 1000, pytest.param(5000, marks=pytest.mark.long)])
def test_adversaries_keep_delta(name, digits, n):
    u, small, large = made(100_000, *ADVERSARIES[name])
    score = np.round(u, digits)
    population = PairedPredictions(
        score, score, small, large, small & large, np.ones(len(u), dtype=bool)
    )
    draws = 80 if n < 5000 else 20
    found = list(certified(population, n, MaxLoss(0.01), draws=draws))
    broken = sum(f is not None and loss(population, f) > 0.01 for f in found)
    assert broken / draws <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)


@pytest.mark.long
@pytest.mark.parametrize("n", [300])
def test_the_least_favourable_case_comes_near_to_delta(n):
    """Just beyond the limit at every threshold: nearly delta of all fits certify it, no more. A
    test that can fail.
    """
    rng = np.random.default_rng(n)
    draws, passed = 400, 0
    for _ in range(draws):
        worse, better = rng.multinomial(n, [0.0501, 0.03, 0.9199])[:2]
        rows = np.arange(n)
        small, large = ~(rows < worse), ~((rows >= worse) & (rows < worse + better))
        order = rng.permutation(n)
        one = PairedPredictions(
            np.zeros(n),
            np.zeros(n),
            small[order],
            large[order],
            (small & large)[order],
            small | large,
        )
        try:
            MaxLoss(0.02).certify(
                TwoModelEvidence(one, CascadePlan(separate_pilot_scores=np.zeros(1)))
            )
            passed += 1
        except InfeasibleTargetError:
            pass
    assert 0.05 <= passed / draws <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)
