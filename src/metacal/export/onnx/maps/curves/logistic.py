"""Logistic curves of each class's log-probabilities: what Platt scaling and beta calibration share."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.curves.onevsrest import combine, combine_two, second_column
from metacal.maps.curves.onevsrest import FARTHEST


def logistic(
    maths: Arithmetic, a: NDArray[Any], b: NDArray[Any], intercept: NDArray[Any], logits: str, n_classes: int
) -> str:
    """σ(a · log p - b · log(1 - p) + c) of each class; then divided by their sum."""
    log_p, minus_log_rest = _log_probabilities(maths, logits)
    if n_classes == 2:
        log_p, minus_log_rest = second_column(maths, log_p), second_column(maths, minus_log_rest)
    z = maths("Add", maths("Add", maths("Mul", log_p, a), maths("Mul", minus_log_rest, b)), intercept)
    if n_classes == 2:
        return combine_two(maths, maths.logistic(maths("Neg", z)), maths.logistic(z), logits)
    return combine(maths, maths.logistic(z), logits)


def _log_probabilities(maths: Arithmetic, logits: str) -> tuple[str, str]:
    """log p and -log(1 - p), without cancellation, at most 700 in size."""
    found = rowwise.tail(maths, logits)
    log_sum = maths.log1p(found.mass)
    log_p = maths("Max", maths("Sub", rowwise.gaps(maths, logits), log_sum), -FARTHEST)
    shares = maths("Div", found.weights, maths("Add", found.mass, 1.0))
    minus_log_rest = maths("Neg", maths.log1p(maths("Neg", shares)))
    of_winner = maths("Min", maths("Sub", log_sum, maths("Log", found.mass)), FARTHEST)
    return log_p, rowwise.replaced(maths, minus_log_rest, found.winner, of_winner)
