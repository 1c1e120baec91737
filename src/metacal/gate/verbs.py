"""Methods shared by a gate and by every estimator that contains one.

Each method calls the public function for its task, such as `metacal.evaluate` for `evaluate`. These
functions are defined in packages that import this one, so they are imported when a method is
called.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metacal.errors import InputError

if TYPE_CHECKING:
    from metacal.gate.watch import Watch


class GateMethods:
    """Mixin with the methods that evaluate, monitor, save and export a fitted gate."""

    def evaluate(self, X: Any, y: Any, **options: Any) -> Any:
        """Measure calibration and check the promise on labelled rows.

        See `metacal.evaluate` for the options and the result.
        """
        import metacal

        return metacal.evaluate(self, X, y, **options)

    def verify(self, X: Any, y: Any = None, **options: Any) -> Any:
        """Test on new labelled rows whether the promise is kept, undecided or refuted.

        See `metacal.verify` for the options and the result.

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
        """Write an HTML report on labelled rows, and return its size in bytes.

        See `metacal.report` for the options.
        """
        import metacal

        return metacal.report(self, X, y, path, **options)

    def watch(self, delta: float = 0.05, **options: Any) -> Watch:
        """Create a monitor of new rows with a false alarm probability of at most delta.

        See `metacal.Watch.of` for the options.
        """
        import metacal

        return metacal.Watch.of(self, delta, **options)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the fitted object to a JSON file that `metacal.load` restores exactly.

        See `metacal.save` for the options.
        """
        import metacal

        metacal.save(self, path, **options)

    def export(
        self, path: str | os.PathLike[str] | None = None, *, to: str = "onnx", **options: Any
    ) -> Any:
        """Export to an ONNX file, or to a PyTorch module.

        Parameters
        ----------
        path : path-like or None, default=None
            File to write. Required for `to="onnx"`. Must be None for `to="torch"`, because you save
            a module with PyTorch.
        to : "onnx" or "torch", default="onnx"
            Target of the export.
        **options
            Options of `metacal.export.onnx.save` or of `metacal.export.torch.to_module`.

        Returns
        -------
        object
            Result of the function that `to` selects, such as the PyTorch module.

        Raises
        ------
        InputError
            If `to` is unknown, or does not fit `path`.
        """
        is_known_target = to in ("onnx", "torch")
        needs_path = to == "onnx"
        has_path = path is not None
        if not is_known_target or has_path != needs_path:
            raise InputError(
                f"Got to={to!r} and path={path!r}. Pass to='onnx' with a path, or to='torch'"
                " without a path."
            )
        export_module = import_module(f"metacal.export.{to}")
        if path is None:
            return export_module.to_module(self, **options)
        return export_module.save(self, path, **options)
