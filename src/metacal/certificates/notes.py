"""Notes about a fit that are stored in its certificate.

A note has a *kind* and *facts*. A function registered with `register_note` formats the facts of one
kind as a sentence. A file stores the kind and the facts, not the sentence, so a sentence may be
improved without a change of saved files. The parameter names of such a function are the keys of the
facts in files, and must not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec

from metacal.certificates.number_format import ceil_to_4_decimals
from metacal.errors import warn_caller
from metacal.rows.plausibility import Suspected, Suspicion
from metacal.spelling import choose_spelling, format_option

Facts = ParamSpec("Facts")
#: Function that formats the facts of a note as a sentence, by kind of note.
NOTE_TEXTS: dict[str, Callable[..., str]] = {}


@dataclass(frozen=True)
class Note:
    """Remark about a fit: its kind, and its facts by name.

    >>> note = note_few_errors(errors=0, rows=1200)
    >>> note.kind, note.to_dict()
    ('few_errors', {'kind': 'few_errors', 'errors': 0, 'rows': 1200})
    >>> str(note)[:45]
    'Only 0 errors in 1,200 rows. If these rows ar'
    """

    kind: str
    facts: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return NOTE_TEXTS[self.kind](**dict(self.facts))

    def issue_warning(self) -> Note:
        """Issue the text of the note as a MetacalWarning, and return the note."""
        warn_caller(str(self))
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and the facts as a file stores them."""
        return {"kind": self.kind, **dict(self.facts)}


def register_note(kind: str) -> Callable[[Callable[Facts, str]], Callable[Facts, Note]]:
    """Register a function that formats the facts of a kind of note as a sentence.

    Parameters
    ----------
    kind : str
        Kind of the note in files.

    Returns
    -------
    callable
        Decorator that replaces the function by one with the same keyword-only parameters. It
        returns a `Note` instead of the sentence.
    """

    def decorate(format_sentence: Callable[Facts, str]) -> Callable[Facts, Note]:
        NOTE_TEXTS[kind] = format_sentence

        def make_note(*args: Facts.args, **facts: Facts.kwargs) -> Note:
            assert not args, "facts are keyword-only"
            return Note(kind, tuple(facts.items()))

        make_note.__name__ = format_sentence.__name__
        make_note.__doc__ = format_sentence.__doc__
        make_note.__module__ = format_sentence.__module__
        return make_note

    return decorate


@register_note("remark")
def note_remark(*, text: str) -> str:
    """Report a remark of another component, such as a file reader."""
    return text


# ── notes about the promise ─────────────────────────────────────────────────────────────────────────────


@register_note("too_few_right")
def note_too_few_correct_rows(*, right: int, alpha: float, best: float, needed: int) -> str:
    """Report that no row can be rejected, because there are too few correct rows."""
    return (
        f"Every row is accepted: with only {right} correct rows, none can be rejected at a"
        f" miscoverage of at most {alpha:g}. Use at least {needed} correct rows, or raise the"
        f" limit to {ceil_to_4_decimals(best):g}."
    )


@register_note("too_few_to_review")
def note_too_few_rows_to_review(*, rows: int, share: float, best: float, needed: int) -> str:
    """Report that no row can be rejected, because there are too few rows."""
    return (
        f"Every row is accepted: with only {rows} rows, none can be rejected at a review rate"
        f" of at most {share:g}. Use at least {needed} rows, or raise the limit to"
        f" {ceil_to_4_decimals(best):g}."
    )


@register_note("too_few_units")
def note_too_few_clusters(*, units: int, rows: int) -> str:
    """Report that no row can be rejected, because there are too few clusters."""
    return (
        f"Every row is accepted, because {units:,} clusters ({rows:,} rows) are too few to reject"
        " a row. Collect rows from more clusters, or raise the limit."
    )


@register_note("class_never_predicted")
def note_class_never_predicted(
    *,
    called: str,
    quantity: str,
    positive: str,
    target: float,
    best: float | None,
    rows: int,
    needed: int | None,
) -> str:
    """Report that the promise about one of two classes accepts no row."""
    best_text = "" if best is None else f" (the best they support is {best:g})"
    more_rows_text = "" if needed is None else f", or collect about {needed:,} rows"
    return (
        f"No row is predicted {called}: these {rows:,} rows do not certify a {quantity} of"
        f" {target:g} for {positive}{best_text}. Relax this promise{more_rows_text}."
    )


@register_note("review_is_cheapest")
def note_review_is_cheapest(*, review: float) -> str:
    """Report that sending every row to review has the lowest expected cost."""
    return (
        f"Every row is rejected: on these rows, reviewing all of them (cost {review:g} per"
        " row) has the lowest expected cost."
    )


@register_note("one_row_of_each_unit")
def note_one_row_per_cluster(*, units: int, rows: int) -> str:
    """Report that only one random row of each cluster was tested."""
    return (
        f"The certificate counts one random row from each of {units:,} clusters ({rows:,} rows in"
        " total)."
    )


@register_note("items_without_score")
def note_items_without_score(*, missing: int, rows: int) -> str:
    """Report that items of cases have no score."""
    return f"{missing:,} of {rows:,} items have no score. Such items are never accepted."


@register_note("uncovered_items")
def note_uncovered_items(*, uncovered: int, cases: int) -> str:
    """Report that some cases have a true item without a score, which counts as missed."""
    return (
        f"In {uncovered:,} of {cases:,} cases with a true item, a true item has no score. These"
        " cases count as missed at every threshold."
    )


@register_note("unlabelled_entries")
def note_unlabelled_entries(*, unlabelled: int, entries: int) -> str:
    """Report that entries of a table without a label were left out."""
    return f"{unlabelled:,} of {entries:,} entries have no label and were left out."


@register_note("unlabelled_table_rows")
def note_unlabelled_table_rows(*, unlabelled: int, rows: int) -> str:
    """Report that rows of a table with an unlabelled entry were left out."""
    return (
        f"{unlabelled:,} of {rows:,} rows of the table have an unlabelled entry and were left"
        " out. The promise covers rows that resemble the remaining ones."
    )


@register_note("unlabelled_cases")
def note_unlabelled_cases(*, unlabelled: int, cases: int) -> str:
    """Report that cases with an item of unknown correctness were left out."""
    return (
        f"{unlabelled:,} of {cases:,} cases have an unlabelled item and were left out. The"
        " promise covers cases that resemble the remaining ones."
    )


@register_note("whole_units_counted")
def note_whole_clusters_counted(*, units: int, rows: int) -> str:
    """Report that all rows of each cluster were tested."""
    return (
        f"The certificate counts every row of {units:,} clusters ({rows:,} rows in total) and"
        " treats each cluster as one bet. The thresholds to test were chosen from the scores of"
        " a random tenth of the clusters."
    )


@register_note("kept_by_weight")
def note_rows_drawn_by_weight(*, kept: int, rows: int) -> str:
    """Report that rows were kept at random in proportion to their weights."""
    return (
        f"{kept:,} of {rows:,} rows were drawn at random, in proportion to their weights. The"
        " promise covers the target distribution that the weights describe."
    )


@register_note("cross_fitted")
def note_cross_fitted(*, folds: int) -> str:
    """Explain why a cross-fitted promise is approximate."""
    return (
        f"The confidence level is approximate: the rows were scored by {folds} cross-fitted"
        " classifiers instead of the final one. For an exact guarantee, hold rows out. No"
        " distribution-free guarantee exists for cross-fitting (Barber et al. 2021); CV+ and"
        " cross-conformal prediction (Vovk 2015) promise no more than twice the limit."
    )


@register_note("score_chosen")
def note_score_chosen(*, score: str, shares: tuple[tuple[str, float], ...]) -> str:
    """Report which ranking score was chosen, and how the scores shared delta."""
    shares_text = ", ".join(f"{name} {share:g}" for name, share in shares)
    return f"The score {score} was chosen among scores that shared delta ({shares_text})."


@register_note("decision_learned")
def note_decision_learned(*, aside: int, at: float) -> str:
    """Report the decision log-odds of two classes, as chosen from pilot rows."""
    return (
        "The promise covers the rule that predicts the second class if its log-odds exceed"
        f" {at:.6g}. This cutoff was chosen on {aside:,} pilot rows, which are not used for the"
        " certificate."
    )


@register_note("decision_disagrees")
def note_changed_predictions(*, rows: int, differ: int) -> str:
    """Report accepted rows whose predicted class is the less probable of two classes."""
    return (
        f"For {differ:,} of {rows:,} accepted rows, the classifier predicts the class with"
        " the lower calibrated probability. The promise covers the classifier's predictions."
        " To predict the more probable class instead, pass"
        f" {format_option('decision', 'calibrated')}."
    )


@register_note("weights_not_certified")
def note_weights_not_certified() -> str:
    """Report that sample weights affect only the calibrator."""
    return "Sample weights affect only the calibrator. The certificate counts every row once."


@register_note("about_largest_logit")
def note_about_largest_logit() -> str:
    """Report that the calibrator may change the most probable class."""
    return (
        "The base calibrator may change which class is most probable. The promise covers the"
        " class with the largest logit, which predict returns."
    )


# ── notes about the rows ────────────────────────────────────────────────────────────────────────────────


@register_note("suspicion")
def note_suspicious_input(*, looks: Suspected, lowest: float | None) -> str:
    """Report that the input does not look like logits."""
    return Suspicion(looks, lowest).remark


@register_note("few_errors")
def note_few_errors(*, errors: int, rows: int) -> str:
    """Report an error rate that is so low that it suggests training data."""
    return (
        f"Only {errors} errors in {rows:,} rows. If these rows are training data, the promise"
        " does not hold: use rows that the classifier was not fitted on."
    )


@register_note("frozen_few_errors")
def note_frozen_few_errors(*, errors: int, rows: int) -> str:
    """Report that a frozen classifier makes suspiciously few errors."""
    return (
        f"The frozen classifier makes only {errors:,} errors on {rows:,} calibration rows. If it"
        " was fitted on these rows, the promise does not hold. Pass other rows, or pass the"
        " classifier without FrozenEstimator, so that it is fitted on a part of the rows."
    )


#: Origin of the scores that were checked for ties: all logits, sampled logits, or the user.
ScoreOrigin = Literal["logits", "sampled logits", "given scores"]


@register_note("tied_scores")
def note_tied_scores(*, tied: int, rows: int, of: ScoreOrigin) -> str:
    """Report that many rows share their score with other rows."""
    score_origin = of
    qualifier = "sampled " if score_origin == "sampled logits" else ""
    if score_origin == "given scores":
        remedy = "A score with more distinct values avoids ties."
    else:
        remedy = "Logits in higher precision avoid ties."
    return (
        f"{tied:,} of {rows:,} {qualifier}rows share their score with other rows. Tied rows"
        f" are accepted or rejected together, which lowers coverage. {remedy}"
    )


@register_note("repeated_rows")
def note_repeated_rows(*, repeated: int, rows: int) -> str:
    """Report that many rows repeat the logits of an earlier row."""
    return (
        f"{repeated:,} of {rows:,} rows repeat the logits of an earlier row. If they are"
        " copies of the same input, the confidence level does not hold: keep one copy of"
        " each, or name the cluster of each row with"
        f" {choose_spelling('fit(..., units=...)', '--unit-key NAME')}."
    )


@register_note("rows_without_score")
def note_rows_without_score(*, missing: int, rows: int) -> str:
    """Report that rows without a score were left out."""
    return (
        f"{missing:,} of {rows:,} rows have no score and were left out. Rows without a score"
        " are always rejected, and the promise covers rows with a score."
    )


@register_note("pool_without_score")
def note_pool_without_score(*, missing: int, rows: int) -> str:
    """Report that rows of the pool without a score are always rejected."""
    return (
        f"{missing:,} of {rows:,} rows of the pool have no score. Rows without a score are always"
        " rejected."
    )


@register_note("declared_extension")
def note_declared_extension(*, rows: int, extended: int, shares: tuple[float, float]) -> str:
    """Report how delta is shared by the first rows and a declared extension."""
    return (
        f"The test of the first {rows:,} rows used {shares[0]:g} of delta. The test of the"
        f" {extended:,} rows of the declared extension used {shares[1]:g}."
    )


@register_note("upside_down")
def note_reversed_score(*, higher_is: Literal["surer", "doubtful"], losses: bool = False) -> str:
    """Report that confident rows are incorrect more often than others.

    The user probably passed a score with the opposite direction or, if `losses` is true, a quality
    instead of a loss.
    """
    loss_advice = ""
    if losses:
        loss_advice = (
            " If the loss measures quality, pass 1 minus the loss: a loss of 1 means entirely"
            " incorrect."
        )
    return (
        "Rows with a confident score are incorrect more often than other rows. The score may be"
        f" reversed. If a higher score is {higher_is}, pass"
        f" {format_option('higher_is', higher_is)}.{loss_advice}"
    )


# ── notes about the probabilities ───────────────────────────────────────────────────────────────────────

#: A metric with and without the calibrator, and the standard error of the difference.
MetricComparison = tuple[float, float, float]


@register_note("calibration_harms")
def note_harmful_calibration(
    *, rows: int, log_loss: MetricComparison | None, ece: MetricComparison | None, softmax: bool
) -> str:
    """Report that the calibrator does not improve the log loss or the ECE.

    If `softmax` is true, the gate uses the softmax of the logits instead of the calibrator.
    """
    comparison_texts = []
    for metric_name, comparison in (("log loss", log_loss), ("ECE", ece)):
        if comparison:
            with_calibrator, without_calibrator, standard_error = comparison
            comparison_texts.append(
                f"{metric_name} {with_calibrator:.4f}, without {without_calibrator:.4f}"
                f" (± {standard_error:.4f})"
            )
    sentence_end = "."
    if softmax:
        sentence_end = ". The softmax of the logits is used instead."
    return (
        "Calibration does not improve the probabilities of accepted rows (cross-fitted on"
        f" {rows:,} rows): {' and '.join(comparison_texts)}{sentence_end}"
    )


@register_note("off_by_class")
def note_miscalibrated_by_class(
    *, gap: float, predicted: str | None, rows: int, right: float, said: float
) -> str:
    """Report that confidence is miscalibrated given the predicted class."""
    class_text = "classes with few rows" if predicted is None else f"class {predicted}"
    return (
        f"Confidence is miscalibrated for some predicted classes ({100 * gap:.1f} points on"
        f" average, more than chance explains). Worst: {class_text}, mean confidence"
        f" {100 * said:.1f}%, accuracy {100 * right:.1f}% on {rows:,} rows. Try a calibrator"
        " with per-class parameters, such as VectorScaling."
    )


@register_note("not_compared")
def note_not_compared() -> str:
    """Report that refitting the calibrator for a comparison would take too long."""
    return (
        "The effect of calibration on accepted rows was not measured, because refitting this"
        " calibrator would take too long. Evaluate the gate on new labelled rows instead."
    )


@register_note("not_calibrated")
def note_not_calibrated() -> str:
    """Report that no calibrator was fitted, because the rows had no labels."""
    return (
        "No calibrator was fitted, because the rows have no labels. The probabilities are"
        " the uncalibrated softmax of the logits."
    )


@register_note("cascade_not_calibrated")
def note_cascade_not_calibrated() -> str:
    """Report that a cascade with partial labels has no calibrator."""
    return (
        "No calibrator was fitted, because labels are missing where the models agree. The"
        " probabilities are those of the models."
    )


@register_note("labels_ran_out")
def note_labels_ran_out() -> str:
    """Report that the test sequence of a cascade ended at a row without a label."""
    return (
        "Testing stopped at a row without a label. To accept more rows, label more rows on which"
        " the two models disagree, in the order of the small model's score. Then fit again."
    )
