"""Write lower-bounds.txt from pyproject.toml: python tests/lower_bounds.py.

The file has the oldest version of each dependency that pyproject.toml admits, as constraints for
pip. Packages that pyproject.toml pins are left out.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

FILE = Path(__file__).with_name("lower-bounds.txt")
PROJECT = tomllib.loads((FILE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Extras whose packages the tests do not import.
NOT_TESTED = ("docs",)
HEADER = """\
# The oldest versions that pyproject.toml admits, to install with `pip install -c` and to run the tests with
# (CONTRIBUTING.md says how). Written by tests/lower_bounds.py. Not here: packages that pyproject.toml pins
# (torch, triton, ruff, mypy), so the bound of the torch extra is not run.
"""


def declared_bounds() -> dict[str, Version]:
    """Return the lower bound of each package that is not pinned.

    Raises
    ------
    ValueError
        If a package is declared with two bounds, or with something else than a bound or a pin.
    """
    lines = list(PROJECT["dependencies"])
    for extra, requirements in PROJECT["optional-dependencies"].items():
        if extra not in NOT_TESTED:
            lines += requirements
    bounds: dict[str, Version] = {}
    pinned = set()
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:  # an extra that includes another one
            continue
        (specifier,) = requirement.specifier
        version = Version(specifier.version)
        if specifier.operator == "==":
            pinned.add(requirement.name)
        elif specifier.operator != ">=":
            raise ValueError(f"{requirement} is neither a lower bound nor a pin.")
        elif bounds.setdefault(requirement.name, version) != version:
            raise ValueError(f"{requirement.name} is declared with two bounds.")
    return {name: version for name, version in bounds.items() if name not in pinned}


def text() -> str:
    """Return what the file should hold."""
    bounds = sorted(declared_bounds().items(), key=lambda item: item[0].lower())
    return HEADER + "".join(f"{name}=={version}\n" for name, version in bounds)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
