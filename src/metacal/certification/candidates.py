"""Fixed-sequence tests of candidate thresholds that pilot rows determine.

This is the second family of rules. A `ThresholdRule` tests ranks of the tested rows themselves,
which is valid for independent rows and one threshold. Clusters, cascades and cases have no such
ranks: a cluster or a case is accepted as a whole, and the error rate of a cascade depends on how
many rows each model answers. Their candidates come from pilot rows, so every test is about a
hypothesis that is fixed before the tested rows are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Pilot = TypeVar("Pilot", contravariant=True)
Rows = TypeVar("Rows", contravariant=True)
Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class CandidateSequence(Generic[Candidate]):
    """Candidates that are tested in order until one fails.

    Attributes
    ----------
    level_fraction : float
        Fraction of the significance level that the sequence adds.

    candidates : tuple
        Candidates in the order of their tests.
    """

    level_fraction: float
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class CandidatePlan(Generic[Candidate]):
    """Plan of the candidates to test, in one or more sequences.

    Attributes
    ----------
    limit : float
        Limit that each test is about.

    sequences : tuple of CandidateSequence
        Sequences in the order of their tests. A sequence whose every candidate passed adds its
        fraction of the level to that of the next sequence (Wiens 2003).
    """

    limit: float
    sequences: tuple[CandidateSequence[Candidate], ...]


class CandidateRule(Protocol[Pilot, Rows, Candidate]):
    """Interface of the rules that test candidates chosen by pilot rows."""

    @property
    def name(self) -> str:
        """Name of the rule in certificates and files."""

    def plan(
        self, pilot_rows: Pilot, n_tested: int, limit: float, significance_level: float
    ) -> CandidatePlan[Candidate]:
        """Choose the candidates and their order from the pilot rows."""

    def passes(
        self, rows: Rows, candidate: Candidate, limit: float, significance_level: float
    ) -> bool:
        """Test whether one candidate satisfies the limit of the plan."""


def find_last_passing_candidate(
    rule: CandidateRule[Pilot, Rows, Candidate],
    rows: Rows,
    plan: CandidatePlan[Candidate],
    significance_level: float,
) -> Candidate | None:
    """Test the candidates of a plan, and return the last candidate that passed.

    Parameters
    ----------
    rule : CandidateRule
        Test of one candidate.

    rows : Rows
        Rows that are tested. The pilot rows are not among them.

    plan : CandidatePlan
        Candidates in order.

    significance_level : float
        Significance level of all tests together.

    Returns
    -------
    Candidate or None
        None if no candidate passed.
    """
    last_passing_candidate: Candidate | None = None
    carried_level_fraction = 0.0
    for sequence in plan.sequences:
        level_fraction = carried_level_fraction + sequence.level_fraction
        sequence_level = level_fraction * significance_level
        # If every candidate passes, the next sequence receives the significance level as well.
        carried_level_fraction = level_fraction
        for candidate in sequence.candidates:
            if not rule.passes(rows, candidate, plan.limit, sequence_level):
                # A sequence with a failed test passes no significance level on to the next sequence.
                carried_level_fraction = 0.0
                break
            last_passing_candidate = candidate
    return last_passing_candidate
