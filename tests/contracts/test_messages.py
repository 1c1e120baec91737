"""The errors, warnings and notes in the source are those that `messages.txt` records."""

from __future__ import annotations

from contracts import messages

SOURCE = """
ADVICE = "Pass more rows."

@register_note("few")
def few(*, rows):
    return f"Only {rows:,} rows."

def check(rows):
    problem = f"{rows} rows are too few"
    if rows < 3:
        raise InputError(f"{problem}. {ADVICE}")
    warn_caller("At most " + limit + " rows are used.")
"""


def test_messages_are_those_of_the_file():
    recorded = messages.LIST.read_text(encoding="utf-8").splitlines()
    assert messages.collect_messages() == recorded, messages.REWRITE


def test_each_kind_of_message_is_collected(tmp_path):
    (tmp_path / "module.py").write_text(SOURCE, encoding="utf-8")
    assert messages.collect_messages(tmp_path) == [
        "module.py:few: note: Only {rows} rows.",
        "module.py:check: InputError: {problem}. {ADVICE}",
        "module.py:check: problem = {rows} rows are too few",
        "module.py:check: ADVICE = Pass more rows.",
        "module.py:check: warn_caller: At most {limit} rows are used.",
    ]
