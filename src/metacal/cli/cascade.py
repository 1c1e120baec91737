"""metacal cascade: from the predictions of two models to a promise over both, and a saved cascade."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    CALIBRATORS,
    SCORES,
    SEED,
    OneOf,
    Reading,
    check_jobs,
    check_not_an_input,
    jobs_option,
    json_option,
    reading_options,
    share,
)
from metacal.cli.printing import echo, progress_bar, say_json, wrapped
from metacal.cli.saving import check_can_sign, save, say_saved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from metacal.gate import Gate
    from metacal.io.predictions import Predictions
    from metacal.promises.promise import Promise
    from metacal.promises.rules.cascade_walks import Plan


@click.command()
@click.argument("small", type=click.Path())
@click.argument("large", type=click.Path())
@click.option(
    "--max-loss",
    type=share,
    metavar="E",
    help="Promise: of all answers at most E more are wrong than if the large model answered alone.",
)
@click.option(
    "--min-accuracy", type=share, metavar="B", help="Promise: what the cascade answers is right at least B of the time."
)
@click.option("--confidence", type=share, metavar="C", default=0.9, show_default=True, help="How surely.")
@click.option(
    "--no-people",
    is_flag=True,
    help="With --min-accuracy: the large model answers all of the rest, nothing is left to people.",
)
@click.option(
    "--review-cost",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="R",
    default=10.0,
    show_default=True,
    help="What a row costs that a person answers, in calls of the large model.",
)
@click.option(
    "--thresholds-from",
    type=click.Path(),
    metavar="FILE",
    help="Further rows of the small model, no labels needed, to choose thresholds on.  [default: a part of SMALL]",
)
@click.option("--score", type=OneOf(SCORES), default="entropy", show_default=True, help="What ranks the rows.")
@click.option(
    "--calibrator",
    type=OneOf(CALIBRATORS),
    default="composed",
    show_default=True,
    help="What turns the logits of each model into probabilities.",
)
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Seed of the draw of the rows that choose thresholds."
)
@click.option("--reject-label", metavar="LABEL", help="Prediction where people answer.  [default: -1, or 'rejected']")
@reading_options()
@jobs_option
@click.option("-o", "--output", type=click.Path(), metavar="JSON", help="Save the cascade here, for apply and verify.")
@click.option(
    "--sign",
    "key",
    type=click.Path(),
    metavar="KEYFILE",
    help="Sign what is saved: with a secret of 32 bytes or more, or an Ed25519 private key in PEM.",
)
@json_option
def command(small: str, large: str, reading: Reading, output: str | None, key: str | None, **options: Any) -> None:
    """Let a small model answer what it is sure of and a large one the rest, under one promise.

    SMALL and LARGE hold the logits of the two models on the same rows in the same order, of classes in the same order,
    rows that neither was trained on; labels stand in SMALL, in LARGE, in both, or in --labels. Row ids, where both have
    them, must agree.

    --max-loss compares with the large model, and needs labels only where the two disagree: -1 stands for a label that
    is not known. The walk goes as far as labels do; the certificate says how many were needed. --min-accuracy needs all
    labels, and leaves to people what neither model is sure of.

    \b
    Examples:
      metacal cascade small.parquet large.parquet --max-loss 0.01 -o cascade.json
      metacal cascade small.npz large.npz --min-accuracy 0.95 --review-cost 20 -o cascade.json
      metacal cascade small.csv large.csv --min-accuracy 0.9 --no-people --confidence 0.95 --json
      metacal apply cascade.json new-small.npz --large new-large.npz -o out.csv
    """  # noqa: D301
    as_json, n_jobs = options["as_json"], options["n_jobs"]
    check_not_an_input(output, small, large, key, options["thresholds_from"], reading=reading)
    options["threads"] = check_jobs(n_jobs)
    promise, people = _promise(options)
    check_can_sign(key, output)

    from metacal.rows import told

    with progress_bar(None, "row", "rows, gone through again and again") as bar, told(bar.update):
        gate = _fitted(small, large, reading, promise, people, options)
    save(gate, output, key, n_jobs)
    assert gate.certificate is not None
    if as_json:
        about = {"small": small, "large": large, "artifact": output, "signed": key is not None}
        say_json({**about, "certificate": gate.certificate.to_dict(words=True)})
    else:
        echo(wrapped(str(gate.certificate)))
    then = f"metacal apply {output} NEW-SMALL --large NEW-LARGE"
    without = "-o cascade.json saves the cascade for metacal apply."
    say_saved(output, key, then=then, without=without, as_json=as_json)


def _promise(options: dict[str, Any]) -> tuple[Promise, bool]:
    """What is promised, and whether people are in the cascade."""
    from metacal.promises.rules.accuracy import MinAccuracy
    from metacal.promises.rules.cascade import MaxLoss

    loss, accuracy = options["max_loss"], options["min_accuracy"]
    if (loss is None) == (accuracy is None):
        raise click.UsageError(
            "give one promise: --max-loss (say 0.01: at most 1% more wrong answers than the large model alone) or "
            "--min-accuracy (say 0.95: what is answered is right at least 95% of the time)."
        )
    delta = round(1.0 - options["confidence"], 12)
    if loss is None:
        return MinAccuracy(accuracy, delta), not options["no_people"]
    if options["no_people"]:
        raise click.UsageError("--max-loss leaves nothing to people; --no-people belongs to --min-accuracy.")
    return MaxLoss(loss, delta), False


def _fitted(small: str, large: str, reading: Reading, promise: Promise, people: bool, options: dict[str, Any]) -> Gate:
    from metacal.cli.fit import method_named, reject_label_for
    from metacal.cli.reading import read
    from metacal.gate import fit_cascade
    from metacal.gate.fitting import check_score
    from metacal.rows import Rows, validate, workers
    from metacal.rows.labels import codes_where_known, reject_label_of

    one, other = read(small, reading), read(large, reading)
    _check_same_rows(one, other, small, large)
    check_score(options["score"], one.input)
    tables = [validate.logits_from(found.table, found.input) for found in (one, other)]
    classes = validate.class_list(one.class_names, tables[0].shape[1])
    codes = codes_where_known(_labels(one, other, small, large), len(one), classes)
    label = reject_label_of(reject_label_for(options["reject_label"], one), classes)
    with workers(options["threads"]) as executor:
        return fit_cascade(
            Rows(tables[0], executor=executor),
            Rows(tables[1], executor=executor),
            codes,
            promise,
            options["score"],
            method_named(options["calibrator"], options["seed"])[0],
            plan=_plan(people, options, reading),
            classes=classes,
            reject_label=label,
            input=one.input,
            classes_given=one.class_names is not None,
        )


def _plan(people: bool, options: dict[str, Any], reading: Reading) -> Plan:
    from metacal.cli.reading import read
    from metacal.promises.rules.cascade_walks import Plan
    from metacal.rows import Rows, validate
    from metacal.scores import score_rows

    scores = None
    if options["thresholds_from"] is not None:
        found = read(options["thresholds_from"], reading)
        scores = score_rows(Rows(validate.logits_from(found.table, found.input)), options["score"])
    return Plan(people, options["review_cost"], options["seed"], scores)


def _check_same_rows(one: Predictions, other: Predictions, small: str, large: str) -> None:
    """Refuse two files that do not hold the same rows and classes, as far as they tell."""
    import numpy as np

    from metacal.errors import InputError

    if one.table.shape != other.table.shape:
        rows, columns = one.table.shape, other.table.shape
        raise InputError(
            f"{small} has {rows[0]:,} rows of {rows[1]} columns, {large} {columns[0]:,} of {columns[1]}; give both "
            "models' predictions of the same rows, in the same order."
        )
    if one.class_names is not None and other.class_names is not None and one.class_names != other.class_names:
        raise InputError(f"{small} and {large} have other classes, or in another order; write both in one order.")
    if one.ids is not None and other.ids is not None and not np.array_equal(one.ids, other.ids):
        at = int(np.flatnonzero(np.asarray(one.ids).ravel() != np.asarray(other.ids).ravel())[0])
        raise InputError(f"{small} and {large} are not in the same order: the ids of row {at} differ.")


def _labels(one: Predictions, other: Predictions, small: str, large: str) -> NDArray[Any]:
    import numpy as np

    from metacal.errors import InputError

    if one.labels is None:
        return other.labels if other.labels is not None else one.require_truth()
    if other.labels is not None and not np.array_equal(one.labels, other.labels):
        at = int(np.flatnonzero(one.labels != other.labels)[0])
        raise InputError(
            f"{small} and {large} do not hold the same rows in the same order: the labels of row {at} differ."
        )
    return one.labels
