"""Functions that build a promise from more than one option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metacal.cli.promise_specs import PromiseInputs

if TYPE_CHECKING:
    from metacal.cli.promise_options import PromiseOptions
    from metacal.promises.promise import Promise


def build_accuracy_promise(mc: Any, options: PromiseOptions, inputs: PromiseInputs) -> Promise:
    """Build the promise about selective accuracy, miscoverage, or both."""
    max_miscoverage = options.max_miscoverage
    min_accuracy = options.min_accuracy
    delta = options.delta
    if options.rule == "paper":
        if max_miscoverage is None:
            return mc.paper.MinCoverageAccuracy(min_accuracy, random_state=inputs.seed)
        return mc.paper.MaxMiscoverage(max_miscoverage, random_state=inputs.seed)
    if options.after_looking or options.at_threshold is not None:
        return mc.AfterLooking(
            alpha=max_miscoverage, beta=min_accuracy, delta=delta, threshold=options.at_threshold
        )
    if max_miscoverage is None:
        return mc.MinAccuracy(beta=min_accuracy, delta=delta)
    if min_accuracy is None:
        return mc.MaxMiscoverage(alpha=max_miscoverage, delta=delta)
    return mc.Both(alpha=max_miscoverage, beta=min_accuracy, delta=delta)


def build_min_npv(mc: Any, options: PromiseOptions, inputs: PromiseInputs) -> Promise:
    """Build the promise about the negative predictive value."""
    classes = [0, 1] if inputs.classes is None else inputs.classes
    # The negative predictive value is the precision of the negative class.
    negative_class = _other_class(inputs.positive, classes)
    return mc.MinPrecision(options.min_npv, positive=negative_class, delta=options.delta or 0.0)


def _other_class(positive: Any, classes: Sequence[Any]) -> Any:
    """Return the class that is not positive. The second class is positive by default."""
    if positive is None:
        return classes[0]
    return next((name for name in classes if name != positive), None)
