"""Execution of tasks on a Dask cluster, with resubmission if workers are lost.

`Client.get_executor()` of distributed requests the status of a future once more after it has
gathered the result. If a worker is killed in between, the status has changed, and a good result
becomes a `ValueError: too many values to unpack`. `ClusterExecutor` gathers the futures of the
client directly, and requests a status only after an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from metacal.errors import WorkersError, WrongTypeError
from metacal.rows.tasks import NoWorkersError

#: Number of times that a piece is submitted again after all of its workers were lost.
#: Dask tries up to four workers per submission (`distributed.scheduler.allowed-failures`).
#: A piece is submitted again because another piece on the same workers may have killed them.
RESUBMISSIONS = 2
#: Number of times that Dask repeats a piece after an error, for example a disk failure.
RETRIES = 3
#: Number of seconds without a worker after which the work fails.
PATIENCE = 60.0
#: Seconds between two requests for the workers.
_POLL_SECONDS = 2.0


class _LostError(BrokenExecutor):
    """Error for a piece of work that was lost together with its Dask workers."""


class ClusterExecutor(Executor):
    """Executor that runs tasks on a Dask cluster.

    A future ends in the result or the error of its task, even if workers are lost on the way.

    Parameters
    ----------
    client : distributed.Client
        A client that was not created with `asynchronous=True`.

    **options
        Options of `Client.submit`: `retries`, `workers`, `resources`, `allow_other_workers`.

    Raises
    ------
    WrongTypeError
        If the client is asynchronous.

    InputError
        If the client is closed.
    """

    def __init__(self, client: Any, **options: Any) -> None:
        if client.asynchronous:
            raise WrongTypeError(
                "metacal does not support a Dask client with asynchronous=True. Pass a client"
                " that was created without it."
            )
        if client.status == "closed":
            raise WorkersError("The Dask client is closed. Pass an open client.")
        self._client = client
        self._address = client.scheduler.address
        # With `pure=True`, Dask would return the old failure when a piece is submitted again.
        self._options = {"retries": RETRIES, **options, "pure": False}
        self._n_active = 0
        self._worker_watch: asyncio.Task[None] | None = None

    def submit(self, task: Callable[..., Any], /, *piece: Any) -> Future[Any]:  # type: ignore[override]
        """Submit a task and its arguments to the cluster.

        Returns
        -------
        Future
            It ends in the result of the task, the error of the task, or a BrokenExecutor.
        """
        try:
            dask_future = self._client.submit(task, *piece, **self._options)
            return asyncio.run_coroutine_threadsafe(
                self._gather_or_resubmit(dask_future, task, piece), self._client.loop.asyncio_loop
            )
        except Exception:
            if not self._is_closed:
                raise
            failed_future: Future[Any] = Future()
            failed_future.set_exception(self._build_connection_error())
            return failed_future

    async def _gather_or_resubmit(
        self, future: Any, task: Callable[..., Any], piece: tuple[Any, ...]
    ) -> Any:
        """Return the result of a piece, and submit the piece again if its workers are lost."""
        self._n_active += 1
        if self._worker_watch is None:
            self._worker_watch = asyncio.create_task(self._wait_until_no_workers())
        worker_watch = self._worker_watch
        try:
            for n_resubmissions_left in reversed(range(RESUBMISSIONS + 1)):
                try:
                    return await self._gather_result(future, worker_watch)
                except _LostError as error:
                    if self._is_closed:
                        raise self._build_connection_error() from error
                    if not n_resubmissions_left:
                        raise
                future = self._client.submit(task, *piece, **self._options)
        finally:
            self._n_active -= 1
            if not self._n_active:
                worker_watch.cancel()
                self._worker_watch = None

    async def _gather_result(self, future: Any, worker_watch: asyncio.Task[None]) -> Any:
        """Return the result of a future.

        Raises
        ------
        NoWorkersError
            If the cluster has no workers.

        _LostError
            If the future failed for another reason than an error of the task itself, which is
            raised as it is.
        """
        gather = asyncio.ensure_future(self._client.gather(future, asynchronous=True))
        try:
            # A gather must not be cancelled, because the client shares it between many futures.
            await asyncio.wait({gather, worker_watch}, return_when=asyncio.FIRST_COMPLETED)
            if not gather.done():
                raise NoWorkersError(
                    f"No worker of the cluster at {self._address} answered within {PATIENCE:g} s"
                )
        finally:
            # The future is still pending if the wait was cancelled or if there are no workers.
            if not gather.done():
                gather.add_done_callback(_retrieve_exception)
                await self._cancel(future)
        if gather.cancelled():
            gather_error: BaseException = asyncio.CancelledError()
        else:
            exception = gather.exception()
            if exception is None:
                return gather.result()
            gather_error = exception

        task_error = None
        if future.status == "error":
            task_error = await future.exception(asynchronous=True)
        # Dask has no exception type for this error, so its message is compared.
        if str(task_error).startswith("Error during deserialization"):
            raise NoWorkersError(
                f"The scheduler at {self._address} cannot read the data that it receives"
            ) from task_error
        # An error of distributed itself, such as KilledWorker, is not an error of the task.
        if task_error is not None and not _is_from_distributed(task_error):
            raise task_error
        lost_error = task_error or gather_error
        raise _LostError(str(lost_error) or type(lost_error).__name__) from lost_error

    @property
    def _is_closed(self) -> bool:
        """Whether the Dask client is closed."""
        return self._client.status in ("closing", "closed")

    def _build_connection_error(self) -> NoWorkersError:
        """Build the error about a lost connection."""
        return NoWorkersError(f"The connection to the cluster at {self._address} was lost")

    async def _cancel(self, future: Any) -> None:
        """Cancel a future; errors are ignored, because the scheduler may be lost."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._client.cancel([future], asynchronous=True), _POLL_SECONDS)

    async def _wait_until_no_workers(self) -> None:
        """Wait until the cluster has had no worker for `PATIENCE` seconds."""
        last_seen = time.monotonic()
        while time.monotonic() - last_seen < PATIENCE:
            await asyncio.sleep(min(_POLL_SECONDS, PATIENCE))
            # A scheduler that does not answer counts as one without workers.
            with contextlib.suppress(Exception):
                if await asyncio.wait_for(self._client.nthreads(), PATIENCE):
                    last_seen = time.monotonic()


def _is_from_distributed(error: BaseException) -> bool:
    """Check whether the class of an error is defined in the package distributed."""
    return type(error).__module__.partition(".")[0] == "distributed"


def _retrieve_exception(gather: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned gather, so that asyncio does not log it."""
    if not gather.cancelled():
        gather.exception()
