"""Advice in the words of the caller: options for the command line, arguments of `fit` for Python.

Messages name settings as options of `onnxgen train`. `python_words` changes them where Python calls, and `run_words`
where a run is asked, which has its settings already. `command_words` changes arguments of Python into options where a
command runs. The outermost of them counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace

from onnxgen.errors import OnnxgenError, Problem
from onnxgen.training.settings import SETTINGS

spoken: ContextVar[Callable[[str], str]] = ContextVar("spoken", default=str)  # what a message becomes
_FIELDS = {about.option: name for name, about in SETTINGS.items()}
# a value is a number, or a word that ends its part of the sentence: not that of "--monitor takes one of ..."
_OPTION = re.compile(r"(--[a-z][a-z-]*)(?: (\d+(?= )|[^\s-]\S*?(?=[,;:)](?:\s|$)|$| or | and )))?")
_NAMED = re.compile(r"(?<![\w.-])([a-z][a-z_]*)=(?![^\s,;:)])")  # an argument without a value
# arguments of `onnxgen.surgery` that the command line has no option for
_PYTHON_ALONE = (
    (re.compile(r"name it with (output= or )?head="), "only Python can name it, when it calls replace_head"),
    (re.compile(r"give (another )?example=(, the arguments of forward \(.*\))?"), "only Python can give another input"),
)


@contextmanager
def python_words() -> Iterator[None]:
    """Change the advice of errors that are raised in this context, and of the lines of a run, by `in_python`."""
    with _words(
        in_python, lambda problem: replace(problem, what=in_python(problem.what), help=in_python(problem.help))
    ):
        yield


@contextmanager
def command_words() -> Iterator[None]:
    """Change the advice of errors that are raised in this context by `in_command`."""
    with _words(
        in_command, lambda problem: replace(problem, what=in_command(problem.what), help=in_command(problem.help))
    ):
        yield


@contextmanager
def run_words(takes: str) -> Iterator[None]:
    """Say what a run takes (`takes`) in place of advice that names settings of its training."""
    with _words(
        in_python, lambda p: replace(p, help=takes) if _FIELDS.keys() & re.findall(r"--[a-z-]+", p.help) else p
    ):
        yield


@contextmanager
def _words(lines: Callable[[str], str], change: Callable[[Problem], Problem]) -> Iterator[None]:
    if spoken.get() is not str:
        yield
        return
    before = spoken.set(lines)
    try:
        yield
    except OnnxgenError as error:
        error.problems = tuple(map(change, error.problems))
        error.args = ("\n".join(map(str, error.problems)),)
        raise
    finally:
        spoken.reset(before)


def in_python(text: str) -> str:
    """Return a text with arguments in place of the options of settings: `val=0` for `--val 0`."""
    return text if text.startswith("onnxgen ") else _OPTION.sub(_argument, text)  # a whole command stays one


def in_command(text: str) -> str:
    """Return a text with options in place of arguments of Python: `--classes` for `classes=`."""
    for argument, said in _PYTHON_ALONE:
        text = argument.sub(said, text)
    return _NAMED.sub(lambda found: SETTINGS[found[1]].option if found[1] in SETTINGS else found[0], text)


def _argument(found: re.Match[str]) -> str:
    name, value = _FIELDS.get(found[1]), found[2]
    if name is None:  # an option of another command
        return found[0]
    if SETTINGS[name].like == "":
        return f"{name}=True" + (f" {value}" if value else "")
    if value is None:
        return name
    pairs = dict(part.split("=", 1) for part in value.split(",")) if "=" in value else None
    shown = _literal(value) if pairs is None else f"{{{', '.join(f'{k!r}: {_literal(v)}' for k, v in pairs.items())}}}"
    return f"{name}={shown}"


def _literal(text: str) -> str:
    """Return a number as it is, and any other text in quotes."""
    with suppress(ValueError):
        float(text)
        return text
    return repr(text)
