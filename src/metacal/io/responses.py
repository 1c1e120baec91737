"""What language models and the tools around them answer with: token log-probabilities, and scores
by name.

A response is an OpenAI-style chat (`choices[0].logprobs.content[i].logprob`), a completion or a
response of vLLM (`choices[0].logprobs.token_logprobs`, null for the first token of an echoed
prompt), a bare list of numbers; results of uqlm (a table of scorers beside prompts and responses)
and of lm-polygraph (estimations by level and estimator) are columns already. Files of JSON lines
need none of this: `--score-key 'mean(choices[0].logprobs.content[*].logprob)'`
(`metacal.io.nested`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.io.nested import REDUCTIONS, reached

#: Where a response keeps the log-probabilities of its tokens; the first that leads somewhere.
PLACES = (
    "choices[0].logprobs.content[*].logprob",
    "choices[0].logprobs.token_logprobs[*]",
    "logprobs.content[*].logprob",
    "logprobs.token_logprobs[*]",
    "token_logprobs[*]",
    "logprobs[*]",
)
#: Names of sequence scores, and what makes each of the tokens' log-probabilities. Of all but the
#: last higher is surer.
SEQUENCE_SCORES = {
    "mean_logprob": "mean",
    "min_logprob": "min",
    "sum_logprob": "sum",
    "perplexity": "perplexity",
}


def token_logprobs(response: Any) -> list[float]:
    """The log-probability of each token of a response; none where it has none.

    Examples
    --------
    >>> token_logprobs({"choices": [{"logprobs": {"token_logprobs": [None, -0.5, -0.1]}}]})
    [-0.5, -0.1]
    """
    if not isinstance(response, Mapping):
        plain = (
            response.model_dump()
            if hasattr(response, "model_dump")
            else {"logprobs": list(response)}
        )
        return token_logprobs(plain)
    for place in PLACES:
        found = reached(response, place)
        if found and all(isinstance(one, int | float) for one in found):
            return [float(one) for one in found]
    return []


def sequence_scores(responses: Iterable[Any]) -> dict[str, Float]:
    """The usual sequence scores of each response by name, NaN where it has no log-probabilities.

    Where responses come with several choices, `agreement` says how many of them give the same
    answer.

    Examples
    --------
    >>> sequence_scores([[-0.5, -0.1], []])["min_logprob"]
    array([-0.5,  nan])
    """
    given = list(responses)
    tokens = [token_logprobs(response) for response in given]
    columns = {
        name: np.array([REDUCTIONS[how](row) if row else math.nan for row in tokens])
        for name, how in SEQUENCE_SCORES.items()
    }
    said = [_choices(response) for response in given]
    if any(len(answers) > 1 for answers in said):
        columns["agreement"] = np.array(
            [REDUCTIONS["agreement"](row) if row else math.nan for row in said]
        )
    return columns


def _choices(response: Any) -> list[Any]:
    if not isinstance(response, Mapping):
        return []
    return (
        reached(response, "choices[*].message.content")
        or reached(response, "choices[*].text")
        or []
    )


def result_scores(result: Any) -> dict[str, Float]:
    """The columns of numbers in a result of uqlm (`.to_dict()["data"]`) or lm-polygraph
    (`.estimations`), by name.

    Examples
    --------
    >>> result_scores({"data": {"prompts": ["?", "!"], "min_probability": [0.4, None]}})
    {'min_probability': array([0.4, nan])}
    >>> result_scores({("sequence", "Perplexity"): [1.2, 3.4]})
    {'Perplexity': array([1.2, 3.4])}
    """
    plain = getattr(result, "estimations", None) or (
        result.to_dict() if hasattr(result, "to_dict") else result
    )
    table = plain.get("data", plain) if isinstance(plain, Mapping) else None
    if not isinstance(table, Mapping):
        raise InputError(f"a result is a mapping of names to columns; got {type(result).__name__}.")
    columns = {}
    for name, column in table.items():
        values = [math.nan if one is None else one for one in column]
        if values and all(isinstance(one, int | float | np.number) for one in values):
            columns[name if isinstance(name, str) else str(name[-1])] = np.array(
                values, dtype=np.float64
            )
    if not columns:
        raise InputError(
            f"no column of numbers in this result; it has {', '.join(map(str, table))[:200]}."
        )
    return columns
