"""metacal fit: from labelled predictions to a certificate and a saved gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from metacal.cli.cluster import executor_option, open_cluster
from metacal.cli.options import (
    ReadOptions,
    as_command,
    column_option,
    jobs_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
)
from metacal.cli.outputs import (
    check_can_sign,
    check_is_file,
    check_not_input,
    output_option,
    print_saved_note,
    save_gate,
    sign_option,
)
from metacal.cli.printing import N_FORECAST_ROWS, print_result, progress_bar, wrap_lines
from metacal.cli.promise_options import PromiseOptions
from metacal.cli.show import class_list_text, confidence_line
from metacal.cli.values import SEED_RANGE, RegistryChoice, bad_option, parse_numbers
from metacal.maps.methods import every_method
from metacal.scores.registry import AUTO, NAMED

if TYPE_CHECKING:
    from metacal.gate import Decided, FitMap, Gate, Recipe
    from metacal.io.predictions import Predictions
    from metacal.io.scores import Scores


@dataclass(frozen=True)
class Options:
    """Options of `metacal fit`."""

    asked: PromiseOptions = option_group(PromiseOptions)
    score: str = option(
        "What ranks the rows; auto: the best of three, which share 1 - C.",
        type=RegistryChoice(NAMED.keys, AUTO),
        default="entropy",
    )
    calibrator: str | None = option(
        "What turns logits into probabilities.",
        type=RegistryChoice(every_method),
        show_default="composed, monotone of two classes; temperature with --rule paper",
    )
    seed: int | None = option(
        "Seed of every draw: one row of each unit, the order of bets, the split of --rule paper,"
        " folds of a calibrator. The certificate records it. Without it the draws of the"
        " certificate are derived from the rows.",
        type=SEED_RANGE,
    )
    unit_key: str | None = column_option(
        "Column of FILE that says which rows belong together; one row of each unit is counted.",
        excludes=("id_key",),
    )
    every_row: bool = switch_option(
        "every row of a unit is counted, the promise is about rows.", needs=("unit_key",)
    )
    largest_unit: int | None = option(
        "how many rows a unit can have at most; without it the promise is approximate.",
        "N",
        type=click.IntRange(min=1),
        needs=("every_row",),
    )
    marks: list[float] | None = option(
        "the values that a score can have, as a judge's scale; the certificate shows each.",
        "1,2,3",
        type=parse_numbers,
        needs=("score_key",),
    )
    positive: str | None = option(
        "Of two classes the one that the score, or the second column, speaks for.", "LABEL"
    )
    decision: Decided = option(
        "Two classes: whose decision is promised about, the larger score's or that at even"
        " calibrated odds.",
        type=click.Choice(("largest", "calibrated")),
        default="largest",
    )
    reject_label: str | None = option(
        "Prediction for rejected rows.  [default: -1, or 'rejected']", "LABEL"
    )
    reading: ReadOptions = option_group(ReadOptions, without=("large", "agree_key"))
    n_jobs: int | None = jobs_option()
    executor: str | None = executor_option()
    output: str | None = output_option("Save the result here, for apply and evaluate.", "JSON")
    key: str | None = sign_option()

    def units(self, found: Predictions | Scores) -> Any:
        """Which rows of FILE belong together, and what is counted of them; None where each is
        alone.
        """
        from metacal.promises.parts.units import Units

        per: Literal["row", "unit"] = "row" if self.every_row else "unit"
        return None if found.units is None else Units(found.units, per, self.largest_unit)


@as_command(Options, "FILE", sectioned=True)
def command(file: str, options: Options) -> None:
    """Fit a calibrator and a gate that carries a written promise.

    FILE holds logits and true labels of rows that the classifier was not trained on: .npz (arrays
    logits, labels), .npy with --labels, .safetensors or .pt (tensors of these names), or .parquet,
    .arrow, .feather, .jsonl, .csv, .tsv with a column label and a column logits of lists or a
    column per class; - is csv on standard input. A large Parquet file or .npy is read block by
    block and may be larger than memory.

    With --score-key FILE holds no logits but any score, and whether each row is right: a judge's
    mark, the log-probability of an answer, the similarity of a passage.

    Give one promise, or --min-accuracy and --max-miscoverage together; with --per-class or
    --group-key one, which then holds for each predicted class, or each group of rows. The
    certificate is printed: what is promised, how surely, from how many rows. -o saves gate and
    calibrator, once what is to be saved has been read back and decides the same. --max-review takes
    rows without labels too; then nothing is calibrated.

    \b
    Examples:
      metacal fit val.npz --min-accuracy 0.97 -o cal.json metacal fit val.parquet --max-miscoverage
      0.05 --confidence 0.95 -o cal.json metacal fit val.npz --min-accuracy 0.97 --max-miscoverage
      0.1 --after-looking -o cal.json metacal fit new.parquet --max-review 0.2 -o cal.json metacal
      fit val.npz --max-cost 2 --cost-wrong 50 -o cal.json metacal fit val.npz --cheapest
      --cost-matrix costs.csv --cost-review 1 -o cal.json metacal fit val.npz --min-accuracy 0.95
      --per-class -o cal.json metacal fit val.parquet --min-accuracy 0.95 --group-key hospital -o
      cal.json metacal fit logits.npy --labels labels.txt --classes cat,dog,bird --min-accuracy 0.9
      metacal fit probs.npz --input probabilities --min-accuracy 0.97 --json metacal fit val.npz
      --min-accuracy 0.97 -o cal.json --sign secret.key metacal fit val.npz --max-miscoverage 0.05
      --rule paper --seed 7 metacal fit 'logs/*.parquet' --executor dask://host:8786 --min-accuracy
      0.97 -o cal.json metacal fit judge.jsonl --score-key confidence --correct-key ok
      --min-accuracy 0.9 -o cal.json metacal fit answers.jsonl --score-key judge.score --loss-key
      loss --max-risk 0.1 -o cal.json metacal fit scores.csv --positive-key margin --positive fraud
      --min-precision 0.9 --min-recall 0.95 -o cal.json metacal fit frames.parquet --unit-key video
      --min-accuracy 0.97 -o cal.json metacal fit visits.csv --unit-key patient --every-row
      --largest-unit 40 --min-accuracy 0.9 -o cal.json
    """  # noqa: D301
    output, key, asked = options.output, options.key, options.asked
    reading = replace(options.reading, unit_key=options.unit_key)
    check_is_file(output)
    check_not_input(output, file, key, reading=reading)
    if options.executor is not None and options.calibrator is not None:
        every_method()[options.calibrator].check_remote()
    asked.check_parts(by_group=reading.group_key is not None)
    check_can_sign(key, output)
    if reading.score_key is not None:
        if options.executor is not None:
            raise click.UsageError(
                "--executor works on logits; scores are few enough for this machine."
            )
        if asked.per_class:
            raise click.UsageError(
                "given scores have no classes: --per-class needs a classifier's logits."
            )

    from metacal.cli.reading import read_score_table, read_table
    from metacal.rows import told

    stays = (
        True if options.executor is not None else None
    )  # descriptions travel to a cluster, never rows
    found: Any = (
        read_table(file, reading, stream=stays)
        if reading.score_key is None
        else read_score_table(file, reading)
    )
    fitted = _fitted if reading.score_key is None else _fitted_on_scores
    with progress_bar(None, "row", "rows, gone through again and again") as bar, told(bar.update):
        gate = fitted(found, options)
    save_gate(gate, output, key, options.n_jobs)
    about = {"file": file, "artifact": output, "n_rows": len(found)}
    _report(gate, about, signed=key is not None)
    then, without = (
        f"metacal evaluate {output} TEST",
        "-o cal.json saves the gate for metacal apply.",
    )
    print_saved_note(output, key, then=then, without=without)


def _fitted_on_scores(found: Scores, options: Options) -> Gate:
    """A gate on the scores of FILE."""
    import numpy as np

    from metacal.gate import Marks, fit_scored

    asked, higher_is = options.asked, options.reading.higher_is or "surer"
    if (
        asked.at_threshold is not None
    ):  # on the score: as one on its doubt, a score that equals it is accepted
        (doubt,) = Marks("score", higher_is).doubts(np.array([asked.at_threshold]))  # type: ignore[arg-type]
        asked = replace(asked, at_threshold=float(doubt))
    truth, losses = found.require_truth(), options.reading.loss_key is not None
    return fit_scored(
        found.score,
        None if losses else truth,
        asked.promise(options.seed, per_group=found.groups is not None),
        loss=truth if losses else None,
        score_name=found.name,
        higher_is=higher_is,  # type: ignore[arg-type]
        units=options.units(found),
        groups=found.groups,
        random_state=options.seed,
        marks=options.marks,
    )


def _fitted(found: Predictions, options: Options) -> Gate:
    """What `MetaCal(...).fit` does, without the estimator: importing scikit-learn takes longer than
    most fits.
    """
    from metacal.gate import check_gate, fit_gate
    from metacal.promises.notes import remark
    from metacal.promises.parts.units import select_rows
    from metacal.rows import Rows, validate, workers

    seed, calibrator, threads = options.seed, options.calibrator, resolve_n_jobs(options.n_jobs)
    own = (
        None
        if found.class_names or found.table.shape[1] != 2
        else _two_labels(found, options.positive)
    )
    names = found.class_names if own is None else own.tolist()
    promise: Any = options.asked.promise(
        seed, names, per_group=found.groups is not None, positive=_named(options.positive, names)
    )
    check_gate(promise, options.score, found.input, options.decision)
    bare = found.labels is None and not promise.needs_labels
    if bare and calibrator is not None:
        raise bad_option("--calibrator", "a calibrator learns from labels, and FILE has none.")
    fit_map, recipe = map_fitter(calibrator or promise.calibrator, seed, found.table.shape[1])
    with open_cluster(options.executor, threads) as remote, workers(threads, remote) as executor:
        table = validate.logits_from(found.table, found.input, executor=executor, later=True)
        classes = validate.class_list(found.class_names if own is None else own, table.shape[1])
        gate = fit_gate(
            Rows(table, executor=executor, unseen=validate.may_wait(table, found.input)),
            None if bare else validate.label_codes(found.require_truth(), len(table), classes),
            promise,
            options.score,
            fit_map,
            classes=classes,
            classes_given=found.class_names is not None
            or classes.tolist() != [*range(len(classes))],
            input=found.input,
            notes=[remark(text=text) for text in found.remarks],
            reject_label=parse_reject_label(options.reject_label, found),
            selection=select_rows(len(found), options.units(found), random_state=seed),
            gives_way=calibrator is None,
            decision=options.decision,
            groups=found.groups,
        )
    return gate if bare else gate.with_source(recipe=recipe(), score_column=found.score_column)


def _two_labels(found: Predictions, positive: str | None) -> Any:
    """What the classes are called where two columns have no names: as the labels are, the positive
    one last.
    """
    from metacal.rows.labels import flat_labels, two_classes

    if found.labels is None:
        return None
    named = _named(positive, flat_labels(found.labels).tolist())
    return two_classes(found.labels, named, one_score=positive is not None)


def _named(positive: str | None, labels: Sequence[Any] | None) -> Any:
    """The label that is written so."""
    if positive is None:
        return None
    known = {str(label): label for label in dict.fromkeys([0, 1] if labels is None else labels)}
    if positive not in known:
        raise click.UsageError(
            f"--positive {positive} is none of the labels ({', '.join([*known][:5])})."
        )
    return known[positive]


def map_fitter(
    name: str | None, seed: int | None, n_classes: int
) -> tuple[FitMap, Callable[[], Recipe | None]]:
    """What fits the base map, the usual one without a name, and what says, once it has, how it was
    fitted.
    """
    from metacal.gate import Recipe
    from metacal.maps.composed import default_base
    from metacal.maps.methods import CHOOSERS, METHODS, calibrator

    seed = 0 if seed is None else seed  # folds of a calibrator certify nothing
    if name in CHOOSERS:  # an estimator, and with it scikit-learn
        chooser = calibrator(name)(random_state=seed)
        return lambda *given: chooser.fit_rows(*given).map_, lambda: chooser.gate_.source.recipe
    method = METHODS[name or default_base(n_classes)]
    options = {"random_state": seed} if "random_state" in method.options else {}
    return partial(method.fit_function(), **options), lambda: Recipe(method.public_name, options)


def _report(gate: Gate, about: dict[str, Any], *, signed: bool) -> None:
    """Print the certificate and what was fitted."""
    assert gate.certificate is not None
    ahead = gate.certificate.next_rows(N_FORECAST_ROWS)
    lines = [str(gate.certificate), f"  expect       {ahead}"]
    if gate.n_classes:
        fitted = _described(gate)
        about |= {"n_classes": gate.n_classes, "calibrator": fitted}
        numbers = ", ".join(
            f"{name.replace('_', ' ')} {value:.4g}"
            for name, value in fitted.items()
            if name != "kind"
        )
        lines.append(f"  classes      {gate.n_classes:,}{class_list_text(gate)}")
        lines.append(f"  calibrator   {fitted['kind']}{numbers and ', '}{numbers}")
    else:
        about["accept_if"] = gate.condition
        lines.append(confidence_line(gate))
    certified = {
        "certificate": gate.certificate.to_dict(words=True),
        "next_rows": ahead.to_dict(),
        "signed": signed,
    }
    print_result({**about, **certified}, wrap_lines("\n".join(lines)))


def parse_reject_label(text: str | None, found: Predictions) -> str | int | None:
    """The label as the classes are, a name or a number; None where none was given."""
    if text is None or (found.class_names is not None and isinstance(found.class_names[0], str)):
        return text
    try:
        return int(text)
    except ValueError:
        raise bad_option(
            "--reject-label", f"{text!r} must be a whole number, as the classes are."
        ) from None


def _described(gate: Gate) -> dict[str, Any]:
    """The base calibrator's name and its numbers, as far as they are single numbers."""
    from metacal.maps.map import parts_of
    from metacal.maps.temperature import TemperatureMap
    from metacal.maps.uniform import UniformTemperatureMap

    assert gate.source.recipe is not None
    numbers = {
        name: value
        for name, value in vars(gate.source.map).items()
        if isinstance(value, int | float)
    }
    for part in (gate.source.map, *parts_of(gate.source.map)):
        if isinstance(part, TemperatureMap | UniformTemperatureMap):
            numbers = {"temperature": part.temperature}
        if isinstance(part, UniformTemperatureMap):
            numbers["uniform"] = part.uniform
    return {"kind": gate.source.recipe.estimator, **numbers}
