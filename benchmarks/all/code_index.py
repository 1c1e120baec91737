"""An index of the definitions in a tree of sources.

A *definition* is a function, a class, a method, a module variable, or a row of a registry. The
index resolves a name in a module to its definition, through imports, re-exports and the names that
a package imports for type checkers alone.

A *registry* is a module variable that holds a literal tuple, list or dict of rows, each with a key
and the places of the objects that it registers, as in ``_row("platt", "logistic:fit_platt_scaling")``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

#: Fewest rows of a registry. A shorter literal is an ordinary variable.
FEWEST_ROWS = 3
_PLACE = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True, eq=False)
class Definition:
    """A function, class, method, module variable or registry row.

    Attributes
    ----------
    key : str
        "module:name", "module:Class.method", or "module:VARIABLE[row]".
    module : str
        Name of the module that contains it.
    kind : str
        "function", "class", "method", "variable" or "row".
    nodes : tuple of AST nodes
        Its statements. A variable can have several, because a module may modify it.
    owner : str
        Key of the class of a method, or of the registry of a row. Otherwise empty.
    """

    key: str
    module: str
    kind: str
    nodes: tuple[ast.AST, ...]
    owner: str = ""


@dataclass(frozen=True)
class ModuleName:
    """A name that stands for a module of the tree."""

    name: str


@dataclass(frozen=True)
class External:
    """A name from outside of the tree, such as "numpy.sum"."""

    path: str


Target = Definition | ModuleName | External


@dataclass(eq=False)
class Module:
    """The definitions and imports of one file."""

    name: str
    tree: ast.Module
    definitions: dict[str, Definition] = field(default_factory=dict)
    #: Local name -> (module, name in it), with an empty name for the module itself.
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    starred: list[str] = field(default_factory=list)


@dataclass(eq=False)
class ClassInfo:
    """The members of a class.

    Attributes
    ----------
    methods : dict
        Name -> definition.
    fields : dict
        Name -> (key of the definition that sets it, ordinal among the fields set there).
    annotations : dict
        Name of a field -> its annotation.
    bases : tuple of str
        Keys of the bases inside the tree.
    """

    definition: Definition
    methods: dict[str, Definition] = field(default_factory=dict)
    fields: dict[str, tuple[str, int]] = field(default_factory=dict)
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    bases: tuple[str, ...] = ()
    is_protocol: bool = False


class CodeIndex:
    """The definitions of `src/metacal` and `benchmarks` below a root folder."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        self.definitions: dict[str, Definition] = {}
        self.classes: dict[str, ClassInfo] = {}
        self._lineages: dict[str, tuple[str, ...]] = {}
        for path, name in _sources(root):
            module = Module(name, ast.parse(path.read_text(encoding="utf-8")))
            self.modules[name] = module
            _read_statements(module, module.tree.body)
            self.definitions.update((one.key, one) for one in module.definitions.values())
        for definition in list(self.definitions.values()):
            if definition.kind == "class":
                self._read_class(definition)
        for definition in list(self.definitions.values()):
            if definition.kind == "variable":
                self._read_rows(definition)

    def resolve(self, module: str, name: str) -> Target | None:
        """Find what a global name of a module stands for; None if it is a builtin or unknown."""
        return self._resolve(module, name, frozenset())

    def _resolve(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Target | None:
        home = self.modules[module]
        if name in home.definitions:
            return home.definitions[name]
        # A package that imports a module of its own names itself: `from metacal import metrics`.
        is_new = (module, name) not in seen
        seen |= {(module, name)}
        if name in home.imports and is_new:
            return self._follow(*home.imports[name], seen)
        for other in home.starred if is_new else ():
            found = self._resolve(other, name, seen) if other in self.modules else None
            if found is not None:
                return found
        if f"{module}.{name}" in self.modules:
            return ModuleName(f"{module}.{name}")
        return None

    def follow(self, module: str, name: str) -> Target | None:
        """Find the target of an import: ``from module import name``, or ``import module``."""
        return self._follow(module, name, frozenset())

    def _follow(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Target | None:
        if module not in self.modules:
            return External(f"{module}.{name}" if name else module)
        if not name:
            return ModuleName(module)
        return self._resolve(module, name, seen)

    def class_of_annotation(self, module: str, annotation: ast.expr | None) -> str:
        """Return the key of the class that an annotation names; empty if it names none, or two."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return ""
        if isinstance(annotation, ast.BinOp):
            sides = (annotation.left, annotation.right)
            found = {self.class_of_annotation(module, side) for side in sides} - {""}
            return found.pop() if len(found) == 1 else ""
        if isinstance(annotation, ast.Name):
            target = self.resolve(module, annotation.id)
            if isinstance(target, Definition) and target.kind == "class":
                return target.key
        return ""

    def lineage(self, key: str) -> tuple[str, ...]:
        """Return a class and its bases inside the tree."""
        if key not in self._lineages:
            self._lineages[key] = (key,)  # A cycle of bases ends here.
            above = [self.lineage(base) for base in self.classes[key].bases]
            self._lineages[key] = (key, *dict.fromkeys(one for line in above for one in line))
        return self._lineages[key]

    def places(self, text: str) -> list[Definition]:
        """Return the definitions that a string of a registry row names.

        "logistic:fit_platt_scaling" is looked up in every module whose name ends with "logistic", a bare
        name in every module.
        """
        if _PLACE.fullmatch(text):
            ending, _, name = text.partition(":")
            homes = [one for one in self.modules if f".{one}".endswith(f".{ending}")]
            targets = [self.resolve(home, name) for home in homes]
            return [one for one in targets if isinstance(one, Definition)]
        return self.by_name.get(text, [])

    @cached_property
    def by_name(self) -> dict[str, list[Definition]]:
        """Functions, classes and variables of the package by their bare name."""
        found: dict[str, list[Definition]] = {}
        for one in self.definitions.values():
            is_global = one.kind in ("function", "class", "variable")
            if is_global and one.module.startswith("metacal"):
                found.setdefault(one.key.partition(":")[2], []).append(one)
        return found

    def _read_class(self, definition: Definition) -> None:
        node = definition.nodes[0]
        assert isinstance(node, ast.ClassDef)
        bases = [self._base(definition.module, base) for base in node.bases]
        info = ClassInfo(
            definition,
            bases=tuple(
                base.key for base in bases if isinstance(base, Definition) and base.kind == "class"
            ),
            is_protocol=any(
                isinstance(base, External) and base.path.endswith(".Protocol") for base in bases
            ),
        )
        self.classes[definition.key] = info
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._read_method(info, statement)
            for name in _targets(statement):
                info.fields.setdefault(name, (definition.key, len(info.fields)))
                if isinstance(statement, ast.AnnAssign):
                    info.annotations[name] = statement.annotation

    def _read_method(self, info: ClassInfo, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        owner = info.definition
        known = info.methods.get(node.name)
        # Overloads, and the setter of a property, belong to the definition of the same name.
        nodes = (*known.nodes, node) if known else (node,)
        key = f"{owner.key}.{node.name}"
        method = Definition(key, owner.module, "method", nodes, owner.key)
        info.methods[node.name] = self.definitions[key] = method
        count = 0
        for part in ast.walk(node):
            if _is_store_on_self(part):
                assert isinstance(part, ast.Attribute)
                if part.attr not in info.fields:
                    info.fields[part.attr] = (key, count)
                    count += 1

    def _base(self, module: str, base: ast.expr) -> Target | None:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name):
            return self.resolve(module, base.id)
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            home = self.resolve(module, base.value.id)
            if isinstance(home, ModuleName):
                return self.resolve(home.name, base.attr)
        return None

    def _read_rows(self, definition: Definition) -> None:
        """Split a registry into its rows."""
        rows = list(_rows(definition.nodes[0]))
        if len(rows) < FEWEST_ROWS or not all(self._is_row(row) for _, row in rows):
            return
        for name, row in rows:
            key = f"{definition.key}[{name}]"
            self.definitions[key] = Definition(
                key, definition.module, "row", (row,), definition.key
            )

    def _is_row(self, row: ast.expr) -> bool:
        """Whether an entry of a literal names a definition: by its place, or in a call."""
        texts = [text for text in strings_in(row) if isinstance(row, ast.Call) or ":" in text]
        return any(self.places(text) for text in texts)

    @cached_property
    def rows(self) -> dict[str, list[Definition]]:
        """The rows of each registry, by the key of the registry."""
        found: dict[str, list[Definition]] = {}
        for one in self.definitions.values():
            if one.kind == "row":
                found.setdefault(one.owner, []).append(one)
        return found

    @cached_property
    def classes_with_member(self) -> dict[str, list[str]]:
        """The keys of the classes that define a method or field of a name."""
        found: dict[str, list[str]] = {}
        for key, info in self.classes.items():
            for name in {**info.methods, **info.fields}:
                found.setdefault(name, []).append(key)
        return found

    def registered_by(self, key: str) -> list[Definition]:
        """Return the functions and classes that a decorator registers."""
        return [one for one in self.definitions.values() if key in self._decorators(one)]

    def _decorators(self, definition: Definition) -> set[str]:
        """Return the keys of the decorators of a definition."""
        found = set()
        for decorator in getattr(definition.nodes[0], "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Name):
                target = self.resolve(definition.module, called.id)
                found.add(target.key if isinstance(target, Definition) else "")
        return found


def strings_in(node: ast.AST) -> list[str]:
    """Return the string constants of a piece of code."""
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def row_key(definition: Definition) -> str:
    """Return the key of a registry row."""
    return definition.key.rpartition("[")[2].removesuffix("]")


def _rows(statement: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield key and value of each entry of a literal; an entry without a key has an empty one."""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values):
            yield _constant(key), item
    elif isinstance(value, ast.Tuple | ast.List):
        for item in value.elts:
            key = item.args[0] if isinstance(item, ast.Call) and item.args else None
            yield _constant(key), item


def _constant(node: ast.expr | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _sources(root: Path) -> Iterator[tuple[Path, str]]:
    for folder in (root / "src" / "metacal", root / "benchmarks"):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read_statements(module: Module, statements: list[ast.stmt]) -> None:
    """Enter the definitions and imports of some statements of a module."""
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            module.imports.update(imported_names(statement, module.starred))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            _define(module, statement.name, "function", statement)
        elif isinstance(statement, ast.ClassDef):
            _define(module, statement.name, "class", statement)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "handlers", "orelse", "finalbody"):
                for inner in getattr(statement, part, []):
                    _read_statements(
                        module, inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                    )
        else:
            for name in _targets(statement):
                _define(module, name, "variable", statement)


def imported_names(
    statement: ast.Import | ast.ImportFrom, starred: list[str]
) -> dict[str, tuple[str, str]]:
    """Return the names that an import binds; star imports are appended to `starred`."""
    found: dict[str, tuple[str, str]] = {}
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            if alias.name == "*":
                starred.append(statement.module or "")
            else:
                found[alias.asname or alias.name] = (statement.module or "", alias.name)
        elif alias.asname:
            found[alias.asname] = (alias.name, "")
        else:
            first = alias.name.partition(".")[0]
            found[first] = (first, "")
    return found


def _define(module: Module, name: str, kind: str, statement: ast.stmt) -> None:
    known = module.definitions.get(name)
    nodes = (*known.nodes, statement) if known else (statement,)
    module.definitions[name] = Definition(f"{module.name}:{name}", module.name, kind, nodes)


def _targets(statement: ast.AST) -> Iterator[str]:
    """Yield the names that an assignment binds or modifies."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name) and (
                isinstance(part.ctx, ast.Store) or isinstance(target, ast.Subscript)
            ):
                yield part.id


def _is_store_on_self(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
