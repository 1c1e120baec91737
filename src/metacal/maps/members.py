"""What a stack mixes by default, and how the members are fitted: each alone, or behind another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from metacal.errors import InputError
from metacal.formulas import Codes
from metacal.maps.affine import dirichlet_path, structured_path
from metacal.maps.composed import ComposedMap, as_front, seen_through
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import Map
from metacal.maps.methods import METHODS
from metacal.rows import Rows

#: A Gaussian process, ten numbers at hundreds of passes, learns all it can from so many entries or
#: rows.
_MOST_ELEMENTS, _FEWEST_ROWS = 1 << 18, 2_000
#: How much the mean loss of a penalised map may still fall: of what is kept, and of what is only
#: weighed.
_TOLERANCE, _ROUGH = 1e-8, 1e-5
#: Methods of which several strengths are fitted together.
_PATHS: dict[str, Callable[..., Mapping[float, Map]]] = {
    "structured": structured_path,
    "dirichlet": dirichlet_path,
}


class Member(NamedTuple):
    """A method with its options; `behind` another member where it sees the table through that one.

    The handicap is what the member must gain on the held-out rows, in nats, to be weighed like one
    without; where the member treats K classes apart, √K times that. The more a member can learn,
    the more of what it seems to have learned is chance. `near` are the members that differ little
    from temperature scaling whatever the rows say.
    """

    method: str
    options: Mapping[str, Any] = {}
    behind: str | None = None
    handicap: float = 0.0
    near: bool = False

    @property
    def keeps_predictions(self) -> bool:
        """Whether what it fits is made so that it keeps every prediction, or usually does."""
        return self.method not in ("structured", "vector", "matrix", "dirichlet")

    def nats(self, n_classes: int) -> float:
        """The handicap on a table of so many classes."""
        return self.handicap * (1.0 if self.keeps_predictions else n_classes**0.5)


_UNIFORM, _PROCESS = "uniform-temperature", "uniform+gaussian-process"
#: What is mixed by default. Strengths are given: to cross-validate them inside cross-validation is
#: slow, and noise. Those that treat classes apart see probabilities that a Gaussian process has
#: mended for all classes alike: what is wrong with every class is learned from all rows at once,
#: and they are drawn towards that. Handicaps grow with what a member is free to do; they were
#: chosen on one split of each set at 500 rows, see docs/quality.md.
MEMBERS: dict[str, Member] = {
    "temperature": Member("temperature", near=True),
    _UNIFORM: Member("uniform-temperature", near=True),
    "composed": Member("composed", {}, None, 0.5),
    "local-temperature": Member("local-temperature", {}, None, 1.0),
    _PROCESS: Member("gaussian-process", {}, _UNIFORM, 1.0),
    "irm": Member("irm", {}, None, 3.0),
    "process+intercepts 0.1": Member(
        "vector", {"regularisation": 100.0, "intercept_regularisation": 0.1}, _PROCESS, 0.5
    ),
    "process+structured 1": Member(
        "structured", {"regularisation": 1.0}, _PROCESS, 0.15, near=True
    ),
    "process+structured 0.1": Member("structured", {"regularisation": 0.1}, _PROCESS, 0.75),
    "process+structured 0.03": Member("structured", {"regularisation": 0.03}, _PROCESS, 1.0),
    "process+dirichlet 1": Member("dirichlet", {"regularisation": 1.0}, _PROCESS, 0.5),
    "process+dirichlet 0.1": Member("dirichlet", {"regularisation": 0.1}, _PROCESS, 1.25),
    "process+dirichlet 0.01": Member("dirichlet", {"regularisation": 0.01}, _PROCESS, 2.0),
    "monotone": Member("monotone", near=True),
    "beta": Member("beta", {}, None, 1.0),
    "isotonic": Member("isotonic", {}, None, 3.0),
}
#: Of two classes: increasing curves with an offset, so that their mixture is one too.
_OF_TWO = ("monotone", "beta", "isotonic")
#: A full matrix learns more than a scale for each class; with more classes than this its K²
#: coefficients take minutes.
_MATRIX_CLASSES = 300
_OF_FEW = ("process+dirichlet 1", "process+dirichlet 0.1", "process+dirichlet 0.01")
_OF_MANY = ("process+structured 0.1", "process+structured 0.03")


def default_members(n_classes: int) -> list[str]:
    """The names of the members that are mixed by default, of so many classes.

    Examples
    --------
    >>> sorted(set(default_members(10)) - set(default_members(1000)))
    ['process+dirichlet 0.01', 'process+dirichlet 0.1', 'process+dirichlet 1']
    >>> sorted(set(default_members(1000)) - set(default_members(10))), default_members(2)
    (['process+structured 0.03', 'process+structured 0.1'], ['monotone', 'beta', 'isotonic'])
    """
    if n_classes == 2:
        return list(_OF_TWO)
    left_out = {*_OF_TWO, *(_OF_MANY if n_classes <= _MATRIX_CLASSES else _OF_FEW)}
    return [name for name in MEMBERS if name not in left_out]


def fit_members(
    names: Sequence[str], rows: Rows, labels: Codes, weights: Weights, *, rough: bool = False
) -> dict[str, Map]:
    """The maps of these names, `MEMBERS` or methods with their usual options; `rough` where they
    are only weighed.

    What stands behind another is fitted once, strengths of one method along a path.
    """
    sample, tolerance = Labelled(rows, labels, weights), _ROUGH if rough else _TOLERANCE
    asked = {name: MEMBERS.get(name) or _method(name) for name in names}
    found: dict[str, Map] = {}
    seen: dict[str | None, Labelled] = {None: sample}
    for name in (each for one in names for each in _with_fronts(one)):
        if name in found:
            continue
        member = asked.get(name) or MEMBERS[name]
        if member.behind is not None and member.behind not in seen:
            seen[member.behind] = sample._replace(rows=seen_through(found[member.behind], rows))
        behind = seen[member.behind]
        if member.method in _PATHS and member.options:
            alike = {
                other: one.options["regularisation"]
                for other, one in {**asked, name: member}.items()
                if (one.method, one.behind) == (member.method, member.behind) and one.options
            }
            path = _PATHS[member.method](behind, tuple(alike.values()), tolerance)
            maps = {other: path[strength] for other, strength in alike.items()}
        else:
            maps = {
                name: (
                    METHODS[member.method].fit_function()(
                        *_enough(behind, member), **member.options
                    )
                )
            }
        for same, then in maps.items():
            # A uniform part is at least one row's worth: that no such row was seen yet does not
            # mean there is none.
            alone = as_front(then, rows, weights)
            found[same] = (
                alone if member.behind is None else ComposedMap(found[member.behind], then)
            )
    return {name: found[name] for name in names}


def _with_fronts(name: str) -> list[str]:
    """The name of a member, behind those that it sees the table through."""
    behind = MEMBERS[name].behind if name in MEMBERS else None
    return [name] if behind is None else [*_with_fronts(behind), name]


def _enough(sample: Labelled, member: Member) -> Labelled:
    """All rows; of a large table, for a member of a few slow numbers, every s-th."""
    if member.method != "gaussian-process":
        return sample
    most = max(_FEWEST_ROWS, _MOST_ELEMENTS // sample.rows.n_classes)
    return sample.every(max(1, len(sample.labels) // most))


def _method(name: str) -> Member:
    if name not in METHODS:
        raise InputError(
            f"unknown candidate {name!r}; there are"
            f" {', '.join(dict.fromkeys([*MEMBERS, *METHODS]))}."
        )
    return Member(name)
