"""Ranking scores h(x): how unsure the classifier is of each row. Higher means less sure."""

from metacal.scores.named import NAMED, Score, name_of, resolve, score_rows

__all__ = ["NAMED", "Score", "name_of", "resolve", "score_rows"]
