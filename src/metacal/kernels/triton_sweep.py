# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Numbers of each row that the kernels in Triton compute in one sweep over its logits.

The *tail* of a row is the sum of e^{b·(x - max x)} over all classes but the predicted one. Leaving
out the predicted class preserves the digits of confident rows.

A sweep over several tiles does not know the largest logit until its end. Each column of the tile
therefore holds back the largest of its logits so far, and adds the smaller of this one and the next
one to its sum. The terms are relative to the *reference*, the largest logit of the first tile, and
are rescaled at the end. If a term may overflow, the row is swept again with a better reference.
"""

from __future__ import annotations

from metacal.kernels.triton import _load_tile, jit, tl


@jit
def _add_term(smaller, reference, b_log2, TERM_TYPE: tl.constexpr):
    """Return 2^v and v of logits relative to a reference, v being at least `MIN_POWER`."""
    # 2^-150 is 0 in float32, and negligible in a sum of float64.
    MIN_POWER: tl.constexpr = -1100.0 if tl.float64 == TERM_TYPE else -150.0
    power = (smaller - reference[:, None]).to(TERM_TYPE) * b_log2
    return tl.exp2(power), tl.maximum(power, MIN_POWER)


@jit
def summarise_tile(
    x,
    columns,
    b_log2,
    TERM_TYPE: tl.constexpr,
    SUMS_MOMENT: tl.constexpr,
    COUNTS_CLASSES: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
):
    """Return the numbers of rows that one tile contains; see `summarise_rows`."""
    LARGEST_INT32: tl.constexpr = 2147483647
    largest = tl.max(x, axis=1)
    prediction = tl.min(tl.where(x == largest[:, None], columns[None, :], LARGEST_INT32), axis=1)
    others = tl.where(columns[None, :] == prediction[:, None], float("-inf"), x)
    second = tl.max(others, axis=1)
    # NaN remains NaN in the sum. The comparison above is false for NaN.
    w, power = _add_term(others, largest, b_log2, TERM_TYPE)
    tail = tl.sum(w, axis=1)
    moment = tail
    if SUMS_MOMENT:
        moment = tl.sum(w * power, axis=1)
    n_possible = prediction
    if COUNTS_CLASSES:
        n_possible = tl.sum(tl.where(x > float("-inf"), 1, 0), axis=1)
    lowest = largest
    if FINDS_MASKS:
        lowest = tl.min(tl.where(x == float("-inf"), 0.0, x), axis=1)
    return largest, prediction, second, tail, moment, n_possible, lowest


@jit
def _sweep_tiles(
    row_addresses,
    row_mask,
    columns,
    n_classes,
    reference,
    b_log2,
    TERM_TYPE: tl.constexpr,
    SUMS_MOMENT: tl.constexpr,
    COUNTS_CLASSES: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return the numbers of `summarise_rows`, with the sums relative to a reference."""
    LARGEST_INT32: tl.constexpr = 2147483647
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    shape: tl.constexpr = [TILE_ROWS, TILE_COLUMNS]
    largest_per_column = tl.full(shape, float("-inf"), WORK_TYPE)
    second_per_column = tl.full(shape, float("-inf"), WORK_TYPE)
    lowest_per_column = tl.zeros(shape, WORK_TYPE)
    tail_per_column = tl.zeros(shape, TERM_TYPE)
    moment_per_column = tl.zeros(shape, TERM_TYPE)
    start_of_largest = tl.zeros(shape, tl.int32)
    possible_per_column = tl.zeros(shape, tl.int32)
    for tile_start in tl.range(0, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES):
        x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
        smaller = tl.minimum(largest_per_column, x, propagate_nan=tl.PropagateNan.ALL)
        w, power = _add_term(smaller, reference, b_log2, TERM_TYPE)
        tail_per_column += w
        if SUMS_MOMENT:
            moment_per_column += w * power
        second_per_column = tl.maximum(second_per_column, smaller)
        start_of_largest = tl.where(x > largest_per_column, tile_start, start_of_largest)
        largest_per_column = tl.maximum(largest_per_column, x)
        if COUNTS_CLASSES:
            possible_per_column += tl.where(x > float("-inf"), 1, 0)
        if FINDS_MASKS:
            finite_x = tl.where(x == float("-inf"), 0.0, x)
            lowest_per_column = tl.minimum(lowest_per_column, finite_x)
    largest = tl.max(largest_per_column, axis=1)
    index_of_largest = start_of_largest + columns[None, :]
    prediction = tl.min(
        tl.where(largest_per_column == largest[:, None], index_of_largest, LARGEST_INT32), axis=1
    )
    has_prediction = index_of_largest == prediction[:, None]
    held_back = tl.where(has_prediction, float("-inf"), largest_per_column)
    second = tl.max(tl.maximum(held_back, second_per_column), axis=1)
    w, power = _add_term(held_back, reference, b_log2, TERM_TYPE)
    tail = tl.sum(tail_per_column + w, axis=1)
    moment = tl.sum(moment_per_column + w * power, axis=1)
    n_possible = tl.sum(possible_per_column, axis=1)
    lowest = tl.min(lowest_per_column, axis=1)
    return largest, prediction, second, tail, moment, n_possible, lowest


@jit
def _replace_infinite(reference):
    """Return the reference, 0 in place of an infinite one."""
    is_finite = (reference < float("inf")) & (reference > float("-inf"))
    return tl.where(is_finite, reference, 0.0)


@jit
def summarise_rows(
    row_addresses,
    row_mask,
    columns,
    n_classes,
    b_log2,
    TERM_TYPE: tl.constexpr,
    SUMS_MOMENT: tl.constexpr,
    COUNTS_CLASSES: tl.constexpr,
    FINDS_MASKS: tl.constexpr,
    IS_DOUBLE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    N_TILES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute the numbers of rows of several tiles.

    Returns largest logit, prediction, second largest logit, tail, Σ e^v·v/log 2 over the terms e^v
    of the tail, number of possible classes, and lowest finite logit or 0. The tail is NaN if a logit
    is NaN.
    """
    LOG_OF_2: tl.constexpr = 0.6931471805599453
    # Sums of terms up to this power of 2 do not overflow, and keep the digits that
    # `triton_acceptance.py` needs.
    MAX_POWER: tl.constexpr = 30.0
    first_tile = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
    first_largest = tl.max(first_tile, axis=1)
    reference = _replace_infinite(first_largest)
    largest, prediction, second, tail, moment, n_possible, lowest = _sweep_tiles(
        row_addresses,
        row_mask,
        columns,
        n_classes,
        reference,
        b_log2,
        TERM_TYPE,
        SUMS_MOMENT,
        COUNTS_CLASSES,
        FINDS_MASKS,
        IS_DOUBLE,
        TILE_ROWS,
        TILE_COLUMNS,
        N_TILES,
        STAGES,
    )
    may_overflow = (second - reference).to(TERM_TYPE) * b_log2 > MAX_POWER
    # The reference 0 may lie far above all logits.
    may_overflow |= reference != first_largest
    if tl.max(tl.where(may_overflow, 1, 0), axis=0) > 0:
        reference = tl.where(may_overflow, _replace_infinite(largest), reference)
        largest, prediction, second, tail, moment, n_possible, lowest = _sweep_tiles(
            row_addresses,
            row_mask,
            columns,
            n_classes,
            reference,
            b_log2,
            TERM_TYPE,
            SUMS_MOMENT,
            COUNTS_CLASSES,
            FINDS_MASKS,
            IS_DOUBLE,
            TILE_ROWS,
            TILE_COLUMNS,
            N_TILES,
            STAGES,
        )
    gap = reference.to(tl.float64) - largest.to(tl.float64)
    power_of_gap = gap * b_log2.to(tl.float64)
    factor = tl.exp(power_of_gap * LOG_OF_2)
    tail_of_reference = tail.to(tl.float64)
    tail_of_largest = tail_of_reference * factor
    moment_of_largest = (moment.to(tl.float64) + power_of_gap * tail_of_reference) * factor
    return largest, prediction, second, tail_of_largest, moment_of_largest, n_possible, lowest
