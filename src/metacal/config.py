"""Configuration of this installation: kernel, versions and environment."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: Environment variables that metacal reads.
ENVIRONMENT_VARIABLES = (
    "METACAL_KERNEL",
    "METACAL_PLUGINS",
    "METACAL_TRACEBACK",
    "METACAL_UNPACK_LIMIT",
)
#: Extras that only developers of metacal install; `show_config` leaves them out.
_DEVELOPER_EXTRAS = ("test", "engines", "docs")


@dataclass(frozen=True)
class Config:
    """Kernel, versions and environment of this installation.

    Attributes
    ----------
    metacal, python, numpy, scipy, scikit_learn : str
        Versions.

    kernel, reason : str
        Kernel in use, and the reason for the choice.

    platform : str
        System and processor.

    extras : mapping
        Dependencies of each extra and their versions, None if one is not installed.

    environment : mapping
        Environment variables of metacal that are set.
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
        """Return the configuration as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        entries = [
            (name, value)
            for name, value in vars(self).items()
            if name not in ("extras", "environment")
        ]
        for extra, packages in self.extras.items():
            package_texts = [
                f"{package} {version or 'is absent'}" for package, version in packages.items()
            ]
            entries.append((f"[{extra}]", ", ".join(package_texts)))
        entries += list(self.environment.items())
        name_width = max(len(name) for name, _ in entries)
        return "\n".join(f"{name:{name_width}} {value}" for name, value in entries)

    __repr__ = __str__


def show_config() -> Config:
    """Return the kernel, versions and environment in use, for bug reports.

    Returns
    -------
    Config
        Printable description, with one attribute for each entry.

    See Also
    --------
    MissingExtraError : Error about a missing optional package.

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

    kernel_module_name = kernels.host_kernels.__name__.rsplit(".", 1)[-1]
    return Config(
        metacal=metacal.__version__,
        python=platform.python_version(),
        numpy=numpy.__version__,
        scipy=scipy.__version__,
        kernel=kernel_module_name,
        reason=kernels.reason_for_kernels,
        scikit_learn=_installed_version("scikit-learn"),
        platform=f"{platform.system()} {platform.release()}, {platform.machine()}",
        extras=_installed_extras(),
        environment={
            name: os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ
        },
    )


def _installed_extras() -> dict[str, dict[str, str | None]]:
    """Return the installed version of every optional dependency, grouped by extra.

    The dictionary is empty for a source tree that is not installed.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        requirements = requires("metacal") or []
    except PackageNotFoundError:
        return {}
    versions: dict[str, dict[str, str | None]] = {}
    for requirement in requirements:
        match = re.match(r"""([\w.-]+).*;.*extra == ['"](\w+)['"]""", requirement)
        if match is None:
            continue
        package, extra = match.groups()
        if extra not in _DEVELOPER_EXTRAS:
            versions.setdefault(extra, {})[package] = _installed_version(package)
    return versions


def _installed_version(distribution: str) -> str | None:
    """Return the version of a distribution without importing it; None if it is absent."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
