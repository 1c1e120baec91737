"""The hundred sentences that people see most, for somebody who reads them as a native speaker
would.

Collected by running metacal: what each command says of itself, the common options, the certificate,
verdicts and what to do, and the warnings and errors of `tests/hostile/wrong_inputs.py`. `python
tests/contracts/most_seen.py` writes `most_seen.txt`; with `--before TREE` each sentence that
another tree says otherwise stands there too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".txt")
#: Options that people meet first.
COMMON = {
    "fit": (
        "min_accuracy",
        "max_miscoverage",
        "confidence",
        "output",
        "calibrator",
        "score",
        "unit_key",
    ),
    "apply": ("output", "rejected", "keep", "prune"),
    "verify": ("confidence", "unit_key"),
    "monitor": ("state", "follow", "serve", "otlp"),
}
MOST = 100


def sentences() -> dict[str, str]:
    """What this tree says, by where it says it."""
    import numpy as np
    from click.testing import CliRunner

    import metacal as mc
    from metacal.cli import SUMMARIES, main

    found = {f"metacal --help, {name}": text for name, text in SUMMARIES.items()}
    for command, names in COMMON.items():
        params = {
            one.name: one
            for one in main.get_command(
                main.make_context("metacal", [command, "-h"], resilient_parsing=True), command
            ).params
        }
        found |= {
            f"metacal {command} --help, {name}": params[name].help
            for name in names
            if name in params
        }
    data = mc.datasets.load("cifar10-resnet110")
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("val", slice(0, 5000)), ("test", slice(5000, 8000))):
            np.savez(f"{folder}/{name}.npz", logits=data.logits[rows], labels=data.labels[rows])
        here = os.getcwd()
        os.chdir(folder)
        try:
            for words in (
                "fit val.npz --min-accuracy 0.97 -o cal.json",
                "evaluate cal.json test.npz --resamples 0",
                "verify cal.json test.npz",
            ):
                lines = CliRunner().invoke(main, words.split()).output.splitlines()
                kept = [line for line in lines if line[:1] != " " or line[2:3] != " "]
                found |= {
                    f"metacal {words}, line {k}": " ".join(line.split())
                    for k, line in enumerate(kept[:9])
                }
        finally:
            os.chdir(here)
    sys.path.insert(0, str(ROOT / "tests" / "hostile"))
    import wrong_inputs

    for words, text in wrong_inputs.kept().items():
        lines = text.splitlines()[1:]
        if lines and "--strict" not in words:
            found[f"metacal {words}"] = lines[0]
    return {key: text for key, text in found.items() if text}


def of_tree(tree: str) -> dict[str, str]:
    """What another tree says: this script, run there."""
    there = Path(tree).resolve()
    program = "\n".join(
        [
            "import json, pathlib, sys",
            f"sys.path.insert(0, {str(LIST.parent)!r})",
            "import most_seen",
            f"most_seen.ROOT = pathlib.Path({str(there)!r})",
            "print(json.dumps(most_seen.sentences()))",
        ]
    )
    env = {**os.environ, "PYTHONPATH": f"{there / 'src'}{os.pathsep}{there}"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="TREE", help="A checkout of an earlier version.")
    asked = parser.parse_args()
    now, before = sentences(), {} if asked.before is None else of_tree(asked.before)
    chosen = sorted(
        now, key=lambda key: (before.get(key, now[key]) == now[key], list(now).index(key))
    )[:MOST]
    lines = []
    for key in now:
        if key in chosen:
            was = before.get(key, now[key])
            lines += [
                key,
                *([f"  was: {was}"] if was != now[key] else []),
                f"  is:  {now[key]}",
                "",
            ]
    LIST.write_text("\n".join(lines), encoding="utf-8")
    changed = sum(before.get(key, now[key]) != now[key] for key in chosen)
    print(f"{len(chosen)} sentences, {changed} of them other than before")
