"""The committed result about constant thresholds, and the how-to pages' pictures of it."""

from __future__ import annotations

import json
from math import sqrt

import numpy as np
import pytest

from benchmarks.case_promises import Items
from benchmarks.constant_threshold import COMMITTED, TASKS, Task, tune_threshold

RESULT = json.loads(COMMITTED.read_text(encoding="utf-8"))
DELTA = RESULT["delta"]


@pytest.mark.parametrize("name", TASKS)
def test_certified_thresholds_keep_their_promise(name):
    cell = RESULT["tasks"][name]
    tolerance = 3 * sqrt(DELTA * (1 - DELTA) / cell["draws"])
    assert cell["draws"] >= 200
    assert cell["methods"]["metacal"]["broken"] <= DELTA + tolerance


@pytest.mark.parametrize("name", TASKS)
def test_the_usual_constant_breaks_every_promise(name):
    assert RESULT["tasks"][name]["methods"]["0.7"]["broken"] == 1


def test_a_tuned_threshold_meets_the_target_on_the_drawn_items():
    rng = np.random.default_rng(0)
    score = rng.random(500)
    items = Items(score, rng.random(500) < score, np.arange(500), np.zeros(500, dtype=int))
    task = TASKS["abt_buy"]
    assert isinstance(task, Task)
    threshold = tune_threshold(task, items)
    accept = items.score >= threshold
    assert task.risk(items, accept) <= task.limit
    assert 0.1 < accept.mean() < 0.9


@pytest.mark.slow
def test_pictures_are_those_of_the_result(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.constant_threshold_figure import PICTURES, draw

    paths = draw(RESULT, tmp_path)
    assert len(paths) == 2 * len(PICTURES)
    images = COMMITTED.parents[2] / "docs" / "images"
    for path in paths:
        assert (images / path.name).exists(), (
            f"docs/images lacks {path.name}: run python -m benchmarks.constant_threshold_figure"
        )
        if path.suffix == ".svg":
            heads = [
                file.read_text(encoding="utf-8").partition("viewBox")[2][:40]
                for file in (path, images / path.name)
            ]
            assert heads[0] == heads[1]
