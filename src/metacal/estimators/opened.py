"""What was fitted, opened: the gate inside and what it decides by, for `verify`, `evaluate` and the report alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from metacal.errors import InputError

T = TypeVar("T")


class Opened(NamedTuple):
    """A gate with its own table of rows; of a cascade the checked logits of both models."""

    gate: Any
    X: Any
    large: Any = None

    def by_kind(self, what: str, kinds: dict[type, Callable[[], T]]) -> T:
        """What `what` does with this kind of gate."""
        if type(self.gate) not in kinds:
            raise InputError(f"{what} needs a fitted gate; got {type(self.gate).__name__}.")
        return kinds[type(self.gate)]()


def opened(fitted: Any, X: Any, large: Any = None) -> Opened:
    """The gate inside of what was fitted; where X are the features of a classifier, its logits."""
    if hasattr(fitted, "tables"):
        return Opened(getattr(fitted, "gate_", fitted), *fitted.tables(X, large))
    if large is not None:
        raise InputError("large is the table of a cascade's second model; this gate has one model.")
    if hasattr(fitted, "logits"):
        return opened(fitted.gate_, fitted.logits(X))
    return Opened(getattr(fitted, "gate_", fitted), X)
