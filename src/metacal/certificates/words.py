"""A certificate in words: its promise, its rule, what it rests on. Made from its facts, and never
read back.

A rule has a short name, which certificates and files hold, and its words here, which may be
improved at any time: `register_rule` is called beside the mathematics of each.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metacal.certificates.subgroup_words import (
    called,
    claim_of_parts,
    claim_of_sides,
    lines_of_sides,
    lower,
    surely_of_parts,
)
from metacal.errors import InputError
from metacal.kernels.grid import RELATIVE
from metacal.lazy import import_object

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.circumstances import Circumstances
    from metacal.certificates.subgroups import Part, Parts, Shares, Stages, Status

SAME_SOURCE = (
    "new rows come from the same source as the calibration rows, which the classifier was not"
    " trained on"
)
RISING = "the chance of an error does not fall as the score rises"
RANKED = (
    "accuracy falls as the score rises: accepting more never makes the accepted rows more accurate"
)
#: What a cascade rests on.
SAME_SOURCE_OF_BOTH = (
    "new rows come from the same source as the calibration rows, which neither model was trained on"
)
DRAWN_FROM_POOL = (
    "the labelled rows were drawn at random from the pool, and the last model answers them"
)
_ESTIMATED = "the weights are estimates: how far they are off is not accounted for"
#: What a cross-fitted certificate rests on, besides what its rule does.
_ONE_SEED = "random_state={seed} was chosen before the rows were seen, and no other seed was tried"
_ALIKE = (
    "the classifier in use, fitted on all rows, ranks and errs like the fold classifiers that"
    " scored the rows"
)

#: How "on average over calibration sets" goes on; where accepting can break a promise, some sets
#: certify nothing.
_HALF = " (about half of them may exceed it)"
_NOTHING_KEPT = (
    ", one that certifies nothing counting as kept (about half of the others may miss it)"
)

#: Lines of a certificate about single parts, of those that are always rejected and of the others.
_FEW = 8
_STATUSES: dict[Status, str] = {
    "certified": "{:,} with a threshold",
    "accepts everything": "{:,} accept every row",
    "always rejected": "{:,} always rejected",
}
#: Which row a claim is about, where rows belong together.
_COUNTED_BY = {
    "unit": "For a random row of a random unit",
    "row": "For a random row, whatever its unit",
    "mean": "On average over units, each by its own rows",
}
#: How parts share delta, in the words of a rule.
_SHARED: dict[Shares, str] = {
    "together": "delta shared by all (Holm 1979)",
    "each": "delta for each",
    "fcr": (
        "delta times the share of those that accept (false-coverage rate, Benjamini & Yekutieli"
        " 2005)"
    ),
}


@dataclass(frozen=True)
class Rule:
    """The words of a rule, with its reference, and what it rests on, the source of new rows
    first.
    """

    text: str
    assumptions: tuple[str, ...]
    at_values: str = ""  # where values of the score are tested, not ranks


#: Every rule by its name, once its promise is imported.
RULES: dict[str, Rule] = {}


def register_rule(name: str, text: str, *assumptions: str, at_values: str = "") -> str:
    """Enter the words of a rule under the name that certificates and files have for it, which comes
    back.

    >>> from metacal.promises.paper import ALGORITHM_1
    >>> register_rule(ALGORITHM_1, "a rule of mine")
    Traceback (most recent call last):
    metacal.errors.InputError: there is a rule 'paper-algorithm-1' already.
    """
    if name in RULES:
        raise InputError(f"there is a rule {name!r} already.")
    RULES[name] = Rule(text, assumptions, at_values or text)
    return name


def rule_named(name: str) -> Rule:
    """The words of a rule; every promise is imported where it is not known yet."""
    if name not in RULES:
        # A rule is registered by the module that implements it, which a promise imports.
        load_promise_classes = import_object("metacal.promises.kinds:promise_classes")
        load_promise_classes()
    if name not in RULES:
        raise InputError(f"there is no rule {name!r}; there are {', '.join(sorted(RULES))}.")
    return RULES[name]


# ── what is promised ──────────────────────────────────────────────────────────────────────────────


def statement(certificate: Certificate) -> str:
    """Return the promise as one sentence, with the seed if the user chose it."""
    sentence, seed = _promise_sentence(certificate), certificate.circumstances.random_state
    if seed is None:
        return sentence
    return f"{sentence.removesuffix('.')} (random_state={seed} chosen by the user)."


def _promise_sentence(certificate: Certificate) -> str:
    """Return the promise as one sentence."""
    claim, *more = (
        promised.claim(limit, at_least, at_most) for promised, limit in certificate.limits
    )
    claim = " and ".join([claim, *map(lower, more)])
    stages = certificate.stages
    if stages is not None and stages.people and certificate.quantity.paired:
        claim = (
            f"Of all answers at most {at_most(certificate.target)} are wrong, people's counted as"
            " right"
        )
    if stages is not None and stages.pool is not None:
        claim += f", of the pool of {stages.pool:,} rows"
    parts = certificate.parts
    if parts is not None and parts.sides:
        claim = claim_of_sides(parts, at_least, at_most)
    unknown, counted_by = certificate.circumstances.unknown, certificate.circumstances.units
    claim = claim if counted_by is None else f"{_COUNTED_BY[counted_by]}, {lower(claim)}"
    inexact = f"(approximate, not certified{'' if unknown is None else f': {unknown}'})"
    sure, guarantee = certificate.confidence, certificate.guarantee
    if parts is not None and certificate.delta is not None and sure is not None:
        approximate = guarantee == "approximate"
        about = f"{'about ' if approximate else ''}{at_least(sure)}"
        surely = surely_of_parts(parts, about, at_most(certificate.delta))
        return f"{claim_of_parts(parts, claim)}, {surely}{f' {inexact}' if approximate else ''}."
    if guarantee == "certified" and sure is not None:
        return f"{claim}, {'both ' if more else ''}with {at_least(sure)} confidence."
    if guarantee == "approximate":
        surely = (
            "on average over calibration sets"
            if sure is None
            else f"with about {at_least(sure)} confidence"
        )
        return f"{claim}, {surely} {inexact}."
    if guarantee == "in expectation":
        always = all(promised.accepting_is_safe for promised, _ in certificate.limits)
        return f"{claim}, on average over calibration sets{_HALF if always else _NOTHING_KEPT}."
    return f"Aimed at, without a guarantee: {lower(claim)}."


# ── how, and on what it rests ─────────────────────────────────────────────────────────────────────


def rule(certificate: Certificate) -> str:
    """How the threshold was chosen, with its reference, by which parts and under which
    circumstances.

    >>> import numpy as np
    >>> from metacal.certificates.circumstances import Circumstances, under
    >>> from metacal.promises.miscoverage import MaxMiscoverage
    >>> plain = MaxMiscoverage(0.05).certify(np.linspace(0, 1, 100), np.ones(100, dtype=bool))
    >>> print(rule(under(plain, Circumstances(scores=3, share=0.8, units="unit"))))
    umbrella order statistic of the correct scores (Tong, Feng & Li 2018), the best of 3 scores, this one at 0.8 of
    delta, one row of each unit
    """
    named, parts, around = (
        rule_named(certificate.rule),
        certificate.parts,
        certificate.circumstances,
    )
    said = named.at_values if around.by_value else named.text
    said += (
        ""
        if parts is None or parts.of_all
        else f"; each {parts.by} by itself, {_SHARED[parts.shares]}"
    )
    if around.by_value:
        who = f"{around.aside:,} calibration rows, set aside," if around.aside else "other rows"
        said += f"; the scores of {who} chose the first value"
    elif around.aside:
        said += f"; {around.aside:,} calibration rows were set aside to lay out the tests"
    said += (
        f", the best of {around.scores} scores, this one at {around.share:g} of delta"
        if around.scores > 1
        else ""
    )
    said += ", one row of each unit" if around.units == "unit" else ""
    how = "estimated" if around.weights == "estimated" else "given"
    said += f", on rows kept in proportion to {how} weights" if around.weights else ""
    return said + (f", on out-of-fold scores of {around.folds} folds" if around.folds else "")


def assumptions(certificate: Certificate) -> tuple[str, ...]:
    """What the promise rests on, the source of new rows first."""
    plain, around = rule_named(certificate.rule).assumptions, certificate.circumstances
    chosen = () if around.random_state is None else (_ONE_SEED.format(seed=around.random_state),)
    if not (around.units or around.weights or around.folds):
        return (*plain, *chosen)
    more = [_ESTIMATED] if around.weights == "estimated" else []
    return (_source(around), *plain[1:], *more, *([_ALIKE] if around.folds else []), *chosen)


def _source(around: Circumstances) -> str:
    unit = "units" if around.units else "rows"
    unseen = ", which the classifier was not trained on"
    source = f"{unit} given to fit" if around.folds else f"calibration {unit}{unseen}"
    said = f"new {unit} come from the same source as the {source}"
    if around.weights:
        how = "estimated" if around.weights == "estimated" else "given"
        said += f", reweighted by the {how} weights, of which none is larger than the largest used"
    if around.units == "row":
        return f"{said}; no unit has more than {around.largest_unit:,} rows"
    return said + ("; a new row is any row of a new unit" if around.units == "unit" else "")


# ── line by line ──────────────────────────────────────────────────────────────────────────────────


def condition(certificate: Certificate) -> str:
    """What an accepted row fulfils: "entropy <= 0.3", or "mark >= 0.3" where the score is "-mark".

    Where the number shown is itself a score that was rejected, as with scores of few digits, the
    sign says so.
    """
    if certificate.parts is not None and certificate.parts.sides:
        return called(certificate, certificate.parts)
    name = certificate.score.removeprefix("-")
    compared = "<=" if name == certificate.score else ">="
    if certificate.parts is not None:
        which = "the predicted class" if certificate.parts.by == "class" else "the row's group"
        return f"{name} {compared} the threshold of {which}"
    sign, low = -1.0 if name != certificate.score else 1.0, certificate.lowest_rejected
    shown = f"{sign * certificate.threshold:.6g}"
    doubt, following = RELATIVE.rounded([sign * float(shown), math.nan if low is None else low])
    strict = doubt == following
    return f"{name} {compared[0] if strict else compared} {shown}"


def lines(certificate: Certificate) -> list[tuple[str, str]]:
    """The certificate, a (name, text) a line: gate, from, on these, rule, parts."""
    gate = (
        "accept every row"
        if certificate.accepts_everything
        else f"accept if {condition(certificate)}"
    )
    gate = "accept no row" if certificate.threshold == -math.inf else gate
    parts, stages = certificate.parts, certificate.stages
    if stages is not None:
        return [*_lines_of_stages(certificate, stages), ("rule", rule(certificate))]
    if parts is not None:
        gate = condition(certificate) if parts.sides else f"accept if {condition(certificate)}"
    elif certificate.decision_at:
        gate += f"; the second class is answered where log-odds > {certificate.decision_at:.6g}"
    return [
        ("gate", gate),
        ("from", _rows_behind(certificate)),
        ("on these", _outcome(certificate)),
        ("rule", rule(certificate)),
        *_lines_of_marks(certificate),
        *(() if parts is None else _lines_of_parts(parts, certificate.score)),
    ]


def _lines_of_marks(certificate: Certificate) -> list[tuple[str, str]]:
    """A line for each mark of a scale: how many rows, how many of them wrong, accepted or not; the
    surest first.
    """
    sign = -1.0 if certificate.score.startswith("-") else 1.0
    lines = []
    for mark, rows, wrong in certificate.marks:
        seen = (
            f"{rows:,} rows, {wrong:,} wrong ({percent(round(wrong / rows, 3))})"
            if rows
            else "no row"
        )
        seen += "; accepted" if mark <= certificate.threshold else "; not certified, rejected"
        lines.append(("mark", f"{sign * mark + 0.0:.6g}: {seen}"))
    return lines


def _lines_of_stages(certificate: Certificate, stages: Stages) -> list[tuple[str, str]]:
    """Who answers what, from which rows, and how that compares with the last model alone."""
    n = certificate.n_rows
    rules = []
    for number, stage in enumerate(stages.items):
        which = "all of the rest" if stages.people else "the rest"
        if stage.threshold != math.inf:
            condition = f"{stage.score.removeprefix('-')} {_beyond(stage.score, stage.threshold)}"
            which = f"{'of the rest, ' if number else ''}if {condition}"
        rules.append((stage.name, f"answers {which}"))
    shares = [f"{stage.name} {stage.n_rows / n:.4f}" for stage in stages.items]
    shares += [f"people {1.0 - stages.n_answered / n:.4f}"] if stages.people else []
    aside = f", {stages.n_aside:,} more set aside to choose thresholds" if stages.n_aside else ""
    needed = "entries of agreement" if certificate.quantity.of_agreement else "labels"
    lines = [
        *rules,
        (
            "from",
            f"{n:,} calibration rows; {stages.n_labels:,} of their {needed} were needed{aside}",
        ),
        ("on these", ", ".join(shares)),
        ("difference", _compared_with_last(certificate, stages)),
    ]
    if not math.isnan(certificate.coverage_accuracy):
        lines.append(("accuracy", f"{certificate.coverage_accuracy:.4f} of what is answered"))
    return lines


def _compared_with_last(certificate: Certificate, stages: Stages) -> str:
    """Say how a cascade compares with its last model, in the counts that were observed."""
    n, last = certificate.n_rows, stages.items[-1].name
    if stages.n_differ is not None:
        return (
            f"{stages.n_differ:,} answers differ from the {last} model's: {stages.n_differ / n:.4f}"
            " of all"
        )
    assert stages.n_worse is not None
    assert stages.n_better is not None
    alone = "people" if stages.people and certificate.quantity.paired else f"the {last} model"
    difference = (stages.n_worse - stages.n_better) / n
    return (
        f"{stages.n_worse:,} worse than by {alone} alone, {stages.n_better:,} better:"
        f" {difference:+.4f} of all"
    )


def _rows_behind(certificate: Certificate) -> str:
    if certificate.labels is not None:
        drawn = f"{certificate.n_rows:,} rows drawn from a pool"
        return f"{drawn}, {certificate.labels:,} of them labelled, {certificate.n_correct:,} right"
    right = "without loss" if certificate.quantity.graded else "right"
    known = (
        "without labels"
        if not certificate.labelled
        else f"{certificate.n_correct:,} of them {right}"
    )
    return f"{certificate.n_rows:,} calibration rows, {known}"


def _outcome(certificate: Certificate) -> str:
    traffic = certificate.traffic
    said = f"coverage {traffic.coverage:.4f}"
    if certificate.other_traffic is not None:
        said += f" of all {traffic.n_rows:,} rows"
    if certificate.labelled and not certificate.quantity.graded:
        accuracy = (
            "-"
            if math.isnan(certificate.coverage_accuracy)
            else f"{certificate.coverage_accuracy:.4f}"
        )
        said += f", accuracy of accepted {accuracy}"
        said += (
            ""
            if math.isnan(certificate.miscoverage)
            else f", miscoverage {certificate.miscoverage:.4f}"
        )
    cost = certificate.mean_cost
    return said + ("" if cost is None else f", {certificate.quantity} {cost:.6g}")


def _beyond(score: str, threshold: float) -> str:
    """Where the score of an accepted row lies: "<= 0.3", or ">= 0.3" where it is "-mark"."""
    return f">= {-threshold:.6g}" if score.startswith("-") else f"<= {threshold:.6g}"


def _lines_of_parts(parts: Parts, score: str) -> list[tuple[str, str]]:
    """Those that are always rejected first, then the lowest coverage."""
    if parts.sides:
        return lines_of_sides(parts, _FEW)
    counts = {status: sum(part.status == status for part in parts.items) for status in _STATUSES}
    said = ", ".join(_STATUSES[status].format(n) for status, n in counts.items() if n)
    lines = [(parts.plural, f"{sum(len(part.names) for part in parts.items):,}: {said}")]
    if pooled := parts.pooled:
        lines.append(
            ("pooled", ", ".join(map(str, pooled[:_FEW])) + (", ..." if len(pooled) > _FEW else ""))
        )
    lines += [("rejected", f"{part.name}: {why_rejected(part)}") for part in parts.rejected[:_FEW]]
    if len(parts.rejected) > _FEW:
        lines.append(("rejected", f"and {len(parts.rejected) - _FEW:,} more"))
    kept = sorted(
        (part for part in parts.items if part.n_accepted), key=lambda part: part.coverage or 0.0
    )
    for part in kept[:_FEW]:
        gate = "accept every row" if part.accepts_everything else _beyond(score, part.threshold)
        seen = f"coverage {part.coverage:.4f} of {part.n_rows:,} rows"
        lines.append(
            (
                "accepts",
                f"{part.name}: {gate}; {seen}, accuracy of accepted {part.coverage_accuracy:.4f}",
            )
        )
    if len(kept) > _FEW:
        lines.append(("accepts", f"and {len(kept) - _FEW:,} more, of higher coverage"))
    return lines


def why_rejected(part: Part) -> str:
    """Why a part is always rejected, and how many rows it would take.

    >>> from metacal.certificates.subgroups import Part
    >>> why_rejected(Part(("cat",), 40, 39, 0, 0, -math.inf, None, 0.1, 0.01, 0.89, 120))
    '40 rows, 39 right, certify 0.89 at most; about 120 rows may be enough (a rough estimate)'
    """
    if not part.n_rows:
        return f"no calibration row; it takes at least {part.rows_needed:,}"
    can = "" if part.best is None else f", certify {rounded_down(part.best):g} at most"
    do = (
        ""
        if part.rows_needed is None
        else f"; about {part.rows_needed:,} rows may be enough (a rough estimate)"
    )
    return f"{part.n_rows:,} rows, {part.n_correct:,} right{can}{do}"


# ── shares as people write them: to the nearest, or to the side on which a promise stays true ─────


def percent(value: float) -> str:
    """A share as people write it, to the nearest: six digits, no trailing zeros.

    Where the share is a promise use `at_least` or `at_most`, which never say more than is promised.

    >>> percent(0.05), percent(0.975), percent(0.9999), percent(0.9999996)
    ('5%', '97.5%', '99.99%', '99.99996%')
    """
    text = f"{round(100.0 * value, 6):g}%"
    if 0.0 < value < 1.0 and text in (
        "0%",
        "100%",
    ):  # a share that is not all, or not nothing, is not called so
        return f"{100.0 * value:.15g}%"
    return text


def at_least(value: float) -> str:
    """A share that is promised from below, or a confidence, as people write it: six digits, the
    rest cut off.

    >>> at_least(0.97), at_least(0.9999996), at_least(1.0 - 0.07)
    ('97%', '99.9999%', '93%')
    """
    return _rounded(value, decimal.ROUND_FLOOR)


def at_most(value: float) -> str:
    """A share that is promised from above, as people write it: six digits, rounded up.

    >>> at_most(0.05), at_most(0.12345612), at_most(1e-9)
    ('5%', '12.3457%', '1e-7%')
    """
    return _rounded(value, decimal.ROUND_CEILING)


#: Six digits of a percentage; what a float's last bit adds or takes, as in 1 - 0.07, is no part of
#: what was promised.
_DIGITS, _NOISE = 6, decimal.Decimal("1e-15")


def _rounded(value: float, rounding: str) -> str:
    share = decimal.Decimal(repr(float(value)))
    share = share.quantize(_NOISE) if 1e-9 < share < 1 - 1e-9 else share
    context = decimal.Context(prec=_DIGITS, rounding=rounding)
    number = context.create_decimal(100 * share).normalize()
    return f"{number:{'f' if number == 0 or number >= decimal.Decimal('1e-4') else 'g'}}%"


def rounded_down(value: float) -> float:
    """To four decimals, never up: a bound from below stays one."""
    return math.floor(value * 1e4) / 1e4


def rounded_up(value: float) -> float:
    """To four decimals, never down: a bound from above stays one."""
    return math.ceil(value * 1e4) / 1e4
