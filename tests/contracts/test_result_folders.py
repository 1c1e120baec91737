"""apply to a folder: results that know their source, whoever changes, removes, empties or locks what."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main
from metacal.io import apply as applying
from metacal.io.journal import Journal
from metacal.io.results import JOURNAL

LOGITS = np.random.default_rng(3).normal(size=(90, 3)).astype(np.float32)
CAL = mc.TemperatureScaling().fit(LOGITS, LOGITS.argmax(axis=1))


def metacal(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for part in range(3):
        np.save(folder / f"{part}.npy", LOGITS[30 * part : 30 * part + 30])
    return folder


def results(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.npz"))}


def fresh(logs):
    out = logs.parent / f"fresh{time.perf_counter_ns()}"
    mc.apply(CAL, logs, f"{out}/")
    return results(out)


def write_same_stamp(path, table):
    """Write other numbers into the file, in place, and set its time back: as within a tick of the clock."""
    before = path.stat()
    np.save(path, table)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_source_that_changes_while_it_is_read_is_read_again(logs, tmp_path, monkeypatch):
    real, changes = applying.write_decisions, iter([LOGITS[60:90], LOGITS[:30]])

    def and_then_it_changes(gate, found, output, *rest, **options):
        answer = real(gate, found, output, *rest, **options)
        if Path(output).name == "1.npz" and (table := next(changes, None)) is not None:
            write_same_stamp(logs / "1.npy", table)
        return answer

    monkeypatch.setattr(applying, "write_decisions", and_then_it_changes)
    assert mc.apply(CAL, logs, f"{tmp_path}/out/").n_kept == 0
    assert results(tmp_path / "out") == fresh(logs)
    assert mc.apply(CAL, logs, f"{tmp_path}/out/").n_kept == 3


def test_command_and_function_know_each_others_results_and_write_over_no_source(logs, tmp_path):
    mc.save(CAL, tmp_path / "cal.json")
    assert metacal("apply", tmp_path / "cal.json", logs, "-o", f"{tmp_path}/out/").exit_code == 0
    assert mc.apply(tmp_path / "cal.json", logs, f"{tmp_path}/out/").n_kept == 3
    with pytest.raises(mc.InputError, match="npz is also read"):
        mc.apply(CAL, str(logs), f"{logs}/")


def test_a_source_that_never_rests_gives_an_error_and_no_result(logs, tmp_path, monkeypatch):
    real = applying.write_decisions

    def and_then_it_grows(gate, found, output, *rest, **options):
        answer = real(gate, found, output, *rest, **options)
        np.save(logs / "1.npy", np.tile(LOGITS, (time.perf_counter_ns() % 7 + 1, 1)))
        return answer

    monkeypatch.setattr(applying, "write_decisions", and_then_it_grows)
    with pytest.raises(mc.InputError, match=r"1\.npy: it changed while it was read, 3 times; wait until"):
        mc.apply(CAL, logs / "1.npy", f"{tmp_path}/out/")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{JOURNAL}.lock"}


def test_the_same_length_at_the_same_time_is_noticed(logs, tmp_path):
    mc.apply(CAL, logs, f"{tmp_path}/out/")
    write_same_stamp(logs / "2.npy", LOGITS[:30])
    assert mc.apply(CAL, logs, f"{tmp_path}/out/").n_kept == 2
    assert results(tmp_path / "out") == fresh(logs)


def test_a_result_that_is_gone_or_changed_or_not_recorded_is_made_again(logs, tmp_path):
    out = tmp_path / "out"
    mc.apply(CAL, logs, f"{out}/")
    expected = results(out)
    (out / "0.npz").unlink()
    (out / "1.npz").write_bytes(expected["1.npz"][:-1] + b"x")
    assert mc.apply(CAL, logs, f"{out}/").n_kept == 1
    assert results(out) == expected
    (out / JOURNAL).unlink()
    assert mc.apply(CAL, logs, f"{out}/").n_kept == 0
    content = (out / JOURNAL).read_bytes()
    (out / JOURNAL).write_bytes(content[:40] + b"?" + content[41:])
    with pytest.raises(mc.ArtifactError, match=r"journal:1: this record is damaged.*every result is made again"):
        mc.apply(CAL, logs, f"{out}/")


def test_results_whose_source_is_gone_are_named_and_pruned(logs, tmp_path):
    gate, out = tmp_path / "t.json", tmp_path / "out"
    mc.save(CAL, gate)
    assert metacal("apply", gate, logs, "-o", f"{out}/").exit_code == 0
    (out / "theirs.npz").write_bytes(b"theirs")
    for name in ("0.npy", "1.npy"):
        (logs / name).unlink()
    done = metacal("apply", gate, logs, "-o", f"{out}/", "--json")
    assert "(--prune removes it): 0.npz, 1.npz." in done.stderr
    answer = json.loads(done.stdout)
    assert (answer["orphans"], answer["pruned"], answer["n_kept"]) == (["0.npz", "1.npz"], False, 1)
    (out / "1.npz").write_bytes(b"edited")
    done = metacal("apply", gate, logs, "-o", f"{out}/", "--prune")
    assert "Removed, for the source is gone: 0.npz." in done.stderr
    assert {path.name for path in out.glob("*.npz")} == {"1.npz", "2.npz", "theirs.npz"}
    assert "changed by hand, and stays: 1.npz." in done.stderr
    answer = json.loads(metacal("apply", gate, logs, "-o", f"{out}/", "--json").stdout)
    assert (answer["orphans"], answer["edited"]) == ([], ["1.npz"])
    refused = metacal("apply", gate, logs, "-o", tmp_path / "one.csv", "--prune")
    assert refused.exit_code == 2
    assert "--prune is for a folder of results" in refused.stderr


def test_results_under_a_name_that_is_no_longer_used(logs, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    np.save(other / "0.npy", LOGITS)
    both = [str(logs / "0.npy"), str(other / "0.npy")]
    mc.apply(CAL, both, f"{tmp_path}/out/")
    done = mc.apply(CAL, both[:1], f"{tmp_path}/out/", prune=True)
    assert done.orphans == ("000000-0.npz",)  # the other one's source is there, and was not asked for
    assert sorted(results(tmp_path / "out")) == ["0.npz", "000001-0.npz"]


def test_a_second_run_is_told_who_is_at_work(logs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with Journal(str(out / JOURNAL), "apply"):
        with pytest.raises(mc.InputError, match=rf"{JOURNAL} is in use by process {os.getpid()} on .* wait until"):
            mc.apply(CAL, logs, f"{out}/")
        assert results(out) == {}
    assert mc.apply(CAL, logs, f"{out}/").n_kept == 0


@pytest.mark.slow
def test_workers_write_and_the_journal_is_kept_here(logs, tmp_path):
    with ProcessPoolExecutor(2) as executor:
        assert mc.apply(CAL, logs, f"{tmp_path}/out/", executor=executor).n_kept == 0
        assert mc.apply(CAL, logs, f"{tmp_path}/out/", executor=executor).n_kept == 3
        write_same_stamp(logs / "2.npy", LOGITS[:30])
        assert mc.apply(CAL, logs, f"{tmp_path}/out/", executor=executor).n_kept == 2
    assert results(tmp_path / "out") == fresh(logs)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        JOURNAL, f"{JOURNAL}.lock", "0.npz", "1.npz", "2.npz",
    }  # fmt: skip


def test_a_source_without_rows_has_no_result(logs, tmp_path):
    out = tmp_path / "out"
    mc.apply(CAL, logs, f"{out}/")
    np.save(logs / "1.npy", LOGITS[:0])
    for n_kept in (2, 2):
        done = mc.apply(CAL, logs, f"{out}/")
        assert (done.n_files, done.n_kept, done.empty) == (2, n_kept, (str(logs / "1.npy"),))
        assert sorted(results(out)) == ["0.npz", "2.npz"]
    np.save(logs / "1.npy", LOGITS[:30])
    assert mc.apply(CAL, logs, f"{out}/").n_files == 3
    for part in range(3):
        np.save(logs / f"{part}.npy", LOGITS[:0])
    with pytest.raises(mc.InputError, match="it holds no rows, nor does any other"):
        mc.apply(CAL, logs, f"{out}/")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_kills_at_random_moments(tmp_path):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    try:
        import apply_kills
    finally:
        sys.path.pop(0)
    counts = apply_kills.run(tmp_path, times=3, files=8, seed=1)
    assert counts["different"] == counts["left_over"] == 0
    assert counts["killed"] == 3
