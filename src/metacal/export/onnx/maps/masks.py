"""What every map but a plain softmax reads: finite masks as -inf, and double logits that can be summed and squared."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx.graph import Arithmetic
from metacal.kernels.masks import FURTHER, LOWEST_ORDINARY, NAMED, NO_LOGIT
from metacal.kernels.reach import REACH


def has_no_masks(maths: Arithmetic, logits: str) -> str:
    """One flag: no logit of the table is so low that it may stand for a masked class; false where one is NaN."""
    return maths("Greater", maths.graph.op("ReduceMin", logits, keepdims=0), LOWEST_ORDINARY)


def with_masks(maths: Arithmetic, logits: str) -> str:
    """The logits with -inf where a finite number stands for a masked class, by the rule of `metacal.kernels.masks`."""
    graph = maths.graph
    written = graph.at_most(logits, maths.value(NO_LOGIT))
    for number in NAMED:
        if float(np.asarray(number, dtype=maths.dtype)) == number:
            written = graph.op("Or", written, maths("Equal", logits, number))
    far = maths("Mul", maths("Abs", maths.max(logits)), -FURTHER)
    found = graph.op("And", written, graph.at_most(logits, far))
    return maths("Where", found, -np.inf, logits)


def within_reach(maths: Arithmetic, logits: str) -> str:
    """Double logits of the same softmax that can be squared and summed, by the rule of `metacal.kernels.reach`.

    Rows of an ordinary size stay as they are, to the last bit. No float32 logit is out of a double's reach.
    """
    top = maths.max(logits)
    shift = maths("Where", maths("Less", maths("Abs", top), REACH), 0.0, top)
    moved = maths("Max", maths("Sub", logits, shift), -REACH)
    return maths("Where", maths.possible(logits), moved, -np.inf)
