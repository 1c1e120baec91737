"""Options of all commands that read a file of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import click

from metacal.cli.options import FORMATS, STORED_IN_CONTEXT, column_option, file_option, option
from metacal.cli.values import parse_row_range

if TYPE_CHECKING:
    from metacal.gate.score_source import HigherIs


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a user's file: names and kinds of its columns."""

    large: str | None = file_option(
        "Predictions of the large model of a cascade, for all rows or for those that need it.",
        "LARGEFILE",
    )
    input: str | None = option(
        "Kind of numbers in FILE.  [default: logits, or the input that the gate was fitted on]",
        type=click.Choice(["logits", "probabilities"]),
    )
    labels: str | None = file_option(
        "Separate file of labels: .npy, or text with one label per line."
    )
    logits_key: str | None = option(
        "Array or column of the logits, prefix or pattern of their columns such as 'p(*)', or the"
        " score of the positive class.  [default: logits or score; probabilities, probs or prob]",
        "--logits-key --positive-key NAME",
    )
    label_key: str | None = column_option(
        "Column or array of true labels.  [default: labels, label or y]"
    )
    id_key: str | None = column_option("Column or array of row ids.  [default: id or ids]")
    group_key: str | None = column_option(
        "Column of groups. Each group has its own threshold and promise."
    )
    classes: str | None = option(
        "Class names in column order, or @FILE with one per line.  [default: 0, 1, ...]", "A,B,C"
    )
    drop: tuple[str, ...] = option(
        "Column that is not a class. Repeat the option for each column.", "NAME", multiple=True
    )
    format: str | None = option(
        "Format of FILE: csv, jsonl, parquet, npz, ...  [default: from its content or name]",
        "KIND",
        type=click.Choice(FORMATS),
    )
    score_key: str | None = column_option(
        "Column with one score per row, instead of logits.  [default: as the gate was fitted]"
    )
    correct_key: str | None = column_option(
        "With --score-key: column that marks correct rows (true/false, 1/0, yes/no).  [default:"
        " correct or ok]"
    )
    prediction_key: str | None = column_option(
        "With --score-key: column of predictions, which are correct if they equal the label."
    )
    agree_key: str | None = column_option(
        "For a cascade over scores with --max-loss: columns that mark whether each model but the"
        " last agrees with the last one, separated by commas."
    )
    loss_key: str | None = column_option(
        "With --score-key and --max-risk: column of losses from 0 to 1.  [default: loss, if the gate"
        " was fitted on losses]"
    )
    case_key: str | None = column_option(
        "With a promise about cases: column of the case of each item, such as its document."
        " --group-key then names the type of each item.  [default: the line, if --score-key names a"
        " list of items, as in 'fields[*].score']"
    )
    higher_is: str | None = option(
        "With --score-key: meaning of a higher score. Pass doubtful for losses, distances and"
        " perplexities.  [default: surer]",
        type=click.Choice(["surer", "doubtful"]),
    )
    rows: tuple[float, float] | None = option(
        "Random part of the rows, the same in every call: 0:0.7 is 70% of them, 0.7:1 the rest.",
        "A:B",
        type=parse_row_range,
    )
    strict: None = option(
        "Treat warnings as errors, for example about repeated rows.",
        is_flag=True,
        **STORED_IN_CONTEXT,
    )
    unit_key: str | None = None
    keep: tuple[str, ...] | None = ()

    @property
    def score_direction(self) -> HigherIs:
        """Meaning of a higher score, "surer" by default."""
        return cast("HigherIs", self.higher_is or "surer")
