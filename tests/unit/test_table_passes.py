"""No path reads the table more often than it does now, and the count notices one more pass.

A path that reads the table less often fails here too: lower its number then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.speed.table_passes import ADDITIONS

ROOT = Path(__file__).resolve().parents[2]
#: Passes over the logits, and over the probabilities after they are written. A fit also reads
#: samples, which are part of a pass. NumPy reads a strip several times while it is in the cache.
PASSES = {
    "fused": {
        "temperature fit": (1.58, 0.0),
        "predict_proba, temperature": (1.0, 0.0),
        "predict_proba, uniform temperature": (1.0, 0.0),
        "predict_proba, default": (1.0, 0.0),
        "predict_proba, vector": (1.0, 2.0),
        "Meta-Cal fit, temperature": (4.18, 0.0),
        "Meta-Cal fit, default": (4.43, 0.0),
        "ranking_scores": (1.0, 0.0),
        "accepts": (1.0, 0.0),
        "gate predict_proba": (1.0, 0.0),
        "predict": (1.0, 0.0),
        "decide": (2.0, 0.0),
    },
    "numpy": {
        "temperature fit": (1.70, 0.0),
        "predict_proba, temperature": (2.0, 6.0),
        "predict_proba, uniform temperature": (2.0, 6.0),
        "predict_proba, default": (4.0, 10.0),
        "predict_proba, vector": (1.0, 3.0),
        "Meta-Cal fit, temperature": (7.30, 0.0),
        "Meta-Cal fit, default": (9.14, 0.0),
        "ranking_scores": (3.0, 0.0),
        "accepts": (3.0, 0.0),
        "gate predict_proba": (4.0, 10.0),
        "predict": (4.0, 0.0),
        "decide": (8.0, 0.0),
    },
}
#: Half a sample of 1,000 rows: a search for the temperature may need one step more or less.
TOLERANCE = 0.1
KERNELS = [
    pytest.param(
        "fused",
        marks=pytest.mark.skipif(
            find_spec("metacal.kernels._fused") is None, reason="the C kernel is not built"
        ),
    ),
    "numpy",
]


@cache
def count_passes(kernel, addition=None):
    """Passes of every path, counted in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed.table_passes"]
    done = subprocess.run(
        [*command, *(["--add", addition] if addition else [])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "METACAL_KERNEL": kernel},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def find_changed_paths(kernel, counted):
    """The paths whose passes are not those that are listed."""
    expected = {name: dict(zip(("logits", "output"), n)) for name, n in PASSES[kernel].items()}
    assert set(counted) == set(expected)
    return {
        name: passes
        for name, passes in counted.items()
        if any(abs(passes[role] - expected[name][role]) > TOLERANCE for role in passes)
    }


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_path_makes_the_passes_that_are_listed(kernel):
    assert find_changed_paths(kernel, count_passes(kernel)) == {}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("addition", ADDITIONS)
def test_a_pass_that_is_added_is_noticed(kernel, addition):
    counted = count_passes(kernel, addition)
    changed = find_changed_paths(kernel, counted)
    assert changed
    before = count_passes(kernel)
    for name, passes in changed.items():
        assert max(passes[role] - before[name][role] for role in passes) >= 0.9
