"""Option --executor: run the work on blocks of a table on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from metacal.cli.options import option
from metacal.cli.values import bad_option
from metacal.errors import WorkersError, needs_extra


def _check_executor(
    ctx: click.Context, parameter: click.Parameter, address: str | None
) -> str | None:
    """Raise a usage error if the value is not the address of a cluster."""
    if address is None or address == "dask" or address.startswith("dask://"):
        return address
    raise bad_option(
        "--executor",
        f"{address!r} is not the address of a cluster. Pass dask for processes on this machine,"
        " or dask://HOST:PORT for a running scheduler.",
    )


def executor_option() -> Any:
    """Return a field for --executor."""
    return option(
        "Run on a Dask cluster: dask://HOST:PORT, or dask for processes on this machine.",
        "WHERE",
        callback=_check_executor,
    )


@contextmanager
def open_cluster(address: str | None, n_processes: int) -> Iterator[Any]:
    """Yield a client of a Dask cluster.

    Parameters
    ----------
    address : str or None
        Value of --executor: "dask://HOST:PORT" for a running cluster, "dask" for a local cluster
        that ends with this context, or None for no cluster.
    n_processes : int
        Number of processes of a local cluster. If it is not positive, one per core.

    Yields
    ------
    distributed.Client or None
    """
    if address is None:
        yield None
        return
    with needs_extra("--executor", "dask"):
        import distributed

    dask: Any = distributed
    if address == "dask":
        local_cluster = _start_local_cluster(dask, n_processes)
        with local_cluster, dask.Client(local_cluster, set_as_default=False) as client:
            yield client
    else:
        with _connect_to_scheduler(dask, address) as client:
            yield client


def _connect_to_scheduler(dask: Any, address: str) -> Any:
    """Connect to a running scheduler, or raise InputError if none answers."""
    tcp_address = f"tcp://{address.removeprefix('dask://')}"
    try:
        return dask.Client(tcp_address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkersError(
            f"No Dask scheduler answers at {tcp_address}. Check the address, and start the"
            " scheduler."
        ) from error


def _start_local_cluster(dask: Any, n_processes: int) -> Any:
    """Start a cluster of single-threaded processes on this machine."""
    from metacal.rows.executors import count_usable_cores

    n_workers = n_processes if n_processes > 0 else count_usable_cores()
    return dask.LocalCluster(
        n_workers=n_workers,
        processes=True,
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=50,
    )
