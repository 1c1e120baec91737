"""show_config: what this installation runs on, and why."""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """The kernel in use and the versions around it; prints as a short list."""

    metacal: str
    python: str
    numpy: str
    scipy: str
    kernel: str
    reason: str

    def __str__(self) -> str:
        return "\n".join(f"{name:8} {value}" for name, value in vars(self).items())

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
    )
