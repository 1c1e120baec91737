# mypy: allow-subclassing-any, allow-untyped-calls
"""Text-classification pipeline of transformers with a calibrated score and the gate's decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import metacal
from metacal.errors import ClassMismatchError, ExportError, GroupsError, InputKindError, needs_extra
from metacal.export.fitted import extract_gate
from metacal.formulas import Array
from metacal.gate import Rejected

with needs_extra("metacal.export.transformers", "transformers"):
    from transformers import TextClassificationPipeline

from metacal.export.torch import to_module


class CalibratedTextClassificationPipeline(TextClassificationPipeline):
    """Text-classification pipeline of transformers with a gate in place of the softmax.

    Each result is a dictionary `{"label", "score", "accept"}`. The label is the predicted class,
    which the promise is about. The score is its calibrated probability. With `top_k`, this class
    comes first and the others follow by calibrated probability; `accept` is the decision on the row
    in every entry.

    A model with one label (`num_labels=1`) has one logit, for the second of two classes. The labels
    are then those of the calibrator.

    Parameters
    ----------
    cal : MetaCal, calibrator or path
        Calibrator fitted on this model's logits, or the JSON file written by `mc.save`. Its classes
        are those of the model, in the order of `config.id2label`, or numbers.

    rejected : {"calibrated", "uniform"} or None, default=None
        Probabilities of rejected rows; see `metacal.export.torch.to_module`.

    **kwargs
        Parameters of TextClassificationPipeline: model, tokenizer, device, batch_size, top_k, ...

    Examples
    --------
    With a fine-tuned checkpoint at hand::

        pipe = transformers.pipeline(
            "text-classification", model=checkpoint,
            pipeline_class=CalibratedTextClassificationPipeline, cal="cal.json"
        )
        pipe("Well made.")        # [{'label': 'POSITIVE', 'score': 0.97, 'accept': True}]
    """

    def __init__(
        self, *args: Any, cal: Any, rejected: Rejected | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        fitted_gate = metacal.load(cal) if isinstance(cal, str | Path) else cal
        self.gate = to_module(fitted_gate, rejected=rejected)
        if self.gate.subgroup_kind == "group":
            raise GroupsError(
                "This gate has one threshold for each group of rows, but a transformers pipeline"
                " has no groups. Fit the gate without PerGroup."
            )
        classes = extract_gate(fitted_gate).classes
        config = self.model.config
        if config.num_labels == 1 and self.gate.n_classes == 2:
            self._raise_if_regression_model()
            self.label_names = [str(name) for name in classes.tolist()]
        else:
            self._raise_if_classes_differ(classes)
            self.label_names = [config.id2label[index] for index in range(self.gate.n_classes)]
        if self.gate.input != "logits":
            raise InputKindError(
                "The calibrator was fitted on probabilities, but a transformers pipeline returns"
                " logits. Fit the calibrator on logits."
            )

    def _raise_if_regression_model(self) -> None:
        """Raise InputError if the only output of the model is not a logit."""
        problem_type = self.model.config.problem_type
        if problem_type == "regression":
            raise ExportError(
                "A gate requires a classifier, but the problem type of this model is"
                f" {problem_type!r}, so its only output is not a logit."
            )

    def _raise_if_classes_differ(self, classes: Array) -> None:
        """Raise InputError unless the model returns logits of the gate's classes."""
        config = self.model.config
        if config.problem_type in ("regression", "multi_label_classification"):
            raise ExportError(
                "A gate requires one label among several classes, but the problem type of this"
                f" model is {config.problem_type!r}."
            )
        if self.gate.n_classes != config.num_labels:
            raise ClassMismatchError(
                f"The calibrator was fitted on {self.gate.n_classes} classes, but this model has"
                f" {config.num_labels}. Fit the calibrator on the logits of this model."
            )
        label_names = [config.id2label[index] for index in range(config.num_labels)]
        if classes.dtype.kind == "U" and classes.tolist() != label_names:
            raise ClassMismatchError(
                f"The classes of the calibrator, {classes.tolist()}, differ from the classes of"
                f" the model or from their order: {label_names}. Pass classes=[config.id2label[i]"
                " for i in range(K)] to fit."
            )

    def postprocess(
        self,
        model_outputs: Any,
        function_to_apply: Any = None,
        top_k: int | None = 1,
        _legacy: bool = True,
    ) -> Any:
        """Convert the logits of one text to results.

        Parameters
        ----------
        model_outputs : mapping
            Outputs of the model, with the entry "logits".

        function_to_apply : None
            Must be None, because the gate replaces the softmax.

        top_k : int or None, default=1
            Number of classes to return. None returns all.

        _legacy : bool, default=True
            Whether to return a single result instead of a list if `top_k` is 1.

        Returns
        -------
        dict or list of dict
        """
        if function_to_apply is not None:
            raise ExportError(
                "function_to_apply has no effect, because the calibrator replaces the softmax."
                " Leave out function_to_apply."
            )
        logits = model_outputs["logits"].float()
        probs, _, accept = self.gate(logits)
        prediction = int(self.gate.predict(logits))
        class_logits = logits[0].tolist()
        if len(class_logits) == 1:
            class_logits = [0.0, *class_logits]

        def sort_key(class_index: int) -> tuple[bool, float, float]:
            is_other = class_index != prediction
            return is_other, -float(probs[0, class_index]), -class_logits[class_index]

        class_results = []
        for class_index in sorted(range(self.gate.n_classes), key=sort_key):
            class_result = {
                "label": self.label_names[class_index],
                "score": float(probs[0, class_index]),
                "accept": bool(accept[0]),
            }
            class_results.append(class_result)
        if top_k == 1 and _legacy:
            return class_results[0]
        return class_results[:top_k]
