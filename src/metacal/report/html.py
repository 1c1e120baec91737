"""html: a Summary as one self-contained page: no network, no framework, nothing in it that is not
in this folder.

The page's own text lives in `page/`: a template, a style sheet and small ES modules, which are
joined into one script (`tests/browser/modules.py` says what form they must have for that, and holds
them to it); `page/types.d.ts` describes the numbers that they get. `live/` has what the page of a
monitor has beside these. What comes from the user (file names, class names, ids) travels as JSON
and becomes text by `textContent`, so markup in it stays text. The content security policy allows
nothing but this one style sheet and this one script, each by its SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from metacal import __version__
from metacal.io.disk import plain_write_errors
from metacal.io.writing import atomic_path

if TYPE_CHECKING:
    from metacal.report.summary import Summary

_COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)\n", re.MULTILINE)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)


def render(summary: Summary, *, title: str | None = None) -> str:
    """Return the page as HTML; its heading and window title is "Report on FILE" by default."""
    file = summary.source.file
    usual = "Report" if file in (None, "-") else f"Report on {PurePath(file).name}"
    return page({"title": title or usual, **summary.to_dict()})


def write_report(
    summary: Summary, path: str | os.PathLike[str], *, title: str | None = None
) -> int:
    """Write the page, whole or not at all; return its size in bytes."""
    content = render(summary, title=title).encode("utf-8")
    with atomic_path(path) as part, plain_write_errors(path):
        part.write_bytes(content)
    return len(content)


def page(data: dict[str, Any]) -> str:
    """Return the page for numbers in the shape of `Summary.to_dict`, with a title.

    Examples
    --------
    >>> text = page({"title": "a < b"})
    >>> "<title>a &lt; b</title>" in text, "default-src 'none'" in text
    (True, True)
    """
    return _filled("page", str(data["title"]), embedded_json(data))


def live_page(title: str) -> str:
    """Return the page of a monitor, which asks its own address for `state.json`.

    Examples
    --------
    >>> "<title>Monitor of a &lt; b</title>" in live_page("Monitor of a < b")
    True
    """
    return _filled("live", title)


def _filled(name: str, title: str, data: str = "") -> str:
    # The live page has what the report has, and more beside it.
    own, beside = (
        ("", "") if name == "page" else (_read(name, f"{name}.css"), "; connect-src 'self'")
    )
    style, script = _read("page", "page.css") + own, join(scripts(name), f"{name}.js")
    # Nothing may be loaded; only this style sheet and this script may run, and no text may turn
    # into markup.
    policy = (
        f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; img-src"
        " data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script';"
        f" trusted-types 'none'{beside}"
    )
    parts = {
        "csp": policy,
        "generator": f"metacal {__version__}",
        # File names may hold bytes that are no UTF-8; a page cannot.
        "title": escape(title.encode("utf-8", "replace").decode("utf-8")),
        "style": style,
        "script": script,
        "data": data,
    }
    # One pass: what the user's text says in double braces is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read(name, f"{name}.html"))


def embedded_json(data: Any) -> str:
    r"""JSON that cannot end the script element it stands in: no "<", ">" or "&"; json.dumps writes
    ASCII alone.

    Examples
    --------
    >>> print(embedded_json({"name": "</script>&"}))
    {"name":"\u003c/script\u003e\u0026"}
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def scripts(name: str = "page") -> dict[str, str]:
    """The modules of a page: file name -> text. The live page has those of the report, and its
    own.
    """
    files = (file.name for file in resources.files("metacal.report").joinpath(name).iterdir())
    own = {file: _read(name, file) for file in sorted(files) if file.endswith(".js")}
    return own if name == "page" else {**scripts(), **own}


def join(sources: Mapping[str, str], entry: str) -> str:
    r"""One script of all modules that `entry` needs, in strict mode and in a scope of its own.

    Each comes after those it imports from, without the `import` lines, the word `export`, the
    comments and indents.

    Examples
    --------
    >>> print(join({
    ...     "page.js": 'import { add } from "./sum.js";\n\nadd(1, 2);\n',
    ...     "sum.js": "/** The sum. */\nexport const add = (a, b) => a + b;\n",
    ... }, "page.js"))
    "use strict";
    (() => {
    // sum.js
    const add = (a, b) => a + b;
    // page.js
    add(1, 2);
    })();
    """
    joined: dict[str, str] = {}

    def add(name: str) -> None:
        code = _COMMENT.sub("", sources[name])
        for other in _IMPORT.findall(code):
            if other not in joined:
                add(other)
        lines = (
            line.strip().removeprefix("export ")
            for line in _IMPORT.sub("", code).splitlines()
            if line.strip()
        )
        joined[name] = "\n".join([f"// {name}", *lines])

    add(entry)
    return '"use strict";\n(() => {\n' + "\n".join(joined.values()) + "\n})();\n"


def _read(folder: str, file: str) -> str:
    return resources.files("metacal.report").joinpath(folder, file).read_text(encoding="utf-8")
