"""One set of real logits, found by its name."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metacal.datasets.packing import read_packed
from metacal.errors import InputError
from metacal.formulas import Flags

LogitsAndLabels = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True, eq=False, repr=False)
class LogitsSet:
    """The logits of one network on images that it did not see in training.

    Attributes
    ----------
    name : str
        What `load` was given.
    logits : float32 array of shape (n, K)
        One row per image, one column per class.
    labels : int64 array of shape (n,)
        The true class of each image, 0 … K-1.
    is_test : bool array of shape (n,)
        Whether the image belongs to the official test set; the others were held out from the
        training set.
    source : str
        Where the logits come from.

    Examples
    --------
    >>> load("cifar10-resnet110")
    LogitsSet('cifar10-resnet110', 15000 rows, 10 classes)
    """

    name: str
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    is_test: Flags
    source: str

    @property
    def n_classes(self) -> int:
        """The number of classes K."""
        return int(self.logits.shape[1])

    def split(
        self, n_fit: int = 5000, random_state: int | np.random.Generator = 0
    ) -> tuple[LogitsAndLabels, LogitsAndLabels]:
        """Return (logits, labels) of `n_fit` random rows to fit on, and of all the other rows.

        The held-out and the test images are merged and split at random, as the paper does.

        Examples
        --------
        >>> (fit_logits, fit_labels), (test_logits, test_labels) = load("cifar10-resnet110").split(5000, random_state=0)
        >>> fit_logits.shape, test_labels.shape
        ((5000, 10), (10000,))
        """
        n_rows = len(self.labels)
        whole = isinstance(n_fit, int | np.integer) and not isinstance(n_fit, bool)
        if not whole or not 1 <= n_fit < n_rows:
            raise InputError(
                f"n_fit must be a whole number from 1 to {n_rows - 1} ({n_rows} rows), got"
                f" {n_fit!r}."
            )
        order = np.random.default_rng(random_state).permutation(n_rows)
        fit, test = order[:n_fit], order[n_fit:]
        return (self.logits[fit], self.labels[fit]), (self.logits[test], self.labels[test])

    def __repr__(self) -> str:
        return f"LogitsSet({self.name!r}, {len(self.labels)} rows, {self.n_classes} classes)"


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> LogitsSet:
    """Return the set of logits called `name`, in arrays of its own.

    Parameters
    ----------
    name : str
        One of `names()`.
    folder : path, optional
        Where to look for `name`.npz instead of in the package; `benchmarks/data` of the repository
        holds more sets.

    Examples
    --------
    >>> data = load("cifar100-resnet110")
    >>> data.logits.shape, data.logits.dtype, data.n_classes
    ((15000, 100), dtype('float32'), 100)
    >>> load("cifar10-resnet101")
    Traceback (most recent call last):
    metacal.errors.InputError: there is no data set 'cifar10-resnet101'; did you mean 'cifar10-resnet110'? ...
    """
    known = names(folder=folder)
    if name not in known:
        close = difflib.get_close_matches(str(name).lower().replace("_", "-"), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise InputError(
            f"there is no data set {name!r}{hint} There are: {', '.join(known) or 'none'}."
        )
    with (_shelf(folder) / f"{name}.npz").open("rb") as file:
        return LogitsSet(name, *read_packed(file))


def names(*, folder: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Return the names that `load` knows, sorted.

    Examples
    --------
    >>> names()
    ('cifar10-resnet110', 'cifar100-resnet110')
    """
    shelf = _shelf(folder)
    if not shelf.is_dir():
        raise InputError(
            f"there is no folder {os.fspath(folder or shelf.name)!r}; give one that holds packed"
            " .npz sets."
        )
    return tuple(
        sorted(
            item.name.removesuffix(".npz") for item in shelf.iterdir() if item.name.endswith(".npz")
        )
    )


def _shelf(folder: str | os.PathLike[str] | None) -> Traversable:
    return resources.files("metacal.datasets") if folder is None else Path(folder)
