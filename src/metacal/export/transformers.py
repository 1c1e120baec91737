# mypy: allow-subclassing-any, allow-untyped-calls
"""A transformers text-classification pipeline whose results carry a calibrated `score` and the
gate's `accept`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import metacal
from metacal.errors import InputError, needs_extra
from metacal.export.fitted import gate_of
from metacal.formulas import Array

with needs_extra("metacal.export.transformers", "transformers"):
    from transformers import TextClassificationPipeline

from metacal.export.torch import to_module


class CalibratedTextClassificationPipeline(TextClassificationPipeline):
    """Text classification as transformers does it, with the gate in place of its softmax.

    Each result is `{"label", "score", "accept"}`. The label is the class of the largest logit, the
    one the promise is about; the score its calibrated probability, 1/K where the row is rejected.
    With `top_k` that class comes first and the others follow by calibrated probability; `accept` is
    the row's, on every entry.

    Parameters
    ----------
    cal : MetaCal, calibrator or path
        Fitted on this model's logits, or the JSON file that `mc.save` wrote. Its classes are the
        model's, in the order of `config.id2label`, or numbers.
    **kwargs
        What a TextClassificationPipeline takes: model, tokenizer, device, batch_size, top_k, …

    Examples
    --------
    With a fine-tuned checkpoint at hand::

        pipe = transformers.pipeline(
            "text-classification", model=checkpoint,
            pipeline_class=CalibratedTextClassificationPipeline, cal="cal.json"
        )
        pipe("Well made.")        # [{'label': 'POSITIVE', 'score': 0.97, 'accept': True}]
    """

    def __init__(self, *args: Any, cal: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fitted = metacal.load(cal) if isinstance(cal, str | Path) else cal
        self.gate = to_module(fitted)
        if self.gate.by == "group":
            raise InputError(
                "this gate has a threshold for each group of rows, and a pipeline knows no groups."
            )
        self._check_classes(gate_of(fitted).classes)

    def _check_classes(self, classes: Array) -> None:
        config = self.model.config
        names = [config.id2label[i] for i in range(config.num_labels)]
        if config.problem_type in ("regression", "multi_label_classification"):
            raise InputError(
                "a gate is for one label among several; this model's problem is"
                f" {config.problem_type!r}."
            )
        if self.gate.n_classes != config.num_labels:
            raise InputError(
                f"the calibrator was fitted on {self.gate.n_classes} classes, this model has"
                f" {config.num_labels}: fit it on this model's own logits."
            )
        if classes.dtype.kind == "U" and classes.tolist() != names:
            raise InputError(
                f"the calibrator's classes {classes.tolist()} are not the model's, in order:"
                f" {names}. Pass classes=[config.id2label[i] for i in range(K)] when fitting."
            )
        if self.gate.input != "logits":
            raise InputError(
                "the calibrator reads probabilities, but a pipeline has logits; fit it on logits."
            )

    def postprocess(
        self,
        model_outputs: Any,
        function_to_apply: Any = None,
        top_k: int | None = 1,
        _legacy: bool = True,
    ) -> Any:
        """One result, or a list of them when `top_k` was given."""
        if function_to_apply is not None:
            raise InputError(
                "function_to_apply cannot be chosen here: the fitted map takes the place of the"
                " softmax."
            )
        logits = model_outputs["logits"].float()
        probs, _, accept = self.gate(logits)
        names, accepted = self.model.config.id2label, bool(accept[0])
        best = int(logits[0].argmax())
        order = sorted(
            range(self.gate.n_classes),
            key=lambda i: (i != best, -float(probs[0, i]), -float(logits[0, i])),
        )
        results = [
            {"label": names[i], "score": float(probs[0, i]), "accept": accepted} for i in order
        ]
        return results[0] if top_k == 1 and _legacy else results[:top_k]
