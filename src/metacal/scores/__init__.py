"""Ranking scores: the uncertainty of the classifier about each row.

Names are imported on first use, because `metacal --help` reads the registry of scores and must
not load NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.lazy import make_lazy_attributes

if TYPE_CHECKING:
    from metacal.scores import learned as learned
    from metacal.scores import named as named
    from metacal.scores import registry as registry
    from metacal.scores.named import Score as Score
    from metacal.scores.named import ScoreAndCorrectness as ScoreAndCorrectness
    from metacal.scores.named import compute_score_and_correctness as compute_score_and_correctness
    from metacal.scores.named import compute_score_and_predictions as compute_score_and_predictions
    from metacal.scores.named import get_rounding_grid as get_rounding_grid
    from metacal.scores.named import get_score_name as get_score_name
    from metacal.scores.named import needs_logits as needs_logits
    from metacal.scores.named import resolve_score as resolve_score
    from metacal.scores.named import score_and_validate_rows as score_and_validate_rows
    from metacal.scores.named import score_rows as score_rows
    from metacal.scores.registry import NAMED as NAMED
    from metacal.scores.registry import NamedScore as NamedScore
    from metacal.scores.registry import register_score as register_score
else:
    # The branch is hidden from type checkers, so that they report a misspelt name.
    __getattr__, _ = make_lazy_attributes(__name__)
