"""The page's own source: checked by TypeScript, described once, nothing in it twice and nothing
unused.

`METACAL_TSC` names TypeScript's compiler (bin/tsc of the npm package typescript), which is not part
of this repository; where it is not set, `tsc` is looked for on the path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from browser import modules
from metacal.certificates.quantities import MISCOVERAGE, SELECTIVE_ACCURACY
from metacal.estimators.comparison import ComparisonEntry
from metacal.reports import html
from metacal.reports.status import status
from metacal.reports.summary import summarise

FOLDER = Path(html.__file__).with_name("page")
LIVE = FOLDER.with_name("live")
CSS = (FOLDER / "page.css").read_text(encoding="utf-8")
TEMPLATE = (FOLDER / "page.html").read_text(encoding="utf-8")
JOINED = modules.ordered(html.read_scripts())


# ── the scripts ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("folder", [FOLDER, LIVE], ids=["page", "live"])
def test_typescript_finds_no_mistake(folder):
    tsc = os.environ.get("METACAL_TSC") or shutil.which("tsc")
    if not tsc:
        pytest.skip("tsc not found: npm install typescript, then set METACAL_TSC to its bin/tsc")
    done = subprocess.run(
        [tsc, "--project", str(folder)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_typescript_would_find_one(tmp_path):
    """The check is no formality: a wrong name, a wrong type, a null that is not looked at, an
    unused import.
    """
    tsc = os.environ.get("METACAL_TSC") or shutil.which("tsc")
    if not tsc:
        pytest.skip("tsc not found: npm install typescript, then set METACAL_TSC to its bin/tsc")
    for file in FOLDER.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "wrong.js").write_text(
        '/** @import { Data } from "./types.js" */\nimport { byId, make } from "./dom.js";\n'
        "/** @param {Data} data */\nexport function wrong(data) {\n"
        '  byId(data.titel);\n  byId(data.format);\n  byId(data.source.file);\n}\n',
        encoding="utf-8",
    )  # fmt: skip
    done = subprocess.run(
        [tsc, "--project", str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    found = set(re.findall(r"wrong\.js[:(](\d+)", done.stdout))
    assert found == {"2", "5", "6", "7"}, done.stdout


def test_every_file_of_the_page_is_used():
    own = {path.name for path in FOLDER.iterdir()}
    checked = {"types.d.ts", "tsconfig.json"}  # for the type checker; not part of the page
    texts = {"methods.toml"}  # filled in by reports/methods.py
    assert own == {"page.html", "page.css", *checked, *texts, *(module.name for module in JOINED)}


def test_no_name_is_declared_twice():
    declared = [name for module in JOINED for name in module.declares]
    assert len(declared) == len(set(declared)) > 50


def test_everything_exported_is_imported():
    exported = {name for module in JOINED for name in module.exports}
    assert exported == {
        name for module in JOINED for names in module.imports.values() for name in names
    }


def test_no_script_knows_what_a_quantity_means():
    for name, text in html.read_scripts().items():
        assert not re.search(r"\.quantity\s*[!=]==?", text), name


# ── the style sheet ───────────────────────────────────────────────────────────────────────────────


def classes_used():
    """Every word that the template or a script gives as a class."""
    words = {word for found in re.findall(r'class="([^"]*)"', TEMPLATE) for word in found.split()}
    for text in html.read_scripts().values():
        for line in text.splitlines():
            if "class" in line:
                for found in re.findall(r'"([^"]*)"|`([^`]*)`', line):
                    words |= set("".join(found).replace("${", " ${").split())
    # Two names are put together while the page runs: the stage of a diagram, and the verdict.
    assert {"${stage}", "${verdict}"} <= words
    verdicts = re.findall(r"^  (\w+): \"M", html.read_scripts()["badge.js"], re.MULTILINE)
    return words | {"before", "after", *verdicts}


def test_every_class_of_the_style_sheet_is_used():
    rules = re.sub(r"/\*.*?\*/|\"[^\"]*\"", "", CSS, flags=re.DOTALL)
    selectors = " ".join(re.findall(r"([^{}]*)\{", rules))
    styled = set(re.findall(r"\.([a-z][\w-]*)", selectors))
    assert len(styled) > 40
    assert styled - classes_used() == set()


def test_every_colour_is_used():
    declared = set(re.findall(r"^\s+(--[\w-]+):", CSS, re.MULTILINE))
    assert {name for name in declared if f"var({name})" not in CSS} == set()


# ── the numbers ───────────────────────────────────────────────────────────────────────────────────


def interfaces(file=FOLDER / "types.d.ts"):
    """What types.d.ts says: interface -> the names in it."""
    text = re.sub(r"/\*\*.*?\*/|//[^\n]*", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"export interface (\w+) \{(.*?)\n\}", text, re.DOTALL)
    return {name: set(re.findall(r"^  (\w+):", body, re.MULTILINE)) for name, body in found}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(800, 3)) * 3
    truth = (tables + rng.normal(size=tables.shape)).argmax(axis=1)
    gate = mc.MetaCal(mc.Both(alpha=0.9, beta=0.5)).fit(tables[400:], truth[400:])
    table, labels = tables[:400], truth[:400]
    found = mc.compare(table, labels, calibrators=["temperature"])
    found = replace(
        found,
        entries=(*found.entries, ComparisonEntry("odd", {}, 0.0, error_message="too few rows")),
    )
    return {
        "title": "Report",
        **summarise(table, labels, gate, n_resamples=5, compare=found).to_dict(),
    }


def test_the_types_describe_the_numbers(data):
    described = interfaces()
    promise, diagram, curves, comparison = (
        data[name] for name in ("promise", "diagrams", "curves", "comparison")
    )
    parts = {
        "Data": data,
        "Source": data["source"],
        "Settings": data["settings"],
        "Promised": promise,
        "Verdict": promise["verdicts"][0],
        "Estimate": data["evaluation"]["all_rows"]["ece"],
        "Evaluation": data["evaluation"],
        "QuantityNames": data["quantity_names"],
        "CalibrationMetric": data["calibration_metrics"][0],
        "Diagram": diagram[0],
        "Bins": diagram[0]["equal_width"],
        "Series": curves["accuracy"],
        "Curves": curves,
        "Frontier": data["frontier"],
        "Classes": data["classes"],
        "Row": data["mistakes"][0],
        "Comparison": comparison,
        "Compared": comparison["calibrators"][0],
        "Failed": comparison["calibrators"][-1],
        "Methods": data["methods"],
    }
    assert {name: described[name] for name in parts} == {
        name: set(part) for name, part in parts.items()
    }


def test_the_types_describe_cases():
    rng = np.random.default_rng(0)
    score = rng.random(900)
    correct = rng.random(900) < score
    cases, groups = np.repeat(np.arange(300), 3), np.tile(["date", "name", "total"], 300)
    gate = mc.ScoreGate(mc.MaxCaseErrors(0.3)).fit(score, correct, cases=cases, groups=groups)
    found = summarise(score, correct, gate, cases=cases, groups=groups, n_resamples=0).to_dict()
    described = interfaces()
    assert described["Data"] == {"title", *found}
    assert described["Cases"] == set(found["cases"])
    assert described["CaseTypes"] == set(found["cases"]["types"])


def test_the_page_is_told_the_direction_of_each_quantity(data):
    told = {verdict["quantity"]: verdict for verdict in data["promise"]["verdicts"]}
    assert set(told) == {SELECTIVE_ACCURACY, MISCOVERAGE}
    for quantity, verdict in told.items():
        below = verdict["high"] <= verdict["target"]
        assert verdict["direction"] == ("at most" if below == verdict["kept"] else "at least"), (
            quantity
        )
        assert verdict["curve"] in data["curves"]
    accepted = f"{data['evaluation']['n_accepted']:,}"
    assert (
        told["selective accuracy"]["counted"]
        == f"of the {accepted} accepted predictions are correct"
    )


# ── the live page ─────────────────────────────────────────────────────────────────────────────────


def test_every_file_of_the_live_page_is_used():
    joined = modules.ordered(html.read_scripts("live"), "live.js")
    own = {path.name for path in LIVE.iterdir()} - {
        "state.d.ts",
        "tsconfig.json",
        "live.html",
        "live.css",
    }
    assert own == {module.name for module in joined} - set(html.read_scripts())
    words = " ".join(text for name, text in html.read_scripts("live").items() if name in own)
    styled = re.findall(r"\.([a-z][\w-]*)", (LIVE / "live.css").read_text(encoding="utf-8"))
    assert {name for name in styled if name not in words} == set()


def test_the_types_describe_the_state():
    random = np.random.default_rng(0)
    table = random.normal(size=(400, 3)) * 3
    labels = (table + random.normal(size=table.shape)).argmax(axis=1)
    watch = mc.Watch.of(mc.MetaCal(mc.MinAccuracy(0.5)).fit(table, labels)).update(table, labels)
    found = status(watch)
    old = status(mc.Watch.of(mc.TemperatureScaling().fit(table, labels)))
    described = interfaces(LIVE / "state.d.ts")
    parts = {
        "State": found,
        "Estimate": found["estimate"],
        "Alarm": found["alarms"][0],
        "Missing": old["missing"][0],
        "History": found["history"],
        "OneClass": found["classes"][0],
    }
    assert {name: described[name] for name in parts} == {
        name: set(part) for name, part in parts.items()
    }
