"""How time grows with the number of rows and of classes. A straight line of slope 1 on log-log
paper is linear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed.sizes import Size, fill_table

TASKS = ("temperature", "entropy")
_STEPS = (16, 8, 4, 2, 1)
#: Neither the fewest rows nor the fewest classes of a ladder go below these.
_FEWEST_ROWS, _FEWEST_CLASSES = 100, 2


def ladders(size: Size) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The (rows, classes) to time: five numbers of rows up to the size's own, then five numbers of
    classes.

    Examples
    --------
    >>> ladders(Size("C", 25_000, 1_000))[0][:2]
    [(1562, 1000), (3125, 1000)]
    """
    rows = [
        (size.rows // step, size.classes) for step in _STEPS if size.rows // step >= _FEWEST_ROWS
    ]
    classes = [
        (size.rows, size.classes // step)
        for step in _STEPS
        if size.classes // step >= _FEWEST_CLASSES
    ]
    return rows, classes


def scaled(
    rows: list[tuple[int, int]],
    classes: list[tuple[int, int]],
    repeats: int,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Median CPU seconds of each task on each table, and the slopes on log-log paper."""
    return {
        "rows": _ladder([(r, c) for r, c in rows], 0, repeats, seed, say),
        "classes": _ladder([(r, c) for r, c in classes], 1, repeats, seed, say),
    }


def _ladder(
    shapes: list[tuple[int, int]], axis: int, repeats: int, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    from benchmarks.speed.passes import passes_of_temperature_fit
    from benchmarks.speed.tasks import prepare
    from benchmarks.speed.timing import Stopwatch, interleaved

    tables = {}
    for shape in shapes:
        table = np.empty(shape, dtype=np.float32)
        tables[shape] = table, fill_table(table, seed)
    watches = {
        f"{task} {shape}": Stopwatch(prepare(task, *tables[shape]))
        for shape in shapes
        for task in TASKS
    }
    for name, _ in interleaved(watches, repeats):
        say(f"scaling: {name}")
    points = [
        {
            "rows": shape[0],
            "classes": shape[1],
            "passes": passes_of_temperature_fit(*tables[shape]),
            **{task: watches[f"{task} {shape}"].to_dict()["median"] for task in TASKS},
        }
        for shape in shapes
    ]
    along = [shape[axis] for shape in shapes]
    return {
        "points": points,
        "slope": {task: slope(along, [point[task] for point in points]) for task in TASKS},
    }


def slope(sizes: list[int], seconds: list[float]) -> float | None:
    """The slope of log(seconds) against log(size), by least squares; None from fewer than two
    sizes.

    Examples
    --------
    >>> round(slope([1, 2, 4], [3.0, 6.0, 12.0]), 6)
    1.0
    """
    if len(set(sizes)) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
