"""The canonical form of a definition: its code without names, words and layout.

Local variables and parameters become numbers, in the order of their first use. References to other
definitions become placeholders; the fingerprint later replaces each by a hash of its target. The
form leaves out docstrings, comments, annotations, imports, texts of errors, warnings and help, and
registrations by a decorator.
"""

from __future__ import annotations

import ast

from benchmarks.all.code_index import (
    CodeIndex,
    Definition,
    External,
    ModuleName,
    Target,
    imported_names,
    strings_in,
)
from benchmarks.all.form import Form, KeywordRef, MemberRef, ModuleRef, Reference, UnitRef
from benchmarks.all.scopes import Scope, bound_names, is_property, is_registration, parameter_list

#: Fields of the syntax tree that do not influence what is computed.
_SILENT = {"ctx", "kind", "type_comment", "type_ignores", "type_params", "returns", "annotation"}
#: Keyword arguments that hold words for people.
_WORDS = {"help", "metavar", "description", "epilog", "desc", "short_help"}
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def canonical_form(index: CodeIndex, definition: Definition) -> Form:
    """Write the canonical form of a definition."""
    writer = _Writer(index, definition)
    for node in definition.nodes:
        writer.write_definition(node)
    return writer.form


class _Writer:
    """Writes the tokens of one definition."""

    def __init__(self, index: CodeIndex, definition: Definition) -> None:
        self.index, self.definition, self.form = index, definition, Form()
        self.scopes: list[Scope] = []
        self._count = 0

    def write_definition(self, node: ast.AST) -> None:
        """Write one statement of the definition."""
        if isinstance(node, ast.ClassDef) and self.definition.kind == "class":
            self._write_class(node)
        elif isinstance(node, _FUNCTIONS):
            self._write_function(node)
        elif self.definition.kind == "row":
            self.write(node)
            for text in strings_in(node):
                if ":" not in text:
                    self._emit(*(UnitRef(one.key) for one in self.index.places(text)))
        elif self.definition.key in self.index.rows:
            self._emit("registry")
        else:
            self.write(node)

    def _emit(self, *tokens: str | Reference) -> None:
        self.form.tokens.extend(tokens)

    def write(self, node: object) -> None:
        """Write a node, a list of nodes, or a plain value."""
        if isinstance(node, list):
            self._emit("[")
            for part in node:
                self.write(part)
            self._emit("]")
        elif isinstance(node, ast.AST):
            special = getattr(self, f"_write_{type(node).__name__}", None)
            if special is not None:
                special(node)
            else:
                self._write_fields(node)
        elif node is not None:
            self._emit(repr(node))

    def _write_fields(self, node: ast.AST) -> None:
        self._emit(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if name not in _SILENT and value is not None and value != []:
                self._emit(f"{name}=")
                self.write(value)
        self._emit(")")

    def _write_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # A docstring or an ellipsis otherwise.
            self._write_fields(node)

    def _write_Pass(self, node: ast.Pass) -> None:
        pass

    def _write_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        if self.scopes:
            for name, (module, inner) in imported_names(node, []).items():
                self.scopes[-1].imports[name] = self.index.follow(module, inner)

    _write_ImportFrom = _write_Import

    def _write_Raise(self, node: ast.Raise) -> None:
        """Write the kind of the error. Its text does not influence what is computed."""
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        self._emit("Raise(", getattr(error, "id", getattr(error, "attr", "")), ")")

    def _write_Assert(self, node: ast.Assert) -> None:
        self._emit("Assert(")
        self.write(node.test)
        self._emit(")")

    def _write_If(self, node: ast.If) -> None:
        if getattr(node.test, "id", "") == "TYPE_CHECKING":
            self.write(node.orelse)
        else:
            self._write_fields(node)

    def _write_Assign(self, node: ast.Assign) -> None:
        self._write_assignment(node.targets, node.value, "")

    def _write_AnnAssign(self, node: ast.AnnAssign) -> None:
        declared = self.index.class_of_annotation(self.definition.module, node.annotation)
        if node.value is not None:
            self._write_assignment([node.target], node.value, declared)
        elif isinstance(node.target, ast.Name):
            self._note_class(node.target, declared)

    def _write_assignment(self, targets: list[ast.expr], value: ast.expr, declared: str) -> None:
        self._emit("Assign(")
        self.write(value)
        self.write(targets)
        self._emit(")")
        for target in targets:
            if isinstance(target, ast.Name):
                self._note_class(target, declared or self._class_of(value))

    def _write_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if self._is_prose(node):
            self._emit("words")
            return
        if not isinstance(text, str):
            self._emit(repr(text))
            return
        self.form.strings.add(text)
        is_place = self.definition.kind == "row" or text.startswith(("metacal.", "benchmarks."))
        targets = self.index.places(text) if is_place and ":" in text else []
        if targets:
            self._emit(*(UnitRef(one.key) for one in targets))
        else:
            self._emit(repr(text))

    def _write_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Write an f-string; one without a placeholder is an ordinary string."""
        if any(self._is_prose(part) for part in node.values):
            self._emit("words")
        elif all(isinstance(part, ast.Constant) for part in node.values):
            self._emit(repr("".join(str(getattr(part, "value", "")) for part in node.values)))
        else:
            self._write_fields(node)

    def _is_prose(self, node: ast.expr) -> bool:
        """Whether a string of the package is for people. Benchmarks have such keys in results."""
        value = getattr(node, "value", None)
        is_text = isinstance(value, str) and " " in value.strip()
        return is_text and self.definition.module.startswith("metacal")

    # ── names ─────────────────────────────────────────────────────────────────────────────────────

    def _write_Name(self, node: ast.Name) -> None:
        if not self.scopes and isinstance(node.ctx, ast.Store):
            # The target of a module variable or a field: the definition itself, or another one.
            own = self.definition.key.rpartition(":")[2] == node.id
            self._emit("own" if own else "other")
            return
        self._write_name(node.id)

    def _write_name(self, name: str) -> None:
        number = self._number(name)
        if number is not None:
            self._emit(f"local{number}")
        else:
            self._write_target(self._global(name), name)

    def _write_target(self, target: Target | None, name: str, *, is_live: bool = True) -> None:
        if isinstance(target, Definition):
            self._emit(UnitRef(target.key, is_live))
        elif isinstance(target, ModuleName):
            self._emit(ModuleRef(target.name))
        else:
            self._emit(target.path if isinstance(target, External) else name)

    def _number(self, name: str) -> int | None:
        """Return the number of a local name, a new one at its first use; None if it is global."""
        for scope in reversed(self.scopes):
            if name in scope.imports:
                return None
            if name in scope.names:
                if name not in scope.numbers:
                    scope.numbers[name] = self._count
                    self._count += 1
                return scope.numbers[name]
        return None

    def _global(self, name: str) -> Target | None:
        for scope in reversed(self.scopes):
            if name in scope.imports:
                return scope.imports[name]
        return self.index.resolve(self.definition.module, name)

    def _write_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        pass

    _write_Nonlocal = _write_Global

    def _write_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._emit("ExceptHandler(")
        self._write_kinds(node.type)
        if node.name:
            self._write_name(node.name)
        self.write(node.body)
        self._emit(")")

    def _write_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self._emit("capture(")
        self.write(getattr(node, "pattern", None))
        if node.name:
            self._write_name(node.name)
        self._emit(")")

    _write_MatchStar = _write_MatchAs

    def _write_kinds(self, node: ast.expr | None) -> None:
        """Write classes that objects are compared with: no instance of them is made here."""
        if isinstance(node, ast.Tuple):
            for part in node.elts:
                self._write_kinds(part)
        elif isinstance(node, ast.BinOp):
            self._write_kinds(node.left)
            self._write_kinds(node.right)
        elif node is not None:
            target = self._target_of(node)
            if target is None:
                self.write(node)
            else:
                self._write_target(target, "", is_live=False)

    # ── attributes and calls ──────────────────────────────────────────────────────────────────────

    def _target_of(self, node: ast.expr) -> Target | None:
        """Find the definition, module or external object that an expression names."""
        if isinstance(node, ast.Name):
            return None if self._number(node.id) is not None else self._global(node.id)
        if isinstance(node, ast.Attribute):
            base = self._target_of(node.value)
            if isinstance(base, ModuleName):
                return self.index.resolve(base.name, node.attr)
            if isinstance(base, External):
                return External(f"{base.path}.{node.attr}")
        return None

    def _write_Attribute(self, node: ast.Attribute) -> None:
        target = self._target_of(node)
        if target is not None:
            self._write_target(target, node.attr)
            return
        self._emit("Attribute(")
        self.write(node.value)
        self._emit(self._member(node), ")")

    def _member(self, node: ast.Attribute) -> MemberRef:
        base = self._target_of(node.value)
        if isinstance(base, Definition) and base.kind == "class":
            return MemberRef(base.key, node.attr)
        return MemberRef(self._class_of(node.value), node.attr)

    def _callee(self, node: ast.expr) -> UnitRef | MemberRef | None:
        target = self._target_of(node)
        if isinstance(target, Definition):
            return UnitRef(target.key)
        if target is None and isinstance(node, ast.Attribute):
            return self._member(node)
        return None

    def _write_Call(self, node: ast.Call) -> None:
        target = self._target_of(node.func)
        if isinstance(target, External):
            is_special = self._write_external_call(target.path, node)
        elif target is None and isinstance(node.func, ast.Name):
            is_special = self._write_builtin_call(node.func.id, node)
        else:
            is_special = False
        if is_special:
            return
        self._emit("Call(")
        self.write(node.func)
        self.write(node.args)
        callee = self._callee(node.func)
        for keyword in node.keywords:
            if keyword.arg is None or callee is None:
                self._write_external_keyword(keyword)
            else:
                self._emit(KeywordRef(callee, keyword.arg))
                self.write(keyword.value)
        self._emit(")")

    def _write_external_keyword(self, keyword: ast.keyword) -> None:
        if keyword.arg not in _WORDS:
            self._emit(keyword.arg or "**")
            self.write(keyword.value)

    def _write_external_call(self, path: str, node: ast.Call) -> bool:
        """Write a call of a library function that needs care; return whether it is one."""
        if path == "typing.cast":
            self.write(node.args[1])
        elif path == "warnings.warn":
            self._emit("warn()")
        elif path == "dataclasses.replace" and node.args:
            self._emit("replace(")
            self.write(node.args)
            for keyword in node.keywords:
                owner = self._class_of(node.args[0])
                self._emit(MemberRef(owner, keyword.arg) if keyword.arg else "**")
                self.write(keyword.value)
            self._emit(")")
        else:
            return False
        return True

    def _write_builtin_call(self, name: str, node: ast.Call) -> bool:
        """Write a call of a builtin that needs care; return whether it is one."""
        if name in ("isinstance", "issubclass") and len(node.args) == 2:
            self._emit(f"{name}(")
            self.write(node.args[0])
            self._write_kinds(node.args[1])
            self._emit(")")
        elif name in ("getattr", "hasattr", "setattr") and len(node.args) > 1:
            self._write_dynamic(node)
        elif name == "globals":
            self._write_globals()
        else:
            return False
        return True

    def _write_dynamic(self, node: ast.Call) -> None:
        """Write a call of getattr, hasattr or setattr."""
        self._emit(f"{getattr(node.func, 'id', '')}(")
        self.write(node.args[0])
        name = node.args[1]
        if isinstance(name, ast.Constant):
            self._emit(MemberRef(self._class_of(node.args[0]), str(name.value)))
        else:
            self.form.dynamic_owners.add(self._class_of(node.args[0]))
            self.write(name)
        self.write(node.args[2:])
        self._emit(")")

    def _write_globals(self) -> None:
        """Write a call of globals(): each definition that a string of the module names is used."""
        self._emit("globals()")
        module = self.index.modules[self.definition.module]
        for text in dict.fromkeys(strings_in(module.tree)):
            if text in module.definitions:
                self._emit(UnitRef(module.definitions[text].key))

    # ── scopes ────────────────────────────────────────────────────────────────────────────────────

    def _write_class(self, node: ast.ClassDef) -> None:
        self._emit("Class(")
        self.write(node.decorator_list)
        self.write(node.bases)
        self.write(node.keywords)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if isinstance(statement, ast.AnnAssign) and statement.value is None:
                self._emit("field")
            else:
                self.write(statement)
        self._emit(")")

    def _write_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Write a nested function; its name is local to the enclosing one."""
        self._write_name(node.name)
        self._write_function(node)

    _write_AsyncFunctionDef = _write_FunctionDef

    def _write_ClassDef(self, node: ast.ClassDef) -> None:
        self._write_name(node.name)
        self._emit("ClassDef(")
        for part in (node.decorator_list, node.bases, node.keywords, node.body):
            self.write(part)
        self._emit(")")

    def _write_Lambda(self, node: ast.Lambda) -> None:
        self._write_function(node)

    def _write_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._emit(f"{type(node).__name__}(")
        if not isinstance(node, ast.Lambda):
            self.write([one for one in node.decorator_list if not is_registration(one)])
        self.write([*node.args.defaults, *filter(None, node.args.kw_defaults)])
        parameters = parameter_list(node.args)
        names = {one.arg for one in parameters} | bound_names(body)
        scope = Scope(names)
        self.scopes.append(scope)
        for position, parameter in enumerate(parameters):
            self._write_name(parameter.arg)
            scope.classes[parameter.arg] = self._class_of_parameter(parameter, position)
        self._emit(f"{len(node.args.posonlyargs)},{len(node.args.args)}")
        self._emit(f"{node.args.vararg is not None},{node.args.kwarg is not None}")
        for statement in body:
            self.write(statement)
        self.scopes.pop()
        self._emit(")")

    def _class_of_parameter(self, parameter: ast.arg, position: int) -> str:
        is_first = position == 0 and len(self.scopes) == 1
        if is_first and self.definition.kind == "method" and parameter.arg in ("self", "cls"):
            return self.definition.owner
        return self.index.class_of_annotation(self.definition.module, parameter.annotation)

    def _write_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        self._emit(f"{type(node).__name__}(")
        names = {
            part.id
            for generator in node.generators
            for part in ast.walk(generator.target)
            if isinstance(part, ast.Name)
        }
        first, *others = node.generators
        self.write(first.iter)
        self.scopes.append(Scope(names))
        self.write([first.target, first.ifs])
        for other in others:
            self.write([other.iter, other.target, other.ifs])
        if isinstance(node, ast.DictComp):
            self.write([node.key, node.value])
        else:
            self.write(node.elt)
        self.scopes.pop()
        self._emit(")")

    _write_ListComp = _write_SetComp = _write_DictComp = _write_GeneratorExp = _write_comprehension

    def _note_class(self, target: ast.Name, key: str) -> None:
        for scope in reversed(self.scopes):
            if target.id in scope.names:
                scope.classes[target.id] = key
                return

    def _class_of(self, node: ast.expr) -> str:
        """Return the key of the class of an expression, so far as annotations tell; else empty."""
        if isinstance(node, ast.Name):
            for scope in reversed(self.scopes):
                if node.id in scope.names:
                    return scope.classes.get(node.id, "")
            return ""
        if isinstance(node, ast.Attribute):
            return self._class_of_member(self._class_of(node.value), node.attr, is_call=False)
        if isinstance(node, ast.Call):
            target = self._target_of(node.func)
            if isinstance(target, Definition):
                return target.key if target.kind == "class" else self._class_returned(target)
            if target == External("dataclasses.replace") and node.args:
                return self._class_of(node.args[0])
            if target is None and isinstance(node.func, ast.Attribute):
                member = self._member(node.func)
                return self._class_of_member(member.owner, member.name, is_call=True)
        return ""

    def _class_of_member(self, owner: str, name: str, *, is_call: bool) -> str:
        if not owner:
            return ""
        for key in self.index.lineage(owner):
            info = self.index.classes[key]
            if name in info.methods:
                method = info.methods[name]
                if is_call or is_property(method):
                    return self._class_returned(method, owner)
                return ""
            if name in info.annotations and not is_call:
                return self.index.class_of_annotation(
                    info.definition.module, info.annotations[name]
                )
        return ""

    def _class_returned(self, function: Definition, owner: str = "") -> str:
        annotation = getattr(function.nodes[0], "returns", None)
        if getattr(annotation, "id", "") == "Self":
            return owner
        return self.index.class_of_annotation(function.module, annotation)
