"""Names from a file or an artifact never steer the terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal import cli
from metacal.display import escape_controls

#: Clear the screen, set the title, a bell, a carriage return, C1's introducer, right-to-left, a
#: line, delete.
EVIL = "cat\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202eabc\u2028\x7f"
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


def run(*arguments, input=None):
    result = CliRunner().invoke(cli.main, list(map(str, arguments)), input=input)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 800)
    logits = rng.normal(size=(800, 3)) + 3 * np.eye(3)[codes]
    names = np.array([EVIL, "dog\nCertified: everything", "fox"])
    np.savez(folder / "val.npz", logits=logits, labels=names[codes], classes=names)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), classes=names, reject_label="no\x1b[31m").fit(
        logits, names[codes]
    )
    mc.save(gate, folder / "cal.json")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "{}/val.npz", "--max-miscoverage", "0.1"],
        ["show", "{}/cal.json"],
        ["show", "{}/cal.json", "--json"],
        ["evaluate", "{}/cal.json", "{}/val.npz", "--resamples", "0"],
        ["verify", "{}/cal.json", "{}/val.npz"],
        ["fit", "{}/val.npz", "--max-miscoverage", "0.1", "--label-key", EVIL],
        ["fit", "{}/" + EVIL + ".npz", "--max-miscoverage", "0.1"],
        ["fit", "{}/val.npz", "--max-miscoverage", EVIL],
        ["fit", "{}/val.npz", "--max-miscoverage", "0.1", "--classes", EVIL],
        ["fit", "{}/val.npz", "--score", EVIL, "--max-miscoverage", "0.1"],
        ["fit", "{}/val.npz", "--" + EVIL],
        [EVIL],
        ["--" + EVIL],
        ["apply", "{}/cal.json", "{}/val.npz", "-o", "{}/" + EVIL],
        ["compare", "{}/val.npz", "--calibrators", EVIL],
    ],
)
def test_nothing_a_terminal_obeys_is_printed(folder, words):
    result = run(*(word.replace("{}", str(folder)) for word in words))
    assert result.exit_code in (0, 1, 2)
    assert result.output
    assert CONTROLS.search(result.output) is None, ascii(result.output)


def test_columns_of_a_file_in_an_error(folder, tmp_path):
    header = f"logits_a,logits_b,{EVIL.replace(chr(13), '')}\n"
    (tmp_path / "x.csv").write_text(header + "1,2,x\n" * 3)
    result = run("fit", tmp_path / "x.csv", "--max-miscoverage", "0.1")
    assert result.exit_code == 2
    assert "owned" in result.output
    assert CONTROLS.search(result.output) is None


def test_a_class_cannot_pass_for_a_line_of_its_own(folder):
    assert "\nCertified: everything" not in run("show", folder / "cal.json").output


def test_warnings_are_harmless(folder, monkeypatch):
    import warnings

    from metacal.cli import reading

    original = reading.read_table

    def warns(*arguments, **options):
        warnings.warn(EVIL, mc.MetacalWarning, stacklevel=1)
        return original(*arguments, **options)

    monkeypatch.setattr(reading, "read_table", warns)
    result = run("fit", folder / "val.npz", "--max-miscoverage", "0.1")
    assert "Warning: cat\\x1b[2J" in result.output
    assert CONTROLS.search(result.output) is None


def test_json_keeps_the_names(folder):
    assert json.loads(run("show", folder / "cal.json", "--json").output)["classes"][0] == EVIL


def test_everything_goes_through_one_door():
    """No command prints past `metacal.cli.printing`; the group itself only prints words of its
    own.
    """
    for path in Path(cli.__file__).parent.glob("*.py"):
        if path.name != "printing.py":
            for line in path.read_text(encoding="utf-8").splitlines():
                own = (
                    "format_help_link" in line
                    or '"Aborted."' in line
                    or '"Stopped."' in line
                    or 'f"Warning: {text}"' in line
                )
                assert "click.echo" not in line or own, (path.name, line)
                assert not re.match(r"\s*print\(", line), (path.name, line)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_rows_on_a_terminal_and_in_a_pipe(folder, kind):
    import pty

    words = [
        "apply",
        str(folder / "cal.json"),
        str(folder / "val.npz"),
        "-o",
        "-",
        "--output-format",
        kind,
    ]
    command = [sys.executable, "-c", "from metacal.cli import main; main()", *words]
    piped = subprocess.run(command, capture_output=True, check=True).stdout
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            some = os.read(leader, 1 << 16)
        except OSError:
            break
        if not some:
            break
        shown += some
    os.close(leader)
    code = process.wait()
    text = shown.decode().replace("\r\n", "\n")
    assert CONTROLS.search(text) is None
    if kind == "csv":
        assert code == 0
        assert b"\x1b[2J" in piped
        assert "\\x1b[2J" in text
    else:
        assert code == 2
        assert "cannot be printed to a terminal" in text
        assert piped[:2] == b"PK"


@pytest.mark.parametrize("text", ["plain", "Füchse 狐 🦊", "👩‍🔬", "a\tb\nc", ""])
def test_ordinary_text_stays(text):
    assert escape_controls(text) == text
