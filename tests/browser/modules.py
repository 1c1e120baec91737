r"""The page's ES modules joined into one script, strictly: what is not understood is refused, never
guessed.

A page that must be one file cannot import. Each module is a true ES module all the same, so that
editors, browsers and `tsc --checkJs` read it as it is; here they are put into one scope, each after
those it imports from, without the `import` lines, the word `export` and the comments.
`metacal.reports.html` does so without asking; the tests ask here whether its modules are such that
it may. One scope means that a name may be declared once only.

What a module may hold, seen from the first column of its lines:

- `import { a, b } from "./other.js";` on one line or several, before anything else but comments;
- `function`, `async function`, `const`, `let` and `class`, each with or without `export` (but no
  exported `let`), one name each;
- comments, and lines that end what began above (`}`, `];`, `);`);
- calls such as `start();`, in the entry module alone: the others declare and do nothing.

Text between backticks ends on the line where it began, so that no line of it can be taken for code
or comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = r"[A-Za-z_$][\w$]*"
_IMPORT = re.compile(rf'import \{{\s*({_NAME}(?:,\s*{_NAME})*),?\s*\}} from "\./([\w-]+\.js)";\n')
_DECLARATION = re.compile(rf"(export )?((?:async )?function|const|let|class) ({_NAME})(?=[\s(=;])")
_CALL = re.compile(rf"{_NAME}\(.*\);$")
_COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/)[\s\S])*\*/[ \t]*)\n", re.MULTILINE)
_ESCAPED = re.compile(r"\\.")


class ModuleError(ValueError):
    """A module of the page that cannot be joined: which one, what was found, what is asked for."""


@dataclass(frozen=True)
class Module:
    """A module taken apart.

    Attributes
    ----------
    name : str
        File name.
    imports : dict
        Other module -> the names imported from it.
    declares, exports : tuple of str
        Every name at the top level, and those that others may import.
    body : str
        The code, without imports, the word `export`, and comments.
    calls : bool
        Whether the module does something when it is loaded.
    """

    name: str
    imports: dict[str, tuple[str, ...]]
    declares: tuple[str, ...]
    exports: tuple[str, ...]
    body: str
    calls: bool


def join(sources: Mapping[str, str], entry: str = "page.js") -> str:
    r"""One script of all modules that `entry` needs, in strict mode and in a scope of its own.

    Parameters
    ----------
    sources : mapping
        File name -> text.
    entry : str
        The module that starts the page.

    Examples
    --------
    >>> print(join({
    ...     "page.js": 'import { add } from "./sum.js";\n\nadd(1, 2);\n',
    ...     "sum.js": "/** The sum. */\nexport const add = (a, b) => a + b;\n",
    ... }))
    "use strict";
    (() => {
    // sum.js
    const add = (a, b) => a + b;
    // page.js
    add(1, 2);
    })();
    """
    modules = ordered(sources, entry)
    owners: dict[str, str] = {}
    for module in modules:
        for name in module.declares:
            if name in owners:
                raise ModuleError(
                    f"{name!r} is declared in {owners[name]} and in {module.name}; the joined"
                    " script has one scope: rename one, or import it."
                )
            owners[name] = module.name
    joined = "".join(f"// {module.name}\n{module.body}" for module in modules)
    return f'"use strict";\n(() => {{\n{joined}}})();\n'


def ordered(sources: Mapping[str, str], entry: str = "page.js") -> tuple[Module, ...]:
    r"""The modules that `entry` needs, each after those it imports from.

    Examples
    --------
    >>> [module.name for module in ordered({"page.js": 'import { a } from "./a.js";\na();\n',
    ...                                     "a.js": "export const a = () => 1;\n"})]
    ['a.js', 'page.js']
    """
    done: dict[str, Module] = {}

    def visit(name: str, above: tuple[str, ...]) -> Module:
        if name in above:
            raise ModuleError(
                f"modules import each other in a circle: {' -> '.join((*above, name))}."
            )
        if name in done:
            return done[name]
        if name not in sources:
            asked = f"{above[-1]} imports from it" if above else "it is the entry"
            raise ModuleError(
                f"there is no module {name!r}, but {asked}; there are:"
                f" {', '.join(sorted(sources))}."
            )
        module = parse(name, sources[name])
        if module.calls and name != entry:
            raise ModuleError(
                f"{name} does something when it is loaded; only the entry {entry} may."
            )
        for other, wanted in module.imports.items():
            missing = sorted(set(wanted) - set(visit(other, (*above, name)).exports))
            if missing:
                raise ModuleError(
                    f"{name} imports {', '.join(missing)} from {other}, which does not export it."
                )
        done[name] = module
        return module

    visit(entry, ())
    return tuple(done.values())


def parse(name: str, text: str) -> Module:
    r"""Take a module apart, or say which line is not of the form that can be joined.

    Examples
    --------
    >>> found = parse("a.js", 'import { b } from "./b.js";\nexport const a = b + 1;\nlet c = 0;\n')
    >>> found.imports, found.declares, found.exports
    ({'b.js': ('b',)}, ('a', 'c'), ('a',))
    """
    code = _COMMENT.sub("", text if text.endswith("\n") else f"{text}\n").lstrip("\n")
    imports: dict[str, tuple[str, ...]] = {}
    while found := _IMPORT.match(code):
        if found[2] in imports:
            raise ModuleError(f"{name} imports from {found[2]} twice; write one import.")
        imports[found[2]] = tuple(re.findall(_NAME, found[1]))
        code = code[found.end() :].lstrip("\n")
    declares: list[str] = []
    exports: list[str] = []
    body: list[str] = []
    calls = False
    for line in code.splitlines():
        if _ESCAPED.sub("", line).count("`") % 2:
            raise ModuleError(
                f"{name}: text between backticks must end on its line: {line.strip()!r}."
            )
        if re.search(r"\bimport\s*[(.]", line):
            raise ModuleError(
                f"{name}: nothing can be imported while the page runs: {line.strip()!r}."
            )
        declared = _DECLARATION.match(line)
        if declared:
            if declared[1] and declared[2] == "let":
                raise ModuleError(
                    f"{name}: {declared[3]!r} is exported and may change; export a function"
                    " instead."
                )
            declares.append(declared[3])
            exports += [declared[3]] if declared[1] else []
            line = line.removeprefix("export ")
        elif _CALL.match(line):
            calls = True
        elif line and line[0] not in " \t})]":
            raise ModuleError(
                f"{name}: this cannot be joined: {line.strip()!r}. A line at the margin is an"
                " import of names before all else, a function, const, let or class (exported or"
                " not), or a call in the entry module."
            )
        if line.strip():
            body.append(f"{line}\n")
    return Module(name, imports, tuple(declares), tuple(exports), "".join(body), calls)
