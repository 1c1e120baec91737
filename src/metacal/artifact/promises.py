"""The promises that can be saved: a new one is one entry here, and brings its own `contradiction(certificate)`."""

from __future__ import annotations

from metacal.promises import both, constraints, paper

#: type -> the constraint.
CONSTRAINTS: dict[str, type] = {
    "MaxMiscoverage": constraints.MaxMiscoverage,
    "MinCoverageAccuracy": constraints.MinCoverageAccuracy,
    "Both": both.Both,
    "AfterLooking": both.AfterLooking,
    "paper.MaxMiscoverage": paper.MaxMiscoverage,
    "paper.MinCoverageAccuracy": paper.MinCoverageAccuracy,
}
