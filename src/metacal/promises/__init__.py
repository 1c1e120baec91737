"""Promises about accepted predictions, which calibration rows certify.

`metacal.promises.kinds` is the registry of the promises. A name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacal.lazy import make_lazy_attributes
from metacal.promises import kinds

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate as Certificate
    from metacal.certificates.certificate import accept_up_to_threshold as accept_up_to_threshold
    from metacal.certificates.quantities import register_quantity as register_quantity
    from metacal.certificates.quantity import Quantity as Quantity
    from metacal.certification.arriving import PartialLabels as Answers  # noqa: F401 public name
    from metacal.certification.passes import Passes as Passes
    from metacal.certification.ranking import Ranking as Ranking
    from metacal.certification.sample import Sample as Sample
    from metacal.promises.kinds import *  # noqa: F403 the promises
    from metacal.promises.promise import Promise as Promise
    from metacal.promises.sequential.monitor import PromiseMonitor as PromiseMonitor
    from metacal.promises.verification import Verification as Verification
else:
    __getattr__, __dir__ = make_lazy_attributes(__name__, kinds.find_promise_modules)
