"""Registry of the texts that describe certification rules, and common assumptions.

A certificate stores only the short name of its rule. The registry maps this name to a description
with its reference, and to the assumptions of the rule. The texts may be improved at any time without
a change of saved files. The module that implements a rule calls `register_rule`.
"""

from __future__ import annotations

from dataclasses import dataclass

from metacal.errors import InputError
from metacal.lazy import import_object

#: Common assumptions of certification rules.
SAME_SOURCE = (
    "new rows come from the same source as the calibration rows, which the classifier was not"
    " trained on"
)
ERROR_RATE_RISES_WITH_SCORE = "the chance of an error does not fall as the score rises"
ACCURACY_FALLS_WITH_SCORE = (
    "accuracy falls as the score rises: accepting more never makes the accepted rows more accurate"
)
#: Assumptions of a cascade.
SAME_SOURCE_OF_BOTH = (
    "new rows come from the same source as the calibration rows, which neither model was trained on"
)
DRAWN_FROM_POOL = (
    "the labelled rows were drawn at random from the pool, and the last model answers them"
)


@dataclass(frozen=True)
class Rule:
    """Description and assumptions of a certification rule.

    Attributes
    ----------
    description : str
        Description with the reference.
    assumptions : tuple of str
        Assumptions of the rule. The first one is about the source of new rows.
    score_value_description : str
        Description of the variant that tests values of the score instead of ranks.
    """

    description: str
    assumptions: tuple[str, ...]
    score_value_description: str = ""


#: Registered rules by name. A rule is registered when the module of its promise is imported.
RULES: dict[str, Rule] = {}


def register_rule(
    name: str, description: str, *assumptions: str, score_value_description: str = ""
) -> str:
    """Register the texts of a certification rule under its name, and return the name.

    Parameters
    ----------
    name : str
        Name of the rule in certificates and files.
    description : str
        Description with the reference.
    *assumptions : str
        Assumptions of the rule, the source of new rows first.
    score_value_description : str, default=""
        Description of the variant that tests values of the score. If empty, `description`.

    Returns
    -------
    str
        The name of the rule.

    Raises
    ------
    InputError
        If a rule with this name is registered already.

    Examples
    --------
    >>> from metacal.promises.paper import ALGORITHM_1
    >>> register_rule(ALGORITHM_1, "a rule of mine")
    Traceback (most recent call last):
    metacal.errors.InputError: A rule named 'paper-algorithm-1' is already registered. Choose another name.
    """
    if name in RULES:
        raise InputError(f"A rule named {name!r} is already registered. Choose another name.")
    RULES[name] = Rule(description, assumptions, score_value_description or description)
    return name


def find_rule(name: str) -> Rule:
    """Find a registered rule by its name.

    If the rule is missing, the modules of all promises are imported first.
    """
    if name not in RULES:
        # Rules are registered when the promise modules are imported.
        load_promise_classes = import_object("metacal.promises.kinds:load_promise_classes")
        load_promise_classes()
    if name not in RULES:
        raise InputError(
            f"Unknown rule {name!r}. The available rules are {', '.join(sorted(RULES))}."
        )
    return RULES[name]
