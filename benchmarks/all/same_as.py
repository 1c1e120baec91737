"""Whether rewritten code still computes what a committed result was measured with.

A rewrite changes the fingerprint of every result that uses the rewritten functions, and the results
become stale. If the rewrite changed nothing that is computed, the result need not be measured again in
full. It is enough to run a small, seeded part of its command twice, with the code of the commit
that the result was measured with and with the present code, and to compare every digit. `refusal`
does that. The old code runs from an archive of the commit in a temporary folder.

Both runs use the NumPy kernels, because an archive holds no compiled ones. The compiled kernels
have tests of their own that compare them with NumPy.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.all.catalogue import Entry
from benchmarks.all.compare import different
from benchmarks.all.data_folders import ONE_SET, linked_folders
from benchmarks.all.fingerprint import ROOT, Code, changed_rooms, is_same

#: Keys whose values belong to the machine or the version, not to what is computed.
_INCIDENTAL = frozenset({"seconds", "machine", "load_average", "metacal", "made"})


@dataclass(frozen=True)
class PartRun:
    """What one run of a reduced command gave: its result, or the end of its error output."""

    result: Any = None
    error: str = ""


def refusal(
    entry: Entry,
    commit: str,
    stamped: dict[str, Any] | None,
    data: str,
    jobs: int,
    root: Path = ROOT,
) -> str:
    """Say why a result may not be stamped as current; empty if it may.

    Parameters
    ----------
    entry : Entry
        The result.
    commit : str
        The commit whose code the result was measured with.
    stamped : dict or None
        The stamp of the committed result.
    data : str
        A folder with further data; empty if there is none.
    jobs : int
        Processes.
    root : Path
        The repository.

    Returns
    -------
    str
        A full sentence, or nothing if old and present code gave the same numbers.
    """
    if entry.part is None:
        return (
            f"{entry.name}: {entry.why_no_part} Measure it again: python -m benchmarks all"
            f" {entry.name}."
        )
    if stamped is None:
        return (
            f"{entry.name}: the result has no stamp, so nothing says which code it was measured"
            " with."
        )
    lacking = _lacking_data(entry.part, data)
    if lacking:
        return f"{entry.name}: {lacking}"
    with tempfile.TemporaryDirectory() as folder:
        old_tree = Path(folder) / "old"
        error = _extract(root, commit, old_tree)
        if error:
            return f"{entry.name}: {error}"
        then = Code(old_tree).fingerprints(entry.entries, entry.rooms)
        if not is_same(stamped["code"], then):
            unlike = ", ".join(changed_rooms(stamped["code"], then)) or "its functions"
            return (
                f"{entry.name}: it was not measured with the code of {commit}; {unlike} differ"
                " there from the stamp. Name the commit that the result was measured with."
            )
        old = _run_part(entry, old_tree, Path(folder) / "then", data, jobs)
        new = _run_part(entry, root, Path(folder) / "now", data, jobs)
    for words, run in ((f"the code of {commit}", old), ("the present code", new)):
        if run.error:
            return f"{entry.name}: python -m {entry.part} failed with {words}: {run.error}"
    where = different(old.result, new.result, skip=_INCIDENTAL, exact=True)
    if where:
        return (
            f"{entry.name}: the present code computes something else than that of {commit}."
            f" {where}."
        )
    return ""


def _lacking_data(part: str, data: str) -> str:
    """Say which data a reduced command lacks; empty if it lacks none.

    Without its data a command may measure nothing, and nothing is always the same.
    """
    if "{data}" not in part and "{one}" not in part:
        return ""
    if not data or not Path(data).is_dir():
        return f"its part needs a folder of data, and {data!r} is none. Give --data FOLDER."
    one = Path(data) / f"{ONE_SET.replace('-', '_')}.npz"
    if "{one}" in part and not one.is_file():
        return f"its part needs {one.name}, which {data!r} does not hold."
    return ""


def _extract(root: Path, commit: str, folder: Path) -> str:
    """Write the tree of a commit to a folder; return why not, or nothing."""
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    done = subprocess.run(
        ["git", "archive", "--format=tar", "-o", str(archive), commit], cwd=root, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        return f"git gives no archive of {commit}: {' '.join(done.stderr.split())}"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return ""


def _run_part(entry: Entry, tree: Path, folder: Path, data: str, jobs: int) -> PartRun:
    """Run the reduced command of a result with the code of a tree."""
    assert entry.part is not None
    folder.mkdir()
    made = folder / entry.path.name
    with linked_folders(data) as folders:
        filled = entry.part.format(jobs=jobs, out=made, folder=folder, **folders)
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(filled)],
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
                "METACAL_KERNEL": "numpy",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode or not made.is_file():
        return PartRun(
            error=" ".join(done.stderr.split())[-400:]
            or f"exit status {done.returncode}, no result"
        )
    return PartRun(result=json.loads(made.read_text(encoding="utf-8")))
