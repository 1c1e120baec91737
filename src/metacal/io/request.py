"""Description of the columns that a reader returns from a file of predictions.

Columns are found by name. The values of a column never decide its meaning. Readers of all file
formats share the names and the rules in this module and in `metacal.io.column_selection`.

Terms used in this package:

- *table*: the logits or probabilities, with one row per item and one column per class. For a file
  of scores it is a single column.
- *role*: the meaning of a column other than the table: "labels", "predictions", "ids", "groups" or
  "units".
- *single score*: one column for a classifier with two classes. A higher value favours the second
  class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacal.io.columns import Columns

#: Size in bytes above which a table stays in its file instead of being read into memory.
STREAM_BYTES = 1 << 28

ClassNames = tuple[str | int, ...]

#: Default names of the table, for each kind of input.
DEFAULT_TABLE_NAMES = {"logits": ("logits",), "probabilities": ("probabilities", "probs")}
#: Default names of the labels.
DEFAULT_LABEL_NAMES = ("labels", "label", "y")
#: Default names of the column that marks each scored row as correct or incorrect.
DEFAULT_CORRECT_NAMES = ("correct", "ok")
#: Default names of the losses of scored rows.
DEFAULT_LOSS_NAMES = ("loss",)
#: Default names of the column that marks agreement with the last model of a cascade.
DEFAULT_AGREEMENT_NAMES = ("agrees",)
#: Default names of the row ids.
DEFAULT_ID_NAMES = ("id", "ids")
#: Default names of an array of class names.
DEFAULT_CLASS_LIST_NAMES = ("classes", "class_names")
#: Field of a `Request` that names the column of each role.
#: `read_predictions` has parameters of the same names as these fields.
REQUEST_FIELD_OF_ROLE = {
    "labels": "label_key",
    "predictions": "prediction_key",
    "ids": "id_key",
    "groups": "group_key",
    "units": "unit_key",
    "cases": "case_key",
}
#: Fields of a `Request` that name columns which are required to fit a gate, but not to apply it.
FIELDS_OPTIONAL_AFTER_FIT = ("label_key", "prediction_key", "id_key", "unit_key", "case_key")
#: Typical names of label columns, which the readers do not use by default.
LABEL_NAME_PATTERN = re.compile(
    r"targets?|truths?|gt|gold|ground[_ ]?truth|(true|gold)[_ ]?(label|labels|class|target)|y[_"
    r" ]?true|class|category"
    r"|(class|label|target)[_ ]?(id|idx|index|name)",
    re.IGNORECASE,
)
#: Prefixes of class columns: `logits_cat` and `logits_dog` belong to the classes cat and dog.
CLASS_COLUMN_PREFIXES = {
    "logits": ("logits_", "logit_"),
    "probabilities": ("probabilities_", "probability_", "probs_", "prob_"),
}
#: Names of a column that may hold a single score for two classes.
SINGLE_SCORE_NAMES = {
    "logits": ("score", "margin", "logit", "log_odds"),
    "probabilities": ("prob", "probability"),
}


@dataclass(frozen=True)
class Request:
    """Description of the columns that a reader returns.

    Attributes
    ----------
    path : str
        Name of the file in messages.

    input : {"logits", "probabilities"}
        Content of the table.

    logits_key : str or None
        Name of the table, or prefix of its columns, or pattern of their names such as "p(*)". If
        `table_is_score_column` is true, name of the score column.

    label_key, id_key, group_key, unit_key, case_key : str or None
        Names of the columns with a role. If `table_is_score_column` is true, `label_key` names the column that
        marks a row as correct or incorrect, or the true answers if there is a `prediction_key`.

    prediction_key : str or None
        If `table_is_score_column` is true, name of a column of answers. An answer is correct if it equals the
        label.

    classes : tuple or None
        Class names, in the order in which the table must have them.

    copy_path : str or None
        Copy of standard input or of a remote file, which is opened instead of `path`.

    copy_is_permanent : bool
        Whether the copy exists for as long as the table is used.

    format : str or None
        File format, for example "csv". None if the file determines it.

    stream : bool or None
        Whether the table stays in its file. None if the size of the table decides.

    excluded_columns : tuple of str
        Columns that are not classes.

    kept_names : tuple of str
        Columns to copy to the results. They are not classes either.

    keeps_other_columns : bool
        Whether every column except the table is copied to the results.

    gate_classes : tuple or None
        Classes of the gate that is applied. They select and order columns of the same names.

    table_is_score_column : bool
        Whether the table is one column of scores.

    labels_are_losses : bool
        Whether the labels of scored rows are losses from 0 to 1.

    labels_are_agreement : bool
        Whether the labels of scored rows mark agreement with the last model of a cascade.

    later_score_columns : tuple of str
        For a cascade, score columns of the models after the first.

    correctness_columns : tuple of str
        For a cascade, the columns that mark whether each model is correct.

    gate_name : str or None
        Name in messages of the gate that is applied.

    fields_set_by_gate : frozenset of str
        Fields of this request whose values the gate stores and the user did not give.

    format_table_names, format_label_names : tuple of str
        Names that the file format adds to the default names of the table and of the labels. As with
        the other default names, a file need not have them.
    """

    path: str
    input: str = "logits"
    logits_key: str | None = None
    label_key: str | None = None
    classes: ClassNames | None = None
    id_key: str | None = None
    group_key: str | None = None
    unit_key: str | None = None
    case_key: str | None = None
    prediction_key: str | None = None
    copy_path: str | None = None
    copy_is_permanent: bool = False
    format: str | None = None
    stream: bool | None = None
    excluded_columns: tuple[str, ...] = ()
    kept_names: tuple[str, ...] = ()
    keeps_other_columns: bool = False
    gate_classes: ClassNames | None = None
    table_is_score_column: bool = False
    labels_are_losses: bool = False
    labels_are_agreement: bool = False
    later_score_columns: tuple[str, ...] = ()
    correctness_columns: tuple[str, ...] = ()
    gate_name: str | None = None
    fields_set_by_gate: frozenset[str] = frozenset()
    format_table_names: tuple[str, ...] = ()
    format_label_names: tuple[str, ...] = ()

    @property
    def path_to_open(self) -> str:
        """Path of the file to open: the copy if there is one, otherwise `path`."""
        if self.copy_path is None:
            return self.path
        return self.copy_path

    @property
    def accepts_score_of_any_name(self) -> bool:
        """Whether a single column of any name may be a single score."""
        return self.input == "probabilities" or self.logits_key is not None

    def is_score_field(self, field_name: str) -> bool:
        """Check whether a field of this request names the column of scores."""
        return self.table_is_score_column and field_name == "logits_key"

    def find_missing_label_column(self, columns: Columns) -> str | None:
        """Return the column from which the gate reads labels, if the columns read lack it."""
        gate_names_labels = "label_key" in self.fields_set_by_gate
        if gate_names_labels and columns.labels is None:
            return self.label_key
        gate_names_predictions = "prediction_key" in self.fields_set_by_gate
        if gate_names_predictions and columns.predictions is None:
            return self.prediction_key
        return None

    def accepts_as_single_score(self, column_names: Sequence[str | int]) -> bool:
        """Check whether the columns are a single score of the second of two classes."""
        if len(column_names) != 1:
            return False
        return self.accepts_score_of_any_name or column_names[0] in SINGLE_SCORE_NAMES[self.input]

    @property
    def default_table_names(self) -> tuple[str, ...]:
        """Default names of the table."""
        return (*self.format_table_names, *DEFAULT_TABLE_NAMES[self.input])

    @property
    def default_label_names(self) -> tuple[str, ...]:
        """Default names of the column with the role "labels"."""
        if self.labels_are_losses:
            return DEFAULT_LOSS_NAMES
        if self.labels_are_agreement:
            return DEFAULT_AGREEMENT_NAMES
        if self.table_is_score_column and self.prediction_key is None:
            return DEFAULT_CORRECT_NAMES
        return (*self.format_label_names, *DEFAULT_LABEL_NAMES)

    def get_user_parameter(self, field_name: str) -> str:
        """Return the parameter with which the user sets a field of this request."""
        if not self.table_is_score_column:
            return field_name
        if field_name == "logits_key":
            return "score_key"
        if field_name == "label_key":
            return self._parameter_of_score_labels
        return field_name

    @property
    def _parameter_of_score_labels(self) -> str:
        """Parameter in which the user names the column of labels of scored rows."""
        if self.labels_are_losses:
            return "loss_key"
        if self.labels_are_agreement:
            return "agree_key"
        has_prediction_column = self.prediction_key is not None
        if has_prediction_column:
            return "label_key"
        return "correct_key"

    def keeps_table_in_file(self, n_bytes: int, *, reader_holds_file_open: bool = False) -> bool:
        """Check whether a table stays in its file instead of being read into memory.

        A temporary copy of standard input is deleted after reading. A table can stay in such a copy
        only if the reader holds the file open and the system allows an open file to be deleted.

        Parameters
        ----------
        n_bytes : int
            Size of the table.

        reader_holds_file_open : bool, default=False
            Whether the reader holds the file open.

        Returns
        -------
        bool
        """
        is_readable_after_deletion = reader_holds_file_open and os.name != "nt"
        can_stay = self.copy_path is None or self.copy_is_permanent or is_readable_after_deletion
        if not can_stay:
            return False
        if self.stream is None:
            return n_bytes > STREAM_BYTES
        return self.stream
