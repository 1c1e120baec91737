"""Folders of data as the commands of the catalogue need them: everything, the tuned sets alone, or
a single one.

Several benchmarks read every `*.npz` file of a folder as logits. A data folder may also hold files
that came later, or scores that are not logits, so these benchmarks get a temporary folder of links
to the files that their results are about.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.all.catalogue import TUNED_SETS

#: The set of the part of a command that reads every file of a folder.
ONE_SET = "cifar10-resnet110"


@contextmanager
def linked_folders(data: str) -> Iterator[dict[str, str]]:
    """Yield the folder for each placeholder of a command: `data`, `tuned` (the eleven tuned sets)
    and `one`.

    Parameters
    ----------
    data : str
        The folder that the user gave; empty if there is none.

    Examples
    --------
    >>> with linked_folders("") as folders:
    ...     folders["data"], sorted(folders)
    ('.', ['data', 'one', 'tuned'])
    """
    if not data:
        yield {"data": ".", "tuned": ".", "one": "."}
        return
    whole = Path(data).resolve()
    with TemporaryDirectory() as folder:
        tuned = _link(whole, Path(folder) / "tuned", TUNED_SETS)
        one = _link(whole, Path(folder) / "one", (ONE_SET,))
        yield {"data": str(whole), "tuned": str(tuned), "one": str(one)}


def _link(source: Path, folder: Path, names: tuple[str, ...]) -> Path:
    """Fill a folder with links to the npz files of these sets, so far as they exist."""
    folder.mkdir()
    for name in names:
        path = source / f"{name.replace('-', '_')}.npz"
        if path.is_file():
            (folder / path.name).symlink_to(path)
    return folder
