"""Builders and allowed combinations of the promises of the command line.

`promise_option` makes the field of such an option. `metacal.cli.promise_options` has the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metacal.cli.promise_options import PromiseOptions
    from metacal.promises.promise import Promise


class Combination(Enum):
    """Set of promises that may be given together. Any other promise must be given alone."""

    ACCURACY_AND_MISCOVERAGE = "accuracy and miscoverage"
    TWO_CLASSES = "promises about the positive or the negative of two classes"


@dataclass(frozen=True)
class PromiseInputs:
    """Inputs of a promise besides its command-line options.

    Attributes
    ----------
    seed : int or None
        Seed of the split of the paper's rules and of the order of bets. None derives it from the
        rows.
    classes : sequence or None
        Names of the logit columns, if they have any.
    positive : object
        Positive one of two classes. None means the second class.
    """

    seed: int | None
    classes: Sequence[Any] | None
    positive: Any


#: Function that builds a promise from the module `metacal`, the options and the inputs.
#: It receives the module, because importing it here would make `metacal --help` slow.
BuildFunction = Callable[[Any, "PromiseOptions", PromiseInputs], "Promise"]


@dataclass(frozen=True)
class PromiseSpec:
    """Promise that an option describes. `promise_option` stores it in a dataclass field."""

    build: BuildFunction
    combination: Combination | None


def promise_option(
    option_field: Any,
    build: BuildFunction,
    combination: Combination | None = None,
) -> Any:
    """Return the field of an option that describes a promise.

    Parameters
    ----------
    option_field : dataclasses.Field
        Field of the option, made with `option` or a function that calls it.
    build : callable
        Builds the promise from the module `metacal`, the `PromiseOptions` and the `PromiseInputs`.
        If two options share this function, they describe one promise together.
    combination : Combination or None, default=None
        Promises with which this one may be given together.

    Returns
    -------
    dataclasses.Field
    """
    spec = PromiseSpec(build=build, combination=combination)
    option_spec = replace(option_field.metadata["option"], describes_promise=True)
    return field(default=option_field.default, metadata={"option": option_spec, "promise": spec})
