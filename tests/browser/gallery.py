"""Take the screenshots of the documentation anew: python tests/browser/gallery.py [PICTURE ...].

Needs Chromium, selenium and pillow. The pictures are of the page that `metacal demo` writes, and of
the live page over a stream that breaks its promise half-way.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"

#: Picture -> width of the window, colour scheme, what is shown, and the highest it may be.
PICTURES = {
    "report-headline": (1280, "light", "#promise", 900),
    "report-headline-dark": (1280, "dark", "#promise", 900),
    "report-threshold": (1280, "light", "#point", 1000),
    "report-reliability": (1280, "light", "#honesty", 720),
    "report-frontier": (1280, "light", "#frontier", 700),
    "report-classes": (1280, "light", "#classes", 900),
    "report-rows": (1280, "light", "#rows", 560),
    "report-dark": (1280, "dark", "body", 1500),
    "report-phone": (390, "light", "body", 1500),
    "monitor-live": (1280, "light", "body", 1600),
}
ROWS = 3000


@contextlib.contextmanager
def live(folder: Path) -> Iterator[str]:
    """The address of `metacal monitor --serve`; in the second half of its rows every tenth label is
    wrong.
    """
    (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(
        5000, random_state=0
    )
    mc.save(mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y), folder / "cal.json")
    labels = new_y[:ROWS].copy()
    labels[ROWS // 2 :: 10] = (labels[ROWS // 2 :: 10] + 1) % 10
    rows = ({"logits": row, "label": label} for row, label in zip(new_x.tolist(), labels.tolist()))
    (folder / "stream.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )
    call = [
        sys.executable,
        "-m",
        "metacal",
        "monitor",
        "cal.json",
        "stream.jsonl",
        "--serve",
        "--port",
        "0",
        "--state",
        "watch.journal",
    ]
    served = subprocess.Popen(
        call, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield served.stderr.readline().split()[0]
    finally:
        served.kill()
        served.communicate()


def shoot(folder: Path, names: list[str]) -> None:
    """Write the demo's page, open it and the live one, take the pictures."""
    from PIL import Image
    from selenium import webdriver

    from conftest import FLAGS  # the folder of this script is on the path

    done = CliRunner().invoke(main, ["demo", "-o", str(folder / "demo.html")])
    assert done.exit_code == 0, done.output
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    demo = (folder / "demo.html").as_uri()
    with contextlib.ExitStack() as stack:
        stack.callback(driver.quit)
        watched = stack.enter_context(live(folder))
        for name in names:
            width, scheme, part, highest = PICTURES[name]
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            driver.get(watched if name == "monitor-live" else demo)
            there = "return document.querySelector('main').dataset.rows"
            while name == "monitor-live" and driver.execute_script(there) != str(ROWS):
                time.sleep(0.1)
            if part == "#honesty":
                driver.find_element("css selector", "input[name=before-rows][value=all]").click()
                driver.execute_script("scrollTo(0, 0)")
            box = driver.execute_script(
                f"return document.querySelector('{part}').getBoundingClientRect().toJSON()"
            )
            edge = 0 if part == "body" else 12
            clip = {
                "x": max(0, box["x"] - edge),
                "y": max(0, box["y"] - edge),
                "width": box["width"] + 2 * edge,
                "height": min(highest, box["height"] + 2 * edge),
                "scale": 1,
            }
            shot = driver.execute_cdp_cmd(
                "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
            )
            picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
            picture.quantize(256, dither=Image.Dither.NONE).save(
                IMAGES / f"{name}.png", optimize=True
            )


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shoot(Path(folder), sys.argv[1:] or list(PICTURES))
