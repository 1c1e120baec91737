"""The `metacal` command.

Each command is a module of this package with the same name. It is imported only when the command
is called, so that `metacal --help` responds at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, ClassVar

import click

from metacal import __version__
from metacal.cli.printing import PRINTED_TEXTS_KEY, print_note
from metacal.cli.signals import StopRequested, raise_on_stop_signals
from metacal.cli.startup import prepare_process
from metacal.display import escape_controls
from metacal.errors import (
    FileReadError,
    InfeasibleTargetError,
    MetacalError,
    MetacalWarning,
    SizeLimitError,
    StrictWarningError,
    format_help_link,
)
from metacal.spelling import use_command_line_spelling

# One-line summaries that `metacal --help` shows, in the order in which people need the commands.
SUMMARIES = {
    "demo": "Run an example on data that come with metacal, and write a report.",
    "start": "Start with a file of your own: inspect it, ask two questions, write gate and report.",
    "fit": "Fit a calibrator and a gate that keeps a promise about new rows.",
    "label": "Certify a promise with few labels, from a pool of unlabelled rows.",
    "apply": "Add calibrated probabilities and accept/reject decisions to new rows.",
    "evaluate": "Measure calibration and the promise of a gate on labelled rows.",
    "show": "Show the promise, the calibrator and the classes of a saved gate.",
    "verify": "Test on new labelled rows whether a gate still keeps its promise.",
    "monitor": "Monitor the traffic of a gate, and raise an alarm if it changes.",
    "cascade": "Certify a cascade: a small model predicts easy rows, a large model the others.",
    "compare": "Compare calibrators by cross-validation on labelled rows, best first.",
    "report": "Write an HTML report: the promise, calibration, and the choice of a threshold.",
    "export": "Export a gate as an ONNX model that runs without Python.",
    "attach": "Attach a gate to an ONNX classifier, so that it also returns decisions.",
    "config": "Show the compute kernel, the versions of libraries, and environment variables.",
}


#: Environment variable with the modules to import before a command runs, separated by commas.
#: The modules register calibrators, scores and promises.
PLUGINS_VARIABLE = "METACAL_PLUGINS"


#: Environment variable that shows the traceback of an unexpected error.
_TRACEBACK_VARIABLE = "METACAL_TRACEBACK"
#: A process that signal n ends has the exit code 128 + n, as shells report it.
_EXIT_CODE_OFFSET_OF_SIGNALS = 128
#: Maximal number of characters of an error or a warning.
_MAX_MESSAGE_LENGTH = 2000


#: From version 8.2, click raises this error to print the help of a command without arguments.
_HELP_REQUESTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
#: Kinds of errors that no class of `metacal.errors` describes, as in the error reference.
USAGE_ERROR_KIND = "command-line-options"
UNEXPECTED_ERROR_KIND = "unexpected-error"


class WrongFileError(click.ClickException):
    """Error in a file or a request, with the exit code of wrong usage."""

    exit_code = 2


class ErrorWithHelpLink(click.ClickException):
    """Error of a command, printed together with the address of its explanation.

    Parameters
    ----------
    error : click.ClickException
        The error.
    kind : str
        Kind of the error: the anchor of its section in the error reference.
    """

    def __init__(self, error: click.ClickException, kind: str) -> None:
        super().__init__(error.message)
        # click declares the exit code as a class variable; here it depends on the wrapped error.
        vars(self)["exit_code"] = error.exit_code
        self.error = error
        self.kind = kind

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error, followed by the link to its section."""
        self.error.show(file)
        click.echo(format_help_link(self.kind), file=file, err=file is None)


class Commands(click.Group):
    """Group of commands whose modules are imported when a command is called.

    Attributes
    ----------
    summaries : dict of str to str
        Summary of each command.
    module_template : str
        Format of the name of the module that defines a command as `command`.
    """

    summaries: ClassVar[dict[str, str]] = SUMMARIES
    module_template: ClassVar[str] = "metacal.cli.{}"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run a command as the program of this process, and end the process."""
        prepare_process()
        return super().__call__(*args, **keywords)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which people need them."""
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import plugins and the command's module, and add --quiet to the command."""
        if cmd_name not in self.summaries:
            return None
        _import_plugins(ctx)
        from metacal.cli.options import quiet_option

        module = importlib.import_module(self.module_template.format(cmd_name))
        command: click.Command = module.command
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
        """Find the command, or raise a usage error that suggests a similar name."""
        command_name = args[0]
        is_unknown_name = command_name not in self.summaries and not command_name.startswith("-")
        if is_unknown_name and not ctx.resilient_parsing:
            import difflib

            close_matches = difflib.get_close_matches(
                command_name.lower(), self.summaries, n=1, cutoff=0.5
            )
            if close_matches:
                hint = f"did you mean {close_matches[0]!r}?"
            else:
                hint = f"there are {', '.join(self.summaries)}."
            ctx.fail(f"there is no command {command_name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Print a failure as one line on stderr, and set the exit code."""
        # The default allocator of Arrow reserves a gigabyte, which exceeds common memory limits.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        try:
            with use_command_line_spelling(), _show_warnings_once(ctx), raise_on_stop_signals():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            click.echo("Aborted.", err=True)
            ctx.exit(_EXIT_CODE_OFFSET_OF_SIGNALS + signal.SIGINT)
        except StopRequested as stop_request:
            click.echo("Stopped.", err=True)
            ctx.exit(_EXIT_CODE_OFFSET_OF_SIGNALS + stop_request.signal_number)
        except BrokenPipeError:
            # Without this redirection, flushing buffered output at exit would raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            # A reader such as `head` closes the pipe when it has enough rows, which is no failure.
            writes_rows_to_pipe = ctx.invoked_subcommand == "apply"
            ctx.exit(0 if writes_rows_to_pipe else 1)
        except Exception as error:
            click_error = _as_click_exception(error)
            if click_error is None:
                raise
            error_kind = _find_error_kind(error)
            raise ErrorWithHelpLink(click_error, error_kind) from _choose_cause(error)
        return result

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the command line, escaping control characters in usage errors."""
        try:
            return super().make_context(*args, **extra)
        except _HELP_REQUESTS:
            raise
        except click.ClickException as error:
            raise ErrorWithHelpLink(_escape_controls(error), USAGE_ERROR_KIND) from error.__cause__


def _as_click_exception(error: Exception) -> click.ClickException | None:
    """Convert an error to a click exception, or None to show the traceback."""
    if isinstance(error, click.ClickException):
        return _escape_controls(error)
    if isinstance(error, InfeasibleTargetError):
        return click.ClickException(_as_one_line(error))
    if isinstance(error, MetacalError):
        return WrongFileError(_as_one_line(error))
    if isinstance(error, OSError):
        prefix = f"{error.filename}: " if error.filename else ""
        return WrongFileError(_as_one_line(f"{prefix}{error.strerror or error}."))
    if isinstance(error, MemoryError):
        return click.ClickException(
            "Not enough memory for this file. Use a smaller file, or a machine with more memory."
        )
    if os.environ.get(_TRACEBACK_VARIABLE):
        return None
    return click.ClickException(
        f"{type(error).__name__}: {_as_one_line(error)} (unexpected error; please report it"
        f" together with the output of {_TRACEBACK_VARIABLE}=1)"
    )


def _find_error_kind(error: Exception) -> str:
    """Return the kind of an error, which names its section in the error reference."""
    if isinstance(error, MetacalError):
        return error.kind
    if isinstance(error, click.ClickException):
        return USAGE_ERROR_KIND
    if isinstance(error, OSError):
        return FileReadError.kind
    if isinstance(error, MemoryError):
        return SizeLimitError.kind
    return UNEXPECTED_ERROR_KIND


def _choose_cause(error: Exception) -> BaseException | None:
    """Return the exception that a traceback shows as the cause of a click exception."""
    if isinstance(error, click.ClickException):
        return error.__cause__
    if isinstance(error, MemoryError):
        return None
    return error


def _import_plugins(ctx: click.Context) -> None:
    """Import the modules that the environment variable lists.

    Raises
    ------
    click.UsageError
        If a module cannot be imported. Shell completion skips it instead.
    """
    listed_names = os.environ.get(PLUGINS_VARIABLE, "").split(",")
    module_names = [name.strip() for name in listed_names if name.strip()]
    for module_name in module_names:
        try:
            importlib.import_module(module_name)
        except Exception as error:
            if ctx.resilient_parsing:
                continue
            if os.environ.get(_TRACEBACK_VARIABLE):
                raise
            raise click.UsageError(
                f"Cannot import the module {module_name!r}, which {PLUGINS_VARIABLE} names:"
                f" {type(error).__name__}: {_as_one_line(error).rstrip('.')}. Install the module,"
                f" add its folder to PYTHONPATH, or remove its name from {PLUGINS_VARIABLE}.",
                ctx,
            ) from error


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="metacal", message="%(prog)s %(version)s")
def main() -> None:
    """Calibrated probabilities and a certified accept/reject gate for any trained classifier.

    Pass a classifier's logits and true labels. metacal calibrates the probabilities, and finds
    which rows to reject so that a promise holds for the accepted ones.

    \b
    Start here:
      metacal demo
      metacal start val.csv
      metacal fit val.npz --min-accuracy 0.97 -o cal.json
      metacal evaluate cal.json test.npz
      metacal apply cal.json new.parquet -o out.parquet

    Results go to standard output, everything else to standard error. The exit code is 0 for
    success, 1 if the data do not support the request, 2 for wrong usage or a wrong file, and 3 for
    a refuted promise (verify) or an alarm (monitor).

    Shell completion for bash (or zsh_source, fish_source):

    \b
      eval "$(_METACAL_COMPLETE=bash_source metacal)"
    """  # noqa: D301


@contextmanager
def _show_warnings_once(ctx: click.Context) -> Iterator[None]:
    """Show each distinct warning once, as one line on stderr.

    Warnings appear after the result, unless the printed text already contains them. `monitor`
    may run for ever, so its warnings appear at once. With --strict, a warning of metacal is an
    error.
    """
    warning_texts: dict[str, None] = {}
    shows_at_once = ctx.invoked_subcommand == "monitor"

    def show_warning(
        message: Warning | str, category: type[Warning], *rest: Any, **options: Any
    ) -> None:
        warning_text = _as_one_line(message)
        is_strict_option_given = ctx.meta.get("metacal.strict")
        if is_strict_option_given and issubclass(category, MetacalWarning):
            raise StrictWarningError(f"{warning_text} (--strict turns this warning into an error)")
        if shows_at_once and warning_text not in warning_texts:
            print_note(f"Warning: {warning_text}")
        warning_texts[warning_text] = None

    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        try:
            yield
        finally:
            if not shows_at_once:
                # A certificate may already contain the text of a warning as a note.
                printed_text = escape_controls(" ".join(ctx.meta.get(PRINTED_TEXTS_KEY, ())))
                for warning_text in warning_texts:
                    if warning_text not in printed_text:
                        print_note(f"Warning: {warning_text}")


def _escape_controls(error: click.ClickException) -> click.ClickException:
    """Escape control characters in the texts of an error, in place."""
    attributes = vars(error)
    for attribute_name in ("message", "option_name", "filename", "ui_filename"):
        attribute_text = attributes.get(attribute_name)
        if isinstance(attribute_text, str):
            attributes[attribute_name] = escape_controls(attribute_text)
    return error


def _as_one_line(message: object) -> str:
    """Return a message as a single line of limited length, without control characters."""
    one_line = escape_controls(" ".join(str(message).split()))
    if len(one_line) <= _MAX_MESSAGE_LENGTH:
        return one_line
    half_length = _MAX_MESSAGE_LENGTH // 2
    return f"{one_line[:half_length]} ... {one_line[-half_length:]}"
