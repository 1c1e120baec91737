"""The paper's experiment on anybody's file: the same splits and rules, and whether Meta-Cal beats
temperature scaling.

The paper's ECE counts every row, and rejected rows get 1/K: wide bins of rows that are as accurate
as they are confident dilute it (docs/deviations.md). So the question is asked twice: as published,
over all rows; and apart from dilution, over the rows that the gate accepts, of which temperature
scaling's own probabilities are measured too. Both are paired by split: a difference counts where
its mean is two standard errors from 0.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import metacal as mc
from benchmarks.experiments.logits_files import Family, Found, LogitsFile, read
from benchmarks.paper.runs import METHODS, RULES, Settings
from metacal import metrics
from metacal.errors import InfeasibleTargetError, InputError, MetacalWarning
from metacal.metrics import top_label
from metacal.rows.labels import encode_labels

#: Fewer rows are no experiment.
_FEWEST = 200


def your_file(path: str, folder: Path, beta: float | None = None) -> Found:
    """The file as one of the experiment's: half of its rows to fit on, and an accuracy between its
    own and 1.

    Whatever `read_predictions` reads will do; a copy of logits and labels goes into the folder,
    where the workers read it.
    """
    found = mc.io.read_predictions(path)
    table, truth = np.asarray(found.table), found.require_truth()
    classes = (
        np.arange(table.shape[1]) if found.class_names is None else np.array(found.class_names)
    )
    if found.labels_count_columns:
        classes = np.arange(table.shape[1])
    labels = encode_labels(truth, len(table), classes)
    if len(table) < _FEWEST:
        raise InputError(
            f"{path}: it has {len(table)} rows; the experiment needs {_FEWEST} or more."
        )
    accuracy = float((table.argmax(axis=1) == labels).mean())
    target = round(accuracy + (1.0 - accuracy) / 2.0, 2) if beta is None else beta
    if not accuracy < target < 1.0:
        raise InputError(
            f"{path}: {accuracy:.1%} of its rows are right already; a promise of {target:.0%} needs"
            " no gate. Choose a higher --min-accuracy."
        )
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "yours.npz"
    np.savez(copy, logits=table.astype(np.float32), labels=labels.astype(np.int64))
    name = Path(path).stem
    family = Family(name, len(table) // 2, target)
    return Found(
        LogitsFile(name=name, network="yours", family=family, origin=str(path), digest=""),
        str(copy),
    )


def verdicts(found: Found, settings: Settings) -> dict[str, dict[str, Any]]:
    """Of each gate: the paired differences of ECE to temperature scaling, as published and apart
    from dilution.
    """
    logits, labels = read(found)
    differences: dict[str, dict[str, list[float]]] = {
        method: {"published": [], "accepted": []} for method in settings.methods if method in RULES
    }
    for run in range(settings.runs):
        order = np.random.default_rng([settings.seed, 0, run]).permutation(len(labels))
        fit, test = order[: found.file.family.fit_rows], order[found.file.family.fit_rows :]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetacalWarning)
            _split(
                found,
                settings,
                run,
                logits[fit],
                labels[fit],
                logits[test],
                labels[test],
                differences,
            )
    return {
        method: {
            **{name: _mean(values) for name, values in found.items()},
            "splits": len(found["published"]),
        }
        for method, found in differences.items()
    }


def _split(
    found: Found,
    settings: Settings,
    run: int,
    logits: NDArray[Any],
    labels: NDArray[Any],
    new_logits: NDArray[Any],
    new_labels: NDArray[Any],
    differences: dict[str, dict[str, list[float]]],
) -> None:
    base = mc.TemperatureScaling().fit(logits, labels).predict_proba(new_logits)
    plain = _published(base, new_labels)
    own = top_label(base, new_labels)
    for method, kept in differences.items():
        rule = RULES[method](found.file.family.beta, (settings.seed, 2, run))
        try:
            gate = mc.MetaCal(rule, mc.TemperatureScaling()).fit(logits, labels)
        except InfeasibleTargetError:
            continue
        proba = gate.predict_proba(new_logits, rejected="uniform")
        accept = gate.accepts(new_logits)
        if not accept.any():
            continue
        said = top_label(proba, new_labels)
        kept["published"].append(_published(proba, new_labels) - plain)
        kept["accepted"].append(
            metrics.ece(said.confidence[accept], said.correct[accept])
            - metrics.ece(own.confidence[accept], own.correct[accept])
        )


def _published(proba: NDArray[Any], labels: NDArray[Any]) -> float:
    return float(
        metrics.ece(proba.max(axis=1), (proba.argmax(axis=1) == labels).astype(np.float64))
    )


def _mean(values: list[float]) -> dict[str, float] | None:
    """The mean difference, and how many standard errors from 0 it is; None without two splits."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return {
        "mean": mean,
        "apart": mean / error if error else math.copysign(math.inf, mean) if mean else 0.0,
    }


def say(found: Found, settings: Settings, told: dict[str, dict[str, Any]]) -> str:
    """The verdicts in words."""
    family = found.file.family
    lines = [
        f"Does Meta-Cal beat temperature scaling on {family.title}?",
        (
            f"({settings.runs} random halves; accuracy promised: {family.beta:g}, miscoverage at"
            " most 0.05; a difference counts from two standard errors on.)"
        ),
        "",
    ]
    for method, one in told.items():
        if not one["splits"]:
            lines.append(f"{METHODS[method]}: it accepted nothing in any split.")
            continue
        lines.append(f"{METHODS[method]}, in {one['splits']} of {settings.runs} splits:")
        lines.append(f"  ECE of all rows, as published      {_word(one['published'])}")
        lines.append(f"  ECE of the rows that it accepts    {_word(one['accepted'])}")
    best = [one["accepted"] for one in told.values() if one["accepted"] is not None]
    won = sum(one["apart"] < -2.0 for one in best)
    lost = sum(one["apart"] > 2.0 for one in best)
    if best:
        answer = "Yes" if won and not lost else "No" if not won else "It depends on the rule"
        lines += [
            "",
            (
                f"{answer}: dilution apart, {won} of {len(best)} rules have a lower ECE and {lost}"
                " a higher one."
            ),
        ]
        lines.append(
            "What a gate gives beside that is its promise, which temperature scaling does not make."
        )
    return "\n".join(lines) + "\n"


def _word(one: dict[str, float] | None) -> str:
    if one is None:
        return "too few splits to say"
    word = "lower" if one["apart"] < -2.0 else "higher" if one["apart"] > 2.0 else "no difference"
    return f"{word} ({one['mean']:+.5f}, {one['apart']:+.1f} standard errors)"
