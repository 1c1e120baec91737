"""BackgroundMap: a base map that is fitted while another thread ranks the rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from metacal.formulas import Codes
from metacal.maps.map import FitMap, Map
from metacal.promises.promise import Promise
from metacal.rows import Rows

# With fewer rows, waking a thread takes longer than ranking or hashing them.
WORTH_A_THREAD = 1 << 15


class BackgroundMap(NamedTuple):
    """Function that fits the base map, and the future of its result.

    Attributes
    ----------
    fit_map : callable
        Function that fits the map on rows.

    fitted : Future
        Fitted map, or the exception that fitting raised.
    """

    fit_map: Callable[[Rows], Map]
    fitted: Future[Map]

    def fit(self, rows: Rows) -> None:
        """Fit the map on all rows.

        An exception is stored, because an error of the promise must be raised first.
        """
        try:
            self.fitted.set_result(self.fit_map(rows))
        except Exception as error:
            self.fitted.set_exception(error)


def plan_background_map(
    rows: Rows, promise: Promise, fit_map: FitMap, codes: Codes | None, weights: Any
) -> BackgroundMap | None:
    """Plan to fit the base map while the rows are ranked.

    Returns
    -------
    BackgroundMap or None
        None if there is only one thread, or if the map may not be fitted on all rows.
    """
    has_threads = isinstance(rows.executor, ThreadPoolExecutor) and len(rows) >= WORTH_A_THREAD
    if not has_threads or codes is None or not (codes >= 0).all():
        return None
    shares_rows = type(promise).split is Promise.split
    if not shares_rows or type(promise).select_base_map_rows is not Promise.select_base_map_rows:
        return None
    return BackgroundMap(lambda own_rows: fit_map(own_rows, codes, weights), Future())
