"""SIGTERM, SIGHUP and Ctrl-C in the middle of a write: no part is left, and what stood there
stands.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import metacal as mc
from metacal.cli.signals import StopRequested, raise_on_stop_signals

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals"),
    pytest.mark.usefixtures("signals_as_usual"),
]

PROGRAM = [sys.executable, "-c", "from metacal.cli import main; main()"]
#: The same with a write that waits when its first bytes are there, so that the signal comes in the
#: middle.
WAITING = """
import sys, time
from dataclasses import replace
from metacal.io.formats import FORMATS

for suffix, kind in list(FORMATS.items()):
    def opener(*arguments, kind=kind):
        writer = kind.create_writer(*arguments)
        inner = writer.write
        def write(columns):
            inner(columns)
            print("writing", file=sys.stderr, flush=True)
            for _ in range(300):  # a signal just before a sleep is handled after it
                time.sleep(0.1)
        writer.write = write
        return writer
    FORMATS[suffix] = replace(kind, create_writer=kind.create_writer and opener)
from metacal.cli import main
main()
"""
#: The same for what is written in one go: the new file is there, and not yet in its place.
WAITING_TEXT = """
import sys, time, os
fsync = os.fsync
def waits(number):
    print("writing", file=sys.stderr, flush=True)
    for _ in range(300):  # a signal just before a sleep is handled after it
        time.sleep(0.1)
os.fsync = waits
from metacal.cli import main
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    logits = rng.normal(size=(2000, 3)) + 3 * np.eye(3)[labels]
    np.savez(folder / "val.npz", logits=logits, labels=labels)
    mc.save(mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(logits, labels), folder / "cal.json")
    return folder


def stopped(code, arguments, number):
    """Start the command, send the signal when it writes, and return the exit code and what it
    said.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = ""
    while "writing" not in said:
        line = process.stderr.readline()
        assert line or process.poll() is None, said
        said += line
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    return process.returncode, said + rest


SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT] if os.name != "nt" else []


@pytest.mark.parametrize(
    ("number", "suffix"),
    [
        *((number, "csv") for number in SIGNALS),
        *((number, "npz") for number in SIGNALS[:1]),
        *((number, "parquet") for number in SIGNALS[:1]),
    ],
)
def test_apply_leaves_nothing_behind(folder, tmp_path, number, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / f"out.{suffix}"
    out.write_bytes(b"what stood here")
    code, said = stopped(
        WAITING, ["apply", folder / "cal.json", folder / "val.npz", "-o", out], number
    )
    assert code == 128 + number
    assert ("Aborted." if number == signal.SIGINT else "Stopped.") in said
    assert "Traceback" not in said
    assert [item.name for item in tmp_path.iterdir()] == [out.name]
    assert out.read_bytes() == b"what stood here"


@pytest.mark.parametrize(
    ("number", "command"),
    [
        (number, command)
        for command in ("fit", "report", "export")
        for number in SIGNALS[: 1 + (command == "fit")]
    ],
)
def test_other_commands_leave_nothing_behind(folder, tmp_path, number, command):
    arguments = {
        "fit": ["fit", folder / "val.npz", "--max-miscoverage", "0.1", "-o", tmp_path / "out.json"],
        "report": ["report", folder / "val.npz", "--resamples", "0", "-o", tmp_path / "out.html"],
        "export": ["export", folder / "cal.json", "-o", tmp_path / "out.onnx"],
    }[command]
    if command == "export":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    code, said = stopped(WAITING_TEXT, arguments, number)
    assert code == 128 + number, said
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_was_ignored_stays_ignored(folder, tmp_path):
    """Under nohup a closed terminal ends nothing."""
    code = WAITING.replace("range(300)", "range(10)")
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + code
    out = tmp_path / "out.csv"
    exit_code, said = stopped(
        code, ["apply", folder / "cal.json", folder / "val.npz", "-o", out], signal.SIGHUP
    )
    assert exit_code == 0, said
    assert len(out.read_text().splitlines()) == 2001


def test_a_second_signal_does_not_disturb_the_clearing_up(tmp_path):
    from metacal.io.writing import open_atomic_path

    def interrupted():
        with raise_on_stop_signals(), open_atomic_path(tmp_path / "a.txt") as part:
            part.write_text("half")
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StopRequested) as caught:
        interrupted()
    assert caught.value.args == (signal.SIGTERM,)
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_standard_input_leaves_no_copy_behind(folder, tmp_path):
    process = subprocess.Popen(
        [*PROGRAM, "fit", "-", "--format", "npz", "--max-miscoverage", "0.1"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    process.stdin.write((folder / "val.npz").read_bytes()[:5000])
    process.stdin.flush()
    while not any(
        tmp_path.glob("metacal-*")
    ):  # before it Python tries the folder out with a file of its own
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    process.stdin.close()
    process.stderr.close()
    assert list(tmp_path.iterdir()) == []
