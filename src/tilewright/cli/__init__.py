"""The command line: `tilewright COMMAND ...`, also `python -m tilewright`.

An error is one line on stderr. Exit codes: 0 success; 1 an error in the user's model, file or input, or a
failed comparison; 2 an error in the command line; 70 a bug of the compiler; 130 interrupted. With
TILEWRIGHT_DEBUG=traceback errors show their traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

import click

import tilewright

_COMMANDS = {
    "bench": "Time a compiled model against other engines.",
    "compare": "Compare a model, layer by layer, with its own framework.",
    "compile": "Compile a model to an artifact.",
    "doctor": "Check this machine, and whether a model is supported.",
    "explore": "Show a model at every level, with its times, on a page.",
    "inspect": "Show what an artifact contains, or a model's IR.",
    "llm": "Language models: convert weights, chat, serve, measure.",
    "package": "Write a model as a package: C++, Android, Apple, Rust, Windows.",
    "profile": "Show where a model's time goes, kernel by kernel.",
    "minimize": "Reduce a failing model to a minimal one.",
    "quantize": "Turn a model into one of 8-bit integers.",
    "run": "Run a model once.",
    "tune": "Measure schedules of a model's kernels and keep the best.",
}


class _Commands(click.Group):
    """Imports a command's module when the command is called; listing the commands imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return importlib.import_module(f"tilewright.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tilewright.__version__, prog_name="tilewright")
def cli() -> None:
    """Compile machine-learning models to native artifacts that run without Python."""


def one_line(message: str) -> str:
    """A message of several lines in one line, with semicolons between the items of a list."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    text = ""
    for line in lines:
        item = line.removeprefix("- ")
        first = text.endswith(":")
        text += ("" if not text else " " if first or item == line else "; ") + item
    return text


def _fail(code: int, message: str) -> NoReturn:
    from tilewright.errors import CompileError
    from tilewright.ir.debug import debug_settings

    with suppress(CompileError):  # an unknown setting, which compiling reports
        if debug_settings().traceback:
            traceback.print_exc()
    print(f"tilewright: error: {one_line(message)}", file=sys.stderr)
    raise SystemExit(code)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"tilewright: warning: {one_line(str(message))}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line `argv` (default: the process's) and exit."""
    from tilewright.errors import InternalError, TilewrightError, missing_package

    warnings.showwarning = _warn
    try:
        result: Any = cli.main(
            args=None if argv is None else list(argv), prog_name="tilewright", standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        raise SystemExit(2) from None
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        _fail(2, error.format_message() + where)
    except click.ClickException as error:
        _fail(1, error.format_message())
    except (click.Abort, KeyboardInterrupt):
        print("tilewright: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except InternalError as error:
        _fail(70, str(error))
    except TilewrightError as error:
        _fail(1, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _fail(1, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        _fail(1, "not enough memory")
    except Exception as error:
        if isinstance(error, ImportError) and (absent := missing_package(error)) is not None:
            _fail(1, absent)
        _fail(
            70,
            f"internal error: {type(error).__name__}: {error} "
            "(a bug in Tilewright; set TILEWRIGHT_DEBUG=traceback for the traceback)",
        )
    raise SystemExit(result if isinstance(result, int) else 0)
