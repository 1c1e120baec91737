# mypy: allow-subclassing-any, allow-untyped-calls
"""Ranking scores as torch modules.

A module returns one number per row of logits. A higher score denotes higher uncertainty.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metacal.errors import ExportError
from metacal.export.torch.maps import FixedDtypeModule, match_table
from metacal.formulas import rowwise
from metacal.formulas.logits import replace_finite_masks_formula
from metacal.formulas.torch import TORCH
from metacal.scores import NAMED, Score, get_score_name
from metacal.scores.learned import MAX_LOGIT_GAP, MAX_STANDARDISED_FEATURE, Ranker
from metacal.scores.registry import LEARNED_SCORE_NAMES


class NamedScore(FixedDtypeModule):
    """Module of a named score.

    Parameters
    ----------
    name : str
        Name of the score.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.formula = NAMED[name].formula_function()
        self.replaces_finite_masks = NAMED[name].replaces_finite_masks

    def forward(self, table: Tensor) -> Tensor:
        """Compute the score of each row of logits."""
        if self.replaces_finite_masks:
            table = replace_finite_masks_formula(TORCH, table)
        return self.formula(TORCH, table)[:, 0]

    def extra_repr(self) -> str:
        """Return the name of the score."""
        return self.name


class RankerScore(FixedDtypeModule):
    """Module of a learned score: a linear function of the features in `scores.learned`.

    Parameters
    ----------
    ranker : Ranker
        Fitted ranker.
    """

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.n_top = min(ranker.n_top, ranker.n_classes_)
        self.register_numbers(
            means=ranker.means_, scales=ranker.scales_, coefficients=ranker.coefficients_
        )

    def forward(self, table: Tensor) -> Tensor:
        """Compute the score of each row of logits."""
        features = self._compute_features(table)
        means = match_table(self.means, features)
        scales = match_table(self.scales, features)
        standardized_features = torch.clamp(
            (features - means) / scales,
            min=-MAX_STANDARDISED_FEATURE,
            max=MAX_STANDARDISED_FEATURE,
        )
        coefficients = match_table(self.coefficients, standardized_features)
        return (standardized_features * coefficients).sum(dim=1)

    def _compute_features(self, table: Tensor) -> Tensor:
        """Compute the features of each row of logits.

        They are the entropy, 1 - max p and its logarithm, the differences of the next logits to
        the largest, the largest logit, and log Σ e^x.
        """
        top_logits = torch.topk(table, self.n_top, dim=1).values
        largest_logit = top_logits[:, :1]
        gaps = torch.clamp(top_logits[:, 1:] - largest_logit, min=-MAX_LOGIT_GAP)
        uncertainty = rowwise.one_minus_max_probability(TORCH, table)
        min_uncertainty = float(np.exp(-MAX_LOGIT_GAP))
        log_uncertainty = torch.log(torch.clamp(uncertainty, min=min_uncertainty))
        features = [
            rowwise.entropy(TORCH, table),
            uncertainty,
            log_uncertainty,
            gaps,
            largest_logit,
            -rowwise.free_energy(TORCH, table),
        ]
        return torch.cat(features, dim=1)


def score_module(score: str | Score) -> FixedDtypeModule:
    """Build the module of a score.

    Parameters
    ----------
    score : str or Ranker
        Name of a score, or a fitted ranker.

    Returns
    -------
    FixedDtypeModule

    Raises
    ------
    InputError
        If the score is another function.

    Examples
    --------
    >>> score_module("margin")(torch.tensor([[3.0, 1.0, 0.0]]))
    tensor([-2.])
    >>> score_module(len)
    Traceback (most recent call last):
    metacal.errors.ExportError: The score 'len' is a Python function, so it cannot be exported. ...
    """
    if isinstance(score, str) and score in NAMED:
        return NamedScore(score)
    if isinstance(score, Ranker):
        return RankerScore(score)
    score_names = ", ".join(map(repr, NAMED))
    raise ExportError(
        f"The score {get_score_name(score)!r} is a Python function, so it cannot be exported. Use"
        f" one of {score_names}, or a fitted {', '.join(LEARNED_SCORE_NAMES)}."
    )
