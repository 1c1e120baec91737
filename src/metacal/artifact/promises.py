"""The promises that can be saved: a new one is one entry here, and brings its own `contradiction(certificate)`."""

from __future__ import annotations

from metacal.promises import accuracy, after_looking, both, miscoverage, paper

#: type -> the constraint.
CONSTRAINTS: dict[str, type] = {
    "MaxMiscoverage": miscoverage.MaxMiscoverage,
    "MinCoverageAccuracy": accuracy.MinCoverageAccuracy,
    "Both": both.Both,
    "AfterLooking": after_looking.AfterLooking,
    "paper.MaxMiscoverage": paper.MaxMiscoverage,
    "paper.MinCoverageAccuracy": paper.MinCoverageAccuracy,
}
