"""Nested keys: an entry inside an entry of a JSON line, and one number made of a list of them.

`judge.score`, `choices[0].message.content` and `choices[0].logprobs.content[*].logprob` lead from
entry to entry; `[*]` gives a list of what follows, of each element. `mean(KEY)` and its sisters
make one number of such a list: the scores that are in use for a sequence of tokens, or for several
answers to one question. An entry of that very name goes first: a file with a column "judge.score"
is read as it stands.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from metacal.errors import InputError

_STEP = re.compile(r"\.?([^.\[\]()]+)|\[(-?\d+|\*)\]")
_CALL = re.compile(r"([a-z]+)\((.+)\)")


def _shares(values: Sequence[Any]) -> list[float]:
    """How many give each answer; texts count as equal whatever their case and outer blanks."""
    told = [value.strip().casefold() if isinstance(value, str) else repr(value) for value in values]
    return [count / len(told) for count in Counter(told).values()]


def _entropy(values: Sequence[Any]) -> float:
    return math.fsum(-share * math.log(share) for share in _shares(values))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


#: What makes one number of a list. Of token log-probabilities: their mean, their minimum, their sum
#: (that of the whole text), and the perplexity, of which a higher one is doubtful. Of several
#: answers, or clusters of one meaning each: the share of the one that most give, and the entropy
#: (semantic, of clusters), of which a higher one is doubtful too.
REDUCTIONS: dict[str, Callable[[Any], float]] = {
    "mean": _mean,
    "min": min,
    "max": max,
    "sum": math.fsum,
    "perplexity": lambda values: math.exp(min(-_mean(values), 700.0)),
    "agreement": lambda values: max(_shares(values)),
    "entropy": _entropy,
}
_OF_ANSWERS = ("agreement", "entropy")


def reached(row: Mapping[str, Any], key: str) -> Any:
    """What a nested key leads to; None where the way ends before. A list loses what is null in it.

    Examples
    --------
    >>> row = {"judge": {"score": 8}, "choices": [{"logprobs": {"token_logprobs": [None, -0.1, -0.3]}}]}
    >>> reached(row, "judge.score"), reached(row, "judge.mark"), reached(row, "choices[0].logprobs.token_logprobs[*]")
    (8, None, [-0.1, -0.3])
    >>> reached(row, "min(choices[0].logprobs.token_logprobs)"), reached({"said": ["A", "a ", "B"]}, "agreement(said)")
    (-0.3, 0.6666666666666666)
    >>> round(reached({"clusters": [0, 0, 0, 2]}, "entropy(clusters)"), 3)
    0.562
    >>> reached(row, "mean(judge.score)")
    Traceback (most recent call last):
    metacal.errors.InputError: 'judge.score' is 8, and mean(...) takes a list of numbers.
    """
    if key in row:
        return row[key]
    reduction, steps = _parsed(key)
    found: Any = [row]
    several = False
    for step in steps:
        several = several or step == "*"
        found = [after for one in found for after in _follow(one, step)]
    if not several:
        found = found[0] if found else None
    return found if reduction is None or found is None else _reduced(reduction, key, found)


def _follow(value: Any, step: str | int) -> Iterable[Any]:
    """The next entries on the way: none, one, or each element that is there."""
    if step == "*":
        return [one for one in value if one is not None] if isinstance(value, list) else []
    if isinstance(step, int):
        return value[step : step + 1 or None] if isinstance(value, list) else []
    return [value[step]] if isinstance(value, dict) and value.get(step) is not None else []


def _reduced(name: str, key: str, values: Any) -> float | None:
    answers, several = name in _OF_ANSWERS, isinstance(values, list)
    held = [value for value in values if value is not None] if several else []
    plain = answers or all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in held
    )
    if not several or not plain:
        inner, what = key[len(name) + 1 : -1], "answers" if answers else "numbers"
        raise InputError(
            f"{inner!r} is {repr(values)[:40]}, and {name}(...) takes a list of {what}."
        )
    return REDUCTIONS[name](held) if held else None


@cache
def _parsed(key: str) -> tuple[str | None, tuple[str | int, ...]]:
    """The function around a key, if any, and its steps; a plain name is one step."""
    called = _CALL.fullmatch(key)
    reduction, path = (called[1], called[2]) if called and called[1] in REDUCTIONS else (None, key)
    found = list(_STEP.finditer(path))
    steps = tuple(one[1] or ("*" if one[2] == "*" else int(one[2])) for one in found)
    whole = "".join(one[0] for one in found) == path  # nothing stands between two steps
    return reduction, steps if whole else (key,)


def with_nested(row: dict[str, Any], keys: Iterable[str | None]) -> dict[str, Any]:
    """The row with an entry more for each nested key whose way begins in it; null where the way
    ends before.

    Examples
    --------
    >>> with_nested({"judge": {"score": 8}}, ["judge.score", "judge.mark", "P(yes)"])
    {'judge': {'score': 8}, 'judge.score': 8, 'judge.mark': None}
    """
    ways = [key for key in keys if key is not None and key not in row and _parsed(key)[1][0] in row]
    return {**row, **{key: reached(row, key) for key in ways}} if ways else row
