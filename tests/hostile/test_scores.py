"""Score files, JSON lines and gates on scores made to hurt: a sentence or a sound answer, never a
raw exception.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from metacal.export.saved import dumps, loads
from metacal.io.scores import read_scores

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "benchmarks")]
mutate = importlib.import_module("mutate")
artifact_mutations = importlib.import_module("artifact_mutations")

CASES = 250
ROWS = [
    {
        "id": f"q{k}",
        "mark": round(k / 40, 3),
        "ok": k % 3 > 0,
        "logits": mutate.TABLE[k].tolist(),
        "label": int(label),
    }
    for k, label in enumerate(mutate.LABELS)
]
ODD = [
    None, True, -1, 10**400, 1e308, float("nan"), float("inf"), "", "0.5", "yes", "nan", [], [1], {}, {"a": 1}, "\x00",
    "\ud800", 2**63, -0.0, [[]], "x" * 10_000,
]  # fmt: skip


def spoilt_lines(seed):
    """Rows with odd entries, or their bytes with holes."""
    dice = random.Random(seed)
    rows = [dict(row) for row in ROWS]
    for _ in range(dice.choice([0, 1, 1, 3])):
        row = dice.choice(rows)
        row[dice.choice(list(row))] = dice.choice(ODD)
    data = bytearray("\n".join(json.dumps(row) for row in rows).encode())
    for _ in range(dice.choice([0, 1, 1, 2])):
        if data:
            dice.choice(mutate.ANY)(data, dice)
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_spoilt_files_give_a_sentence_or_sound_columns(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    sound = refused = 0
    for seed in range(CASES):
        if suffix == ".jsonl":
            path.write_bytes(spoilt_lines(seed))
        else:
            data = bytearray(
                ("mark,ok\n" + "".join(f"{row['mark']},{row['ok']}\n" for row in ROWS)).encode()
            )
            dice = random.Random(seed)
            for _ in range(dice.choice([0, 1, 1, 2])):
                dice.choice(mutate.ANY)(data, dice)
            path.write_bytes(data)
        for read in (
            lambda: read_scores(path, score_key="mark"),
            lambda: mc.read_predictions(path),
        ):
            try:
                found = read()
            except mc.InputError:
                refused += 1
                continue
            sound += 1
            if isinstance(found, mc.io.Scores):
                assert found.score.dtype == np.float64
                assert not np.isinf(found.score).any()
                assert found.correct is None or found.correct.shape == found.score.shape
    assert sound > 50
    assert refused > 50


@pytest.mark.long
def test_mutated_gates_are_refused_or_sound():
    rng = np.random.default_rng(0)
    mark = rng.random(1000)
    gate = mc.ScoreGate(mc.MinAccuracy(0.9), score_name="mark").fit(
        mark, rng.random(1000) > (1 - mark) ** 2
    )
    files = {"scored": dumps(gate)}
    refused = 0
    for number in range(4 * CASES):
        case = artifact_mutations.mutated(files, number)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = loads(case.raw)
        except mc.ArtifactError:
            refused += 1
            continue
        decided = found.decide([0.0, 0.5, 1.0, None])
        assert not decided.accept[3]
        assert (
            (np.diff(decided.confidence[:3]) >= 0).all() if decided.confidence is not None else True
        )
        assert found.promise.contradiction(found.certificate_) is None
    assert refused > 3 * CASES
