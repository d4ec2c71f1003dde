"""The command `onnxgen`: errors and exit codes. The commands are in `app.py`, the two that load alone beside it.

Heavy imports wait until a command runs. rich is imported only to show a table or a progress bar on a terminal.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from onnxgen.cli.process import CODE, Interrupting, may_be_file, named
from onnxgen.cli.say import tell, tell_json
from onnxgen.common.names import visible

if TYPE_CHECKING:
    import click

    from onnxgen.errors import Problem

DIFFERENT = 1
BAD_INPUT = 2
EDITED = 3
BUG = 70
INTERRUPTED = CODE
_ENDED = "code of yours (a module, a task, data) ended the program with sys.exit -> remove that, or raise an exception"
GRACE = 10.0  # seconds in which the first process of a run ends after the others
_PARENT = os.getppid()


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process."""
    for stream in (sys.stdout, sys.stderr):  # a name that the stream's encoding (cp1252) lacks is no bug of ours
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] == ["verify"]:
        sys.exit(_verified(args))
    handler = Interrupting(lambda: _failed(args, "interrupted", INTERRUPTED))
    handler.listen(signal.SIGINT, *([signal.SIGTERM] if "train" in args else []))  # also before the run listens to it
    only_generates = _is_model(named(args)) and "--verify" not in args
    if only_generates:
        gc.disable()  # a quarter of its time: each search for garbage walks all modules, the graph and the trees
    try:
        code = run(args)
    except KeyboardInterrupt:  # while the command itself was loaded, or its last line was printed
        code = _failed(args, "interrupted", INTERRUPTED)
    handler.ended = code
    if only_generates:
        gc.freeze()  # else the interpreter searches once more as it ends
    sys.exit(code)


def _verified(args: list[str]) -> int:
    """Run `verify`, which runs onnxruntime on inputs that nobody has tried."""
    from onnxgen.cli.process import surviving

    help_ = "give sizes with --sizes NAME=N, or inputs of your own with --inputs FILE.npz"
    return surviving(lambda: run(args), lambda what: _failed(args, f"{what} -> {help_}", BAD_INPUT))


def run(args: list[str]) -> int:
    """Run one command line. Errors are printed to stderr. Returns the exit code.

    Codes: 0 fine or fresh; 1 stale, or numerically different; 2 bad input; 3 edited by hand and stale; 70 a bug in
    onnxgen; 130 interrupted.
    """
    import click

    from onnxgen.errors import OnnxgenError, raised_in

    try:
        with _plain_warnings():
            code = _commands(args).main(args or ["-h"], prog_name="onnxgen", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0) if args else BAD_INPUT
    except OnnxgenError as error:
        return _failed(args, str(error), error.exit_code, error.problems, traced=True)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "onnxgen"
        return _failed(args, f"{error.format_message()} (try: {command} -h)", BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _failed(args, "interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:  # click turns the one into the other
        if isinstance(error, SystemExit) and not raised_in(error).startswith("click"):
            return _failed(args, _ENDED, BAD_INPUT, traced=True)
        # the reader of our output has closed the pipe; keep the interpreter from complaining when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _failed(args, "out of memory", BAD_INPUT)
    except Exception as error:
        return _unexpected(args, error)


def _unexpected(args: list[str], error: Exception) -> int:
    """Print an error that nobody foresaw: of the system, a missing module, the user's code, or a bug."""
    from onnxgen.common.paths import lacking
    from onnxgen.errors import raised_by_others, typed

    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return _failed(args, f"{error.strerror or error}{where}", BAD_INPUT)
    if isinstance(error, ModuleNotFoundError) and (known := lacking(error)) is not None:
        return _failed(args, str(known), BAD_INPUT, known.problems, traced=True)
    if place := raised_by_others(error):
        way = "mend it; if it is a generated module that nobody edited, this is a bug in onnxgen"
        return _failed(args, f"{place} fails: {typed(error)} -> {way}", BAD_INPUT, traced=True)
    hint = "" if _is_verbose(args) else "; -v shows the traceback"
    return _failed(args, f"this is a bug in onnxgen, please report it{hint}: {typed(error)}", BUG, traced=True)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Remove control characters from warnings of libraries, which may quote the file."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda *args, **options: visible(before(*args, **options))
    try:
        yield
    finally:
        warnings.formatwarning = before


def _commands(args: list[str]) -> click.Group:
    """Return the group of all commands, or the one of a command that starts fast: `build`, and the default one."""
    if named(args) == "build":
        from onnxgen.cli.building import alone

        return alone
    if _is_model(named(args)):
        from onnxgen.cli.default import alone

        return alone
    from onnxgen.cli.app import app

    return app


def _is_model(word: str) -> bool:
    """Return True if the first word of a command line can only be a model."""
    return may_be_file(word) and not word.startswith("-")


def _first_failed() -> bool:
    """Return True in a further process of a run, if the first one on this machine failed or is about to.

    Lightning starts the others from the first one, and kills that one if one of them ends before it. Of torchrun's
    processes all raise the same `OnnxgenError`.
    """
    from onnxgen.errors import OnnxgenError

    if os.environ.get("LOCAL_RANK", "0") == "0":
        return False
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return isinstance(sys.exc_info()[1], OnnxgenError)
    end = time.monotonic() + GRACE
    while os.getppid() == _PARENT and time.monotonic() < end:
        time.sleep(0.05)
    return os.getppid() != _PARENT


def _failed(args: list[str], text: str, code: int, problems: Sequence[Problem] = (), traced: bool = False) -> int:
    """Print an error, and return the exit code. `traced`: with -v also print the traceback of the current exception.

    Of the processes of one run on a machine, the first one says what is wrong.
    """
    if _first_failed():
        return code
    if "--json" in args:
        tell_json({"error": text, "problems": [vars(problem) for problem in problems], "exit_code": code})
    for line in map(str, problems) if problems else [text]:
        tell(f"error: {line}", to_errors=True)
    if traced and _is_verbose(args):
        import traceback

        tell(traceback.format_exc().rstrip("\n"), to_errors=True)
    return code


def _is_verbose(args: list[str]) -> bool:
    return "-v" in args or "--verbose" in args
