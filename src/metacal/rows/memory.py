"""What becomes of memory that was freed: used again at once, or given back to the system.

glibc gives a freed array back when it is large, and keeps it when it is small, a pool of its own
for each thread. Both can be wrong. A bootstrap makes and frees the same arrays thousands of times,
and each page of a new one is fetched and cleared anew; many threads that each go through a large
table keep more than the work needs. Other allocators are left alone.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

#: Bytes of a block that is freed at once: glibc keeps what is freed up to the size of the largest
#: such block.
_FREED_AT_ONCE = 8 << 20
#: Elements of a table from which on what is left of working on it is worth the look for it, some
#: milliseconds.
_LARGE = 1 << 22


def keep_freed_memory() -> None:
    """Let freed arrays of some megabytes be used again at once: a tenth of the time of a bootstrap
    of 10,000 rows.
    """
    np.empty(_FREED_AT_ONCE, dtype=np.uint8)


def give_back_freed_memory(n_elements: int) -> None:
    """Give back what threads have freed, some megabytes each, after they have gone through so large
    a table.
    """
    trim = _trim() if n_elements >= _LARGE else None
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Any:
    """glibc's own function, where this is glibc."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).malloc_trim
    return None
