"""compare_scores: which of several scores ranks best, what each would certify, and all of them
fused into one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metacal import display
from metacal.errors import InfeasibleTargetError, InputError, MetacalWarning
from metacal.gate import fit_scored
from metacal.promises.promise import Promise
from metacal.promises.rules.accuracy import MinAccuracy
from metacal.rows.draws import generator
from metacal.rows.score_columns import correct_column, score_column

#: The name of the fused score, and the share of the rows that teach it.
FUSED, _OWN_ROWS = "fused", 1 / 3
#: Scores of which a higher one is doubtful, unless the caller says otherwise.
DOUBTFUL = ("perplexity", "loss", "entropy")


@dataclass(frozen=True)
class ScoreRow:
    """One score: how well it tells right from wrong, and the share of rows that the promise would
    let it accept.
    """

    name: str
    auroc: float
    coverage: float
    n_rows: int


@dataclass(frozen=True)
class ScoreComparison:
    """Scores on the same rows, the one that would accept most first; `stack` gives the fused score
    of new columns.
    """

    rows: tuple[ScoreRow, ...]
    promise: Promise
    stack: Any

    def fused(self, columns: Mapping[str, Any]) -> Any:
        """The fused score of new rows: the probability of being right by a logistic curve of all
        scores.
        """
        table = np.stack([score_column(columns[name]) for name in self.stack.feature_names], axis=1)
        found = np.full(len(table), np.nan)
        there = ~np.isnan(table).any(axis=1)
        if there.any():
            found[there] = self.stack.predict_proba(table[there])[:, 1]
        return found

    def __str__(self) -> str:
        lines = [
            f"{row.name[:24]:<24} {row.auroc:.3f}  {row.coverage:.3f} of the rows"
            for row in self.rows
        ]
        below = f"under {self.promise!r}; certify the one you choose on other rows."
        return "\n".join([f"{'score':<24} AUROC  would accept", *lines, below])

    __repr__ = __str__

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each score."""
        return display.frame([asdict(row) for row in self.rows])


def compare_scores(
    columns: Mapping[str, Any],
    correct: Any,
    promise: Promise | None = None,
    *,
    doubtful: tuple[str, ...] = DOUBTFUL,
    random_state: int = 0,
) -> ScoreComparison:
    """Compare scores by name, each a number per row, and fuse them: which one is worth a gate?

    A third of the rows, drawn at random, teach the fused score, a logistic curve of all of them;
    the others measure every score alike. Whoever takes the best of several has looked at these
    rows: fit the gate on others.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> skill = rng.normal(size=3000)
    >>> columns = {name: skill + rng.normal(size=3000) for name in ("mean_logprob", "agreement")}
    >>> found = compare_scores(columns, rng.random(3000) < 1 / (1 + np.exp(-2 * skill)), MinAccuracy(0.8))
    >>> found.rows[0].name, found.rows[0].auroc > 0.75
    ('fused', True)
    """
    asked = MinAccuracy(0.9) if promise is None else promise
    right = correct_column(correct)
    scores = {name: score_column(column).astype(np.float64) for name, column in columns.items()}
    if not scores or any(len(column) != len(right) for column in scores.values()):
        raise InputError(f"give a number for each of {len(right)} rows and each score, by name.")
    if right.all() or not right.any():
        raise InputError("all rows are alike right or wrong; a comparison needs some of both.")
    table = np.stack([-one if name in doubtful else one for name, one in scores.items()], axis=1)
    own = np.zeros(len(right), dtype=bool)
    own[generator(random_state).permutation(len(right))[: math.ceil(_OWN_ROWS * len(right))]] = True
    stack = make_pipeline(StandardScaler(), LogisticRegression())
    whole = ~np.isnan(table).any(axis=1)
    stack.fit(np.stack(list(scores.values()), axis=1)[own & whole], right[own & whole])
    stack.feature_names = tuple(scores)
    found = ScoreComparison((), asked, stack)
    named = {name: column[~own] for name, column in zip(scores, table.T, strict=True)}
    named[FUSED] = found.fused(scores)[~own]
    rows = [_measured(name, column, right[~own], asked) for name, column in named.items()]
    return ScoreComparison(
        tuple(sorted(rows, key=lambda row: (-row.coverage, -row.auroc))), asked, stack
    )


def _measured(name: str, column: Any, right: Any, promise: Promise) -> ScoreRow:
    there = ~np.isnan(column)
    mixed = len(np.unique(right[there])) == 2
    auroc = float(roc_auc_score(right[there], column[there])) if mixed else math.nan
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MetacalWarning)
            certificate = fit_scored(column, right, promise).certificate
        assert certificate is not None
        coverage = certificate.coverage * float(there.mean())
    except (InfeasibleTargetError, InputError):
        coverage = 0.0
    return ScoreRow(name, auroc, coverage, int(there.sum()))
