"""kill -9 of real `metacal apply` runs to a folder, at random moments, each followed by others
until all is done.

    python benchmarks/apply_kills.py --times 200

Each folder is filled by runs that are killed at a moment drawn between 0 and a little more than the
time that one run takes alone, until one comes to its end. What is then in the folder must be what a
run that nobody disturbed has written, byte for byte, and nothing else. In every third folder a
source is changed between two runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc

#: What is in the folder besides the results.
OURS = {"_metacal.journal", "_metacal.journal.lock"}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=200, help="how many runs are killed")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(Path(folder), chosen.times, chosen.files, chosen.seed), indent=1))


def run(folder: Path, times: int, files: int, seed: int) -> dict[str, Any]:
    """How many runs were killed, how many folders were filled that way, and which results are not
    as they should.
    """
    rng = np.random.default_rng(seed)
    logs, gate = folder / "logs", folder / "gate.json"
    logs.mkdir()
    for part in range(files):
        np.save(logs / f"{part:03d}.npy", rng.normal(size=(2000, 20)).astype(np.float32))
    logits = np.load(logs / "000.npy")
    mc.save(mc.TemperatureScaling().fit(logits, logits.argmax(axis=1)), gate)
    alone, begun = folder / "alone", time.perf_counter()
    apply(gate, logs, alone).wait()
    seconds = time.perf_counter() - begun
    counts: dict[str, Any] = {
        "killed": 0,
        "folders": 0,
        "resumed": 0,
        "different": 0,
        "left_over": 0,
    }
    while counts["killed"] < times:
        fill(gate, logs, folder / "out", seconds, times, rng, counts)
        expected, written = contents(alone), contents(folder / "out")
        counts["different"] += sum(
            written.get(name) != content for name, content in expected.items()
        )
        counts["left_over"] += len(written.keys() - expected.keys())
        counts["folders"] += 1
        shutil.rmtree(folder / "out")
        if counts["folders"] % 3 == 2:  # the expected results too, then
            np.save(logs / "001.npy", rng.normal(size=(2000, 20)).astype(np.float32))
            apply(gate, logs, alone).wait()
    return {**counts, "seconds_alone": round(seconds, 2), "files": files}


def fill(
    gate: Path,
    logs: Path,
    out: Path,
    seconds: float,
    times: int,
    rng: np.random.Generator,
    counts: dict[str, Any],
) -> None:
    """Start runs and kill them, until one comes to its end."""
    before = (logs / "001.npy").read_bytes()
    for turn in range(1000):
        running = apply(gate, logs, out)
        try:
            running.wait(rng.uniform(0.0, 1.1 * seconds) if counts["killed"] < times else None)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            counts["killed"] += 1
            counts["resumed"] += turn > 0
            if (
                counts["folders"] % 3 == 0
            ):  # other rows of the same length for one run, then those from before
                np.save(logs / "001.npy", np.load(logs / "002.npy"))
                time.sleep(0.01)
                (logs / "001.npy").write_bytes(before)
            continue
        if running.returncode:
            raise RuntimeError(f"a run that nobody killed ended with {running.returncode}")
        return


def apply(gate: Path, logs: Path, out: Path) -> subprocess.Popen[bytes]:
    """A real run."""
    return subprocess.Popen(
        [sys.executable, "-m", "metacal", "apply", gate, logs, "-o", f"{out}/", "-q"]
    )


def contents(folder: Path) -> dict[str, bytes]:
    """What lies in a folder of results."""
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name not in OURS
    }


if __name__ == "__main__":
    main()
