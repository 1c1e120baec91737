"""The optional C kernel: built where there is a compiler, left out without an error where there is
none.

It uses the limited API of Python 3.11, so one wheel a platform serves every Python from there on.
It is not built by Microsoft's compiler, which lacks the vector types it is written in, nor where
METACAL_KERNEL=numpy says that it is not wanted: the wheel is then pure Python, and `metacal config`
says what runs.
"""

import os
import re
import sys
import sysconfig
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WANTED = sys.platform != "win32" and os.environ.get("METACAL_KERNEL") != "numpy"
#: A free-threaded Python has no limited API.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")


class BuildKernel(build_ext):
    """Removes a kernel that was built beside the source under another name: Python would go on
    importing that one.
    """

    def copy_extensions_to_source(self):
        """What `--inplace` and editable installs do at the end."""
        super().copy_extensions_to_source()
        for extension in self.extensions:
            own = self.get_ext_fullpath(extension.name)
            for other in glob(os.path.join(os.path.dirname(own), "_fused*.so")):
                if os.path.exists(own) and not os.path.samefile(own, other):
                    os.remove(other)


kernel = Extension(
    "metacal.kernels._fused",
    sources=["src/metacal/kernels/fused.c"],
    depends=glob("src/metacal/kernels/*.h"),
    # A name that the limited API lacks must not be taken for a function that returns an int.
    extra_compile_args=[
        "-O3",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=fast",
        "-Werror=implicit-function-declaration",
    ],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
    py_limited_api=LIMITED,
    libraries=["m"],
    optional=True,
)


def readme():
    """README.md with its links to files of the repository made absolute: a package index shows
    it by itself.
    """
    source = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"][
        "Source"
    ]
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{source}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{source}/blob/main/", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[kernel] if WANTED else [],
    cmdclass={"build_ext": BuildKernel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if WANTED and LIMITED else {},
)
