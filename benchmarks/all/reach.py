"""The definitions that some entry functions use, directly or through others.

The call graph is static. A name leads to its definition. An attribute leads to the members of that
name in the object's class, if annotations tell the class, and otherwise in every *live* class:
one that the reached code refers to. A registry row is reached if the registry is, and the reached
code holds the key of the row as a string or refers to an object that the row registers.

Two shortcuts keep the graph small and are not sound in general. Code that iterates over a registry
reaches only the rows whose keys it names; the catalogue lists such registries as entries of their
own. `__repr__`, `__str__` and the like are presentation and are not reached.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable

from benchmarks.all.canonical import canonical_form
from benchmarks.all.code_index import CodeIndex, Definition, row_key, strings_in
from benchmarks.all.form import Form, KeywordRef, MemberRef, ModuleRef, Reference, UnitRef

#: Methods that only show an object.
_PRESENTATION = {"__repr__", "__str__", "__format__", "__dir__"}
#: At the end of an entry: every row of the registry.
EVERY_ROW = "[*]"


def short_hash(parts: Iterable[str]) -> str:
    """Return twelve digits of a hash of some texts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


class FormCache:
    """The canonical forms of an index, each written once."""

    def __init__(self, index: CodeIndex) -> None:
        self.index = index
        self._forms: dict[str, Form] = {}
        self._hashes: dict[str, str] = {}

    def __getitem__(self, key: str) -> Form:
        if key not in self._forms:
            self._forms[key] = canonical_form(self.index, self.index.definitions[key])
        return self._forms[key]

    def hash_of(self, key: str) -> str:
        """Return the hash of a form alone, without its targets."""
        if key not in self._hashes:
            self._hashes[key] = short_hash(self[key].shape)
        return self._hashes[key]


class Reach:
    """The definitions that the code of some entries uses.

    Parameters
    ----------
    forms : FormCache
        The forms of the tree.
    entries : tuple of str
        "module:function" each, or "module:REGISTRY[*]" for every row of a registry.

    Attributes
    ----------
    reached : dict
        Key -> definition.
    """

    def __init__(self, forms: FormCache, entries: tuple[str, ...]) -> None:
        self.index, self._forms = forms.index, forms
        self.reached: dict[str, Definition] = {}
        self._pending: deque[str] = deque()
        self._live_classes: dict[str, None] = {}
        self._live_modules: dict[str, None] = {}
        #: Name of a requested member -> the classes that it was requested of.
        self._requests: dict[str, set[str]] = {}
        self._strings: set[str] = set()
        self._dynamic_owners: set[str] = set()
        for entry in entries:
            self._enter(entry)
        self._run()

    def members(self, request: MemberRef) -> list[Definition | tuple[str, int]]:
        """Return the live methods and fields that an attribute of a known class may be.

        A field is the pair of the definition that sets it and its ordinal there.
        """
        found: list[Definition | tuple[str, int]] = []
        for key in self.index.classes_with_member.get(request.name, ()):
            if key in self._live_classes and self._is_relative(key, request.owner):
                info = self.index.classes[key]
                method = info.methods.get(request.name)
                found.append(method if method else info.fields[request.name])
        return found

    def _enter(self, entry: str) -> None:
        if not entry.endswith(EVERY_ROW):
            self._reach(_defined(self.index, entry))
            return
        registry = _defined(self.index, entry.removesuffix(EVERY_ROW))
        references = self._forms[registry.key].references
        # The registry itself, or the literal that it is made of.
        literals = [registry.key, *(one.key for one in references if isinstance(one, UnitRef))]
        rows = [row for key in literals for row in self.index.rows.get(key, ())]
        rows += self.index.registered_by(registry.key)
        if not rows:
            raise LookupError(f"{entry}: there are no rows.")
        for row in [registry, *rows]:
            self._reach(row)

    def _reach(self, definition: Definition) -> None:
        if definition.key not in self.reached:
            self.reached[definition.key] = definition
            self._pending.append(definition.key)

    def _run(self) -> None:
        while self._pending:
            while self._pending:
                self._visit(self._pending.popleft())
            self._reach_rows()
            self._reach_dynamic_members()

    def _visit(self, key: str) -> None:
        definition, form = self.index.definitions[key], self._forms[key]
        if definition.kind == "class":
            self._make_live(key)
        if definition.kind == "method":
            self._reach(self.index.definitions[definition.owner])
        for reference in form.references:
            self._follow(reference)
        self._strings |= form.strings
        self._dynamic_owners |= form.dynamic_owners
        if form.dynamic_owners:
            for text in form.strings:
                self._request(MemberRef("", text))

    def _follow(self, reference: Reference) -> None:
        if isinstance(reference, UnitRef) and reference.is_live:
            self._reach(self.index.definitions[reference.key])
        elif isinstance(reference, MemberRef):
            self._request(reference)
        elif isinstance(reference, KeywordRef):
            self._follow(reference.callee)
        elif isinstance(reference, ModuleRef) and reference.name not in self._live_modules:
            self._live_modules[reference.name] = None
            for name in list(self._requests):
                if "" in self._requests[name]:
                    self._reach_function(reference.name, name)

    def _request(self, request: MemberRef) -> None:
        owners = self._requests.setdefault(request.name, set())
        if request.owner in owners:
            return
        owners.add(request.owner)
        for key in self.index.classes_with_member.get(request.name, ()):
            if key in self._live_classes:
                self._reach_member(key, request)
        if not request.owner:
            for module in self._live_modules:
                self._reach_function(module, request.name)

    def _reach_member(self, key: str, request: MemberRef) -> None:
        info = self.index.classes[key]
        if request.name in info.methods and self._is_related(key, request.owner):
            self._reach(info.methods[request.name])

    def _reach_function(self, module: str, name: str) -> None:
        target = self.index.resolve(module, name)
        if isinstance(target, Definition):
            self._reach(target)

    def _make_live(self, key: str) -> None:
        self._live_classes[key] = None
        for name, method in self.index.classes[key].methods.items():
            is_special = name.startswith("__") and name not in _PRESENTATION
            owners = self._requests.get(name, set())
            if is_special or any(self._is_related(key, owner) for owner in owners):
                self._reach(method)

    def _is_related(self, key: str, owner: str) -> bool:
        """Whether an object of the class `owner` may be of class `key`, or inherit from it."""
        if not owner or self.index.classes[owner].is_protocol:
            return True
        return self._is_relative(key, owner)

    def _is_relative(self, key: str, owner: str) -> bool:
        """Whether one of two classes inherits from the other, or both are the same."""
        if not owner:
            return False
        return key in self.index.lineage(owner) or owner in self.index.lineage(key)

    def _reach_rows(self) -> None:
        """Reach the rows of reached registries that the reached code names."""
        for registry, rows in self.index.rows.items():
            if registry not in self.reached:
                continue
            for row in rows:
                is_named = row_key(row) in self._strings
                if is_named or any(one.key in self._live_classes for one in self._places(row)):
                    self._reach(row)

    def _reach_dynamic_members(self) -> None:
        """Reach the methods that a computed name may stand for: the reached code holds the name."""
        for owner in self._dynamic_owners - {""}:
            for key in self.index.lineage(owner):
                for name in self.index.classes[key].methods:
                    if name in self._strings:
                        self._request(MemberRef(owner, name))

    def _places(self, row: Definition) -> list[Definition]:
        texts = strings_in(row.nodes[0])
        return [one for text in texts if ":" in text for one in self.index.places(text)]


def _defined(index: CodeIndex, entry: str) -> Definition:
    """Return the definition of an entry; `LookupError` if there is none.

    A definition that was moved to another module of the package is found by its name.
    """
    module, _, name = entry.partition(":")
    target = index.resolve(module, name) if module in index.modules else None
    if isinstance(target, Definition):
        return target
    elsewhere = index.by_name.get(name, [])
    if len(elsewhere) == 1 and module.startswith("metacal"):
        return elsewhere[0]
    raise LookupError(f"{entry}: there is no such definition in the tree.")
