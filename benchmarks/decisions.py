"""Does one gate decide alike everywhere? Every row by every kernel, by ONNX and by the torch
module.

Gates are fitted under each kernel that this processor runs (plain C, AVX2, AVX-512, NumPy) and
applied under each, to their own calibration rows and to new ones; the exported graph and module of
each are run on the same rows. A *flip* is a row that is decided otherwise than under the kernel
that fitted the gate. The rows are those where rounding shows: votes of forests, logits of one
decimal or eight bits; and continuous logits, for comparison.

python -m benchmarks.decisions           # about half an hour; writes
benchmarks/results/decisions.json python -m benchmarks.decisions --every 7 # every seventh case,
promise, score and precision: five minutes
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import metacal as mc
from metacal import datasets, kernels
from metacal.export import saved as artifact
from metacal.export.onnx import to_onnx
from metacal.export.torch import to_module
from metacal.kernels import numpy as definition
from metacal.promises.judging import judge

RESULTS = Path(__file__).resolve().parent / "results" / "decisions.json"
SCORES = ("entropy", "max_probability", "margin", "energy")
PROMISES = (
    mc.MaxMiscoverage(0.1),
    mc.MaxMiscoverage(0.2),
    mc.MinAccuracy(0.95),
    mc.MinAccuracy(0.98),
)
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Case:
    """Rows to fit on and new rows, of one kind."""

    family: str
    name: str
    fit: NDArray[Any]
    labels: NDArray[Any]
    new: NDArray[Any]
    new_labels: NDArray[Any]
    input: str = "logits"


@dataclass
class Tally:
    """What was compared, and what differed."""

    gates: int = 0
    fits: int = 0
    infeasible: int = 0
    decisions: int = 0
    flips: dict[str, int] = field(default_factory=dict)
    flipped_gates: int = 0
    other_thresholds: int = 0
    other_verdicts: int = 0
    other_counts: int = 0
    other_once_saved: int = 0

    def add(self, other: Tally) -> None:
        """Count another tally in."""
        for name, value in vars(other).items():
            if name == "flips":
                for target, count in value.items():
                    self.flips[target] = self.flips.get(target, 0) + count
            else:
                setattr(self, name, getattr(self, name) + value)


def kernel_names() -> list[str]:
    """What this process can run: every instruction set of the C kernel, if it is active, and
    NumPy.
    """
    return [
        *(
            kernels.host_kernels.instruction_sets()
            if kernels.host_kernels is not definition
            else ()
        ),
        "numpy",
    ]


@contextmanager
def using(kernel: str) -> Iterator[None]:
    """Run the scores of this kernel."""
    if kernels.host_kernels is definition:
        yield
        return
    from metacal.kernels import _fused, fused

    if kernel == "numpy":
        with (
            mock.patch.object(fused, "_score", _by_definition),
            mock.patch.object(_fused, "predicted", _predicted),
        ):
            yield
        return
    _fused.use(kernel)
    try:
        yield
    finally:
        _fused.use(_fused.instruction_sets()[0])


def _by_definition(
    block: NDArray[Any], kind: int, *, rows: Any = None, top: Any = None, careful: bool = False
) -> NDArray[np.float64]:
    """What `fused._score` does, by NumPy; a table that was not looked over yet has nothing to be
    careful about here.
    """
    block = block if rows is None else block[rows]
    if top is not None:
        top[...] = definition.predict_classes(block)
    score = (
        definition.entropy,
        definition.one_minus_max_probability,
        definition.negative_margin,
        definition.free_energy,
    )[kind]
    return score(block)


def _predicted(block: NDArray[Any], rows: Any, out: NDArray[Any]) -> None:
    out[...] = definition.predict_classes(block if rows is None else block[rows])


# ── the rows ──────────────────────────────────────────────────────────────────────────────────────


def forests(trees: tuple[int, ...] = (5, 10, 20, 25, 50), seeds: int = 6) -> Iterator[Case]:
    """The votes of forests on scikit-learn's digits: probabilities that tie all the time."""
    images, digits = load_digits(return_X_y=True)
    for count in trees:
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(images))
            train, fit, new = order[:500], order[500:1150], order[1150:]
            forest = RandomForestClassifier(count, max_depth=6, random_state=seed).fit(
                images[train], digits[train]
            )
            share = np.stack(
                [tree.predict(images).astype(int) for tree in forest.estimators_], axis=1
            )
            votes = np.stack([np.bincount(row, minlength=10) for row in share]) / count
            yield Case(
                "forest votes",
                f"{count} trees",
                votes[fit],
                digits[fit],
                votes[new],
                digits[new],
                "probabilities",
            )


def synthetic(classes: int, seed: int, n: int = 1200) -> tuple[NDArray[Any], NDArray[Any]]:
    """Continuous logits, right about four times in five."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes)) * 1.5
    logits[np.arange(n), labels] += rng.gamma(3.0, 1.2, size=n) + np.log(classes) / 2
    return logits, labels


def continuous(classes: tuple[int, ...] = (2, 10, 100, 1000), seeds: int = 2) -> Iterator[Case]:
    """The embedded sets, and drawn ones."""
    for name in datasets.names():
        data = datasets.load(name)
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(data.logits))
            fit, new = order[:1500], order[1500:4000]
            yield Case(
                "continuous",
                name,
                data.logits[fit],
                data.labels[fit],
                data.logits[new],
                data.labels[new],
            )
    for width in classes:
        for seed in range(seeds):
            logits, labels = synthetic(width, seed)
            yield Case(
                "continuous",
                f"drawn, {width} classes",
                logits[:600],
                labels[:600],
                logits[600:],
                labels[600:],
            )


def quantised(classes: tuple[int, ...] = (2, 10, 100), seeds: int = 2) -> Iterator[Case]:
    """The same rows with one decimal, and as eight-bit integers times a scale."""
    for case in continuous(classes, seeds):
        scale = np.abs(case.fit).max() / 127.0
        coarse = {"one decimal": [np.round(part, 1) for part in (case.fit, case.new)]}
        coarse["int8"] = [np.rint(part / scale) * scale for part in (case.fit, case.new)]
        for family, (fit, new) in coarse.items():
            yield replace(case, family=family, fit=fit, new=new)


# ── the comparison ────────────────────────────────────────────────────────────────────────────────


def by_kernels(gate: Any, table: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
    """Each row's decision by every kernel."""
    found = {}
    for kernel in kernel_names():
        with using(kernel):
            found[kernel] = gate.accepts(table)
    return found


def by_exports(gate: Any, table: NDArray[Any]) -> dict[str, NDArray[np.bool_]]:
    """Each row's decision by the exported graph and by the exported module."""
    found = {"torch": to_module(gate)(torch.from_numpy(table))[2].numpy()}
    if isinstance(gate.score, str):
        graph = to_onnx(gate, dtype=str(table.dtype)).SerializeToString()
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        found["onnx"] = session.run(["accept"], {session.get_inputs()[0].name: table})[0]
    return found


def compare(case: Case, promise: Any, score: Any, dtype: str) -> Tally:
    """One promise on one kind of rows: fitted under each kernel, applied under each."""
    tally = Tally(gates=1)
    exported: dict[
        Any, dict[str, NDArray[np.bool_]]
    ] = {}  # by threshold: nothing else of a gate decides
    fit, new = case.fit.astype(dtype), case.new.astype(dtype)
    both = np.concatenate([fit, new])
    for kernel in kernel_names():
        try:
            with using(kernel):
                gate = mc.MetaCal(promise, score=score, input=case.input).fit(fit, case.labels)
        except mc.InfeasibleTargetError:
            tally.infeasible += 1
            exported.setdefault(None, {})
            continue
        tally.fits += 1
        if gate.threshold_ not in exported:
            exported[gate.threshold_] = by_exports(gate, both)
        found = by_kernels(gate, both) | exported[gate.threshold_]
        flips = {target: int((accept != found[kernel]).sum()) for target, accept in found.items()}
        tally.add(
            Tally(
                decisions=sum(map(len, found.values())),
                flips=flips,
                flipped_gates=int(any(flips.values())),
            )
        )
        _judged(tally, gate, found, fit, case.labels)
    tally.other_thresholds += len(exported) - 1
    return tally


def _judged(
    tally: Tally,
    gate: Any,
    found: dict[str, NDArray[np.bool_]],
    table: NDArray[Any],
    labels: NDArray[Any],
) -> None:
    """The gate on its own rows: the same verdict everywhere, the certificate's own counts, and the
    same once saved.
    """
    certificate, right, verdicts = gate.certificate_, table.argmax(axis=1) == labels, set()
    for decisions in found.values():
        accept = decisions[: len(table)]
        verdicts.add(str(judge(certificate, accept, right, 0.95)))
        # The certificate counts no pilot rows, but the decisions are about all rows.
        n_more_accepted = int(accept.sum()) - certificate.n_accepted
        n_more_correct = int((accept & right).sum()) - certificate.n_correct_accepted
        n_pilot_rows = certificate.design.n_pilot_rows
        tally.other_counts += not 0 <= n_more_correct <= n_more_accepted <= n_pilot_rows
    tally.other_verdicts += len(verdicts) - 1
    if isinstance(gate.score, str):
        tally.other_once_saved += (
            artifact.loads(artifact.dumps(gate).encode()).threshold_ != gate.threshold_
        )


def run(
    cases: Iterator[Case],
    scores: tuple[Any, ...] = SCORES,
    promises: tuple[Any, ...] = PROMISES,
    every: int = 1,
) -> Tally:
    """Every case with every promise, score and precision that go together, or every n-th of
    these.
    """
    total, seen = Tally(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            for score, promise, dtype in itertools.product(scores, promises, DTYPES):
                if score == "energy" and case.input == "probabilities":
                    continue
                if seen % every == 0:
                    total.add(compare(case, promise, score, dtype))
                seen += 1
    return total


def main() -> None:
    """Run everything and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--every", type=int, default=1, help="only every n-th case, promise, score and precision"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    torch.set_num_threads(1)
    found = {}
    every = {
        "forest votes": forests(),
        "one decimal": (case for case in quantised() if case.family == "one decimal"),
        "int8": (case for case in quantised() if case.family == "int8"),
        "continuous": continuous(),
    }
    for family, cases in every.items():
        found[family] = vars(run(cases, every=chosen.every))
        print(family, found[family], flush=True)
    whole = {
        "every": chosen.every,
        "kernels": kernel_names(),
        "scores": SCORES,
        "promises": [repr(promise) for promise in PROMISES],
        "versions": {
            "numpy": np.__version__,
            "onnxruntime": onnxruntime.__version__,
            "torch": torch.__version__,
        },
        "machine": platform.machine(),
        "families": found,
    }
    chosen.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
