"""The monitors' results, which `benchmarks/monitor.py` makes, as tables: false alarms, delays,
error bars.
"""

from __future__ import annotations

from typing import Any

Results = dict[str, Any]

#: Alarms in the order in which they are shown.
_ALARMS = ("promise", "abstention", "score", "calibration")


def false_alarms(found: Results) -> list[str]:
    """How often each alarm was raised over 10^5 rows although nothing was wrong."""
    lines = [
        "| source | replays | promise | abstention | score | calibration | any |",
        "|---|---|---|---|---|---|---|",
    ]
    sources = [
        ("scores and chances of a known law", found["law"]),
        ("least favourable", found["worst"]),
    ]
    sources += [*found["real"].items(), ("cross-fitted, cv=5", found["cross"])]
    sources += [(f"labels by outcome, {words}", told) for words, told in found["outcome"].items()]
    for name, told in sources:
        raised, kept = told["raised"], told["kept"]
        cells = [f"{raised[alarm]} of {kept}" if alarm in raised else "" for alarm in _ALARMS]
        whole = (
            f"{told['any']} of {told['kept']}"
            if all(alarm in told["raised"] for alarm in _ALARMS)
            else ""
        )
        lines.append(f"| {name} | {told['replays']} | {' | '.join(cells)} | {whole} |")
    return lines


def delays(found: Results) -> list[str]:
    """Rows until the alarm, median and 90% quantile, beside false alarms at the limit."""
    rules = list(dict.fromkeys(row["rule"] for row in found["delay"]))
    cases = list(dict.fromkeys((row["start"], row["drop"]) for row in found["delay"]))
    heads = [f"{_points(drop)}{f' after {start:,}' if start else ''}" for start, drop in cases]
    lines = [f"| rule | false alarms | {' | '.join(heads)} |", "|---|---|" + "---|" * len(cases)]
    known = {(row["rule"], row["start"], row["drop"]): row for row in found["delay"]}
    for rule in rules:
        cells = [_delay(known[(rule, *case)]) for case in cases]
        false = f"{100 * found['boundary'][rule] / found['boundary']['replays']:.1f}%"
        lines.append(f"| {rule} | {false} | {' | '.join(cells)} |")
    return lines


def _points(drop: float) -> str:
    return f"{100 * drop:.0f} point{'' if drop == 0.01 else 's'}"


def _delay(row: dict[str, Any]) -> str:
    median, most = (
        f"{value:,.0f}" if value is not None else "never" for value in (row["median"], row["q90"])
    )
    return f"{median} / {most}"


def estimates(found: Results) -> list[str]:
    """How often the error bar of an estimate without labels holds the truth, on like rows and on
    shifted ones.
    """
    lines = [
        (
            "| set | calibration rows | new rows | bar holds | half width | after a shift |"
            " estimate too high by |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in found["estimates"].items():
        for row in rows:
            holds, shifted = (
                f"{100 * row[key] / row['replays']:.1f}%" for key in ("inside", "inside_shifted")
            )
            half, gap = (
                f"±{100 * row['half_width']:.2f} points",
                f"{100 * row['gap_shifted']:.1f} points",
            )
            lines.append(
                f"| {name} | {row['calibration']:,} | {row['new']:,} | {holds} | {half} | {shifted}"
                f" | {gap} |"
            )
    return lines


def units(found: Results) -> list[str]:
    """Units of dependent rows: what is refuted and what alarms, without a change, at the limit and
    after a drop.
    """
    lines = [
        (
            "| promise about | units | gates | source | refuted | refuted, as rows | promise alarm"
            " | any alarm |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    words = {
        "same": "the same",
        "limit": "promise kept exactly",
        "drop": f"wrong {100 * found['drop']:.0f} points more often",
    }
    for cell in found["cells"]:
        about = "a random row of a unit" if cell["per"] == "unit" else "rows"
        for source, told in words.items():
            names = ("refuted", "as rows", "promise", "any")
            shares = " | ".join(f"{100 * cell[f'{source} {name}']:.1f}%" for name in names)
            lines.append(f"| {about} | {cell['sizes']} | {cell['gates']} | {told} | {shares} |")
    return lines
