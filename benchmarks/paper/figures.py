"""Figures 1 and 2 of the paper, and the one it does not have: are the promises kept, and what do
they cost?
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.experiments.figure import BLUE, GREEN, GREY, INK, RED, drawing, save
from benchmarks.paper.summary import Row
from benchmarks.paper.tables import Sets, by_set

_LOOKS = {
    "paper": (RED, "o", "the paper's rule"),
    "certified": (BLUE, "s", "certified, 90% confidence"),
}
_DELTA = 0.1


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write all figures that the results have rows for; the paths written."""
    sets = by_set(results)
    written = []
    with drawing() as pyplot:
        for stem, column, label, number in (
            ("mis", "miscoverage", "empirical miscoverage", 1),
            ("acc", "coverage_accuracy", "empirical coverage accuracy", 2),
        ):
            if any(
                f"meta-{stem}{ending}" in rows
                for rows in sets.values()
                for ending in ("", "-paper")
            ):
                figure = _against_target(pyplot, sets, stem, column, label)
                written += save(figure, folder, f"paper-figure-{number}")
        if any(row.violation is not None for rows in sets.values() for row in rows.values()):
            written += save(_promises(pyplot, sets), folder, "paper-promises")
    return written


def _against_target(pyplot: Any, sets: Sets, stem: str, column: str, label: str) -> Any:
    """Mean and two standard deviations over the splits, a panel per kind of data, the target
    drawn.
    """
    families: dict[str, list[dict[str, Row]]] = {}
    for rows in sets.values():
        families.setdefault(next(iter(rows.values())).family, []).append(rows)
    counts = [len(members) for members in families.values()]
    figure, axes = pyplot.subplots(
        1, len(families), figsize=(1.6 + sum(counts) + 0.4 * len(counts), 3.9),
        width_ratios=[count + 0.25 for count in counts], layout="constrained", squeeze=False, sharey=stem == "mis",
    )  # fmt: skip
    for axis, (family, members) in zip(axes[0], families.items()):
        target = None
        for ending, (colour, marker, name) in _LOOKS.items():
            method = f"meta-{stem}-paper" if ending == "paper" else f"meta-{stem}"
            shift = -0.13 if ending == "paper" else 0.13
            points = [(i, rows[method]) for i, rows in enumerate(members) if method in rows]
            points = [(i, row) for i, row in points if column in row.columns]
            if not points:
                continue
            target = points[0][1].target
            axis.errorbar(
                [i + shift for i, _ in points], [row.columns[column].mean for _, row in points],
                # One run has no deviation.
                yerr=[2.0 * (row.columns[column].sd or 0.0) for _, row in points],
                fmt=marker, color=colour, ms=5.5, lw=1.6, capsize=4, capthick=1.6, label=name,
            )  # fmt: skip
        if target is not None:
            axis.axhline(target, color=INK, lw=1.1, ls=(0, (5, 3)), zorder=1, label="target")
            axis.text(-0.57, target, f"{target:g}", va="bottom", fontsize=8.5)
        axis.set_title(family)
        axis.set_xticks(range(len(members)), [_short(rows) for rows in members], fontsize=8.5)
        axis.set_xlim(-0.6, len(members) - 0.4)
        axis.grid(axis="x", visible=False)
    axes[0][0].set_ylabel(f"{label} (± 2 sd)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _promises(pyplot: Any, sets: Sets) -> Any:
    """Left: how often the promise is broken. Right: coverage against the oracle's. Above: alpha;
    below: beta.
    """
    names = list(sets)
    figure, axes = pyplot.subplots(
        2,
        2,
        figsize=(11.5, 2.2 + 0.5 * len(names)),
        layout="constrained",
        sharey=True,
        width_ratios=(1, 1),
    )
    for (left, right), stem, title in zip(
        axes, ("mis", "acc"), ("miscoverage ≤ 5%", "accuracy ≥ β")
    ):
        for at, name in enumerate(names):
            _promise_line(left, right, at, sets[name], stem)
        left.axvline(_DELTA, color=INK, lw=1.1, ls=(0, (5, 3)), zorder=1, label="allowed: 10%")
        left.set_xlim(-0.01, 0.62)
        left.set_title(f"Promise broken: {title}")
        right.set_title(f"Rows accepted: {title}")
        left.set_yticks(
            range(len(names)),
            [f"{_family(sets[name])} {_short(sets[name], ' ')}" for name in names],
        )
        left.set_ylim(len(names) - 0.4, -0.6)
    axes[1][0].set_xlabel("share of draws that break the promise")
    axes[1][1].set_xlabel("mean share of rows accepted")
    handles = dict(zip(*reversed(axes[0][0].get_legend_handles_labels())))
    handles |= dict(zip(*reversed(axes[0][1].get_legend_handles_labels())))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles)
    )
    return figure


def _promise_line(left: Any, right: Any, at: int, rows: dict[str, Row], stem: str) -> None:
    for ending, (colour, marker, label) in _LOOKS.items():
        row = rows.get(f"meta-{stem}-paper" if ending == "paper" else f"meta-{stem}")
        if row is None or row.violation is None:
            continue
        text = label if at == 0 else None
        shift = -0.13 if ending == "paper" else 0.13
        left.plot(
            [0.0, row.violation], [at + shift] * 2, color=colour, lw=1.4, alpha=0.45, zorder=2
        )
        left.plot(
            row.violation, at + shift, marker, color=colour, ms=6.5, label=text, ls="none", zorder=3
        )
        right.plot(row.true_coverage, at + shift, marker, color=colour, ms=6.5, ls="none", zorder=3)
        oracle = row.oracle_coverage
        right.plot(oracle, at, "|", color=GREEN, ms=17, mew=2.4, ls="none", zorder=2,
                   label="oracle" if at == 0 and ending == "paper" else None)  # fmt: skip
        right.plot(
            [row.true_coverage, oracle], [at + shift] * 2, color=GREY, lw=0.9, alpha=0.6, zorder=1
        )


def _family(rows: dict[str, Row]) -> str:
    return next(iter(rows.values())).family


def _short(rows: dict[str, Row], gap: str = "\n") -> str:
    """The network's name on a few short lines; the paper's own file is marked."""
    first = next(iter(rows.values()))
    name = first.network.replace(", nearly calibrated", f"{gap}(MIT)").replace(
        "fastText, 176 languages", "fastText"
    )
    return f"{name.replace(' SD', f'{gap}SD')}{f'{gap}(the paper’s file)' if first.of_the_paper else ''}"
