"""Search for the gate in a fitted object."""

from __future__ import annotations

from typing import Any

from metacal.errors import MissingGateError, UnfittedError
from metacal.gate.gate import Gate


def find_gate(
    fitted: Any,
    needs: str = "This function requires a fitted gate, or an estimator that contains one",
) -> Gate:
    """Return the gate of a fitted estimator or pipeline, or the gate itself.

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
    if not _can_have_gate(fitted):
        received_type_name = fitted.__name__ if isinstance(fitted, type) else fitted_class.__name__
        raise UnfittedError(f"{needs}, but got {received_type_name}.")
    try:
        return find_gate(fitted.gate_, needs)
    except MissingGateError:
        # An estimator that was fitted without a promise raises this error itself.
        raise
    except AttributeError as error:
        # scikit-learn's NotFittedError is an AttributeError and a ValueError at the same time.
        is_not_fitted_error = isinstance(error, ValueError)
        has_gate_property = hasattr(fitted_class, "gate_")
        if has_gate_property and not is_not_fitted_error:
            raise UnfittedError(f"This {fitted_class.__name__} has no gate: {error}") from None
        raise UnfittedError(
            f"This {fitted_class.__name__} is not fitted. Call fit first."
        ) from None


def _can_have_gate(estimator: Any) -> bool:
    """Check whether an object has a gate, or will have one after `fit`.

    The class of an estimator has a property `gate_`, or a property `map_` that reads the attribute
    `gate_` of a fitted object. Properties of the class exist before `fit`.
    """
    estimator_class = type(estimator)
    has_gate_or_map_property = hasattr(estimator_class, "gate_") or hasattr(estimator_class, "map_")
    return has_gate_or_map_property or hasattr(estimator, "gate_")
