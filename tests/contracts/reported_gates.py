"""A gate of each promise and each kind of rows, in files, with its evaluation and its report.

The promises are those of `composition.EXAMPLES`, alone, for each class and for each group, and with
two classes. Tests compare the numbers at which a report starts with those of `metacal evaluate`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import metacal as mc
from contracts import composition
from metacal.cli import main

#: Variants of a promise: options of `metacal fit`, and whether the rows have two classes.
VARIANTS: dict[str, tuple[list[str], bool]] = {
    "": ([], False),
    "PerClass": (["--per-class"], False),
    "PerGroup": (["--group-key", "site"], False),
    "two classes": ([], True),
}


@dataclass(frozen=True)
class ReportedGate:
    """A gate in a folder, with the JSON of `metacal evaluate` and of `metacal report`."""

    name: str
    folder: Path
    rows: list[str]
    evaluation: dict[str, Any]
    report: dict[str, Any]


def call(*arguments: object) -> Any:
    """Call the command line in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run_commands(commands: list[str], folder: Path) -> list[tuple[str, int, str]]:
    """Run commands in a folder, split as a shell splits them; return their exit codes and errors."""
    outcomes = []
    with contextlib.chdir(folder):
        for command in commands:
            program, *arguments = shlex.split(command)
            assert program == "metacal"
            done = call(*arguments)
            outcomes.append((command, done.exit_code, done.stderr))
    return outcomes


def write_rows(
    kind: str, half: composition.Half, folder: Path, prefix: str, *, agreement: bool
) -> tuple[list[str], list[str]]:
    """Write rows of one kind; return the names of the files and the options to fit on them."""
    if kind == "score cascade":
        (small, large), flags, _ = composition.given(kind, half)
        lines = [
            {"small": {"p": a, "ok": c}, "large": {"p": b, "ok": d}}
            for a, b, c, d in zip(
                small.tolist(), large.tolist(), *(flag.tolist() for flag in flags)
            )
        ]
        name = f"{prefix}answers.jsonl"
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        flag_option = "--agree-key" if agreement else "--correct-key"
        return [name], ["--score-key", "small.p,large.p", flag_option, "small.ok,large.ok"]
    if kind == "scores":
        name = f"{prefix}scores.csv"
        columns = {"score": half.scores, "ok": half.right, "site": half.group}
        mc.io.write_table(str(folder / name), columns)
        return [name], ["--score-key", "score", "--correct-key", "ok"]
    has_probabilities = kind == "probabilities"
    tables = {
        "small": half.probabilities if has_probabilities else half.logits,
        "large": half.large,
    }
    key = "probs" if has_probabilities else "logits"
    names = []
    for model in ("small", "large") if kind == "cascade" else ("small",):
        names.append(f"{prefix}{model}.npz")
        columns = {key: tables[model], "labels": half.labels, "site": half.group}
        mc.io.write_table(str(folder / names[-1]), columns)
    return names, ["--input", "probabilities"] if has_probabilities else []


def report_gate(kind: str, name: str, variant: str, folder: Path) -> ReportedGate | None:
    """Fit, evaluate and report one gate in a folder. Return None if there is no such gate."""
    example = composition.EXAMPLES[name]
    flags, has_two_classes = VARIANTS[variant]
    fit, new = composition.halves(
        2 if has_two_classes or example.has_two_classes else composition.K
    )
    agreement = name == "MaxLoss"
    files, options = write_rows(kind, fit, folder, "", agreement=agreement)
    new_files, _ = write_rows(kind, new, folder, "new-", agreement=agreement)
    positive = ["--positive", "1"] if example.has_two_classes else []
    command = "cascade" if "cascade" in kind else "fit"
    given = [*options, *example.flags.split(), *flags, *positive]
    with contextlib.chdir(folder):
        if call(command, *files, *given, "-o", "gate.json").exit_code:
            return None
        rows = [new_files[0], *(["--large", new_files[1]] if kind == "cascade" else [])]
        options = ["--resamples", "2", "--json"]
        evaluated = call("evaluate", "gate.json", *rows, *options)
        reported = call("report", "gate.json", *rows, *options, "-o", "report.html")
    if evaluated.exit_code == 2:
        # No accuracy can be measured; the report gives the same error.
        assert reported.exit_code == 2
        return None
    assert (evaluated.exit_code, reported.exit_code) == (0, 0), (
        kind,
        name,
        variant,
        reported.output,
    )
    return ReportedGate(
        f"{kind}, {name}, {variant}",
        folder,
        rows,
        json.loads(evaluated.stdout),
        json.loads(reported.stdout),
    )


def report_all(kind: str, folder: Path) -> Iterator[ReportedGate]:
    """Yield a reported gate for each promise and variant that rows of this kind can have."""
    for name in composition.EXAMPLES:
        for variant in VARIANTS:
            subfolder = folder / f"{name} {variant}".replace(" ", "-").replace(",", "")
            os.makedirs(subfolder)
            gate = report_gate(kind, name, variant, subfolder)
            if gate is not None:
                yield gate


# ── the start of a page, as point.js and sides.js compute it ──────────────────────────────────────


def find_starting_numbers(report: dict[str, Any]) -> dict[str, float | None]:
    """Return coverage, selective accuracy and miscoverage where the slider of a page starts."""
    curves, at = report["curves"], report["curves"]["current"]
    gate = report["evaluation"]["gate"]
    names = {"coverage": "coverage", "selective_accuracy": "accuracy", "miscoverage": "miscoverage"}
    if at is None:
        return {name: gate[name]["estimate"] for name in names}
    return {name: curves[curve]["estimate"][at] for name, curve in names.items()}


def find_starting_sides(sides: dict[str, Any]) -> dict[str, float | None]:
    """Return the rates of both sides where the sliders of a page start, None for a closed side."""
    lower, upper = sides["lower"], sides["upper"]
    if lower is None or upper is None:
        return sides["gate"]
    rates: dict[str, float | None] = {
        "called_positive": 0.0,
        "called_negative": 0.0,
        "precision": None,
        "npv": None,
        "recall": 0.0,
        "caught": 1.0,
        "false_positive_rate": 0.0,
    }
    if upper < len(sides["threshold"]):
        rates["called_positive"] = (sides["n_rows"] - sides["n_below"][upper]) / sides["n_rows"]
        for name in ("precision", "recall", "false_positive_rate"):
            rates[name] = sides[name]["estimate"][upper]
    if lower >= 0:
        rates["called_negative"] = sides["n_below"][lower] / sides["n_rows"]
        rates["npv"] = sides["npv"]["estimate"][lower]
        rates["caught"] = sides["recall"]["estimate"][lower]
    return rates


def list_commands(report: dict[str, Any]) -> list[str]:
    """List commands that a page shows: at the start, at both ends, in the middle, and the cheapest."""
    curves = report["curves"]
    if curves["command_language"] != "shell":
        return []
    last = len(curves["threshold"]) - 1
    points = {0, last // 2, last, curves["current"] or 0}
    commands = []
    for point in sorted(points):
        limits = {
            "--min-accuracy": curves["min_accuracy"][point],
            "--max-miscoverage": curves["max_miscoverage"][point],
        }
        promised = [f"{option} {limit}" for option, limit in limits.items() if limit is not None]
        threshold = f"--at-threshold={curves['threshold_text'][point]}"
        if promised:
            words = " ".join([curves["command"], *promised, threshold])
            commands.append(f"{words}{curves['command_end']}")
    cheapest = "--cheapest --cost-wrong 20 --cost-review 1"
    return [*commands, f"{curves['command']} {cheapest}{curves['command_end']}"]
