"""Promises about cases: documents, tweets and runs whose items a ScoreGate accepts or rejects."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from scipy.stats import binom

import metacal as mc
from metacal.certification.case_items import Cases
from metacal.certification.rows import CalibrationRows, Clusters
from metacal.errors import InfeasibleTargetError, InputError
from metacal.gate.judged import judge_rows
from metacal.io.artifact.document import SavedContent, decode_document, encode_document

# Ties, missing scores and rows without an error are the subject of these tests, not of the reader.
pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")

N_CASES, FIELDS = 400, ("date", "name", "total")


def documents(n_cases=N_CASES, seed=0):
    """Return the score, correctness, document and field of the items of documents."""
    rng = np.random.default_rng(seed)
    score = rng.random(n_cases * len(FIELDS))
    correct = rng.random(len(score)) < score
    return (
        score,
        correct,
        np.repeat(np.arange(n_cases), len(FIELDS)),
        np.tile(FIELDS, n_cases),
    )


def tweets(n_cases=400, seed=0):
    """Return the score of the words of tweets, whether each is a name, and its tweet."""
    rng = np.random.default_rng(seed)
    is_name = rng.random(n_cases * 10) < 0.15
    score = rng.normal(size=len(is_name)) + 3.0 * is_name
    return score, is_name, np.repeat(np.arange(n_cases), 10)


def largest_tolerated(n_cases, limit, delta=0.1):
    return int(np.flatnonzero(binom.cdf(np.arange(n_cases), n_cases, limit) <= delta)[-1])


def test_one_threshold_is_the_order_statistic_of_the_cases():
    score, correct, document, _ = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=document)
    safest_wrong = np.full(N_CASES, -np.inf)
    np.maximum.at(safest_wrong, document[~correct], score[~correct])
    n_tolerated = largest_tolerated(N_CASES, 0.1)
    cut = np.sort(safest_wrong)[::-1][n_tolerated]
    assert np.array_equal(gate.accepts(score), score > cut)
    assert not gate.accepts([cut])[0]
    assert gate.certificate_.cases.n_broken == n_tolerated
    assert gate.certificate_.cases.n_tested == N_CASES


def test_in_expectation_tolerates_the_mean_of_the_order_statistic():
    score, correct, document, _ = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1, delta=None)).fit(score, correct, cases=document)
    assert gate.certificate_.cases.n_broken == int(0.1 * (N_CASES + 1)) - 1
    assert gate.certificate_.guarantee == "in expectation"


@pytest.mark.parametrize("value", [0.5, 0.25])
def test_tied_scores_are_accepted_or_rejected_together(value):
    score = np.repeat([0.9, value], 300)
    correct = np.concatenate([np.ones(300, bool), np.arange(300) < 150])
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=np.tile(range(300), 2))
    assert gate.accepts([0.9, value]).tolist() == [True, False]


def test_a_case_with_several_wrong_items_is_cut_once():
    rng = np.random.default_rng(0)
    score = rng.random((400, 3))
    correct = np.repeat(rng.random((400, 1)) < 0.5, 3, axis=1)
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct)
    counts = gate.certificate_.cases
    n_tolerated = largest_tolerated(counts.n_tested, 0.1)
    # The last case that was cut in each type lies on the cut, and does not break.
    assert n_tolerated - 2 <= counts.n_broken <= n_tolerated


def test_nothing_accepted_is_a_result():
    score = np.repeat([0.1, 0.9], 100)
    correct = score < 0.5
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.05)).fit(score, correct, cases=np.arange(200) % 100)
    assert not gate.accepts(score).any()
    assert "0 of 200 items accepted" in str(gate.certificate_)


def test_cases_without_a_wrong_item_accept_everything():
    score = np.arange(300.0)
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, np.ones(300), cases=np.arange(300) // 3)
    assert gate.accepts([-50.0]).all()


def test_a_case_counts_even_if_none_of_its_items_has_a_score():
    score, correct, document, _ = documents()
    without_score = np.where(document < 50, np.nan, score)
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(without_score, correct, cases=document)
    assert gate.certificate_.cases.n_tested == N_CASES
    assert not gate.accepts([np.nan])[0]
    assert "150 of 1,200 items have no score" in str(gate.certificate_)


@pytest.mark.parametrize(
    "promise",
    [
        mc.MaxCaseErrors(0.2),
        mc.MaxCaseErrors(0.2, delta=None),
        mc.MaxCaseErrors(0.3, among="automated"),
        mc.MaxErrorsPerCase(0.3, largest=3),
        mc.MinCaseRecall(0.5),
        mc.MinCaseRecall(0.5, same_scale=True),
    ],
    ids=repr,
)
def test_saved_gates_decide_alike_and_are_judged_on_cases(promise, tmp_path):
    score, correct, document, field = documents()
    gate = mc.ScoreGate(promise).fit(score, correct, cases=document, groups=field)
    gate.save(tmp_path / "gate.json")
    loaded = mc.load(tmp_path / "gate.json")
    new_score, new_correct, new_document, new_field = documents(300, seed=1)
    assert np.array_equal(loaded.accepts(new_score, new_field), gate.accepts(new_score, new_field))
    assert loaded.certificate_ == gate.certificate_
    verification = mc.verify(loaded, new_score, new_correct, cases=new_document, groups=new_field)
    evaluation = mc.evaluate(
        loaded, new_score, new_correct, cases=new_document, groups=new_field, n_resamples=0
    )
    assert verification.verdict.word in ("kept", "undecided")
    assert evaluation.verdict.word == verification.verdict.word
    assert verification.n_rows == 300
    fit_rows = mc.verify(gate, score, correct, cases=document, groups=field)
    assert fit_rows.verdict.word == "not judged"


@pytest.mark.parametrize(
    "promise",
    [
        mc.MaxCaseErrors(0.2),
        mc.MaxCaseErrors(0.3, among="automated"),
        mc.MinCaseRecall(0.5),
        mc.MaxErrorsPerCase(0.3, largest=3),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored["certificate"]["cases"].update(n_broken=200),
        lambda stored: stored["certificate"]["cases"].update(n_counted=10**6),
        lambda stored: stored["certificate"]["cases"].update(n_tested=0),
        lambda stored: stored["certificate"]["cases"].update(n_uncovered=10**5),
        lambda stored: stored["certificate"].pop("cases"),
        lambda stored: stored["certificate"].update(target=0.01),
        lambda stored: stored["promise"].update(delta=0.01),
        lambda stored: stored.update(promise={"type": "MinAccuracy", "beta": 0.5, "delta": 0.1}),
    ],
)
def test_files_whose_counts_do_not_certify_the_promise_are_refused(promise, change):
    score, correct, document, field = documents()
    gate = mc.ScoreGate(promise).fit(score, correct, cases=document, groups=field)
    stored = json.loads(json.dumps(encode_document(SavedContent(gate.gate_))))
    assert decode_document(stored).gate == gate.gate_
    change(stored)
    with pytest.raises(mc.errors.ArtifactError):
        decode_document(stored)


def test_counts_of_verify_are_those_of_whole_cases():
    score, correct, document, field = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(score, correct, cases=document, groups=field)
    score, correct, document, field = documents(300, seed=1)
    (test,) = mc.verify(gate, score, correct, cases=document, groups=field).tests
    accept = gate.accepts(score, field)
    is_broken = np.bincount(document, accept & ~correct) > 0
    assert (test.measurement.n_bad, test.measurement.n_rows) == (is_broken.sum(), 300)
    assert test.low <= is_broken.mean() <= test.high


def test_a_table_has_a_case_in_each_row_and_a_type_in_each_column():
    score, correct, document, field = documents()
    shape = (N_CASES, len(FIELDS))
    by_table = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(
        score.reshape(shape), correct.reshape(shape), groups=FIELDS
    )
    by_item = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(score, correct, cases=document, groups=field)
    assert by_table.certificate_ == by_item.certificate_
    assert by_table.accepts(score.reshape(shape), FIELDS).shape == shape
    verification = mc.verify(
        by_table, *(column.reshape(shape) for column in documents(seed=1)[:2]), groups=FIELDS
    )
    assert verification.n_rows == N_CASES


def test_order_and_names_of_cases_do_not_matter():
    score, correct, document, field = documents()
    order = np.random.default_rng(5).permutation(len(score))
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(score, correct, cases=document, groups=field)
    shuffled = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(
        score[order],
        correct[order],
        cases=np.array([f"document {name * 7 % 401}" for name in document])[order],
        groups=field[order],
    )
    assert shuffled.certificate_ == gate.certificate_


def test_a_forecast_counts_all_items_of_a_case_as_one():
    """With every item three times, no case has another outcome, and no forecast is narrower."""
    score, correct, document, _ = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(score, correct, cases=document)
    tripled = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(
        np.tile(score, 3), np.tile(correct, 3), cases=np.tile(document, 3)
    )
    assert tripled.threshold_ == gate.threshold_
    assert tripled.certificate_.next_rows(1000) == gate.certificate_.next_rows(1000)
    forecast = gate.certificate_.next_rows(1000)
    assert forecast.each == "case"
    assert "1,000 items, each of its own case" in str(forecast)


def test_a_seed_that_is_given_is_recorded():
    score, correct, document, field = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(
        score, correct, cases=document, groups=field, random_state=3
    )
    assert gate.certificate_.design.random_state == 3


# ── recall ────────────────────────────────────────────────────────────────────────────────────────


def test_recall_masks_from_the_order_statistic_on():
    score, is_name, tweet = tweets()
    gate = mc.ScoreGate(mc.MinCaseRecall(0.9)).fit(score, is_name, cases=tweet)
    lowest = np.full(400, np.inf)
    np.minimum.at(lowest, tweet[is_name], score[is_name])
    lowest = lowest[np.isfinite(lowest)]
    cut = np.sort(lowest)[largest_tolerated(len(lowest), 0.1)]
    assert np.array_equal(gate.accepts(score), score >= cut)
    assert gate.certificate_.cases.n_counted == len(lowest)


def test_a_true_item_without_a_score_is_a_miss():
    score, is_name, tweet = tweets()
    uncovered = np.flatnonzero(is_name)[::40]
    score[uncovered] = np.nan
    gate = mc.ScoreGate(mc.MinCaseRecall(0.9)).fit(score, is_name, cases=tweet)
    n_uncovered = len(np.unique(tweet[uncovered]))
    assert gate.certificate_.cases.n_uncovered == n_uncovered
    assert f"{n_uncovered:,} of" in str(gate.certificate_)
    new_score, new_is_name, new_tweet = tweets(seed=1)
    covered = mc.verify(gate, new_score, new_is_name, cases=new_tweet).tests[0]
    first_name = int(np.argmax(new_is_name))
    new_score[first_name] = np.nan
    missed = mc.verify(gate, new_score, new_is_name, cases=new_tweet).tests[0]
    assert missed.measurement.n_rows == covered.measurement.n_rows
    assert missed.measurement.n_bad >= covered.measurement.n_bad


def test_refusal_names_the_floor_with_its_interval():
    rng = np.random.default_rng(0)
    score = rng.random(400)
    score[:34] = np.nan
    with pytest.raises(InfeasibleTargetError) as refusal:
        mc.ScoreGate(mc.MinCaseRecall(0.95)).fit(score, np.ones(400), cases=np.arange(400))
    error = pickle.loads(pickle.dumps(refusal.value))
    assert (error.n_cases, error.n_uncovered, error.target) == (400, 34, 0.95)
    assert round(error.floor_low, 3) == 0.067
    assert error.best == 0.8942
    assert "34 of 400 cases (8.5%, at least 6.7% with 90% confidence)" in str(error)
    gate = mc.ScoreGate(mc.MinCaseRecall(error.best)).fit(score, np.ones(400), cases=np.arange(400))
    assert gate.certificate_.cases.n_broken == 34


def test_items_of_unknown_types_are_never_missed():
    score, is_name, tweet = tweets()
    kind = np.where(np.arange(len(score)) % 2, "person", "place")
    gate = mc.ScoreGate(mc.MinCaseRecall(0.8)).fit(score, is_name, cases=tweet, groups=kind)
    with pytest.warns(mc.errors.MetacalWarning, match="accepted, so that none of their true"):
        accept = gate.accepts([-9.0, np.nan], ["animal", "animal"])
    assert accept.tolist() == [True, False]


def test_items_of_unknown_types_are_rejected_if_errors_are_limited():
    score, correct, document, field = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(score, correct, cases=document, groups=field)
    with pytest.warns(mc.errors.MetacalWarning, match="are rejected"):
        assert not gate.accepts([0.999], ["address"])[0]


# ── missing labels ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("missing", [None, np.nan])
def test_cases_with_an_unlabelled_item_are_left_out_and_counted(missing):
    score, correct, document, _ = documents()
    labels = correct.astype(object)
    labels[:12:3] = missing
    with pytest.warns(mc.errors.MetacalWarning, match="4 of 400 cases have an unlabelled item"):
        gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, labels, cases=document)
    assert gate.certificate_.cases.n_tested == N_CASES - 4
    used = document >= 4
    other = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(
        score[used], correct[used], cases=document[used]
    )
    assert other.threshold_ == gate.threshold_


def test_the_label_of_an_item_without_a_score_matters_for_a_recall_only():
    score, correct, document, _ = documents()
    labels = correct.astype(object)
    score[0], labels[0] = np.nan, None
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, labels, cases=document)
    assert gate.certificate_.cases.n_tested == N_CASES
    with pytest.warns(mc.errors.MetacalWarning, match="1 of 400 cases"):
        mc.ScoreGate(mc.MinCaseRecall(0.5)).fit(score, labels, cases=document)


@pytest.mark.parametrize(
    ("promise", "n_left"),
    [
        (mc.PerGroup(mc.MinAccuracy(0.6)), 1195),
        (mc.MinAccuracy(0.5), 1188),
        (mc.MaxCaseErrors(0.2), 1188),
        (mc.MinCaseRecall(0.5), 1188),
    ],
    ids=repr,
)
def test_a_table_with_some_labels_missing_is_not_refused(promise, n_left):
    """A promise about each column leaves out entries, a promise about rows their rows."""
    score, correct, _, _ = documents()
    shape = (N_CASES, len(FIELDS))
    labels = correct.astype(object).reshape(shape)
    labels[:4, 0] = None
    labels[0, 1] = np.nan
    with pytest.warns(mc.errors.MetacalWarning, match="left out"):
        gate = mc.ScoreGate(promise).fit(score.reshape(shape), labels)
    assert gate.certificate_.traffic.n_rows in (n_left, 0.9 * n_left)
    assert "left out" in str(gate.certificate_)
    with pytest.warns(mc.errors.MetacalWarning, match="left out"):
        verification = mc.verify(gate, score.reshape(shape)[:50], labels[:50])
    assert verification.verdict.word == "not judged"


def test_exported_graphs_accept_items_of_unknown_types_if_none_may_be_missed():
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export import onnx

    score, is_name, tweet = tweets()
    kind = np.where(np.arange(len(score)) % 2, "person", "place")
    gate = mc.ScoreGate(mc.MinCaseRecall(0.8)).fit(score, is_name, cases=tweet, groups=kind)
    session = runtime.InferenceSession(onnx.to_onnx(gate).SerializeToString())
    new_score, kinds = score[:40].astype(np.float32), np.arange(40) % 4 - 1
    accept = session.run(["accept"], {"scores": new_score, "group": kinds})[0]
    names = np.array(["person", "place", "animal", "animal"])[kinds]
    assert np.array_equal(accept, gate.accepts(new_score, names))
    assert accept[(kinds < 0) | (kinds > 1)].all()


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("limit", "n_needed"), [(0.1, 22), (0.05, 45), (0.02, 114)])
def test_too_few_cases_are_refused_with_the_number_that_it_takes(limit, n_needed):
    score = np.arange(float(n_needed))
    fit = mc.ScoreGate(mc.MaxCaseErrors(limit)).fit
    fit(score, np.ones(n_needed), cases=np.arange(n_needed))
    with pytest.raises(InfeasibleTargetError) as refusal:
        fit(score[1:], np.ones(n_needed - 1), cases=np.arange(n_needed - 1))
    assert refusal.value.cases_needed == n_needed
    assert refusal.value.n_cases == n_needed - 1
    assert limit < refusal.value.best < 1.2 * limit
    mc.ScoreGate(mc.MaxCaseErrors(refusal.value.best)).fit(
        score[1:], np.ones(n_needed - 1), cases=np.arange(n_needed - 1)
    )


def test_types_take_a_fifth_more_cases():
    score, correct, document, field = documents(27)
    with pytest.raises(InfeasibleTargetError) as refusal:
        mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=document, groups=field)
    assert refusal.value.cases_needed == 28
    score, correct, document, field = documents(28)
    mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=document, groups=field)


@pytest.mark.parametrize(
    ("promise", "limit"),
    [
        (lambda limit: mc.MaxCaseErrors(limit, among="automated"), 0.01),
        (lambda limit: mc.MaxErrorsPerCase(limit, largest=3), 0.001),
    ],
)
def test_sequences_are_refused_with_the_best_limit(promise, limit):
    score, correct, document, field = documents()
    with pytest.raises(InfeasibleTargetError) as refusal:
        mc.ScoreGate(promise(limit)).fit(score, correct, cases=document, groups=field)
    assert refusal.value.best > limit
    assert refusal.value.n_cases == N_CASES
    mc.ScoreGate(promise(refusal.value.best)).fit(score, correct, cases=document, groups=field)


@pytest.mark.parametrize(
    "promise",
    [mc.MaxCaseErrors(0.1, among="automated"), mc.MaxErrorsPerCase(0.3, largest=3)],
    ids=repr,
)
def test_sequences_name_the_number_of_cases_that_they_take(promise):
    def fit(n_cases):
        score = np.random.default_rng(0).random(3 * n_cases)
        correct = np.ones(len(score))
        return mc.ScoreGate(promise).fit(score, correct, cases=np.arange(len(score)) // 3)

    with pytest.raises(InfeasibleTargetError) as refusal:
        fit(10)
    n_needed = refusal.value.cases_needed
    assert n_needed > 10
    assert f"at least {n_needed} cases" in str(refusal.value)
    with pytest.raises(InfeasibleTargetError):
        fit(n_needed - 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: mc.MaxErrorsPerCase(0.1),
        lambda: mc.MaxErrorsPerCase(0.1, largest=0),
        lambda: mc.MaxErrorsPerCase(4.0, largest=4),
        lambda: mc.MaxErrorsPerCase(0.1, largest=4, delta=None),
        lambda: mc.MaxCaseErrors(0.1, among="automated", delta=None),
        lambda: mc.MaxCaseErrors(0.1, among="some"),
        lambda: mc.MaxCaseErrors(10),
        lambda: mc.MinCaseRecall(1.0),
        lambda: mc.PerGroup(mc.MaxCaseErrors(0.1)),
    ],
)
def test_promises_that_make_no_sense_are_refused(make):
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"cases": None},
        {"cases": [1, 2]},
        {"cases": [None] * 1200},
        {"units": np.arange(1200)},
        {"cases": np.arange(1200), "units": np.arange(1200)},
        {"cases": np.arange(1200), "importance": np.ones(1200)},
        {"cases": np.arange(1200), "groups": ["date"]},
    ],
)
def test_columns_that_do_not_suit_cases_are_refused(columns):
    score, correct, _, _ = documents()
    with pytest.raises(InputError):
        mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, **columns)


@pytest.mark.parametrize(
    ("score", "correct"), [([], []), ([0.5], None), ([0.5], [None]), ([0.5], [True, False])]
)
def test_columns_without_a_usable_case_are_refused(score, correct):
    with pytest.raises(InputError):
        mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=np.zeros(len(score)))


def test_other_promises_refuse_cases():
    score, correct, document, _ = documents()
    with pytest.raises(InputError, match="not a promise about cases"):
        mc.ScoreGate(mc.MinAccuracy(0.5)).fit(score, correct, cases=document)
    gate = mc.ScoreGate(mc.MinAccuracy(0.6)).fit(score, correct)
    for judge in (mc.verify, mc.evaluate):
        with pytest.raises(InputError, match="not a promise about cases"):
            judge(gate, score, correct, cases=document)


def test_features_refuse_items_without_their_cases(tmp_path):
    score, correct, document, _ = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.1)).fit(score, correct, cases=document)
    with pytest.raises(InputError, match="is about cases"):
        mc.Watch.of(gate).update(score, correct)
    with pytest.raises(InputError, match="the case of each item"):
        mc.report(gate, score, correct, tmp_path / "report.html")
    with pytest.raises(InputError, match="the case of each item"):
        mc.verify(gate, score, correct)
    # What judges rows one by one, as `metacal verify` does, would take items for cases.
    with pytest.raises(InputError, match="Pass the case of each row"):
        judge_rows(gate.gate_, [score], correct)
    with pytest.raises(InputError):
        mc.MetaCal(mc.MaxCaseErrors(0.1)).fit(np.zeros((50, 3)), np.arange(50) % 3)


def test_a_monitor_counts_the_outcomes_of_whole_cases():
    score, correct, document, field = documents()
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.2)).fit(score, correct, cases=document, groups=field)
    (monitor,) = mc.PromiseMonitor.of(gate.certificate_)
    monitor.update(np.ones(300, dtype=bool), np.arange(300) % 10 > 0)
    assert not monitor.alarm
    monitor.update(np.ones(300, dtype=bool), np.arange(300) % 2 > 0)
    assert monitor.alarm


def test_rows_with_cases_and_clusters_are_refused():
    score, correct, document, _ = documents()
    cases = Cases(document, np.zeros(N_CASES, dtype=bool))
    clusters = Clusters.from_codes(document, max_size=3)
    with pytest.raises(InputError, match="support units"):
        mc.MaxCaseErrors(0.1).certify(
            CalibrationRows(-score, correct, cases=cases, clusters=clusters)
        )
