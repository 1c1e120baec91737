"""Metrics of probabilities and of the gate, with intervals. Pure NumPy and SciPy.

Calibration errors take (proba, labels), or (confidence, correct) where these columns are at hand. Each family's file
says in ``__all__`` what is public; what each metric is, its title, its range, who shows it, stands in the one registry,
`metacal.metrics.registry`.
"""

from metacal.metrics import calibration, proper, ranking, selective, streaming
from metacal.metrics.binning import ReliabilityCurve, equal_mass, equal_width
from metacal.metrics.calibration import *  # noqa: F403
from metacal.metrics.evaluation import Evaluation, evaluate
from metacal.metrics.intervals import Interval, clopper_pearson
from metacal.metrics.marginal import MarginalCheck, marginal_check
from metacal.metrics.proper import *  # noqa: F403
from metacal.metrics.ranking import *  # noqa: F403
from metacal.metrics.resampling import bootstrap, interval
from metacal.metrics.selective import *  # noqa: F403
from metacal.metrics.streaming import *  # noqa: F403
from metacal.metrics.toplabel import TopLabel, top_label

__all__ = [
    "Evaluation",
    "Interval",
    "MarginalCheck",
    "ReliabilityCurve",
    "TopLabel",
    "bootstrap",
    "clopper_pearson",
    "equal_mass",
    "equal_width",
    "evaluate",
    "interval",
    "marginal_check",
    "top_label",
]
__all__ += calibration.__all__
__all__ += proper.__all__
__all__ += ranking.__all__
__all__ += selective.__all__
__all__ += streaming.__all__
