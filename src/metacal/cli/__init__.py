"""The `metacal` command: one file per command, imported when it is called, so that `--help` answers
at once.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

import click

from metacal import __version__
from metacal.cli.printing import PRINTED_TEXTS_KEY, print_note
from metacal.display import visible
from metacal.errors import InfeasibleTargetError, MetacalError, MetacalWarning, spelled_as_commands

#: Command -> what it does; its file bears its name.
SUMMARIES = {
    "demo": "See it work: the whole story on real data that ships with metacal.",
    "start": (
        "Begin with a file of your own: looks at it, asks two questions, writes gate, report and"
        " commands."
    ),
    "fit": "Fit a calibrator and a gate that carries a written promise.",
    "label": "Certify a promise with as few labels as it takes, from a pool that has none.",
    "apply": "Give new rows calibrated probabilities and an accept/reject decision.",
    "evaluate": "Measure calibration, and whether the promise is kept, on labelled rows.",
    "show": "Explain a saved file: its promise, its calibrator, its classes, where it comes from.",
    "verify": "Check on labelled rows whether the promise of a saved gate still stands.",
    "monitor": "Watch a gate's traffic and raise an alarm when something has changed.",
    "cascade": (
        "Let a small model answer what it is sure of and a large one the rest, under one promise."
    ),
    "compare": "Compare calibrators on labelled rows, best first.",
    "report": "Write one page to look at: is the promise kept, where to put the threshold.",
    "export": "Export the gate as a model of its own, without Python in it.",
    "attach": "Attach the gate to a classifier: an ONNX model that also says what it accepts.",
    "config": (
        "Show which kernel runs here and why, the versions around it, and what the environment"
        " sets."
    ),
}


#: Modules to import before a command runs, with commas between: they register calibrators, scores
#: and promises.
PLUGINS_VARIABLE = "METACAL_PLUGINS"
#: Characters of an error or a warning.
_LONGEST = 2000


class WrongFileError(click.ClickException):
    """A file, or what was asked of it, is wrong: exit code 2, as of wrong usage; 1 says that the
    rows are too few.
    """

    exit_code = 2


class Commands(click.Group):
    """The commands by name; each module is imported only when its command is called."""

    #: Command -> what it does, and the module that has it as `command`.
    summaries: ClassVar[dict[str, str]] = SUMMARIES
    place: ClassVar[str] = "metacal.cli.{}"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order in which people need them."""
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, and before it whatever the user's plugins add; every command
        has --quiet.
        """
        if cmd_name not in self.summaries:
            return None
        _import_plugins(ctx)
        from metacal.cli.options import quiet_option

        command: click.Command = importlib.import_module(self.place.format(cmd_name)).command
        if quiet_option not in command.params:
            command.params.append(quiet_option)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was probably meant."""
        name = args[0]
        if name not in self.summaries and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name.lower(), self.summaries, n=1, cutoff=0.5)
            hint = (
                f"did you mean {close[0]!r}?"
                if close
                else f"there are {', '.join(self.summaries)}."
            )
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever goes wrong is one line on stderr and an exit code."""
        # Arrow's own allocator reserves a gigabyte of address space at once, which a memory limit
        # does not grant.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        try:
            with spelled_as_commands(), _plain_warnings(ctx), stoppable():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except click.ClickException as error:
            raise _escape_controls(error) from error.__cause__
        except (click.Abort, click.exceptions.Exit):
            raise
        except MetacalError as error:
            too_few = isinstance(error, InfeasibleTargetError)
            raise (click.ClickException if too_few else WrongFileError)(
                _as_one_line(error)
            ) from error
        except KeyboardInterrupt:
            click.echo("Aborted.", err=True)
            ctx.exit(130)
        except Stopped as stopped:
            click.echo("Stopped.", err=True)
            ctx.exit(
                128 + stopped.args[0]
            )  # what a shell reports for a process that a signal ended
        except BrokenPipeError:
            # The reader (head, less) has gone. What is still buffered must not raise again when
            # Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise WrongFileError(_as_one_line(f"{where}{error.strerror or error}.")) from error
        except MemoryError:
            raise click.ClickException(
                "there is not enough memory for this file; use a smaller one."
            ) from None
        except Exception as error:
            if os.environ.get("METACAL_TRACEBACK"):
                raise
            raise click.ClickException(
                f"{type(error).__name__}: {_as_one_line(error)} (unexpected: please report it, with"
                " what METACAL_TRACEBACK=1 shows)"
            ) from error
        return result

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the words of the command line; what they hold is shown only when it is harmless."""
        try:
            return super().make_context(*args, **extra)
        except click.ClickException as error:
            raise _escape_controls(error) from error.__cause__


def _import_plugins(ctx: click.Context) -> None:
    """Import the modules that the environment names; one that cannot be imported is wrong usage."""
    for name in filter(None, map(str.strip, os.environ.get(PLUGINS_VARIABLE, "").split(","))):
        try:
            importlib.import_module(name)
        except Exception as error:
            if ctx.resilient_parsing:  # the shell completes a line: it completes what there is
                continue
            if os.environ.get("METACAL_TRACEBACK"):
                raise
            raise click.UsageError(
                f"{PLUGINS_VARIABLE} names the module {name!r}, which cannot be imported:"
                f" {type(error).__name__}: {_as_one_line(error).rstrip('.')}. Install it, put its"
                " folder on PYTHONPATH, or take its name out.",
                ctx,
            ) from error


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="metacal", message="%(prog)s %(version)s")
def main() -> None:
    """Calibrated probabilities and an accept/reject gate with a promise, for any trained
    classifier.

    Give it a classifier's logits and true labels; it learns how far to trust the scores and which
    rows to reject.

    \b
    Start here:
      metacal demo
      metacal start val.csv
      metacal fit val.npz --min-accuracy 0.97 -o cal.json
      metacal evaluate cal.json test.npz
      metacal apply cal.json new.parquet -o out.parquet

    Results go to stdout, everything else to stderr; --json makes results machine-readable, --quiet
    leaves only results and errors. Exit code 0: fine, 1: the data cannot give what was asked, 2:
    wrong usage or file, 3: a promise refuted (verify) or an alarm (monitor).

    Completion of commands, options and file names, in bash (zsh and fish alike, with their names):

    \b
      eval "$(_METACAL_COMPLETE=bash_source metacal)"
    """  # noqa: D301


@contextmanager
def _plain_warnings(ctx: click.Context) -> Iterator[None]:
    """Show each warning once, as one line on stderr when the result is out, unless that says it;
    with --quiet none.

    What runs until it is stopped shows them at once.
    """
    heard: dict[str, None] = {}
    at_once = ctx.invoked_subcommand == "monitor"

    def show(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
        text = _as_one_line(message)
        if ctx.meta.get("metacal.strict") and issubclass(category, MetacalWarning):
            raise MetacalError(f"{text} (a warning, which --strict makes an error)")
        if at_once and text not in heard:
            print_note(f"Warning: {text}")
        heard[text] = None

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        finally:
            said = visible(" ".join(ctx.meta.get(PRINTED_TEXTS_KEY, ())))
            for text in () if at_once else heard:
                if text not in said:
                    print_note(f"Warning: {text}")


def _escape_controls(error: click.ClickException) -> click.ClickException:
    """The same error; what it says of the user's words or of a file is written out where a terminal
    would obey it.
    """
    for name in ("message", "option_name", "filename", "ui_filename"):
        if isinstance(vars(error).get(name), str):
            vars(error)[name] = visible(vars(error)[name])
    return error


def _as_one_line(message: object) -> str:
    text = visible(" ".join(str(message).split()))
    # What a file holds may be of any length; nobody reads so much on one line.
    return (
        text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    )


# ── being told to stop ────────────────────────────────────────────────────────────────────────────

# SIGTERM and SIGHUP unwind the command as Ctrl-C does, so that no half-written file stays. By
# default these signals end the process on the spot, between two lines of Python.

Handler = Callable[[int, FrameType | None], Any]


class Stopped(BaseException):
    """The signal of this number said to stop. No `Exception`: nothing on the way up may take it for
    a failure.
    """


@contextmanager
def _replace_handlers(
    names: tuple[str, ...], handle: Handler, where: Callable[[Any], bool]
) -> Iterator[dict[int, Any]]:
    """Within this the signals are handled otherwise `where` their handlers are such; yields these,
    as they were before.

    Only the main thread may handle signals, and Windows has no SIGHUP.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before = {
            number: signal.getsignal(number)
            for number in numbers
            if where(signal.getsignal(number))
        }
    for number in before:
        signal.signal(number, handle)
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stoppable() -> Iterator[None]:
    """Within this, SIGTERM and SIGHUP raise `Stopped` in the main thread, once; then the signals
    are as before.

    Examples
    --------
    >>> import os
    >>> try:
    ...     with stoppable():
    ...         os.kill(os.getpid(), signal.SIGTERM)
    ... except Stopped as stopped:
    ...     print(stopped)
    15
    """

    def stop(number: int, frame: FrameType | None) -> Any:
        # A second signal must not interrupt the clearing up after the first.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    # One that is ignored stays so: that is what nohup does.
    with _replace_handlers(
        ("SIGTERM", "SIGHUP"), stop, lambda handler: handler == signal.SIG_DFL
    ) as numbers:
        yield


@contextmanager
def delay_signals() -> Iterator[None]:
    """Within this, signals that stop the command wait: what must be done whole is."""
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        with _replace_handlers(
            ("SIGINT", "SIGTERM", "SIGHUP"), lambda number, frame: came.append(number), callable
        ) as before:
            yield
    finally:
        for number in came[:1]:
            before[number](number, None)
