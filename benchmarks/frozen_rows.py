"""The rows that `frozen_gates.py` fits its gates on: always the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import metacal as mc

DATA = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True)
class Table:
    """Rows to fit on and rows held out."""

    fit: NDArray[Any]
    labels: NDArray[Any]
    new: NDArray[Any]
    new_labels: NDArray[Any]

    @property
    def n_classes(self) -> int:
        """The number of columns."""
        return int(self.fit.shape[1])


@cache
def table(name: str) -> Table:
    """One of the fixed tables."""
    if name.startswith("cifar"):
        kept = mc.datasets.load(name, folder=None if name in mc.datasets.names() else DATA)
        return parted(kept.logits, kept.labels, 3000 if kept.n_classes == 10 else 4000)
    n_classes, gap, seed = {"three": (3, 2.5, 1), "two": (2, 2.0, 2), "twenty": (20, 4.0, 3)}[name]
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=2400)
    logits = 1.7 * (rng.normal(size=(2400, n_classes)) + gap * np.eye(n_classes)[labels])
    return parted(logits, labels, 2000)


def parted(logits: NDArray[Any], labels: NDArray[Any], rows: int, held_out: int = 250) -> Table:
    """Some rows to fit on, and `held_out` others."""
    order = np.random.default_rng(7).permutation(len(labels))[: rows + held_out]
    x, y = np.asarray(logits)[order], np.asarray(labels)[order]
    return Table(x[:rows], y[:rows], x[rows:], y[rows:])


@cache
def groups_of(rows: int) -> NDArray[np.str_]:
    """A group for each row."""
    return np.random.default_rng(rows).choice(
        ["north", "south", "west"], size=rows, p=[0.5, 0.4, 0.1]
    )


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Probabilities of logits, to be given as such."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
