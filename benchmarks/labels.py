"""How many labels it takes to certify a promise while they arrive, beside the fixed-n rule; and whether it is kept.

    python -m benchmarks.labels --data FOLDER [--replays 1000] [--jobs 2] [--out benchmarks/results/labels.json]

Results that stand in the file already are kept: it can be stopped and called again. Every `*.npz` file (`logits`,
`labels`) in the folder, and each set that ships with metacal where the folder lacks them, is a truth of its own:
calibration sets and pools are drawn from its rows with replacement, so that what is promised about the source can be
checked on the whole file.

*Labels.* The fixed-n rule gets n labelled rows and reaches a mean coverage C. The labeller gets a pool of 50,000 rows
with hidden labels and the goal C - .02, or C itself, and asks until that is certified at the same delta. `share` is its
mean number of labels over n; a replay that uses its pool up without a certificate counts with all labels it asked for.

*Kept.* What is certified at one moment stays certified, so a replay counts as broken if any threshold was certified,
at whatever moment, that does not keep the promise: that is the stopping time of somebody who waits for the most
flattering one. Populations that are made to break it come beside: their pools are asked about to the last row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from metacal import datasets
from metacal.errors import InfeasibleTargetError
from metacal.promises.accuracy import MinCoverageAccuracy
from metacal.promises.labelling import Labelling
from metacal.promises.miscoverage import MaxMiscoverage
from metacal.promises.promise import Promise
from metacal.rows import Rows
from metacal.scores import score_rows

DELTA, POOL, FIXED_DRAWS, SLACK = 0.1, 50_000, 200, 0.02
SIZES = (1000, 5000)
PROMISES = (MinCoverageAccuracy(0.97), MaxMiscoverage(0.05), MinCoverageAccuracy(0.9))


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a file, of one that was packed, or of a set that ships with metacal."""
    if not path.exists():
        found = datasets.load(path.stem)
        return found.logits, found.labels
    with np.load(path, allow_pickle=False) as file:
        if "logits" in file:
            return file["logits"], file["labels"]
    packed = datasets.load(path.stem, folder=path.parent)
    return packed.logits, packed.labels


@cache
def columns(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Score and correctness of every row, by rising score."""
    logits, labels = read(path)
    scores = score_rows(Rows(logits), "entropy")
    order = np.argsort(scores, kind="stable")
    return scores[order], (logits.argmax(axis=1) == labels)[order]


def keeps(promise: Promise, scores: np.ndarray, correct: np.ndarray, threshold: float) -> bool:
    """Whether the promise is kept at a threshold, where these rows are all there are."""
    accepted = scores <= threshold
    if isinstance(promise, MinCoverageAccuracy):
        return bool(not accepted.any() or correct[accepted].mean() >= promise.beta)
    assert isinstance(promise, MaxMiscoverage)
    return bool((~accepted[correct]).mean() <= promise.alpha)


def fixed_coverage(promise: Promise, path: Path, n: int) -> float:
    """What the fixed-n rule accepts on average; nothing where it certifies nothing."""
    scores, correct = columns(path)
    rng, found = np.random.default_rng(0), []
    for _ in range(FIXED_DRAWS):
        rows = rng.integers(len(scores), size=n)
        try:
            threshold = promise.certify(scores[rows], correct[rows]).threshold
        except InfeasibleTargetError:
            threshold = -math.inf
        found.append(float((scores <= threshold).mean()))
    return float(np.mean(found))


def labelled(labelling: Labelling, right: np.ndarray) -> Labelling:
    """Answer every question until there is none."""
    while len(rows := labelling.propose()):
        labelling.answer(rows, right[rows])
    return labelling


def replay(task: tuple[Promise, Path, float, int, int]) -> tuple[int, float, bool, bool]:
    """One pool: labels, coverage of the source, whether the goal was reached, whether anything broken was certified."""
    promise, path, goal, batch, seed = task
    scores, correct = columns(path)
    rows = np.random.default_rng([seed, 1]).integers(len(scores), size=POOL)
    done = labelled(Labelling(promise, scores[rows], goal=goal, batch=batch, seed=seed), correct[rows])
    broken = any(not keeps(promise, scores, correct, done.cells.thresholds[j]) for j in done.certified)
    coverage = 0.0 if done.threshold is None else float((scores <= done.threshold).mean())
    return done.labels, coverage, done.reached, broken


def labels_taken(
    promise: Promise, path: Path, n: int, slack: float, replays: int, run: Callable[..., Any]
) -> dict[str, Any] | None:
    """Labels to the coverage of the fixed-n rule, or to `slack` less; None where there is nothing to choose."""
    scores, correct = columns(path)
    accuracy = isinstance(promise, MinCoverageAccuracy)
    if accuracy and keeps(promise, scores, correct, math.inf):
        return None
    fixed = fixed_coverage(promise, path, n)
    if not 0.1 <= fixed <= 0.99:
        return None
    goal, batch = min(fixed + (-slack if accuracy else slack), 0.999), max(50, n // 25)
    found = np.array(list(run(replay, [(promise, path, goal, batch, seed) for seed in range(replays)])))
    labels, coverage, reached, broken = found.T.astype(float)
    return {
        "set": path.stem,
        "promise": repr(promise),
        "n": n,
        "fixed_coverage": round(fixed, 4),
        "slack": slack,
        "share": round(labels.mean() / n, 3),
        "share_se": round(labels.std() / n / math.sqrt(replays), 3),
        "median_share": round(float(np.median(labels)) / n, 3),
        "coverage": round(coverage.mean(), 4),
        "reached": round(reached.mean(), 3),
        "broken": round(broken.mean(), 4),
        "replays": replays,
    }


#: Pools made to break a promise: name -> (promise, goal, draw(rng, n) -> scores and correct, is a threshold broken?).
HOSTILE: dict[str, tuple[Promise, float | None, Callable[..., Any], Callable[[float], bool]]] = {
    "just below beta everywhere": (
        MinCoverageAccuracy(0.9),
        0.5,
        lambda rng, n: (rng.random(n), rng.random(n) < 0.8999),
        lambda t: True,
    ),
    "the same, goal planned": (
        MinCoverageAccuracy(0.9),
        None,
        lambda rng, n: (rng.random(n), rng.random(n) < 0.8999),
        lambda t: True,
    ),
    "five tied scores, all just below": (
        MinCoverageAccuracy(0.9),
        0.6,
        lambda rng, n: (rng.integers(5, size=n) / 4.0, rng.random(n) < 0.8999),
        lambda t: True,
    ),
    "ranking upside down: the sure rows are wrong": (
        MinCoverageAccuracy(0.9),
        0.6,
        lambda rng, n: (lambda u: (u, rng.random(n) < np.where(u < 0.3, 0.79, 0.947)))(rng.random(n)),
        lambda t: (0.79 * min(t, 0.3) + 0.947 * max(t - 0.3, 0.0)) / max(min(t, 1.0), 1e-9) < 0.9,
    ),
    "errors hidden where few are asked": (
        MinCoverageAccuracy(0.95),
        0.8,
        lambda rng, n: (lambda u: (u, rng.random(n) < np.where((u > 0.05) & (u < 0.1), 0.199, 1.0)))(rng.random(n)),
        lambda t: 0.801 * min(max(t - 0.05, 0.0), 0.05) / min(t, 1.0) > 0.05,
    ),
    "miscoverage just above alpha at the goal": (
        MaxMiscoverage(0.1),
        0.899,
        lambda rng, n: (rng.random(n), rng.random(n) < 0.9),
        lambda t: 1.0 - t > 0.1,
    ),
    "miscoverage, wrong rows among the sure ones": (
        MaxMiscoverage(0.1),
        0.93,
        lambda rng, n: (lambda u: (u, rng.random(n) < np.where(u < 0.9, 0.6, 1.0)))(rng.random(n)),
        lambda t: (min(1.0 - t, 0.1) + 0.6 * max(0.9 - t, 0.0)) / 0.64 > 0.1,
    ),
    "all right": (MinCoverageAccuracy(0.97), None, lambda rng, n: (rng.random(n), np.ones(n, bool)), lambda t: False),
}
HOSTILE_POOL = 3000


def hostile(task: tuple[str, int]) -> tuple[int, bool, bool]:
    """One hostile pool, asked about until the goal is certified or to the last row."""
    name, seed = task
    promise, goal, draw, is_broken = HOSTILE[name]
    scores, right = draw(np.random.default_rng([seed, 2]), HOSTILE_POOL)
    done = labelled(Labelling(promise, scores, goal=goal, batch=100, seed=seed), right)
    return done.labels, bool(done.certified), any(is_broken(float(done.cells.thresholds[j])) for j in done.certified)


def beyond(task: tuple[Path, int]) -> tuple[int, bool, bool]:
    """A small pool of a real set, and a goal one point beyond what the set allows: whatever reaches it is broken."""
    path, seed = task
    scores, correct = columns(path)
    promise = MinCoverageAccuracy(0.97 if correct.mean() < 0.97 and "mit" not in path.stem else 0.9)
    kept = np.flatnonzero(np.cumsum(correct) >= promise.beta * np.arange(1, len(correct) + 1))
    goal = min((kept[-1] + 1) / len(correct) + 0.01, 1.0)
    rows = np.random.default_rng([seed, 4]).integers(len(scores), size=HOSTILE_POOL)
    done = labelled(Labelling(promise, scores[rows], goal=goal, batch=100, seed=seed), correct[rows])
    broken = any(not keeps(promise, scores, correct, done.cells.thresholds[j]) for j in done.certified)
    return done.labels, bool(done.certified), broken


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), default=SIZES)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    broken, records = known.get("hostile", []), known.get("records", [])
    done = {(r["set"], r["promise"], r["n"], r["slack"]) for r in records} | {r["population"] for r in broken}
    paths = sorted(options.data.glob("*.npz"))
    if not any("resnet110" in path.stem and "sd" not in path.stem for path in paths):
        paths += map(Path, datasets.names())
    with ProcessPoolExecutor(options.jobs) as pool:

        def run(work: Callable[..., Any], tasks: list[Any]) -> Any:
            return pool.map(work, tasks, chunksize=max(1, len(tasks) // (8 * options.jobs)))

        for name in HOSTILE:
            if name not in done:
                labels, some, bad = np.array(list(run(hostile, [(name, s) for s in range(options.replays)]))).T
                means = {"certified": some.mean(), "broken": bad.mean(), "labels": labels.mean()}
                broken.append({"population": name, **{key: round(float(value), 4) for key, value in means.items()}})
                print(json.dumps(broken[-1]), flush=True)
        for path in paths:
            name = f"{path.stem}, goal a point beyond what it allows"
            if name not in done:
                labels, some, bad = np.array(list(run(beyond, [(path, s) for s in range(options.replays)]))).T
                means = {"certified": some.mean(), "broken": bad.mean(), "labels": labels.mean()}
                broken.append({"population": name, **{key: round(float(value), 4) for key, value in means.items()}})
                print(json.dumps(broken[-1]), flush=True)
                if options.out:
                    write(options.out, options.replays, broken, records)
        for slack, n, promise, path in itertools.product((SLACK, 0.0), options.sizes, PROMISES, paths):
            if (path.stem, repr(promise), n, slack) in done:
                continue
            record = labels_taken(promise, path, n, slack, options.replays, run)
            if record is not None:
                records.append(record)
                print(json.dumps(record), flush=True)
                if options.out:
                    write(options.out, options.replays, broken, records)
    print(f"{time.monotonic() - begin:.0f} s on {options.jobs} processes")


def write(out: Path, replays: int, broken: list[dict[str, Any]], records: list[dict[str, Any]]) -> None:
    """The records so far, one a line."""
    tolerance = DELTA + 3.0 * math.sqrt(DELTA * (1.0 - DELTA) / replays)
    head = f'"replays": {replays}, "delta": {DELTA}, "pool": {POOL}, "tolerance": {tolerance:.4f}'
    parts = [",\n  ".join(json.dumps(record) for record in part) for part in (broken, records)]
    out.write_text(
        "{" + head + ', "hostile": [\n  ' + parts[0] + '\n], "records": [\n  ' + parts[1] + "\n]}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
