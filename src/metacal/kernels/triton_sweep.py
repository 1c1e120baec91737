# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Numbers of each row that the kernels in Triton compute in one sweep over its logits.

The sum over *others*, `others_sum`, is the sum of e^{b·(x - max x)} over all classes but the
predicted one. Leaving out the predicted class preserves the digits of confident rows.

A sweep over several tiles does not know the largest logit until its end. Each column of the tile
therefore holds back the largest of its logits so far, and adds the smaller of this one and the next
one to its sum. The terms are relative to the *reference*, the largest logit of the first tile, and
are rescaled at the end. If a term may overflow, the row is swept again with a better reference.
"""

from __future__ import annotations

from metacal.kernels.triton import _load_tile, jit, tl


@jit
def _exp2_of_scaled_gap(x, reference, b_log2, TERM_TYPE: tl.constexpr):
    """Return 2^v and v of logits relative to a reference, v being at least `MIN_EXPONENT`."""
    # 2^-150 is 0 in float32, and negligible in a sum of float64.
    MIN_EXPONENT: tl.constexpr = -1100.0 if tl.float64 == TERM_TYPE else -150.0
    exponent = (x - reference[:, None]).to(TERM_TYPE) * b_log2
    return tl.exp2(exponent), tl.maximum(exponent, MIN_EXPONENT)


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
    """Compute the results of `summarise_rows` for rows that one tile contains."""
    LARGEST_INT32: tl.constexpr = 2147483647
    largest = tl.max(x, axis=1)
    prediction = tl.min(tl.where(x == largest[:, None], columns[None, :], LARGEST_INT32), axis=1)
    others = tl.where(columns[None, :] == prediction[:, None], float("-inf"), x)
    second = tl.max(others, axis=1)
    # NaN remains NaN in the sum. The comparison above is false for NaN.
    exponential, exponent = _exp2_of_scaled_gap(others, largest, b_log2, TERM_TYPE)
    others_sum = tl.sum(exponential, axis=1)
    moment = others_sum
    if SUMS_MOMENT:
        moment = tl.sum(exponential * exponent, axis=1)
    n_possible = prediction
    if COUNTS_CLASSES:
        n_possible = tl.sum(tl.where(x > float("-inf"), 1, 0), axis=1)
    lowest = largest
    if FINDS_MASKS:
        lowest = tl.min(tl.where(x == float("-inf"), 0.0, x), axis=1)
    return largest, prediction, second, others_sum, moment, n_possible, lowest


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
    """Compute the results of `summarise_rows`, with the sums relative to a reference."""
    LARGEST_INT32: tl.constexpr = 2147483647
    WORK_TYPE: tl.constexpr = tl.float64 if IS_DOUBLE else tl.float32
    shape: tl.constexpr = [TILE_ROWS, TILE_COLUMNS]
    largest_per_column = tl.full(shape, float("-inf"), WORK_TYPE)
    second_per_column = tl.full(shape, float("-inf"), WORK_TYPE)
    lowest_per_column = tl.zeros(shape, WORK_TYPE)
    others_sum_per_column = tl.zeros(shape, TERM_TYPE)
    moment_per_column = tl.zeros(shape, TERM_TYPE)
    start_of_largest = tl.zeros(shape, tl.int32)
    possible_per_column = tl.zeros(shape, tl.int32)
    for tile_start in tl.range(0, N_TILES * TILE_COLUMNS, TILE_COLUMNS, num_stages=STAGES):
        x = _load_tile(row_addresses, row_mask, tile_start + columns, n_classes, IS_DOUBLE)
        smaller = tl.minimum(largest_per_column, x, propagate_nan=tl.PropagateNan.ALL)
        exponential, exponent = _exp2_of_scaled_gap(smaller, reference, b_log2, TERM_TYPE)
        others_sum_per_column += exponential
        if SUMS_MOMENT:
            moment_per_column += exponential * exponent
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
    exponential, exponent = _exp2_of_scaled_gap(held_back, reference, b_log2, TERM_TYPE)
    others_sum = tl.sum(others_sum_per_column + exponential, axis=1)
    moment = tl.sum(moment_per_column + exponential * exponent, axis=1)
    n_possible = tl.sum(possible_per_column, axis=1)
    lowest = tl.min(lowest_per_column, axis=1)
    return largest, prediction, second, others_sum, moment, n_possible, lowest


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
    """Compute the largest logits, sums and counts of rows that span several tiles.

    Returns largest logit, prediction, second largest logit, sum of e^v over the other classes, sum
    of e^v·v/log 2 over the other classes, number of possible classes, and lowest finite logit or 0.
    Here v = b·(x - max x). The sum of e^v is NaN if a logit is NaN.
    """
    LOG_OF_2: tl.constexpr = 0.6931471805599453
    # Sums of terms up to this power of 2 do not overflow, and keep the digits that
    # `triton_acceptance.py` needs.
    MAX_POWER: tl.constexpr = 30.0
    first_tile = _load_tile(row_addresses, row_mask, columns, n_classes, IS_DOUBLE)
    first_largest = tl.max(first_tile, axis=1)
    reference = _replace_infinite(first_largest)
    largest, prediction, second, others_sum, moment, n_possible, lowest = _sweep_tiles(
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
    # 0, which replaces an infinite reference, may lie far above all logits.
    may_overflow |= reference != first_largest
    if tl.max(tl.where(may_overflow, 1, 0), axis=0) > 0:
        reference = tl.where(may_overflow, _replace_infinite(largest), reference)
        largest, prediction, second, others_sum, moment, n_possible, lowest = _sweep_tiles(
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
    gap_exponent = gap * b_log2.to(tl.float64)
    factor = tl.exp(gap_exponent * LOG_OF_2)
    others_sum_of_reference = others_sum.to(tl.float64)
    others_sum_of_largest = others_sum_of_reference * factor
    moment_of_largest = (moment.to(tl.float64) + gap_exponent * others_sum_of_reference) * factor
    return largest, prediction, second, others_sum_of_largest, moment_of_largest, n_possible, lowest
