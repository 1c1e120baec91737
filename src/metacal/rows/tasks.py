"""Pieces of work on an executor: so many under way at a time, and what to say when a worker is
lost.

Pieces are descriptions. Whoever works on one may vanish: a cluster then gives it to another worker
(a pool of processes does not), and what cannot be done at all ends in one error that names the
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from queue import SimpleQueue
from typing import Any

from metacal.errors import InputError

Piece = tuple[Any, ...]
Pieces = Iterable[Piece]
#: What is done with the entries of a piece.
Task = Callable[..., Any]
#: What a piece is called in messages: its file, or files.
Place = Callable[[Piece], str]


class NoWorkersError(BrokenExecutor):
    """The cluster has no workers, is not there at all, or has no metacal."""


def in_order(
    executor: Executor,
    task: Task,
    pieces: Pieces,
    window: int,
    *,
    held: int = 0,
    place: Place | None = None,
) -> Iterator[Any]:
    """task(*piece) for every piece, in order, with at most `window` pieces under way at a time.

    Answers that come before their turn are held, `held` pieces at most (those under way among them;
    at least `window`): so far the others go on while one is slow.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(in_order(pool, pow, ((2, n) for n in range(5)), window=3))
    [1, 2, 4, 8, 16]
    """
    found = as_they_come(executor, task, pieces, window, place=place, held=max(held, window))
    return (answer for _, answer in found)


def as_they_come(
    executor: Executor,
    task: Task,
    pieces: Pieces,
    window: int,
    *,
    place: Place | None = None,
    held: int | None = None,
) -> Iterator[tuple[Piece, Any]]:
    """Each piece and task(*piece), whichever is done first, with at most `window` pieces under way
    at a time.

    With `held` they come in order, and no more than so many are pending. Where a worker was lost
    for good an error says which file it was at. Whatever is pending when nobody asks any more is
    cancelled.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     sorted(as_they_come(pool, pow, ((2, n) for n in range(3)), window=2))
    [((2, 0), 1), ((2, 1), 2), ((2, 2), 4)]
    """
    pending: dict[Future[Any], Piece] = {}  # in the order of their submission
    at_work: set[Future[Any]] = set()
    ended: SimpleQueue[None] = SimpleQueue()

    def end(future: Future[Any]) -> None:
        at_work.discard(future)
        ended.put(None)

    source, most = iter(pieces), window if held is None else held
    try:
        while True:
            while (
                len(at_work) < window
                and len(pending) < most
                and (piece := next(source, None)) is not None
            ):
                future = executor.submit(task, *piece)
                pending[future] = piece
                at_work.add(future)
                future.add_done_callback(end)
            if not pending:
                return
            turn = pending if held is None else [next(iter(pending))]
            done = next((future for future in turn if future.done()), None)
            if done is None:
                ended.get()
                continue
            at_work.discard(done)
            piece = pending.pop(done)
            try:
                answer = done.result()
            except (MemoryError, BrokenExecutor, CancelledError) as error:
                raise _lost(error, piece, place) from error
            yield piece, answer
    finally:
        for future in pending:
            future.cancel()


def _lost(error: BaseException, piece: Piece, place: Place | None) -> InputError:
    where = f"{place(piece)}: " if place is not None else ""
    if isinstance(error, MemoryError):
        return InputError(
            f"{where}a worker has not enough memory for these rows; give workers more, or fewer"
            " threads."
        )
    if isinstance(error, NoWorkersError):
        return InputError(
            f"{where}{error}; start the cluster, with the same metacal as here, and run this again."
        )
    said = (
        " ".join(str(error).split()).partition(". ")[0][:160].rstrip(" .;") or type(error).__name__
    )
    return InputError(
        f"{where}the workers that had these rows were lost (killed, or out of memory?): {said}."
        " Look at their logs; give them more memory."
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
