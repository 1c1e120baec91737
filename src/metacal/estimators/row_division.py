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
    X: Any, y: Array, holdout: float, random_state: int | None, cluster_codes: Codes | None = None
) -> tuple[Codes, Codes]:
    """Divide the rows at random between fitting and calibration.

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
    cluster_codes : array of int or None, default=None
        Cluster of each row. Clusters are not divided.

    Returns
    -------
    fit_rows : array of int
        Rows to fit on.
    calibration_rows : array of int
        Rows to calibrate on.
    """
    n_rows = len(y)
    n_samples_or_clusters = n_rows
    if cluster_codes is not None and n_rows > 0:
        n_samples_or_clusters = int(cluster_codes.max()) + 1
    n_held_out = min(round(holdout * n_samples_or_clusters), n_samples_or_clusters - 1)
    if n_held_out < 1:
        noun = "samples" if cluster_codes is None else "clusters"
        raise TooFewRowsError(
            f"Got {n_samples_or_clusters} {noun} (n_samples={n_rows}), which are too few to fit the"
            " classifier on some of them and calibrate on the others. Pass more rows, or pass a"
            " fitted classifier."
        )
    row_draws = make_row_draws(X, y, random_state, cluster_codes)
    if cluster_codes is None:
        random_order = row_draws.draw_row_order(purpose="held-out rows")
        is_held_out = np.zeros(n_rows, dtype=bool)
        is_held_out[random_order[:n_held_out]] = True
    else:
        # The clusters are numbered in random order, so the first ones are a random draw.
        cluster_rank_of_row = row_draws.draw_cluster_numbers("held-out units")
        is_held_out = cluster_rank_of_row < n_held_out
    fit_rows = np.flatnonzero(~is_held_out)
    calibration_rows = np.flatnonzero(is_held_out)
    return fit_rows, calibration_rows


def make_row_draws(
    X: Any, y: Array, random_state: int | None, cluster_codes: Codes | None
) -> RowDraws:
    """Make a source of random draws that do not depend on the order of the rows.

    Parameters
    ----------
    X : array-like
        Features.
    y : array of shape (n_rows,)
        Labels.
    random_state : int or None
        Seed that the user chose. None derives it from X and y.
    cluster_codes : array of int or None
        Cluster of each row.

    Returns
    -------
    RowDraws
    """
    _, label_codes = np.unique(y, return_inverse=True)
    label_codes = label_codes.reshape(-1)
    feature_columns = _make_numeric_columns(X, len(y))
    return RowDraws(
        (*feature_columns, label_codes), cluster_codes=cluster_codes, random_state=random_state
    )


def _make_numeric_columns(X: Any, n_rows: int) -> list[NDArray[Any]]:
    """Convert features to numeric columns, which are equal for equal rows.

    The rows of a sparse matrix, or of text, are hashed to one column. The list is empty if X holds
    anything but numbers and text.
    """
    is_sparse = hasattr(X, "tocsr")
    if is_sparse:
        return [_hash_sparse_rows(X.tocsr(), n_rows)]
    try:
        feature_table = np.asarray(X).reshape(n_rows, -1)
    except (TypeError, ValueError):
        return []
    is_numeric = feature_table.dtype.kind in "biuf"
    if is_numeric:
        return list(feature_table.T)
    table_entries = feature_table.ravel().tolist()
    has_only_plain_entries = all(
        isinstance(entry, str | bytes | int | float | None) for entry in table_entries
    )
    # The string form of an arbitrary object may differ from run to run.
    if not has_only_plain_entries:
        return []
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
    cv: Any,
    X: Any,
    y: Array,
    random_state: int | None,
    cluster_codes: Codes | None,
    **split_params: Any,
) -> Folds:
    """Draw the folds of a cross-fit, or obtain them from a splitter.

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
    cluster_codes : array of int or None
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
        folds = _draw_folds(
            int(cv), y, cluster_codes, make_row_draws(X, y, random_state, cluster_codes)
        )
    else:
        if cluster_codes is not None:
            split_params["groups"] = cluster_codes
        splitter = check_cv(cv, y, classifier=True)
        folds = list(splitter.split(X, y, **split_params))
    _check_folds(folds, len(y), cluster_codes)
    return folds


def _check_folds(folds: Folds, n_rows: int, cluster_codes: Codes | None) -> None:
    """Raise InputError unless the folds divide the rows, and keep each cluster together."""
    all_test_rows = np.sort(np.concatenate([test_rows for _, test_rows in folds]))
    every_row_is_tested_once = np.array_equal(all_test_rows, np.arange(n_rows))
    if not every_row_is_tested_once:
        raise InputError("cv must assign every row to exactly one test fold, as KFold does.")
    if cluster_codes is None:
        return
    for fit_rows, test_rows in folds:
        shares_cluster_with_fit_rows = np.isin(cluster_codes[test_rows], cluster_codes[fit_rows])
        if shares_cluster_with_fit_rows.any():
            raise ClustersError(
                "cv must not split a cluster over several folds. Pass a number of folds,"
                " GroupKFold or StratifiedGroupKFold."
            )


def _draw_folds(n_folds: int, y: Array, cluster_codes: Codes | None, draws: RowDraws) -> Folds:
    """Draw stratified folds that do not depend on the order of the rows.

    Parameters
    ----------
    n_folds : int
        Number of folds.
    y : array of shape (n_rows,)
        Labels.
    cluster_codes : array of int or None
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
    splitter_class = StratifiedKFold if cluster_codes is None else StratifiedGroupKFold
    splitter = splitter_class(n_folds, shuffle=True, random_state=seed)
    cluster_code_in_random_order = None if cluster_codes is None else cluster_codes[random_order]
    unused_features = np.zeros((len(y), 1))
    folds = []
    for fit_positions, test_positions in splitter.split(
        unused_features, y[random_order], cluster_code_in_random_order
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
