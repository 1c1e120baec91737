"""A folder of results, one file for each file that was read: each takes its place whole, and finished ones are kept.

What was written from what stands in `_metacal.json` beside them. A run that was cut off and is started again leaves
alone every file whose source, gate and options are as recorded, and makes the others.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from metacal.errors import InputError
from metacal.files.many import is_url, mark_of
from metacal.files.writing import atomic_path

#: The record; a name that begins with "_" is no data to whoever reads the folder.
RECORD = "_metacal.json"


class Partitions:
    """The folder, and what is known of its files.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    made_with : dict
        Whatever the results depend on besides their sources: the gate's fingerprint, the options.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> source = folder / "in.csv"
    >>> _ = source.write_text("1,2")
    >>> results = Partitions(folder / "out", {"gate": "sha256:…"})
    >>> results.finished("in.csv", source) is None
    True
    >>> _ = (folder / "out" / "in.csv").write_text("result")
    >>> results.finish("in.csv", source, {"n_rows": 1})
    >>> Partitions(folder / "out", {"gate": "sha256:…"}).finished("in.csv", source)
    {'n_rows': 1}
    >>> Partitions(folder / "out", {"gate": "another"}).finished("in.csv", source) is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str], made_with: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.made_with = made_with
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InputError(f"{folder}: a file stands where the folder should be; choose another name.") from None
        except OSError as error:
            raise InputError(f"cannot make the folder {folder} ({error.strerror}).") from None
        self.parts: dict[str, Any] = self._recorded()

    def _recorded(self) -> dict[str, Any]:
        """What an earlier run has finished with the same gate and options; nothing where the record is damaged."""
        try:
            found = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
            parts = found["parts"] if found["made_with"] == self.made_with else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return parts if isinstance(parts, dict) else {}

    def finished(self, name: str, source: str | os.PathLike[str]) -> dict[str, Any] | None:
        """What is known of a result that needs no second making; None where it has to be made."""
        record = self.parts.get(name)
        target = self.folder / name
        if not isinstance(record, dict) or not target.is_file() or record.get("bytes") != target.stat().st_size:
            return None
        found = _fingerprint(source)
        return record["told"] if found is not None and record.get("source") == found else None

    def finish(self, name: str, source: str | os.PathLike[str], told: dict[str, Any]) -> None:
        """Record that the result is in its place; what a killed run has left half written of it goes."""
        self.sweep([name])
        size = (self.folder / name).stat().st_size
        self.parts[name] = {"source": _fingerprint(source), "bytes": size, "told": told}
        with atomic_path(self.folder / RECORD) as part:
            text = json.dumps({"made_with": self.made_with, "parts": self.parts}, indent=1, sort_keys=True)
            part.write_text(text + "\n", encoding="utf-8")

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what killed runs and workers have left half written of these results."""
        for name in names:
            for stale in self.folder.glob(f".{glob.escape(name)}.*.part*"):
                stale.unlink(missing_ok=True)


def _fingerprint(source: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Which file, how long, and when it was last written: reading it all again to be sure would cost what it saves.

    None where that cannot be told, behind a URL without dates and checksums: its result is then made each time.
    """
    if is_url(os.fspath(source)):
        return mark_of(os.fspath(source))
    found = os.stat(source)
    return {"path": os.path.abspath(source), "bytes": found.st_size, "written_ns": found.st_mtime_ns}


def digest(path: str | os.PathLike[str]) -> str:
    """The fingerprint of a small file's bytes."""
    return f"sha256:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"


def result_names(sources: Sequence[str], suffix: str) -> list[str]:
    """A name for the result of each source: its own with another ending, numbered where two would be the same.

    Examples
    --------
    >>> result_names(["a/x.csv", "a/y.npz"], ".parquet"), result_names(["a/x.csv", "b/x.csv"], ".csv")
    (['x.parquet', 'y.parquet'], ['000000-x.csv', '000001-x.csv'])
    """
    names = [f"{Path(source).stem}{suffix}" for source in sources]
    if len(set(names)) == len(names):
        return names
    return [f"{i:06d}-{name}" for i, name in enumerate(names)]
