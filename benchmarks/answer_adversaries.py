"""Populations that tempt cascades of scores and graded losses to break their promise: how often
they do.

    python -m benchmarks.answer_adversaries [--draws 1000] [--jobs 16] [-o RESULT.json]

Risks just above the limit, everywhere or in places; bumps, dips and waves; scores that contradict
each other, ties. Each population ten times over: cascades of three and four models (`MaxLoss`, by
each model's own score and by all scores; `MinAccuracy` with people), and losses of several shapes
under `MaxRisk`, by bets and by rounding. What is accepted is judged by the population itself, not
by a sample of it. "size" is what the exact test may reach by its own discrete law where every point
is just bad.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal.certification.rules.fixed_sequence import count_certified_rows
from metacal.certification.rules.loss_bets import LossRanking, count_certified_loss_rows
from metacal.certification.test_sequences import plan_rank_ranges
from metacal.promises.bad_answer_limit import BadAnswerTest
from metacal.promises.staged_cascade import CascadeScores

DELTA = 0.1
#: Cascades: labelled rows, and the share of answers that may differ, or be wrong.
N_CASCADE, EPSILON = 300, 0.05
#: Losses: rows, and the limit on their mean.
N_LOSSES, LIMIT = 1000, 0.1
#: How a cascade is certified, and whether people are behind it.
CASCADES = {
    "own scores": (mc.MaxLoss(EPSILON, DELTA), {}),
    "all scores": (mc.MaxLoss(EPSILON, DELTA), {"joint": True}),
    "accuracy": (mc.MinAccuracy(1.0 - EPSILON, DELTA), {"people": True}),
}


def cascade_population(
    number: int, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The doubts of the models, and with which probability the answer of each is bad."""
    m = 2 + number % 2
    doubt = rng.random((size, m))
    if number in (2, 7):
        doubt[:, 1:] = 1.0 - doubt[:, :1]
    if number in (3, 8):
        doubt = np.round(doubt, 1)
    risks = {
        0: np.full((size, m), 0.055),
        1: np.full((size, m), 0.08),
        2: np.full((size, m), 0.06),
        3: np.full((size, m), 0.07),
        4: np.where(doubt < 0.3, 0.2, 0.01),
        5: 0.2 * doubt,
        6: np.where((doubt > 0.2) & (doubt < 0.4), 0.4, 0.0),
        7: 0.3 * (1.0 - doubt),
        8: 0.25 * doubt**2,
        9: np.where(doubt < 0.05, 1.0, 0.03),
    }
    return doubt, risks[number]


def cascade_draw(number: int, seed: int) -> dict[str, float]:
    """Whether one calibration set breaks the promise, for each way to certify it."""
    rng = np.random.default_rng([number, seed])
    doubt, risk = cascade_population(number, N_CASCADE, rng)
    differs = rng.random(risk.shape) < risk
    many, chance = cascade_population(number, 20_000, np.random.default_rng(number))
    costs, m = np.arange(1.0, doubt.shape[1] + 2), doubt.shape[1]
    found = {}
    for name, (promise, how) in CASCADES.items():
        try:
            stages = promise.certify(
                CascadeScores(doubt, differs, costs, doubt[:0], random_state=seed, **how)
            ).stages
        except mc.InfeasibleTargetError:
            found[name] = 0.0
            continue
        assert stages is not None
        sure = many <= np.array([stage.threshold for stage in stages.models[:m]])
        answered = sure.any(axis=1)
        bad = chance[np.arange(len(many)), sure.argmax(axis=1)] * answered
        whole = answered.sum() if "people" in how else len(many)
        found[name] = float(bad.sum() > EPSILON * whole * (1.0 + 1e-9))
    return found


def cascade_size() -> float:
    """The most that both paths together may be broken: twice the chance of at most k where ε of the
    rows are bad.
    """
    tested = N_CASCADE - N_CASCADE // 5
    law = BadAnswerTest(EPSILON, DELTA / 2)
    k = law.find_max_passing_bad_count(tested)
    return 2.0 * law.compute_p_value(
        k,
        law.find_min_tested_rows(n_bad=k, n_available=tested),
    )


#: Mean losses along the doubt, from 0 to 1.
MEANS = {
    "flat, .101": lambda x: np.full_like(x, 0.101),
    "flat, .115": lambda x: np.full_like(x, 0.115),
    "dip": lambda x: np.where(x < 0.25, 0.13, np.where(x < 0.5, 0.06, 0.12)),
    "jump": lambda x: np.where(x < 0.3, 0.03, np.where(x < 0.45, 0.3, 0.11)),
    "waves": lambda x: 0.101 + 0.08 * np.cos(12.0 * np.pi * x),
    "bad beginning": lambda x: np.where(x < 0.05, 0.5, 0.085),
    "falling": lambda x: 0.2 - 0.15 * x,
    "slowly rising": lambda x: 0.09 + 0.03 * x,
}
#: How losses are spread about their mean.
SHAPES = {
    "near-binary": lambda mean, rng: (
        (rng.random(len(mean)) < mean) * np.where(rng.random(len(mean)) < 0.98, 1.0, 0.999)
    ),
    "halves": lambda mean, rng: (
        (rng.random(len(mean)) < mean) * 0.5 + (rng.random(len(mean)) < mean) * 0.5
    ),
    "low variance": lambda mean, rng: mean * (0.6 + 0.8 * rng.random(len(mean))),
    "constant": lambda mean, rng: mean,
    "heavy": lambda mean, rng: rng.beta(0.2, 0.2 * (1.0 - mean) / mean),
}
#: The ten: a mean, a shape, and whether the doubt is one of ten marks.
LOSSES = (
    ("flat, .101", "near-binary", False),
    ("flat, .101", "heavy", False),
    ("flat, .115", "halves", True),
    ("dip", "near-binary", False),
    ("jump", "heavy", True),
    ("waves", "halves", False),
    ("bad beginning", "low variance", False),
    ("falling", "near-binary", True),
    ("slowly rising", "heavy", False),
    ("slowly rising", "constant", False),
)


def losses_draw(number: int, seed: int) -> dict[str, float]:
    """Whether the part of the ranking that one calibration set certifies costs more than the
    limit.
    """
    mean, shape, marks = LOSSES[number]
    rng = np.random.default_rng([number, seed, 11])
    place = rng.random(N_LOSSES)
    loss = np.clip(SHAPES[shape](MEANS[mean](place), rng), 0.0, 1.0)
    doubt = np.ceil(10.0 * place) / 10.0 if marks else place
    rounded = (rng.random(N_LOSSES) < loss).astype(np.float64)
    grid = (np.arange(200_000) + 0.5) / 200_000
    total = np.concatenate(([0.0], np.cumsum(MEANS[mean](grid)))) / len(grid)
    found = {}
    for name, column in (("bets", loss), ("rounding", rounded)):
        ranked = LossRanking.from_scores(doubt, column, seed)
        if name == "bets":
            rank = count_certified_loss_rows(ranked, LIMIT, DELTA)
        else:
            rank = count_certified_rows(ranked.error_ranking, 1.0 - LIMIT, DELTA)
        end = (
            min(ranked.error_ranking.largest_threshold_accepting_exactly(rank), 1.0)
            if rank
            else 0.0
        )
        end = np.floor(10.0 * end + 1e-9) / 10.0 if marks else end
        found[name] = float(total[round(end * len(grid))] > LIMIT * end + 1e-9)
    return found


def losses_size() -> float:
    """How often rounding passes where every loss is LIMIT: at a start, each at its own share after
    those before failed.

    Exact, by the distribution of the errors up to each start among the draws that have failed so
    far.
    """
    from scipy.stats import binom

    alive, at, passed = np.ones(1), 0, 0.0
    for part in plan_rank_ranges(N_LOSSES, 1.0 - LIMIT, DELTA):
        step = binom.pmf(np.arange(part.start_rank - at + 1), part.start_rank - at, LIMIT)
        alive, at = np.convolve(alive, step), part.start_rank
        passes = (
            binom.cdf(np.arange(len(alive)), part.start_rank, LIMIT)
            <= float(part.level_fraction) * DELTA
        )
        passed += float(alive[passes].sum())
        alive = np.where(passes, 0.0, alive)
    return passed


def main() -> None:
    """Draw them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out")
    options = parser.parse_args()
    found: dict[str, object] = {"delta": DELTA, "draws": options.draws}
    sizes = {"cascades": cascade_size(), "losses": losses_size()}
    for kind, draw in (("cascades", cascade_draw), ("losses", losses_draw)):
        tasks = [(number, seed) for number in range(10) for seed in range(options.draws)]
        broken = list(in_order(draw, tasks, options.jobs))
        ways = {
            name: (
                np.array([one[name] for one in broken])
                .reshape(10, options.draws)
                .mean(axis=1)
                .tolist()
            )
            for name in broken[0]
        }
        found[kind] = {"size": sizes[kind], "broken": ways}
    text = json.dumps(found, indent=1)
    (
        print(text)
        if options.out is None
        else Path(options.out).write_text(text + "\n", encoding="utf-8")
    )


if __name__ == "__main__":
    main()
