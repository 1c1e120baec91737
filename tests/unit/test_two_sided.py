"""Two classes with two sides: what is called positive, what is called negative, what goes to
review.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.certification.even_odds import find_even_odds_score
from metacal.certification.plans import PilotRows
from metacal.cli import main
from metacal.io.artifact.audit import read_certificate
from metacal.io.batches import BatchGate
from metacal.promises import Sample
from metacal.reports.summary import summarise

RNG = np.random.default_rng(3)
N = 3000
SCORES = RNG.normal(size=2 * N) * 2.0
FRAUD = RNG.random(2 * N) < 1.0 / (1.0 + np.exp(1.0 - 1.5 * SCORES))
NAMES = np.where(FRAUD, "fraud", "fine")
BOTH = mc.TwoSided(mc.MinPrecision(0.85), mc.MinRecall(0.95))
GROUP = RNG.choice(["north", "rare", "south"], size=2 * N, p=[0.45, 0.1, 0.45])
#: Scores of the south are higher by two, whatever the truth is.
SHIFTED = SCORES + 2.0 * (GROUP == "south")


@pytest.fixture(scope="module")
def both():
    return mc.MetaCal(BOTH, positive="fraud").fit(SCORES[:N], NAMES[:N])


@pytest.fixture(scope="module")
def by_group():
    return mc.MetaCal(mc.PerGroup(BOTH), positive="fraud").fit(
        SHIFTED[:N], NAMES[:N], groups=GROUP[:N]
    )


def counted(promise, s, positive):
    """What is certified of either side: rows called so, and those of them that are not."""
    certificate = promise.certify(Sample(s, positive))
    return {
        part.names[0]: (part.n_accepted, part.n_accepted - part.n_correct_accepted)
        for part in certificate.subgroups.items
    }


def test_rows_are_called_by_their_log_odds(both):
    certificate, label = both.certificate_, both.predict(SCORES)
    low, high = SCORES[label == "fine"].max(), SCORES[label == "fraud"].min()
    review = label == "rejected"
    assert low < SCORES[review].min() < SCORES[review].max() < high
    assert certificate.traffic.n_accepted == (~review[:N]).sum()
    assert certificate.n_rows == N - 10  # the others show how rare fraud is
    assert (
        certificate.statement
        == "At least 85% of the rows predicted fraud are fraud, and at least 95% of the"
        " fraud rows are predicted fraud or sent to review, with 90% confidence for both together."
    )
    assert f"called fraud if log-odds > {high:.2f}"[:26] in str(certificate)


def test_recall_is_an_order_statistic():
    s = np.arange(1000.0)
    positive = s >= 500
    # P(Bin(500, .05) <= 18) <= .1 < P(Bin(500, .05) <= 19): rows before the 19th positive are
    # dismissed
    assert counted(mc.MinRecall(0.95), s, positive) == {0: (518, 18), 1: (0, 0)}
    assert counted(mc.MaxFalsePositiveRate(0.05), -s, ~positive)[1] == (518, 18)


def test_precision_of_either_class_is_the_same_rule():
    s, positive = SCORES[:N], FRAUD[:N]
    one, other = (
        counted(mc.MinPrecision(0.8), s, positive),
        counted(mc.MinPrecision(0.8, positive=0), -s, ~positive),
    )
    assert one[1] == other[0] != (0, 0)
    assert one[0] == other[1] == (0, 0)


def test_a_declared_share_helps_a_rare_class():
    rng = np.random.default_rng(0)
    s = rng.normal(size=1000) * 3.0
    rare = rng.random(1000) < 1.0 / (1.0 + np.exp(8.0 - 2.0 * s))
    with pytest.raises(mc.InfeasibleTargetError, match="Cannot certify"):
        mc.MinAccuracy(0.85).certify(-s, rare)  # its starts are for what all rows are
    assert counted(mc.MinPrecision(0.85, share=0.1), s, rare)[1][0] > 20


def test_marks_are_tested_at_their_values():
    marks, chance = (
        np.repeat([-3.0, -1.0, 0.0, 1.0, 3.0], 300),
        np.repeat([0.02, 0.1, 0.5, 0.92, 0.98], 300),
    )
    sample = Sample(marks, np.random.default_rng(1).random(1500) < chance)
    with pytest.raises(mc.InfeasibleTargetError):  # at ranks, wrong ones first
        mc.MinPrecision(0.9).certify(sample)
    found = mc.MinPrecision(0.9).certify(
        replace(sample, pilot=PilotRows(marks[::50], requires_score_value_tests=True))
    )
    assert found.subgroups.items[1].n_accepted == 600
    with pytest.warns(mc.MetacalWarning, match="whole number|repeat"):
        gate = mc.MetaCal(mc.MinPrecision(0.9)).fit(marks, sample.correct)
    design = gate.certificate_.design
    assert (design.tests_score_values, design.n_pilot_rows) == (True, 10)
    # Rows at -3, -1 and 0 are read until half of a window is positive.
    assert 900 - 10 <= design.n_planning_rows <= 900
    assert gate.accepts([0.0, 1.0, 3.0]).tolist() == [False, True, True]


def test_pilot_rows_are_drawn_whatever_their_class():
    rows = Sample(SCORES, FRAUD, truth=FRAUD.astype(int), classes=(0, 1)).rows
    policy = mc.MinPrecision(0.9).procedure().build_pilot_policy()
    pilot = policy.withhold_pilot_rows(rows).pilot_rows
    assert pilot.n_withheld == 10  # they show no tie
    assert sorted(pilot.scores) == sorted(
        mc.MinPrecision(0.9, positive=0)
        .procedure()
        .build_pilot_policy()
        .withhold_pilot_rows(rows)
        .pilot_rows.scores
    )


def test_sides_that_overlap_meet_at_even_odds():
    s = np.linspace(-50.0, 50.0, 4000)
    positive = RNG.random(4000) < 1.0 / (1.0 + np.exp(-s))
    certificate = mc.TwoSided(mc.MinPrecision(0.8), mc.MinPrecision(0.8, positive=0)).certify(
        Sample(s, positive)
    )
    assert certificate.coverage > 0.99
    assert abs(certificate.decision_at - find_even_odds_score(s, positive)) < 1.0


@pytest.mark.filterwarnings("ignore:no row is predicted fine")
def test_a_side_that_cannot_be_certified_is_closed():
    s, few = np.arange(2000.0), np.arange(2000) >= 1980
    certificate = mc.TwoSided(mc.MinPrecision(0.5, share=0.01), mc.MinRecall(0.99)).certify(
        Sample(s, few, classes=("fine", "fraud"))
    )
    closed, opened = certificate.subgroups.items
    assert (closed.status, opened.n_accepted > 10) == ("always rejected", True)
    assert "no row is predicted fine: recall of fraud 0.99 is not certified" in str(certificate)
    with pytest.raises(
        mc.InfeasibleTargetError, match="At least 230 rows of 1 are required; there are 20"
    ):
        mc.MinRecall(0.99).certify(Sample(s, few))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: mc.TwoSided(mc.MinPrecision(0.9), mc.MinAccuracy(0.9)),
            "TwoSided requires two of",
        ),
        (lambda: mc.MinRecall(0.9, delta=None), "delta must be"),
        (lambda: mc.MinPrecision(0.9, share=2), "share must be"),
        (
            lambda: mc.TwoSided(mc.MinPrecision(0.9), mc.MaxFalsePositiveRate(0.1)).certify(
                [0.0, 1.0], [False, True]
            ),
            "Both",
        ),
        (
            lambda: mc.MinRecall(0.9, positive="theft").certify([0.0, 1.0], [False, True]),
            "positive must be",
        ),
        (
            lambda: mc.MetaCal(mc.MinRecall(0.9)).fit(np.zeros((6, 3)), [0, 1, 2] * 2),
            "requires two classes",
        ),
        (
            lambda: mc.ScoreGate(mc.MinRecall(0.9)).fit(SCORES, FRAUD),
            "requires the true class",
        ),
        (lambda: mc.Certifier(mc.MinRecall(0.9), SCORES), "requires the true class"),
        (
            lambda: mc.MetaCal(BOTH).fit(
                SCORES, FRAUD, units=mc.Units(np.arange(2 * N) // 2, per="row")
            ),
            "one row of each",
        ),
        (lambda: mc.PerClass(mc.MinRecall(0.9)), "For two classes, PerGroup"),
        (lambda: mc.PerGroup(mc.MaxReview(0.1)), "For two classes, PerGroup"),
        (
            lambda: mc.ScoreGate(mc.PerGroup(mc.MinRecall(0.9))).fit(SCORES, FRAUD, groups=GROUP),
            "requires the true class",
        ),
        (
            lambda: mc.MetaCal(BOTH, decision="calibrated").fit(SCORES, FRAUD),
            "chooses its own decisions",
        ),
        (
            lambda: mc.MetaCal(mc.MinAccuracy(0.9), decision="mine").fit(SCORES, FRAUD),
            "'largest' or 'calibrated'",
        ),
    ],
)
def test_what_cannot_be_meant(make, message):
    with pytest.raises(mc.InputError, match=message):
        make()


def test_verified_watched_and_judged_over_all_rows_of_a_class(both):
    new, truth = SCORES[N:], NAMES[N:]
    label = both.predict(new)
    missed, caught = (label == "fine") & FRAUD[N:], (label == "fraud") & FRAUD[N:]
    tests = {str(test.quantity): test.measurement for test in mc.verify(both, new, truth).tests}
    assert (tests["recall"].n_bad, tests["recall"].n_rows) == (missed.sum(), FRAUD[N:].sum())
    assert (tests["precision"].n_bad, tests["precision"].n_rows) == (
        (label == "fraud").sum() - caught.sum(),
        (label == "fraud").sum(),
    )
    watch = mc.Watch.of(both)
    watch.update(new, truth)
    watched = {monitor.quantity: monitor for monitor in watch.alarms.promise}
    assert (watched["recall"].event_sum, watched["recall"].n_rows) == (
        missed.sum(),
        FRAUD[N:].sum(),
    )
    assert mc.verify(both, new, np.where(FRAUD[N:], "fine", "fraud")).refuted


def test_forged_sides_are_refused(both):
    certificate = both.certificate_
    assert BOTH.contradiction(certificate) is None
    fine, fraud = certificate.subgroups.items
    forged = {
        "certify nothing": (fine, replace(fraud, n_correct_accepted=fraud.n_correct_accepted - 60)),
        "does not belong": (replace(fine, target=0.8), fraud),
        "class fine: .* certify nothing": (
            replace(fine, n_correct_accepted=fine.n_correct_accepted - 60),
            fraud,
        ),
    }
    for why, items in forged.items():
        other = replace(certificate, subgroups=replace(certificate.subgroups, items=items))
        assert re.search(why, BOTH.find_count_contradiction(other))


def test_each_group_has_two_sides_of_its_own(by_group):
    label, policy = by_group.predict(SHIFTED, groups=GROUP), by_group.gate_.thresholds
    assert policy.subgroup_names == ("north", "rare", "south")
    for group, lower, at in zip(
        policy.subgroup_names, policy.subgroup_thresholds, policy.group_decision_offsets
    ):
        s, said = SHIFTED[group == GROUP], label[group == GROUP]
        assert np.array_equal(said == "fraud", s > at - lower[1])
        assert np.array_equal(said == "fine", s < at + lower[0])
    assert policy.group_decision_offsets[2] - policy.group_decision_offsets[0] == pytest.approx(
        2.0, abs=0.6
    )
    certificate = by_group.certificate_
    assert (
        certificate.statement
        == "For every group, at least 85% of the rows predicted fraud are fraud, and at least 95% of"
        " the fraud rows are predicted fraud or sent to review, with 90% confidence for all groups together."
    )
    assert certificate.traffic.n_accepted == (label[:N] != "rejected").sum()
    assert sum(part.delta for part in certificate.subgroups.items) == pytest.approx(0.1)
    assert "north: called fraud if log-odds >" in str(certificate)
    with pytest.warns(mc.MetacalWarning, match="moon"):
        assert set(by_group.predict([9.0, -9.0], groups=["moon", "moon"])) == {"rejected"}
    with pytest.raises(mc.InputError, match="the group"):
        by_group.predict(SHIFTED)
    with pytest.raises(mc.InputError, match="rows of each group"):
        by_group.ranking_scores(SHIFTED)
    proba = by_group.predict_proba(SHIFTED, groups=GROUP, rejected="uniform")
    assert np.array_equal((proba == 0.5).all(axis=1), label == "rejected")


def test_the_rows_of_a_group_are_decided_as_if_alone():
    """At the share of delta that a group has, its sides are those of its rows by themselves."""
    promise, s, y = mc.TwoSided(mc.MinPrecision(0.85), mc.MinRecall(0.95)), SHIFTED[:N], FRAUD[:N]
    codes = np.searchsorted(["north", "rare", "south"], GROUP[:N])
    together = mc.PerGroup(promise).certify(
        Sample(s, y, part=codes, names=("north", "rare", "south"))
    )
    for code, family in enumerate(together.subgroups.sides_by_group):
        alone = promise.with_delta(0.1 / 3).certify(Sample(s[codes == code], y[codes == code]))
        assert [part.threshold for part in family] == [
            part.threshold for part in alone.subgroups.items
        ]
        assert family[0].decision_log_odds == alone.decision_at


def test_groups_are_verified_watched_and_counted(by_group, tmp_path):
    new, truth, group = SHIFTED[N:], NAMES[N:], GROUP[N:]
    label = by_group.predict(new, groups=group)
    south, frauds = group == "south", (truth == "fraud") & (group == "south")
    found = mc.verify(by_group, new, truth, groups=group)
    tests = {(test.subgroup, test.measured_quantity): test.measurement for test in found.tests}
    missed = (label == "fine") & frauds
    recall, precision = tests["south", "recall of fraud"], tests["south", "precision of fraud"]
    assert (recall.n_bad, recall.n_rows) == (missed.sum(), frauds.sum())
    called = (label == "fraud") & south
    assert (precision.n_bad, precision.n_rows) == ((called & ~frauds).sum(), called.sum())
    watch = mc.Watch.of(by_group)
    watch.update(new, truth, groups=group)
    watched = {
        (*monitor.subgroup_names, monitor.predicted_class): (monitor.event_sum, monitor.n_rows)
        for monitor in watch.alarms.promise
    }
    assert watched["south", "fine"] == (missed.sum(), frauds.sum())
    assert watched["south", "fraud"] == ((called & ~frauds).sum(), called.sum())
    mc.save_watch(watch, tmp_path / "watch.json")
    assert mc.load_watch(tmp_path / "watch.json", by_group).alarms == watch.alarms
    rows = by_group.certificate_.next_rows(1000, part="south")
    assert rows.fewest < 1000 * (label[south] == "rejected").mean() < rows.most
    verdict = mc.evaluate(by_group, new, truth, groups=group, n_resamples=0).verdict
    assert (verdict.subgroup, verdict.measured_quantity) in tests
    assert mc.verify(by_group, new, truth, groups=np.roll(group, 1)).refuted


def test_sides_that_read_alike_are_two(by_group):
    """A side is known by its group and what its rows are called: "a, called b, called c" says
    neither.
    """
    groups = np.where(GROUP == "north", "a", "a, called b")
    names = np.where(FRAUD, "b, called c", "c")
    alike = {("a", "b, called c"), ("a, called b", "c")}
    cal = mc.MetaCal(mc.PerGroup(BOTH), positive="b, called c").fit(
        SHIFTED[:N], names[:N], groups=groups[:N]
    )
    new = SHIFTED[N:], names[N:]
    label = cal.predict(new[0], groups=groups[N:])
    rows = {side: int(((groups[N:] == side[0]) & (label == side[1])).sum()) for side in alike}
    of_class = {("a, called b", "c"): int(((groups[N:] == "a, called b") & FRAUD[N:]).sum())}
    called_by = {"precision": "b, called c", "recall": "c"}
    tests = mc.verify(cal, *new, groups=groups[N:]).tests
    n_tested = {
        (test.subgroup, called_by[test.quantity]): test.measurement.n_rows for test in tests
    }
    assert {test.class_name for test in tests} == {"b, called c"}
    assert {side: n_tested[side] for side in alike} == rows | of_class
    watch = mc.Watch.of(cal)
    watch.update(*new, groups=groups[N:])
    own = {(*one.subgroup_names, one.predicted_class): one.n_rows for one in watch.alarms.promise}
    assert {side: own[side] for side in alike} == rows | of_class
    rejected = {
        (*one.subgroup_names, one.predicted_class): one.n_rows - one.n_rejected
        for one in watch.alarms.abstention
    }
    assert {side: rejected[side] for side in alike} == rows
    table = next(
        table for table in summarise(*new, cal, groups=groups[N:]).parts if table["by"] == "group"
    )
    assert sorted(table["accepted"][np.array(table["name"]) == "a, called b, called c"]) == sorted(
        rows.values()
    )
    assert len(set(table["threshold"][np.array(table["name"]) == "a, called b, called c"])) == 2


def test_groups_that_cannot_carry_a_side():
    y = FRAUD[:N].copy()
    y[GROUP[:N] == "north"] |= (
        SHIFTED[:N][GROUP[:N] == "north"] > -3.0
    )  # nearly all of them: calling all so would do
    found = mc.MetaCal(mc.PerGroup(mc.MinPrecision(0.8))).fit(SHIFTED[:N], y, groups=GROUP[:N])
    north = [part for part in found.certificate_.subgroups.items if part.names == ("north",)]
    assert [part.status for part in north] == ["always rejected"] * 2
    few = mc.MetaCal(mc.PerGroup(mc.MinRecall(0.99))).fit(SHIFTED[:N], FRAUD[:N], groups=GROUP[:N])
    assert (
        "rare: no row is predicted False: recall of True 0.99 is not certified; it takes at least"
        in str(few.certificate_)
    )
    certificate, parts = few.certificate_, few.certificate_.subgroups
    closed = next(part for part in parts.items if part.rows_needed)
    for forged in (
        replace(closed, target=0.8),
        replace(closed, rows_needed=7),
        replace(closed, delta=None),
    ):
        items = tuple(forged if part is closed else part for part in parts.items)
        said = few.promise.find_count_contradiction(
            replace(certificate, subgroups=replace(parts, items=items))
        )
        assert said is None or "group rare: class False: the certificate does not belong" in said
        assert (said is None) == (forged == closed)
    with pytest.raises(
        mc.InfeasibleTargetError, match=r"\(3 in these 200 rows\).* collect at least"
    ):
        mc.MetaCal(mc.PerGroup(mc.MinRecall(0.99))).fit(
            SHIFTED[:200], FRAUD[:200], groups=GROUP[:200]
        )
    pooled = mc.PerGroup(mc.MinRecall(0.97), fallback="pooled")
    names = np.where(GROUP == "rare", np.where(np.arange(2 * N) % 2 == 0, "one", "two"), GROUP)
    part = (
        mc.MetaCal(pooled)
        .fit(SHIFTED[:N], FRAUD[:N], groups=names[:N])
        .certificate_.subgroups.items[-2]
    )
    assert (part.names, part.name_without_side) == (("one", "two"), "2 pooled")


def test_a_group_is_saved_and_forgeries_are_found(by_group, tmp_path):
    mc.save(by_group, tmp_path / "gate.json")
    again = mc.load(tmp_path / "gate.json")
    assert again.certificate_ == by_group.certificate_
    assert np.array_equal(
        again.predict(SHIFTED, groups=GROUP), by_group.predict(SHIFTED, groups=GROUP)
    )
    certificate, promise = by_group.certificate_, by_group.promise
    assert promise.contradiction(certificate) is None
    fine, fraud, *rest = certificate.subgroups.items
    forged = {
        "group north: class fraud: .* certify nothing": (
            fine,
            replace(fraud, n_correct_accepted=900),
            *rest,
        ),
        "group north: .* does not belong": (replace(fine, target=0.8), fraud, *rest),
        "more than its share": (replace(fine, delta=0.05), replace(fraud, delta=0.05), *rest),
    }
    for why, items in forged.items():
        assert re.search(
            why,
            promise.find_count_contradiction(
                replace(certificate, subgroups=replace(certificate.subgroups, items=items))
            ),
        )
    data = certificate.to_dict()
    for change, why in (
        ({"at": 7.0}, "not of one"),
        ({"called": "fraud"}, "same name"),
        ({"names": ["x"]}, "not of one"),
    ):
        items = [{**data["parts"]["items"][0], **change}, *data["parts"]["items"][1:]]
        with pytest.raises(mc.ArtifactError, match=why):
            read_certificate({**data, "parts": {**data["parts"], "items": items}})


def test_labels_of_decisions_are_as_they_came():
    cal = mc.MetaCal(mc.MinRecall(0.95)).fit(SCORES[:N], FRAUD[:N])
    label = cal.decide(SCORES).label
    assert label.tolist() == cal.predict(SCORES).tolist()
    assert {type(one) for one in label.tolist()} == {bool, int}


def test_a_learned_decision_has_rows_of_its_own():
    moved = SCORES[:N] + 3.0
    usual = mc.MetaCal(mc.MinAccuracy(0.9), positive="fraud").fit(moved, NAMES[:N])
    lax = mc.MetaCal(mc.MinAccuracy(0.6), positive="fraud").fit(moved, NAMES[:N])
    learned = mc.MetaCal(mc.MinAccuracy(0.9), positive="fraud", decision="calibrated").fit(
        moved, NAMES[:N]
    )
    assert learned.certificate_.n_rows == N - N // 10 - 5
    assert learned.certificate_.coverage > usual.certificate_.coverage + 0.1
    assert any(note.kind == "decision_learned" for note in learned.certificate_.notes)
    assert any(note.kind == "decision_disagrees" for note in lax.certificate_.notes)
    new = SCORES[N:] + 3.0
    accept = learned.accepts(new)
    assert (learned.predict(new)[accept] == NAMES[N:][accept]).mean() > 0.88
    assert set(learned.predict(new)[accept]) == {"fine", "fraud"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "promise",
    [BOTH, mc.MinRecall(0.9), mc.MinAccuracy(0.9), mc.PerGroup(BOTH)],
    ids=["both", "recall", "accuracy", "groups"],
)
def test_saved_and_exported_gates_decide_alike(promise, tmp_path):
    onnxruntime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from metacal.export.onnx import to_onnx
    from metacal.export.torch import to_module

    table = np.column_stack([RNG.normal(size=2 * N), np.zeros(2 * N)]).astype(np.float32)
    table[:, 1] = table[:, 0] + SCORES.round(1)
    how = {"decision": "calibrated"} if isinstance(promise, mc.MinAccuracy) else {}
    groups = {"groups": GROUP} if isinstance(promise, mc.PerGroup) else {}
    cal = mc.MetaCal(promise, **how).fit(
        table[:N], FRAUD[:N].astype(int), **dict.fromkeys(groups, GROUP[:N])
    )
    mc.save(cal, tmp_path / "gate.json")
    again = mc.load(tmp_path / "gate.json")
    assert again.certificate_ == cal.certificate_
    assert again.get_params()["decision"] == cal.decision
    accept, probabilities = cal.accepts(table, **groups), cal.predict_proba(table, **groups)
    assert 0 < accept.sum() < 2 * N
    assert np.array_equal(again.predict(table, **groups), cal.predict(table, **groups))
    codes = {
        name: cal.gate_.thresholds.encode_groups(given)
        for name, given in zip(["group"], groups.values())
    }
    model = onnxruntime.InferenceSession(
        to_onnx(cal).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    probs, _, accepted, prediction = model.run(None, {"logits": table, **codes})
    assert np.array_equal(accepted, accept)
    expected_prediction = cal.decide(table, **groups).predicted_codes
    assert np.array_equal(prediction, expected_prediction)
    np.testing.assert_allclose(probs, probabilities, atol=2e-6)
    module, tensors = to_module(cal), [torch.tensor(table), *map(torch.tensor, codes.values())]
    assert np.array_equal(module(*tensors)[2].numpy(), accept)
    assert np.array_equal(module.predict(*tensors).numpy(), expected_prediction)


def test_command_line(tmp_path):
    lines = [f"{score!r},{name}" for score, name in zip(SCORES[:N].tolist(), NAMES[:N])]
    (tmp_path / "val.csv").write_text("\n".join(["margin,label", *lines]))
    (tmp_path / "other.csv").write_text(
        "\n".join(["other,id,label", *(f"{line.replace(',', ',7,')}" for line in lines)])
    )
    fit = [
        "fit",
        str(tmp_path / "val.csv"),
        "--positive",
        "fraud",
    ]  # a margin alone beside labels is the score
    saved = str(tmp_path / "cal.json")
    done = CliRunner().invoke(
        main, [*fit, "--min-precision", "0.85", "--min-recall", "0.95", "-o", saved]
    )
    assert done.exit_code == 0, done.output
    assert "called fraud if log-odds >" in done.output
    assert mc.load(saved).promise == mc.TwoSided(
        mc.MinPrecision(0.85, "fraud"), mc.MinRecall(0.95, "fraud")
    )
    pa = pytest.importorskip("pyarrow")
    asked = ["--min-precision", "0.85", "--min-npv", "0.97", "--positive-share", "0.2", "-o", saved]
    done = CliRunner().invoke(main, [*fit, *asked])
    assert done.exit_code == 0, done.output
    assert [part.delta for part in mc.load(saved).certificate_.subgroups.items] == pytest.approx(
        [0.02, 0.08]
    )
    grouped = [f"{line},{name}" for line, name in zip(lines, GROUP.tolist())]
    (tmp_path / "groups.csv").write_text("\n".join(["margin,label,site", *grouped]))
    asked = [
        "--group-key",
        "site",
        "--positive",
        "fraud",
        "--min-precision",
        "0.85",
        "--each",
        "-o",
        saved,
    ]
    done = CliRunner().invoke(main, ["fit", str(tmp_path / "groups.csv"), *asked])
    assert done.exit_code == 0, done.output
    assert mc.load(saved).promise == mc.PerGroup(mc.MinPrecision(0.85, "fraud"), "each")
    done = CliRunner().invoke(
        main, ["verify", saved, str(tmp_path / "groups.csv"), "--group-key", "site"]
    )
    assert done.output.startswith("not judged")
    further = [
        f"{score!r},{name},{site}"
        for score, name, site in zip(SCORES[N:].tolist(), NAMES[N:], GROUP[N:])
    ]
    (tmp_path / "new.csv").write_text("\n".join(["margin,label,site", *further]))
    done = CliRunner().invoke(
        main, ["verify", saved, str(tmp_path / "new.csv"), "--group-key", "site"]
    )
    assert "south: precision of fraud" in done.output
    named = [
        "fit",
        str(tmp_path / "other.csv"),
        "--positive-key",
        "other",
        "--positive",
        "fraud",
        "-o",
        saved,
    ]
    assert CliRunner().invoke(main, [*named, "--min-recall", "0.95"]).exit_code == 0
    for verb in ("evaluate", "verify", "monitor"):  # the gate knows the column's name
        done = CliRunner().invoke(main, [verb, saved, str(tmp_path / "other.csv")])
        assert done.exit_code == (verb == "verify"), done.output
    assert (
        BatchGate(saved)(pa.record_batch({"other": [-9.0, 9.0]})).to_pylist()[1]["answer"]
        == "fraud"
    )
    for wrong in (
        ["--min-precision", "0.9", "--max-false-positive-rate", "0.1"],
        ["--min-recall", "0.9", "--in-expectation"],
        ["--min-recall", "0.9", "--min-npv", "0.99"],
        ["--min-npv", "0.1"],  # which says nothing
        ["--group-key", "nothing"],
        ["--per-class"],
    ):
        assert CliRunner().invoke(main, [*fit, "--min-precision", "0.9", *wrong]).exit_code in (
            1,
            2,
        )


@pytest.mark.parametrize("per", ["row", "mean"])
def test_a_learned_decision_counts_whole_clusters(per):
    rng = np.random.default_rng(0)
    n_clusters, cluster_size = 400, 10
    labels = rng.integers(2, size=n_clusters * cluster_size)
    scores = 2.0 * (2 * labels - 1) + rng.normal(size=len(labels)) + 0.7
    units = mc.Units(np.repeat(np.arange(n_clusters), cluster_size), per=per)
    largest, learned = (
        mc.MetaCal(mc.MinAccuracy(0.9), decision=decision)
        .fit(scores, labels, units=units)
        .certificate_
        for decision in ("largest", "calibrated")
    )
    assert learned.rule == largest.rule
    n_pilot_clusters = n_clusters // 10
    pilot_text = f"chosen on {n_pilot_clusters * cluster_size} pilot rows"
    assert any(pilot_text in str(note) for note in learned.notes)
    assert learned.n_rows < largest.n_rows
