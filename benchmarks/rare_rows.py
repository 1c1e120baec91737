"""Measure the rule for an accuracy where few rows are correct, and where many are.

    python -m benchmarks.rare_rows --data FOLDER [--jobs 2] [--draws N] [--out RESULT.json]

Five parts, each on populations whose every threshold has a known accuracy:

- *recall*: share of the correct rows that are accepted, as a share of the same for the best
  threshold of the population. Scores are normal, with mean 3 for correct rows and 0 for the others,
  or those of a matching file (`matching_*.npz` of FOLDER), drawn with replacement. Matching scores
  are also rounded.
- *logits*: coverage as a share of the best, on every logits file of FOLDER.
- *adversaries*: share of broken promises on 40 populations that are made to break them.
- *shortcut*: share of broken promises if all rows are tested after reading some of them.
- *ruled out*: how often the statement about thresholds is false where nothing is certified.

The rules are *former* (one start for all shares of correct rows, which reads no labels before the
tests), *now* (`metacal.certification.peeling`), and *ceiling*: the best single start in hindsight,
which no rule can know. MAPIE's controllers for precision get the same rows if MAPIE is installed
(`pip install mapie==1.6`). Without it, their committed results stay, because nothing of metacal is in
them.

About 20 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import warnings
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtr

from benchmarks.accuracy_rule import columns
from benchmarks.experiments.pool import in_order
from benchmarks.joint_band import logits_files
from benchmarks.score_populations import StepPopulation
from metacal.certificates.quantities import SELECTIVE_ACCURACY
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.pilot import PilotPolicy
from metacal.certification.rank_plan import RankPlan
from metacal.certification.rank_tests import BinomialRankTests
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.ruled_out import find_smallest_ruled_out_coverage
from metacal.certification.rules.fixed_sequence import FixedSequenceRule, certify_accuracy
from metacal.certification.rules.rule import run_rule
from metacal.certification.test_sequences import RangeStart, plan_rank_ranges
from metacal.kernels.grid import RELATIVE_GRID

HERE = Path(__file__).resolve().parent
COMMITTED = HERE / "results" / "rare-rows.json"
DELTA = 0.1

# Number of rows, share of correct rows, and draws, for normal scores. The limit is 0.9.
NORMAL_CELLS = [
    *((1000, share, 300) for share in (0.05, 0.1, 0.2, 0.3, 0.7)),
    *((4000, share, 300) for share in (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)),
    *((20_000, share, 300) for share in (0.01, 0.02, 0.03)),
]
NORMAL_BETA = 0.9

# Matching files of FOLDER. `benchmarks.train.pairs` makes the last one from public pairs.
MATCHING_FILES = ("matching_abt_buy", "matching_amazon_google", "matching_walmart_amazon")

# Number of rows, digits that scores are rounded to, and limits, for matching files.
MATCHING_CELLS = [
    *((n_rows, None, beta) for n_rows in (1000, 2049, 4098) for beta in (0.7, 0.8, 0.9)),
    *((2049, digits, beta) for digits in (1, 2) for beta in (0.8, 0.9)),
]
MATCHING_DRAWS = 300

LOGITS_SIZES = {300: 300, 1000: 300, 5000: 100}
LOGITS_BETAS = (0.9, 0.95, 0.97, 0.99)

ADVERSARY_ROWS, ADVERSARY_BETA, ADVERSARY_DRAWS = 1000, 0.9, 2000

RULED_OUT_ROWS, RULED_OUT_DRAWS = 500, 2000

# Numbers of tolerated errors at which the single start of the ceiling may lie.
_CEILING_ERRORS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 40, 52, 64, 80, 110, 150)

# Normal score at which the probability that MAPIE receives is a half, negated.
_NORMAL_OFFSET = 1.5

# Draws in which MAPIE is measured, because one of its fits takes longer.
_MAPIE_DRAWS = 60

Draw = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class StepCurve:
    """Population whose distinct scores have known shares of rows and of correct rows.

    Attributes
    ----------
    scores : array of shape (n_scores,)
        Distinct scores in increasing order. A higher score is less certain.

    row_shares, correct_shares : arrays of shape (n_scores,)
        Share of all rows with each score, and share of all rows that also are correct.
    """

    scores: np.ndarray
    row_shares: np.ndarray
    correct_shares: np.ndarray

    @classmethod
    def of_rows(cls, scores: np.ndarray, correct: np.ndarray) -> StepCurve:
        """Let every row of a file be equally likely. Its scores are rounded to the grid."""
        distinct, codes = np.unique(RELATIVE_GRID.round(scores), return_inverse=True)
        n_rows = len(scores)
        return cls(
            distinct,
            np.bincount(codes) / n_rows,
            np.bincount(codes, weights=correct.astype(float)) / n_rows,
        )

    def draw(self, rng: np.random.Generator, n_rows: int) -> Draw:
        """Draw rows with replacement."""
        codes = rng.choice(len(self.scores), n_rows, p=self.row_shares)
        chance = self.correct_shares / self.row_shares
        return self.scores[codes], rng.random(n_rows) < chance[codes]

    def count_up_to(self, threshold: float) -> tuple[float, float]:
        """Return the shares of accepted rows and of accepted correct rows."""
        n_accepted = int(np.searchsorted(self.scores, threshold, side="right"))
        accepted = float(self.row_shares[:n_accepted].sum())
        return accepted, float(self.correct_shares[:n_accepted].sum())

    def best_counts(self, beta: float) -> tuple[float, float]:
        """Return the shares that the largest threshold with the accuracy accepts."""
        rows, correct = np.cumsum(self.row_shares), np.cumsum(self.correct_shares)
        accurate = np.flatnonzero(correct >= beta * rows - 1e-12)
        if len(accurate) == 0:
            return 0.0, 0.0
        return float(rows[accurate[-1]]), float(correct[accurate[-1]])


@dataclass(frozen=True)
class NormalPopulation:
    """Normal scores with mean 3 for correct rows and 0 for the others."""

    share: float
    distance: float = 3.0

    def draw(self, rng: np.random.Generator, n_rows: int) -> Draw:
        """Draw rows."""
        correct = rng.random(n_rows) < self.share
        return -(rng.standard_normal(n_rows) + self.distance * correct), correct

    def count_up_to(self, threshold: float) -> tuple[float, float]:
        """Return the shares of accepted rows and of accepted correct rows."""
        correct = self.share * float(ndtr(threshold + self.distance))
        return correct + (1.0 - self.share) * float(ndtr(threshold)), correct

    def best_counts(self, beta: float) -> tuple[float, float]:
        """Return the shares that the largest threshold with the accuracy accepts."""
        grid = np.linspace(-8.0, 8.0, 160_001)
        correct = self.share * ndtr(grid + self.distance)
        rows = correct + (1.0 - self.share) * ndtr(grid)
        last = np.flatnonzero(correct >= beta * rows)[-1]
        return float(rows[last]), float(correct[last])


Population = StepCurve | NormalPopulation


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────


def find_threshold_now(draw: Draw, beta: float, seed: int, *, logits: bool = False) -> float | None:
    """Find the threshold of the present rule, with pilot rows as in a gate."""
    rows = _rows_of(draw)
    procedure = OneThresholdProcedure(SELECTIVE_ACCURACY, beta, FixedSequenceRule())
    policy = PilotPolicy(random_state=None if logits else seed)
    if logits:
        rows = policy.withhold_pilot_rows_of_logits(rows)
    else:
        rows = policy.withhold_pilot_rows(rows)
    return procedure.find_threshold(rows.ranking, DELTA, pilot_rows=rows.pilot_rows).threshold


def find_threshold_before(
    draw: Draw, beta: float, seed: int, *, logits: bool = False
) -> float | None:
    """Find the threshold of the former rule: the same starts for every share of correct rows."""
    rows = _rows_of(draw)
    pilot = None
    if not logits:
        rows = PilotPolicy(random_state=seed).withhold_pilot_rows(rows)
        assert rows.pilot_rows is not None
        pilot = replace(rows.pilot_rows, correct=None, n_withheld=0)
    return certify_accuracy(rows.ranking, beta, DELTA, pilot).threshold


def find_thresholds_from_one_start(draw: Draw, beta: float) -> list[float | None]:
    """Find the threshold of a single start at all of delta, for each candidate start."""
    ranking = _rows_of(draw).ranking
    thresholds = []
    for n_errors in _CEILING_ERRORS:
        starts = (RangeStart(n_errors, Fraction(1)),)
        plan = RankPlan(beta, plan_rank_ranges(ranking.n_rows, beta, DELTA, starts))
        thresholds.append(FixedSequenceRule().certify(ranking, plan, DELTA).threshold)
    return thresholds


def _rows_of(draw: Draw) -> CalibrationRows:
    """Round the scores of a draw to the grid."""
    scores, correct = draw
    return CalibrationRows(RELATIVE_GRID.round(scores), correct)


def find_thresholds_of_mapie(
    draw: Draw, beta: float, *, are_normal: bool
) -> dict[str, float | None]:
    """Find the thresholds of MAPIE's controllers on the same rows.

    The controllers take probabilities. Matching scores are negated probabilities, and normal scores
    are mapped to probabilities by a logistic function.
    """
    control = importlib.import_module("mapie.risk_control")
    scores, correct = draw
    found: dict[str, float | None] = {}
    for name in ("bonferroni_holm", "fixed_sequence"):
        controller = control.BinaryClassificationController(
            lambda p: np.column_stack([1.0 - p, p]),
            "precision",
            beta,
            1.0 - DELTA,
            "recall",
            fwer_method=name,
        )
        found[name] = None
        with warnings.catch_warnings(action="ignore"):
            try:
                probabilities = expit(-scores - _NORMAL_OFFSET) if are_normal else -scores
                controller.calibrate(probabilities, correct.astype(int))
                probability = controller.best_predict_param
            except ValueError:
                continue
        if probability is not None:
            lowest = float(np.ravel(probability)[0])
            found[name] = -_NORMAL_OFFSET - float(logit(lowest)) if are_normal else -lowest
    return found


# ── recall ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RecallCell:
    """Population, number of rows, limit and draws of one measurement."""

    population: str
    n_rows: int
    beta: float
    draws: int
    digits: int | None = None


def build_population(cell: RecallCell, data: str) -> Population:
    """Build the population of a cell."""
    if cell.population.startswith("normal"):
        return NormalPopulation(float(cell.population.split()[1]))
    return _read_matching_file(f"{data}/{cell.population}.npz", cell.digits)


@cache
def _read_matching_file(path: str, digits: int | None) -> StepCurve:
    """Read a matching file, and round its scores."""
    with np.load(path) as file:
        scores, correct = file["score"].astype(float), file["correct"].astype(bool)
    if digits is not None:
        scores = np.round(scores, digits)
    return StepCurve.of_rows(-scores, correct)


def measure_recall(cell: RecallCell, data: str, draws: int, with_mapie: bool) -> dict[str, Any]:
    """Measure the recall of each rule, as a share of that of the best threshold."""
    population = build_population(cell, data)
    best_recall = population.best_counts(cell.beta)[1]
    rng = np.random.default_rng(
        [cell.n_rows, round(1000 * cell.beta), sum(map(ord, cell.population))]
    )
    shares: dict[str, list[float]] = {"former": [], "now": []}
    from_one_start = []
    broken = infeasible = 0
    mapie: dict[str, list[float]] = {"bonferroni_holm": [], "fixed_sequence": []}
    mapie_broken = dict.fromkeys(mapie, 0)
    for seed in range(draws):
        draw = population.draw(rng, cell.n_rows)
        threshold = find_threshold_now(draw, cell.beta, seed)
        infeasible += threshold is None
        broken += is_broken(population, threshold, cell.beta)
        shares["now"].append(recall_share(population, threshold, best_recall))
        before = find_threshold_before(draw, cell.beta, seed)
        shares["former"].append(recall_share(population, before, best_recall))
        starts = find_thresholds_from_one_start(draw, cell.beta)
        from_one_start.append([recall_share(population, one, best_recall) for one in starts])
        if with_mapie and seed < _MAPIE_DRAWS:
            are_normal = isinstance(population, NormalPopulation)
            found = find_thresholds_of_mapie(draw, cell.beta, are_normal=are_normal)
            for name, theirs in found.items():
                mapie[name].append(recall_share(population, theirs, best_recall))
                mapie_broken[name] += is_broken(population, theirs, cell.beta)
    found_cell: dict[str, Any] = {
        "population": cell.population,
        "n": cell.n_rows,
        "digits": cell.digits,
        "beta": cell.beta,
        "draws": draws,
        "oracle recall": round(best_recall / population.count_up_to(np.inf)[1], 4),
        **{name: round(float(np.mean(values)), 4) for name, values in shares.items()},
        "ceiling": round(float(np.mean(from_one_start, axis=0).max()), 4),
        "infeasible": round(infeasible / draws, 4),
        "broken": round(broken / draws, 4),
    }
    if with_mapie:
        found_cell["mapie"] = {
            name: {
                "recall": round(float(np.mean(values)), 4),
                "broken": round(mapie_broken[name] / len(values), 4),
                "draws": len(values),
            }
            for name, values in mapie.items()
        }
    return found_cell


def recall_share(population: Population, threshold: float | None, best: float) -> float:
    """Return the accepted correct rows as a share of those of the best threshold."""
    if threshold is None or best == 0.0:
        return 0.0
    return min(1.0, population.count_up_to(threshold)[1] / best)


def is_broken(population: Population, threshold: float | None, beta: float) -> bool:
    """Check whether the rows that a threshold accepts are less accurate than promised."""
    if threshold is None:
        return False
    n_rows, n_correct = population.count_up_to(threshold)
    return n_correct < beta * n_rows - 1e-12


# ── logits ────────────────────────────────────────────────────────────────────────────────────────


def measure_logits(path: str, n_rows: int, draws: int) -> list[dict[str, Any]]:
    """Measure the coverage of both rules on a logits file, as a share of the best."""
    population = StepCurve.of_rows(*columns(Path(path)))
    accuracy = float(population.correct_shares.sum())
    best = {beta: population.best_counts(beta)[0] for beta in LOGITS_BETAS}
    betas = [beta for beta in LOGITS_BETAS if best[beta] >= 0.02 and accuracy < beta]
    shares = {(name, beta): [] for name in ("former", "now") for beta in betas}  # type: ignore[var-annotated]
    rng = np.random.default_rng(n_rows)
    for seed in range(draws):
        draw = population.draw(rng, n_rows)
        for beta in betas:
            found = {
                "former": find_threshold_before(draw, beta, seed, logits=True),
                "now": find_threshold_now(draw, beta, seed, logits=True),
            }
            for name, threshold in found.items():
                covered = 0.0
                if threshold is not None:
                    covered = min(1.0, population.count_up_to(threshold)[0] / best[beta])
                shares[name, beta].append(covered)
    return [
        {
            "set": Path(path).stem,
            "n": n_rows,
            "beta": beta,
            **{name: round(float(np.mean(shares[name, beta])), 4) for name in ("former", "now")},
        }
        for beta in betas
    ]


def summarise_logits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average the coverage over the files, for each size and limit."""
    summary = []
    for n_rows, beta in dict.fromkeys((row["n"], row["beta"]) for row in rows):
        same = [row for row in rows if (row["n"], row["beta"]) == (n_rows, beta)]
        means = {name: float(np.mean([row[name] for row in same])) for name in ("former", "now")}
        rounded = {name: round(mean, 4) for name, mean in means.items()}
        summary.append({"n": n_rows, "beta": beta, "sets": len(same), **rounded})
    return summary


# ── adversaries ───────────────────────────────────────────────────────────────────────────────────

# Error rate of the least certain rows: all wrong, 24% right, 30% right.
_TAILS = (1.0, 0.76, 0.7)

# Factor by which the accuracy of accepted rows is missed.
_OVER = 1.002


def build_adversaries(beta: float) -> dict[str, StepPopulation]:
    """Build 40 populations whose accepted rows are slightly less accurate than promised."""
    q = 1.0 - beta
    over = _OVER * q
    found: dict[str, StepPopulation] = {}
    for tail in _TAILS:
        for head in (0.1, 0.2, 0.3, 0.45):
            name = f"flat to {head:g}, then {tail:g}"
            found[name] = StepPopulation.of([head], [over, tail])
        for head in (0.2, 0.4):
            for good in (0.3, 0.7):
                rest = (over - 0.5 * q * good) / (1.0 - good)
                name = f"good to {good:g} of {head:g}, over at its end, then {tail:g}"
                found[name] = StepPopulation.of([good * head, head], [0.5 * q, rest, tail])
        for n_waves in (4, 12):
            found[f"{n_waves} waves to 0.3, then {tail:g}"] = _build_waves(q, 0.3, n_waves, tail)
    for tail in (1.0, 0.76):
        for head in (0.2, 0.4):
            rest = (over * head - 0.5 * 0.005) / (head - 0.005)
            name = f"bad top of 0.005, over at {head:g}, then {tail:g}"
            found[name] = StepPopulation.of([0.005, head], [0.5, rest, tail])
    atoms = {
        "two atoms": ([0.1], [over, 0.95]),
        "two atoms, thin": ([0.03], [over, 0.8]),
        "three atoms": ([0.02, 0.15], [0.0, _rate_to_reach(over, 0.15, 0.02, 0.0), 0.9]),
        "three atoms, bad first": ([0.02, 0.2], [over, 0.98 * q, 0.9]),
        "four atoms": (
            [0.03, 0.08, 0.2],
            [0.9 * q, _rate_to_reach(over, 0.08, 0.03, 0.9 * q), over, 0.76],
        ),
        "four atoms, last over": (
            [0.05, 0.1, 0.3],
            [0.5 * q, 0.5 * q, _rate_to_reach(over, 0.3, 0.1, 0.5 * q), 1.0],
        ),
    }
    for name, (edges, rates) in atoms.items():
        found[name] = StepPopulation.of(edges, rates, tied=True)
    assert len(found) == 40
    return found


def _rate_to_reach(mean_rate: float, end: float, start: float, rate_before: float) -> float:
    """Return the error rate from `start` to `end` that makes the mean up to `end` the given one."""
    return (mean_rate * end - rate_before * start) / (end - start)


def _build_waves(q: float, head: float, n_waves: int, tail: float) -> StepPopulation:
    """Let the accuracy cross the limit many times, at equal distances of the logarithm of the rank."""
    edges = np.geomspace(0.02 * head, head, 2 * n_waves)
    mean_rates = q * np.where(np.arange(len(edges)) % 2 == 1, _OVER, 0.99)
    n_errors = mean_rates * edges
    rates = np.diff(np.append(0.0, n_errors)) / np.diff(np.append(0.0, edges))
    return StepPopulation.of(edges.tolist(), [*rates.tolist(), tail])


def measure_adversary(name: str, draws: int) -> dict[str, Any]:
    """Count the draws in which the promise is broken."""
    population = build_adversaries(ADVERSARY_BETA)[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    broken = certified = 0
    for seed in range(draws):
        draw = population.draw(ADVERSARY_ROWS, rng)
        threshold = find_threshold_now(draw, ADVERSARY_BETA, seed)
        if threshold is None:
            continue
        certified += 1
        accepted_up_to = min(threshold, 1.0)
        if population.tied:
            edges = RELATIVE_GRID.round(population.edges)
            last_edge = np.searchsorted(edges, threshold, side="right") - 1
            accepted_up_to = float(population.edges[last_edge])
        accuracy = float(population.curves(np.array([accepted_up_to])).accuracy[0])
        broken += accuracy < ADVERSARY_BETA - 1e-12
    return {
        "population": name,
        "draws": draws,
        "certified": round(certified / draws, 4),
        "broken": round(broken / draws, 4),
    }


# ── the shortcut that is not valid ────────────────────────────────────────────────────────────────

# Rows of the shortcut, share of them that it reads first, and draws.
SHORTCUT_ROWS, SHORTCUT_READ_SHARE, SHORTCUT_DRAWS = 1000, 0.3, 10_000


def measure_shortcut(draws: int) -> dict[str, Any]:
    """Count the promises that break if all rows are tested whenever the rows that were read are good.

    The error rate is 1.002 times the allowed one everywhere, so whatever is accepted breaks the
    promise. The shortcut reads the least certain rows. If they keep the limit, its tests start among
    them, and otherwise it tests the others.
    """
    beta = ADVERSARY_BETA
    rng = np.random.default_rng(0)
    rule = FixedSequenceRule()
    broken = {"shortcut": 0, "all rows": 0, "unread rows": 0, "now": 0}
    n_unread_rows = round((1.0 - SHORTCUT_READ_SHARE) * SHORTCUT_ROWS)
    scores = np.arange(float(SHORTCUT_ROWS))
    # The last start among all rows: the test of all of them.
    rank_tests = BinomialRankTests(SHORTCUT_ROWS, 1.0 - beta, DELTA)
    last_start = RangeStart(rank_tests.max_passing_errors(SHORTCUT_ROWS), Fraction(1))
    all_rows_plan = RankPlan(
        beta, plan_rank_ranges(SHORTCUT_ROWS, beta, DELTA, range_starts=(last_start,))
    )
    for _ in range(draws):
        correct = rng.random(SHORTCUT_ROWS) >= _OVER * (1.0 - beta)
        found = {
            "all rows": rule.certify(Ranking.from_scores(scores, correct), all_rows_plan, DELTA),
            "unread rows": certify_accuracy(
                Ranking.from_scores(scores[:n_unread_rows], correct[:n_unread_rows]), beta, DELTA
            ),
            "now": run_rule(
                rule,
                Ranking.from_scores(scores, correct),
                beta,
                DELTA,
                correct_rows_are_rare=True,
            ),
        }
        looks_good = correct[n_unread_rows:].mean() >= beta
        found["shortcut"] = found["all rows" if looks_good else "unread rows"]
        for name, result in found.items():
            broken[name] += result.n_accepted > 0
    return {"draws": draws, **{name: round(n / draws, 4) for name, n in broken.items()}}


# ── what is ruled out ─────────────────────────────────────────────────────────────────────────────

# Error rates between edges, and the largest share that a threshold accepts with accuracy 0.9.
RULED_OUT_POPULATIONS: dict[str, tuple[StepPopulation, float]] = {
    "a thin accurate top": (StepPopulation.of([0.02], [0.0, 0.9]), 0.0225),
    "at the limit, then wrong": (StepPopulation.of([0.3], [0.1, 1.0]), 0.3),
    "at the limit, then a quarter right": (StepPopulation.of([0.1], [0.1, 0.75]), 0.1),
    "at the limit throughout": (StepPopulation.of([], [0.1]), 1.0),
    "bad first, then good": (StepPopulation.of([0.2], [0.3, 0.05]), 1.0),
    "good, bad, and good": (StepPopulation.of([0.1, 0.3], [0.02, 0.4, 0.0255]), 1.0),
}


def measure_ruled_out(name: str, draws: int) -> dict[str, Any]:
    """Count the draws in which a share is ruled out that a good threshold exceeds."""
    population, largest_share = RULED_OUT_POPULATIONS[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    stated = false = 0
    for _ in range(draws):
        ranking = Ranking.from_scores(*population.draw(RULED_OUT_ROWS, rng))
        share = find_smallest_ruled_out_coverage(ranking, 0.9, DELTA)
        stated += share is not None
        false += share is not None and share <= largest_share
    return {
        "population": name,
        "draws": draws,
        "stated": round(stated / draws, 4),
        "false": round(false / draws, 4),
    }


# ── command ───────────────────────────────────────────────────────────────────────────────────────


def list_recall_cells(draws: int | None) -> list[RecallCell]:
    """Return the cells of the first part, with all draws or a smaller number."""
    cells = [
        RecallCell(f"normal {share:g}", n_rows, NORMAL_BETA, limit_draws(n_draws, draws))
        for n_rows, share, n_draws in NORMAL_CELLS
    ]
    for name in MATCHING_FILES:
        for n_rows, digits, beta in MATCHING_CELLS:
            n_draws = limit_draws(MATCHING_DRAWS, draws)
            cells.append(RecallCell(name, n_rows, beta, n_draws, digits))
    return cells


def keep_committed_mapie(cells: list[dict[str, Any]]) -> None:
    """Copy MAPIE's committed results into cells that were measured without it."""
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))["recall"]
    keys = ("population", "n", "digits", "beta")
    by_key = {tuple(cell[key] for key in keys): cell.get("mapie") for cell in committed}
    for cell in cells:
        theirs = by_key.get(tuple(cell[key] for key in keys))
        if theirs is not None:
            cell["mapie"] = theirs


def main() -> None:
    """Measure, print the summary, write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--draws", type=int, help="at most so many draws of everything")
    parser.add_argument("--out", type=Path, default=COMMITTED)
    options = parser.parse_args()
    data, draws, n_jobs = options.data, options.draws, options.jobs
    document = {
        "delta": DELTA,
        "recall": measure_all_recall(data, draws, n_jobs),
        "logits": measure_all_logits(data, draws, n_jobs),
        "adversaries": measure_all_adversaries(draws, n_jobs),
        "shortcut": measure_shortcut(limit_draws(SHORTCUT_DRAWS, draws)),
        "ruled out": measure_all_ruled_out(draws, n_jobs),
    }
    print(f"the shortcut: {document['shortcut']}", file=sys.stderr)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def limit_draws(n_draws: int, max_draws: int | None) -> int:
    """Return the number of draws, or a smaller number that the user asks for."""
    if max_draws is None:
        return n_draws
    return min(n_draws, max_draws)


def measure_all_recall(data: Path, draws: int | None, n_jobs: int) -> list[dict[str, Any]]:
    """Measure the recall on normal scores and on the matching files of a folder."""
    with_mapie = importlib.util.find_spec("mapie") is not None
    tasks = [
        (cell, str(data), cell.draws, with_mapie)
        for cell in list_recall_cells(draws)
        if cell.population.startswith("normal") or (data / f"{cell.population}.npz").exists()
    ]
    recall = []
    for found in in_order(measure_recall, tasks, n_jobs):
        recall.append(found)
        print(found, file=sys.stderr)
    if not with_mapie and COMMITTED.exists():
        keep_committed_mapie(recall)
    return recall


def measure_all_logits(data: Path, draws: int | None, n_jobs: int) -> dict[str, Any]:
    """Measure the coverage on the logits files of a folder."""
    tasks = [
        (path, n_rows, limit_draws(n_draws, draws))
        for n_rows, n_draws in LOGITS_SIZES.items()
        for path in logits_files(data)
    ]
    rows = [row for found in in_order(measure_logits, tasks, n_jobs) for row in found]
    summary = summarise_logits(rows)
    mean_change = round(float(np.mean([row["now"] - row["former"] for row in rows])), 4)
    print(*summary, f"mean change {mean_change:.4f}", sep="\n", file=sys.stderr)
    return {"sets": rows, "mean change": mean_change, "summary": summary}


def measure_all_adversaries(draws: int | None, n_jobs: int) -> list[dict[str, Any]]:
    """Count the broken promises on all adversaries."""
    n_draws = limit_draws(ADVERSARY_DRAWS, draws)
    tasks = [(name, n_draws) for name in build_adversaries(ADVERSARY_BETA)]
    adversaries = list(in_order(measure_adversary, tasks, n_jobs))
    worst = max(adversaries, key=lambda found: found["broken"])
    print(f"of 40 adversaries, broken most often: {worst}", file=sys.stderr)
    return adversaries


def measure_all_ruled_out(draws: int | None, n_jobs: int) -> list[dict[str, Any]]:
    """Count the false statements about thresholds on all populations."""
    n_draws = limit_draws(RULED_OUT_DRAWS, draws)
    tasks = [(name, n_draws) for name in RULED_OUT_POPULATIONS]
    ruled_out = list(in_order(measure_ruled_out, tasks, n_jobs))
    print(*ruled_out, sep="\n", file=sys.stderr)
    return ruled_out


if __name__ == "__main__":
    main()
