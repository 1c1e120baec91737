"""metacal monitor, the real command, while somebody rotates, cuts off, tears and fills what it
reads, or kills it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main


@pytest.fixture(scope="module")
def cal(tmp_path_factory):
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(200, 3)), random.integers(0, 3, size=200)
    path = tmp_path_factory.mktemp("monitor") / "cal.json"
    mc.save(mc.TemperatureScaling().fit(logits, labels), path)
    return path


def row(name, label=None, values=(1.5, 0.0, -1.0)):
    return (
        json.dumps(
            {"id": name, "logits": list(values), **({} if label is None else {"label": label})}
        )
        + "\n"
    )


def late(name, label=0):
    return json.dumps({"id": name, "label": label}) + "\n"


def once(*args):
    done = CliRunner().invoke(main, ["monitor", *map(str, args), "--json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else None, done.stderr


class Follower:
    """A monitor that follows a file: what it counts is read from its metrics; it ends by
    SIGTERM.
    """

    def __init__(self, cal, file, *options):
        self.metrics = file.parent / "monitor.prom"
        self.metrics.unlink(missing_ok=True)
        call = [
            sys.executable,
            "-m",
            "metacal",
            "monitor",
            cal,
            file,
            "--follow",
            "--json",
            "--prometheus",
        ]
        self.process = subprocess.Popen(
            [*map(str, [*call, self.metrics, *options])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            text = self.metrics.read_text() if self.metrics.exists() else ""
            if re.search(pattern, text):
                return
            if self.process.poll() is not None:
                raise AssertionError(self.process.communicate()[1])
            time.sleep(0.02)
        raise AssertionError(f"{pattern} has not come: {text}")

    def rows(self, n):
        self.until(rf'decision="accepted"}} {n}\n')  # this gate accepts all

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, json.loads(out), err


@pytest.mark.slow
def test_rotation(cal, tmp_path):
    log = tmp_path / "a.jsonl"
    log.write_text(row("a") + row("b"))
    following = Follower(cal, log, "--state", tmp_path / "s.journal")
    following.rows(2)
    with open(log, "a") as writer:
        log.rename(tmp_path / "a.jsonl.1")
        writer.write(row("c"))  # whoever writes has not noticed yet
        writer.flush()
        following.rows(3)
    log.write_text(row("d") + late("a"))
    following.rows(4)
    code, found, _ = following.end()
    assert (code, found["rows"], found["labelled"], found["gaps"], found["unreadable"]) == (
        0,
        4,
        1,
        0,
        0,
    )
    (tmp_path / "a.jsonl.1").rename(tmp_path / "a.jsonl.2")  # twice while nobody looks
    with open(log, "a") as writer:
        writer.write(row("e"))
    log.rename(tmp_path / "a.jsonl.1")
    log.write_text(row("f"))
    _, found, _ = once(cal, log, "--state", tmp_path / "s.journal")
    assert (found["rows"], found["gaps"], found["unknown"]) == (6, 0, 0)


@pytest.mark.slow
def test_a_log_that_is_copied_and_cut_off(cal, tmp_path):
    log = tmp_path / "a.jsonl"
    log.write_text(row("a") + row("b"))
    following = Follower(cal, log, "--state", tmp_path / "s.journal")
    following.rows(2)
    (tmp_path / "a.jsonl.1").write_bytes(log.read_bytes() + row("c").encode())
    os.truncate(log, 0)
    with open(log, "a") as writer:
        writer.write(row("d"))
    following.rows(4)
    code, found, _ = following.end()
    assert (code, found["rows"], found["gaps"]) == (0, 4, 0)
    log.write_text(row("another, without a copy") + row("and one more"))
    _, found, err = once(cal, log, "--state", tmp_path / "s.journal")
    assert (found["rows"], found["gaps"]) == (6, 1)
    assert "what had been written to it since cannot be seen" in err


def test_half_a_line(cal, tmp_path):
    log, state = tmp_path / "a.jsonl", tmp_path / "s.journal"
    whole = row("b")
    log.write_text(row("a") + whole[:20])
    _, found, err = once(cal, log, "--state", state)
    assert (found["rows"], found["unreadable"]) == (1, 0)
    assert "has no end yet; it counts once it has" in err
    log.write_text(row("a") + whole)
    assert once(cal, log, "--state", state)[1]["rows"] == 2
    assert once(cal, log, "--state", state)[1]["rows"] == 2
    log.write_text(
        row("a") + whole.rstrip()
    )  # as people write files: without a state, the last line is one
    assert once(cal, log)[1]["rows"] == 2


@pytest.mark.slow
def test_a_file_that_is_not_there_yet(cal, tmp_path):
    log = tmp_path / "a.jsonl"
    following = Follower(cal, log, "--silence", 0.3)
    following.until(r'alarm="silence"} 1')
    log.write_text(row("a"))
    following.rows(1)
    following.until(r'alarm="silence"} 0')
    code, found, err = following.end()
    assert (code, found["silence"]["times"] > 0) == (3, True)
    assert "is not there; waiting for it" in err
    assert "nothing has come in for 0.3 seconds" in err


BAD = [
    (b'{"id": 1, "logits": [1, NaN, 2]}', "number 2 of the row is NaN"),
    (
        b'{"id": 1, "logits": [1, 2]}',
        "this row has 2 numbers, but the gate was fitted on 3 classes",
    ),
    (b'{"id": 1, "logits": [[1], [2], [3]]}', "is not a number"),
    (b'{"id": 1, "logits": "x"}', "not a list of numbers"),
    (
        b'{"id": 1, "logits": [1, 2, 3], "label": 7}',
        "the label '7' is not one of the gate's classes",
    ),
    (b'{"id": [1], "logits": [1, 2, 3]}', "text or a number"),
    (b'{"id": 1, "logits": [1, 2, 3]', "not one complete JSON object"),
    (b'{"id": 1}', "id of an earlier row and a label"),
    (b"[1, 2]", "not an object"),
    (b'{"id": "\xff"}', "not UTF-8"),
    (b'{"a": 1, "a": 2}', "occurs twice"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"id": 1, "logits": [1e999, 2, 3]}', "number 1 of the row is infinity"),
    (b'{"id": 1, "logits": [-Infinity, -Infinity, -Infinity]}', "-infinity in every class"),
    (b'{"id": 1, "logits": [1, true, 3]}', "is not a number"),
    (b'{"id": 1, "logits": [1' + b"0" * 400 + b", 2, 3]}", "is not a number"),
]


def test_quarantine(cal, tmp_path):
    log, state = tmp_path / "a.jsonl", tmp_path / "s.journal"
    for k, (line, _) in enumerate(BAD):
        with open(log, "ab") as file:
            file.write(line + b"\n" + row(f"good {k}").encode())
    code, found, err = once(cal, log, "--state", state)
    assert (code, found["rows"], found["unreadable"], found["raised"]) == (
        3,
        len(BAD),
        len(BAD),
        ["unreadable"],
    )
    assert err.count("Put aside: ") == 3
    assert "counted, not named" in err
    aside = [
        json.loads(line) for line in (tmp_path / "s.quarantine.jsonl").read_text().splitlines()
    ]
    for k, (entry, (line, reason)) in enumerate(zip(aside, BAD, strict=True)):
        assert entry["place"] == f"{log}:{2 * k + 1}"
        assert reason in entry["reason"]
        assert line.decode(errors="replace").startswith(entry["line"])
    assert once(cal, log, "--state", state)[1]["unreadable"] == len(BAD)
    assert len((tmp_path / "s.quarantine.jsonl").read_text().splitlines()) == len(BAD)
    tolerant = once(cal, log, "--max-unreadable", 0.6)
    assert (tolerant[0], tolerant[1]["alarms"][-1]["raised"]) == (0, False)


def test_a_csv_goes_on_after_a_line_that_is_none(cal, tmp_path):
    log, state = tmp_path / "a.csv", tmp_path / "s.journal"
    log.write_bytes(
        b"id,0,1,2,label\na,1,2,3,0\nb,1,2\nc,1,2,3,9\nd,,2,3,\ne,1,2,x,\nf,3,2,1,\n\xff\n"
    )
    assert once(cal, log, "--state", state)[1]["rows"] == 2
    with open(log, "a") as file:
        file.write("g,1,2,3,\n")
    assert once(cal, log, "--state", state)[1]["rows"] == 3
    log.write_text("id,label\nf,0\ng,1\n")  # labels alone, in a file of their own
    _, found, _ = once(cal, log, "--state", state, "--append")
    assert (found["rows"], found["labelled"], found["unknown"], found["gaps"]) == (3, 3, 0, 0)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_labels_alone(cal, tmp_path, kind):
    rows, labels, state = tmp_path / f"r.{kind}", tmp_path / f"l.{kind}", tmp_path / "s.journal"
    head = "id,0,1,2,label\n" if kind == "csv" else ""
    rows.write_text(head + ("a,1,2,3,\n" if kind == "csv" else row("a")))
    labels.write_text(head + ("a,,,,2\n" if kind == "csv" else late("a", 2)))
    assert once(cal, rows, "--state", state)[1]["waiting"] == 1
    _, found, _ = once(cal, labels, "--append", "--state", state)
    assert (found["rows"], found["labelled"], found["waiting"]) == (1, 1, 0)
    with open(rows, "a") as file:
        file.write("a,,,,1\n" if kind == "csv" else late("a", 1))
    _, found, _ = once(cal, rows, "--state", state)
    assert (found["rows"], found["labelled"], found["unknown"]) == (
        1,
        1,
        1,
    )  # nobody waits any more


def test_long_ids_and_odd_ones(cal, tmp_path):
    log, state = tmp_path / "a.jsonl", tmp_path / "s.journal"
    names = ["u" * 250 + str(k) for k in range(3)] + ["\ud800", 10**30, 17]
    log.write_text("".join(row(name) for name in names))
    assert once(cal, log, "--state", state)[1]["waiting"] == len(names)
    with open(log, "a") as file:
        file.write(late(names[1]) + late(names[4]) + late("17"))
    _, found, _ = once(cal, log, "--state", state)
    assert (found["labelled"], found["waiting"], found["unknown"]) == (3, 3, 0)


@pytest.mark.slow
def test_a_line_that_never_ends(cal, tmp_path):
    log = tmp_path / "a.jsonl"
    with open(log, "wb") as file:
        file.write(row("a").encode())
        file.seek(200 << 20, os.SEEK_CUR)  # nothing but zeros
        file.write(b"\n" + row("b").encode())
    began = time.process_time()
    code, found, _ = once(cal, log, "--quarantine", tmp_path / "q")
    assert (code, found["rows"], found["unreadable"]) == (0, 2, 1)  # one is no reason for an alarm
    assert time.process_time() - began < 5.0
    assert "more than 64 MB" in (tmp_path / "q").read_text()
    assert (tmp_path / "q").stat().st_size < 20_000


@pytest.mark.slow
def test_one_at_a_time(cal, tmp_path):
    log = tmp_path / "a.jsonl"
    log.write_text(row("a"))
    following = Follower(cal, log, "--state", tmp_path / "s.journal")
    following.rows(1)
    code, _, err = once(cal, log, "--state", tmp_path / "s.journal")
    assert (code, f"is in use by process {following.process.pid}" in err) == (2, True)
    assert (
        mc.load_watch(tmp_path / "s.journal", mc.load_gate(cal)).counts.rows == 1
    )  # to look is free
    following.end()


@pytest.mark.slow
def test_killed_again_and_again(cal, tmp_path):
    """A short version of benchmarks/kills.py."""
    log, state = tmp_path / "a.jsonl", tmp_path / "s.journal"
    random, n = np.random.default_rng(0), 1
    log.write_text("{\n")
    for _ in range(4):
        following = Follower(cal, log, "--state", state)
        following.until(
            "metacal_unreadable_lines_total [1-9]"
        )  # what was rotated before anybody looked is nobody's
        for _ in range(5):
            with open(log, "a") as file:
                for _ in range(20):
                    file.write(row(f"row {n}") if n % 7 else "{\n")
                    n += 1
            if random.random() < 0.3:
                log.rename(log.with_suffix(f".jsonl.{n}"))
            time.sleep(0.03)
        time.sleep(float(random.random()) * 0.2)
        following.process.kill()
        following.process.communicate()
    log.touch()
    _, found, _ = once(cal, log, "--state", state)
    bad = sum(k % 7 == 0 for k in range(n))
    assert (found["rows"], found["unreadable"], found["waiting"], found["gaps"]) == (
        n - bad,
        bad,
        n - bad,
        0,
    )
    assert len((tmp_path / "s.quarantine.jsonl").read_text().splitlines()) == bad


@pytest.mark.slow
def test_a_tab_that_is_closed_says_nothing(cal, capfd):
    """Whoever asks and goes away before the answer, again and again."""
    import socket
    import struct

    from metacal.reports.server import Server
    from metacal.reports.status import status

    with Server(status(mc.Watch.of(mc.load_gate(cal))), port=0) as server:
        place = ("127.0.0.1", int(server.address.rsplit(":", 1)[1].strip("/")))
        for _ in range(30):
            with socket.create_connection(place) as tab:
                tab.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                tab.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            time.sleep(
                0.005
            )  # where more than five wait at the door, the next knocks again after a second
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


class DiskWithoutSpace:
    """Let every write fail for want of space, a number of times; then all is well."""

    def __init__(self, monkeypatch, n_failures):
        self.n_left = n_failures
        self.write = os.write
        monkeypatch.setattr("metacal.io.disk.os.write", self)
        monkeypatch.setattr("metacal.cli.monitoring.DISK_RETRY_SECONDS", 0.0)

    def __call__(self, file, content):
        if self.n_left:
            self.n_left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(file, content)


def test_a_full_disk_at_the_start_does_not_stop_a_stream(cal, tmp_path, monkeypatch, capsys):
    state, traffic = tmp_path / "watch.journal", tmp_path / "traffic.jsonl"
    traffic.write_text("".join(row(k, label=0) for k in range(20)) + "{broken\n")
    disk = DiskWithoutSpace(monkeypatch, n_failures=5)
    with traffic.open() as stream:  # CliRunner's own stream has no descriptor to wait for
        monkeypatch.setattr("sys.stdin", stream)
        main(
            ["monitor", str(cal), "-", "--format", "jsonl", "--state", str(state), "--json"],
            standalone_mode=False,
        )
    assert disk.n_left == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rows"] == 20
    assert said.err.count("No space left on device") == 1
    assert mc.load_watch(state, mc.load(cal)).counts.rows == 20
    assert len((tmp_path / "watch.quarantine.jsonl").read_text().splitlines()) == 1


def test_a_full_disk_ends_the_run_over_a_finished_file(cal, tmp_path, monkeypatch):
    state, traffic = tmp_path / "watch.journal", tmp_path / "traffic.jsonl"
    traffic.write_text("".join(row(k, label=0) for k in range(20)))
    DiskWithoutSpace(monkeypatch, n_failures=5)
    code, _, told = once(cal, traffic, "--state", state)
    assert code == 2
    assert "No space left on device" in told
    monkeypatch.undo()
    code, found, _ = once(cal, traffic, "--state", state)
    assert (code, found["rows"]) == (0, 20)
