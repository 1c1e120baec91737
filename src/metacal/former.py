"""Module names of version 0.1, which still import: `metacal.bands` is now `metacal.promises.bands`, and so on."""

from __future__ import annotations

import importlib
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader, MetaPathFinder
    from types import ModuleType
else:  # importing these bases would take longer than importing metacal
    Loader = MetaPathFinder = object

#: Former module -> where it stands now, both below `metacal`.
MOVED = {
    "arrays": "rows.arrays",
    "bands": "promises.bands",
    "both": "promises.both",
    "bounds": "promises.bounds",
    "calibrators": "estimators",
    "calibrators.auto": "estimators.auto",
    "calibrators.base": "estimators.base",
    "calibrators.gp": "estimators.gp",
    "calibrators.local": "estimators.local",
    "calibrators.temperature": "estimators.temperature",
    "certificate": "promises.certificate",
    "comparison": "estimators.compare",
    "constraints": "promises",
    "contradiction": "promises.contradiction",
    "crossfit": "estimators.crossfit",
    # `from metacal.io import artifact` asks for it by the name of the room that `io` has become.
    "files.artifact": "artifact.file",
    "files.schema": "artifact.schema",
    "files.wrapping": "artifact.wrapping",
    "grid": "kernels.grid",
    "io": "files",
    "io.artifact": "artifact.file",
    "io.predictions": "files.predictions",
    "io.schema": "artifact.schema",
    "io.wrapping": "artifact.wrapping",
    "io.writing": "files.writing",
    "labels": "rows.labels",
    "levels": "promises.levels",
    "meta": "estimators.metacal",
    "monitor": "promises.monitor",
    "paper": "promises.paper",
    "plots": "report.plots",
    "ranking": "scores.learned",
    "responses": "estimators.responses",
    "stored": "rows.stored",
    "terminal": "files.terminal",
    "validate": "rows.validate",
    "verdict": "promises.verdict",
    "weights": "rows.weights",
    "wrap": "estimators.classifier",
}
#: Those that were public as `metacal.name` and are no longer listed.
ATTRIBUTES = {name: MOVED[name] for name in ("calibrators", "io", "wrap")}


class Finder(MetaPathFinder):
    """Finds a former module where it stands now.

    Asked first: the path of a package that has moved would give `metacal.io.predictions` a second life beside
    `metacal.files.predictions`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec whose loader gives the module itself, under both names the same object."""
        room, _, name = fullname.partition(".")
        if room != "metacal" or name not in MOVED:
            return None
        return ModuleSpec(fullname, _Same(f"metacal.{MOVED[name]}"))


class _Same(Loader):
    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # importing under a former name must not rename the module
