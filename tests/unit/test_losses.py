"""A loss is a value: MaxRisk by the exact tests, by bets and by rounding, and all that a gate does
with losses.
"""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.certification.losses import LOSS_BETTING_RULE, ROUNDED_LOSSES_RULE, MeanLossLimit
from metacal.certification.row_losses import Losses
from metacal.cli import main
from metacal.errors import InputError
from metacal.promises import Sample

N = 1200


def graded(seed=0, n=N):
    rng = np.random.default_rng(seed)
    score = rng.random(n)
    return score, np.clip(1.2 * (1 - score) ** 2 * rng.random(n), 0.0, 1.0)


def test_losses_of_zero_and_one_are_an_accuracy():
    score, loss = graded()
    binary = (loss > 0.2).astype(int)
    risk = mc.ScoreGate(mc.MaxRisk(0.1)).fit(score, loss=binary)
    accuracy = mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, binary == 0)
    assert risk.threshold_ == accuracy.threshold_
    assert risk.certificate_.rule == accuracy.certificate_.rule
    tested = accuracy.certificate_
    assert risk.certificate_.mean_cost == pytest.approx(
        1 - tested.n_correct_accepted / tested.n_accepted
    )
    by_cost = mc.ScoreGate(mc.MaxCost(wrong=20, limit=2)).fit(score, binary == 0)
    assert by_cost.threshold_ == risk.threshold_
    logits = np.stack([np.log(score + 0.01), np.zeros(N)], axis=1)
    labels = (binary > 0).astype(int)
    assert (
        mc.MetaCal(mc.MaxRisk(0.3)).fit(logits, labels).certificate_.rule == risk.certificate_.rule
    )


@pytest.mark.parametrize(
    ("promise", "n", "rule"),
    [
        (mc.MaxRisk(0.1), 400, LOSS_BETTING_RULE),
        (mc.MaxRisk(0.1), N, LOSS_BETTING_RULE),
        (mc.MaxRisk(0.1, near_binary=True), 300, ROUNDED_LOSSES_RULE),
        (mc.MaxRisk(0.1, near_binary=True), N, LOSS_BETTING_RULE),
    ],
)
def test_a_gate_on_losses_does_what_every_gate_does(promise, n, rule, tmp_path):
    score, loss = graded(n=n)
    gate = mc.ScoreGate(promise).fit(score, loss=loss)
    assert gate.certificate_.rule == rule
    assert loss[gate.accepts(score)].mean() == pytest.approx(gate.certificate_.mean_cost, abs=0.005)
    assert gate.certificate_.mean_cost < 0.1
    mc.save(gate, tmp_path / "gate.json")
    again = mc.load(tmp_path / "gate.json")
    assert again.certificate_ == gate.certificate_
    new, lost = graded(1)
    (test,) = mc.verify(again, new, lost).tests
    assert test.measurement.total_cost == pytest.approx(lost[again.accepts(new)].sum())
    assert not test.refuted
    assert mc.verify(again, new, np.sqrt(lost)).refuted
    assert mc.evaluate(again, new, lost, n_resamples=0).verdict.value == pytest.approx(
        lost[again.accepts(new)].mean()
    )
    mc.report(again, new, lost, tmp_path / "report.html", n_resamples=10)
    watch = mc.Watch.of(again, delta=0.05)
    assert watch.update(new, lost).raised == ()
    assert "promise" in watch.update(new, np.ones(N)).raised
    with pytest.raises(InputError, match="not a loss between 0 and 1"):
        watch.update(new[:1], [7.0])


def test_what_is_no_loss_is_refused_in_a_sentence():
    score, loss = graded()
    gate = mc.ScoreGate(mc.MaxRisk(0.1))
    for wrong, said in [
        ({"loss": loss * 30}, "Divide all losses"),
        ({"loss": loss > 0.1}, "Write 0 for a correct row"),
        ({"loss": loss[1:]}, r"1200 and 1199 entries\."),
        ({"loss": np.where(loss > 0.5, np.nan, loss)}, "is missing"),
        ({"loss": loss, "correct": loss < 0.1}, r"correct \(whether each row is correct\) and"),
        ({}, "cannot be combined"),
    ]:
        with pytest.raises(InputError, match=said):
            gate.fit(score, **wrong)
    with pytest.raises(
        InputError, match=r"MinAccuracy requires the correctness of each prediction\. Pass correct"
    ):
        mc.ScoreGate(mc.MinAccuracy(0.9)).fit(score, loss=loss)
    with pytest.raises(
        mc.InfeasibleTargetError, match=r"Cannot certify a mean risk of at most 0.001 .* is 0\.0\d"
    ):
        mc.ScoreGate(mc.MaxRisk(0.001)).fit(score[:200], loss=loss[:200])


def test_commands_read_losses(tmp_path):
    score, loss = graded()
    path, gate = tmp_path / "answers.jsonl", str(tmp_path / "gate.json")
    rows = [{"judge": {"score": a}, "loss": b} for a, b in zip(score.tolist(), loss.tolist())]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def run(*arguments):
        found = CliRunner().invoke(main, [*arguments])
        assert found.exit_code == 0, found.output
        return found.stdout

    run(
        "fit",
        str(path),
        "--score-key",
        "judge.score",
        "--loss-key",
        "loss",
        "--max-risk",
        "0.1",
        "-o",
        gate,
    )
    fitted = mc.ScoreGate(mc.MaxRisk(0.1), score_name="judge.score").fit(score, loss=loss)
    assert mc.load_gate(gate).certificate == fitted.certificate_
    new = tmp_path / "new.jsonl"
    moved = [
        {"judge": {"score": a + 1e-4}, "loss": b} for a, b in zip(score.tolist(), loss.tolist())
    ]
    new.write_text("".join(json.dumps(row) + "\n" for row in moved), encoding="utf-8")
    assert (
        json.loads(run("verify", gate, str(new), "--json"))["n_accepted"]
        == fitted.accepts(score + 1e-4).sum()
    )
    run("evaluate", gate, str(new), "--json")
    assert json.loads(run("monitor", gate, str(path), "--json"))["labelled"] == N
    run("monitor", gate, str(path), "--state", str(tmp_path / "state.journal"))
    failed = CliRunner().invoke(
        main,
        ["fit", str(path), "--score-key", "judge.score", "--near-binary", "--min-accuracy", "0.9"],
    )
    assert failed.exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("near_binary", [False, True])
def test_a_risk_is_broken_as_rarely_as_promised(near_binary, monkeypatch):
    """Every prefix has the very mean of the limit: the hardest there is, and no more than delta of
    all draws pass.
    """
    # What could be certified, and from how many rows, takes longer than the rest.
    monkeypatch.setattr(
        MeanLossLimit, "_build_infeasible_error", lambda *given: mc.InfeasibleTargetError("no")
    )
    broken, draws, rng = 0, 300, np.random.default_rng(4)
    for seed in range(draws):
        loss = np.where(rng.random(300) < 0.2, rng.random(300), 0.0)
        rows = Sample(np.arange(300.0), loss == 0.0, Losses.from_graded(loss))
        with suppress(mc.InfeasibleTargetError):
            broken += (
                mc.MaxRisk(0.1, near_binary=near_binary, random_state=seed).certify(rows).n_accepted
                > 0
            )
    assert broken <= draws * 0.1 + 3 * np.sqrt(draws * 0.09)


@pytest.mark.parametrize("kind", [float, int])
def test_a_column_that_says_right_is_no_loss_in_silence(kind):
    rng = np.random.default_rng(0)
    score = rng.random(400)
    right = rng.random(400) < score
    with (
        pytest.warns(mc.MetacalWarning, match="pass 1 minus the loss"),
        pytest.raises(mc.InfeasibleTargetError),
    ):
        mc.ScoreGate(mc.MaxRisk(0.3)).fit(score, loss=right.astype(kind))
    with pytest.raises(
        mc.InputError, match=r"the loss must be a number, but it is .* Write 0 for a correct row"
    ):
        mc.ScoreGate(mc.MaxRisk(0.3)).fit(score, loss=right)
    fitted = mc.ScoreGate(mc.MaxRisk(0.3)).fit(score, loss=(~right).astype(kind))
    exact = kind is int  # the type says that there is nothing between 0 and 1; these rows cannot
    assert fitted.certificate_.rule == ("fallback-sequence" if exact else "loss-betting")
    assert (
        mc.verify(fitted, score + 1e-4, (~right).astype(kind)).tests[0].measurement.relative_costs
        is None
    ) == exact
