"""How often each path reads the table of logits, and the probabilities that it has written.

    METACAL_KERNEL=numpy python -m benchmarks.speed.table_passes
    python -m benchmarks.speed.table_passes --add prediction

It prints one number of passes per path as JSON: 1 means that every row was read once. Rows are
counted where they are read: by a function of the C extension, by a ufunc or another function of
NumPy, or by a copy. Strips and blocks of the table count with their rows, samples with theirs. Work on
copies in the cache is not counted.

With `--add`, one pass is added on purpose. The test of these numbers must notice it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import numpy as np

import metacal as mc
from benchmarks.speed.sizes import fill_table
from metacal import kernels
from metacal.maps.map import Map
from metacal.rows import Rows
from metacal.rows.strips import Strips

#: Rows and columns of the table: enough rows for samples, and more columns than short rows have.
N_ROWS, N_CLASSES = 12_000, 50
#: Methods of arrays that read every entry and are no ufuncs.
_READING_METHODS = ("argmax", "argmin", "argsort", "astype", "copy", "nonzero", "sort", "take")
#: Functions of the C extension that take the indices of the rows to use as their second argument.
_CHOOSE_ROWS = (
    "scores",
    "predicted",
    "softmax",
    "confidences",
    "mixed_rows",
    "tempered_loss",
    "members",
)


class CountedTable(np.ndarray):
    """Table that counts the entries which are read from it or from its views."""

    role = ""
    counter: ClassVar[Counter[str]] = Counter()

    def __array_finalize__(self, parent: Any) -> None:
        self.role = getattr(parent, "role", "")

    def count(self, n_entries: int | None = None) -> np.ndarray[Any, Any]:
        """Count entries, all by default, and return the table as a plain array."""
        CountedTable.counter[self.role] += self.size if n_entries is None else n_entries
        return self.view(np.ndarray)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **keywords: Any
    ) -> Any:
        """Count the inputs of a ufunc, then call it on plain arrays."""
        plain_inputs = [_count_if_table(argument) for argument in inputs]
        if out is None:
            return getattr(ufunc, method)(*plain_inputs, **keywords)
        plain_out = tuple(_as_plain(array) for array in out)
        getattr(ufunc, method)(*plain_inputs, out=plain_out, **keywords)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        """Count the arguments of a function of NumPy, then call it on plain arrays."""
        if function in (np.may_share_memory, np.shares_memory, np.shape, np.ndim):
            return function(*map(_as_plain, arguments), **keywords)
        if function is np.take and isinstance(arguments[0], CountedTable):
            # Only the rows that are taken are read.
            table, rows = arguments[:2]
            return function(table.count(len(rows) * table.shape[1]), rows, **keywords)
        plain_keywords = {name: _count_if_table(value) for name, value in keywords.items()}
        return function(*map(_count_if_table, arguments), **plain_keywords)

    def __getitem__(self, index: Any) -> Any:
        """Return a view that counts as well, or count the entries of a copy."""
        found = super().__getitem__(index)
        if not isinstance(found, CountedTable) or np.may_share_memory(found, self):
            return found
        found.role = self.role
        return found.count()


def _add_reading_methods() -> None:
    """Let the methods of arrays that read every entry count."""
    for name in _READING_METHODS:

        def read(self: CountedTable, *arguments: Any, name: str = name, **keywords: Any) -> Any:
            return getattr(self.count(), name)(*arguments, **keywords)

        setattr(CountedTable, name, read)


def _as_plain(value: Any) -> Any:
    """Return a table as a plain array, and anything else as it is."""
    return value.view(np.ndarray) if isinstance(value, CountedTable) else value


def _count_if_table(value: Any) -> Any:
    """Count a table, also in a tuple or list of arguments, and return it as a plain array."""
    if isinstance(value, CountedTable):
        return value.count()
    if isinstance(value, tuple | list):
        return type(value)(map(_count_if_table, value))
    return value


def _mark(array: Any, role: str) -> Any:
    """Return an array as a table that counts under a role."""
    if type(array) is not np.ndarray or array.ndim != 2 or array.shape[1] != N_CLASSES:
        return array
    table = array.view(CountedTable)
    table.role = role
    return table


def _keep_counting(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function such as `np.asarray` return a table as it is unless it copies it."""

    @wraps(convert)
    def converted(values: Any, dtype: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(values, CountedTable):
            return convert(values, dtype, *arguments, **keywords)
        if dtype is None or np.dtype(dtype) == values.dtype:
            return values
        return convert(values.count(), dtype, *arguments, **keywords)

    return converted


class _CountingExtension:
    """The C extension, whose functions count the tables that they read."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._extension, name)
        if not callable(function):
            return function

        def call(*arguments: Any) -> Any:
            # The limits of probabilities are applied to the last argument, which is then read.
            table = arguments[-1] if name == "inside" else arguments[0]
            if isinstance(table, CountedTable):
                has_indices = name in _CHOOSE_ROWS and arguments[1] is not None
                table.count(len(arguments[1]) * table.shape[1] if has_indices else None)
            return function(*map(_as_plain, arguments))

        return call


def start_counting() -> None:
    """Let all tables of this process count."""
    _add_reading_methods()
    for name in ("asarray", "ascontiguousarray"):
        setattr(np, name, _keep_counting(getattr(np, name)))
    create_strips = Strips.__init__
    fill_columns = Rows.fill_columns

    def create_counting_strips(self: Strips, table: Any, row_mask: Any = None) -> None:
        create_strips(self, _mark(table, "logits"), row_mask)

    def fill_counting_columns(self: Rows, fn: Any, out: Any, *columns: Any, **options: Any) -> Any:
        fill_columns(self, fn, _mark(out, "output"), *columns, **options)
        return out

    Strips.__init__ = create_counting_strips  # type: ignore[method-assign]
    Rows.fill_columns = fill_counting_columns  # type: ignore[method-assign]
    if kernels.uses_c_kernels:
        fused: Any = kernels.host_kernels
        extension = fused._fused
        counting_extension = _CountingExtension(extension)
        # Some functions of the extension are imported under names of their own.
        for name, value in list(vars(fused).items()):
            function_name = getattr(value, "__name__", "")
            if callable(value) and getattr(extension, function_name, None) is value:
                setattr(fused, name, getattr(counting_extension, function_name))
        fused._fused = counting_extension


def add_prediction_to_fill() -> None:
    """Let every map read its logits once more."""
    fill = Map.write_clipped_probabilities

    def fill_and_predict(self: Map, block: Any, out: Any) -> None:
        fill(self, block, out)
        kernels.predict_classes(block)

    Map.write_clipped_probabilities = fill_and_predict  # type: ignore[method-assign]


def add_smallest_to_fill() -> None:
    """Let every map read its probabilities once more."""
    fill = Map.write_clipped_probabilities

    def fill_and_check(self: Map, block: Any, out: Any) -> None:
        fill(self, block, out)
        out.min()

    Map.write_clipped_probabilities = fill_and_check  # type: ignore[method-assign]


def add_validation() -> None:
    """Let every block and every strip be validated by a pass of its own."""
    select_block = Strips._select_block
    iterate_strips = Strips._iterate_strips

    def select_valid_block(self: Strips, *arguments: Any) -> Any:
        block = select_block(self, *arguments)
        kernels.inspect_logits(block.table)
        return block

    def iterate_valid_strips(self: Strips, *arguments: Any) -> Any:
        for strip_rows, selected_slice in iterate_strips(self, *arguments):
            kernels.inspect_logits(strip_rows)
            yield strip_rows, selected_slice

    Strips._select_block = select_valid_block  # type: ignore[method-assign]
    Strips._iterate_strips = iterate_valid_strips  # type: ignore[method-assign]


def add_column_to_sum() -> None:
    """Let every sum over all rows compute a column of them as well."""
    compute_sum = Rows.sum

    def sum_and_score(self: Rows, *arguments: Any) -> Any:
        if len(self) == N_ROWS:
            self.compute_column(kernels.negative_margin)
        return compute_sum(self, *arguments)

    Rows.sum = sum_and_score  # type: ignore[method-assign]


#: Passes that can be added on purpose.
ADDITIONS = {
    "prediction": add_prediction_to_fill,
    "smallest probability": add_smallest_to_fill,
    "validation": add_validation,
    "column": add_column_to_sum,
}


def measure() -> dict[str, dict[str, float]]:
    """Return the passes over logits and output of every path."""
    table = np.empty((N_ROWS, N_CLASSES), dtype=np.float32)
    labels = fill_table(table, seed=0)
    promise = mc.MinAccuracy(0.85)
    calibrators = {
        "temperature": mc.TemperatureScaling(),
        "uniform temperature": mc.UniformTemperatureScaling(),
        "default": mc.ComposedCalibration(),
        "vector": mc.VectorScaling(regularisation=1.0),
    }
    found = {}

    def run(name: str, path: Callable[[], Any]) -> Any:
        CountedTable.counter.clear()
        result = path()
        found[name] = {
            role: round(CountedTable.counter[role] / table.size, 3) for role in ("logits", "output")
        }
        return result

    run("temperature fit", lambda: mc.TemperatureScaling().fit(table, labels))
    for name, calibrator in calibrators.items():
        calibrator.fit(table, labels)
        out = np.empty_like(table)
        run(
            f"predict_proba, {name}",
            lambda calibrator=calibrator, out=out: calibrator.predict_proba(table, out=out),
        )
    temperature_gate = mc.MetaCal(promise, calibrator=mc.TemperatureScaling())
    run("Meta-Cal fit, temperature", lambda: temperature_gate.fit(table, labels))
    gate = run("Meta-Cal fit, default", lambda: mc.MetaCal(promise).fit(table, labels))
    run("ranking_scores", lambda: gate.ranking_scores(table))
    run("accepts", lambda: gate.accepts(table))
    run("gate predict_proba", lambda: gate.predict_proba(table))
    run("predict", lambda: gate.predict(table))
    run("decide", lambda: gate.decide(table))
    return found


def main() -> None:
    """Count, and print the passes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--add", choices=ADDITIONS, help="add one pass on purpose")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    start_counting()
    if arguments.add is not None:
        ADDITIONS[arguments.add]()
    print(json.dumps(measure(), indent=1))


if __name__ == "__main__":
    main()
