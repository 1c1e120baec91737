"""A gate's map as a file holds it: the base map, the score and the threshold under one name."""

from __future__ import annotations

from dataclasses import dataclass

from metacal.gate import Gate
from metacal.maps.map import Map
from metacal.scores import Score


@dataclass(frozen=True, eq=False)
class MetaMap:
    """What stands under "map" in the file of a gate."""

    base: Map
    score: str | Score
    threshold: float

    @classmethod
    def of(cls, gate: Gate) -> MetaMap:
        """The gate's parts, with the certificate's threshold: a file loaded and saved again says what it said."""
        threshold = gate.threshold if gate.certificate is None else gate.certificate.threshold
        return cls(gate.map, gate.score, threshold)
