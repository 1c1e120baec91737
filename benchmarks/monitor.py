"""Alarms over 100,000 rows: how often they are false, how long they take; accuracy without labels,
and its error bar.

    python -m benchmarks.monitor --data FOLDER [--replays 300] [--mapie PYTHON] [--out
    benchmarks/results/monitor.json]

**False alarms.** A replay draws 5,000 calibration rows, certifies a gate on them (selective accuracy
97%), and watches 10^5 rows from the same source, all labelled, looking after every row. *law*:
scores are uniform and a row is right with probability c(score), which is its confidence; the least
favourable variants have errors exactly at the limit, and confidence off by exactly the tolerance.
*Real sets*: the rows of a file are the source, drawn with replacement, gates are fitted on 500 and
on 5,000 of them with the default base and with a temperature, under "at most 10% of the right
answers are rejected"; alarms on a promise that the source itself breaks are no false ones.
*dropped*: how often 10,000 rows of which a twentieth became wrong raise the calibration alarm.
*Cross-fitted*: `cv=5` on 300 rows. *By outcome*: labels of wrong answers come at once, the others
1,000 rows later, with a horizon of 1,500 rows and without.

**Delay.** Labelled, accepted rows, right with probability 97.5% under a promise of 97%, until the
accuracy drops by 1, 2 or 5 points: at once, or after 20,000 rows. Rows from the drop to the alarm,
at δ = 5%: this monitor; the same with one plug-in rate over all rows (what it was before); windows
of 500 and 2,000 rows, each tested exactly at 5%, or at 5% shared by all windows of 10^5 rows;
MAPIE's RiskMonitoring with the threshold at 3% (its bound is computed on a grid of its intrinsic
time by MAPIE itself, in the interpreter that --mapie names, and interpolated; one stream is checked
against its `update`).

**Estimates.** Gates are fitted on draws of each file, and the accuracy of their accepted rows is
estimated on other rows without labels: how often the 95% error bar holds the truth; the same where
the new rows come mostly from the classes that the classifier is worst at.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import bdtrc

import metacal as mc
from metacal.certification.ranking import Ranking
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.sequential.alarms import ALARM_NAMES, Alarms
from metacal.promises.sequential.calibration_monitor import DEFAULT_TOLERANCE
from metacal.promises.sequential.monitor import PromiseMonitor
from metacal.promises.sequential.profile import build_profile
from metacal.promises.sequential.wager import Capital, Wager, build_bets_on_mean_above

ROWS, CALIBRATION, DELTA, BETA = 100_000, 5_000, 0.05, 0.97
ALPHA, SIZES, BASES, DROP, DROPPED = 0.1, (500, 5000), ("default", "temperature"), 0.05, 10_000
BEFORE, DROPS, LATE, HORIZON = 0.975, (0.01, 0.02, 0.05), 20_000, 100_000
WINDOWS = (500, 2000)
BLOCK = 10_000


def confidence_of(score: np.ndarray) -> np.ndarray:
    """The law's chance of being right: nearly one for sure rows, one half for the least sure."""
    return 1.0 - 0.5 * score**6


# ── false alarms ──────────────────────────────────────────────────────────────────────────────────


def watched(alarms: Alarms, score, accept, correct, confidence) -> dict[str, bool]:
    """All rows through the alarms, block by block; every row is looked at inside."""
    for start in range(0, len(score), BLOCK):
        part = slice(start, start + BLOCK)
        alarms.add_decisions(accept[part], score[part])
        alarms.add_labelled_rows(accept[part], correct[part], confidence[part])
    return {name: name in alarms.raised for name in ALARM_NAMES}


def replay_law(random: np.random.Generator) -> dict[str, Any]:
    """One replay on the law: calibration rows, certificate, 10^5 rows."""
    score = np.sort(random.random(CALIBRATION))
    right = random.random(CALIBRATION) < confidence_of(score)
    certificate = MinAccuracy(BETA).certify(score, right)
    new = random.random(ROWS)
    sure = confidence_of(new)
    accept = new <= certificate.threshold
    alarms = Alarms.from_certificate(
        certificate, build_profile(Ranking.from_scores(score, right)), DELTA
    )
    found = watched(alarms, new, accept, random.random(ROWS) < sure, sure)
    edge = min(certificate.threshold, 1.0)
    return {**found, "broken": 1.0 - 0.5 * edge**6 / 7.0 < BETA}


def replay_worst(random: np.random.Generator) -> dict[str, Any]:
    """Errors exactly at the limit; confidence too high by exactly the tolerance."""
    promise = PromiseMonitor("selective accuracy", 1.0 - BETA, DELTA / 2)
    promise.update(np.ones(ROWS, dtype=bool), random.random(ROWS) >= 1.0 - BETA)
    sure = 0.8 + 0.2 * random.random(ROWS)
    calibration = Alarms.from_certificate(None, None, DELTA / 6).calibration[0]
    calibration.update(sure, random.random(ROWS) < sure - DEFAULT_TOLERANCE)
    return {"promise": promise.alarm, "calibration": calibration.alarm}


def replay_real(
    logits, labels, random: np.random.Generator, base: str, size: int
) -> dict[str, Any]:
    """One replay on the rows of a file: alarms on a stream of the same source, and on one with a
    twentieth wrong.
    """
    drawn = random.integers(len(labels), size=size)
    calibrator = None if base == "default" else mc.TemperatureScaling()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that repeat, as they are drawn
        gate = (
            mc.MetaCal(mc.MaxMiscoverage(ALPHA), calibrator=calibrator)
            .fit(logits[drawn], labels[drawn])
            .gate_
        )
    found = gate.decide(mc.Rows(logits))
    correct, accept = found.predicted_codes == labels, found.accept
    sure = np.asarray(found.confidence, dtype=np.float64)
    new = random.integers(len(labels), size=ROWS)
    raised = watched(
        Alarms.from_certificate(gate.certificate, gate.profile, DELTA),
        found.score[new],
        accept[new],
        correct[new],
        sure[new],
    )
    worse, some = correct[new] & (random.random(ROWS) > DROP), slice(0, DROPPED)
    alarms = Alarms.from_certificate(gate.certificate, gate.profile, DELTA)
    alarms.add_labelled_rows(accept[new][some], worse[some], sure[new][some])
    return {
        **raised,
        "broken": (~accept[correct]).mean() > ALPHA,
        "dropped": "calibration" in alarms.raised,
    }


def replay_cross_fitted(random: np.random.Generator) -> dict[str, Any]:
    """A classifier and its gate from one set by cross-fitting; new rows are of the same law."""
    from sklearn.linear_model import LogisticRegression

    weights = np.random.default_rng(0).normal(0.0, 1.5, (12, 4))

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = random.normal(size=(n, 12))
        return X, (X @ weights + random.gumbel(size=(n, 4))).argmax(axis=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf = mc.CalibratedClassifier(
            LogisticRegression(max_iter=200), mc.MaxMiscoverage(ALPHA), cv=5
        ).fit(*drawn(300))
    gate, (X, y) = clf.gate_.gate_, drawn(ROWS)
    found = gate.decide(mc.Rows(clf.logits(X)))
    correct, sure = found.predicted_codes == y, np.asarray(found.confidence, dtype=np.float64)
    alarms = Alarms.from_certificate(gate.certificate, gate.profile, DELTA)
    raised = watched(alarms, found.score, found.accept, correct, sure)
    return {
        **{name: raised[name] for name in ("promise",)},
        "broken": (~found.accept[correct]).mean() > ALPHA,
    }


def replay_by_outcome(logits, labels, random: np.random.Generator, horizon: int) -> dict[str, Any]:
    """Labels of wrong answers come at once, the others 1,000 rows later."""
    drawn, n = random.permutation(len(labels)), 6000
    own, new = drawn[:3000], drawn[3000 : 3000 + n]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gate = mc.MetaCal(mc.MinAccuracy(BETA)).fit(logits[own], labels[own]).gate_
    accept, right = gate.accepts(mc.Rows(logits)), logits.argmax(axis=1) == labels
    watch = mc.Watch.of(gate, DELTA, horizon=horizon)
    for start in range(0, n, 500):
        batch = np.arange(start, start + 500)
        watch.update(logits[new[batch]], ids=batch.tolist())
        late = batch - 1000
        for came in (
            batch[~right[new[batch]]],
            late[(late >= 0) & right[new[np.maximum(late, 0)]]],
        ):
            watch.label(came.tolist(), labels[new[came]])
    return {"promise": "promise" in watch.raised, "broken": right[accept].mean() < BETA}


def rates(replays: list[dict[str, Any]]) -> dict[str, Any]:
    """How often each alarm was raised, and any of them, where the source itself keeps the
    promise.
    """
    kept = [r for r in replays if not r.get("broken", False)]
    told = {name: sum(r[name] for r in kept) for name in ALARM_NAMES if name in replays[0]}
    found = {"replays": len(replays), "kept": len(kept), "raised": told}
    found["any"] = sum(any(r[name] for name in told) for r in kept)
    return found | (
        {"dropped": sum(r["dropped"] for r in replays)} if "dropped" in replays[0] else {}
    )


def many(
    replay: Callable[..., dict[str, Any]], replays: int, jobs: int, seed: list[int], *given: Any
) -> list[Any]:
    """Replays with seeds of their own, in so many processes."""
    seeds = [np.random.default_rng([*seed, number]) for number in range(replays)]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(partial(_replayed, replay, given), seeds))


def _replayed(
    replay: Callable[..., Any], given: tuple[Any, ...], random: np.random.Generator
) -> Any:
    if given and isinstance(given[0], str):
        with np.load(given[0]) as file:
            given = (file["logits"], file["labels"], random, *given[1:])
        return replay(*given)
    return replay(random)


# ── delay ─────────────────────────────────────────────────────────────────────────────────────────


def ours(errors: np.ndarray) -> float:
    """The row of the alarm, from 1; infinite where there is none."""
    capital = Capital((Wager(guess=1.0 / (1.0 - BETA), guess_gain=1.0),))
    path = capital.bet([build_bets_on_mean_above(errors, 1.0 - BETA)])
    return first(path >= -math.log(DELTA))


def one_rate(errors: np.ndarray) -> float:
    """The likelihood ratio with one plug-in rate over all rows."""
    limit = 1.0 - BETA
    before = np.cumsum(errors) - errors
    rate = np.clip(
        (before + 2.0) / (np.arange(len(errors)) + 1.0 / limit), limit, 0.5 * (1.0 + limit)
    )
    gain = np.where(errors == 1.0, np.log(rate / limit), np.log1p(-rate) - math.log1p(-limit))
    return first(np.cumsum(gain) >= -math.log(DELTA))


def windows(errors: np.ndarray, size: int, *, shared: bool) -> float:
    """An exact binomial test of each window, one after the other."""
    level = DELTA / (HORIZON // size) if shared else DELTA
    counts = errors[: len(errors) // size * size].reshape(-1, size).sum(axis=1)
    return size * first(bdtrc(counts - 1, size, 1.0 - BETA) * (counts > 0) + (counts == 0) <= level)


def mapie_bounds(python: str) -> tuple[np.ndarray, np.ndarray, float]:
    """MAPIE's boundary on a grid of intrinsic time, and how far interpolation is from its own
    `update`.
    """
    code = (
        "import json, sys, numpy as np, warnings; warnings.simplefilter('ignore')\nfrom"
        " mapie.exchangeability_testing import RiskMonitoring\nfrom"
        " mapie.exchangeability_testing.bounds import GammaExponentialMixtureBound\na = 0.05 / 2\nb"
        " = GammaExponentialMixtureBound(v_opt=1, c=1, alpha_opt=a / 2)\nv = np.geomspace(0.05,"
        " 20000, 300)\ny = (np.random.default_rng(0).random(1500) < 0.08).astype(int)\nm ="
        " RiskMonitoring(risk='accuracy', test_level=0.05, threshold=0.03,"
        " warn=False)\nm.update(np.ones(1500, int), 1 - y)\nprint(json.dumps([v.tolist(),"
        " [b(v=float(x), alpha=a / 2) for x in v], m.online_risk_sequence_history.tolist(),"
        " m.online_risk_lower_bound_sequence_history.tolist()]))\n"
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


def delays(
    replays: int, mapie: tuple[np.ndarray, np.ndarray, float] | None, seed: int
) -> list[dict[str, Any]]:
    """Rows from the drop to the alarm: median and 90% quantile over replays, and false alarms
    before it.
    """
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
                low, high = (
                    np.quantile(told, [0.5, 0.9], method="higher") if told else (math.inf, math.inf)
                )
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


# ── estimates ─────────────────────────────────────────────────────────────────────────────────────


def estimates(logits, labels, replays: int, seed: int) -> list[dict[str, Any]]:
    """How often the error bar holds the accuracy of the accepted rows, on new rows and on shifted
    ones.
    """
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
    """Whether the bar holds the truth, its half width, and how far the estimate lies above the
    truth.
    """
    told = mc.estimate_accuracy(cal, logits)
    truth = float((logits.argmax(axis=1) == labels)[cal.accepts(logits)].mean())
    return told.low <= truth <= told.high, (told.high - told.low) / 2, told.accuracy - truth


def same_source(result: dict[str, Any], only: list[str], sets: list[str], given: Any) -> None:
    """The false alarms, into the result."""
    for name, replay in (("law", replay_law), ("worst", replay_worst)):
        if name in only:
            result[name] = rates(many(replay, given.replays, given.jobs, [given.seed, len(name)]))
    if "cross" in only:
        result["cross"] = rates(
            many(replay_cross_fitted, given.replays, given.jobs, [given.seed, 3])
        )
    if "real" in only:
        result["real"] = {}
        for number, name in enumerate(sets):
            for base in BASES:
                for size in SIZES:
                    seed = [given.seed, number, len(base), size]
                    file = str(given.data / f"{name}.npz")
                    drawn = many(
                        replay_real, given.real_replays, given.jobs, seed, file, base, size
                    )
                    result["real"][f"{name}, {base} base, {size:,} rows"] = rates(drawn)
    if "outcome" in only and sets:
        for words, horizon in (("a horizon", 1500), ("as they come", 0)):
            file = str(given.data / f"{sets[0]}.npz")
            drawn = many(
                replay_by_outcome, given.real_replays, given.jobs, [given.seed, 5], file, horizon
            )
            result.setdefault("outcome", {})[words] = rates(drawn)


def main() -> None:
    """Run the parts asked for, write one file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, default=None)
    options.add_argument("--sets", default="cifar10_resnet110,cifar100_wrn32,langid176_sentences")
    options.add_argument("--replays", type=int, default=300)
    options.add_argument("--real-replays", type=int, default=40)
    options.add_argument("--mapie", default=None)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=1)
    parts = "law,worst,boundary,delay,real,cross,outcome,estimates"
    options.add_argument("--only", default=parts, help="parts to run")
    options.add_argument(
        "--out", type=Path, default=None, help="parts that are not run stay as they are in it"
    )
    given = options.parse_args()
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
    sets = given.sets.split(",") if given.data is not None else []
    same_source(result, only, sets, given)
    if "boundary" in only:
        result["boundary"] = {
            "replays": given.replays,
            **boundary_alarms(given.replays, mapie, given.seed),
        }
    if "delay" in only:
        result["delay"] = delays(max(100, given.replays // 3), mapie, given.seed)
    for name in sets if "estimates" in only else ():
        with np.load(given.data / f"{name}.npz") as file:
            result["estimates"][name] = estimates(
                file["logits"], file["labels"], given.real_replays, given.seed
            )
    print(
        json.dumps({name: result.get(name) for name in only}),
        f"{time.time() - begun:.0f} s",
        flush=True,
    )
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
