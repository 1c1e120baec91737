"""What the sdist and the wheels hold, against what the repository holds: nothing missing, nothing
that does not belong.

python .ci/contents.py FOLDER: with one sdist and any number of wheels.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Tracked files that only the repository's host reads.
HOST_ONLY = (".github/", ".gitignore", ".gitattributes")
#: What building adds to an sdist.
MADE = ("PKG-INFO", "setup.cfg", "src/metacal.egg-info/")
#: What of the package is for building and checking it, not for running it.
NOT_INSTALLED = (".c", ".h", ".d.ts", "tsconfig.json")


def tracked() -> set[str]:
    """The files of the repository that are there, those that are new and not ignored included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {name for name in listed if (ROOT / name).exists() and not name.startswith(HOST_ONLY)}


def check_sdist(path: Path) -> list[str]:
    """Complaints about an sdist."""
    with tarfile.open(path) as archive:
        found = {member.name.partition("/")[2] for member in archive if member.isfile()}
    found = {name for name in found if not name.startswith(MADE)}
    return [f"{path.name} lacks {name}" for name in sorted(tracked() - found)] + [
        f"{path.name} has {name}, which the repository does not"
        for name in sorted(found - tracked())
    ]


def check_wheel(path: Path) -> list[str]:
    """Complaints about a wheel."""
    expected = {
        name.removeprefix("src/")
        for name in tracked()
        if name.startswith("src/metacal/") and not name.endswith(NOT_INSTALLED)
    }
    pure = path.name.endswith("-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    kernels = {
        name
        for name in found
        if name.startswith("metacal/kernels/_fused.") and name.endswith((".so", ".pyd"))
    }
    odd = (
        [] if len(kernels) == (not pure) else [f"{path.name} has {sorted(kernels) or 'no kernel'}"]
    )
    return (
        odd
        + [f"{path.name} lacks {name}" for name in sorted(expected - found)]
        + [
            f"{path.name} has {name}, which it should not"
            for name in sorted(found - expected - kernels)
        ]
    )


def main(folder: Path) -> None:
    """Check all, and fail with every complaint."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    complaints = [] if len(sdists) == 1 else [f"{folder} has {len(sdists)} sdists; one is expected"]
    complaints += [text for path in sdists for text in check_sdist(path)]
    complaints += [text for path in wheels for text in check_wheel(path)]
    if complaints:
        sys.exit("\n".join(complaints))
    sys.stderr.write(
        f"{', '.join(path.name for path in (*sdists, *wheels))}: complete, and nothing else\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
