"""Peak memory of a fit as a multiple of its table, measured in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.speed.sizes import Size
from benchmarks.speed.tasks import prepare

_STATUS = Path("/proc/self/status")


def peak_multiple(task: str, table_path: str, labels_path: str) -> float:
    """1 + (peak during the fit - memory before it) / table; the table is in memory before, and all
    imports done.
    """
    import numpy as np

    table, labels = np.load(table_path), np.load(labels_path)
    prepare(task, *_small(table.dtype))()
    call = prepare(task, table, labels)
    before = _reset_peak()
    call()
    return 1.0 + float(max(0, _peak() - before) / table.nbytes)


def _small(dtype: Any) -> tuple[Any, Any]:
    """A table that makes the fit import all it needs."""
    import numpy as np

    from benchmarks.speed.sizes import fill_table

    size = Size("small", 400, 10)
    table = np.empty((size.rows, size.classes), dtype=dtype)
    return table, fill_table(table, seed=0)


def _reset_peak() -> int:
    """Forget the peak so far where the system can; return the memory in use (else the peak so
    far).
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _kilobytes("VmRSS")
    except OSError:
        return _peak()


def _peak() -> int:
    """The most memory that this process has held, in bytes."""
    if _STATUS.exists():
        # A child starts with its parent's ru_maxrss on Linux; this one starts at zero.
        return _kilobytes("VmHWM")
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
