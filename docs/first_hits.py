"""Each public name is a main entry of the index of its page, which puts the page first among what a
search finds.
"""

from __future__ import annotations

import api_pages
from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform


class FirstHits(SphinxTransform):
    """Adds the entries to an API page.

    They lead to its heading: the directive `index` would make an empty anchor, of which the search
    page cannot show any text, and says so to the console.
    """

    default_priority = 800  # before the domains collect what a page has, at 850

    def apply(self, **_: object) -> None:
        """Find the names by the page's own."""
        room, _, place = self.env.docname.partition("/")
        section = next(iter(self.document.findall(nodes.section)), None)
        if room == "api" and section is not None:
            names = [name for page in api_pages.at(place) for name in page.entries]
            entries = [("single", name, section["ids"][0], "main", None) for name in names]
            section.insert(1, addnodes.index(entries=entries))
