"""Write docs/api: a page for each public object, which autodoc and numpydoc fill from its
docstring.

The pages are made at every build from `metacal.__all__` and the names of its public rooms: a new
public name has a page without anybody's doing.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from plain_text import as_rst

import metacal

HERE = Path(__file__).parent / "api"

#: Public modules that are not attributes of `metacal` itself.
FURTHER = ("export.onnx", "export.torch", "export.transformers")


@dataclass(frozen=True)
class Page:
    """A public object and its name below `metacal`."""

    name: str
    thing: Any

    @property
    def place(self) -> str:
        """What its page is called: its name, but names that differ in capitals alone share a page.

        Some file systems could not tell the two apart, and the search does not.
        """
        return next(page.name for page in pages() if page.name.lower() == self.name.lower())

    @property
    def entries(self) -> list[str]:
        """What one may type into the search to find it: its names, with and without `mc.`."""
        called = [self.name, *(name for name, page in aliases().items() if page == self.name)]
        last = self.name.rpartition(".")[2]
        first = next(
            page.name for page in pages() if page.name.lower().rpartition(".")[2] == last.lower()
        )
        alone = [last] if first == self.place and last != self.name else []
        return [
            *alone,
            *(f"{before}{name}" for name in called for before in ("", "mc.", "metacal.")),
        ]


def rooms() -> dict[str, ModuleType]:
    """The public modules by their name below `metacal`."""
    found = {
        name: getattr(metacal, name)
        for name in metacal.__all__
        if inspect.ismodule(getattr(metacal, name))
    }
    return found | {name: importlib.import_module(f"metacal.{name}") for name in FURTHER}


def names(module: ModuleType) -> list[str]:
    """The public names of a module, modules aside: `__all__`, or what its `__dir__` lists, or what
    is defined in it.
    """
    listed = getattr(module, "__all__", None) or (
        module.__dir__() if "__dir__" in vars(module) else None
    )
    if listed is not None:
        return sorted({name for name in listed if not inspect.ismodule(getattr(module, name))})
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and callable(value)
    )


@cache
def pages() -> list[Page]:
    """Every public object once: under its short name if it has one."""
    found = [Page(name, getattr(metacal, name)) for name in metacal.__all__]
    for room, module in rooms().items():
        known = {id(page.thing) for page in found}
        if id(module) not in known:
            found.append(Page(room, module))
        found += [
            Page(f"{room}.{name}", thing)
            for name, thing in ((name, getattr(module, name)) for name in names(module))
            if id(thing) not in known
        ]
    return found


@cache
def aliases() -> dict[str, str]:
    """Further names -> the page of what they name: `files.read_predictions` is
    `read_predictions`.
    """
    own, where = (
        {page.name for page in pages()},
        {id(page.thing): page.name for page in reversed(pages())},
    )
    found = {
        f"{room}.{name}": id(getattr(module, name))
        for room, module in rooms().items()
        for name in names(module)
    }
    return {name: where[thing] for name, thing in found.items() if name not in own}


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def at(place: str) -> list[Page]:
    """What stands on a page."""
    return [page for page in pages() if page.name.lower() == place.lower()]


def text(place: str) -> str:
    """A page as reStructuredText."""
    here = at(place)
    return "\n".join(
        [
            *_title(", ".join(page.name for page in here)),
            *(line for page in here for line in _body(page)),
        ]
    )


def _body(page: Page) -> list[str]:
    if inspect.ismodule(page.thing):
        return _room(page)
    if inspect.isclass(page.thing):
        return _class(page)
    if callable(page.thing):
        return [f".. autofunction:: metacal.{page.name}", ""]
    return [f".. autodata:: metacal.{page.name}", "   :no-value:", ""]


def room_of(pagename: str) -> str:
    """The room whose names are shown beside a page, with its dot: "metrics." for api/metrics and
    api/metrics.ece.
    """
    name = pagename.removeprefix("api/")
    inside = [room for room in rooms() if name == room or name.startswith(f"{room}.")]
    return f"{inside[-1]}." if inside else "-"


def _table(named: dict[str, str]) -> list[str]:
    """A table of names, as they are shown -> as they are called below `metacal`."""
    known = {page.name: page for page in pages()}
    lines = [".. list-table::", "   :widths: 35 65", ""]
    for shown, name in named.items():
        lines += [
            f"   * - :doc:`{shown} </api/{known[name].place}>`",
            f"     - {as_rst(summary(known[name].thing))}",
        ]
    return [*lines, ""]


def _contents(children: list[str]) -> list[str]:
    places = dict.fromkeys(page.place for page in pages() if page.name in children)
    return [".. toctree::", "   :hidden:", "", *(f"   {place}" for place in places), ""]


def _room(page: Page) -> list[str]:
    """What the module says of itself, and its names; those with a shorter name elsewhere lead
    there.
    """
    named = {
        room.removeprefix(f"{page.name}."): room
        for room in FURTHER
        if room.startswith(f"{page.name}.")
    }
    for name in names(page.thing):
        full = f"{page.name}.{name}"
        named[name] = aliases().get(full, full)
    children = [name for name in named.values() if name.startswith(f"{page.name}.")]
    lines = [f".. automodule:: {page.thing.__name__}", "   :no-index:", ""]
    return lines + (_table(named) if named else []) + (_contents(children) if children else [])


def group_by_task(names: list[str]) -> dict[str, list[str]]:
    """Group names by the task for which docs/python.md lists them.

    Parameters
    ----------
    names : list of str
        Names below `metacal`, without a dot.

    Returns
    -------
    dict of str to list of str
        Names of each heading of the page, in the order of the page. Names that stand in no table of
        the page come last.
    """
    page = (HERE.parent / "python.md").read_text(encoding="utf-8")
    groups: dict[str, list[str]] = {}
    remaining_names = dict.fromkeys(names)
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        first_cells = re.findall(r"^\| (`.*?) \|", body, flags=re.MULTILINE)
        listed_names = re.findall(r"`mc\.(\w+)`", "\n".join(first_cells))
        group = [name for name in dict.fromkeys(listed_names) if name in remaining_names]
        for name in group:
            del remaining_names[name]
        if group:
            groups[heading] = group
    if remaining_names:
        groups["Other names"] = list(remaining_names)
    return groups


def overview() -> str:
    """The page of all names, grouped by task."""
    top = [page.name for page in pages() if "." not in page.name]
    lines = [*_title("All names"), *_contents(top)]
    for task, task_names in group_by_task(top).items():
        lines += [task, "-" * len(task), "", *_table({name: name for name in task_names})]
    for room in rooms():
        inside = {page.name: page.name for page in pages() if page.name.rpartition(".")[0] == room}
        if inside:
            lines += [f"In ``{room}``", "-" * (len(room) + 7), "", *_table(inside)]
    return "\n".join(lines)


def _title(words: str) -> list[str]:
    return [words, "=" * len(words), ""]


def _class(page: Page) -> list[str]:
    """The class, then its methods and properties; what comes from scikit-learn is only named."""
    lines, others = [f".. autoclass:: metacal.{page.name}", ""], []
    for name, member in inspect.getmembers(page.thing):
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        owner = next((kind for kind in page.thing.__mro__ if name in vars(kind)), page.thing)
        kind = (
            "property" if isinstance(member, property) else "method" if callable(member) else None
        )
        routed = name.startswith("set_") and name.endswith(
            "_request"
        )  # made by scikit-learn in our classes
        if kind and owner.__module__.startswith("metacal") and not routed:
            lines += [f".. auto{kind}:: metacal.{page.name}.{name}", ""]
        elif kind and (routed or owner.__module__.startswith("sklearn")):
            public = owner.__name__ if owner.__module__ == "sklearn.base" else "BaseEstimator"
            others.append(f":py:meth:`{name} <sklearn.base.{public}.{name}>`")
    if others:
        lines += [f"From scikit-learn: {', '.join(others)}.", ""]
    return lines


def write(folder: Path = HERE) -> None:
    """Write all pages and the list of them; a page of a name that is gone goes too."""
    folder.mkdir(exist_ok=True)
    written = {f"{page.place}.rst": text(page.place) for page in pages()} | {
        "index.rst": overview()
    }
    for name, content in written.items():
        (folder / name).write_text(content, encoding="utf-8")
    for path in folder.glob("*.rst"):
        if path.name not in written:
            path.unlink()
