"""Application of a gate to files, with results in one file or in a directory.

A directory has one result for each source file. The results are independent of each other, so the
workers of a cluster can make them. Each worker reads and writes files of its own. `ResultFolder`
ensures that results are complete, and that finished results are kept (`metacal.io.results`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

from metacal.errors import FileWriteError, NoRowsError
from metacal.gate import Rejected
from metacal.io.apply_names import check_results_are_not_read, choose_suffix
from metacal.io.batches import BatchGate
from metacal.io.decision_writing import Applied, write_decisions
from metacal.io.disk import build_temporary_path
from metacal.io.formats import FORMATS
from metacal.io.gate_predictions import read_for_gate
from metacal.io.input_paths import Paths, list_input_files
from metacal.io.journal_lines import Record
from metacal.io.remote import delete_downloads_after_use
from metacal.io.results import ResultFolder, make_folder
from metacal.io.source_fingerprint import Fingerprint, read_until_unchanged
from metacal.rows import report_finished_rows
from metacal.rows.executors import ExecutorLike, is_remote, resolve_executor
from metacal.rows.tasks import run_as_completed

#: Maximum number of files that remote workers process at the same time.
_MAX_PENDING_FILES = 256


@dataclass(frozen=True)
class WrittenResult:
    """Result of one source, written to a temporary file.

    Attributes
    ----------
    source_fingerprint : dict or None
        Fingerprint of the source.

    temporary_path : str or None
        Temporary file. None if the source has no rows.

    n_rows : int
        Number of rows.

    n_accepted : int or None
        Number of accepted rows. None for a calibrator.
    """

    source_fingerprint: Fingerprint | None
    temporary_path: str | None
    n_rows: int
    n_accepted: int | None


#: Path of a source file and path of its result.
SourceAndTarget = tuple[str, str]
#: Function that writes the results of several sources to temporary files, in any order.
ResultsWriter = Callable[
    [Sequence[SourceAndTarget]], Iterator[tuple[SourceAndTarget, WrittenResult]]
]


def apply(
    gate: Any,
    source: Paths,
    output: str | os.PathLike[str],
    *,
    rejected: Rejected | None = None,
    output_format: str | None = None,
    n_jobs: int | None = None,
    executor: ExecutorLike | None = None,
    prune: bool = False,
    say: Callable[[str], object] = lambda text: None,
    **read_options: Any,
) -> Applied:
    """Apply a gate to the rows of files and write the results.

    Parameters
    ----------
    gate : path, fitted estimator or Gate
        Gate to apply.

    source : path or sequence of paths
        Files to read, as in `read_predictions`.

    output : path
        A file, or a directory. A path is a directory if one exists there or if it ends in "/". A
        directory gets one result for each file that is read. Results of an earlier run are kept if
        their source has not changed.

    rejected : {"calibrated", "uniform"} or None, default=None
        Probabilities of rejected rows: calibrated too, or 1/K in every class as in the paper. None
        is "calibrated", and "uniform" for the rules of `metacal.paper`.

    output_format : str, optional
        Format of the output, such as "parquet" or "csv", if its name does not determine it.

    n_jobs : int, optional
        Number of threads.

    executor : concurrent.futures.Executor or distributed.Client, optional
        Pool of processes or Dask client that processes the files, if the output is a directory.
        Workers read and write the files themselves, under the same names. The executor does not
        affect the results.

    prune : bool, default=False
        Whether to remove results in the directory whose source no longer exists. Results that were
        edited are not removed.

    say : callable, optional
        Called with a message for each result that is kept.

    **read_options
        Other parameters of `read_predictions`, such as `logits_key`, `id_key` and `format`. By
        default, the results have every column of the source except the table (`keep=None`), unless
        the table stays in its file. `Applied.left_out` lists the others.

    Returns
    -------
    Applied

    Raises
    ------
    InputError
        If the sources cannot be read or the output cannot be written.

    See Also
    --------
    read_predictions : Read predictions from a file.
    load_gate : Load a saved gate as a frozen value.
    BatchGate : Apply a saved gate to batches of a data engine.

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
    # An invalid executor is rejected before anything is written.
    uses_remote_workers = is_remote(executor)
    if isinstance(gate, BatchGate):
        batch_gate = gate
    else:
        batch_gate = BatchGate(gate, group_key=read_options.get("group_key"))
    if rejected is None:
        rejected = batch_gate.rejected
    applier = FileApplier(
        batch_gate=batch_gate,
        # By default, `keep=None` copies every column of the source to the results.
        read_options={"keep": None, **read_options},
        rejected=rejected,
        output_format=output_format,
        n_jobs=n_jobs,
    )
    output_path = os.fspath(output)
    is_directory = output_path.endswith(("/", os.sep)) or os.path.isdir(output_path)
    if is_directory:
        return _apply_to_folder(
            applier, source, output_path, executor=executor, prune=prune, notify=say
        )
    if prune:
        raise FileWriteError(
            f"prune requires a folder of results, but {output_path} is a file. Leave out prune,"
            " or pass a folder."
        )
    if uses_remote_workers:
        raise FileWriteError(
            f"Workers write one result per file into a folder, but {output_path} is not the name"
            " of a folder. End the name with a slash."
        )
    return applier.write(source, output_path)


@dataclass(frozen=True)
class FileApplier:
    """Picklable function that applies a gate to one file.

    Attributes
    ----------
    batch_gate : BatchGate
        Gate to apply.

    read_options : mapping
        Parameters of `read_predictions`.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    output_format : str or None
        Format of the output if its name does not determine it.

    n_jobs : int or None
        Number of threads.
    """

    batch_gate: BatchGate
    read_options: Mapping[str, Any]
    rejected: Rejected
    output_format: str | None = None
    n_jobs: int | None = None

    def __call__(self, source: str, target: str) -> WrittenResult:
        """Write the result of a source to a temporary file beside `target`."""
        # The name is unique because an abandoned worker may still be writing the same result.
        temporary_path = build_temporary_path(target)

        def write_result() -> Applied:
            try:
                return self.write(source, target, temporary_path)
            except NoRowsError:
                return Applied(n_rows=0, n_accepted=0)

        summary, source_fingerprint = read_until_unchanged(source, write_result)
        return WrittenResult(
            source_fingerprint=source_fingerprint,
            temporary_path=temporary_path if summary.n_rows else None,
            n_rows=summary.n_rows,
            n_accepted=summary.n_accepted,
        )

    def write(self, source: Any, target: str, temporary_path: str | None = None) -> Applied:
        """Read predictions, apply the gate, and write its decisions to a file.

        The file is `target`, or a temporary file that will be renamed to `target`.
        """
        gate = self.batch_gate.gate
        with delete_downloads_after_use():
            predictions = read_for_gate(gate, self.batch_gate.name, source, **self.read_options)
            # All rows are checked here, but converted only when their decisions are written.
            validated_table = gate.source.read(predictions.table, convert_lazily=True)
            return write_decisions(
                gate,
                predictions,
                target,
                self.output_format,
                tables=(validated_table,),
                rejected=self.rejected,
                n_jobs=self.n_jobs,
                temporary_path=temporary_path,
            )

    def describe_settings(self) -> dict[str, Any]:
        """Return the settings that determine the results, apart from their sources."""
        non_default_options = {}
        for name, value in sorted(self.read_options.items()):
            # An empty `keep` is not the default, because it means that no column is kept.
            is_default = value is None or (value == () and name != "keep")
            if not is_default:
                non_default_options[name] = repr(value)
        return {
            "rejected": self.rejected,
            "reading": non_default_options,
            "artifact": f"sha256:{self.batch_gate.fingerprint}",
        }


def _apply_to_folder(
    applier: FileApplier,
    source: Paths,
    folder: str,
    *,
    executor: ExecutorLike | None,
    prune: bool,
    notify: Callable[[str], object],
) -> Applied:
    """Write the missing and outdated results of a directory.

    Parameters
    ----------
    applier : FileApplier
        Writes one result.

    source : path or sequence of paths
        Files to read.

    folder : str
        Directory of the results. It is created if it does not exist.

    executor : executor or None
        Where the files are processed.

    prune : bool
        Whether to remove results whose source no longer exists.

    notify : callable
        Called with a message for each result that is kept.

    Returns
    -------
    Applied
    """
    sources = list_input_files(source, FORMATS)
    suffix = choose_suffix(applier.output_format, sources[0])
    check_results_are_not_read(source, sources, folder, suffix)
    make_folder(folder)
    settings = {**applier.describe_settings(), "format": suffix}
    with ResultFolder(folder, settings) as results:
        result_names = results.choose_names(sources, suffix)
        source_of_result = dict(zip(result_names, sources, strict=True))

        def write_results(
            sources_and_targets: Sequence[SourceAndTarget],
        ) -> Iterator[tuple[SourceAndTarget, WrittenResult]]:
            return _write_temporary_results(applier, sources_and_targets, executor)

        return make_missing_results(
            results, source_of_result, write_results, prune=prune, notify=notify
        )


def make_missing_results(
    results: ResultFolder,
    source_of_result: Mapping[str, str],
    write_results: ResultsWriter,
    *,
    prune: bool,
    notify: Callable[[str], object],
) -> Applied:
    """Compute and record the results that are missing in a directory.

    Parameters
    ----------
    results : ResultFolder
        Open directory.

    source_of_result : mapping of str to str
        Name and source of each result.

    write_results : callable
        Writes the missing results to temporary files.

    prune : bool
        Whether to remove results whose source no longer exists.

    notify : callable
        Called with a message for each result that is kept.

    Returns
    -------
    Applied

    Raises
    ------
    NoRowsError
        If no source has rows.
    """
    results.remove_leftovers(source_of_result)
    records = _find_current_records(results, source_of_result)
    names_with_rows = [name for name, record in records.items() if record["n_rows"]]
    for name in names_with_rows:
        notify(f"{name} is finished; it is kept.")

    missing_names = [name for name in source_of_result if name not in records]
    # Check for foreign files before computing results, so that no work is lost.
    results.check_no_foreign_files(missing_names)
    missing_results = []
    for name in missing_names:
        missing_results.append((source_of_result[name], os.path.join(results.folder, name)))
    try:
        for (source, target), written_result in write_results(missing_results):
            name = os.path.basename(target)
            records[name] = results.record_and_move(
                name,
                source,
                written_result.source_fingerprint,
                written_result.temporary_path,
                counts={"n_rows": written_result.n_rows, "n_accepted": written_result.n_accepted},
            )
    finally:
        results.remove_leftovers(source_of_result)

    counts = _summarize_records(records, source_of_result)
    orphans = results.find_orphans(source_of_result)
    if prune:
        results.prune(orphans.unchanged)
    return replace(
        counts,
        n_kept=len(names_with_rows),
        orphans=tuple(orphans.unchanged),
        pruned=prune,
        edited=tuple(orphans.edited),
    )


def _find_current_records(
    results: ResultFolder, source_of_result: Mapping[str, str]
) -> dict[str, Record]:
    """Return the records of the results that are up to date, keyed by name."""
    records = {}
    for name, source in source_of_result.items():
        current_record = results.find_current_record(name, source)
        if current_record is not None:
            records[name] = current_record
    return records


def _summarize_records(
    records: Mapping[str, Record], source_of_result: Mapping[str, str]
) -> Applied:
    """Add up the counts of all results. Raise NoRowsError if no source has rows."""
    nonempty_records = [record for record in records.values() if record["n_rows"]]
    if not nonempty_records:
        first_source = next(iter(source_of_result.values()))
        raise NoRowsError(
            f"{first_source}: neither this file nor any other file has rows. At least one row is"
            " required."
        )
    n_accepted = None
    is_calibrator = nonempty_records[0]["n_accepted"] is None
    if not is_calibrator:
        n_accepted = sum(record["n_accepted"] for record in nonempty_records)
    empty_sources = []
    for name, source in source_of_result.items():
        if not records[name]["n_rows"]:
            empty_sources.append(source)
    return Applied(
        n_rows=sum(record["n_rows"] for record in nonempty_records),
        n_accepted=n_accepted,
        n_files=len(nonempty_records),
        empty=tuple(empty_sources),
    )


def _get_source(source_and_target: SourceAndTarget) -> str:
    """Return the path of a source file, for error messages."""
    return str(source_and_target[0])


def _write_temporary_results(
    applier: FileApplier,
    sources_and_targets: Sequence[SourceAndTarget],
    executor: ExecutorLike | None,
) -> Iterator[tuple[SourceAndTarget, WrittenResult]]:
    """Write results to temporary files, in this process or by workers."""
    pool = resolve_executor(executor)
    if pool is None or not is_remote(pool):
        yield from zip(sources_and_targets, starmap(applier, sources_and_targets))
        return
    worker_applier = replace(applier, n_jobs=1)
    completed_calls = run_as_completed(
        pool, worker_applier, sources_and_targets, _MAX_PENDING_FILES, describe_piece=_get_source
    )
    for (source, target), written_result in completed_calls:
        report_finished_rows(written_result.n_rows)
        yield (source, target), written_result
