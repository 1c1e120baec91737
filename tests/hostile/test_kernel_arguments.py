"""Call every function of the C kernel with numbers that no caller gives: nothing may be read or
written outside.

A plain build shows a crash at most. `nox -s sanitize` runs this file on a kernel that reports every
access outside of a buffer and every cast of a number that the integer cannot hold.
"""

from __future__ import annotations

import numpy as np
import pytest

_fused = pytest.importorskip("metacal.kernels._fused")

ODD = np.array(
    [
        0.0,
        -0.0,
        0.5,
        1.0,
        -1.0,
        1e19,
        -1e19,
        2.0**63,
        1e38,
        3.5e38,
        1e300,
        -1e300,
        5e-324,
        np.inf,
        -np.inf,
        np.nan,
    ]
)
WIDTHS = [1, 2, 3, 8, 15, 16, 17, 32, 33, 65, 1030]
N_ROUNDS = 120


class Arguments:
    """Hostile arguments, drawn anew for each round."""

    def __init__(self, random):
        self.random = random
        self.n, self.k = int(random.integers(0, 40)), int(random.choice(WIDTHS))
        self.block = self.table(
            (self.n, self.k), random.choice([np.float16, np.float32, np.float64])
        )
        self.rows = None
        if random.random() < 0.5 and self.n:
            self.rows = random.integers(0, self.n, size=int(random.integers(0, 9)))
        self.n_chosen = self.n if self.rows is None else len(self.rows)
        self.labels = random.integers(0, self.k, size=self.n_chosen)
        self.weights = None if random.random() < 0.5 else self.column(self.n_chosen)
        self.flags = random.random(self.n) < 0.5

    def number(self):
        return float(self.random.choice(ODD))

    def column(self, n):
        return self.random.choice(ODD, size=n)

    def table(self, shape, dtype):
        """Ordinary numbers, most of the time, with odd ones among them."""
        values = self.random.choice(ODD, size=shape)
        ordinary = self.random.random(shape) < self.random.choice([0.0, 0.7])
        with np.errstate(over="ignore"):
            return np.where(ordinary, self.random.normal(size=shape), values).astype(dtype)

    def probabilities(self, n):
        return np.empty((n, self.k), self.random.choice([np.float32, np.float64]))

    def edges(self, n_bins):
        return (
            np.arange(n_bins + 1) / n_bins
            if self.random.random() < 0.5
            else self.column(n_bins + 1)
        )


def numbers_of_rows(given):
    block, rows, n, k = given.block, given.rows, given.n_chosen, given.k
    kind, careful = int(given.random.integers(0, 4)), bool(given.random.integers(2))
    yield _fused.scores, (block, rows, kind, careful, np.empty(n), np.empty(n, np.int64))
    yield _fused.predicted, (block, rows, np.empty(n, np.int64))
    limits = (given.number(), given.number())
    yield _fused.softmax, (block, rows, given.number(), *limits, given.probabilities(n))
    for curve in (given.column(int(given.random.integers(0, 12))), None):
        probabilities = given.probabilities(given.n)
        yield (
            _fused.lifted,
            (block, given.number(), given.number(), curve, *limits, probabilities),
        )
        numbers = given.number(), given.number()
        is_single = bool(given.random.integers(2))
        yield (
            _fused.confidences,
            (block, rows, *numbers, curve, *limits, is_single, np.empty(n)),
        )
    probabilities = given.table((given.n, k), np.float32)
    yield _fused.inside, (block, given.number(), given.number(), probabilities)
    yield _fused.members, (block, rows, given.labels, given.number(), np.empty(3 * n))
    yield _fused.first_bad_row, (block,)


def sums_over_rows(given):
    block, rows, n, k = given.block, given.rows, given.n_chosen, given.k
    inner_ends = given.random.integers(0, n + 1, size=3)
    ends = np.sort(np.concatenate([[0], inner_ends, [n]])).astype(np.int64)
    loss = np.empty(4 * (len(ends) - 1))
    yield (
        _fused.tempered_loss,
        (block, rows, given.labels, given.weights, given.number(), ends, loss),
    )
    yield _fused.mixed_rows, (block, rows, given.labels, given.number(), np.empty((8, n)))
    columns = given.table((8, n), np.float64)
    first, last = np.sort(given.random.integers(0, n + 1, size=2)).tolist()
    numbers = given.number(), given.number(), given.number()
    yield _fused.mixed_sums, (columns, given.weights, *numbers, first, last, np.empty(6))
    yield _fused.log_odds, (columns, *numbers[:2], first, last, np.empty(n))
    z, right, sums = (
        given.column(given.n),
        given.column(given.n),
        np.empty(2 * int(given.random.integers(0, 50))),
    )
    yield _fused.on_grid, (z, right, None, *numbers, sums)
    n_bins = int(given.random.integers(1, 20))
    counts = np.zeros(4 * k * n_bins, np.int64)
    yield _fused.class_units, (block, given.flags, given.edges(n_bins), np.zeros(4 * k), counts)


def order_of_rows(given):
    n, flags, scores = given.n, given.flags, given.column(given.n)
    dropped, kind = int(given.random.integers(0, 54)), int(given.random.integers(0, 4))
    labels = given.random.integers(0, given.k, size=n)
    yield _fused.rounded, (scores, dropped, given.number(), np.empty(n))
    places = np.empty(n), np.empty(n, bool)
    yield _fused.ranked_rows, (given.block, kind, True, labels, dropped, given.number(), *places)
    yield _fused.keys, (scores, flags, np.empty(n, np.int64))
    keys = given.random.integers(-(2**63), 2**63 - 1, size=n)
    yield _fused.blocks, (keys, *(np.empty(n, np.int64) for _ in range(3)), False)
    counts, seen = np.zeros(2 * 128, np.int64), np.array([2**62, -1, 0, 0])
    whole_range = np.array(
        [-(2**63), 2**63 - 1, given.random.choice([57, 60, 63]), 0], dtype=np.int64
    )
    yield _fused.count_in_cells, (scores, flags, whole_range, counts, seen)
    stretches = given.random.integers(
        -(2**63), 2**63 - 1, size=4 * int(given.random.integers(0, 4))
    )
    yield _fused.count_in_cells, (scores, flags, stretches, counts, seen)


@pytest.mark.parametrize("calls", [numbers_of_rows, sums_over_rows, order_of_rows])
def test_hostile_numbers_do_no_harm(calls):
    random = np.random.default_rng(0)
    active = _fused.instruction_sets()[0]
    n_done = 0
    try:
        for _ in range(N_ROUNDS):
            _fused.use(str(random.choice(_fused.instruction_sets())))
            for function, arguments in calls(Arguments(random)):
                try:
                    function(*arguments)
                except ValueError:  # refused, as it should be where sizes do not fit
                    continue
                n_done += 1
    finally:
        _fused.use(active)
    assert n_done > 3 * N_ROUNDS
