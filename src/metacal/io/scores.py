"""Read a column of scores, and beside it whether each row is right, from whichever kind of file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io import many
from metacal.io.columns import CORRECT_KEYS, Found, Request, listed, pick_scores
from metacal.io.formats.arrow import column_of, score_column_of
from metacal.io.formats.delimited import delimited_columns, read_delimited, texts_or_numbers
from metacal.io.formats.feather import arrow_columns, read_arrow
from metacal.io.formats.jsonl import read_entries, read_jsonl, typed_entries
from metacal.io.formats.numpy import npy_header, read_npy
from metacal.io.formats.parquet import parquet_columns, read_parquet
from metacal.io.limits import unpacking
from metacal.io.many import Paths
from metacal.io.opening import NoRowsError, decoding
from metacal.io.predictions import READERS, opened
from metacal.io.urls import Part
from metacal.rows.score_columns import Place, correct_column, score_column


@dataclass(frozen=True, eq=False)
class Scores:
    """What a file of scores holds.

    Attributes
    ----------
    score : array of shape (n,)
        NaN where a row has none; float32 where the file has it so.
    correct : boolean array of shape (n,) or None
        Whether each row is right, where the file says so.
    ids : array of shape (n,) or None
    name : str
        What the file calls the score.
    path : str
        Where it was read from; "-" is standard input.
    unused : tuple of str
        Arrays or columns of the file that were left aside.
    """

    score: NDArray[np.floating[Any]]
    correct: NDArray[np.bool_] | None
    ids: NDArray[Any] | None
    name: str
    path: str
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.score)

    def require_correct(self) -> NDArray[np.bool_]:
        """Return right and wrong, or raise with advice when the file has none."""
        if self.correct is not None:
            return self.correct
        also = f"; it also holds {listed(self.unused)}" if self.unused else ""
        raise InputError(
            f"{self.path}: it does not say which rows are right{also}. Name the column that does with correct_key "
            f"(--correct-key), or call it {' or '.join(map(repr, CORRECT_KEYS))}."
        )


def read_scores(
    path: Paths,
    *,
    score_key: str,
    correct_key: str | None = None,
    id_key: str | None = None,
    format: str | None = None,
    unpack_limit: int | None = None,
) -> Scores:
    r"""Read scores from a file; nothing is guessed from values and nothing is unpickled.

    Parameters
    ----------
    path : path, or several
        A file, or a folder, a pattern, a list or a URL as in `read_predictions`. "-" is standard input. jsonl, csv,
        tsv, parquet, arrow, feather: a row per item; npz, safetensors, pt: arrays of equal length; npy: records.
    score_key : str
        The name of the score. A cell that is empty, null, NaN or infinite is no score.
    correct_key : str, optional
        The name of what says right or wrong: true or false, 1 or 0, yes or no; "correct" or "ok" when None, if there.
    id_key : str, optional
        The name of the ids; "id" or "ids" when None, if there.
    format, unpack_limit
        As in `read_predictions`.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "judge.jsonl")
    >>> with open(path, "w") as file:
    ...     _ = file.write('{"mark": 0.9, "ok": true}\n{"mark": null, "ok": false}\n')
    >>> found = read_scores(path, score_key="mark")
    >>> found.score, found.correct
    (array([0.9, nan]), array([ True, False]))
    """
    read_one = partial(_read_one, score_key, correct_key, id_key, format, unpack_limit)
    parts = many.parts_of(path, READERS)
    if parts is None:
        assert isinstance(path, str | os.PathLike)
        return read_one(Part(os.fspath(path)))
    return _joined(str(path), many.read_each(path, [partial(read_one, part) for part in parts]))


def _joined(path: str, parts: Sequence[Scores]) -> Scores:
    """Several files' scores, one below the other; raises, naming the file, where they are not of one kind."""
    first = parts[0]
    for other in parts[1:]:
        many.check_columns(first, other, {"correct": "column that says right or wrong", "ids": "ids"})
    columns = (many.column([getattr(part, name) for part in parts]) for name in ("score", "correct", "ids"))
    score, correct, ids = columns
    assert score is not None
    return Scores(score, correct, ids, first.name, path, first.unused)


def _read_one(
    score_key: str,
    correct_key: str | None,
    id_key: str | None,
    format: str | None,
    unpack_limit: int | None,
    part: Part,
) -> Scores:
    request = Request(
        part.name, logits_key=score_key, label_key=correct_key, id_key=id_key, file=part.copy, lasting=True, scores=True
    )
    with unpacking(unpack_limit), opened(request, format) as (read, request):
        found = _COLUMNS.get(read, partial(_arrays, read))(request)
    for what, column in (("entries of right and wrong", found.correct), ("ids", found.ids)):
        if column is not None and len(column) != len(found):
            raise InputError(f"{request.path}: there are {len(found)} scores but {len(column)} {what}; one each.")
    if not len(found):
        raise NoRowsError(f"{request.path}: it holds no rows; give at least one.")
    return found


def _jsonl(request: Request) -> Scores:
    found = read_entries(request, lambda first: _names(pick_scores(request, list(first))))
    score, correct, ids = pick_scores(request, found.header)
    place = partial(_on_line, request.path, found.lines)
    return _made(
        request,
        found.header,
        _objects(found.columns[score]),
        None if correct is None else _objects(found.columns[correct]),
        None if ids is None else typed_entries(request.path, found.lines, ids, found.columns[ids]),
        place,
    )


def _delimited(request: Request) -> Scores:
    headers: list[Sequence[str]] = []

    def wanted(header: Sequence[str]) -> list[str]:
        headers.append(header)
        return _names(pick_scores(request, header))

    cells, lines = delimited_columns(request, wanted)
    score, correct, ids = pick_scores(request, headers[0])
    return _made(
        request,
        headers[0],
        _objects([_parsed(text) for text in cells[score]]),
        None if correct is None else _objects(cells[correct]),
        None if ids is None else texts_or_numbers(request.path, ids, cells[ids]),
        partial(_on_line, request.path, lines),
    )


def _arrow(read: Callable[..., tuple[dict[str, Any], int]], request: Request) -> Scores:
    headers: list[Sequence[str]] = []

    def wanted(header: Sequence[str]) -> list[str]:
        headers.append([name for name in header if not name.startswith("__index_level_")])
        return _names(pick_scores(request, headers[0]))

    columns, held = read(request, wanted)
    score, correct, ids = pick_scores(request, headers[0])
    right, named = (None if n is None else column_of(columns[n], n, request.path, held) for n in (correct, ids))
    numbers = score_column_of(columns[score], score, request.path)
    return _made(request, headers[0], numbers, right, named, partial(_in_file, request.path))


def _arrays(read: Callable[[Request], Found], request: Request) -> Scores:
    found, name = read(request), request.logits_key
    assert name is not None
    place = partial(_in_file, request.path)
    correct = found.labels
    if correct is not None:
        correct = correct_column(correct, name=request.label_key or "correct", place=place)
    ids = None if found.ids is None else np.asarray(found.ids).ravel()
    score = score_column(np.asarray(found.table), name=name, place=place)
    return Scores(score, correct, ids, name, request.path, found.unused)


def _npy(request: Request) -> Scores:
    with decoding(request.path), open(request.source, "rb") as file:
        named = npy_header(file).dtype.names is not None
    if not named:
        raise InputError(
            f"{request.path}: a single array has no names; save np.savez('scores.npz', score=score, correct=correct)."
        )
    return _arrays(read_npy, request)


def _made(
    request: Request, header: Sequence[str], score: Any, correct: Any, ids: NDArray[Any] | None, place: Place
) -> Scores:
    names = pick_scores(request, header)
    return Scores(
        score_column(score, name=names[0], place=place),
        None if correct is None else correct_column(correct, name=str(names[1]), place=place),
        ids,
        names[0],
        request.path,
        tuple(name for name in header if name not in names),
    )


def _names(picked: tuple[str, str | None, str | None]) -> list[str]:
    return [name for name in dict.fromkeys(picked) if name is not None]


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """An array of these very values: lists among them stay lists."""
    array = np.empty(len(values), dtype=object)
    for k, value in enumerate(values):
        array[k] = value
    return array


def _parsed(text: str) -> Any:
    """The number that a cell holds, None where it is empty, and the text itself where it is no number."""
    if not text:
        return None
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _on_line(path: str, lines: Sequence[int], row: int) -> str:
    return f"{path}:{lines[row]}"


def _in_file(path: str, row: int) -> str:
    return f"{path}: row {row}"


#: How the columns are read, by what reads the table of such a file; other files hold arrays by name.
_COLUMNS: dict[Callable[[Request], Found], Callable[[Request], Scores]] = {
    read_jsonl: _jsonl,
    read_delimited: _delimited,
    read_npy: _npy,
    read_parquet: partial(_arrow, parquet_columns),
    read_arrow: partial(_arrow, arrow_columns),
}
