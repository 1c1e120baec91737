"""Submission of pieces of work to an executor, in order or as they finish.

A *piece* is a tuple of arguments of the task, usually a description of rows and not their values. If
a worker is lost, a cluster gives its piece to another worker (a pool of processes does not). If a
piece cannot be finished, the error names its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from queue import SimpleQueue
from typing import Any

from metacal.errors import InputError, WorkersError

Piece = tuple[Any, ...]
Pieces = Iterable[Piece]
#: Function of the entries of a piece.
Task = Callable[..., Any]
#: Function that returns the name of a piece in messages: its file or files.
PieceDescriber = Callable[[Piece], str]

#: Largest number of characters that a message quotes from the error of an executor.
_MAX_REASON_LENGTH = 160
#: Largest number of file names in a message.
_MAX_NAMES = 3


class NoWorkersError(BrokenExecutor):
    """Error of a cluster without workers, without a scheduler, or without metacal."""


class _SubmittedPieces:
    """Pieces of work that an executor has not finished, or whose results are pending.

    Parameters
    ----------
    executor : Executor
        Executor of the tasks.

    task : callable
        Function of the entries of a piece.

    pieces : iterable of tuples
        Pieces to submit.

    max_running : int
        Largest number of pieces at work at a time.

    max_pending : int
        Largest number of pieces at work or finished but not yielded.
    """

    def __init__(
        self, executor: Executor, task: Task, pieces: Pieces, max_running: int, max_pending: int
    ) -> None:
        self.executor = executor
        self.task = task
        self.remaining_pieces = iter(pieces)
        self.max_running = max_running
        self.max_pending = max_pending
        #: Pending pieces, keyed by their futures in the order of submission.
        self.piece_of_future: dict[Future[Any], Piece] = {}
        self.running_futures: set[Future[Any]] = set()
        self._completion_signals: SimpleQueue[None] = SimpleQueue()

    def submit_more(self) -> None:
        """Submit remaining pieces until one of the limits is reached."""
        while (
            len(self.running_futures) < self.max_running
            and len(self.piece_of_future) < self.max_pending
        ):
            piece = next(self.remaining_pieces, None)
            if piece is None:
                return
            future = self.executor.submit(self.task, *piece)
            self.piece_of_future[future] = piece
            self.running_futures.add(future)
            future.add_done_callback(self._signal_completion)

    def _signal_completion(self, future: Future[Any]) -> None:
        """Count a future as finished. This may be called in another thread."""
        self.running_futures.discard(future)
        self._completion_signals.put(None)

    @property
    def has_pending_pieces(self) -> bool:
        """Whether any submitted piece of work is running or not yet removed."""
        return bool(self.piece_of_future)

    def wait_for_any_completion(self) -> None:
        """Wait until a piece is finished, so that another one may be submitted."""
        self._completion_signals.get()

    def find_finished(self, *, in_order: bool) -> Future[Any] | None:
        """Return a finished future, or None if there is none."""
        candidates = list(self.piece_of_future)
        if in_order:
            candidates = candidates[:1]
        return next((future for future in candidates if future.done()), None)

    def remove(self, finished_future: Future[Any]) -> Piece:
        """Remove a finished future, and return its piece of work."""
        self.running_futures.discard(finished_future)
        return self.piece_of_future.pop(finished_future)

    def cancel_all(self) -> None:
        """Cancel the pending pieces."""
        for future in self.piece_of_future:
            future.cancel()


def run_in_order(
    executor: Executor,
    task: Task,
    pieces: Pieces,
    max_running: int,
    *,
    max_pending: int = 0,
    describe_piece: PieceDescriber | None = None,
) -> Iterator[Any]:
    """Yield the result of a task for every piece of work, in the order of the pieces.

    Parameters
    ----------
    executor : Executor
        Executor of the tasks.

    task : callable
        Function of the entries of a piece.

    pieces : iterable of tuples
        The pieces.

    max_running : int
        Largest number of pieces at work at a time.

    max_pending : int, default=0
        Largest number of pieces at work or waiting for a slow earlier piece, at least `max_running`.

    describe_piece : callable, default=None
        Function that returns the name of a piece in messages.

    Yields
    ------
    object

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(run_in_order(pool, pow, ((2, n) for n in range(5)), max_running=3))
    [1, 2, 4, 8, 16]
    """
    submitted_pieces = _SubmittedPieces(
        executor, task, pieces, max_running, max_pending=max(max_pending, max_running)
    )
    pieces_and_results = _iterate_results(submitted_pieces, describe_piece, in_order=True)
    return (result for _, result in pieces_and_results)


def run_as_completed(
    executor: Executor,
    task: Task,
    pieces: Pieces,
    max_running: int,
    *,
    describe_piece: PieceDescriber | None = None,
) -> Iterator[tuple[Piece, Any]]:
    """Yield pieces of work with their results, each as soon as it is finished.

    When the iterator is closed, the pending pieces are cancelled.

    Parameters
    ----------
    executor, task, pieces, max_running, describe_piece
        As in `run_in_order`.

    Yields
    ------
    piece, result : tuple, object

    Raises
    ------
    InputError
        If the workers of a piece were lost. The message has the name of the piece.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     sorted(run_as_completed(pool, pow, ((2, n) for n in range(3)), max_running=2))
    [((2, 0), 1), ((2, 1), 2), ((2, 2), 4)]
    """
    submitted_pieces = _SubmittedPieces(
        executor, task, pieces, max_running, max_pending=max_running
    )
    return _iterate_results(submitted_pieces, describe_piece, in_order=False)


def _iterate_results(
    submitted_pieces: _SubmittedPieces, describe_piece: PieceDescriber | None, *, in_order: bool
) -> Iterator[tuple[Piece, Any]]:
    """Submit all pieces, and yield each with its result, in order or as they finish."""
    try:
        while True:
            submitted_pieces.submit_more()
            if not submitted_pieces.has_pending_pieces:
                return
            finished_future = submitted_pieces.find_finished(in_order=in_order)
            if finished_future is None:
                submitted_pieces.wait_for_any_completion()
                continue
            piece = submitted_pieces.remove(finished_future)
            try:
                result = finished_future.result()
            except (MemoryError, BrokenExecutor, CancelledError) as error:
                raise _build_lost_piece_error(error, piece, describe_piece) from error
            yield piece, result
    finally:
        submitted_pieces.cancel_all()


def _build_lost_piece_error(
    error: BaseException, piece: Piece, describe_piece: PieceDescriber | None
) -> InputError:
    """Build the error about a piece whose workers were lost."""
    prefix = "" if describe_piece is None else f"{describe_piece(piece)}: "
    if isinstance(error, MemoryError):
        return WorkersError(
            f"{prefix}A worker has too little memory for these rows. Give the workers more"
            " memory, or use fewer threads."
        )
    if isinstance(error, NoWorkersError):
        return WorkersError(
            f"{prefix}{error}. Start the cluster with the same version of metacal, and call again."
        )
    first_sentence = " ".join(str(error).split()).partition(". ")[0]
    reason = first_sentence[:_MAX_REASON_LENGTH].rstrip(" .;") or type(error).__name__
    return WorkersError(
        f"{prefix}The workers with these rows were lost ({reason}). Check the logs of the"
        " workers, and give them more memory."
    )


def describe_table_files(table: Any) -> str:
    """Return the names of the files of a table as text, "" for a table in memory."""
    source_names = list(dict.fromkeys(_iterate_source_names(table)))
    source_text = ", ".join(source_names[:_MAX_NAMES])
    if len(source_names) > _MAX_NAMES:
        source_text += f" and {len(source_names) - _MAX_NAMES} more files"
    return source_text


def _iterate_source_names(table: Any) -> Iterator[str]:
    """Yield the names of the files of a table, found in its attributes."""
    is_joined_table = hasattr(table, "names") and hasattr(table, "tables")
    if is_joined_table:
        yield from table.names
        return
    for attribute in ("display_path", "path", "name"):
        name = getattr(table, attribute, None)
        if isinstance(name, str):
            yield name
            return
    # A table that converts or selects rows of another table has that table's file names.
    for attribute in ("source", "file", "table"):
        inner_table = getattr(table, attribute, None)
        if inner_table is not None:
            yield from _iterate_source_names(inner_table)
            return


def describe_table_of_piece(piece: tuple[Any, ...]) -> str:
    """Return the names of the files of the table that a piece belongs to, for messages."""
    return describe_table_files(piece[0].table) or "rows in memory"
