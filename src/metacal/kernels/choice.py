"""Choice between the C kernels and the kernels in NumPy."""

from __future__ import annotations

import sys
from types import ModuleType

from metacal.errors import InputError
from metacal.kernels import numpy as numpy_kernels

#: Environment variable that selects the kernels: "auto", "numpy" or "fused".
KERNEL_VARIABLE = "METACAL_KERNEL"

_NOT_BUILT = (
    "the C kernel was not built (no compiler when metacal was installed, or a wheel without it?)"
)
if sys.platform == "win32":
    _NOT_BUILT = (
        "the C kernel is not built on Windows, whose compiler lacks the vector types it is"
        " written in"
    )


def choose_kernels(requested: str) -> tuple[ModuleType, str]:
    """Return the module of the kernels, and the reason for the choice as text.

    Raises
    ------
    InputError
        If the request is unknown, or "fused" and the C extension is not built.
    """
    if requested not in ("auto", "numpy", "fused"):
        raise InputError(f"{KERNEL_VARIABLE} must be auto, numpy or fused, but got {requested!r}.")
    if requested == "numpy":
        return numpy_kernels, f"{KERNEL_VARIABLE}=numpy asks for it"
    try:
        from metacal.kernels import fused
    except ImportError as error:
        if requested == "fused":
            raise InputError(
                f"{KERNEL_VARIABLE}=fused requires the C kernel, which is not built ({error})."
                f" Build the kernel, or set {KERNEL_VARIABLE}=auto."
            ) from None
        return numpy_kernels, _NOT_BUILT
    instruction_sets = ", ".join(fused.instruction_sets())
    return fused, f"the C kernel is built; this processor runs {instruction_sets}"
