"""Take the screenshots of the documentation anew: python tests/browser/gallery.py (needs Chromium, selenium, pillow).

They show the page that `metacal demo` writes, and the page of its rows without a gate.
"""

from __future__ import annotations

import base64
import io
import shutil
import tempfile
from pathlib import Path

from click.testing import CliRunner

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
}


def shoot(folder: Path) -> None:
    """Write the demo's page, open it, take the pictures."""
    from PIL import Image
    from selenium import webdriver

    from conftest import FLAGS  # the folder of this script is on the path

    done = CliRunner().invoke(main, ["demo", "-o", str(folder / "demo.html")])
    assert done.exit_code == 0, done.output
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        for name, (width, scheme, part, highest) in PICTURES.items():
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            driver.get((folder / "demo.html").as_uri())
            if part == "#honesty":
                driver.find_element("css selector", "input[name=before-rows][value=all]").click()
                driver.execute_script("scrollTo(0, 0)")
            box = driver.execute_script(f"return document.querySelector('{part}').getBoundingClientRect().toJSON()")
            edge = 0 if part == "body" else 12
            clip = {
                "x": max(0, box["x"] - edge),
                "y": max(0, box["y"] - edge),
                "width": box["width"] + 2 * edge,
                "height": min(highest, box["height"] + 2 * edge),
                "scale": 1,
            }
            shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
            picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
            picture.quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    finally:
        driver.quit()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shoot(Path(folder))
