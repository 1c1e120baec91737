"""The one registry of calibration methods: a row says everything that other rooms need to know of a
method.

A method has a file under `metacal.maps`, which fits its map; its estimator stands among its
family's under `metacal.estimators`. Public names, the choices on the command line, what can be
saved, exported and compared are all read from here. Nothing is imported before it is asked for:
this module knows the names of rooms above it and never the rooms themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from metacal.errors import InputError
from metacal.lazy import found

if TYPE_CHECKING:
    # For type checkers: the public names of the estimators, beside their rows.
    from metacal.estimators.affine import DirichletCalibration as DirichletCalibration
    from metacal.estimators.affine import MatrixScaling as MatrixScaling
    from metacal.estimators.affine import StructuredScaling as StructuredScaling
    from metacal.estimators.affine import VectorScaling as VectorScaling
    from metacal.estimators.auto import AutoCalibrator as AutoCalibrator
    from metacal.estimators.binning import BBQ as BBQ
    from metacal.estimators.binning import HistogramBinning as HistogramBinning
    from metacal.estimators.binning import IMaxBinning as IMaxBinning
    from metacal.estimators.binning import TopLabelBBQ as TopLabelBBQ
    from metacal.estimators.binning import TopLabelHistogramBinning as TopLabelHistogramBinning
    from metacal.estimators.composed import ComposedCalibration as ComposedCalibration
    from metacal.estimators.curves import BetaCalibration as BetaCalibration
    from metacal.estimators.curves import GaussianProcessCalibration as GaussianProcessCalibration
    from metacal.estimators.curves import MonotoneCalibration as MonotoneCalibration
    from metacal.estimators.curves import PlattScaling as PlattScaling
    from metacal.estimators.curves import SplineCalibration as SplineCalibration
    from metacal.estimators.isotonic import IRM as IRM
    from metacal.estimators.isotonic import IROvATS as IROvATS
    from metacal.estimators.isotonic import IsotonicCalibration as IsotonicCalibration
    from metacal.estimators.isotonic import TopLabelIsotonic as TopLabelIsotonic
    from metacal.estimators.temperature import (
        EnsembleTemperatureScaling as EnsembleTemperatureScaling,
    )
    from metacal.estimators.temperature import LocalTemperatureScaling as LocalTemperatureScaling
    from metacal.estimators.temperature import TemperatureScaling as TemperatureScaling
    from metacal.estimators.temperature import (
        UniformTemperatureScaling as UniformTemperatureScaling,
    )
    from metacal.maps.map import Map


@dataclass(frozen=True)
class Method:
    """One calibration method: its names, and where its parts are found, each as "module:name".

    Attributes
    ----------
    name : str
        On the command line and in `compare`.
    estimator : str
        The scikit-learn face; its class is public as `metacal.Class`.
    map : str
        The fitted map, whose formula runs in NumPy, torch and ONNX. Several methods may fit one
        kind of map.
    fit : str
        fit(rows, labels, weights, **options) -> map; the options bear the names of the estimator's
        parameters.
    sums : bool
        Whether it is fitted from sums over rows and columns of a few numbers a row, which other
        machines can bring; not where every class's probability of every row is needed in one place.
    """

    name: str
    estimator: str
    map: str
    fit: str
    sums: bool = True

    def check_remote(self) -> None:
        """Raise where other machines cannot bring what the fit needs.

        Examples
        --------
        >>> METHODS["isotonic"].check_remote()
        Traceback (most recent call last):
        metacal.errors.InputError: IsotonicCalibration is no sum over rows: it needs every class's probability of ...
        """
        if not self.sums:
            known = ", ".join(row.name for row in METHODS.values() if row.sums)
            raise InputError(
                f"{self.public_name} is no sum over rows: it needs every class's probability of"
                " every row in one place, so it cannot be fitted on a cluster. Leave out the"
                f" executor, or take one of {known}."
            )

    @property
    def public_name(self) -> str:
        """The estimator's name in `metacal`."""
        return self.estimator.partition(":")[2]

    def map_class(self) -> type[Map]:
        """The map that is fitted."""
        return found(self.map)

    def fit_function(self) -> Callable[..., Any]:
        """What fits the map."""
        return found(self.fit)

    @cached_property
    def options(self) -> dict[str, Parameter]:
        """What can be chosen, by name, with its type and default: the keyword options of the fit
        function.

        Annotations are evaluated once: what is ours is never evaluated because of a file.

        Examples
        --------
        >>> {name: option.default for name, option in METHODS["ensemble-temperature"].options.items()}
        {'loss': 'nll'}
        """
        options = signature(self.fit_function(), eval_str=True).parameters
        return {
            name: option
            for name, option in options.items()
            if option.kind is Parameter.KEYWORD_ONLY
        }

    def estimator_class(self) -> Any:
        """The scikit-learn face."""
        return found(self.estimator)


def _row(name: str, estimator: str, fit: str, map: str, *, sums: bool = True) -> Method:
    """A method of metacal's own: the estimator among its family's; the map in the file of its fit,
    or where it says.
    """
    place = map if ":" in map else f"{fit.partition(':')[0]}:{map}"
    return Method(
        name,
        f"metacal.estimators.{estimator}",
        f"metacal.maps.{place}",
        f"metacal.maps.{fit}",
        sums=sums,
    )


_PIECEWISE = "curves:PiecewiseMap"
_TOP_LABEL = "curves:TopLabelMap"

_ROWS = (  # simplest first: the order of `compare`
    _row(
        "temperature",
        "temperature:TemperatureScaling",
        "temperature:fit_temperature",
        "TemperatureMap",
    ),
    _row(
        "uniform-temperature",
        "temperature:UniformTemperatureScaling",
        "uniform:fit_uniform",
        "UniformTemperatureMap",
    ),
    _row(
        "ensemble-temperature",
        "temperature:EnsembleTemperatureScaling",
        "ensemble:fit_ensemble",
        "EnsembleTemperatureMap",
    ),
    _row(
        "local-temperature",
        "temperature:LocalTemperatureScaling",
        "local:fit_local_temperature",
        "LocalTemperatureMap",
    ),
    _row("spline", "curves:SplineCalibration", "spline:fit_spline", "SplineMap"),
    _row("composed", "composed:ComposedCalibration", "composed:fit_composed", "ComposedMap"),
    _row(
        "gaussian-process", "curves:GaussianProcessCalibration", "gp:fit_gp", "GaussianProcessMap"
    ),
    _row("structured", "affine:StructuredScaling", "affine:fit_structured", "StructuredMap"),
    _row("vector", "affine:VectorScaling", "affine:fit_vector", "VectorMap"),
    _row("matrix", "affine:MatrixScaling", "affine:fit_matrix", "MatrixMap"),
    _row("dirichlet", "affine:DirichletCalibration", "affine:fit_dirichlet", "DirichletMap"),
    _row("platt", "curves:PlattScaling", "logistic:fit_platt", "PlattMap"),
    _row("monotone", "curves:MonotoneCalibration", "monotone:fit_monotone", "MonotoneMap"),
    _row("beta", "curves:BetaCalibration", "logistic:fit_beta", "BetaMap"),
    _row(
        "isotonic", "isotonic:IsotonicCalibration", "isotonic:fit_isotonic", _PIECEWISE, sums=False
    ),
    _row("irova-ts", "isotonic:IROvATS", "isotonic:fit_irova_ts", _PIECEWISE, sums=False),
    _row("irm", "isotonic:IRM", "isotonic:fit_irm", "SharedMap"),
    _row("histogram", "binning:HistogramBinning", "histogram:fit_histogram", _PIECEWISE),
    _row("bbq", "binning:BBQ", "bbq:fit_bbq", _PIECEWISE, sums=False),
    _row("imax", "binning:IMaxBinning", "imax:fit_imax", _PIECEWISE, sums=False),
    _row(
        "top-label-isotonic",
        "isotonic:TopLabelIsotonic",
        "isotonic:fit_top_label_isotonic",
        _TOP_LABEL,
    ),
    _row(
        "top-label-histogram",
        "binning:TopLabelHistogramBinning",
        "histogram:fit_top_label_histogram",
        _TOP_LABEL,
    ),
    _row("top-label-bbq", "binning:TopLabelBBQ", "bbq:fit_top_label_bbq", _TOP_LABEL),
)
#: Every method by its name on the command line.
METHODS = {row.name: row for row in _ROWS}
#: Estimators that choose or mix what the methods fit, by their name on the command line.
CHOOSERS = {"auto": _row("auto", "auto:AutoCalibrator", "stack:fit_stack", "StackMap", sums=False)}


def register(method: Method) -> None:
    """Add a method that lives outside metacal: it is compared, saved and exported like any other
    from then on.

    Examples
    --------
    >>> register(METHODS["temperature"])
    Traceback (most recent call last):
    metacal.errors.InputError: there is a method 'temperature' already.
    """
    if method.name in METHODS:
        raise InputError(f"there is a method {method.name!r} already.")
    METHODS[method.name] = method


def every_method() -> dict[str, Method]:
    """The methods by their name on the command line, and the estimators that choose or mix what
    they fit, last.
    """
    return {**METHODS, **CHOOSERS}


def homes() -> dict[str, str]:
    """Public name of each estimator -> the module it lives in."""
    return {
        name: module
        for module, _, name in (row.estimator.partition(":") for row in every_method().values())
    }


def calibrator(name: str) -> Any:
    """The estimator class with this name on the command line; InputError for an unknown one.

    Examples
    --------
    >>> calibrator("plat")
    Traceback (most recent call last):
    metacal.errors.InputError: unknown calibrator 'plat'; there are temperature, uniform-temperature, ...
    """
    known = every_method()
    if name not in known:
        raise InputError(f"unknown calibrator {name!r}; there are {', '.join(known)}.")
    return known[name].estimator_class()


def method_of(estimator: type) -> Method:
    """The method of an estimator class, or of the nearest class that it is derived from."""
    rows = {row.estimator: row for row in every_method().values()}
    for cls in estimator.__mro__:
        if (row := rows.get(f"{cls.__module__}:{cls.__name__}")) is not None:
            return row
    raise InputError(
        f"{estimator.__name__} is not a calibration method that metacal knows; see"
        " metacal.maps.methods."
    )


def method_named(public_name: str) -> Method | None:
    """The method whose estimator bears this public name; None where there is none.

    Examples
    --------
    >>> method_named("PlattScaling").name, method_named("PlatScaling")
    ('platt', None)
    """
    return next((row for row in every_method().values() if row.public_name == public_name), None)


def method_of_map(kind: type) -> Method | None:
    """The first method that fits maps of this class; None for a map of somebody else."""
    place = f"{kind.__module__}:{kind.__name__}"
    return next((row for row in every_method().values() if row.map == place), None)


class OfMethods(Mapping[str, type]):
    """Classes by name, each made of its method, and so imported, when it is asked for."""

    def __init__(self, rows: Mapping[str, Method], make: Callable[[Method], type]) -> None:
        self._rows, self._make = rows, make

    def __getitem__(self, name: str) -> type:
        return self._make(self._rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def map_classes() -> Mapping[str, type[Map]]:
    """Every map by its class's name."""
    return OfMethods(
        {row.map.partition(":")[2]: row for row in every_method().values()}, Method.map_class
    )
