"""Two results of one command: the same, up to rounding; of times (and of "seconds" anywhere) only the places."""

from __future__ import annotations

import math


def different(committed: object, made: object, *, timed: bool = False, where: str = "") -> str:
    """The first place where they differ; empty where they do not.

    Examples
    --------
    >>> different({"a": [0.1, 2]}, {"a": [0.1 + 1e-12, 2]})
    ''
    >>> different({"a": [0.1, 2]}, {"a": [0.1, 3]})
    '/a/1: 2 is committed, 3 comes out'
    >>> different({"seconds": 0.1}, {"seconds": 0.2}, timed=True)
    ''
    """
    if isinstance(committed, dict) and isinstance(made, dict):
        if committed.keys() != made.keys():
            return f"{where or '/'}: other keys"
        pairs = [(str(key), value, made[key]) for key, value in committed.items() if key != "seconds"]
    elif isinstance(committed, list) and isinstance(made, list):
        if len(committed) != len(made):
            return f"{where or '/'}: {len(committed)} entries are committed, {len(made)} come out"
        pairs = [(str(k), one, other) for k, (one, other) in enumerate(zip(committed, made))]
    else:
        return "" if timed or _same(committed, made) else f"{where}: {committed!r} is committed, {made!r} comes out"
    found = (different(one, other, timed=timed, where=f"{where}/{key}") for key, one, other in pairs)
    return next((text for text in found if text), "")


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return one == other
