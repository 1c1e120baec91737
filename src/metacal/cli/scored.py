"""What the commands do where there are scores in place of logits: fit, apply, verify, evaluate, show."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading
from metacal.cli.printing import NEXT, echo, note, progress_bar, say_json, warnings_after, wrapped
from metacal.cli.promising import Asked
from metacal.cli.saving import save, say_saved
from metacal.errors import InputError, warn_caller
from metacal.io.terminal import on_a_terminal

if TYPE_CHECKING:
    from metacal.gate import ScoredDecision, ScoredGate
    from metacal.io.scores import Scores

#: Options that read a table of logits.
_OF_A_TABLE = ("input", "labels", "logits_key", "label_key", "classes")
#: Options that are about logits, by the name of the parameter; refused where the user gave them.
_ABOUT_LOGITS = ("score", "calibrator", "reject_label", "rejected", "comparing", "calibrators")
#: Rows written at a time.
_BLOCK_ROWS = 1 << 17


def read_scored(path: str, reading: Reading, gate: ScoredGate | None = None, artifact: str | None = None) -> Scores:
    """Read FILE with the user's options; the score is called as in the gate where the user does not say."""
    from metacal.io.scores import read_scores

    _refuse_logits(reading)
    if gate is not None and reading.higher_is not in (None, gate.higher_is):
        raise click.UsageError(
            f"{artifact} was fitted where a higher score is {gate.higher_is}; leave --higher-is out."
        )
    name = reading.score_key or (gate.score if gate is not None else "score")
    try:
        return read_scores(
            path,
            score_key=name,
            correct_key=reading.correct_key,
            id_key=reading.id_key,
            unit_key=reading.unit_key,
            format=reading.format,
        )
    except InputError as error:
        if gate is None or reading.score_key is not None or repr(name) not in str(error):
            raise
        raise InputError(f"{error} ({artifact} is a gate on the score {name!r}, not on logits.)") from error


def _refuse_logits(reading: Reading) -> None:
    """Refuse options that have no meaning for scores, as wrong usage."""
    context = click.get_current_context()
    given = [name for name in _OF_A_TABLE if getattr(reading, name) is not None]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in _ABOUT_LOGITS and source is click.core.ParameterSource.COMMANDLINE:
            given.append(parameter.opts[0].lstrip("-"))
    if given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')} is about logits; a gate on scores has none: leave it out."
        )


def _note_missing(found: Scores, what: str) -> None:
    """Say how many rows have no score; raise where none has one."""
    import numpy as np

    missing = int(np.isnan(found.score).sum())
    if missing == len(found):
        raise InputError(f"{found.path}: no row has a score under {found.name!r}.")
    if missing:
        note(f"{missing:,} of {len(found):,} rows have no score: they are {what}.")


# ── fit ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fit(
    file: str,
    asked: Asked,
    reading: Reading,
    output: str | None,
    key: str | None,
    as_json: bool,
    *,
    seed: int = 0,
) -> None:
    """Certify a threshold on the scores of FILE; print the certificate, save the gate."""
    if asked.per_class or reading.group_key is not None:
        raise click.UsageError(
            "a gate on scores has one threshold: --per-class and --group-key need a classifier's logits."
        )
    from metacal.gate import fit_scored

    found = read_scored(file, reading)
    with warnings_after() as said:
        gate = fit_scored(
            found.score,
            found.require_correct(),
            _in_doubts(asked, reading).promise(seed),
            score_name=found.name,
            higher_is=reading.higher_is or "surer",  # type: ignore[arg-type]
            units=found.units,
            random_state=seed,
        )
        ahead = gate.certificate.next_rows(NEXT)
        save(gate, output, key)
        if as_json:
            answer = {"file": file, "artifact": output, "n_rows": len(found), "accept_if": gate.condition}
            fitted = {"certificate": gate.certificate.to_dict(words=True), "next_rows": ahead.to_dict()}
            say_json({**answer, **fitted, "signed": key is not None})
        else:
            echo(wrapped(f"{gate.certificate}\n  expect       {ahead}\n{_curve_line(gate)}"))
        then, without = f"metacal evaluate TEST --with {output}", "-o cal.json saves the gate for metacal apply."
        say_saved(output, key, then=then, without=without, as_json=as_json)
        if not as_json and on_a_terminal(sys.stdout):  # whoever reads the certificate there has read its notes
            said += map(str, gate.certificate.notes)


def _in_doubts(asked: Asked, reading: Reading) -> Asked:
    """What was asked, a threshold on the score as one on its doubt: a score that equals it is accepted."""
    import numpy as np

    from metacal.gate.scored import doubt_of

    if asked.at_threshold is None:
        return asked
    (doubt,) = doubt_of(np.array([asked.at_threshold]), reading.higher_is or "surer")  # type: ignore[arg-type]
    return replace(asked, at_threshold=float(doubt))


def _curve_line(gate: ScoredGate) -> str:
    if gate.curve is None:
        return "  confidence   none"
    low, high = float(gate.curve.values[-1]), float(gate.curve.values[0])
    return f"  confidence   P(right | {gate.score}) from {low:.4g} to {high:.4g}, not covered by the promise"


# ── apply ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def apply(
    gate: ScoredGate,
    artifact: str,
    file: str,
    output: str | None,
    output_format: str | None,
    reading: Reading,
    as_json: bool,
) -> None:
    """Write accept, score and confidence of each row."""
    import numpy as np

    found = read_scored(file, reading, gate, artifact)
    decision = gate.decide(found.score)
    if output is not None:
        _write(found, decision, output, output_format)
    accepted, missing = int(decision.accept.sum()), int(np.isnan(decision.score).sum())
    if as_json:
        counts = {"n_rows": len(found), "n_accepted": accepted, "coverage": accepted / len(found)}
        say_json({"file": file, "artifact": artifact, **counts, "n_without_score": missing, "output": output})
        return
    if missing:
        note(f"{missing:,} of {len(found):,} rows have no score: they are rejected.")
    if output != "-":
        share = 100 * accepted / len(found)
        note(f"{len(found):,} rows, {accepted:,} accepted ({share:.1f}%); written to {output}.")


def _write(found: Scores, decision: ScoredDecision, output: str, output_format: str | None) -> None:
    from metacal.io.writing import open_table

    columns: dict[str, Any] = {} if found.ids is None else {"id": found.ids}
    columns |= {"accept": decision.accept, "score": decision.score}
    if decision.confidence is not None:
        columns["confidence"] = decision.confidence
    with (
        open_table(output, len(found), format=output_format) as write,
        progress_bar(len(found), "row", "rows") as bar,
    ):
        for start in range(0, len(found), _BLOCK_ROWS):
            block = {name: column[start : start + _BLOCK_ROWS] for name, column in columns.items()}
            write(block)
            bar.update(len(block["accept"]))


# ── verify ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(
    ctx: click.Context,
    gate: ScoredGate,
    artifact: str,
    file: str,
    confidence: float,
    reading: Reading,
    as_json: bool,
) -> None:
    """Test whether the rows refute the promise; exit code 1 where they do."""
    from metacal.estimators.verify import verify_scores

    found = read_scored(file, reading, gate, artifact)
    correct = found.require_correct()
    _note_missing(found, "left out, as the promise is about rows that have one")
    fitted_here = gate.fitted_on(gate.doubt(found.score), correct)
    if fitted_here:
        warn_caller(f"{file} holds the very rows that {artifact} was fitted on; they say nothing new.")
    result = verify_scores(gate, found.score, correct, confidence)
    if as_json:
        say_json({"file": file, "artifact": artifact, **result.to_dict(), "fitted_here": fitted_here})
    else:
        echo(wrapped(result.text(f" of {file} through {artifact}")))
    if result.refuted:
        ctx.exit(1)


# ── evaluate ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def evaluate(
    gate: ScoredGate | None,
    artifact: str | None,
    file: str,
    reading: Reading,
    plan: tuple[float, int, int, int],
    as_json: bool,
) -> None:
    """Measure the gate's shares, the ranking and the confidence; `plan` is level, bins, seed and resamples."""
    from metacal.cli.evaluate import say_evaluation
    from metacal.estimators.evaluate import measured_scores
    from metacal.rows import told

    level, bins, seed, resamples = plan
    found = read_scored(file, reading, gate, artifact)
    if found.correct is None and gate is not None and gate.curve is not None:
        from metacal.cli.estimate import say_estimate

        say_estimate(gate, found.score, None, file, str(artifact), level, as_json)
        return
    correct = found.require_correct()
    _note_missing(found, "left out here, and rejected by every gate")
    options: dict[str, Any] = {"level": level, "n_bins": bins, "random_state": seed, "n_resamples": resamples}
    options["higher_is"] = reading.higher_is or "surer"
    resampling = progress_bar(None, "row", "rows, resampled for the intervals")
    with resampling as bar, told(bar.update):
        result = measured_scores(gate, found.score, correct, **options)
    say_evaluation(result, file, artifact, as_json)


# ── show ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def show(gate: ScoredGate, artifact: str, about: dict[str, Any], as_json: bool) -> None:
    """Explain a saved gate on scores."""
    from metacal.cli.show import file_line
    from metacal.io.artifact.promises import describe_promise
    from metacal.io.artifact.scored import SCORED

    if as_json:
        certificate = gate.certificate.to_dict(words=True)
        answer = {
            "kind": SCORED,
            **about,
            "input": "scores",
            "score": gate.score,
            "higher_is": gate.higher_is,
            "accept_if": gate.condition,
            "threshold": certificate["threshold"],
            "promise": describe_promise(gate.promise),
            "certificate": certificate,
            "data_hash": gate.data_hash,
        }
        say_json({"artifact": artifact, **answer})
        return
    lines = [
        f"{artifact}: a gate on a score (ScoreGate), without logits",
        "",
        *str(gate.certificate).splitlines(),
        "",
        f"  score        {gate.score}: higher is {gate.higher_is}; a row without one is rejected",
        _curve_line(gate),
        f"  data         {gate.data_hash or 'no fingerprint of the calibration rows was recorded'}",
        file_line(about),
    ]
    echo("\n".join(wrapped(line) for line in lines))
