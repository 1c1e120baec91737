"""History of a watch: counts and evidence at regular intervals, for a chart."""

from __future__ import annotations

from dataclasses import dataclass, field

from metacal.gate.traffic import Point

#: Initial number of rows between two points. The number doubles if the history is full.
INITIAL_ROWS_BETWEEN_POINTS = 250
#: Maximum number of points in a history.
MAX_POINTS = 400


@dataclass
class History:
    """Counts and evidence of a watch, in points that are `stride` rows apart.

    Attributes
    ----------
    stride : int
        Number of rows between two points.
    points : list of Point
        Points, the oldest first.
    """

    stride: int = INITIAL_ROWS_BETWEEN_POINTS
    points: list[Point] = field(default_factory=list)

    def is_due(self, n_rows: int) -> bool:
        """Check whether the history needs a point after `n_rows` rows of the stream."""
        return n_rows % self.stride == 0

    def has_point_at(self, n_rows: int) -> bool:
        """Check whether the latest point was added after `n_rows` rows of the stream."""
        return len(self.points) > 0 and self.points[-1].rows == n_rows

    def add(self, point: Point) -> None:
        """Add a point to the history. Drop every second point if there are too many."""
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            every_second_point = self.points[1::2]
            self.points = every_second_point
            self.stride *= 2


def split_at_history_points(n_earlier_rows: int, n_rows: int) -> list[slice]:
    """Split a batch into blocks that end at the possible points of the history.

    The history is then the same, however the rows are divided into batches.

    Parameters
    ----------
    n_earlier_rows : int
        Number of rows of the stream before the batch.
    n_rows : int
        Number of rows of the batch.

    Returns
    -------
    list of slice

    Examples
    --------
    >>> split_at_history_points(200, 320)
    [slice(0, 50, None), slice(50, 300, None), slice(300, 320, None)]
    """
    if n_rows == 0:
        return []
    n_rows_since_last_point = n_earlier_rows % INITIAL_ROWS_BETWEEN_POINTS
    n_rows_to_next_point = INITIAL_ROWS_BETWEEN_POINTS - n_rows_since_last_point
    starts_after_points = range(n_rows_to_next_point, n_rows, INITIAL_ROWS_BETWEEN_POINTS)
    block_starts = [0, *starts_after_points]
    block_stops = [*starts_after_points, n_rows]
    return [slice(start, stop) for start, stop in zip(block_starts, block_stops, strict=True)]
