"""Division of rows into those that a classifier is fitted on and those that calibrate it.

A *cluster* (`units`) is a set of dependent rows, which are never divided between fitting and
calibration.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv

from metacal.errors import ClustersError, InputError, TooFewRowsError
from metacal.formulas import Array, Codes
from metacal.rows.draws import RowDraws
from metacal.rows.row_hashes import hash_rows

#: Indices of the rows to fit on and of the rows to score, for each fold.
Folds = list[tuple[Codes, Codes]]
#: Upper limit of the seeds of scikit-learn's splitters.
_SEED_LIMIT = 2**31
#: Number of bytes of the hash of a row.
_HASH_BYTES = 8


def draw_calibration_rows(
    X: Any, y: Array, holdout: float, random_state: int | None, units: Codes | None = None
) -> tuple[Codes, Codes]:
    """Draw random rows to calibrate on. The other rows are for fitting.

    The draw is not stratified. A stratified draw would depend on the labels, and the calibration
    rows would then not have the distribution of new rows.

    Parameters
    ----------
    X : array-like
        Features.
    y : array of shape (n_rows,)
        Labels.
    holdout : float
        Fraction of the rows, or of the clusters, to calibrate on.
    random_state : int or None
        Seed that the user chose. None derives it from X and y.
    units : array of int or None, default=None
        Cluster of each row. Clusters are not divided.

    Returns
    -------
    fit_rows : array of int
        Rows to fit on.
    calibration_rows : array of int
        Rows to calibrate on.
    """
    n_rows = len(y)
    n_units = n_rows
    if units is not None and n_rows > 0:
        n_units = int(units.max()) + 1
    n_held_out_units = min(round(holdout * n_units), n_units - 1)
    if n_held_out_units < 1:
        unit_name = "samples" if units is None else "clusters"
        raise TooFewRowsError(
            f"Got {n_units} {unit_name} (n_samples={n_rows}), which are too few to fit the"
            " classifier on some of them and calibrate on the others. Pass more rows, or pass a"
            " fitted classifier."
        )
    row_draws = make_row_draws(X, y, random_state, units)
    if units is None:
        random_order = row_draws.draw_row_order(purpose="held-out rows")
        is_held_out = np.zeros(n_rows, dtype=bool)
        is_held_out[random_order[:n_held_out_units]] = True
    else:
        random_cluster_numbers = row_draws.draw_cluster_numbers("held-out units")
        is_held_out = random_cluster_numbers < n_held_out_units
    fit_rows = np.flatnonzero(~is_held_out)
    calibration_rows = np.flatnonzero(is_held_out)
    return fit_rows, calibration_rows


def make_row_draws(X: Any, y: Array, random_state: int | None, units: Codes | None) -> RowDraws:
    """Make a source of random draws that do not depend on the order of the rows.

    Parameters
    ----------
    X : array-like
        Features.
    y : array of shape (n_rows,)
        Labels.
    random_state : int or None
        Seed that the user chose. None derives it from X and y.
    units : array of int or None
        Cluster of each row.

    Returns
    -------
    RowDraws
    """
    _, label_codes = np.unique(y, return_inverse=True)
    label_codes = label_codes.reshape(-1)
    feature_columns = _make_numeric_columns(X, len(y))
    return RowDraws((*feature_columns, label_codes), units=units, random_state=random_state)


def _make_numeric_columns(X: Any, n_rows: int) -> list[NDArray[Any]]:
    """Return numeric columns that distinguish the rows of the features.

    The rows of a sparse matrix, or of text, are hashed to one column. The list is empty if X holds
    anything but numbers and text.
    """
    no_columns: list[NDArray[Any]] = []
    is_sparse = hasattr(X, "tocsr")
    if is_sparse:
        return [_hash_sparse_rows(X.tocsr(), n_rows)]
    try:
        feature_table = np.asarray(X).reshape(n_rows, -1)
    except (TypeError, ValueError):
        return no_columns
    is_numeric = feature_table.dtype.kind in "biuf"
    if is_numeric:
        return list(feature_table.T)
    table_entries = feature_table.ravel().tolist()
    has_only_plain_entries = all(
        isinstance(entry, str | bytes | int | float | None) for entry in table_entries
    )
    # The string form of an arbitrary object may differ from run to run.
    if not has_only_plain_entries:
        return no_columns
    return [_hash_text_rows(feature_table)]


def _hash_sparse_rows(matrix: Any, n_rows: int) -> NDArray[np.uint64]:
    """Compute a hash of each row of a sparse matrix in CSR format."""
    row_hashes = np.zeros(n_rows, dtype=np.uint64)
    n_entries_per_row = np.diff(matrix.indptr)
    row_of_entry = np.repeat(np.arange(n_rows), n_entries_per_row)
    entry_hashes = hash_rows(matrix.indices, matrix.data)
    np.add.at(row_hashes, row_of_entry, entry_hashes)
    return row_hashes


def _hash_text_rows(table: NDArray[Any]) -> NDArray[Any]:
    """Compute a hash of each row of a table of text."""
    digests = []
    for row_entries in table.tolist():
        row_text = "\0".join(str(entry) for entry in row_entries)
        row_bytes = row_text.encode(errors="surrogatepass")
        digests.append(blake2b(row_bytes, digest_size=_HASH_BYTES).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8")


def make_folds(
    cv: Any, X: Any, y: Array, random_state: int | None, units: Codes | None, **split_params: Any
) -> Folds:
    """Draw the folds of a cross-fit, or take them from a splitter, and validate them.

    Parameters
    ----------
    cv : int or splitter
        Number of folds, or a scikit-learn splitter.
    X : array-like
        Features.
    y : array of shape (n_rows,)
        Labels.
    random_state : int or None
        Seed that the user chose, if `cv` is a number. None derives it from X and y.
    units : array of int or None
        Cluster of each row. All rows of a cluster are in one fold.
    **split_params
        Parameters of the splitter.

    Returns
    -------
    list of pairs of arrays of int
        Rows to fit and rows to score, for each fold.

    Raises
    ------
    InputError
        If a row is not scored exactly once, or if a cluster is divided.
    """
    is_number = isinstance(cv, int | np.integer)
    if isinstance(cv, bool) or (is_number and cv < 2):
        raise InputError(
            "cv must be an integer of at least 2, a splitter, or None to hold rows out once, but"
            f" got {cv!r}."
        )
    if is_number:
        _, class_counts = np.unique(y, return_counts=True)
        if class_counts.max() < cv:
            raise TooFewRowsError(
                f"cv={cv} is greater than the number of rows in every class (n_samples={len(y)})."
                " Use fewer folds."
            )
        folds = _draw_folds(int(cv), y, units, make_row_draws(X, y, random_state, units))
    else:
        if units is not None:
            split_params["groups"] = units
        splitter = check_cv(cv, y, classifier=True)
        folds = list(splitter.split(X, y, **split_params))
    _check_folds(folds, len(y), units)
    return folds


def _check_folds(folds: Folds, n_rows: int, units: Codes | None) -> None:
    """Check that every row is tested exactly once, and that no cluster is divided."""
    all_test_rows = np.sort(np.concatenate([test_rows for _, test_rows in folds]))
    every_row_is_tested_once = np.array_equal(all_test_rows, np.arange(n_rows))
    if not every_row_is_tested_once:
        raise InputError("cv must assign every row to exactly one test fold, as KFold does.")
    if units is None:
        return
    for fit_rows, test_rows in folds:
        shares_cluster_with_fit_rows = np.isin(units[test_rows], units[fit_rows])
        if shares_cluster_with_fit_rows.any():
            raise ClustersError(
                "cv must not split a cluster over several folds. Pass a number of folds,"
                " GroupKFold or StratifiedGroupKFold."
            )


def _draw_folds(n_folds: int, y: Array, units: Codes | None, draws: RowDraws) -> Folds:
    """Draw stratified folds that do not depend on the order of the rows.

    Parameters
    ----------
    n_folds : int
        Number of folds.
    y : array of shape (n_rows,)
        Labels.
    units : array of int or None
        Cluster of each row. Clusters are not divided.
    draws : RowDraws
        Source of random draws.

    Returns
    -------
    list of pairs of arrays of int
        Rows to fit and rows to score, for each fold.
    """
    random_order = draws.draw_row_order(purpose="folds")
    seed = draws.derive_seed("folds") % _SEED_LIMIT
    splitter_class = StratifiedKFold if units is None else StratifiedGroupKFold
    splitter = splitter_class(n_folds, shuffle=True, random_state=seed)
    shuffled_units = None if units is None else units[random_order]
    unused_features = np.zeros((len(y), 1))
    folds = []
    for fit_positions, test_positions in splitter.split(
        unused_features, y[random_order], shuffled_units
    ):
        fit_rows = np.sort(random_order[fit_positions])
        test_rows = np.sort(random_order[test_positions])
        folds.append((fit_rows, test_rows))
    return folds


def select_rows(column: Any, rows: Codes) -> Any:
    """Return the given rows of a column, or None if there is no column."""
    if column is None:
        return None
    return np.asarray(column)[rows]
