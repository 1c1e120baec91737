"""Ranking scores h(x): how unsure the classifier is of each row. Higher means less sure."""

from metacal.scores.named import NAMED, Score, grid_of, name_of, resolve, score_rows, unrounded

__all__ = ["NAMED", "Score", "grid_of", "name_of", "resolve", "score_rows", "unrounded"]
