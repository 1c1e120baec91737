"""Rendering of a `Summary` as one self-contained HTML page, without a network or a framework.

The text of the page is in `page/`: a template, a style sheet and small ES modules. The modules are
joined into one script (`tests/browser/modules.py` describes and checks the form that they need for
this). `page/types.d.ts` describes the numbers that the script gets. `live/` has the additional files
of the page of a monitor.

User input (file names, class names, ids) is passed as JSON and inserted with `textContent`, so
markup in it stays text. The content security policy allows only this style sheet and this script,
identified by their SHA-256.
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
from metacal.io.disk import input_error_if_write_fails
from metacal.io.writing import atomic_path

if TYPE_CHECKING:
    from metacal.report.summary import Summary

_COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)\n", re.MULTILINE)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def render_report(summary: Summary, *, title: str | None = None) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    summary : Summary
        Numbers of the report.

    title : str, default=None
        Heading and window title. If empty, "Report on FILE".

    Returns
    -------
    str
    """
    file = summary.source.file
    if not title:
        title = "Report" if file in (None, "-") else f"Report on {PurePath(file).name}"
    return render_page({"title": title, **summary.to_dict()})


def write_report(
    summary: Summary, path: str | os.PathLike[str], *, title: str | None = None
) -> int:
    """Write the page atomically and return its size in bytes."""
    content = render_report(summary, title=title).encode("utf-8")
    with atomic_path(path) as temporary_path, input_error_if_write_fails(path):
        temporary_path.write_bytes(content)
    return len(content)


def render_page(data: dict[str, Any]) -> str:
    """Return the page of a report as HTML.

    Parameters
    ----------
    data : dict
        Output of `Summary.to_dict`, with a "title".

    Returns
    -------
    str

    Examples
    --------
    >>> text = render_page({"title": "a < b"})
    >>> "<title>a &lt; b</title>" in text, "default-src 'none'" in text
    (True, True)
    """
    return _fill_template("page", str(data["title"]), dump_embeddable_json(data))


def render_live_page(title: str) -> str:
    """Return the page of a monitor, which requests `state.json` from its own address.

    Examples
    --------
    >>> "<title>Monitor of a &lt; b</title>" in render_live_page("Monitor of a < b")
    True
    """
    return _fill_template("live", title)


def _fill_template(name: str, title: str, data: str = "") -> str:
    """Insert style sheet, script and data into the template of a page.

    Parameters
    ----------
    name : {"page", "live"}
        Folder of the page. The live page has the style and scripts of the report and its own.

    title : str
        Heading and window title.

    data : str, default=""
        JSON of the numbers.

    Returns
    -------
    str
    """
    style = _read_package_file("page", "page.css")
    live_policy = ""
    if name != "page":
        style += _read_package_file(name, f"{name}.css")
        live_policy = "; connect-src 'self'"
    script = join_modules(read_scripts(name), f"{name}.js")
    # The page may load nothing, and run only this style sheet and this script. No text may be
    # parsed as markup.
    policy = (
        f"default-src 'none'; style-src {_csp_hash(style)}; script-src {_csp_hash(script)}; img-src"
        " data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script';"
        f" trusted-types 'none'{live_policy}"
    )
    # A file name may have bytes that are not valid UTF-8.
    printable_title = title.encode("utf-8", "replace").decode("utf-8")
    values = {
        "csp": policy,
        "generator": f"metacal {__version__}",
        "title": escape(printable_title),
        "style": style,
        "script": script,
        "data": data,
    }
    # One pass, so that double braces in the user's text are not replaced.
    return _PLACEHOLDER.sub(
        lambda match: values[match[1]], _read_package_file(name, f"{name}.html")
    )


def dump_embeddable_json(data: Any) -> str:
    r"""Return JSON without "<", ">" and "&", which cannot end a script element.

    Examples
    --------
    >>> print(dump_embeddable_json({"name": "</script>&"}))
    {"name":"\u003c/script\u003e\u0026"}
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _csp_hash(text: str) -> str:
    """Return the SHA-256 of a text in the syntax of a content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def read_scripts(name: str = "page") -> dict[str, str]:
    """Return the JavaScript modules of a page, keyed by file name.

    The live page has the modules of the report and its own.
    """
    folder = resources.files("metacal.report").joinpath(name)
    file_names = sorted(file.name for file in folder.iterdir())
    modules = {} if name == "page" else read_scripts()
    for file_name in file_names:
        if file_name.endswith(".js"):
            modules[file_name] = _read_package_file(name, file_name)
    return modules


def join_modules(sources: Mapping[str, str], entry: str) -> str:
    r"""Join a JavaScript module and its imports into one script in strict mode.

    Each module comes after the modules that it imports. The `import` lines, the keyword `export`,
    comments and indentation are removed.

    Parameters
    ----------
    sources : mapping of str to str
        Source text of the modules, keyed by file name.

    entry : str
        File name of the main module.

    Returns
    -------
    str

    Examples
    --------
    >>> print(join_modules({
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
    joined_modules: dict[str, str] = {}

    def add_module(name: str) -> None:
        code = _COMMENT.sub("", sources[name])
        for imported_name in _IMPORT.findall(code):
            if imported_name not in joined_modules:
                add_module(imported_name)
        lines = [f"// {name}"]
        for line in _IMPORT.sub("", code).splitlines():
            if line.strip():
                lines.append(line.strip().removeprefix("export "))
        joined_modules[name] = "\n".join(lines)

    add_module(entry)
    return '"use strict";\n(() => {\n' + "\n".join(joined_modules.values()) + "\n})();\n"


def _read_package_file(folder: str, file_name: str) -> str:
    """Return the text of a file of this package."""
    path = resources.files("metacal.report").joinpath(folder, file_name)
    return path.read_text(encoding="utf-8")
