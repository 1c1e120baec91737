"""python -m benchmarks speed --against COMMIT: two trees, timed in turn."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.speed.against import median_with_interval, table_of
from benchmarks.speed.processes import ROOT


def has_commits():
    """Whether the tests run in a checkout, not in an unpacked archive."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    except OSError:
        return False


def test_the_interval_contains_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    n_covered = 0
    for _ in range(2000):
        _, (low, high) = median_with_interval(rng.lognormal(0.0, 0.1, size=11).tolist())
        n_covered += low <= 1.0 <= high
    # Of 11 values, the second and the tenth contain the median with probability 0.988.
    assert 0.98 <= n_covered / 2000 <= 0.995


@pytest.mark.parametrize(("n", "n_outside"), [(6, 0), (8, 0), (9, 1), (25, 7)])
def test_the_interval_leaves_out_as_many_values_as_it_can(n, n_outside):
    median, interval = median_with_interval([float(value) for value in range(n)])
    assert median == (n - 1) / 2
    assert interval == [n_outside, n - 1 - n_outside]


def test_five_values_have_no_interval():
    assert median_with_interval([1.0] * 5) == (1.0, None)


def test_an_unknown_commit_is_an_error():
    done = CliRunner().invoke(main, ["speed", "--against", "no-such-commit", "--sizes", "400x10"])
    assert done.exit_code != 0
    assert "no-such-commit" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not has_commits(), reason="there is no commit to compare with")
def test_two_trees_are_timed_in_turn():
    options = ["--sizes", "400x10", "--repeats", "6", "--json"]
    done = CliRunner().invoke(main, ["speed", "--against", "HEAD", *options])
    assert done.exit_code == 0, (done.output, done.exception)
    results = json.loads(done.stdout)
    assert results["against"] == results["commit"]
    tasks = results["sizes"]["400x10"]["tasks"]
    assert {"temperature fit", "accepts", "predict_proba(out=), default base"} <= set(tasks)
    for found in tasks.values():
        assert len(found["samples"]["before"]) == len(found["samples"]["after"]) == 6
        low, high = found["interval"]
        assert 0.0 < low <= found["ratio"] <= high
    text = "\n".join(table_of(results))
    assert "after / before" in text
    assert "1 thread" in text
    worktrees = subprocess.run(
        ["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "metacal-against-" not in worktrees.stdout
