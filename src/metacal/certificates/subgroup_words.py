"""What is promised of each class or group in words, and of either side of two classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import Name, Part, Parts

#: Writes a share.
Write = Callable[[float], str]


def lower(claim: str) -> str:
    """A claim in the middle of a sentence."""
    return f"{claim[0].lower()}{claim[1:]}"


def side_of(group: Name, called: Name | None) -> str:
    """A class or group, or of one with two sides the rows that are called so."""
    return str(group) if called is None else f"{group}, called {called}"


def claim_of_sides(parts: Parts, at_least: Write, at_most: Write) -> str:
    """State the promise of each side, the side of the second class first."""
    said = []
    for part in parts.items[1::-1]:
        if part.quantity is not None and part.target is not None:
            said.append(part.quantity.claim(part.target, at_least, at_most, part.about))
    return ", and ".join([said[0], *map(lower, said[1:])])


def _class(part: Part) -> str:
    """What the rows of a side are called."""
    return str(part.names[0] if part.called is None else part.called)


def _promised(part: Part) -> str:
    """Return the quantity of a side, its class, and its target."""
    assert part.quantity is not None
    assert part.target is not None
    return f"{part.quantity.about(part.about)} {part.target:g}"


def called(certificate: Certificate, parts: Parts) -> str:
    """What rows are called, by their log-odds."""
    if not parts.of_all:
        names = " or ".join(
            _class(part) for part in parts.items[1::-1] if part.quantity is not None
        )
        return f"called {names} beyond the log-odds of the row's group, else review"
    return f"{', '.join(_beyond(parts.items, certificate.decision_at))}, else review"


def _beyond(family: Sequence[Part], at: float) -> list[str]:
    """Where rows of all, or of a group, are called by the second class, and where by the first."""
    said = []
    for code, sign in ((1, ">"), (0, "<=")):
        part, turned = family[code], 1.0 if code else -1.0
        if part.threshold != -math.inf:
            limit = at + turned * (0.0 if part.accepts_everything else -part.threshold)
            following = at + (part.lowest_rejected or 0.0)
            sign = (
                "<" if not code and f"{following:.6g}" == f"{limit:.6g}" else sign
            )  # shown is a score that is not
            said.append(f"called {_class(part)} if log-odds {sign} {limit:.6g}")
    return said


def lines_of_sides(parts: Parts, few: int) -> list[tuple[str, str]]:
    """How many rows either side calls, and which side is closed; of the first few groups."""
    lines = (
        []
        if parts.of_all
        else [(parts.plural, f"{len(parts.names):,}, both sides of each by itself")]
    )
    families = parts.families
    for family in families[:few]:
        of = "" if parts.of_all else f"{family[0].whole}: "
        said = ", ".join(_beyond(family, family[0].at)) or "all rows go to review"
        lines += [("group", f"{of}{said}")] if of else []
        for part in (
            part
            for part in reversed(family)
            if part.quantity is not None and part.target is not None
        ):
            name = _class(part)
            if part.threshold == -math.inf:
                takes = (
                    f"; it takes at least {part.rows_needed:,} rows that speak about it"
                    if part.rows_needed
                    else ""
                )
                why = f"{_promised(part)} is not certified{takes}"
                lines.append(("closed", f"{of}nothing is called {name}: {why}"))
                continue
            seen = f"{part.n_accepted:,} of {part.n_rows:,} rows on that side"
            lines.append(
                (f"called {name}"[:12], f"{of}{seen}, {part.n_correct_accepted:,} of them right")
            )
    if len(families) > few:
        lines.append(("group", f"and {len(families) - few:,} more"))
    return lines


def claim_of_parts(parts: Parts, claim: str) -> str:
    """The promise for all rows as the promise for each part."""
    each = "every predicted class" if parts.by == "class" else "every group"
    if parts.of_all:
        return claim
    if len(parts.families) == 1 and parts.pooled:
        return f"For all {len(parts.pooled)} {parts.plural} taken together, {lower(claim)}"
    if parts.pooled:
        each += f" but {len(parts.pooled)} small ones, which are pooled and count as one"
        return f"For {each}: {lower(claim)}"
    return f"For {each}, {lower(claim)}"


def surely_of_parts(parts: Parts, confidence: str, broken: str) -> str:
    """How surely: the confidence for all together, or for each and what that means for all."""
    if parts.of_all:
        both = all(part.quantity is not None for part in parts.items)
        return f"with {confidence} confidence{' for both together' if both else ''}"
    if parts.shares == "fcr":
        return (
            f"but for an expected share of at most {broken} of the {parts.plural} that accept"
            " (false-coverage rate)"
        )
    if parts.shares == "together":
        return f"with {confidence} confidence for all {parts.plural} together"
    return (
        f"each with {confidence} confidence: the expected share of broken {parts.plural} is at most"
        f" {broken}"
    )
