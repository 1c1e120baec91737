"""python -m benchmarks speed: how fast metacal is on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from benchmarks.experiments.options import json_option
from metacal.cli.printing import echo, print_json, print_note, progress_bar
from metacal.cli.values import REPEATS_RANGE, SEED_RANGE
from metacal.display import align_columns
from metacal.errors import InputError

if TYPE_CHECKING:
    from benchmarks.speed.bars import Ratio
    from benchmarks.speed.measure import Plan

T = TypeVar("T")


@click.command("speed")
@click.option(
    "--sizes",
    default="A,B,C",
    show_default=True,
    help="Tables: A, B, C, D (800 MB), E (1.3 GB), or ROWSxCLASSES.",
)
@click.option(
    "--kernels", metavar="LIST", help="numpy, fused or both.  [default: those that are built]"
)
@click.option(
    "--peers",
    metavar="LIST",
    default="all",
    show_default=True,
    help="all (that are installed), none, or their names.",
)
@click.option(
    "--repeats", type=REPEATS_RANGE, default=5, show_default=True, help="Samples of each timing."
)
@click.option("--seed", type=SEED_RANGE, default=0, show_default=True, help="Which logits.")
@click.option("-o", "--output", metavar="JSON", help="Write all that was measured.")
@click.option(
    "--plot", metavar="FILE", help="Draw time against rows and classes: .svg, .png or .pdf."
)
@click.option(
    "--against",
    metavar="COMMIT",
    help="Time only this tree and an earlier commit, interleaved, and print the ratios.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With --against: threads of each task.",
)
@json_option
def command(
    sizes: str,
    kernels: str | None,
    peers: str,
    repeats: int,
    seed: int,
    output: str | None,
    plot: str | None,
    against: str | None,
    threads: int,
    as_json: bool,
) -> None:
    """Time every part of metacal against a plain read of the table and against its peers.

    CPU time, one thread, medians of interleaved samples, on logits that look like a network's. Slow
    peers are sampled less often, and not at all on D and E. A, B and C take a few minutes; numbers
    want a machine that does little else.

    With --against, nothing but two trees of metacal is timed: this one, and COMMIT, which is checked
    out and built in a temporary folder. A ratio above 1 means that this tree is slower.

    \b
    Examples:
      python -m benchmarks speed
      python -m benchmarks speed --sizes A,B,C,D,E -o speed.json --plot scaling.svg
      python -m benchmarks speed --sizes 2000x50 --peers scikit-learn,paper
      python -m benchmarks speed --peers none --json | jq '.ratios[] | select(.met == false)'
      python -m benchmarks speed --against main --sizes A,C --repeats 25
    """  # noqa: D301
    from benchmarks.speed.measure import measure
    from benchmarks.speed.plot import draw_scaling, require_matplotlib

    if against is not None:
        _compare_trees(against, sizes, repeats, seed, threads, output=output, as_json=as_json)
        return
    plan = _plan(sizes, kernels, peers, repeats, seed)
    _check_writable(output, plot)
    if plot is not None:
        require_matplotlib()
    progress = _Bar()
    try:
        results = measure(plan, progress)
    finally:
        progress.close()
    if output is not None:
        Path(output).write_text(
            json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
    if plot is not None:
        draw_scaling(results, plot)
    if as_json:
        print_json(results)
    else:
        echo("\n".join(_report(results)))
    for path in (output, plot):
        if path is not None:
            print_note(f"Saved to {path}.")


def _compare_trees(
    commit: str,
    sizes: str,
    repeats: int,
    seed: int,
    n_threads: int,
    *,
    output: str | None,
    as_json: bool,
) -> None:
    """Compare this tree with a commit, and print or write the ratios."""
    from benchmarks.speed.against import Comparison, compare, table_of
    from benchmarks.speed.sizes import parse_sizes

    comparison = Comparison(
        commit, _parsed("--sizes", parse_sizes, sizes), repeats, seed, n_threads
    )
    _check_writable(output, None)
    progress = _Bar()
    try:
        results = compare(comparison, progress)
    finally:
        progress.close()
    if output is not None:
        Path(output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print_note(f"Saved to {output}.")
    if as_json:
        print_json(results)
    else:
        echo("\n".join(table_of(results)))


def _plan(sizes: str, kernels: str | None, peers: str, repeats: int, seed: int) -> Plan:
    from importlib.util import find_spec

    from benchmarks.speed.measure import Plan, parse_kernels
    from benchmarks.speed.peers import parse_peers
    from benchmarks.speed.sizes import parse_sizes

    built = "numpy,fused" if find_spec("metacal.kernels._fused") else "numpy"
    return Plan(
        sizes=_parsed("--sizes", parse_sizes, sizes),
        kernels=_parsed("--kernels", parse_kernels, built if kernels is None else kernels),
        peers=_parsed("--peers", parse_peers, peers),
        repeats=repeats,
        seed=seed,
    )


def _parsed(option: str, parse: Callable[[str], list[T]], text: str) -> tuple[T, ...]:
    """Each thing once; what cannot be parsed is wrong usage."""
    try:
        return tuple(dict.fromkeys(parse(text)))
    except InputError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None


def _check_writable(output: str | None, plot: str | None) -> None:
    """Refuse now what could not be written after minutes of work."""
    for path, option in ((output, "'-o'"), (plot, "'--plot'")):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise click.BadParameter(f"the folder of {path} does not exist.", param_hint=option)
    if plot is not None and not plot.lower().endswith((".svg", ".png", ".pdf")):
        raise click.BadParameter(f"{plot} must end in .svg, .png or .pdf.", param_hint="'--plot'")


class _Bar:
    """A progress bar on stderr; silent when that is not a terminal, or with --quiet."""

    def __init__(self) -> None:
        self._bar = progress_bar(1, "step")

    def begin(self, steps: int) -> None:
        """Say how many steps there will be."""
        self._bar.reset(total=steps)

    def doing(self, text: str) -> None:
        """Say what runs now."""
        self._bar.set_description_str(text)

    def done(self) -> None:
        """Say that a step is done."""
        self._bar.update()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


def _report(results: dict[str, Any]) -> list[str]:
    """The table for people: bars first, then everything else."""
    from benchmarks.speed.bars import Ratio

    found = [Ratio.from_dict(ratio) for ratio in results["ratios"]]
    machine, load = results["machine"], results["load_average"]["after"]
    head = f"{machine['processor']}, {machine['cores']} cores" + (
        "" if load is None else f", load average {load[0]:g}"
    )
    lines = [head, "", *_table([ratio for ratio in found if ratio.bar is not None])]
    without = [ratio for ratio in found if ratio.bar is None]
    if without:
        lines += ["", "Without a bar:", *_table(without)]
    failed = _failures(results)
    missing = results["settings"]["peers_not_installed"]
    lines += ["", *(f"The peer {name} failed: {why}" for name, why in failed.items())]
    if missing:
        lines.append(f"Peers that are not installed: {', '.join(missing)}.")
    n_bars, n_met = sum(r.bar is not None for r in found), sum(r.met is True for r in found)
    return [*lines, f"{n_met} of {n_bars} bars met."]


def _table(found: list[Ratio]) -> list[str]:
    """One line per ratio and size, the kernels side by side."""
    named = dict.fromkeys(ratio.kernel for ratio in found if ratio.kernel is not None)
    kernels: list[str | None] = [*named] or [None]
    rows: dict[tuple[str, str], dict[str | None, tuple[str, str]]] = {}
    for ratio in found:
        line = rows.setdefault((ratio.quantity, ratio.size or ""), {})
        for kernel in kernels if ratio.kernel is None else [ratio.kernel]:
            line[kernel] = f"{ratio.value:.3g}", _verdict(ratio)
    head = ["ratio", "size", *(text for kernel in kernels for text in (kernel or "", ""))]
    return align_columns([head, *([*key, *_cells(line, kernels)] for key, line in rows.items())])


def _cells(line: dict[str | None, tuple[str, str]], kernels: Sequence[str | None]) -> list[str]:
    return [text for kernel in kernels for text in line.get(kernel, ("-", ""))]


def _verdict(ratio: Ratio) -> str:
    if ratio.bar is None:
        return ""
    return f"{'<=' if ratio.at_most else '>='} {ratio.bar:g} {'met' if ratio.met else 'NOT met'}"


def _failures(results: dict[str, Any]) -> dict[str, str]:
    return {
        name.partition(":")[0]: timing["error"]
        for kernel in results["kernels"].values()
        for size in kernel["sizes"].values()
        for name, timing in size["peers"].items()
        if "error" in timing
    }
