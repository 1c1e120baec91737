"""Verbs: what one does with anything that is fitted: evaluate, verify, report, watch, save, export.

Each calls the public function of its name (`metacal.evaluate`, ...), which stands in a room above
this one, by the front door of the package: it is imported when it is called.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metacal.errors import InputError

if TYPE_CHECKING:
    from metacal.gate.watch import Watch


class Verbs:
    """The verbs of a gate, and of every estimator that holds one."""

    def evaluate(self, X: Any, y: Any, **options: Any) -> Any:
        """Measure calibration, and whether the promise is kept, on labelled rows:
        `metacal.evaluate`.
        """
        import metacal

        return metacal.evaluate(self, X, y, **options)

    def verify(self, X: Any, y: Any = None, **options: Any) -> Any:
        """Is the promise kept, undecided or refuted on labelled rows that the fit has not seen?
        `metacal.verify`.

        Examples
        --------
        >>> import metacal as mc
        >>> data = mc.datasets.load("cifar10-resnet110")
        >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits[:5000], data.labels[:5000])
        >>> cal.verify(data.logits[5000:], data.labels[5000:]).verdict.word
        'kept'
        """
        import metacal

        return metacal.verify(self, X, y, **options)

    def report(
        self, X: Any, y: Any, path: str | os.PathLike[str] = "report.html", **options: Any
    ) -> int:
        """Write one page on labelled rows, and return its size in bytes: `metacal.write_report`."""
        import metacal

        return metacal.write_report(self, X, y, path, **options)

    def watch(self, delta: float = 0.05, **options: Any) -> Watch:
        """Watch the traffic, with false alarms at delta in all: `metacal.Watch.of`."""
        import metacal

        return metacal.Watch.of(self, delta, **options)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write it as JSON; `metacal.load` gives it back, bit for bit: `metacal.save`."""
        import metacal

        metacal.save(self, path, **options)

    def export(
        self, path: str | os.PathLike[str] | None = None, *, to: str = "onnx", **options: Any
    ) -> Any:
        """A model of its own: an ONNX file at `path` (`metacal.export.onnx.save`), or with
        to="torch" a module.

        The module needs no path (`metacal.export.torch.to_module`); save it as torch does.
        """
        if to not in ("onnx", "torch") or (path is None) != (to == "torch"):
            raise InputError(
                f"export writes to='onnx' at a path, or makes to='torch'; got to={to!r},"
                f" path={path!r}."
            )
        made = import_module(f"metacal.export.{to}")
        return made.to_module(self, **options) if path is None else made.save(self, path, **options)
