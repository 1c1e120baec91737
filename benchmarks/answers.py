"""Cascades over scores: how far each rule comes, how often it breaks its promise.

    python -m benchmarks.answers --data FOLDER [--draws N] [--jobs 16] [-o RESULT.json] [--only
    duel]

`duel`: the share of rows that go to the large model, calibration labels included, beside the least
possible one; of a pool and of its source; BARGAIN (package `bargain` 0.1.3, its own algorithm, its
models answered from arrays) on the same pools where it is installed. `stages`: what three and five
models cost beside the cheapest thresholds that keep the promise, and beside Learn-then-Test on a
grid with Bonferroni's correction. What is run alone takes its place in RESULT.json
beside what is there. `benchmarks.answer_adversaries` tempts them.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
import types
from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import bdtr

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal.promises.bad_answer_limit import BadAnswerTest, suggest_label_count
from metacal.promises.staged_cascade import CascadeScores

DELTA = 0.1
COMMITTED = Path(__file__).parent / "results" / "answers.json"
#: Small network, large one (or the truth), and the share of answers that may differ.
PAIRS = (
    ("cifar10_resnet110", "cifar10_wrn32", 0.02),
    ("cifar10_densenet40", "cifar10_wrn32", 0.02),
    ("cifar10_resnet110sd", None, 0.02),
    ("cifar100_resnet110sd", "cifar100_wrn32", 0.1),
    ("cifar100_densenet40", None, 0.1),
    ("langid176_sentences", None, 0.05),
)
POOLS = (5000, 20_000)
#: How many pools of each size BARGAIN is run on.
PEER_DRAWS = 200
CHAINS = {
    "cifar10, three": (("cifar10_resnet110", "cifar10_wrn32"), (1.0, 10.0, 100.0), 0.02),
    "cifar100, three": (("cifar100_resnet110", "cifar100_wrn32"), (1.0, 10.0, 100.0), 0.1),
    "cifar10, five": (
        ("cifar10_resnet110", "cifar10_resnet110sd", "cifar10_densenet40", "cifar10_wrn32"),
        (1.0, 3.0, 10.0, 30.0, 100.0),
        0.02,
    ),
    "cifar100, five": (
        ("cifar100_resnet110", "cifar100_densenet40", "cifar100_resnet110sd", "cifar100_wrn32"),
        (1.0, 3.0, 10.0, 30.0, 100.0),
        0.1,
    ),
}


@cache
def network(folder: str, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Doubt (1 - largest softmax), answer and truth of each row."""
    data = np.load(Path(folder) / f"{name}.npz")
    logits = data["logits"].astype(np.float64)
    top = np.exp(logits.max(axis=1) - np.logaddexp.reduce(logits, axis=1))
    return 1.0 - top, logits.argmax(axis=1), data["labels"]


def least_sent(doubt: np.ndarray, differs: np.ndarray, most: float) -> float:
    """The least share of rows that must go to the large model so that at most `most` answers
    differ.
    """
    order = np.argsort(doubt, kind="stable")
    return 1.0 - float(np.searchsorted(np.cumsum(differs[order]), most, side="right")) / len(doubt)


# ── two models ────────────────────────────────────────────────────────────────────────────────────


def duel_draw(
    folder: str, pair: tuple[str, str | None, float], size: int, seed: int, peer: bool
) -> dict[str, float]:
    """One pool drawn from the rows, its labels drawn from it, and what each rule makes of it."""
    doubt, answer, truth = network(folder, pair[0])
    differs = answer != (truth if pair[1] is None else network(folder, pair[1])[1])
    rng, epsilon = np.random.default_rng([seed, size]), pair[2]
    doubt = doubt + 1e-9 * np.random.default_rng(0).random(len(doubt))  # saturated scores tie
    rows = rng.choice(len(doubt), size, replace=size > len(doubt))
    own, wrong, best = (
        doubt[rows],
        differs[rows],
        least_sent(doubt[rows], differs[rows], epsilon * size),
    )
    found = {"best": best}
    for pool in (True, False):
        law, n = (
            BadAnswerTest(epsilon, DELTA, pool_size=size if pool else None),
            suggest_label_count(mc.MaxLoss(epsilon, DELTA), size),
        )
        most = law.find_max_passing_bad_count(n, corrects_tested_rows=True)
        labels = rng.choice(size, n, replace=False)
        rest = np.setdiff1d(np.arange(size), labels)
        sample = CascadeScores(
            own[labels, None],
            wrong[labels, None],
            np.ones(2),
            own[rest, None],
            pool,
            random_state=seed,
        )
        limit = mc.MaxLoss(epsilon, DELTA).certify(sample).threshold
        kept = own[rest] <= limit
        name = "pool" if pool else "source"
        found[name] = 1.0 - kept.sum() / size
        broken = (
            (wrong[rest] & kept).sum() > epsilon * size
            if pool
            else (differs & (doubt <= limit)).mean() > epsilon
        )
        found[f"{name} broken"] = float(broken)
        found[f"{name} size"] = law.compute_p_value(
            most,
            law.find_min_tested_rows(n_bad=most, n_available=n, corrects_tested_rows=True),
            corrects_tested_rows=True,
        )
    if peer and seed < PEER_DRAWS:
        found["BARGAIN"], found["BARGAIN broken"] = bargain(own, wrong, epsilon, seed)
    return found


def bargain(
    doubt: np.ndarray, differs: np.ndarray, epsilon: float, seed: int
) -> tuple[float, float]:
    """The share of rows that BARGAIN_A sends to the oracle, and whether more than epsilon then
    differ.
    """
    sys.modules.setdefault("openai", types.SimpleNamespace(OpenAI=None))  # type: ignore[arg-type]
    package = importlib.import_module("BARGAIN")

    class Small(package.Proxy):
        def get_preds_and_scores(self, indxs, data_records):
            places = np.asarray(indxs, dtype=int)
            return differs[places].astype(int), -doubt[places]

    class Large(package.Oracle):
        def get_pred(self, data_records, indxs=None):
            return np.zeros(len(data_records), dtype=int)

        def is_answer_correct(self, data_indxs, data_records, proxy_output_at_indxs):
            return np.asarray(proxy_output_at_indxs) == 0

    rule = package.BARGAIN_A(
        Small(), Large(), target=1.0 - epsilon, delta=DELTA, verbose=False, seed=seed
    )
    out, used = rule.process(np.arange(len(doubt)), return_oracle_usage=True)
    return float(np.mean(used)), float(np.mean(out) > epsilon)


def duel(folder: str, draws: int, processes: int) -> dict[str, object]:
    """Every pair and size of pool; BARGAIN on some of them."""
    try:
        sys.modules.setdefault("openai", types.SimpleNamespace(OpenAI=None))  # type: ignore[arg-type]
        peer = importlib.import_module("BARGAIN") is not None
    except ImportError:
        peer = False
    tasks = [
        (folder, pair, size, seed, peer)
        for pair in PAIRS
        for size in POOLS
        for seed in range(draws)
    ]
    table: dict[str, dict[str, list[float]]] = {}
    for (_, pair, size, *_), found in zip(
        tasks, in_order(duel_draw, tasks, processes), strict=True
    ):
        row = table.setdefault(f"{pair[0]} / {pair[1] or 'truth'} / {pair[2]:g} / {size}", {})
        for name, value in found.items():
            row.setdefault(name, []).append(value)
    sets = {key: _means(row) for key, row in table.items()}
    if not peer:  # nothing of metacal is in its numbers: those that are committed stay
        before = json.loads(COMMITTED.read_text(encoding="utf-8"))["duel"]["sets"]
        for key, row in sets.items():
            row.update(
                {
                    name: value
                    for name, value in before.get(key, {}).items()
                    if name.startswith("BARGAIN")
                }
            )
    return {"sets": sets}


# ── three models and more ─────────────────────────────────────────────────────────────────────────


def chain(folder: str, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The doubts of the networks, and where each differs from the truth, who is the last."""
    found = [network(folder, name) for name in names]
    doubt = np.stack(
        [own + 1e-9 * np.random.default_rng(0).random(len(own)) for own, *_ in found], axis=1
    )
    return doubt, np.stack([answer != truth for _, answer, truth in found], axis=1)


def outcome(
    doubt: np.ndarray, differs: np.ndarray, costs: np.ndarray, limits: np.ndarray
) -> tuple[float, float]:
    """Cost of a row, and the share of answers that differ."""
    sure = doubt <= limits
    by, m = np.where(sure.any(axis=1), sure.argmax(axis=1), doubt.shape[1]), doubt.shape[1]
    bad = differs[np.arange(len(by)), np.minimum(by, m - 1)] & (by < m)
    return float(costs.cumsum()[by].mean()), float(bad.mean())


def cheapest(doubt: np.ndarray, differs: np.ndarray, costs: np.ndarray, epsilon: float) -> float:
    """The least cost of thresholds that keep the promise: from several starts, one threshold after
    the other.
    """
    m = doubt.shape[1]
    grid = [
        np.concatenate(([-np.inf], np.quantile(doubt[:, j], np.linspace(0.01, 1, 100))))
        for j in range(m)
    ]
    best = np.inf
    for start in itertools.product((0, 30, 60), repeat=m):
        at = list(start)
        for _ in range(6):
            before = list(at)
            for j in np.random.default_rng(list(start)).permutation(m):
                tried = []
                for k in range(len(grid[j])):
                    at[j] = k
                    cost, bad = outcome(
                        doubt, differs, costs, np.array([grid[i][at[i]] for i in range(m)])
                    )
                    tried.append(cost if bad <= epsilon else np.inf)
                at[j] = int(np.argmin(tried)) if np.isfinite(min(tried)) else before[j]
                best = min(best, min(tried))
            if at == before:
                break
    return best


def chain_best(folder: str, name: str) -> float:
    """The cheapest thresholds of a chain, on some of its rows."""
    names, costs, epsilon = CHAINS[name]
    doubt, differs = chain(folder, names)
    rows = np.random.default_rng(1).choice(len(doubt), 4000, replace=False)
    return cheapest(doubt[rows], differs[rows], np.array(costs), epsilon)


def chain_draw(folder: str, name: str, seed: int) -> dict[str, float]:
    """One calibration set: what our thresholds cost on all rows, and those of a corrected grid."""
    names, costs, epsilon = CHAINS[name]
    doubt, differs = chain(folder, names)
    rng, m, n = np.random.default_rng([seed, 7]), doubt.shape[1], 1000
    rows = rng.integers(len(doubt), size=n)
    price = np.array(costs)
    sample = CascadeScores(doubt[rows], differs[rows], price, doubt[:0], random_state=seed)
    stages = mc.MaxLoss(epsilon, DELTA).certify(sample).stages
    assert stages is not None
    ours = outcome(
        doubt, differs, price, np.array([stage.threshold for stage in stages.models[:m]])
    )
    levels = np.linspace(0, 0.95, 20 if m == 2 else 6)
    grid = [np.quantile(doubt[rows, j], levels) for j in range(m)]
    grid = [np.concatenate(([-np.inf], own[1:])) for own in grid]
    found = [price.sum()]
    points = list(itertools.product(*grid))
    for point in points:
        cost, bad = outcome(doubt[rows], differs[rows], price, np.array(point))
        if bdtr(round(bad * n), n, epsilon) <= DELTA / len(points) and cost < found[0]:
            found = [cost, *point]
    other = (
        outcome(doubt, differs, price, np.array(found[1:]))
        if len(found) > 1
        else (price.sum(), 0.0)
    )
    return {
        "cost": ours[0],
        "broken": float(ours[1] > epsilon),
        "LTT cost": other[0],
        "LTT broken": float(other[1] > epsilon),
    }


def stages(folder: str, draws: int, processes: int) -> dict[str, object]:
    """Every chain."""
    best = dict(
        zip(
            CHAINS,
            in_order(chain_best, [(folder, name) for name in CHAINS], processes),
            strict=True,
        )
    )
    tasks = [(folder, name, seed) for name in CHAINS for seed in range(draws)]
    table: dict[str, dict[str, list[float]]] = {name: {} for name in CHAINS}
    for (_, name, _), found in zip(tasks, in_order(chain_draw, tasks, processes), strict=True):
        for key, value in found.items():
            table[name].setdefault(key, []).append(value)
    rows = {name: {**_means(own), "cheapest": best[name]} for name, own in table.items()}
    return {"chains": rows}


def _means(row: dict[str, list[float]]) -> dict[str, float]:
    return {name: float(np.mean(values)) for name, values in row.items()} | {
        "draws": len(next(iter(row.values())))
    }


def main() -> None:
    """Run both, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    runs = {"duel": (duel, 1000), "stages": (stages, 1000)}
    parser.add_argument("--only", choices=runs)
    parser.add_argument("--data", default="benchmarks/data")
    parser.add_argument("--draws", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out")
    options = parser.parse_args()
    chosen = runs if options.only is None else {options.only: runs[options.only]}
    found = {
        name: run(options.data, options.draws or usual, options.jobs)
        for name, (run, usual) in chosen.items()
    }
    there = Path(options.out) if options.only and options.out else None
    before = (
        json.loads(there.read_text(encoding="utf-8"))
        if there is not None and there.exists()
        else {}
    )
    text = json.dumps({**before, "delta": DELTA, **found}, indent=1)
    print(text) if options.out is None else Path(options.out).write_text(
        text + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
