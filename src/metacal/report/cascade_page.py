"""The page on a cascade: one file without a script, in the style of the other page; every number is in it as JSON."""

from __future__ import annotations

import os
from html import escape
from pathlib import PurePath

from metacal import __version__
from metacal.estimators.cascade_evaluation import CascadeEvaluation, Part
from metacal.io.writing import atomic_path, plain_write_errors
from metacal.promises.rules.cascade import MaxLoss
from metacal.report.html import content_security_policy, embedded_json, style_sheet

_NAMES = {"small": "the small model", "large": "the large model", "person": "people"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640.0, 300.0, 64.0, 40.0

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{csp}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="{generator}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#promise">Skip to the answer</a>
<header class="top wrap"><div class="top-line"><div>
<p class="title">{title}</p>
<p class="facts">{facts}</p>
</div></div></header>
<main class="wrap" id="main">
<section class="card" id="promise" aria-labelledby="promise-title">
<div class="headline"><div>
<p class="verdict {mood}">{verdict}</p>
<h1 class="long" id="promise-title">{statement}</h1>
<p class="measured">{measured}</p>
</div><div>{tiles}</div></div>
</section>
<section class="card long" id="who" aria-labelledby="who-title">
<div class="head"><div><h2 id="who-title">Who answers</h2>
<p class="lead">Of the {n} rows. Intervals at {level} (Clopper-Pearson).</p></div></div>
<div class="scroll"><table><thead><tr><th scope="col">answered by</th><th scope="col" class="number">rows</th>
<th scope="col" class="number">share</th><th scope="col" class="number">right</th></tr></thead>
<tbody>{rows}</tbody></table></div>
</section>
{chart}
<section class="card long" id="certificate" aria-labelledby="certificate-title">
<div class="head"><h2 id="certificate-title">The certificate</h2></div>
<dl class="facts-list">{lines}</dl>
</section>
</main>
<footer class="wrap foot fine">Made by {generator}. This page is one file: it needs no network, sends nothing.</footer>
<script type="application/json" id="summary">{data}</script>
</body>
</html>
"""


def render_cascade(summary: CascadeEvaluation, *, title: str | None = None) -> str:
    """Return the page as HTML."""
    verification, certificate = summary.verification, summary.verification.certificate
    name = None if summary.file in (None, "-") else PurePath(str(summary.file)).name
    mood, verdict = ("refuted", "Refuted on these rows") if verification.refuted else ("kept", "Not refuted")
    if summary.fitted_here:
        mood, verdict = "open", "The very rows it was fitted on: they say nothing new"
    style = style_sheet()
    lines = [*certificate.lines, *(("assuming", text) for text in certificate.assumptions)]
    lines += [("note", str(note)) for note in certificate.notes]
    files = [text for text in (summary.file, summary.large_file) if text]
    return _PAGE.format(
        csp=content_security_policy(style, ""),
        generator=f"metacal {__version__}",
        title=_text(title or (f"Cascade on {name}" if name else "Cascade")),
        style=style,
        facts=_text(f"{verification.n_rows:,} rows" + (f" of {' and '.join(files)}" if files else "")),
        mood=mood,
        verdict=verdict,
        statement=_text(certificate.statement),
        measured=_measured(summary),
        tiles=_tiles(summary),
        n=f"{verification.n_rows:,}",
        level=f"{100 * summary.level:g}%",
        rows="".join(_row(part) for part in summary.parts),
        chart=_chart(summary),
        lines="".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in lines),
        data=embedded_json(summary.to_dict()),
    )


def write_cascade_report(summary: CascadeEvaluation, path: str | os.PathLike[str], *, title: str | None = None) -> int:
    """Write the page, whole or not at all; return its size in bytes."""
    content = render_cascade(summary, title=title).encode("utf-8")
    with atomic_path(path) as part, plain_write_errors(path):
        part.write_bytes(content)
    return len(content)


def _text(value: object) -> str:
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def _measured(summary: CascadeEvaluation) -> str:
    found, seen = summary.verification, summary.verification.seen
    p_value = f"p-value {found.p_value:.3g}: the chance of as many or more if the promise is just kept."
    if isinstance(found.certificate.promise, MaxLoss):
        return (
            f"Measured: <strong>{100 * found.value:+.2f}%</strong>. On the rows that it answers the small model alone "
            f"is wrong {seen.worse:,} times, the large one alone would be {seen.better:,} times; {p_value}"
        )
    return f"Measured: <strong>{100 * found.value:.2f}%</strong> of {seen.answered:,} answers are right; {p_value}"


def _tiles(summary: CascadeEvaluation) -> str:
    cells = "".join(
        f'<div class="tile"><dt>answered by {_NAMES[part.name]}</dt><dd>{100 * part.share[0]:.1f}%</dd>'
        f"<dd>{part.n:,} rows</dd></div>"
        for part in summary.parts
    )
    labels = summary.verification.certificate.n_labels
    cells += (
        f'<div class="tile"><dt>labels the certificate needed</dt><dd>{labels:,}</dd><dd>calibration rows</dd></div>'
    )
    if len(summary.parts) == 2:
        rows = summary.verification.certificate.n_rows
        cells += f'<div class="tile"><dt>certified on</dt><dd>{rows:,}</dd><dd>calibration rows</dd></div>'
    return f'<dl class="tiles">{cells}</dl>'


def _row(part: Part) -> str:
    def cell(value: tuple[float, float, float] | None, missing: str) -> str:
        if value is None:
            return f'<td class="number">{missing}</td>'
        return f'<td class="number">{value[0]:.4f} <small>[{value[1]:.4f}, {value[2]:.4f}]</small></td>'

    right = cell(part.accuracy, "not measured" if part.name != "person" else "not asked")
    name = f'<th scope="row">{_NAMES[part.name]}</th><td class="number">{part.n:,}</td>'
    return f"<tr>{name}{cell(part.share, '')}{right}</tr>"


def _chart(summary: CascadeEvaluation) -> str:
    """The loss, or the accuracy, against the share that the small model answers."""
    if not summary.curve:
        return ""
    certificate, seen = summary.verification.certificate, summary.verification.seen
    promise = certificate.promise
    limit = promise.epsilon if isinstance(promise, MaxLoss) else promise.beta
    word = "loss against the large model" if isinstance(promise, MaxLoss) else "accuracy of what is answered"
    here = (seen.small / summary.verification.n_rows, summary.verification.value)
    values = [y for _, y in summary.curve] + [limit, here[1]]
    low, high = min(values), max(values)
    room = 0.08 * ((high - low) or 0.01)
    low, high = low - room, high + room

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + x * (_WIDTH - _LEFT - 12.0)
        return round(across, 2), round(12.0 + (high - y) / (high - low) * (_HEIGHT - _BOTTOM - 12.0), 2)

    line = " ".join(f"{x:g},{y:g}" for x, y in (place(*point) for point in summary.curve))
    x, y = place(*here)
    base, top = place(0.0, low)[1], place(0.0, limit)[1]
    end = place(1.0, limit)[0]
    ticks = "".join(
        f'<line class="grid" x1="{place(t, low)[0]}" x2="{place(t, low)[0]}" y1="12" y2="{base}"/>'
        f'<text x="{place(t, low)[0]}" y="{base + 18:g}" text-anchor="middle">{100 * t:g}%</text>'
        for t in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    marks = "".join(
        f'<text x="{_LEFT - 8:g}" y="{place(0.0, v)[1] + 4:g}" text-anchor="end">{100 * v:.1f}%</text>'
        for v in (low + room, high - room)
    )
    return f"""<section class="card long" id="curve" aria-labelledby="curve-title">
<div class="head"><div><h2 id="curve-title">If the small model answered more, or less</h2>
<p class="lead">Measured on these rows at each threshold: estimates, not promises. To move the threshold, certify
another limit with metacal cascade on rows of their own. The dot is the cascade as it is.</p></div></div>
<figure><h3>{word}</h3><div class="chart">
<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{word} by the share that the small model answers">
{ticks}{marks}<line class="axis" x1="{_LEFT:g}" x2="{end}" y1="{base}" y2="{base}"/>
<line class="target" x1="{_LEFT:g}" x2="{end}" y1="{top}" y2="{top}"/>
<polyline class="line after" points="{line}"/><circle class="handle" cx="{x}" cy="{y}" r="6"/>
<text x="{(_LEFT + end) / 2:g}" y="{_HEIGHT - 4:g}" text-anchor="middle">answered by the small model</text>
</svg></div><p class="fine key">the promised limit, {100 * limit:g}%</p></figure>
</section>"""
