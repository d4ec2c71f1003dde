"""Errors that onnxgen reports to its users.

A stage collects its problems in `Problems` and raises them together, so that a person reads all of them at once. The
command line prints an `OnnxgenError` without a traceback and exits with its `exit_code`.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onnxgen.common.names import sentence, unscoped, visible

# Help that many problems share.
BUG = "if onnxruntime runs the model, report this as a bug in onnxgen"
WRITER = "report the file to the tool that wrote it, or cut the node off with --inputs/--outputs"
CHECK = "run onnx.checker.check_model on the file; if it fails, export the model again or report the file to its tool"
INFER = "run onnx.shape_inference.infer_shapes on the file first"
FIX_SHAPE = "fix the shape of the inputs with --input-shape"
FOR_CPU = "optimise the model again for onnxruntime's CPUExecutionProvider"
MAX_SAID = 1000  # characters of what a pass is said to have changed
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a description, the node (if any), and help.

    `what` and `help` are plain sentences. Names from the file must go through `names.printable` first. Characters that
    control a terminal are removed in any case.
    """

    what: str
    node: str = ""
    op: str = ""
    opset: int | None = None
    help: str = ""

    def __post_init__(self) -> None:
        for name in ("what", "node", "op", "help"):
            object.__setattr__(self, name, visible(getattr(self, name)))

    def __str__(self) -> str:
        where = ""
        if self.node or self.op:
            version = f"-{self.opset}" if self.opset is not None else ""
            where = f"node {self.node or '(unnamed)'} ({self.op}{version}): "
        return f"{where}{self.what}" + (f" -> {self.help}" if self.help else "")


class OnnxgenError(Exception):
    """Bad input: a file, an option or a model that cannot be converted exactly.

    Attributes:
        problems: all problems, in the order in which they were found.
        exit_code: of the command line (2; subclasses differ).

    Args:
        problems: all problems; a text is a problem without a node.
        help: of the problem that is given as text.
    """

    exit_code = 2

    def __init__(self, *problems: Problem | str, help: str = "") -> None:
        self.problems = tuple(Problem(p, help=help) if isinstance(p, str) else p for p in problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class EditedError(OnnxgenError):
    """The output was edited by hand, its source changed too, and they can't be merged. Nothing was overwritten."""

    exit_code = 3


STRICT = "ONNXGEN_STRICT"  # environment variable: what onnxgen would work around is an error at once


def is_strict() -> bool:
    """Return True if a fault of onnxgen is an error, where it could do without the faulty step."""
    return os.environ.get(STRICT, "") not in ("", "0")


class WrongTranslation(Exception):
    """The generated text does not compute what the network computes: a bug in onnxgen. Nothing is written."""


class WrongRewrite(Exception):
    """A pass changed what the network computes: a bug in onnxgen. The message is one printable line.

    Attributes:
        step: the name of the pass; "" if the weights are wrong.
    """

    def __init__(self, message: str, step: str = "") -> None:
        super().__init__(sentence(unscoped(message), MAX_SAID))
        self.step = step


class Problems:
    """Collects the problems of one stage."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, problem: Problem | str, help: str = "") -> None:
        """Record a problem, unless it is recorded already."""
        problem = Problem(problem, help=help) if isinstance(problem, str) else problem
        if problem not in self.found:
            self.found.append(problem)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Record the problems of an error that is raised in this context. Edits by hand stay an error of their own."""
        try:
            yield
        except EditedError:
            raise
        except OnnxgenError as error:
            for problem in error.problems:
                self.add(problem)

    def raise_if_any(self) -> None:
        """Raise one `OnnxgenError` with all problems, if there are any."""
        if self.found:
            raise OnnxgenError(*self.found)


def failed(error: BaseException) -> str:
    """Describe an exception in onnxgen's code for a node whose inputs or attributes probably make no sense."""
    places = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(_HERE)]
    where = f", {Path(places[-1].filename).relative_to(_HERE.parent)}:{places[-1].lineno}" if places else ""
    return f"the inputs and attributes do not fit together ({type(error).__name__}: {error}{where})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return help for an unknown name: the most similar known name, or all known names."""
    import difflib  # for errors alone

    names = list(known)
    close = difflib.get_close_matches(name[:100], names, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(names))}"


def one_line(error: BaseException, most: int = 300) -> str:
    """Return the message of another library's error, in one printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())[:most]


def typed(error: BaseException, most: int = 300) -> str:
    """Return the type and message of another library's error, in one line."""
    return f"{type(error).__name__}: {one_line(error, most)}"


def raised_in(error: BaseException) -> str:
    """Return the name of the module that raised an exception; "" if it has no traceback."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return name


def raised_by_others(error: BaseException) -> str:
    """Return the file and line of a person's own code that an exception came through; "" if it came through none.

    Such code is in no package that is installed: a module that was generated and may have been edited, a plugin, a
    function that an option names.
    """
    libraries = {os.path.realpath(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(os.path.realpath(frame.filename))
        known = file.is_relative_to(_HERE) or any(file.is_relative_to(folder) for folder in libraries)
        if not known and file.suffix == ".py" and file.is_file():
            return f"{frame.filename}, line {frame.lineno}"
    return ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 class`, `2 batches`, `1,204 parameters`."""
    plural = noun + ("es" if noun.endswith(("s", "tch")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"
