"""scikit-learn's conventions beyond its checks: `set_output`, array API in and out."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import metacal as mc

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(size=(400, 3)) * 2.0
LABELS = (LOGITS + RNG.normal(size=LOGITS.shape)).argmax(axis=1)
NAMES = np.array(["cat", "dog", "owl"])[LABELS]
FITTED = [
    mc.TemperatureScaling().fit(LOGITS, LABELS),
    mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(LOGITS, LABELS),
]


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize(
    "make", [mc.TemperatureScaling, lambda **more: mc.MetaCal(mc.MaxMiscoverage(0.1), **more)]
)
def test_set_output_gives_frames(library, make):
    pytest.importorskip(library)
    estimator = make(classes=["cat", "dog", "owl"]).fit(LOGITS, NAMES).set_output(transform=library)
    frame = estimator.transform(LOGITS[:5])
    assert type(frame).__module__.startswith(library)
    assert list(frame.columns) == ["probs_cat", "probs_dog", "probs_owl"]
    np.testing.assert_array_equal(frame.to_numpy(), estimator.predict_proba(LOGITS[:5]))


def test_a_frame_keeps_its_index():
    pd = pytest.importorskip("pandas")
    given = pd.DataFrame(LOGITS, columns=["cat", "dog", "owl"]).set_index(np.arange(400) + 7)
    found = (
        mc.TemperatureScaling().set_output(transform="pandas").fit(given, NAMES).transform(given)
    )
    assert list(found.index[:2]) == [7, 8]


def test_probabilities_are_features_of_what_follows():
    model = make_pipeline(mc.TemperatureScaling(), LogisticRegression()).fit(LOGITS, LABELS)
    assert model.score(LOGITS, LABELS) > 0.5
    assert isinstance(FITTED[0].fit_transform(LOGITS, LABELS), np.ndarray)


@pytest.fixture(params=["torch", "array_api_strict"])
def library(request, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    try:
        with sklearn.config_context(array_api_dispatch=True):
            return pytest.importorskip(request.param)
    except ImportError as error:  # an older SciPy, or scikit-learn without array-api-compat
        pytest.skip(str(error))


@pytest.mark.parametrize("fitted", FITTED, ids=["calibrator", "gate"])
def test_array_api_in_array_api_out(library, fitted):
    given = library.asarray(LOGITS[:20])
    with sklearn.config_context(array_api_dispatch=True):
        for method in (
            "predict_proba",
            "predict",
            "transform",
            *(("accepts",) if fitted is FITTED[1] else ()),
        ):
            found, plain = getattr(fitted, method)(given), getattr(fitted, method)(LOGITS[:20])
            assert type(found) is type(given), method
            assert found.device == given.device
            np.testing.assert_array_equal(np.asarray(found), plain)
    assert isinstance(
        fitted.predict_proba(given), np.ndarray
    )  # as scikit-learn's own, unless dispatch is asked for


@pytest.mark.parametrize(
    "make", [mc.TemperatureScaling, lambda: mc.MetaCal(mc.MaxMiscoverage(0.1))]
)
def test_fitted_on_arrays_of_the_library(library, make):
    with sklearn.config_context(array_api_dispatch=True):
        found = make().fit(library.asarray(LOGITS), library.asarray(LABELS))
    plain = make().fit(LOGITS, LABELS)
    np.testing.assert_array_equal(found.predict_proba(LOGITS), plain.predict_proba(LOGITS))


def test_an_array_that_numpy_may_not_read_says_itself_how():
    class OnDevice:
        """As CuPy: no silent copy to the host, but one on request."""

        def __init__(self, values):
            self.values, self.shape, self.dtype = values, values.shape, values.dtype

        def __array_namespace__(self, **options):
            return np

        def __array__(self, *args, **options):
            raise TypeError("Implicit conversion to a NumPy array is not allowed.")

        def get(self):
            return self.values

    found = FITTED[0].predict_proba(OnDevice(LOGITS[:4]))
    np.testing.assert_array_equal(found, FITTED[0].predict_proba(LOGITS[:4]))


# ── tables in memory, read as files are ───────────────────────────────────────────────────────────


def in_memory(kind):
    columns = {"logits": LOGITS.tolist(), "label": NAMES.tolist()}
    if kind == "arrow":
        return pytest.importorskip("pyarrow").table(columns)
    if kind == "datasets":
        return pytest.importorskip("datasets").Dataset.from_dict(columns)
    module = pytest.importorskip(kind)
    wide = {name: LOGITS[:, k] for k, name in enumerate(("cat", "dog", "owl"))}
    return module.DataFrame({**wide, "label": NAMES.tolist()})


@pytest.mark.parametrize("kind", ["arrow", "datasets", "polars", "pandas"])
def test_a_table_in_memory_is_read_as_a_file_is(kind):
    pytest.importorskip("pyarrow")
    found = mc.io.read_predictions(in_memory(kind), keep=["label"])
    np.testing.assert_array_equal(found.table, LOGITS)
    assert found.labels.tolist() == found.kept["label"].tolist() == NAMES.tolist()


def test_a_dataset_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = in_memory("datasets")
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), classes=["cat", "dog", "owl"]).fit(
        data["logits"], data["label"]
    )
    expected = gate.accepts(LOGITS).tolist()
    mapped = data.with_format("arrow").map(
        mc.BatchGate(gate, keep=["label"]), batched=True, remove_columns=["logits"]
    )
    assert mapped.with_format(None)["accept"] == expected
    data.save_to_disk(tmp_path / "saved")
    assert mc.io.read_predictions(tmp_path / "saved").labels.tolist() == NAMES.tolist()
    assert mc.apply(gate, data, tmp_path / "out.npz").n_accepted == sum(expected)
    with pytest.raises(mc.InputError, match=r"several \(train\)\. Pass one of them\."):
        mc.io.read_predictions(datasets.DatasetDict({"train": data}))
