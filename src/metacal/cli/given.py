"""What FILE holds for a gate, whatever that reads: a table of logits, scores, or the tables of a cascade's models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import Reading
from metacal.cli.printing import note
from metacal.errors import InputError, warn_caller

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.gate.judged import Judged
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores

#: Options that read a table of logits.
_OF_A_TABLE = ("input", "labels", "logits_key", "label_key", "classes")
#: Options that are about logits, by the name of the parameter; refused where the user gave them.
_ABOUT_LOGITS = ("score", "calibrator", "reject_label", "rejected", "comparing", "calibrators")
#: The option of the commands that read a cascade.
large_option = click.option(
    "--large",
    type=click.Path(),
    metavar="LARGEFILE",
    help="With a cascade: the large model's predictions, of all rows or of those that need it.",
)


@dataclass(frozen=True, eq=False)
class Given:
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
    """

    path: str
    tables: tuple[Any, ...]
    truth: Any
    found: Any

    def __len__(self) -> int:
        return len(self.found)

    @property
    def groups(self) -> Any:
        """The group of each row, where there are groups."""
        return self.found.groups

    @property
    def ids(self) -> Any:
        """The id of each row, where there are ids."""
        return None if self.found.ids is None else self.found.ids.ravel()

    def require_truth(self) -> Any:
        """Labels, or right and wrong; InputError with what to do where there are none."""
        if self.truth is not None:
            return self.truth
        return self.found.require_truth()

    def judged(self, gate: Gate, artifact: str, *, probabilities: bool = False, bare: bool = False) -> Judged:
        """What the gate decides on these rows, beside their truth; `bare` where it can do without."""
        from metacal.gate.judged import judged

        truth = None if bare and self.truth is None else self.require_truth()
        seen = judged(gate, self.tables, truth, self.groups, probabilities=probabilities)
        if len(seen) < len(self):
            missing = len(self) - len(seen)
            note(f"{missing:,} of {len(self):,} rows have no score: left out here, and rejected by every gate.")
        if seen.fitted_here:
            warn_caller(f"{self.path} holds the very rows that {artifact} was fitted on; they say nothing new.")
        return seen


def read_given(
    gate: Gate,
    artifact: str,
    file: str,
    reading: Reading,
    large: str | None = None,
    *,
    all_stages: bool = True,
    any_groups: bool = False,
) -> Given:
    """Read FILE, and --large, for a gate. Without `all_stages` the first stage may be alone; `any_groups` is of a
    reader who tells groups apart, whatever the gate goes by.
    """
    if large is not None and len(gate.stages) == 1:
        raise click.UsageError(f"--large belongs to a cascade; {artifact} holds one gate.")
    if large is None and len(gate.stages) > 1 and all_stages:
        raise click.UsageError(
            f"{artifact} holds a cascade: give the large model's predictions too, --large LARGEFILE."
        )
    from metacal.cli.reading import check_groups, read_for

    if gate.kind == "scores":
        check_groups(gate, artifact, reading)
        scores = read_scored(file, reading, gate, artifact)
        return Given(file, (scores.score,), scores.correct, scores)
    found = read_for(gate, artifact, file, reading, any_groups=any_groups)
    tables = [gate.read(found.table, by_rows=True)]
    truth = found.labels
    if large is not None:
        other: Predictions = read_for(gate.stage(1), artifact, large, reading)
        tables.append(gate.stages[1].source.read(other.table, by_rows=True))
        truth = other.labels if other.labels is not None else truth
    from metacal.rows import Rows

    return Given(file, tuple(map(Rows, tables)), truth, found)


def read_scored(path: str, reading: Reading, gate: Gate | None = None, artifact: str | None = None) -> Scores:
    """Read the scores of FILE with the user's options; they are called as in the gate where the user does not say."""
    from metacal.io.scores import read_scores

    _refuse_logits(reading)
    if gate is not None and reading.higher_is not in (None, gate.source.higher_is):
        raise click.UsageError(
            f"{artifact} was fitted where a higher score is {gate.source.higher_is}; leave --higher-is out."
        )
    name = reading.score_key or (gate.source.score if gate is not None else "score")
    try:
        return read_scores(
            path,
            score_key=name,
            correct_key=reading.correct_key,
            id_key=reading.id_key,
            group_key=reading.group_key,
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
