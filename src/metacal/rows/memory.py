"""Control of freed memory: reuse it at once, or return it to the system.

glibc returns a large freed array to the system and keeps a small one, in a pool per thread. Both can
be wrong. A bootstrap allocates and frees the same arrays thousands of times, a fit some columns of its
rows, and the system fetches and clears every page anew. Many threads that each process a large table keep more memory than they
need. Other allocators are not changed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

#: Size in bytes of the array that `make_allocator_keep_freed_memory` frees.
#: glibc keeps freed blocks up to the size of the largest block freed so far.
_KEPT_BLOCK_BYTES = 8 << 20
#: Smallest number of table elements for which `malloc_trim` is worth its few milliseconds.
_LARGE_TABLE_ELEMENTS = 1 << 22


def make_allocator_keep_freed_memory() -> None:
    """Make the allocator keep freed arrays of some megabytes for later allocations.

    This saves a tenth of the time of a bootstrap of 10,000 rows, and of a fit on 200,000 rows.
    """
    np.empty(_KEPT_BLOCK_BYTES, dtype=np.uint8)


def release_freed_memory(n_elements: int) -> None:
    """Return freed memory to the operating system."""
    if n_elements < _LARGE_TABLE_ELEMENTS:
        return
    malloc_trim = _find_malloc_trim()
    if malloc_trim is not None:
        malloc_trim(0)


@lru_cache(maxsize=1)
def _find_malloc_trim() -> Any:
    """Return the function `malloc_trim` of glibc, or None for another C library."""
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).malloc_trim
    return None
