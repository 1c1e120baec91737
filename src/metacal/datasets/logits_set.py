"""Data sets of logits and labels, loaded by name."""

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
from metacal.errors import FileReadError, InputError
from metacal.formulas import Flags

#: Table of logits and the true class of each row.
LogitsAndLabels = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True, eq=False, repr=False)
class LogitsSet:
    """Logits of one network on images that it was not trained on.

    Attributes
    ----------
    name : str
        Name of the set.

    logits : array of float32 of shape (n, K)
        One row per image and one column per class.

    labels : array of int64 of shape (n,)
        True class of each image, 0 … K-1.

    is_test : array of bool of shape (n,)
        Whether each image belongs to the official test set. The others were held out from the
        training set.

    source : str
        Origin of the logits.

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
        """Number of classes K."""
        return int(self.logits.shape[1])

    def split(
        self, n_fit: int = 5000, random_state: int | np.random.Generator = 0
    ) -> tuple[LogitsAndLabels, LogitsAndLabels]:
        """Split the rows at random into a fitting set and a test set.

        The held-out and the test images are merged first, as in the paper.

        Parameters
        ----------
        n_fit : int, default=5000
            Number of rows to fit on.

        random_state : int or numpy.random.Generator, default=0
            Seed or generator.

        Returns
        -------
        fit_rows, test_rows : tuples of (logits, labels)

        Raises
        ------
        InputError
            If `n_fit` is not a whole number from 1 to n - 1.

        Examples
        --------
        >>> data = load("cifar10-resnet110")
        >>> (fit_logits, fit_labels), (test_logits, test_labels) = data.split(5000)
        >>> fit_logits.shape, test_labels.shape
        ((5000, 10), (10000,))
        """
        n_rows = len(self.labels)
        is_integer = isinstance(n_fit, int | np.integer) and not isinstance(n_fit, bool)
        if not is_integer or not 1 <= n_fit < n_rows:
            raise InputError(
                f"n_fit must be an integer between 1 and {n_rows - 1} (the data set has {n_rows}"
                f" rows), but got {n_fit!r}."
            )
        row_order = np.random.default_rng(random_state).permutation(n_rows)
        fit_rows = row_order[:n_fit]
        test_rows = row_order[n_fit:]
        return (
            (self.logits[fit_rows], self.labels[fit_rows]),
            (self.logits[test_rows], self.labels[test_rows]),
        )

    def __repr__(self) -> str:
        return f"LogitsSet({self.name!r}, {len(self.labels)} rows, {self.n_classes} classes)"


def load(name: str, *, folder: str | os.PathLike[str] | None = None) -> LogitsSet:
    """Load a data set of logits and labels by name.

    Parameters
    ----------
    name : str
        One of `names()`.

    folder : path-like, default=None
        Folder that contains `name`.npz. If None, the sets of the package are used. The repository
        has more sets in `benchmarks/data`.

    Returns
    -------
    LogitsSet

    Raises
    ------
    InputError
        If there is no such set.

    Examples
    --------
    >>> data = load("cifar100-resnet110")
    >>> data.logits.shape, data.logits.dtype, data.n_classes
    ((15000, 100), dtype('float32'), 100)
    >>> load("cifar10-resnet101")
    Traceback (most recent call last):
    metacal.errors.InputError: Unknown data set 'cifar10-resnet101'; did you mean ...
    """
    available_names = names(folder=folder)
    if name not in available_names:
        canonical_name = str(name).lower().replace("_", "-")
        similar_names = difflib.get_close_matches(canonical_name, available_names, n=1)
        hint = f"; did you mean {similar_names[0]!r}?" if similar_names else "."
        names_text = ", ".join(available_names) or "none"
        raise InputError(
            f"Unknown data set {name!r}{hint} The available data sets are {names_text}."
        )
    with (_find_folder(folder) / f"{name}.npz").open("rb") as file:
        packed = read_packed(file)
    return LogitsSet(
        name=name,
        logits=packed.logits,
        labels=packed.labels,
        is_test=packed.is_test,
        source=packed.source,
    )


def names(*, folder: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Return the sorted names of the available data sets.

    Parameters
    ----------
    folder : path-like, default=None
        Folder of the sets. If None, the sets of the package are listed.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> names()
    ('cifar10-resnet110', 'cifar100-resnet110')
    """
    directory = _find_folder(folder)
    if not directory.is_dir():
        raise FileReadError(
            f"The folder {os.fspath(folder or directory.name)!r} does not exist. Pass a folder"
            " with packed .npz data sets."
        )
    file_names = [file.name for file in directory.iterdir() if file.name.endswith(".npz")]
    return tuple(sorted(file_name.removesuffix(".npz") for file_name in file_names))


def _find_folder(folder: str | os.PathLike[str] | None) -> Traversable:
    """Return a folder as a path. None stands for the folder of the package."""
    if folder is None:
        return resources.files("metacal.datasets")
    return Path(folder)
