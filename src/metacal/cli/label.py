"""metacal label: from an unlabelled pool to a certified gate, asking for as few labels as it
takes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    ReadOptions,
    as_command,
    column_option,
    file_option,
    fraction_option,
    option,
    option_group,
    switch_option,
)
from metacal.cli.outputs import (
    OutputPath,
    check_is_file,
    check_not_input,
    output_option,
    print_saved_note,
    save_gate,
)
from metacal.cli.printing import echo, flag_is_set, print_json, print_note, wrap_lines
from metacal.cli.promise_options import PromiseOptions, max_miscoverage_option, min_accuracy_option
from metacal.cli.values import SEED_RANGE, RegistryChoice, bad_option
from metacal.scores.registry import NAMED

if TYPE_CHECKING:
    from metacal.cli.labelling import LabellingCall, LabellingOutcome
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores


@dataclass(frozen=True)
class Options:
    """Options of `metacal label`."""

    min_accuracy: float | None = min_accuracy_option()
    max_miscoverage: float | None = max_miscoverage_option()
    confidence: float | None = fraction_option(
        "How surely, whenever you stop.  [default: 0.9]", "C"
    )
    n_labels: int | None = option(
        "Rows drawn from POOL, the most labels that it takes; fixed by the first call.  "
        "[default: 40 / (1 - B), or 40 / A]",
        "--labels N",
        type=click.IntRange(1),
    )
    may_extend: bool = switch_option(
        "First call: --extend may draw on once, to 4 N rows. Costs a fifth of the doubt that C"
        " leaves."
    )
    extend: bool = switch_option("Draw on, as --may-extend declared.")
    output: str = output_option(
        "The rows to label now, with an empty column; fill it in and call again.",
        "CSV",
        required=True,
    )
    gate_file: str | None = option(
        "Save the gate here, as certified by now.", "--gate JSON", type=OutputPath()
    )
    coverage: float | None = fraction_option(
        "Stop as soon as a gate that accepts this share of rows is certified; for this call.", "C"
    )
    show: str | None = column_option(
        "First call: a column of POOL to show to whoever labels: a text, a link."
    )
    show_prediction: bool = switch_option(
        "First call: show what the model answers too; right and wrong will then do. It leads"
        " whoever labels."
    )
    batch: int | None = option(
        "Rows in CSV at a time.  [default: as in the first call, or N / 40, at least 5]",
        "ROWS",
        type=click.IntRange(1),
    )
    score: str | None = option(
        "What ranks the rows.  [default: entropy]", type=RegistryChoice(NAMED.keys)
    )
    seed: int | None = option(
        "Seed of the draw. The certificate records it. Without it the draw is derived from the"
        " pool.",
        type=SEED_RANGE,
    )
    replay: bool = switch_option(
        "Answer from the labels in POOL, to see how many labels it would have taken."
    )
    reading: ReadOptions = option_group(ReadOptions, without=("large", "labels", "agree_key"))
    key: str | None = file_option(
        "Sign every answer, and the gate, with this key: a secret, or an Ed25519 private key in"
        " PEM. Give it with every call.",
        "KEYFILE",
    )


@as_command(Options, "POOL", sectioned=True)
def command(pool: str, options: Options) -> None:
    """Certify a promise with as few labels as it takes, from a pool that has none.

    POOL holds logits without labels, in any file that metacal fit reads, or with --score-key
    scores: a random sample of what the gate will see. N rows of it are drawn. The first call writes
    CSV, the surest of them with an empty column label (for scores: right). Fill it in, the true
    class of each row or the word none, and call again: the answers are taken, and CSV holds the
    next rows, until further labels would change nothing. What is certified is then what fit
    certifies on all N labels. A file that is half filled in is taken as far as it goes. The promise
    holds whenever you stop: look as often as you like, and take the gate as it is with --gate.

    Everything is kept in a journal beside CSV (labels.csv: labels.journal): no answer is lost by a
    crash, a full disk or a second call. Options of the first call need not be given again, but for
    those that name what is what in POOL.

    \b
    Examples:
      metacal label pool.parquet --min-accuracy 0.97 -o labels.csv
      metacal label pool.parquet -o labels.csv --gate cal.json
      metacal label pool.npz --max-miscoverage 0.05 --labels 600 -o labels.csv
      metacal label pool.csv --show text --min-accuracy 0.95 -o labels.csv
      metacal label judge.jsonl --score-key mark --min-accuracy 0.9 -o labels.csv
      metacal label val.npz --min-accuracy 0.97 --replay -o labels.csv --gate cal.json
    """  # noqa: D301
    from metacal.cli.labelling import LabellingCall, run_labelling_call
    from metacal.cli.reading import read_score_table, read_table

    output, key, reading = options.output, options.key, options.reading
    journal = _journal(output, options.gate_file, pool, reading)
    call = LabellingCall(
        output, journal, options.extend, options.replay, options.coverage, options.batch
    )
    begins = not os.path.exists(journal)
    asked = _asked(options, journal, begins=begins)
    if reading.group_key is not None:
        raise click.UsageError(
            "labels are asked for one promise about all rows; leave out --group-key."
        )
    sheet = {name: getattr(options, name) for name in ("show", "show_prediction", "batch")}
    if not begins:
        sheet, reading = _begun(journal, key, reading)
        if (
            options.show not in (None, sheet["show"])
            or options.show_prediction > sheet["show_prediction"]
        ):
            raise click.UsageError(
                "--show and --show-prediction belong to the first call; leave them out, or begin"
                " anew."
            )
    if sheet["show"] is not None and sheet["show"].lower() in (
        "row",
        "id",
        "prediction",
        "label",
        "right",
    ):
        raise bad_option(
            "--show", f"{sheet['show']} is a column of CSV already; call it otherwise."
        )
    shown = replace(reading, group_key=sheet["show"])  # read as the rows' groups
    rows: Predictions | Scores = (
        read_table(pool, shown) if reading.score_key is None else read_score_table(pool, shown)
    )
    if options.show_prediction and reading.score_key is not None:
        raise click.UsageError(
            "a pool of scores has no predictions; --show NAME shows a column of it."
        )
    known: dict[str, Any] = {
        "labels": options.n_labels,
        "random_state": options.seed,
        "score": options.score,
    }
    known |= {"may_extend": options.may_extend or None, "higher_is": reading.higher_is}
    done = run_labelling_call(
        call, rows, None if asked is None else asked.promise(), options=known, sheet=sheet, key=key
    )
    if options.gate_file is not None and done.certifier.coverage is not None:
        save_gate(done.certifier.gate(), options.gate_file, key)
    _say(done, call, pool, options)


def _asked(options: Options, journal: str, *, begins: bool) -> PromiseOptions | None:
    """What is to be promised; None where the first call has said it."""
    if options.min_accuracy is not None or options.max_miscoverage is not None:
        return PromiseOptions(
            options.min_accuracy, options.max_miscoverage, confidence=options.confidence
        )
    if begins and not os.path.exists(options.output):
        raise click.UsageError(
            f"{journal} is not there, so this is a first call: give a promise, --min-accuracy (say"
            " 0.97: what is accepted is right at least 97% of the time) or --max-miscoverage (say"
            " 0.05: at most 5% of the right answers are rejected)."
        )
    if options.confidence is not None:
        raise click.UsageError(
            "--confidence belongs to the promise: give both as the first call did, or neither."
        )
    return None


def _journal(output: str, gate: str | None, pool: str, reading: ReadOptions) -> str:
    """The journal's name, once all names are such that nothing is overwritten."""
    from metacal.io.many import is_same_file

    if os.path.splitext(output)[1].lower() not in (".csv", ".tsv"):
        raise bad_option("-o", f"{output} must end in .csv or .tsv: people fill it in.")
    journal = os.path.splitext(output)[0] + ".journal"
    for path in (output, journal, gate):
        check_is_file(path)
        check_not_input(path, pool, reading=reading)
    lock = f"{os.path.realpath(journal)}.lock"
    if gate is not None and any(is_same_file(gate, path) for path in (output, journal, lock)):
        raise click.UsageError(f"-o, its journal {journal} and --gate must be different files.")
    return journal


def _begun(
    journal: str, key: str | None, reading: ReadOptions
) -> tuple[dict[str, Any], ReadOptions]:
    """What people are shown, and what the pool holds, as the first call said."""
    from metacal.io.artifact.certifier import open_journal

    with open_journal(journal, key=key) as opened:
        first = opened.records[0] if opened.records else {}
    if first and first["classes"] is None:
        reading = replace(reading, score_key=reading.score_key or first["score_name"])
    elif first:
        reading = replace(reading, input=reading.input or first["input"])
    return {"show": None, "show_prediction": False, **first.get("sheet", {})}, reading


def _say(done: LabellingOutcome, call: LabellingCall, pool: str, options: Options) -> None:
    from metacal.cli.labelling import answer_column

    if done.saved_meanwhile:
        print_note(
            wrap_lines(
                f"{call.sheet} was saved during this call. It was not overwritten: the answers "
                "that were saved were taken too."
            )
        )
    gate, as_json = options.gate_file, flag_is_set("json")
    certifier, waiting = done.certifier, len(done.waiting)
    some = certifier.coverage is not None
    if as_json:
        names = ("n_drawn", "n_labels", "finished", "coverage", "within_reach")
        answer = {
            "pool": pool,
            "journal": call.journal,
            "file": call.sheet if waiting else None,
            "n_waiting": waiting,
        }
        answer |= {name: getattr(certifier, name) for name in names} | {
            "gate": gate if some else None
        }
        answer["saved_meanwhile"] = done.saved_meanwhile
        print_json(
            {**answer, "certificate": certifier.certificate.to_dict(words=True) if some else None}
        )
    elif some and not waiting:
        echo(wrap_lines(str(certifier.certificate)))
    if not some and not waiting:
        _ = certifier.certificate  # says what is missing, and ends with exit code 1
    if waiting:
        print_note(wrap_lines(str(certifier)))
        print_note(
            f"{waiting:,} rows wait in {call.sheet}: fill in {answer_column(certifier)!r} and call"
            " again."
        )
    elif done.out_of_reach and call.coverage is not None and certifier.coverage is not None:
        more = (
            "more labels would change nothing."
            if certifier.finished
            else (
                f"at most {certifier.within_reach:.0%} is within it: leave out --coverage to go on."
            )
        )
        print_note(
            f"A coverage of {call.coverage:.0%} is out of reach. {certifier.coverage:.0%} is"
            f" certified; {more}"
        )
    elif not certifier.finished:
        print_note(wrap_lines(str(certifier)))
    if gate is not None and not some:
        print_note(f"{gate} is not written: no gate is certified yet.")
    elif gate is not None:
        print_saved_note(gate, options.key, then=f"metacal apply {gate} NEW -o out.csv", without="")
    elif not waiting and some and not as_json:
        print_note(
            f"--gate cal.json saves the gate; call again with it, {call.journal} has everything."
        )
