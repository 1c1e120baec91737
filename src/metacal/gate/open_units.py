"""Units of a stream: rows that belong together wait until their unit is complete, and it counts as one observation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.gate.traffic import Id, Waiting, kept_id
from metacal.promises.certificate import Certificate
from metacal.promises.parts.units import unit_codes
from metacal.promises.sequential.profile import drawn_from_positions
from metacal.promises.sequential.wager import Together

#: Rows that wait, and complete units that are remembered; the oldest go first.
MOST_WAITING = 40_000
#: Where the numbers begin that draw a row from each unit: others order rows of one score.
_DRAWS = 1 << 40


@dataclass
class OpenUnits:
    """Units that are not complete: the names under which their rows wait, the unit that came last at the end.

    `closed` are those that are, `complete` of them were counted; `strays` are rows that were not: they came when their
    unit was complete, or it was far larger than what the gate was certified for.
    """

    open: dict[Id, list[Id]] = field(default_factory=dict)
    closed: dict[Id, None] = field(default_factory=dict)
    complete: int = 0
    strays: int = 0

    def join(self, waiting: dict[Id, Waiting], name: Id | None, row: Waiting, horizon: int) -> list[list[Waiting]]:
        """A row waits for the rest of its unit; the units that are complete now, in the order of their last rows."""
        assert row.unit is not None
        if row.unit in self.closed:
            self.strays += 1
        else:
            own = f"\0{row.position}" if name is None else kept_id(name)
            if (before := waiting.get(own)) is not None and before.unit is not None:  # a label means the later row
                named = self.open[before.unit]
                named[named.index(own)] = f"\0{before.position}"
                waiting[f"\0{before.position}"] = before
            waiting[own] = row
            self.open[row.unit] = [*self.open.pop(row.unit, []), own]
        done = []
        while self.open:
            unit, names = next(iter(self.open.items()))
            since = row.position - waiting[names[-1]].position
            if since < max(horizon, 1) and len(waiting) <= MOST_WAITING:
                break
            done.append([waiting.pop(name) for name in self.open.pop(unit)])
            self.closed[unit] = None
            if len(self.closed) > MOST_WAITING:
                del self.closed[next(iter(self.closed))]
        return done

    def counted(self, done: list[list[Waiting]], largest: int | None) -> tuple[list[Waiting], Together]:
        """The rows of complete units, those that count, unit after unit; `largest` is S where every row does."""
        # Bets lose at most half of what S rows can lose: of 2S rows they could lose everything.
        units = [rows for rows in done if largest is None or len(rows) < 2 * largest]
        self.strays += sum(map(len, done)) - sum(map(len, units))
        self.complete += len(units)
        n_rows = np.array([len(rows) for rows in units], dtype=np.intp)
        draw = np.array([drawn_from_positions(_DRAWS + rows[0].position, 1)[0] for rows in units])
        drawn = np.zeros(n_rows.sum(), dtype=bool)
        drawn[np.cumsum(n_rows) - n_rows + (draw * n_rows).astype(np.intp)] = True
        sizes = n_rows.astype(np.float64) if largest is None else np.full(len(units), float(largest))
        rows = [row for rows in units for row in rows]
        return rows, Together(np.repeat(np.arange(len(units)), n_rows), drawn, sizes)


def open_units(waiting: dict[Id, Waiting]) -> dict[Id, list[Id]]:
    """The units that rows wait for, as they are held: the unit whose row came last at the end."""
    found: dict[Id, list[Id]] = {}
    for name, row in sorted(waiting.items(), key=lambda pair: pair[1].position):
        if row.unit is not None:
            found[row.unit] = [*found.pop(row.unit, []), name]
    return found


def check_units(certificate: Certificate | None, *, given: bool) -> None:
    """InputError where a gate was certified by units and none are given, or the other way round."""
    by_unit = certificate is not None and certificate.circumstances.units is not None
    if by_unit and not given:
        raise InputError(
            "this gate was certified by units, rows that belong together: say of which unit each row is (units=, "
            "--unit-key), the rows of a unit one after another or within the horizon."
        )
    if given and not by_unit:
        raise InputError(
            "this gate was certified on independent rows: watch it without units, or fit it with units= (fit "
            "--unit-key) and watch that."
        )


def unit_names(units: Any, n: int) -> list[Id]:
    """The unit of each row as it is kept; InputError where one is missing."""
    unit_codes(units, n)
    given = units.tolist() if hasattr(units, "tolist") else list(units)
    return [kept_id(one if isinstance(one, str | int) else str(one)) for one in given]
