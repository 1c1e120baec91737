# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Kernel in Triton that `triton_decisions.py` starts."""

from __future__ import annotations

from metacal.kernels.triton import _join_floats, _load_tile, _locate_rows, jit, tl
from metacal.kernels.triton_scores import (
    _acceptance_code,
    _exp_relative_to_second,
    _mark_invalid,
    _score_from_sums,
)


@jit
def _curve_value(z, curve, N_PIECES: tl.constexpr):
    """Evaluate `columns.Curve.value` from the numbers of `columns.Curve.pieces`."""
    first_knot = tl.load(curve)
    last_knot = tl.load(curve + 1)
    value = tl.load(curve + 2) + tl.load(curve + 3) * tl.minimum(z - first_knot, 0.0)
    value += tl.load(curve + 4) * tl.maximum(z - last_knot, 0.0)
    for piece in range(N_PIECES):
        numbers = curve + 5 + 4 * piece
        distance = tl.maximum(z - tl.load(numbers), 0.0)
        distance = tl.minimum(distance, tl.load(numbers + 1))
        value += distance * (tl.load(numbers + 2) + tl.load(numbers + 3) * distance)
    return value


@jit
def _curve_factors(tail, second_term, n_possible, uniform_weight, curve, N_PIECES: tl.constexpr):
    """Compute the factors of a map with a curve as `columns.curve_adjustment` does.

    `tail` is the sum of the terms w of the other classes, and `second_term` the largest of them.
    """
    MAX_EXPONENT: tl.constexpr = 700.0
    MIN_PREDICTION_RATIO: tl.constexpr = 1.000001
    uniform_p = 1.0 / n_possible
    softmax_factor = (1.0 - uniform_weight) / (1.0 + tail)
    mixed_others = softmax_factor * tail + uniform_weight * (1.0 - uniform_p)
    mixed_prediction = softmax_factor + uniform_weight * uniform_p
    mixed_second = softmax_factor * second_term + uniform_weight * uniform_p
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
def _row_factors(MAP: tl.constexpr, tail, second_term, n_possible, uniform_weight, curve, N_PIECES):
    """Return scale and shift of the other classes, and the probability of the predicted class."""
    if MAP == "curve":
        scale, shift, prediction_p = _curve_factors(
            tail, second_term, n_possible, uniform_weight, curve, N_PIECES
        )
    else:
        scale = (1.0 - uniform_weight) / (1.0 + tail)
        shift = uniform_weight / n_possible
        prediction_p = scale + shift
    return scale, shift, prediction_p


@jit
def _map_tile(
    x,
    largest,
    b,
    is_prediction,
    scale,
    shift,
    prediction_p,
    next_smaller_p,
    has_several_classes,
    smallest_p,
    largest_p,
    MAP: tl.constexpr,
):
    """Compute the probabilities of a tile from the factors of its rows."""
    w = tl.exp((x - largest[:, None]) * b)
    p = w * scale[:, None]
    if MAP == "curve":
        p = tl.where(x == float("-inf"), 0.0, p + shift[:, None])
        p = tl.where(is_prediction, prediction_p[:, None], p)
    else:
        if MAP == "mixture":
            p = tl.where(x == float("-inf"), p, p + shift[:, None])
        # Rounding must not tie the predicted class with a class whose logit is smaller.
        p = tl.where(
            x == largest[:, None], prediction_p[:, None], tl.minimum(p, next_smaller_p[:, None])
        )
    has_floor = (x > float("-inf")) & has_several_classes[:, None]
    p = tl.where((p < smallest_p) & has_floor, smallest_p, p)
    return tl.where((p > largest_p) & has_several_classes[:, None], largest_p, p)


@jit
def _next_smaller(value, IS_DOUBLE: tl.constexpr):
    """Return the next smaller float of a positive float."""
    if IS_DOUBLE:
        result = (value.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
    else:
        result = (value.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    return result


@jit
def _summarise_rows(
    row_addresses,
    row_mask,
    columns,
    n_classes,
    b,
    largest_mask,
    FINDS_MASKS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return the numbers of long rows in one sweep.

    Each column of the tile holds its largest logit so far and the sum of its other terms relative to
    it, so the sum is rescaled if a larger logit follows. The predicted class is never part of the sum,
    which preserves the digits of confident rows.
    """
    LARGEST_INT32: tl.constexpr = 2147483647
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    shape: tl.constexpr = [TILE_ROWS, TILE_COLUMNS]
    largest_per_column = tl.full(shape, float("-inf"), WORK_TYPE)
    second_per_column = tl.full(shape, float("-inf"), WORK_TYPE)
    tail_per_column = tl.zeros(shape, WORK_TYPE)
    largest_index = tl.zeros(shape, tl.int32) + columns[None, :]
    possible_per_column = tl.zeros(shape, tl.int32)
    invalid = tl.zeros(shape, tl.int32)
    for tile_start in tl.range(0, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES):
        x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
        invalid = _mark_invalid(x, invalid, largest_mask, FINDS_MASKS)
        is_larger = x > largest_per_column
        is_possible = x > float("-inf")
        gap = tl.where(is_larger, largest_per_column - x, x - largest_per_column)
        w = tl.exp(gap * b)
        tail_per_column = tl.where(
            is_larger,
            (tail_per_column + 1.0) * w,
            tl.where(x == float("-inf"), tail_per_column, tail_per_column + w),
        )
        second_per_column = tl.where(
            is_larger, largest_per_column, tl.maximum(second_per_column, x)
        )
        largest_index = tl.where(is_larger, (tile_start + columns)[None, :], largest_index)
        largest_per_column = tl.where(is_larger, x, largest_per_column)
        possible_per_column += tl.where(is_possible, 1, 0)
    largest = tl.max(largest_per_column, axis=1)
    prediction = tl.min(
        tl.where(largest_per_column == largest[:, None], largest_index, LARGEST_INT32), axis=1
    )
    has_prediction = largest_index == prediction[:, None]
    second = tl.max(tl.where(has_prediction, second_per_column, largest_per_column), axis=1)
    column_factor = tl.exp((largest_per_column - largest[:, None]) * b)
    tail_per_column = tl.where(
        has_prediction, tail_per_column, (tail_per_column + 1.0) * column_factor
    )
    tail = tl.sum(tail_per_column, axis=1)
    n_possible = tl.sum(possible_per_column, axis=1)
    return largest, prediction, second, tail, n_possible, tl.max(invalid, axis=1)


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
    LARGEST_INT32: tl.constexpr = 2147483647
    rows, row_mask, row_addresses, columns, n_classes = _locate_rows(
        table, stride_in_units, n_rows, classes_in_units, UNIT_ELEMENTS, TILE_ROWS, TILE_COLUMNS
    )
    row_out = out + rows.to(tl.int64)[:, None] * n_classes
    b_double = _join_floats(b_high, b_low)
    b = b_double.to(WORK_TYPE)
    if N_TILES == 1:
        x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
        invalid = _mark_invalid(
            x, tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.int32), largest_mask, FINDS_MASKS
        )
        has_invalid_logit = tl.max(invalid, axis=1)
        largest = tl.max(x, axis=1)
        prediction = tl.min(
            tl.where(x == largest[:, None], columns[None, :], LARGEST_INT32), axis=1
        )
        is_prediction = columns[None, :] == prediction[:, None]
        second = tl.max(tl.where(is_prediction, float("-inf"), x), axis=1)
        w = tl.exp((x - largest[:, None]) * b)
        tail = tl.sum(tl.where(is_prediction, 0.0, w), axis=1)
        n_possible = tl.sum(tl.where(x > float("-inf"), 1, 0), axis=1)
    else:
        largest, prediction, second, tail, n_possible, has_invalid_logit = _summarise_rows(
            row_addresses,
            row_mask,
            columns,
            n_classes,
            b,
            largest_mask,
            FINDS_MASKS,
            IS_DOUBLE,
            TILE_ROWS,
            TILE_COLUMNS,
            N_TILES,
            STAGES,
        )
    # A row with NaN, +inf, or every class masked has no score and the probabilities NaN.
    is_finite = (largest < float("inf")) & (largest > float("-inf"))
    if REPORTS:
        is_reported = row_mask & ((has_invalid_logit > 0) | ~is_finite)
        has_reported_row = tl.max(tl.where(is_reported, 1, 0), axis=0) > 0
        tl.store(needs_inspection, 1, mask=has_reported_row)
    tail = tl.where(is_finite, tail.to(tl.float64), float("nan"))
    is_valid = tail == tail
    second_gap = second.to(tl.float64) - largest.to(tl.float64)
    second_term = tl.where(n_possible > 1, tl.exp(second_gap * b_double), 0.0)
    scale, shift, prediction_p = _row_factors(
        MAP,
        tail,
        second_term,
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
    # A number compared with a float64 tensor would be rounded to float32.
    smallest_p = tl.full([], SMALLEST, WORK_TYPE)
    largest_p = tl.full([], LARGEST, WORK_TYPE)
    equal_p = _join_floats(equal_high, equal_low).to(WORK_TYPE)
    has_equal_p = tl.zeros([TILE_ROWS], tl.int32) > 0
    if SCORE != "none":
        mass = tl.zeros([TILE_ROWS], tl.float64)
        moment = mass
        if SCORE != "negative_margin":
            reference = tl.where(second == float("-inf"), 0.0, second)[:, None]
            if N_TILES > 1:
                x = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
            mass_per_column, u = _exp_relative_to_second(x, reference, columns, prediction)
            moment_per_column = mass_per_column * u
            for tile_start in tl.range(
                TILE_COLUMNS, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES
            ):
                x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
                exp_u, u = _exp_relative_to_second(x, reference, tile_start + columns, prediction)
                mass_per_column += exp_u
                moment_per_column += exp_u * u
            mass = tl.sum(mass_per_column, axis=1)
            moment = tl.sum(moment_per_column, axis=1)
        score = _score_from_sums(SCORE, largest, second, mass, moment)
        is_scored = is_finite & (has_invalid_logit == 0)
        code = _acceptance_code(score, is_scored, threshold_bits)
        has_equal_p = ~is_scored
        is_too_large = has_several_classes & (prediction_p > largest_p)
        stored_confidence = tl.where(is_too_large, largest_p, prediction_p)
        stored_confidence = tl.where(is_scored, stored_confidence, equal_p)
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
            b,
            tile_columns[None, :] == prediction[:, None],
            scale,
            shift,
            prediction_p,
            next_smaller_p,
            has_several_classes,
            smallest_p,
            largest_p,
            MAP,
        )
        if UNIFORM_ROWS != "none":
            p = tl.where(has_equal_p[:, None], equal_p, p)
        entry_mask = row_mask[:, None] & (tile_columns < n_classes)[None, :]
        tl.store(row_out + tile_columns[None, :], p, mask=entry_mask)
