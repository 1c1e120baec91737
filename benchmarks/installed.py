"""Another package: is it there, and which version? Asked without importing it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


class Installable:
    """What stands for another package: the module that must be there, and the distribution it comes
    in.
    """

    module: str
    distribution: str

    @property
    def installed(self) -> bool:
        """Whether its module is there."""
        return find_spec(self.module) is not None

    @property
    def version(self) -> str | None:
        """The version of its distribution; None when it is not installed."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None
