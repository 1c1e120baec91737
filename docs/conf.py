"""The site: Sphinx with MyST Markdown, the pydata theme and numpydoc. `.ci/site OUT` builds it,
warnings as errors.

The pages are docs/*.md, of five kinds: tutorials, how-to guides, reference, explanation and
benchmarks. The build writes `docs/api` (`api_pages.py`, from the docstrings) and `docs/examples`
(sphinx-gallery, which runs `examples/gallery`). No page loads anything from another host.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx

import metacal

sys.path.insert(0, str(Path(__file__).parent))
import api_pages
import artifact_schema
import first_hits
import inventories
import names_link
import plain_text
import signatures

project = "metacal"
author = "The metacal developers"
copyright = author
version = release = metacal.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
intersphinx_mapping = inventories.reachable()
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
templates_path = ["_templates"]
# A docstring's `name` is a link where there is such a name, and code where there is none.
default_role = "py:obj"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
# numpydoc compiles its template anew for each docstring, a tenth of the time of a build: once is
# enough.
docscrape_sphinx.SandboxedEnvironment = lambda loader: _once.setdefault(
    "environment", SandboxedEnvironment(loader=loader)
)
_once: dict[str, SandboxedEnvironment] = {}
autosummary_generate = False  # numpydoc loads it; the pages are ours
suppress_warnings = ["ref.python"]  # a name that several rooms have, as the type of a parameter

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "default_thumb_file": str(Path(__file__).parent / "images" / "report-threshold.png"),
    "reference_url": {"metacal": None},
    "doc_module": ("metacal",),
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
}
exclude_patterns = ["examples/pages"]

# ── the look ──────────────────────────────────────────────────────────────────────────────────────

html_theme = "pydata_sphinx_theme"
html_title = "metacal"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_extra_path = ["examples/pages"]  # what an example wrote to be looked at
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
html_use_index = False
html_sidebars = {"api/*": ["names"], "python": ["names"]}
html_context = {"default_mode": "auto"}
_PROJECT = tomllib.loads(
    (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
html_theme_options = {
    "github_url": _PROJECT["urls"]["Source"],
    "logo": {"text": "metacal"},
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "navigation_depth": 2,
    "collapse_navigation": True,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}

_PAGES = Path(__file__).parent / "examples" / "pages"
_PAGES.mkdir(parents=True, exist_ok=True)
os.environ["METACAL_EXAMPLE_PAGES"] = str(_PAGES)
_NAMES = sorted(
    ((page.name, f"api/{page.place}") for page in api_pages.pages()),
    key=lambda page: page[0].lower(),
)


def _beside(app, pagename, templatename, context, doctree):
    """The names in the sidebar of an API page: the short ones, and those of the room it is in."""
    room = api_pages.room_of(pagename)
    context["api_names"] = [
        (name, at) for name, at in _NAMES if "." not in name or name.startswith(room)
    ]


def _silent(app, exception):
    """The theme tells the console which colours it took and what it focused; nobody asked."""
    out = Path(app.outdir)
    for path in (out / "_static" / "scripts" / "pydata-sphinx-theme.js", out / "search.html"):
        if path.exists():
            said = path.read_text(encoding="utf-8")
            path.write_text(
                re.sub(r"console\.log\((`[^`]*`|\"[^\"]*\")\)", "void 0", said), encoding="utf-8"
            )


def setup(app):
    """Write the pages that are made of docstrings, and read these as plain text."""
    app.connect("builder-inited", lambda app: api_pages.write())
    app.add_transform(first_hits.FirstHits)
    app.connect("autodoc-process-signature", signatures.show)
    app.connect("doctree-resolved", names_link.link)
    app.connect("html-page-context", _beside)
    app.connect("build-finished", _silent)
    app.connect(
        "build-finished",
        lambda app, _: artifact_schema.write(Path(app.outdir) / "metacal.schema.json"),
    )
    app.connect(
        "autodoc-process-docstring", lambda *told: plain_text.lines_as_rst(told[-1]), priority=100
    )
