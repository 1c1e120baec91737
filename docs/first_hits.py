"""Each public name is a main entry of the index of its page, which puts the page first among what a search finds."""

from __future__ import annotations

import api_pages
from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform


class FirstHits(SphinxTransform):
    """Adds the entries to an API page.

    They lead to its heading: the directive `index` would make an empty anchor, of which the search page cannot show any
    text, and says so to the console.
    """

    default_priority = 800  # before the domains collect what a page has, at 850

    def apply(self, **_: object) -> None:
        """Find the name by the page's own name."""
        room, _, name = self.env.docname.partition("/")
        page = next((page for page in api_pages.pages() if room == "api" and page.name == name), None)
        section = next(iter(self.document.findall(nodes.section)), None)
        if page is not None and section is not None:
            entries = [("single", entry, section["ids"][0], "main", None) for entry in page.entries]
            section.insert(1, addnodes.index(entries=entries))
