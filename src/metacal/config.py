"""show_config: what this installation runs on, and why."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: What metacal itself reads from the environment.
VARIABLES = ("METACAL_KERNEL", "METACAL_PLUGINS", "METACAL_TRACEBACK", "METACAL_UNPACK_LIMIT")
#: Extras that are for working on metacal, not with it.
_FOR_DEVELOPERS = ("test", "engines", "docs")


@dataclass(frozen=True)
class Config:
    """The kernel in use, the versions around it and what the environment sets; prints as a short
    list.

    Attributes
    ----------
    metacal, python, numpy, scipy, scikit_learn : str
        Versions.
    kernel, reason : str
        What computes, and why this one.
    platform : str
        System and processor.
    extras : mapping
        Each extra's dependencies and their versions; None where one is not installed.
    environment : mapping
        The variables of metacal that are set.
    """

    metacal: str
    python: str
    numpy: str
    scipy: str
    kernel: str
    reason: str
    scikit_learn: str | None = None
    platform: str = ""
    extras: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            (name, value)
            for name, value in vars(self).items()
            if name not in ("extras", "environment")
        ]
        for extra, packages in self.extras.items():
            found = ", ".join(
                f"{name} {version or 'is absent'}" for name, version in packages.items()
            )
            lines.append((f"[{extra}]", found))
        lines += list(self.environment.items())
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:{width}} {value}" for name, value in lines)

    __repr__ = __str__


def show_config() -> Config:
    """Which kernel runs, and why; and the versions that a report of a problem should name.

    Examples
    --------
    >>> import metacal as mc
    >>> mc.show_config().kernel in ("numpy", "fused")
    True
    """
    import numpy
    import scipy

    import metacal
    from metacal import kernels

    return Config(
        metacal=metacal.__version__,
        python=platform.python_version(),
        numpy=numpy.__version__,
        scipy=scipy.__version__,
        kernel=kernels.active.__name__.rsplit(".", 1)[-1],
        reason=kernels.reason,
        scikit_learn=_version("scikit-learn"),
        platform=f"{platform.system()} {platform.release()}, {platform.machine()}",
        extras=_extras(),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _extras() -> dict[str, dict[str, str | None]]:
    """The optional dependencies as the installed package declares them; a bare source tree declares
    none.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        declared = requires("metacal") or []
    except PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for line in declared:
        match = re.match(r"""([\w.-]+).*;.*extra == ['"](\w+)['"]""", line)
        if match and match[2] not in _FOR_DEVELOPERS:
            found.setdefault(match[2], {})[match[1]] = _version(match[1])
    return found


def _version(distribution: str) -> str | None:
    """What is installed, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
