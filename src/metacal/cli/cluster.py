"""Option --executor: run the work on blocks of a table on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from metacal.cli.options import option
from metacal.cli.values import bad_option
from metacal.errors import InputError, needs_extra


def _check_executor(
    ctx: click.Context, parameter: click.Parameter, where: str | None
) -> str | None:
    """Raise a usage error if the value is not the address of a cluster."""
    if where is None or where == "dask" or where.startswith("dask://"):
        return where
    raise bad_option(
        "--executor",
        f"{where!r} names no cluster; give dask, or dask://HOST:PORT, the address of a scheduler.",
    )


def executor_option() -> Any:
    """Return a field for --executor."""
    return option(
        "Work on a Dask cluster: dask://HOST:PORT, or dask for processes on this machine. Never"
        " changes the result.",
        "WHERE",
        callback=_check_executor,
    )


@contextmanager
def open_cluster(where: str | None, processes: int) -> Iterator[Any]:
    """Yield a client of a Dask cluster.

    Parameters
    ----------
    where : str or None
        Value of --executor: "dask://HOST:PORT" for a running cluster, "dask" for a local cluster
        that ends with this context, or None for no cluster.
    processes : int
        Number of processes of a local cluster. If it is not positive, one per core.

    Yields
    ------
    distributed.Client or None
    """
    if where is None:
        yield None
        return
    with needs_extra("--executor", "dask"):
        import distributed

    dask: Any = distributed
    if where == "dask":
        local_cluster = _start_local_cluster(dask, processes)
        with local_cluster, dask.Client(local_cluster, set_as_default=False) as client:
            yield client
    else:
        with _connect_to_scheduler(dask, where) as client:
            yield client


def _connect_to_scheduler(dask: Any, where: str) -> Any:
    """Connect to a running scheduler. Raise InputError if none answers."""
    address = f"tcp://{where.removeprefix('dask://')}"
    try:
        return dask.Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address} ({error}); is it running there?"
        ) from None


def _start_local_cluster(dask: Any, processes: int) -> Any:
    """Start a cluster of single-threaded processes on this machine."""
    from metacal.rows.executors import count_usable_cores

    return dask.LocalCluster(
        n_workers=processes if processes > 0 else count_usable_cores(),
        processes=True,
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=50,
    )
