"""ImageNet's size, 50,000 rows of 1,000 classes, from end to end on the command line, within stated
time and memory.

The logits are made: noise, and a signal on the true class that gives an accuracy of .70. What it
took on one core of a shared server stands in docs/speed.md; the limits here leave room for slower
ones.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

ROWS, CLASSES = 50_000, 1_000
#: CPU seconds of all commands together, and MB of the largest process, the mapped table of 200 MB
#: among them.
MOST_SECONDS, MOST_MEGABYTES = 90.0, 800.0

#: Runs a command and tells, on the last line of stderr, what it took.
MEASURED = """
import json, resource, sys
from metacal.cli import main
try:
    main(prog_name="metacal")
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    if sys.platform == "linux":  # ru_maxrss begins with what the process had that started this one
        status = open("/proc/self/status").read()
        most = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    print(json.dumps([used.ru_utime + used.ru_stime, most]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("big")
    for seed, name in enumerate(("val", "test")):
        rng = np.random.default_rng(seed)
        table = np.lib.format.open_memmap(path / f"{name}.npy", "w+", np.float32, (ROWS, CLASSES))
        labels = rng.integers(CLASSES, size=ROWS)
        for start in range(0, ROWS, 5000):
            block = 3.2 * rng.standard_normal((5000, CLASSES), dtype=np.float32)
            signal = 12.8 + 3.2 * rng.standard_normal(5000, dtype=np.float32)
            block[np.arange(5000), labels[start : start + 5000]] += signal
            table[start : start + 5000] = block
        np.save(path / f"{name}-labels.npy", labels)
        del table
    return path


@pytest.mark.long
def test_fit_apply_evaluate_and_report(folder):
    took = {}

    def run(*args):
        argv = [sys.executable, "-c", MEASURED, *map(str, args)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stderr
        took[args[0]] = json.loads(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout)

    labelled = ("cal.json", "test.npy", "--labels", "test-labels.npy", "--json")
    promise = ("--min-accuracy", 0.85, "-o", "cal.json", "--json")
    fitted = run("fit", "val.npy", "--labels", "val-labels.npy", *promise)
    assert (fitted["n_rows"], fitted["n_classes"]) == (ROWS, CLASSES)
    applied = run("apply", "cal.json", "test.npy", "-o", "out.npz", "--json")
    with np.load(folder / "out.npz") as written:
        assert written["probs"].shape == (ROWS, CLASSES)
        assert written["accept"].sum() == applied["n_accepted"]
    measured = run("evaluate", *labelled)
    assert measured["n_accepted"] == applied["n_accepted"]
    assert measured["promise"]["kept"]
    assert measured["accepted_rows"]["ece"]["estimate"] < 0.03
    report = run("report", *labelled, "-o", "report.html")
    assert report["evaluation"]["n_accepted"] == applied["n_accepted"]
    assert (folder / "report.html").stat().st_size == report["bytes"] < 2_000_000

    seconds, megabytes = sum(s for s, _ in took.values()), max(mb for _, mb in took.values())
    assert seconds < MOST_SECONDS, took
    assert megabytes < MOST_MEGABYTES, took
    print({name: (round(s, 1), round(mb)) for name, (s, mb) in took.items()})
