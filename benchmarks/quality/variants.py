"""A logits file, and what may be wrong with one: floored, sharpened, mislabelled or long-tailed
rows, made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[Any]
Labels = NDArray[np.int64]
Variant = Callable[[Logits, Labels, np.random.Generator], tuple[Logits, Labels]]


def plain(logits: Logits, labels: Labels, random: np.random.Generator) -> tuple[Logits, Labels]:
    """The rows as they are."""
    return logits, labels


def floored(logits: Logits, labels: Labels, random: np.random.Generator) -> tuple[Logits, Labels]:
    """Logarithms of probabilities (of half the logits); in 2% of the rows all but the first class
    are at 1e-12.
    """
    gaps = 0.5 * logits.astype(np.float64)
    chances = np.exp(gaps - gaps.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    rows = random.random(len(labels)) < 0.02
    losers = chances < chances.max(axis=1, keepdims=True)
    chances[rows[:, None] & losers] = 1e-12
    return np.log(np.maximum(chances, 1e-12)), labels


def sharpened(logits: Logits, labels: Labels, random: np.random.Generator) -> tuple[Logits, Labels]:
    """Three times the logits: far too sure."""
    return 3.0 * logits, labels


def mislabelled(
    logits: Logits, labels: Labels, random: np.random.Generator
) -> tuple[Logits, Labels]:
    """One label in ten is drawn at random."""
    wrong = random.random(len(labels)) < 0.1
    return logits, np.where(wrong, random.integers(logits.shape[1], size=len(labels)), labels)


def long_tailed(
    logits: Logits, labels: Labels, random: np.random.Generator
) -> tuple[Logits, Labels]:
    """Rows left out, so that the last class keeps one in twenty and the others in between, evenly
    in the logarithm.
    """
    kept = random.random(len(labels)) < 0.05 ** (labels / max(1, logits.shape[1] - 1))
    return logits[kept], labels[kept]


#: Every variant by its name.
VARIANTS: dict[str, Variant] = {
    "plain": plain,
    "floored": floored,
    "sharpened": sharpened,
    "mislabelled": mislabelled,
    "long-tailed": long_tailed,
}
