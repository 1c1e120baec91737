"""Detection of tables that are probably not logits.

Nothing is corrected. A suspicious table leads to a warning, and the work goes on. At most 512 rows
are inspected, because a mistake in saving a table affects all of its rows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metacal.errors import warn_caller
from metacal.formulas import Float
from metacal.rows.arrays import to_numpy
from metacal.rows.executors import set_context_variable
from metacal.spelling import format_option

#: Largest number of rows and elements of a sample.
_MAX_SAMPLE_ROWS = 512
_MAX_SAMPLE_ELEMENTS = 1 << 16
#: Number of stretches of consecutive rows in a sample.
#: Only the blocks of a stored table that contain a stretch are read.
_N_STRETCHES = 4
#: Smallest number of rows that are tested for whole numbers and identical rows.
_MIN_ROWS = 20
#: Largest distance of the sum of a row of probabilities from 1, without rounding.
#: Each column adds to the distance up to a maximum, because entries may have only two digits.
_SUM_TOLERANCE = 0.01
_SUM_TOLERANCE_PER_COLUMN = 0.005
_MAX_ROUNDING_TOLERANCE = 0.05
#: Largest probability, with a margin for rounding.
_MAX_PROBABILITY = 1.0 + 1e-6
#: Smallest probability, with a margin for rounding.
_MIN_PROBABILITY = -1e-6
#: Largest log-probability, with a margin for rounding.
_MAX_LOG_PROBABILITY = 0.01
#: Log-probabilities have a floor if at least this fraction of the rows contains their smallest value.
_MIN_FRACTION_OF_ROWS_AT_FLOOR = 0.05
#: Largest distance from the smallest value of an entry that counts as equal to it.
_FLOOR_TOLERANCE = 1e-3

#: Possible suspicions about a table of logits.
Suspected = Literal[
    "probabilities", "one probability", "one-hot", "whole numbers", "alike", "floor"
]
_REMARKS: dict[Suspected, str] = {
    "probabilities": (
        "The rows are read as logits, but every row lies in [0, 1] and sums to one, as"
        " probabilities do. If they are probabilities, pass {probabilities}."
    ),
    "one probability": (
        "The scores are read as logits, but every score lies in [0, 1], as probabilities do. If"
        " they are probabilities, pass {probabilities}."
    ),
    "one-hot": (
        "Every row is a single 1 among zeros. These are decisions, which do not contain the"
        " confidence of the classifier. Pass its scores from before the argmax."
    ),
    "whole numbers": (
        "Every logit is a whole number, so many rows tie. Pass the scores from before rounding."
        " If they are counts of votes, divide each row by its sum and pass {probabilities}."
    ),
    "alike": (
        "All rows are alike, so they do not separate correct from incorrect predictions. Check"
        " how the table was made: the same row may have been saved again and again."
    ),
    "floor": (
        "The logits are log-probabilities with a floor: many rows share the lowest value,"
        " {lowest:.6g}. Pass logits, or logarithms that are not clipped (log_softmax), or the"
        " probabilities themselves with {probabilities}."
    ),
}


@dataclass(frozen=True)
class Suspicion:
    """Suspicion about a table of logits.

    Attributes
    ----------
    kind : str
        Kind of the suspicion.

    lowest : float or None
        Smallest value of log-probabilities with a floor.
    """

    kind: Suspected
    lowest: float | None = None

    @property
    def remark(self) -> str:
        """Text of the warning."""
        return _REMARKS[self.kind].format(
            lowest=self.lowest or 0.0, probabilities=format_option("input", "probabilities")
        )


def judge_sample(sample: NDArray[Any]) -> Suspicion | None:
    """Return the reason to suspect that a sample of rows is not logits, or None.

    Rows with NaN or +inf are not judged, because later checks reject them.

    Examples
    --------
    >>> judge_sample(np.array([[0.2, 0.8], [0.7, 0.3]])).kind
    'probabilities'
    >>> judge_sample(np.array([[2.5, 0.8], [-1.7, 0.3]])) is None
    True
    """
    largest = sample.max(initial=-np.inf)
    has_nan_or_inf = not largest < np.inf
    if not sample.size or has_nan_or_inf:
        return None
    has_enough_rows = len(sample) >= _MIN_ROWS
    if has_enough_rows and _are_rows_identical(sample):
        return Suspicion("alike")
    are_integers = _are_integers(sample)
    if largest <= _MAX_PROBABILITY and _do_rows_sum_to_one(sample):
        return Suspicion("one-hot" if are_integers else "probabilities")
    if are_integers and has_enough_rows:
        return Suspicion("whole numbers")
    if has_enough_rows and _is_one_probability(sample):
        return Suspicion("one probability")
    are_possible_log_probabilities = largest <= _MAX_LOG_PROBABILITY
    if has_enough_rows and are_possible_log_probabilities:
        return _detect_clipped_log_probabilities(sample)
    return None


def warn_if_implausible(table: Any, input: str = "logits") -> Suspicion | None:
    """Warn if a table of logits is suspicious, and return the suspicion."""
    if input != "logits" or _skips_checks.get():
        return None
    suspicion = find_suspicion_about_logits(table)
    if suspicion is not None:
        warn_caller(suspicion.remark)
    return suspicion


def find_suspicion_about_logits(table: Any) -> Suspicion | None:
    """Return the suspicion about a table of logits, or None.

    Two rows are enough to clear most tables. If they do not, a larger sample is inspected.
    """
    first_rows = _as_array(table[0:2])
    if len(first_rows) == 2 and _are_clearly_logits(first_rows):
        return None
    return judge_sample(draw_sample(table))


def skip_plausibility_checks() -> AbstractContextManager[None]:
    """Skip the inspection of tables inside the context.

    It is for tables that metacal computed (logarithms of probabilities) or inspected before.

    Examples
    --------
    >>> with skip_plausibility_checks():
    ...     print(warn_if_implausible(np.array([[0.2, 0.8], [0.7, 0.3]])))
    None
    """
    return set_context_variable(_skips_checks, True)


_skips_checks: ContextVar[bool] = ContextVar("metacal_unquestioned", default=False)


def draw_sample(table: Any) -> Float:
    """Return all rows of a short table, else stretches from its start, middle and end."""
    n_rows, n_columns = table.shape
    n_fitting_rows = _MAX_SAMPLE_ELEMENTS // max(1, n_columns)
    n_sampled = int(np.clip(n_fitting_rows, _MIN_ROWS, _MAX_SAMPLE_ROWS))
    if n_rows <= n_sampled:
        return _as_array(table[0:n_rows])
    rows_per_stretch = n_sampled // _N_STRETCHES
    last_start = n_rows - rows_per_stretch
    stretches = []
    for index in range(_N_STRETCHES):
        # The starts are spread evenly from row 0 to `last_start`.
        start = index * last_start // (_N_STRETCHES - 1)
        stretches.append(_as_array(table[start : start + rows_per_stretch]))
    return np.concatenate(stretches)


def _as_array(rows: Any) -> Float:
    """Convert rows to a float64 array on the host."""
    return np.asarray(to_numpy(rows), dtype=np.float64)


def _are_clearly_logits(rows: Float) -> bool:
    """Check whether rows differ and contain a fraction and a value above 1."""
    if not rows.max(initial=-np.inf) > _MAX_PROBABILITY:
        return False
    return not _are_integers(rows) and not _are_rows_identical(rows)


def _do_rows_sum_to_one(sample: Float) -> bool:
    """Check whether no value is negative and every row sums to 1, apart from rounding."""
    rounding = min(_SUM_TOLERANCE_PER_COLUMN * sample.shape[1], _MAX_ROUNDING_TOLERANCE)
    distances = np.abs(sample.sum(axis=1) - 1.0)
    is_close = (distances <= _SUM_TOLERANCE + rounding).all()
    return bool(sample.min() >= _MIN_PROBABILITY and is_close)


def _is_one_probability(sample: Float) -> bool:
    """Check whether one score per row, which was converted to [0, s], lies in [0, 1]."""
    if sample.shape[1] != 2 or sample[:, 0].any():
        return False
    scores = sample[:, 1]
    return bool(scores.min() >= _MIN_PROBABILITY and scores.max() <= _MAX_PROBABILITY)


def _are_integers(sample: Float) -> bool:
    """Check whether every value is a whole number or -inf, which marks a masked class."""
    # The first row is tested alone, because it suffices for most tables.
    is_first_row_whole = (sample[0] == np.rint(sample[0])).all()
    return bool(is_first_row_whole and (sample == np.rint(sample)).all())


def _are_rows_identical(sample: Float) -> bool:
    """Check whether all rows are equal."""
    return bool((sample[1] == sample[0]).all() and (sample == sample[0]).all())


def _detect_clipped_log_probabilities(sample: Float) -> Suspicion | None:
    """Detect logarithms of clipped probabilities.

    Their exponentials sum to 1, or slightly more because of the floor, and many rows reach the
    smallest value.
    """
    is_finite = sample > -np.inf
    smallest = float(sample.min(where=is_finite, initial=0.0))
    row_sums = np.exp(sample).sum(axis=1)
    # Clipping raises each of the probabilities by at most the smallest one.
    max_clipping_excess = sample.shape[1] * np.exp(smallest)
    max_row_sum = 1.0 + _SUM_TOLERANCE + max_clipping_excess
    if not ((row_sums >= 1.0 - _SUM_TOLERANCE) & (row_sums <= max_row_sum)).all():
        return None
    is_at_floor = is_finite & (sample <= smallest + _FLOOR_TOLERANCE)
    fraction_of_rows_at_floor = is_at_floor.any(axis=1).mean()
    if fraction_of_rows_at_floor < _MIN_FRACTION_OF_ROWS_AT_FLOOR:
        return None
    return Suspicion("floor", lowest=smallest)
