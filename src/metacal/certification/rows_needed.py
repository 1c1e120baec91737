r"""How many rows would it take? From what the rows that cannot carry a target say about rows like
them.

A profile is how often rows err along the ranking. Right rows have a latent score z ~ N(0, 1), wrong
ones N(d, s²), but for a share ρ of them, which look like right ones (wrong labels, surprises): the
binormal model of ROC curves. With e the error rate, d, s and ρ fix the share of wrong rows among
the surest ones of any number. On the eight sets of logits that come with it, d is 1.4 to 1.8 and s
.6 to .8: what is not seen of the surest rows, of which few are known, is taken from there. Each of
many profiles (log e evenly spread, d normal, three values of s and of ρ) is weighted by how likely
it makes the rows, over how likely it makes it that so many rows certify nothing: none but those are
asked.

A rule that certifies N rows does so where at some rank m of a few that N fixes at most c errors are
found. Given the profile, the score at rank m stands at a share U ~ Beta(m, N - m + 1) of the
population, and E_m ~ Bin(m, mean error up to U): three values of U, and the best of the ranks. The
number of rows is where the chance, averaged over the profiles, is `CHANCE`.

**The number is a rough estimate, and `CHANCE` is not the chance that it is enough.** It would be on
average over populations such as the prior expects. A sample that certifies nothing holds too few
errors to tell populations apart. `python -m benchmarks.rows_needed_unseen` measures how far off the
number is on real sets that played no part in choosing the constants: on most of them so many rows
are enough less often than `CHANCE`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import numpy as np
from scipy.special import bdtr, ndtr

from metacal.certification.ranking import Ranking
from metacal.formulas import Codes, Float
from metacal.rows.draws import generator
from metacal.statistics import bounds

#: From a number of rows the ranks that are tested first, rising, and how many errors may be found
#: up to each.
StartingTestPlanner = Callable[[int], Sequence[tuple[int, int]]]

#: The chance of certifying that defines the number of rows, by the profiles; on a real set it is
#: often lower.
TARGET_CHANCE = 0.8
#: No number is named beyond so many times as many rows, or so many: the profile says nothing so far
#: out.
_TIMES, _MOST = 50, 20_000
#: Where rows themselves are drawn again: how often, and how many steps of a factor of the root of
#: 2.
_DRAWS, _DOUBLINGS = 20, 10
#: Where the share of wrong rows is known; finer among the surest.
PROFILE_SHARES = np.concatenate(
    [[0.0], np.geomspace(0.004, 0.05, 8)[:-1], np.linspace(0.05, 1.0, 39)]
)
#: Error rates, and the other parameters of profiles with how likely each is before rows are seen.
_ERROR_RATES = np.geomspace(2e-4, 0.9, 72)
_DISTANCES = tuple((d, math.exp(-0.5 * ((d - 1.6) / 0.8) ** 2)) for d in np.arange(0.0, 3.3, 0.2))
_SPREADS = ((0.58, 1 / 6), (0.72, 2 / 3), (0.9, 1 / 6))
_UNFORESEEN = ((0.0, 0.85), (0.03, 0.1), (0.12, 0.05))
#: Three values of a share that have its mean and variance, in standard deviations, and their
#: weights.
_NODES, _WEIGHTS = np.array([-(3.0**0.5), 0.0, 3.0**0.5]), np.array([1 / 6, 2 / 3, 1 / 6])
#: How likely it is at least taken to be that rows certify nothing; how unlikely profiles are that
#: are left out.
_FAILS, _UNLIKELY = 0.1, 0.005


def estimate_rows_needed_by_resampling(n: int, certifies: Callable[[Codes], bool]) -> int | None:
    """The same for any rule, by drawing ranks of these rows again; slower, and from few draws."""
    random = generator(0)
    for step in range(1, _DOUBLINGS + 1):
        size = round(n * 2.0 ** (step / 2))
        passed = sum(certifies(np.sort(random.integers(n, size=size))) for _ in range(_DRAWS))
        if passed >= TARGET_CHANCE * _DRAWS:
            return bounds.round_up_to_two_digits(size)
    return None


def estimate_rows_needed(ranking: Ranking, plan: StartingTestPlanner) -> int | None:
    """Estimate how many rows would certify the target, to two digits; None if these rows support no
    estimate.

    The estimate is rough. It assumes that new rows look like these, and may be off by a factor of
    three or more.

    >>> from metacal.certification.rules.accuracy_shortfall import plan_starting_tests
    >>> rng = np.random.default_rng(0)
    >>> score = rng.random(200)
    >>> ranking = Ranking.from_scores(score, rng.random(200) > 0.2 * score)
    >>> estimate_rows_needed(ranking, lambda n_rows: plan_starting_tests(n_rows, 0.95, 0.1))
    900
    """
    return find_smallest_sample_size(
        ranking.n_rows, *weight_profiles(ranking, build_binormal_profiles()), plan
    )


def find_smallest_sample_size(
    n: int, wrong_up_to: Float, weight: Float, plan: StartingTestPlanner
) -> int | None:
    """The same, where n rows certify nothing, from profiles and how likely each is."""
    weight = weight / np.maximum(1.0 - _chances(wrong_up_to, plan(n), n), _FAILS)

    def chance(step: int) -> float:
        # Steps of an eighth of a doubling, the same for all rankings, so that plans can be kept.
        size = math.ceil(2.0 ** (step / 8))
        return float(_chances(wrong_up_to, plan(size), size) @ weight / weight.sum())

    low, high = (math.floor(8.0 * math.log2(size)) for size in (n, max(_TIMES * n, _MOST)))
    before, after = 0.0, chance(high)
    if after < TARGET_CHANCE:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = chance(middle)
        low, before, high, after = (
            (low, before, middle, found) if found >= TARGET_CHANCE else (middle, found, high, after)
        )
    steps = low + (TARGET_CHANCE - before) / (after - before)
    return bounds.round_up_to_two_digits(max(n + 1, math.ceil(2.0 ** (steps / 8))))


#: By error rate: wrong rows up to each of `AT`, log-odds between, the mean log of being right, how
#: likely at first.
Profiles = tuple[Float, Float, Float, Float]


@cache
def build_binormal_profiles() -> Profiles:
    """Those of the binormal model."""
    latent, rate = np.linspace(-7.0, 9.0, 800), _ERROR_RATES[:, None]
    right, curves, likely = ndtr(latent), [], []
    for (d, one), (s, other), (unforeseen, third) in itertools.product(
        _DISTANCES, _SPREADS, _UNFORESEEN
    ):
        wrong = (1.0 - unforeseen) * ndtr((latent - d) / s) + unforeseen * right
        share = (1.0 - rate) * right + rate * wrong
        curves.append([np.interp(PROFILE_SHARES, *of) for of in zip(share, rate * wrong)])
        likely.append(one * other * third)
    return build_profiles(np.swapaxes(np.array(curves), 0, 1), np.array(likely))


def build_profiles(wrong_up_to: Float, likely: Float) -> Profiles:
    """The profiles whose share of all rows that are wrong and lie up to each of `AT` is given."""
    between = np.clip(np.diff(wrong_up_to) / np.diff(PROFILE_SHARES), 1e-9, 1.0 - 1e-9)
    right = np.log1p(-between)
    return wrong_up_to, np.log(between) - right, right @ np.diff(PROFILE_SHARES), likely


def weight_profiles(ranking: Ranking, known: Profiles) -> tuple[Float, Float]:
    """Those that make these rows likely, and how likely."""
    n, (wrong_up_to, log_odds, log_right, likely) = ranking.n_rows, known
    up_to = np.interp(
        PROFILE_SHARES * n,
        np.append(0, ranking.block_end_ranks),
        np.append(0, ranking.cumulative_errors),
    )
    near = slice(None)
    if len(wrong_up_to) > 1:  # error rates beyond four standard errors need no look
        seen = (up_to[-1] + 0.5) / (n + 1.0)
        far = math.exp(4.0 * math.sqrt((1.0 - seen) / (n * seen)) + 0.1)
        first, last = np.searchsorted(_ERROR_RATES, [min(seen / far, 0.5), seen * far])
        near = slice(first, last, 1 + (last - first) // 16)
    log = log_odds[near] @ np.diff(up_to) + n * log_right[near]
    weight = np.exp(log - log.max()) * likely
    kept = weight > _UNLIKELY * weight.max()
    return np.ascontiguousarray(wrong_up_to[near][kept].T), weight[kept]


def _chances(wrong_up_to: Float, tested: Sequence[tuple[int, int]], n: int) -> Float:
    """How often n rows pass the test that they are most likely to pass, by each profile."""
    best = np.zeros(wrong_up_to.shape[1])
    for m, most in tested:
        k, before, after, rate, passing = _test(m, most, n)
        found = wrong_up_to[k] * before + wrong_up_to[k + 1] * after
        best = np.maximum(best, _WEIGHTS @ np.interp(found, rate, passing))
    return best


@lru_cache(maxsize=1000)
def _test(m: int, most: int, n: int) -> tuple[Codes, Float, Float, Float, Float]:
    """How to read a profile's mean error up to rank m of n, and how often m rows hold so few errors
    at such rates.
    """
    share = m / (n + 1.0)
    at = np.clip(share + math.sqrt(share * (1.0 - share) / (n + 2.0)) * _NODES, 0.2 * share, 1.0)[
        :, None
    ]
    k = np.searchsorted(PROFILE_SHARES, at[:, 0]) - 1
    after = (at - PROFILE_SHARES[k, None]) / np.diff(PROFILE_SHARES)[k, None]
    rate = np.linspace(0.0, min(1.0, (most + 9.0 + 6.0 * math.sqrt(max(most, 0) + 1.0)) / m), 101)
    return (
        k,
        (1.0 - after) / at,
        after / at,
        rate,
        bdtr(most, m, rate) if most >= 0 else np.zeros(101),
    )
