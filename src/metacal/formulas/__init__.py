"""Every map and every score, written once, over the few operations of `operations.py`; NumPy, torch
and ONNX run them.

Folder = kind of formula. What a runtime has a faster way for hangs on its `fast`: formula ->
kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Columns and tables of numbers, of yes and no, of column or row numbers, and of whatever was
#: given.
Float = NDArray[np.float64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.intp]
Array = NDArray[Any]
