"""The live page in a real browser, over a stream that breaks its promise half-way."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

from browser import modules
from metacal.reports import html
from metacal.reports.evidence import format_evidence

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By

ROWS, HALF = 3000, 1500


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


@pytest.fixture(scope="module")
def stream(files):
    """JSON lines of the test rows; in the second half every tenth label is wrong."""
    with np.load(files / "test.npz") as test:
        logits, labels, names = test["logits"][:ROWS], test["labels"][:ROWS].copy(), test["classes"]
    bad = np.arange(HALF, ROWS, 10)
    labels[bad] = np.roll(names, 1)[[names.tolist().index(label) for label in labels[bad]]]
    rows = zip(logits.tolist(), labels.tolist())
    return [
        json.dumps({"id": k, "logits": row, "label": label}) + "\n"
        for k, (row, label) in enumerate(rows)
    ]


@pytest.fixture
def live(files, stream, tmp_path_factory):
    """`metacal monitor --serve` on a file that has its good half so far."""
    folder = tmp_path_factory.mktemp("live")
    file = folder / "stream.jsonl"
    file.write_text("".join(stream[:HALF]), encoding="utf-8")
    call = [
        sys.executable,
        "-m",
        "metacal",
        "monitor",
        str(files / "cal.json"),
        str(file),
        "--serve",
        "--port",
        "0",
    ]
    state = ["--state", str(folder / "state.json")]
    done = subprocess.Popen(
        [*call, *state, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    address = done.stderr.readline().split()[0]
    live = SimpleNamespace(address=address, file=file, process=done)
    until(lambda: json.loads(read(live, "state.json"))["rows"] == HALF)
    yield live
    if done.poll() is None:
        done.kill()
    done.communicate()


def read(live, path):
    with urllib.request.urlopen(live.address + path) as answer:
        return answer.read().decode()


def append_the_bad_half(live, stream):
    with live.file.open("a", encoding="utf-8") as file:
        file.write("".join(stream[HALF:]))


def test_the_page_lives_and_tells(live, stream, see):
    driver = see_when_ready(see, live)
    assert driver.find_element(By.ID, "badge").text == "No alarm"
    assert "correct at least 97%" in driver.find_element(By.ID, "answer-title").text
    append_the_bad_half(live, stream)
    badge = until(lambda: (text := driver.find_element(By.ID, "badge").text) != "No alarm" and text)
    assert badge.startswith("Alarm: promise")  # without a reload
    assert "labelled rows refute the promise" in driver.find_element(By.ID, "said").get_attribute(
        "textContent"
    )
    until(lambda: driver.find_element(By.ID, "main").get_attribute("data-rows") == str(ROWS))
    assert len(driver.find_elements(By.CSS_SELECTOR, "#evidence-charts svg")) == 5
    ticks = [tick.text for tick in driver.find_elements(By.CSS_SELECTOR, "#evidence-charts text")]
    assert {"none", "1 in 10", "1 in 1,000"} <= set(ticks)
    assert "10 trillion" not in driver.find_element(By.ID, "evidence").text
    assert len(driver.find_elements(By.CSS_SELECTOR, "#classes-table tbody tr")) == 10
    assert not driver.get_log("browser")
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    asked = {
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {
        live.address,
        live.address + "state.json",
    }
    assert 'metacal_alarm{alarm="promise"} 1' in read(live, "metrics")


def test_the_page_looks_well_and_axe_has_nothing_to_say(live, stream, see, axe, screenshots):
    append_the_bad_half(live, stream)
    until(lambda: json.loads(read(live, "state.json"))["rows"] == ROWS)
    for width, scheme in ((1280, "light"), (390, "dark")):
        driver = see_when_ready(see, live, width=width, scheme=scheme)
        picture(driver, screenshots / f"live-{width}-{scheme}.png", width)
        violations(driver, axe)


def see_when_ready(see, live, **options):
    """The page draws itself once it has asked for its numbers: a moment after it is loaded."""
    for _ in range(50):
        try:
            return see(live, **options)
        except AssertionError:
            time.sleep(0.1)
    raise AssertionError("the page was never ready")


def picture(driver, path, width):
    size = "return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    wide, high = driver.execute_script(size)
    assert wide <= width
    clip = {"x": 0, "y": 0, "width": width, "height": high, "scale": 1}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(shot["data"]))
    assert path.stat().st_size > 20_000


def violations(driver, axe):
    driver.execute_script(axe)
    run = "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done)"
    found = driver.execute_async_script(run)
    assert not [
        (v["id"], v["help"], [node["target"] for node in v["nodes"]][:3])
        for v in found["violations"]
    ]
    assert len(found["passes"]) > 15


def test_nobody_elses_name_is_answered_and_the_end_is_clean(live, stream):
    append_the_bad_half(live, stream)
    until(lambda: json.loads(read(live, "state.json"))["rows"] == ROWS)
    request = urllib.request.Request(
        live.address + "state.json", headers={"Host": "elsewhere.example"}
    )
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request)
    os.kill(live.process.pid, signal.SIGTERM)
    told, _ = live.process.communicate(timeout=20)
    found = json.loads(told)
    assert (live.process.returncode, found["rows"], found["raised"][0]) == (3, ROWS, "promise")


def test_the_command_of_the_page_acknowledges_the_alarm(live, stream, see):
    append_the_bad_half(live, stream)
    until(lambda: json.loads(read(live, "state.json"))["rows"] == ROWS)
    driver = see_when_ready(see, live)
    steps = driver.find_elements(By.CSS_SELECTOR, "#steps li")
    assert len(steps) == 4
    assert "stop this monitor (Ctrl-C)" in steps[-1].text
    command = steps[-1].find_element(By.TAG_NAME, "code").get_attribute("textContent")
    driver.get("about:blank")  # An open page would log that the stopped monitor does not answer.
    os.kill(live.process.pid, signal.SIGTERM)
    live.process.communicate(timeout=20)

    again = command.replace("--serve", "").replace("--port 0", "") + " --json"
    script = f'metacal() {{ "{sys.executable}" -m metacal "$@"; }}; {again}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    assert (state["alarm"], state["acknowledged"][0]["at_row"]) == (False, ROWS)

    call = ["bash", "-c", f'exec "{sys.executable}" -m {command.partition(" --acknowledge")[0]}']
    live.process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    live.address = live.process.stderr.readline().split()[0]
    driver = see_when_ready(see, live)
    assert driver.find_element(By.ID, "badge").text == "No alarm"
    assert not driver.find_element(By.ID, "steps").is_displayed()
    table = driver.find_element(By.ID, "alarms-table").text
    assert "what was found and done" in table
    assert f"at row {ROWS:,}" in table
    assert driver.find_elements(By.CSS_SELECTOR, "#evidence-charts line.period")
    assert not driver.get_log("browser")


def test_evidence_is_written_as_python_writes_it(live, see):
    driver = see_when_ready(see, live)
    logs = [*np.linspace(-5.0, 40.0, 400).tolist(), *np.log([10.0, 40.0, 1000.0, 1e6, 2.5e9])]
    sources = html.read_scripts("live")
    names = ("format.js", "evidence.js")
    parsed = {name: modules.parse(name, sources[name]).body for name in names}
    start = parsed["evidence.js"].index("const TEN")
    end = parsed["evidence.js"].index("function evidenceCharts")
    functions = parsed["format.js"] + parsed["evidence.js"][start:end]
    shown = driver.execute_script(
        f"{functions}; return arguments[0].map(evidenceText)", [float(log) for log in logs]
    )
    assert shown == [format_evidence(log) for log in logs]
