"""What metacal does in each timing, called as its users call it: checks of the input included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.sizes import Size

#: Task -> what it is. The keys are those of the results.
TASKS = {
    "temperature": "temperature fit",
    "temperature_core": "temperature fit without checks of the input",
    "entropy": "entropy score",
    "max_miscoverage": "whole Meta-Cal fit, max miscoverage",
    "min_accuracy": "whole Meta-Cal fit, min accuracy",
    "ensemble": "ensemble temperature fit",
    "ece": "ECE from probabilities",
    "predict_proba": "predict_proba",
}
#: The promises of the whole Meta-Cal fits.
ALPHA, BETA = 0.05, 0.9
#: Tables with more elements are too large for tasks that need tables of probabilities beside them.
MOST_WITH_PROBABILITIES = 250_000_000


def tasks_of(size: Size) -> list[str]:
    """The tasks that are timed at a size.

    Examples
    --------
    >>> from benchmarks.speed.sizes import SIZES
    >>> tasks_of(SIZES["E"])
    ['temperature', 'temperature_core', 'entropy', 'max_miscoverage', 'min_accuracy']
    """
    small = size.elements <= MOST_WITH_PROBABILITIES
    return [task for task in TASKS if small or task not in ("ensemble", "ece", "predict_proba")]


def prepare(task: str, table: NDArray[Any], labels: NDArray[np.int64]) -> Callable[[], Any]:
    """The call to time, with what it needs made ready. Temperature fits answer T."""
    import metacal as mc

    promises: dict[str, Any] = {
        "max_miscoverage": mc.MaxMiscoverage(ALPHA),
        "min_accuracy": mc.MinAccuracy(BETA),
    }
    if task == "temperature":
        return lambda: mc.TemperatureScaling().fit(table, labels).temperature_
    if task == "temperature_core":
        from metacal.maps.temperature import fit_temperature

        return lambda: fit_temperature(mc.Rows(table), labels)
    if task == "entropy":
        return lambda: mc.scores.score_rows(mc.Rows(table), "entropy")
    if task in promises:
        return lambda: mc.MetaCal(promises[task]).fit(table, labels)
    if task == "ensemble":
        return lambda: mc.EnsembleTemperatureScaling(loss="sequential").fit(table, labels)
    if task == "ece":
        proba = mc.TemperatureScaling().fit(table, labels).predict_proba(table)
        return lambda: mc.metrics.ece(proba, labels)
    gate = mc.MetaCal(promises["max_miscoverage"]).fit(table, labels)
    return lambda: gate.predict_proba(table, rejected="uniform")


def reads(table: NDArray[Any]) -> dict[str, Callable[[], Any]]:
    """Plain reads of the table, of which the fastest is the unit: NumPy's vectorised sum and
    maximum.

    float16 is read through its bits as integers: arithmetic on it would measure the conversion, not
    the reading.
    """
    flat: NDArray[Any] = table.reshape(-1)
    if flat.dtype == np.float16:
        flat = flat.view(np.uint16)
        if flat.size % 4 == 0:
            return {"max": flat.max, "sum": flat.view(np.uint64).sum}
        return {"max": flat.max}
    return {"max": flat.max, "sum": partial(flat.sum, dtype=flat.dtype)}
