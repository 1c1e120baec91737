# mypy: allow-subclassing-any, allow-untyped-calls
"""The fitted map, its score and its threshold as one module, alone (`Gate`) or behind a
classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from metacal import gate as value
from metacal.errors import InputError
from metacal.export.fitted import SUM_TOLERANCE, gate_of
from metacal.export.torch.maps import Fixed, MapModule, beside, work_type
from metacal.export.torch.scores import score_module
from metacal.formulas.inside import inside
from metacal.formulas.logits import REACH, bring_within_reach, read_masks, without_zeros
from metacal.formulas.torch import TORCH
from metacal.maps.temperature import TemperatureMap

#: No logit further from zero is computed with on a device that has float32 only.
_SINGLE_REACH = 1e15


class Gate(Fixed):
    """probs, score, accept of a table of logits, by the fitted map.

    Accept iff score <= threshold; rejected rows are uniform. Where each predicted class has a
    threshold, that of the row's own decides; where each group has, `gate(logits, group)` takes the
    number of each row's group, its place in `groups`: any other number is a group that the fit has
    not seen, and rejected. A row that is not a row of logits (a NaN, +inf, every class masked) has
    score NaN, is never accepted, and is uniform too. `probs` has the dtype and device of the input;
    `score` is float64 (float32 on a device that has no float64).
    """

    def __init__(self, fitted: value.Gate) -> None:
        super().__init__()
        self.n_classes = fitted.n_classes
        source, own = fitted.source, fitted.thresholds
        self.input = source.input
        self.keeps_predictions = bool(source.map.preserves_accuracy)
        # As in Python, plain temperature scaling works in the precision of the table: nothing is
        # decided by it.
        self.in_table_precision = isinstance(source.map, TemperatureMap)
        self.certificate = fitted.certificate
        self.map = MapModule(source.map)
        self.score = score_module(source.score)
        self.by = fitted.policy.by
        self.groups = own.names if own is not None and fitted.by_group else None
        self.sides = bool(fitted.policy.at)
        self.moved = self.sides or bool(
            source.decision_at
        )  # of two classes: answered by the second above these
        # The last is that of a group that the fit has not seen.
        at = [*fitted.policy.at, 0.0] if self.sides else [source.decision_at]
        if self.moved:
            self.keep(decision_at=[[0.0, one] for one in at])
        self.keep(threshold=fitted.threshold if own is None else own.table.tolist())
        self.eval()

    def forward(self, logits: Tensor, group: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return probs (n × K), score (n) and accept (n)."""
        self._check(logits, group)
        table, usable = self._read(logits.detach())
        number = self._number(table, group)
        at = beside(self.decision_at, table) if self.moved else None
        there = table if at is None else table - (at[number] if self.sides else at)
        score = torch.where(usable, self.score(there), torch.full_like(table[:, 0], torch.nan))
        dtype = logits.dtype if logits.is_floating_point() else torch.get_default_dtype()
        probs = self._probabilities(table, dtype)
        # Whatever the score says, a row whose probabilities are no numbers is not accepted.
        accept = (score <= self._threshold(there, number)) & usable & (probs.sum(dim=1) < torch.inf)
        return probs.masked_fill(~accept.unsqueeze(1), 1.0 / self.n_classes), score, accept

    def extra_repr(self) -> str:
        """The promise, and what comes in."""
        promise = (
            "no promise: every row is accepted"
            if self.certificate is None
            else self.certificate.statement
        )
        return f"{self.n_classes} classes, input={self.input!r}; {promise}"

    def _number(self, table: Tensor, group: Tensor | None) -> Tensor | None:
        """The number of each row's group, the last for one that the fit has not seen."""
        if group is None:
            return None
        last, number = len(self.groups or ()), group.to(device=table.device, dtype=torch.int64)
        return torch.where((number >= 0) & (number < last), number, torch.full_like(number, last))

    def _threshold(self, table: Tensor, number: Tensor | None) -> Tensor:
        """The threshold, or that of each row: its predicted class's or its group's, or both at
        once.
        """
        values = beside(self.threshold, table)
        if self.by is None:
            return values
        top = TORCH.argmax(table)[:, 0] if self.sides or number is None else None
        return values[top, 0] if number is None else values[number, top if self.sides else 0]

    def _check(self, logits: Tensor, group: Tensor | None) -> None:
        if (self.by == "group") != (group is not None):
            raise InputError(
                "this gate has a threshold for each group; give the number of each row's group,"
                f" its place in `groups` ({', '.join(map(str, (self.groups or ())[:5]))}):"
                " gate(logits, group)."
                if group is None
                else "this gate has no threshold by group; leave out group."
            )
        if torch.jit.is_tracing():  # sizes are tensors there, and the example has been looked at
            return
        if logits.ndim != 2 or logits.shape[1] != self.n_classes:
            raise InputError(
                f"this gate reads a table of {self.input} with {self.n_classes} columns, one per"
                f" class; got a tensor of shape {tuple(logits.shape)}. Several outputs per item:"
                " logits.reshape(-1, K)."
            )

    def _probabilities(self, table: Tensor, dtype: torch.dtype) -> Tensor:
        """The map's answer in the dtype of the input, the largest logit's class on top if the map
        keeps it there.
        """
        single = self.in_table_precision and dtype != torch.float64
        readable = table if self.in_table_precision else _readable(table)
        probs = self.map(table.to(torch.float32) if single else readable).to(dtype)
        merged = not self.in_table_precision or dtype in (torch.float16, torch.bfloat16)
        found = _with_winner(table, probs) if self.keeps_predictions and merged else probs
        return inside(TORCH, table, found)

    def _read(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and which rows can be read as such. Comparisons with NaN are false: what is
        unclear is unusable.
        """
        table = source.to(work_type(source.device))
        if self.input == "logits":
            # Exported, a maximum may pass over NaN; a sum does not, and of sizes none overflows to
            # NaN.
            top, size = TORCH.max(table)[:, 0], table.abs().sum(dim=1)
            return table, (top < torch.inf) & (top > -torch.inf) & (size == size)
        tolerance = SUM_TOLERANCE.get(
            str(source.dtype).removeprefix("torch."), SUM_TOLERANCE["float64"]
        )
        inside = ((table >= 0.0) & (table <= 1.0 + tolerance)).all(dim=1)
        usable = inside & ((table.sum(dim=1) - 1.0).abs() <= tolerance)
        logits = torch.log(without_zeros(TORCH, table))
        return (
            logits if source.dtype == torch.float64 else logits.to(torch.float32).to(table.dtype)
        ), usable


def _readable(table: Tensor) -> Tensor:
    """Finite masks as -inf, and no logit that cannot be squared and summed."""
    reach = REACH if table.dtype == torch.float64 else _SINGLE_REACH
    return bring_within_reach(TORCH, read_masks(TORCH, table), reach)


def _with_winner(table: Tensor, probs: Tensor) -> Tensor:
    """Where rounding has tied the largest logit's class with a lower column, lift it by the
    smallest step.
    """
    column = TORCH.argmax(table)
    lifted = TORCH.max(probs) * (1.0 + torch.finfo(probs.dtype).eps)
    own = torch.where(TORCH.argmax(probs) != column, lifted, probs.gather(1, column))
    return probs.scatter(1, column, own)


def to_module(cal: Any) -> Gate:
    """A fitted gate or calibrator as an `nn.Module` that returns (probs, score, accept).

    Parameters
    ----------
    cal : MetaCal, calibrator, CalibratedClassifier or mc.Gate
        Fitted, with one of metacal's own calibrators and scores (a name, or a ranker of
        `scores.learned`); also what `mc.load` returns. A calibrator without a gate accepts every
        row that can be read; its score is the entropy. Of a CalibratedClassifier it is the gate
        alone, on the logits of the classifier inside.

    Returns
    -------
    Gate
        A module without parameters: fitted numbers are float64 buffers that no `.half()` rounds,
        nothing has a gradient. The threshold lies in the middle between two numbers that a score
        can be (`kernels.grid`), so that rounding on another machine decides no row.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits, data.labels)
    >>> probs, score, accept = to_module(cal)(torch.tensor(data.logits, dtype=torch.float16))
    >>> probs.dtype, bool((accept.numpy() == cal.accepts(data.logits.astype("float16"))).all())
    (torch.float16, True)
    """
    return Gate(gate_of(cal, on_tables=True))


class CalibratedModule(nn.Module):
    """The classifier's logits through the fitted gate: (probs, score, accept) = module(inputs).

    For serving: the classifier runs in evaluation mode, whatever `train()` is called with, and
    without gradients; the gate was fitted on what it says in that mode. The classifier is held, not
    copied.

    Parameters
    ----------
    model : nn.Module
        Returns the logits as a tensor, as the first item of a tuple or list, or under the name
        `logits` of an object or mapping (a transformers model output).
    cal : MetaCal or calibrator
        Fitted; see `to_module`.

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

    def __init__(self, model: nn.Module, cal: Any) -> None:
        super().__init__()
        self.model = model
        self.gate = to_module(cal)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        super().train(False)
        return self

    def forward(
        self, inputs: Any = None, /, *more: Any, **named: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Call the classifier with these arguments; return probs (n × K), score (n) and accept (n).

        A gate by group takes the groups' numbers as `group=`, which the classifier does not see.
        """
        group = named.pop("group", None) if self.gate.by == "group" else None
        arguments = more if inputs is None else (inputs, *more)
        exporting = getattr(
            torch.compiler, "is_exporting", torch.compiler.is_compiling
        )  # torch < 2.7: only the second
        # An exported graph has no gradients anyway, and switching them would be a node in it.
        with nullcontext() if exporting() else torch.no_grad():
            output = self.model(*arguments, **named)
        probs, score, accept = self.gate(logits_of(output), group)
        return probs, score, accept


def logits_of(output: Any) -> Tensor:
    """The logits in what a classifier returned.

    Examples
    --------
    >>> logits_of({"loss": None, "logits": torch.zeros(1, 2)}).shape
    torch.Size([1, 2])
    >>> logits_of("cat")
    Traceback (most recent call last):
    metacal.errors.InputError: the model returned str; a CalibratedModule needs logits as a tensor, ...
    """
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise InputError(
            f"the model returned {type(output).__name__}; a CalibratedModule needs logits as a"
            " tensor, as the first item of a tuple, or named 'logits'."
        )
    return found
