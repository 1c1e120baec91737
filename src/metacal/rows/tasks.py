"""Pieces of work on an executor: so many under way at a time, and what to say when a worker is lost.

Pieces are descriptions. Whoever works on one may vanish: a cluster then gives it to another worker (a pool of processes
does not), and what cannot be done at all ends in one error that names the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from queue import SimpleQueue
from typing import Any

from metacal.errors import InputError

Piece = tuple[Any, ...]
#: What a piece is called in messages: its file, or files.
Place = Callable[[Piece], str]


class NoWorkersError(BrokenExecutor):
    """The cluster has no workers, is not there at all, or has no metacal."""


def in_order(
    executor: Executor,
    task: Callable[..., Any],
    pieces: Iterable[Piece],
    window: int,
    *,
    held: int | None = None,
    place: Place | None = None,
) -> Iterator[Any]:
    """task(*piece) for every piece, in order, with at most `window` pieces under way at a time.

    Answers that come before their turn are held, `held` pieces at most (those under way among them; `window` when
    None): so far the others go on while one is slow.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(in_order(pool, pow, ((2, n) for n in range(5)), window=3))
    [1, 2, 4, 8, 16]
    """
    for future, piece in _finished(executor, task, pieces, window, held or window, ordered=True):
        yield _answer(future, piece, place)


def as_they_come(
    executor: Executor, task: Callable[..., Any], pieces: Iterable[Piece], window: int, *, place: Place | None = None
) -> Iterator[tuple[Piece, Any]]:
    """Each piece and task(*piece), whichever is done first, with at most `window` pieces under way at a time.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     sorted(as_they_come(pool, pow, ((2, n) for n in range(3)), window=2))
    [((2, 0), 1), ((2, 1), 2), ((2, 2), 4)]
    """
    for future, piece in _finished(executor, task, pieces, window, window, ordered=False):
        yield piece, _answer(future, piece, place)


def _finished(
    executor: Executor, task: Callable[..., Any], pieces: Iterable[Piece], window: int, held: int, *, ordered: bool
) -> Iterator[tuple[Future[Any], Piece]]:
    """Every piece with its future, done; whatever is pending when nobody asks any more is cancelled."""
    pending: dict[Future[Any], Piece] = {}  # in the order of their submission
    at_work: set[Future[Any]] = set()
    ended: SimpleQueue[None] = SimpleQueue()

    def end(future: Future[Any]) -> None:
        at_work.discard(future)
        ended.put(None)

    source = iter(pieces)
    try:
        while True:
            while len(at_work) < window and len(pending) < held and (piece := next(source, None)) is not None:
                future = executor.submit(task, *piece)
                pending[future] = piece
                at_work.add(future)
                future.add_done_callback(end)
            if not pending:
                return
            turn = [next(iter(pending))] if ordered else pending
            done = next((future for future in turn if future.done()), None)
            if done is None:
                ended.get()
                continue
            at_work.discard(done)
            yield done, pending.pop(done)
    finally:
        for future in pending:
            future.cancel()


def _answer(future: Future[Any], piece: Piece, place: Place | None) -> Any:
    """What came back; where its worker was lost for good, an error that says which file it was at."""
    try:
        return future.result()
    except (MemoryError, BrokenExecutor, CancelledError) as error:
        raise _lost(error, piece, place) from error


def _lost(error: BaseException, piece: Piece, place: Place | None) -> InputError:
    where = f"{place(piece)}: " if place is not None else ""
    if isinstance(error, MemoryError):
        return InputError(f"{where}a worker has not enough memory for these rows; give workers more, or fewer threads.")
    if isinstance(error, NoWorkersError):
        return InputError(f"{where}{error}; start the cluster, with the same metacal as here, and run this again.")
    said = " ".join(str(error).split()).partition(". ")[0][:160].rstrip(" .;") or type(error).__name__
    return InputError(
        f"{where}the workers that had these rows were lost (killed, or out of memory?): {said}. Look at their logs; "
        "give them more memory."
    )


def sources_of(table: Any) -> str:
    """The files that a table's rows come from, in words; "" for a table in memory."""
    names = list(dict.fromkeys(_names(table)))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")


def _names(table: Any) -> Iterator[str]:
    if hasattr(table, "names") and hasattr(table, "tables"):
        yield from table.names
        return
    for name in ("shown", "path", "name"):
        if isinstance(found := getattr(table, name, None), str):
            yield found
            return
    for name in ("source", "file", "table"):
        if (inner := getattr(table, name, None)) is not None:
            yield from _names(inner)
            return
