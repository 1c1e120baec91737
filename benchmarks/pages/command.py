"""python -m benchmarks pages: README and docs, with the tables and numbers of the committed
results.
"""

from __future__ import annotations

import click

from benchmarks.pages import GENERATED_PAGES, PAGES, ROOT
from benchmarks.pages.measured import unsourced
from benchmarks.pages.numbers import filled, sources
from benchmarks.pages.tables import refreshed, tables
from metacal.cli.printing import echo


@click.command("pages")
@click.option(
    "--write", is_flag=True, help="Write the pages anew. Without it they are only checked."
)
@click.option("--sources", "traced", is_flag=True, help="List every number with its source.")
def command(write: bool, traced: bool) -> None:
    """Put what was measured into README and docs, or check that it is there.

    A page holds <!-- NAME --> and <!-- end --> with a table between them, and numbers in its
    sentences with a comment behind them that names result, key and format. Fails where a page says
    something else than the results, and where a measured digit has no source.
    """
    known = tables()
    failed = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if traced:
            for shown, source in sources(text):
                echo(f"{page.name}: {shown} is {source.result} {source.where} {source.gather}")
            continue
        new = filled(refreshed(text, known))
        if write and new != text:
            page.write_text(new, encoding="utf-8")
            echo(f"{page.relative_to(ROOT)} written")
        elif new != text:
            failed = True
            echo(
                f"{page.relative_to(ROOT)} is not what the results say; run python -m benchmarks"
                " pages --write."
            )
        if page.name in GENERATED_PAGES:
            continue
        for one in unsourced(text):
            failed = True
            echo(f"{page.relative_to(ROOT)}:{one.line}: {one.number} has no source: {one.text}")
    if failed:
        raise click.exceptions.Exit(1)
