"""Facts about a column of an unknown file, from its name and first rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Float
from metacal.io.strays import NON_CLASS_NAME_PATTERN
from metacal.rows.score_columns import FLAG_OF_VERDICT, parse_score_text

#: Words in the names of scores and probabilities.
_SCORE_WORDS = frozenset(
    [
        "p",
        "pr",
        "prob",
        "probs",
        "proba",
        "probability",
        "probabilities",
        "probabilite",
        "probabilidad",
        "wahrscheinlichkeit",
        "score",
        "scores",
        "scored",
        "confidence",
        "conf",
        "konfidenz",
        "certainty",
        "chance",
        "risk",
        "likelihood",
        "logit",
        "logits",
        "logprob",
        "margin",
        "odds",
    ]
)
#: Lower-case labels of the positive class, in addition to the spellings of true.
_POSITIVE_LABELS = ("positive", "pos", "ja", "oui", "si", "sí", "wahr", "vrai", "verdadero")
_NEGATIVE_LABELS = ("negative", "neg", "nein", "non", "falsch", "faux", "falso")
#: Words that are left out when the names of two columns are compared.
_FILLER_WORDS = _SCORE_WORDS | frozenset(
    [
        "is",
        "has",
        "was",
        "label",
        "labels",
        "true",
        "y",
        "target",
        "class",
        "pred",
        "predicted",
        "prediction",
        "model",
        "the",
        "of",
    ]
)
#: Minimum number of characters of a word that links two column names.
_MIN_WORD_LENGTH = 3
#: Typical names of ids.
_ID_NAME_PATTERN = re.compile(
    r"(.+[_ .-]?)?(id|ids|uuid|guid|key|nr|number|no)|customer|patient|user|case|document",
    re.IGNORECASE,
)
#: Typical names of the documents, cases or sessions to which several rows belong.
_CASE_NAME_PATTERN = re.compile(
    r"(.*[_. -])?(doc(ument)?|case|claim|invoice|receipt|bill|contract|order|page|form|letter"
    r"|e?mail|tweet|article|ticket|image|photo|picture|scan|video|recording|speaker|patient"
    r"|customer|client|user|subject|session|conversation|dialog(ue)?|thread|run|trace|trajectory"
    r"|episode)"
    r"([_. -]?(id|ids|uuid|key|nr|no|number|name))?",
    re.IGNORECASE,
)
#: Typical names of a column that holds the names of extracted fields.
_FIELD_NAME_PATTERN = re.compile(
    r"(.*[_. ])?(field|attribute|entity|slot)([_ ]?(name|type|key|label))?"
    r"|.*\[\*\]\.(name|type|kind|key|label)",
    re.IGNORECASE,
)


def split_words(name: str) -> list[str]:
    """Return the lower-case words of a column name.

    >>> split_words("p(Churned)"), split_words("fraudScore_v2")
    (['p', 'churned'], ['fraud', 'score', 'v2'])
    """
    spaced_name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W_]+", spaced_name.lower())


def format_value(value: Any) -> str:
    """Return a value as text, with one spelling for each number.

    >>> format_value(1.0), format_value(" cat ")
    ('1', 'cat')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def guess_positive_class(values: Sequence[str]) -> str | None:
    """Return the positive label of two labels, or None if it is ambiguous.

    Examples
    --------
    >>> guess_positive_class(["No", "Yes"]), guess_positive_class(["-1", "1"]), guess_positive_class(["bad", "good"])
    ('Yes', '1', None)
    """
    if all(_is_number_text(value) for value in values):
        return max(values, key=float)
    positive_flags = [_is_positive_label(value) for value in values]
    if set(positive_flags) != {True, False}:
        return None
    return values[positive_flags.index(True)]


def _is_number_text(text: str) -> bool:
    """Check whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_positive_label(label: str) -> bool | None:
    """Return whether a label is positive, or None if its meaning is unknown."""
    word = label.lower()
    if word in _POSITIVE_LABELS:
        return True
    if word in _NEGATIVE_LABELS:
        return False
    return FLAG_OF_VERDICT.get(word)


#: Smallest number of distinct values in a column of case ids.
_MIN_CASES = 20
#: Largest mean number of rows per distinct value in a column of case ids.
_MAX_ROWS_PER_CASE = 20


@dataclass(frozen=True)
class ColumnFacts:
    """Facts about the first rows of a column.

    Attributes
    ----------
    name : str
        Name of the column.

    values : array of shape (n_rows,)
        First rows: integers, floats or texts.
    """

    name: str
    values: NDArray[Any]

    @cached_property
    def texts(self) -> NDArray[Any]:
        """Values as texts, with one spelling for each number."""
        return np.array([format_value(value) for value in self.values.tolist()])

    @cached_property
    def distinct_texts(self) -> list[str]:
        """Distinct values as texts, without missing ones."""
        return [text for text in np.unique(self.texts).tolist() if text not in ("", "nan")]

    @cached_property
    def numbers(self) -> Float | None:
        """Values as numbers, or None if some values are not numbers."""
        if self.values.dtype.kind in "iuf":
            return self.values.astype(np.float64)
        scores = [parse_score_text(text) if text else np.nan for text in self.texts.tolist()]
        if not scores or any(score is None for score in scores) or self.holds_true_or_false:
            return None
        return np.array(scores, dtype=np.float64)

    @property
    def is_number(self) -> bool:
        """Whether the file holds numbers in this column, and not texts such as 8/10."""
        return self.values.dtype.kind in "iuf"

    @cached_property
    def finite_numbers(self) -> Float:
        """Numbers without missing ones."""
        if self.numbers is None:
            return np.zeros(0)
        return np.asarray(self.numbers[np.isfinite(self.numbers)])

    @property
    def has_fractions(self) -> bool:
        """Whether some numbers are not whole."""
        return bool((self.finite_numbers != np.rint(self.finite_numbers)).any())

    @property
    def lies_in_unit_interval(self) -> bool:
        """Whether all numbers lie between 0 and 1."""
        numbers = self.finite_numbers
        return len(numbers) > 0 and bool(((numbers >= 0.0) & (numbers <= 1.0)).all())

    @property
    def holds_true_or_false(self) -> bool:
        """Whether every value is a spelling of true or false."""
        return bool(self.distinct_texts) and {text.lower() for text in self.distinct_texts} <= set(
            FLAG_OF_VERDICT
        )

    @property
    def is_unique(self) -> bool:
        """Whether no value occurs twice."""
        return len(self.distinct_texts) == len(self.values)

    @property
    def is_row_counter(self) -> bool:
        """Whether the numbers increase by one from row to row."""
        if self.values.dtype.kind not in "iu" or len(self.values) <= 2:
            return False
        return bool((np.diff(self.values) == 1).all())

    @property
    def has_name_of_index_or_id(self) -> bool:
        """Whether the name suggests an index, an id, a time or the like."""
        return self.name == "" or NON_CLASS_NAME_PATTERN.fullmatch(self.name) is not None

    @property
    def has_score_word_in_name(self) -> bool:
        """Whether the name contains a word such as "score" or "probability"."""
        return bool(_SCORE_WORDS.intersection(split_words(self.name)))

    @property
    def looks_like_row_ids(self) -> bool:
        """Whether the name is that of an id and every value is unique."""
        return (
            self.is_unique
            and not self.has_fractions
            and _ID_NAME_PATTERN.fullmatch(self.name) is not None
        )

    @property
    def looks_like_case_ids(self) -> bool:
        """Whether the name is that of a document or case, to which several rows belong."""
        if _CASE_NAME_PATTERN.fullmatch(self.name) is None or self.has_fractions:
            return False
        n_cases = len(self.distinct_texts)
        n_rows = len(self.values)
        # Few distinct values are categories, such as the type of a document.
        has_enough_cases = n_cases >= max(_MIN_CASES, n_rows / _MAX_ROWS_PER_CASE)
        return has_enough_cases and n_cases < n_rows

    @property
    def looks_like_field_names(self) -> bool:
        """Whether the column holds the name of an extracted field in each row."""
        is_field_name = _FIELD_NAME_PATTERN.fullmatch(self.name) is not None
        return is_field_name and 2 <= len(self.distinct_texts) <= len(self.values) / 2

    def shares_word_with(self, other_name: str) -> bool:
        """Check whether the name and another name have words with the same beginning.

        For example, `p_churn` shares the word "churn" with `churned`.
        """
        # In fields[*].score and fields[*].ok, the list name does not count as a common word.
        entry_name = self.name.rpartition("[*].")[2]
        other_entry_name = other_name.rpartition("[*].")[2]
        words = set(split_words(entry_name)) - _FILLER_WORDS
        other_words = set(split_words(other_entry_name)) - _FILLER_WORDS
        for word in words:
            for other_word in other_words:
                is_long = min(len(word), len(other_word)) >= _MIN_WORD_LENGTH
                if is_long and (word.startswith(other_word) or other_word.startswith(word)):
                    return True
        return False
