"""Tables whose bytes begin anywhere: after a header, inside a record, backwards, as a network layer
hands them over.

NumPy calls such an array contiguous and computes with it; a kernel that walks memory must not
assume more.
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal import kernels
from metacal.rows import Rows
from metacal.scores import NAMED, score_rows

RNG = np.random.default_rng(0)
LABELS = RNG.integers(5, size=500)
LOGITS = RNG.normal(size=(500, 5)) + 2.0 * np.eye(5)[LABELS]


def shifted(table, by=1):
    """The same table, `by` bytes off."""
    room = np.zeros(table.nbytes + by, np.uint8)[by:].view(table.dtype).reshape(table.shape)
    room[...] = table
    return room


def in_records(table, label=np.int8):
    """The rows as a field of records of an odd size: the rows' strides are no multiple of the item
    size.
    """
    records = np.zeros(len(table), [("label", label), ("logits", table.dtype, (table.shape[1],))])
    records["logits"] = table
    return records["logits"]


LAYOUTS = {
    "one byte off": shifted,
    "three bytes off": lambda table: shifted(table, 3),
    "in records": in_records,
    "in records, one row": lambda table: in_records(table[:1]),
    "in records, backwards": lambda table: in_records(table)[::-1],
    "rows backwards": lambda table: table[::-1],
    "columns backwards": lambda table: table[:, ::-1],
    "by columns": np.asfortranarray,
    "by columns, off": lambda table: shifted(np.ascontiguousarray(table.T)).T,
    "every other row": lambda table: np.repeat(table, 2, axis=0)[::2],
    "every other column": lambda table: np.repeat(table, 2, axis=1)[:, ::2],
    "one row, repeated": lambda table: np.broadcast_to(table[:1], table.shape),
    "read only, off": lambda table: np.frombuffer(
        b"#" + table.tobytes(), dtype=table.dtype, offset=1
    ).reshape(table.shape),
    "other byte order": lambda table: table.astype(table.dtype.newbyteorder()),
}


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_kernel_reads_it(layout, dtype):
    odd = layout(LOGITS.astype(dtype))
    plain = np.array(odd.astype(dtype), order="C")
    codes = np.full(len(odd), 2)
    for name in (
        "entropy",
        "one_minus_max_probability",
        "negative_margin",
        "free_energy",
        "predict_classes",
        "spread",
    ):
        np.testing.assert_array_equal(getattr(kernels, name)(odd), getattr(kernels, name)(plain))
    weights = shifted(np.linspace(0.5, 1.5, len(odd)))
    loss = kernels.tempered_loss_and_derivatives(odd, shifted(codes), weights, 1.3)
    np.testing.assert_array_equal(
        loss, kernels.tempered_loss_and_derivatives(plain, codes, weights.copy(), 1.3)
    )
    np.testing.assert_array_equal(
        kernels.ensemble_label_probabilities(odd, shifted(codes), 1.3),
        kernels.ensemble_label_probabilities(plain, codes, 1.3),
    )
    assert kernels.inspect_logits(odd)[0] is None
    for score in NAMED:
        np.testing.assert_array_equal(score_rows(Rows(odd), score), score_rows(Rows(plain), score))


#: Not read only, not one row standing for all, and of the processor's own byte order.
WRITEABLE = [
    name
    for name in LAYOUTS
    if not name.startswith(("read only", "one row", "other", "in records, one"))
]


@pytest.mark.parametrize("name", WRITEABLE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_writes_where_it_is_told(name, dtype):
    plain = LOGITS.astype(dtype)
    expected = np.empty_like(plain)
    kernels.softmax(plain, 0.8, expected)
    out = LAYOUTS[name](np.zeros_like(plain))
    kernels.softmax(plain, 0.8, out)
    np.testing.assert_allclose(out, expected, rtol=1e-6 if dtype == np.float32 else 1e-14)


@pytest.mark.filterwarnings(
    "ignore::metacal.MetacalWarning"
)  # backwards the logits say nothing about the labels
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_gate_is_fitted_and_applied(layout, dtype):
    odd = layout(LOGITS.astype(dtype))
    plain = np.array(odd.astype(dtype), order="C")
    gate = mc.MetaCal(mc.MaxMiscoverage(0.2)).fit(LOGITS.astype(dtype), LABELS)
    np.testing.assert_array_equal(gate.predict_proba(odd), gate.predict_proba(plain))
    np.testing.assert_array_equal(gate.accepts(odd), gate.accepts(plain))
    if len(odd) == len(LABELS) and len(np.unique(plain, axis=0)) > 1:
        found, expected = (
            mc.TemperatureScaling().fit(odd, LABELS),
            mc.TemperatureScaling().fit(plain, LABELS),
        )
        assert found.temperature_ == expected.temperature_


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_into_an_unaligned_table(dtype):
    plain = LOGITS.astype(dtype)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.2)).fit(plain, LABELS)
    for room in (shifted, in_records, np.asfortranarray):
        out = room(np.zeros_like(plain))
        assert gate.predict_proba(plain, out=out) is out
        np.testing.assert_allclose(
            out, gate.predict_proba(plain), rtol=1e-6 if dtype == np.float32 else 1e-14
        )


def test_what_the_copy_is_for():
    """Without it the C code is handed a format it does not read, and says so rather than guess."""
    extension = pytest.importorskip("metacal.kernels._fused", reason="the C kernel is not built")
    with pytest.raises(ValueError, match="contiguous rows"):
        extension.first_bad_row(shifted(LOGITS))
