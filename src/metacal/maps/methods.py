"""Registry of calibration methods.

Each method has one row here. The file of the method under `metacal.maps` fits its map, and its
estimator is in a module of `metacal.estimators`. Public names, the choices on the command line,
and the methods that can be saved, exported and compared are all read from the registry. Modules
are named as strings and imported on first use, so this module does not depend on the packages
above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from metacal.errors import CombinationError, InputError
from metacal.lazy import import_object

if TYPE_CHECKING:
    # Public names of the estimators, for type checkers.
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
    """Calibration method: its name, and its parts as "module:name".

    Attributes
    ----------
    name : str
        Name on the command line and in `compare`.
    estimator : str
        scikit-learn estimator; its class is public as `metacal.Class`.
    map : str
        Class of the fitted map, whose formula runs in NumPy, torch and ONNX. Several methods can
        fit the same class of map.
    fit : str
        Function fit(rows, labels, weights, **options) that returns the map. The options have the
        names of the parameters of the estimator.
    fits_from_sums : bool
        Whether the method is fitted from sums over rows and columns with a few numbers per row,
        which other machines can compute. Otherwise the probabilities of all classes of all rows
        are needed in one place.
    """

    name: str
    estimator: str
    map: str
    fit: str
    fits_from_sums: bool = True

    def check_fits_on_cluster(self) -> None:
        """Raise InputError if the method cannot be fitted on a cluster.

        Examples
        --------
        >>> METHODS["isotonic"].check_fits_on_cluster()
        Traceback (most recent call last):
        metacal.errors.CombinationError: IsotonicCalibration requires the probabilities of all ...
        """
        if self.fits_from_sums:
            return
        remote_names = ", ".join(
            method.name for method in METHODS.values() if method.fits_from_sums
        )
        raise CombinationError(
            f"{self.public_name} requires the probabilities of all rows in one process, so it"
            " does not support an executor. Leave out the executor, or use one of"
            f" {remote_names}."
        )

    @property
    def public_name(self) -> str:
        """Name of the estimator in `metacal`."""
        _, _, class_name = self.estimator.partition(":")
        return class_name

    def map_class(self) -> type[Map]:
        """Import and return the class of the map."""
        return import_object(self.map)

    def get_fit_function(self) -> Callable[..., Any]:
        """Import and return the function that fits the map."""
        return import_object(self.fit)

    def estimator_class(self) -> Any:
        """Import and return the class of the estimator."""
        return import_object(self.estimator)

    @cached_property
    def options(self) -> dict[str, Parameter]:
        """Keyword options of the fit function by name, with type and default.

        Annotations are evaluated here once, never because of the content of a file.

        Examples
        --------
        >>> options = METHODS["ensemble-temperature"].options
        >>> {name: option.default for name, option in options.items()}
        {'loss': 'nll'}
        """
        parameters = signature(self.get_fit_function(), eval_str=True).parameters
        return {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.kind is Parameter.KEYWORD_ONLY
        }


def _build_method(
    name: str, estimator_path: str, fit_path: str, map_path: str, *, fits_from_sums: bool = True
) -> Method:
    """Build a method of this package.

    Parameters
    ----------
    name : str
        Name of the method.

    estimator_path : str
        "module:class" below `metacal.estimators`.

    fit_path : str
        "module:function" below `metacal.maps`.

    map_path : str
        "module:class" below `metacal.maps`, or a class in the module of the fit function.

    fits_from_sums : bool, default=True
        See `Method`.

    Returns
    -------
    Method
    """
    if ":" not in map_path:
        module_of_fit, _, _ = fit_path.partition(":")
        map_path = f"{module_of_fit}:{map_path}"
    return Method(
        name=name,
        estimator=f"metacal.estimators.{estimator_path}",
        map=f"metacal.maps.{map_path}",
        fit=f"metacal.maps.{fit_path}",
        fits_from_sums=fits_from_sums,
    )


_PIECEWISE = "curves:PiecewiseMap"
_TOP_LABEL = "curves:TopLabelMap"

#: Methods in the order of `compare`, simplest first.
_METHODS = (
    _build_method(
        "temperature",
        "temperature:TemperatureScaling",
        "temperature:fit_temperature",
        "TemperatureMap",
    ),
    _build_method(
        "uniform-temperature",
        "temperature:UniformTemperatureScaling",
        "uniform:fit_uniform_temperature",
        "UniformTemperatureMap",
    ),
    _build_method(
        "ensemble-temperature",
        "temperature:EnsembleTemperatureScaling",
        "ensemble:fit_ensemble_temperature",
        "EnsembleTemperatureMap",
    ),
    _build_method(
        "local-temperature",
        "temperature:LocalTemperatureScaling",
        "local:fit_local_temperature",
        "LocalTemperatureMap",
    ),
    _build_method("spline", "curves:SplineCalibration", "spline:fit_spline", "SplineMap"),
    _build_method(
        "composed", "composed:ComposedCalibration", "composed:fit_composed", "ComposedMap"
    ),
    _build_method(
        "gaussian-process",
        "curves:GaussianProcessCalibration",
        "gp:fit_gaussian_process",
        "GaussianProcessMap",
    ),
    _build_method(
        "structured", "affine:StructuredScaling", "affine:fit_structured_scaling", "StructuredMap"
    ),
    _build_method("vector", "affine:VectorScaling", "affine:fit_vector_scaling", "VectorMap"),
    _build_method("matrix", "affine:MatrixScaling", "affine:fit_matrix_scaling", "MatrixMap"),
    _build_method(
        "dirichlet",
        "affine:DirichletCalibration",
        "affine:fit_dirichlet_calibration",
        "DirichletMap",
    ),
    _build_method("platt", "curves:PlattScaling", "logistic:fit_platt_scaling", "PlattMap"),
    _build_method("monotone", "curves:MonotoneCalibration", "monotone:fit_monotone", "MonotoneMap"),
    _build_method("beta", "curves:BetaCalibration", "logistic:fit_beta_calibration", "BetaMap"),
    _build_method(
        "isotonic",
        "isotonic:IsotonicCalibration",
        "isotonic:fit_isotonic",
        _PIECEWISE,
        fits_from_sums=False,
    ),
    _build_method(
        "irova-ts", "isotonic:IROvATS", "isotonic:fit_irova_ts", _PIECEWISE, fits_from_sums=False
    ),
    _build_method("irm", "isotonic:IRM", "isotonic:fit_irm", "SharedMap"),
    _build_method(
        "histogram", "binning:HistogramBinning", "histogram:fit_histogram_binning", _PIECEWISE
    ),
    _build_method("bbq", "binning:BBQ", "bbq:fit_bbq", _PIECEWISE, fits_from_sums=False),
    _build_method(
        "imax", "binning:IMaxBinning", "imax:fit_imax_binning", _PIECEWISE, fits_from_sums=False
    ),
    _build_method(
        "top-label-isotonic",
        "isotonic:TopLabelIsotonic",
        "isotonic:fit_top_label_isotonic",
        _TOP_LABEL,
    ),
    _build_method(
        "top-label-histogram",
        "binning:TopLabelHistogramBinning",
        "histogram:fit_top_label_histogram_binning",
        _TOP_LABEL,
    ),
    _build_method("top-label-bbq", "binning:TopLabelBBQ", "bbq:fit_top_label_bbq", _TOP_LABEL),
)
#: Methods by name.
METHODS = {method.name: method for method in _METHODS}
#: Estimators that choose among the methods or mix them, by name.
AUTOMATIC_METHODS = {
    "auto": _build_method(
        "auto", "auto:AutoCalibrator", "stack:fit_stack", "StackMap", fits_from_sums=False
    )
}


def register(method: Method) -> None:
    """Add a method of another package, which can then be compared, saved and exported.

    Examples
    --------
    >>> register(METHODS["temperature"])
    Traceback (most recent call last):
    metacal.errors.InputError: A method named 'temperature' is already registered. Choose another name.
    """
    if method.name in METHODS:
        raise InputError(
            f"A method named {method.name!r} is already registered. Choose another name."
        )
    METHODS[method.name] = method


def get_all_methods() -> dict[str, Method]:
    """Return a dict of methods by name, followed by automatic selections."""
    return {**METHODS, **AUTOMATIC_METHODS}


def get_estimator_modules() -> dict[str, str]:
    """Return the module of each estimator by its public name."""
    modules = {}
    for method in get_all_methods().values():
        module, _, class_name = method.estimator.partition(":")
        modules[class_name] = module
    return modules


def get_calibrator_class(name: str) -> Any:
    """Return the estimator class of the method with this name.

    Raises
    ------
    InputError
        If there is no such method.

    Examples
    --------
    >>> get_calibrator_class("plat")
    Traceback (most recent call last):
    metacal.errors.InputError: Unknown calibrator 'plat'. The available calibrators are ...
    """
    methods = get_all_methods()
    if name not in methods:
        raise InputError(
            f"Unknown calibrator {name!r}. The available calibrators are {', '.join(methods)}."
        )
    return methods[name].estimator_class()


def get_calibration_method(estimator: type) -> Method:
    """Return the method of an estimator class, or of its nearest base class."""
    method_by_estimator = {method.estimator: method for method in get_all_methods().values()}
    for cls in estimator.__mro__:
        method = method_by_estimator.get(f"{cls.__module__}:{cls.__name__}")
        if method is not None:
            return method
    raise InputError(
        f"{estimator.__name__} is not a registered calibrator. metacal.maps.methods lists the"
        " registered ones."
    )


def find_method_by_public_name(public_name: str) -> Method | None:
    """Return the method whose estimator has this public name, or None.

    Examples
    --------
    >>> find_method_by_public_name("PlattScaling").name, find_method_by_public_name("PlatScaling")
    ('platt', None)
    """
    for method in get_all_methods().values():
        if method.public_name == public_name:
            return method
    return None


def find_map_method(kind: type) -> Method | None:
    """Return the first method that fits maps of this class, or None."""
    map_path = f"{kind.__module__}:{kind.__name__}"
    for method in get_all_methods().values():
        if method.map == map_path:
            return method
    return None


class LazyClassMapping(Mapping[str, type]):
    """Mapping from names to classes that are imported on first use.

    Parameters
    ----------
    methods : mapping
        Methods by the names of the classes.

    load_class : function
        Imports and returns the class of a method.
    """

    def __init__(self, methods: Mapping[str, Method], load_class: Callable[[Method], type]) -> None:
        self._methods = methods
        self._load_class = load_class

    def __getitem__(self, name: str) -> type:
        return self._load_class(self._methods[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)


def get_map_classes() -> Mapping[str, type[Map]]:
    """Return the classes of all maps by name."""
    methods = {}
    for method in get_all_methods().values():
        _, _, class_name = method.map.partition(":")
        methods[class_name] = method
    return LazyClassMapping(methods, Method.map_class)
