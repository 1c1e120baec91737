"""Comparison of two results of one command: the same, up to rounding or to the last digit."""

from __future__ import annotations

import math
from collections.abc import Collection

#: Keys whose values are times.
TIMES = frozenset({"seconds"})


def different(
    committed: object,
    made: object,
    *,
    timed: bool = False,
    exact: bool = False,
    skip: Collection[str] = TIMES,
    where: str = "",
) -> str:
    """Find the first place where two results differ.

    Parameters
    ----------
    committed, made : object
        The results as JSON gives them.
    timed : bool
        Whether the numbers are times; then only the keys and lengths are compared.
    exact : bool
        Whether every digit counts. Without it, numbers may differ by rounding.
    skip : collection of str
        Keys that are not compared, wherever they are.
    where : str
        The path of the two objects inside the results.

    Returns
    -------
    str
        The place and both values; empty if there is no difference.

    Examples
    --------
    >>> different({"a": [0.1, 2]}, {"a": [0.1 + 1e-12, 2]})
    ''
    >>> different({"a": [0.0, 2]}, {"a": [1e-12, 2]}, exact=True)
    '/a/0: 0.0 is committed, 1e-12 comes out'
    >>> different({"a": [0.1, 2]}, {"a": [0.1, 3]})
    '/a/1: 2 is committed, 3 comes out'
    >>> different({"seconds": 0.1}, {"seconds": 0.2}, timed=True)
    ''
    """
    place = where or "/"
    if isinstance(committed, dict) and isinstance(made, dict):
        if committed.keys() - set(skip) != made.keys() - set(skip):
            return f"{place}: other keys"
        keys = [key for key in committed if key not in skip]
        pairs = [(str(key), committed[key], made[key]) for key in keys]
    elif isinstance(committed, list) and isinstance(made, list):
        if len(committed) != len(made):
            return f"{place}: {len(committed)} entries are committed, {len(made)} come out"
        pairs = [(str(k), one, other) for k, (one, other) in enumerate(zip(committed, made))]
    elif timed or _same(committed, made, exact):
        return ""
    else:
        return f"{where}: {committed!r} is committed, {made!r} comes out"
    for key, one, other in pairs:
        found = different(one, other, timed=timed, exact=exact, skip=skip, where=f"{where}/{key}")
        if found:
            return found
    return ""


def _same(one: object, other: object, exact: bool) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        if math.isnan(one):
            return math.isnan(other)
        return one == other if exact else math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return one == other
