"""Formulas of the calibration maps and scores, written once for all runtimes.

A formula uses only the array operations of `metacal.formulas.operations`. NumPy, torch
and ONNX each implement these operations, so one definition serves fitting, prediction
on a device and export. A runtime can replace a formula by a faster kernel.

The modules group the formulas by kind: `temperature`, `affine`, `curves`, `gp` and
`parts` (maps built from maps) return probabilities; `rowwise` returns scores. `logits`
and `probabilities` prepare the logits and finish the probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Array of floating-point numbers.
Float = NDArray[np.float64]
#: Boolean array, usually a mask.
Flags = NDArray[np.bool_]
#: Array of column or row indices.
Codes = NDArray[np.intp]
#: Array of any type.
Array = NDArray[Any]
