# mypy: allow-subclassing-any, allow-untyped-calls
"""CalibratedModule: a classifier with its gate behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from metacal.errors import InputError
from metacal.export.torch.gate import to_module


class CalibratedModule(nn.Module):
    """The classifier's logits through the fitted gate: (probs, score, accept) = module(inputs).

    For serving: the classifier runs in evaluation mode, whatever `train()` is called with, and without gradients; the
    gate was fitted on what it says in that mode. The classifier is held, not copied.

    Parameters
    ----------
    model : nn.Module
        Returns the logits as a tensor, as the first item of a tuple or list, or under the name `logits` of an object
        or mapping (a transformers model output).
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

    def forward(self, inputs: Any = None, /, *more: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Call the classifier with these arguments; return probs (n × K), score (n) and accept (n).

        A gate by group takes the groups' numbers as `group=`, which the classifier does not see.
        """
        group = named.pop("group", None) if self.gate.by == "group" else None
        arguments = more if inputs is None else (inputs, *more)
        if _exporting():  # an exported graph has no gradients anyway, and switching them would be a node in it
            output = self.model(*arguments, **named)
        else:
            with torch.no_grad():
                output = self.model(*arguments, **named)
        probs, score, accept = self.gate(logits_of(output), group)
        return probs, score, accept


def _exporting() -> bool:
    asked = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch < 2.7 has only the second
    return bool(asked())


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
            f"the model returned {type(output).__name__}; a CalibratedModule needs logits as a tensor, as the first "
            "item of a tuple, or named 'logits'."
        )
    return found
