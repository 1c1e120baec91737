"""Drive spoiled files through the library and the command line, in a process with limits of its
own.

`python drive.py FIRST LAST` works on the cases FIRST … LAST - 1 and prints a line of JSON before
and after each; whoever started it knows which case a process died of. `campaign` does that, and
starts another where one died.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA_BYTES, ADDRESS_BYTES, CPU_SECONDS = 3 << 30, 24 << 30, 3600
#: A case that takes longer is a hang; on a busy machine the imports take their time too.
SECONDS = 90
CASES_OF_A_CHILD = 5000


def judge(path: str, folder: str) -> str:
    """Read, fit and apply one file both ways; "refused" or "sound", or raise where it was
    neither.
    """
    import metacal as mc

    try:
        found = mc.read_predictions(path)
    except mc.InputError as error:
        _check_sentence(str(error))
        outcome = "refused"
    else:
        outcome = _sound(found)
    code = _command_line(path, folder)
    assert code in (0, 1, 2), f"exit code {code}"
    return outcome


def _sound(found: Any) -> str:
    import numpy as np

    import metacal as mc

    outcome = "refused"
    for dtype in (np.float32, np.float64):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = np.asarray(found.table).astype(dtype)
            counted = np.arange(len(table)) % max(1, table.shape[1])
            proba = None
            # Where the labels are refused, the table still has to be sound.
            for labels, classes in ((found.labels, found.class_names), (counted, None)):
                try:
                    if labels is not None and proba is None:
                        proba = (
                            mc.TemperatureScaling(classes=classes)
                            .fit(table, labels)
                            .predict_proba(table)
                        )
                except mc.InputError as error:
                    _check_sentence(str(error))
            if proba is None:
                continue
        assert proba.dtype == dtype
        assert np.isfinite(proba).all(), "probabilities that are not finite"
        assert np.abs(proba.sum(axis=1, dtype=np.float64) - 1).max() < 1e-4, (
            "rows that do not sum to one"
        )
        outcome = "sound"
    return outcome


def _command_line(path: str, folder: str) -> int:
    import numpy as np
    from click.testing import CliRunner

    from metacal.cli import main

    gate, out = os.path.join(folder, "cal.json"), os.path.join(folder, "out.npz")
    result = CliRunner().invoke(main, ["fit", path, "--max-miscoverage", "0.3", "-o", gate])
    _check_output(result)
    if result.exit_code == 0:
        result = CliRunner().invoke(main, ["apply", gate, path, "-o", out])
        _check_output(result)
        if result.exit_code == 0:
            with np.load(out) as arrays:
                proba = arrays["probs"]
            assert np.isfinite(proba).all()
            assert np.abs(proba.sum(axis=1, dtype=np.float64) - 1).max() < 1e-4
    left = [name for name in os.listdir(folder) if ".part" in name]
    assert not left, f"left behind: {left}"
    for name in (gate, out):
        if os.path.exists(name):
            os.unlink(name)
    return result.exit_code


def _check_output(result: Any) -> None:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    _check_sentence(result.output)
    assert result.exit_code == 0 or len(result.output) < 5000, f"{len(result.output)} characters"


def _check_sentence(text: str) -> None:
    assert "unexpected" not in text or "please report" not in text, text
    assert "Traceback" not in text, text


def work(seeds: Iterator[int], make: Callable[[int], tuple[str, bytes]]) -> None:
    """Judge each case; a line before and a line after it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    import pyarrow  # noqa: F401
    import torch  # noqa: F401

    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sound.npz")
        Path(path).write_bytes(make(-1)[1])
        assert judge(path, folder) == "sound"  # which also imports all that there is to import
        os.unlink(path)
        for seed in seeds:
            print(json.dumps({"case": seed}), flush=True)
            began = time.perf_counter()
            kind, data = make(seed)
            path = os.path.join(folder, f"case{kind}")
            Path(path).write_bytes(data)
            try:
                outcome, why = judge(path, folder), None
            except BaseException as error:
                outcome, why = "failed", f"{type(error).__name__}: {error}"[:500]
                why += "\n" + "".join(traceback.format_tb(error.__traceback__)[-4:])[-1500:]
            os.unlink(path)
            seconds = round(time.perf_counter() - began, 3)
            print(
                json.dumps(
                    {"done": seed, "kind": kind, "outcome": outcome, "why": why, "seconds": seconds}
                ),
                flush=True,
            )


def campaign(first: int, last: int, tell: Callable[[str], object] = print) -> dict[str, Any]:
    """Run the cases first … last - 1 in child processes; return the counts, and every case that
    failed.
    """
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest = {"seconds": 0.0}
    seed, false_starts = first, 0
    while seed < last and false_starts < 5:
        # A process for some thousand cases: what one leaves behind does not fill the memory of all.
        current = None
        for line in _lines(seed, min(last, seed + CASES_OF_A_CHILD)):
            if "case" in line:
                current = line["case"]
                continue
            if line["outcome"] in ("killed", "hung"):
                if current is None:  # the machine is busy: it did not come to its first case
                    false_starts += 1
                    break
                line |= {"done": current}
            counts[f"{line.get('kind', '?')} {line['outcome']}"] += 1
            counts[line["outcome"]] += 1
            if line["outcome"] not in ("refused", "sound"):
                failures.append(line)
                tell(json.dumps(line))
            if line.get("seconds", 0) > slowest["seconds"]:
                slowest = line
            seed = line["done"] + 1
        tell(f"{seed}: {dict(counts.most_common(4))}")
    return {
        "cases": seed - first,
        "counts": dict(sorted(counts.items())),
        "failures": failures,
        "slowest": slowest,
    }


def _lines(first: int, last: int) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", str(HERE / "drive.py"), str(first), str(last)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    pending = b""
    while True:
        if not select.select([process.stdout], [], [], SECONDS)[0]:
            process.kill()
            process.wait()
            yield {"outcome": "hung", "why": f"{SECONDS} s"}
            return
        some = os.read(process.stdout.fileno(), 1 << 16)
        if not some:
            break
        *whole, pending = (pending + some).split(b"\n")
        yield from map(json.loads, whole)
    if process.wait() != 0:
        yield {"outcome": "killed", "why": f"exit code {process.returncode}"}


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    from mutate import case

    work(iter(range(int(sys.argv[1]), int(sys.argv[2]))), case)
