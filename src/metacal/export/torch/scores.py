# mypy: allow-subclassing-any, allow-untyped-calls
"""The ranking scores as modules: a table of logits in, one number per row out, higher = less
sure.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metacal.errors import InputError
from metacal.export.torch.maps import Fixed, beside
from metacal.formulas import rowwise
from metacal.formulas.logits import read_masks
from metacal.formulas.torch import TORCH
from metacal.scores import NAMED, Score, name_of
from metacal.scores.learned import FARTHEST, LARGEST_GAP, Ranker
from metacal.scores.registry import LEARNED


class NamedScore(Fixed):
    """One of the scores that have a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.formula, self.reads_masks = NAMED[name].formula_function(), NAMED[name].reads_masks

    def forward(self, table: Tensor) -> Tensor:
        """One number per row."""
        return self.formula(TORCH, read_masks(TORCH, table) if self.reads_masks else table)[:, 0]

    def extra_repr(self) -> str:
        """The name."""
        return self.name


class RankerScore(Fixed):
    """A learned score: the standardised features of `metacal.scores.learned` · coefficients."""

    def __init__(self, ranker: Ranker) -> None:
        super().__init__()
        self.n_top = min(ranker.n_top, ranker.n_classes_)
        self.keep(means=ranker.means_, scales=ranker.scales_, coefficients=ranker.coefficients_)

    def forward(self, table: Tensor) -> Tensor:
        """Of entropy, doubt and its logarithm, gaps to the next logits, largest logit, log Σ e^x: a
        number per row.
        """
        leading = torch.topk(table, self.n_top, dim=1).values
        gaps = torch.clamp(leading[:, 1:] - leading[:, :1], min=-LARGEST_GAP)
        entropy, unsure = rowwise.entropy(TORCH, table), rowwise.doubt(TORCH, table)
        log_unsure = torch.log(torch.clamp(unsure, min=float(np.exp(-LARGEST_GAP))))
        table = torch.cat(
            [entropy, unsure, log_unsure, gaps, leading[:, :1], -rowwise.free_energy(TORCH, table)],
            dim=1,
        )
        standard = (table - beside(self.means, table)) / beside(self.scales, table)
        features = torch.clamp(standard, min=-FARTHEST, max=FARTHEST)
        return (features * beside(self.coefficients, features)).sum(dim=1)


def score_module(score: str | Score) -> Fixed:
    """The module that computes a score: one with a name, or one of metacal's fitted rankers.

    Examples
    --------
    >>> score_module("margin")(torch.tensor([[3.0, 1.0, 0.0]]))
    tensor([-2.])
    >>> score_module(len)
    Traceback (most recent call last):
    metacal.errors.InputError: the score 'len' is code of your own and cannot be exported; use one of 'entropy', ...
    """
    if isinstance(score, str) and score in NAMED:
        return NamedScore(score)
    if isinstance(score, Ranker):
        return RankerScore(score)
    names = ", ".join(map(repr, NAMED))
    raise InputError(
        f"the score {name_of(score)!r} is code of your own and cannot be exported; use one of"
        f" {names}, or a fitted {', '.join(LEARNED)}."
    )
