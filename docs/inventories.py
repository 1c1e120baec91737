"""The names of scikit-learn, NumPy and SciPy, for links to their pages: fetched where a network is,
else left out.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import urllib.request
from pathlib import Path

SITES = {
    "sklearn": "https://scikit-learn.org/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
}


def reachable(seconds: float = 3.0) -> dict[str, tuple[str, str]]:
    """Site -> its address and a local copy of its inventory; empty without a network, and no
    warning of it.
    """
    folder, found = Path(tempfile.mkdtemp(prefix="inventories-")), {}
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, address in SITES.items():
        try:
            with urllib.request.urlopen(f"{address}objects.inv", timeout=seconds) as answer:
                content = answer.read()
        except OSError:
            break  # the others would only take as long to fail
        if not content.startswith(b"# Sphinx inventory"):
            break  # somebody else answered: a proxy, a login page
        (folder / f"{name}.inv").write_bytes(content)
        found[name] = (address, str(folder / f"{name}.inv"))
    return found
