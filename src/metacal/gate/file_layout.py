"""Layout of a calibration file: the names of its columns, as far as the user gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from metacal.certificates.stored_fields import OPTIONAL


def _name_field() -> Any:
    """Return a dataclass field for an optional column name.

    Files omit the field if it is None.
    """
    return field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class FileLayout:
    """Names of the columns of a calibration file.

    A gate stores them, so that later files of the same layout are read without naming the columns
    again. A name is None if the file had a default name, or no such column. The attributes have the
    names of the parameters of `read_predictions` and `read_scores`.

    Attributes
    ----------
    logits_key : str or None
        Name of the table, prefix or pattern of its columns, or name of a single score.

    label_key, id_key, group_key, unit_key, case_key : str or None
        Columns of the labels, ids, groups, clusters and cases.

    score_key : str or None
        Column of the score; for a cascade, one name for each model, separated by commas.

    correct_key, agree_key, loss_key : str or None
        Column that marks correct rows or agreement, or column of losses.

    prediction_key : str or None
        Column of the predictions, which are correct where they equal the labels.

    drop : tuple of str
        Columns that are not classes.

    Examples
    --------
    >>> FileLayout.from_options({"label_key": "truth", "id_key": None, "format": "csv"})
    FileLayout(logits_key=None, label_key='truth', ...)
    """

    logits_key: str | None = _name_field()
    label_key: str | None = _name_field()
    id_key: str | None = _name_field()
    group_key: str | None = _name_field()
    unit_key: str | None = _name_field()
    case_key: str | None = _name_field()
    score_key: str | None = _name_field()
    correct_key: str | None = _name_field()
    agree_key: str | None = _name_field()
    loss_key: str | None = _name_field()
    prediction_key: str | None = _name_field()
    drop: tuple[str, ...] = field(default=(), metadata=OPTIONAL)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> FileLayout:
        """Build the layout from the options with which a file was read."""
        layout_values = {}
        for layout_field in fields(cls):
            option_value = options.get(layout_field.name)
            if option_value is not None:
                layout_values[layout_field.name] = option_value
        return cls(**layout_values)

    @property
    def score_outcome_key(self) -> str | None:
        """Column of the losses, the correctness or the labels of a file of scores."""
        return self.loss_key or self.correct_key or self.label_key
