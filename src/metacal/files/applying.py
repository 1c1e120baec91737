"""apply: a gate on the rows of files, written to a file, or to a folder with a result for each file that is read.

Results in a folder are independent of each other: they can be made by the workers of a cluster, each of which reads and
writes files of its own. Every result takes its place whole, and what is finished is kept (`metacal.files.partitions`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any

from metacal.decision import Decision
from metacal.errors import InputError
from metacal.files.batches import BatchGate
from metacal.files.decided import decided_columns
from metacal.files.for_gate import read_for_gate
from metacal.files.many import Paths, fetched, is_url, named_parts
from metacal.files.partitions import Partitions, result_names
from metacal.files.predictions import READERS, Predictions, read_predictions
from metacal.files.writing import WRITERS, open_table
from metacal.gate import Gate, Rejected
from metacal.rows import Rows, advance, told, workers
from metacal.rows.pieces import as_they_come, in_order
from metacal.rows.stored import StoredTable
from metacal.rows.workers import ExecutorLike, executor_of, is_remote, threads_of

#: Elements of a block of rows; 2 MB of probabilities in float32.
BLOCK_ELEMENTS = 1 << 19
#: Files that are under way on other machines at a time.
_WINDOW = 256

#: From a gate, its name, a file and options to predictions.
Read = Callable[[Gate, str, str, Any], Predictions]


@dataclass(frozen=True)
class Applied:
    """How many rows were decided on, how many were accepted (None: there is no gate), in how many files.

    `n_kept` are the files that an earlier run had finished.
    """

    n_rows: int
    n_accepted: int | None
    n_files: int = 1
    n_kept: int = 0


def apply(
    gate: Any,
    source: Paths,
    output: str | os.PathLike[str],
    *,
    rejected: Rejected = "calibrated",
    output_format: str | None = None,
    n_jobs: int | None = None,
    executor: ExecutorLike | None = None,
    **reading: Any,
) -> Applied:
    """Decide on the rows of files and write the results, as `metacal apply` does.

    Parameters
    ----------
    gate : path, or a fitted estimator or Gate
    source : path, or several
        As in `read_predictions`, with whose further keywords (`logits_key`, `id_key`, `group_key`, `format`, …) it is
        read.
    output : path
        A file; or a folder, which is there or ends in /: it gets a result for each file that is read, and what an
        earlier run has finished there is kept.
    rejected : "calibrated" or "uniform"
        Probabilities of rejected rows.
    output_format : str, optional
        What is written, where the name does not say: "parquet", "csv", …
    n_jobs : int, optional
        Threads.
    executor : concurrent.futures.Executor or distributed.Client, optional
        Where files are worked on, for a folder of results: a pool of processes, a Dask client.
        Workers read and write the files themselves, under the same names. It never changes a result.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> folder = tempfile.mkdtemp()
    >>> mc.files.write_table(f"{folder}/new.npz", {"logits": data.logits[5000:6000]})
    >>> apply(cal, f"{folder}/new.npz", f"{folder}/out.csv").n_rows
    1000
    >>> apply(cal, f"{folder}/*.npz", f"{folder}/results/").n_kept
    0
    >>> apply(cal, f"{folder}/*.npz", f"{folder}/results/").n_kept
    1
    """
    shipped = gate if isinstance(gate, BatchGate) else BatchGate(gate, group_key=reading.get("group_key"))
    one = FileApplier(shipped, shipped.path or "the gate", _read, reading, rejected, output_format, n_jobs)
    folder = os.fspath(output)
    if folder.endswith(("/", os.sep)) or os.path.isdir(folder):
        read_with = {name: repr(value) for name, value in sorted(reading.items())}
        made_with = {"rejected": rejected, "reading": read_with, "artifact": f"sha256:{shipped.fingerprint}"}
        return apply_to_folder(one, source, folder, made_with, executor)
    if is_remote(executor):
        raise InputError(
            f"workers write a result for each file that they read: give a folder in place of {folder}, with / at its "
            "end."
        )
    return Applied(*one(source, folder))


@dataclass(frozen=True)
class FileApplier:
    """Decides on the rows of one file and writes the result: all that a worker is sent besides the two names."""

    gate: Gate | BatchGate
    fitted: str
    read: Read
    reading: Any
    rejected: Rejected = "calibrated"
    output_format: str | None = None
    n_jobs: int | None = None

    def __call__(self, source: Any, target: str) -> tuple[int, int | None]:
        """How many rows there are, and how many of them are accepted."""
        gate = self.gate.gate if isinstance(self.gate, BatchGate) else self.gate
        with _here(source) as path:
            found = self.read(gate, self.fitted, path, self.reading)
            accepted = write_decisions(
                gate, found, target, self.output_format, rejected=self.rejected, n_jobs=self.n_jobs
            )
            return len(found), accepted


def apply_to_folder(
    one: FileApplier,
    source: Paths,
    folder: str,
    made_with: Mapping[str, Any],
    executor: ExecutorLike | None = None,
    *,
    check: Callable[[str, str], None] | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Applied:
    """Write a result for each file that has none yet; whatever else `made_with` names makes them anew when it changes.

    `check(target, source)` raises where a result must not be written; `say` is told what is kept.
    """
    sources = named_parts(source, READERS) or [os.fspath(source)]  # type: ignore[arg-type]
    suffix = _suffix(sources[0], one.output_format)
    names = result_names(sources, suffix)
    for path, name in zip(sources, names, strict=True):
        if check is not None:
            check(os.path.join(folder, name), path)
    results = Partitions(folder, {**made_with, "format": suffix})
    known = {name: results.finished(name, path) for path, name in zip(sources, names, strict=True)}
    n_kept = sum(found is not None for found in known.values())
    for name in (name for name, found in known.items() if found is not None):
        say(f"{name} is finished; it is kept.")
    missing = [(p, os.path.join(folder, n)) for p, n in zip(sources, names, strict=True) if known[n] is None]
    try:
        for (path, target), (n_rows, accepted) in _each(one, missing, executor):
            name = os.path.basename(target)
            known[name] = {"n_rows": n_rows, "n_accepted": accepted}
            results.finish(name, path, known[name] or {})
    except BaseException:
        results.sweep(os.path.basename(target) for _, target in missing)
        raise
    told_of = [found for found in known.values() if found is not None]
    accepted_ones = [found["n_accepted"] for found in told_of]
    n_accepted = None if accepted_ones[0] is None else sum(accepted_ones)
    return Applied(sum(found["n_rows"] for found in told_of), n_accepted, len(told_of), n_kept)


def _each(
    one: FileApplier, missing: Sequence[tuple[str, str]], executor: ExecutorLike | None
) -> Iterator[tuple[tuple[str, str], tuple[int, int | None]]]:
    pool = executor_of(executor)
    if pool is None or not is_remote(pool):
        for source, target in missing:
            yield (source, target), one(source, target)
        return
    there = replace(one, n_jobs=1)
    for (source, target), found in as_they_come(pool, there, missing, _WINDOW, place=lambda piece: piece[0]):
        advance(found[0])
        yield (source, target), found


def write_decisions(
    gate: Gate,
    found: Predictions,
    output: str | os.PathLike[str] | None,
    output_format: str | None = None,
    *,
    rejected: Rejected = "calibrated",
    n_jobs: int | None = None,
) -> int | None:
    """Write every block; return how many rows were accepted, or None where there is no gate. None: only count."""
    # All of it is checked, once, before the first row is written: a row's number is then its number in the file.
    table = gate.read(found.table, by_rows=True)
    accepted = None if gate.is_calibrator else 0
    with contextlib.ExitStack() as stack:
        write = None
        if output is not None:
            names = gate.classes.tolist() if gate.classes_given else found.class_names
            write = stack.enter_context(open_table(output, len(found), class_names=names, format=output_format))
        pool = stack.enter_context(workers(n_jobs))

        def decide(start: int, logits: Any) -> tuple[int, Decision]:
            groups = None if found.groups is None else found.groups[start : start + len(logits)]
            with told(None):  # rows are counted when they are written
                decision = gate.decide(Rows(logits), rejected=rejected, probabilities=write is not None, groups=groups)
            return start, decision

        blocks = _blocks(table)
        decided = starmap(decide, blocks) if pool is None else in_order(pool, decide, blocks, 2 * threads_of(pool) + 1)
        for start, decision in decided:
            if accepted is not None:
                accepted += int(decision.accept.sum())
            if write is not None:
                ids = None if found.ids is None else found.ids.ravel()[start : start + len(decision)]
                write(decided_columns(gate, decision, ids))
            advance(len(decision))
    return accepted


def _blocks(table: Any) -> Iterator[tuple[int, Any]]:
    """Each block of rows and the number of its first: read here, in order; what is to be converted waits."""
    # Whole strips: the same rows are worked on together as in one call, to the last bit.
    step = Rows(table, block_rows=max(1, BLOCK_ELEMENTS // table.shape[1])).block_rows
    for start in range(0, len(table), step):
        stop = min(start + step, len(table))
        yield start, table.fetched(start, stop) if isinstance(table, StoredTable) else table[start:stop]


def _read(gate: Gate, fitted: str, path: str, options: Mapping[str, Any]) -> Predictions:
    def read(classes: Any) -> Predictions:
        return read_predictions(path, **{"classes": classes, "input": gate.input, **options})

    shown = path if isinstance(path, str) else os.fspath(path) if isinstance(path, os.PathLike) else str(path)
    return read_for_gate(
        gate, fitted, shown, read, format=options.get("format"), classes_named=options.get("classes") is not None
    )


@contextlib.contextmanager
def _here(source: Any) -> Iterator[Any]:
    """A file that can be opened: a copy of what lies behind a URL, as long as this lasts."""
    if not isinstance(source, str) or not is_url(source):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="metacal-") as folder:
        copies = fetched(source, tuple(READERS), folder)
        try:
            yield copies[0] if len(copies) == 1 else copies
        except InputError as error:
            raise InputError(str(error).replace(copies[0], source)) from None


def _suffix(source: str, output_format: str | None) -> str:
    """As the user says, else as the sources are, else Parquet."""
    own = Path(source).suffix.lower()
    return f".{output_format}" if output_format is not None else own if own in WRITERS else ".parquet"
