"""Numbers of the pages that take some arithmetic, each from one committed result."""

from __future__ import annotations

from collections.abc import Callable

FIGURES: dict[str, Callable[[], float]] = {}


def figure(name: str) -> float:
    """A number by its name."""
    return float(FIGURES[name]())
