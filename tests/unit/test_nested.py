"""Keys that lead into an entry of a JSON line, and one number made of a list."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from metacal.cli import main
from metacal.errors import InputError
from metacal.io import read_scores
from metacal.io.nested import add_nested_entries, get_nested_value
from metacal.io.request import Request
from metacal.io.stream import StreamReader

#: A chat response as OpenAI-style servers write it, and a completion as vLLM does, with an echoed
#: first token.
CHAT = {
    "choices": [
        {
            "message": {"content": "yes"},
            "logprobs": {
                "content": [{"token": "y", "logprob": -0.5}, {"token": "es", "logprob": -0.1}]
            },
        }
    ],
    "usage": {"completion_tokens": 2},
}
COMPLETION = {"choices": [{"text": "x", "logprobs": {"token_logprobs": [None, -0.2, -0.4]}}]}


@pytest.mark.parametrize(
    ("row", "key", "value"),
    [
        ({"a": {"b": [1, {"c": 2}]}}, "a.b[1].c", 2),
        ({"a": {"b": [1, 2]}}, "a.b[-1]", 2),
        ({"a": {"b": [1, 2]}}, "a.b[5]", None),
        ({"a.b": 3, "a": {"b": 4}}, "a.b", 3),
        (CHAT, "mean(choices[0].logprobs.content[*].logprob)", -0.3),
        (CHAT, "min(choices[0].logprobs.content[*].logprob)", -0.5),
        (CHAT, "perplexity(choices[0].logprobs.content[*].logprob)", np.exp(0.3)),
        (COMPLETION, "sum(choices[0].logprobs.token_logprobs)", -0.6),
        ({"samples": ["Paris", " paris", "Rome", "Paris"]}, "agreement(samples)", 0.75),
        ({"samples": []}, "mean(samples)", None),
    ],
)
def test_a_key_leads_into_entries(row, key, value):
    assert (
        get_nested_value(row, key) == pytest.approx(value)
        if value is not None
        else get_nested_value(row, key) is None
    )


@pytest.mark.parametrize("key", ["a..b", "a[", "a[x]", "f(a)", "P(yes)", "mean()"])
def test_what_is_no_way_is_a_name(key):
    assert add_nested_entries({"a": [1]}, [key]) == {"a": [1]}
    assert get_nested_value({key: 1}, key) == 1


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_file_of_responses_is_read_and_fitted(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {
            "response": {"logprobs": [-float(doubt), -0.1]},
            "judge": {"verdict": "fail" if rng.random() < doubt / 3 else "pass"},
        }
        for doubt in rng.random(600)
    ]
    rows[3]["response"]["logprobs"] = None
    path = written(tmp_path / "r.jsonl", rows)
    key = "mean(response.logprobs)"
    found = read_scores(path, score_key=key, correct_key="judge.verdict")
    assert np.isnan(found.score[3])
    assert found.score[0] == pytest.approx(np.mean(rows[0]["response"]["logprobs"]))
    gate = str(tmp_path / "gate.json")
    keys = ["--score-key", key, "--correct-key", "judge.verdict"]
    run = CliRunner().invoke(main, ["fit", path, *keys, "--min-accuracy", "0.9", "-o", gate])
    assert run.exit_code == 0, run.output
    assert (
        CliRunner().invoke(main, ["verify", gate, path, "--correct-key", "judge.verdict"]).exit_code
        == 1
    )
    watched = CliRunner().invoke(
        main, ["monitor", gate, path, "--correct-key", "judge.verdict", "--json"]
    )
    assert watched.exit_code == 0, watched.output


def test_a_bad_line_is_named_by_file_line_and_key(tmp_path):
    path = written(tmp_path / "r.jsonl", [{"a": {"b": [1.0]}}, {"a": {"b": ["x"]}}])
    with pytest.raises(InputError, match=r"mean\(\.\.\.\) requires a list of numbers"):
        read_scores(path, score_key="mean(a.b)")
    path = written(tmp_path / "s.jsonl", [{"a": {"b": 1.0}}, {"a": {"b": "high"}}])
    with pytest.raises(InputError, match=r"s.jsonl:2: the a.b must be a number, but it is 'high'"):
        read_scores(path, score_key="a.b")


def _with(row, *way, value):
    """The row with another value at the end of a way."""
    if not way:
        return value
    copy = row.copy()
    copy[way[0]] = _with(row[way[0]], *way[1:], value=value)
    return copy


JUDGED = {
    "judge": {"score": "8/10", "verdict": "pass", "loss": 0.2},
    "samples": ["a", "b"],
    "clusters": [0, 1],
}
LOGPROBS = ("choices", 0, "logprobs")


@pytest.mark.parametrize(
    ("row", "keys", "said"),
    [
        (
            _with(CHAT, *LOGPROBS, "content", 1, "logprob", value="low"),
            {"score_key": "mean(choices[0].logprobs.content[*].logprob)"},
            "mean(...) requires a list of numbers, but 'choices[0].logprobs.content[*].logprob' is [-0.5, 'low']",
        ),
        (
            _with(COMPLETION, *LOGPROBS, "token_logprobs", value="none"),
            {"score_key": "mean(choices[0].logprobs.token_logprobs)"},
            "mean(...) requires a list of numbers, but 'choices[0].logprobs.token_logprobs' is 'none'",
        ),
        (
            _with(JUDGED, "judge", "score", value="good"),
            {"score_key": "judge.score"},
            "the judge.score must be a number, but it is 'good'",
        ),
        (
            _with(JUDGED, "judge", "verdict", value="perhaps"),
            {"score_key": "judge.score", "correct_key": "judge.verdict"},
            "judge.verdict must mark whether the row is correct, but it is 'perhaps'",
        ),
        (
            _with(JUDGED, "judge", "loss", value=1.7),
            {"score_key": "judge.score", "loss_key": "judge.loss"},
            "the judge.loss must lie between 0 and 1, but it is 1.7",
        ),
        (
            _with(JUDGED, "samples", value="a"),
            {"score_key": "agreement(samples)"},
            "agreement(...) requires a list of answers, but 'samples' is 'a'",
        ),
        (
            _with(JUDGED, "clusters", value=3),
            {"score_key": "entropy(clusters)"},
            "entropy(...) requires a list of answers, but 'clusters' is 3",
        ),
    ],
)
def test_a_bad_line_of_a_recorded_shape_is_named(row, keys, said, tmp_path):
    good = next(one for one in (CHAT, COMPLETION, JUDGED) if one.keys() == row.keys())
    with pytest.raises(InputError) as error:
        read_scores(written(tmp_path / "r.jsonl", [good, row]), **keys)
    assert f"r.jsonl:2: {said}" in str(error.value)


def test_a_stream_reads_marks_and_nested_keys_too():
    reader = StreamReader(
        Request(
            "a.jsonl", logits_key="judge.mark", label_key="judge.ok", table_is_score_column=True
        ),
        "jsonl",
    )
    record = reader.parse_line(1, b'{"judge": {"mark": "8/10", "ok": "pass"}}')
    assert record.row == (0.8,)
    assert record.label == "pass"
