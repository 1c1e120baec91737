"""How many labels the walk takes to the certificate of fit on the same rows, and whether what it
certifies is kept.

    python -m benchmarks.labels --data FOLDER [--replays 40] [--broken 2000] [--jobs 2] [--only
    hostile]

*Shares.* Every `*.npz` file (`logits`, `labels`) in the folder is a pool with hidden labels, and
each set that ships with metacal or lies packed in benchmarks/data where the folder lacks it. N of
its rows are drawn and labelled from the surest upward, block by block, until further labels change
nothing. `share` is the mean of labels / N; `identical` says whether every certificate was that of
`MinAccuracy.certify` on all N rows. Targets that all rows of a set keep are left out.

*Broken.* Populations made to break an accuracy of 0.9 at delta = 0.1, whose accuracy below each
threshold is known: flat, with a dip, with a jump, oscillating; with scores that tie; with an
extension. After every block the threshold that is certified by then is held against the truth; a
replay counts as broken if any of them ever was, which is the stopping time of somebody who waits
for the most flattering moment.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from metacal import datasets
from metacal.errors import InfeasibleTargetError
from metacal.gate.certifier import Certifier
from metacal.promises.accuracy import MinAccuracy
from metacal.rows import Rows
from metacal.scores import score_rows

RESULTS = Path(__file__).parent / "results" / "labels.json"
PACKED = Path(__file__).parent / "data"
DELTA, SIZES, BETAS = 0.1, (150, 300, 600, 1200, 2400), (0.9, 0.95, 0.97, 0.99)
#: Where coverage is told apart: nothing certified, and up to these.
BANDS = (1e-9, 0.5, 0.8)


# ── shares of labels on real sets ─────────────────────────────────────────────────────────────────


def sets(folder: Path | None) -> list[Path]:
    """The files of the folder, then those that come with the package, one of each name."""
    own = [] if folder is None else sorted(folder.glob("*.npz"))
    known = {path.stem.replace("_", "-") for path in own}
    others = [*sorted(PACKED.glob("*.npz")), *map(Path, datasets.names())]
    return [*own, *(path for path in others if path.stem not in known)]


@cache
def columns(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Score and correctness of every row."""
    if path.exists() and path.parent != PACKED:
        with np.load(path, allow_pickle=False) as file:
            logits, labels = file["logits"], file["labels"]
    else:
        loaded = datasets.load(path.stem, **({"folder": path.parent} if path.exists() else {}))
        logits, labels = loaded.logits, loaded.labels
    return score_rows(Rows(logits), "entropy"), logits.argmax(axis=1) == labels


def replay(task: tuple[Path, float, int, int]) -> tuple[float, float, bool]:
    """One draw: labels / N, coverage, and whether the certificate is that of fit."""
    path, beta, n, seed = task
    scores, right = columns(path)
    promise = MinAccuracy(beta, DELTA)
    certifier = Certifier(promise, scores, labels=n, random_state=seed, higher_is="doubtful")
    drawn = certifier.drawn_rows
    while len(rows := certifier.propose()):
        certifier.update(rows, right[rows])
    try:
        fit = promise.certify(scores[drawn], right[drawn])
    except InfeasibleTargetError:
        return certifier.n_labels / n, 0.0, certifier.coverage is None
    own = certifier.certificate
    # The certifier also records the seed of its draw; the rows of the fit are the drawn ones.
    comparable = replace(
        own,
        labels=None,
        n_correct=fit.n_correct,
        score=fit.score,
        design=replace(own.design, random_state=None),
    )
    same = comparable == fit
    return certifier.n_labels / n, own.coverage, same and own.n_labels == certifier.n_labels


def shares(path: Path, replays: int, run: Callable[..., Any]) -> list[dict[str, Any]]:
    """A record for each N and target of one set."""
    scores, right = columns(path)
    records = []
    for beta in BETAS:
        for n in SIZES:
            if right.mean() >= beta or n > len(scores):
                continue
            rows = np.array(list(run(replay, [(path, beta, n, seed) for seed in range(replays)])))
            records.append(
                {
                    "set": path.stem.replace("_", "-"),
                    "beta": beta,
                    "n": n,
                    "share": round(float(rows[:, 0].mean()), 4),
                    "most": round(float(rows[:, 0].max()), 4),
                    "coverage": round(float(rows[:, 1].mean()), 4),
                    "identical": bool(rows[:, 2].all()),
                    "replays": replays,
                    "band": [
                        round(float(rows[where(rows[:, 1], k), 0].sum()), 4)
                        for k in range(len(BANDS) + 1)
                    ],
                    "in_band": [int(where(rows[:, 1], k).sum()) for k in range(len(BANDS) + 1)],
                }
            )
    return records


def where(coverage: np.ndarray, band: int) -> np.ndarray:
    """The replays whose coverage lies in a band."""
    return np.searchsorted(BANDS, coverage, side="right") == band


# ── populations made to break it ──────────────────────────────────────────────────────────────────

_WAVES = 400
#: Name -> (where pieces of the ranking end, the error rate in each), for an accuracy of 0.9.
POPULATIONS: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "flat": (np.array([1.0]), np.array([0.1005])),
    "dip": (np.array([0.25, 0.5, 1.0]), np.array([0.12, 0.06, 0.1])),
    "jump": (np.array([0.3, 0.45, 1.0]), np.array([0.02, 0.3, 0.12])),
    "oscillating": (
        np.arange(1, _WAVES + 1) / _WAVES,
        0.1 + 0.09 * np.cos(2.0 * np.pi * 8.0 * (np.arange(_WAVES) + 0.5) / _WAVES),
    ),
}
#: What is asked of each: rows drawn, digits of the scores, whether they are extended.
ASKED = (
    (400, None, False),
    (1000, None, False),
    (400, 2, False),
    (400, 1, False),
    (200, None, True),
)


def is_broken(population: str, threshold: float) -> bool:
    """Whether what scores at most the threshold is less accurate than 0.9."""
    ends, rates = POPULATIONS[population]
    width = np.diff(np.minimum(ends, threshold), prepend=0.0)
    return bool(width.sum() > 0.0 and (width * rates).sum() > 0.1 * width.sum() * (1.0 + 1e-12))


def hostile(task: tuple[str, int, int | None, bool, int]) -> tuple[bool, bool, float]:
    """One replay: whether anything was certified, whether it was ever broken, and labels / N."""
    population, n, digits, extend, seed = task
    rng = np.random.default_rng([seed, 2])
    size = 4 * n if extend else n
    scores = rng.random(size)
    ends, rates = POPULATIONS[population]
    right = rng.random(size) >= rates[np.searchsorted(ends, scores)]
    if digits is not None:
        scores = (
            np.floor(scores * 10**digits) + 1.0
        ) / 10**digits  # a tie is known by its upper end
    promise = MinAccuracy(0.9, DELTA)
    certifier = Certifier(
        promise, scores, labels=n, may_extend=extend, random_state=seed, higher_is="doubtful"
    )
    thresholds: set[float] = set()
    for step in range(1 + extend):
        if step:
            certifier.extend()
        while len(rows := certifier.propose()):
            certifier.update(rows, right[rows])
            if certifier.coverage is not None:
                thresholds.add(certifier.threshold)
    if (
        digits is not None
    ):  # a threshold accepts whole ties: what it accepts ends at the last tie below it
        ties = np.arange(1, 10**digits + 1) / 10**digits
        thresholds = {float(ties[ties <= t][-1]) for t in thresholds}
    broken = any(is_broken(population, min(t, 1.0)) for t in thresholds)
    return bool(thresholds), broken, certifier.n_labels / certifier.n_drawn


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--replays", type=int, default=40)
    parser.add_argument("--broken", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--only", choices=("hostile", "records"), help="the other stays as it is in the file"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    begin = time.monotonic()
    answer: dict[str, Any] = (
        json.loads(options.out.read_text(encoding="utf-8")) if options.only else {}
    )
    answer |= {name: [] for name in ("hostile", "records") if options.only in (None, name)}
    answer |= {"delta": DELTA, "replays": options.broken} if options.only != "records" else {}
    with ProcessPoolExecutor(options.jobs) as pool:

        def run(work: Callable[..., Any], tasks: list[Any]) -> Any:
            return pool.map(work, tasks, chunksize=max(1, len(tasks) // (8 * options.jobs)))

        for name in POPULATIONS if options.only != "records" else ():
            for n, digits, extend in ASKED:
                tasks = [(name, n, digits, extend, seed) for seed in range(options.broken)]
                some, bad, share = np.array(list(run(hostile, tasks))).T
                of = {"population": name, "n": n, "digits": digits, "extended": extend}
                means = {"certified": some.mean(), "broken": bad.mean(), "share": share.mean()}
                answer["hostile"].append(
                    {**of, **{key: round(float(value), 4) for key, value in means.items()}}
                )
                print(json.dumps(answer["hostile"][-1]), flush=True)
        for path in sets(options.data) if options.only != "hostile" else ():
            answer["records"] += shares(path, options.replays, run)
            print(path.stem, f"{time.monotonic() - begin:.0f} s", flush=True)
    write(options.out, answer)


def write(out: Path, answer: dict[str, Any]) -> None:
    """The records, one a line."""
    lists = {name: ",\n  ".join(map(json.dumps, answer[name])) for name in ("hostile", "records")}
    head = json.dumps({name: value for name, value in answer.items() if name not in lists})[:-1]
    out.write_text(
        head + "".join(f', "{name}": [\n  {text}\n]' for name, text in lists.items()) + "}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
