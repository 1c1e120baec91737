"""Nested keys: paths into a JSON object, and reductions of lists to numbers.

A nested key such as `judge.score`, `choices[0].message.content` or
`choices[0].logprobs.content[*].logprob` is a sequence of steps from entry to entry. The step `[*]`
selects every element of a list, so the key leads to a list. `mean(KEY)` and the other reductions
turn such a list into one number. They are the usual scores for the tokens of a text, or for several
answers to one question.

If an object has an entry whose name is the whole key, that entry is used. A file with a column
"judge.score" is therefore read as it is.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from metacal.errors import NumberError

_STEP_PATTERN = re.compile(r"\.?(?P<name>[^.\[\]()]+)|\[(?P<index>-?\d+|\*)\]")
_REDUCTION_PATTERN = re.compile(r"(?P<reduction>[a-z]+)\((?P<path>.+)\)")
#: Step that selects every element of a list.
_EVERY_ELEMENT = "*"
#: Maximum exponent in the perplexity, which prevents an overflow.
_MAX_EXPONENT = 700.0


@dataclass(frozen=True)
class _ParsedKey:
    """Nested key, split into its parts.

    Attributes
    ----------
    reduction : str or None
        Name of the function around the path.

    steps : tuple of str or int
        Names of entries, indices into lists, or "*" for every element. A key that is not a path is
        a single step.
    """

    reduction: str | None
    steps: tuple[str | int, ...]


def _compute_answer_frequencies(answers: Sequence[Any]) -> list[float]:
    """Return the relative frequency of each distinct answer.

    Texts are equal if they differ only in case and in surrounding white space.
    """
    normalized_answers = []
    for answer in answers:
        if isinstance(answer, str):
            normalized_answers.append(answer.strip().casefold())
        else:
            normalized_answers.append(repr(answer))
    counts = Counter(normalized_answers).values()
    return [count / len(normalized_answers) for count in counts]


def _agreement(answers: Sequence[Any]) -> float:
    """Return the relative frequency of the most common answer."""
    return max(_compute_answer_frequencies(answers))


def _entropy(answers: Sequence[Any]) -> float:
    """Return the entropy of the distribution of answers."""
    frequencies = _compute_answer_frequencies(answers)
    return math.fsum(-frequency * math.log(frequency) for frequency in frequencies)


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _perplexity(log_probabilities: Sequence[float]) -> float:
    return math.exp(min(-_mean(log_probabilities), _MAX_EXPONENT))


#: Functions that reduce a list to one number, keyed by the name in a nested key.
#: Mean, minimum, sum and perplexity are for the log-probabilities of the tokens of a text.
#: Agreement and entropy are for several answers, or for clusters of answers of the same meaning.
#: A higher perplexity or entropy means less confidence.
REDUCTIONS: dict[str, Callable[[Any], float]] = {
    "mean": _mean,
    "min": min,
    "max": max,
    "sum": math.fsum,
    "perplexity": _perplexity,
    "agreement": _agreement,
    "entropy": _entropy,
}
#: Reductions that accept values of any type. All other reductions require numbers.
_REDUCTIONS_OF_ANSWERS = ("agreement", "entropy")


def get_nested_value(row: Mapping[str, Any], key: str) -> Any:
    """Return the value at a nested key of a JSON object.

    Parameters
    ----------
    row : mapping
        JSON object.

    key : str
        Nested key, optionally inside a reduction.

    Returns
    -------
    object
        None if the path does not exist. A list from `[*]` leaves out null elements.

    Raises
    ------
    InputError
        If a reduction is applied to something other than a list of suitable values.

    Examples
    --------
    >>> logprobs = {"token_logprobs": [None, -0.1, -0.3]}
    >>> row = {"judge": {"score": 8}, "choices": [{"logprobs": logprobs}]}
    >>> get_nested_value(row, "judge.score"), get_nested_value(row, "judge.mark")
    (8, None)
    >>> get_nested_value(row, "choices[0].logprobs.token_logprobs[*]")
    [-0.1, -0.3]
    >>> get_nested_value(row, "min(choices[0].logprobs.token_logprobs)")
    -0.3
    >>> get_nested_value({"said": ["A", "a ", "B"]}, "agreement(said)")
    0.6666666666666666
    >>> round(get_nested_value({"clusters": [0, 0, 0, 2]}, "entropy(clusters)"), 3)
    0.562
    >>> get_nested_value(row, "mean(judge.score)")
    Traceback (most recent call last):
    metacal.errors.NumberError: mean(...) requires a list of numbers, but 'judge.score' is 8.
    """
    if key in row:
        return row[key]
    parsed_key = _parse_key(key)
    values: list[Any] = [row]
    for step in parsed_key.steps:
        next_values: list[Any] = []
        for value in values:
            next_values.extend(_follow_step(value, step))
        values = next_values

    if _EVERY_ELEMENT in parsed_key.steps:
        nested_value: Any = values
    elif values:
        nested_value = values[0]
    else:
        nested_value = None
    if parsed_key.reduction is None or nested_value is None:
        return nested_value
    return _apply_reduction(parsed_key.reduction, key, nested_value)


def _follow_step(value: Any, step: str | int) -> Iterable[Any]:
    """Return the entries that a step of a nested key selects from a JSON value."""
    if step == _EVERY_ELEMENT:
        if isinstance(value, list):
            return [element for element in value if element is not None]
        return []
    if isinstance(step, int):
        if isinstance(value, list):
            has_element = -len(value) <= step < len(value)
            return [value[step]] if has_element else []
        return []
    if isinstance(value, dict) and value.get(step) is not None:
        return [value[step]]
    return []


def _apply_reduction(reduction: str, key: str, values: Any) -> float | None:
    """Apply a reduction to a list, ignoring null elements.

    Return None for an empty list.
    """
    requires_answers = reduction in _REDUCTIONS_OF_ANSWERS
    is_suitable = False
    present_values: list[Any] = []
    if isinstance(values, list):
        present_values = [value for value in values if value is not None]
        is_suitable = requires_answers or all(map(_is_number, present_values))
    if not is_suitable:
        path = key.removeprefix(f"{reduction}(").removesuffix(")")
        required_type = "answers" if requires_answers else "numbers"
        raise NumberError(
            f"{reduction}(...) requires a list of {required_type}, but {path!r} is"
            f" {repr(values)[:40]}."
        )
    if not present_values:
        return None
    return REDUCTIONS[reduction](present_values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@cache
def _parse_key(key: str) -> _ParsedKey:
    """Split a nested key into its reduction and its steps."""
    reduction = None
    path = key
    call_match = _REDUCTION_PATTERN.fullmatch(key)
    if call_match is not None and call_match["reduction"] in REDUCTIONS:
        reduction = call_match["reduction"]
        path = call_match["path"]

    steps: list[str | int] = []
    matched_text = ""
    for match in _STEP_PATTERN.finditer(path):
        matched_text += match[0]
        if match["name"]:
            steps.append(match["name"])
        elif match["index"] == _EVERY_ELEMENT:
            steps.append(_EVERY_ELEMENT)
        else:
            steps.append(int(match["index"]))
    # A key that is not a valid path is a plain name, such as "P(yes)".
    if matched_text != path:
        return _ParsedKey(reduction=reduction, steps=(key,))
    return _ParsedKey(reduction=reduction, steps=tuple(steps))


def add_nested_entries(row: dict[str, Any], keys: Iterable[str | None]) -> dict[str, Any]:
    """Add the values of nested keys to a JSON object as top-level entries.

    Parameters
    ----------
    row : dict
        JSON object.

    keys : iterable of str or None
        Keys to add. None, the keys of existing entries, and keys whose first step does not exist in
        the object are ignored.

    Returns
    -------
    dict
        The value of a nested key is None if its path does not exist. A key such as "probs.*" stands
        for every entry of the object at "probs".

    Examples
    --------
    >>> add_nested_entries({"judge": {"score": 8}}, ["judge.score", "judge.mark", "P(yes)"])
    {'judge': {'score': 8}, 'judge.score': 8, 'judge.mark': None}
    >>> add_nested_entries({"probs": {"cat": 0.9, "dog": 0.1}}, ["probs.*"])
    {'probs': {'cat': 0.9, 'dog': 0.1}, 'probs.cat': 0.9, 'probs.dog': 0.1}
    """
    nested_entries = {}
    for key in keys:
        if key is None or key in row:
            continue
        if key.endswith(".*"):
            nested_entries.update(_flatten_object(row, key.removesuffix(".*")))
            continue
        first_step = _parse_key(key).steps[0]
        if first_step in row:
            nested_entries[key] = get_nested_value(row, key)
    if not nested_entries:
        return row
    return {**row, **nested_entries}


def _flatten_object(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the entries of a nested object, keyed by their dotted keys."""
    nested_object = get_nested_value(row, key)
    if not isinstance(nested_object, Mapping):
        return {}
    return {f"{key}.{name}": value for name, value in nested_object.items()}
