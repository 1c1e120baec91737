"""Scores: one column of a file, and beside it whether each row is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import listed
from metacal.errors import InputError, option
from metacal.io.columns import Columns
from metacal.io.many import Paths
from metacal.io.reading import read_columns
from metacal.io.request import AGREE_KEYS, CORRECT_KEYS, Request
from metacal.rows.score_columns import correct_column, loss_column, score_column


@dataclass(frozen=True, eq=False)
class Scores(Columns):
    """What a file of scores holds: the fields of `Columns`, the table being one column, and what
    that is called.

    Attributes
    ----------
    name : str
        What the file calls the score.
    agreement : bool
        Whether the rows should say if an answer is the last model's of a cascade, and not if it is
        right.
    """

    name: str = "score"
    agreement: bool = False

    @property
    def score(self) -> NDArray[np.floating[Any]]:
        """One per row: NaN where a row has none; float32 where the file has it so."""
        return np.asarray(self.table)

    @property
    def correct(self) -> NDArray[Any] | None:
        """Whether each row is right, or its loss, where the file says so."""
        return self.labels

    def require_truth(self) -> NDArray[Any]:
        """Return right and wrong, or losses, or raise with advice when the file has none."""
        if self.labels is not None:
            return self.labels
        also = f"; it also holds {listed(self.unused)}" if self.unused else ""
        meaning = "which answers are the last model's" if self.agreement else "which rows are right"
        key = option("agree_key" if self.agreement else "correct_key")
        usual = " or ".join(map(repr, AGREE_KEYS if self.agreement else CORRECT_KEYS))
        raise InputError(
            f"{self.path}: it does not say {meaning}{also}. Name the column that does with {key},"
            f" or call it {usual}."
        )


def read_scores(
    path: Paths,
    *,
    score_key: str,
    correct_key: str | None = None,
    loss_key: str | None = None,
    losses: bool = False,
    agreement: bool = False,
    id_key: str | None = None,
    group_key: str | None = None,
    unit_key: str | None = None,
    keep: Sequence[str] = (),
    format: str | None = None,
    unpack_limit: int | None = None,
) -> Scores:
    r"""Read scores from a file; nothing is guessed from values and nothing is unpickled.

    Parameters
    ----------
    path : path, or several
        A file, or a folder, a pattern, a list or a URL as in `read_predictions`. "-" is standard
        input. jsonl, csv, tsv, parquet, arrow, feather: a row per item; npz, safetensors, pt:
        arrays of equal length; npy: records.
    score_key : str
        The name of the score. A cell that is empty, null, NaN or infinite is no score.
    correct_key : str, optional
        The name of what says right or wrong: true or false, 1 or 0, yes or no; "correct" or "ok"
        when None, if there.
    loss_key : str, optional
        The name of the losses, numbers from 0 to 1, in place of right and wrong; "loss" when None
        and with `losses`, if there.
    agreement : bool
        For a cascade that was fitted on agreement with its last model: "agrees" stands in place of
        "correct" and "ok".
    id_key : str, optional
        The name of the ids; "id" or "ids" when None, if there.
    group_key, unit_key : str, optional
        The names of the rows' groups, for a promise per group, and of the units that rows belong
        to.
    keep, format, unpack_limit
        As in `read_predictions`.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "judge.jsonl")
    >>> with open(path, "w") as file:
    ...     _ = file.write('{"mark": 0.9, "ok": true}\n{"mark": null, "ok": false}\n')
    >>> found = read_scores(path, score_key="mark")
    >>> found.score, found.correct
    (array([0.9, nan]), array([ True, False]))
    """
    if loss_key is not None and correct_key is not None:
        raise InputError(
            f"give {option('correct_key')} or {option('loss_key')}: a row is right or wrong, or"
            " loses."
        )
    beside: dict[str, Any] = {
        "id_key": id_key,
        "group_key": group_key,
        "unit_key": unit_key,
        "keep": tuple(keep),
    }
    beside |= {"label_key": loss_key or correct_key, "losses": losses or loss_key is not None}
    beside["agreement"] = agreement
    request = Request("", logits_key=score_key, scores=True, format=format, **beside)
    columns = read_columns(path, request, _finished, unpack_limit=unpack_limit)
    return Scores(**vars(columns), name=score_key, agreement=agreement)


def _finished(request: Request, columns: Columns) -> Columns:
    """One number per row, NaN where there is none, and right and wrong."""
    score = score_column(columns.table, name=str(request.logits_key), place=columns.place)
    beside: dict[str, Any] = columns.beside
    if "labels" in beside:
        truth = loss_column if request.losses else correct_column
        beside["labels"] = truth(
            beside["labels"], name=columns.names["labels"], place=columns.place
        )
    for role, column in beside.items():
        what = "entries of right and wrong" if role == "labels" else role
        beside[role] = column = np.asarray(column).ravel()
        if len(column) != len(score):
            raise InputError(
                f"{request.path}: there are {len(score)} scores but {len(column)} {what}; one each."
            )
    return replace(columns, table=score, **beside)
