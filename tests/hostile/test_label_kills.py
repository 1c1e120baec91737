"""metacal label, the real command, killed and called several times at once; the long run is in
benchmarks.
"""

from __future__ import annotations

import pytest

from benchmarks.label_kills import Labelling, kills, together

UNHARMED = {"lost": 0, "doubled": 0, "changed": 0}


@pytest.mark.slow
def test_no_answer_is_lost_by_a_kill(tmp_path):
    counted = kills(tmp_path, 3, seed=1)
    assert counted["killed"] == 3
    assert counted | UNHARMED == counted
    assert counted["decided otherwise"] == 0


@pytest.mark.slow
def test_no_answer_is_lost_by_calls_at_the_same_time(tmp_path):
    counted = together(tmp_path, 1, runs=3, seed=1)
    assert counted | UNHARMED == counted
    assert counted["other ends"] == 0
    assert counted["taken"] + counted["refused"] == 3


@pytest.mark.slow
def test_a_lost_answer_would_be_noticed(tmp_path):
    own = Labelling(tmp_path / "pool", seed=0)
    own.call()
    own.person()
    (tmp_path / "pool" / "labels.csv").unlink()
    assert own.law()["lost"] == 20
