"""The same rows through the fused kernels of tensors, in Triton's own interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["float32", pytest.param("not float32", marks=pytest.mark.long)])
def test_the_fused_kernels_agree_too(kept):
    pytest.importorskip("triton")
    rows = Path(__file__).with_name("test_rows.py")
    options = [
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
        "-k",
        f"triton and {kept}",
    ]
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "METACAL_KERNEL"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(rows)],
        env={**env, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


#: Rows whose most probable class is so probable that the sum 1 + T of the others rounds, and
#: thresholds between the score of each row and its neighbours on the grid.
NEAR_THRESHOLDS = """
import numpy as np
import torch
from metacal.kernels import triton_acceptance as device
from metacal.kernels.torch import ACCEPTED
from metacal.rows import Rows
from metacal.scores import get_rounding_grid, resolve_score, score_rows

rng = np.random.default_rng(0)
logits = rng.normal(size=(40, 3))
logits[:, 0] = np.linspace(33.0, 38.0, 40)
logits -= logits[:, :1]
n_compared = 0
for name in ("entropy", "max_probability", "energy"):
    score = resolve_score(name)
    grid = get_rounding_grid(name)
    scores = score_rows(Rows(logits), name)
    for threshold in np.unique(scores):
        between = grid.make_robust_to_rounding(float(threshold))
        kind = score.compute_unrounded.formula.__name__
        codes = device.acceptance_codes(torch.tensor(logits), kind, between)
        assert ((codes == ACCEPTED).numpy() == (scores <= between)).all(), (name, threshold)
        n_compared += len(scores)
print(n_compared)
"""


@pytest.mark.slow
def test_rows_at_the_threshold_are_decided_by_the_exact_score():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", NEAR_THRESHOLDS],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1_000
