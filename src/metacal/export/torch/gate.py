# mypy: allow-subclassing-any, allow-untyped-calls
"""Gates as torch modules, alone (`Gate`) or combined with a classifier (`CalibratedModule`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from metacal import gate as gates
from metacal.errors import ExportError, GroupsError, ShapeError
from metacal.export.fitted import SUM_TOLERANCE, extract_gate
from metacal.export.torch.maps import FixedDtypeModule, MapModule, match_table, working_dtype
from metacal.export.torch.scores import score_module
from metacal.formulas.logits import (
    MAX_LOGIT_SIZE,
    limit_logits_formula,
    replace_finite_masks_formula,
    replace_zero_probabilities,
)
from metacal.formulas.probabilities import limit_probabilities
from metacal.formulas.torch import TORCH
from metacal.maps.temperature import TemperatureMap

# On a device without float64, larger logits are clipped so that their squares stay finite.
_MAX_FLOAT32_LOGIT = 1e15

# Number of group names that an error message quotes.
_MAX_QUOTED_GROUPS = 5


class Gate(FixedDtypeModule):
    """Module that returns probabilities, score and decision for a table of logits.

    A row is accepted if its score is at most the threshold. A row that contains NaN or +inf, or in
    which every class is masked, has the score NaN, uniform probabilities, and is rejected.

    A gate of two classes also takes one score per row, of shape (n,) or (n, 1), for the second class:
    the output of a model that ends in one logit.

    If each predicted class has its own threshold, the threshold of the row's prediction decides. If
    each group has its own threshold, `gate(logits, group)` takes the index of each row's group in
    `groups`; a row with any other index is rejected.

    Parameters
    ----------
    fitted : metacal.Gate
        Fitted gate with one stage that reads logits or probabilities.

    rejected : {"calibrated", "uniform"} or None, default=None
        Probabilities of rejected rows, as in `Gate.decide`.

    Attributes
    ----------
    rejected : str
        Probabilities of rejected rows.

    groups : tuple or None
        Names of the groups. None if there is no threshold by group.

    certificate : Certificate or None
        Certificate of the gate.
    """

    def __init__(self, fitted_gate: gates.Gate, rejected: gates.Rejected | None = None) -> None:
        super().__init__()
        source = fitted_gate.logits_source
        thresholds = fitted_gate.subgroup_thresholds
        self.n_classes = fitted_gate.n_classes
        self.input = source.input
        self.rejected = fitted_gate.choose_rejected(rejected)
        self.certificate = fitted_gate.certificate
        self.preserves_predictions = bool(source.map.preserves_accuracy)
        # Temperature scaling may be computed in float32, as in Python, because it keeps the prediction.
        self.is_temperature_scaling = isinstance(source.map, TemperatureMap)
        self.map = MapModule(source.map)
        self.score = score_module(source.score)
        self.subgroup_kind = fitted_gate.thresholds.subgroup_kind
        self.groups = None
        if thresholds is not None and fitted_gate.has_group_thresholds:
            self.groups = thresholds.subgroup_names

        # Of two classes, the second is predicted if its log-odds exceed the decision offset.
        self.has_two_thresholds_per_group = len(fitted_gate.thresholds.group_decision_offsets) > 0
        self.has_decision_offset = self.has_two_thresholds_per_group or bool(source.decision_at)
        decision_offsets = [source.decision_at]
        if self.has_two_thresholds_per_group:
            offset_of_unknown_group = 0.0
            decision_offsets = [
                *fitted_gate.thresholds.group_decision_offsets,
                offset_of_unknown_group,
            ]
        if self.has_decision_offset:
            self.register_numbers(decision_at=[[0.0, offset] for offset in decision_offsets])
        if thresholds is None:
            self.register_numbers(threshold=fitted_gate.threshold)
        else:
            self.register_numbers(threshold=thresholds.thresholds_by_code_and_prediction.tolist())
        self.eval()

    def forward(self, logits: Tensor, group: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute probabilities, score and decision of each row.

        Parameters
        ----------
        logits : Tensor of shape (n, K)
            Logits or probabilities, as `input` states. For two classes, also of shape (n,) or
            (n, 1), with one score per row.

        group : Tensor of shape (n,) or None, default=None
            Index of each row's group. Required if there is a threshold by group.

        Returns
        -------
        probs : Tensor of shape (n, K)
            Calibrated probabilities with dtype and device of the logits.

        score : Tensor of shape (n,)
            Uncertainty in float64, or in float32 on a device without float64.

        accept : Tensor of bool of shape (n,)
        """
        logits = self._table_from_one_score(logits)
        self._check_arguments(logits, group)
        table, is_valid_row = self._convert_to_logits(logits.detach())
        group_index = self._replace_unknown_groups(table, group)
        decision_logits = self._compute_decision_logits(table, group_index)
        nan_scores = torch.full_like(table[:, 0], torch.nan)
        score = torch.where(is_valid_row, self.score(decision_logits), nan_scores)
        output_dtype = logits.dtype
        if not logits.is_floating_point():
            output_dtype = torch.get_default_dtype()
        probs = self._compute_probabilities(table, output_dtype)
        # A row whose probabilities are NaN is rejected, whatever its score.
        has_probabilities = is_valid_row & (probs.sum(dim=1) < torch.inf)
        is_within_threshold = score <= self._find_row_thresholds(decision_logits, group_index)
        accept = is_within_threshold & has_probabilities
        keeps_probabilities = accept if self.rejected == "uniform" else has_probabilities
        probs = probs.masked_fill(~keeps_probabilities.unsqueeze(1), 1.0 / self.n_classes)
        return probs, score, accept

    def predict(self, logits: Tensor, group: Tensor | None = None) -> Tensor:
        """Return the column of the predicted class of each row, including rejected rows.

        The promise is about this class. It is that of the largest logit unless the gate has its own
        decision between two classes, as for a promise about precision and recall.

        Parameters
        ----------
        logits : Tensor
            Logits or probabilities, as for `forward`.

        group : Tensor of shape (n,) or None, default=None
            Index of each row's group, as for `forward`.

        Returns
        -------
        Tensor of int64 of shape (n,)
        """
        logits = self._table_from_one_score(logits)
        self._check_arguments(logits, group)
        table, _ = self._convert_to_logits(logits.detach())
        decision_logits = self._compute_decision_logits(
            table, self._replace_unknown_groups(table, group)
        )
        return TORCH.argmax(decision_logits)[:, 0]

    def extra_repr(self) -> str:
        """Return the number of classes, the input and the promise."""
        statement = "no promise: every row is accepted"
        if self.certificate is not None:
            statement = self.certificate.statement
        return f"{self.n_classes} classes, input={self.input!r}; {statement}"

    def _table_from_one_score(self, logits: Tensor) -> Tensor:
        """Convert one score per row to a table of two classes, as Python does."""
        if self.n_classes != 2 or logits.ndim not in (1, 2):
            return logits
        with warnings.catch_warnings():
            # The number of columns does not depend on the rows, so it may be fixed in a trace.
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            has_one_score = logits.ndim == 1 or bool(logits.shape[1] == 1)
        if not has_one_score:
            return logits
        scores = logits.reshape(-1, 1)
        if not scores.is_floating_point():
            scores = scores.to(torch.get_default_dtype())
        if self.input == "probabilities":
            return torch.cat([1.0 - scores, scores], dim=1)
        return torch.cat([torch.zeros_like(scores), scores], dim=1)

    def _check_arguments(self, logits: Tensor, group: Tensor | None) -> None:
        """Raise InputError unless logits and group have the required shape."""
        has_group_thresholds = self.subgroup_kind == "group"
        if has_group_thresholds and group is None:
            quoted_groups = ", ".join(map(str, (self.groups or ())[:_MAX_QUOTED_GROUPS]))
            raise GroupsError(
                "This gate has one threshold for each group. Pass the index of the group of each"
                f" row in `groups` ({quoted_groups}): gate(logits, group)."
            )
        if group is not None and not has_group_thresholds:
            raise GroupsError(
                "This gate has the same threshold for all rows, so group has no effect."
                " Leave out group."
            )
        if torch.jit.is_tracing():
            # While a module is traced, sizes are tensors and cannot be compared with numbers.
            return
        if logits.ndim != 2 or logits.shape[1] != self.n_classes:
            raise ShapeError(
                f"This gate requires a table of {self.input} with {self.n_classes} columns, one"
                f" per class, but got a tensor of shape {tuple(logits.shape)}. For several"
                " outputs per item, pass logits.reshape(-1, K)."
            )

    def _convert_to_logits(self, model_output: Tensor) -> tuple[Tensor, Tensor]:
        """Convert the output of a model to logits, and find the valid rows.

        Comparisons with NaN are false, so rows that contain NaN are not valid.
        """
        table = model_output.to(working_dtype(model_output.device))
        if self.input == "logits":
            return table, _find_valid_logits(table)
        logits = torch.log(replace_zero_probabilities(TORCH, table))
        if model_output.dtype != torch.float64:
            # Python also rounds the logarithms to float32, unless the probabilities are float64.
            logits = logits.to(torch.float32).to(table.dtype)
        dtype_name = str(model_output.dtype).removeprefix("torch.")
        tolerance = SUM_TOLERANCE.get(dtype_name, SUM_TOLERANCE["float64"])
        return logits, _find_valid_probabilities(table, tolerance)

    def _replace_unknown_groups(self, table: Tensor, group: Tensor | None) -> Tensor | None:
        """Return the group index of each row, with n_groups for an unknown group."""
        if group is None:
            return None
        n_groups = len(self.groups or ())
        input_index = group.to(device=table.device, dtype=torch.int64)
        is_known_group = (input_index >= 0) & (input_index < n_groups)
        unknown_index = torch.full_like(input_index, n_groups)
        return torch.where(is_known_group, input_index, unknown_index)

    def _compute_decision_logits(self, table: Tensor, group_index: Tensor | None) -> Tensor:
        """Shift the logits of the second class so that the largest logit is the prediction's."""
        if not self.has_decision_offset:
            return table
        decision_offsets = match_table(self.decision_at, table)
        if self.has_two_thresholds_per_group:
            decision_offsets = decision_offsets[group_index]
        return table - decision_offsets

    def _find_row_thresholds(self, decision_logits: Tensor, group_index: Tensor | None) -> Tensor:
        """Return the threshold of each row, or a single threshold for all rows.

        Thresholds by class or group are a table with one row per class or group. It has one column,
        or two if each group has a threshold for each of two predicted classes.
        """
        thresholds = match_table(self.threshold, decision_logits)
        if self.subgroup_kind is None:
            return thresholds
        only_column = 0
        if group_index is None:
            predicted_class = TORCH.argmax(decision_logits)[:, 0]
            return thresholds[predicted_class, only_column]
        if self.has_two_thresholds_per_group:
            predicted_class = TORCH.argmax(decision_logits)[:, 0]
            return thresholds[group_index, predicted_class]
        return thresholds[group_index, only_column]

    def _compute_probabilities(self, table: Tensor, dtype: torch.dtype) -> Tensor:
        """Compute the probabilities of the map, and round them to a dtype.

        If the map preserves the predicted class, rounding does not change it either.
        """
        if not self.is_temperature_scaling:
            probs = self.map(_limit_logits(table)).to(dtype)
            can_round_to_tie = True
        elif dtype == torch.float64:
            probs = self.map(table).to(dtype)
            can_round_to_tie = False
        else:
            probs = self.map(table.to(torch.float32)).to(dtype)
            can_round_to_tie = dtype in (torch.float16, torch.bfloat16)
        if self.preserves_predictions and can_round_to_tie:
            probs = _restore_prediction(table, probs)
        return limit_probabilities(TORCH, table, probs)


def _find_valid_logits(logits: Tensor) -> Tensor:
    """Return whether each row contains neither NaN nor +inf, and an unmasked class."""
    largest_logit = TORCH.max(logits)[:, 0]
    is_finite = (largest_logit < torch.inf) & (largest_logit > -torch.inf)
    # The maximum of an exported graph may ignore NaN, but a sum of absolute values does not. Only
    # NaN differs from itself.
    absolute_sum = logits.abs().sum(dim=1)
    has_no_nan = absolute_sum == absolute_sum
    return is_finite & has_no_nan


def _find_valid_probabilities(probs: Tensor, tolerance: float) -> Tensor:
    """Return whether each row consists of numbers between 0 and 1 that sum to one."""
    in_range = ((probs >= 0.0) & (probs <= 1.0 + tolerance)).all(dim=1)
    sums_to_one = (probs.sum(dim=1) - 1.0).abs() <= tolerance
    return in_range & sums_to_one


def _limit_logits(table: Tensor) -> Tensor:
    """Replace finite masks by -inf, and limit logits so that their squares are finite."""
    max_size = MAX_LOGIT_SIZE if table.dtype == torch.float64 else _MAX_FLOAT32_LOGIT
    masked_table = replace_finite_masks_formula(TORCH, table)
    return limit_logits_formula(TORCH, masked_table, max_size)


def _restore_prediction(table: Tensor, probs: Tensor) -> Tensor:
    """Restore the lead of the predicted class if rounding has removed it."""
    prediction = TORCH.argmax(table)
    increased_prob = TORCH.max(probs) * (1.0 + torch.finfo(probs.dtype).eps)
    has_lost_lead = TORCH.argmax(probs) != prediction
    predicted_prob = torch.where(has_lost_lead, increased_prob, probs.gather(1, prediction))
    return probs.scatter(1, prediction, predicted_prob)


def to_module(cal: Any, *, rejected: gates.Rejected | None = None) -> Gate:
    """Convert a fitted gate or calibrator to a torch module.

    Parameters
    ----------
    cal : MetaCal, calibrator, CalibratedClassifier or mc.Gate
        Fitted with one of metacal's own calibrators and scores (a name, or a ranker of
        `scores.learned`); also the result of `mc.load`. A calibrator without a gate accepts every
        valid row, and its score is the entropy. For a CalibratedClassifier, the module reads the
        logits of the inner classifier.

    rejected : {"calibrated", "uniform"} or None, default=None
        Probabilities of rejected rows: calibrated too, or 1/K in every class as in the paper. None
        is "calibrated", and "uniform" for the rules of `metacal.paper`.

    Returns
    -------
    Gate
        Module without parameters. The fitted numbers are float64 buffers, which `.half()` does not
        round, and there are no gradients. A threshold lies halfway between two values that a score
        can have (`kernels.grid`), so that rounding on another machine does not change a decision.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits, data.labels)
    >>> probs, score, accept = to_module(cal)(torch.tensor(data.logits, dtype=torch.float16))
    >>> probs.dtype, bool((accept.numpy() == cal.accepts(data.logits.astype("float16"))).all())
    (torch.float16, True)
    """
    return Gate(extract_gate(cal, requires_logits_gate=True), rejected)


class CalibratedModule(nn.Module):
    """Classifier with its gate: (probs, score, accept) = module(inputs).

    The module is for inference. The classifier always runs in evaluation mode, whatever `train()`
    is called with, and without gradients, because the gate was fitted on its outputs in that mode.
    The classifier is not copied.

    Parameters
    ----------
    model : nn.Module
        Classifier. It returns the logits as a tensor, as the first item of a tuple or list, or as
        `logits` of an object or mapping (a transformers model output). For two classes, one logit
        per row is enough, of shape (n,) or (n, 1).

    cal : MetaCal or calibrator
        Fitted; see `to_module`.

    rejected : {"calibrated", "uniform"} or None, default=None
        Probabilities of rejected rows; see `to_module`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(data.logits, data.labels)
    >>> served = CalibratedModule(torch.nn.Linear(32, 10), cal)
    >>> probs, score, accept = served(torch.zeros(4, 32))
    >>> probs.shape, score.dtype, accept.dtype
    (torch.Size([4, 10]), torch.float64, torch.bool)
    """

    def __init__(
        self, model: nn.Module, cal: Any, *, rejected: gates.Rejected | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.gate = to_module(cal, rejected=rejected)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever `mode` is."""
        super().train(False)
        return self

    def forward(
        self, inputs: Any = None, /, *model_args: Any, **model_kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the classifier to the arguments, and the gate to its logits.

        Parameters
        ----------
        inputs, *model_args, **model_kwargs
            Arguments of the classifier. If the gate has a threshold by group, the keyword argument
            `group` is for the gate and not passed to the classifier.

        Returns
        -------
        probs : Tensor of shape (n, K)

        score : Tensor of shape (n,)

        accept : Tensor of bool of shape (n,)
        """
        logits, group = self._apply_model(inputs, model_args, model_kwargs)
        probs, score, accept = self.gate(logits, group)
        return probs, score, accept

    def predict(self, inputs: Any = None, /, *model_args: Any, **model_kwargs: Any) -> Tensor:
        """Return the column of the predicted class of each row, including rejected rows.

        The parameters are those of `forward`. See `Gate.predict`.
        """
        logits, group = self._apply_model(inputs, model_args, model_kwargs)
        return self.gate.predict(logits, group)

    def _apply_model(
        self, inputs: Any, model_args: tuple[Any, ...], model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the classifier, and the groups for the gate."""
        group = None
        if self.gate.subgroup_kind == "group":
            group = model_kwargs.pop("group", None)
        if inputs is not None:
            model_args = (inputs, *model_args)
        # Before torch 2.7 there is no is_exporting.
        is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
        # An exported graph has no gradients, and disabling them would add a node to it.
        with nullcontext() if is_exporting() else torch.no_grad():
            model_output = self.model(*model_args, **model_kwargs)
        return extract_logits(model_output), group


def extract_logits(output: Any) -> Tensor:
    """Return the logits in the output of a classifier.

    Parameters
    ----------
    output : Tensor, tuple, list, mapping or object
        Output of the classifier.

    Returns
    -------
    Tensor

    Raises
    ------
    InputError
        If the output contains no logits.

    Examples
    --------
    >>> extract_logits({"loss": None, "logits": torch.zeros(1, 2)}).shape
    torch.Size([1, 2])
    >>> extract_logits("cat")
    Traceback (most recent call last):
    metacal.errors.ExportError: The model must return logits as a tensor, as the first item of ...
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    elif isinstance(output, tuple | list) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise ExportError(
            "The model must return logits as a tensor, as the first item of a tuple, or in a"
            f" field named 'logits', but it returned {type(output).__name__}."
        )
    return logits
