"""A whole gate as ONNX nodes: each stage by its source, joined by who accepts a row first.

A table of logits gives `probs`, `score` and `accept`, a score that is given `accept` and
`confidence`; several stages `answered_by` besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from metacal.export.fitted import SUM_TOLERANCE
from metacal.export.onnx.graph import Graph, described
from metacal.export.onnx.maps import are_numbers, probabilities
from metacal.export.onnx.probe import GUARD
from metacal.export.onnx.reading import all_names, opset_of
from metacal.export.onnx.scores import Quick, exact_scores, is_usable, quick_scores
from metacal.export.onnx.traced import Traced, Value
from metacal.formulas.logits import replace_zero_probabilities
from metacal.gate import Gate
from metacal.maps.confidence import ConfidenceCurve
from metacal.maps.temperature import TemperatureMap
from metacal.promises.parts.thresholds import One, Policy, Thresholds

#: Output name -> value.
Answers = dict[str, Value]
#: What the input `group` that a gate by group has besides says of itself.
_GROUP_SAYS = (
    "the place of each row's group in the list metacal.groups; any other number is rejected"
)
#: Output -> its type; that of `probs` depends on the logits'.
_TYPES = {"score": "float64", "accept": "bool", "confidence": "float64", "answered_by": "int64"}


def working_type(dtype: str) -> str:
    """Narrow tables are worked on in float32, as Python does."""
    return "float64" if dtype == "float64" else "float32"


def inputs_of(gate: Gate) -> tuple[str, ...]:
    """What a graph calls the input of each stage: `logits` or `scores`, with the stage's name where
    there are several.

    Examples
    --------
    >>> from metacal.gate import Marks, Stage
    >>> inputs_of(Gate.of(Marks())), inputs_of(Gate((Stage(Marks(), name="judge"), Stage(Marks(), name="panel"))))
    (('scores',), ('scores_judge', 'scores_panel'))
    """
    several = len(gate.stages) > 1
    return tuple(stage.source.kind + (f"_{stage.name}" if several else "") for stage in gate.stages)


@dataclass(frozen=True)
class Attached:
    """A model with its gate: the values that its stages read, its outputs' names, and the input
    that takes groups.
    """

    model: Any
    gate: Gate
    given: tuple[str, ...]
    outputs: dict[str, str]
    group: str | None = None


def append_gate(
    model: Any,
    gate: Gate,
    given: tuple[str, ...],
    dtype: str,
    batch: int | str,
    *,
    guarded: bool = False,
) -> Attached:
    """Append a gate to a model that has what its stages read as `given`; its own outputs stay.

    Where `guarded`, a node fails at run time where a table does not have one column per class: a
    model that says nothing about its width, or says it wrongly, would otherwise give answers of
    some kind.
    """
    taken = all_names(model)
    graph = Graph(opset_of(model), taken=taken, constants_as_nodes=model.ir_version < 4)
    group, tables = _free("group", taken) if gate.by_group else None, given
    if guarded:
        tables = tuple(
            graph.op("Reshape", name, graph.integers(0, gate.n_classes)) for name in given
        )
        graph.nodes[-1].name = GUARD
    write = {"logits": _of_table, "scores": _of_marks}[gate.source.kind]
    parts = [
        write(graph, gate.stage(number), name, dtype, group) for number, name in enumerate(tables)
    ]
    written = _joined(Traced(graph, "int64"), parts)
    names = {name: _free(name, taken) for name in written}
    for name, value in written.items():
        graph.rename(value.name, names[name])
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.initializers)
    model.graph.input.extend(
        [] if group is None else [described(group, "int64", [batch], _GROUP_SAYS)]
    )
    types, shapes = _TYPES | {"probs": working_type(dtype)}, {"probs": [batch, gate.n_classes]}
    for name, public in names.items():
        model.graph.output.append(described(public, types[name], shapes.get(name, [batch])))
    return Attached(model, gate, given, names, group)


def _free(name: str, taken: set[str]) -> str:
    """The name, or one like it that the model has not."""
    if name in taken:
        name = f"metacal_{name}"
    while name in taken:
        name += "_"
    return name


def _joined(xp: Traced, parts: list[Answers]) -> Answers:
    """What the first stage that accepts a row says of it, and the last one of a row that none
    accepts.
    """
    *before, answer = parts
    if not before:
        return answer
    by = xp.where(answer["accept"], len(before), len(parts))
    for number, own in reversed(list(enumerate(before))):
        by = xp.where(own["accept"], number, by)
        flags = {"probs": xp.unsqueeze(own["accept"]), "confidence": own["accept"]}
        both = [name for name in flags if name in own and name in answer]
        chosen = {name: xp.where(flags[name], own[name], answer[name]) for name in both}
        answer = {**chosen, "answered_by": by, "accept": own["accept"] | answer["accept"]}
        answer |= {"score": own["score"]} if "score" in own else {}
    return answer


def _of_marks(graph: Graph, gate: Gate, given: str, dtype: str, group: str | None) -> Answers:
    """A score that is given, in double throughout: whether it is accepted, and how likely it is
    right.

    The threshold is that for scores of `dtype`; it lies between two numbers that a score can be, so
    that the unrounded score decides alike. What is not a finite number is not accepted, and its
    confidence is NaN.
    """
    xp, source, policy = Traced(graph, "float64"), gate.source, gate.policy
    if isinstance(policy, One):
        policy = One(source.threshold_for(dtype, policy.threshold))
    else:
        policy = replace(
            policy, values=tuple(source.threshold_for(dtype, value) for value in policy.values)
        )
    doubt = xp.cast(given) * source.sign
    finite = xp.absolute(doubt) < np.inf
    answer = {"accept": _at_most(policy, doubt, group=group) & finite}
    if source.curve is not None:
        confidence = _along(source.curve, xp, xp.where(finite, doubt, 0.0))
        answer["confidence"] = xp.where(finite, confidence, np.nan)
    return answer


def _along(curve: ConfidenceCurve, xp: Traced, doubt: Value) -> Value:
    """The broken line: its first value, and down each stretch as far as the doubt has gone along
    it.
    """
    if len(curve.knots) == 1:
        return doubt * 0.0 + float(curve.values[0])
    widths = np.diff(curve.knots)
    along = xp.clip(xp.unsqueeze(doubt) - curve.knots[:-1][None, :], 0.0, widths[None, :])
    drops = along * (np.diff(curve.values) / widths)[None, :]
    return xp.squeeze(xp.sum(drops)) + float(curve.values[0])


def _of_table(graph: Graph, gate: Gate, given: str, dtype: str, group: str | None) -> Answers:
    """Logits or probabilities; a calibrator without a gate has probabilities only."""
    xp = Traced(graph, working_type(dtype), gate.n_classes)
    table = xp.value(given) if dtype == xp.dtype else _widened(xp, given)
    x = table if gate.source.input == "logits" else _logarithms(xp, table, SUM_TOLERANCE[dtype])
    if gate.certificate is None:
        return {"probs": _usable_only(xp, gate, x)}
    own, there, quick = xp, x, None
    if (
        gate.policy.at or gate.source.decision_at
    ):  # of two classes: the score there, in double; the map on the logits
        own = xp.to("float64")
        at: Any = gate.source.decision_at
        if isinstance(gate.policy, Thresholds) and gate.policy.at:
            at = own.unsqueeze(
                own.take(own.name([*gate.policy.at, 0.0]), _number(own, gate.policy, group))
            )
        there = own.value(x if xp.dtype == "float64" else own.cast(x)) - at * np.array([[0.0, 1.0]])
    elif (
        gate.thresholds is None
    ):  # a quick score is bounded away from one threshold, not from that of each row
        quick = quick_scores(xp, x, gate.source.score, gate.threshold)
    if quick is not None:
        return _quick_answer(xp, gate, quick, x)
    score = exact_scores(own, there, gate.source.score)
    probs, accept = _overwritten(xp, gate, x, _at_most(gate.policy, score, there, group))
    return {"probs": probs, "score": score, "accept": accept}


def _quick_answer(xp: Traced, gate: Gate, quick: Quick, x: Value) -> Answers:
    """Two branches: every score settled, which is the rule, or some to be computed again.

    With every score settled all logits are finite, and temperature scaling can have both kinds of
    rows from one softmax: with an inverse temperature of zero a row comes out uniform (0 · (-inf)
    would be no number).
    """
    by_temperature = isinstance(gate.source.map, TemperatureMap)
    inverse_temperature = gate.source.map.inverse_temperature if by_temperature else 1.0

    def settled(inner: Traced) -> list[Value]:
        score = quick.as_they_are(inner)
        accept = _at_most(gate.policy, score)
        if not by_temperature:
            return [score, accept]
        inverse = inner.where(inner.unsqueeze(accept), inverse_temperature, 0.0)
        return [score, accept, inner.softmax(inner.value(x) * inverse)]

    def some_close(inner: Traced) -> list[Value]:
        score = quick.close_ones_again(inner, x, gate.source.score)
        accept = _at_most(gate.policy, score)
        if not by_temperature:
            return [score, accept]
        probs, accept = _overwritten(inner, gate, inner.value(x), accept)
        return [score, accept, probs]

    calm = xp.all(quick.settled)
    if by_temperature and quick.unbounded and inverse_temperature > 1.0:
        calm = calm & xp.all(xp.max(x) < np.finfo(xp.dtype).max / inverse_temperature)
    types = ["float64", "bool", *([xp.dtype] if by_temperature else [])]
    score, accept, *rest = xp.choose(calm, settled, some_close, types)
    probs, accept = (rest[0], accept) if rest else _overwritten(xp, gate, x, accept)
    return {"probs": probs, "score": score, "accept": accept}


def _widened(xp: Traced, given: str) -> Value:
    """Narrow logits in float32: the numbers that the model gives, not the wider ones they were
    rounded from.

    Where onnxruntime has no narrow kernel it computes in float32 and rounds, and a cast right
    behind would make it leave out the rounding. A change of shape in between keeps the two apart.
    """
    return xp.op("Reshape", xp.cast(xp.unsqueeze(xp.value(given))), xp.op("Shape", given))


def _at_most(
    policy: Policy, score: Value, x: Value | None = None, group: str | None = None
) -> Value:
    """score <= threshold, the one there is or, gathered, that of the predicted class or of the
    group, or of both.
    """
    if isinstance(policy, One):
        return score <= policy.threshold
    xp = score.xp
    top = partial(xp.to("int64").op, "ArgMax", x, axis=1, keepdims=0)
    part = top() if policy.by == "class" else _number(xp, policy, group)
    if policy.at:
        part = part * 2 + top()
    return score <= xp.take(xp.name(policy.table.ravel().tolist()), part)


def _number(xp: Traced, policy: Thresholds, group: str | None) -> Value:
    """The number of each row's group, the last for one that the fit has not seen."""
    whole, last = xp.to("int64"), len(policy.names)
    number = whole.value(str(group))
    return whole.where((number < last) & (number > -1), number, last)


def _logarithms(xp: Traced, table: Value, tolerance: float) -> Value:
    """The logits of probabilities, taken in double and rounded; NaN for a row that is no
    distribution.
    """
    double = xp.to("float64")
    wide = double.cast(table)
    sound = (xp.min(table) >= 0.0) & (double.absolute(double.sum(wide) - 1.0) <= tolerance)
    return xp.where(
        sound, xp.cast(double.log(double.cast(replace_zero_probabilities(xp, table)))), np.nan
    )


def _overwritten(xp: Traced, gate: Gate, x: Value, accept: Value) -> tuple[Value, Value]:
    """The map's probabilities, with 1/K written over the rejected rows; and what is accepted.

    In place, which is cheaper than choosing for every entry, and leaves no NaN. The last line of
    defence: whatever the score says, a row whose probabilities are no numbers is not accepted.
    """
    probs = probabilities(xp, gate.source.map, x)
    accept = accept & are_numbers(xp, gate.source.map, probs)
    _, rejected = xp.rows_where(~accept)
    count = xp.take(xp.op("Shape", rejected), xp.value(xp.graph.integers(0)))
    shape = xp.op("Concat", count, xp.graph.integers(gate.n_classes), axis=0)
    uniform = xp.op("Expand", 1.0 / gate.n_classes, shape)
    return xp.op("ScatterND", probs, rejected, uniform), accept


def _usable_only(xp: Traced, gate: Gate, x: Value) -> Value:
    """Without a gate nothing can be rejected: a row that Python would refuse is NaN throughout.

    The sums of the rows show at a glance whether every logit is finite; only if not is each row
    looked at.
    """
    probs = probabilities(xp, gate.source.map, x)
    finite = xp.all(xp.absolute(xp.sum(x)) < np.inf)
    (usable,) = xp.choose(
        finite,
        lambda inner: [inner.op("Identity", probs)],
        lambda inner: [inner.where(is_usable(inner, x), probs, np.nan)],
    )
    return usable
