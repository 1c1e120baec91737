"""Judging, against counts by hand: each test is about one wire that could be plugged in the wrong
way.

Every population here is asymmetric (models of different accuracy, groups of different error rates,
costs that depend on the direction of a mistake), so that a swap of two columns changes a number.
"""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import binom, binomtest

import metacal as mc
from metacal.certificates.quantities import MISCOVERAGE, SELECTIVE_ACCURACY
from metacal.cli import main
from metacal.promises.judging import judge
from metacal.promises.measurement import Measurement
from metacal.promises.verdict import Verdict

N, K = 2000, 4


def logits(labels, gap, rng):
    return rng.normal(size=(len(labels), K)) + np.asarray(gap).reshape(-1, 1) * np.eye(K)[labels]


@pytest.fixture(scope="module")
def models():
    """A small model and a better large one, on rows to fit and on new rows."""
    rng = np.random.default_rng(0)
    labels = rng.integers(K, size=2 * N)
    return logits(labels, 2.0, rng), logits(labels, 4.0, rng), labels


@pytest.fixture(scope="module")
def cascade(models):
    small, large, labels = models
    return mc.Cascade(mc.MaxLoss(0.02)).fit(small[:N], labels[:N], large=large[:N])


# ── cascades ──────────────────────────────────────────────────────────────────────────────────────


def worse_and_better(cascade, small, large, labels):
    """Rows that the cascade answers worse, and better, than the large model alone."""
    by_small = ~cascade.needs_large(small)
    answer = np.where(by_small, small.argmax(axis=1), large.argmax(axis=1))
    correct, alone = answer == labels, large.argmax(axis=1) == labels
    return int((~correct & alone).sum()), int((correct & ~alone).sum())


def test_a_cascade_is_compared_with_its_last_model(models, cascade):
    small, large, labels = (part[N:] for part in models)
    worse, better = worse_and_better(cascade, small, large, labels)
    assert worse > better
    (test,) = mc.verify(cascade, small, labels, large=large).tests
    assert (test.measurement.n_bad, test.measurement.n_better, test.measurement.n_rows) == (
        worse,
        better,
        N,
    )
    assert test.value == pytest.approx((worse - better) / N)
    evaluated = mc.evaluate(cascade, small, labels, large=large, n_resamples=0)
    assert evaluated.verdict.value == pytest.approx((worse - better) / N)


def test_a_label_is_needed_where_the_cascade_differs_from_its_last_model(models, cascade):
    small, large, labels = (part[N:] for part in models)
    by_small = ~cascade.needs_large(small)
    differs = by_small & (small.argmax(axis=1) != large.argmax(axis=1))
    assert 0 < differs.sum() < N
    known = mc.verify(cascade, small, np.where(differs, labels, -1), large=large)
    complete = mc.verify(cascade, small, labels, large=large)
    assert known.tests[0].value == complete.tests[0].value
    one_missing = np.where(np.arange(N) == np.flatnonzero(differs)[0], -1, labels)
    with pytest.raises(mc.InputError, match="The two models disagree"):
        mc.verify(cascade, small, one_missing, large=large)


def test_a_broken_cascade_is_refuted(models, cascade):
    """The small model has become useless, and the cascade still asks it."""
    small, large, labels = (part[N:] for part in models)
    wrong = np.roll(small, 1, axis=1)
    worse, better = worse_and_better(cascade, wrong, large, labels)
    assert worse - better > 0.2 * N
    found = mc.verify(cascade, wrong, labels, large=large)
    assert (found.verdict.word, found.tests[0].measurement.n_bad) == ("refuted", worse)
    assert mc.evaluate(cascade, wrong, labels, large=large, n_resamples=0).verdict.refuted


def test_a_cascade_reports_the_accuracy_of_each_model(models, cascade):
    small, large, labels = (part[N:] for part in models)
    by_small = ~cascade.needs_large(small)
    first, second = mc.evaluate(cascade, small, labels, large=large, n_resamples=0).answered_by
    assert (first.name, first.n_rows, second.name, second.n_rows) == (
        "small",
        by_small.sum(),
        "large",
        (~by_small).sum(),
    )
    assert first.accuracy.estimate == pytest.approx(
        (small.argmax(axis=1) == labels)[by_small].mean()
    )
    assert second.accuracy.estimate == pytest.approx(
        (large.argmax(axis=1) == labels)[~by_small].mean()
    )


def test_a_cascade_of_scores_is_judged_by_the_model_that_answers():
    """Three models; on the rows that it leaves, the first one agrees with the last one less often
    than the second.
    """
    rng = np.random.default_rng(1)
    scores = [rng.random(2 * N), rng.random(2 * N)]
    agrees = [
        rng.random(2 * N) > 0.3 * (1.0 - scores[0]),
        rng.random(2 * N) > 0.1 * (1.0 - scores[1]),
    ]
    fitted = mc.Cascade(mc.MaxLoss(0.03)).fit(
        scores=[score[:N] for score in scores],
        agrees=[agree[:N] for agree in agrees],
        costs=[1, 3, 9],
    )
    new_scores, new_agrees = [score[N:] for score in scores], [agree[N:] for agree in agrees]
    by = fitted.gate_.decide(*new_scores, np.zeros(N)).by
    assert min(np.bincount(by)) > 100
    bad = int(sum(((by == k) & ~new_agrees[k]).sum() for k in (0, 1)))
    assert bad != int(((by < 2) & ~new_agrees[0]).sum())
    (test,) = mc.verify(fitted.gate_, new_scores, agrees=np.column_stack(new_agrees)).tests
    assert (test.measurement.n_bad, test.measurement.n_better, test.measurement.n_rows) == (
        bad,
        None,
        N,
    )


# ── labels and predictions ────────────────────────────────────────────────────────────────────────


def test_a_cost_depends_on_the_direction_of_the_mistake():
    """Calling class 0 another one costs 10, all other mistakes 1."""
    costs = np.where(np.eye(K, dtype=bool), 0.0, 1.0)
    costs[0, 1:] = 10.0
    rng = np.random.default_rng(2)
    labels = rng.integers(K, size=2 * N)
    table = logits(labels, 2.5, rng)
    table[:, 0] -= 1.0  # class 0 is missed more often than it is named in error
    cal = mc.MetaCal(mc.MaxCost(costs, 0.5)).fit(table[:N], labels[:N])
    accept, answer = cal.accepts(table[N:]), table[N:].argmax(axis=1)
    paid = costs[labels[N:], answer][accept]
    turned = costs[answer, labels[N:]][accept]
    assert paid.sum() > 1.5 * turned.sum()
    (test,) = mc.verify(cal, table[N:], labels[N:]).tests
    assert (test.measurement.n_rows, test.measurement.total_cost) == (
        accept.sum(),
        pytest.approx(paid.sum()),
    )
    assert mc.evaluate(cal, table[N:], labels[N:], n_resamples=0).verdict.value == pytest.approx(
        paid.mean()
    )


@pytest.mark.parametrize("promise", [mc.MinAccuracy(0.9), mc.MaxMiscoverage(0.1)])
def test_accepted_and_correct_are_not_swapped(models, promise):
    small, _, labels = models
    cal = mc.MetaCal(promise).fit(small[:N], labels[:N])
    accept, correct = cal.accepts(small[N:]), small[N:].argmax(axis=1) == labels[N:]
    found = mc.verify(cal, small[N:], labels[N:])
    (test,) = found.tests
    expected = {
        SELECTIVE_ACCURACY: (int((accept & ~correct).sum()), int(accept.sum())),
        MISCOVERAGE: (int((~accept & correct).sum()), int(correct.sum())),
    }
    assert (test.measurement.n_bad, test.measurement.n_rows) == expected[test.quantity]
    assert (found.n_rows, found.n_accepted) == (N, accept.sum())


# ── subgroups ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def sites():
    """Three groups of different accuracy, and a gate with a threshold for each."""
    rng = np.random.default_rng(3)
    labels, site = (
        rng.integers(K, size=3 * N),
        rng.choice(["east", "north", "west"], size=3 * N, p=[0.2, 0.5, 0.3]),
    )
    gap = np.select([site == "east", site == "north"], [3.5, 2.5], 4.5)
    table = logits(labels, gap, rng)
    cal = mc.MetaCal(mc.PerGroup(mc.MinAccuracy(0.85))).fit(table[:N], labels[:N], groups=site[:N])
    return cal, table[N:], labels[N:], site[N:]


def counted_in_groups(cal, table, labels, site):
    accept, correct = cal.accepts(table, groups=site), table.argmax(axis=1) == labels
    own = {name: accept & (site == name) for name in np.unique(site)}
    return {name: (int((rows & ~correct).sum()), int(rows.sum())) for name, rows in own.items()}


@pytest.mark.parametrize("broken", ["east", "north", "west"])
def test_one_broken_subgroup_refutes_the_promise_and_is_named(sites, broken):
    cal, table, labels, site = sites
    wrong = (site == broken) & (np.arange(len(labels)) % 3 == 0)
    labels = np.where(wrong, (table.argmax(axis=1) + 1) % K, labels)
    expected = counted_in_groups(cal, table, labels, site)
    assert len(set(expected.values())) == 3
    found = mc.verify(cal, table, labels, groups=site)
    assert {
        test.subgroup: (test.measurement.n_bad, test.measurement.n_rows) for test in found.tests
    } == expected
    assert {test.subgroup for test in found.tests if test.refuted} == {broken}
    assert (found.verdict.word, found.refuted, found.tests[0].subgroup) == ("refuted", True, broken)
    evaluated = mc.evaluate(cal, table, labels, groups=site, n_resamples=0).verdict
    assert (evaluated.word, evaluated.subgroup) == ("refuted", broken)
    assert {own.subgroup: own.word for own in evaluated.subgroup_verdicts}[broken] == "refuted"


def test_a_promise_is_kept_only_if_every_subgroup_keeps_it(sites):
    """One group misses its target by so little that it may be chance; the others keep it."""
    cal, table, labels, site = sites
    accept = cal.accepts(table, groups=site)
    rows = np.flatnonzero(accept & (site == "west"))
    correct = np.flatnonzero(accept & (site == "west") & (table.argmax(axis=1) == labels))
    n_bad = int(np.ceil(0.155 * len(rows))) - (len(rows) - len(correct))
    labels = labels.copy()
    labels[correct[:n_bad]] = (labels[correct[:n_bad]] + 1) % K
    found = mc.verify(cal, table, labels, groups=site).verdict
    words = {own.subgroup: own.word for own in found.tests}
    assert words == {"east": "kept", "north": "kept", "west": "undecided"}
    assert (found.word, found.kept, found.refuted) == ("undecided", False, False)


def test_groups_belong_to_their_rows(sites):
    """Groups in another order are other groups: a column that is dropped or sorted would not
    notice.
    """
    cal, table, labels, site = sites
    expected = counted_in_groups(cal, table, labels, np.sort(site))
    found = mc.verify(cal, table, labels, groups=np.sort(site))
    assert {
        test.subgroup: (test.measurement.n_bad, test.measurement.n_rows) for test in found.tests
    } == expected
    assert expected != counted_in_groups(cal, table, labels, site)
    with pytest.raises(mc.InputError, match="group"):
        mc.verify(cal, table, labels)


def test_classes_are_judged_by_what_was_predicted(models):
    small, _, labels = models
    small = small - np.array([0.0, 0.5, 1.0, 1.5])
    cal = mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.75))).fit(small[:N], labels[:N])
    accept, answer = cal.accepts(small[N:]), small[N:].argmax(axis=1)
    own = {str(k): accept & (answer == k) for k in range(K)}
    expected = {
        name: (int((rows & (answer != labels[N:])).sum()), int(rows.sum()))
        for name, rows in own.items()
    }
    found = mc.verify(cal, small[N:], labels[N:])
    assert {
        test.subgroup: (test.measurement.n_bad, test.measurement.n_rows) for test in found.tests
    } == {name: counts for name, counts in expected.items() if counts[1]}


# ── units and weights ─────────────────────────────────────────────────────────────────────────────


def test_units_are_counted_and_not_their_rows():
    """One unit of many wrong rows is one unit: taken for rows, it refutes a promise that is
    kept.
    """
    rng = np.random.default_rng(4)
    score = rng.random(2 * N)
    correct = rng.random(2 * N) > 0.3 * (1.0 - score)
    gate = mc.ScoreGate(mc.MinAccuracy(0.8)).fit(score[:N], correct[:N], units=np.arange(N))
    n_units = 400
    units = np.concatenate([np.arange(n_units), np.zeros(1600, dtype=int)])
    new_score, new_correct = score[N:].copy(), correct[N:].copy()
    new_score[n_units:], new_correct[n_units:] = (
        new_score[:1600] * 0.0 + 0.99 + 1e-6 * np.arange(1600),
        False,
    )
    assert mc.verify(gate, new_score, new_correct).refuted
    found = mc.verify(gate, new_score, new_correct, units=units)
    assert (found.refuted, found.n_rows, found.units) == (False, n_units, "unit")


def test_a_row_of_each_unit_has_its_own_truth():
    """All rows of a unit have the same outcome, so that the counts do not depend on which of them
    is drawn.
    """
    rng = np.random.default_rng(6)
    score = rng.random(N)
    gate = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(
        score, rng.random(N) > 0.3 * (1.0 - score), units=np.arange(N)
    )
    n_units, each = 300, 5
    unit_score, unit_correct = rng.random(n_units), rng.random(n_units) < 0.7
    units = rng.permutation(np.repeat(np.arange(n_units), each))
    found = mc.verify(
        gate, unit_score[units] + 1e-9 * rng.random(len(units)), unit_correct[units], units=units
    )
    accept = gate.accepts(unit_score)
    assert 0.1 < accept.mean() < 0.9
    (test,) = found.tests
    assert (test.measurement.n_bad, test.measurement.n_rows) == (
        (accept & ~unit_correct).sum(),
        accept.sum(),
    )


def test_a_row_of_each_unit_has_its_own_loss():
    """All rows of a unit have the same score and loss; the units come in random order."""
    rng = np.random.default_rng(7)
    score = rng.random(N)
    loss = 0.4 * (1.0 - score) * rng.random(N)
    gate = mc.ScoreGate(mc.MaxRisk(0.1)).fit(score, loss=loss, units=np.arange(N))
    n_units, each = 300, 5
    unit_score = rng.random(n_units)
    unit_loss = 0.5 * rng.random(n_units) * (unit_score > 0.5)
    units = rng.permutation(np.repeat(np.arange(n_units), each))
    shifts = 1e-9 * rng.random(len(units))
    found = mc.verify(gate, unit_score[units] + shifts, unit_loss[units], units=units)
    accept = gate.accepts(unit_score)
    assert 0.1 < accept.mean() < 1.0
    (test,) = found.tests
    assert (found.n_rows, test.measurement.n_rows) == (n_units, accept.sum())
    assert test.value == pytest.approx(unit_loss[accept].mean())


def test_units_of_a_subgroup_are_bets_on_whole_units(sites):
    """Each group has a few clusters of many equal rows: taken for independent rows, they refute."""
    cal, table, labels, site = sites
    accept = cal.accepts(table, groups=site)
    correct = table.argmax(axis=1) == labels
    wrong_rows = [
        np.flatnonzero(accept & ~correct & (site == name))[:6] for name in np.unique(site)
    ]
    n_copies = 60
    copied = np.repeat(np.concatenate(wrong_rows), n_copies)
    rows = np.concatenate([np.arange(len(labels)), copied])
    clusters = rows
    assert mc.verify(cal, table[rows], labels[rows], groups=site[rows]).refuted
    found = mc.verify(
        cal, table[rows], labels[rows], groups=site[rows], units=mc.Units(clusters, per="row")
    )
    assert (found.refuted, found.units) == (False, "row")
    assert all(test.measurement.cluster_counts is not None for test in found.tests)


# ── intervals and levels ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("quantity", "target"), [(SELECTIVE_ACCURACY, 0.9), (MISCOVERAGE, 0.1)])
@pytest.mark.parametrize("level", [0.9, 0.99])
@pytest.mark.parametrize("bad", [0, 5, 18, 20, 22, 40, 200])
def test_the_interval_is_that_of_clopper_and_pearson_and_gives_the_word(
    quantity, target, level, bad
):
    n = 200
    seen = Measurement(
        quantity, target, bad / n if quantity.has_upper_limit else 1.0 - bad / n, bad, n
    )
    verdict = Verdict.from_measurement(seen, level)
    hit = bad if quantity.has_upper_limit else n - bad
    expected = binomtest(hit, n).proportion_ci(level, method="exact")
    assert (verdict.low, verdict.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert verdict.kept == (bad <= 20)
    beyond = expected.low > 0.1 if quantity.has_upper_limit else expected.high < 0.9
    assert verdict.refuted == beyond
    assert verdict.word == ("refuted" if beyond else "kept" if bad <= 20 else "undecided")
    assert verdict.p_value == pytest.approx(binom.sf(bad - 1, n, 0.1), rel=1e-6)


def test_several_limits_share_the_error_rate(models):
    small, _, labels = models
    cal = mc.MetaCal(mc.Both(alpha=0.6, beta=0.85)).fit(small[:N], labels[:N])
    accept, correct = cal.accepts(small[N:]), small[N:].argmax(axis=1) == labels[N:]
    for test in mc.verify(cal, small[N:], labels[N:], confidence=0.9).tests:
        assert test.level == pytest.approx(0.95)
        hit, n = {
            SELECTIVE_ACCURACY: (int((accept & correct).sum()), int(accept.sum())),
            MISCOVERAGE: (int((~accept & correct).sum()), int(correct.sum())),
        }[test.quantity]
        expected = binomtest(hit, n).proportion_ci(0.95, method="exact")
        assert (test.low, test.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("missed", [SELECTIVE_ACCURACY, MISCOVERAGE])
def test_both_limits_must_be_kept(missed):
    """One limit is missed by so little that it may be chance, whichever it is; the other is
    kept.
    """
    certificate = mc.Both(alpha=0.3, beta=0.8).certify(
        np.linspace(0, 1, 500), np.arange(500) % 500 > 5
    )
    n_accepted, n_wrong, n_rejected_correct = (
        (400, 81, 50) if missed == SELECTIVE_ACCURACY else (400, 20, 165)
    )
    accept = np.arange(700) < n_accepted
    correct = (accept & (np.arange(700) >= n_wrong)) | (np.arange(700) >= 700 - n_rejected_correct)
    verdict = judge(certificate, accept, correct, 0.95)
    assert {test.quantity: test.kept for test in verdict.tests} == {
        SELECTIVE_ACCURACY: missed != SELECTIVE_ACCURACY,
        MISCOVERAGE: missed != MISCOVERAGE,
    }
    assert (verdict.word, verdict.kept) == ("undecided", False)


def test_a_kept_promise_is_refuted_as_rarely_as_said():
    """The error rate of accepted rows is exactly the limit: at most 2.5% of the tests at 95% may
    refute.
    """
    rng = np.random.default_rng(5)
    certificate = mc.MinAccuracy(0.9).certify(np.linspace(0, 1, 500), np.arange(500) % 50 > 0)
    accept, draws = np.ones(400, dtype=bool), 2000
    refuted = sum(
        judge(certificate, accept, rng.random(400) < 0.9, 0.95).refuted for _ in range(draws)
    )
    assert 0.002 < refuted / draws <= 0.025 + 3.0 * np.sqrt(0.025 * 0.975 / draws)


# ── monitors, files and exports ───────────────────────────────────────────────────────────────────


def test_a_monitor_counts_accepted_rows_alone(models):
    """Every rejected row is wrong: a monitor that is fed with them raises an alarm at once."""
    small, _, labels = models
    cal = mc.MetaCal(mc.MinAccuracy(0.9)).fit(small[:N], labels[:N])
    accept, answer = cal.accepts(small[N:]), small[N:].argmax(axis=1)
    truth = np.where(accept, labels[N:], (answer + 1) % K)
    watch = mc.Watch.of(cal)
    watch.update(small[N:], truth)
    (monitor,) = watch.alarms.promise
    assert (monitor.n_rows, monitor.event_sum) == (accept.sum(), (accept & (answer != truth)).sum())
    assert not monitor.alarm


@pytest.mark.parametrize("labels_follow", [False, True])
def test_a_monitor_of_a_subgroup_counts_its_own_rows(sites, labels_follow):
    cal, table, labels, site = sites
    watch = mc.Watch.of(cal)
    if labels_follow:
        watch.update(table, ids=range(len(table)), groups=site)
        order = np.random.default_rng(7).permutation(len(table))
        watch.label(order.tolist(), labels[order])
    else:
        watch.update(table, labels, groups=site)
    found = {
        monitor.subgroup_names[0]: (monitor.event_sum, monitor.n_rows)
        for monitor in watch.alarms.promise
    }
    assert found == counted_in_groups(cal, table, labels, site)


def test_apply_writes_what_accepts_says(sites, tmp_path):
    cal, table, _, site = sites
    cal.save(tmp_path / "cal.json")
    with (tmp_path / "new.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["site", *range(K)])
        lines.writerows([name, *map(repr, row)] for name, row in zip(site.tolist(), table.tolist()))
    words = ["apply", "cal.json", "new.csv", "--group-key", "site", "-o", "out.csv"]
    done = CliRunner().invoke(
        main, [str(tmp_path / word) if "." in word else word for word in words]
    )
    assert done.exit_code == 0, done.output
    with (tmp_path / "out.csv").open(newline="") as file:
        written = [row["accept"] for row in csv.DictReader(file)]
    assert [word.lower() in ("1", "true") for word in written] == cal.accepts(
        table, groups=site
    ).tolist()


def test_an_exported_gate_accepts_what_the_gate_accepts(models, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    small, _, labels = models
    cal = mc.MetaCal(mc.MinAccuracy(0.9)).fit(small[:N], labels[:N])
    cal.export(tmp_path / "gate.onnx")
    session = runtime.InferenceSession(str(tmp_path / "gate.onnx"))
    (given,) = session.get_inputs()
    rows = small[N:].astype(np.float32)
    (accept,) = session.run(["accept"], {given.name: rows})
    accepted = cal.accepts(rows)
    assert 0.1 < accepted.mean() < 0.95
    np.testing.assert_array_equal(np.asarray(accept).ravel().astype(bool), accepted)


def test_commands_and_functions_have_the_same_verdict(sites, tmp_path):
    """`metacal verify` and `mc.verify` read the same columns: labels, groups, and nothing in place
    of them.
    """
    cal, table, labels, site = sites
    cal.save(tmp_path / "cal.json")
    with (tmp_path / "new.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["site", *range(K), "label"])
        lines.writerows(
            [name, *map(repr, row), label] for name, row, label in zip(site, table.tolist(), labels)
        )
    words = [
        "verify",
        str(tmp_path / "cal.json"),
        str(tmp_path / "new.csv"),
        "--group-key",
        "site",
        "--json",
    ]
    told = json.loads(CliRunner().invoke(main, words).stdout)
    expected = mc.verify(cal, table, labels, groups=site)
    assert told["tests"] == json.loads(json.dumps(expected.to_dict()["tests"]))
    assert told["verdict"] == expected.verdict.word
