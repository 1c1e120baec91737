# mypy: allow-untyped-calls, allow-untyped-decorators, allow-untyped-defs
# mypy: allow-incomplete-defs, allow-any-generics
"""Fused kernel in Triton of calibrated probabilities, with the decision on each row.

The kernel computes maps that need only a few numbers of each row: every class but the predicted one
becomes w·scale + shift, where w = e^{b·(x - max x)}. One read and one write of the table give the final
probabilities, none of them 0 or 1, and if a score is wanted, the score, the prediction, the confidence
and the acceptance of each row.

Rows that fit into registers are read once. Longer rows are read in two sweeps: the first one
computes the sums of each row, the second one, which mostly reads from the cache, writes.

As in `triton.py`, the functions return False if Triton cannot run. The functions in `torch.py` define
the results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from metacal.formulas.probabilities import probability_limits
from metacal.kernels import triton as fused
from metacal.kernels.columns import Curve, RowMap
from metacal.kernels.triton import _Layout, _split_float, float_bits
from metacal.kernels.triton_decision_kernel import decision_kernel

#: Cache of the curves that were copied to a device.
_device_curves: WeakKeyDictionary[Curve, dict[torch.device, Tensor]] = WeakKeyDictionary()


@dataclass(frozen=True)
class DecisionBuffers:
    """Columns that the kernel writes in addition to the probabilities.

    Attributes
    ----------
    scores : tensor of float64
        Unrounded ranking scores, NaN for invalid rows.

    predictions : tensor of int64
        Column of the largest logit.

    confidence : tensor
        Calibrated probability of the prediction.

    acceptance_codes : tensor of uint8
        Codes of `kernels.torch.acceptance_codes`.
    """

    scores: Tensor
    predictions: Tensor
    confidence: Tensor
    acceptance_codes: Tensor

    @classmethod
    def allocate(cls, block: Tensor, dtype: torch.dtype) -> DecisionBuffers:
        """Allocate the columns of a block, with confidences of this type."""
        n_rows = len(block)
        return cls(
            scores=torch.empty(n_rows, dtype=torch.float64, device=block.device),
            predictions=torch.empty(n_rows, dtype=torch.int64, device=block.device),
            confidence=torch.empty(n_rows, dtype=dtype, device=block.device),
            acceptance_codes=torch.empty(n_rows, dtype=torch.uint8, device=block.device),
        )


def try_to_write_probabilities(
    block: Tensor,
    row_map: RowMap,
    out: Tensor,
    *,
    with_limits: bool = True,
    largest_mask: float | None = None,
    needs_inspection: Tensor | None = None,
) -> bool:
    """Write the probabilities of a map into `out` if Triton can run.

    Parameters
    ----------
    block : tensor of shape (n_rows, n_classes)
        Logits.

    row_map : RowMap
        Map.

    out : tensor of shape (n_rows, n_classes)
        Buffer for the result, which may be the block itself.

    with_limits : bool, default=True
        Whether to keep the probabilities of possible classes away from 0 and 1.

    largest_mask : float, default=None
        Largest finite number that may stand for a masked class.

    needs_inspection : tensor of int32 of shape (1,), default=None
        Flag that becomes 1 if a row is invalid or may contain such a number.

    Returns
    -------
    bool
        False if Triton cannot run.
    """
    return _launch_decision_kernel(
        block,
        row_map,
        out,
        with_limits=with_limits,
        largest_mask=largest_mask,
        needs_inspection=needs_inspection,
    )


def try_to_write_decisions(
    block: Tensor,
    row_map: RowMap,
    out: Tensor,
    buffers: DecisionBuffers,
    *,
    score: str,
    threshold: float,
    rejected_are_uniform: bool,
) -> bool:
    """Write probabilities and the decision on each row if Triton can run.

    Parameters
    ----------
    block, row_map, out
        As in `try_to_write_probabilities`.

    buffers : DecisionBuffers
        Columns to write.

    score : str
        Name of the ranking score.

    threshold : float
        Largest score of an accepted row, between two points of the grid of scores.

    rejected_are_uniform : bool
        Whether rejected rows have the same probability in every class. Rows without a score always
        have.

    Returns
    -------
    bool
        False if Triton cannot run.
    """
    return _launch_decision_kernel(
        block,
        row_map,
        out,
        buffers=buffers,
        score=score,
        threshold=threshold,
        uniform_rows="rejected" if rejected_are_uniform else "invalid",
    )


def _launch_decision_kernel(
    block: Tensor,
    row_map: RowMap,
    out: Tensor,
    *,
    buffers: DecisionBuffers | None = None,
    score: str = "none",
    threshold: float = math.inf,
    uniform_rows: str = "none",
    with_limits: bool = True,
    largest_mask: float | None = None,
    needs_inspection: Tensor | None = None,
) -> bool:
    """Launch the kernel, or return False if Triton cannot run."""
    is_double = block.dtype == torch.float64
    if not out.is_contiguous() or out.dtype != (torch.float64 if is_double else torch.float32):
        return False
    if not fused.can_fuse(block):
        return False
    layout = _Layout(
        block,
        max_register_classes=fused.MAX_REGISTER_CLASSES,
        uses_double=score not in ("none", "negative_margin"),
    )
    # Triton does not accept None, so placeholders are passed for missing arguments.
    columns: dict[str, Any] = dict.fromkeys(
        ("scores", "predictions", "confidence", "acceptance_codes"), out
    )
    if buffers is not None:
        columns = vars(buffers)
    curve = row_map.curve
    b_high, b_low = _split_float(row_map.inverse_temperature)
    uniform_high, uniform_low = _split_float(row_map.uniform_weight)
    equal_high, equal_low = _split_float(1.0 / block.shape[1])
    smallest, largest = probability_limits(torch.finfo(out.dtype))
    return layout.launch(
        decision_kernel,
        block,
        out=out,
        **columns,
        needs_inspection=out if needs_inspection is None else needs_inspection,
        curve=out if curve is None else _curve_on_device(curve, block.device),
        b_high=b_high,
        b_low=b_low,
        uniform_high=uniform_high,
        uniform_low=uniform_low,
        equal_high=equal_high,
        equal_low=equal_low,
        threshold_bits=float_bits(threshold),
        largest_mask=0.0 if largest_mask is None else largest_mask,
        MAP=_map_kind(row_map),
        N_PIECES=0 if curve is None else len(curve.knots) - 1,
        SCORE=score,
        UNIFORM_ROWS=uniform_rows,
        SMALLEST=smallest if with_limits else 0.0,
        LARGEST=largest if with_limits else 2.0,
        FINDS_MASKS=largest_mask is not None,
        REPORTS=needs_inspection is not None,
        STAGES=fused.PIPELINE_STAGES,
        **fused.limit_registers(layout.n_tiles),
    )


def _map_kind(row_map: RowMap) -> str:
    """Return the name by which the kernel identifies the kind of a map."""
    if row_map.curve is not None:
        return "curve"
    return "softmax" if row_map.uniform_weight == 0.0 else "mixture"


def _curve_on_device(curve: Curve, device: torch.device) -> Tensor:
    """Return the packed pieces of a curve on a device, to which they are copied once."""
    tensor_by_device = _device_curves.setdefault(curve, {})
    if device not in tensor_by_device:
        tensor_by_device[device] = torch.tensor(curve.packed_pieces, device=device)
    return tensor_by_device[device]
