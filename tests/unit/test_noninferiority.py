"""The exact test of a difference of two error rates: its size by enumeration, its order, its
ends.
"""

import numpy as np
import pytest
from scipy.special import gammaln, xlogy

from metacal.statistics.noninferiority import (
    _bound_p_value,
    certifies_noninferiority,
    p_value_of_noninferiority,
)

CASES = [(40, 0.1, 0.1), (60, 0.05, 0.1), (30, 0.3, 0.2)]


def worse_p_value(worse, better, n, margin, nuisance_level):
    return _bound_p_value(worse, better, n, margin, nuisance_level, "lower", None)


def law(n, plus, minus):
    """P(worse = a, better = b), every pair at once."""
    a, b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    rest = n - a - b
    left = np.maximum(rest, 0)
    logs = gammaln(n + 1) - gammaln(a + 1) - gammaln(b + 1) - gammaln(left + 1)
    logs += xlogy(a, plus) + xlogy(b, minus) + xlogy(left, max(0.0, 1.0 - plus - minus))
    return np.where(rest >= 0, np.exp(logs), 0.0)


def table(n, decide):
    return np.array([[a + b <= n and decide(a, b) for b in range(n + 1)] for a in range(n + 1)])


@pytest.mark.slow
@pytest.mark.parametrize(("n", "margin", "level"), CASES)
def test_the_size_is_at_most_the_level_and_not_far_below(n, margin, level):
    """Over the whole null hypothesis, p+ >= p- + margin: on its border and beyond."""
    rejects = table(
        n, lambda a, b: certifies_noninferiority(a, b, n, margin, level, nuisance_level=level / 20)
    )
    sizes = [
        (law(n, q + margin, q) * rejects).sum() for q in np.linspace(0.0, (1.0 - margin) / 2, 80)
    ]
    beyond = [
        (law(n, q + margin + 0.05, q) * rejects).sum()
        for q in np.linspace(0.0, (0.95 - margin) / 2, 20)
    ]
    assert max(sizes) <= level
    assert max(sizes) > 0.8 * level
    assert max(beyond) <= max(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "margin", "level"), [(25, 0.1, 0.1), (30, 0.3, 0.2)])
def test_the_opposite_hypothesis_has_a_test_of_its_own(n, margin, level):
    rejects = table(
        n,
        lambda a, b: p_value_of_noninferiority(a, b, n, margin, nuisance_level=level / 20) <= level,
    )
    sizes = [
        (law(n, q + margin, q) * rejects).sum() for q in np.linspace(0.0, (1.0 - margin) / 2, 80)
    ]
    assert 0.6 * level < max(sizes) <= level


@pytest.mark.slow
def test_more_worse_rows_are_worse_and_more_better_rows_are_better():
    n, margin = 200, 0.04
    p_values = np.array(
        [[worse_p_value(a, b, n, margin, 0.005) for b in range(0, 12, 3)] for a in range(0, 12, 3)]
    )
    assert (np.diff(p_values, axis=0) >= -1e-3).all()
    assert worse_p_value(3, 9, n, margin, 0.005) < worse_p_value(3, 0, n, margin, 0.005)


def test_without_differences_it_is_the_test_of_no_event():
    for n in (100, 300, 1000):
        assert worse_p_value(0, 0, n, 0.01, 1e-6) == pytest.approx(0.99**n, rel=0.02, abs=2e-4)
    assert not certifies_noninferiority(0, 0, 229, 0.01, level=0.1, nuisance_level=0.005)


def test_no_evidence_is_a_p_value_of_one():
    assert worse_p_value(10, 0, 1000, 0.01, 0.005) == 1.0
    assert p_value_of_noninferiority(10, 0, 1000, 0.01, 0.005) == 1.0


@pytest.mark.parametrize("counts", [(12, 10), (5, 3), (60, 55), (0, 0), (14, 10)])
def test_the_shortcut_decides_as_the_p_value_does(counts):
    p_value = worse_p_value(*counts, 1000, 0.01, 0.005)
    for level in (0.5 * p_value, 0.97 * p_value, 1.04 * p_value, 2.0 * p_value):
        assert certifies_noninferiority(*counts, 1000, 0.01, level, 0.005) == (p_value <= level)
