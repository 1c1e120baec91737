"""Where a page says `mc.MetaCal` or `MaxMiscoverage(0.05)` in its text, the name leads to its own
page.
"""

from __future__ import annotations

import re
from typing import Any

import api_pages
from docutils import nodes

_NAME = re.compile(
    r"(?P<ours>(?:mc|metacal)\.)?(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?", re.DOTALL
)


def page_of(code: str) -> str | None:
    """The page of a name as it stands in a text; one in lower case is a word (`load`) unless `mc.`
    is before it.

    >>> page_of("mc.MetaCal(mc.MaxReview(0.2))"), page_of("mc.load"), page_of("load")
    ('api/MetaCal', 'api/load', None)
    """
    found = _NAME.fullmatch(code)
    if found is None or not (found["ours"] or found["name"][0].isupper()):
        return None
    return next(
        (f"api/{page.place}" for page in api_pages.pages() if page.name == found["name"]), None
    )


def link(app: Any, doctree: nodes.document, docname: str) -> None:
    """Make links of the names on a page; headings and what is a link already stay."""
    if docname.startswith("api/"):
        return
    for literal in list(doctree.findall(nodes.literal)):
        target = page_of(literal.astext())
        if target is None or isinstance(literal.parent, nodes.reference | nodes.title):
            continue
        reference = nodes.reference(
            "", "", internal=True, refuri=app.builder.get_relative_uri(docname, target)
        )
        literal.replace_self(reference)
        reference += literal
