"""Read the user's file as a command needs it. NumPy is imported when a command runs, not before."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import ReadOptions, option_flag
from metacal.cli.printing import print_note
from metacal.cli.values import bad_option
from metacal.errors import InputError, warn_caller

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores
    from metacal.promises.fingerprint import FitRows

#: Options that read a table of logits.
_OF_A_TABLE = ("input", "labels", "logits_key", "label_key", "classes", "drop")
#: Options that read scores in place of it.
_OF_SCORES = ("score_key", "correct_key", "agree_key", "loss_key", "higher_is")
#: Options that are about logits, by the name of the parameter; refused where the user gave them.
_ABOUT_LOGITS = ("score", "calibrator", "reject_label", "rejected", "comparing", "calibrators")


def read_table(path: str, reading: ReadOptions, *, stream: bool | None = None) -> Predictions:
    """Read FILE with the user's options; what looks odd is said. With `stream` the table stays in
    its file.
    """
    check_no_score_options(reading)
    from metacal.io.predictions import read_predictions
    from metacal.rows.plausibility import warn_of_suspicion

    _refuse_gate(path)
    found = read_predictions(
        path, input=reading.input or "logits", stream=stream, **read_keywords(reading)
    )
    warn_of_suspicion(found.table, found.input)
    return found


def read_keywords(reading: ReadOptions) -> dict[str, Any]:
    """The user's options as `read_predictions` takes them, all but `input`."""
    names = (
        "labels",
        "logits_key",
        "label_key",
        "id_key",
        "group_key",
        "unit_key",
        "format",
        "drop",
        "keep",
    )
    return {
        **{name: getattr(reading, name) for name in names},
        "classes": parse_class_names(reading.classes),
    }


def parse_class_names(text: str | None) -> tuple[str | int, ...] | None:
    """Return the classes that --classes lists, or that its @file holds, one per line.

    Examples
    --------
    >>> class_names("cat, dog"), class_names("0,1"), class_names(None)
    (('cat', 'dog'), (0, 1), None)
    """
    from metacal.rows.labels import as_class_names

    if text is None:
        return None
    if text.startswith("@"):
        lines = read_lines(text[1:], "save the class names as UTF-8")
        names = [name.strip() for name in lines if name.strip()]
    else:
        names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or "" in names:
        raise bad_option(
            "--classes", f"{text!r} must list at least two classes, separated by commas."
        )
    return as_class_names(names)


def read_lines(path: str, advice: str) -> list[str]:
    """The lines of a small file of text that the user has written; what to do is said where it is
    no text.
    """
    from metacal.io.opening import plain_read_errors

    try:
        with plain_read_errors(path):
            return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is not UTF-8 text; {advice}.") from None


def check_no_score_options(reading: ReadOptions, why: str = "this command needs logits") -> None:
    """Refuse the options that read scores, as wrong usage."""
    given = [name for name in _OF_SCORES if getattr(reading, name) is not None]
    if given:
        raise click.UsageError(
            f"{option_flag(given[0])} is about scores in place of logits; {why}."
        )


def load_gate(artifact: str, file: str | None = None) -> Gate:
    """The gate in a saved file, without scikit-learn; with --key only if it is signed with that
    key.

    `file` is the other file of the command line, where there is one: the two are easily taken for
    each other.
    """
    import metacal

    if file is not None and _is_saved(file) and not _is_saved(artifact):
        raise click.UsageError(
            f"{file} is a gate that metacal saved, and {artifact} is none: it seems that the two"
            " are swapped."
        )
    return metacal.load_gate(artifact, key=click.get_current_context().meta.get("metacal.key"))


def check_read_options(
    gate: Gate, artifact: str, reading: ReadOptions, *, any_groups: bool = False
) -> None:
    """Refuse options that do not fit what a gate reads, as wrong usage: nothing that is said is
    ignored.

    Groups that it does not go by may be told apart all the same, with `any_groups`.
    """
    if not gate.n_classes:
        _check_no_logit_options(reading)
        if reading.higher_is not in (None, gate.source.higher_is):
            raise click.UsageError(
                f"{artifact} was fitted where a higher score is {gate.source.higher_is}; leave"
                " --higher-is out."
            )
    else:
        check_no_score_options(reading, f"{artifact} was fitted on {gate.source.input}")
        if reading.input not in (None, gate.source.input):
            kind = gate.source.input
            raise bad_option(
                "--input", f"{artifact} was fitted on {kind}, so FILE must hold {kind}."
            )
    if gate.by_group and reading.group_key is None:
        raise click.UsageError(
            f"{artifact} has a threshold for each group of rows; say where FILE has the groups:"
            " --group-key NAME."
        )
    if reading.group_key is not None and not (gate.by_group or any_groups):
        raise click.UsageError(f"{artifact} has no threshold by group; leave out --group-key.")


def _refuse_gate(path: str) -> None:
    if _is_saved(path):
        raise click.UsageError(
            f"{path} is a gate that metacal saved, not a file of predictions; give a file with"
            " rows."
        )


def _is_saved(path: str) -> bool:
    """Whether a file begins as those do that metacal saves."""
    with suppress(OSError, ValueError):
        if Path(path).is_file():  # a pipe can be read only once
            with open(path, "rb") as file:
                return b"".join(file.read(64).split()).startswith(b'{"format":"metacal"')
    return False


# ── rows for a gate, whatever it reads: a table of logits, scores, or the tables of a cascade's mod


@dataclass(frozen=True, eq=False)
class GateRows:
    """The rows of FILE as a gate reads them.

    Attributes
    ----------
    path : str
        What messages call it.
    tables : tuple
        What each stage of the gate reads: checked logits, which may stay in their file, or scores.
    truth : array or None
        Labels, or whether each row is right.
    found : Predictions or Scores
        All that the file of the first stage holds.
    large : Predictions or None
        What --large holds.
    """

    path: str
    tables: tuple[Any, ...]
    truth: Any
    found: Any
    large: Any = None

    def require_truth(self) -> Any:
        """Labels, or right and wrong; InputError with what to do where there are none."""
        return self.found.require_truth() if self.truth is None else self.truth

    def note_rows_without_score(self, n_with_score: int) -> None:
        """Print how many rows have no score, if there are any."""
        n = len(self.found)
        if n_with_score < n:
            print_note(
                f"{n - n_with_score:,} of {n:,} rows have no score: left out here, and rejected by"
                " every gate."
            )

    def warn_of_fit_rows(self, fit_rows: FitRows | None, artifact: str | None) -> None:
        """Warn if rows were part of the fit; with --strict the command then fails."""
        if fit_rows is not None:
            warn_caller(
                f"{self.path}: {fit_rows}. They do not judge {artifact}, and look better than new"
                " rows."
            )


def read_gate_and_rows(
    artifact: str | None, file: str, reading: ReadOptions, *, stream: bool | None = None, **how: Any
) -> tuple[Gate | None, GateRows]:
    """A saved gate, none for a classifier alone, and the rows of FILE as it reads them; `how` as in
    `read_rows`.
    """
    if artifact is not None:
        from metacal.gate.judged import check_measurable

        gate = load_gate(artifact, file)
        check_measurable(gate)
        return gate, read_gate_rows(gate, artifact, file, reading, stream=stream, **how)
    check_large(None, None, reading.large)
    if reading.score_key is not None:  # a gate that ranks by these scores, and accepts all
        from metacal.gate import Gate, Marks
        from metacal.gate.marks import plain_name

        scores = read_score_table(file, reading)
        marks = Marks(plain_name(scores.name), reading.higher_is or "surer")  # type: ignore[arg-type]
        return Gate.of(marks), GateRows(file, (scores.score,), scores.correct, scores)
    found = read_table(file, reading, stream=stream)
    return None, GateRows(file, (found.table,), found.labels, found)


def check_large(gate: Gate | None, artifact: str | None, large: str | None) -> None:
    """Refuse a second model's file where there is no second model, or all scores stand in one
    file.
    """
    if large is None:
        return
    if gate is None:
        raise click.UsageError(
            "--large belongs to a cascade; give the cascade before FILE, as metacal cascade has"
            " saved it."
        )
    if len(gate.stages) > 1 and gate.n_classes:
        return
    if len(gate.stages) > 1:
        raise click.UsageError(
            f"{artifact} holds a cascade of scores, which all stand in FILE; leave out --large."
        )
    raise click.UsageError(f"--large belongs to a cascade; {artifact} holds one gate.")


def read_gate_rows(
    gate: Gate,
    artifact: str,
    file: str,
    reading: ReadOptions,
    *,
    all_stages: bool = True,
    any_groups: bool = False,
    as_is: bool = False,
    stream: bool | None = None,
) -> GateRows:
    """Read FILE, and --large, for a gate. Without `all_stages` the first stage may be alone;
    `any_groups` is of a reader who tells groups apart, whatever the gate goes by.
    """
    from metacal.io.gate_predictions import read_for_gate
    from metacal.rows import Rows

    large = reading.large
    check_large(gate, artifact, large)
    check_read_options(gate, artifact, reading, any_groups=any_groups and gate.n_classes > 0)
    if len(gate.stages) > 1 and not gate.n_classes:
        from metacal.gate.judged import opened

        names, flags = cascade_column_names(gate, reading)
        columns, truth, first = read_cascade_scores(
            file, reading, names, flags, agreement=gate.reads_agreement
        )
        return GateRows(file, opened(gate, columns)[1], truth, first)
    if large is None and len(gate.stages) > 1 and all_stages:
        raise click.UsageError(
            f"{artifact} holds a cascade: give the large model's predictions too, --large"
            " LARGEFILE."
        )
    if gate.kind == "scores":
        scores = read_score_table(file, reading, gate, artifact)
        return GateRows(file, (scores.score,), scores.correct, scores)
    _refuse_gate(file)
    found = read_for_gate(gate, artifact, file, stream=stream, **read_keywords(reading))
    if as_is and gate.kind == "logits":
        return GateRows(file, (found.table,), found.labels, found)
    tables = [gate.source.read(found.table, by_rows=True)]
    truth, other = found.labels, None
    if large is not None:
        _refuse_gate(large)
        other = read_for_gate(gate.stage(1), artifact, large, **read_keywords(reading))
        tables.append(gate.stages[1].source.read(other.table, by_rows=True))
        # Of rows that are only decided on there may be fewer: those that need the large model.
        truth = (
            merge_labels(found, other, file, large) if len(found) == len(other) else found.labels
        )
    return GateRows(file, tuple(map(Rows, tables)), truth, found, other)


def merge_labels(one: Predictions, other: Predictions, small: str, large: str) -> Any:
    """The labels of two models' rows; refused where ids or labels say that these are not the same,
    in one order.
    """
    import numpy as np

    for what, first, second in (("ids", one.ids, other.ids), ("labels", one.labels, other.labels)):
        if (
            first is None
            or second is None
            or (first.dtype.kind in "US") != (second.dtype.kind in "US")
        ):
            continue  # names beside numbers say nothing of each other
        differ = np.flatnonzero(
            (first != second) & ((first == first) | (second == second))
        )  # NaN: not known
        if len(differ):
            where = f"the {what} of row {differ[0]} differ"
            raise InputError(
                f"{small} and {large} do not hold the same rows in the same order: {where}."
            )
    return other.labels if one.labels is None else one.labels


def read_score_table(
    path: str,
    reading: ReadOptions,
    gate: Gate | None = None,
    artifact: str | None = None,
    *,
    agreement: bool = False,
) -> Scores:
    """Read the scores of FILE with the user's options; they are called as in the gate where the
    user does not say.
    """
    from metacal.io.opening import NoScoreError
    from metacal.io.scores import read_scores

    _check_no_logit_options(reading)
    if reading.agree_key is not None:
        raise click.UsageError(
            "--agree-key is for a cascade over scores with --max-loss; here --correct-key says"
            " right or wrong."
        )
    name = reading.score_key or (gate.source.score if gate is not None else "score")
    keys = ("correct_key", "loss_key", "id_key", "group_key", "unit_key", "keep", "format")
    own = {key: getattr(reading, key) for key in keys}
    try:
        losses = gate is not None and gate.reads_losses
        return read_scores(path, score_key=name, losses=losses, agreement=agreement, **own)
    except NoScoreError as error:
        if gate is None or reading.score_key is not None:
            raise
        raise InputError(
            f"{error} ({artifact} is a gate on the score {name!r}, not on logits.)"
        ) from error


def read_cascade_scores(
    path: str, reading: ReadOptions, names: list[str], flags: list[str], *, agreement: bool
) -> tuple[list[Any], Any, Scores]:
    """Read the scores of a cascade's models and their flags from one file.

    Parameters
    ----------
    path : str
    reading : Reading
    names, flags : list of str
        The columns that hold the scores, and those that hold the flags of each model, which may be
        none.
    agreement : bool
        Whether a flag means agreement with the last model. Otherwise it means that the answer is
        correct.

    Returns
    -------
    scores : list of arrays
    flags : list of arrays, or None if no column was named
    first : Scores
        The first model's columns, with ids and, under its usual name, a flag for the answer that
        was given.
    """
    bare = replace(reading, correct_key=None, agree_key=None)
    one_each = [replace(bare, score_key=key) for key in (*names, *flags)]
    found = [read_score_table(path, one, agreement=agreement) for one in one_each]
    columns = [one.score for one in found]
    return columns[: len(names)], columns[len(names) :] or None, found[0]


def split_names(text: str | None) -> list[str]:
    """Return the names that an option lists, separated by commas.

    >>> listed_keys("small.p, middle.p"), listed_keys(None)
    (['small.p', 'middle.p'], [])
    """
    return [] if text is None else [name.strip() for name in text.split(",")]


def cascade_column_names(gate: Gate, reading: ReadOptions) -> tuple[list[str], list[str]]:
    """Return the names of the columns that hold the scores of a cascade's models, and the flags of
    each.

    Raises
    ------
    click.UsageError
        If the flags are not those that the cascade was fitted on, or a model has none.
    """
    key = "agree_key" if gate.reads_agreement else "correct_key"
    _refuse_other_flags(reading, key)
    last = (
        not gate.people
    )  # it answers whatever its score is, and where others are compared with it, it is good
    names = [str(stage.source.score) for stage in gate.stages][: len(gate.stages) - last]
    n_truths = len(gate.stages) - gate.reads_agreement
    scores, flags = split_names(reading.score_key), split_names(getattr(reading, key))
    if len(scores or names) not in (len(names), len(gate.stages)) or len(flags) not in (
        0,
        n_truths,
    ):
        raise click.UsageError(
            f"this cascade needs {len(names)} names in --score-key and {n_truths} in {option_flag(key)},"
            " one for each model."
        )
    return (scores or names)[: len(names)], flags


def _refuse_other_flags(reading: ReadOptions, key: str) -> None:
    """Refuse options that name other flags than `key`, which a saved cascade is judged by."""
    if reading.loss_key is not None:
        raise click.UsageError(
            f"a cascade is about single answers: {option_flag(key)} names their column, not --loss-key."
        )
    if key == "agree_key" and reading.correct_key is not None:
        raise click.UsageError(
            "this cascade promises how many answers differ from the large model's. --correct-key"
            " says which are correct, which is not the same: name the columns of agreement with"
            " --agree-key."
        )
    if key == "correct_key" and reading.agree_key is not None:
        raise click.UsageError(
            "this cascade promises an accuracy. --agree-key says which answers are the large"
            " model's, which is not the same: name the columns of right and wrong with"
            " --correct-key."
        )


def _check_no_logit_options(reading: ReadOptions) -> None:
    """Refuse options that have no meaning for scores, as wrong usage."""
    context = click.get_current_context()
    given = [name for name in _OF_A_TABLE if getattr(reading, name) not in (None, ())]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in _ABOUT_LOGITS and source is click.core.ParameterSource.COMMANDLINE:
            given.append(parameter.opts[0].lstrip("-"))
    if given:
        raise click.UsageError(
            f"{option_flag(given[0])} is about logits; a gate on scores has none: leave it out."
        )
