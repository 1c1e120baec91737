"""metacal label: from an unlabelled pool to a certified gate, asking for as few labels as it takes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    SCORES,
    SEED,
    OneOf,
    OutputPath,
    Reading,
    check_is_a_file,
    check_not_an_input,
    json_option,
    key_option,
    reading_options,
    share,
)
from metacal.cli.printing import echo, note, say_json, wrapped
from metacal.cli.promising import Asked
from metacal.cli.saving import save, say_saved
from metacal.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from metacal.gate.certifier import Certifier

#: An answer that says whether the prediction is right, where no class is called so.
_WORDS = {"right": True, "wrong": False}


@click.command()
@click.argument("pool", type=click.Path())
@click.option(
    "--min-accuracy", type=share, metavar="B", help="Promise: what is accepted is right at least B of the time."
)
@click.option(
    "--max-miscoverage", type=share, metavar="A", help="Promise: at most A of the right answers are turned away."
)
@click.option("--confidence", type=share, metavar="C", help="How surely, whenever you stop.  [default: 0.9]")
@click.option(
    "--coverage",
    type=share,
    metavar="C",
    help="Ask for a gate that accepts this share of rows.  [default: planned from the first labels]",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=OutputPath(),
    metavar="CSV",
    help="The rows to label now, with an empty column; fill it in and call again.",
)
@click.option("--gate", "gate_file", type=OutputPath(), metavar="JSON", help="Save the gate here once it is certified.")
@click.option(
    "--state", type=OutputPath(), metavar="JSON", help="Where everything is kept.  [default: beside CSV, .state.json]"
)
@click.option(
    "--show",
    metavar="NAME",
    help="A column of POOL to show to whoever labels: a text, a link. Give it with every call.",
)
@click.option("--batch", type=click.IntRange(1), default=50, show_default=True, help="Labels asked for at a time.")
@click.option(
    "--pilot", type=click.IntRange(20), default=100, show_default=True, help="First labels, which plan the coverage."
)
@click.option("--score", type=OneOf(SCORES), default="entropy", show_default=True, help="What ranks the rows.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of who is asked about.")
@click.option(
    "--replay", is_flag=True, help="Answer from the labels in POOL, to see how many labels it would have taken."
)
@reading_options()
@key_option
@json_option
def command(
    pool: str,
    min_accuracy: float | None,
    max_miscoverage: float | None,
    confidence: float | None,
    output: str,
    gate_file: str | None,
    state: str | None,
    show: str | None,
    replay: bool,
    reading: Reading,
    as_json: bool,
    **plan: Any,
) -> None:
    """Certify a promise with as few labels as it takes, from a pool that has none.

    POOL holds logits without labels, in any file that metacal fit reads, or with --score-key scores: a random sample of
    what the gate will see. The first call writes CSV, rows to label with an empty column label (for scores: right).
    Fill it in, the true class of each row or the word right or wrong, and call again: the answers are taken, and CSV
    holds the next rows, until the promise is certified; then --gate saves an ordinary gate. A file that is half filled
    in is taken as far as it goes. The promise holds whenever you stop: look as often as you like.

    Everything is kept in one file beside CSV, checked whenever it is read; options of the first call need not be given
    again.

    \b
    Examples:
      metacal label pool.parquet --min-accuracy 0.97 -o labels.csv
      metacal label pool.parquet -o labels.csv --gate cal.json
      metacal label pool.npz --max-miscoverage 0.05 --coverage 0.9 -o labels.csv
      metacal label pool.csv --show text --min-accuracy 0.95 -o labels.csv
      metacal label judge.jsonl --score-key mark --min-accuracy 0.9 -o labels.csv
      metacal label val.npz --min-accuracy 0.97 --replay -o labels.csv --gate cal.json
    """  # noqa: D301
    where = _places(output, gate_file, state, pool, reading)
    if min_accuracy is not None and max_miscoverage is not None:
        raise click.UsageError("labels are asked for one promise: --min-accuracy or --max-miscoverage, not both.")
    given = min_accuracy is not None or max_miscoverage is not None
    begins = not os.path.exists(where.state)
    asked = Asked(min_accuracy, max_miscoverage, confidence=confidence) if given or begins else None
    if reading.group_key is not None:
        raise click.UsageError("labels are asked for one promise about all rows; leave out --group-key.")
    rows = _pool(pool, reading, show)
    certifier = _certifier(rows, where, asked, reading, plan)
    if replay:
        _replay(certifier, rows)
    elif not begins and os.path.exists(output):
        _take(certifier, rows, output)
    waiting = certifier.propose()
    _keep(certifier, where)
    if len(waiting):
        _ask(certifier, rows, waiting, output)
    _say(certifier, where, len(waiting), as_json)


@dataclass(frozen=True)
class Places:
    """The files of a labelling."""

    pool: str
    output: str
    state: str
    gate: str | None


def _places(output: str, gate: str | None, state: str | None, pool: str, reading: Reading) -> Places:
    if os.path.splitext(output)[1].lower() not in (".csv", ".tsv"):
        raise click.BadParameter(f"{output} must end in .csv or .tsv: people fill it in.", param_hint="'-o'")
    kept = state if state is not None else os.path.splitext(output)[0] + ".state.json"
    for path in (output, kept, gate):
        check_is_a_file(path)
        check_not_an_input(path, pool, reading=reading)
    if len({os.path.realpath(path) for path in (output, kept, gate) if path is not None}) < 2 + (gate is not None):
        raise click.UsageError("-o, --state and --gate must be different files.")
    if os.path.exists(output) and not os.path.exists(kept):
        raise InputError(
            f"{output} is there, but {kept}, which says what was asked and how, is not; bring it back (--state names "
            f"it), or move {output} away to begin anew."
        )
    return Places(pool, output, kept, gate)


@dataclass(frozen=True)
class Pool:
    """What the pool's file holds: logits or scores, ids, and the truth where it has some."""

    table: Any
    ids: NDArray[Any] | None
    name: str
    classes: Any = None
    input: str = "logits"
    labels: NDArray[Any] | None = None
    right: NDArray[np.bool_] | None = None
    shown: dict[str, NDArray[Any]] = field(default_factory=dict)


def _pool(path: str, reading: Reading, show: str | None) -> Pool:
    if reading.score_key is not None:
        from metacal.cli.scored import read_scored

        scored = read_scored(path, reading)
        beside = None if show is None else read_scored(path, replace(reading, id_key=show)).ids
        return Pool(scored.score, scored.ids, scored.name, right=scored.correct, shown=_shown(show, beside))
    from metacal.cli.reading import read

    found = read(path, replace(reading, group_key=show))
    known = (found.class_names, found.input, found.labels)
    return Pool(found.table, found.ids, "score", *known, shown=_shown(show, found.groups))


def _shown(name: str | None, column: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    if name is None or column is None:
        return {}
    if name.lower() in ("row", "id", "prediction", "label", "right"):
        raise click.BadParameter(f"{name} is a column of CSV already; call it otherwise.", param_hint="'--show'")
    return {name: column}


def _certifier(rows: Pool, where: Places, asked: Asked | None, reading: Reading, plan: dict[str, Any]) -> Certifier:
    """The one that the state holds, or a new one."""
    from metacal.artifact.certifier import load_certifier
    from metacal.gate.certifier import Certifier

    if os.path.exists(where.state):
        key = click.get_current_context().meta.get("metacal.key")
        kept = load_certifier(where.state, rows.table, key=key)
        if asked is not None and kept.constraint != asked.promise():
            raise click.UsageError(
                f"{where.state} was begun for {kept.constraint!r}; leave the promise out, or begin anew with a new -o."
            )
        return kept
    return Certifier(
        (asked or Asked()).promise(),
        rows.table,
        coverage=plan["coverage"],
        batch=plan["batch"],
        pilot=plan["pilot"],
        random_state=plan["seed"],
        score=plan["score"],
        score_name=rows.name,
        higher_is=reading.higher_is or "surer",  # type: ignore[arg-type]
        input=rows.input,
        classes=rows.classes,
    )


def _replay(certifier: Certifier, rows: Pool) -> None:
    """Answer every question from the file itself."""
    if rows.labels is None and rows.right is None:
        raise InputError("--replay answers from the labels in POOL, and it has none; name them with --label-key.")
    while len(asked := certifier.propose()):
        if rows.right is not None:
            certifier.update(asked, rows.right[asked])
        else:
            assert rows.labels is not None
            certifier.update(asked, labels=rows.labels[asked])


def _take(certifier: Certifier, rows: Pool, path: str) -> None:
    """Take the answers of a file that has come back."""
    from metacal.files.asked import ID, PREDICTION, read_asked

    answers = read_asked(path, _answer_column(certifier))
    known = _columns(certifier, rows, [line.row for line in answers if 0 <= line.row < certifier.n_pool])
    for line in answers:
        if not 0 <= line.row < certifier.n_pool:
            raise InputError(f"{path}:{line.number}: the pool has no row {line.row}; leave the column row as it was.")
        for name in (ID, PREDICTION):
            if name in line.known and name in known and line.known[name] != known[name][line.row]:
                raise InputError(
                    f"{path}:{line.number}: row {line.row} has the {name} {known[name][line.row]!r}, not "
                    f"{line.known[name]!r}; lines were mixed up, or the column was edited: mend it."
                )
        try:
            _take_one(certifier, line.row, line.answer)
        except InputError as error:
            raise InputError(f"{path}:{line.number}: {error}") from None


def _take_one(certifier: Certifier, row: int, answer: str) -> None:
    if certifier.rows is None:
        word = _WORDS.get(answer.lower())
        certifier.update([row], [answer if word is None else word])
        return
    names = [str(name) for name in certifier.classes_.tolist()]
    if answer in names:
        certifier.update([row], labels=certifier.classes_[[names.index(answer)]])
    elif answer.lower() in _WORDS:
        certifier.update([row], [_WORDS[answer.lower()]])
    else:
        import difflib

        close = difflib.get_close_matches(answer, names, n=1)
        hint = (
            f"did you mean {close[0]!r}?" if close else f"they are {', '.join(names[:8])}{', ...' * (len(names) > 8)}."
        )
        raise InputError(
            f"{answer[:60]!r} is none of the classes; {hint} If the true class is none of them, write wrong."
        )


def _answer_column(certifier: Certifier) -> str:
    return "right" if certifier.rows is None else "label"


def _columns(certifier: Certifier, rows: Pool, numbers: Any) -> dict[str, dict[int, str]]:
    """Id and prediction of rows, as the file has them."""
    found: dict[str, dict[int, str]] = {}
    if rows.ids is not None:
        found["id"] = {row: str(rows.ids[row]).strip() for row in numbers}
    if certifier.rows is not None:
        found["prediction"] = {row: str(certifier.classes_[certifier.predicted[row]]).strip() for row in numbers}
    return found


def _ask(certifier: Certifier, rows: Pool, waiting: NDArray[np.intp], output: str) -> None:
    """Write the rows that wait for an answer."""
    import numpy as np

    from metacal.files.asked import write_asked

    columns: dict[str, Any] = {"row": waiting}
    if rows.ids is not None:
        columns["id"] = rows.ids[waiting]
    if certifier.rows is not None:
        columns["prediction"] = certifier.classes_[certifier.predicted[waiting]]
        columns[str(certifier.score)] = certifier.ranking_of(waiting)
    else:
        columns[certifier.score_name] = np.asarray(rows.table)[waiting]
    columns |= {name: column[waiting] for name, column in rows.shown.items()}
    write_asked(output, columns, _answer_column(certifier))


def _keep(certifier: Certifier, where: Places) -> None:
    """Save the state, and the gate once it is there."""
    from metacal.artifact.file import save as save_state

    save_state(certifier, where.state)
    if where.gate is not None and certifier.labelling.threshold is not None and certifier.finished:
        save(certifier.gate(), where.gate, None)


def _say(certifier: Certifier, where: Places, waiting: int, as_json: bool) -> None:
    done = certifier.finished
    some = certifier.labelling.threshold is not None
    if as_json:
        say_json(
            {
                "pool": where.pool,
                "state": where.state,
                "file": where.output if waiting else None,
                "n_labels": certifier.n_labels,
                "n_waiting": waiting,
                "certified": certifier.certified,
                "finished": done,
                "coverage": certifier.coverage,
                "forecast": None if done else certifier.forecast(),
                "gate": where.gate if done and some else None,
                "certificate": certifier.certificate.to_dict(words=True) if some else None,
            }
        )
    elif done and some:
        echo(wrapped(str(certifier.certificate)))
    if done and not some:
        _ = certifier.certificate  # says what is missing, and ends with exit code 1
    if not done:
        note(wrapped(f"{certifier}"))
        note(f"{waiting:,} rows wait in {where.output}: fill in {_answer_column(certifier)!r} and call again.")
        return
    if not certifier.certified:
        note(wrapped(str(certifier)))
    then = f"metacal apply {where.gate} NEW -o out.csv"
    without = f"--gate cal.json saves the gate; call again with it, {where.state} has everything."
    say_saved(where.gate, None, then=then, without=without, as_json=as_json)
