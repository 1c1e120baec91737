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
