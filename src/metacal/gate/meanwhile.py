"""The base map, fitted while another thread ranks the rows: where it has all rows anyway, neither waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.maps.map import FitMap, Map
from metacal.promises.promise import Promise
from metacal.rows import Rows

#: Fewer rows are ranked, or hashed, sooner than a thread is woken.
WORTH_A_THREAD = 1 << 15


class Meanwhile:
    """Fits the base map once it is called; what that gives, or raises, is told when it is asked for."""

    def __init__(self, fit_map: FitMap, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> None:
        self.fit_map, self.codes, self.weights = fit_map, codes, weights
        self.fitted: Map | None = None
        self.error: Exception | None = None

    def __call__(self, rows: Rows) -> None:
        """Fit on all rows."""
        try:
            self.fitted = self.fit_map(rows, self.codes, self.weights)
        except Exception as error:  # what is wrong with the promise comes first
            self.error = error

    def told(self) -> Map | None:
        """The map, or the error that there was; None where nothing was fitted."""
        if self.error is not None:
            raise self.error
        return self.fitted


def meanwhile(rows: Rows, promise: Promise, fit_map: FitMap, codes: NDArray[np.intp], weights: Any) -> Meanwhile | None:
    """What fits the base map while rows are ranked; None where it may not get all of them, or there is one thread."""
    threads = isinstance(rows.executor, ThreadPoolExecutor) and len(rows) >= WORTH_A_THREAD
    if not threads or not isinstance(promise, Promise) or not (codes >= 0).all():
        return None
    kind = type(promise)
    usual = kind.split is Promise.split and kind.for_base is Promise.for_base
    return Meanwhile(fit_map, codes, weights) if usual else None
