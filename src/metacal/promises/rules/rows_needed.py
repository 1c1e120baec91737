r"""How many rows would it take? By simulation from the profile of the rows that cannot carry a target.

The profile is how often rows err along the ranking: with u the share of rows that are surer,

    P(wrong | u) = f + (1 - f) / (1 + exp(-(a + b·log u + c·u))),    f = 1.5·ρ·e·√u,

e the error rate of all rows. A share ρ of it is errors that the score hardly foresees (wrong labels, surprises): few
among the surest rows, where little else is. The rest rises with u as a, b and c say, fitted to all rows with a mild
prior, so that what is said of the surest rows, of which few are known, rests on the others too. ρ cannot be seen in few
rows: .2%, .8% and 3%, which is about what sets of real logits have, are weighted by how well each explains the rows
(Laplace's approximation), and the logarithms of their profiles averaged.

A rule that certifies N rows does so where at some rank m of a few that N fixes at most c errors are found. Given the
profile, the score at rank m + 1 stands at a share U ~ Beta(m, N - m + 1) of the population, and E_m ~ Bin(m, mean error
up to U); between two ranks likewise. So the chance that N rows certify takes a few binomial draws. The number of rows
is the smallest for which it is 4 of 5. `python -m benchmarks.rows_needed` measures how often it is: what the surest
rows hide no rule can know from rows that cannot carry the target, so it is so about, not on every set.
"""

from __future__ import annotations

import math
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
#: How often certifying N rows is simulated.
_CASES = 250
#: Where rows themselves are drawn again: how often, and how many steps of a factor of the root of 2.
_DRAWS, _DOUBLINGS = 20, 10
_GROUPS = 50
#: Shares of errors that the score hardly foresees, and how likely each is before rows are seen.
_UNFORESEEN, _LIKELY = np.array([0.002, 0.008, 0.03]), np.array([0.3, 0.4, 0.3])
#: Mean and precision of the prior of a, b and c.
_PRIOR, _PRECISION = np.array([0.0, 1.5, 4.0]), np.array([1e-4, 1.0, 0.02])
#: Steps of Newton's method that are tried, the best of which is taken.
_LENGTHS = np.array([1.0, 0.4, 0.1, 0.02])[:, None, None]
#: Where the mean error up to a share of the rows is known; finer among the surest.
_AT = np.unique(np.concatenate([np.geomspace(1e-3, 0.05, 12), np.linspace(0.05, 1.0, 60)]))


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
    1100
    """
    wrong_up_to = _profile(ranking)

    def enough(step: int) -> bool:
        n = math.ceil(2.0 ** (step / 8))
        return _chance(wrong_up_to, plan(n), n) >= CHANCE

    # Steps of an eighth of a doubling, the same for all rankings, so that plans can be kept.
    low, high = (math.floor(8.0 * math.log2(n)) + 1 for n in (ranking.n, max(_TIMES * ranking.n, _MOST)))
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return bounds.two_digits(math.ceil(2.0 ** (low / 8)))


def _profile(ranking: Ranking) -> Float:
    """The share of all rows that are wrong and lie up to each of `_AT`."""
    ends = np.unique(np.searchsorted(ranking.ranks, np.linspace(1, ranking.n, min(_GROUPS, ranking.n)).astype(int)))
    ranks, errors = np.append(0, ranking.ranks[ends]), np.append(0, ranking.errors[ends])
    shares = (ranks[1:] + ranks[:-1]) / (2.0 * ranking.n)
    shares, wrong, rows = _with_one_more(shares, np.diff(errors), np.diff(ranks), 0.2)
    hidden, middles = 1.5 * _UNFORESEEN[:, None] * (wrong.sum() / rows.sum()), (_AT[:-1] + _AT[1:]) / 2.0
    at, likely, _ = _fitted(_terms(shares), wrong, rows, hidden * np.sqrt(shares))
    weight = np.exp(likely - likely.max()) * _LIKELY
    each = _rates(at, _terms(middles), hidden * np.sqrt(middles))
    rate = np.exp((weight / weight.sum()) @ np.log(each))
    before = _AT[0] * rate[0]
    return np.append(before, before + np.cumsum(rate * np.diff(_AT)))


def fitted_profiles(shares: Float, wrong: Any, rows: Any, number: int, spread: float) -> Float:
    """Coefficients of profiles drawn around the fit to groups of rows, at their shares, by so many standard errors."""
    shares, wrong, rows = _with_one_more(shares, wrong, rows, 0.5)
    fitted, _, precision = _fitted(_terms(shares), wrong, rows, np.zeros((1, len(shares))))
    drawn = generator(0).standard_normal((number, 3)) @ np.linalg.inv(np.linalg.cholesky(precision[0]))
    return np.asarray(fitted + spread * drawn)


def _with_one_more(shares: Float, wrong: Any, rows: Any, part: float) -> tuple[Float, Float, Float]:
    """A part of an error more, in the middle: where none was seen, some are there all the same."""
    return np.append(shares, 0.5), np.append(wrong, part), np.append(rows, 0.5)


def rates(profiles: Float, shares: Float) -> Float:
    """How often a row at each share is wrong, by each profile."""
    return _rates(profiles, _terms(shares), np.zeros(1))


def _terms(shares: Float) -> Float:
    return np.stack([np.ones_like(shares), np.log(shares), shares], axis=1)


def _rates(at: Float, terms: Float, floor: Float) -> Float:
    rate = floor + (1.0 - floor) / (1.0 + np.exp(-np.clip(at @ terms.T, -30.0, 30.0)))
    return np.asarray(np.minimum(rate, 1.0 - 1e-9))


def _fitted(terms: Float, wrong: Float, rows: Float, floor: Float) -> tuple[Float, Float, Float]:
    """For each floor the most likely a, b and c, by Newton's method; log of how likely rows are; precision."""

    def height(at: Float) -> Float:
        rate = _rates(at, terms, floor)
        seen = np.log(rate) @ wrong + np.log1p(-rate) @ (rows - wrong)
        return np.asarray(seen - 0.5 * ((at - _PRIOR) ** 2 @ _PRECISION))

    mean = wrong.sum() / rows.sum()
    at = np.tile([np.log(mean / (1.0 - mean)) if mean < 1.0 else 5.0, 1.0, 0.0], (len(floor), 1))
    best, precision = height(at), np.empty((len(floor), 3, 3))
    for _ in range(25):
        rate = _rates(at, terms, floor)
        slope = (rate - floor) * (1.0 - rate) / (1.0 - floor)
        pull = (slope * (wrong / rate - (rows - wrong) / (1.0 - rate))) @ terms - _PRECISION * (at - _PRIOR)
        weight = rows * slope**2 / (rate * (1.0 - rate))
        precision = np.einsum("fg,gi,gj->fij", weight, terms, terms) + np.diag(_PRECISION)
        tried = at + _LENGTHS * np.linalg.solve(precision, pull[..., None])[..., 0]
        heights = height(tried)
        longest = heights.argmax(axis=0), np.arange(len(floor))
        higher = heights[longest] > best + 1e-4
        at, best = np.where(higher[:, None], tried[longest], at), np.where(higher, heights[longest], best)
        if not higher.any():
            break
    return at, best - 0.5 * np.linalg.slogdet(precision)[1], precision


def _chance(wrong_up_to: Float, tested: Sequence[tuple[int, int]], n: int) -> float:
    """How often n rows pass one of the tests."""
    random = generator(n)
    passed, errors = np.zeros(_CASES, dtype=bool), np.zeros(_CASES, dtype=np.intp)
    rank, share, wrong = 0, np.zeros(_CASES), np.zeros(_CASES)
    for m, most in tested:
        up_to = np.maximum(random.beta(m, n - m + 1, _CASES), share)
        found = np.maximum(np.interp(up_to, _AT, wrong_up_to), wrong)
        mean = np.clip((found - wrong) / np.maximum(up_to - share, 1e-12), 0.0, 1.0)
        errors = errors + random.binomial(m - rank, mean)
        passed |= errors <= most
        rank, share, wrong = m, up_to, found
    return float(passed.mean())
