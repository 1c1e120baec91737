"""The canonical form of a definition, as data: tokens and references to other definitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class UnitRef:
    """A reference to a definition. `is_live`: whether the code can run it or make an instance."""

    key: str
    is_live: bool = True


@dataclass(frozen=True)
class ModuleRef:
    """A reference to a module as a value, such as the kernel in use."""

    name: str


@dataclass(frozen=True)
class MemberRef:
    """An attribute of an object. `owner` is the key of the object's class; empty if unknown."""

    owner: str
    name: str


@dataclass(frozen=True)
class KeywordRef:
    """The name of a keyword argument in a call of `callee`."""

    callee: UnitRef | MemberRef
    name: str


Reference = UnitRef | ModuleRef | MemberRef | KeywordRef


@dataclass
class Form:
    """The canonical form of a definition.

    Attributes
    ----------
    tokens : list
        Literal text and references, in order.
    strings : set of str
        The string constants, which may be keys of registries.
    dynamic_owners : set of str
        The classes of objects whose attributes are looked up by a computed name; an empty key if
        the class is unknown.
    """

    tokens: list[str | Reference] = field(default_factory=list)
    strings: set[str] = field(default_factory=set)
    dynamic_owners: set[str] = field(default_factory=set)

    @cached_property
    def references(self) -> list[Reference]:
        """The references among the tokens."""
        return [token for token in self.tokens if not isinstance(token, str)]

    @cached_property
    def shape(self) -> list[str]:
        """The tokens, with the order of references in place of their targets."""
        numbers: dict[Reference, int] = {}
        return [
            token if isinstance(token, str) else f"\0{numbers.setdefault(token, len(numbers))}"
            for token in self.tokens
        ]
