"""The command `onnxgen`: errors and exit codes here, the commands in `app.py`.

Nothing heavy is imported until a command runs; rich only where a terminal is there to show a table or a progress bar.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from onnxgen.cli.say import tell, tell_json
from onnxgen.common.names import visible

if TYPE_CHECKING:
    import click

DIFFERENT = 1
BAD_INPUT = 2
EDITED = 3
BUG = 70
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(args: list[str]) -> int:
    """Run one command line; returns the exit code, every error already said in a line or a few on stderr.

    Codes: 0 fine or fresh; 1 stale, or numerically different; 2 bad input; 3 edited by hand and stale; 70 a bug in
    onnxgen; 130 interrupted.
    """
    import click

    from onnxgen.errors import OnnxgenError

    try:
        with _plain_warnings():
            code = _commands(args).main(args or ["-h"], prog_name="onnxgen", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0) if args else BAD_INPUT
    except OnnxgenError as error:
        return _refuse(args, error)
    except click.UsageError as error:
        return _tell(args, _usage(error), BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _tell(args, "interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # click makes the one into the other; it exits for nothing else
        # whoever read our output has seen enough; keep the interpreter from complaining when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _tell(args, "out of memory", BAD_INPUT)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _tell(args, f"{error.strerror or error}{where}", BAD_INPUT)
    except Exception as error:
        return _bug(args, error)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Nothing in a warning of a library is an order to the terminal: some quote the file."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda *args, **given: visible(before(*args, **given))
    try:
        yield
    finally:
        warnings.formatwarning = before


def _commands(args: list[str]) -> click.Group:
    """The commands; without the others where the one that is asked for is to cost next to nothing."""
    from onnxgen.cli.group import named

    if named(args) == "build":
        from onnxgen.cli.building import alone

        return alone
    from onnxgen.cli.app import app

    return app


def _usage(error: object) -> str:
    import click

    assert isinstance(error, click.UsageError)
    command = error.ctx.command_path if error.ctx else "onnxgen"
    return f"{error.format_message()} (try: {command} -h)"


def _refuse(args: list[str], error: Exception) -> int:
    from onnxgen.errors import OnnxgenError

    assert isinstance(error, OnnxgenError)
    if "--json" in args:
        problems = [vars(problem) for problem in error.problems]
        tell_json({"error": str(error), "problems": problems, "exit_code": error.exit_code})
    for problem in error.problems:
        tell(f"error: {problem}", to_errors=True)
    if _verbose(args):
        _traceback()
    return error.exit_code


def _bug(args: list[str], error: Exception) -> int:
    hint = "" if _verbose(args) else "; -v shows the traceback"
    from onnxgen.errors import typed

    code = _tell(args, f"this is a bug in onnxgen, please report it{hint}: {typed(error)}", BUG)
    if _verbose(args):
        _traceback()
    return code


def _tell(args: list[str], text: str, code: int) -> int:
    if "--json" in args:
        tell_json({"error": text, "problems": [], "exit_code": code})
    tell(f"error: {text}", to_errors=True)
    return code


def _verbose(args: list[str]) -> bool:
    return "-v" in args or "--verbose" in args


def _traceback() -> None:
    import traceback

    tell(traceback.format_exc().rstrip("\n"), to_errors=True)
