"""The tables of `benchmarks/speed/threads.py` and `benchmarks/speed/device.py`: more cores, and a
GPU.
"""

from __future__ import annotations

from typing import Any

from benchmarks.tables.markdown import table

Results = dict[str, Any]

_SIZES = {"C": "C, 25,000 × 1,000", "D": "D, 200,000 × 1,000", "E": "E, 20,000 × 32,000 float16"}
_JOBS = {
    "read": "a read",
    "temperature": "`TemperatureScaling.fit`",
    "scores": "`MetaCal.ranking_scores`",
    "probabilities": "`predict_proba(out=)`",
    "meta-cal": "`MetaCal.fit`, temperature",
    "meta-cal, default base": "`MetaCal.fit`",
}
#: What a row of the GPU's table is called, and whether its time is told, too.
_ON_DEVICE = {
    "entropy pass": ("entropy pass", False),
    "margin pass": ("margin pass", False),
    "prediction pass": ("prediction pass", False),
    "probabilities pass": ("probabilities pass", False),
    "temperature fit, checked table": ("temperature fit, checked table", False),
    "temperature fit": ("`TemperatureScaling().fit`", True),
    "predict_proba": ("its `predict_proba`", False),
    "MetaCal fit, temperature": ('`MetaCal(..., calibrator="temperature").fit`', True),
    "MetaCal fit": ("`MetaCal(...).fit`", True),
    "MetaCal predict_proba": ("its `predict_proba`", True),
}


def threads(results: Results) -> list[str]:
    """A line for each table and job: milliseconds on 1, 4 and 16 threads."""
    rows = []
    for size, named in _SIZES.items():
        for job, words in _JOBS.items():
            seconds = results["sizes"][size][job]["seconds"]
            found = [float(seconds[count]) for count in ("1", "4", "16")]
            rows.append(
                (named, words, *(_three(1e3 * one) for one in found), f"{found[0] / found[2]:.1f}")
            )
    return table(("table", "job", "1 thread", "4", "16", "gain at 16"), rows)


def device(results: Results) -> list[str]:
    """A line for each job on a GPU, in copies of the table."""
    sizes = results["sizes"]
    head = (
        "",
        *(
            f"{one['rows']:,} × {one['classes']:,} {one['dtype'].removeprefix('torch.')}"
            for one in sizes
        ),
    )
    rows = [("one copy", *(f"{_three(one['copy_ms'])} ms" for one in sizes))]
    for job, (words, timed) in _ON_DEVICE.items():
        rows.append((words, *(_copies(one["timings"][job], timed=timed) for one in sizes)))
    rows.append(
        ("torch LBFGS, the usual recipe", *(f"{one['peer']['copies']:,.0f}" for one in sizes))
    )
    errors = ((one["temperature_error"], one["peer"]["temperature_error"]) for one in sizes)
    rows.append(
        (
            "relative error of T: ours, LBFGS",
            *(f"{ours:.0e}, {theirs:.2f}" for ours, theirs in errors),
        )
    )
    return table(head, rows)


def _copies(timing: Results, *, timed: bool) -> str:
    copies = float(timing["copies"])
    told = f"{copies:.0f}" if copies >= 10 else f"{copies:.1f}"
    return f"{told} ({_two(timing['ms'])} ms)" if timed else told


def _two(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _three(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


#: Names in the table of each job that was compared with an earlier commit.
_PASS_JOBS = {
    "predict_proba:temperature": "`predict_proba`, temperature",
    "predict_proba:default": "`predict_proba`, default calibrator",
    "uniform predict_proba:default": "the same, 1/K for rejected rows",
    "accepts:default": "`accepts`",
    "decide:default": "`decide`",
    "temperature fit": "`TemperatureScaling().fit`",
    "fit:temperature": "`MetaCal.fit`, temperature",
    "fit:default": "`MetaCal.fit`, default calibrator",
}
_PASS_SIZES = {"D": "200,000 × 1,000 float32", "V": "100,000 × 32,000 bfloat16"}
_HOST_JOBS = {
    "predict_proba:default": "`predict_proba`, default calibrator",
    "ranking_scores:default": "`ranking_scores`",
    "fit:temperature": "`MetaCal.fit`, temperature",
    "fit:default": "`MetaCal.fit`, default calibrator",
}


def device_pass(results: Results) -> list[str]:
    """Build a row for each job on a GPU, in copies of the table, now and at the earlier commit."""
    head = [""]
    for size_name in _PASS_SIZES.values():
        head += [size_name, "earlier"]
    rows = []
    for job, job_name in _PASS_JOBS.items():
        cells = [job_name]
        for size in _PASS_SIZES:
            copies = results["device"][size]["tasks"][job]["copies"]
            cells += [f"{copies['new']:.1f}", f"{copies['old']:.1f}"]
        rows.append(tuple(cells))
    return table(tuple(head), rows)


def sixteen_threads(results: Results) -> list[str]:
    """Build a row for each job on 16 threads: its time, the gain over one thread, and earlier."""
    rows = []
    for job, job_name in _HOST_JOBS.items():
        ms_on_one = results["host"][f"{job}:1"]["ms"]
        ms_on_all = results["host"][f"{job}:16"]["ms"]
        gain = ms_on_one["new"] / ms_on_all["new"]
        cells = (
            job_name,
            f"{ms_on_all['new']:.0f} ms",
            f"{gain:.1f}",
            f"{ms_on_all['old']:.0f} ms",
        )
        rows.append(cells)
    return table(("job", "16 threads", "gain over one", "earlier"), rows)
