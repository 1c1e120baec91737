"""Base classes of all calibrators and gates.

A *calibrator* is an estimator that fits a *map*: a frozen value that turns a table of logits into
calibrated probabilities. A *gate* is a map with a threshold that accepts or rejects each row. Every
class label is represented by its *code*, the index of its column.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import ClassifierMixin, TransformerMixin
from sklearn.utils._array_api import device, get_namespace
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from metacal import kernels
from metacal.errors import ColumnError, MissingLabelsError, PositiveClassError, WrongTypeError
from metacal.estimators.gate_estimator import DataclassEstimator
from metacal.formulas import Array, Codes, Float
from metacal.gate import Decision, Gate, LogitsSource, Recipe
from metacal.maps.map import Map
from metacal.maps.methods import get_calibration_method
from metacal.rows import Rows, open_executor, validate
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.labels import check_labels
from metacal.rows.plausibility import warn_if_implausible

#: Type of a fitted attribute.
T = TypeVar("T")
#: Type of the fitted map of a calibrator.
M = TypeVar("M", bound=Map)

#: Parameters that describe the input table instead of the calibration method.
_TABLE_PARAMETERS = ("input", "classes", "positive", "n_jobs")


def match_array_library(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method so that its result has the array library and device of X.

    The decorator has an effect only with scikit-learn's `array_api_dispatch`. Class names stay NumPy arrays,
    because the array API has no strings.
    """

    @functools.wraps(method)
    def convert_result(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        method_result = method(self, X, *args, **options)
        is_numeric_array = (
            isinstance(method_result, np.ndarray) and method_result.dtype.kind in "biuf"
        )
        if not is_numeric_array or isinstance(X, np.ndarray):
            return method_result
        if not get_config()["array_api_dispatch"]:
            return method_result
        namespace, is_array_api = get_namespace(X)
        if not is_array_api:
            return method_result
        return namespace.asarray(method_result, device=device(X))

    return convert_result


class LogitsEstimator(TransformerMixin, DataclassEstimator):
    """Base class of the estimators that read a table of logits.

    Parameters
    ----------
    input : {"logits", "probabilities"}, default="logits"
        Content of the table.
    classes : sequence or None, default=None
        Labels in column order. If None, they are the column names of a data frame if the labels are
        strings, the two values of the labels if there are two classes, and 0 ... K-1 otherwise.
    positive : label or None, default=None
        Class that a higher score favours, if X has one score per row.
    n_jobs : int or None, default=None
        Number of threads.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels in column order.
    """

    input: str = "logits"
    classes: Sequence[Any] | None = None
    positive: Any = None
    n_jobs: int | None = None

    classes_: Array = field(init=False)

    def transform(self, X: ArrayLike) -> Any:
        """Return the probabilities of `predict_proba` as features for a later step."""
        return self.predict_proba(X)

    def predict_proba(self, X: ArrayLike) -> Any:
        """Return calibrated probabilities, one column per class."""
        raise NotImplementedError

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the columns of `transform`, "probs_" followed by the class."""
        check_is_fitted(self)
        return np.array([f"probs_{name}" for name in self.classes_], dtype=object)

    @property
    def _supports_device_tables(self) -> bool:
        """Whether a table on a GPU is processed there instead of being copied to the host."""
        return False

    def _can_validate_while_mapping(self, X: Any) -> bool:
        """Check for a table that is mapped on a GPU, where a map may validate it in the same pass."""
        return self._supports_device_tables and kernels.is_device_tensor(X)

    @contextmanager
    def _open_rows(
        self,
        X: Any,
        *,
        reset: bool,
        defer_validation: bool = False,
        executor: ExecutorLike | None = None,
    ) -> Iterator[Rows]:
        """Validate a table, and open it as rows with an executor.

        Parameters
        ----------
        X : array-like
            Table.
        reset : bool
            Whether to store the number and names of the columns, as `fit` does, or to compare them
            with the stored ones.
        defer_validation : bool, default=False
            Whether to validate the entries when they are read, if possible.
        executor : executor or None, default=None
            Executor in place of `n_jobs` threads.

        Yields
        ------
        Rows
        """
        with open_executor(self.n_jobs, executor) as pool:
            table = self._read_table(
                X, reset=reset, executor=pool, defer_validation=defer_validation
            )
            is_unvalidated = defer_validation and validate.can_defer_validation(table, self.input)
            yield Rows(table, executor=pool, is_unvalidated=is_unvalidated)

    def _read_table(
        self,
        X: Any,
        *,
        reset: bool,
        executor: Executor | None = None,
        defer_validation: bool = False,
    ) -> Array:
        """Validate a table, and convert it to logits.

        The parameters are those of `_open_rows`.
        """
        has_one_score = self._is_one_score_per_row(X, reset=reset)
        if reset:
            self._has_one_score = has_one_score
        if has_one_score:
            X = validate.scores_to_two_columns(X, input_kind=self.input)
        if not reset:
            check_is_fitted(self)
            # A wrong number of columns is reported before any problem with the values.
            if _is_two_dimensional(X):
                self._check_columns(X, reset=False)
        host_or_device_table = X
        if not self._supports_device_tables:
            host_or_device_table = validate.to_numpy(X, self.input)
        logits = validate.read_logits(
            host_or_device_table, self.input, executor=executor, defer_validation=defer_validation
        )
        # A data frame is checked itself, because the logits no longer have its column names.
        is_data_frame = hasattr(X, "columns")
        self._check_columns(X if is_data_frame else logits, reset=reset)
        return logits

    def _is_one_score_per_row(self, X: Any, *, reset: bool) -> bool:
        """Check for one score per row, which replaces the two columns of two classes.

        If `reset` is False, a fitted estimator must have two columns.
        """
        is_fitted = hasattr(self, "n_features_in_")
        may_have_two_classes = reset or not is_fitted or self.n_features_in_ == 2
        return validate.has_one_score_per_row(X) and may_have_two_classes

    def _check_columns(self, X: Any, *, reset: bool) -> None:
        """Check the number and the names of the columns as scikit-learn does."""
        column_names = [str(column) for column in getattr(X, "columns", ())]
        for column_name, n_occurrences in Counter(column_names).items():
            if n_occurrences > 1:
                raise ColumnError(
                    f"The column {column_name!r} occurs twice, but a table requires a unique name for"
                    " each column. Rename one of the columns."
                )
        try:
            validate_data(self, X, skip_check_array=True, reset=reset)
        except TypeError as error:
            raise WrongTypeError(str(error)) from None
        except ValueError as error:
            raise ColumnError(str(error)) from None

    def _read_labels(self, y: Any, table: Array) -> Codes:
        """Validate the labels, store the classes, and return the column of each label."""
        if y is None:
            raise MissingLabelsError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        is_column_vector = hasattr(y, "ndim") and y.ndim == 2 and y.shape[1] == 1
        if is_column_vector:
            validate.raise_if_masked(y, "labels")
            y = column_or_1d(validate.to_numpy(y, "labels"), warn=True)
        self.classes_ = self._determine_classes(y, n_columns=table.shape[1])
        return validate.encode_labels_on_device_of_table(y, table, self.classes_)

    def _determine_classes(self, y: Any, n_columns: int) -> Array:
        """Return the class of each column, given by a parameter, column names or the labels.

        Parameters
        ----------
        y : array-like of shape (n_rows,)
            Labels.
        n_columns : int
            Number of columns of the table.

        Returns
        -------
        array of shape (n_columns,)
        """
        classes = self.classes
        may_use_column_names = classes is None and hasattr(self, "feature_names_in_")
        if may_use_column_names and check_labels(y).dtype.kind == "U":
            classes = self.feature_names_in_
        has_two_classes = n_columns == 2
        has_positive_class = self.positive is not None
        if has_positive_class and not has_two_classes:
            raise PositiveClassError(
                f"positive={self.positive!r} requires two classes, but the table has {n_columns}"
                " columns. Leave out positive."
            )
        # Labels on a GPU are column numbers, so their classes are 0 and 1 in this order, unless
        # `positive` reverses it. Other labels have to be read to find the two classes.
        labels_are_on_host = not kernels.is_device_tensor(y)
        if has_two_classes and (labels_are_on_host or has_positive_class):
            classes = self._order_two_classes(classes, validate.to_numpy(y, "labels"))
        return validate.check_classes(classes, n_columns)

    def _order_two_classes(self, classes: Any, y: Any) -> Any:
        """Order two classes like the columns, with the positive class last if X is one score."""
        if classes is None:
            return validate.find_two_classes(y, self.positive, has_one_score=self._has_one_score)
        if self.positive is None or len(classes) != 2:
            return classes
        if self.positive not in list(classes):
            raise PositiveClassError(
                f"positive must be one of the classes {list(classes)}, but got {self.positive!r}."
            )
        if self._has_one_score and self.positive == classes[0]:
            return classes[::-1]
        return classes

    @property
    def _has_class_names(self) -> bool:
        """Whether the classes have names other than the column indices."""
        if self.classes is not None:
            return True
        return not np.array_equal(self.classes_, np.arange(len(self.classes_)))


def _is_two_dimensional(X: Any) -> bool:
    """Check whether X has a two-dimensional shape."""
    try:
        return len(X.shape) == 2
    except (AttributeError, TypeError, RuntimeError):
        # A list has no shape, and reading the shape of a nested tensor raises an error.
        return False


class MapAttribute(Generic[T]):
    """Descriptor of a fitted attribute `name_` that returns `map_.name`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removesuffix("_")

    def __get__(self, estimator: Calibrator[Any] | None, owner: type) -> T:
        if estimator is None:
            return self  # type: ignore[return-value]
        check_is_fitted(estimator)
        return getattr(estimator.map_, self._name)


class Calibrator(ClassifierMixin, LogitsEstimator, Generic[M]):
    """Estimator that fits a calibration map and applies it.

    The registry `metacal.maps.methods` names the function that fits the map. The fields of a
    subclass are the options of that function.

    Attributes
    ----------
    map_ : Map
        Fitted map, a frozen value.
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
        """Fit the calibrator on logits or probabilities, and their true labels.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_classes)
            Logits or probabilities.
        y : array-like of shape (n_rows,)
            True labels.
        sample_weight : array-like of shape (n_rows,) or None, default=None
            Weight of each row.
        executor : concurrent.futures.Executor or distributed.Client or None, default=None
            Executor of the work on blocks of rows. For a stored table, only descriptions of the
            blocks are sent, and the workers read them.

        Returns
        -------
        self
        """
        if is_remote(executor):
            get_calibration_method(type(self)).check_fits_on_cluster()
        with self._open_rows(X, reset=True, executor=executor) as rows:
            codes = self._read_labels(y, rows.table)
            if self.positive is not None and not self._has_one_score:
                raise PositiveClassError(
                    f"positive={self.positive!r} has no effect, because X has one column per"
                    " class. Leave out positive."
                )
            weights = validate.check_row_weights(sample_weight, len(rows))
            warn_if_implausible(rows.table, self.input)
            self.map_ = self._fit_map(rows, codes, weights)
        return self

    @property
    def gate_(self) -> Gate:
        """Gate that accepts every row without a promise, and calibrates with the fitted map."""
        check_is_fitted(self)
        source = LogitsSource(
            self.map_,
            self.classes_,
            input=self.input,
            recipe=self.recipe(),
            classes_given=self._has_class_names,
        )
        return Gate.from_source(source)

    def recipe(self) -> Recipe:
        """Return the class name and the parameters of the calibrator, for a saved file."""
        return Recipe(type(self).__name__, self.get_params(deep=False))

    def fit_rows(self, rows: Rows, codes: Codes, weights: Float | None) -> Self:
        """Fit the map on validated rows, with column indices as classes."""
        self.classes_ = np.arange(rows.n_classes)
        self.n_features_in_ = rows.n_classes
        self.map_ = self._fit_map(rows, codes, weights)
        return self

    @match_array_library
    def predict_proba(self, X: ArrayLike, *, out: Array | None = None) -> Array:
        """Return calibrated probabilities, one column per class.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_classes)
            Logits or probabilities.
        out : array or None, default=None
            Array of the shape and dtype of the result, which is written to and returned. It avoids
            the allocation of a table, if the calibrator supports that.

        Returns
        -------
        array of shape (n_rows, n_classes)
            It is float32 if X is, and on the device of X.
        """
        is_device_tensor = kernels.is_device_tensor(X)
        defer_validation = self._can_validate_while_mapping(X)
        with self._open_rows(X, reset=False, defer_validation=defer_validation) as rows:
            is_mapped_on_host = is_device_tensor and not rows.is_on_device
            # The map cannot write from the host to a buffer on the device.
            buffer_for_map = None if is_mapped_on_host else out
            probabilities = self.map_(rows.table, rows=rows, out=buffer_for_map)
        if is_mapped_on_host:
            device_buffer = validate.get_probability_buffer(X, out)
            device_buffer[...] = kernels.device_kernels().move_to_device_of(probabilities, X)
            return device_buffer
        if is_device_tensor:
            return probabilities
        return np.asarray(probabilities)

    @match_array_library
    def predict(self, X: ArrayLike) -> Array:
        """Return the most probable class of each row."""
        probabilities = self.predict_proba(X)
        if kernels.is_device_tensor(probabilities):
            predicted_codes = Rows(probabilities).compute_column(kernels.predict_classes)
        else:
            predicted_codes = validate.to_numpy(probabilities).argmax(axis=1)
        return np.asarray(self.classes_[predicted_codes])

    def decide(self, X: ArrayLike) -> Decision:
        """Return the predictions, scores and probabilities of all rows.

        A calibrator promises nothing and accepts every row.
        """
        with self._open_rows(X, reset=False) as rows:
            return self.gate_.decide(rows)

    def _fit_map(self, rows: Rows, codes: Codes, weights: Float | None) -> M:
        """Fit the map with the function that is registered for this class."""
        method_params = self.get_params(deep=False)
        for table_param in _TABLE_PARAMETERS:
            method_params.pop(table_param, None)
        fit_map = get_calibration_method(type(self)).get_fit_function()
        return fit_map(rows, codes, weights, **method_params)
