"""The optional C kernel: built where there is a compiler, left out without an error where there is none."""

import sys

from setuptools import Extension, setup

flags = [] if sys.platform == "win32" else ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]

setup(
    ext_modules=[
        Extension(
            "metacal.kernels._fused",
            sources=["src/metacal/kernels/fused.c"],
            depends=[f"src/metacal/kernels/fused_{part}.h" for part in ("buffers", "checks", "table", "rows", "scores", "set")],
            extra_compile_args=flags,
            optional=True,
        )
    ]
)
