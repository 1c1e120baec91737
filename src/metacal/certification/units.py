"""Units: the clusters that a user declares for calibration rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.certificates.design import CertificationDesign, CountedBy
from metacal.certification.rows import Clusters
from metacal.errors import ClustersError
from metacal.formulas import Codes, Flags
from metacal.rows.arrays import as_plain_array


@dataclass(frozen=True, eq=False)
class Units:
    """Clusters of dependent rows, and how the rows of a cluster are counted.

    Attributes
    ----------
    names : array-like of shape (n_rows,)
        Name of the cluster of each row.

    per : {"unit", "row", "mean"}, default="unit"
        - "unit": each cluster counts once, by a row that is drawn at random.
        - "row": each row counts once, so a cluster of ten rows counts ten times. This shows if
          large clusters have more errors. Rows are certified by bets on whole clusters, which
          requires more rows.
        - "mean": each cluster with counted rows (the accepted ones for an accuracy, the correct
          ones for a miscoverage) counts once, by the mean over these rows.

    largest : int, optional
        If `per` is "row": the largest number of rows that any cluster can have. By default, the
        size of the largest cluster of these rows is used, and the promise is called approximate.

    Examples
    --------
    >>> Units(["a", "b", "a"], per="row").encode_names(3)
    array([0, 1, 0])
    """

    names: ArrayLike
    per: CountedBy = "unit"
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.per not in get_args(CountedBy):
            raise ClustersError(
                "per must be 'unit' (one random row of each cluster), 'row' (every row) or"
                f" 'mean' (the mean of each cluster), but got {self.per!r}."
            )
        if self.largest is None:
            return
        if self.per == "unit":
            raise ClustersError(
                "largest has no effect unless per='row'. Leave out largest, or count every row"
                " with Units(names, per='row', largest=...)."
            )
        is_integer = isinstance(self.largest, int | np.integer)
        if isinstance(self.largest, bool) or not is_integer or self.largest < 1:
            raise ClustersError(f"largest must be a positive integer, but got {self.largest!r}.")

    @classmethod
    def from_units_argument(cls, units: Units | ArrayLike) -> Units:
        """Convert the argument `units=`, which may be an array of names, to `Units`."""
        if isinstance(units, Units):
            return units
        return cls(units)

    def encode_names(self, n_rows: int) -> Codes:
        """Encode the cluster name of each row as an integer from 0."""
        return encode_units(self.names, n_rows)

    def take(self, row_indices: Codes, n_rows: int) -> Units:
        """Return the clusters of the selected rows."""
        return replace(self, names=self.encode_names(n_rows)[row_indices])

    def build_clusters(self, shuffled_codes: Codes) -> Clusters:
        """Build the clusters for a promise that counts all rows of a cluster.

        Parameters
        ----------
        shuffled_codes : array of int of shape (n_rows,)
            Cluster of each row. The clusters are numbered in random order.

        Returns
        -------
        Clusters

        Raises
        ------
        InputError
            If a cluster has more rows than declared.
        """
        largest_observed_size = int(np.bincount(shuffled_codes).max())
        max_size = largest_observed_size
        if self.largest is not None:
            max_size = int(self.largest)
        if largest_observed_size > max_size:
            raise ClustersError(
                f"A cluster has {largest_observed_size:,} rows, but the declared maximum is"
                f" largest={self.largest:,}. Raise largest, or leave it out."
            )
        uses_cluster_means = self.per == "mean"
        return Clusters.from_codes(
            shuffled_codes, max_size=max_size, uses_cluster_means=uses_cluster_means
        )

    def build_design(self, clusters: Clusters | None) -> CertificationDesign:
        """Build a design that records how the rows of a cluster were counted.

        Parameters
        ----------
        clusters : Clusters or None
            Clusters whose every row counts. None if one row of each cluster counts.

        Returns
        -------
        CertificationDesign
        """
        if clusters is None:
            return CertificationDesign(cluster_counting=self.per)
        return CertificationDesign(
            cluster_counting=self.per,
            largest_cluster_size=clusters.max_size,
            is_largest_cluster_declared=self.largest is not None,
        )


def encode_units(unit_names: ArrayLike, n_rows: int) -> Codes:
    """Encode the cluster name of each row as an integer from 0.

    Raises
    ------
    InputError
        If there is not exactly one name for each row, or if a name is missing.

    Examples
    --------
    >>> encode_units(["b", "a", "b"], 3)
    array([1, 0, 1])
    """
    name_array = as_plain_array(unit_names, "units")
    if name_array.shape != (n_rows,):
        raise ClustersError(
            f"units must have one entry for each of the {n_rows} rows, but got an array of shape"
            f" {name_array.shape}."
        )
    is_missing = find_missing_names(name_array)
    if is_missing.any():
        first_missing_row = int(np.argmax(is_missing))
        raise ClustersError(
            f"Row {first_missing_row} has no cluster in units. Give every row the name of its"
            " cluster. A row that is independent of all others needs a unique name."
        )
    if name_array.dtype == object:
        name_array = name_array.astype(str)
    _, cluster_codes = np.unique(name_array, return_inverse=True)
    return cluster_codes.reshape(-1).astype(np.intp)


def find_missing_names(name_array: NDArray[Any]) -> Flags:
    """Return a mask of the names that are missing, such as None or NaN."""
    is_numeric = name_array.dtype.kind in "fc"
    if is_numeric:
        return np.asarray(np.isnan(name_array))
    return np.array([name is None or name != name for name in name_array.tolist()], dtype=bool)
