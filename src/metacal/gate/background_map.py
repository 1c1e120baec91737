"""Calibration map that is fitted while another thread ranks or hashes the calibration rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from metacal.formulas import Codes, Float
from metacal.maps.map import FitMap, Map
from metacal.promises.promise import Promise
from metacal.rows import Rows

# For fewer rows than this number, starting a thread takes longer than the task it would run.
MIN_ROWS_FOR_THREAD = 1 << 15


@dataclass(frozen=True, eq=False)
class BackgroundMap:
    """Calibration map that can be fitted before the promise is certified.

    Attributes
    ----------
    fit_map_on_rows : callable
        Function that fits the map on validated rows.
    """

    fit_map_on_rows: Callable[[Rows], Map]
    _future: Future[Map] = field(default_factory=Future)

    def fit_and_keep_result(self, rows: Rows) -> None:
        """Fit the calibration map on all rows, and store the map or the exception.

        An exception is not raised here, because an error of the promise must be raised first.
        """
        try:
            self._future.set_result(self.fit_map_on_rows(rows))
        except Exception as error:
            self._future.set_exception(error)

    @property
    def is_fitted(self) -> bool:
        """Whether the fit has finished, either successfully or with an exception."""
        return self._future.done()

    def get_result(self) -> Map:
        """Return the fitted map, or raise the exception that the fit raised."""
        return self._future.result()


def plan_background_map(
    rows: Rows,
    promise: Promise,
    fit_map: FitMap,
    labels: Codes | None,
    weights: Float | None,
) -> BackgroundMap | None:
    """Prepare to fit the calibration map while another thread processes the rows.

    Parameters
    ----------
    rows : Rows
        Logits.

    promise : Promise
        Promise to certify.

    fit_map : callable
        Function that fits the map on rows, labels and weights.

    labels : array of int of shape (n_rows,) or None
        Column of the true class of each row.

    weights : array of float of shape (n_rows,) or None
        Weight of each row.

    Returns
    -------
    BackgroundMap or None
        None if there is only one thread and no device, or if the map may not be fitted on all rows.
    """
    if labels is None or len(rows) < MIN_ROWS_FOR_THREAD:
        return None
    # If a device fits the map, the processor is free for a thread that ranks or hashes the rows.
    has_thread_pool = isinstance(rows.executor, ThreadPoolExecutor)
    can_fit_while_ranking = has_thread_pool or rows.is_on_device
    if not can_fit_while_ranking:
        return None
    # On a device, the map is fitted on all rows, including rows whose label is not a class.
    excludes_unknown_labels = not rows.is_on_device and bool((labels < 0).any())
    if excludes_unknown_labels or _may_exclude_training_rows(promise):
        return None
    return BackgroundMap(lambda validated_rows: fit_map(validated_rows, labels, weights))


def _may_exclude_training_rows(promise: Promise) -> bool:
    """Check whether a promise may exclude rows from fitting the calibration map.

    By default, a promise allows all rows. A subclass excludes rows by overriding a method.
    """
    promise_class = type(promise)
    overrides_row_split = promise_class.split_rows is not Promise.split_rows
    overrides_training_rows = (
        promise_class.select_map_training_rows is not Promise.select_map_training_rows
    )
    return overrides_row_split or overrides_training_rows
