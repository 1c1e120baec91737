"""The documentation in a real browser: every name found, nothing cut, nothing from elsewhere, for
everyone to use.

`METACAL_SITE` names the folder that `.ci/site` builds it into; where the build is under way, the
tests wait for it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import metacal as mc

pytest.importorskip("selenium")

#: A page of each kind.
KINDS = {
    "landing": "index.html",
    "guide": "quick-start.html",
    "API": "api/MetaCal.html",
    "example": "examples/06_monitoring.html",
    "search": "search.html?q=MaxMiscoverage",
}
EXAMPLES = (
    "first_gate",
    "calibrator",
    "sklearn",
    "transformers",
    "report",
    "monitoring",
    "cluster",
    "two_classes",
    "matching",
    "document_extraction",
    "redaction",
)


@pytest.fixture(scope="module")
def site():
    """The built site."""
    if "METACAL_SITE" not in os.environ:
        pytest.skip("no site: .ci/site site, then set METACAL_SITE to that folder")
    folder, end = Path(os.environ["METACAL_SITE"]), time.monotonic() + 540
    while not (folder / "built").exists() and time.monotonic() < end:
        time.sleep(0.5)
    assert (folder / "built").read_text(encoding="ascii").strip() == "0", (
        "the site was not built: .ci/site says why"
    )
    return folder


@pytest.fixture(scope="module")
def address(site):
    """The site on a server of this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def visit(chromium, address):
    """Open a page of the site: width, light or dark; nothing left in the logs from before."""

    def visit(page, *, width=1280, scheme="light"):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for kind in ("browser", "performance"):
            chromium.get_log(kind)
        chromium.get(address + page)
        return chromium

    return visit


def asked_for(driver):
    """The addresses that the page has asked for."""
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def public_names():
    """Every public name, as it is written after `mc.`: all of `metacal`, and what a room lists,
    modules aside.
    """
    rooms = [name for name in mc.__all__ if inspect.ismodule(getattr(mc, name))]
    for name in mc.__all__:
        yield name, getattr(mc, name)
    for room in rooms:
        module = importlib.import_module(getattr(mc, room).__name__)
        listed = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        yield from (
            (f"{room}.{name}", thing)
            for name, thing in listed.items()
            if not inspect.ismodule(thing)
        )


# ── every name ────────────────────────────────────────────────────────────────────────────────────


def test_every_public_name_has_a_page_with_its_signature(site):
    shared = {id(getattr(mc, name)) for name in mc.__all__}
    pages = {
        page.stem.lower(): page for page in (site / "api").glob("*.html")
    }  # Interval and interval share one
    for name, thing in public_names():
        if "." in name and id(thing) in shared:
            continue  # it stands under its short name
        page = pages[name.lower()].read_text(encoding="utf-8")
        if not inspect.ismodule(thing):
            assert f'id="metacal.{name}"' in page, f"{name}: no signature on its page"


def test_every_public_name_is_the_first_hit(visit):
    driver = visit("search.html")
    expected = {}
    pages = {id(thing): name for name, thing in reversed(list(public_names()))}
    for name, thing in public_names():
        page = (
            pages.get(id(thing), name) if "." in name else name
        )  # a second short name has a page of its own
        expected |= {name: page, f"mc.{name}": page}
        last = name.rpartition(".")[2]
        if "." in name and last.lower() not in map(
            str.lower, mc.__all__
        ):  # else the short name has it
            expected.setdefault(last, page)
    found = driver.execute_async_script(
        """
        const [queries, done] = arguments;
        const look = () => Search.hasIndex()
          ? done(queries.map((query) => Search._performSearch(...Search._parseQuery(query)).at(-1)?.[0] ?? null))
          : setTimeout(look, 20);
        look();
        """,
        list(expected),
    )
    missed = {
        query: hit
        for (query, page), hit in zip(expected.items(), found)
        if hit is None or hit.lower() != f"api/{page}".lower()
    }
    assert not missed
    assert len(expected) > 200


def test_a_search_shows_the_name_first(visit):
    driver = visit("search.html?q=PromiseMonitor")
    first = "return document.querySelector('#search-results li a')?.getAttribute('href') ?? null"
    end = time.monotonic() + 10
    while driver.execute_script(first) is None and time.monotonic() < end:
        time.sleep(0.05)
    assert driver.execute_script(first).startswith("api/PromiseMonitor.html")


@pytest.mark.parametrize("query", ["precision", "recall", "two classes"])
def test_a_search_for_precision_finds_the_page_of_two_classes(visit, query):
    driver = visit(f"search.html?q={query.replace(' ', '+')}")
    listed = (
        "return [...document.querySelectorAll('#search-results li a')].map("
        "link => link.getAttribute('href').split(/[?#]/)[0])"
    )
    end = time.monotonic() + 10
    while "two-classes.html" not in driver.execute_script(listed) and time.monotonic() < end:
        time.sleep(0.05)
    hits = driver.execute_script(listed)
    assert "two-classes.html" in hits
    if query == "precision":
        assert any(hit.startswith("api/MinPrecision") for hit in hits)


def test_the_names_are_grouped_by_task(site):
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>([^<]+)", page)
    assert headings[:3] == [
        "Put a gate around a model",
        "Choose a promise",
        "Calibrate probabilities",
    ]
    assert "Other names" not in headings


# ── nothing is cut ────────────────────────────────────────────────────────────────────────────────

#: What sticks out of its box, or of the page.
CUT = """
const cut = (article) => {
  const edge = article.getBoundingClientRect(), wide = document.documentElement;
  const out = wide.scrollWidth > wide.clientWidth ? [`the page is ${wide.scrollWidth} wide`] : [];
  for (const part of article.querySelectorAll("table, td, th, pre, p, li, dt, dd, img, figure, .highlight")) {
    const box = part.getBoundingClientRect();
    if (!box.width || getComputedStyle(part).display === "inline") continue;
    const inside = part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0;
    if (inside || box.right > edge.right + 1 || box.left < edge.left - 1)
      out.push(`${part.tagName} ${part.textContent.trim().slice(0, 50)}`);
  }
  return out;
};
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_table_and_no_code_is_cut(visit, site, width):
    """All pages, one after the other, in the frame of one guide page: that spares three hundred
    starts of the theme.
    """
    driver = visit(KINDS["guide"], width=width)
    pages = sorted(
        str(page.relative_to(site)) for page in site.rglob("*.html") if "_static" not in page.parts
    )
    pages = [page for page in pages if page not in ("report.html", "search.html")]
    found = driver.execute_async_script(
        CUT
        + """
        const [pages, done] = arguments;
        const parser = new DOMParser(), out = {};
        const all = async () => {
          let article = document.querySelector(".bd-article");
          for (const page of pages) {
            const read = parser.parseFromString(await (await fetch("/" + page)).text(), "text/html");
            const next = document.adoptNode(read.querySelector(".bd-article"));
            next.querySelectorAll("img").forEach((picture) => picture.removeAttribute("src"));
            article.replaceWith(next);
            article = next;
            nameTheCells(document);
            const told = cut(article);
            if (told.length) out[page] = told.slice(0, 3);
          }
          return out;
        };
        all().then(done, (error) => done({ error: String(error) }));
        """,
        pages,
    )
    assert not found
    assert len(pages) > 200


#: A wide page in the dark has its sides beside it, which two kinds show.
LOOKS = [(kind, *look) for kind in KINDS for look in ((1280, "light"), (390, "dark"))]
LOOKS += [("guide", 1280, "dark"), ("API", 1280, "dark")]


@pytest.mark.parametrize(("kind", "width", "scheme"), LOOKS)
def test_a_page_opens_in_peace_fits_and_can_be_used_by_everyone(
    visit, address, axe, screenshots, kind, width, scheme
):
    driver = visit(KINDS[kind], width=width, scheme=scheme)
    article = "document.querySelector('.bd-article') ?? document.querySelector('main')"
    assert driver.execute_script(f"{CUT} return cut({article})") == []
    assert driver.execute_script("return document.documentElement.dataset.theme") == scheme
    driver.save_screenshot(str(screenshots / f"site-{kind}-{width}-{scheme}.png"))
    assert not driver.get_log("browser")
    assert [url for url in asked_for(driver) if not url.startswith((address, "data:"))] == []
    driver.execute_script(axe)
    run = (
        "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(done, (e) =>"
        " done(String(e)))"
    )
    found = driver.execute_async_script(run)
    told = [
        (v["id"], v["help"], [node["target"] for node in v["nodes"]][:4])
        for v in found["violations"]
    ]
    assert not told
    assert len(found["passes"]) > 15


def test_no_page_names_a_script_style_or_picture_elsewhere(site):
    loaded = re.compile(
        r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|srcset|href)=\"((?:https?:)?//[^\"]*)\""
    )
    for page in site.rglob("*.html"):
        assert loaded.findall(page.read_text(encoding="utf-8")) == [], page.name


# ── the gallery ───────────────────────────────────────────────────────────────────────────────────


def test_the_gallery_ran_and_every_example_is_a_notebook(site):
    pages = sorted((site / "examples").glob("[0-9]*.html"))
    assert [word for word in EXAMPLES if not any(word in page.stem for page in pages)] == []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        (link,) = re.findall(r'href="\.\./(_downloads/[^"]*\.ipynb)"', text)
        notebook = json.loads((site / link).read_text(encoding="utf-8"))
        assert {cell["cell_type"] for cell in notebook["cells"]} == {"code", "markdown"}
        assert 'class="sphx-glr-script-out' in text, f"{page.stem} printed nothing"
    assert "Gate for release 7" in (site / "report.html").read_text(encoding="utf-8")
