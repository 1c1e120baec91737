"""Candidates of a stack, and how they are fitted.

A *member* is a calibration method with its options. It is fitted to the logits or, if it has
an *input member*, to the log-probabilities that the input member returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metacal.errors import InputError
from metacal.formulas import Codes
from metacal.maps.affine import fit_dirichlet_path, fit_structured_path
from metacal.maps.composed import (
    ComposedMap,
    compute_log_probability_rows,
    ensure_min_uniform_component,
)
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import Map
from metacal.maps.methods import METHODS
from metacal.rows import Rows

#: Largest number of table entries to which a Gaussian process is fitted, because it is slow.
_MAX_GAUSSIAN_PROCESS_ENTRIES = 1 << 18
#: Number of rows to which a Gaussian process is fitted even if they have more entries.
_MIN_GAUSSIAN_PROCESS_ROWS = 2_000
#: Possible decrease of the mean loss at which the fit of a final penalised map stops.
_TOLERANCE = 1e-8
#: Possible decrease of the mean loss at which the fit of a map for comparison stops.
_COMPARISON_TOLERANCE = 1e-5
#: Functions that fit a method at several penalty strengths, by the name of the method.
_FIT_PATH_FUNCTIONS: dict[str, Callable[..., Mapping[float, Map]]] = {
    "structured": fit_structured_path,
    "dirichlet": fit_dirichlet_path,
}
#: Methods with parameters for each class, which can change predictions.
_CLASSWISE_METHODS = ("structured", "vector", "matrix", "dirichlet")


@dataclass(frozen=True)
class Member:
    """Candidate of a stack: a method with its options.

    Attributes
    ----------
    method : str
        Name of the method.

    options : mapping
        Options of the method.

    input_member : str or None
        Name of the member whose log-probabilities replace the logits.

    handicap : float
        Gain on the held-out rows, in nats, that makes the member as good as one without a
        handicap. For a method with parameters for each of K classes, it is multiplied by √K.
        The more flexible a member, the more of its apparent gain is chance.

    is_near_temperature : bool
        Whether the member differs little from temperature scaling for any data.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    input_member: str | None = None
    handicap: float = 0.0
    is_near_temperature: bool = False

    @property
    def keeps_predictions(self) -> bool:
        """Whether the method has no per-class parameters that change predictions."""
        return self.method not in _CLASSWISE_METHODS

    def compute_handicap(self, n_classes: int) -> float:
        """Compute the handicap in nats for a number of classes."""
        if self.keeps_predictions:
            return self.handicap
        return self.handicap * n_classes**0.5


_UNIFORM = "uniform-temperature"
_GAUSSIAN_PROCESS = "uniform+gaussian-process"
#: Members of the default stack by name, with fixed strengths and handicaps (see docs/quality.md).
MEMBERS: dict[str, Member] = {
    "temperature": Member("temperature", is_near_temperature=True),
    _UNIFORM: Member("uniform-temperature", is_near_temperature=True),
    "composed": Member("composed", handicap=0.5),
    "local-temperature": Member("local-temperature", handicap=1.0),
    _GAUSSIAN_PROCESS: Member("gaussian-process", input_member=_UNIFORM, handicap=1.0),
    "irm": Member("irm", handicap=3.0),
    "process+intercepts 0.1": Member(
        "vector",
        {"regularisation": 100.0, "intercept_regularisation": 0.1},
        input_member=_GAUSSIAN_PROCESS,
        handicap=0.5,
    ),
    "process+structured 1": Member(
        "structured",
        {"regularisation": 1.0},
        input_member=_GAUSSIAN_PROCESS,
        handicap=0.15,
        is_near_temperature=True,
    ),
    "process+structured 0.1": Member(
        "structured", {"regularisation": 0.1}, input_member=_GAUSSIAN_PROCESS, handicap=0.75
    ),
    "process+structured 0.03": Member(
        "structured", {"regularisation": 0.03}, input_member=_GAUSSIAN_PROCESS, handicap=1.0
    ),
    "process+dirichlet 1": Member(
        "dirichlet", {"regularisation": 1.0}, input_member=_GAUSSIAN_PROCESS, handicap=0.5
    ),
    "process+dirichlet 0.1": Member(
        "dirichlet", {"regularisation": 0.1}, input_member=_GAUSSIAN_PROCESS, handicap=1.25
    ),
    "process+dirichlet 0.01": Member(
        "dirichlet", {"regularisation": 0.01}, input_member=_GAUSSIAN_PROCESS, handicap=2.0
    ),
    "monotone": Member("monotone", is_near_temperature=True),
    "beta": Member("beta", handicap=1.0),
    "isotonic": Member("isotonic", handicap=3.0),
}
#: Default members for two classes, all of them increasing curves.
_MEMBERS_FOR_TWO_CLASSES = ("monotone", "beta", "isotonic")
#: Largest number of classes for which the K² coefficients of a full matrix are affordable.
_MAX_CLASSES_FOR_MATRIX = 300
#: Members with a full matrix, which are used if there are few classes.
_MEMBERS_ONLY_FOR_FEW_CLASSES = (
    "process+dirichlet 1",
    "process+dirichlet 0.1",
    "process+dirichlet 0.01",
)
#: Members with a scale per class, which are used if there are many classes.
_MEMBERS_ONLY_FOR_MANY_CLASSES = ("process+structured 0.1", "process+structured 0.03")


def get_default_members(n_classes: int) -> list[str]:
    """Return the names of the default stack members for a number of classes.

    Examples
    --------
    >>> sorted(set(get_default_members(10)) - set(get_default_members(1000)))
    ['process+dirichlet 0.01', 'process+dirichlet 0.1', 'process+dirichlet 1']
    >>> sorted(set(get_default_members(1000)) - set(get_default_members(10))), get_default_members(2)
    (['process+structured 0.03', 'process+structured 0.1'], ['monotone', 'beta', 'isotonic'])
    """
    if n_classes == 2:
        return list(_MEMBERS_FOR_TWO_CLASSES)
    excluded_names = set(_MEMBERS_FOR_TWO_CLASSES)
    if n_classes <= _MAX_CLASSES_FOR_MATRIX:
        excluded_names.update(_MEMBERS_ONLY_FOR_MANY_CLASSES)
    else:
        excluded_names.update(_MEMBERS_ONLY_FOR_FEW_CLASSES)
    return [name for name in MEMBERS if name not in excluded_names]


def fit_members(
    names: Sequence[str],
    rows: Rows,
    labels: Codes,
    weights: Weights,
    *,
    for_comparison: bool = False,
) -> dict[str, Map]:
    """Fit the stack members with the given names.

    An input member is fitted once, even if several members share it. Several penalty strengths
    of one method are fitted together.

    Parameters
    ----------
    names : sequence of str
        Names of `MEMBERS`, or of methods with their default options.

    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    for_comparison : bool, default=False
        Whether the maps are only compared, so that a larger tolerance suffices.

    Returns
    -------
    dict
        Fitted maps by name.
    """
    tolerance = _COMPARISON_TOLERANCE if for_comparison else _TOLERANCE
    fitter = _MemberFitter(
        sample=LabelledRows(rows, labels, weights),
        requested={name: _get_member(name) for name in names},
        tolerance=tolerance,
    )
    for name in names:
        fitter.fit_member(name)
    return {name: fitter.maps[name] for name in names}


@dataclass
class _MemberFitter:
    """Fitter of several members to the same rows, with the maps fitted so far.

    Attributes
    ----------
    sample : LabelledRows
        Rows with labels.

    requested : dict
        Members to fit, by name.

    tolerance : float
        Possible decrease of the mean loss at which the fit of a penalised map stops.

    maps : dict
        Maps fitted so far, by name.

    transformed_samples : dict
        Rows with the log-probabilities of an input member, by its name.
    """

    sample: LabelledRows
    requested: Mapping[str, Member]
    tolerance: float
    maps: dict[str, Map] = field(default_factory=dict)
    transformed_samples: dict[str, LabelledRows] = field(default_factory=dict)

    def fit_member(self, name: str) -> None:
        """Fit a member and its input member, unless they are fitted already."""
        if name in self.maps:
            return
        member = self.requested.get(name) or MEMBERS[name]
        if member.input_member is not None:
            self.fit_member(member.input_member)
        input_sample = self._transform_by_input_member(member)
        has_fixed_strength = "regularisation" in member.options
        if member.method in _FIT_PATH_FUNCTIONS and has_fixed_strength:
            maps_of_input = self._fit_all_strengths(name, member, input_sample)
        else:
            maps_of_input = {name: _fit_method(member, input_sample)}
        for fitted_name, map_of_input in maps_of_input.items():
            self.maps[fitted_name] = self._compose_with_input_map(member, map_of_input)

    def _transform_by_input_member(self, member: Member) -> LabelledRows:
        """Return the rows to which a member is fitted, transformed by its input member."""
        input_member = member.input_member
        if input_member is None:
            return self.sample
        if input_member not in self.transformed_samples:
            rows = compute_log_probability_rows(self.maps[input_member], self.sample.rows)
            self.transformed_samples[input_member] = replace(self.sample, rows=rows)
        return self.transformed_samples[input_member]

    def _fit_all_strengths(
        self, name: str, member: Member, input_sample: LabelledRows
    ) -> dict[str, Map]:
        """Fit a member and all requested members that differ only in their strength."""
        strength_by_name = {}
        candidate_members = {**self.requested, name: member}
        for other_name, other_member in candidate_members.items():
            has_same_method = other_member.method == member.method
            has_same_input = other_member.input_member == member.input_member
            has_fixed_strength = "regularisation" in other_member.options
            if has_same_method and has_same_input and has_fixed_strength:
                strength_by_name[other_name] = other_member.options["regularisation"]
        fit_path = _FIT_PATH_FUNCTIONS[member.method]
        map_by_strength = fit_path(input_sample, tuple(strength_by_name.values()), self.tolerance)
        map_by_name = {}
        for other_name, strength in strength_by_name.items():
            map_by_name[other_name] = map_by_strength[strength]
        return map_by_name

    def _compose_with_input_map(self, member: Member, fitted: Map) -> Map:
        """Compose a fitted map with the map of its input member."""
        if member.input_member is not None:
            return ComposedMap(self.maps[member.input_member], fitted)
        # New rows can contain outliers even if the training rows contain none.
        return ensure_min_uniform_component(fitted, len(self.sample.rows), self.sample.weights)


def _get_member(name: str) -> Member:
    """Return the member with a name, or the method of that name with default options."""
    if name in MEMBERS:
        return MEMBERS[name]
    if name not in METHODS:
        raise InputError(
            f"Unknown candidate {name!r}. The available candidates are"
            f" {', '.join(dict.fromkeys([*MEMBERS, *METHODS]))}."
        )
    return Member(name)


def _fit_method(member: Member, input_sample: LabelledRows) -> Map:
    """Fit the method of a member with its options."""
    fit = METHODS[member.method].get_fit_function()
    training_sample = _limit_rows(input_sample, member)
    fitted: Map = fit(
        training_sample.rows, training_sample.labels, training_sample.weights, **member.options
    )
    return fitted


def _limit_rows(sample: LabelledRows, member: Member) -> LabelledRows:
    """Return a subset of a large table for a Gaussian process, else all rows."""
    if member.method != "gaussian-process":
        return sample
    max_rows = max(
        _MIN_GAUSSIAN_PROCESS_ROWS, _MAX_GAUSSIAN_PROCESS_ENTRIES // sample.rows.n_classes
    )
    return sample.every_nth_row(max(1, len(sample.labels) // max_rows))
