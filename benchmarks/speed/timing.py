"""CPU time of several functions, interleaved, so that a busy moment of the machine falls on all of
them alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

#: A sample lasts at least this long (seconds of CPU): short functions are called several times per
#: sample.
SHORTEST_SAMPLE = 0.01


@dataclass
class Stopwatch:
    """One function and what its calls took.

    Attributes
    ----------
    function : callable
        What is timed.
    budget : float
        CPU seconds after which no further sample is taken; one sample is always taken.
    peer : bool
        A peer is not called once before, unmeasured (it may be slow), and may fail: that is noted,
        not raised.
    """

    function: Callable[[], Any]
    budget: float = math.inf
    peer: bool = False
    samples: list[float] = field(default_factory=list)
    answer: Any = None
    error: str | None = None
    _calls: int = 0

    def sample(self) -> None:
        """Take one sample, unless the budget is spent or the function has failed."""
        if self.error is not None:
            return
        try:
            self._sample()
        except Exception as error:
            if not self.peer:
                raise
            self.error = f"{type(error).__name__}: {error}"

    def _sample(self) -> None:
        if self._calls == 0:
            self._first()
        elif sum(self.samples) * self._calls < self.budget:
            self.samples.append(self._timed(self._calls))

    def _first(self) -> None:
        """Find how many calls a sample needs; a first call that was long enough is itself the
        sample.
        """
        if not self.peer:
            self.answer = self.function()
        took = self._timed(1)
        self._calls = max(1, math.ceil(SHORTEST_SAMPLE / max(took, 1e-7)))
        self.samples.append(took if self._calls == 1 else self._timed(self._calls))

    def _timed(self, calls: int) -> float:
        begun = time.process_time()
        for _ in range(calls):
            self.answer = self.function()
        return (time.process_time() - begun) / calls

    def to_dict(self) -> dict[str, Any]:
        """Median and raw samples, in CPU seconds per call; or what went wrong."""
        if self.error is not None:
            return {"error": self.error}
        median = statistics.median(self.samples)
        return {
            "median": median,
            "repeats": len(self.samples),
            "calls": self._calls,
            "samples": self.samples,
        }


def interleaved(stopwatches: dict[str, Stopwatch], repeats: int) -> Iterator[tuple[str, Stopwatch]]:
    """Sample every stopwatch in turn, `repeats` times over; yield before each, so that the caller
    can say what runs.

    Examples
    --------
    >>> watches = {"sum": Stopwatch(lambda: sum(range(9))), "max": Stopwatch(lambda: max(range(9)))}
    >>> [name for name, watch in interleaved(watches, repeats=2)]
    ['sum', 'max', 'sum', 'max']
    >>> watches["sum"].answer, len(watches["sum"].samples)
    (36, 2)
    """
    for _ in range(repeats):
        for name, stopwatch in stopwatches.items():
            yield name, stopwatch
            stopwatch.sample()
