"""`metacal monitor`, the real command, killed (-9) at random moments while a log grows and rotates:
python FILE [N].

Of N kills a quarter are of a monitor that reads standard input, which cannot be read again: there
what had been shown must be in the state. Of a file every row must be counted once, with the same
evidence as without any kill.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from metacal.io.artifact.watch import encode_watch


def line(n: int, rng: random.Random) -> str:
    """A row, a late label, or something that cannot be read."""
    if n % 11 == 0:
        return "{\n"
    values = [round(rng.gauss(0, 1), 3) for _ in range(3)]
    if n % 3 == 0 and n > 40:
        return json.dumps({"id": n - 40, "label": rng.randrange(3)}) + "\n"
    return json.dumps({"id": n, "logits": values}) + "\n"


def write(log: Path, start: int, count: int, rng: random.Random) -> str:
    """More lines, in pieces; now and then the log is moved away."""
    text = "".join(line(n, rng) for n in range(start, start + count))
    cut = rng.randrange(len(text))
    for piece in (text[:cut], text[cut:]):
        with log.open("a") as file:
            file.write(piece)
        time.sleep(rng.random() * 0.05)
    if rng.random() < 0.1:
        log.rename(log.with_name(f"{log.name}.{time.time_ns()}"))
    return text


def started(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
    """A monitor."""
    call = [sys.executable, "-m", "metacal", "monitor", *map(str, args)]
    return subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)


def close(one: Any, other: Any) -> bool:
    """The same, floats to the last digits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return (
        math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
        if isinstance(one, float)
        else one == other
    )


def of_a_file(folder: Path, kills: int, rng: random.Random) -> None:
    """No row lost, none twice, the same state."""
    log, state, cal = folder / "a.jsonl", folder / "s.journal", folder / "cal.json"
    whole = line(1, rng)
    log.write_text(whole)
    subprocess.run([sys.executable, "-m", "metacal", "monitor", cal, log, "--state", state, "-q"], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    n = 2
    for _ in range(kills):
        process = started(cal, log, "--follow", "--state", state, "-q")
        end = time.time() + rng.random() * 3.0
        while time.time() < end:
            whole += write(log, n, count := rng.randrange(1, 60), rng)
            n += count
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.wait()
    log.touch()
    call = [
        sys.executable,
        "-m",
        "metacal",
        "monitor",
        str(cal),
        str(log),
        "--state",
        str(state),
        "--json",
        "-q",
    ]
    found = json.loads(subprocess.run(call, capture_output=True, check=False).stdout)
    gate = mc.load_gate(cal)
    (folder / "whole.jsonl").write_text(whole)
    calm = [
        *call[:5],
        str(folder / "whole.jsonl"),
        "--state",
        str(folder / "calm.journal"),
        "--json",
        "-q",
    ]
    want = json.loads(subprocess.run(calm, capture_output=True, check=False).stdout)
    one, other = (
        encode_watch(mc.load_watch(path, gate)) for path in (state, folder / "calm.journal")
    )
    one.update(first={}), other.update(first={})
    aside = len((folder / "s.quarantine.jsonl").read_text().splitlines())
    print(f"file: {kills} kills, {n - 1:,} lines, {found['rows']:,} rows counted of {want['rows']:,}, "
          f"{found['unreadable']:,} put aside of {want['unreadable']:,} ({aside:,} in the file), {found['gaps']} gaps; "
          f"same state: {close(one, other)}")  # fmt: skip
    assert close(one, other)
    assert aside == want["unreadable"]


def of_a_pipe(folder: Path, kills: int, rng: random.Random) -> None:
    """What was shown is kept, and nothing is there twice."""
    state, cal, metrics = folder / "p.journal", folder / "cal.json", folder / "p.prom"
    gate, n, shown_in_all, lost = mc.load_gate(cal), 1, 0, 0
    for _ in range(kills):
        metrics.unlink(missing_ok=True)
        options = ("--format", "jsonl", "--state", state, "--prometheus", metrics, "-q")
        process = started(cal, "-", *options, stdin=subprocess.PIPE)
        end = time.time() + 2.0 + rng.random() * 3.0
        assert process.stdin is not None
        while time.time() < end:
            process.stdin.write(line(n, rng).encode())
            process.stdin.flush()
            n += 1
            time.sleep(rng.random() * 0.01)
        shown = re.search(r'accepted"} (\d+)', metrics.read_text() if metrics.exists() else "")
        process.kill()
        process.communicate()
        if state.exists() and state.stat().st_size:
            kept = mc.load_watch(state, gate)
            lost += shown is not None and kept.counts.rows < int(shown[1])
            shown_in_all += shown is not None
            assert kept.counts.labelled + len(kept.waiting) == kept.counts.rows
    print(
        f"pipe: {kills} kills, {n - 1:,} lines sent; of {shown_in_all} that had shown a count,"
        f" {lost} lost some of it"
    )
    assert not lost


def main(kills: int = 200) -> None:
    """All of it."""
    rng, draws = random.Random(0), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mc.save(
            mc.TemperatureScaling().fit(draws.normal(size=(200, 3)), draws.integers(0, 3, 200)),
            folder / "cal.json",
        )
        of_a_file(folder, kills - kills // 4, rng)
        of_a_pipe(folder, kills // 4, rng)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
