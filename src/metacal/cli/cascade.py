"""metacal cascade: from the predictions of two models to a promise over both, and a saved
cascade.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    ReadOptions,
    as_command,
    file_option,
    fraction_option,
    jobs_option,
    option,
    option_group,
    resolve_n_jobs,
    switch_option,
)
from metacal.cli.outputs import (
    check_can_sign,
    check_not_input,
    output_option,
    print_saved_note,
    save_gate,
    sign_option,
)
from metacal.cli.printing import print_result, progress_bar, wrap_lines
from metacal.cli.promise_options import min_accuracy_option
from metacal.cli.values import SEED_RANGE, RegistryChoice, parse_numbers
from metacal.errors import InputError
from metacal.maps.methods import every_method
from metacal.scores.registry import NAMED

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.io.predictions import Predictions
    from metacal.promises.promise import Promise


@dataclass(frozen=True)
class Options:
    """Options of `metacal cascade`."""

    max_loss: float | None = fraction_option(
        "Promise: of all answers at most E more are wrong than if the large model answered alone.",
        "E",
    )
    min_accuracy: float | None = min_accuracy_option("the cascade answers")
    confidence: float = fraction_option("How surely.", "C", default=0.9)
    no_people: bool = switch_option(
        "the large model answers all of the rest, nothing is left to people.",
        needs=("min_accuracy",),
    )
    review_cost: float = option(
        "What a row costs that a person answers, in calls of the large model.",
        "R",
        type=click.FloatRange(min=0.0, min_open=True),
        default=10.0,
    )
    costs: list[float] | None = option(
        "what it costs to ask each.  [default: 1,10,...]",
        "A,B,C",
        type=parse_numbers,
        needs=("score_key",),
    )
    pool: bool = switch_option(
        "the promise is about the rows of SMALL, of which those with a label were drawn at random.",
        needs=("score_key",),
    )
    thresholds_from: str | None = file_option(
        "Further rows of the small model, no labels needed, to choose thresholds on.  [default: a"
        " part of SMALL]"
    )
    score: str = option("What ranks the rows.", type=RegistryChoice(NAMED.keys), default="entropy")
    calibrator: str = option(
        "What turns the logits of each model into probabilities.",
        type=RegistryChoice(every_method),
        default="composed",
    )
    seed: int | None = option(
        "Seed of the draw of the rows that choose thresholds. The certificate records it. Without"
        " it the draw is derived from the scores.",
        type=SEED_RANGE,
    )
    reject_label: str | None = option(
        "Prediction where people answer.  [default: -1, or 'rejected']", "LABEL"
    )
    reading: ReadOptions = option_group(ReadOptions, without=("large",))
    n_jobs: int | None = jobs_option()
    output: str | None = output_option("Save the cascade here, for apply and verify.", "JSON")
    key: str | None = sign_option()


@as_command(Options, "SMALL", "[LARGE]")
def command(small: str, large: str | None, options: Options) -> None:
    """Let a small model answer what it is sure of and a large one the rest, under one promise.

    SMALL and LARGE hold the logits of the two models on the same rows in the same order, of classes
    in the same order, rows that neither was trained on; labels stand in SMALL, in LARGE, in both,
    or in --labels. Row ids, where both have them, must agree.

    --max-loss compares with the large model, and needs labels only where the two disagree: -1
    stands for a label that is not known. The walk goes as far as labels do; the certificate says
    how many were needed. --min-accuracy needs all labels, and leaves to people what neither model
    is sure of.

    With --score-key there are no logits: SMALL alone holds a score of each model, --score-key a,b
    (nested keys of JSON lines too). With --max-loss, --agree-key says of each model but the last
    whether it gives the last model's answer. With --min-accuracy, --correct-key says of each model
    whether it is correct. Any number of models.

    \b
    Examples:
      metacal cascade answers.jsonl --score-key small.p,middle.p --agree-key small.same,middle.same
      --max-loss 0.01 metacal cascade small.parquet large.parquet --max-loss 0.01 -o cascade.json
      metacal cascade small.npz large.npz --min-accuracy 0.95 --review-cost 20 -o cascade.json
      metacal cascade small.csv large.csv --min-accuracy 0.9 --no-people --confidence 0.95 --json
      metacal apply cascade.json new-small.npz --large new-large.npz -o out.csv
    """  # noqa: D301
    output, key = options.output, options.key
    check_not_input(output, small, large, key, options.thresholds_from, reading=options.reading)
    promise, people = _promise(options)
    check_can_sign(key, output)

    from metacal.rows import told

    with progress_bar(None, "row", "rows, gone through again and again") as bar, told(bar.update):
        if options.reading.score_key is not None:
            gate = _fitted_on_scores(small, large, promise, people, options)
        elif large is None:
            raise click.UsageError(
                "give the large model's predictions too, or --score-key for a cascade of scores."
            )
        else:
            gate = _fitted(small, large, promise, people, options)
    save_gate(gate, output, key, options.n_jobs)
    assert gate.certificate is not None
    about = {"small": small, "large": large, "artifact": output, "signed": key is not None}
    answer = {**about, "certificate": gate.certificate.to_dict(words=True)}
    print_result(answer, wrap_lines(str(gate.certificate)))
    then = f"metacal apply {output} NEW-SMALL{'' if large is None else ' --large NEW-LARGE'}"
    without = "-o cascade.json saves the cascade for metacal apply."
    print_saved_note(output, key, then=then, without=without)


def _promise(options: Options) -> tuple[Promise, bool]:
    """What is promised, and whether people are in the cascade."""
    from metacal.promises.rules.accuracy import MinAccuracy
    from metacal.promises.rules.cascade import MaxLoss

    delta = round(1.0 - options.confidence, 12)
    if options.max_loss is None and options.min_accuracy is not None:
        return MinAccuracy(options.min_accuracy, delta), not options.no_people
    if options.max_loss is None or options.min_accuracy is not None:
        raise click.UsageError(
            "give one promise: --max-loss (say 0.01: at most 1% more wrong answers than the large"
            " model alone) or --min-accuracy (say 0.95: what is answered is right at least 95% of"
            " the time)."
        )
    return MaxLoss(options.max_loss, delta), False


def _fitted(small: str, large: str, promise: Promise, people: bool, options: Options) -> Gate:
    from metacal.cli.fit import map_fitter, parse_reject_label
    from metacal.cli.reading import merge_labels, read_table
    from metacal.gate import fit_cascade
    from metacal.gate.table import check_score
    from metacal.promises.rules.cascade_walks import Plan
    from metacal.rows import Rows, validate, workers
    from metacal.scores import score_rows

    one, other = read_table(small, options.reading), read_table(large, options.reading)
    _check_same_rows(one, other, small, large)
    check_score(options.score, one.input)
    tables = [validate.logits_from(found.table, found.input) for found in (one, other)]
    truth = merge_labels(one, other, small, large)
    scores = None
    if options.thresholds_from is not None:
        more = read_table(options.thresholds_from, options.reading)
        scores = score_rows(Rows(validate.logits_from(more.table, more.input)), options.score)
    with workers(resolve_n_jobs(options.n_jobs)) as executor:
        return fit_cascade(
            Rows(tables[0], executor=executor),
            Rows(tables[1], executor=executor),
            one.require_truth() if truth is None else truth,
            promise,
            options.score,
            map_fitter(options.calibrator, options.seed, tables[0].shape[1])[0],
            plan=Plan(people, options.review_cost, options.seed, scores),
            classes=one.class_names,
            reject_label=parse_reject_label(options.reject_label, one),
            input=one.input,
            classes_given=one.class_names is not None,
        )


def _fitted_on_scores(
    file: str, large: str | None, promise: Promise, people: bool, options: Options
) -> Gate:
    import numpy as np

    from metacal.cli.reading import read_cascade_scores, split_names
    from metacal.gate.cascade import fit_scored_cascade

    if large is not None:
        raise click.UsageError(
            "with --score-key one file holds the scores of all models; leave out the second."
        )
    of_agreement = options.max_loss is not None
    names, flags = (
        split_names(options.reading.score_key),
        _flags_of_models(options.reading, of_agreement=of_agreement),
    )
    scores, truth, _ = read_cascade_scores(
        file, options.reading, names, flags, agreement=of_agreement
    )
    for name, score in zip(names, scores):
        if len(missing := np.flatnonzero(np.isnan(np.asarray(score, dtype=np.float64)))):
            raise InputError(
                f"{file}: row {missing[0] + 1} has no {name!r}; leave out rows that a model gave"
                " none."
            )
    higher_is: Any = options.reading.higher_is or "surer"
    return fit_scored_cascade(
        scores,
        promise,
        agrees=truth if of_agreement else None,
        correct=None if of_agreement else truth,
        costs=options.costs,
        score_names=names,
        higher_is=higher_is,
        people=people,
        pool=options.pool,
        random_state=options.seed,
    )


def _flags_of_models(reading: ReadOptions, *, of_agreement: bool) -> list[str]:
    """Return the names of the columns that hold a flag for each model.

    Raises
    ------
    click.UsageError
        If they are missing, or those of the other promise were named.
    """
    from metacal.cli.reading import split_names

    if of_agreement and reading.agree_key is None:
        said = (
            "--max-loss over scores needs --agree-key, which says of each model but the last"
            " whether it gives the last model's answer."
        )
        if reading.correct_key is not None:
            said += (
                " --correct-key does not say that: two models may both be wrong and differ. If you"
                " know only which answers are correct, promise --min-accuracy."
            )
        raise click.UsageError(said)
    if of_agreement and reading.correct_key is not None:
        raise click.UsageError(
            "--max-loss over scores is about agreement: leave out --correct-key."
        )
    if not of_agreement and (reading.correct_key is None or reading.agree_key is not None):
        raise click.UsageError(
            "--min-accuracy over scores needs --correct-key, which says of every model whether it"
            " is correct; --agree-key is for --max-loss."
        )
    return split_names(reading.agree_key if of_agreement else reading.correct_key)


def _check_same_rows(one: Predictions, other: Predictions, small: str, large: str) -> None:
    """Refuse two files that do not hold as many rows of the same classes."""
    if one.table.shape != other.table.shape:
        rows, columns = one.table.shape, other.table.shape
        raise InputError(
            f"{small} has {rows[0]:,} rows of {rows[1]} columns, {large} {columns[0]:,} of"
            f" {columns[1]}; give both models' predictions of the same rows, in the same order."
        )
    if (
        one.class_names is not None
        and other.class_names is not None
        and one.class_names != other.class_names
    ):
        raise InputError(
            f"{small} and {large} have other classes, or in another order; write both in one order."
        )
