"""python -m benchmarks speed on tiny tables: what it answers, not how fast anything was."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec

import numpy as np
import pytest
import sklearn
from click.testing import CliRunner
from packaging.version import Version

from benchmarks.__main__ import main
from benchmarks.speed.bars import LEAST_TIMES_FASTER, MOST_READS, Ratio
from benchmarks.speed.measure import KERNELS
from benchmarks.speed.passes import CountedRows, exact_temperature, passes_of_temperature_fit
from benchmarks.speed.peers import PEERS, parse_peers
from benchmarks.speed.plot import draw_scaling
from benchmarks.speed.scaling import ladders
from benchmarks.speed.sizes import SIZES, TEMPERATURE, Size, fill_table, parse_sizes, write_table
from benchmarks.speed.tasks import TASKS
from benchmarks.speed.timing import Stopwatch, interleaved
from metacal.errors import MissingExtraError
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


def made(size, seed=0):
    table = np.empty((size.rows, size.classes), dtype=size.dtype)
    return table, fill_table(table, seed)


# ── the command ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """One real run, as small as it gets: its stdout and the file it wrote."""
    path = tmp_path_factory.mktemp("bench") / "speed.json"
    options = [
        "--sizes",
        "400x10",
        "--kernels",
        "numpy",
        "--peers",
        "scikit-learn",
        "--repeats",
        "1",
        "--json",
    ]
    done = CliRunner().invoke(main, ["speed", *options, "-o", str(path)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done, json.loads(path.read_text(encoding="utf-8"))


def test_the_file_and_stdout_hold_the_same(answered):
    done, results = answered
    assert json.loads(done.stdout) == results
    assert "Traceback" not in done.stderr


def test_results_say_where_they_come_from(answered):
    _, results = answered
    assert set(results) == {
        "format", "machine", "settings", "sizes", "kernels", "imports", "load_average", "ratios",
    }  # fmt: skip
    assert results["machine"]["processor"]
    assert results["machine"]["versions"]["numpy"] == np.__version__
    assert results["settings"] | {"repeats": 1, "seed": 0, "threads": 1} == results["settings"]
    assert list(results["settings"]["peers"]) == ["scikit-learn"]
    assert (
        results["sizes"]["400x10"] | {"rows": 400, "classes": 10, "bytes": 16_000}
        == results["sizes"]["400x10"]
    )


#: The peer that is timed: temperature scaling came to scikit-learn with 1.8.
THEIR_TEMPERATURE = Version(sklearn.__version__) >= Version("1.8")
OLD = "this scikit-learn has no temperature scaling to compare with"
needs_their_temperature = pytest.mark.skipif(not THEIR_TEMPERATURE, reason=OLD)


@needs_their_temperature
def test_every_task_and_peer_was_timed(answered):
    _, results = answered
    kernel = results["kernels"]["numpy"]
    assert kernel["config"]["kernel"] == "numpy"
    timed = kernel["sizes"]["400x10"]
    assert set(TASKS) <= set(timed["tasks"])
    for timing in [*timed["tasks"].values(), *timed["peers"].values()]:
        assert len(timing["samples"]) == timing["repeats"] == 1
    assert set(timed["peers"]) == {"scikit-learn: temperature"}
    assert timed["peers"]["scikit-learn: temperature"]["answer"] == pytest.approx(
        timed["temperature"], rel=1e-2
    )
    assert timed["passes"] >= 1
    assert {"size", "load", "fit"} == set(kernel["fit_process"])
    assert {along: len(ladder["points"]) for along, ladder in kernel["scaling"].items()} == {
        "rows": 3,
        "classes": 3,
    }


@needs_their_temperature
def test_ratios_are_finite_and_judged(answered):
    _, results = answered
    found = [Ratio.from_dict(ratio) for ratio in results["ratios"]]
    slopes = [ratio for ratio in found if "slope" in ratio.quantity]
    assert all(math.isfinite(ratio.value) for ratio in found)
    assert all(ratio.value >= 0.0 for ratio in found if ratio not in slopes)
    assert {ratio.met for ratio in found if ratio.bar is None} == {None}
    error = next(ratio for ratio in found if "error of T" in ratio.quantity)
    assert error.met
    names = {ratio.quantity for ratio in found}
    assert {
        "temperature fit / read",
        "temperature fit: scikit-learn / metacal",
        "import metacal / import numpy",
    } <= names


@needs_their_temperature
def test_the_table_for_people(answered):
    from benchmarks.speed.command import _report

    text = "\n".join(_report(answered[1]))
    assert "load average" in text
    assert "temperature fit: scikit-learn / metacal" in text
    assert "bars met" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "Q"], "there is no size 'Q'"),
        (["--sizes", "10x10"], "at least 200 rows"),
        (["--kernels", "cuda"], "there is no kernel 'cuda'"),
        (["--peers", "nobody"], "there is no peer 'nobody'"),
        (["--repeats", "0"], "--repeats"),
        (["--plot", "scaling.txt"], "must end in .svg"),
        (["-o", "no/such/folder/speed.json"], "does not exist"),
    ],
)
def test_wrong_usage_is_told_at_once(options, said):
    done = CliRunner().invoke(main, ["speed", *options])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_bench_alone_shows_what_there_is():
    done = CliRunner().invoke(main, ["--help"])
    assert done.exit_code == 0
    assert "speed" in done.output


# ── the tables ────────────────────────────────────────────────────────────────────────────────────


def test_logits_are_the_same_for_the_same_seed(tmp_path):
    size = Size("tiny", 300, 7)
    table, labels = made(size)
    again, labels_again = made(size)
    assert table.tobytes() == again.tobytes()
    assert (labels == labels_again).all()
    assert (made(size, seed=1)[0] != table).any()
    files = write_table(size, tmp_path, seed=0)
    assert np.load(files[0]).tobytes() == table.tobytes()
    assert (np.load(files[1]) == labels).all()


@pytest.mark.parametrize(
    ("classes", "dtype"), [(10, "float32"), (100, "float32"), (1000, "float16")]
)
def test_logits_look_like_a_network_s(classes, dtype):
    table, labels = made(Size("", 4000, classes, dtype))
    assert 0.73 < (table.argmax(axis=1) == labels).mean() < 0.80
    assert abs(exact_temperature(table, labels, 1.0) - TEMPERATURE) < 0.15


def test_the_work_sizes():
    assert parse_sizes("A,e,200x3:float16") == [
        SIZES["A"],
        SIZES["E"],
        Size("200x3:float16", 200, 3, "float16"),
    ]
    assert [SIZES[name].bytes for name in "CDE"] == [100_000_000, 800_000_000, 1_280_000_000]


# ── what is measured ──────────────────────────────────────────────────────────────────────────────


def test_exact_temperature_is_the_fitted_one():
    table, labels = made(Size("", 1000, 20))
    fitted = fit_temperature(Rows(table.astype(np.float64)), labels).temperature
    assert exact_temperature(table, labels, start=5.0) == pytest.approx(fitted, rel=1e-8)
    assert exact_temperature(table, labels, start=0.5) == pytest.approx(fitted, rel=1e-8)


def test_passes_count_what_reads_the_table():
    table, labels = made(Size("", 300, 5))
    rows = CountedRows(table)
    rows.compute_column(lambda block, own: block[np.arange(len(block)), own] > 0, labels)
    assert rows.passes == 0
    rows.compute_column(lambda block, own: block.max(axis=1) > own, labels)
    rows.compute_column(lambda block: block.max(axis=1))
    rows.sum(lambda block: block.sum(axis=0))
    assert rows.passes == 3
    assert 1 <= passes_of_temperature_fit(*made(Size("", 9000, 5))) <= 2


def test_a_peer_that_fails_is_noted_and_a_slow_one_sampled_once():
    def broken():
        raise ZeroDivisionError("no")

    watches = {
        "broken": Stopwatch(broken, peer=True),
        "slow": Stopwatch(lambda: sum(range(400_000)), budget=0.0, peer=True),
        "own": Stopwatch(lambda: 1),
    }
    for _ in interleaved(watches, repeats=3):
        pass
    assert watches["broken"].to_dict() == {"error": "ZeroDivisionError: no"}
    assert watches["slow"].to_dict()["repeats"] == 1
    assert watches["own"].to_dict()["repeats"] == 3
    with pytest.raises(ZeroDivisionError):
        Stopwatch(broken).sample()


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.installed])
def test_peers_do_the_same_work(name):
    if name == "scikit-learn" and not THEIR_TEMPERATURE:
        pytest.skip(OLD)
    table, labels = made(Size("", 600, 8))
    exact = exact_temperature(table, labels, 1.0)
    for task, prepare in PEERS[name].does.items():
        answer = prepare(table, labels)()
        if task in ("temperature", "ensemble"):
            # LBFGS with the customary learning rate stops on the way.
            assert answer == pytest.approx(exact, rel=0.2 if name == "torch-lbfgs" else 2e-3)


def test_bars_are_about_what_is_measured():
    assert {task for task, _ in MOST_READS} <= set(TASKS)
    for task, peer, size in LEAST_TIMES_FASTER:
        assert task in PEERS[peer].does
        assert size in SIZES
    for limits in [*MOST_READS.values(), *LEAST_TIMES_FASTER.values()]:
        assert set(limits) == set(KERNELS)


def test_all_peers_are_the_installed_ones():
    assert {"scikit-learn", "paper", "slsqp"} <= set(parse_peers("all"))
    assert all(PEERS[name].installed for name in parse_peers("all"))


def test_ladders_stay_within_the_size():
    rows, classes = ladders(SIZES["C"])
    assert rows[-1] == classes[-1] == (25_000, 1_000)
    assert len(rows) == len(classes) == 5


def test_the_plot(answered, tmp_path):
    path = tmp_path / "scaling.svg"
    if find_spec("matplotlib") is None:
        with pytest.raises(MissingExtraError, match=r"metacal\[plot\]"):
            draw_scaling(answered[1], str(path))
    else:
        draw_scaling(answered[1], str(path))
        assert "slope" in path.read_text(encoding="utf-8")


@pytest.mark.long
def test_sizes_without_an_ordinary_table_are_measured_too():
    """No float32 table of ordinary size: nothing for `metacal fit` or the scaling, and all else as
    ever.
    """
    options = [
        "--sizes",
        "300x10:float16",
        "--kernels",
        "numpy",
        "--peers",
        "none",
        "--repeats",
        "1",
        "--json",
    ]
    found = CliRunner().invoke(main, ["speed", *options])
    assert found.exit_code == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["kernels"]["numpy"]["fit_process"] is None
    assert {ratio["size"] for ratio in answer["ratios"]} == {"300x10:float16", None}
