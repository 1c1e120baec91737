"""What the calibrators share: reading a table of logits and its labels, and holding a fitted
map.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from inspect import get_annotations
from typing import Any, Generic, Self, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.utils._array_api import device, get_namespace
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from metacal import kernels
from metacal.errors import InputError, WrongTypeError
from metacal.formulas import Array, Codes, Float
from metacal.gate import Gate, Recipe, Table
from metacal.gate.verbs import Verbs
from metacal.maps.composed import default_base
from metacal.maps.map import Map
from metacal.maps.methods import calibrator, method_of
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Promise
from metacal.rows import Rows, validate, workers
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.labels import flat_labels
from metacal.rows.plausibility import warn_of_suspicion

T = TypeVar("T")
#: The map that a calibrator fits.
M = TypeVar("M", bound=Map)

#: Parameters that say what the table is, and nothing about the method.
_OF_THE_TABLE = ("input", "classes", "positive", "n_jobs")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Parameters(Verbs, BaseEstimator):
    """An estimator whose fields are its parameters: every subclass is a dataclass without saying
    so.

    What ends in "_" is no parameter: by scikit-learn's custom that is what a fit leaves.
    """

    def __init_subclass__(cls, *, kw_only: bool = True, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in get_annotations(cls):
            if name.endswith("_") and not hasattr(cls, name):
                setattr(cls, name, field(init=False))
        dataclass(kw_only=kw_only, eq=False, repr=False)(cls)


class GateEstimator(Parameters):
    """What every estimator that fits a gate shares: the gate, its certificate, and how it looks in
    a notebook.
    """

    gate_: Gate = field(init=False)

    @property
    def certificate_(self) -> Certificate:
        """What is promised, how surely, from how many rows."""
        check_is_fitted(self, "gate_")
        assert self.gate_.certificate is not None
        return self.gate_.certificate

    @property
    def threshold_(self) -> float:
        """Accept iff score <= threshold_, of a cascade's first model; -inf where each class or
        group has its own.
        """
        check_is_fitted(self, "gate_")
        return self.gate_.threshold

    def _repr_html_(self) -> str:
        """The parameters and, once fitted, the certificate: small, escaped, without scripts."""
        fitted = getattr(self, "certificate_", None)
        promise = (
            "<p>Not fitted: nothing is promised yet.</p>"
            if fitted is None
            else fitted._repr_html_()
        )
        return f"<div><code>{escape(repr(self))}</code>{promise}</div>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What notebooks ask for first."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def like_the_table(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose answer is, with scikit-learn's `array_api_dispatch`, an array of X's library
    on X's device.

    Names of classes stay NumPy arrays: the array API has no texts.
    """

    @functools.wraps(method)
    def answered(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        found = method(self, X, *args, **options)
        plain = isinstance(found, np.ndarray) and found.dtype.kind in "biuf"
        if not plain or isinstance(X, np.ndarray) or not get_config()["array_api_dispatch"]:
            return found
        xp, dispatched = get_namespace(X)
        return xp.asarray(found, device=device(X)) if dispatched else found

    return answered


class LogitsEstimator(TransformerMixin, Parameters):
    """What every estimator over a table of logits shares: reading the table, the labels and the
    classes.

    Its parameters are `input` ("logits" or "probabilities"), `classes` (the labels in column order;
    when None the names of a frame's columns if the labels are strings, else 0 … K-1, or the two
    values that labels of two classes have), `positive` (the class that one score per row speaks
    for) and `n_jobs`.
    """

    input: str = "logits"
    classes: Sequence[Any] | None = None
    positive: Any = None
    n_jobs: int | None = None

    classes_: Array = field(init=False)

    def transform(self, X: ArrayLike) -> Any:
        """The probabilities of `predict_proba`, as features of what follows; frames by
        `set_output`.
        """
        return self.predict_proba(X)

    def predict_proba(self, X: ArrayLike) -> Any:
        """Calibrated probabilities, one column per class."""
        raise NotImplementedError

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """The names of the columns of `transform`: probs_ and the class."""
        check_is_fitted(self)
        return np.array([f"probs_{name}" for name in self.classes_], dtype=object)

    @property
    def _stays_on_device(self) -> bool:
        """Whether a tensor on a GPU is worked on there; it is copied to the host otherwise."""
        return False

    @contextmanager
    def _rows(
        self, X: Any, *, reset: bool, later: bool = False, executor: ExecutorLike | None = None
    ) -> Iterator[Rows]:
        """The table as rows, and threads to read it with as long as this lasts; `later`: looked
        over as it is read.
        """
        with workers(self.n_jobs, executor) as pool:
            table = self._read_table(X, reset=reset, executor=pool, later=later)
            yield Rows(table, executor=pool, unseen=later and validate.may_wait(table, self.input))

    def _read_table(
        self, X: Any, *, reset: bool, executor: Executor | None = None, later: bool = False
    ) -> Array:
        one_score = validate.is_one_score(X) and (reset or getattr(self, "n_features_in_", 2) == 2)
        if reset:
            self._one_score = one_score
        if one_score:
            X = validate.two_columns(X, self.input)
        if not reset:
            check_is_fitted(self)
            if _looks_2d(X):  # the wrong number of columns is the first thing to say
                self._check_columns(X, reset=False)
        source = X if self._stays_on_device else validate.on_host(X, self.input)
        table = validate.logits_from(source, self.input, executor=executor, later=later)
        self._check_columns(X if hasattr(X, "columns") else table, reset=reset)
        return table

    def _check_columns(self, X: Any, *, reset: bool) -> None:
        """The number of columns and their names, in scikit-learn's words."""
        names = Counter(str(name) for name in getattr(X, "columns", ()))
        if twice := [name for name, times in names.items() if times > 1]:
            raise InputError(
                f"a table needs unique column names, one for each class; {twice[0]!r} stands there"
                " twice."
            )
        try:
            validate_data(self, X, skip_check_array=True, reset=reset)
        except TypeError as error:
            raise WrongTypeError(str(error)) from None
        except ValueError as error:
            raise InputError(str(error)) from None

    def _read_labels(self, y: Any, table: Array) -> Codes:
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        if hasattr(y, "ndim") and y.ndim == 2 and y.shape[1] == 1:
            validate.refuse_masked(y, "labels")
            y = column_or_1d(validate.on_host(y, "labels"), warn=True)
        classes = self.classes
        if (
            classes is None
            and hasattr(self, "feature_names_in_")
            and flat_labels(y).dtype.kind == "U"
        ):
            classes = self.feature_names_in_
        if table.shape[1] == 2 and not kernels.on_device(y):
            classes = self._two_classes(classes, y)
        elif self.positive is not None:
            raise InputError(
                f"positive={self.positive!r} is for two classes; the table has {table.shape[1]}."
            )
        self.classes_ = validate.class_list(classes, table.shape[1])
        return validate.label_codes_beside(y, table, self.classes_)

    def _two_classes(self, classes: Any, y: Any) -> Any:
        """Two classes in column order; the second is the positive one where there is one score per
        row.
        """
        if classes is None:
            return validate.two_classes(y, self.positive, one_score=self._one_score)
        if self.positive is None or len(classes) != 2:
            return classes
        if self.positive not in list(classes):
            raise InputError(
                f"positive={self.positive!r} is none of the classes ({list(classes)})."
            )
        return classes[::-1] if self._one_score and self.positive == classes[0] else classes

    @property
    def _classes_given(self) -> bool:
        """Whether the classes were named, here, by the columns of a frame or by two labels: not the
        column numbers.
        """
        return self.classes is not None or not np.array_equal(
            self.classes_, np.arange(len(self.classes_))
        )


def _looks_2d(X: Any) -> bool:
    try:
        return len(X.shape) == 2
    except (
        AttributeError,
        TypeError,
        RuntimeError,
    ):  # no shape, or none to speak of: a nested tensor's
        return False


class Fitted(Generic[T]):
    """A fitted attribute that the map has under the same name, less the underscore."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removesuffix("_")

    def __get__(self, estimator: Calibrator[Any] | None, owner: type) -> T:
        if estimator is None:
            return self  # type: ignore[return-value]
        check_is_fitted(estimator)
        return getattr(estimator.map_, self._name)


class Calibrator(ClassifierMixin, LogitsEstimator, Generic[M]):
    """An estimator that holds a fitted map, a frozen value: `fit` makes `map_`, `predict_proba`
    applies it.

    How to fit is said by its row in `metacal.maps.methods`; the fields of a subclass are that
    function's options.
    """

    map_: M = field(init=False)

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        executor: ExecutorLike | None = None,
    ) -> Self:
        """Fit the map on a table of logits and the true labels.

        The blocks of the table go to `executor`, where one is given: a pool of processes, a Dask
        client. Of a stored table they go as descriptions, which whoever works on them reads.
        """
        if is_remote(executor):
            method_of(type(self)).check_remote()
        with self._rows(X, reset=True, executor=executor) as rows:
            codes = self._read_labels(y, rows.table)
            weights = validate.row_weights(sample_weight, len(rows))
            warn_of_suspicion(rows.table, self.input)
            self.map_ = self._fit_map(rows, codes, weights)
        return self

    @property
    def gate_(self) -> Gate:
        """The fitted map as a gate that promises nothing and accepts every row: what files and
        exports start from.
        """
        check_is_fitted(self)
        given = self._classes_given
        return Gate.of(
            Table(
                self.map_,
                self.classes_,
                input=self.input,
                recipe=self.recipe(),
                classes_given=given,
            )
        )

    def recipe(self) -> Recipe:
        """How it is fitted, in values that a file can hold."""
        return Recipe(type(self).__name__, self.get_params(deep=False))

    def fit_rows(self, rows: Rows, codes: Codes, weights: Float | None) -> Self:
        """Fit on rows that are already read and checked; labels are column numbers."""
        self.classes_ = np.arange(rows.n_classes)
        self.n_features_in_ = rows.n_classes
        self.map_ = self._fit_map(rows, codes, weights)
        return self

    @like_the_table
    def predict_proba(self, X: ArrayLike, *, out: Array | None = None) -> Array:
        """Calibrated probabilities, one column per class; float32 stays float32, a tensor on a GPU
        stays there.

        `out`, of the result's shape and dtype, is written to and returned: no table is made where
        the calibrator can do without.
        """
        with self._rows(X, reset=False) as rows:
            there = kernels.on_device(X) and not rows.on_device  # worked on here, wanted there
            found = self.map_(rows.table, rows=rows, out=None if there else out)
        if not there:
            return found if kernels.on_device(X) else np.asarray(found)
        room = validate.room_for_probabilities(X, out)
        room[...] = kernels.device_kernels().beside(found, X)
        return room

    @like_the_table
    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each row, as an array."""
        probabilities = self.predict_proba(X)
        if kernels.on_device(probabilities):
            return np.asarray(self.classes_[Rows(probabilities).collect(kernels.predicted)])
        return np.asarray(self.classes_[validate.on_host(probabilities).argmax(axis=1)])

    def _fit_map(self, rows: Rows, codes: Codes, weights: Float | None) -> M:
        """Fit with the method's own function; its options bear the names of the estimator's
        parameters.
        """
        own = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in _OF_THE_TABLE
        }
        return method_of(type(self)).fit_function()(rows, codes, weights, **own)


def calibrator_from(given: Any) -> Any:
    """A fresh estimator: the calibrator of this name with its usual options, or a copy of the one
    given.

    Examples
    --------
    >>> calibrator_from("spline"), calibrator_from(calibrator_from("platt"))
    (SplineCalibration(), PlattScaling())
    >>> calibrator_from("splin")
    Traceback (most recent call last):
    metacal.errors.InputError: unknown calibrator 'splin'; there are temperature, uniform-temperature, ...
    """
    return calibrator(given)() if isinstance(given, str) else clone(given)


def base_calibrator(given: Any, promise: object, n_classes: int | None = None) -> Any:
    """A fresh estimator for a gate's base map: the one given or, if None, what goes with the
    promise and the classes.

    Examples
    --------
    >>> base_calibrator(None, None), base_calibrator("platt", None), base_calibrator(None, None, 2)
    (ComposedCalibration(), PlattScaling(), MonotoneCalibration())
    """
    usual = promise.calibrator if isinstance(promise, Promise) else None
    return calibrator_from(given if given is not None else usual or default_base(n_classes))


def name_of(given: Any) -> str:
    """The name of a calibrator, which a file can hold.

    Examples
    --------
    >>> name_of("spline"), name_of(calibrator_from("platt"))
    ('spline', 'platt')
    """
    return given if isinstance(given, str) else method_of(type(given)).name
