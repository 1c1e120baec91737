"""The estimated number of rows: no chance is claimed; `benchmarks.rows_needed_unseen` measures how
far off it is.
"""

from functools import partial
from itertools import count, islice

import numpy as np
import pytest

import metacal as mc
from metacal.certification.ranking import Ranking
from metacal.certification.rows_needed import (
    estimate_rows_needed,
    estimate_rows_needed_by_resampling,
)
from metacal.certification.rules.accuracy_shortfall import plan_starting_tests
from metacal.certification.rules.fixed_sequence import find_last_passed_rank

BETA = 0.95


#: How often rows err along the ranking, and how many of them are too few.
POPULATIONS = [
    (lambda u: 0.012 + 0.25 * u**1.5, 250),
    (lambda u: 0.5 * u**3, 60),
    (lambda u: 0.9 / (1 + np.exp(-14 * (u - 0.9))), 40),
    (lambda u: 0.2 * u, 400),
]


def drawn(rng, wrong, n):
    return Ranking.from_scores(np.arange(float(n)), rng.random(n) > wrong(np.sort(rng.random(n))))


@pytest.mark.slow
def test_so_many_rows_certify_in_about_4_of_5_cases_where_the_prior_fits():
    rng, certified = np.random.default_rng(0), []
    for wrong, n in POPULATIONS:
        samples = (drawn(rng, wrong, n) for _ in count())
        for sample in islice(
            (one for one in samples if not find_last_passed_rank(one, BETA, 0.1)), 60
        ):
            named = estimate_rows_needed(sample, lambda n: plan_starting_tests(n, BETA, 0.1))
            if named is not None:
                certified.append(find_last_passed_rank(drawn(rng, wrong, named), BETA, 0.1) > 0)
    assert len(certified) > 220
    assert abs(np.mean(certified) - 0.8) <= 0.03 + 3 * np.sqrt(0.16 / len(certified))


def test_the_error_names_an_estimate_and_claims_no_chance():
    rng = np.random.default_rng(0)
    with pytest.raises(mc.InfeasibleTargetError, match="a rough estimate") as caught:
        mc.MinAccuracy(0.97).certify(rng.random(200), rng.random(200) > 0.01)
    assert f"about {caught.value.rows_needed:,} rows" in str(caught.value)
    with pytest.raises(mc.InfeasibleTargetError, match="or improve the model") as caught:
        mc.MinAccuracy(0.97).certify(rng.random(300), rng.random(300) > 0.2)
    assert caught.value.rows_needed is None
    assert "enough" not in str(caught.value)
    assert "of 5" not in str(caught.value)


def test_any_rule_by_drawing_rows_again():
    assert estimate_rows_needed_by_resampling(100, lambda rows: len(rows) >= 500) == 570
    assert estimate_rows_needed_by_resampling(100, lambda rows: False) is None


@pytest.mark.parametrize("right", [[True] * 12, [False] * 20 + [True], [True, False] * 50])
def test_rows_that_say_little(right):
    ranking = Ranking.from_scores(np.arange(float(len(right))), np.array(right))
    for delta in (0.1, None):
        found = estimate_rows_needed(
            ranking, partial(plan_starting_tests, limit=0.9, significance_level=delta)
        )
        assert found is None or found > len(right)
