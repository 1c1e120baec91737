"""Responses of language models and results of the tools around them, each as it is written."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import metacal as mc
from metacal.errors import InputError
from metacal.io.responses import result_scores, sequence_scores, token_logprobs

#: As an OpenAI-style server answers a chat with logprobs and two choices.
CHAT = json.loads("""
{"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [
 {"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop", "logprobs": {"content": [
  {"token": "Par", "logprob": -0.02, "bytes": [80], "top_logprobs": [{"token": "Par", "logprob": -0.02}]},
  {"token": "is", "logprob": -0.3, "bytes": [105], "top_logprobs": []}]}},
 {"index": 1, "message": {"role": "assistant", "content": "paris "}, "finish_reason": "stop", "logprobs": null}],
 "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}""")
#: As vLLM answers a completion with echo.
COMPLETION = json.loads("""
{"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": "A: 4", "logprobs": {
 "text_offset": [0, 1, 2], "tokens": ["A", ":", " 4"], "token_logprobs": [null, -0.25, -1.5],
 "top_logprobs": [null, {":": -0.25}, {" 4": -1.5}]}, "finish_reason": "length"}]}""")


def test_log_probabilities_of_every_shape():
    assert token_logprobs(CHAT) == [-0.02, -0.3]
    assert token_logprobs(COMPLETION) == [-0.25, -1.5]
    assert token_logprobs([-0.1, -0.2]) == [-0.1, -0.2]
    assert token_logprobs(SimpleNamespace(model_dump=lambda: CHAT)) == [-0.02, -0.3]
    assert token_logprobs({"choices": []}) == []


def test_sequence_scores_by_name():
    found = sequence_scores([CHAT, COMPLETION, {"choices": []}])
    np.testing.assert_allclose(found["mean_logprob"], [-0.16, -0.875, np.nan])
    np.testing.assert_allclose(found["min_logprob"], [-0.3, -1.5, np.nan])
    np.testing.assert_allclose(found["perplexity"], [np.exp(0.16), np.exp(0.875), np.nan])
    np.testing.assert_allclose(found["agreement"], [1.0, 1.0, np.nan])


def test_results_of_tools_are_columns():
    uqlm = {
        "data": {"prompts": ["?"], "responses": ["4"], "logprob": [-0.2], "min_probability": [0.8]},
        "metadata": {},
    }
    assert set(result_scores(uqlm)) == {"logprob", "min_probability"}
    assert set(result_scores(SimpleNamespace(to_dict=lambda: uqlm))) == {
        "logprob",
        "min_probability",
    }
    polygraph = SimpleNamespace(
        estimations={("sequence", "MaximumSequenceProbability"): [1.0, 2.0]}
    )
    np.testing.assert_array_equal(
        result_scores(polygraph)["MaximumSequenceProbability"], [1.0, 2.0]
    )
    with pytest.raises(InputError, match="column of numbers"):
        result_scores({"data": {"prompts": ["?"]}})
    with pytest.raises(InputError, match="mapping from names to columns"):
        result_scores(Path())


def test_scores_are_compared_and_fused():
    rng = np.random.default_rng(0)
    skill = rng.normal(size=2000)
    right = rng.random(2000) < 1 / (1 + np.exp(-2 * skill))
    columns = {
        "mean_logprob": skill + rng.normal(size=2000),
        "perplexity": np.exp(-skill + rng.normal(size=2000)),
    }
    columns["noise"] = rng.normal(size=2000)
    columns["mean_logprob"][:10] = np.nan
    found = mc.compare_scores(columns, right, mc.MinAccuracy(0.7))
    by_name = {row.name: row for row in found.rows}
    assert found.rows[0].name == "fused"
    assert (
        by_name["fused"].auroc
        > max(by_name["mean_logprob"].auroc, by_name["perplexity"].auroc)
        > 0.7
    )
    assert abs(by_name["noise"].auroc - 0.5) < 0.06
    assert by_name["noise"].coverage < by_name["mean_logprob"].coverage
    assert np.isnan(found.fused(columns)[:10]).all()
    assert "fused" in str(found)
    assert len(found.to_frame()) == 4
    with pytest.raises(InputError, match="both correct and incorrect rows"):
        mc.compare_scores(columns, np.ones(2000, dtype=bool))
