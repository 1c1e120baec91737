"""The site: Sphinx with MyST Markdown, the pydata theme and numpydoc. `.ci/site OUT` builds it, warnings as errors.

The pages are docs/*.md, in four parts (start, how-to, understand, measured). What is written at build time: `docs/api`
(`api_pages.py`, from the docstrings) and `docs/examples` (sphinx-gallery, from `examples/gallery`, which it runs).
Nothing on a page comes from another host.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import metacal

project = "metacal"
author = "The metacal developers"
copyright = author
version = release = metacal.__version__

extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
templates_path = ["_templates"]
nitpicky = False

# ── the look ─────────────────────────────────────────────────────────────────────────────────────────────────────────

html_theme = "pydata_sphinx_theme"
html_title = "metacal"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
html_use_index = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "metacal"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_depth": 2,
    "collapse_navigation": True,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
