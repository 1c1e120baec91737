"""The committed results: the command that makes each, and the modules whose code it is about.

A path of a subject is one of `src/metacal`, or begins with `benchmarks/`. `{data}` stands for a
folder with logits (`METACAL_DATA`), `{tuned}` for a folder with links to its tuned sets alone and
`{one}` for one with a single set (`benchmarks.all.data_folders`), `{out}` for where the result
goes, `{jobs}` for the number of processes.

`part` is the same command on few draws: seconds or a few minutes, and the same numbers on every
run. `--same-as` runs it with old and present code and compares (`benchmarks.all.same_as`). A result
without a part says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"

_SEQUENCE = ("promises/rules/sequence.py", "promises/rules/bounds.py")
_ACCURACY = ("promises/rules/accuracy.py", *_SEQUENCE)
_SCORES = ("formulas/rowwise.py", "scores/registry.py", "kernels/grid.py")
_RANK = "promises/rules/order_statistic.py"
_BASE = (
    "maps/composed.py",
    "maps/spline.py",
    "maps/uniform.py",
    "maps/temperature.py",
    "gate/helping.py",
)
_MAPS = tuple(
    f"maps/{name}.py"
    for name in (
        "affine",
        "ensemble",
        "gp",
        "histogram",
        "imax",
        "isotonic",
        "bbq",
        "local",
        "logistic",
        "stack",
    )
)


#: The logits that the starting ranks and `auto` were tuned on. Results about these leave out files
#: that came later.
TUNED_SETS = (
    "cifar10-densenet40-paper",
    "cifar10-densenet40",
    "cifar10-resnet110",
    "cifar10-resnet110sd",
    "cifar10-wrn32",
    "cifar100-densenet40",
    "cifar100-resnet110",
    "cifar100-resnet110sd",
    "cifar100-wrn32",
    "cifar100-resnet110-mit",
    "langid176-sentences",
)
_TUNED = ",".join(TUNED_SETS)


@dataclass(frozen=True)
class Entry:
    """A committed result. `seconds` of one core, about; `timed` where the numbers are times, never
    twice the same.
    """

    name: str
    command: str
    subject: tuple[str, ...]
    seconds: float
    timed: bool = False
    #: Whether the same command makes it again where nothing but this repository is there.
    alone: bool = True
    #: The command on few draws; None where it has none.
    part: str | None = None

    @property
    def why_no_part(self) -> str:
        """Why old and present code cannot be compared on a part; a sentence."""
        if self.timed:
            return "Its numbers are times or counts of one run, which are never the same twice."
        return "Its command has no option for fewer draws, so there is no small part to compare."

    @property
    def path(self) -> Path:
        """Where it is committed."""
        return RESULTS / f"{self.name}.json"

    @property
    def cheap(self) -> bool:
        """Whether the tests make it again and compare."""
        return self.alone and not self.timed and self.seconds <= 10


_BANDS = (
    "promises/rules/bands.py",
    "promises/rules/levels.py",
    "promises/rules/selective_accuracy.py",
)
_ANSWERS = (
    "promises/rules/staged.py",
    "promises/rules/max_risk.py",
    "promises/rules/costs.py",
    "promises/rules/betting.py",
    *_SEQUENCE,
)


def _entries() -> list[Entry]:
    return [
        Entry("accuracy-rule", "benchmarks.accuracy_rule --data {tuned} --jobs {jobs} --out {out}",
              ("benchmarks/accuracy_rule.py", *_ACCURACY), 1500, alone=False),
        Entry("answer-adversaries", "benchmarks.answer_adversaries --jobs {jobs} -o {out}",
              ("benchmarks/answer_adversaries.py", *_ANSWERS), 500),
        Entry("answers", "benchmarks.answers --data {data} --jobs {jobs} -o {out}",
              ("benchmarks/answers.py", *_ANSWERS), 900, alone=False),
        Entry("bands", "benchmarks.bands exits --jobs {jobs} --out {out}",
              ("benchmarks/bands.py", "benchmarks/score_populations.py", *_BANDS), 3000),
        Entry("billion-rows", "benchmarks.billion --rows 1e9 --jobs {jobs} --out {out}",
              ("benchmarks/billion.py", *_ACCURACY, _RANK), 400, timed=True),
        Entry("calibrators", "benchmarks.calibrators --jobs {jobs} --out {out}",
              ("benchmarks/calibrators.py", "maps/methods.py", *_BASE[:-1], *_MAPS), 2000),
        Entry("cascade", "benchmarks.cascade --jobs {jobs} --output {out}",
              ("benchmarks/cascade.py", "promises/rules/cascade.py", "promises/rules/cascade_walks.py",
               "promises/rules/noninferiority.py", *_SEQUENCE), 600),
        Entry("cluster-kills", "benchmarks.cluster_kills --runs 60 --out {out}", ("benchmarks/cluster_kills.py",), 7200,
              timed=True),
        Entry("closed-forms", "benchmarks.closed_forms --out {out}",
              ("benchmarks/closed_forms.py", "promises/rules/bounds.py"), 2),
        Entry("cost-rule", "benchmarks.cost_rule --data {data} --jobs {jobs} --out {out}",
              ("benchmarks/cost_rule.py", "promises/rules/max_risk.py",
               "promises/rules/cheapest.py", "promises/rules/costs.py", "promises/rules/betting.py", *_SEQUENCE),
              900, alone=False),
        Entry("data-card", "benchmarks.data_card --out {out}", ("benchmarks/data_card.py",), 5),
        Entry("decisions", "benchmarks.decisions --every 7 --out {out}",
              ("benchmarks/decisions.py", *_SCORES, "kernels/numpy.py", "kernels/torch.py", "export/onnx/scores.py"),
              1800),
        Entry("default-base", "benchmarks.default_base {tuned} --jobs {jobs} -o {out}",
              ("benchmarks/default_base.py", *_BASE), 3600, alone=False),
        Entry("device-h200", "benchmarks.speed.device --out {out}",
              ("benchmarks/speed/device.py", "kernels/triton.py", "kernels/torch.py", "maps/temperature.py"), 60,
              timed=True),
        Entry("evaluate-command", "benchmarks.evaluate_command --out {out}",
              ("benchmarks/evaluate_command.py", "cli/evaluate.py", "estimators/evaluate.py", "metrics/resampling.py"),
              300, timed=True),
        Entry("fuzz-artifacts", "benchmarks.fuzz_artifacts --count 20000 --json {out}",
              ("benchmarks/fuzz_artifacts.py", "benchmarks/artifact_mutations.py"), 1500, timed=True),
        Entry("hostile/files", "benchmarks.fuzz_files 0 20000", ("benchmarks/fuzz_files.py",), 7200, timed=True),
        Entry("label-kills", "benchmarks.label_kills --jobs {jobs} --out {out}",
              ("benchmarks/label_kills.py", "cli/label.py"), 3600, timed=True),
        Entry("labels", "benchmarks.labels --data {tuned} --jobs {jobs} --out {out}",
              ("benchmarks/labels.py", "gate/certifier.py", *_ACCURACY), 3600, alone=False),
        Entry("many-classes", "benchmarks.many_classes {tuned} --jobs {jobs} -o {out}",
              ("benchmarks/many_classes.py", "maps/affine.py", "maps/members.py", "maps/stack.py"), 900, alone=False),
        Entry("monitor", "benchmarks.monitor --data {data} --jobs {jobs} --out {out}",
              ("benchmarks/monitor.py", "promises/sequential/monitor.py", "promises/sequential/alarms.py",
               "promises/sequential/wager.py", "promises/sequential/drift.py"), 7200, alone=False),
        Entry("mutants", "benchmarks.mutants --contexts .coverage --out {out}", ("benchmarks/mutants.py",), 7200,
              timed=True),
        Entry("one-walk", "benchmarks.one_walk OTHER/src -o {out}",
              ("benchmarks/one_walk.py", "estimators/walk.py"), 120, timed=True, alone=False),
        Entry("onnx-latency", "benchmarks.export.latency --json {out}",
              ("benchmarks/export/latency.py", "export/onnx/gate.py", "export/onnx/maps.py", "export/onnx/scores.py",
               "export/onnx/traced.py", "formulas/rowwise.py"), 300, timed=True),
        Entry("onnx-parity", "benchmarks.export.parity --sets cifar10-resnet110 cifar100-resnet110 --json {out}",
              ("benchmarks/export/parity.py", "export/onnx/gate.py", "export/onnx/maps.py", "export/onnx/scores.py",
               "export/onnx/traced.py", "maps/methods.py"), 900),
        Entry("paper/paper", "benchmarks paper --data benchmarks/data --data {data} -n {jobs} -o {folder}",
              ("benchmarks/paper/runs.py", "promises/rules/paper.py", *_ACCURACY, _RANK, "maps/temperature.py",
               "maps/ensemble.py", "maps/gp.py", "maps/affine.py", "metrics/binning.py", "metrics/gaps.py"), 2400,
              alone=False),
        Entry("joint-band", "benchmarks.joint_band --data {tuned} --jobs {jobs} --out {out}",
              ("benchmarks/joint_band.py", "benchmarks/score_populations.py", *_BANDS), 4000, alone=False),
        Entry("false-coverage", "benchmarks.false_coverage --data {tuned} --jobs {jobs} --out {out}",
              ("benchmarks/false_coverage.py", "promises/parts/per.py", *_ACCURACY), 2000, alone=False),
        Entry("ties", "benchmarks.ties --data {tuned} --jobs {jobs} --out {out}",
              ("benchmarks/ties.py", "benchmarks/experiments/pilot_scores.py", "promises/scouts.py",
               *_BANDS, *_SEQUENCE),
              1500, alone=False),
        Entry("ties-labels", "benchmarks.ties_labels --data {data} --jobs {jobs} --out {out}",
              ("benchmarks/ties_labels.py", "gate/certifier.py", "promises/scouts.py", *_SEQUENCE), 2000, alone=False),
        Entry("per-class", "benchmarks.per_class --jobs {jobs} --out {out}",
              ("benchmarks/per_class.py", "promises/parts/per.py", "promises/parts/thresholds.py", *_ACCURACY), 900),
        Entry("promises", "benchmarks.promises --jobs {jobs} --out {out}",
              ("benchmarks/promises.py", "promises/rules/paper.py", *_ACCURACY, _RANK), 400),
        Entry("how-many-rows", "benchmarks.rows_needed --data {data} --cases 1000 --jobs {jobs} --out {out}",
              ("benchmarks/rows_needed.py", "promises/rules/rows_needed.py", *_SEQUENCE), 900, alone=False),
        Entry("how-many-rows-unseen", "benchmarks.rows_needed_unseen --data {data} --jobs {jobs} --out {out}",
              ("benchmarks/rows_needed_unseen.py", "promises/rules/rows_needed.py", *_SEQUENCE), 120, alone=False),
        Entry("rankers", "benchmarks.rankers --jobs {jobs} --out {out}",
              ("benchmarks/rankers.py", "scores/learned.py", "promises/rules/paper.py", "maps/temperature.py",
               *_ACCURACY), 250),
        Entry("read-files", "benchmarks.files.read --out {out}",
              ("benchmarks/files/read.py", "io/formats/__init__.py", "io/formats/parquet.py"), 60, timed=True),
        Entry("quality/quality",
              "benchmarks quality --sizes 500,1000,5000 --splits 2 "
              "--variants plain,floored,sharpened,mislabelled,long-tailed "
              f"--sets {_TUNED} --data benchmarks/data --data {{data}} -n {{jobs}} -o {{folder}}",
              ("benchmarks/quality/methods.py", "benchmarks/quality/variants.py", "benchmarks/quality/runs.py",
               *_BASE, *_MAPS), 5000, alone=False),
        Entry("scale-cost", "benchmarks.scale_cost --out {out}", ("benchmarks/scale_cost.py",), 200, timed=True),
        Entry("risk-control", "benchmarks.risk_control --jobs {jobs} -o {out}",
              ("benchmarks/risk_control.py", "promises/rules/two_sided.py", "promises/rules/precision.py",
               "promises/rules/whole_units.py", "promises/rules/betting.py", *_ACCURACY), 900),
        Entry("score-choice", "benchmarks.score_choice --data {tuned} --jobs {jobs} --out {out}",
              ("benchmarks/score_choice.py", *_SCORES, *_ACCURACY), 1500, alone=False),
        Entry("selective/selective",
              f"benchmarks selective --rules own --keep benchmarks/results/selective --sets {_TUNED} "
              "--data benchmarks/data --data {data} -n {jobs} -o {folder}",
              ("benchmarks/selective/rules.py", "benchmarks/selective/runs.py", *_ACCURACY), 700, alone=False),
        Entry("selective-held-out", "benchmarks.selective.held_out --data {data} --jobs {jobs} --out {out}",
              ("benchmarks/selective/held_out.py", "benchmarks/selective/rules.py", *_ACCURACY), 100, alone=False),
        Entry("speed", "benchmarks speed --sizes A,B,C,D,E -o {out}",
              ("benchmarks/speed/tasks.py", "benchmarks/speed/measure.py", "maps/temperature.py", "maps/ensemble.py",
               "gate/fitting.py", "kernels/numpy.py"), 3600, timed=True),
        Entry("threads-16-cores", "benchmarks.speed.threads --out {out}",
              ("benchmarks/speed/threads.py", "maps/temperature.py", "gate/fitting.py"), 300, timed=True),
        Entry("two-sided", "benchmarks.two_sided --draws 1000 --processes {jobs} -o {out}",
              ("benchmarks/two_sided.py", "benchmarks/experiments/pilot_scores.py", "promises/rules/two_sided.py",
               "promises/rules/precision.py", "promises/scouts.py", "promises/parts/per.py"), 4000),
        Entry("units", "benchmarks.units --jobs {jobs} --out {out}",
              ("benchmarks/units.py", "promises/rules/whole_units.py", "promises/rules/betting.py",
               "promises/sequential/monitor.py", "promises/sequential/wager.py", "gate/traffic.py",
               "promises/verification.py"), 1000),
        Entry("two-class", "benchmarks.two_class SETS.npz --processes {jobs} -o {out}",
              ("benchmarks/two_class.py", "maps/monotone.py"), 10000, alone=False),
    ]  # fmt: skip


#: Result -> the reduced command that `--same-as` compares.
_PARTS = {
    "accuracy-rule": "benchmarks.accuracy_rule --data {one} --draws 10 --jobs {jobs} --out {out}",
    "answer-adversaries": "benchmarks.answer_adversaries --draws 5 --jobs {jobs} -o {out}",
    "answers": "benchmarks.answers --data {data} --draws 3 --jobs {jobs} -o {out}",
    "calibrators": "benchmarks.calibrators --splits 1 --jobs {jobs} --out {out}",
    "cascade": "benchmarks.cascade --draws 3 --jobs {jobs} --output {out}",
    "closed-forms": "benchmarks.closed_forms --out {out}",
    "cost-rule": "benchmarks.cost_rule --data {data} --draws 2 --jobs {jobs} --out {out}",
    "data-card": "benchmarks.data_card --out {out}",
    "decisions": "benchmarks.decisions --every 101 --out {out}",
    "default-base": "benchmarks.default_base {one} --splits 1 --jobs {jobs} -o {out}",
    "how-many-rows": "benchmarks.rows_needed --data {data} --cases 10 --jobs {jobs} --out {out}",
    "joint-band": "benchmarks.joint_band --data {one} --jobs {jobs} --out {out}",
    "labels": "benchmarks.labels --data {one} --replays 2 --broken 20 --jobs {jobs} --out {out}",
    "many-classes": "benchmarks.many_classes {one} --draws 1 --jobs {jobs} -o {out}",
    "monitor": (
        "benchmarks.monitor --data {data} --replays 5 --real-replays 2 --jobs {jobs} --out {out}"
    ),
    "onnx-parity": "benchmarks.export.parity --sets cifar10-resnet110 --json {out}",
    "paper/paper": (
        "benchmarks paper --runs 2 --draws 50 --sets cifar10-resnet110,cifar100-resnet110 -n {jobs}"
        " -o {folder}"
    ),
    "promises": "benchmarks.promises --draws 10 --jobs {jobs} --out {out}",
    "quality/quality": (
        "benchmarks quality --sizes 500 --splits 1 --variants plain --sets cifar10-resnet110 -n"
        " {jobs} -o {folder}"
    ),
    "rankers": "benchmarks.rankers --splits 2 --jobs {jobs} --out {out}",
    "risk-control": "benchmarks.risk_control --draws 2 --jobs {jobs} -o {out}",
    "score-choice": "benchmarks.score_choice --data {one} --draws 2 --jobs {jobs} --out {out}",
    "selective-held-out": (
        "benchmarks.selective.held_out --data {data} --draws 10 --jobs {jobs} --out {out}"
    ),
    "selective/selective": "benchmarks selective --rules own --draws 10 -n {jobs} -o {folder}",
    "ties": "benchmarks.ties --data {one} --jobs {jobs} --out {out}",
    "ties-labels": "benchmarks.ties_labels --data {data} --draws 5 --jobs {jobs} --out {out}",
    "two-sided": "benchmarks.two_sided --draws 5 --processes {jobs} -o {out}",
    "units": "benchmarks.units --gates 20 --jobs {jobs} --out {out}",
}

#: Name -> result, in the order of the alphabet.
CATALOGUE = {
    entry.name: replace(entry, part=_PARTS.get(entry.name))
    for entry in sorted(_entries(), key=lambda one: one.name)
}
