"""Cascades of any number of models over scores alone: the rules, the gate, files and commands."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import metacal as mc
from metacal.cli import main
from metacal.errors import InputError
from metacal.io.artifact.audit import read_certificate
from metacal.promises.bad_answer_limit import BadAnswerTest
from metacal.promises.staged_cascade import CascadeScores

N = 2000


def models(n=N, m=2, seed=0):
    """Scores of m models, and whether each answers as the last one would."""
    rng = np.random.default_rng(seed)
    sure = rng.random((m, n))
    return list(sure), rng.random((m, n)) > (1 - sure) ** 3 / (4.0 + 5.0 * np.arange(m))[:, None]


@pytest.mark.parametrize("n", [250, 400, 1000])
def test_as_many_rows_may_differ_as_the_law_allows(n):
    source, pool = BadAnswerTest(0.01, 0.1), BadAnswerTest(0.01, 0.1, pool_size=5000)
    k = source.find_max_passing_bad_count(n)
    assert stats.binom.cdf(k, n, 0.01) <= 0.1 < stats.binom.cdf(k + 1, n, 0.01)
    fewest = source.find_min_tested_rows(n_bad=k, n_available=n)
    assert stats.binom.cdf(k, fewest, 0.01) <= 0.1 < stats.binom.cdf(k, fewest - 1, 0.01)
    k = pool.find_max_passing_bad_count(n, corrects_tested_rows=True)
    assert (
        stats.hypergeom.cdf(k, 5000, 51 + k, n) <= 0.1 < stats.hypergeom.cdf(k + 1, 5000, 52 + k, n)
    )
    k = pool.find_max_passing_bad_count(n)
    assert stats.hypergeom.cdf(k, 5000, 51, n) <= 0.1 < stats.hypergeom.cdf(k + 1, 5000, 51, n)


def test_two_models_answer_up_to_the_first_row_too_many():
    (score,), agrees = models(m=1)
    cascade = mc.Cascade(mc.MaxLoss(0.01)).fit(score, agrees=agrees[0])
    stages = cascade.certificate_.stages
    assert (stages.n_only_cascade_wrong, stages.n_only_reference_wrong) == (None, None)
    assert stages.n_disagreements == BadAnswerTest(0.01, 0.1).find_max_passing_bad_count(N)
    kept = ~cascade.needs_large(score)
    assert (kept & ~agrees[0]).mean() == pytest.approx(0.01, abs=0.003)
    assert cascade.decide(score).answered_by[kept].tolist() == ["small"] * kept.sum()


def test_of_a_pool_more_may_be_answered():
    (score,), agrees = models(m=1)
    labels = np.where(np.arange(N) < 400, agrees[0].astype(object), None)
    pool = mc.Cascade(mc.MaxLoss(0.02)).fit(score, agrees=labels, pool=True)
    source = mc.Cascade(mc.MaxLoss(0.02)).fit(score, agrees=labels)
    assert pool.gate_.threshold >= source.gate_.threshold
    assert pool.certificate_.stages.pool_size == N
    assert "of the pool of 2,000 rows" in pool.certificate_.statement
    again = read_certificate(pool.certificate_.to_dict())
    assert again == pool.certificate_


@pytest.mark.parametrize("people", [False, True])
def test_several_models_do_what_every_gate_does(people, tmp_path):
    scores, agrees = models(m=3)
    costs, flags = [1, 10, 100, 1000], "correct" if people else "agrees"
    cascade = mc.Cascade(mc.MaxLoss(0.02), people=people).fit(
        scores=scores, costs=costs, **{flags: agrees}
    )
    positional = mc.Cascade(mc.MaxLoss(0.02), people=people).fit(
        scores, costs=costs, **{flags: agrees}
    )
    assert positional.certificate_ == cascade.certificate_
    path = tmp_path / "cascade.json"
    mc.save(cascade, path)
    again, (new, same) = mc.load(path), models(m=3, seed=1)
    assert again.certificate_ == cascade.certificate_
    found = again.decide(new)
    assert set(found.by.tolist()) <= {0, 1, 2, 3}
    rest = ~found.accept if people else found.by == 3
    assert rest.any() != rest.all()
    worse = sum((~same[j][found.by == j]).sum() for j in range(3))
    truth = "y" if people else "agrees"
    (test,) = mc.verify(again, new, **{truth: same}).tests
    assert test.measurement.n_bad == worse
    assert not test.refuted
    assert mc.verify(again, new, **{truth: ~same}).refuted
    (monitor,) = mc.PromiseMonitor.of(again.certificate_)
    everywhere = np.ones(N, dtype=bool)
    assert not monitor.update(everywhere, everywhere).alarm
    assert monitor.update(everywhere, np.arange(N) % 10 > 0).alarm
    if people:
        assert (
            mc.evaluate(again, new, same.T, n_resamples=0).answered_by[0].n_rows
            == (found.by == 0).sum()
        )
        mc.report(again, new, same, tmp_path / "report.html", n_resamples=10)
    whole = found.by.copy()
    left = [
        one[~np.isin(whole, range(k))] for k, one in enumerate(new)
    ]  # each model ran for the rows left to it
    assert (again.decide(left).by == whole).all()


@pytest.mark.parametrize("people", [False, True])
@pytest.mark.parametrize("m", [2, 3])
def test_an_accuracy_is_promised_of_what_is_answered(m, people, tmp_path):
    scores, right = models(m=m)
    sure = scores if people else scores[:-1]  # the last one answers whatever its score is
    cascade = mc.Cascade(mc.MinAccuracy(0.95), people=people).fit(scores=sure, correct=right)
    certificate, found = cascade.certificate_, cascade.decide(sure)
    assert (
        certificate.statement
        == "Accepted predictions are correct at least 95% of the time, with 90% confidence."
    )
    assert certificate.stages.n_wrong == certificate.n_accepted - certificate.n_correct_accepted
    wrong = ~right[np.minimum(found.by, m - 1), np.arange(N)] & found.accept
    assert wrong.sum() / found.accept.sum() < 0.05
    assert found.accept.all() or people
    mc.save(cascade, tmp_path / "cascade.json")
    new, truth = models(m=m, seed=1)
    (test,) = mc.verify(
        mc.load(tmp_path / "cascade.json"), new if people else new[:-1], truth
    ).tests
    assert not test.refuted


@pytest.mark.slow
def test_an_accuracy_is_broken_as_rarely_as_said():
    broken, draws, n = 0, 100, 300
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        doubt = rng.random((n, 2))
        rows = CascadeScores(
            doubt,
            rng.random((n, 2)) < 0.11,
            np.ones(3),
            doubt[:0],
            has_human_review=True,
            random_state=seed,
        )
        try:
            mc.MinAccuracy(0.9).certify(rows)
        except mc.InfeasibleTargetError:
            continue
        broken += 1  # every answer is wrong with probability 0.11, whatever the thresholds
    assert broken <= draws * 0.1 + 3 * np.sqrt(draws * 0.09)


@pytest.mark.slow
def test_rows_that_are_left_are_harder_than_their_score_says():
    """The score of the middle model says little, and it fails where the small one is unsure."""

    def rows(n, rng):
        hard, noise = rng.random(n), rng.random((n, 2))
        doubt = np.stack([hard + 0.05 * noise[:, 0], 0.15 * hard + noise[:, 1]], axis=1)
        return doubt, rng.random((n, 2)) < np.stack([0.5 * hard**3, 0.4 * hard**3], axis=1)

    costs = np.array([1.0, 10.0, 100.0])
    price = {True: 0.0, False: 0.0}
    for seed in range(8):
        doubt, differs = rows(1000, np.random.default_rng([2, seed]))
        for joint in price:
            sample = CascadeScores(doubt, differs, costs, doubt[:0], uses_joint_risk=joint)
            stages = mc.MaxLoss(0.03).certify(sample).stages
            by = sample.find_answering_model(
                np.array([one.threshold for one in stages.models[:2]]), np.arange(1000)
            )
            price[joint] += costs.cumsum()[by].mean() / 8
    assert price[True] < 0.95 * price[False]


@pytest.mark.parametrize("promise", [mc.MaxLoss(0.03), mc.MinAccuracy(0.97)])
def test_traffic_of_a_cascade_is_watched(promise):
    scores, agrees = models(m=2)
    flags = "agrees" if isinstance(promise, mc.MaxLoss) else "correct"
    cascade = mc.Cascade(promise).fit(scores=scores, **{flags: agrees})
    new, good = models(m=2, seed=1)
    by_model, by_row, late = (mc.Watch.of(cascade) for _ in range(3))
    found = cascade.decide(new)
    given = (found.by == 2) | good[np.minimum(found.by, 1), np.arange(N)]
    assert not by_model.update(new, good).raised
    assert by_row.update(new, given).counts == by_model.counts
    assert [one.log_evidence for one in by_row.alarms] == [
        one.log_evidence for one in by_model.alarms
    ]
    late.update(new, ids=range(N))
    assert late.label(range(N), given).counts.correct_accepted == by_model.counts.correct_accepted
    assert by_model.update(new, good & (np.arange(N) % 4 > 0)).raised == ("promise",)
    assert (
        "abstention" in by_row.update([one**3 for one in new]).raised
    )  # the first model is less sure of all
    with pytest.raises(InputError, match="the output of each model"):
        late.update(np.ones(3))
    with pytest.raises(InputError, match=r"for a row, pass NaN"):
        late.update([new[0], new[1][:5]])


def test_correctness_is_not_taken_for_agreement():
    """A small model may be right where it differs from the large one, and wrong where both
    agree.
    """
    scores, right = models(m=2)
    with pytest.raises(
        InputError,
        match=r"MaxLoss requires agrees=\.\.\. \(whether each model except the last agrees with the last one\)\. correct=\.\.\. does not replace it",
    ):
        mc.Cascade(mc.MaxLoss(0.02)).fit(scores=scores[:1], correct=right[:1])
    with pytest.raises(InputError, match=r"requires correct="):
        mc.Cascade(mc.MinAccuracy(0.9)).fit(scores=scores, agrees=right)
    with pytest.raises(InputError, match=r"Pass agrees=.* or correct="):
        mc.Cascade(mc.MaxLoss(0.02)).fit(scores[0], right[0])
    with pytest.raises(InputError, match="The models have tables of logits"):
        mc.Cascade(mc.MaxLoss(0.02)).fit(np.eye(2), [0, 1], large=np.eye(2), agrees=[True, True])


def test_a_certificate_from_agreement_states_only_what_was_observed(tmp_path):
    (score,), agrees = models(m=1)
    cascade = mc.Cascade(mc.MaxLoss(0.02)).fit(score, agrees=agrees[0])
    certificate = cascade.certificate_
    differ = certificate.stages.n_disagreements
    assert certificate.statement.startswith(
        "At most 2% of all answers differ from the large model's"
    )
    assert f"{differ:,} answers differ from the large model's" in str(certificate)
    assert "worse" not in str(certificate)
    assert "better" not in str(certificate)
    assert (certificate.loss, certificate.disagreement) == (None, differ / certificate.n_rows)
    (new,), same = models(m=1, seed=1)
    found = mc.verify(cascade, new, agrees=same[0])
    assert "worse" not in str(found)
    assert found.tests[0].measurement.n_bad == (~same[0] & ~cascade.needs_large(new)).sum()
    with pytest.raises(InputError, match="Pass agrees="):
        mc.verify(cascade, new, same[0])
    with pytest.raises(
        InputError, match=r"The number of columns of agrees must be 1, but it is 2\."
    ):
        mc.verify(cascade, new, agrees=[same[0], same[0]])
    for measure in (
        lambda: mc.evaluate(cascade, new, same[0]),
        lambda: mc.report(cascade, new, same[0], tmp_path / "report.html"),
    ):
        with pytest.raises(InputError, match="Cannot measure the accuracy"):
            measure()
    watch = mc.Watch.of(cascade).update([new], same[0])
    assert "differ from the large model's" in " ".join(next(iter(watch.alarms)).descriptions)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-loss", "0.02", "--correct-key", "ok"], "requires --agree-key"),
        (
            ["--max-loss", "0.02", "--correct-key", "ok", "--agree-key", "same"],
            "Leave out --correct-key",
        ),
        (["--max-loss", "0.02"], "requires --agree-key"),
        (["--min-accuracy", "0.9", "--agree-key", "same"], "Pass --correct-key"),
    ],
)
def test_commands_ask_for_the_flags_that_a_promise_is_about(words, said, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"p": 0.5, "ok": true, "same": true}\n' * 300, encoding="utf-8")
    found = CliRunner().invoke(main, ["cascade", str(file), "--score-key", "p", *words])
    assert (found.exit_code, said in " ".join(found.output.split())) == (2, True), found.output


def test_commands_judge_a_cascade_by_what_it_was_fitted_on(tmp_path):
    (score,), agrees = models(m=1)
    mc.save(mc.Cascade(mc.MaxLoss(0.02)).fit(score, agrees=agrees[0]), tmp_path / "cascade.json")
    rows = [{"score 1": p, "same": bool(s)} for p, s in zip(score.tolist(), agrees[0])]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    given = [str(tmp_path / "cascade.json"), str(tmp_path / "rows.jsonl")]
    for command, words, said in (
        ("verify", ["--correct-key", "same"], "Replace --correct-key with --agree-key"),
        ("monitor", ["--correct-key", "same"], "Replace --correct-key with --agree-key"),
        ("verify", [], "with --agree-key NAME, or rename it to 'agrees'"),
        ("evaluate", ["--agree-key", "same"], "Cannot measure the accuracy"),
        ("report", ["--agree-key", "same"], "Cannot measure the accuracy"),
    ):
        found = CliRunner().invoke(main, [command, *given, *words])
        assert (found.exit_code, said in " ".join(found.output.split())) == (2, True), found.output
    told = CliRunner().invoke(main, ["monitor", *given, "--agree-key", "same"])
    assert "as the large model predicts" in told.stdout


def test_as_many_labels_are_drawn_as_pay():
    chosen = mc.Cascade(mc.MaxLoss(0.02)).labels_needed(np.arange(20_000.0))
    assert (len(chosen), len(set(chosen.tolist()))) == (462, 462)
    assert abs(chosen.mean() - 10_000) < 1500


def test_what_does_not_fit_is_said():
    scores, agrees = models(m=2)
    for wrong, said in [
        ({"scores": scores[:1], "agrees": agrees}, "of scores and one of agrees"),
        ({"scores": scores, "agrees": agrees, "costs": [1, 2]}, "costs must be 3 numbers"),
        ({"scores": [scores[0], scores[1][1:]], "agrees": agrees}, "a score for every row"),
        (
            {"scores": [[np.nan, *scores[0][1:]], scores[1]], "agrees": agrees},
            "Row 0 has no score",
        ),
        (
            {"scores": scores, "agrees": agrees * 3},
            r"agrees must mark whether the row is correct, but it is 3\.",
        ),
    ]:
        with pytest.raises(InputError, match=said):
            mc.Cascade(mc.MaxLoss(0.01)).fit(**wrong)
    with pytest.raises(InputError, match="pool=True supports only MaxLoss"):
        mc.Cascade(mc.MinAccuracy(0.9)).fit(scores=scores, correct=agrees, pool=True)
    with pytest.raises(InputError, match=r"and the correctness of the last one.*, but got 2 and 1"):
        mc.Cascade(mc.MinAccuracy(0.9), people=False).fit(scores=scores, correct=agrees[:1])
    with pytest.raises(
        mc.InfeasibleTargetError, match=r"of .* predictions are incorrect, which supports 0.9"
    ):
        mc.Cascade(mc.MinAccuracy(0.999)).fit(scores=scores, correct=agrees)
    with pytest.raises(InputError, match="MaxLoss, which requires fewer"):
        mc.Cascade(mc.MinAccuracy(0.9)).labels_needed(scores[0])
    with pytest.raises(mc.InfeasibleTargetError, match="at least 230 rows"):
        mc.Cascade(mc.MaxLoss(0.01)).fit(scores[0][:100], agrees=agrees[0][:100])


def test_commands_read_scores_of_every_model(tmp_path):
    scores, agrees = models(m=2)
    file, saved, out = (
        tmp_path / "rows.jsonl",
        str(tmp_path / "cascade.json"),
        str(tmp_path / "out.csv"),
    )
    rows = [
        {"id": k, "small": {"p": a, "same": bool(c)}, "middle": {"p": b, "same": bool(d)}}
        for k, (a, b, c, d) in enumerate(zip(*map(np.ndarray.tolist, scores), *agrees.tolist()))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def run(*arguments, code=0):
        found = CliRunner().invoke(main, [*arguments])
        assert found.exit_code == code, found.output
        return found.stdout

    keys = ["--score-key", "small.p,middle.p", "--agree-key", "small.same,middle.same"]
    run("cascade", str(file), *keys, "--max-loss", "0.02", "--costs", "1,10,100", "-o", saved)
    fitted = mc.Cascade(mc.MaxLoss(0.02)).fit(scores=scores, agrees=agrees, costs=[1, 10, 100])
    assert (
        mc.load_gate(saved).certificate.stages.n_disagreements
        == fitted.certificate_.stages.n_disagreements
    )
    told = json.loads(run("verify", saved, str(file), *keys[2:], "--json", code=1))
    assert (told["verdict"], told["fit_rows"]["n_fit_rows"]) == ("not judged", N)
    run("apply", saved, str(file), "-o", out)
    first, *lines = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert "answered_by" in first
    assert len(lines) == N
    assert CliRunner().invoke(main, ["cascade", str(file), "--max-loss", "0.02"]).exit_code == 2
    refused = CliRunner().invoke(main, ["verify", saved, str(file), "--large", str(file)])
    assert (refused.exit_code, "Leave out --large" in " ".join(refused.output.split())) == (2, True)
    for wrong, said in [
        (
            {"p": "sure", "same": True},
            "rows.jsonl:2: the small.p must be a number, but it is 'sure'.",
        ),
        (
            {"p": 0.5, "same": "perhaps"},
            "rows.jsonl:2: the small.same must be a number, but it is 'perhaps'.",
        ),
        ({"same": True}, "rows.jsonl: row 2 has no 'small.p'"),
    ]:
        some = [rows[0], {**rows[1], "small": wrong}, *rows[2:400]]
        file.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
        found = CliRunner().invoke(main, ["cascade", str(file), *keys, "--max-loss", "0.02"])
        assert found.exit_code == 2
        assert said in found.output


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 2])
def test_the_promise_is_broken_as_rarely_as_said(m):
    rng, broken, draws, n = np.random.default_rng(3), 0, 300, 400
    for seed in range(draws):
        doubt = rng.random((n, m))
        risk = 0.04 * np.ones(
            m
        )  # each model errs alike at every score: what it answers is as bad as what it leaves
        rows = CascadeScores(
            doubt, rng.random((n, m)) < risk, np.ones(m + 1), doubt[:0], random_state=seed
        )
        limits = [stage.threshold for stage in mc.MaxLoss(0.02).certify(rows).stages.models[:m]]
        answered = 1.0 - np.prod(1.0 - np.clip(limits, 0.0, 1.0))
        broken += 0.04 * answered > 0.02
    assert broken <= draws * 0.1 + 3 * np.sqrt(draws * 0.09)
