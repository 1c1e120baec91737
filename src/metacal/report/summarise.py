"""summarise: from logits, labels and a fitted gate to every number of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.estimators.compare import Comparison
from metacal.estimators.compare import compare as compare_calibrators
from metacal.estimators.evaluate import measured_rows, room_for_table
from metacal.gate import Gate
from metacal.maps.temperature import TemperatureMap
from metacal.metrics.evaluation import RowMetrics, evaluate_rows, harm_in_words
from metacal.promises.parts.thresholds import plain_groups
from metacal.promises.verdict import judge
from metacal.report.columns import blocked_evaluation
from metacal.report.methods import arrays_sha256, methods
from metacal.report.operating import frontier_points, operating_curves
from metacal.report.parts import part_table
from metacal.report.reliability import diagrams
from metacal.report.rows import class_table, striking_rows
from metacal.report.summary import PartTable, Promise, Settings, Source, Summary
from metacal.report.verdicts import spoken
from metacal.rows import Rows, validate, workers
from metacal.rows.plausibility import unquestioned
from metacal.scores import named as ranking_scores

Column = NDArray[np.float64]
Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]

#: Tables up to this many elements are evaluated with bootstrap intervals, rows x resamples up to the second number.
_TABLE_ELEMENTS, _RESAMPLED_ROWS = 20_000_000, 20_000_000
_MOST_RESAMPLES, _FEWEST_RESAMPLES = 1000, 200


def summarise(
    logits: ArrayLike,
    labels: ArrayLike,
    gate: Gate | Any = None,
    *,
    classes: Sequence[Any] | NDArray[Any] | None = None,
    class_names: Sequence[str] | None = None,
    ids: Any = None,
    groups: Any = None,
    input: str | None = None,
    level: float = 0.95,
    delta: float = 0.1,
    n_bins: int = 15,
    n_resamples: int | None = None,
    seed: int = 0,
    compare: bool | Sequence[str] | Comparison | None = None,
    file: str | None = None,
    artifact: str | None = None,
    sha256: str | None = None,
    command: str | None = None,
    n_jobs: int | None = None,
) -> Summary:
    """Compute every number of the report; the table is read block by block.

    Parameters
    ----------
    logits, labels : array-like
        Labelled rows that the classifier was not trained on, and preferably not the ones the gate was fitted on.
    gate : Gate, or fitted MetaCal or calibrator, optional
        What is reported on. Without it, the softmax of the logits and the curves of its entropy.
    classes, class_names : sequences, optional
        The labels in column order (the gate's own, or 0 … K-1, when None), and how to print them.
    ids : sequence, optional
        A name for each row.
    groups : sequence, optional
        The group of each row: a table of its own, and what a gate by group decides by.
    input : "logits" or "probabilities", optional
        What the columns are; as the gate has it, or logits.
    level, n_bins, n_resamples, seed
        As in `metacal.metrics.evaluate`. `n_resamples` None takes 1,000 for up to 20,000 rows, 200 for up to 100,000
        and none beyond (or beyond 20 million logits): estimates and exact intervals of shares are always given.
    delta : float
        The bands of the curves and the frontier hold at all points at once with probability 1 - delta.
    compare : True, names, or a finished Comparison, optional
        Compare calibrators by cross-validation on these rows: all of them, or those named.
    file, artifact, sha256 : str, optional
        Where rows and gate come from, and the file's hash; the arrays are hashed when it is not given.
    command : str, optional
        How a `metacal fit` command for these rows begins; "metacal fit FILE" when None.
    n_jobs : int, optional
        Threads; never changes a number.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> summary = summarise(new_x, new_y, cal, n_resamples=0)
    >>> summary.promise.verdicts[0]["text"]
    'coverage accuracy 0.9735 [0.9698, 0.9767]: kept.'
    >>> round(summary.diagram("before", "all").ece["estimate"], 4)
    0.0507
    """
    validate.fraction("level", level)
    validate.fraction("delta", delta)
    with workers(n_jobs) as executor:
        gate = _gate_of(gate)
        rows, codes, names = _read(logits, labels, gate, classes, class_names, input, executor)
        settings = Settings(level, delta, n_bins, _resamples(n_resamples, rows), seed)
        data = _Data.measured(gate, rows, codes, names, groups, settings)
    evaluation, errors = _evaluate(data, settings)
    before = data.shown if data.before is None else data.before
    listed = {
        "names": data.names,
        "codes": data.codes,
        "predicted": data.predicted,
        "confidence": _shown_confidence(data),
        "accept": data.accept,
        "ids": ids,
    }
    return Summary(
        source=Source(
            file=file,
            artifact=artifact,
            sha256=arrays_sha256(rows.table, labels) if sha256 is None else sha256,
            hashed="arrays" if sha256 is None else "file",
            n_rows=len(data.codes),
            n_classes=data.rows.n_classes,
            n_correct=int(data.correct.sum()),
            score=ranking_scores.name_of(data.score_name),
            calibrator=data.calibrator,
        ),
        settings=settings,
        promise=_promise(gate, data, level),
        evaluation=evaluation,
        diagrams=diagrams(before, data.shown, data.accept, evaluation, settings),
        curves=operating_curves(
            data.scores,
            data.correct,
            delta=delta,
            threshold=None if data.accept is None else data.threshold,
            command=_command(command, file, data),
            command_end=_command_end(data, delta),
        ),
        frontier=frontier_points(data.scores, data.correct, delta=delta),
        classes=class_table(data.names, data.codes, data.correct, data.accept, errors),
        parts=_parts(gate, data, level),
        mistakes=striking_rows(data.scores, ~data.correct, most_confident=True, **listed),
        hits=striking_rows(data.scores, data.correct, most_confident=False, **listed),
        comparison=_comparison(compare, data, seed, n_jobs),
        methods=methods(settings, ranking_scores.name_of(data.score_name)),
    )


@dataclass(frozen=True, eq=False)
class _Data:
    """The rows as the report needs them: a column of each thing that is decided or measured per row.

    `shown` are the metrics of the gate's probabilities, or of the softmax where there is no gate; `before` those of the
    softmax beside a gate.
    """

    rows: Rows
    codes: Codes
    names: NDArray[Any]
    predicted: Codes
    correct: Flags
    score_name: Any
    scores: Column
    threshold: float
    accept: Flags | None
    calibrator: str | None
    shown: RowMetrics
    before: RowMetrics | None
    groups: NDArray[Any] | None = None

    @classmethod
    def measured(
        cls, gate: Gate | None, rows: Rows, codes: Codes, names: NDArray[Any], groups: Any, settings: Settings
    ) -> _Data:
        """One walk over the table: every row is scored and mapped once."""
        own = gate is not None and not gate.is_calibrator
        # A calibrator, or none, is ranked by the entropy of the softmax.
        plain = Gate(TemperatureMap(1.0) if gate is None else gate.map, np.arange(rows.n_classes))
        through = gate if gate is not None and own else plain
        room = room_for_table(rows.table) if settings.n_resamples else None
        by_group = groups if through.by_group else None
        found = measured_rows(through, rows, codes, settings.n_bins, by_group, beside=gate is not None, room=room)
        return cls(
            rows=rows,
            codes=codes,
            names=names,
            predicted=found.top,
            correct=found.top == codes,
            score_name=through.score,
            scores=found.score,
            threshold=through.threshold,
            accept=found.accept,
            calibrator=None if gate is None else gate.calibrator_name,
            shown=found.after,
            before=found.before,
            groups=None if groups is None else plain_groups(groups),
        )


def _read(
    logits: Any, labels: Any, gate: Gate | None, classes: Any, class_names: Any, input: str | None, executor: Any
) -> tuple[Rows, Codes, NDArray[Any]]:
    """The rows as checked logits, their labels as column numbers, and the names of the columns."""
    kind = input or (gate.input if gate is not None else "logits")
    table = validate.logits_from(validate.on_host(logits), kind)
    n_classes = int(table.shape[1])
    order = validate.class_list(classes if classes is not None or gate is None else gate.classes, n_classes)
    codes = validate.label_codes(labels, len(table), order)
    if class_names is not None and len(class_names) != n_classes:
        raise InputError(f"class_names must have a name for each of the {n_classes} columns; got {len(class_names)}.")
    names = np.asarray(order if class_names is None else class_names, dtype=object)
    return Rows(table, executor=executor), codes, names


def _gate_of(gate: Any) -> Gate | None:
    """The gate itself, or the one that a fitted estimator holds."""
    if gate is None or isinstance(gate, Gate):
        return gate
    found = getattr(gate, "gate_", None)
    if not isinstance(found, Gate):
        raise InputError(f"gate must be a Gate, or a fitted MetaCal or calibrator; got {type(gate).__name__}.")
    return found


def _resamples(wanted: int | None, rows: Rows) -> int:
    if wanted is not None:
        return wanted
    n = len(rows)
    if n * rows.n_classes > _TABLE_ELEMENTS or n * _FEWEST_RESAMPLES > _RESAMPLED_ROWS:
        return 0
    return _MOST_RESAMPLES if n * _MOST_RESAMPLES <= _RESAMPLED_ROWS else _FEWEST_RESAMPLES


def _evaluate(data: _Data, settings: Settings) -> tuple[dict[str, Any], Column]:
    """What `metacal evaluate --json` prints, and each class's own calibration error (of the accepted rows)."""
    given: dict[str, Any] = {"accept": data.accept, "correct": data.correct, "score": data.scores}
    sizes: dict[str, Any] = {"n_classes": data.rows.n_classes, "n_bins": settings.n_bins, "level": settings.level}
    if settings.n_resamples:
        drawn: dict[str, Any] = {"n_resamples": settings.n_resamples, "random_state": settings.seed}
        found = evaluate_rows(data.shown, **given, **sizes, **drawn)
    else:
        found = blocked_evaluation(data.shown, **given, **sizes)
    uncalibrated, harm = None, None
    if data.before is not None:
        raw = blocked_evaluation(data.before, **{**given, "score": None}, **sizes)
        uncalibrated = {"accepted_rows": _points(raw.accepted_rows), "all_rows": _points(raw.all_rows)}
        harm = harm_in_words(found, raw)
    sums = data.shown.sums if data.accept is None else data.shown.sums_of_accepted
    return {**found.to_dict(), "uncalibrated": uncalibrated, "calibration": harm}, sums["classwise_ece"].by_class()


def _points(found: Any) -> dict[str, Any] | None:
    return None if found is None else {name: value.to_dict()["estimate"] for name, value in found.items()}


def _parts(gate: Gate | None, data: _Data, level: float) -> tuple[PartTable, ...]:
    """By predicted class, and by group where the rows have one."""
    certificate = None if gate is None else gate.certificate
    options: dict[str, Any] = {"level": level, "certificate": certificate}
    by_class = part_table("class", data.names, data.predicted, data.correct, data.accept, **options)
    if data.groups is None:
        return (by_class,)
    names, codes = np.unique(data.groups, return_inverse=True)
    return by_class, part_table("group", names, codes, data.correct, data.accept, **options)


def _promise(gate: Gate | None, data: _Data, level: float) -> Promise | None:
    if gate is None or gate.certificate is None or data.accept is None:
        return None
    certificate = gate.certificate
    names = gate.part_names(data.predicted, data.groups)
    losses = gate.losses(data.codes, data.predicted)
    verdict = judge(certificate, data.accept, data.correct, level, losses, names)
    by = certificate.parts.by if certificate.parts is not None else ""
    return Promise(
        statement=certificate.statement,
        certificate=tuple(certificate.lines),
        threshold=data.threshold,
        assumptions=certificate.assumptions,
        notes=tuple(map(str, certificate.notes)),
        verdicts=tuple(spoken(part, int(data.accept.sum()), by) for part in verdict.heads),
        kept=verdict.kept,
        refuted=verdict.refuted,
        fitted_here=gate.fitted_on(data.scores, data.correct),
    )


def _shown_confidence(data: _Data) -> Column:
    """Calibrated where there is a calibrated answer: a rejected row has none."""
    if data.before is None or data.accept is None:
        return data.shown.top.confidence
    return np.where(data.accept, data.shown.top.confidence, data.before.top.confidence)


def _command(given: str | None, file: str | None, data: _Data) -> str | None:
    if not isinstance(data.score_name, str):
        return None
    return given if given is not None else f"metacal fit {file or 'FILE'}"


def _command_end(data: _Data, delta: float) -> str:
    score = "" if data.score_name == "entropy" else f" --score {data.score_name}"
    confidence = "" if delta == 0.1 else f" --confidence {round(1.0 - delta, 12):g}"
    return f"{score}{confidence} -o cal.json"


def _comparison(wanted: Any, data: _Data, seed: int, n_jobs: int | None) -> dict[str, Any] | None:
    if wanted is None or wanted is False:
        return None
    if isinstance(wanted, Comparison):
        return wanted.to_dict()
    names = None if wanted is True else list(wanted)
    with unquestioned():  # they may be logarithms of probabilities
        return compare_calibrators(data.rows.table, data.codes, names, random_state=seed, n_jobs=n_jobs).to_dict()
