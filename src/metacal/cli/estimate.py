"""What evaluate says where there are no labels: an estimate from confidence, called one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal.cli.printing import echo, say_json, wrapped
from metacal.errors import warn_caller

if TYPE_CHECKING:
    from metacal.gate import Gate, ScoredGate


def say_estimate(
    gate: Gate | ScoredGate, X: Any, groups: Any, file: str, artifact: str, level: float, as_json: bool
) -> None:
    """Print how many of the accepted rows are right by their confidence alone."""
    from metacal.estimators.estimate import estimate_accuracy

    warn_caller(
        f"{file}: there are no labels here, so nothing is measured, only estimated. If there are some, name them with "
        "--label-key (--correct-key for scores) or give a file of them with --labels."
    )
    found = estimate_accuracy(gate, X, level=level, groups=groups)
    if as_json:
        say_json({"file": file, "artifact": artifact, "estimate": found.to_dict()})
        return
    echo(wrapped(str(found), hang=0))
