"""Test matrix: Python versions, oldest and newest dependencies, kernels, and numbers of cores.

    nox -s tests                          every cell for which a Python is installed
    nox -s "tests-3.12(newest, c, all)"   one cell
    nox -s tests-3.14 -- tests/unit       other tests than the quick ones of .ci/smoke
    METACAL_DIST=dist nox -s tests        test the wheels in dist/, not the source
    nox -s sanitize                       the C kernel under AddressSanitizer and UBSan

A session installs metacal as a user would, without the repository on the path.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

import nox

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: The bounds in tests/lower-bounds.txt have wheels for this Python alone.
OLDEST_PYTHON = "3.11"
#: Share of lines and branches that the tests must reach, in percent. Measured: 96, in promises/ and
#: gate/ 97.
COVERAGE = 95

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = False


def cell_requirements() -> list[str]:
    """The test dependencies of a cell."""
    declared = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    return list(declared["test"])


def wheel(kernel: str) -> str:
    """What is tested: the source, or a wheel that was built before."""
    folder = os.environ.get("METACAL_DIST")
    if folder is None:
        return "."
    (found,) = Path(folder).glob(
        "metacal-*abi3*.whl" if kernel == "c" else "metacal-*-none-any.whl"
    )
    return str(found)


@nox.session(python=PYTHONS)
@nox.parametrize("cores", ["one", "all"], ids=["one", "all"])
@nox.parametrize("kernel", ["c", "numpy"], ids=["c", "numpy"])
@nox.parametrize("dependencies", ["newest", "oldest"], ids=["newest", "oldest"])
def tests(session: nox.Session, dependencies: str, kernel: str, cores: str) -> None:
    """One cell of the matrix."""
    if dependencies == "oldest" and session.python != OLDEST_PYTHON:
        session.skip(f"the oldest dependencies have wheels for Python {OLDEST_PYTHON} alone")
    if cores == "one" and shutil.which("taskset") is None:
        session.skip("taskset keeps a process on one core; it is not here")
    bounds = ["-c", "tests/lower-bounds.txt"] if dependencies == "oldest" else []
    build = {"METACAL_KERNEL": "numpy"} if kernel == "numpy" else {}
    session.install(wheel(kernel), *cell_requirements(), *bounds, env=build)
    session.run("python", "-c", CHECK, "fused" if kernel == "c" else "numpy")
    command = ["bash", ".ci/smoke", *session.posargs]
    session.run(*(["taskset", "-c", "0", *command] if cores == "one" else command), external=True)


#: That the cell is the one it says it is.
CHECK = """
import sys
import metacal
config = metacal.show_config()
if config.kernel != sys.argv[1] or "site-packages" not in metacal.__file__:
    sys.exit(f"the kernel is {config.kernel} ({config.reason}), of {metacal.__file__}")
"""


@nox.session(python=OLDEST_PYTHON)
def lint(session: nox.Session) -> None:
    """Style, types, imports."""
    session.install("-e", ".[test-all]")
    session.run("bash", ".ci/lint", external=True)


@nox.session(python=OLDEST_PYTHON)
def coverage(session: nox.Session) -> None:
    """What the tests reach, subprocesses included; fails below the floor."""
    session.install("-e", ".[test-all]", "coverage[toml]>=7.10")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-n", "2", *session.posargs)
    session.run("coverage", "combine", "-q")
    session.run("coverage", "report", f"--fail-under={COVERAGE}")
    session.run("coverage", "html", "-q", "-d", "ci-artifacts/coverage")


@nox.session(python=OLDEST_PYTHON)
def sanitize(session: nox.Session) -> None:
    """Kernel tests on a C kernel that is built with AddressSanitizer and
    UndefinedBehaviorSanitizer.
    """
    if shutil.which("gcc") is None:
        session.skip("the sanitizers of GCC are used; it is not here")
    session.install(".[test]", "setuptools")
    session.run("bash", ".ci/sanitize", *session.posargs, external=True)


@nox.session(python=OLDEST_PYTHON)
def package(session: nox.Session) -> None:
    """Sdist and wheels, checked, installed in empty environments and demoed."""
    session.run("bash", ".ci/package", *session.posargs, external=True)
