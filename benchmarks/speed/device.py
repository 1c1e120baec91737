"""What the device path costs, in copies of the table on the same GPU.

    PYTHONPATH=src python -m benchmarks.speed.device --out device.json

Sizes: C (25,000 × 1,000 float32), D (200,000 × 1,000 float32) and V (200,000 × 32,000 bfloat16, a
language model's vocabulary). The unit is one `table.clone()`, timed beside. "pass" rows are one
kernel over a checked table; the others are what a caller types, checks of the table included.
Device events around each call, warm-up first, medians. The peer is the usual torch recipe: one
parameter, cross-entropy, LBFGS. Needs torch with CUDA; `--tune` also times the fused kernels at
other tile sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import metacal as mc
from metacal import kernels
from metacal.errors import MetacalWarning
from metacal.kernels import torch as device_kernels
from metacal.kernels import triton as fused_kernels
from metacal.maps.temperature import TemperatureMap, fit_temperature
from metacal.rows import Rows
from metacal.rows.validate import check_logits

SIZES = {
    "C": (25_000, 1_000, torch.float32),
    "D": (200_000, 1_000, torch.float32),
    "V": (200_000, 32_000, torch.bfloat16),
}
#: Bars, in copies: a temperature fit, and one pass.
FIT_BAR, PASS_BAR = 3.0, 1.5
_STRIP = 1 << 26


def realistic(
    n: int, n_classes: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Over-confident logits of a classifier that is right about 76% of the time; the best T is near
    1.8.

    One class of each row is raised by a random amount; labels are drawn from softmax(x / 1.8).
    """
    generator = torch.Generator("cuda").manual_seed(seed)
    table = torch.empty((n, n_classes), dtype=dtype, device="cuda")
    labels = torch.empty(n, dtype=torch.int64, device="cuda")
    base = 1.8 * float(np.log(n_classes))
    step = max(1, _STRIP // n_classes)
    for start in range(0, n, step):
        strip = table[start : start + step]
        x = torch.randn(strip.shape, generator=generator, device="cuda").mul_(1.5)
        rise = base + 10.0 * torch.rand(len(x), generator=generator, device="cuda") ** 0.5 - 3.0
        peak = torch.randint(n_classes, (len(x), 1), generator=generator, device="cuda")
        x.scatter_add_(1, peak, rise[:, None])
        strip.copy_(x)
        x.copy_(strip).div_(1.8)  # labels follow the rounded table
        x.sub_(torch.empty_like(x).exponential_(generator=generator).log_())
        labels[start : start + step] = x.argmax(dim=1)
    return table, labels


def timed(call: Callable[[], Any], repeats: int, warm_up: int = 2) -> list[float]:
    """Milliseconds of each repeat, by device events around the call."""
    for _ in range(warm_up):
        call()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        result = call()
        after.record()
        after.synchronize()
        found.append(before.elapsed_time(after))
        del result
    return found


def peak(call: Callable[[], Any], table: torch.Tensor) -> float:
    """Peak device memory above what was held before, as a multiple of the table."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - held
    del result
    return extra / (table.numel() * table.element_size())


def lbfgs_temperature(table: torch.Tensor, labels: torch.Tensor) -> float:
    """The usual recipe: LBFGS on one temperature, mean cross-entropy, at most 50 iterations at a
    step of 0.01.
    """
    temperature = torch.nn.Parameter(torch.full((1,), 1.5, device=table.device))
    optimiser = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(table / temperature, labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    return float(temperature.detach())


def reference_temperature(table: torch.Tensor, labels: torch.Tensor, start: float) -> float:
    """Newton steps in float64 on the whole table, strip by strip."""
    b = 1.0 / start
    step = max(1, (1 << 25) // table.shape[1])
    for _ in range(6):
        total = torch.zeros(2, dtype=torch.float64, device=table.device)
        for first in range(0, len(table), step):
            x = table[first : first + step].to(torch.float64)
            x -= x.amax(dim=1, keepdim=True)
            own = x.gather(1, labels[first : first + step, None])[:, 0]
            w = x.mul(b).exp_()
            s0 = w.sum(dim=1)
            m1 = w.mul_(x).sum(dim=1) / s0
            m2 = w.mul_(x).sum(dim=1) / s0
            total += torch.stack([(m1 - own).sum(), (m2 - m1 * m1).sum()])
        slope, curvature = total.tolist()
        b -= slope / curvature
        if abs(slope / curvature / b) < 1e-12:
            break
    return 1.0 / b


def calls(table: torch.Tensor, labels: torch.Tensor, b: float) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    rows, fitted = Rows(table), mc.TemperatureScaling().fit(table, labels)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(table, labels)
    return {
        "entropy pass": partial(kernels.entropy, table),
        "max_probability pass": partial(kernels.one_minus_max_probability, table),
        "margin pass": partial(kernels.negative_margin, table),
        "energy pass": partial(kernels.free_energy, table),
        "prediction pass": partial(kernels.predict_classes, table),
        "loss pass": partial(kernels.tempered_loss_and_derivatives, table, labels, None, b),
        "probabilities pass": partial(TemperatureMap(b), table),
        "check of the table": partial(check_logits, table),
        "temperature fit, checked table": partial(fit_temperature, rows, labels),
        "temperature fit": partial(mc.TemperatureScaling().fit, table, labels),
        "predict_proba": partial(fitted.predict_proba, table),
        "MetaCal fit": partial(mc.MetaCal(mc.MaxMiscoverage(0.05)).fit, table, labels),
        "MetaCal fit, temperature": partial(
            mc.MetaCal(mc.MaxMiscoverage(0.05), calibrator="temperature").fit, table, labels
        ),
        "MetaCal ranking_scores": partial(gate.ranking_scores, table),
        "MetaCal predict_proba": partial(gate.predict_proba, table, rejected="uniform"),
    }


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Everything about one size."""
    n, n_classes, dtype = SIZES[name]
    table, labels = realistic(n, n_classes, dtype)
    accuracy = float((device_kernels.predict_classes(table) == labels).double().mean())
    copies = timed(table.clone, max(repeats, 9))
    copy = statistics.median(copies)
    temperature = mc.TemperatureScaling().fit(table, labels).temperature_
    exact = reference_temperature(table, labels, temperature)
    result: dict[str, Any] = {
        "size": name,
        "rows": n,
        "classes": n_classes,
        "dtype": str(dtype),
        "accuracy": accuracy,
        "copy_ms": copy,
        "copy_spread_ms": [min(copies), max(copies)],
        "copy_bytes_per_s": 2 * table.numel() * table.element_size() / (copy / 1e3),
        "temperature": temperature,
        "temperature_error": abs(temperature / exact - 1.0),
        "timings": {},
    }
    for what, call in calls(table, labels, 1.0 / exact).items():
        found = timed(call, repeats)
        middle = statistics.median(found)
        result["timings"][what] = {
            "ms": middle,
            "spread_ms": [min(found), max(found)],
            "copies": middle / copy,
            "peak_memory_tables": peak(call, table),
        }
    result["peer"] = _peer(table, labels, exact, copy, repeats)
    return result


def _peer(
    table: torch.Tensor, labels: torch.Tensor, exact: float, copy: float, repeats: int
) -> dict[str, Any]:
    """The torch recipe; on the largest table it may not fit in memory or be worth a repeat."""
    large = table.numel() > 1 << 31
    try:
        call = partial(lbfgs_temperature, table, labels)
        found = timed(call, 1 if large else repeats, warm_up=1)
        temperature = call()
        tables = peak(call, table) if not large else None
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return {"failed": str(error).split(".")[0]}
    middle = statistics.median(found)
    error = abs(temperature / exact - 1.0)
    return {
        "ms": middle,
        "copies": middle / copy,
        "temperature_error": error,
        "peak_memory_tables": tables,
    }


def tune(name: str, repeats: int) -> list[dict[str, Any]]:
    """The fused kernels at other tile sizes: what the constants in kernels/triton.py were chosen
    from.
    """
    n, n_classes, dtype = SIZES[name]
    table, labels = realistic(n, n_classes, dtype)
    copy = statistics.median(timed(table.clone, 9))
    names = ("TILE_ELEMENTS", "THREAD_ELEMENTS", "LONG_TILE_ELEMENTS", "LONG_THREAD_ELEMENTS")
    names += ("MAX_REGISTER_CLASSES",)
    saved = {key: getattr(fused_kernels, key) for key in names}
    found = []
    for tile in (1024, 2048, 4096):
        for per_thread in (8, 16, 32):
            for whole in (8192, 32768):
                for name_of_tile, name_of_share in (names[:2], names[2:4]):
                    setattr(fused_kernels, name_of_tile, tile)
                    setattr(fused_kernels, name_of_share, per_thread)
                fused_kernels.MAX_REGISTER_CLASSES = whole
                line: dict[str, Any] = {
                    "size": name,
                    "tile": tile,
                    "per_thread": per_thread,
                    "whole_row": whole,
                }
                line["entropy"] = (
                    statistics.median(timed(partial(kernels.entropy, table), repeats)) / copy
                )
                loss = partial(kernels.tempered_loss_and_derivatives, table, labels, None, 0.5)
                line["loss"] = statistics.median(timed(loss, repeats)) / copy
                line["softmax"] = (
                    statistics.median(timed(partial(TemperatureMap(0.5), table), repeats)) / copy
                )
                found.append(line)
    for key, value in saved.items():
        setattr(fused_kernels, key, value)
    return found


def show(result: dict[str, Any]) -> None:
    """One size as a table of words and numbers."""
    print(
        f"\n{result['size']}: {result['rows']:,} x {result['classes']:,} {result['dtype']},"
        f" accuracy {result['accuracy']:.3f}, copy {result['copy_ms']:.3f} ms"
        f" ({result['copy_bytes_per_s'] / 1e12:.2f} TB/s), T {result['temperature']:.6f}, error of"
        f" T {result['temperature_error']:.1e}"
    )
    print(f"  {'':<32}{'ms':>10}{'copies':>9}{'memory':>9}   bar")
    bars = {
        "temperature fit": FIT_BAR,
        "temperature fit, checked table": FIT_BAR,
        "predict_proba": PASS_BAR,
    }
    for what, line in result["timings"].items():
        bar = bars.get(what, PASS_BAR if what in ("entropy pass", "probabilities pass") else None)
        verdict = "" if bar is None else f"<= {bar:g} {'yes' if line['copies'] <= bar else 'NO'}"
        memory = f"{line['peak_memory_tables']:.2f}"
        print(f"  {what:<32}{line['ms']:>10.3f}{line['copies']:>9.2f}{memory:>9}   {verdict}")
    peer = result["peer"]
    if "failed" in peer:
        print(f"  {'torch LBFGS':<32} {peer['failed']}")
    else:
        ours = result["timings"]["temperature fit"]["ms"]
        memory = "-" if peer["peak_memory_tables"] is None else f"{peer['peak_memory_tables']:.2f}"
        print(
            f"  {'torch LBFGS':<32}{peer['ms']:>10.3f}{peer['copies']:>9.2f}{memory:>9}   error of"
            f" T {peer['temperature_error']:.1e}; ours is {peer['ms'] / ours:.0f} times faster"
        )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--sizes", default="C,D,V", help="comma-separated, of C, D and V")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--tune", action="store_true", help="also time the kernels at other tile sizes"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", MetacalWarning)  # logits of bfloat16 tie
    began = time.perf_counter()
    report: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": getattr(fused_kernels.triton, "__version__", None),
        "sizes": [],
        "tuning": [],
    }
    print(f"{report['gpu']}, torch {report['torch']}, triton {report['triton']}")
    for name in options.sizes.split(","):
        report["sizes"].append(measure(name, options.repeats))
        show(report["sizes"][-1])
        torch.cuda.empty_cache()
        if options.tune:
            report["tuning"] += tune(name, 5)
            torch.cuda.empty_cache()
            for line in report["tuning"]:
                if line["size"] == name:
                    print(
                        " ",
                        *(
                            f"{k} {v:.2f} " if isinstance(v, float) else f"{k} {v} "
                            for k, v in line.items()
                        ),
                    )
        if options.out:  # after each size, so that a run cut short leaves something
            report["fused"] = fused_kernels.is_available
            report["seconds"] = time.perf_counter() - began
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    ran = "ran" if fused_kernels.is_available else "did NOT run"
    print(f"\nfused kernels {ran}; {time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
