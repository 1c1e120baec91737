"""Promises about two classes: every sentence names the class that it is about, and counts what a
hand counts.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.reports.summary import summarise

N = 3000
CLASSES = np.array(["fine", "fraud"])


def rows(seed):
    """Logits of the two classes, the true class by name, and the site of each row."""
    rng = np.random.default_rng(seed)
    fraud = rng.random(N) < 0.35
    log_odds = rng.normal(size=N) + 2.5 * fraud - 1.2
    sites = np.where(rng.random(N) < 0.5, "north", "south")
    return np.column_stack([np.zeros(N), log_odds]), CLASSES[fraud.astype(int)], sites


FIT, NEW = rows(0), rows(1)


def counted_by_hand(quantity, positive, called, truth):
    """Bad rows, and rows that are looked at; `called` is what the gate calls each row, "rejected"
    where nothing.
    """
    is_positive, is_called = truth == positive, called == positive
    other = CLASSES[positive != CLASSES][0]
    if quantity == "precision":
        return int((is_called & ~is_positive).sum()), int(is_called.sum())
    if quantity == "recall":
        return int(((called == other) & is_positive).sum()), int(is_positive.sum())
    return int((is_called & ~is_positive).sum()), int((~is_positive).sum())


def promises(positive):
    """Promises about one class, with the quantities that they limit."""
    precision, recall = (
        mc.MinPrecision(0.8, positive=positive),
        mc.MinRecall(0.9, positive=positive),
    )
    false_alarms = mc.MaxFalsePositiveRate(0.1, positive=positive)
    return {
        "precision": (precision, ["precision"]),
        "recall": (recall, ["recall"]),
        "false-positive rate": (false_alarms, ["false-positive rate"]),
        "precision and recall": (mc.TwoSided(precision, recall), ["precision", "recall"]),
        "rates": (mc.TwoSided(false_alarms, recall), ["false-positive rate", "recall"]),
    }


@pytest.mark.parametrize("by_site", [False, True])
@pytest.mark.parametrize("positive", CLASSES)
@pytest.mark.parametrize("name", promises("fraud"))
def test_every_surface_names_the_class_that_was_counted(name, positive, by_site):
    promise, quantities = promises(positive)[name]
    promise = mc.PerGroup(promise) if by_site else promise
    table, truth, sites = NEW
    fit_groups = {"groups": FIT[2]} if by_site else {}
    groups = {"groups": sites} if by_site else {}
    cal = mc.MetaCal(promise, classes=CLASSES).fit(FIT[0], FIT[1], **fit_groups)
    called = cal.predict(table, **groups)
    parts = np.unique(sites) if by_site else [None]
    among = {part: np.full(N, True) if part is None else sites == part for part in parts}
    expected = {
        (part, quantity, positive): counted_by_hand(
            quantity, positive, called[among[part]], truth[among[part]]
        )
        for part in parts
        for quantity in quantities
    }
    assert all(n > 100 for _, n in expected.values())

    found = mc.verify(cal, table, truth, **groups)
    assert {
        (t.subgroup, str(t.quantity), t.class_name): (t.measurement.n_bad, t.measurement.n_rows)
        for t in found.tests
    } == expected
    told = found.to_dict()["tests"]
    assert {
        (t.get("part"), t["quantity"], t["class"]): (t["n_bad"], t["n_rows"]) for t in told
    } == expected
    frame = found.to_frame()
    assert set(zip(frame["quantity"], frame["class"])) == {
        (quantity, positive) for quantity in quantities
    }
    for test in found.tests:
        bad, n = expected[test.subgroup, test.quantity, positive]
        share = bad / n if test.quantity == "false-positive rate" else 1.0 - bad / n
        assert test.value == pytest.approx(share)

    texts = {
        "verify": str(found),
        "evaluate": str(mc.evaluate(cal, table, truth, **groups, n_resamples=0)),
    }
    other = CLASSES[positive != CLASSES][0]
    for surface, text in texts.items():
        for quantity in quantities:
            assert f"{quantity} of {positive}" in text, surface
        assert not any(f"{quantity} of {other}" in text for quantity in quantities), surface

    watch = mc.Watch.of(cal)
    watch.update(table, truth, **groups)
    monitored = {
        (*(one.subgroup_names if by_site else (None,)), str(one.quantity), one.promised_class): (
            one.event_sum,
            one.n_rows,
        )
        for one in watch.alarms.promise
    }
    assert monitored == expected
    assert all(f"{one.quantity} of {positive}" in one.summary for one in watch.alarms.promise)


@pytest.mark.parametrize("positive", CLASSES)
@pytest.mark.parametrize("name", promises("fraud"))
def test_the_statement_and_the_page_name_the_class(name, positive):
    promise, quantities = promises(positive)[name]
    cal = mc.MetaCal(promise, classes=CLASSES).fit(*FIT[:2])
    sentence = {
        "precision": f"at least 80% of the rows predicted {positive} are {positive}",
        "recall": f"at least 90% of the {positive} rows are predicted {positive} or sent to review",
        "false-positive rate": f"at most 10% of the rows that are not {positive} are predicted {positive}",
    }
    counted = {
        "precision": f"rows predicted {positive} are {positive}",
        "recall": f"of the {positive} rows were predicted {positive} or sent to review",
        "false-positive rate": f"of the rows that are not {positive} were predicted {positive}",
    }
    page = summarise(*NEW[:2], cal, n_resamples=0).promise
    assert {verdict["class"] for verdict in page.verdicts} == {positive}
    for quantity in quantities:
        assert sentence[quantity] in cal.certificate_.statement.lower()
        (own,) = (verdict for verdict in page.verdicts if verdict["quantity"] == quantity)
        assert own["counted"].endswith(counted[quantity])
        assert f"{quantity} of {positive} " in own["text"]


def test_the_command_line_names_the_class(tmp_path):
    for name, (table, truth, _) in (("val", FIT), ("new", NEW)):
        np.savez(tmp_path / f"{name}.npz", logits=table, labels=(truth == "fraud").astype(int))

    def run(*words):
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.stdout

    gate, new = tmp_path / "cal.json", tmp_path / "new.npz"
    run("fit", tmp_path / "val.npz", "--min-recall", 0.9, "-o", gate)
    assert "recall of 1 0.8" in run("verify", gate, new)
    assert json.loads(run("verify", gate, new, "--json"))["tests"][0]["class"] == 1
    assert "undecided: recall of 1 0.8" in run("evaluate", gate, new, "--resamples", 0)
    assert "undecided: recall of 1 0.8" in run(
        "report", gate, new, "--resamples", 0, "-o", tmp_path / "page.html"
    )
    assert "recall of 1" in run("monitor", gate, new)


def test_a_file_with_another_class_is_refused():
    cal = mc.MetaCal(mc.MinRecall(0.9, positive="fraud"), classes=CLASSES).fit(*FIT[:2])
    parts = cal.certificate_.subgroups
    forged = tuple(
        replace(part, promised_class="fine") if part.promised_class else part
        for part in parts.items
    )
    certificate = replace(cal.certificate_, subgroups=replace(parts, items=forged))
    assert "does not belong to the promise" in cal.promise.find_count_contradiction(certificate)


def test_each_side_is_judged_by_its_own_target():
    promise, _ = promises("fraud")["precision and recall"]
    logits, truth, _ = FIT
    cal = mc.MetaCal(promise, classes=CLASSES).fit(logits, truth)
    verified = cal.verify(NEW[0], NEW[1])
    targets = {str(test.quantity): test.target for test in verified.tests}
    assert targets == {"precision": 0.8, "recall": 0.9}
    assert not verified.refuted
