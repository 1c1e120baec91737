"""Candidates of a stack, and how they are fitted.

A *member* is a calibration method with its options. It is fitted to the logits, or *behind*
another member, to the log-probabilities of that member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metacal.errors import InputError
from metacal.formulas import Codes
from metacal.maps.affine import fit_dirichlet_path, fit_structured_path
from metacal.maps.composed import ComposedMap, raise_uniform_component, transform_rows
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import Map
from metacal.maps.methods import METHODS
from metacal.rows import Rows

#: Number of table entries, and smallest number of rows, from which a Gaussian process is fitted.
#: It has ten parameters and takes hundreds of passes; more data do not improve it.
_MAX_PROCESS_ENTRIES = 1 << 18
_MIN_PROCESS_ROWS = 2_000
#: Possible decrease of the mean loss at which the fit of a penalised map stops: for the final
#: map, and for maps that are only compared.
_TOLERANCE = 1e-8
_COMPARISON_TOLERANCE = 1e-5
#: Methods that are fitted at several strengths together.
_PATHS: dict[str, Callable[..., Mapping[float, Map]]] = {
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

    behind : str or None
        Name of the member whose log-probabilities replace the logits.

    handicap : float
        Gain on the held-out rows, in nats, that makes the member as good as one without a
        handicap. For a method with parameters for each of K classes, it is multiplied by √K.
        The more flexible a member, the more of its apparent gain is chance.

    near : bool
        Whether the member differs little from temperature scaling for any data.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    behind: str | None = None
    handicap: float = 0.0
    near: bool = False

    @property
    def keeps_predictions(self) -> bool:
        """Whether the method always or usually preserves every prediction."""
        return self.method not in _CLASSWISE_METHODS

    def nats(self, n_classes: int) -> float:
        """Compute the handicap for a number of classes."""
        if self.keeps_predictions:
            return self.handicap
        return self.handicap * n_classes**0.5


_UNIFORM = "uniform-temperature"
_PROCESS = "uniform+gaussian-process"
#: Members of the default stack. Strengths are fixed, because cross-validating them inside
#: cross-validation is slow and noisy. Members with parameters for each class are fitted behind
#: a Gaussian process: an error common to all classes is then corrected from all rows at once,
#: and these members are shrunk towards that correction. Handicaps increase with the flexibility
#: of a member. They were chosen on one split of each data set at 500 rows, see docs/quality.md.
MEMBERS: dict[str, Member] = {
    "temperature": Member("temperature", near=True),
    _UNIFORM: Member("uniform-temperature", near=True),
    "composed": Member("composed", handicap=0.5),
    "local-temperature": Member("local-temperature", handicap=1.0),
    _PROCESS: Member("gaussian-process", behind=_UNIFORM, handicap=1.0),
    "irm": Member("irm", handicap=3.0),
    "process+intercepts 0.1": Member(
        "vector",
        {"regularisation": 100.0, "intercept_regularisation": 0.1},
        behind=_PROCESS,
        handicap=0.5,
    ),
    "process+structured 1": Member(
        "structured", {"regularisation": 1.0}, behind=_PROCESS, handicap=0.15, near=True
    ),
    "process+structured 0.1": Member(
        "structured", {"regularisation": 0.1}, behind=_PROCESS, handicap=0.75
    ),
    "process+structured 0.03": Member(
        "structured", {"regularisation": 0.03}, behind=_PROCESS, handicap=1.0
    ),
    "process+dirichlet 1": Member(
        "dirichlet", {"regularisation": 1.0}, behind=_PROCESS, handicap=0.5
    ),
    "process+dirichlet 0.1": Member(
        "dirichlet", {"regularisation": 0.1}, behind=_PROCESS, handicap=1.25
    ),
    "process+dirichlet 0.01": Member(
        "dirichlet", {"regularisation": 0.01}, behind=_PROCESS, handicap=2.0
    ),
    "monotone": Member("monotone", near=True),
    "beta": Member("beta", handicap=1.0),
    "isotonic": Member("isotonic", handicap=3.0),
}
#: Members for two classes: increasing curves with an offset, so that their mixture is one too.
_TWO_CLASS_MEMBERS = ("monotone", "beta", "isotonic")
#: Number of classes above which the K² coefficients of a full matrix take minutes. A full matrix
#: is more flexible than a scale per class.
_MAX_CLASSES_FOR_MATRIX = 300
#: Members used instead of each other, for few and for many classes.
_FEW_CLASS_MEMBERS = ("process+dirichlet 1", "process+dirichlet 0.1", "process+dirichlet 0.01")
_MANY_CLASS_MEMBERS = ("process+structured 0.1", "process+structured 0.03")


def get_default_members(n_classes: int) -> list[str]:
    """Return the names of the default members for a number of classes.

    Examples
    --------
    >>> sorted(set(get_default_members(10)) - set(get_default_members(1000)))
    ['process+dirichlet 0.01', 'process+dirichlet 0.1', 'process+dirichlet 1']
    >>> sorted(set(get_default_members(1000)) - set(get_default_members(10))), get_default_members(2)
    (['process+structured 0.03', 'process+structured 0.1'], ['monotone', 'beta', 'isotonic'])
    """
    if n_classes == 2:
        return list(_TWO_CLASS_MEMBERS)
    excluded = set(_TWO_CLASS_MEMBERS)
    if n_classes <= _MAX_CLASSES_FOR_MATRIX:
        excluded.update(_MANY_CLASS_MEMBERS)
    else:
        excluded.update(_FEW_CLASS_MEMBERS)
    return [name for name in MEMBERS if name not in excluded]


def fit_members(
    names: Sequence[str], rows: Rows, labels: Codes, weights: Weights, *, rough: bool = False
) -> dict[str, Map]:
    """Fit the members with the given names.

    A member that others are fitted behind is fitted once. Several strengths of one method are
    fitted together.

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

    rough : bool, default=False
        Whether the maps are only compared, so that a lower accuracy suffices.

    Returns
    -------
    dict
        Fitted maps by name.
    """
    tolerance = _COMPARISON_TOLERANCE if rough else _TOLERANCE
    fitter = _MemberFitter(
        sample=LabelledRows(rows, labels, weights),
        requested={name: _find_member(name) for name in names},
        tolerance=tolerance,
    )
    for name in names:
        fitter.fit(name)
    return {name: fitter.maps[name] for name in names}


@dataclass
class _MemberFitter:
    """Fit of several members to the same rows.

    Attributes
    ----------
    sample : LabelledRows
        Rows with labels.

    requested : dict
        Members to fit, by name.

    tolerance : float
        Possible decrease of the mean loss at which the fit of a penalised map stops.

    maps : dict
        Maps that are fitted already, by name.

    transformed_samples : dict
        Rows with the log-probabilities of a member, by its name.
    """

    sample: LabelledRows
    requested: Mapping[str, Member]
    tolerance: float
    maps: dict[str, Map] = field(default_factory=dict)
    transformed_samples: dict[str, LabelledRows] = field(default_factory=dict)

    def fit(self, name: str) -> None:
        """Fit a member, after the members that it is behind, unless it is fitted already."""
        if name in self.maps:
            return
        member = self.requested.get(name) or MEMBERS[name]
        if member.behind is not None:
            self.fit(member.behind)
        input_sample = self._input_of(member)
        if member.method in _PATHS and member.options:
            new_maps = self._fit_path(name, member, input_sample)
        else:
            fit = METHODS[member.method].fit_function()
            training = _limit_rows(input_sample, member)
            fitted = fit(training.rows, training.labels, training.weights, **member.options)
            new_maps = {name: fitted}
        for new_name, fitted in new_maps.items():
            self.maps[new_name] = self._finish(member, fitted)

    def _input_of(self, member: Member) -> LabelledRows:
        """Return the rows to which a member is fitted."""
        behind = member.behind
        if behind is None:
            return self.sample
        if behind not in self.transformed_samples:
            rows = transform_rows(self.maps[behind], self.sample.rows)
            self.transformed_samples[behind] = replace(self.sample, rows=rows)
        return self.transformed_samples[behind]

    def _fit_path(self, name: str, member: Member, input_sample: LabelledRows) -> dict[str, Map]:
        """Fit all requested members that differ from this one only in their strength."""
        strengths = {}
        for other_name, other in {**self.requested, name: member}.items():
            is_same_method = (other.method, other.behind) == (member.method, member.behind)
            if is_same_method and other.options:
                strengths[other_name] = other.options["regularisation"]
        fit_path = _PATHS[member.method]
        path = fit_path(input_sample, tuple(strengths.values()), self.tolerance)
        return {other_name: path[strength] for other_name, strength in strengths.items()}

    def _finish(self, member: Member, fitted: Map) -> Map:
        """Compose a map with the one that it is behind."""
        if member.behind is not None:
            return ComposedMap(self.maps[member.behind], fitted)
        # A uniform component is at least one row's worth, because an outlier can occur even if
        # these rows contain none.
        return raise_uniform_component(fitted, self.sample.rows, self.sample.weights)


def _find_member(name: str) -> Member:
    """Return the member of this name, or the method with its default options."""
    if name in MEMBERS:
        return MEMBERS[name]
    if name not in METHODS:
        raise InputError(
            f"unknown candidate {name!r}; there are"
            f" {', '.join(dict.fromkeys([*MEMBERS, *METHODS]))}."
        )
    return Member(name)


def _limit_rows(sample: LabelledRows, member: Member) -> LabelledRows:
    """Thin a large table for a Gaussian process; other members use all rows."""
    if member.method != "gaussian-process":
        return sample
    max_rows = max(_MIN_PROCESS_ROWS, _MAX_PROCESS_ENTRIES // sample.rows.n_classes)
    return sample.every(max(1, len(sample.labels) // max_rows))
