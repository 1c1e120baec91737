"""Where the numbers come from: processor, versions, load. Nothing that names the machine or its
owner.
"""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "metacal",
    "numpy",
    "scipy",
    "scikit-learn",
    "netcal",
    "probmetrics",
    "torch-uncertainty",
    "torch",
    "onnxruntime",
)


def processor() -> str:
    """The processor's model, with what tells apart models of one name where the system says it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = {
        name: _field(text, name) for name in ("model name", "cpu family", "model", "cache size")
    }
    if found["model name"] is None:
        return platform.processor() or platform.machine()
    return f"{found['model name']} (family {found['cpu family']}, model {found['model']})"


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*: (.+?)\s*$", text, re.MULTILINE)
    return found[1] if found else None


def description() -> dict[str, Any]:
    """Processor, cores, system, versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def load_average() -> list[float] | None:
    """The load over the last 1, 5 and 15 minutes; None where the system does not say."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None
