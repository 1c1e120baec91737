# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Triton kernel of calibrated probabilities and gate decisions."""

from __future__ import annotations

from metacal.kernels.triton import _join_floats, _load_tile, _locate_rows, jit, tl
from metacal.kernels.triton_scores import (
    _acceptance_code,
    _exp_relative_to_second,
    _score_from_sums,
)
from metacal.kernels.triton_sweep import summarise_rows, summarise_tile


@jit
def _curve_value(z, curve, N_PIECES: tl.constexpr):
    """Evaluate a curve from the array `columns.Curve.packed_pieces`."""
    # Two knots, one height and two slopes, then the left knot, the width, the left slope and half of
    # the change of the slope of each piece.
    first_knot = tl.load(curve)
    last_knot = tl.load(curve + 1)
    value = tl.load(curve + 2) + tl.load(curve + 3) * tl.minimum(z - first_knot, 0.0)
    value += tl.load(curve + 4) * tl.maximum(z - last_knot, 0.0)
    for piece in range(N_PIECES):
        piece_address = curve + 5 + 4 * piece
        distance = tl.maximum(z - tl.load(piece_address), 0.0)
        distance = tl.minimum(distance, tl.load(piece_address + 1))
        value += distance * (tl.load(piece_address + 2) + tl.load(piece_address + 3) * distance)
    return value


@jit
def _curve_factors(
    others_sum, second_exponential, n_possible, uniform_weight, curve, N_PIECES: tl.constexpr
):
    """Compute the factors of a map with a curve, as `columns.compute_curve_factors` does.

    `others_sum` is the sum of e^{b·(x - max x)} over the other classes, and `second_exponential` the
    largest of these terms.
    """
    MAX_EXPONENT: tl.constexpr = 700.0
    MIN_PREDICTION_RATIO: tl.constexpr = 1.000001
    uniform_p = 1.0 / n_possible
    softmax_factor = (1.0 - uniform_weight) / (1.0 + others_sum)
    mixed_others = softmax_factor * others_sum + uniform_weight * (1.0 - uniform_p)
    mixed_prediction = softmax_factor + uniform_weight * uniform_p
    mixed_second = softmax_factor * second_exponential + uniform_weight * uniform_p
    log_odds = tl.log(mixed_prediction) - tl.log(mixed_others)
    new_log_odds = _curve_value(log_odds, curve, N_PIECES)
    odds = tl.exp(-tl.minimum(tl.abs(new_log_odds), MAX_EXPONENT))
    larger_p = 1.0 / (1.0 + odds)
    smaller_p = odds * larger_p
    new_others = tl.where(new_log_odds > 0.0, smaller_p, larger_p)
    prediction_p = tl.where(new_log_odds > 0.0, larger_p, smaller_p)
    # The predicted class must have at least `min_ratio` times the probability of all other classes.
    min_ratio = MIN_PREDICTION_RATIO * mixed_second / mixed_others
    max_others = 1.0 / (1.0 + min_ratio)
    is_too_large = new_others > max_others
    prediction_p = tl.where(is_too_large, min_ratio * max_others, prediction_p)
    others_factor = tl.minimum(new_others, max_others) / mixed_others
    is_only_class = mixed_others == 0.0
    others_factor = tl.where(is_only_class, 0.0, others_factor)
    prediction_p = tl.where(is_only_class, 1.0, prediction_p)
    return softmax_factor * others_factor, uniform_weight * uniform_p * others_factor, prediction_p


@jit
def _row_factors(
    MAP: tl.constexpr, others_sum, second_exponential, n_possible, uniform_weight, curve, N_PIECES
):
    """Return the numbers of each row that turn exponentials into probabilities.

    Another class gets the probability e^{b·(x - max x)}·scale + shift.
    """
    if MAP == "curve":
        scale, shift, prediction_p = _curve_factors(
            others_sum, second_exponential, n_possible, uniform_weight, curve, N_PIECES
        )
    else:
        scale = (1.0 - uniform_weight) / (1.0 + others_sum)
        shift = uniform_weight / n_possible
        prediction_p = scale + shift
    return scale, shift, prediction_p


@jit
def _limit(p, smallest_p, largest_p):
    """Move probabilities into an interval; NaN remains NaN."""
    p = tl.maximum(p, smallest_p, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(p, largest_p, propagate_nan=tl.PropagateNan.ALL)


@jit
def _map_tile(
    x,
    largest,
    b_log2,
    is_prediction,
    scale,
    shift,
    prediction_p,
    next_smaller_p,
    smallest_p,
    largest_p,
    MAP: tl.constexpr,
):
    """Compute the probabilities of a tile from the factors and the limits of its rows."""
    p = tl.exp2((x - largest[:, None]) * b_log2) * scale[:, None]
    if MAP != "softmax":
        p += shift[:, None]
    if MAP != "curve":
        # Rounding must not tie the predicted class with a class whose logit is smaller.
        p = tl.minimum(p, next_smaller_p[:, None], propagate_nan=tl.PropagateNan.ALL)
        is_prediction = x == largest[:, None]
    p = _limit(p, smallest_p[:, None], largest_p[:, None])
    p = tl.where(x == float("-inf"), 0.0, p)
    return tl.where(is_prediction, prediction_p[:, None], p)


@jit
def _next_smaller(value, IS_DOUBLE: tl.constexpr):
    """Return the next smaller float of a positive float."""
    if IS_DOUBLE:
        result = (value.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
    else:
        result = (value.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    return result


@jit
def decision_kernel(
    table,
    out,
    scores,
    predictions,
    confidence,
    acceptance_codes,
    needs_inspection,
    curve,
    b_high,
    b_low,
    uniform_high,
    uniform_low,
    equal_high,
    equal_low,
    threshold_bits,
    largest_mask,
    stride_in_units,
    n_rows,
    classes_in_units,
    MAP: tl.constexpr,
    N_PIECES: tl.constexpr,
    SCORE: tl.constexpr,
    UNIFORM_ROWS: tl.constexpr,
    SMALLEST: tl.constexpr,
    LARGEST: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
    REPORTS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    UNIT_ELEMENTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write the probabilities of rows and, with a score, the decision on each row."""
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    LOG2_OF_E: tl.constexpr = 1.4426950408889634
    rows, row_mask, row_addresses, columns, n_classes = _locate_rows(
        table, stride_in_units, n_rows, classes_in_units, UNIT_ELEMENTS, TILE_ROWS, TILE_COLUMNS
    )
    row_out = out + rows.to(tl.int64)[:, None] * n_classes
    b_double = _join_floats(b_high, b_low)
    b_log2 = (b_double * LOG2_OF_E).to(WORK_TYPE)
    if N_TILES == 1:
        x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
        largest, prediction, second, others_sum, _, n_possible, lowest = summarise_tile(
            x, columns, b_log2, WORK_TYPE, False, True, FINDS_MASKS
        )
    else:
        largest, prediction, second, others_sum, _, n_possible, lowest = summarise_rows(
            row_addresses,
            row_mask,
            columns,
            n_classes,
            b_log2,
            WORK_TYPE,
            False,
            True,
            FINDS_MASKS,
            IS_DOUBLE,
            TILE_ROWS,
            TILE_COLUMNS,
            N_TILES,
            STAGES,
        )
    # A row with NaN, +inf, or every class masked has no score and the probabilities NaN.
    is_finite = (largest < float("inf")) & (largest > float("-inf"))
    has_invalid_logit = others_sum != others_sum
    if FINDS_MASKS:
        has_invalid_logit |= lowest <= largest_mask
    if REPORTS:
        is_reported = row_mask & (has_invalid_logit | ~is_finite)
        has_reported_row = tl.max(tl.where(is_reported, 1, 0), axis=0) > 0
        tl.store(needs_inspection, 1, mask=has_reported_row)
    others_sum = tl.where(is_finite, others_sum.to(tl.float64), float("nan"))
    is_valid = others_sum == others_sum
    second_gap = second.to(tl.float64) - largest.to(tl.float64)
    second_exponential = tl.where(n_possible > 1, tl.exp(second_gap * b_double), 0.0)
    scale, shift, prediction_p = _row_factors(
        MAP,
        others_sum,
        second_exponential,
        n_possible.to(tl.float64),
        _join_floats(uniform_high, uniform_low),
        curve,
        N_PIECES,
    )
    scale = tl.where(is_valid, scale, float("nan")).to(WORK_TYPE)
    shift = tl.where(is_valid, shift, float("nan")).to(WORK_TYPE)
    prediction_p = tl.where(is_valid, prediction_p, float("nan")).to(WORK_TYPE)
    next_smaller_p = _next_smaller(prediction_p, IS_DOUBLE)
    has_several_classes = n_possible > 1
    # A number compared with a float64 tensor would be rounded to float32. The only possible class of
    # a row keeps the probability 1.
    smallest_p = tl.where(has_several_classes, tl.full([], SMALLEST, WORK_TYPE), 0.0)
    largest_p = tl.where(has_several_classes, tl.full([], LARGEST, WORK_TYPE), 2.0)
    stored_prediction_p = _limit(prediction_p, smallest_p, largest_p)
    equal_p = _join_floats(equal_high, equal_low).to(WORK_TYPE)
    has_equal_p = tl.zeros([TILE_ROWS], tl.int32) > 0
    if SCORE != "none":
        sum_of_exp_u = tl.zeros([TILE_ROWS], tl.float64)
        sum_of_u_exp_u = sum_of_exp_u
        if SCORE != "negative_margin":
            reference = tl.where(second == float("-inf"), 0.0, second)[:, None]
            if N_TILES > 1:
                x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
            exp_u_per_column, u = _exp_relative_to_second(x, reference, columns, prediction)
            u_exp_u_per_column = exp_u_per_column * u
            for tile_start in tl.range(
                TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES
            ):
                x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
                exp_u, u = _exp_relative_to_second(x, reference, tile_start + columns, prediction)
                exp_u_per_column += exp_u
                u_exp_u_per_column += exp_u * u
            sum_of_exp_u = tl.sum(exp_u_per_column, axis=1)
            sum_of_u_exp_u = tl.sum(u_exp_u_per_column, axis=1)
        score = _score_from_sums(SCORE, largest, second, sum_of_exp_u, sum_of_u_exp_u)
        is_scored = is_finite & ~has_invalid_logit
        code = _acceptance_code(score, is_scored, threshold_bits)
        has_equal_p = ~is_scored
        stored_confidence = tl.where(is_scored, stored_prediction_p, equal_p)
        stored_prediction = tl.where(prediction < n_classes, prediction, 0).to(tl.int64)
        tl.store(scores + rows, tl.where(is_scored, score, float("nan")), mask=row_mask)
        tl.store(predictions + rows, stored_prediction, mask=row_mask)
        tl.store(confidence + rows, stored_confidence, mask=row_mask)
        tl.store(acceptance_codes + rows, code, mask=row_mask)
        if UNIFORM_ROWS == "rejected":
            has_equal_p = code != 1
    for tile_start in tl.range(0, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES):
        tile_columns = tile_start + columns
        if N_TILES > 1:
            x = _load_tile(row_addresses, row_mask, tile_columns, n_classes, IS_DOUBLE)
        p = _map_tile(
            x,
            largest,
            b_log2,
            tile_columns[None, :] == prediction[:, None],
            scale,
            shift,
            stored_prediction_p,
            next_smaller_p,
            smallest_p,
            largest_p,
            MAP,
        )
        if UNIFORM_ROWS != "none":
            p = tl.where(has_equal_p[:, None], equal_p, p)
        entry_mask = row_mask[:, None] & (tile_columns < n_classes)[None, :]
        tl.store(row_out + tile_columns[None, :], p, mask=entry_mask)
