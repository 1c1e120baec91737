"""The tables that are timed: their sizes, and logits that look like a network's.

The truth is known: z is calibrated by construction (labels are drawn from softmax(z)), the table is
T·z with T = 1.8. One class of each row stands out by a random margin, so that about 76% of the
predictions are right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from metacal.errors import InputError

#: The temperature that undoes the tables' over-confidence.
TEMPERATURE = 1.8
#: The winner's log-odds against all other classes together: mean and standard deviation.
_MARGIN = (2.05, 2.5)
#: Elements made at a time: a table larger than memory can be made in a file.
_BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Size:
    """A table's name and shape."""

    name: str
    rows: int
    classes: int
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Entries of the table."""
        return self.rows * self.classes

    @property
    def bytes(self) -> int:
        """Bytes of the table."""
        return self.elements * np.dtype(self.dtype).itemsize


#: The work sizes by name; C is half of ImageNet's validation set, E a language model's vocabulary.
SIZES = {
    size.name: size
    for size in (
        Size("A", 5_000, 10),
        Size("B", 5_000, 100),
        Size("C", 25_000, 1_000),
        Size("D", 200_000, 1_000),
        Size("E", 20_000, 32_000, "float16"),
    )
}


def parse_sizes(text: str) -> list[Size]:
    """Return the sizes that a list such as "A,B" or "400x10,100x50:float16" names.

    Examples
    --------
    >>> [size.elements for size in parse_sizes("A,400x10")]
    [50000, 4000]
    >>> parse_sizes("F")
    Traceback (most recent call last):
    metacal.errors.InputError: there is no size 'F'; give some of A, B, C, D, E, or ROWSxCLASSES such as 400x10.
    """
    return [_parse_size(name.strip()) for name in text.split(",")]


def _parse_size(name: str) -> Size:
    if name.upper() in SIZES:
        return SIZES[name.upper()]
    found = re.fullmatch(r"(\d+)x(\d+)(?::(float16|float32|float64))?", name)
    if not found or int(found[1]) < 200 or int(found[2]) < 2:
        hint = " (at least 200 rows and 2 classes)" if found else ""
        known = ", ".join(SIZES)
        raise InputError(
            f"there is no size {name!r}; give some of {known}, or ROWSxCLASSES such as"
            f" 400x10{hint}."
        )
    return Size(name, int(found[1]), int(found[2]), found[3] or "float32")


def write_table(size: Size, folder: Path, seed: int) -> tuple[Path, Path]:
    """Make the table and its labels in two .npy files, block by block; return their paths."""
    stem = re.sub(r"\W", "-", size.name)
    paths = folder / f"{stem}.npy", folder / f"{stem}-labels.npy"
    table = open_memmap(
        paths[0], mode="w+", dtype=np.dtype(size.dtype), shape=(size.rows, size.classes)
    )
    np.save(paths[1], fill_table(table, seed))
    table.flush()
    return paths


def fill_table(table: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """Write logits into `table`, block by block; return the labels. Same seed and shape, same bits.

    Examples
    --------
    >>> table = np.empty((2000, 10), dtype=np.float32)
    >>> labels = fill_table(table, seed=0)
    >>> bool(0.7 < (table.argmax(axis=1) == labels).mean() < 0.82)
    True
    """
    rows, classes = table.shape
    labels = np.empty(rows, dtype=np.int64)
    step = max(1, _BLOCK_ELEMENTS // classes)
    for block, start in enumerate(range(0, rows, step)):
        part = slice(start, min(start + step, rows))
        logits, labels[part] = _block(
            part.stop - start, classes, np.random.default_rng([seed, block])
        )
        table[part] = logits
    return labels


def _block(
    rows: int, classes: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    z = rng.standard_normal((rows, classes), dtype=np.float32)
    others = np.log(classes - 1.0) + 0.5 * (
        classes > 2
    )  # log of the expected sum of e^z over the other classes
    z[np.arange(rows), rng.integers(classes, size=rows)] = others + rng.normal(*_MARGIN, size=rows)
    chances = np.cumsum(np.exp(z - z.max(axis=1, keepdims=True)), axis=1, dtype=np.float64)
    drawn = rng.random(rows) * chances[:, -1]
    labels = (chances > drawn[:, None]).argmax(axis=1)
    z *= np.float32(TEMPERATURE)
    return z, labels.astype(np.int64)
