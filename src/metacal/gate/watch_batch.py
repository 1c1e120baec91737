"""Batch of rows and labels for a watch, as arrays that can be divided into blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import CasesError
from metacal.formulas import Float
from metacal.gate.decision import Decision
from metacal.gate.gate import Gate
from metacal.gate.model_outputs import (
    select_label_of_answering_model,
    split_model_outputs,
    stack_model_outputs,
)
from metacal.gate.traffic import BatchLines, Id, LateLabel
from metacal.gate.waiting_rows import EncodedLabel
from metacal.gate.watch_labels import encode_labels, encode_late_labels
from metacal.gate.watched_clusters import read_cluster_ids


@dataclass(eq=False)
class WatchBatch:
    """Rows of a batch, in the order of their arrival.

    Attributes
    ----------
    rows : array
        Rows from `read_rows`.
    label_codes : array
        Code of each label, -1 if it is not known.
    ids : sequence or None
        Id of each row.
    cluster_ids : list or None
        Cluster of each row.
    late_labels : deque of EncodedLabel
        Labels of earlier rows. The watch removes those that it has used.
    probabilities : array or None
        Probability with which each row is selected for labelling.
    groups : array or None
        Group of each row.
    lines : BatchLines or None
        Lines of text that the rows were read from.
    """

    rows: NDArray[Any]
    label_codes: NDArray[Any]
    ids: Sequence[Id | None] | None
    cluster_ids: list[Id] | None
    late_labels: deque[EncodedLabel]
    probabilities: Float | None
    groups: NDArray[Any] | None
    lines: BatchLines | None

    @classmethod
    def read(
        cls,
        gate: Gate,
        X: Any,
        y: Any,
        *,
        ids: Sequence[Id | None] | None,
        probability: Any,
        groups: Any,
        units: Sequence[Id] | None,
        late: Sequence[LateLabel],
        lines: BatchLines | None,
    ) -> WatchBatch:
        """Read and check the arguments of `Watch.update`."""
        promise_is_about_cases = gate.certificate is not None and gate.certificate.cases is not None
        if promise_is_about_cases and probability is not None:
            raise CasesError(
                "A watch on cases does not support sampling probabilities, because it reads"
                " whole cases with all of their labels. Leave out probability, and select whole"
                " cases at random."
            )
        rows = read_rows(gate, X)
        row_labels = select_label_of_answering_model(gate, rows, y)
        probabilities = None
        if probability is not None:
            probabilities = np.asarray(probability, dtype=np.float64)
        row_groups = None
        if groups is not None:
            row_groups = np.asarray(groups)
        return cls(
            rows=rows,
            label_codes=encode_labels(gate, row_labels, len(rows)),
            ids=ids,
            cluster_ids=read_cluster_ids(gate.certificate, units, len(rows)),
            late_labels=deque(encode_late_labels(gate, late)),
            probabilities=probabilities,
            groups=row_groups,
            lines=lines,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def select_groups(self, block: slice) -> NDArray[Any] | None:
        """Return the groups of a block of the batch."""
        return None if self.groups is None else self.groups[block]

    def select_probabilities(self, block: slice) -> Float | None:
        """Return the sampling probabilities of a block of the batch."""
        return None if self.probabilities is None else self.probabilities[block]


def read_rows(gate: Gate, X: Any) -> NDArray[Any]:
    """Convert the input of a watch to an array.

    The second axis of the array has the models of a cascade.

    Raises InputError if the gate cannot read the input.
    """
    no_rows = np.empty(0)
    if len(X) == 0:
        return no_rows
    if gate.is_cascade:
        return stack_model_outputs(gate, X)
    return np.asarray(gate.source.read(X))


def decide_batch_rows(gate: Gate, rows: NDArray[Any], groups: NDArray[Any] | None) -> Decision:
    """Decide on rows of a batch that `read_rows` has converted to an array."""
    stage_inputs = [rows]
    if gate.is_cascade:
        stage_inputs = split_model_outputs(gate, rows)
    checked_stage_inputs = [
        stage.source.to_rows_from_checked(stage_input)
        for stage, stage_input in zip(gate.stages, stage_inputs)
    ]
    return gate.decide(*checked_stage_inputs, groups=groups)
