"""Statistics of one block of rows: the only code that touches every logit. One interface, two implementations.

`numpy.py` is the definition and always works; `fused.py` calls the C extension, where it was built. Which one runs is
settled at import: the C kernel if it is there, unless the environment variable METACAL_KERNEL says "numpy".
"""

from __future__ import annotations

import os
from types import ModuleType

from metacal.errors import InputError
from metacal.kernels import numpy as definition

KERNEL_VARIABLE = "METACAL_KERNEL"


def _choose(wanted: str) -> tuple[ModuleType, str]:
    """The module to use, and why."""
    if wanted not in ("auto", "numpy", "fused"):
        raise InputError(f"{KERNEL_VARIABLE} must be auto, numpy or fused, got {wanted!r}.")
    if wanted == "numpy":
        return definition, f"{KERNEL_VARIABLE}=numpy asks for it"
    try:
        from metacal.kernels import fused
    except ImportError as error:
        if wanted == "fused":
            raise InputError(f"{KERNEL_VARIABLE}=fused, but the C kernel is not built ({error}).") from None
        return definition, "the C kernel was not built (no compiler when metacal was installed?)"
    return fused, f"the C kernel is built; this processor runs {', '.join(fused.instruction_sets())}"


active, reason = _choose(os.environ.get(KERNEL_VARIABLE, "auto"))

predicted = active.predicted
entropy = active.entropy
doubt = active.doubt
negative_margin = active.negative_margin
free_energy = active.free_energy
softmax = active.softmax
tempered_loss = active.tempered_loss
