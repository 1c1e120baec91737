"""Under which circumstances a rule was used: shared by scores, on one row of each group, weighted, cross-fitted.

Each adds its words to the rule and changes what the promise rests on. A certificate holds the words alone; whoever
reads one from a file gets the circumstances back from them, and with them what the promise must have been.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from metacal.promises.certificate import Certificate, Guarantee

#: How weights are known: exactly, or estimated from other rows.
Weights = Literal["given", "estimated"]

_RULE = re.compile(
    r"(?P<rule>.*?)"
    r"(, the best of (?P<scores>[2-9]|[1-9][0-9]{1,2}) scores, this one at (?P<share>0[.][0-9]{1,6}) of delta)?"
    r"(?P<grouped>, one row of each group)?"
    r"(, on rows kept in proportion to (?P<weights>given|estimated) weights)?"
    r"(, on out-of-fold scores of (?P<folds>[1-9][0-9]{0,8}) folds)?"
)
_UNSEEN = ", which the classifier was not trained on"
_ESTIMATED = "the weights are estimates: how far they are off is not accounted for"
#: What a cross-fitted certificate rests on, besides what its rule does.
ALIKE = "the classifier in use, fitted on all rows, ranks and errs like the fold classifiers that scored the rows"


@dataclass(frozen=True)
class Words:
    """How a certificate names its rule, and what it rests on, the source of new rows first.

    Examples
    --------
    >>> Words("a rule", ("the same source",)).under(Circumstances(folds=5)).rule
    'a rule, on out-of-fold scores of 5 folds'
    """

    rule: str
    assumptions: tuple[str, ...]

    def under(self, circumstances: Circumstances) -> Words:
        """The same rule under circumstances."""
        if circumstances == Circumstances():
            return self
        return Words(self.rule + circumstances.addition, circumstances.assumptions(self.assumptions))


@dataclass(frozen=True)
class Circumstances:
    """What was particular about a fit; nothing by default.

    Attributes
    ----------
    scores, share : int and float
        How many ranking scores shared delta, and the share of the one that was taken.
    grouped : bool
        Whether one row of each group was counted.
    weights : "given", "estimated" or None
        Whether rows were kept in proportion to weights.
    folds : int
        How many fold classifiers scored the rows; 0: the one in use did.

    Examples
    --------
    >>> found = Circumstances.read("a rule, the best of 3 scores, this one at 0.8 of delta, one row of each group")
    >>> found
    Circumstances(scores=3, share=0.8, grouped=True, weights=None, folds=0)
    >>> Words("a rule", ("rows come from the same source",)).under(found).assumptions[0]
    'new groups come from the same source as the calibration groups, ...; a new row is any row of a new group'
    """

    scores: int = 1
    share: float = 1.0
    grouped: bool = False
    weights: Weights | None = None
    folds: int = 0

    @classmethod
    def read(cls, rule: str) -> Circumstances:
        """What the words of a rule say."""
        found = _RULE.fullmatch(rule)
        if found is None:
            return cls()
        weights: Weights | None = {"given": "given", "estimated": "estimated"}.get(found["weights"])  # type: ignore[assignment]
        grouped, folds = found["grouped"] is not None, int(found["folds"] or 0)
        return cls(int(found["scores"] or 1), float(found["share"] or 1.0), grouped, weights, folds)

    @property
    def addition(self) -> str:
        """What is added to the words of a rule."""
        shared = f", the best of {self.scores} scores, this one at {self.share:g} of delta" if self.scores > 1 else ""
        grouped = ", one row of each group" if self.grouped else ""
        weighted = f", on rows kept in proportion to {self.weights} weights" if self.weights else ""
        return shared + grouped + weighted + (f", on out-of-fold scores of {self.folds} folds" if self.folds else "")

    def assumptions(self, plain: tuple[str, ...]) -> tuple[str, ...]:
        """What the promise rests on, where without these circumstances it would be `plain`, the source first."""
        unit = "groups" if self.grouped else "rows"
        known, unseen = (f"{unit} given to fit", "") if self.folds else (f"calibration {unit}", _UNSEEN)
        source = f"new {unit} come from the same source as the {known}{unseen}"
        if self.weights:
            source += f", reweighted by the {self.weights} weights, of which none is larger than the largest used"
        if self.grouped:
            source += "; a new row is any row of a new group"
        same = not (self.grouped or self.weights or self.folds)
        more = [_ESTIMATED] if self.weights == "estimated" else []
        return (plain[0] if same else source, *plain[1:], *more, *([ALIKE] if self.folds else []))

    def guarantee(self, exact: Guarantee) -> Guarantee:
        """What can be promised, where without these circumstances it would be `exact`."""
        return "approximate" if exact != "none" and (self.folds or self.weights == "estimated") else exact

    def together(self, other: Circumstances) -> Circumstances:
        """Both at once; `other` where the two say the same thing differently."""
        return Circumstances(
            max(self.scores, other.scores),
            min(self.share, other.share),
            self.grouped or other.grouped,
            other.weights or self.weights,
            other.folds or self.folds,
        )


def under(certificate: Certificate, more: Circumstances) -> Certificate:
    """The certificate with further circumstances told, and no more promised than they allow.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> exact = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> under(exact, Circumstances(weights="estimated")).guarantee
    'approximate'
    """
    found = _RULE.fullmatch(certificate.rule)
    assert found is not None  # it matches any text of one line
    plain = tuple(text for text in certificate.assumptions if text not in (_ESTIMATED, ALIKE))
    around = Circumstances.read(certificate.rule).together(more)
    words = Words(found["rule"], plain).under(around)
    return replace(
        certificate,
        guarantee=around.guarantee(certificate.guarantee),
        rule=words.rule,
        assumptions=words.assumptions,
    )
