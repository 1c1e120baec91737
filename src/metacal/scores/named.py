"""Computation of ranking scores for tables of logits.

A score is a function of one row of *uncalibrated* logits. It uses no label. This is why the
certificate and the base calibrator can share all calibration rows. A higher score means less
certain. Entropy is the paper's choice and the default.

**Scores are rounded** (`metacal.kernels.grid`). The functions in this module round the output of
the kernels, so that rows with mathematically equal scores are equal on every processor and in
every runtime. Everything that certifies, ranks, compares or reports uses the rounded scores.

**Unvalidated tables.** The values of a table may not have been validated yet. The kernel then
returns NaN for a row that is invalid or may contain finite masks. Only if there is such a row, the
table is validated in a separate pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError, NumberError, ShapeError
from metacal.formulas import Codes, Float
from metacal.kernels.grid import RELATIVE_GRID, Grid
from metacal.rows import Rows
from metacal.rows.strips import Columns
from metacal.scores.registry import NAMED as NAMED
from metacal.scores.registry import NamedScore
from metacal.scores.registry import register_score as register_score

#: Function that maps a block of logits (n_rows × n_classes) to one number per row.
Score = Callable[[NDArray[Any]], Float]


class CheckedScore:
    """Score function of the user, whose output is checked and rounded.

    Parameters
    ----------
    score : function
        Maps a block of logits to one number per row.
    """

    def __init__(self, score: Score) -> None:
        self.score = score
        self.grid = get_rounding_grid(score)

    def __call__(self, block: NDArray[Any]) -> Float:
        """Compute the rounded score of each row."""
        return self.grid.round(self.compute_unrounded(block))

    def compute_unrounded(self, block: NDArray[Any]) -> Float:
        """Compute and check the score of each row.

        Raises
        ------
        InputError
            If the function does not return one number per row.
        """
        scores = np.asarray(self.score(block), dtype=np.float64)
        if scores.shape != (len(block),):
            raise ShapeError(
                f"The score {get_score_name(self.score)!r} must return an array of shape"
                f" ({len(block)},), with one number per row, but it returned shape"
                f" {scores.shape}."
            )
        if np.isnan(scores).any():
            raise NumberError(
                f"The score {get_score_name(self.score)!r} must return a number for every row,"
                " but it returned NaN."
            )
        return scores


def resolve_score(score: str | Score) -> NamedScore | CheckedScore:
    """Look up a score by its name, or wrap a function as a checked score.

    Examples
    --------
    >>> resolve_score("margin")(np.array([[3.0, 1.0, 0.0]]))
    array([-2.])
    >>> resolve_score("entrpy")
    Traceback (most recent call last):
    metacal.errors.InputError: score must be one of 'entropy', 'max_probability', 'margin', ...
    """
    if isinstance(score, str):
        if score not in NAMED:
            known_names = ", ".join(map(repr, NAMED))
            raise InputError(
                f"score must be one of {known_names} or a callable, but got {score!r}."
            )
        return NAMED[score]
    if not callable(score):
        raise InputError(
            "score must be the name of a score, or a callable that reads a block of logits, but"
            f" got {type(score).__name__}."
        )
    if isinstance(score, NamedScore | CheckedScore):
        return score
    return CheckedScore(score)


def needs_logits(score: str | Score) -> bool:
    """Check whether a score is meaningless for probabilities."""
    return isinstance(score, str) and score in NAMED and NAMED[score].needs_logits


def get_score_name(score: str | Score) -> str:
    """Return the name of a score in certificates."""
    if isinstance(score, str):
        return score
    return getattr(score, "__name__", type(score).__name__)


def get_rounding_grid(score: str | Score) -> Grid:
    """Return the grid to which a score is rounded.

    A function can have an attribute `grid`; the default is the relative grid.
    """
    if isinstance(score, str):
        return NAMED[score].grid
    grid = getattr(score, "grid", RELATIVE_GRID)
    return grid if isinstance(grid, Grid) else RELATIVE_GRID


class ScoreAndCorrectness:
    """Kernel that computes the unrounded score and the correctness of each row.

    Parameters
    ----------
    score : str or function
        The score.

    Examples
    --------
    >>> ScoreAndCorrectness("margin")(np.array([[3.0, 1.0], [0.0, 2.0]]), np.array([0, 0]))
    array([[-2.,  1.], [-2.,  0.]])
    """

    def __init__(self, score: str | Score) -> None:
        self.compute_unrounded = resolve_score(score).compute_unrounded
        self.takes_whole_blocks = bool(getattr(self.compute_unrounded, "takes_whole_blocks", False))

    def __call__(self, block: NDArray[Any], labels: Codes, **kernel_options: Any) -> Float:
        """Compute both columns, in one pass if there is a kernel.

        Parameters
        ----------
        block : array of shape (n_rows, n_classes)
            Logits.

        labels : array of int of shape (n_rows,)
            Column index of the true class of each row.

        **kernel_options
            Options of the kernel, such as the positions of the rows that count.

        Returns
        -------
        array of shape (n_rows, 2)
            Score, and 1 if the largest logit is the true class, else 0.
        """
        score_and_correctness = np.empty((len(labels), 2))
        predictions = np.empty(len(labels), dtype=np.intp)
        score_and_correctness[:, 0] = compute_score_and_predictions(
            self.compute_unrounded, block, predictions_out=predictions, **kernel_options
        )
        score_and_correctness[:, 1] = predictions == labels
        return score_and_correctness


def compute_score_and_correctness(
    rows: Rows, score: str | Score, label_codes: Codes
) -> tuple[Rows, Any, Any]:
    """Compute score and correctness of every row in one pass, and validate the rows.

    If the table is on a device and the score is computed there, the results stay there.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    score : str or function
        The score.

    label_codes : array of int of shape (n_rows,)
        Column index of the true class of each row.

    Returns
    -------
    rows : Rows
        Validated rows.

    scores : array or tensor of shape (n_rows,)
        Rounded scores.

    is_correct : array or tensor of bool of shape (n_rows,)
        Whether the largest logit is the true class.

    Examples
    --------
    >>> rows = Rows(np.array([[3.0, 1.0], [0.0, 2.0]]))
    >>> compute_score_and_correctness(rows, "margin", np.array([0, 0]))[1:]
    (array([-2., -2.]), array([ True, False]))
    """
    score_kernel = resolve_score(score).compute_unrounded
    grid = get_rounding_grid(score)
    if rows.is_on_device and kernels.reads_tensors(score_kernel):
        return _compute_score_and_correctness_on_device(rows, score_kernel, grid, label_codes)
    if rows.gives_kernels_whole_blocks and isinstance(score_kernel, kernels.FormulaKernel):
        has_c_kernel = score_kernel.host_kernel is not None
        if has_c_kernel:
            return _compute_score_and_correctness_in_c(rows, score_kernel, grid, label_codes)
    validated_rows, score_and_correctness = score_and_validate_rows(
        rows, ScoreAndCorrectness(score), label_codes
    )
    unrounded_scores = score_and_correctness[:, 0]
    is_correct = score_and_correctness[:, 1] > 0.0
    return validated_rows, grid.round(unrounded_scores), is_correct


def _compute_score_and_correctness_on_device(
    rows: Rows, score_kernel: Callable[..., Any], grid: Grid, label_codes: Codes
) -> tuple[Rows, Any, Any]:
    """Compute score and correctness of every row on the device of the table.

    Parameters
    ----------
    rows, label_codes
        See `compute_score_and_correctness`.

    score_kernel : function
        Kernel of the score.

    grid : Grid
        Grid to which the score is rounded.

    Returns
    -------
    rows, scores, is_correct
        See `compute_score_and_correctness`.
    """
    device_kernels = kernels.device_kernels()

    def compute_rounded_columns(kernel: Callable[..., Any], rows_to_score: Rows) -> Columns:
        # The scores are checked last, because reading the result waits for the device.
        score_and_correctness: Any = rows_to_score.compute_column(
            kernel, label_codes, keep_on_device=True
        )
        unrounded_scores = score_and_correctness[:, 0].contiguous()
        scores = device_kernels.round_to_grid(unrounded_scores, grid)
        return scores, score_and_correctness[:, 1] > 0.0

    validated_rows, (scores, is_correct) = _run_validating_kernel(
        partial(device_kernels.score_and_correctness, score=score_kernel),
        rows,
        run_kernel=compute_rounded_columns,
    )
    return validated_rows, scores, is_correct


def _compute_score_and_correctness_in_c(
    rows: Rows, score_kernel: kernels.FormulaKernel, grid: Grid, label_codes: Codes
) -> tuple[Rows, Any, Any]:
    """Compute rounded score and correctness of every row with the C kernel.

    Parameters
    ----------
    rows, label_codes
        See `compute_score_and_correctness`.

    score_kernel : FormulaKernel
        Kernel of the score.

    grid : Grid
        Grid to which the score is rounded.

    Returns
    -------
    rows, scores, is_correct
        See `compute_score_and_correctness`.
    """
    formula_name = score_kernel.formula.__name__
    scores = np.empty(len(rows))
    is_correct = np.empty(len(rows), dtype=bool)

    def fill_both_columns(kernel: Callable[..., None], rows_to_score: Rows) -> Columns:
        rows_to_score.fill_columns(
            kernel, scores, is_correct, label_codes, allows_any_block_size=True
        )
        return scores, is_correct

    validated_rows, _ = _run_validating_kernel(
        partial(kernels.host_kernels.write_scores_and_correctness, score=formula_name, grid=grid),
        rows,
        run_kernel=fill_both_columns,
    )
    return validated_rows, scores, is_correct


def _run_validating_kernel(
    kernel: Callable[..., Any],
    rows: Rows,
    run_kernel: Callable[[Callable[..., Any], Rows], Columns],
) -> tuple[Rows, Columns]:
    """Compute the scores of rows and validate the rows, in one pass if possible.

    The kernel validates rows that have not been validated. If it finds an invalid row, the rows are
    validated and scored in further passes.

    Parameters
    ----------
    kernel : function
        Kernel of a score. With `is_unvalidated=True`, the score of an invalid row is NaN.

    rows : Rows
        Rows of logits.

    run_kernel : function
        Function of a kernel and rows that returns columns, the first of which has the scores.

    Returns
    -------
    rows : Rows
        Validated rows.

    columns : tuple of arrays or tensors
        Columns that `run_kernel` returned.
    """
    if rows.is_unvalidated:
        columns = run_kernel(partial(kernel, is_unvalidated=True), rows)
        scores = columns[0]
        # The minimum is NaN if any score is NaN.
        has_invalid_row = math.isnan(float(scores.min()))
        if not has_invalid_row:
            return rows.mark_as_validated(), columns
        rows = rows.as_validated()
    return rows, run_kernel(kernel, rows)


def compute_score_and_predictions(
    score_kernel: Any, block: NDArray[Any], predictions_out: Codes, **kernel_options: Any
) -> Float:
    """Return the unrounded scores of a block and write its predictions to an array.

    Parameters
    ----------
    score_kernel : function
        Kernel of the score.

    block : array of shape (n_rows, n_classes)
        Logits.

    predictions_out : array of int of shape (n_rows,)
        Output: column index of the largest logit of each row.

    **kernel_options
        Options of the kernel.

    Returns
    -------
    array of shape (n_rows,)
    """
    # Kernels that take whole blocks return the predictions in the same pass.
    kernel_computes_predictions = getattr(score_kernel, "takes_whole_blocks", False)
    is_writable_by_kernel = predictions_out.dtype == np.int64 and predictions_out.flags.c_contiguous
    if kernel_computes_predictions and is_writable_by_kernel:
        return score_kernel(block, predictions_out=predictions_out, **kernel_options)
    predictions_out[...] = kernels.predict_classes(block, **kernel_options)
    return score_kernel(block, **kernel_options)


def score_rows(rows: Rows, score: str | Score) -> Float:
    """Compute the rounded score of every row.

    The scores are rounded together, because rounding block by block would take more calls than
    arithmetic.
    """
    resolved_score = resolve_score(score)
    _, scores = score_and_validate_rows(rows, resolved_score.compute_unrounded)
    return np.asarray(kernels.round_to_grid(scores, resolved_score.grid))


def score_and_validate_rows(
    rows: Rows, score_block: Callable[..., Float], *columns: NDArray[Any]
) -> tuple[Rows, Float]:
    """Compute a score or another column of all rows, and validate the rows.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    score_block : function
        Function of a block of logits and of the corresponding entries of the columns.

    *columns : arrays with one entry per row
        Further arguments of the function.

    Returns
    -------
    rows : Rows
        Validated rows.

    values : array
        Values of the function.
    """
    kernel_can_validate_rows = kernels.can_pass_whole_blocks(score_block, rows.table)
    if not kernel_can_validate_rows:
        rows = rows.as_validated()

    def compute_scores(kernel: Callable[..., Float], rows_to_score: Rows) -> Columns:
        return (rows_to_score.compute_column(kernel, *columns),)

    validated_rows, (values,) = _run_validating_kernel(score_block, rows, run_kernel=compute_scores)
    return validated_rows, values
