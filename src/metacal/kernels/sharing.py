"""Parts of a column shared among threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def shared(pool: ThreadPoolExecutor | None, task: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """task(part) of each, in order; each thread of a pool gets neighbouring parts: few are woken and waited for.

    Examples
    --------
    >>> with ThreadPoolExecutor(2) as pool:
    ...     shared(pool, abs, [-1, -2, -3])
    [1, 2, 3]
    """
    if pool is None or len(parts) < 2:
        return [task(part) for part in parts]
    each = -(-len(parts) // pool._max_workers)
    stretches = [parts[first : first + each] for first in range(0, len(parts), each)]
    return [found for answers in pool.map(lambda own: [task(part) for part in own], stretches) for found in answers]
