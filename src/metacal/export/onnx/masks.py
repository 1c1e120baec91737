"""Finite numbers that stand for a masked class, read as -inf: the rule of `metacal.kernels.masks` as ONNX nodes."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.kernels.masks import FURTHER, LOWEST_ORDINARY, NAMED, NO_LOGIT


def with_masks(graph: Graph, logits: str, dtype: str) -> str:
    """The logits with -inf for such numbers; one minimum over the table decides whether they are looked for at all."""
    maths = Arithmetic(graph, dtype)
    ordinary = graph.all(maths("Greater", maths.min(logits), LOWEST_ORDINARY))

    def looked_for(branch: Graph) -> list[str]:
        inner = Arithmetic(branch, dtype)
        written = branch.at_most(logits, inner.value(NO_LOGIT))
        for number in NAMED:
            written = branch.op("Or", written, inner("Equal", logits, number))
        furthest = inner("Mul", inner("Abs", inner.max(logits)), -FURTHER)
        mask = branch.op("And", written, branch.at_most(logits, furthest))
        return [inner("Where", mask, -np.inf, logits)]

    return graph.choose(ordinary, [dtype], lambda branch: [branch.op("Identity", logits)], looked_for)[0]
