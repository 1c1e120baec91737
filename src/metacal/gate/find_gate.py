"""Search for the gate in a fitted object."""

from __future__ import annotations

from typing import Any

from metacal.errors import MissingGateError, UnfittedError
from metacal.gate.gate import Gate


def find_gate(
    fitted: Any,
    needs: str = "This function requires a fitted gate, or an estimator that contains one",
) -> Gate:
    """Find the gate in a gate, a fitted estimator or a scikit-learn pipeline.

    Parameters
    ----------
    fitted : object
        Object to search.
    needs : str
        Beginning of the error message if the object cannot contain a gate.

    Raises
    ------
    InputError
        If the object contains no gate, or is not fitted.
    """
    if isinstance(fitted, Gate):
        return fitted
    is_pipeline = hasattr(fitted, "steps")
    if is_pipeline:
        last_step = fitted[-1]
        return find_gate(last_step, needs)
    fitted_class = type(fitted)
    # A class of estimators has these attributes as properties, even before an object is fitted.
    is_estimator_of_gates = hasattr(fitted_class, "gate_")
    is_calibrator = hasattr(fitted_class, "map_")
    can_have_gate = is_estimator_of_gates or is_calibrator or hasattr(fitted, "gate_")
    if not can_have_gate:
        received_name = fitted.__name__ if isinstance(fitted, type) else fitted_class.__name__
        raise UnfittedError(f"{needs}, but got {received_name}.")
    try:
        return find_gate(fitted.gate_, needs)
    except MissingGateError:
        raise
    except AttributeError as error:
        # scikit-learn's NotFittedError is an AttributeError and a ValueError at the same time.
        is_not_fitted_error = isinstance(error, ValueError)
        if is_estimator_of_gates and not is_not_fitted_error:
            raise UnfittedError(f"This {fitted_class.__name__} has no gate: {error}") from None
        raise UnfittedError(
            f"This {fitted_class.__name__} is not fitted. Call fit first."
        ) from None
