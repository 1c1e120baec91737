"""Rules that choose how many of the most confident rows to accept so that these are right at least
beta of the time.

Every rule sees the same thing, the calibration rows by rising score (`metacal.promises.Ranking`),
and answers with a threshold, or None when it accepts nothing. "Valid" means that the accuracy of
what is accepted falls below beta with probability at most delta over the draw of the calibration
rows; plug-in and the paper's rule are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from benchmarks.selective import mapie as selective_mapie
from metacal.certification.ranking import Ranking
from metacal.certification.rules.fixed_sequence import find_last_passed_rank
from metacal.errors import InfeasibleTargetError, InputError
from metacal.promises import paper
from metacal.statistics import bounds

#: Points of the grids, as in Learn-then-Test's examples and MAPIE's default.
GRID = 100

Scores = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """One calibration set, with what the rules ask of it."""

    scores: Scores
    correct: Flags
    ranking: Ranking
    highest: float
    seed: tuple[int, ...]

    @classmethod
    def of(
        cls, scores: Scores, correct: Flags, highest: float, seed: tuple[int, ...] = (0,)
    ) -> Sample:
        """Rank the rows; `highest` is the largest score there can be, log K for entropy."""
        return cls(scores, correct, Ranking.from_scores(scores, correct), highest, seed)

    def threshold(self, accepted: int) -> float | None:
        """What accepts the first `accepted` rows and no more."""
        return self.ranking.largest_threshold_accepting_exactly(accepted) if accepted else None


Choose = Callable[[Sample, float, float], float | None]


@dataclass(frozen=True)
class Rule:
    """A rule by the name that tables give it; `needs` is a module that must be installed."""

    title: str
    choose: Choose
    valid: bool = True
    needs: str | None = None

    @property
    def available(self) -> bool:
        """Whether it can run here."""
        return self.needs is None or find_spec(self.needs) is not None


def certified(sample: Sample, beta: float, delta: float) -> float | None:
    """Ours: `metacal.MinAccuracy`."""
    rank = find_last_passed_rank(sample.ranking, beta, delta)
    return sample.ranking.largest_threshold_after_passing_rank(rank) if rank else None


def sgr(sample: Sample, beta: float, delta: float) -> float | None:
    """Selection with guaranteed risk (Geifman & El-Yaniv, NeurIPS 2017, Algorithm 2).

    A binary search over the ranks in ceil(log2 n) steps, each an exact binomial bound at delta /
    ceil(log2 n). The last rank that passed is taken (the algorithm as printed returns the last one
    it looked at).
    """
    ranking = sample.ranking
    steps = max(1, math.ceil(math.log2(ranking.n_rows)))
    low, high, best = 1, ranking.n_rows, 0
    for _ in range(steps):
        middle = (low + high + 1) // 2
        index = ranking.find_tie_block(middle)
        if _p_values(ranking, np.array([index]), beta)[0] <= delta / steps:
            best, low = max(best, int(ranking.tie_block_end_ranks[index])), middle
        else:
            high = middle
    return sample.threshold(best)


def quantile_sequence(sample: Sample, beta: float, delta: float) -> float | None:
    """Learn-then-Test (Angelopoulos et al. 2021), fixed sequence over the percentiles of the
    scores, from below.

    It begins at the first percentile that could pass: with fewer rows not even a faultless one
    does.
    """
    at = _percentiles(sample.ranking)
    at = at[sample.ranking.tie_block_end_ranks[at] >= bounds.error_free_rows_needed(beta, delta)]
    return _sequence(sample, at, beta, delta)


def quantile_bonferroni(sample: Sample, beta: float, delta: float) -> float | None:
    """Learn-then-Test with Bonferroni's correction over the percentiles of the scores."""
    return _bonferroni(sample, _percentiles(sample.ranking), beta, delta)


def even_sequence(sample: Sample, beta: float, delta: float) -> float | None:
    """Learn-then-Test, fixed sequence over evenly spaced thresholds, from the strictest."""
    passes = _even_p_values(sample, beta) <= delta
    return _even_threshold(sample, int(np.argmin(np.append(passes, False))))


def even_bonferroni(sample: Sample, beta: float, delta: float) -> float | None:
    """Learn-then-Test with Bonferroni's correction over evenly spaced thresholds."""
    passes = np.flatnonzero(_even_p_values(sample, beta) <= delta / GRID)
    return _even_threshold(sample, int(passes[-1]) + 1 if len(passes) else 0)


def plug_in(sample: Sample, beta: float, delta: float) -> float | None:
    """The largest threshold whose accuracy on the calibration rows is at least beta, as if that
    were the truth.
    """
    ranking = sample.ranking
    good = np.flatnonzero(
        ranking.cumulative_errors <= (1.0 - beta) * ranking.tie_block_end_ranks + 1e-9
    )
    return sample.threshold(int(ranking.tie_block_end_ranks[good[-1]]) if len(good) else 0)


def papers_rule(sample: Sample, beta: float, delta: float) -> float | None:
    """Algorithm 2 of Ma & Blaschko (2021), on a tenth of the rows, at most 500."""
    rule = paper.MinCoverageAccuracy(beta, random_state=list(sample.seed))
    chosen, _ = rule.split_rows(sample.correct)
    try:
        return rule.certify(sample.scores[chosen], sample.correct[chosen]).threshold
    except InfeasibleTargetError:
        return None


RULES = {
    "certified": Rule("metacal", certified),
    "sgr": Rule("SGR", sgr),
    "ltt-sequence": Rule("LTT, sequence, percentiles", quantile_sequence),
    "ltt-bonferroni": Rule("LTT, Bonferroni, percentiles", quantile_bonferroni),
    "ltt-sequence-even": Rule("LTT, sequence, even grid", even_sequence),
    "ltt-bonferroni-even": Rule("LTT, Bonferroni, even grid", even_bonferroni),
    "mapie": Rule("MAPIE, default", selective_mapie.default, needs="mapie"),
    "mapie-sequence": Rule("MAPIE, sequence", selective_mapie.sequence, needs="mapie"),
    "mapie-starts": Rule("MAPIE, multi-start", selective_mapie.multi_start, needs="mapie"),
    "mapie-split": Rule("MAPIE, split sequence", selective_mapie.split_sequence, needs="mapie"),
    "mapie-multi": Rule("MAPIE, multi-class", selective_mapie.multi_class, needs="mapie"),
    "plug-in": Rule("plug-in", plug_in, valid=False),
    "paper": Rule("the paper's", papers_rule, valid=False),
}


def parse_rules(text: str) -> list[str]:
    """The names in a list with commas; "all" means every one that can run here, "own" those that
    need no package.

    Examples
    --------
    >>> parse_rules("sgr,certified")
    ['certified', 'sgr']
    """
    if text == "all":
        return [name for name, rule in RULES.items() if rule.available]
    if text == "own":
        return [name for name, rule in RULES.items() if rule.needs is None]
    wanted = [name.strip().lower() for name in text.split(",")]
    for name in wanted:
        if name not in RULES:
            raise InputError(
                f"there is no rule {name!r}; there are {', '.join(RULES)}, own or all."
            )
        if not RULES[name].available:
            raise InputError(
                f"the rule {name!r} needs the package {RULES[name].needs}, which is not installed."
            )
    return [name for name in RULES if name in wanted]


def _p_values(ranking: Ranking, at: NDArray[np.intp], beta: float) -> NDArray[np.float64]:
    return np.asarray(
        bounds.binomial_p_value(
            ranking.cumulative_errors[at], ranking.tie_block_end_ranks[at], 1.0 - beta
        )
    )


def _percentiles(ranking: Ranking) -> NDArray[np.intp]:
    """Where the ranks n/100, 2n/100, … n end a block of ties."""
    ranks = np.ceil(ranking.n_rows * np.arange(1, GRID + 1) / GRID).astype(np.intp)
    return np.searchsorted(ranking.tie_block_end_ranks, ranks)


def _sequence(sample: Sample, at: NDArray[np.intp], beta: float, delta: float) -> float | None:
    passes = _p_values(sample.ranking, at, beta) <= delta
    last = int(np.argmin(np.append(passes, False))) - 1
    return sample.threshold(int(sample.ranking.tie_block_end_ranks[at[last]]) if last >= 0 else 0)


def _bonferroni(sample: Sample, at: NDArray[np.intp], beta: float, delta: float) -> float | None:
    passes = np.flatnonzero(_p_values(sample.ranking, at, beta) <= delta / len(at))
    return sample.threshold(
        int(sample.ranking.tie_block_end_ranks[at[passes[-1]]]) if len(passes) else 0
    )


def _even_grid(sample: Sample) -> NDArray[np.float64]:
    """highest/100, 2 highest/100, …; the last accepts everything."""
    return np.append(sample.highest * np.arange(1, GRID) / GRID, math.inf)


def _even_p_values(sample: Sample, beta: float) -> NDArray[np.float64]:
    """Of the rows at or below each threshold of the grid; 1 where there are none."""
    ranking = sample.ranking
    blocks = np.searchsorted(ranking.tie_block_scores, _even_grid(sample), side="right")
    rows, errors = (
        np.append(0, ranking.tie_block_end_ranks)[blocks],
        np.append(0, ranking.cumulative_errors)[blocks],
    )
    tested = np.asarray(bounds.binomial_p_value(errors, np.maximum(rows, 1), 1.0 - beta))
    return np.where(rows > 0, tested, 1.0)


def _even_threshold(sample: Sample, count: int) -> float | None:
    return float(_even_grid(sample)[count - 1]) if count else None
