"""Rules that cannot be run here keep their rows: of the same data and draws alone, beside what ours
accepts now.
"""

from __future__ import annotations

import json

from benchmarks.selective.output import keeping

HEADER = {"set": "a", "digest": "1", "beta": 0.97, "delta": 0.1, "seed": 0}


def row(rule, coverage, data="a"):
    return {
        "data": data,
        "n": 300,
        "rule": rule,
        "coverage": coverage,
        "coverage_se": 0.03,
        "lead": 0.0,
        "lead_se": 0.0,
    }


def results(headers, rows):
    return {"format": 1, "bench": "selective", "sets": headers, "rows": rows}


def test_a_rule_that_was_not_run_is_kept_on_the_same_data_alone(tmp_path):
    other = {**HEADER, "set": "b"}
    before = [row("certified", 0.5), row("sgr", 0.4), row("mapie", 0.3), row("mapie", 0.2, "b")]
    (tmp_path / "selective.json").write_text(
        json.dumps(results([HEADER, other], before)), encoding="utf-8"
    )
    now = results(
        [HEADER, {**other, "digest": "2"}],
        [row("certified", 0.6), row("sgr", 0.45), row("certified", 0.5, "b")],
    )
    found = keeping(now, tmp_path)
    assert found["kept"] == ["mapie"]
    assert [(one["data"], one["rule"], one["coverage"]) for one in found["rows"]] == [
        ("a", "certified", 0.6), ("a", "sgr", 0.45), ("a", "mapie", 0.3), ("b", "certified", 0.5),
    ]  # fmt: skip
    assert (found["rows"][2]["lead"], found["rows"][2]["lead_se"]) == (0.3, 0.042426)
