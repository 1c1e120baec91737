"""Alarms over 100,000 rows: how often they are false, how long they take; accuracy without labels, and its error bar.

    python -m benchmarks.monitor --data FOLDER [--replays 300] [--mapie PYTHON] [--out benchmarks/results/monitor.json]
    python -m benchmarks.monitor --merge a.json b.json --out benchmarks/results/monitor.json

**False alarms.** A replay draws 5,000 calibration rows, certifies a gate on them (coverage accuracy 97%), and watches
10^5 rows from the same source, all labelled, looking after every row. *law*: scores are uniform and a row is right with
probability c(score), which is its confidence; the least favourable variants have errors exactly at the limit, and
confidence off by exactly the tolerance. *Real sets*: the rows of a file are the source, drawn with replacement; alarms
on a promise that the source itself breaks are counted apart, and so are those on a calibration that is off by more than
the tolerance in some bin.

**Delay.** Labelled, accepted rows, right with probability 97.5% under a promise of 97%, until the accuracy drops by 1,
2 or 5 points: at once, or after 20,000 rows. Rows from the drop to the alarm, at δ = 5%: this monitor; the same with
one plug-in rate over all rows (what it was before); windows of 500 and 2,000 rows, each tested exactly at 5%, or at 5%
shared by all windows of 10^5 rows; MAPIE's RiskMonitoring with the threshold at 3% (its bound is computed on a grid of
its intrinsic time by MAPIE itself, in the interpreter that --mapie names, and interpolated; one stream is checked
against its `update`).

**Estimates.** Gates are fitted on draws of each file, and the accuracy of their accepted rows is estimated on other
rows without labels: how often the 95% error bar holds the truth; the same where the new rows come mostly from the
classes that the classifier is worst at.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import bdtrc

import metacal as mc
from metacal.promises.rules.accuracy import MinAccuracy
from metacal.promises.sample import Ranking
from metacal.promises.sequential.alarms import NAMES, Alarms
from metacal.promises.sequential.drift import CONFIDENCES, TOLERANCE
from metacal.promises.sequential.monitor import PromiseMonitor
from metacal.promises.sequential.profile import profile_of
from metacal.promises.sequential.wager import Capital, Wager, above

ROWS, CALIBRATION, DELTA, BETA = 100_000, 5_000, 0.05, 0.97
BEFORE, DROPS, LATE, HORIZON = 0.975, (0.01, 0.02, 0.05), 20_000, 100_000
WINDOWS = (500, 2000)
BLOCK = 10_000


def confidence_of(score: np.ndarray) -> np.ndarray:
    """The law's chance of being right: nearly one for sure rows, one half for the least sure."""
    return 1.0 - 0.5 * score**6


# ── false alarms ─────────────────────────────────────────────────────────────────────────────────────────────────────


def watched(alarms: Alarms, score, accept, correct, confidence) -> dict[str, bool]:
    """All rows through the alarms, block by block; every row is looked at inside."""
    for start in range(0, len(score), BLOCK):
        part = slice(start, start + BLOCK)
        alarms.decided(accept[part], score[part])
        alarms.labelled(accept[part], correct[part], confidence[part])
    return {name: name in alarms.raised for name in NAMES}


def replay_law(random: np.random.Generator) -> dict[str, Any]:
    """One replay on the law: calibration rows, certificate, 10^5 rows."""
    score = np.sort(random.random(CALIBRATION))
    right = random.random(CALIBRATION) < confidence_of(score)
    certificate = MinAccuracy(BETA).certify(score, right)
    new = random.random(ROWS)
    sure = confidence_of(new)
    accept = new <= certificate.threshold
    alarms = Alarms.of(certificate, profile_of(Ranking.of(score, right)), DELTA)
    found = watched(alarms, new, accept, random.random(ROWS) < sure, sure)
    edge = min(certificate.threshold, 1.0)
    return {**found, "broken": 1.0 - 0.5 * edge**6 / 7.0 < BETA}


def replay_worst(random: np.random.Generator) -> dict[str, Any]:
    """Errors exactly at the limit; confidence too high by exactly the tolerance."""
    promise = PromiseMonitor("coverage accuracy", 1.0 - BETA, DELTA / 2)
    promise.update(np.ones(ROWS, dtype=bool), random.random(ROWS) >= 1.0 - BETA)
    sure = 0.8 + 0.2 * random.random(ROWS)
    calibration = Alarms.of(None, None, DELTA / 6).calibration[0]
    calibration.update(sure, random.random(ROWS) < sure - TOLERANCE)
    return {"promise": promise.alarm, "calibration": calibration.alarm}


def replay_real(logits, labels, random: np.random.Generator) -> dict[str, Any]:
    """One replay on the rows of a file."""
    drawn = random.integers(len(labels), size=CALIBRATION)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that repeat, as they are drawn
        gate = mc.MetaCal(mc.MinAccuracy(BETA)).fit(logits[drawn], labels[drawn]).gate_
    found = gate.decide(mc.Rows(logits))
    correct, accept = found.top == labels, found.accept
    sure = np.asarray(found.confidence, dtype=np.float64)
    new = random.integers(len(labels), size=ROWS)
    alarms = Alarms.of(gate.certificate, gate.profile, DELTA)
    raised = watched(alarms, found.score[new], accept[new], correct[new], sure[new])
    return {**raised, "broken": correct[accept].mean() < BETA, "off": off(sure[accept], correct[accept])}


def off(sure: np.ndarray, right: np.ndarray) -> bool:
    """Whether the source itself is off by more than the tolerance, over all accepted rows or in a bin."""
    bins = np.searchsorted(CONFIDENCES, sure, side="right") - 1
    groups = [np.ones(len(sure), dtype=bool)] + [bins == k for k in range(len(CONFIDENCES))]
    return any(abs(sure[g].mean() - right[g].mean()) > TOLERANCE for g in groups if g.any())


def rates(replays: list[dict[str, Any]]) -> dict[str, Any]:
    """How often each alarm was raised, and any of them, where nothing is wrong with the source."""
    kept = [r for r in replays if not r.get("broken", False)]
    calm = [r for r in kept if not r.get("off", False)]
    told = {name: sum(r[name] for r in (calm if name == "calibration" else kept)) for name in NAMES if name in kept[0]}
    return {
        "replays": len(replays),
        "kept": len(kept),
        "calibrated": len(calm),
        "raised": told,
        "any": sum(any(r[name] for name in told if name != "calibration" or not r.get("off", False)) for r in kept),
    }


# ── delay ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ours(errors: np.ndarray) -> float:
    """The row of the alarm, from 1; infinite where there is none."""
    capital = Capital((Wager(guess=1.0 / (1.0 - BETA), guess_gain=1.0),))
    path = capital.bet([above(errors, np.full(len(errors), 1.0 - BETA))])
    return first(path >= -math.log(DELTA))


def one_rate(errors: np.ndarray) -> float:
    """The likelihood ratio with one plug-in rate over all rows."""
    limit = 1.0 - BETA
    before = np.cumsum(errors) - errors
    rate = np.clip((before + 2.0) / (np.arange(len(errors)) + 1.0 / limit), limit, 0.5 * (1.0 + limit))
    gain = np.where(errors == 1.0, np.log(rate / limit), np.log1p(-rate) - math.log1p(-limit))
    return first(np.cumsum(gain) >= -math.log(DELTA))


def windows(errors: np.ndarray, size: int, *, shared: bool) -> float:
    """An exact binomial test of each window, one after the other."""
    level = DELTA / (HORIZON // size) if shared else DELTA
    counts = errors[: len(errors) // size * size].reshape(-1, size).sum(axis=1)
    return size * first(bdtrc(counts - 1, size, 1.0 - BETA) * (counts > 0) + (counts == 0) <= level)


def mapie_bounds(python: str) -> tuple[np.ndarray, np.ndarray, float]:
    """MAPIE's boundary on a grid of intrinsic time, and how far interpolation is from its own `update`."""
    code = (
        "import json, sys, numpy as np, warnings; warnings.simplefilter('ignore')\n"
        "from mapie.exchangeability_testing import RiskMonitoring\n"
        "from mapie.exchangeability_testing.bounds import GammaExponentialMixtureBound\n"
        "a = 0.05 / 2\n"
        "b = GammaExponentialMixtureBound(v_opt=1, c=1, alpha_opt=a / 2)\n"
        "v = np.geomspace(0.05, 20000, 300)\n"
        "y = (np.random.default_rng(0).random(1500) < 0.08).astype(int)\n"
        "m = RiskMonitoring(risk='accuracy', test_level=0.05, threshold=0.03, warn=False)\n"
        "m.update(np.ones(1500, int), 1 - y)\n"
        "print(json.dumps([v.tolist(), [b(v=float(x), alpha=a / 2) for x in v],"
        " m.online_risk_sequence_history.tolist(), m.online_risk_lower_bound_sequence_history.tolist()]))\n"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    grid, bound, losses, lower = (np.array(column) for column in json.loads(done.stdout))
    gap = float(np.abs(lower - mapie_lower(losses, grid, bound)).max())
    return grid, bound, gap


def mapie_lower(losses: np.ndarray, grid: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """The lower bound of RiskMonitoring after each row."""
    t = np.arange(1, len(losses) + 1)
    mean = np.cumsum(losses) / t
    variance = np.cumsum((losses - np.append(0.5, mean[:-1])) ** 2)
    boundary = np.exp(np.interp(np.log(variance), np.log(grid), np.log(bound))) / t
    return np.maximum.accumulate(np.maximum(mean - boundary, 0.0))


def first(reached: np.ndarray) -> float:
    """Where it is reached first, from 1; infinite where it never is."""
    at = np.flatnonzero(reached)
    return float(at[0] + 1) if len(at) else math.inf


def delays(replays: int, mapie: tuple[np.ndarray, np.ndarray, float] | None, seed: int) -> list[dict[str, Any]]:
    """Rows from the drop to the alarm: median and 90% quantile over replays, and false alarms before it."""
    rules = {"this monitor": ours, "one rate over all rows": one_rate}
    for size in WINDOWS:
        rules[f"window {size}, 5% each"] = lambda e, s=size: windows(e, s, shared=False)
        rules[f"window {size}, 5% in all"] = lambda e, s=size: windows(e, s, shared=True)
    if mapie is not None:
        rules["MAPIE RiskMonitoring"] = lambda e: first(mapie_lower(e, *mapie[:2]) > 1.0 - BETA)
    found = []
    for start in (0, LATE):
        for drop in DROPS:
            random = np.random.default_rng([seed, start, int(1000 * drop)])
            rows = {name: [] for name in rules}
            early = dict.fromkeys(rules, 0)
            for _ in range(replays):
                rate = np.where(np.arange(HORIZON) < start, 1.0 - BEFORE, 1.0 - BEFORE + drop)
                errors = (random.random(HORIZON) < rate).astype(np.float64)
                for name, rule in rules.items():
                    at = rule(errors)
                    early[name] += at <= start
                    if at > start:
                        rows[name].append(at - start)
            for name, told in rows.items():
                low, high = np.quantile(told, [0.5, 0.9], method="higher") if told else (math.inf, math.inf)
                found.append({
                    "start": start, "drop": drop, "rule": name, "median": _plain(low), "q90": _plain(high),
                    "early": early[name], "missed": sum(math.isinf(x) for x in told), "replays": replays,
                })  # fmt: skip
    return found


def boundary_alarms(replays: int, mapie: Any, seed: int) -> dict[str, int]:
    """Alarms of each rule over 10^5 rows with errors exactly at the limit: all of them false."""
    random, told = np.random.default_rng([seed, 77]), {}
    for _ in range(replays):
        errors = (random.random(HORIZON) < 1.0 - BETA).astype(np.float64)
        rules = {"this monitor": ours(errors), "one rate over all rows": one_rate(errors)}
        for size in WINDOWS:
            rules[f"window {size}, 5% each"] = windows(errors, size, shared=False)
            rules[f"window {size}, 5% in all"] = windows(errors, size, shared=True)
        if mapie is not None:
            rules["MAPIE RiskMonitoring"] = first(mapie_lower(errors, *mapie[:2]) > 1.0 - BETA)
        for name, at in rules.items():
            told[name] = told.get(name, 0) + math.isfinite(at)
    return told


def _plain(value: float) -> float | None:
    return None if math.isinf(value) else float(value)


# ── estimates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def estimates(logits, labels, replays: int, seed: int) -> list[dict[str, Any]]:
    """How often the error bar holds the accuracy of the accepted rows, on new rows and on shifted ones."""
    found = []
    for size in (1000, 5000):
        for n_new in (1000, 5000):
            random = np.random.default_rng([seed, size, n_new])
            inside, widths, shifted, gaps = 0, [], 0, []
            for _ in range(replays):
                drawn = random.permutation(len(labels))
                own, rest = drawn[:size], drawn[size:]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        cal = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(logits[own], labels[own])
                    except mc.InfeasibleTargetError:
                        continue
                new = rest[:n_new]
                held, width, _ = bar(cal, logits[new], labels[new])
                inside, widths = inside + held, [*widths, width]
                right = logits[own].argmax(axis=1) == labels[own]
                worst = sorted(np.unique(labels[own]), key=lambda k: right[labels[own] == k].mean())
                hard = rest[np.isin(labels[rest], worst[: max(1, len(worst) // 5)])][:n_new]
                held, _, gap = bar(cal, logits[hard], labels[hard])
                shifted, gaps = shifted + held, [*gaps, gap]
            found.append({
                "calibration": size, "new": min(n_new, len(labels) - size), "replays": len(widths), "inside": inside,
                "half_width": float(np.mean(widths)), "inside_shifted": shifted, "gap_shifted": float(np.mean(gaps)),
            })  # fmt: skip
    return found


def bar(cal, logits, labels) -> tuple[bool, float, float]:
    """Whether the bar holds the truth, its half width, and how far the estimate lies above the truth."""
    told = mc.estimate_accuracy(cal, logits)
    truth = float((logits.argmax(axis=1) == labels)[cal.accepts(logits)].mean())
    return told.low <= truth <= told.high, (told.high - told.low) / 2, told.accuracy - truth


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Results of runs with different seeds as one: counts are added, means weighted by their replays."""
    first = parts[0]
    total = {name: first[name] for name in first if name not in ("law", "worst", "real", "estimates", "seed")}
    total["seed"] = [part["seed"] for part in parts]
    for name in ("law", "worst"):
        if name in first:
            total[name] = _added([part[name] for part in parts])
    total["real"] = {name: _added([part["real"][name] for part in parts]) for name in first["real"]}
    total["estimates"] = {
        name: [_added([part["estimates"][name][k] for part in parts]) for k in range(len(rows))]
        for name, rows in first["estimates"].items()
    }
    return total


def _added(parts: list[dict[str, Any]]) -> dict[str, Any]:
    weights, found = [part["replays"] for part in parts], {}
    for name, value in parts[0].items():
        column = [part[name] for part in parts]
        if isinstance(value, dict):
            found[name] = {key: sum(each[key] for each in column) for key in value}
        elif name in ("calibration", "new"):
            found[name] = value
        else:
            found[name] = float(np.average(column, weights=weights)) if isinstance(value, float) else sum(column)
    return found


def main() -> None:
    """Run the parts asked for, write one file."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=None)
    options.add_argument("--sets", default="cifar10_resnet110,cifar100_wrn32,langid176_sentences")
    options.add_argument("--replays", type=int, default=300)
    options.add_argument("--real-replays", type=int, default=40)
    options.add_argument("--mapie", default=None)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="law,worst,boundary,delay,real,estimates", help="parts to run")
    options.add_argument("--out", type=Path, default=None, help="parts that are not run stay as they are in it")
    options.add_argument("--merge", type=Path, nargs="+", help="write these results, of different seeds, as one")
    given = options.parse_args()
    if given.merge:
        found = merged([json.loads(path.read_text(encoding="utf-8")) for path in given.merge])
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    begun, only = time.time(), given.only.split(",")
    mapie = None if given.mapie is None else mapie_bounds(given.mapie)
    result: dict[str, Any] = {"real": {}, "estimates": {}}
    if given.out is not None and given.out.exists():
        result = json.loads(given.out.read_text(encoding="utf-8"))
    result |= {
        "rows": ROWS, "calibration": CALIBRATION, "delta": DELTA, "beta": BETA, "seed": given.seed,
        "python": platform.python_version(), "numpy": np.__version__,
    }  # fmt: skip
    if mapie is not None:
        result["mapie_gap"] = mapie[2]
    for name, replay in (("law", replay_law), ("worst", replay_worst)):
        if name in only:
            random = np.random.default_rng([given.seed, len(name)])
            result[name] = rates([replay(random) for _ in range(given.replays)])
    if "boundary" in only:
        result["boundary"] = {"replays": given.replays, **boundary_alarms(given.replays, mapie, given.seed)}
    if "delay" in only:
        result["delay"] = delays(max(100, given.replays // 3), mapie, given.seed)
    for name in given.sets.split(",") if given.data is not None else ():
        with np.load(given.data / f"{name}.npz") as file:
            logits, labels = file["logits"], file["labels"]
        random = np.random.default_rng([given.seed, len(labels)])
        if "real" in only:
            drawn = [replay_real(logits, labels, random) for _ in range(given.real_replays)]
            result["real"][name] = rates(drawn)
        if "estimates" in only:
            result["estimates"][name] = estimates(logits, labels, given.real_replays, given.seed)
    print(json.dumps({name: result.get(name) for name in only}), f"{time.time() - begun:.0f} s", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
