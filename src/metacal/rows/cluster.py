"""Work on a Dask cluster: each piece is a description, submitted anew when whoever worked on it is
lost.

distributed's own executor (`Client.get_executor()`) asks a future for its status once more after it
has gathered the result. A worker that is killed in between makes that another status, and a good
result a `ValueError: too many values to unpack`. Here the client's futures are gathered directly,
and a status is only asked for after an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from metacal.errors import InputError, WrongTypeError
from metacal.rows.tasks import NoWorkersError

#: How often a piece is submitted anew. Dask itself gives one to four workers
#: (`distributed.scheduler.allowed-failures`) each time; that all were lost may be the fault of
#: another piece, whose neighbours are blamed with it.
RESUBMISSIONS = 2
#: How often Dask runs a piece again that raised an error on its worker: a disk may be back.
RETRIES = 3
#: Seconds without a worker after which the rest is given up, and between two looks.
PATIENCE, LOOK_EVERY = 60.0, 2.0


class _LostError(BrokenExecutor):
    """A piece was lost with its workers."""


class ClusterExecutor(Executor):
    """A Dask client as an executor: what a task returns or raises, however many workers are lost on
    the way.

    Parameters
    ----------
    client : distributed.Client
        Not one made with `asynchronous=True`.
    **options
        Of `Client.submit`: `retries`, `workers`, `resources`, `allow_other_workers`.
    """

    def __init__(self, client: Any, **options: Any) -> None:
        if client.asynchronous:
            raise WrongTypeError(
                "a Dask client made with asynchronous=True cannot be waited for; make one"
                " without it."
            )
        if client.status == "closed":
            raise InputError("the Dask client is closed; make another.")
        self._client, self._address = client, client.scheduler.address
        # A key of its own for each submission: Dask answers for a key that has failed with that
        # failure.
        self._options = {"retries": RETRIES, **options, "pure": False}
        self._under_way = 0
        self._watch: asyncio.Task[None] | None = None

    def submit(self, task: Callable[..., Any], /, *piece: Any) -> Future[Any]:  # type: ignore[override]
        """Start task(*piece) on a worker; the future ends in its result, its own error, or a
        BrokenExecutor.
        """
        try:
            first = self._client.submit(task, *piece, **self._options)
            return asyncio.run_coroutine_threadsafe(
                self._answer(first, task, piece), self._client.loop.asyncio_loop
            )
        except Exception:
            if not self._closed:
                raise
            answer: Future[Any] = Future()
            answer.set_exception(self._no_connection())
            return answer

    async def _answer(self, future: Any, task: Callable[..., Any], piece: tuple[Any, ...]) -> Any:
        self._under_way += 1
        watch = self._watch = self._watch or asyncio.create_task(self._no_workers())
        try:
            for resubmissions_left in reversed(range(RESUBMISSIONS + 1)):
                try:
                    return await self._gathered(future, watch)
                except _LostError as error:
                    if self._closed:
                        raise self._no_connection() from error
                    if not resubmissions_left:
                        raise
                future = self._client.submit(task, *piece, **self._options)
        finally:
            self._under_way -= 1
            if not self._under_way:
                watch.cancel()
                self._watch = None

    async def _gathered(self, future: Any, watch: asyncio.Task[None]) -> Any:
        """The result, or the task's own error; whatever else ends it is the cluster's, and a
        _LostError.
        """
        gather = asyncio.ensure_future(self._client.gather(future, asynchronous=True))
        try:
            # Nobody may cancel a gather: the client has one for many futures, other callers' among
            # them.
            await asyncio.wait({gather, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not gather.done():
                raise NoWorkersError(
                    f"no worker of the cluster at {self._address} has answered for {PATIENCE:g} s"
                )
        finally:
            if not gather.done():  # given up, by the caller or for want of workers
                gather.add_done_callback(_heard)
                await self._cancel(future)
        if not gather.cancelled() and (error := gather.exception()) is None:
            return gather.result()
        own = await future.exception(asynchronous=True) if future.status == "error" else None
        if str(own).startswith(
            "Error during deserialization"
        ):  # Dask has no type for it, and workers just leave
            raise NoWorkersError(
                f"the scheduler at {self._address} cannot read what it is sent"
            ) from own
        if (
            own is not None and type(own).__module__.partition(".")[0] != "distributed"
        ):  # that would be KilledWorker
            raise own
        lost = own or (asyncio.CancelledError() if gather.cancelled() else error)
        raise _LostError(str(lost) or type(lost).__name__) from lost

    @property
    def _closed(self) -> bool:
        """Whether the client is: by its owner, or by itself, after it has tried for a while to
        reach the scheduler.
        """
        return self._client.status in ("closing", "closed")

    def _no_connection(self) -> NoWorkersError:
        return NoWorkersError(f"the connection to the cluster at {self._address} is lost")

    async def _cancel(self, future: Any) -> None:
        with contextlib.suppress(Exception):  # there is nobody left to tell
            await asyncio.wait_for(self._client.cancel([future], asynchronous=True), LOOK_EVERY)

    async def _no_workers(self) -> None:
        """Wait until the cluster has had no worker for a while."""
        seen = time.monotonic()
        while time.monotonic() - seen < PATIENCE:
            await asyncio.sleep(min(LOOK_EVERY, PATIENCE))
            with contextlib.suppress(
                Exception
            ):  # a scheduler that does not answer has no workers to give
                if await asyncio.wait_for(self._client.nthreads(), PATIENCE):
                    seen = time.monotonic()


def _heard(gather: asyncio.Future[Any]) -> None:
    """Ask for the error of a gather that nobody waits for any more, or asyncio would log it."""
    if not gather.cancelled():
        gather.exception()
