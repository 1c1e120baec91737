"""apply: a gate on the rows of files, written to a file, or to a folder with a result for each file
that is read.

Results in a folder are independent of each other: they can be made by the workers of a cluster,
each of which reads and writes files of its own. Every result knows its source, which was the same
before it was read and after; it takes its place whole, and what is finished is kept
(`metacal.io.results`).
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.gate import Decision, Gate, Rejected
from metacal.io.batches import BatchGate, beside_results, decided_columns
from metacal.io.disk import part_beside
from metacal.io.formats import FORMATS, endings
from metacal.io.formats.numpy import of_one_width
from metacal.io.gate_predictions import read_for_gate
from metacal.io.many import Paths, files_of, is_read
from metacal.io.opening import NoRowsError
from metacal.io.remote import copies_removed, suffix_of
from metacal.io.results import (
    Fingerprint,
    ResultFolder,
    distinct_name,
    make_folder,
    plain_name,
    read_unchanged,
)
from metacal.io.writing import open_table, table_suffix
from metacal.rows import Rows, advance, told, workers
from metacal.rows.executors import ExecutorLike, executor_of, is_remote, threads_of
from metacal.rows.stored import StoredTable
from metacal.rows.tasks import as_they_come, in_order

#: Elements of a block of rows; 2 MB of probabilities in float32.
BLOCK_ELEMENTS = 1 << 19
#: Files that are under way on other machines at a time.
_WINDOW = 256


@dataclass(frozen=True)
class Applied:
    """What was decided on and written.

    Attributes
    ----------
    n_rows : int
    n_accepted : int or None
        None: there is no gate.
    n_files : int
        Files of results.
    n_kept : int
        How many of them an earlier run had finished.
    empty : tuple of str
        Sources in a folder that hold no rows, and have no result.
    orphans : tuple of str
        Results in the folder whose source is gone.
    pruned : bool
        Whether these were removed.
    edited : tuple of str
        Results without a source that somebody has changed since they were made; they are never
        removed.
    n_without_score : int
        Rows of given scores that have none, and are rejected.
    answered_by : mapping
        Of a cascade: how many rows each answers.
    """

    n_rows: int
    n_accepted: int | None
    n_files: int = 1
    n_kept: int = 0
    empty: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    pruned: bool = False
    edited: tuple[str, ...] = ()
    n_without_score: int = 0
    answered_by: Mapping[str, int] = field(default_factory=dict)


#: A source, and the place of its result.
Piece = tuple[str, str]
#: What a worker says of one file: which it was, where the result now lies (None: there are no
#: rows), and its counts.
Made = tuple[Fingerprint | None, str | None, dict[str, Any]]
#: Makes what is missing, and says of each piece when it is made.
Each = Callable[[Sequence[Piece]], Iterator[tuple[Piece, Made]]]


def apply(
    gate: Any,
    source: Paths,
    output: str | os.PathLike[str],
    *,
    rejected: Rejected = "calibrated",
    output_format: str | None = None,
    n_jobs: int | None = None,
    executor: ExecutorLike | None = None,
    prune: bool = False,
    say: Callable[[str], object] = lambda text: None,
    **reading: Any,
) -> Applied:
    """Decide on the rows of files and write the results, as `metacal apply` does.

    Parameters
    ----------
    gate : path, or a fitted estimator or Gate
    source : path, or several
        As in `read_predictions`, with whose further keywords (`logits_key`, `id_key`, `group_key`,
        `format`, …) it is read.
    output : path
        A file; or a folder, which is there or ends in /: it gets a result for each file that is
        read, and what an earlier run has finished there is kept while its source is the same.
    rejected : "calibrated" or "uniform"
        Probabilities of rejected rows.
    output_format : str, optional
        What is written, where the name does not say: "parquet", "csv", …
    n_jobs : int, optional
        Threads.
    executor : concurrent.futures.Executor or distributed.Client, optional
        Where files are worked on, for a folder of results: a pool of processes, a Dask client.
        Workers read and write the files themselves, under the same names. It never changes a
        result.
    prune : bool
        Whether results in the folder whose source is gone are removed, if nobody has touched them.
    say : callable, optional
        Is told, as text, which results in the folder are kept.

    Examples
    --------
    >>> import tempfile
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
    >>> folder = tempfile.mkdtemp()
    >>> mc.io.write_table(f"{folder}/new.npz", {"logits": data.logits[5000:6000]})
    >>> apply(cal, f"{folder}/new.npz", f"{folder}/out.csv").n_rows
    1000
    >>> apply(cal, f"{folder}/*.npz", f"{folder}/results/").n_kept
    0
    >>> apply(cal, f"{folder}/*.npz", f"{folder}/results/").n_kept
    1
    """
    remote = is_remote(executor)
    shipped = (
        gate if isinstance(gate, BatchGate) else BatchGate(gate, group_key=reading.get("group_key"))
    )
    one = FileApplier(shipped, reading, rejected, output_format, n_jobs)
    folder = os.fspath(output)
    if folder.endswith(("/", os.sep)) or os.path.isdir(folder):
        given = {name: repr(value) for name, value in sorted(reading.items())}
        read_with = {name: value for name, value in given.items() if value not in ("None", "()")}
        made_with = {
            "rejected": rejected,
            "reading": read_with,
            "artifact": f"sha256:{shipped.fingerprint}",
        }
        return _apply_to_folder(one, source, folder, made_with, executor, prune=prune, say=say)
    if prune:
        raise InputError(f"prune is for a folder of results; {folder} is one file.")
    if remote:
        raise InputError(
            "workers write a result for each file that they read: give a folder in place of"
            f" {folder}, with / at its end."
        )
    return one.write(source, folder)


@dataclass(frozen=True)
class FileApplier:
    """Decides on the rows of one file and writes the result: all that a worker is sent besides the
    two names.
    """

    gate: BatchGate
    #: Keywords of `read_predictions`.
    reading: Mapping[str, Any]
    rejected: Rejected = "calibrated"
    output_format: str | None = None
    n_jobs: int | None = None

    def __call__(self, source: str, target: str) -> Made:
        """Write the result to a file beside its place, from a source that was the same before and
        after.
        """
        part = part_beside(
            target
        )  # of its own: a worker that was given up may still be at work on the same piece

        def write() -> Applied:
            try:
                return self.write(source, target, part)
            except NoRowsError:
                return Applied(0, 0)

        done, known = read_unchanged(source, write)
        return (
            known,
            part if done.n_rows else None,
            {"n_rows": done.n_rows, "n_accepted": done.n_accepted},
        )

    def write(self, source: Any, target: str, part: str | None = None) -> Applied:
        """Write the result to its place, or to `part` for somebody else to put it there."""
        gate = self.gate.gate
        with copies_removed():
            predictions = read_for_gate(gate, self.gate.name, source, **self.reading)
            options: dict[str, Any] = {
                "rejected": self.rejected,
                "n_jobs": self.n_jobs,
                "part": part,
            }
            options["tables"] = (gate.source.read(predictions.table, by_rows=True),)
            return write_decisions(gate, predictions, target, self.output_format, **options)


def _apply_to_folder(
    one: FileApplier,
    source: Paths,
    folder: str,
    made_with: Mapping[str, Any],
    executor: Any,
    **options: Any,
) -> Applied:
    """Write a result for each file that has none yet; whatever else `made_with` names makes them
    anew when it changes.

    `options` are those of `fill`.
    """
    sources = files_of(source, FORMATS)
    # As the user says, else as the sources are (arrays side by side where they are one), else
    # Parquet.
    own = (
        suffix_of(sources[0]).replace(".npy", ".npz")
        if one.output_format is None
        else f".{one.output_format}"
    )
    suffix = own if one.output_format is not None or own in endings(written=True) else ".parquet"
    for path in sources:
        given = (path, source) if isinstance(source, str) else (path,)
        for name in (plain_name(path, suffix), distinct_name(path, suffix)):
            target = os.path.join(folder, name)
            if any(is_read(target, one, FORMATS) for one in given):
                raise InputError(f"{target} is also read; write to another file.")
    make_folder(folder)
    with ResultFolder(folder, {**made_with, "format": suffix}) as results:
        names = results.names_for(sources, suffix)
        present = dict(zip(names, sources, strict=True))
        return fill(results, present, lambda pieces: _each(one, pieces, executor), **options)


def fill(
    results: ResultFolder,
    present: Mapping[str, str],
    each: Each,
    *,
    prune: bool,
    say: Callable[[str], object],
) -> Applied:
    """Make what is missing in a folder: `present` are the names of results with their sources,
    `each` makes parts.
    """
    results.sweep(present)
    records = {
        name: known
        for name, source in present.items()
        if (known := results.kept(name, source)) is not None
    }
    kept = [name for name, record in records.items() if record["n_rows"]]
    for name in kept:
        say(f"{name} is finished; it is kept.")
    missing_names = [name for name in present if name not in records]
    results.refuse_foreign(missing_names)  # before any work is done
    missing = [(present[name], os.path.join(results.folder, name)) for name in missing_names]
    try:
        for (source, target), made in each(missing):
            name = os.path.basename(target)
            records[name] = results.finish(name, source, *made)
    finally:
        results.sweep(present)
    counted = [record for record in records.values() if record["n_rows"]]
    if not counted:
        raise NoRowsError(
            f"{next(iter(present.values()))}: it holds no rows, nor does any other; give at least"
            " one."
        )
    accepted = [record["n_accepted"] for record in counted]
    orphans, edited = results.orphans(present)
    if prune:
        results.prune(orphans)
    return Applied(
        sum(record["n_rows"] for record in counted),
        None if accepted[0] is None else sum(accepted),
        len(counted),
        len(kept),
        tuple(source for name, source in present.items() if not records[name]["n_rows"]),
        tuple(orphans),
        prune,
        tuple(edited),
    )


def _each(
    one: FileApplier, pieces: Sequence[Piece], executor: ExecutorLike | None
) -> Iterator[tuple[Piece, Made]]:
    pool = executor_of(executor)
    if pool is None or not is_remote(pool):
        yield from zip(pieces, starmap(one, pieces))
        return
    there = replace(one, n_jobs=1)
    for piece, made in as_they_come(
        pool, there, pieces, _WINDOW, place=lambda piece: str(piece[0])
    ):
        advance(made[2]["n_rows"])
        yield (piece[0], piece[1]), made


def write_decisions(
    gate: Gate,
    predictions: Any,
    output: str | os.PathLike[str] | None,
    output_format: str | None = None,
    *,
    tables: Sequence[Any],
    rejected: Rejected = "calibrated",
    n_jobs: int | None = None,
    part: str | None = None,
) -> Applied:
    """Write every block; `output` None: only count.

    `predictions` may be `Scores`, too. `tables` is what each stage of the gate reads, checked: all
    of it, once, before the first row is written, so that a row's number is its number in the file.
    A later model's table holds every row, or those alone that the first one leaves; where it is
    missing these are left to nobody.
    """
    accepted, missing, answered = 0, 0, Counter[str]()
    ids, groups, kept = predictions.ids, predictions.groups, predictions.kept
    with contextlib.ExitStack() as stack:
        write = None
        if output is not None:
            if (
                table_suffix(output, output_format) == ".npz"
            ):  # whose texts are of one width in all blocks
                kept = of_one_width(dict(kept))
            names = (
                gate.classes.tolist()
                if gate.source.classes_given
                else getattr(predictions, "class_names", None)
            )
            table_file = open_table(
                output, len(predictions), class_names=names, format=output_format, part=part
            )
            write = stack.enter_context(table_file)
        pool = stack.enter_context(workers(n_jobs))

        def decide(start: int, *given: Any) -> tuple[int, Decision]:
            own = None if groups is None else groups[start : start + len(given[0])]
            options: dict[str, Any] = {
                "rejected": rejected,
                "probabilities": write is not None,
                "groups": own,
            }
            with told(None):  # rows are counted when they are written
                return start, _decision(gate, given, options)

        blocks = _blocks(gate, tables)
        decided = (
            starmap(decide, blocks)
            if pool is None
            else in_order(pool, decide, blocks, 2 * threads_of(pool) + 1)
        )
        for start, decision in decided:
            accepted += int(decision.accept.sum())
            missing += int(np.isnan(decision.doubt).sum())
            if decision.by is not None:
                who = (*decision.stages, decision.last)
                answered.update(
                    dict(
                        zip(who, np.bincount(decision.by, minlength=len(who)).tolist(), strict=True)
                    )
                )
            if write is not None:
                here = slice(start, start + len(decision))
                beside = {name: column[here] for name, column in kept.items()}
                write(
                    beside_results(
                        beside, decided_columns(gate, decision, None if ids is None else ids[here])
                    )
                )
            advance(len(decision))
    counted = None if gate.is_calibrator else accepted
    return Applied(len(predictions), counted, n_without_score=missing, answered_by=answered)


def _decision(gate: Gate, given: Sequence[Any], options: Mapping[str, Any]) -> Decision:
    """What the gate says of a block of checked rows; of a cascade without its later model, who
    answers nonetheless.
    """
    rows = [stage.source.checked(part) for stage, part in zip(gate.stages, given)]
    if len(rows) == len(gate.stages):
        return gate.decide(*rows, **options)
    alone = gate.stage(0).decide(*rows, **options)
    return replace(
        alone, by=np.where(alone.accept, 0, 1), stages=(gate.stages[0].name,), last="nobody"
    )


def _blocks(gate: Gate, tables: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The number of the first row of each block, and the block of each table: read here, in
    order.
    """
    first, n = tables[0], len(tables[0])
    # Whole strips: the same rows are worked on together as in one call, to the last bit.
    step = BLOCK_ELEMENTS
    if gate.n_classes:
        step = Rows(first, block_rows=max(1, BLOCK_ELEMENTS // gate.n_classes)).block_rows
    places = np.arange(n + 1)  # of the rows of `first` in the later table
    if len(tables) > 1 and len(tables[1]) != n:
        rest = ~gate.accepts(gate.source.checked(first))
        if len(tables[1]) != rest.sum():
            raise InputError(
                f"--large has {len(tables[1]):,} rows; give all {n:,}, or the {rest.sum():,} that"
                " the small model does not answer."
            )
        places[1:] = np.cumsum(rest)
    for start in range(0, n, step):
        stop = min(start + step, n)
        later = (_part(table, places[start], places[stop]) for table in tables[1:])
        yield start, _part(first, start, stop), *later


def _part(table: Any, start: int, stop: int) -> Any:
    """Some rows; what is to be converted waits."""
    return table.fetched(start, stop) if isinstance(table, StoredTable) else table[start:stop]
