"""The optional C kernel: built where there is a compiler, left out without an error where there is none."""

import sys
from glob import glob

from setuptools import Extension, setup

flags = [] if sys.platform == "win32" else ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]

setup(
    ext_modules=[
        Extension(
            "metacal.kernels._fused",
            sources=["src/metacal/kernels/fused.c"],
            depends=glob("src/metacal/kernels/*.h"),
            extra_compile_args=flags,
            optional=True,
        )
    ]
)
