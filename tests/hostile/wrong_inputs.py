"""Files that are not quite what metacal thinks, commands that are handed them, and what each then
says.

`wrong_inputs.txt` beside this file keeps the messages; they were read by a person once. After a
message was changed on purpose, `python tests/hostile/wrong_inputs.py` writes it again: read what
the difference says before it is committed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from metacal.cli import main

GOLDEN = Path(__file__).with_suffix(".txt")
NAMES = np.array(["cat", "dog", "bird"])

COMMANDS = """
fit softmax.npz --max-miscoverage 0.1
fit softmax.npz --max-miscoverage 0.1 --strict
fit softmax.csv --max-miscoverage 0.1
fit rounded.csv --max-miscoverage 0.1
fit floor.npz --max-miscoverage 0.1
fit whole.npz --max-miscoverage 0.1
fit alike.npz --max-miscoverage 0.1
fit decisions.npz --max-miscoverage 0.1
fit duplicated.npz --max-miscoverage 0.1
fit duplicated.npz --max-miscoverage 0.1 --strict
fit training.npz --max-miscoverage 0.1
fit latency.csv --max-miscoverage 0.1
fit latency-counted.csv --max-miscoverage 0.1
fit unnamed.csv --max-miscoverage 0.1
fit split.csv --max-miscoverage 0.1
fit split.csv --max-miscoverage 0.1 --strict
fit split.parquet --max-miscoverage 0.1
fit split.jsonl --max-miscoverage 0.1
fit target.csv --max-miscoverage 0.1
fit target.parquet --max-miscoverage 0.1
fit target-counted.csv --max-miscoverage 0.1
fit targets.npz --max-miscoverage 0.1
fit multi-hot.npz --max-miscoverage 0.1
fit one-hot.npz --max-miscoverage 0.1
fit binary.csv --max-miscoverage 0.1
fit binary.parquet --max-miscoverage 0.1
fit pair.pt --max-miscoverage 0.1
fit model.pkl --max-miscoverage 0.1
fit cal.json --max-miscoverage 0.1
fit rows.jsonl --max-miscoverage 0.1
fit sheet.xlsx --max-miscoverage 0.1
fit val.npz --max-miscoverage 0.1 -o -
fit val.npz --max-miscoverage 0.1 -o /dev/stdout
fit val.npz --max-miscoverage 0.1 -o val.npz/cal.json
fit val.npz --max-miscoverage 0.1 -o nowhere/cal.json
fit val.npz --max-miscoverage 0.1 -o val.npz
fit val.npz --max-miscoverage 0.1 -o .
fit missing.npz --max-miscoverage 0.1
fit empty --max-miscoverage 0.1
fit empty.csv --max-miscoverage 0.1
fit header-only.csv --max-miscoverage 0.1
fit headless.csv --max-miscoverage 0.1
fit ragged.csv --max-miscoverage 0.1
fit gap.csv --max-miscoverage 0.1
fit word.csv --max-miscoverage 0.1
fit latin1.csv --max-miscoverage 0.1
fit twice.csv --max-miscoverage 0.1
fit two-labels.csv --max-miscoverage 0.1
fit nan.npz --max-miscoverage 0.1
fit infinity.npz --max-miscoverage 0.1
fit from-one.npz --max-miscoverage 0.1
fit out-of-range.npz --max-miscoverage 0.1
fit continuous.npz --max-miscoverage 0.1
fit shuffled.npz --max-miscoverage 0.1
fit none-right.npz --max-miscoverage 0.1
fit unknown-label.csv --max-miscoverage 0.1
fit names.npz --max-miscoverage 0.1
fit flat.npz --max-miscoverage 0.1
fit other-names.npz --max-miscoverage 0.1
fit probabilities.npz --max-miscoverage 0.1
fit val.npz --input probabilities --max-miscoverage 0.1
fit logits.npy --max-miscoverage 0.1
fit logits.npy --labels short.txt --max-miscoverage 0.1
fit logits.npy --labels with-header.txt --max-miscoverage 0.1
fit val.npz
fit val.npz --min-accuracy 97
fit val.npz --max-miscoverage 0.1 --classes cat,dog
fit val.csv --max-miscoverage 0.1 --classes cat,dog,cow
fit val.csv --max-miscoverage 0.1 --reject-label cat
fit val.csv --max-miscoverage 0.1 --label-key truth
apply val.npz cal.json -o out.csv
apply cal.json four.npz -o out.csv
apply cal.json softmax.npz -o out.csv
apply cal.json softmax.npz -o out.csv --strict
apply cal.json val.npz -o out.csv --input probabilities
apply softmax.json val.npz -o out.csv
apply probabilities.json val.npz -o out.csv
apply named.json cow.csv -o out.csv
apply named.json cow.npz -o out.csv
apply cal.json val.npz
apply cal.json val.npz -o out.xlsx
apply cut.json val.npz -o out.csv
apply cal.json val.npz -o out.csv --prune
apply cal.json reference://a.csv::file:///etc/hostname -o out.csv
apply cal.json ftp://host/new.csv -o out.csv
apply cal.json no-rows -o out/
verify val.npz cal.json
verify cal.json val.npz
verify cal.json val.npz --strict
verify temperature.json val.npz
evaluate val.npz cal.json
evaluate cal.json val.npz --resamples 0
evaluate cal.json val.npz --resamples 0 --strict
evaluate cal.json unlabelled.npz
evaluate softmax.npz --resamples 0
report val.npz cal.json
report cal.json val.npz --resamples 0
report cal.json
compare softmax.npz --calibrators temperature
show val.npz
attach cal.json val.npz -o served.onnx
export val.npz -o gate.onnx
monitor val.csv named.json
monitor named.json cow.csv
monitor named.json mixed.jsonl
monitor named.json mixed.jsonl --strict
monitor named.json nowhere.jsonl
monitor named.json mixed.jsonl --silence 60
monitor named.json mixed.jsonl --state named.json
fits val.npz
""".strip().splitlines()


def make_files(folder: Path) -> None:
    """Write what the commands read."""
    (folder / "empty").mkdir()
    (folder / "no-rows").mkdir()
    for part in range(2):
        (folder / "no-rows" / f"{part}.csv").write_text("cat,dog,bird\n")
    rng = np.random.default_rng(7)
    logits = np.round(rng.normal(size=(600, 3)) * 2.5, 4)
    labels = logits.argmax(axis=1)
    labels[::7] = (labels[::7] + 1) % 3
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    _arrays(folder, rng, logits, labels, softmax)
    _texts(folder, rng, logits, labels, softmax)
    _others(folder, logits, labels)
    (folder / "mixed.jsonl").write_text(
        '{"id": 1, "logits": [1, 2]}\n{"id": 2, "label": "cow"}\nnothing\n'
    )
    _saved(folder)


def _arrays(folder, rng, logits, labels, softmax):
    def npz(name, logits=logits, labels=labels, **more):
        np.savez(folder / f"{name}.npz", logits=logits, labels=labels, **more)

    npz("val")
    npz("softmax", softmax.astype(np.float32))
    npz("floor", np.log(np.clip(softmax, 1e-3, None)))
    npz("whole", np.rint(4 * logits))
    npz("alike", np.repeat(logits[:1], 600, axis=0))
    npz("decisions", np.eye(3)[logits.argmax(axis=1)])
    npz("duplicated", np.repeat(logits[:300], 2, axis=0), np.repeat(labels[:300], 2))
    npz("training", labels=logits.argmax(axis=1))
    npz("multi-hot", labels=(rng.random((600, 3)) < 0.5).astype(int))
    npz("one-hot", labels=np.eye(3, dtype=int)[labels])
    npz("nan", np.where(np.arange(600)[:, None] == 11, np.nan, logits))
    npz("infinity", np.where(np.arange(600)[:, None] == 11, np.inf, logits))
    npz("from-one", labels=labels + 1)
    npz("out-of-range", labels=np.where(np.arange(600) == 5, 9, labels))
    npz("continuous", labels=labels + 0.25)
    npz("shuffled", labels=rng.permutation(labels))
    npz("none-right", labels=(logits.argmax(axis=1) + 1) % 3)
    npz("names", labels=NAMES[labels])
    npz("flat", logits[:, 0])
    npz("four", np.column_stack([logits, logits[:, 0]]))
    npz("cow", classes=np.array(["cat", "dog", "cow"]))
    np.savez(folder / "targets.npz", logits=logits, targets=labels)
    np.savez(folder / "other-names.npz", outputs=logits, truth=labels)
    np.savez(folder / "probabilities.npz", probabilities=softmax, labels=labels)
    np.savez(folder / "unlabelled.npz", logits=logits)
    np.save(folder / "logits.npy", logits)
    (folder / "short.txt").write_text("\n".join(map(str, labels[:599])))
    (folder / "with-header.txt").write_text("\n".join(["truth", *map(str, labels)]))


def _texts(folder, rng, logits, labels, softmax):
    def csv(name, columns, table, *beside):
        lines = [",".join(columns)]
        lines += [",".join(map(str, (*row, *more))) for row, *more in zip(table.tolist(), *beside)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")

    names = NAMES[labels].tolist()
    numbers = labels.tolist()
    seconds, halves = rng.random(600).round(3).tolist(), rng.integers(2, size=600).tolist()
    csv("val", [*NAMES, "label"], logits, names)
    csv("cow", ["cat", "dog", "cow", "label"], logits, names)
    csv("softmax", [*NAMES, "label"], softmax, names)
    csv("rounded", [*NAMES, "label"], softmax.round(2), names)
    csv("latency", [*NAMES, "label", "latency_s"], logits, names, seconds)
    csv("latency-counted", [*NAMES, "label", "latency_s"], logits, numbers, seconds)
    csv(
        "unnamed",
        ["Unnamed: 0", *NAMES, "label"],
        np.column_stack([np.arange(600), logits]),
        numbers,
    )
    csv("split", [*NAMES, "split", "label"], np.column_stack([logits, halves]), names)
    csv("target", [*NAMES, "target"], logits, names)
    csv("target-counted", [*NAMES, "target"], logits, numbers)
    csv("binary", ["label", "prob"], np.column_stack([labels % 2, softmax[:, 1]]))
    csv("two-labels", [*NAMES, "label", "y"], logits, names, names)
    csv("twice", ["cat", "dog", "dog", "label"], logits, names)
    csv("unknown-label", [*NAMES, "label"], logits, ["cow", *names[1:]])
    good = (folder / "val.csv").read_text().splitlines()
    (folder / "empty.csv").write_text("")
    (folder / "header-only.csv").write_text(good[0] + "\n")
    (folder / "headless.csv").write_text("\n".join(line.rpartition(",")[0] for line in good[1:]))
    (folder / "ragged.csv").write_text("\n".join([*good[:3], "1.5,2.5,cat", *good[3:]]))
    (folder / "gap.csv").write_text("\n".join([*good[:3], "1.5,,2.5,cat", *good[3:]]))
    (folder / "word.csv").write_text("\n".join([*good[:3], "1.5,n/a,2.5,cat", *good[3:]]))
    (folder / "latin1.csv").write_text(
        "\n".join(good).replace("cat", "caf\u00e9"), encoding="latin-1"
    )
    (folder / "rows.jsonl").write_text(
        '{"logits": [1.5, 2.5, 0.5], "label": 1}\n{"logits": [1.5, 2.5, 0.5]\n'
    )
    row = '{{"cat": {}, "dog": {}, "bird": {}, "split": {}, "label": "{}"}}\n'
    lines = [
        row.format(*values, half, name)
        for values, half, name in zip(logits.tolist(), halves, names)
    ]
    (folder / "split.jsonl").write_text("".join(lines))
    (folder / "sheet.xlsx").write_bytes(b"PK\x03\x04")
    (folder / "model.pkl").write_bytes(b"\x80\x04K\x01.")


def _others(folder, logits, labels):
    with contextlib.suppress(ImportError):
        import torch

        torch.save((torch.tensor(logits), torch.tensor(labels)), folder / "pair.pt")
    with contextlib.suppress(ImportError):
        import pyarrow as pa
        import pyarrow.parquet as parquet

        columns = dict(zip(NAMES.tolist(), logits.T.copy()))
        names = pa.array(NAMES[labels].tolist(), pa.string())
        halves = np.arange(600) % 2
        parquet.write_table(
            pa.table({**columns, "split": halves, "label": names}), folder / "split.parquet"
        )
        parquet.write_table(pa.table({**columns, "target": names}), folder / "target.parquet")
        parquet.write_table(
            pa.table({"label": labels % 2, "prob": logits[:, 0]}), folder / "binary.parquet"
        )


def _saved(folder):
    import metacal as mc

    for name, words in {
        "cal": "fit val.npz",
        "named": "fit val.csv",
        "softmax": "fit softmax.npz",
        "probabilities": "fit probabilities.npz --input probabilities",
    }.items():
        answer(folder, f"{words} --max-miscoverage 0.1 -o {name}.json")
    held = np.load(folder / "val.npz")
    mc.save(
        mc.TemperatureScaling().fit(held["logits"], held["labels"]), folder / "temperature.json"
    )
    (folder / "cut.json").write_bytes((folder / "cal.json").read_bytes()[:700])


def answer(folder: Path, words: str) -> str:
    """The exit code, and the warnings and errors that a command gives in the folder; usage lines
    are click's.
    """
    here = os.getcwd()
    os.chdir(folder)
    try:
        # People read some warnings as notes of the certificate; whoever asks for JSON is told all
        # of them on stderr.
        machine = ["--json"] if words.startswith("fit ") else []
        done = CliRunner().invoke(main, [*shlex.split(words), *machine], prog_name="metacal")
    finally:
        os.chdir(here)
    lines = [
        line for line in done.stderr.splitlines() if re.match("(Warning|Error): |Traceback", line)
    ]
    said = "\n".join([f"exit {done.exit_code}", *lines]).replace(str(folder.resolve()), "FOLDER")
    return re.sub(
        r"\((?:Expecting|Unterminated) .*?\(char \d+\)\)", "(...)", said
    )  # what Python's json says, in its version's words


def needs(words: str) -> str | None:
    """The package that a command cannot do without, if it is none of metacal's own."""
    return (
        "torch"
        if ".pt" in words
        else "pyarrow"
        if ".parquet" in words
        else "onnx"
        if ".onnx" in words
        else None
    )


def kept() -> dict[str, str]:
    """The messages by command."""
    parts = re.split(r"^\$ metacal (.*)\n", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)[
        1:
    ]
    return {words: text.strip() for words, text in zip(parts[::2], parts[1::2])}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        make_files(place)
        pages = [f"$ metacal {words}\n{answer(place, words)}\n" for words in COMMANDS]
    GOLDEN.write_text("\n".join(pages), encoding="utf-8")
    sys.stderr.write(f"{len(pages)} messages\n")
