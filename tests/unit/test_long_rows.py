"""A fit that counts its rows is the fit that sorts them, wherever they are counted; what comes back
is no row.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future, ProcessPoolExecutor

import numpy as np
import pytest

import metacal as mc
from benchmarks.speed.sizes import fill_table
from metacal import rows as rows_module
from metacal.certification.pilot import PilotPolicy
from metacal.errors import InfeasibleTargetError, InputError
from metacal.gate import long_rows
from metacal.promises import Passes
from metacal.rows.stored import ConvertedTable

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")

N, K = 20_000, 12
TABLE = np.empty((N, K), dtype=np.float32)
LABELS = fill_table(TABLE, seed=3)
PROMISES = [mc.MinAccuracy(0.85), mc.MaxMiscoverage(0.1), mc.MinAccuracy(0.85, delta=None)]


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """Shares are small, so that there are some."""
    monkeypatch.setattr(rows_module.block_sizes, "_ELEMENTS_PER_ACCUMULATOR", 1 << 16)


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(long_rows, "MAX_SORTED_ROWS", 10_000)


@pytest.fixture
def no_pilot_rows(monkeypatch):
    """Let a fit that sorts test every row, as a fit that counts does.

    Sorting withholds five pilot rows from a promise about the accuracy. Counting withholds none,
    because a count contains no rows that could be drawn. On the same tested rows, both give the same
    gate.
    """
    monkeypatch.setattr(PilotPolicy, "withhold_pilot_rows_of_logits", lambda policy, rows: rows)


def fitted(table=TABLE, promise=PROMISES[0], labels=LABELS, executor=None, **options):
    return mc.MetaCal(promise, **options).fit(table, labels, executor=executor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "score"),
    [
        *((promise, "entropy") for promise in PROMISES),
        (PROMISES[1], "energy"),
        (PROMISES[0], "auto"),
    ],
)
def test_counting_gives_the_gate_of_sorting(promise, score, monkeypatch, no_pilot_rows):
    monkeypatch.setattr(long_rows, "MAX_SORTED_ROWS", 10**9)
    expected = fitted(promise=promise, score=score)
    monkeypatch.setattr(long_rows, "MAX_SORTED_ROWS", 10_000)
    monkeypatch.setattr(
        "metacal.gate.table_certifiers.score_table", None
    )  # nobody asks for all scores
    for n_jobs in (None, 3):
        found = fitted(promise=promise, score=score, n_jobs=n_jobs)
        assert found.gate_ == expected.gate_
        assert found.gate_.profile == expected.gate_.profile
        assert (
            found.gate_.find_fit_rows(
                found.ranking_scores(TABLE), TABLE.argmax(axis=1) == LABELS
            ).n_fit_rows
            == N
        )


class Sent(Executor):
    """Processes, and how many bytes their answers have."""

    def __init__(self, pool):
        self.pool, self.answers = pool, []

    def submit(self, fn, *args):
        future = self.pool.submit(fn, *args)
        future.add_done_callback(self.note)
        return future

    def note(self, future: Future):
        self.answers.append(future.result())


def test_only_sorting_withholds_pilot_rows(monkeypatch):
    n_tested_rows = []
    for max_sorted_rows in (N, N - 1):
        monkeypatch.setattr(long_rows, "MAX_SORTED_ROWS", max_sorted_rows)
        n_tested_rows.append(fitted(promise=PROMISES[0]).certificate_.n_rows)
    assert n_tested_rows == [N - 5, N]


@pytest.mark.slow
def test_processes_send_counts(counting):
    stored = ConvertedTable(-TABLE, np.negative, np.float32)
    expected = fitted(promise=PROMISES[1])
    with ProcessPoolExecutor(2) as pool:
        sent = Sent(pool)
        passes = long_rows.TableRowCounter(mc.Rows(stored, executor=sent), LABELS, "entropy")
        found = PROMISES[1].certify(Passes(passes))
        assert found.threshold == expected.threshold_
        counted = [counts for counts, _ in sent.answers]
        assert len(counted) == 2 * -(-N // rows_module.get_rows_per_run(K))  # two passes
        assert (
            sum(
                int(part.n_correct.sum() + part.n_incorrect.sum())
                for part in counted[: len(counted) // 2]
            )
            == N
        )
        there = fitted(stored, PROMISES[1], executor=pool)
    assert there.gate_ == expected.gate_


@pytest.mark.slow
def test_rows_that_may_be_masked_or_are_none(counting, monkeypatch, no_pilot_rows):
    masked = TABLE.copy()
    masked[5, 3], masked[N - 1, 2] = -np.inf, -1e30
    found = fitted(masked)
    monkeypatch.setattr(long_rows, "MAX_SORTED_ROWS", 10**9)
    assert fitted(masked).gate_ == found.gate_
    monkeypatch.setattr(long_rows, "MAX_SORTED_ROWS", 10_000)
    masked[7, 0] = np.nan
    with pytest.raises(InputError, match="row 7, column 0 is NaN"):
        fitted(masked)


def unsure(block):
    return -block.max(axis=1).astype(np.float64)


def test_a_score_of_ones_own_and_labels_that_are_no_class(counting, monkeypatch):
    codes = np.where(np.arange(N) % 97 == 0, -1, LABELS)
    found = mc.MetaCal(PROMISES[1], score=unsure).fit_codes(TABLE, codes)
    monkeypatch.setattr(long_rows, "MAX_SORTED_ROWS", 10**9)
    assert mc.MetaCal(PROMISES[1], score=unsure).fit_codes(TABLE, codes).gate_ == found.gate_


@pytest.mark.slow
def test_what_is_odd_is_found_in_a_sample(counting):
    with pytest.warns(mc.MetacalWarning, match="sampled rows share their score"):
        fitted(np.round(TABLE / 8) * 0.3)
    with pytest.warns(mc.MetacalWarning, match="repeat the logits of an earlier row"):
        fitted(np.repeat(TABLE[: N // 2], 2, axis=0), PROMISES[1], np.repeat(LABELS[: N // 2], 2))
    with pytest.raises(
        InfeasibleTargetError, match=r"on these 20,000 rows .*; the best they support"
    ):
        fitted(promise=mc.MinAccuracy(0.9999))


def test_other_promises_are_sorted_still(counting, monkeypatch):
    monkeypatch.setattr("metacal.gate.certify_table.CountingCertifier", None)
    assert fitted(promise=mc.PerClass(mc.MinAccuracy(0.7))).certificate_.n_rows == N
    assert (
        mc.MetaCal(PROMISES[1]).fit(TABLE, LABELS, units=np.arange(N) // 2).certificate_.n_rows
        == N // 2
    )
