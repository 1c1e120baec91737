"""MaxReview, MaxCost and Cheapest: against brute force, without labels, with tables, through files,
in words.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.base import clone

import metacal as mc
from metacal.certificates.quantities import COST, REVIEW
from metacal.certification.cheapest import choose_candidate_ranks
from metacal.certification.row_losses import Losses, compute_prediction_costs
from metacal.certification.rules.loss_bets import (
    LossRanking,
    count_certified_loss_rows,
    plan_loss_ranks,
)
from metacal.cli import main
from metacal.errors import ArtifactError, InputError
from metacal.export import saved as artifact
from metacal.io.artifact.audit import read_certificate
from metacal.promises.verification import verify_decisions
from metacal.statistics import bounds
from metacal.statistics.distribution_band import DistributionBand
from metacal.statistics.replicating_bets import certifies_mean_below

TABLE = ((0.0, 1.0, 2.0), (4.0, 0.0, 1.0), (8.0, 2.0, 0.0))


@pytest.fixture(name="data", scope="module")
def _data():
    rng = np.random.default_rng(3)
    labels = rng.integers(3, size=3000)
    return rng.normal(size=(3000, 3)) + 2.0 * np.eye(3)[labels], labels


# ── the budget ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("delta", [0.1, None])
@pytest.mark.parametrize("n", [40, 300, 1001])
def test_the_rank_is_the_smallest_that_is_certified(n, delta):
    kept = mc.MaxReview(0.2, delta).certify(np.arange(float(n))).n_accepted

    def violation(k):
        tail = [math.comb(n, j) * 0.8**j * 0.2 ** (n - j) for j in range(k, n + 1)]
        return sum(tail)

    if delta is None:
        assert (n + 1 - kept) / (n + 1) <= 0.2 < (n + 2 - kept) / (n + 1)
    else:
        assert violation(kept) <= delta < violation(kept - 1)


def test_labels_change_nothing_but_the_counts(data):
    logits, labels = data
    bare, known = (
        mc.MetaCal(mc.MaxReview(0.2)).fit(logits),
        mc.MetaCal(mc.MaxReview(0.2)).fit(logits, labels),
    )
    assert bare.threshold_ == known.threshold_
    assert (bare.certificate_.has_labels, known.certificate_.has_labels) == (False, True)
    assert bare.gate_.source.map.temperature == 1.0 != known.calibrator_.temperature_
    assert "without labels" in str(bare.certificate_)
    assert "softmax" in str(bare.certificate_.notes[-1])
    assert bare.certificate_.to_dict()["n_correct"] is None
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    accept = bare.accepts(logits)
    np.testing.assert_allclose(bare.predict_proba(logits)[accept], softmax[accept], rtol=1e-12)


def test_without_labels_only_a_budget_can_be_promised(data):
    for promise in (mc.MaxMiscoverage(0.1), mc.MaxCost(5, 1), mc.Cheapest(5, 1)):
        with pytest.raises(InputError, match="requires y to be passed"):
            mc.MetaCal(promise).fit(data[0])
    with pytest.raises(InputError, match="requires labels"):
        mc.MetaCal(mc.MaxReview(0.2), calibrator=mc.IsotonicCalibration()).fit(data[0])


def test_a_budget_is_verified_and_watched_without_labels(data):
    logits, labels = data
    gate = mc.MetaCal(mc.MaxReview(0.2)).fit(logits[:1500])
    bare, known = mc.verify(gate, logits[1500:]), mc.verify(gate, logits[1500:], labels[1500:])
    assert bare.to_dict() == known.to_dict()
    assert not bare.refuted
    assert mc.verify(gate, 0.2 * logits[1500:]).refuted
    (monitor,) = mc.PromiseMonitor.of(gate.certificate_)
    assert not monitor.update(gate.accepts(logits[1500:])).alarm
    assert monitor.update(np.zeros(200, dtype=bool)).alarm
    other = mc.MetaCal(mc.MaxMiscoverage(0.2)).fit(logits[:1500], labels[:1500])
    with pytest.raises(InputError, match="miscoverage requires labelled rows"):
        mc.verify(other, logits[1500:])
    with pytest.raises(InputError, match="requires labelled rows"):
        mc.PromiseMonitor.of(other.certificate_)[0].update([True])


def test_its_own_rows_are_recognised_with_and_without_labels(data):
    logits, labels = data
    rows = mc.Rows(logits)
    for gate in (
        mc.MetaCal(mc.MaxReview(0.2)).fit(logits).gate_,
        mc.MetaCal(mc.MaxReview(0.2)).fit(logits, labels).gate_,
    ):
        right = logits.argmax(axis=1) == labels
        assert gate.find_fit_rows(gate.uncertainty_scores(rows), right).n_fit_rows == len(rows)
        assert gate.find_fit_rows(gate.uncertainty_scores(rows), None).n_fit_rows == len(rows)
        assert gate.find_fit_rows(gate.uncertainty_scores(rows) + 0.1, right) is None


def test_too_few_rows_for_a_budget_accept_everything():
    with pytest.warns(mc.MetacalWarning, match="with only 10 rows, none can be rejected"):
        certificate = mc.MaxReview(0.1).certify(np.arange(10.0))
    assert certificate.accepts_everything
    with pytest.raises(InputError, match="at least one row, but got"):
        mc.MaxReview(0.1).certify(np.array([1.0, np.nan]))


# ── costs ─────────────────────────────────────────────────────────────────────────────────────────


def test_one_cost_is_a_promise_of_accuracy(data):
    logits, labels = data
    for delta in (0.1, None):
        cost = (
            mc.MetaCal(mc.MaxCost(wrong=50, limit=5, delta=delta)).fit(logits, labels).certificate_
        )
        accuracy = mc.MetaCal(mc.MinAccuracy(0.9, delta)).fit(logits, labels).certificate_
        assert cost.threshold == accuracy.threshold
        tested = accuracy.tested_counts
        n_wrong = tested.n_accepted - tested.n_correct_accepted
        assert math.isclose(cost.mean_cost, 50 * n_wrong / tested.n_accepted)
    alike = tuple(tuple(50.0 * (i != j) for j in range(3)) for i in range(3))
    table = mc.MetaCal(mc.MaxCost(wrong=alike, limit=5)).fit(logits, labels).certificate_
    assert (
        table.threshold
        == mc.MetaCal(mc.MinAccuracy(0.9)).fit(logits, labels).certificate_.threshold
    )


def test_costs_are_looked_up_by_truth_and_answer():
    table = np.array(TABLE)
    codes, answers = (column.ravel() for column in np.meshgrid(np.arange(3), np.arange(3)))
    np.testing.assert_array_equal(
        compute_prediction_costs(TABLE, codes, answers), table[codes, answers]
    )
    np.testing.assert_array_equal(
        compute_prediction_costs(TABLE, np.full(3, -1), np.arange(3)), table.max(axis=0)
    )
    assert compute_prediction_costs(7.0, np.array([0, 1, -1]), np.array([0, 0, 0])).tolist() == [
        0.0,
        7.0,
        7.0,
    ]


def test_the_mean_cost_of_the_accepted_rows_is_on_the_certificate(data):
    logits, labels = data
    gate = mc.MetaCal(mc.MaxCost(TABLE, 0.25)).fit(logits, labels)
    accept = gate.accepts(logits)
    paid = np.array(TABLE)[labels, logits.argmax(axis=1)][accept]
    assert 0 < accept.mean() < 1
    assert math.isclose(gate.certificate_.mean_cost, paid.mean())
    assert paid.mean() < 0.25


def test_the_walk_is_as_its_definition_says(data):
    """Brute force over the plan_loss_ranks: a share is lost where its walk fails, and the last rung that
    passed counts.
    """
    logits, labels = data
    promise = mc.MaxCost(TABLE, 0.3)
    losses = promise.losses(labels, logits.argmax(axis=1)).if_accepted / promise.largest
    scores = -logits.max(axis=1)
    for seed in range(3):
        ranked = LossRanking.from_scores(scores, losses, seed)
        best, level = 0, 0.0
        for share, ranks in plan_loss_ranks(len(scores), promise.procedure().relative_limit, 0.1):
            level += float(share)
            limit = promise.procedure().relative_limit
            passed = [
                bool(ranked.losses_by_rank[:rank].mean() <= limit)
                and certifies_mean_below(ranked.losses_up_to(rank), limit, level * 0.1)
                for rank in ranks
            ]
            good = passed.index(False) if False in passed else len(passed)
            best, level = (
                (ranks[good - 1] if good else best),
                (0.0 if good < len(passed) else level),
            )
        assert (
            count_certified_loss_rows(ranked, promise.procedure().relative_limit, 0.1)
            == ranked.count_accepted_after_passing_rank(best, promise.procedure().relative_limit)
            > 0
        )


def test_the_same_rows_give_the_same_bits_and_the_order_of_rows_does_not_matter_to_a_table_of_one_size(
    data,
):
    logits, labels = data
    one, again = (
        mc.MetaCal(mc.MaxCost(TABLE, 0.25)).fit(logits, labels).certificate_ for _ in range(2)
    )
    assert one == again
    other = mc.MetaCal(mc.MaxCost(TABLE, 0.25, random_state=1)).fit(logits, labels).certificate_
    assert abs(one.coverage - other.coverage) < 0.1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (0, "wrong must be a positive number"),
        (-1.0, "wrong must be a positive number"),
        (math.nan, "wrong must be a positive number"),
        ([[0, 1], [1]], "2 rows"),
        ([0, 1, 2], "3 rows"),
        (np.zeros((2, 3)), "shape \\(2, 3\\)"),
        ([[0, -1], [1, 0]], r"lie between 0 and 1e\+15"),
        ([[0, 0], [0, 0]], "at least one must be positive"),
        (((0.0, 0.0), (0.0, 0.0)), "at least one must be positive"),
        ("dear", "'dear'"),
    ],
)
def test_costs_that_are_none(wrong, said):
    with pytest.raises(InputError, match=said):
        mc.Cheapest(wrong, 1.0)


def test_arguments_are_checked(data):
    with pytest.raises(
        InputError, match=r"limit must be less than 50, the largest cost, but got 50\."
    ):
        mc.MaxCost(50, 50)
    with pytest.raises(InputError, match="review must be a positive number"):
        mc.Cheapest(50, 0)
    with pytest.raises(InputError, match="has 3 classes, but the logits have 4 columns"):
        mc.MetaCal(mc.MaxCost(TABLE, 1)).fit(np.eye(4), np.arange(4))
    with pytest.raises(InputError, match="pass losses="):
        mc.MaxCost(TABLE, 1).certify(np.arange(3.0), np.ones(3, dtype=bool))
    certificate = mc.MaxCost(5, 1).certify(np.arange(300.0), np.ones(300, dtype=bool))
    with pytest.raises(InputError, match="Pass losses"):
        verify_decisions(certificate, np.ones(3, dtype=bool), np.ones(3, dtype=bool))


def test_a_limit_that_cannot_be_had_says_what_can(data):
    logits, labels = data
    for wrong in (8.0, TABLE):
        with pytest.raises(
            mc.InfeasibleTargetError,
            match=r"Cannot certify a mean cost of at most 0\.001 on .*; the best",
        ) as caught:
            mc.MetaCal(mc.MaxCost(wrong, 0.001)).fit(logits, labels)
        best = caught.value.best
        assert mc.MetaCal(mc.MaxCost(wrong, best)).fit(logits, labels).certificate_.n_accepted > 0
        assert caught.value.rows_needed is None or caught.value.rows_needed > 3000


def test_promises_with_tables_can_be_cloned_compared_and_printed():
    for promise in (mc.MaxCost(np.array(TABLE), 1), mc.Cheapest([list(row) for row in TABLE], 1)):
        again = clone(promise)
        assert again == promise
        assert again.wrong == TABLE
        assert eval(repr(promise), {"MaxCost": mc.MaxCost, "Cheapest": mc.Cheapest}) == promise
    assert "<10 x 10 costs of up to 1>" in repr(mc.MaxCost(1 - np.eye(10), 0.1))


# ── the cheapest threshold ────────────────────────────────────────────────────────────────────────


def test_the_cheapest_candidate_is_chosen_and_bounded(data):
    logits, labels = data
    gate = mc.MetaCal(mc.Cheapest(20, 1)).fit(logits, labels)
    scores, correct = gate.ranking_scores(logits), logits.argmax(axis=1) == labels
    n, ordered = len(scores), np.sort(scores)
    found = []
    for rank in choose_candidate_ranks(n):
        accept = scores < ordered[rank] if rank < n else np.ones(n, dtype=bool)
        found.append((20 * (accept & ~correct).sum() + (~accept).sum()) / n)
    certificate = gate.certificate_
    assert math.isclose(certificate.mean_cost, min(found))
    assert certificate.target > certificate.mean_cost
    level = 0.8 * 0.1 / len(choose_candidate_ranks(n))
    wrong = certificate.n_accepted - certificate.n_correct_accepted
    answers = 20 * bounds.clopper_pearson_upper(wrong, certificate.n_accepted, level)
    assert certificate.target >= answers * certificate.coverage + (1 - certificate.coverage)
    # The coverage has the other 0.2 of delta, one half for each end of its band.
    band = DistributionBand(np.arange(float(n)))
    fewest = band.lower_bound_on_cdf(np.array([certificate.n_accepted - 1.0]), 0.2 * 0.1 / 2)[0]
    most = band.upper_bound_on_cdf(np.array([certificate.n_accepted - 1.0]), 0.2 * 0.1 / 2)[0]
    coverage_bound = fewest if answers < 1 else most
    assert math.isclose(certificate.target, 1 + coverage_bound * (answers - 1))


def test_extremes_are_chosen_where_they_are_cheapest(data):
    logits, labels = data
    assert mc.MetaCal(mc.Cheapest(1, 5)).fit(logits, labels).certificate_.accepts_everything
    nothing = mc.MetaCal(mc.Cheapest(1e6, 1)).fit(logits, labels)
    assert not nothing.accepts(logits).any()
    assert nothing.certificate_.target == 1.0
    assert "accept no row" in str(nothing.certificate_)
    assert "reviewing all of them" in str(nothing.certificate_.notes[0])
    assert mc.verify(nothing, 1.001 * logits, labels).tests[0].word == "kept"
    assert artifact.loads(artifact.dumps(nothing).encode()).certificate_ == nothing.certificate_


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def gates(data):
    logits, labels = data
    yield mc.MetaCal(mc.MaxReview(0.2)).fit(logits)
    yield mc.MetaCal(mc.MaxReview(0.2)).fit(logits, labels)
    for promise in (
        mc.MaxCost(20, 2),
        mc.MaxCost(TABLE, 0.25),
        mc.Cheapest(20, 1),
        mc.Cheapest(TABLE, 0.5),
    ):
        yield mc.MetaCal(promise).fit(logits, labels)


@pytest.mark.slow
def test_saved_loaded_and_exported(data):
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export.onnx import to_onnx

    logits = data[0].astype(np.float32)
    for gate in gates((logits, data[1])):
        again = artifact.loads(artifact.dumps(gate).encode())
        assert again.certificate_ == gate.certificate_
        assert again.promise == gate.promise
        np.testing.assert_array_equal(again.predict_proba(logits), gate.predict_proba(logits))
        session = runtime.InferenceSession(to_onnx(gate).SerializeToString())
        np.testing.assert_array_equal(
            session.run(["accept"], {"logits": logits})[0], gate.accepts(logits)
        )
        assert 0 < gate.accepts(logits).mean() < 1


@pytest.mark.parametrize(
    ("number", "changes", "said"),
    [
        (
            0,
            {
                "n_accepted": 2000,
                "coverage": 2000 / 3000,
                "traffic": {"n_rows": 3000, "n_accepted": 2000, "population": "source"},
            },
            "2,000 accepted of 3,000 rows do not certify",
        ),
        (0, {"labelled": True}, "the file must not contain"),
        (0, {"n_correct": 2500}, "accepted rows cannot be wrong"),
        (2, {"mean_cost": 0.5}, "do not cost 0.5 on average"),
        (2, {"mean_cost": None}, "the file must not contain"),
        (3, {"mean_cost": 0.3}, "do not certify a cost of at most 0.25"),
        (3, {"target": -1.0}, "does not belong to the promise"),
        (3, {"mean_cost": -1.0}, "mean_cost -1.0 is no cost"),
        (4, {"target": 0.2}, "do not certify a cost of at most 0.2 a row"),
        (5, {"target": 0.1}, "do not certify a cost of at most 0.1 a row"),
    ],
)
def test_forged_certificates_are_refused(data, number, changes, said):
    text = json.loads(artifact.dumps(list(gates(data))[number]))
    text["certificate"] |= changes
    with pytest.raises(ArtifactError, match=said):
        artifact.loads(json.dumps({**text, "checksum": artifact.checksum(text)}).encode())


def test_a_forged_certificate_without_labels_is_refused(data):
    logits, labels = data
    text = json.loads(artifact.dumps(mc.MetaCal(mc.MaxMiscoverage(0.2)).fit(logits, labels)))
    text["certificate"] |= {"labelled": False, "n_correct": None, "n_correct_accepted": None}
    text["certificate"] |= {"miscoverage": None, "selective_accuracy": None}
    with pytest.raises(ArtifactError, match="cannot be certified without labels"):
        artifact.loads(json.dumps({**text, "checksum": artifact.checksum(text)}).encode())


# ── verification and monitoring ───────────────────────────────────────────────────────────────────


def test_costs_are_verified(data):
    logits, labels = data
    for promise in (
        mc.MaxCost(20, 2),
        mc.MaxCost(TABLE, 0.25),
        mc.Cheapest(20, 1),
        mc.Cheapest(TABLE, 0.5),
    ):
        gate = mc.MetaCal(promise).fit(logits[:1500], labels[:1500])
        found = mc.verify(gate, logits[1500:], labels[1500:])
        assert not found.refuted
        (test,) = found.tests
        assert test.low <= test.value <= test.high
        assert (
            json.loads(json.dumps(found.to_dict()))["tests"][0]["n_rows"] == test.measurement.n_rows
        )
        noisy = mc.verify(gate, logits[1500:], np.random.default_rng(0).integers(3, size=1500))
        assert noisy.refuted
        assert "a cost of" in noisy.text()


def test_all_or_nothing_costs_have_the_exact_test_of_an_accuracy(data):
    logits, labels = data
    cost = mc.MetaCal(mc.MaxCost(20, 2)).fit(logits[:1500], labels[:1500])
    accuracy = mc.MetaCal(mc.MinAccuracy(0.9)).fit(logits[:1500], labels[:1500])
    one, other = (mc.verify(gate, logits[1500:], labels[1500:]) for gate in (cost, accuracy))
    assert math.isclose(one.p_value, other.p_value)
    assert math.isclose(one.tests[0].low, 20 * (1 - other.tests[0].high), abs_tol=1e-9)


def test_costs_are_watched(data):
    logits, labels = data
    gate = mc.MetaCal(mc.MaxCost(TABLE, 0.25)).fit(logits[:1500], labels[:1500]).gate_
    rows = mc.Rows(logits[1500:])
    accept, top = gate.accepts(rows), logits[1500:].argmax(axis=1)
    (monitor,) = mc.PromiseMonitor.of(gate.certificate, largest=gate.promise.largest)
    assert not monitor.update(accept, losses=gate.losses(labels[1500:], top)).alarm
    assert "cost 0." in str(monitor)
    again = mc.PromiseMonitor(**json.loads(json.dumps(asdict(monitor))))
    assert again.log_evidence == monitor.log_evidence
    shuffled = np.random.default_rng(0).integers(3, size=1500)
    assert monitor.update(accept, losses=gate.losses(shuffled, top)).alarm
    with pytest.raises(InputError, match="largest="):
        mc.PromiseMonitor.of(gate.certificate)
    with pytest.raises(InputError, match=r"losses=gate\.losses"):
        monitor.update(accept)


def test_a_binary_cost_is_watched_like_an_accuracy():
    rng = np.random.default_rng(0)
    accept, correct = rng.random(800) < 0.9, rng.random(800) < 0.85
    cost = mc.PromiseMonitor("cost", 0.1, largest_cost=5.0)
    share = mc.PromiseMonitor("selective accuracy", 0.1)
    losses = Losses(np.where(correct, 0.0, 5.0), 0.0, 5.0, True)
    assert math.isclose(
        cost.update(accept, losses=losses).log_highest_evidence,
        share.update(accept, correct).log_highest_evidence,
    )
    assert cost.monitored_quantity is COST
    assert REVIEW.count_events(accept, None) == REVIEW.count_events(accept, correct)


# ── the command line ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(name="folder", scope="module")
def _folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    logits, labels = data
    np.savez(folder / "val.npz", logits=logits, labels=labels)
    np.savez(folder / "bare.npz", logits=logits)
    (folder / "costs.csv").write_text("0,1,2\n4,0,1\n8,2,0\n", encoding="utf-8")
    (folder / "named.csv").write_text("truth,c,a,b\nb,1,4,0\na,2,0,1\nc,0,8,2\n", encoding="utf-8")
    (folder / "odd.csv").write_text("0,1\n4,0\n8,2\n", encoding="utf-8")
    return folder


def run(folder, *words):
    return CliRunner().invoke(
        main, [str(folder / word) if "." in word and word[0] > "9" else word for word in words]
    )


@pytest.mark.slow
def test_the_command_line_asks_for_each(folder):
    for words, promise in (
        (["--max-review", "0.2"], {"type": "MaxReview", "share": 0.2}),
        (
            ["--max-cost", "2", "--cost-wrong", "20"],
            {"type": "MaxCost", "limit": 2.0, "wrong": 20.0},
        ),
        (
            ["--max-cost", "0.25", "--cost-matrix", "costs.csv"],
            {"type": "MaxCost", "wrong": [list(r) for r in TABLE]},
        ),
        (
            ["--cheapest", "--cost-wrong", "20", "--cost-review", "1"],
            {"type": "Cheapest", "review": 1.0},
        ),
        (
            [
                "--cheapest",
                "--cost-matrix",
                "named.csv",
                "--cost-review",
                "1",
                "--classes",
                "a,b,c",
            ],
            {"type": "Cheapest", "wrong": [list(row) for row in TABLE]},
        ),
    ):
        done = run(folder, "fit", "val.npz", *words, "-o", "out.json", "--json")
        assert done.exit_code == 0, done.output
        shown = json.loads(run(folder, "show", "out.json", "--json").stdout)
        assert {**shown["promise"], **promise} == shown["promise"]
        assert run(folder, "verify", "out.json", "val.npz").exit_code == 1  # rows of the fit
        assert run(folder, "evaluate", "out.json", "val.npz", "--resamples", "20").exit_code == 0


def test_a_budget_from_the_command_line_needs_no_labels(folder):
    assert run(folder, "fit", "bare.npz", "--max-review", "0.2", "-o", "out.json").exit_code == 0
    done = run(folder, "verify", "out.json", "bare.npz")
    assert done.exit_code == 1
    assert "all 3,000 rows were part of the fit" in done.stdout
    table = np.load(folder / "bare.npz")["logits"]
    np.savez(folder / "other.npz", logits=table * 1.001)
    done = run(folder, "verify", "out.json", "other.npz")
    assert done.exit_code == 0
    assert "rows sent to review, of 3,000" in done.stdout
    assert "no labels found" in run(folder, "fit", "bare.npz", "--max-miscoverage", "0.2").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-review", "0.2", "--min-accuracy", "0.9"], "cannot be combined"),
        (["--max-cost", "2"], "--max-cost requires the cost of an"),
        (
            ["--max-cost", "2", "--cost-wrong", "5", "--cost-matrix", "costs.csv"],
            "--max-cost requires the cost of an",
        ),
        (["--cheapest", "--cost-wrong", "5"], "--cheapest requires the cost of reviewing"),
        (
            ["--max-cost", "2", "--cost-wrong", "5", "--cost-review", "1"],
            "--cost-review has no effect without --cheapest.",
        ),
        (["--max-review", "0.2", "--cost-wrong", "5"], "--cost-wrong has no"),
        (["--max-review", "0.2", "--after-looking"], "--after-looking supports only"),
        (["--max-review", "0.2", "--at-threshold=0.1"], "--at-threshold supports only"),
        (
            ["--max-review", "0.2", "--rule", "paper"],
            "--rule paper supports either --min-accuracy or --max-miscoverage",
        ),
        (["--max-review", "0.2", "--per-class"], "--per-class supports a single promise"),
        (
            ["--cheapest", "--cost-wrong", "5", "--cost-review", "1", "--in-expectation"],
            "cannot be combined",
        ),
        (["--max-cost", "-2", "--cost-wrong", "5"], "not a positive number"),
        (["--max-cost", "much", "--cost-wrong", "5"], "is not a number"),
        (["--max-cost", "1", "--cost-matrix", "odd.csv"], "one row per true class"),
        (
            ["--max-cost", "1", "--cost-matrix", "named.csv"],
            "the first line must name the predicted classes",
        ),
    ],
)
def test_wrong_usage_is_told(folder, words, said):
    done = run(folder, "fit", "val.npz", *words)
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_counts_after_replace_stay_honest():
    certificate = mc.MaxReview(0.2).certify(np.arange(100.0))
    assert math.isnan(certificate.miscoverage)
    assert math.isnan(certificate.selective_accuracy)
    assert read_certificate(certificate.to_dict()) == certificate
    assert mc.MaxReview(0.2).contradiction(replace(certificate, n_accepted=70)) is not None
