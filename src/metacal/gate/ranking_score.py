"""Check of the ranking score that a gate on logits is fitted with."""

from __future__ import annotations

from metacal.errors import CombinationError
from metacal.scores import Score, needs_logits, resolve_score


def check_score(score: str | Score, input: str) -> None:
    """Raise InputError if a ranking score is unknown or does not suit the input.

    Parameters
    ----------
    score : str or callable
        Ranking score.
    input : "logits" or "probabilities"
        Content of the tables to be ranked.
    """
    resolve_score(score)
    if needs_logits(score) and input == "probabilities":
        raise CombinationError(
            f"The score {score!r} has the same value for every row of probabilities, so it cannot"
            " rank the rows. Use 'entropy', or pass logits."
        )
