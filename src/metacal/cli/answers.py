"""Parsing of the answers that people give in `metacal label`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from metacal.cli.answer_sheet import AnswerLine, SheetSettings, strip_zero_decimals
from metacal.errors import LabellingError
from metacal.gate.certifier import Certifier

#: Answers that are valid if the sheet shows the prediction, and whether they call it correct.
_CORRECTNESS_WORDS = {"right": True, "wrong": False}


#: Answer that states that the true class is none of the classes.
_NO_CLASS_WORD = "none"

#: Largest number of classes that an error message lists.
_MAX_LISTED_CLASSES = 8


#: Class code for a true class that is unknown, or that is none of the classes.
_UNKNOWN_CLASS_CODE = -1


class ParsedAnswer(NamedTuple):
    """Meaning of one answer.

    Attributes
    ----------
    true_code : int
        Code of the true class, or -1 if it is unknown or not among the classes.
    is_correct : bool
        Whether the prediction is correct.
    """

    true_code: int
    is_correct: bool


def parse_answer(certifier: Certifier, line: AnswerLine) -> ParsedAnswer:
    """Parse an answer that names the true class, or says whether the prediction is correct."""
    answer_text = line.answer_text
    predictions = certifier.unlabelled_pool.predictions
    if predictions is None:
        # The pool consists of scores, so there are no classes that an answer could name.
        return ParsedAnswer(_UNKNOWN_CLASS_CODE, is_correct=_parse_correctness(line))
    class_names = [str(name) for name in predictions.classes.tolist()]
    true_code = _find_class_code(answer_text, class_names)
    if true_code is not None:
        is_correct = bool(true_code == predictions.predicted_codes[line.row_index])
        return ParsedAnswer(true_code, is_correct)
    if answer_text.lower() == _NO_CLASS_WORD:
        return ParsedAnswer(_UNKNOWN_CLASS_CODE, is_correct=False)
    sheet_settings = SheetSettings.from_dict(certifier.sheet_settings)
    if sheet_settings.shows_prediction and answer_text.lower() in _CORRECTNESS_WORDS:
        return ParsedAnswer(_UNKNOWN_CLASS_CODE, is_correct=_CORRECTNESS_WORDS[answer_text.lower()])
    raise LabellingError(
        f"{answer_text[:60]!r} is not one of the classes; {_suggest_class(answer_text, class_names)}"
    )


def _parse_correctness(line: AnswerLine) -> bool:
    """Parse an answer that states whether the prediction is correct."""
    from metacal.rows.score_columns import check_correctness

    correct_flags = check_correctness(
        [strip_zero_decimals(line.answer_text)],
        name="the answer",
        get_row_name=lambda _: f"row {line.row_index}",
    )
    return bool(correct_flags[0])


def _find_class_code(answer: str, class_names: Sequence[str]) -> int | None:
    """Return the code of the class that an answer names, or None.

    A spreadsheet may write 7 as 7.0 and true as TRUE, so such changes are undone if the result is
    unique.
    """
    if answer in class_names:
        return class_names.index(answer)
    answer_without_decimals = strip_zero_decimals(answer)
    if answer_without_decimals in class_names:
        return class_names.index(answer_without_decimals)
    similar_codes = [
        code
        for code, name in enumerate(class_names)
        if name.lower() == answer_without_decimals.lower()
    ]
    if len(similar_codes) == 1:
        return similar_codes[0]
    return None


def _suggest_class(answer: str, class_names: Sequence[str]) -> str:
    """Suggest the most similar class, or list the first classes."""
    close_matches = difflib.get_close_matches(answer, class_names, n=1)
    if close_matches:
        return f"did you mean {close_matches[0]!r}?"
    listed_names = ", ".join(class_names[:_MAX_LISTED_CLASSES])
    ellipsis = ", ..." if len(class_names) > _MAX_LISTED_CLASSES else ""
    return f"they are {listed_names}{ellipsis}. If the true class is none of them, write none."
