"""Promises: from the columns (score, correct) to a threshold with its certificate."""

from metacal.promises.accuracy import MinCoverageAccuracy
from metacal.promises.after_looking import AfterLooking
from metacal.promises.both import Both
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.miscoverage import MaxMiscoverage
from metacal.promises.promise import Constraint
from metacal.promises.ranking import Ranking

__all__ = [
    "AfterLooking",
    "Both",
    "Certificate",
    "Constraint",
    "MaxMiscoverage",
    "MinCoverageAccuracy",
    "Ranking",
    "accepts",
]
