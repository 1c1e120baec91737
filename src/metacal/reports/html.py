"""Rendering of a `Summary` as one self-contained HTML page, without a network or a framework.

The folder `page` has a template, a style sheet and small ES modules. The modules are joined into one
script (`tests/browser/modules.py` describes and checks the form that they need for this).
`page/types.d.ts` describes the data that the script reads. The folder `live` has the additional
files of the page of a monitor.

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
from metacal.io.writing import open_atomic_path

if TYPE_CHECKING:
    from metacal.reports.summary import Summary

#: JavaScript comment that occupies whole lines.
_COMMENT_LINES_PATTERN = re.compile(
    r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)\n", re.MULTILINE
)
#: Import statement of a JavaScript module. Group 1 is the name of the imported file.
_IMPORT_PATTERN = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
#: Placeholder in a template, for example {{title}}.
_PLACEHOLDER_PATTERN = re.compile(r"\{\{(\w+)\}\}")


def render_report(summary: Summary, *, title: str | None = None) -> str:
    """Render the page of a report as HTML.

    Parameters
    ----------
    summary : Summary
        Numbers of the report.

    title : str, default=None
        Heading and window title. The default is "Report on FILE".

    Returns
    -------
    str
    """
    file = summary.source.file
    default_title = "Report"
    if file is not None and file != "-":
        default_title = f"Report on {PurePath(file).name}"
    return render_page({"title": title or default_title, **summary.to_dict()})


def write_report(
    summary: Summary, path: str | os.PathLike[str], *, title: str | None = None
) -> int:
    """Write the page of a report atomically, and return its size in bytes."""
    content = render_report(summary, title=title).encode("utf-8")
    with open_atomic_path(path) as temporary_path, input_error_if_write_fails(path):
        temporary_path.write_bytes(content)
    return len(content)


def render_page(data: dict[str, Any]) -> str:
    """Render the page of a report from its data.

    Parameters
    ----------
    data : dict
        Output of `Summary.to_dict`, with the additional key "title".

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
    """Render the page of a monitor, which polls `state.json` from its own server.

    Examples
    --------
    >>> "<title>Monitor of a &lt; b</title>" in render_live_page("Monitor of a < b")
    True
    """
    return _fill_template("live", title)


def _fill_template(folder: str, title: str, data_json: str = "") -> str:
    """Insert style sheet, script and data into the template of a page.

    Parameters
    ----------
    folder : {"page", "live"}
        Folder of the page. The live page also has the style sheet and the scripts of the report.

    title : str
        Heading and window title.

    data_json : str, default=""
        Data of the page as JSON.

    Returns
    -------
    str
    """
    style_sheet = _read_package_file("page", "page.css")
    live_policy = ""
    if folder != "page":
        style_sheet += _read_package_file(folder, f"{folder}.css")
        live_policy = "; connect-src 'self'"
    script = join_modules(read_scripts(folder), f"{folder}.js")
    # This policy keeps user-supplied text from being run as a script or parsed as markup.
    security_policy = (
        f"default-src 'none'; style-src {_csp_hash(style_sheet)}; script-src {_csp_hash(script)}; img-src"
        " data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script';"
        f" trusted-types 'none'{live_policy}"
    )
    # The title may contain a file name with bytes that are not valid UTF-8.
    printable_title = title.encode("utf-8", "replace").decode("utf-8")
    placeholder_values = {
        "csp": security_policy,
        "generator": f"metacal {__version__}",
        "title": escape(printable_title),
        "style": style_sheet,
        "script": script,
        "data": data_json,
    }
    template = _read_package_file(folder, f"{folder}.html")
    # All placeholders are replaced in one pass, so that braces in the data are not replaced.
    return _PLACEHOLDER_PATTERN.sub(lambda match: placeholder_values[match[1]], template)


def dump_embeddable_json(data: Any) -> str:
    r"""Serialize data to JSON that is safe inside an HTML script element.

    The characters "<", ">" and "&" are escaped, so no text can end the element.

    Examples
    --------
    >>> print(dump_embeddable_json({"name": "</script>&"}))
    {"name":"\u003c/script\u003e\u0026"}
    """
    json_text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        json_text = json_text.replace(character, f"\\u{ord(character):04x}")
    return json_text


def _csp_hash(text: str) -> str:
    """Hash a text in the syntax of a content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def read_scripts(folder: str = "page") -> dict[str, str]:
    """Read the JavaScript modules of a page, keyed by file name.

    The live page also has the modules of the report.
    """
    folder_path = resources.files("metacal.reports").joinpath(folder)
    file_names = sorted(path.name for path in folder_path.iterdir())
    sources = {} if folder == "page" else read_scripts()
    for file_name in file_names:
        if file_name.endswith(".js"):
            sources[file_name] = _read_package_file(folder, file_name)
    return sources


def join_modules(sources: Mapping[str, str], main_module: str) -> str:
    r"""Join a JavaScript module and its imports into one script in strict mode.

    Each module comes after the modules that it imports. The `import` lines, the keyword `export`,
    comments and indentation are removed.

    Parameters
    ----------
    sources : mapping of str to str
        Source text of the modules, keyed by file name.

    main_module : str
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
    code_by_module: dict[str, str] = {}

    def add_module(module: str) -> None:
        code = _COMMENT_LINES_PATTERN.sub("", sources[module])
        for imported_module in _IMPORT_PATTERN.findall(code):
            if imported_module not in code_by_module:
                add_module(imported_module)
        code_lines = [f"// {module}"]
        for line in _IMPORT_PATTERN.sub("", code).splitlines():
            if line.strip():
                code_lines.append(line.strip().removeprefix("export "))
        code_by_module[module] = "\n".join(code_lines)

    add_module(main_module)
    return '"use strict";\n(() => {\n' + "\n".join(code_by_module.values()) + "\n})();\n"


def _read_package_file(folder: str, file_name: str) -> str:
    """Read a text file that is installed with this package."""
    path = resources.files("metacal.reports").joinpath(folder, file_name)
    return path.read_text(encoding="utf-8")
