"""The C kernel against the NumPy definition, on anything finite."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metacal as mc
from metacal import kernels
from metacal.certificates.fingerprint import fingerprint_rows
from metacal.kernels import exact
from metacal.kernels import numpy as definition
from metacal.kernels.columns import Curve, confidence_log_odds, mixture_loss_and_derivatives
from metacal.kernels.grid import Grid
from metacal.maps.composed import fit_composed
from metacal.maps.temperature import TemperatureMap
from metacal.rows import Rows
from metacal.scores import (
    compute_score_and_correctness,
    get_rounding_grid,
    resolve_score,
    score_and_validate_rows,
    score_rows,
)

fused = pytest.importorskip("metacal.kernels.fused", reason="the C kernel is not built")
from metacal.kernels import _fused  # noqa: E402

SCORES = ("entropy", "one_minus_max_probability", "negative_margin", "free_energy")


@pytest.fixture(params=_fused.instruction_sets())
def instruction_set(request):
    _fused.use(request.param)
    yield request.param
    _fused.use(_fused.instruction_sets()[0])


@st.composite
def blocks(draw, max_columns=70):
    """Blocks of every dtype and layout, with masked classes, ties and huge values."""
    n, k = draw(st.integers(1, 9)), draw(st.integers(2, max_columns))
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]))
    table = (rng.normal(size=(n, k)) * scale).astype(dtype)
    if draw(st.booleans()):
        masked = rng.random((n, k)) < 0.4
        masked[:, rng.integers(k)] = False
        table[masked] = -np.inf
    if draw(st.booleans()):
        table = np.round(table)
    layout = draw(
        st.sampled_from(["plain", "columns", "strided", "reversed", "transposed", "readonly"])
    )
    if layout == "columns":
        table = np.repeat(table, 2, axis=1)[:, ::2]
    elif layout == "strided":
        table = np.repeat(table, 3, axis=0)[::3]
    elif layout == "reversed":
        table = table[::-1]
    elif layout == "transposed":
        table = np.asfortranarray(table)
    elif layout == "readonly":
        table.setflags(write=False)
    return table


def check(table):
    for name in SCORES:
        expected = getattr(definition, name)(table)
        found = getattr(fused, name)(table)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300, err_msg=name)
    np.testing.assert_array_equal(fused.predict_classes(table), definition.predict_classes(table))
    labels = definition.predict_classes(table)[::-1] % table.shape[1]
    possible = table[np.arange(len(table)), labels] > -np.inf
    for b in (0.03, 1.0, 7.0):
        wide = table.dtype == np.float64
        for weights in (None, np.linspace(0.5, 2.0, len(table))):
            if possible.all():
                with np.errstate(over="ignore", invalid="ignore"):
                    expected = definition.tempered_loss_and_derivatives(table, labels, weights, b)
                found = fused.tempered_loss_and_derivatives(table, labels, weights, b)
                largest = (
                    np.abs(np.where(np.isfinite(table), table, 0)).max(initial=1.0).astype(float)
                )
                size = len(table) * np.array([1 + b * largest, largest, largest**2, largest**3])
                np.testing.assert_allclose(
                    found / size, expected / size, atol=1e-12 if wide else 1e-6
                )
        for dtype in (np.float32, np.float64):
            ours, theirs = np.empty(table.shape, dtype), np.empty(table.shape, dtype)
            definition.softmax(table, b, ours)
            fused.softmax(table, b, theirs)
            np.testing.assert_allclose(theirs, ours, atol=1e-6, rtol=0)
            assert (theirs[~np.isfinite(table)] == 0).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_short_rows_are_what_long_ones_are(instruction_set, dtype):
    """Rows of few columns go side by side; with masked classes added up to more columns one after
    another.
    """
    rng = np.random.default_rng(0)
    short = rng.normal(size=(1001, 7)).astype(dtype)
    for share, value in (
        (0.05, -np.inf),
        (0.01, np.nan),
        (0.01, np.inf),
        (0.02, -9999.0),
        (0.3, 0.5),
    ):
        short[rng.random(short.shape) < share] = value
    short[5] = -np.inf
    long = np.append(short, np.full((1001, 40), -np.inf, dtype=dtype), axis=1)
    fine = (short < np.inf).all(axis=1) & (short > -np.inf).any(axis=1)
    tops = [np.empty(1001, dtype=np.intp) for _ in range(2)]
    for name in SCORES:
        for careful in (False, True):
            found, expected = (
                getattr(fused, name)(table, predictions_out=top, is_unvalidated=careful)
                for table, top in zip((short, long), tops, strict=True)
            )
            np.testing.assert_allclose(found, expected, rtol=1e-13)
            np.testing.assert_array_equal(np.isnan(found[~fine]), True)
            np.testing.assert_array_equal(tops[0][fine], tops[1][fine])
    np.testing.assert_array_equal(fused.predict_classes(short)[fine], tops[1][fine])
    room = np.float64 if dtype == np.float64 else np.float32
    curve = Curve(np.linspace(-2.0, 6.0, 7), np.linspace(0.8, 1.2, 7), -1.8)
    for write in (partial(fused.softmax, inverse_temperature=0.7), partial(lifted, curve=curve)):
        written = [np.empty(table.shape, dtype=room) for table in (short, long)]
        for table, out in zip((short, long), written, strict=True):
            write(table, out=out)
        np.testing.assert_allclose(
            written[0][fine], written[1][fine, :7], atol=4 * np.finfo(room).eps
        )
        assert np.isnan(written[0][~fine]).any(axis=1).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_over_columns_are_those_of_their_definition(instruction_set, weighted):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0.0, 3.0, (1003, 9)), rng.integers(9, size=1003)
    logits[7, 3], labels[8] = -np.inf, logits[8].argmin()
    logits[8] *= 300.0  # a true class all but impossible
    labels[7] = 1
    weights = rng.random(1003) if weighted else None
    columns = np.ascontiguousarray(fused.temperature_statistics(logits, labels, 0.55).T)
    for b, uniform in ((0.55, 0.01), (0.57, 1e-4), (0.5, 0.3)):
        found = sum(
            fused.mixture_loss_and_derivatives(columns, weights, 0.55, b, uniform, *part)
            for part in ((0, 500), (500, 1003))
        )
        np.testing.assert_allclose(
            found, mixture_loss_and_derivatives(np, columns, weights, 0.55, b, uniform), rtol=1e-10
        )
    assert (
        fused.mixture_loss_and_derivatives(columns, weights, 0.55, 0.55, 0.0, 0, 1003)[0] == np.inf
    )


@pytest.mark.parametrize("name", ["entropy", "max_probability", "margin", "energy"])
@pytest.mark.parametrize("columns", [3, 50])
def test_one_walk_writes_rounded_scores_and_which_rows_are_right(instruction_set, name, columns):
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(3000, columns)) * 10.0 ** rng.uniform(-12, 3, (3000, 1))).astype(
        np.float32
    )
    logits[:40] = rng.integers(-2, 3, (40, columns))
    logits[rng.random(logits.shape) < 0.02] = -np.inf
    logits[:, 0] = np.where((logits > -np.inf).any(axis=1), logits[:, 0], 1.0)
    labels = rng.integers(-1, columns, 3000)
    rows, scores, right = compute_score_and_correctness(
        Rows(logits, is_unvalidated=True), name, labels
    )
    expected = get_rounding_grid(name).round(
        score_and_validate_rows(Rows(logits), resolve_score(name).compute_unrounded)[1]
    )
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(score_rows(Rows(logits), name), expected)
    np.testing.assert_array_equal(right, logits.argmax(axis=1) == labels)
    assert not rows.is_unvalidated
    kept = compute_score_and_correctness(
        Rows(logits, row_mask=right), name, labels[right]
    )  # not written in place
    np.testing.assert_array_equal(kept[1], expected[right])
    assert kept[2].all()
    with pytest.raises(mc.errors.InputError, match="row 0, column 1"):
        compute_score_and_correctness(
            Rows(np.where(np.arange(columns) == 1, np.nan, logits[:8]), is_unvalidated=True),
            name,
            labels[:8],
        )


@pytest.mark.parametrize("floor", [2.0**-1000, 2.0**-20, 1.0, 8.0])
@pytest.mark.parametrize("bits", [1, 16, 30])
def test_rounding_is_that_of_the_grid_to_the_last_bit(floor, bits):
    rng, largest = np.random.default_rng(bits), np.finfo(float).max
    signs = rng.choice([-1.0, 1.0], 5000)
    values = np.concatenate(
        [
            signs * np.exp(rng.uniform(-740.0, 709.0, 5000)),
            signs
            * rng.integers(0, 1 << 12, 5000)
            * floor
            * 2.0 ** -(bits + 1),  # halfway between grid points, too
            signs * (1.0 + rng.integers(0, 4, 5000) * 2.0 ** -(bits + 1)),
            [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, 5e-324, floor, -floor],
        ]
    )
    grid = Grid(even_below=floor, bits=bits)
    np.testing.assert_array_equal(kernels.round_to_grid(values, grid), grid.round(values))


def test_grid_points_and_log_odds_are_those_of_their_definition(instruction_set):
    odd = np.array([0.0, -0.0, 1e-320, -1e-13, 3.0, np.finfo(float).max, -np.finfo(float).max])
    z = np.append(odd, np.random.default_rng(0).normal(0.0, 30.0, 1000))
    right, weights = (z > 1.0).astype(float), np.linspace(0.0, 2.0, len(z))
    for own in (None, weights):
        found = fused.bin_linearly(z, right, own, 1 / 32, 50.0, -1600, 3202)
        np.testing.assert_allclose(
            found,
            definition.bin_linearly(z, right, own, 1 / 32, 50.0, -1600, 3202),
            rtol=1e-12,
            atol=1e-12,
        )
    logits = (
        np.random.default_rng(1).normal(0.0, 1.0, (1003, 5)) * np.logspace(-3, 2, 1003)[:, None]
    )
    logits[9, 1:] = -np.inf  # a class alone
    columns = np.ascontiguousarray(
        fused.temperature_statistics(logits, np.zeros(1003, dtype=np.intp), 0.55).T
    )
    for b, uniform in ((0.55, 1e-3), (0.6, 1e-9), (0.5, 0.3)):
        with np.errstate(divide="ignore"):
            expected = confidence_log_odds(np, columns, 0.55, b, uniform)
        np.testing.assert_allclose(
            kernels.confidence_log_odds(columns, 0.55, b, uniform), expected, rtol=1e-9, atol=1e-12
        )


def lifted(block, curve, out):
    fused.softmax_with_curve(block, 0.7, 0.01, curve, out)


@pytest.mark.slow
@settings(max_examples=150)
@given(table=blocks())
def test_agree_on_anything(table):
    check(table)


def test_agree_on_every_instruction_set(instruction_set):
    rng = np.random.default_rng(0)
    for k in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1000):
        for dtype in (np.float16, np.float32, np.float64):
            check((rng.normal(size=(13, k)) * 5).astype(dtype))


def test_agree_on_a_vocabulary(instruction_set):
    check((np.random.default_rng(0).normal(size=(3, 50_000)) * 3).astype(np.float16))


@pytest.mark.parametrize("value", [6.0e-8, -6.1e-5, 65504.0, -65504.0, 0.0, 1.0009765625])
def test_half_precision_is_read_exactly(instruction_set, value):
    table = np.array([[value, 0.0, -1.0] * 5], dtype=np.float16)
    np.testing.assert_array_equal(
        fused.negative_margin(table), definition.negative_margin(table.astype(np.float64))
    )


@pytest.mark.slow
def test_real_logits_give_the_same_temperature_and_certificate():
    code = (
        "import metacal as mc\n"
        "lines = []\n"
        "for name in mc.datasets.names():\n"
        "    d = mc.datasets.load(name)\n"
        "    c = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(d.logits[:5000], d.labels[:5000])\n"
        "    lines.append([c.threshold_, c.calibrator_.temperature_, c.certificate_.n_accepted])\n"
    )
    assert kernels.host_kernels is not definition
    exec(code, names := {})
    env = {**os.environ, "METACAL_KERNEL": "numpy"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(lines)"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers = [np.array(names["lines"]), np.array(ast.literal_eval(done.stdout))]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-6)
    np.testing.assert_array_equal(answers[0][:, 2], answers[1][:, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("n_classes", "n_bins"), [(2, 15), (3, 1), (7, 2), (17, 4), (130, 15)])
def test_class_sums_in_whole_units_are_those_of_the_definition_to_the_bit(
    instruction_set, dtype, n_classes, n_bins
):
    random = np.random.default_rng(n_classes)
    table = random.dirichlet(np.full(n_classes, 0.2), size=150).astype(dtype)
    table[::5] = np.eye(n_classes)[random.integers(n_classes, size=30)]
    table[1::5] = dtype(1.0 / n_bins)  # on an edge, or beside it
    accept, edges = random.random(150) < 0.6, np.arange(n_bins + 1) / n_bins
    found = []
    for add in (exact.add_probabilities_in_units, fused.add_probabilities_in_units):
        totals, above = (
            np.zeros((2, 2, n_classes)),
            np.zeros((2, 2, n_classes * n_bins), dtype=np.int64),
        )
        for block, flags in ((table[:100], accept[:100]), (table[100:], accept[100:])):
            add(block, flags, edges, totals, above)
        found.append((totals, above))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[1][0].sum() == pytest.approx(table.astype(float).sum(), rel=1e-12)
    assert (above.reshape(2, 2, n_classes, n_bins)[..., 0] == 0).all()


@pytest.mark.parametrize("n_classes", [3, 40])
@pytest.mark.parametrize(
    "entry", [2.0, 9.3e18, 1e19, 1.7e308, np.inf, np.nan, -1.0, -1e19, -np.inf]
)
def test_entries_that_are_no_probabilities_stay_within_the_bins(instruction_set, entry, n_classes):
    n_bins, n_sums = 15, 2 * 2 * n_classes
    edges = np.arange(n_bins + 1) / n_bins
    table, accept = np.full((9, n_classes), 0.25), np.arange(9) % 2 == 0
    table[4, ::2] = entry
    found = []
    for add in (exact.add_probabilities_in_units, fused.add_probabilities_in_units):
        guarded = np.full(3 * n_sums * n_bins, 7, dtype=np.int64)
        above = guarded[n_sums * n_bins : 2 * n_sums * n_bins]
        above[:] = 0
        with np.errstate(invalid="ignore"):  # sums of infinities are no numbers
            add(table, accept, edges, np.zeros((2, 2, n_classes)), above.reshape(2, 2, -1))
        found.append(above.reshape(2, 2, n_classes, n_bins))
        above_first = found[-1][..., 1:]
        assert (above_first <= 0).all()
        assert (guarded[: n_sums * n_bins] == 7).all()
        assert (guarded[2 * n_sums * n_bins :] == 7).all()
    np.testing.assert_array_equal(found[0], found[1])
    is_counted = entry > 1.0
    assert (found[1][0, 1, ::2, -1] < 0).all() == is_counted


@pytest.mark.parametrize("grid", [1 / 32, 0.0, 1e-300, np.nan, np.inf, -1 / 32])
@pytest.mark.parametrize("low", [-1600.0, -np.inf, np.inf, np.nan, 1e19, -1e19])
def test_points_outside_of_the_grid_are_passed_over(grid, low):
    z = np.array([0.0, 1.0, -1.0, 1e19, -1e19, np.inf, -np.inf, np.nan])
    size = 3202
    for reach in (50.0, np.inf, np.nan):
        out = np.full(2 * size + 2, 7.0)
        _fused.on_grid(z, np.ones(8), None, grid, reach, low, out[1:-1])
        assert out[0] == out[-1] == 7.0
        if not np.isfinite(low) or abs(low) == 1e19:
            assert (out[1:-1] == 0.0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(block=blocks())
@settings(max_examples=25, deadline=None)
def test_probabilities_are_brought_inside_as_by_the_definition(dtype, block):
    rng = np.random.default_rng(block.shape[1])
    out = rng.choice(
        np.array([0.0, 5e-324, 1e-30, 0.3, 1.0 - 2.0**-25, 1.0, np.nan]), size=block.shape
    ).astype(dtype)
    expected, wide = out.copy(), np.repeat(out, 2, axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "uses_c_kernels", False)
        kernels.clip_probabilities(expected, block)
    for found in (out, wide[:, ::2]):  # the last by NumPy: its rows are not side by side
        kernels.clip_probabilities(found, block)
        np.testing.assert_array_equal(found, expected)


def fill_in_two_steps(block, uniform_weight, curve):
    """The final probabilities of a block, by a kernel and then by the limits of probabilities."""
    out = np.empty(block.shape, dtype=np.result_type(block.dtype, np.float32))
    if curve is not None:
        fused.softmax_with_curve(block, 0.7, uniform_weight, curve, out)
    elif uniform_weight:
        with np.errstate(divide="ignore", invalid="ignore"):  # a row without possible classes
            kernels.mixture_softmax(block, 0.7, uniform_weight, out)
    else:
        fused.softmax(block, 0.7, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "uses_c_kernels", False)
        kernels.clip_probabilities(out, block)
    return out


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3, 16, 32, 33, 64, 70, 1030])
@pytest.mark.parametrize("uniform_weight", [0.0, 1e-3])
@pytest.mark.parametrize("with_curve", [False, True])
def test_final_probabilities_take_one_walk(
    instruction_set, dtype, n_classes, uniform_weight, with_curve
):
    rng = np.random.default_rng(n_classes)
    block = (rng.normal(size=(40, n_classes)) * rng.choice([1.0, 300.0], size=(40, 1))).astype(
        dtype
    )
    block[5:20][rng.random((15, n_classes)) < 0.6] = -np.inf
    block[7] = -np.inf
    block[7, n_classes // 2] = 3.0  # a class alone
    block[8] = 1.0  # nothing but ties
    block[9, :2] = [50.0, np.nextafter(dtype(50.0), dtype(0.0))]
    block[20, 1], block[21, 0], block[22] = np.nan, np.inf, -np.inf
    curve = Curve(np.linspace(-2.0, 6.0, 7), np.linspace(0.8, 1.2, 7), -1.8)
    curve = curve if with_curve else None
    expected = fill_in_two_steps(block, uniform_weight, curve)
    out = np.empty_like(expected)
    in_place = block.astype(out.dtype)
    wide = np.empty((40, 2 * n_classes), dtype=out.dtype)[:, ::2]
    for table, target in ((block, out), (in_place, in_place), (block, wide)):
        arguments = {"uniform_weight": uniform_weight, "curve": curve}
        assert kernels.try_writing_clipped_probabilities(table, 0.7, target, **arguments)
        if uniform_weight and not with_curve:
            tolerance = 4.0 * np.finfo(out.dtype).eps
            np.testing.assert_allclose(target, expected, rtol=tolerance, atol=0.0)
        elif target is not in_place or dtype != np.float16:
            np.testing.assert_array_equal(target, expected)
        valid = np.isfinite(block.max(axis=1))
        found, several = target[valid], (block[valid] > -np.inf).sum(axis=1) > 1
        np.testing.assert_array_equal(found.argmax(axis=1), block[valid].argmax(axis=1))
        np.testing.assert_array_equal(found > 0.0, block[valid] > -np.inf)
        assert (found[several] < 1.0).all()
        assert (found[~several].max(axis=1) == 1.0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda t, o: _fused.inside(t, 0.1, 0.9, np.empty((4, 5))),
        lambda t, o: _fused.inside(t, 0.1, 0.9, np.empty(t.shape, np.float16)),
        lambda t, o: _fused.scores(t[0], None, 0, False, o, None),
        lambda t, o: _fused.scores(t.astype(np.int64), None, 0, False, o, None),
        lambda t, o: _fused.scores(t[:, ::2], None, 0, False, o, None),
        lambda t, o: _fused.scores(t, None, 9, False, o, None),
        lambda t, o: _fused.scores(t, None, 0, False, o[:-1], None),
        lambda t, o: _fused.scores(t, None, 0, False, o.astype(np.float32), None),
        lambda t, o: _fused.softmax(t, None, 1.0, 0.0, 1.0, np.empty((3, 5))),
        lambda t, o: _fused.softmax(t, None, 1.0, 0.0, 1.0, np.empty(t.shape, np.float16)),
        lambda t, o: _fused.predicted(t, None, o),
        lambda t, o: _fused.scores(t, np.array([4]), 0, False, o[:1], None),
        lambda t, o: _fused.scores(t, np.array([-1]), 0, False, o[:1], None),
        lambda t, o: _fused.scores(t, np.array([0, 1]), 0, False, o, None),
        lambda t, o: _fused.scores(t, None, 0, False, o, np.empty(3, np.int64)),
        lambda t, o: _fused.tempered_loss(t, None, np.full(4, 6), None, 1.0, np.array([0, 4]), o),
        lambda t, o: _fused.tempered_loss(t, None, np.full(4, -1), None, 1.0, np.array([0, 4]), o),
        lambda t, o: _fused.tempered_loss(
            t, None, np.zeros(3, np.int64), None, 1.0, np.array([0, 4]), o
        ),
        lambda t, o: _fused.tempered_loss(
            t, None, np.zeros(4, np.int64), np.ones(3), 1.0, np.array([0, 4]), o
        ),
        lambda t, o: _fused.tempered_loss(
            t, None, np.zeros(4, np.int64), None, 1.0, np.array([0, 4]), np.empty(3)
        ),
        lambda t, o: _fused.tempered_loss(
            t, None, np.zeros(4, np.int64), None, 1.0, np.array([0, 3]), o
        ),
        lambda t, o: _fused.tempered_loss(
            t, None, np.zeros(4, np.int64), None, 1.0, np.array([0, 5, 4]), np.empty(8)
        ),
        lambda t, o: _fused.tempered_loss(t, None, np.zeros(4, np.int64), None, 1.0, None, o),
        lambda t, o: _fused.class_units(
            t, np.ones(4, bool), np.zeros(1), np.empty(24), np.empty(0, np.int64)
        ),
        lambda t, o: _fused.class_units(
            t, np.ones(3, bool), np.zeros(2), np.empty(24), np.empty(24, np.int64)
        ),
        lambda t, o: _fused.class_units(
            t, np.ones(4, bool), np.zeros(2), np.empty(23), np.empty(24, np.int64)
        ),
        lambda t, o: _fused.class_units(
            t, np.ones(4, bool), np.zeros(3), np.empty(24), np.empty(24, np.int64)
        ),
        lambda t, o: _fused.use("sse9"),
    ],
)
def test_wrong_buffers_are_refused(call):
    with pytest.raises((ValueError, IndexError, BufferError, TypeError)):
        call(np.zeros((4, 6)), np.empty(4))


def test_show_config_names_the_kernel():
    config = mc.show_config()
    assert config.kernel == kernels.host_kernels.__name__.rsplit(".", 1)[-1]
    assert kernels.reason_for_kernels in str(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "expected"), [("numpy", "asks for it"), ("fused", "C kernel is built")]
)
def test_the_environment_chooses(value, expected):
    code = "import metacal; print(metacal.show_config())"
    env = {**os.environ, "METACAL_KERNEL": value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert expected in done.stdout


def test_the_environment_is_checked():
    env = {**os.environ, "METACAL_KERNEL": "cuda"}
    done = subprocess.run(
        [sys.executable, "-c", "import metacal.kernels"], env=env, capture_output=True, text=True
    )
    assert "must be auto, numpy or fused" in done.stderr


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 31, 33, 1000, 20_000])
@pytest.mark.parametrize("has_curve", [False, True])
def test_confidences_are_the_probabilities_of_the_predicted_classes(
    has_curve, n_classes, dtype, instruction_set
):
    random = np.random.default_rng(0)
    logits = (6.0 * random.normal(size=(40, n_classes))).astype(dtype)
    logits[random.random(logits.shape) < 0.2] = -np.inf
    logits[:, 0] = np.maximum(logits[:, 0], 0.0)
    logits[5] = logits[5, 0]  # every class is equally likely
    logits[7, 1:] = -np.inf  # one class is possible
    fitted = TemperatureMap(0.7)
    if has_curve:
        sample = 3.0 * random.normal(size=(600, 10))
        labels = (sample / 2.0 + random.gumbel(size=sample.shape)).argmax(axis=1)
        fitted = fit_composed(Rows(sample), labels)
    probabilities = np.empty(logits.shape, np.float64 if dtype == np.float64 else np.float32)
    fitted.write_clipped_probabilities(logits, probabilities)
    expected = probabilities[np.arange(40), kernels.predict_classes(logits)]
    np.testing.assert_array_equal(fitted.try_computing_confidences(logits), expected)
    rows = np.array([3, 5, 7, 39])
    np.testing.assert_array_equal(fitted.try_computing_confidences(logits, rows), expected[rows])


@pytest.mark.parametrize("kind", ["continuous", "few values", "special", "mixed", "float16"])
def test_fingerprints_do_not_depend_on_the_kernel(kind, instruction_set, monkeypatch):
    if not hasattr(kernels.host_kernels, "hash_scores"):
        pytest.skip("the C kernel does not run")
    random = np.random.default_rng(0)
    scale = random.choice([1e-300, -1e-5, 1.0, 1e5], 70_000)
    scores = {
        "continuous": random.random(70_000) * scale,
        "few values": random.integers(5, size=70_000).astype(float),
        "special": random.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, 1.5], 70_000),
        # Most vectors have ordinary scores only, and some have one that is not.
        "mixed": np.where(
            random.random(70_000) < 0.02,
            random.choice([0.0, -0.0, np.nan, -np.inf, 1.7e308, -1e301, 2.0**-960], 70_000),
            random.normal(size=70_000),
        ),
        "float16": random.choice(np.array([-np.inf, np.inf], dtype=np.float16), 70_000),
    }[kind]
    is_correct = random.random(70_000) < 0.8
    from_c = fingerprint_rows(scores, is_correct)
    monkeypatch.delattr(kernels.host_kernels, "hash_scores")
    from_numpy = fingerprint_rows(scores, is_correct)
    assert from_c.data_hash == from_numpy.data_hash
    assert from_c.sketch == from_numpy.sketch
    assert from_c.data_hash != fingerprint_rows(scores, ~is_correct).data_hash
