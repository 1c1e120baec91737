"""apply to a folder: results that know their source, whoever changes, removes, empties or locks
what.
"""

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
    """Write other numbers into the file, in place, and set its time back: as within a tick of the
    clock.
    """
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
    with pytest.raises(mc.InputError, match="npz is also an input file"):
        mc.apply(CAL, str(logs), f"{logs}/")


def test_a_source_that_never_rests_gives_an_error_and_no_result(logs, tmp_path, monkeypatch):
    real = applying.write_decisions

    def and_then_it_grows(gate, found, output, *rest, **options):
        answer = real(gate, found, output, *rest, **options)
        np.save(logs / "1.npy", np.tile(LOGITS, (time.perf_counter_ns() % 7 + 1, 1)))
        return answer

    monkeypatch.setattr(applying, "write_decisions", and_then_it_grows)
    with pytest.raises(
        mc.InputError, match=r"1\.npy: the file changed 3 times while it was read. Wait until"
    ):
        mc.apply(CAL, logs / "1.npy", f"{tmp_path}/out/")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{JOURNAL}.lock"}


def test_the_same_length_at_the_same_time_is_noticed(logs, tmp_path):
    mc.apply(CAL, logs, f"{tmp_path}/out/")
    write_same_stamp(logs / "2.npy", LOGITS[:30])
    assert mc.apply(CAL, logs, f"{tmp_path}/out/").n_kept == 2
    assert results(tmp_path / "out") == fresh(logs)


def test_a_result_that_is_gone_or_has_another_time_is_made_again(logs, tmp_path):
    out = tmp_path / "out"
    mc.apply(CAL, logs, f"{out}/")
    expected = results(out)
    (out / "0.npz").unlink()
    os.utime(out / "1.npz", (1, 1))  # as in a copy of the folder
    assert mc.apply(CAL, logs, f"{out}/").n_kept == 1
    assert results(out) == expected


def test_a_damaged_journal_is_refused_and_removed_together_with_its_results(logs, tmp_path):
    out = tmp_path / "out"
    mc.apply(CAL, logs, f"{out}/")
    expected = results(out)
    content = (out / JOURNAL).read_bytes()
    (out / JOURNAL).write_bytes(content[:40] + b"?" + content[41:])
    with pytest.raises(
        mc.ArtifactError,
        match=r"journal:1: this record is damaged.*all results are then computed again",
    ):
        mc.apply(CAL, logs, f"{out}/")
    (out / JOURNAL).unlink()
    for path in out.glob("*.npz"):
        path.unlink()
    assert mc.apply(CAL, logs, f"{out}/").n_kept == 0
    assert results(out) == expected


@pytest.mark.parametrize("name", ["1.npz", "a link to nothing"])
def test_a_file_that_apply_did_not_write_is_never_replaced(name, logs, tmp_path):
    gate, out = tmp_path / "t.json", tmp_path / "out"
    mc.save(CAL, gate)
    out.mkdir()
    if name == "1.npz":
        (out / "1.npz").write_bytes(b"theirs")
    else:
        (out / "1.npz").symlink_to("nowhere")
    done = metacal("apply", gate, logs, "-o", f"{out}/")
    assert done.exit_code == 2
    assert "1.npz was not written by 'metacal apply'" in done.stderr
    assert "Move or rename it" in done.stderr
    assert {path.name for path in out.iterdir()} == {
        "1.npz",
        f"{JOURNAL}.lock",
    }  # nor was anything else made
    if name == "1.npz":
        assert (out / "1.npz").read_bytes() == b"theirs"
    (out / "1.npz").rename(out / "theirs")
    assert metacal("apply", gate, logs, "-o", f"{out}/").exit_code == 0
    assert results(out) == fresh(logs)


def test_a_result_that_somebody_edited_is_never_replaced(logs, tmp_path):
    out = tmp_path / "out"
    mc.apply(CAL, logs, f"{out}/")
    (out / "1.npz").write_bytes(b"edited")
    with pytest.raises(
        mc.InputError, match=r"1\.npz was not written by 'metacal apply', or was changed"
    ):
        mc.apply(CAL, logs, f"{out}/")
    assert (out / "1.npz").read_bytes() == b"edited"


def test_a_file_that_comes_while_results_are_made_is_not_replaced(logs, tmp_path, monkeypatch):
    out, real = tmp_path / "out", applying.write_decisions

    def and_then_it_comes(gate, found, output, *rest, **options):
        (out / "1.npz").write_bytes(b"theirs")
        return real(gate, found, output, *rest, **options)

    monkeypatch.setattr(applying, "write_decisions", and_then_it_comes)
    with pytest.raises(mc.InputError, match=r"1\.npz was not written by 'metacal apply'"):
        mc.apply(CAL, logs, f"{out}/")
    assert (out / "1.npz").read_bytes() == b"theirs"


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
    assert "--prune requires a folder of results" in refused.stderr


@pytest.fixture
def two_days(tmp_path):
    """Two folders with a file of the same name in each."""
    for day, rows in (("monday", slice(0, 30)), ("friday", slice(30, 90))):
        (tmp_path / "week" / day).mkdir(parents=True)
        np.save(tmp_path / "week" / day / "x.npy", LOGITS[rows])
    return tmp_path / "week" / "monday" / "x.npy", tmp_path / "week" / "friday" / "x.npy"


def n_rows_by_name(folder):
    return {path.name: len(np.load(path)["prediction"]) for path in folder.glob("*.npz")}


def test_a_second_source_of_the_same_name_takes_nothing_from_the_first(two_days, tmp_path):
    monday, friday = two_days
    week, out = monday.parents[1], tmp_path / "out"
    friday.rename(tmp_path / "later.npy")
    mc.apply(CAL, week, f"{out}/")
    (tmp_path / "later.npy").rename(friday)
    done = mc.apply(CAL, week, f"{out}/", prune=True)
    assert (done.n_kept, done.n_files, done.orphans) == (1, 2, ())
    rows = n_rows_by_name(out)
    assert rows.pop("x.npz") == 30
    assert list(rows.values()) == [60]
    for source in (
        week,
        monday,
        friday,
    ):  # in whatever company, a source keeps the name of its result
        done = mc.apply(CAL, source, f"{out}/")
        assert (done.n_kept, done.orphans) == (done.n_files, ())
    monday.unlink()
    done = mc.apply(CAL, week, f"{out}/", prune=True)
    assert (done.n_kept, done.n_files, done.orphans) == (1, 1, ("x.npz",))


def test_two_sources_of_the_same_name_are_told_apart(two_days, tmp_path):
    done = mc.apply(CAL, [str(path) for path in two_days], f"{tmp_path}/out/")
    assert done.n_files == 2
    assert sorted(n_rows_by_name(tmp_path / "out").values()) == [30, 60]
    with pytest.raises(mc.InputError, match=r"are the same file\. Pass this file once"):
        mc.apply(CAL, [str(two_days[0]), str(two_days[0])], f"{tmp_path}/other/")


def test_a_result_does_not_replace_that_of_another_source(two_days, tmp_path):
    monday, friday = two_days
    out = tmp_path / "out"
    mc.apply(CAL, monday, f"{out}/")
    with pytest.raises(mc.InputError) as refused:
        mc.apply(CAL, friday, f"{out}/")
    assert str(monday) in str(refused.value)
    assert str(friday) in str(refused.value)
    assert n_rows_by_name(out) == {"x.npz": 30}
    monday.unlink()  # the result of a source that is gone makes way for one of the same name
    mc.apply(CAL, friday, f"{out}/")
    assert n_rows_by_name(out) == {"x.npz": 60}


def test_a_second_run_is_told_who_is_at_work(logs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with Journal(str(out / JOURNAL), "apply"):
        with pytest.raises(
            mc.InputError, match=rf"{JOURNAL} is in use by process {os.getpid()} on .* Wait until"
        ):
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
    with pytest.raises(mc.InputError, match="neither this file nor any other file has rows"):
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
