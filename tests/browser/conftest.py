"""A real Chromium, and the pages it looks at, each written by `metacal report` itself.

`METACAL_AXE` names axe-core's script (axe.min.js of the npm package axe-core), which is not part of
this repository; `METACAL_SCREENSHOTS` a folder that keeps the screenshots. Without Chromium or axe
the tests that need them skip.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
    "--window-size=1280,900",
)


@dataclass(frozen=True)
class Page:
    """A written report: where it is, the numbers in it, and the folder with the files it was made
    from.
    """

    path: Path
    folder: Path

    @property
    def address(self) -> str:
        return self.path.as_uri()

    @property
    def data(self) -> dict:
        text = self.path.read_text(encoding="utf-8")
        start = text.index('<script type="application/json" id="summary">')
        return json.loads(text[text.index(">", start) + 1 : text.index("</script>", start)])


def written(folder: Path, *args: object) -> Page:
    """Call `metacal report`; the bootstrap is short, as no test here looks at its digits."""
    output = folder / "report.html"
    done = CliRunner().invoke(
        main, [*map(str, ("report", *args)), "--resamples", "20", "-o", str(output)]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    return Page(output, folder)


@pytest.fixture(scope="session")
def write_page():
    """`written`, for pages that one module alone looks at."""
    return written


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Real logits of ten classes with names and ids: val.npz, test.npz, and a gate fitted on the
    first.
    """
    folder = tmp_path_factory.mktemp("files")
    (fit_x, fit_y), (test_x, test_y) = mc.datasets.load("cifar10-resnet110").split(
        5000, random_state=0
    )
    names = np.array(
        ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    )
    np.savez(folder / "val.npz", logits=fit_x, labels=names[fit_y], classes=names)
    ids = np.array([f"img-{k:05d}" for k in range(len(test_y))])
    np.savez(folder / "test.npz", logits=test_x, labels=names[test_y], classes=names, id=ids)
    gate = mc.MetaCal(mc.MinAccuracy(0.97), classes=names.tolist(), reject_label="unsure")
    mc.save(gate.fit(fit_x, names[fit_y]), folder / "cal.json")
    return folder


@pytest.fixture(scope="session")
def write():
    """`metacal report` with these arguments, as a page."""
    return written


@pytest.fixture(scope="session")
def gated(files, tmp_path_factory):
    """The usual page: a gate, its promise kept, calibrators compared."""
    folder = tmp_path_factory.mktemp("gated")
    return written(
        folder, files / "cal.json", files / "test.npz", "--calibrators", "temperature,histogram"
    )


@pytest.fixture(scope="session")
def bare(files, tmp_path_factory):
    """No gate and no calibrator: nothing is promised yet."""
    return written(tmp_path_factory.mktemp("bare"), files / "val.npz")


@pytest.fixture(scope="session")
def scored(tmp_path_factory):
    """A gate on a judge's marks of two digits, without logits, classes or probabilities."""
    folder = tmp_path_factory.mktemp("scored")
    rng = np.random.default_rng(0)
    mark = rng.random(6000).round(2)
    right = rng.random(6000) > (1.0 - mark) ** 2
    for name, rows in (("judge", slice(0, 3000)), ("new", slice(3000, None))):
        np.savez(folder / f"{name}.npz", mark=mark[rows], ok=right[rows], id=np.arange(3000))
    fit = [
        "fit",
        folder / "judge.npz",
        "--score-key",
        "mark",
        "--min-accuracy",
        "0.85",
        "-o",
        folder / "cal.json",
    ]
    assert CliRunner().invoke(main, [*map(str, fit)]).exit_code == 0
    return written(folder, folder / "cal.json", folder / "new.npz")


@pytest.fixture(scope="session")
def cascaded(tmp_path_factory):
    """Two models behind each other, and people for what is left."""
    folder = tmp_path_factory.mktemp("cascaded")
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=4000)
    for name, gap in (("small", 2.0), ("large", 3.5)):
        logits = rng.normal(size=(4000, 4)) + gap * np.eye(4)[labels]
        for prefix, rows in (("", slice(0, 2000)), ("new-", slice(2000, None))):
            np.savez(folder / f"{prefix}{name}.npz", logits=logits[rows], labels=labels[rows])
    files = folder / "small.npz", folder / "large.npz"
    fit = ["cascade", *files, "--min-accuracy", "0.95", "-o", folder / "cal.json"]
    assert CliRunner().invoke(main, [*map(str, fit)]).exit_code == 0
    new = folder / "new-small.npz", "--large", folder / "new-large.npz"
    return written(folder, folder / "cal.json", *new)


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """A gate about cases: documents whose fields are accepted one by one."""
    folder = tmp_path_factory.mktemp("documents")
    for name, seed in (("cal", 0), ("new", 1)):
        rng = np.random.default_rng(seed)
        correct = rng.random((400, 3)) < [0.9, 0.97, 0.7]
        columns = {
            "document": np.repeat([f"doc{case}" for case in range(400)], 3),
            "field": np.tile(["date", "name", "total"], 400),
            "score": (2.0 * correct + rng.normal(size=correct.shape)).ravel(),
            "ok": correct.astype(int).ravel(),
        }
        mc.io.write_table(str(folder / f"{name}.csv"), columns)
    fit = f"fit {folder}/cal.csv --score-key score --case-key document --group-key field"
    done = CliRunner().invoke(main, f"{fit} --max-case-errors 0.2 -o {folder}/gate.json".split())
    assert done.exit_code == 0, done.output
    return written(folder, folder / "gate.json", folder / "new.csv")


@pytest.fixture(scope="session")
def own(files, tmp_path_factory):
    """A gate on the very rows it was fitted on."""
    return written(tmp_path_factory.mktemp("own"), files / "cal.json", files / "val.npz")


@pytest.fixture(scope="session")
def broken(files, tmp_path_factory):
    """A promise that these rows refute: half of the labels are made up."""
    folder = tmp_path_factory.mktemp("broken")
    with np.load(files / "test.npz") as test:
        labels = test["labels"].copy()
        labels[::2] = np.roll(test["classes"], 1)[test["logits"][::2].argmax(axis=1)]
        np.savez(
            folder / "shifted.npz", logits=test["logits"], labels=labels, classes=test["classes"]
        )
    return written(folder, files / "cal.json", folder / "shifted.npz")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One headless browser for all tests, with its console and its network on record."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("Chromium not found: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium not found: pip install selenium"
    )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    yield driver
    driver.quit()


@pytest.fixture
def see(chromium):
    """Open a page in a fresh state: width, light or dark; nothing left in the logs from before."""

    def see(page: Page, *, width: int = 1280, scheme: str = "light"):
        height = 900 if width > 600 else 844
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for kind in ("browser", "performance"):
            chromium.get_log(kind)
        chromium.get(page.address)
        assert chromium.execute_script("return document.documentElement.dataset.ready") == "true"
        return chromium

    return see


@pytest.fixture(scope="session")
def axe():
    """The text of axe-core."""
    path = os.environ.get("METACAL_AXE")
    if not path:
        pytest.skip(
            "axe-core not found: npm install axe-core, then set METACAL_AXE to its axe.min.js"
        )
    return Path(path).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory):
    """Where screenshots are kept."""
    kept = os.environ.get("METACAL_SCREENSHOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
