"""Comparison of calibrators for a report, if the user requests it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metacal.errors import CombinationError
from metacal.formulas import Codes
from metacal.rows.plausibility import skip_plausibility_checks
from metacal.spelling import choose_spelling


def compare_calibrators(
    requested: Any, tables: Sequence[Any], codes: Codes, **options: Any
) -> dict[str, Any] | None:
    """Compare calibrators by cross-validation, if the user requested it.

    Parameters
    ----------
    requested : bool, sequence of str, Comparison or None
        True for all calibrators, the names of some of them, or a finished comparison.

    tables : sequence of arrays
        Validated input of each stage of the gate.

    codes : array of int of shape (n_rows,)
        True classes.

    **options
        Keyword arguments of `metacal.compare`.

    Returns
    -------
    dict or None
        None if no comparison was requested.

    Raises
    ------
    InputError
        If the input is not one table of logits.
    """
    if requested is None or requested is False:
        return None
    # These modules import scikit-learn, which takes as long as the rest of a report.
    from metacal.estimators.compare import compare
    from metacal.estimators.comparison import Comparison

    if isinstance(requested, Comparison):
        return requested.to_dict()
    if len(tables) > 1 or tables[0].ndim < 2:
        option = choose_spelling("compare", "--compare")
        raise CombinationError(
            f"The comparison of calibrators requires one table of logits. Leave out {option}."
        )
    calibrator_names = None if requested is True else list(requested)
    # The rows must be in memory because the folds are drawn from them.
    logits = np.asarray(tables[0])
    # A table of log-probabilities would trigger a warning that it does not look like logits.
    with skip_plausibility_checks():
        return compare(logits, codes, calibrator_names, **options).to_dict()
