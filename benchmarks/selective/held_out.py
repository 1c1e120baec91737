"""Rules that accept rows with a promise on their accuracy, on data that ours was not tuned on.

    python -m benchmarks.selective.held_out --data FOLDER [--draws 500] [--jobs 2] [--out
    held-out.json]

The starting ranks of our rule were tuned on eleven files of logits, on which `python -m benchmarks
selective` compares it with SGR and Learn-then-Test. Here are seven other data sets: two of record
linkage, where correct rows are rare, answers of a language model behind a router, redacted tokens,
fields of receipts, the logits of ResNet-110 that the paper used, and those of EfficientNet-Lite0 on
ImageNet. The files are those of `shared/data`.

As there, calibration rows are drawn with replacement from a file, and the whole file is the truth.
Each set has two targets, which were fixed before anything was run: one near the accuracy that the
paper or the task suggests, and one that is harder or easier. One more rule is ours on the fifth of
the rows with the surest scores: the limit is that of the whole file's scores, as unlabelled rows
would give it, and no label has a part in it. Beside the coverage of each rule, the result holds the
risk-coverage curve of every set.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.pool import in_order
from benchmarks.experiments.population import Population
from benchmarks.experiments.results_file import write_json
from benchmarks.selective.rules import RULES, Sample, parse_rules
from metacal.errors import InputError
from metacal.rows import Rows
from metacal.scores import score_rows

RESULTS = Path(__file__).resolve().parents[1] / "results" / "selective-held-out.json"
SIZES = (300, 1000, 5000)
DELTA = 0.1
SEED = 0
#: Draws in one task.
BLOCK = 50
#: Points of a risk-coverage curve.
CURVE_POINTS = 200

#: Our rule on the rows at or below a limit of the score that this share of all rows is at or below.
TOP_FIFTH, TOP_SHARE = "certified-top-fifth", 0.2

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ScoredRows:
    """Scores (higher is less sure) and correctness of all rows, and the largest score there can
    be.
    """

    scores: NDArray[np.float64]
    is_correct: NDArray[np.bool_]
    highest: float


@dataclass(frozen=True)
class HeldOutSet:
    """A data set: its file, what it is, two targets, and how its arrays become scores."""

    file_name: str
    title: str
    targets: tuple[float, float]
    score: Callable[[Arrays], ScoredRows]

    @property
    def name(self) -> str:
        """What results and tables call it."""
        return self.file_name.replace("_", "-")


def _from_probability(confidence: str, correct: str) -> Callable[[Arrays], ScoredRows]:
    """Return a function that scores rows by 1 - confidence."""

    def score(arrays: Arrays) -> ScoredRows:
        scores = 1.0 - arrays[confidence].astype(np.float64).ravel()
        return ScoredRows(scores, arrays[correct].astype(bool).ravel(), highest=1.0)

    return score


def _from_log_odds(arrays: Arrays) -> ScoredRows:
    """Score tokens by how far their log-odds are below the largest."""
    log_odds = arrays["score"].astype(np.float64)
    scores = log_odds.max() - log_odds
    return ScoredRows(scores, arrays["gold"].astype(bool), highest=float(scores.max()))


def _from_logits(arrays: Arrays) -> ScoredRows:
    """Score rows of logits by the entropy of their softmax."""
    logits, labels = arrays["logits"], arrays["labels"]
    scores = np.asarray(score_rows(Rows(logits), "entropy"))
    return ScoredRows(scores, logits.argmax(axis=1) == labels, highest=math.log(logits.shape[1]))


SETS = (
    HeldOutSet(
        "matching_abt_buy", "record linkage", (0.8, 0.9), _from_probability("score", "correct")
    ),
    HeldOutSet(
        "matching_amazon_google",
        "record linkage",
        (0.6, 0.8),
        _from_probability("score", "correct"),
    ),
    HeldOutSet(
        "mmlu_two_models", "questions", (0.75, 0.8), _from_probability("score", "correct_small")
    ),
    HeldOutSet(
        "receipt_fields", "fields of receipts", (0.9, 0.95), _from_probability("score", "correct")
    ),
    HeldOutSet("redaction_btc", "tokens of tweets", (0.9, 0.95), _from_log_odds),
    HeldOutSet("cifar10_resnet110_paper", "CIFAR-10, the paper's file", (0.97, 0.98), _from_logits),
    HeldOutSet("imagenet5000_efficientnet_lite0", "ImageNet", (0.85, 0.9), _from_logits),
)


@lru_cache(maxsize=2)
def read_set(folder: str, file_name: str) -> tuple[Population, float]:
    """Read a set: its rows as a population, and the largest score there can be."""
    one = next(item for item in SETS if item.file_name == file_name)
    with np.load(Path(folder) / f"{file_name}.npz", allow_pickle=False) as arrays:
        rows = one.score(dict(arrays))
    return Population.of(rows.scores, rows.is_correct), rows.highest


def run_block(
    folder: str, file_name: str, beta: float, n: int, first: int, draws: int, rules: tuple[str, ...]
) -> dict[str, list[int]]:
    """Count the rows of the whole file that each rule accepts, draw by draw.

    Parameters
    ----------
    folder, file_name : str
        Where the set lies.
    beta : float
        The accuracy that is promised.
    n : int
        Calibration rows of a draw.
    first, draws : int
        The first draw of the block, and the number of draws in all.
    rules : tuple of str
        Names of `benchmarks.selective.rules.RULES`.

    Returns
    -------
    dict
        Rule -> number of accepted rows of each draw; 0 if the rule accepts nothing.
    """
    population, highest = read_set(folder, file_name)
    top_rows = round(TOP_SHARE * len(population))
    accepted: dict[str, list[int]] = {rule: [] for rule in rules}
    for draw in range(first, min(first + BLOCK, draws)):
        seed = (SEED, n, draw)
        sample = Sample.of(*population.draw(n, *seed), highest, seed)
        for rule in rules:
            if rule == TOP_FIFTH:
                threshold = _below_limit(sample, beta, limit=float(population.scores[top_rows - 1]))
            else:
                threshold = _threshold(rule, sample, beta)
            accepted[rule].append(0 if threshold is None else population.accepted(threshold))
    return accepted


def _threshold(rule: str, sample: Sample, beta: float) -> float | None:
    """Return the threshold of a rule; None if the rule accepts nothing."""
    try:
        return RULES[rule].choose(sample, beta, DELTA)
    except (
        InputError
    ):  # the paper's rule looks at a tenth of the rows, and none of these is correct
        return None


def _below_limit(sample: Sample, beta: float, limit: float) -> float | None:
    """Return our threshold for the rows at or below a limit, and never more than that limit."""
    inside = sample.scores <= limit
    if not inside.any():
        return None
    chosen = Sample.of(sample.scores[inside], sample.correct[inside], sample.highest, sample.seed)
    threshold = RULES["certified"].choose(chosen, beta, DELTA)
    return None if threshold is None else min(threshold, limit)


@dataclass(frozen=True)
class Cell:
    """One rule at one target and size on one set: means over the draws, on the whole file.

    Attributes
    ----------
    oracle : float
        The largest coverage of a threshold whose accepted rows are correct at least `beta` of the
        time.
    coverage, coverage_se : float
        Mean coverage, where a draw without a threshold counts 0, and its standard error.
    risk : float or None
        Mean error rate of the accepted rows, over the draws that accept some; None if no draw does.
    violation : float
        Share of the draws whose accepted rows are correct less than `beta` of the time.
    nothing : float
        Share of the draws that accept nothing.
    lead, lead_se : float
        How much more the certified rule accepts on the same draws, and the standard error of that.
    """

    set: str
    beta: float
    n: int
    rule: str
    valid: bool
    draws: int
    oracle: float
    coverage: float
    coverage_se: float
    risk: float | None
    violation: float
    nothing: float
    lead: float
    lead_se: float


def summarise(
    population: Population, name: str, beta: float, n: int, accepted: dict[str, list[int]]
) -> list[Cell]:
    """Average the counts of one set, target and size, rule by rule."""
    n_rows = len(population)
    certified = np.array(accepted["certified"]) / n_rows
    root = math.sqrt(len(certified))
    cells = []
    for rule, counts in accepted.items():
        coverage = np.array(counts) / n_rows
        accuracy = np.array([population.accuracy(count) for count in counts])
        risks = 1.0 - accuracy[coverage > 0.0]
        lead = certified - coverage
        cell = Cell(
            set=name,
            beta=beta,
            n=n,
            rule=rule,
            valid=rule == TOP_FIFTH or RULES[rule].valid,
            draws=len(counts),
            oracle=round(population.most_accurate(beta) / n_rows, 6),
            coverage=round(float(coverage.mean()), 6),
            coverage_se=round(float(coverage.std()) / root, 6),
            risk=round(float(risks.mean()), 6) if len(risks) else None,
            violation=round(float((accuracy < beta - 1e-12).mean()), 6),
            nothing=round(float((coverage == 0.0).mean()), 6),
            lead=round(float(lead.mean()), 6),
            lead_se=round(float(lead.std()) / root, 6),
        )
        cells.append(cell)
    return cells


def risk_coverage_curve(population: Population) -> dict[str, list[float]]:
    """Return coverage and error rate of thresholds along the ranking, whole blocks of equal scores
    at a time.
    """
    last_of_block = np.append(population.scores[1:] != population.scores[:-1], True)
    ends = np.flatnonzero(last_of_block) + 1
    wanted = np.linspace(0.0, len(population), CURVE_POINTS + 1)[1:]
    counts = np.unique(ends[np.minimum(np.searchsorted(ends, wanted), len(ends) - 1)])
    risk = 1.0 - population.right[counts] / counts
    return {
        "coverage": [round(float(count) / len(population), 6) for count in counts],
        "risk": [round(float(value), 6) for value in risk],
    }


def run(folder: str, draws: int, n_jobs: int, rules: tuple[str, ...]) -> dict[str, Any]:
    """Compare the rules on every set, target and size."""
    cases = [(one, beta, n) for one in SETS for beta in one.targets for n in SIZES]
    tasks = [
        (folder, one.file_name, beta, n, first, draws, rules)
        for one, beta, n in cases
        for first in range(0, draws, BLOCK)
    ]
    blocks = in_order(run_block, tasks, n_jobs)
    cells: list[Cell] = []
    for one, beta, n in cases:
        accepted: dict[str, list[int]] = {rule: [] for rule in rules}
        for _ in range(0, draws, BLOCK):
            for rule, counts in next(blocks).items():
                accepted[rule] += counts
        cells += summarise(read_set(folder, one.file_name)[0], one.name, beta, n, accepted)
    sets = []
    for one in SETS:
        population, _ = read_set(folder, one.file_name)
        accuracy = round(float(population.correct.mean()), 6)
        curve = risk_coverage_curve(population)
        sets.append(
            {
                "set": one.name,
                "title": one.title,
                "rows": len(population),
                "accuracy": accuracy,
                "curve": curve,
            }
        )
    return {
        "delta": DELTA,
        "seed": SEED,
        "draws": draws,
        "sets": sets,
        "rows": [asdict(cell) for cell in cells],
    }


def main() -> None:
    """Run the comparison and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="the folder of the data sets")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    write_json(
        options.out,
        run(options.data, options.draws, options.jobs, (*parse_rules("own"), TOP_FIFTH)),
    )


if __name__ == "__main__":
    main()
