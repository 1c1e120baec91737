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
    requested_comparison: Any, tables: Sequence[Any], label_codes: Codes, **options: Any
) -> dict[str, Any] | None:
    """Compare calibrators by cross-validation, or return None if not requested.

    Parameters
    ----------
    requested_comparison : bool, sequence of str, Comparison or None
        True for all calibrators, the names of some of them, or a finished comparison.

    tables : sequence of arrays
        Validated input of each stage of the gate.

    label_codes : array of int of shape (n_rows,)
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
    if requested_comparison is None or requested_comparison is False:
        return None
    # These modules import scikit-learn, which takes as long as the rest of a report.
    from metacal.estimators.compare import compare
    from metacal.estimators.comparison import Comparison

    if isinstance(requested_comparison, Comparison):
        return requested_comparison.to_dict()
    if len(tables) > 1 or tables[0].ndim < 2:
        option_text = choose_spelling("compare", "--compare")
        raise CombinationError(
            f"The comparison of calibrators requires one table of logits. Leave out {option_text}."
        )
    calibrator_names = None if requested_comparison is True else list(requested_comparison)
    # The rows must be in memory because the folds are drawn from them.
    logits = np.asarray(tables[0])
    # A table of log-probabilities would trigger a warning that it does not look like logits.
    with skip_plausibility_checks():
        return compare(logits, label_codes, calibrator_names, **options).to_dict()
