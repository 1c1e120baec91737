"""Confidence scores from language models and from uncertainty libraries.

A response is one of these:

- a chat response in the style of OpenAI, with `choices[0].logprobs.content[i].logprob`;
- a completion, or a response of vLLM, with `choices[0].logprobs.token_logprobs`, which is null for
  the first token of an echoed prompt;
- a list of log-probabilities.

Results of uqlm (a table of scores beside prompts and responses) and of lm-polygraph (estimations
keyed by level and estimator) already hold columns of scores.

JSON lines files do not need this module, because the command line accepts nested keys such as
`--score-key 'mean(choices[0].logprobs.content[*].logprob)'` (see `metacal.io.nested`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from metacal.errors import FileContentError
from metacal.formulas import Float
from metacal.io.nested import REDUCTIONS, get_nested_value

#: Largest number of characters of a list of columns in a message.
_MAX_SHOWN_COLUMNS_LENGTH = 200
#: Nested keys of the token log-probabilities of a response, in order of preference.
LOGPROB_KEYS = (
    "choices[0].logprobs.content[*].logprob",
    "choices[0].logprobs.token_logprobs[*]",
    "logprobs.content[*].logprob",
    "logprobs.token_logprobs[*]",
    "token_logprobs[*]",
    "logprobs[*]",
)
#: Reduction of the token log-probabilities to each sequence score.
REDUCTION_NAME_OF_SCORE = {
    "mean_logprob": "mean",
    "min_logprob": "min",
    "sum_logprob": "sum",
    "perplexity": "perplexity",
}


def token_logprobs(response: Any) -> list[float]:
    """Return the log-probability of each token of a response, or [] if it has none.

    Parameters
    ----------
    response : mapping, object with `model_dump`, or sequence of float
        One response.

    Returns
    -------
    list of float

    Examples
    --------
    >>> token_logprobs({"choices": [{"logprobs": {"token_logprobs": [None, -0.5, -0.1]}}]})
    [-0.5, -0.1]
    """
    if hasattr(response, "model_dump") and not isinstance(response, Mapping):
        response = response.model_dump()
    if not isinstance(response, Mapping):
        response = {"logprobs": list(response)}
    for key in LOGPROB_KEYS:
        logprobs = get_nested_value(response, key)
        if logprobs and all(isinstance(value, int | float) for value in logprobs):
            return [float(value) for value in logprobs]
    return []


def find_response_entries(row: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the mean log-probability and the text of a response within a JSON object.

    Parameters
    ----------
    row : mapping
        JSON object.

    path : str, default=""
        Path of the response in the object, empty or with a dot at its end.

    Returns
    -------
    dict
        Values by the nested keys with which the readers find them.

    Examples
    --------
    >>> choice = {"logprobs": {"token_logprobs": [-0.5, -0.1]}, "text": "yes"}
    >>> find_response_entries({"body": {"choices": [choice]}}, "body.")
    {'mean(body.choices[0].logprobs.token_logprobs[*])': -0.3, 'body.choices[0].text': 'yes'}
    """
    response_entries = {}
    for key in LOGPROB_KEYS:
        logprobs_key = f"{path}{key}"
        has_logprobs = bool(get_nested_value(row, logprobs_key))
        if has_logprobs:
            mean_key = f"mean({logprobs_key})"
            response_entries[mean_key] = get_nested_value(row, mean_key)
            break
    for key in ("choices[0].message.content", "choices[0].text"):
        text_key = f"{path}{key}"
        answer_text = get_nested_value(row, text_key)
        if answer_text is not None:
            response_entries[text_key] = answer_text
    return response_entries


def sequence_scores(responses: Iterable[Any]) -> dict[str, Float]:
    """Compute the common scores of whole responses from their token log-probabilities.

    Parameters
    ----------
    responses : iterable
        Responses as accepted by `token_logprobs`.

    Returns
    -------
    dict of str to array of shape (n_responses,)
        Score columns by name, NaN for a response without log-probabilities. If a response has
        several choices, there is also a column "agreement" with the relative frequency of the most
        common answer.

    Examples
    --------
    >>> sequence_scores([[-0.5, -0.1], []])["min_logprob"]
    array([-0.5,  nan])
    """
    all_responses = list(responses)
    logprobs_of_responses = [token_logprobs(response) for response in all_responses]
    score_by_name = {}
    for score_name, reduction_name in REDUCTION_NAME_OF_SCORE.items():
        reduce_logprobs = REDUCTIONS[reduction_name]
        score_by_name[score_name] = _apply_to_each_list(reduce_logprobs, logprobs_of_responses)

    answers_of_responses = [_list_choice_texts(response) for response in all_responses]
    has_several_choices = any(len(answers) > 1 for answers in answers_of_responses)
    if has_several_choices:
        compute_agreement = REDUCTIONS["agreement"]
        score_by_name["agreement"] = _apply_to_each_list(compute_agreement, answers_of_responses)
    return score_by_name


def _apply_to_each_list(function: Callable[[Any], float], lists: Iterable[list[Any]]) -> Float:
    """Apply a function to each list, and return NaN for empty lists."""
    return np.array([function(values) if values else math.nan for values in lists])


def _list_choice_texts(response: Any) -> list[Any]:
    """Return the text of each choice of a response."""
    if not isinstance(response, Mapping):
        return []
    chat_answers = get_nested_value(response, "choices[*].message.content")
    return chat_answers or get_nested_value(response, "choices[*].text") or []


def result_scores(result: Any) -> dict[str, Float]:
    """Return the numeric columns of a result of uqlm or lm-polygraph.

    Parameters
    ----------
    result : object or mapping
        Result of uqlm (`.to_dict()["data"]` holds the columns) or of lm-polygraph (`.estimations`).

    Returns
    -------
    dict of str to array of shape (n_responses,)
        Columns by name. Missing values are NaN.

    Raises
    ------
    InputError
        If the result is not a mapping or has no numeric column.

    Examples
    --------
    >>> result_scores({"data": {"prompts": ["?", "!"], "min_probability": [0.4, None]}})
    {'min_probability': array([0.4, nan])}
    >>> result_scores({("sequence", "Perplexity"): [1.2, 3.4]})
    {'Perplexity': array([1.2, 3.4])}
    """
    table = _find_result_table(result)
    if not isinstance(table, Mapping):
        raise FileContentError(
            f"A result must be a mapping from names to columns, but got {type(result).__name__}."
        )
    score_by_name = {}
    for key, column in table.items():
        column_values = [math.nan if value is None else value for value in column]
        if column_values and all(
            isinstance(value, int | float | np.number) for value in column_values
        ):
            # The keys of lm-polygraph are pairs (level, estimator).
            column_name = key if isinstance(key, str) else str(key[-1])
            score_by_name[column_name] = np.array(column_values, dtype=np.float64)
    if not score_by_name:
        raise FileContentError(
            "The result must have a column of numbers, but its columns are"
            f" {', '.join(map(str, table))[:_MAX_SHOWN_COLUMNS_LENGTH]}."
        )
    return score_by_name


def _find_result_table(result: Any) -> Any:
    """Return the mapping of names to columns inside a result, if there is one."""
    result_content = getattr(result, "estimations", None)
    if not result_content:
        result_content = result
        if hasattr(result, "to_dict"):
            result_content = result.to_dict()
    if isinstance(result_content, Mapping):
        return result_content.get("data", result_content)
    return None
