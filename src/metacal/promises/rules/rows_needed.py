r"""How many rows would it take? By simulation from the profile of the rows that cannot carry a target.

The profile is how often rows err along the ranking: with u the share of rows that are surer,

    logit P(wrong | u) = a + b·log u + c·u,

fitted to all rows with a mild prior (b about 1, c about 0), so that what is said of the surest rows, of which few are
known, rests on the others too. How far it is off is part of the answer: profiles are drawn around the fit, with half of
its standard errors. (All of them would be right on average over populations, and ask for far too many rows on most.)

A rule that certifies N rows does so where at some rank m of a few that N fixes at most c errors are found. Given the
profile, the score at rank m + 1 stands at a share U ~ Beta(m, N - m + 1) of the population, and E_m ~ Bin(m, mean error
up to U); between two ranks likewise. So the chance that N rows certify takes a few binomial draws for each profile. The
number of rows is the smallest for which it is 4 of 5. `python -m benchmarks rows_needed` measures how often it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.promises.rules import bounds
from metacal.promises.sample import Ranking
from metacal.rows.draws import generator

Float = NDArray[np.float64]
#: From a number of rows the ranks that are tested first, rising, and how many errors may be found up to each.
Plan = Callable[[int], Sequence[tuple[int, int]]]

#: In how many cases so many rows shall certify.
CHANCE = 0.8
#: No number is named beyond so many times as many rows, or so many: the profile says nothing so far out.
_TIMES, _MOST = 50, 20_000
_PROFILES = 200
#: Where rows themselves are drawn again: how often, and how many steps of a factor of the root of 2.
_DRAWS, _DOUBLINGS = 20, 10
_GROUPS = 400
#: How far profiles are drawn from the fit, in its standard errors.
_SPREAD = 0.5
#: Mean and precision of the prior of a, b and c.
_PRIOR, _PRECISION = np.array([0.0, 1.0, 0.0]), np.array([1e-4, 0.2, 0.1])
#: Where the mean error up to a share of the rows is known; finer among the surest.
_AT = np.unique(np.concatenate([np.geomspace(1e-4, 0.05, 60), np.linspace(0.05, 1.0, 140)]))


def resampled(n: int, certifies: Callable[[NDArray[np.intp]], bool]) -> int | None:
    """The same for any rule, by drawing ranks of these rows again; slower, and from few draws."""
    random = generator(0)
    for step in range(1, _DOUBLINGS + 1):
        size = round(n * 2.0 ** (step / 2))
        passed = sum(certifies(np.sort(random.integers(n, size=size))) for _ in range(_DRAWS))
        if passed >= CHANCE * _DRAWS:
            return bounds.two_digits(size)
    return None


def rows_needed(ranking: Ranking, plan: Plan) -> int | None:
    """About how many rows of this kind would be certified in 4 of 5 cases, to two digits; None: no such number.

    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(200)
    >>> rows_needed(Ranking.of(score, rng.random(200) > 0.2 * score), MinAccuracy(0.95).plan)
    1400
    """
    times = max(_TIMES, _MOST / ranking.n)
    steps = np.unique(np.round(ranking.n * 2.0 ** (np.arange(1, 8 * np.log2(times)) / 8.0)).astype(int)).tolist()
    for spread in (_SPREAD, 0.0):  # where too many profiles have no such number, that of the fit alone
        wrong_up_to = _profiles(ranking, spread)
        low, high = 0, len(steps)
        while low < high:
            middle = (low + high) // 2
            enough = _chance(wrong_up_to, plan(steps[middle]), steps[middle]) >= CHANCE
            low, high = (low, middle) if enough else (middle + 1, high)
        if low < len(steps):
            return bounds.two_digits(steps[low])
    return None


def _profiles(ranking: Ranking, spread: float) -> Float:
    """Of each profile that was drawn, the share of all rows that are wrong and lie up to each of `_AT`."""
    ends = np.unique(np.searchsorted(ranking.ranks, np.linspace(1, ranking.n, min(_GROUPS, ranking.n)).astype(int)))
    ranks, errors = np.append(0, ranking.ranks[ends]), np.append(0, ranking.errors[ends])
    shares = (ranks[1:] + ranks[:-1]) / (2.0 * ranking.n)
    drawn = fitted_profiles(shares, np.diff(errors), np.diff(ranks), _PROFILES, spread)
    rate = rates(drawn, (_AT[:-1] + _AT[1:]) / 2.0)
    before = _AT[0] * rate[:, :1]
    return np.concatenate([before, before + np.cumsum(rate * np.diff(_AT), axis=1)], axis=1)


def fitted_profiles(shares: Float, wrong: Any, rows: Any, number: int, spread: float) -> Float:
    """Coefficients of profiles drawn around the fit to groups of rows, at their shares, by so many standard errors."""
    # Half an error more, in the middle: where none was seen, some are there all the same.
    shares, wrong, rows = np.append(shares, 0.5), np.append(wrong, 0.5), np.append(rows, 0.5)
    fitted, precision = _fitted(_terms(shares), wrong.astype(np.float64), rows.astype(np.float64))
    drawn = generator(0).standard_normal((number, 3)) @ np.linalg.inv(np.linalg.cholesky(precision))
    return np.asarray(fitted + spread * drawn)


def rates(profiles: Float, shares: Float) -> Float:
    """How often a row at each share is wrong, by each profile."""
    return np.asarray(1.0 / (1.0 + np.exp(-profiles @ _terms(shares).T)))


def _terms(shares: Float) -> Float:
    return np.stack([np.ones_like(shares), np.log(shares), shares], axis=1)


def _fitted(terms: Float, wrong: Float, rows: Float) -> tuple[Float, Float]:
    """The most likely coefficients, by Newton's method, and the precision matrix there."""
    rate = wrong.sum() / rows.sum()
    at = np.array([np.log(rate / (1.0 - rate)) if rate < 1.0 else 5.0, 1.0, 0.0])
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-np.clip(terms @ at, -30.0, 30.0)))
        slope = terms.T @ (wrong - rows * chance) - _PRECISION * (at - _PRIOR)
        precision = (terms * (rows * chance * (1.0 - chance))[:, None]).T @ terms + np.diag(_PRECISION)
        step = np.clip(np.linalg.solve(precision, slope), -2.0, 2.0)
        at = at + step
        if np.abs(step).max() < 1e-6:
            break
    return at, precision


def _chance(wrong_up_to: Float, tested: Sequence[tuple[int, int]], n: int) -> float:
    """How often n rows pass one of the tests."""
    random, size = generator(n), len(wrong_up_to)
    passed, errors, profile = np.zeros(size, dtype=bool), np.zeros(size, dtype=np.intp), np.arange(size)
    rank, share, wrong = 0, np.zeros(size), np.zeros(size)
    for m, most in tested:
        up_to = np.maximum(random.beta(m, n - m + 1, size), share)
        at = np.clip(np.searchsorted(_AT, up_to) - 1, 0, len(_AT) - 2)
        part = np.clip((up_to - _AT[at]) / (_AT[at + 1] - _AT[at]), 0.0, 1.0)
        found = wrong_up_to[profile, at] * (1.0 - part) + wrong_up_to[profile, at + 1] * part
        mean = np.clip((found - wrong) / np.maximum(up_to - share, 1e-12), 0.0, 1.0)
        errors = errors + random.binomial(m - rank, mean)
        passed |= errors <= most
        rank, share, wrong = m, up_to, np.maximum(found, wrong)
    return float(passed.mean())
