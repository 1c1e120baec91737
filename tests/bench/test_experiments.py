"""benchmarks paper and selective: what they compute, that they go on after a kill, and end with the
same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import binom

from benchmarks.__main__ import main
from benchmarks.experiments import figure, logits_files
from benchmarks.experiments.journal import Entry, Journal, read_journal
from benchmarks.experiments.logits_files import CATALOGUE, Found, choose, digest_of, find, read
from benchmarks.experiments.pool import in_order
from benchmarks.experiments.population import Population, population
from benchmarks.paper import output as paper_output
from benchmarks.paper import runs as paper_runs
from benchmarks.paper import tables as paper_tables
from benchmarks.paper.output import collect
from benchmarks.paper.printed import ECE, SECONDS
from benchmarks.paper.runs import METHODS, Settings, run_task
from benchmarks.selective import tables as selective_tables
from benchmarks.selective.rules import RULES, Sample
from benchmarks.selective.runs import Settings as SelectiveSettings
from benchmarks.selective.runs import run_task as run_selective
from metacal import datasets
from metacal.errors import InputError
from metacal.promises import paper

ROOT = Path(__file__).resolve().parents[2]
ONE_SET = ["--sets", "cifar10-resnet110"]
SMALL = [
    *ONE_SET,
    "--runs",
    "4",
    "--draws",
    "100",
    "--methods",
    "uncal,ts,meta-mis-paper,meta-mis,meta-acc",
]


def run(*args, code=0):
    done = CliRunner().invoke(main, [*map(str, args)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def files_of(folder: Path, *, timed: bool = False) -> dict[str, bytes]:
    """Everything that was computed, by name; what was measured with a clock only when asked."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (timed or "seconds" not in path.name)
    }


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small run of the paper's experiments on one process: its folder and what it said."""
    folder = tmp_path_factory.mktemp("paper") / "whole"
    return folder, run("paper", *SMALL, "-n", 1, "-o", folder)


@pytest.fixture(scope="module")
def small_selective(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selective") / "whole"
    options = [
        *ONE_SET,
        "--draws",
        60,
        "--sizes",
        "300,1000",
        "--rules",
        "certified,sgr,ltt-sequence,plug-in,paper",
    ]
    return folder, options, run("selective", *options, "-n", 1, "-o", folder)


# ── killed and resumed ────────────────────────────────────────────────────────────────────────────


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def killed_after_two_tasks(folder, deadline):
    """How many lines a run has left behind that was killed once it had two, and the processes it
    had.
    """
    command = [sys.executable, "-m", "benchmarks", "paper", *SMALL, "-n", "2", "-o", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    journal = folder / "runs" / "cifar10-resnet110.jsonl"
    clock = journal.with_suffix(".seconds.jsonl")
    while (
        not (clock.exists() and clock.read_bytes().count(b"\n") >= 2)
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    workers = children_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # A task is written to one file and then the other: killed between the two, it is done again.
    return min(path.read_bytes().count(b"\n") for path in (journal, clock)), workers


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(small, tmp_path):
    whole, _ = small
    deadline = time.monotonic() + 120
    for attempt in range(
        5
    ):  # on a busy machine a run may be over before this process has its turn again
        folder = tmp_path / f"killed{attempt}"
        there, workers = killed_after_two_tasks(folder, deadline)
        if there < 1 + 4 + 2:
            break
    assert 2 <= there < 1 + 4 + 2, "the run was over before it was killed"
    journal = folder / "runs" / "cifar10-resnet110.jsonl"
    assert not (folder / "paper.json").exists()
    assert len(workers) >= 2
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()], (
        "processes outlive their parent"
    )
    with open(journal, "ab") as file:
        file.write(b'{"split":')  # as if it had been killed in the middle of a line
    done = run("paper", *SMALL, "-n", 1, "-o", folder)
    assert f"{there - 1} of 6 tasks are there from an earlier run" in done.stderr
    assert files_of(folder) == files_of(whole)


def test_any_number_of_processes_gives_the_same_bytes(small_selective, tmp_path):
    folder, options, _ = small_selective
    run("selective", *options, "-n", 2, "-o", tmp_path / "two")
    assert files_of(tmp_path / "two") == files_of(folder)


def test_a_finished_run_does_nothing_again(small, monkeypatch):
    folder, _ = small
    monkeypatch.setattr(figure, "can_draw", lambda: False)  # the figures are there already
    before = files_of(folder / "runs", timed=True)
    run("paper", *SMALL, "-n", 1, "-o", folder)
    assert files_of(folder / "runs", timed=True) == before


def test_other_settings_are_refused_not_mixed(small, tmp_path):
    folder, _ = small
    before = files_of(folder, timed=True)
    done = run("paper", *SMALL, "--seed", 1, "-n", 1, "-o", folder, code=2)
    assert (
        "a run with other settings (seed 0 there, 1 now); give another folder with -o, or add"
        " --fresh" in done.stderr
    )
    assert files_of(folder, timed=True) == before
    options = [*ONE_SET, "--draws", 0, "--methods", "uncal", "-n", 1, "-o", tmp_path]
    run("paper", *options, "--runs", 1)
    run("paper", *options, "--runs", 2, code=2)
    run("paper", *options, "--runs", 2, "--fresh")
    assert len(read_journal(tmp_path / "runs", "cifar10-resnet110")[1]) == 2


def test_one_run_has_no_standard_error(tmp_path):
    options = ["--runs", 1, "--draws", 0, "--methods", "ts,meta-mis-paper", "-n", 1, "-o", tmp_path]
    said = run("paper", *ONE_SET, *options).output
    row = next(line for line in said.splitlines() if "MetaMis | - (" in line)
    assert "against" in row
    assert not re.search(r"\d{6}\.\d", said), "a difference divided by next to nothing"
    spreads = json.loads((tmp_path / "paper.json").read_text())["rows"][0]["columns"]
    assert spreads["ece"]["sd"] is None


def test_journals_survive_every_cut(tmp_path):
    """Cut both files anywhere: what is whole in both is kept, and the end is the same."""
    header, entries = {"seed": 0}, [Entry({"run": i}, {"s": 0.5 + i}) for i in range(3)]

    def write(folder, first=0):
        with Journal(folder, "made", header) as journal:
            for entry in entries[journal.done :]:
                journal.append(entry)

    write(tmp_path / "whole")
    paths = [tmp_path / "whole" / name for name in ("made.jsonl", "made.seconds.jsonl")]
    whole = [path.read_bytes() for path in paths]
    for cut in range(len(whole[0]) + 1):
        for other in (0, cut // 2, len(whole[1])):
            paths[0].write_bytes(whole[0][:cut])
            paths[1].write_bytes(whole[1][:other])
            write(tmp_path / "whole")
            assert [path.read_bytes() for path in paths] == whole
    paths[0].write_bytes(b"damaged\n")
    with pytest.raises(InputError, match="damaged"):
        write(tmp_path / "whole")


def test_answers_come_in_order():
    assert list(in_order(pow, [(2, k) for k in range(7)], n_jobs=2)) == [2**k for k in range(7)]
    with pytest.raises(InputError, match="n_jobs"):
        list(in_order(pow, [(2, 1)], n_jobs=0))


# ── the paper's experiments ───────────────────────────────────────────────────────────────────────


def test_json_tables_and_figures_are_there(small):
    folder, done = small
    names = {"paper.json", "paper-seconds.json", "paper.md", "paper-seconds.md"}
    if figure.can_draw():
        names |= {
            f"{stem}.{kind}"
            for stem in ("paper-figure-1", "paper-figure-2", "paper-promises")
            for kind in ("png", "svg")
        }
    assert {path.name for path in folder.iterdir()} == names | {"runs"}
    assert (folder / "paper.md").read_text(encoding="utf-8") in done.stdout
    assert "Table 2" in done.stdout
    text = (folder / "paper.json").read_text()
    assert 'seconds":' not in text.replace('published_seconds":', ""), (
        "times belong in a file of their own"
    )


def test_a_row_says_what_was_measured(small):
    folder, _ = small
    results = json.loads((folder / "paper.json").read_text())
    rows = paper_tables.by_set(results)["cifar10-resnet110"]
    assert list(rows) == ["uncal", "ts", "meta-mis-paper", "meta-mis", "meta-acc"]
    for row in rows.values():
        assert all(spread.n == 4 for spread in row.columns.values())
        assert row.infeasible == 0
    assert rows["uncal"].columns["ece"].mean == pytest.approx(0.0514, abs=0.003)
    assert rows["ts"].columns["coverage"].mean == 1.0
    assert rows["ts"].violation is rows["ts"].missed is None
    gate = rows["meta-acc"]
    assert gate.draws == 100
    assert gate.violation <= 0.1 + 3 * math.sqrt(0.09 / 100)
    assert gate.true_coverage < gate.oracle_coverage
    # Rejected rows are calibrated when ties count in parts, so all that is left is the part of the
    # accepted rows.
    product = gate.columns["coverage"].mean * gate.columns["ece_accepted"].mean
    assert gate.columns["ece"].mean == pytest.approx(product, rel=0.02)
    assert gate.columns["ece"].mean < gate.columns["ece_published"].mean
    assert rows["meta-mis-paper"].published_ece == 0.00391


def as_another_set(folder, name, **settings):
    """The results and times of a folder, told of another data set."""
    results, seconds = paper_output.read(folder)
    renamed = {
        **results,
        "sets": [{**header, "set": name, **settings} for header in results["sets"]],
        "rows": [{**row, "data": name} for row in results["rows"]],
    }
    return renamed, {**seconds, "seconds": {name: next(iter(seconds["seconds"].values()))}}


def test_sets_that_are_not_run_are_kept(small):
    """They stand in the result as they were, where the catalogue has them."""
    folder, _ = small
    both, seconds = paper_output.keeping(*as_another_set(folder, "cifar10-densenet40"), folder)
    before = json.loads((folder / "paper.json").read_text())
    assert [header["set"] for header in both["sets"]] == ["cifar10-densenet40", "cifar10-resnet110"]
    assert both["rows"][5:] == before["rows"]
    assert {row["data"] for row in both["rows"][:5]} == {"cifar10-densenet40"}
    assert list(seconds["seconds"]) == ["cifar10-densenet40", "cifar10-resnet110"]
    assert seconds["kept"]["sets"] == ["cifar10-resnet110"]
    again, seconds = paper_output.keeping(*as_another_set(folder, "cifar10-resnet110"), folder)
    assert again["rows"] == before["rows"]
    assert seconds["kept"]["sets"] == []


@pytest.mark.parametrize("setting", ["runs", "draws", "seed", "format"])
def test_results_of_other_settings_are_not_kept(small, setting):
    results, seconds = as_another_set(small[0], "cifar10-wrn32", **{setting: 77})
    with pytest.raises(InputError, match=f"{setting} .*this run has .77"):
        paper_output.keeping(results, seconds, small[0])


def test_a_gate_is_compared_with_temperature_scaling_on_the_rows_that_it_accepts(small):
    """The certified gates fit their temperature on all rows, so on the accepted rows both are the
    same.
    """
    rows = paper_tables.by_set(json.loads((small[0] / "paper.json").read_text()))[
        "cifar10-resnet110"
    ]
    assert rows["meta-acc"].columns["ece_gain"].mean == 0.0
    assert (
        rows["meta-acc"].columns["ece_refitted"].mean
        != rows["meta-acc"].columns["ece_accepted"].mean
    )
    assert rows["meta-mis-paper"].columns["ece_gain"].mean != 0.0
    assert "ece_gain" not in rows["ts"].columns
    debiased = rows["ts"].columns["ece_debiased"].mean
    assert 0.0 <= debiased < rows["ts"].columns["ece_published"].mean


def test_a_method_that_takes_too_long_is_left_out_of_a_set(monkeypatch):
    monkeypatch.setitem(paper_runs.LEFT_OUT, "ts", ("cifar100-resnet110",))
    fast, slow = choose(find()[0], ["cifar10-resnet110", "cifar100-resnet110"])
    settings = Settings(methods=("uncal", "ts"))
    assert settings.methods_for(fast) == ["uncal", "ts"]
    assert settings.header(slow)["methods"] == ["uncal"]


def test_a_split_is_the_papers_protocol():
    """The same numbers from the library's parts, written out."""
    found = find()[0][0]
    entry = run_task(found, Settings(methods=("meta-mis-paper",), runs=1), "split", 0)
    logits, labels = read(found)
    order = np.random.default_rng([0, 0, 0]).permutation(15_000)
    fit, test = order[:5000], order[5000:]
    import metacal as mc

    rule = paper.MaxMiscoverage(0.05, random_state=[0, 2, 0])
    cal = mc.MetaCal(rule).fit(logits[fit], labels[fit])
    proba, accept = cal.predict_proba(logits[test]), cal.accepts(logits[test])
    correct = logits[test].argmax(axis=1) == labels[test]
    values = entry.computed["methods"]["meta-mis-paper"]
    assert values["coverage"] == pytest.approx(accept.mean())
    assert values["miscoverage"] == pytest.approx(
        1 - (accept & correct).sum() / correct.sum(), abs=1e-6
    )
    assert values["ece"] == pytest.approx(mc.metrics.ece(proba, labels[test]), abs=1e-6)
    assert values["nll"] == pytest.approx(mc.metrics.nll(proba, labels[test]), abs=1e-6)
    assert set(entry.seconds["methods"]["meta-mis-paper"]) == {"fit", "predict"}


def test_the_printed_tables_are_the_papers():
    """Column sums of the paper's Tables 1 and 2, added up by hand from its source."""
    assert len(ECE) == len(SECONDS) == 10
    assert sum(row.ts for row in ECE.values()) == pytest.approx(0.11991)
    assert sum(row.meta_acc for row in ECE.values()) == pytest.approx(0.08185)
    assert sum(row.uncal for row in ECE.values()) == pytest.approx(1.03029)
    assert sum(row.gpc or 0 for row in SECONDS.values()) == pytest.approx(188.579)
    assert {key[0] for key, row in ECE.items() if row.gpc is None} == {"ImageNet"}


def test_infeasible_splits_are_counted_not_averaged(tmp_path, monkeypatch):
    found = find()[0][0]
    asked = replace(
        found, file=replace(found.file, family=replace(found.file.family, beta=0.99999))
    )
    settings = Settings(methods=("meta-acc",), runs=1, draws=50)
    with Journal(tmp_path, found.name, settings.header(asked)) as journal:
        for kind, number in settings.tasks():
            journal.append(run_task(asked, settings, kind, number))
    results, _ = collect([asked], tmp_path)
    row = results["rows"][0]
    assert row["infeasible"] == 1
    assert row["columns"] == {}
    assert row["true_coverage"] == row["violation"] == 0.0
    assert "| - |" in paper_tables.page(results)


def test_tables_from_results_alone(small, tmp_path, monkeypatch):
    folder, done = small
    monkeypatch.setattr(figure, "can_draw", lambda: False)
    again = run("paper", "--from", folder)
    assert again.stdout == done.stdout
    run("paper", "--from", folder, "-o", tmp_path / "again")
    assert (tmp_path / "again" / "paper.md").read_bytes() == (folder / "paper.md").read_bytes()
    assert "there is no paper.json" in run("paper", "--from", tmp_path, code=2).stderr
    (tmp_path / "paper.json").write_text("{}")
    assert (
        "was not written by python -m benchmarks paper"
        in run("paper", "--from", tmp_path, code=2).stderr
    )


def test_without_matplotlib_the_tables_still_come(small, tmp_path, monkeypatch):
    folder, done = small
    monkeypatch.setattr(figure, "can_draw", lambda: False)
    again = run("paper", "--from", folder, "-o", tmp_path)
    assert again.stdout == done.stdout
    assert 'pip install "metacal[plot]"' in again.stderr
    assert not list(tmp_path.glob("*.png"))


def test_json_on_stdout(small):
    folder, _ = small
    answer = json.loads(run("paper", "--from", folder, "--json").stdout)
    assert answer["rows"] == json.loads((folder / "paper.json").read_text())["rows"]
    assert answer["seconds"]["machine"]["processor"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["paper", "--methods", "tempreature"], 2, "there is no method 'tempreature'"),
        (["paper", "--runs", "0"], 2, "--runs"),
        (["paper", "--sets", "cifar10-resnet101"], 2, "there is no such set"),
        (["paper", "--sets", "cifar10-wrn32"], 2, "was not found in the folders of --data"),
        (["paper", "--data", "no-such-folder"], 2, "there is no folder 'no-such-folder'"),
        (["paper", "-n", "0"], 2, "0 processes cannot work"),
        (["selective", "--rules", "sgd"], 2, "there is no rule 'sgd'"),
        (["selective", "--sizes", "300,many"], 2, "is not a list of sizes"),
        (["selective", "--delta", "10"], 2, "Write 10% as 0.1"),
    ],
)
def test_wrong_usage(options, code, said, tmp_path):
    done = run(*options, "-o", tmp_path / "out", code=code)
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


# ── which files are known ─────────────────────────────────────────────────────────────────────────


def test_every_known_file_is_listed_with_its_origin():
    text = run("paper", "--list").stdout
    answer = json.loads(run("selective", "--list", "--json").stdout)
    assert len(answer) == len(CATALOGUE) == 23
    assert sum(entry["of_the_paper"] for entry in answer) == 10
    for file in CATALOGUE:
        assert file.name in text
        assert file.origin in text
        assert not file.of_the_paper or file.digest in text
    assert [entry["name"] for entry in answer if entry["found"]] == list(datasets.names())


def test_the_papers_pickles_are_known_by_their_hash(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    parts = tuple(
        (rng.normal(size=(n, 10)).astype(np.float32), rng.integers(0, 10, (n, 1)))
        for n in (4000, 2000)
    )
    path = tmp_path / "renamed.p"
    path.write_bytes(pickle.dumps(parts, 2))
    (tmp_path / "other.p").write_bytes(pickle.dumps(parts, 3))
    assert find([tmp_path])[1] == [str(tmp_path / "other.p"), str(path)]
    known = replace(logits_files.THEIRS[1], digest=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(logits_files, "THEIRS", (known, *logits_files.THEIRS[2:]))
    found, unknown = find([tmp_path])
    assert unknown == [str(tmp_path / "other.p")]
    assert found[0] == Found(known, str(path))
    logits, labels = read(found[0])
    np.testing.assert_array_equal(logits, np.concatenate([part[0] for part in parts]))
    np.testing.assert_array_equal(labels, np.concatenate([part[1][:, 0] for part in parts]))


def test_a_public_file_is_known_by_its_rows_not_by_its_name(tmp_path):
    np.savez(
        tmp_path / "cifar10_densenet40_paper.npz",
        logits=np.zeros((6000, 10)),
        labels=np.zeros(6000, int),
    )
    found, unknown = find([tmp_path])
    assert [item.name for item in found] == list(datasets.names())
    assert len(unknown) == 1


def test_the_first_of_two_files_counts(tmp_path):
    embedded = datasets.load("cifar10-resnet110")
    np.savez(tmp_path / "cifar10_resnet110.npz", logits=embedded.logits + 1, labels=embedded.labels)
    np.savez(tmp_path / "cifar10-wrn32.npz", logits=embedded.logits, labels=embedded.labels)
    found, _ = find([tmp_path])
    assert {item.name: item.path is None for item in found} == {
        "cifar10-resnet110": True, "cifar100-resnet110": True, "cifar10-wrn32": False
    }  # fmt: skip
    assert digest_of(*read(choose(found, ["cifar10-wrn32"])[0])) == digest_of(
        embedded.logits, embedded.labels
    )


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no npz"])
def test_a_file_that_is_no_npz(tmp_path, content):
    (tmp_path / "cifar10-wrn32.npz").write_bytes(content)
    with pytest.raises(InputError, match="is not a logits file"):
        read(find([tmp_path])[0][1])


def test_a_table_that_is_too_short(tmp_path):
    np.savez(tmp_path / "cifar10-wrn32.npz", logits=np.zeros((100, 10)), labels=np.zeros(100, int))
    with pytest.raises(InputError, match="more than 5,000 rows"):
        read(find([tmp_path])[0][1])


# ── the abstention comparison ─────────────────────────────────────────────────────────────────────


def test_the_comparison_says_who_accepts_most(small_selective):
    folder, _, done = small_selective
    text = (folder / "selective.md").read_text(encoding="utf-8")
    assert done.stdout == text
    rows = {
        (row.n, row.rule): row
        for row in selective_tables.rows_of(json.loads((folder / "selective.json").read_text()))
    }
    assert len(rows) == 10
    for n in (300, 1000):
        ours = rows[n, "certified"]
        assert ours.draws == 60
        assert ours.coverage > rows[n, "sgr"].coverage
        assert rows[n, "sgr"].lead == pytest.approx(
            ours.coverage - rows[n, "sgr"].coverage, abs=2e-6
        )
        assert rows[n, "plug-in"].violation > 0.3
        assert not rows[n, "plug-in"].valid
    assert (folder / "selective.svg").exists() == figure.can_draw()


def test_the_oracle_is_the_best_threshold():
    rng = np.random.default_rng(0)
    scores, correct = np.round(rng.random(400), 2), rng.random(400) < 0.9
    whole = Population.of(scores, correct)
    thresholds = [-math.inf, *np.unique(scores)]
    accepts = [scores <= threshold for threshold in thresholds]
    for beta in (0.85, 0.9, 0.95, 1.0):
        best = max(
            accept.sum() for accept in accepts if correct[accept].sum() >= beta * accept.sum()
        )
        assert whole.most_accurate(beta) == best
    for alpha in (0.01, 0.1, 0.5):
        least = min(
            accept.sum() for accept in accepts if (correct & ~accept).sum() <= alpha * correct.sum()
        )
        assert whole.least_miscovering(alpha) == least
    for threshold, accept in zip(thresholds, accepts):
        count = whole.accepted(threshold)
        assert count == accept.sum()
        assert whole.miscoverage(count) == pytest.approx(
            1 - (accept & correct).sum() / correct.sum()
        )


def binomial_level(errors, rows, risk):
    """P(Bin(rows, risk) <= errors), by SciPy's distribution."""
    return binom.cdf(errors, rows, risk)


def test_sgr_is_geifmans_binary_search():
    """Against the algorithm written out row by row."""
    rng = np.random.default_rng(1)
    for n in (50, 300, 777):
        scores = rng.random(n)
        correct = rng.random(n) < 1 - 0.3 * scores
        order = np.argsort(scores)
        wrong = np.cumsum(~correct[order])
        steps = math.ceil(math.log2(n))
        low, high, best = 1, n, 0
        for _ in range(steps):
            rank = math.ceil((low + high) / 2)
            if binomial_level(wrong[rank - 1], rank, 0.1) <= 0.1 / steps:
                low, best = rank, max(best, rank)
            else:
                high = rank
        threshold = RULES["sgr"].choose(Sample.of(scores, correct, 1.0), 0.9, 0.1)
        assert (0 if threshold is None else (scores <= threshold).sum()) == best


def test_learn_then_test_tests_its_grid():
    rng = np.random.default_rng(2)
    scores = rng.random(1000)
    correct = rng.random(1000) < 1 - 0.3 * scores
    sample = Sample.of(scores, correct, 1.0)
    grid = np.arange(1, 101) / 100
    p = np.array(
        [binomial_level((~correct & (scores <= t)).sum(), (scores <= t).sum(), 0.1) for t in grid]
    )
    passing = grid[p <= 0.1 / 100]
    assert RULES["ltt-bonferroni-even"].choose(sample, 0.9, 0.1) == pytest.approx(passing.max())
    first_failure = int(np.argmax(p > 0.1))
    expected = grid[first_failure - 1] if first_failure else None
    assert RULES["ltt-sequence-even"].choose(sample, 0.9, 0.1) == (
        expected and pytest.approx(expected)
    )
    ranks = np.arange(10, 1001, 10)
    wrong = np.cumsum(~correct[np.argsort(scores)])
    p = binomial_level(wrong[ranks - 1], ranks, 0.1)
    threshold = RULES["ltt-bonferroni"].choose(sample, 0.9, 0.1)
    assert (scores <= threshold).sum() == ranks[p <= 0.1 / 100].max()
    possible = ranks >= math.ceil(math.log(0.1) / math.log(0.9))
    walk = ranks[possible][: np.argmax(np.append(p[possible] > 0.1, True))]
    threshold = RULES["ltt-sequence"].choose(sample, 0.9, 0.1)
    assert (0 if threshold is None else (scores <= threshold).sum()) == (
        walk[-1] if len(walk) else 0
    )


def test_plug_in_is_the_largest_that_shows_it():
    scores, correct = np.arange(10.0), np.array([1, 1, 1, 0, 1, 1, 1, 1, 0, 0], dtype=bool)
    sample = Sample.of(scores, correct, 10.0)
    assert (scores <= RULES["plug-in"].choose(sample, 0.85, 0.1)).sum() == 8
    assert RULES["plug-in"].choose(Sample.of(scores, np.zeros(10, bool), 10.0), 0.85, 0.1) is None


QUICK = [
    name for name, rule in RULES.items() if rule.valid and rule.available and name != "mapie-split"
]


@pytest.mark.parametrize("name", QUICK)
def test_valid_rules_rarely_accept_a_worthless_ranking(name):
    """The least favourable case: every prefix is right just under beta of the time, so accepting
    anything is wrong.
    """
    rng = np.random.default_rng(3)
    draws = 250
    accepted = 0
    for _ in range(draws):
        sample = Sample.of(rng.random(300), rng.random(300) < 0.9 - 1e-9, 1.0)
        accepted += RULES[name].choose(sample, 0.9, 0.1) is not None
    assert accepted / draws <= 0.1 + 3 * math.sqrt(0.09 / draws)


def test_mapie_accepts_what_its_controller_accepts():
    if not RULES["mapie"].available:
        with pytest.raises(InputError, match="needs the package mapie"):
            run_selective_rules("mapie")
        return
    from mapie.risk_control import BinaryClassificationController

    whole = population(find()[0][0])
    scores, correct = whole.draw(2000, 5)
    highest = math.log(10)

    def confidences(x):
        return np.column_stack([x / highest, 1 - x / highest])

    controller = BinaryClassificationController(confidences, "precision", 0.95, 0.9).calibrate(
        scores, correct
    )
    threshold = RULES["mapie"].choose(Sample.of(scores, correct, highest), 0.95, 0.1)
    np.testing.assert_array_equal(scores <= threshold, controller.predict(scores) == 1)


def run_selective_rules(text):
    from benchmarks.selective.rules import parse_rules

    return parse_rules(text)


def test_rules_that_need_no_package():
    assert run_selective_rules("own") == [name for name in RULES if not name.startswith("mapie")]


def test_results_of_two_runs_are_read_as_one(tmp_path):
    from benchmarks.selective.output import RESULTS, read

    folder = Path(__file__).parents[2] / "benchmarks" / "results" / "selective"
    committed = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    for name, rules in (("own", ("certified", "sgr")), ("more", ("certified", "mapie"))):
        (tmp_path / name).mkdir()
        rows = [row for row in committed["rows"] if row["rule"] in rules]
        (tmp_path / name / RESULTS).write_text(
            json.dumps({**committed, "rows": rows}), encoding="utf-8"
        )
    both = read(tmp_path / "own", tmp_path / "more")
    assert both["rows"] == [
        row for row in committed["rows"] if row["rule"] in ("certified", "sgr", "mapie")
    ]


def test_draws_do_not_depend_on_the_rules():
    found = find()[0][0]
    both = run_selective(found, SelectiveSettings(rules=("certified", "sgr"), draws=20), 300, 0)
    one = run_selective(found, SelectiveSettings(rules=("sgr",), draws=20), 300, 0)
    assert both.computed["accepted"]["sgr"] == one.computed["accepted"]["sgr"]


def test_methods_have_names():
    assert list(METHODS)[:6] == ["uncal", "ts", "ets", "gpc", "meta-mis-paper", "meta-acc-paper"]


def test_the_experiment_on_anybodys_file(tmp_path):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(400, 3)) * 3.0
    labels = (logits + rng.normal(size=logits.shape) * 2.0).argmax(axis=1)
    names = np.array(["cat", "dog", "owl"])[labels]
    lines = [",".join(map(repr, row)) + f",{name}" for row, name in zip(logits.tolist(), names)]
    (tmp_path / "mine.csv").write_text("\n".join(["cat,dog,owl,label", *lines]))
    given = [
        "paper",
        "--logits",
        str(tmp_path / "mine.csv"),
        "-o",
        str(tmp_path / "out"),
        "-n",
        "1",
    ]
    args = [*given, "--runs", "2", "--draws", "0", "--methods", "ts,meta-mis,meta-acc"]
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0, done.output
    assert "Does Meta-Cal beat temperature scaling on mine?" in done.output
    assert re.search(
        r"dilution apart, \d of \d rules have a lower ECE and \d a higher one", done.output
    )
    assert "## Against temperature scaling" in done.output
    done = CliRunner().invoke(main, [*given, "--min-accuracy", "0.2"])
    assert done.exit_code == 2
    assert "are right already; a promise of 20% needs no gate" in done.output
