"""The committed results: the command that makes each, and the functions that its code starts from.

In a command, `{data}` stands for a folder with logits (`METACAL_DATA`), `{tuned}` for a folder with links to its tuned sets alone and
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
    seconds: float
    timed: bool = False
    #: Whether the same command makes it again where nothing but this repository is there.
    alone: bool = True
    #: The command on few draws; None where it has none.
    part: str | None = None
    #: Code that the call graph cannot find from the command: what runs in other processes, and
    #: registries whose every row is used ("module:REGISTRY[*]").
    also: tuple[str, ...] = ()
    #: The rooms of `src/metacal` that the result is about. Only their code, and that of the
    #: benchmark itself, makes the result stale.
    about: tuple[str, ...] = ()

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms whose code makes the result stale."""
        return ("benchmarks", *self.about)

    @property
    def entries(self) -> tuple[str, ...]:
        """The functions that the fingerprint starts from, "module:function" each."""
        module, command = self.command.split()[:2]
        if module == "benchmarks":
            return (f"benchmarks.{command}.command:command", *self.also)
        return (f"{module}:main", *self.also)

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


def _entries() -> list[Entry]:
    return [
        Entry(
            "accuracy-rule",
            "benchmarks.accuracy_rule --data {tuned} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=1500,
            alone=False,
        ),
        Entry(
            "answer-adversaries",
            "benchmarks.answer_adversaries --jobs {jobs} -o {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=500,
        ),
        Entry(
            "answers",
            "benchmarks.answers --data {data} --jobs {jobs} -o {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=900,
            alone=False,
        ),
        Entry(
            "area-intervals",
            "benchmarks.area_intervals --data {data} --draws 100 --jobs {jobs} --out {out}",
            about=("metrics",),
            seconds=700,
            alone=False,
        ),
        Entry(
            "bands",
            "benchmarks.bands exits --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=3000,
        ),
        Entry(
            "billion-rows",
            "benchmarks.billion --rows 1e9 --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=400,
            timed=True,
        ),
        Entry(
            "calibrators",
            "benchmarks.calibrators --jobs {jobs} --out {out}",
            about=("maps", "formulas"),
            seconds=2000,
            also=("metacal.maps.methods:METHODS[*]",),
        ),
        Entry(
            "cascade",
            "benchmarks.cascade --jobs {jobs} --output {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=600,
        ),
        Entry(
            "cluster-kills",
            "benchmarks.cluster_kills --runs 60 --out {out}",
            seconds=7200,
            timed=True,
        ),
        Entry(
            "closed-forms",
            "benchmarks.closed_forms --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=2,
        ),
        Entry(
            "cost-rule",
            "benchmarks.cost_rule --data {data} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=900,
            alone=False,
        ),
        Entry(
            "graded-losses",
            "benchmarks.graded_losses --jobs {jobs} -o {out}",
            about=("promises", "certificates", "statistics", "certification"),
            seconds=600,
        ),
        Entry("data-card", "benchmarks.data_card --out {out}", seconds=5),
        Entry(
            "decisions",
            "benchmarks.decisions --every 7 --out {out}",
            about=("formulas", "scores", "kernels", "export"),
            seconds=1800,
        ),
        Entry(
            "default-base",
            "benchmarks.default_base {tuned} --jobs {jobs} -o {out}",
            about=("maps", "formulas", "gate"),
            seconds=3600,
            alone=False,
        ),
        Entry(
            "derived-seeds",
            "benchmarks.derived_seeds --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "rows"),
            seconds=250,
        ),
        Entry(
            "device-h200",
            "benchmarks.speed.device --out {out}",
            about=("kernels", "maps"),
            seconds=60,
            timed=True,
        ),
        Entry(
            "device-pass",
            "benchmarks.speed.device_pass --against OLD/src --out {out}",
            about=("kernels", "maps"),
            seconds=150,
            timed=True,
        ),
        Entry(
            "device-thresholds",
            "benchmarks.device_thresholds --out {out}",
            about=("kernels", "scores"),
            seconds=100,
            timed=True,
        ),
        Entry(
            "evaluate-command",
            "benchmarks.evaluate_command --out {out}",
            about=("cli", "estimators", "metrics"),
            seconds=300,
            timed=True,
            also=("metacal.cli.evaluate:command", "metacal.metrics.registry:register[*]"),
        ),
        Entry(
            "fuzz-artifacts",
            "benchmarks.fuzz_artifacts --count 20000 --json {out}",
            seconds=1500,
            timed=True,
        ),
        Entry("hostile/files", "benchmarks.fuzz_files 0 20000", seconds=7200, timed=True),
        Entry(
            "label-kills",
            "benchmarks.label_kills --jobs {jobs} --out {out}",
            about=("cli",),
            seconds=3600,
            timed=True,
            also=("metacal.cli.label:command",),
        ),
        Entry(
            "labels",
            "benchmarks.labels --data {tuned} --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "gate"),
            seconds=3600,
            alone=False,
        ),
        Entry(
            "many-classes",
            "benchmarks.many_classes {tuned} --jobs {jobs} -o {out}",
            about=("maps", "formulas"),
            seconds=900,
            alone=False,
        ),
        Entry(
            "monitor",
            "benchmarks.monitor --data {data} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=7200,
            alone=False,
        ),
        Entry(
            "mutants",
            "benchmarks.mutants --contexts .coverage --out {out}",
            seconds=7200,
            timed=True,
        ),
        Entry(
            "one-walk",
            "benchmarks.one_walk OTHER/src -o {out}",
            about=("estimators",),
            seconds=120,
            timed=True,
            alone=False,
            also=("metacal:evaluate", "metacal:report"),
        ),
        Entry(
            "onnx-latency",
            "benchmarks.export.latency --json {out}",
            about=("export", "formulas"),
            seconds=300,
            timed=True,
        ),
        Entry(
            "onnx-parity",
            "benchmarks.export.parity --sets cifar10-resnet110 cifar100-resnet110 --json {out}",
            about=("export", "maps", "formulas"),
            seconds=900,
            also=("metacal.maps.methods:METHODS[*]", "metacal.scores.registry:NAMED[*]"),
        ),
        Entry(
            "paper/paper",
            "benchmarks paper --data benchmarks/data --data {data} -n {jobs} -o {folder}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
                "maps",
                "formulas",
                "metrics",
            ),
            seconds=2400,
            alone=False,
        ),
        Entry(
            "joint-band",
            "benchmarks.joint_band --data {tuned} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=4000,
            alone=False,
        ),
        Entry(
            "rare-rows",
            "benchmarks.rare_rows --data {data} --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification"),
            seconds=1800,
            alone=False,
        ),
        Entry(
            "fit-process",
            "benchmarks.speed.fit_process --json {out}",
            about=("cli",),
            seconds=30,
            timed=True,
            also=("metacal.cli.startup:prepare_process",),
        ),
        Entry(
            "false-coverage",
            "benchmarks.false_coverage --data {tuned} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=2000,
            alone=False,
        ),
        Entry(
            "ties",
            "benchmarks.ties --data {tuned} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=1500,
            alone=False,
        ),
        Entry(
            "ties-labels",
            "benchmarks.ties_labels --data {data} --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "gate"),
            seconds=2000,
            alone=False,
        ),
        Entry(
            "per-class",
            "benchmarks.per_class --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=900,
        ),
        Entry(
            "promises",
            "benchmarks.promises --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=400,
        ),
        Entry(
            "how-many-rows",
            "benchmarks.rows_needed --data {data} --cases 1000 --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=900,
            alone=False,
            also=("metacal.certification.rows_needed:estimate_rows_needed",),
        ),
        Entry(
            "how-many-rows-unseen",
            "benchmarks.rows_needed_unseen --data {data} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=120,
            alone=False,
            also=("metacal.certification.rows_needed:estimate_rows_needed",),
        ),
        Entry(
            "rankers",
            "benchmarks.rankers --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "scores", "maps"),
            seconds=250,
        ),
        Entry(
            "read-files", "benchmarks.files.read --out {out}", about=("io",), seconds=60, timed=True
        ),
        Entry(
            "quality/quality",
            "benchmarks quality --sizes 500,1000,5000 --splits 2 "
            "--variants plain,floored,sharpened,mislabelled,long-tailed "
            f"--sets {_TUNED} --data benchmarks/data --data {{data}} -n {{jobs}} -o {{folder}}",
            about=("maps", "formulas", "gate"),
            seconds=5000,
            alone=False,
            also=("metacal.maps.methods:METHODS[*]",),
        ),
        Entry("scale-cost", "benchmarks.scale_cost --out {out}", seconds=200, timed=True),
        Entry(
            "risk-control",
            "benchmarks.risk_control --jobs {jobs} -o {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=900,
        ),
        Entry(
            "score-choice",
            "benchmarks.score_choice --data {tuned} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
                "scores",
                "formulas",
                "kernels",
            ),
            seconds=1500,
            alone=False,
        ),
        Entry(
            "selective/selective",
            f"benchmarks selective --rules own --keep benchmarks/results/selective --sets {_TUNED} "
            "--data benchmarks/data --data {data} -n {jobs} -o {folder}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=700,
            alone=False,
        ),
        Entry(
            "selective-held-out",
            "benchmarks.selective.held_out --data {data} --jobs {jobs} --out {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=100,
            alone=False,
        ),
        Entry(
            "speed",
            "benchmarks speed --sizes A,B,C,D,E -o {out}",
            about=("maps", "gate", "kernels"),
            seconds=3600,
            timed=True,
            also=("benchmarks.speed.worker:main",),
        ),
        Entry(
            "speed-against",
            "benchmarks speed --against 9b14db2 --sizes B,C --repeats 25 -o {out}",
            seconds=240,
            timed=True,
            also=("benchmarks.speed.against_worker:main",),
        ),
        Entry(
            "threads-16-cores",
            "benchmarks.speed.threads --out {out}",
            about=("maps", "gate"),
            seconds=300,
            timed=True,
        ),
        Entry(
            "two-sided",
            "benchmarks.two_sided --draws 1000 --processes {jobs} -o {out}",
            about=(
                "promises",
                "certificates",
                "statistics",
                "certification",
            ),
            seconds=4000,
        ),
        Entry(
            "units",
            "benchmarks.units --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "gate"),
            seconds=1000,
        ),
        Entry(
            "precision-gate",
            "benchmarks.precision_gate --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "gate"),
            seconds=200,
            alone=False,
        ),
        Entry(
            "case-promises",
            "benchmarks.case_promises --data {data} --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "gate"),
            seconds=1200,
            alone=False,
        ),
        Entry(
            "constant-threshold",
            "benchmarks.constant_threshold --data {data} --jobs {jobs} --out {out}",
            about=("promises", "certificates", "statistics", "certification", "gate"),
            seconds=120,
            alone=False,
        ),
        Entry(
            "two-class",
            "benchmarks.two_class SETS.npz --processes {jobs} -o {out}",
            about=("maps", "formulas"),
            seconds=10000,
            alone=False,
        ),
    ]


#: Result -> the reduced command that `--same-as` compares.
_PARTS = {
    "accuracy-rule": "benchmarks.accuracy_rule --data {one} --draws 10 --jobs {jobs} --out {out}",
    "answer-adversaries": "benchmarks.answer_adversaries --draws 5 --jobs {jobs} -o {out}",
    "precision-gate": "benchmarks.precision_gate --draws 5 --jobs {jobs} --out {out}",
    "answers": "benchmarks.answers --data {data} --draws 3 --jobs {jobs} -o {out}",
    "area-intervals": "benchmarks.area_intervals --data {data} --draws 2 --jobs {jobs} --out {out}",
    "calibrators": "benchmarks.calibrators --splits 1 --jobs {jobs} --out {out}",
    "case-promises": "benchmarks.case_promises --data {data} --draws 4 --jobs {jobs} --out {out}",
    "cascade": "benchmarks.cascade --draws 3 --jobs {jobs} --output {out}",
    "closed-forms": "benchmarks.closed_forms --out {out}",
    "constant-threshold": (
        "benchmarks.constant_threshold --data {data} --draws 5 --jobs {jobs} --out {out}"
    ),
    "cost-rule": "benchmarks.cost_rule --data {data} --draws 2 --jobs {jobs} --out {out}",
    "data-card": "benchmarks.data_card --out {out}",
    "derived-seeds": "benchmarks.derived_seeds --draws 20 --searched 2 --jobs {jobs} --out {out}",
    "decisions": "benchmarks.decisions --every 101 --out {out}",
    "default-base": "benchmarks.default_base {one} --splits 1 --jobs {jobs} -o {out}",
    "graded-losses": "benchmarks.graded_losses --draws 2 --adversary-draws 5 --jobs {jobs} -o {out}",
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
    "rare-rows": "benchmarks.rare_rows --data {one} --draws 3 --jobs {jobs} --out {out}",
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
