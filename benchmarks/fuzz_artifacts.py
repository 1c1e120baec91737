"""Mutated artifacts, checksums recomputed: each is refused in a sentence or becomes an object that
works.

    python -m benchmarks.fuzz_artifacts --count 20000 --json benchmarks/results/fuzz-artifacts.json

A case is a number: `mutated(texts(), n)` always gives the same bytes. Cases run in child processes
that may use a few seconds of processor time and some hundred megabytes each; when a child dies, the
case it was at is named and a new child goes on behind it. `--only N` runs one case here and prints
what happens.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.artifact_mutations import mutated, texts

ROOT = Path(__file__).resolve().parents[1]
#: What one case may take: seconds of processor time, megabytes beyond what the child has after its
#: imports.
CPU_SECONDS, MEGABYTES = 10, 700
#: Cases of one child.
BATCH = 1000


# ── what may happen ───────────────────────────────────────────────────────────────────────────────

ROWS = np.random.default_rng(3).normal(size=(40, 3)) * 3


def judged(raw: bytes) -> str:
    """Load and use: "refused" or "works"; anything else raises."""
    from metacal.errors import ArtifactError
    from metacal.export import saved as artifact

    try:
        estimator = artifact.loads(raw)
    except ArtifactError as error:
        said = str(error)
        assert said.isprintable(), f"no sentence: {said[:200]!r}"
        assert 10 < len(said) < 1000, f"no sentence: {said[:200]!r}"
        return "refused"
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        check_sound(estimator)
    return "works"


def check_sound(estimator: Any) -> None:
    """Raise unless it predicts probabilities in either dtype, keeps its promise on paper, and can
    be saved again.
    """
    from metacal.export import saved as artifact

    gate = estimator.gate_
    for dtype, tolerance in ((np.float32, 1e-4), (np.float64, 1e-7)):
        rows = rows_for(gate, dtype)
        by_group = groups_for(gate, len(rows))
        given = [rows] * len(gate.stages)  # of a cascade the same table for each model
        decision = gate.decide(*given, rejected="uniform", **by_group)
        assert decision.accept.dtype == bool
        assert len(decision.accept) == len(rows)
        if gate.has_classes:
            assert decision.probabilities.shape == rows.shape
            assert np.isfinite(decision.probabilities).all()
            assert (decision.probabilities >= 0).all()
            assert (
                np.abs(decision.probabilities.sum(axis=1, dtype=np.float64) - 1.0).max()
                <= tolerance
            )
            assert len(decision.label) == len(rows)
    certificate = gate.certificate
    if certificate is not None:
        assert str(certificate)
        assert estimator.promise.contradiction(certificate) is None
        assert replace(certificate).statement == certificate.statement
    again = artifact.loads(artifact.dumps(estimator).encode()).gate_.decide(
        *given, rejected="uniform", **by_group
    )
    assert np.array_equal(again.accept, decision.accept)
    if gate.has_classes:
        assert np.array_equal(again.probabilities, decision.probabilities)


def rows_for(gate: Any, dtype: Any) -> Any:
    """Rows that a gate reads: logits, probabilities, or scores."""
    width = gate.n_classes
    if not width:
        return ROWS.ravel().astype(dtype)
    rows = (ROWS if width == 3 else np.linspace(-3.0, 3.0, 2 * width).reshape(2, width)).astype(
        dtype
    )
    if gate.source.input == "logits":
        return rows
    powers = np.exp(rows.astype(np.float64))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(dtype)


def groups_for(gate: Any, n_rows: int) -> dict[str, Any]:
    """The groups that a gate with a threshold for each asks for: its own in turn, and one that it
    does not know.
    """
    subgroups = None if gate.certificate is None else gate.certificate.subgroups
    if subgroups is None or subgroups.by != "group":
        return {}
    names = [str(name) for subgroup in subgroups.items for name in subgroup.names]
    return {"groups": np.resize([*names, "no such group"], n_rows)}


# ── child processes ───────────────────────────────────────────────────────────────────────────────


def child(numbers: range, megabytes: int = MEGABYTES) -> None:
    """Run these cases under limits; a line of JSON on stdout before and after each."""
    files = texts()
    for text in files.values():  # everything is imported, every cache is warm
        assert judged(text.encode()) == "works"
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in numbers:
        print(json.dumps({"start": number}), flush=True)
        case = mutated(files, number)
        began = time.process_time()
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(began) + CPU_SECONDS, hard))
        try:
            found = judged(case.raw)
        except BaseException as error:  # a raw exception is what is looked for
            found = f"raised {type(error).__name__}: {str(error)[:300]}"
        told = {"end": number, "found": found, "seconds": time.process_time() - began}
        print(json.dumps({**told, "fixture": case.fixture, "kinds": case.kinds}), flush=True)


def run_batch(numbers: range) -> tuple[list[dict[str, Any]], int | None]:
    """The answers of one child; and the case at which it died, if it did."""
    arguments = [sys.executable, __file__, "--child", str(numbers.start), str(numbers.stop)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            out, complaint = process.communicate(timeout=60 + CPU_SECONDS * len(numbers))
        except subprocess.TimeoutExpired:
            process.kill()
            out, complaint = process.communicate()
    lines = [json.loads(line) for line in out.splitlines()]
    answers = [line for line in lines if "end" in line]
    started = [line["start"] for line in lines if "start" in line]
    if process.returncode == 0:
        return answers, None
    if not started:
        raise SystemExit(f"the child could not start: {complaint[-2000:]}")
    last = started[-1]
    answers.append(
        {
            "end": last,
            "found": f"died with {process.returncode}",
            "seconds": 0.0,
            "fixture": "?",
            "kinds": [],
        }
    )
    return answers, last


def campaign(first: int, count: int) -> dict[str, Any]:
    """Run all cases and count."""
    answers: list[dict[str, Any]] = []
    number, began = first, time.time()
    while number < first + count:
        stop = min(number + BATCH, first + count)
        found, died = run_batch(range(number, stop))
        answers += found
        number = stop if died is None else died + 1
        bad = sum(answer["found"] not in ("refused", "works") for answer in answers)
        print(
            f"{number - first:,} cases, {bad} bad, {time.time() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return summed_up(answers, first)


def summed_up(answers: list[dict[str, Any]], first: int) -> dict[str, Any]:
    """What happened, in counts; every failure in full."""
    outcomes = Counter(
        answer["found"] if answer["found"] in ("refused", "works") else "failed"
        for answer in answers
    )
    by_kind: dict[str, Counter[str]] = {}
    for answer in answers:
        for kind in set(answer["kinds"]):
            by_kind.setdefault(kind, Counter())[
                answer["found"] if len(answer["found"]) < 9 else "failed"
            ] += 1
    slowest = max(answers, key=lambda answer: answer["seconds"])
    return {
        "cases": len(answers),
        "first": first,
        "outcomes": dict(sorted(outcomes.items())),
        "failures": [answer for answer in answers if answer["found"] not in ("refused", "works")],
        "limits": {"cpu_seconds": CPU_SECONDS, "megabytes": MEGABYTES},
        "slowest": {"case": slowest["end"], "cpu_seconds": round(slowest["seconds"], 3)},
        "fixtures": len({answer["fixture"] for answer in answers}),
        "by_mutation": {
            kind: dict(sorted(found.items())) for kind, found in sorted(by_kind.items())
        },
    }


def main() -> None:
    """Read the command line and run what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(range(*chosen.child))
        return
    if chosen.only is not None:
        case = mutated(texts(), chosen.only)
        print(case.fixture, case.kinds, len(case.raw), "bytes")
        print(judged(case.raw))
        return
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # a pool of threads would take address space of its own
    result = campaign(chosen.first, chosen.count)
    text = json.dumps(result, indent=1)
    if chosen.json:
        chosen.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    main()
