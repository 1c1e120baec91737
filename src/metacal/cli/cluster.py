"""--executor: where the blocks of a table are worked on, if not in threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from metacal.cli.options import option
from metacal.cli.values import bad_option
from metacal.errors import InputError, needs_extra


def _checked(ctx: click.Context, parameter: click.Parameter, where: str | None) -> str | None:
    """Refuse what names no cluster, before anything is read."""
    if where is not None and where != "dask" and not where.startswith("dask://"):
        known = "dask, or dask://HOST:PORT, the address of a scheduler"
        raise bad_option("--executor", f"{where!r} names no cluster; give {known}.")
    return where


def executor_option() -> Any:
    """A field for --executor."""
    return option(
        "Work on a Dask cluster: dask://HOST:PORT, or dask for processes on this machine. Never"
        " changes the result.",
        "WHERE",
        callback=_checked,
    )


@contextmanager
def open_cluster(where: str | None, processes: int) -> Iterator[Any]:
    """The client of a cluster that is running, or of one on this machine as long as this lasts;
    None for neither.
    """
    if where is None:
        yield None
        return
    with needs_extra("--executor", "dask"):
        import distributed
    from metacal.rows.executors import cores

    dask: Any = distributed

    if where != "dask":
        address = f"tcp://{where.removeprefix('dask://')}"
        try:
            client = dask.Client(address, timeout=10, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler answers at {address} ({error}); is it running there?"
            ) from None
        with client:
            yield client
        return
    options = {
        "processes": True,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "silence_logs": 50,
    }
    local = dask.LocalCluster(n_workers=processes if processes > 0 else cores(), **options)
    with local, dask.Client(local, set_as_default=False) as client:
        yield client
