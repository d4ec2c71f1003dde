"""One mutant: generate with it, find out whether anything came out wrong, and whether the product stops that."""

from __future__ import annotations

import gc
import importlib.machinery
import inspect
import os
import pickle
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import Any

from benchmarks.mutation.corpus import LONGEST, PACKAGE, Corpus, Entry, generated, switch
from benchmarks.mutation.forks import TooSlow, at_most
from benchmarks.mutation.graphs import passes_alone, simplified
from benchmarks.mutation.mutants import Mutant

FILES = 8  # that a mutant is tried on, of those that run its line
ERRORS = 3  # a mutant that fails so often, with nothing wrong before, fails everywhere
OUTCOMES = {
    "equal": "the very same files",
    "error": "generating fails by itself, or has no end",
    "cosmetic": "other code of the same meaning",
    "stopped": "a wrong module, which the checks refuse",
    "survived": "a wrong module, which is written",
}


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        outcome: one of `OUTCOMES`; of several files the worst, which is the last.
        file: the file of the corpus that came out wrong.
        why: how the module is wrong.
        refusal: what the product says of it.
    """

    outcome: str
    file: str = ""
    why: str = ""
    refusal: str = ""

    @property
    def is_counted(self) -> bool:
        return self.outcome in ("stopped", "survived")


def mutate(mutant: Mutant, is_imported: bool) -> None:
    """Put the mistake into the product: into the function that has it, or else import everything anew."""
    path = PACKAGE / mutant.file
    wrong = compile(mutant.tree(path.read_text(encoding="utf-8")), str(path), "exec")
    before, after = _functions(compile(path.read_text(encoding="utf-8"), str(path), "exec")), _functions(wrong)
    changed = {key: code for key, code in after.items() if code != before[key]}
    if is_imported or not changed:  # a table, or a lambda in one
        right = importlib.machinery.SourceFileLoader.get_code

        def get_code(self: Any, fullname: str) -> Any:
            return wrong if Path(self.path) == path else right(self, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
        for name in [name for name in sys.modules if name.startswith(("onnxgen", "benchmarks.mutation.judge"))]:
            del sys.modules[name]
        import_product()
    for key, code in changed.items():
        for function in _IMPORTED[(str(path), *key)]:
            function.__code__ = code


def _functions(module: CodeType) -> dict[tuple[str, int], CodeType]:
    """The functions of a module and the methods of its classes, by name and first line; not those inside functions."""
    found: dict[tuple[str, int], CodeType] = {}
    for code in module.co_consts:
        if isinstance(code, CodeType) and code.co_name != "<lambda>":
            key = code.co_qualname, code.co_firstlineno
            found.update({key: code} if code.co_flags & inspect.CO_OPTIMIZED else _functions(code))
    return found


_IMPORTED: dict[tuple[str, str, int], list[FunctionType]] = {}  # the product's functions, by file, name and first line


def import_product() -> None:
    """Import all that generating and judging need, and note where its functions are."""
    import benchmarks.mutation.judge  # noqa: F401
    import onnxgen.verify.check  # noqa: F401

    for found in gc.get_objects():
        if type(found) is FunctionType and found.__code__.co_filename.startswith(str(PACKAGE)):
            code = found.__code__
            _IMPORTED.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(found)


def task(mutant: Mutant, lines: range, corpus: Corpus) -> tuple[Mutant, list[Entry], bool, bool]:
    """What `tried` takes: some of the files whose generation runs the mutant's statement, always the same ones."""
    is_imported = bool(corpus.imports.get(mutant.file, set()) & set(lines))
    found = [e for e in corpus.entries if is_imported or e.lines.get(mutant.file, frozenset()) & set(lines)]
    some = random.Random(str(mutant)).sample(found, min(FILES, len(found)))
    return mutant, some, is_imported, mutant.file in passes_alone(PACKAGE)


def tried(arguments: tuple[Mutant, list[Entry], bool, bool]) -> Verdict:
    """Generate the files with a mutant, in a fork, as it spoils the process.

    The arguments end with: importing runs its line, and only passes run it.
    """
    mutant, entries, is_imported, is_pass = arguments
    try:
        mutate(mutant, is_imported)
    except Exception as error:
        return Verdict("error", why=_said(error))
    os.fsync = lambda _: None  # nothing that is written here shall outlive a crash of the machine
    found, errors = Verdict("equal"), 0
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        for i, entry in enumerate(entries):
            verdict = _of_file(entry, Path(folder, str(i)), found.is_counted, is_pass)
            found = max(found, verdict, key=lambda v: list(OUTCOMES).index(v.outcome))
            errors += verdict.outcome == "error"
            if found.outcome == "survived" or found.outcome == "error" and errors == ERRORS or "TooSlow" in verdict.why:
                break
    return found


def _of_file(entry: Entry, folder: Path, is_counted: bool, is_pass: bool) -> Verdict:
    """What becomes of one file.

    `is_counted`: another came out wrong, so a module that is refused need not be run. `is_pass`: only passes run the
    line, so that the file is the same if the graph that they leave is.
    """
    plain, checked = folder / "plain", folder / "checked"
    plain.mkdir(parents=True)
    checked.mkdir()
    switch(False)
    try:
        if is_pass and simplified(entry.place, LONGEST / 3) == entry.graph:
            return Verdict("equal")
        digest = generated(entry.place, plain, checked=False)
    except Exception as error:
        return Verdict("error", entry.test, _said(error))
    if digest == entry.digest:
        return Verdict("equal")
    refusal = ""
    try:
        other = generated(entry.place, checked, checked=True)
        if why := _wrong(entry, checked):
            return Verdict("survived", entry.test, why)
        if other == digest:
            return Verdict("cosmetic")
        refusal = "it writes another module, which is right"
    except TooSlow:
        why = _wrong(entry, plain)
        return Verdict("survived", entry.test, f"{why}; checking has no end") if why else Verdict("cosmetic")
    except Exception as error:
        refusal = _said(error)
    why = "" if is_counted else _wrong(entry, plain)
    return Verdict("stopped", entry.test, why, refusal) if why else Verdict("cosmetic")


def _wrong(entry: Entry, folder: Path) -> str:
    """What is wrong with a module, empty if nothing is."""
    from benchmarks.mutation.judge import difference, meaning

    switch(True)  # whether a file is clean is the product's own allow-list to say
    feeds, right = pickle.loads((entry.place / "right.pickle").read_bytes())
    try:
        with at_most(30):
            return difference(meaning(folder / "model.py", feeds), right)
    except BaseException as error:
        return _said(error).replace(f"{folder}{os.sep}", "")


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
