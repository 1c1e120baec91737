"""What is promised of each class or group in words, and of either side of two classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate
    from metacal.promises.parts.part import Parts

#: Writes a share.
Write = Callable[[float], str]


def lower(claim: str) -> str:
    """A claim in the middle of a sentence."""
    return f"{claim[0].lower()}{claim[1:]}"


def statement_of_sides(certificate: Certificate, parts: Parts, at_least: Write, at_most: Write) -> str:
    """What is promised of either side, the second class first; a recall is that of the other class."""
    said = []
    for code in (1, 0):
        part = parts.items[code]
        if part.quantity is not None and part.target is not None:
            turned = part.quantity.of_class and not part.quantity.at_most
            name = parts.items[1 - code if turned else code].name
            said.append(part.quantity.claim(part.target, at_least, at_most, name))
    claim = ", and ".join([said[0], *map(lower, said[1:])])
    about = "about " if certificate.guarantee == "approximate" else ""
    sure = f"with {about}{at_least(certificate.confidence or 0.0)} confidence"
    both = " for both together" if len(said) > 1 else ""
    return f"{claim}, {sure}{both}{' (approximate, not certified)' if about else ''}."


def called(certificate: Certificate, parts: Parts) -> str:
    """What rows are called, by their log-odds."""
    said = []
    for code, sign in ((1, ">"), (0, "<=")):
        part, turned = parts.items[code], 1.0 if code else -1.0
        if part.threshold != -math.inf:
            limit = certificate.decision_at + turned * (0.0 if part.accepts_everything else -part.threshold)
            following = certificate.decision_at + (part.lowest_rejected or 0.0)
            sign = "<" if not code and f"{following:.6g}" == f"{limit:.6g}" else sign  # shown is a score that is not
            said.append(f"called {part.name} if log-odds {sign} {limit:.6g}")
    return f"{', '.join(said)}, else review"


def lines_of_sides(parts: Parts) -> list[tuple[str, str]]:
    """How many rows either side calls, and which side is closed."""
    lines = []
    for part in reversed(parts.items):
        if part.quantity is None or part.target is None:
            continue
        if part.threshold == -math.inf:
            needed = f"; it takes at least {part.rows_needed:,} rows that speak about it" if part.rows_needed else ""
            why = f"{part.quantity} {part.target:g} is not certified{needed}"
            lines.append(("closed", f"nothing is called {part.name}: {why}"))
            continue
        right = f"{part.n_correct_accepted:,} of them right"
        lines.append((f"called {part.name}"[:12], f"{part.n_accepted:,} of {part.n_rows:,} rows on that side, {right}"))
    return lines


def claim_of_parts(parts: Parts, claim: str) -> str:
    """The promise for all rows as the promise for each part."""
    each = "every predicted class" if parts.by == "class" else "every group"
    if len(parts.items) == 1 and parts.pooled:
        return f"For all {len(parts.pooled)} {parts.plural} taken together, {lower(claim)}"
    if parts.pooled:
        each += f" but {len(parts.pooled)} small ones, which are pooled and count as one"
        return f"For {each}: {lower(claim)}"
    return f"For {each}, {lower(claim)}"


def surely_of_parts(parts: Parts, confidence: str, broken: str) -> str:
    """How surely: the confidence for all together, or for each and what that means for all."""
    if parts.shares == "fcr":
        return f"but for an expected share of at most {broken} of the {parts.plural} that accept (false-coverage rate)"
    if parts.shares == "together":
        return f"with {confidence} confidence for all {parts.plural} together"
    return f"each with {confidence} confidence: the expected share of broken {parts.plural} is at most {broken}"
