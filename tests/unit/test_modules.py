"""The page's modules in one script: in order, each name once, and nothing joined that is not
understood.
"""

from __future__ import annotations

import pytest

from browser.modules import ModuleError, join, ordered, parse
from metacal.reports import html

MAIN = 'import { twice } from "./sum.js";\n\ntwice(2);\n'
SUM = "/** The double. */\nexport function twice(x) {\n  // why not\n  return x + x;\n}\n"
NEEDS_Y = 'import { y } from "./y.js";\n'
Y = 'import { twice } from "./sum.js";\nexport const y = twice;\n'


def test_imports_exports_and_comments_are_gone():
    assert (
        join({"page.js": MAIN, "sum.js": SUM})
        == '"use strict";\n(() => {\n// sum.js\nfunction twice(x) {\n  return x + x;\n}\n//'
        " page.js\ntwice(2);\n})();\n"
    )


def test_each_module_once_and_after_those_it_imports_from():
    found = ordered(
        {
            "page.js": 'import { a } from "./a.js";\nimport { b } from "./b.js";\na(b);\n',
            "b.js": 'import { c } from "./c.js";\nexport const b = c;\n',
            "a.js": (
                'import { b } from "./b.js";\nimport { c } from "./c.js";\nexport const a = () =>'
                " [b, c];\n"
            ),
            "c.js": "export const c = 1;\n",
            "apart.js": "export const apart = 1;\n",
        }
    )
    assert [module.name for module in found] == ["c.js", "b.js", "a.js", "page.js"]


def test_every_form_that_is_understood():
    found = parse(
        "all.js",
        '// A line.\n\n/* A block\n * of lines. */\nimport {\n  a,\n  b,\n} from "./x.js";\nimport'
        ' { c } from "./y.js";\nexport const one = [\n  1,\n];\nexport function two() {}\nexport'
        " async function three() {}\nexport class Four {}\nconst five = () => `a ${one} \\`"
        " b`;\nlet six;\nfunction seven(\n  x,\n) {\n  return x;\n}\n",
    )
    assert found.imports == {"x.js": ("a", "b"), "y.js": ("c",)}
    assert found.exports == ("one", "two", "three", "Four")
    assert found.declares == ("one", "two", "three", "Four", "five", "six", "seven")
    assert "export" not in found.body
    assert "import" not in found.body
    assert not found.calls


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"page.js": MAIN, "sum.js": SUM + "function start() {}\nconst start = 1;\n"}, "'start' is declared in sum.js"),
        ({"page.js": MAIN + "const half = 1;\n", "sum.js": SUM + "let half = 2;\n"}, "declared in sum.js and in page"),
        ({"page.js": MAIN.replace("twice(2)", "const twice = 1"), "sum.js": SUM}, "'twice' is declared in sum.js"),
        ({"page.js": MAIN, "sum.js": NEEDS_Y + SUM, "y.js": Y}, "circle: page.js -> sum.js -> y.js -> sum.js"),
        ({"page.js": 'import { a } from "./page.js";\nexport const a = 1;\n'}, "circle: page.js -> page.js"),
        ({"page.js": MAIN}, "no module 'sum.js', but page.js imports from it"),
        ({"sum.js": SUM}, "no module 'page.js', but it is the entry"),
        ({"page.js": MAIN, "sum.js": SUM.replace("export ", "")}, "imports twice from sum.js, which does not export"),
        ({"page.js": MAIN, "sum.js": SUM + "twice(1);\n"}, "sum.js does something when it is loaded"),
        ({"page.js": MAIN + MAIN, "sum.js": SUM}, "cannot be joined: 'import"),
        ({"page.js": MAIN.replace("\n\n", "\n" + MAIN.split("\n")[0] + "\n"), "sum.js": SUM}, "from sum.js twice"),
    ],
    ids=[
        "twice in one", "twice in two", "over an import", "circle", "itself", "missing", "no entry", "not exported",
        "does something", "late import", "imported twice",
    ],
)  # fmt: skip
def test_what_cannot_be_one_script_is_refused(sources, words):
    with pytest.raises(ModuleError, match=words):
        join(sources)


@pytest.mark.parametrize(
    "line",
    [
        "export default function twice() {}",
        "export default 1;",
        "export { twice };",
        'export { twice } from "./sum.js";',
        'export * from "./sum.js";',
        "export let changing = 1;",
        "export const { a, b } = both;",
        "const [first] = list;",
        "var old = 1;",
        'import sum from "./sum.js";',
        'import * as sum from "./sum.js";',
        'import { twice as double } from "./sum.js";',
        'import "./sum.js";',
        'import { twice } from "sum";',
        'import { twice } from "../sum.js";',
        "import { twice } from './sum.js';",
        'const sum = await import("./sum.js");',
        "const here = import.meta.url;",
        "const text = `begins",
        "if (window) start();",
        "window.x = 1;",
        "{ const x = 1; }",
        "'use client';",
        "await start();",
    ],
)
def test_other_forms_are_refused_and_named(line):
    with pytest.raises(ModuleError) as refused:
        parse("odd.js", f"{line}\n")
    assert "odd.js" in str(refused.value)


def test_text_that_looks_like_a_comment_stays():
    body = parse(
        "a.js",
        'export const a = "// no comment"; // a comment behind code stays\nconst b = "/*";\n',
    ).body
    assert body == 'const a = "// no comment"; // a comment behind code stays\nconst b = "/*";\n'


@pytest.mark.parametrize("page", ["page", "live"])
def test_the_pages_are_of_this_form_and_are_joined_as_here(page):
    sources = html.read_scripts(page)
    lines = [line.strip() for line in join(sources, f"{page}.js").splitlines()]
    assert html.join_modules(sources, f"{page}.js").splitlines() == [
        line for line in lines if line
    ]  # without indents
