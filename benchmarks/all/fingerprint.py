"""The fingerprint of a result: a hash of the code that computes it.

`fingerprint` follows the calls from the entry functions of a result (`benchmarks.all.reach`) and
hashes the canonical form of every definition that it reaches (`benchmarks.all.canonical`). Names
inside the tree do not enter: a reference is replaced by a hash of its target. So the fingerprint
stays the same if you rename a local variable, a function or a field, move a function to another
file, or edit words. It changes if you edit a constant, call another function, or split a function.

A result is *about* some rooms, and becomes stale if their code changes. It also uses others, such as
`rows` and `kernels`, whose numbers have tests of their own. A second fingerprint covers these too.

A hash of the target would never end where functions call each other. Instead, each definition
starts with a hash of its own form. In each of `ROUNDS` rounds, the hash of a definition is computed
again from its form and the hashes of its targets in the round before. This tells two definitions
apart unless they and all targets up to that distance look the same. Every definition enters the
fingerprint with its own form, however far it is from the entry.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from benchmarks.all.code_index import CodeIndex, Definition
from benchmarks.all.form import KeywordRef, ModuleRef, Reference, UnitRef
from benchmarks.all.reach import FormCache, Reach, short_hash
from benchmarks.all.scopes import parameter_list

ROOT = Path(__file__).resolve().parents[2]
#: How often hashes of targets are passed on to the definitions that refer to them.
ROUNDS = 3
#: Keys of a stamp: all code that the result uses, and the part of it that the result is about.
USED, ABOUT = "all", "about"
#: Stands for a definition or member that is never used, or in a room that does not count.
_OUTSIDE = "outside"


class Code:
    """The sources of a tree, read once, for the fingerprints of several results.

    Parameters
    ----------
    root : Path
        A folder with `src/metacal` and `benchmarks`.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._forms = FormCache(CodeIndex(root))

    def fingerprints(self, entries: Iterable[str], rooms: Collection[str]) -> dict[str, str]:
        """Compute the fingerprints of a result.

        Parameters
        ----------
        entries : iterable of str
            The functions that compute it, "module:function" each.
        rooms : collection of str
            The rooms that the result is about.

        Returns
        -------
        dict
            "about" -> the fingerprint of the code that the result is about, "all" -> that of all
            code that it uses, and each room with reached code -> a hash of its code alone, which
            tells where a change is. Empty if an entry is not in the tree.
        """
        try:
            reach = Reach(self._forms, tuple(entries))
        except LookupError:
            return {}
        by_room: dict[str, set[str]] = {}
        for key, definition in reach.reached.items():
            by_room.setdefault(_room(definition), set()).add(self._forms.hash_of(key))
        return {
            ABOUT: _Labels(self._forms, reach, rooms).fingerprint,
            USED: _Labels(self._forms, reach, by_room).fingerprint,
            **{room: short_hash(sorted(found)) for room, found in sorted(by_room.items())},
        }

    def reached(self, entries: Iterable[str]) -> list[str]:
        """List the definitions that the fingerprint of a result covers."""
        return sorted(Reach(self._forms, tuple(entries)).reached)


class _Labels:
    """The hashes of the reached definitions of some rooms."""

    def __init__(self, forms: FormCache, reach: Reach, rooms: Collection[str]) -> None:
        self._forms, self._reach = forms, reach
        self.first = {
            key: forms.hash_of(key)
            for key, definition in reach.reached.items()
            if _room(definition) in rooms
        }
        self.last = self.first
        for _ in range(ROUNDS):
            self._known: dict[Reference, str] = {}
            self.last = {key: self._next(key) for key in self.first}

    @property
    def fingerprint(self) -> str:
        """The hash of all of them."""
        return short_hash(sorted(set(self.last.values())))

    def _next(self, key: str) -> str:
        labels = [self.first[key]]
        for reference in self._forms[key].references:
            if reference not in self._known:
                self._known[reference] = self._label(reference)
            labels.append(self._known[reference])
        return short_hash(labels)

    def _label(self, reference: Reference) -> str:
        """Return the hash of a target."""
        if isinstance(reference, UnitRef):
            return self.last.get(reference.key, _OUTSIDE)
        if isinstance(reference, ModuleRef):
            return "module"
        if isinstance(reference, KeywordRef):
            return self._keyword_label(reference)
        # An attribute of an unknown object keeps its name: many unrelated classes may have one.
        found = {self._member_label(one) for one in self._reach.members(reference)}
        return short_hash(sorted(found)) if found else reference.name

    def _member_label(self, member: Definition | tuple[str, int]) -> str:
        if isinstance(member, Definition):
            return self.last.get(member.key, _OUTSIDE)
        setter, ordinal = member
        return f"field {ordinal} of {self.last[setter]}" if setter in self.last else _OUTSIDE

    def _keyword_label(self, reference: KeywordRef) -> str:
        """Return the position of a keyword argument in the signature, or its name if unknown."""
        index = self._reach.index
        callees: list[Definition]
        if isinstance(reference.callee, UnitRef):
            callees = [index.definitions[reference.callee.key]]
        else:
            members = self._reach.members(reference.callee)
            callees = [one for one in members if isinstance(one, Definition)]
        if callees and not any(callee.key in self.last for callee in callees):
            return _OUTSIDE
        found = {_position(index, callee, reference.name) for callee in callees} - {""}
        return ",".join(sorted(found)) or reference.name


def _position(index: CodeIndex, callee: Definition, name: str) -> str:
    """Return the position of a parameter of a function, or of a field of a class; else nothing."""
    if callee.kind == "class":
        for depth, key in enumerate(index.lineage(callee.key)):
            info = index.classes[key]
            if "__init__" in info.methods:
                return _position(index, info.methods["__init__"], name)
            if name in info.annotations:
                return f"{depth}.{info.fields[name][1]}"
        return ""
    node = callee.nodes[-1]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    names = [one.arg for one in parameter_list(node.args)]
    return str(names.index(name)) if name in names else ""


def _room(definition: Definition) -> str:
    """Return the room of a definition: "promises", or "benchmarks"."""
    package, _, rest = definition.module.partition(".")
    return rest.partition(".")[0] if package == "metacal" and rest else package


def changed_rooms(stamped: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return the rooms whose code is not that of a stamp.

    Examples
    --------
    >>> changed_rooms({"all": "1", "maps": "2", "rows": "4"}, {"all": "5", "maps": "3", "rows": "4"})
    ['maps']
    """
    rooms = sorted({*stamped, *present} - {ABOUT, USED})
    return [room for room in rooms if stamped.get(room) != present.get(room)]


def is_same(stamped: Mapping[str, str], present: Mapping[str, str], key: str = ABOUT) -> bool:
    """Whether a stamp is that of the present code: what the result is about, or all it uses.

    Examples
    --------
    >>> is_same({"about": "1", "all": "2"}, {"about": "1", "all": "3"})
    True
    >>> is_same({"about": "1", "all": "2"}, {"about": "1", "all": "3"}, USED)
    False
    >>> is_same({}, {})
    False
    """
    return key in present and stamped.get(key) == present[key]
