"""Kill `metacal label` at random moments, and start it several times at once: is every answer
there, once?

    python -m benchmarks.label_kills [--kills 200] [--pairs 100] [--fives 100] [--jobs 2]

A person fills in the sheet; the real command is started in a process of its own and gets SIGKILL at
a moment drawn between 0 and the time that it takes undisturbed, or it is started two or five times
at once. After each of these every answer that the person has ever given must be in the journal,
once and unchanged, or still stand in the sheet. A labelling that is finished is held against one
that was never disturbed, and another begins. Results go to benchmarks/results/label-kills.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import description

RESULTS = Path(__file__).parent / "results" / "label-kills.json"
ROWS, LABELS, BATCH = 400, 120, 20
BEGIN = ("--min-accuracy", "0.8", "--labels", str(LABELS))


class Labelling:
    """A folder with a pool, the person who fills in the sheet, and the laws."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, np.random.default_rng([seed, 3])
        folder.mkdir()
        doubts = self.rng.random(ROWS)
        self.right = self.rng.random(ROWS) >= 0.5 * doubts**2
        lines = [
            json.dumps({"id": f"r{k}", "s": 1.0 - doubt}) for k, doubt in enumerate(doubts.tolist())
        ]
        (folder / "pool.jsonl").write_text("\n".join(lines) + "\n")
        self.answered: set[int] = set()

    def start(self, output: str = "labels.csv") -> subprocess.Popen[str]:
        """The command, as a user calls it."""
        line = [
            "label",
            "pool.jsonl",
            "--score-key",
            "s",
            "--id-key",
            "id",
            *BEGIN,
            "--batch",
            str(BATCH),
            "--json",
        ]
        return subprocess.Popen(
            [sys.executable, "-m", "metacal", *line, "-o", output],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, output: str = "labels.csv") -> dict[str, Any]:
        """The command undisturbed; its answer."""
        out, err = (process := self.start(output)).communicate()
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}: {err}")
        return dict(json.loads(out))

    def sheet(self, output: str = "labels.csv") -> list[list[str]]:
        """The lines of the sheet."""
        path = self.folder / output
        return list(csv.reader(path.read_text().splitlines())) if path.exists() else []

    def person(self, output: str = "labels.csv") -> None:
        """Fills in the sheet."""
        if not (lines := self.sheet(output)):
            return
        for line in lines[1:]:
            line[-1] = "yes" if self.right[int(line[0])] else "no"
            self.answered.add(int(line[0]))
        with (self.folder / output).open("w", newline="") as file:
            csv.writer(file).writerows(lines)

    def law(self) -> dict[str, int]:
        """How many answers are lost, there twice, or changed."""
        path = self.folder / "labels.journal"
        content = path.read_bytes() if path.exists() else b""
        whole = content[
            : content.rfind(b"\n") + 1
        ].splitlines()  # a last line that is torn does not count
        records = [json.loads(line.partition(b" ")[2]) for line in whole]
        known = [
            (row, ok)
            for one in records
            if "rows" in one
            for row, ok in zip(one["rows"], one["right"])
        ]
        rows = {row for row, _ in known}
        waiting = {int(line[0]) for line in self.sheet()[1:] if line[-1]}
        return {
            "lost": len(self.answered - rows - waiting),
            "doubled": len(known) - len(rows),
            "changed": sum(bool(ok) != bool(self.right[row]) for row, ok in known),
        }

    def decided_otherwise(self) -> int:
        """Whether the certificate is another than that of a labelling that was never disturbed."""
        own = self.call()
        while (other := self.call("never.csv"))["n_waiting"]:
            self.person("never.csv")
        self.answered -= {int(line[0]) for line in self.sheet("never.csv")[1:]}
        return int(
            own["certificate"] != other["certificate"] or own["n_labels"] != other["n_labels"]
        )


def kills(folder: Path, times: int, seed: int) -> dict[str, int]:
    """Labellings one after the other, the command killed so many times in all."""
    total = {
        "killed": 0,
        "ended first": 0,
        "lost": 0,
        "doubled": 0,
        "changed": 0,
        "finished": 0,
        "decided otherwise": 0,
    }
    number = 0
    own = Labelling(folder / f"{seed}-0", 1000 * seed)
    begin = time.monotonic()
    own.call()
    took = time.monotonic() - begin
    while total["killed"] < times:
        own.person()
        process = own.start()
        try:
            process.communicate(timeout=float(own.rng.uniform(0.2, 1.1)) * took)
            total["ended first"] += 1
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            total["killed"] += 1
        for name, count in own.law().items():
            total[name] += count
        if len(own.answered) >= LABELS // 2 and not own.call()["n_waiting"]:
            total["finished"] += 1
            total["decided otherwise"] += own.decided_otherwise()
            number += 1
            own = Labelling(folder / f"{seed}-{number}", 1000 * seed + number)
            own.call()
    return total


def together(folder: Path, times: int, runs: int, seed: int) -> dict[str, int]:
    """Several calls at once, so many times; whoever is refused is told by whom, and ends with 2."""
    total = {
        "times": 0,
        "lost": 0,
        "doubled": 0,
        "changed": 0,
        "taken": 0,
        "refused": 0,
        "other ends": 0,
    }
    for number in range(times):
        if number % 4 == 0:
            own = Labelling(folder / f"{runs}-{seed}-{number}", 7 * seed + number)
            own.call()
        own.person()
        processes = [own.start() for _ in range(runs)]
        ends = [(process.communicate()[1], process.returncode) for process in processes]
        refused = sum(code == 2 and "is in use by" in said for said, code in ends)
        taken = sum(code == 0 for _, code in ends)
        total["times"] += 1
        total["refused"] += refused
        total["taken"] += taken
        total["other ends"] += runs - refused - taken + (taken == 0)
        for name, count in own.law().items():
            total[name] += count
    return total


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--fives", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    jobs = options.jobs
    answer: dict[str, Any] = {"machine": description()}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        works = {
            "kills": [
                pool.submit(kills, folder, -(-options.kills // jobs), seed) for seed in range(jobs)
            ],
            "two at once": [
                pool.submit(together, folder, -(-options.pairs // jobs), 2, s) for s in range(jobs)
            ],
            "five at once": [
                pool.submit(together, folder, -(-options.fives // jobs), 5, s) for s in range(jobs)
            ],
        }
        for work, futures in works.items():
            parts = [future.result() for future in futures]
            answer[work] = {key: sum(part[key] for part in parts) for key in parts[0]}
            print(work, json.dumps(answer[work]), flush=True)
    options.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
