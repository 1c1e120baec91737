"""Process that times one version of metacal on a GPU, for `device_pass.py`.

The process imports metacal from PYTHONPATH and no other module of this folder, so that it can time
an old version. It reads one request per line from standard input (`task`, `size`, `repeats` as
JSON), and writes one answer per line to the file descriptor that its first argument names.
"""

from __future__ import annotations

import cProfile
import inspect
import io
import json
import os
import pstats
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch

import metacal as mc

#: Rows, classes and type of the tables.
SIZES = {
    "D": (200_000, 1_000, torch.float32),
    "V": (100_000, 32_000, torch.bfloat16),
    "tiny": (2_000, 50, torch.float32),
}
#: Elements of a piece of a table that is drawn at once.
_PIECE_ELEMENTS = 1 << 26
#: Rows on which decisions and probabilities are compared with those of the CPU.
_COMPARED_ROWS = 5_000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Call = Callable[[], Any]


@cache
def table_and_labels(size: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw over-confident logits, and labels from softmax(x / 1.8); accuracy is about 76%."""
    n_rows, n_classes, dtype = SIZES[size]
    generator = torch.Generator(DEVICE).manual_seed(0)
    table = torch.empty((n_rows, n_classes), dtype=dtype, device=DEVICE)
    labels = torch.empty(n_rows, dtype=torch.int64, device=DEVICE)
    lowest_rise = 1.8 * float(np.log(n_classes)) - 3.0
    step = max(1, _PIECE_ELEMENTS // n_classes)
    for start in range(0, n_rows, step):
        piece = table[start : start + step]
        x = torch.randn(piece.shape, generator=generator, device=DEVICE).mul_(1.5)
        rise = lowest_rise + 10.0 * torch.rand(len(x), generator=generator, device=DEVICE) ** 0.5
        peak = torch.randint(n_classes, (len(x), 1), generator=generator, device=DEVICE)
        x.scatter_add_(1, peak, rise[:, None])
        piece.copy_(x)
        x.copy_(piece).div_(1.8)
        x.sub_(torch.empty_like(x).exponential_(generator=generator).log_())
        labels[start : start + step] = x.argmax(dim=1)
    return table, labels


@cache
def host_table_and_labels(size: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Copy the table and the labels to the host."""
    table, labels = table_and_labels(size)
    return table.cpu().numpy(), labels.cpu().numpy()


def estimator(base: str, n_jobs: int | None = None) -> Any:
    """Return an unfitted gate with a temperature or with the default calibrator."""
    options: dict[str, Any] = {} if base == "default" else {"calibrator": base}
    if n_jobs is not None:
        options["n_jobs"] = n_jobs
    return mc.MetaCal(mc.MaxMiscoverage(0.05), **options)


@cache
def fitted(size: str, base: str) -> Any:
    """Return a gate that is fitted to a table on the device."""
    return estimator(base).fit(*table_and_labels(size))


@cache
def fitted_on_host(size: str, base: str, n_jobs: int) -> Any:
    """Return a gate that is fitted to an array."""
    return estimator(base, n_jobs).fit(*host_table_and_labels(size))


@cache
def output_of(size: str) -> np.ndarray[Any, Any]:
    """Allocate a table of probabilities on the host."""
    return np.zeros(host_table_and_labels(size)[0].shape, dtype=np.float32)


def device_call(task: str, size: str) -> Call:
    """Return what is timed on the device."""
    table, labels = table_and_labels(size)
    action, _, base = task.partition(":")
    if action == "copy":
        return table.clone
    if action == "fit":
        return partial(estimator(base).fit, table, labels)
    if action == "temperature fit":
        return partial(mc.TemperatureScaling().fit, table, labels)
    gate = fitted(size, base)
    if action == "uniform predict_proba":
        # Rejected rows had equal probabilities in every version without this parameter.
        has_parameter = "rejected" in inspect.signature(gate.predict_proba).parameters
        options = {"rejected": "uniform"} if has_parameter else {}
        return partial(gate.predict_proba, table, **options)
    return partial(getattr(gate, action), table)


def host_call(task: str, size: str, n_jobs: int) -> Call:
    """Return what is timed on the CPU."""
    table, labels = host_table_and_labels(size)
    action, _, base = task.partition(":")
    if action == "fit":
        return partial(estimator(base, n_jobs).fit, table, labels)
    gate = fitted_on_host(size, base, n_jobs)
    if action == "predict_proba":
        return partial(gate.predict_proba, table, out=output_of(size))
    return partial(getattr(gate, action), table)


def timed(call: Call, repeats: int, warm_up: int) -> list[float]:
    """Return the milliseconds of each repeat, with the wait for the device."""
    for _ in range(warm_up):
        call()
    milliseconds = []
    for _ in range(repeats):
        _synchronise()
        begun = time.perf_counter()
        result = call()
        _synchronise()
        milliseconds.append(1e3 * (time.perf_counter() - begun))
        del result
    return milliseconds


def _synchronise() -> None:
    """Wait for the device, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def answer_time(request: dict[str, Any]) -> Any:
    """Time a task."""
    if "n_jobs" in request:
        call = host_call(request["task"], request["size"], request["n_jobs"])
    else:
        call = device_call(request["task"], request["size"])
    return timed(call, request["repeats"], request.get("warm_up", 0))


def answer_events(request: dict[str, Any]) -> dict[str, float]:
    """Count kernel launches and copies of a task, and sum the time on the device."""
    from torch.profiler import ProfilerActivity, profile

    call = device_call(request["task"], request["size"])
    call()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        call()
        _synchronise()
    launches = 0
    copies = 0
    device_us = 0.0
    for event in profiler.events():
        if "CUDA" not in str(event.device_type):
            continue
        device_us += event.time_range.elapsed_us()
        if event.name.startswith("Memcpy"):
            copies += 1
        else:
            launches += 1
    return {"launches": launches, "copies": copies, "device_ms": device_us / 1e3}


def answer_profile(request: dict[str, Any]) -> str:
    """Return the functions of the host that take the most time in a task."""
    call = device_call(request["task"], request["size"])
    call()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(5):
        call()
    profiler.disable()
    text = io.StringIO()
    statistics = pstats.Stats(profiler, stream=text)
    statistics.sort_stats("tottime").print_stats(25)
    statistics.sort_stats("cumtime").print_stats(70)
    return text.getvalue()


def answer_compare(request: dict[str, Any]) -> dict[str, float]:
    """Compare decisions and probabilities of some rows with those of the CPU.

    Some classes of every second row are masked. Probabilities of an array are compared in its own
    type; a bfloat16 table is read as float32 on the CPU.
    """
    table, _ = table_and_labels(request["size"])
    gate = fitted(request["size"], request["base"])
    rows = table[:: max(1, len(table) // _COMPARED_ROWS)].clone()
    generator = torch.Generator(DEVICE).manual_seed(1)
    is_masked = torch.rand(rows.shape, generator=generator, device=DEVICE) < 0.3
    is_masked[::2] = False
    is_masked.scatter_(1, rows.argmax(dim=1, keepdim=True), False)
    rows[is_masked] = -torch.inf
    dtype = {"float64": torch.float64, "float16": torch.float16}.get(request.get("dtype", ""))
    rows = rows.to(dtype) if dtype is not None else rows
    is_half = rows.dtype == torch.bfloat16
    array = (rows.float() if is_half else rows).cpu().numpy()
    found = gate.decide(rows, rejected=request["rejected"])
    expected = gate.decide(array, rejected=request["rejected"])
    probabilities = gate.predict_proba(rows).double().cpu().numpy()
    expected_probabilities = gate.predict_proba(array).astype(np.float64)
    is_possible = np.isfinite(array)
    ratio = probabilities[is_possible] / expected_probabilities[is_possible]
    return {
        "rows": len(array),
        "different_acceptance": int((found.accept != expected.accept).sum()),
        "different_accepts": int((gate.accepts(rows) != gate.accepts(array)).sum()),
        "different_predictions": int((found.predicted_codes != expected.predicted_codes).sum()),
        "different_scores": int((found.score != expected.score).sum()),
        "decision_probability_error": float(
            np.abs(found.probabilities.double().cpu().numpy() - expected.probabilities).max()
        ),
        "confidence_error": float(np.abs(found.confidence - expected.confidence).max()),
        "probability_error": float(np.abs(probabilities - expected_probabilities).max()),
        "largest_ratio_error": float(np.abs(ratio - 1.0).max()),
        "zeros_or_ones": int(
            ((probabilities <= 0.0) & is_possible).sum() + (probabilities >= 1.0).sum()
        ),
        "masked_not_zero": int((probabilities[~is_possible] != 0.0).sum()),
        "accepted": float(found.accept.mean()),
    }


def answer_tune(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Time probabilities and acceptance with other sizes of the tiles."""
    from metacal.kernels import triton as fused

    table, _ = table_and_labels(request["size"])
    gate = fitted(request["size"], "default")
    lines = []
    for constants in request["constants"]:
        saved = {name: getattr(fused, name) for name in constants}
        for name, value in constants.items():
            setattr(fused, name, value)
        line: dict[str, Any] = dict(constants)
        for name in ("predict_proba", "accepts"):
            call = partial(getattr(gate, name), table)
            line[name] = float(np.median(timed(call, 5, warm_up=2)))
        lines.append(line)
        for name, value in saved.items():
            setattr(fused, name, value)
    return lines


def answer_about(request: dict[str, Any]) -> dict[str, Any]:
    """Describe this process."""
    from metacal.kernels import triton as fused

    is_fused = getattr(fused, "is_available", None)
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        "threads": os.cpu_count(),
        "fused": is_fused,
    }


def answer_forget(request: dict[str, Any]) -> bool:
    """Free the tables and the gates."""
    for function in (table_and_labels, host_table_and_labels, fitted, fitted_on_host, output_of):
        function.cache_clear()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return True


ANSWERS = {
    "time": answer_time,
    "events": answer_events,
    "profile": answer_profile,
    "compare": answer_compare,
    "tune": answer_tune,
    "about": answer_about,
    "forget": answer_forget,
}


def main() -> None:
    """Answer requests until the input ends."""
    warnings.simplefilter("ignore")
    if DEVICE == "cpu":
        # Without a GPU, tensors on the CPU take the path of the device, so that this can be tested.
        from metacal import kernels

        vars(kernels)["is_device_tensor"] = lambda table: isinstance(table, torch.Tensor)
    answers = os.fdopen(int(sys.argv[1]), "w")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": ANSWERS[request["what"]](request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
