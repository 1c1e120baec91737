"""How good probabilities are: every calibrator on the same rows, on rows that it has not seen.

A task is one variant of a file, one size and one split. Losses are compared row by row: the
difference to temperature scaling has a much smaller standard error than either loss. Accepted rows
are the four fifths with the lowest entropy. The losses of every row are kept beside the journal, so
that methods of several runs, in environments of their own, can be compared row by row afterwards
(`quality_output.collect`).
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.journal import Entry, Line
from benchmarks.experiments.logits_files import Found, digest_of, read
from benchmarks.quality.methods import OURS, UNCALIBRATED, probabilities
from benchmarks.quality.peers import package_versions
from benchmarks.quality.variants import VARIANTS
from metacal import __version__, kernels, metrics
from metacal.errors import MetacalWarning
from metacal.metrics import brier, top_label
from metacal.metrics.toplabel import TopLabel

FORMAT = 2
REFERENCE, AUTO = "temperature", "auto"
#: The share of the rows that is accepted, and how often they are drawn again for the standard error
#: of an ECE.
ACCEPTED, RESAMPLES = 0.8, 50
#: Fewer rows to measure on than this say nothing.
_FEWEST = 500


@dataclass(frozen=True)
class Settings:
    """What decides every number, beside the data."""

    methods: tuple[str, ...] = OURS
    variants: tuple[str, ...] = ("plain", "floored")
    sizes: tuple[int, ...] = (1000,)
    splits: int = 2
    seed: int = 0
    #: Where the losses of every row go; nowhere when None.
    losses: Path | None = None

    def tasks(self) -> list[tuple[str, int, int]]:
        """(variant, rows to fit on, split) of every task: what a run that was stopped has, it has
        of everything.
        """
        return [
            (v, n, split) for split in range(self.splits) for n in self.sizes for v in self.variants
        ]

    def header(self, found: Found) -> Line:
        """The journal's first line for one file."""
        logits, labels = read(found)
        settings = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
        settings.pop("losses")
        return {
            "format": FORMAT,
            "bench": "quality",
            "set": found.name,
            "digest": digest_of(logits, labels),
            "rows": len(labels),
            "classes": int(logits.shape[1]),
            "metacal": __version__,
            "packages": package_versions(list(self.methods)),
            **settings,
        }


def run_task(found: Found, settings: Settings, variant: str, n: int, split: int) -> Entry:
    """Fit every method on n rows, measure it on the others."""
    random = np.random.default_rng([settings.seed, list(VARIANTS).index(variant), n, split])
    logits, labels = VARIANTS[variant](*read(found), random)
    at: Line = {"variant": variant, "n": n, "split": split}
    if len(labels) < n + _FEWEST:
        return Entry({**at, "methods": {}, "failed": {}}, {**at, "seconds": {}})
    order = random.permutation(len(labels))
    fit, new = order[:n], order[n:]
    scores = [kernels.entropy(np.ascontiguousarray(logits[rows])) for rows in (fit, new)]
    accept = scores[1] <= np.quantile(scores[0], ACCEPTED)
    tables, seconds, failed = {}, {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        for name in dict.fromkeys([UNCALIBRATED, REFERENCE, *settings.methods]):
            started = time.process_time()
            try:
                tables[name] = probabilities(
                    name, logits[fit], labels[fit].astype(np.int64), logits[new]
                )
            except Exception as error:  # a peer may fail in any way; the others go on
                failed[name] = f"{type(error).__name__}: {error}"[:200]
                continue
            seconds[name] = round(time.process_time() - started, 4)
    losses = {
        name: _finite_log(table[np.arange(len(new)), labels[new]]) for name, table in tables.items()
    }
    if settings.losses is not None:
        keep_losses(settings.losses, (found.name, variant, n, split), losses)
    answers = _measured(tables, losses, labels[new], accept)
    return Entry({**at, "methods": answers, "failed": failed}, {**at, "seconds": seconds})


def keep_losses(
    folder: Path, task: tuple[str, str, int, int], losses: dict[str, NDArray[np.float64]]
) -> None:
    """Write the losses of every row of a task, one array for each method."""
    folder.mkdir(parents=True, exist_ok=True)
    path = losses_path(folder, task)
    beside = path.with_name(f".{path.name}")
    arrays = {name: values.astype(np.float32) for name, values in losses.items()}
    np.savez_compressed(beside, **arrays)  # type: ignore[arg-type]
    beside.replace(path)


def losses_path(folder: Path, task: tuple[str, str, int, int]) -> Path:
    """The file with the losses of every row of a task: set, variant, size, split."""
    return folder / f"{'.'.join(map(str, task))}.npz"


def _measured(
    tables: dict[str, NDArray[np.float64]],
    losses: dict[str, NDArray[np.float64]],
    labels: NDArray[Any],
    accept: NDArray[np.bool_],
) -> dict[str, Line]:
    """Of each method its metrics, and its differences row by row: to temperature, auto; accepted to
    uncalibrated.
    """
    tops = {name: top_label(table, labels) for name, table in tables.items()}
    answers = {}
    for name, table in tables.items():
        found: Line = {
            "nll": float(losses[name].mean()),
            "brier": float(brier(table, labels)),
            "ece": float(metrics.ece(*tops[name])),
            "nll_accepted": float(losses[name][accept].mean()),
            "ece_accepted": _ece(tops[name], accept),
            **difference("nll", losses[name] - losses[REFERENCE]),
            **difference("nll_accepted", (losses[name] - losses[UNCALIBRATED])[accept]),
            **_ece_difference(tops[name], tops[UNCALIBRATED], np.flatnonzero(accept)),
        }
        if AUTO in losses:
            found |= difference("auto", losses[name] - losses[AUTO])
        answers[name] = {key: round(value, 6) for key, value in found.items()}
    return answers


def _finite_log(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log p, no more than 1e-12 gives: a single zero would hide every other row."""
    return np.asarray(-np.log(np.maximum(chances, 1e-12)))


def difference(name: str, values: NDArray[np.floating[Any]]) -> dict[str, float]:
    """The mean of differences row by row, and its standard error."""
    error = float(values.std() / math.sqrt(len(values)))
    return {f"{name}_difference": float(values.mean()), f"{name}_error": error}


def _ece(top: TopLabel, rows: NDArray[Any]) -> float:
    return float(metrics.ece(top.confidence[rows], top.correct[rows]))


def _ece_difference(top: TopLabel, other: TopLabel, accepted: NDArray[np.intp]) -> dict[str, float]:
    """The difference of the accepted rows' ECE to that without calibration, and its standard error
    by resampling.
    """
    random = np.random.default_rng(0)
    samples = (random.choice(accepted, len(accepted)) for _ in range(RESAMPLES))
    draws = [_ece(top, rows) - _ece(other, rows) for rows in samples]
    difference = _ece(top, accepted) - _ece(other, accepted)
    return {"ece_accepted_difference": difference, "ece_accepted_error": float(np.std(draws))}
