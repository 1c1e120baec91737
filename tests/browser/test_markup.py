"""Markup in names, ids, columns and files stays text in the page."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from metacal.cli import main

pytest.importorskip("selenium")

SHOUT = "<img src=x onerror=alert(1)>"
END = "</script><script>alert(2)</script>"
NAMES = [f"cat{SHOUT}", f"dog{END}", "&lt;b&gt;bird\u2028 {{script}}"]


def test_markup_in_names_ids_columns_and_files_is_inert(see, tmp_path):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(400, 3)) * 4
    truth = (table + rng.normal(size=table.shape)).argmax(axis=1)
    path = tmp_path / f"{SHOUT}.csv"
    header = [f"id{SHOUT}", *NAMES, f"truth{END}"]
    quoted = [",".join(f'"{cell}"' for cell in header)]
    quoted += [
        f'"{SHOUT}{k}",' + ",".join(map(str, row)) + f',"{NAMES[y]}"'
        for k, (row, y) in enumerate(zip(table, truth))
    ]
    path.write_text("\n".join(quoted) + "\n", encoding="utf-8")
    keys = ["--label-key", f"truth{END}", "--id-key", f"id{SHOUT}", "--classes", ",".join(NAMES)]
    artifact, output = tmp_path / f"cal{SHOUT}.json", tmp_path / "report.html"
    title = f"{END}{SHOUT}"
    for args in (
        ["fit", str(path), "--min-accuracy", "0.8", *keys, "-o", str(artifact)],
        [
            "report",
            str(artifact),
            str(path),
            *keys,
            "--resamples",
            "5",
            "--title",
            title,
            "-o",
            str(output),
        ],
    ):
        done = CliRunner().invoke(main, args)
        assert done.exit_code == 0, done.output

    driver = see(SimpleNamespace(address=output.as_uri()))
    time.sleep(0.1)  # an alert would come late
    assert not driver.get_log("browser")
    assert driver.title == title
    assert driver.find_element("id", "title").text == title
    made = (
        "return document.querySelectorAll('img, iframe, object, b, main script, header"
        " script').length"
    )
    assert driver.execute_script(made) == 0
    assert driver.execute_script("return document.scripts.length") == 2
    body = driver.execute_script("return document.body.innerText")
    for told in (SHOUT, END, NAMES[0], NAMES[1], path.name, artifact.name):
        assert told in body
    assert NAMES[2].replace("\u2028", "") in body.replace("\u2028", "").replace("\n", "")
