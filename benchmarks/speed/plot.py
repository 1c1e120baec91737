"""The scaling of the fits as a picture: time against rows and against classes, on log-log paper."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from metacal.errors import MissingExtraError


def require_matplotlib() -> None:
    """Raise unless matplotlib is there: better before the benchmark than after it."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("a plot of the scaling", "plot")


def draw_scaling(results: dict[str, Any], path: str) -> None:
    """Write the picture; the ending of the name (.svg, .png, .pdf) chooses the format."""
    require_matplotlib()
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    figure, axes = import_module("matplotlib.pyplot").subplots(
        1, 2, figsize=(10, 4), layout="constrained"
    )
    for axis, along in zip(axes, ("rows", "classes"), strict=True):
        for kernel, found in results["kernels"].items():
            ladder = found["scaling"].get(along)
            if ladder is None:
                continue
            sizes = [point[along] for point in ladder["points"]]
            for (task, slope), style in zip(ladder["slope"].items(), ("o-", "s--"), strict=True):
                seconds = [point[task] for point in ladder["points"]]
                label = f"{task}, {kernel}" + ("" if slope is None else f" (slope {slope:.2f})")
                axis.loglog(sizes, seconds, style, label=label)
        axis.set_xlabel(along)
        axis.set_ylabel("CPU seconds")
        axis.legend()
    figure.savefig(path)
