"""The files that mutants are tried on, each with what the product makes of it while no line is wrong."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import Any

from benchmarks.mutation.forks import at_most, forked
from benchmarks.mutation.graphs import simplified
from benchmarks.mutation.mutants import FOLDERS

PACKAGE = Path(__file__).resolve().parents[2] / "onnxgen"
SEVERAL, MOST, WORTH = 3, 120, 4  # files that each line should have; files at most; new lines that one more must have
SWITCHES = ("ONNXGEN_STRICT", "ONNXGEN_PARANOID")
SLOWEST, LONGEST = 0.4, 30.0  # seconds of a generation that is wanted, and of one that has gone wrong
RUNS = 2


@dataclass(frozen=True)
class Entry:
    """One file of the corpus.

    Attributes:
        place: its folder, which has `net.onnx`, `options.pickle` and `right.pickle`.
        test: where it is from.
        digest: of the module and its weights.
        graph: a digest of the graph after all passes.
        lines: those of the package that its generation runs, by file.
    """

    place: Path
    test: str
    digest: str
    graph: str
    lines: dict[str, frozenset[int]]


def generated(place: Path, out: Path, checked: bool) -> str:
    """Generate the file of a folder into `out`, with the product's own checks or without; a digest of what was made."""
    from onnxgen.pipeline import generate

    switch(checked)
    options = pickle.loads((place / "options.pickle").read_bytes())[1]
    with at_most(LONGEST if checked else LONGEST / 3):
        made = generate(place / "net.onnx", out / "model.py", options)
    weights = made.weights.read_bytes()
    return hashlib.sha256((out / "model.py").read_bytes() + weights).hexdigest()


def switch(checked: bool) -> None:
    """Turn the product's checks of its own work on or off: where it has no switch for it, its function does nothing."""
    for name in SWITCHES:
        os.environ[name] = "1" if checked else "0"
    for place, stand_in in CHECKS.items():
        module, _, name = place.partition(":")
        function = attrgetter(name)(importlib.import_module(module))
        _ON.setdefault(function, function.__code__)
        function.__code__ = _ON[function] if checked else stand_in.__code__


def _nothing(*_: Any, **__: Any) -> None: ...


def _the_text(text: str) -> str:
    return text


def _unchecked(*_: Any) -> Any:
    from benchmarks.mutation.corpus import Unchecked  # a function's code alone is taken, not its module

    return Unchecked()


class Unchecked:
    """Runs passes, and compares nothing."""

    counts = None

    def run(self, step: Callable[..., None], *given: Any) -> None:
        step(*given)


def _the_first(made: Callable[[frozenset[Any]], Any], *_: Any) -> Any:
    return made(frozenset())


CHECKS: dict[str, FunctionType] = {  # the product's checks that are always on, and what is called instead of each
    **dict.fromkeys((f"onnxgen.code.allowed:check{name}" for name in ("", "_bound", "_names")), _nothing),
    "onnxgen.code.class_tree:hold": _nothing,
    "onnxgen.code.render:Frame.hold": _nothing,
    **dict.fromkeys(("onnxgen.code.printer:comment", "onnxgen.code.printer:between_quotes"), _the_text),
    "onnxgen.paranoid.check:hold_way_back": _nothing,
    "onnxgen.paranoid.quick:checker_for": _unchecked,
    "onnxgen.validate.check:translated": _the_first,
}  # type: ignore[assignment]
_ON: dict[FunctionType, CodeType] = {}


def traced(function: Callable[[], Any]) -> dict[str, set[int]]:
    """The lines of the mutated folders that a call runs."""
    found: dict[str, set[int]] = {}
    roots = tuple(f"{PACKAGE / folder}{os.sep}" for folder in FOLDERS)

    def look(frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(roots):
            return None
        lines = found.setdefault(os.path.relpath(name, PACKAGE).replace(os.sep, "/"), set())

        def line(frame: Any, event: str, _: Any) -> Any:
            lines.add(frame.f_lineno)
            return line

        lines.add(frame.f_lineno)
        return line

    sys.settrace(look)
    try:
        function()
    finally:
        sys.settrace(None)
    return found


def _examine(place: Path) -> Entry | str:
    """A file as an entry, and what is right in `right.pickle`; or why it is none."""
    try:
        return _entry(place)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def _entry(place: Path) -> Entry | str:
    from benchmarks.mutation.judge import difference, meaning, slack
    from onnxgen.runtime.load import from_pretrained, imported
    from onnxgen.verify import verify
    from onnxgen.verify.check import Check
    from onnxgen.verify.feeds import nudged

    test, options = pickle.loads((place / "options.pickle").read_bytes())
    with TemporaryDirectory() as folder:
        out = [Path(folder, name) for name in ("traced", "plain", "checked")]
        for one in out:
            one.mkdir()
        lines = traced(lambda: generated(place, out[0], checked=False))
        began = time.process_time()
        digest = generated(place, out[1], checked=False)
        if time.process_time() - began > SLOWEST:
            return "slow"
        try:
            if generated(place, out[2], checked=True) != digest:
                return "FALSE ALARM: checked, it is another module"
        except Exception as error:
            return f"FALSE ALARM: {error}"[:200]
        if not verify(place / "net.onnx", out[1] / "model.py", options=options, runs=RUNS).agrees:
            return "the oracle does not agree"
        check = Check(place / "net.onnx", options, rtol=1e-3, atol=1e-5)
        with imported(out[1] / "model.py") as file:
            check._begun(from_pretrained(file, place), vars(file), "")
            inputs = list(check.answers(RUNS, 0, None))
        feeds = [answer.feeds for answer in inputs]
        right = meaning(out[1] / "model.py", feeds)
        if right.unclean or any(isinstance(outputs, str) for outputs in right.outputs):
            return f"it does not run: {right.unclean or right.outputs}"
        right.slack = [slack(outputs, answer.outputs) for outputs, answer in zip(right.outputs, inputs)]
        near = [nudged(feed, 2.0**-23, 1) for feed in feeds]
        if why := difference(meaning(out[1] / "model.py", near), right):
            return f"rounding decides what it computes: {why}"
    (place / "right.pickle").write_bytes(pickle.dumps((feeds, right)))
    graph = simplified(place, LONGEST)
    return Entry(place, test, digest, graph, {file: frozenset(found) for file, found in lines.items()})


def choose(entries: Sequence[Entry]) -> list[Entry]:
    """Few files that together run every line several times, as far as any do."""
    parts = {e.place: {(file, line) for file, lines in e.lines.items() for line in lines} for e in entries}
    often, chosen, left = Counter[tuple[str, int]](), list[Entry](), list(entries)
    while left and len(chosen) < MOST:
        gains = [sum(often[part] < SEVERAL for part in parts[e.place]) for e in left]
        if max(gains) < WORTH:
            break
        chosen.append(left.pop(gains.index(max(gains))))
        often.update(parts[chosen[-1].place])
    return chosen


def pool(folder: Path) -> list[Path]:
    """The folders of all files that may be chosen: the tests', and the collection's and its findings if it is there."""
    from benchmarks.mutation.harvest import LARGEST, harvest
    from onnxgen.options import Options
    from tests.conftest import SHARED

    if not folder.exists():
        harvest(folder.with_suffix(".part"))
        for path in sorted((*(SHARED / "models").rglob("*.onnx"), *(SHARED / "findings").glob("*.onnx"))):
            place = folder.with_suffix(".part") / hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            if path.stat().st_size <= LARGEST and not place.exists():
                place.mkdir()
                shutil.copy(path, place / "net.onnx")
                (place / "options.pickle").write_bytes(pickle.dumps((path.name, Options())))
        folder.with_suffix(".part").rename(folder)
    return sorted(folder.iterdir())


@dataclass(frozen=True)
class Corpus:
    """The files.

    Attributes:
        imports: the lines of the package that importing it runs, by file.
        left_out: why other files are not in it.
    """

    entries: list[Entry]
    imports: dict[str, set[int]]
    left_out: list[str]


def prepare(arguments: tuple[Path, int]) -> Corpus:
    """The corpus in a folder, made or made anew; takes many minutes the first time.

    The arguments: the folder, and how many files are looked at together.
    """
    import torch

    torch.set_num_threads(1)
    folder, jobs = arguments
    kept, last = folder / "chosen.pickle", folder / f"{_version()}.pickle"
    if last.exists():
        return pickle.loads(last.read_bytes())  # type: ignore[no-any-return]
    places = pickle.loads(kept.read_bytes()) if kept.exists() else pool(folder / "pool")
    imports, entries, reasons = traced(_import), list[Entry](), list[str]()
    for place, found in forked(_examine, places, jobs, 4 * LONGEST):
        if isinstance(found, Entry):
            entries.append(found)
        else:
            reasons.append(f"{place.name}: {found or 'died'}")
    if not kept.exists():
        entries = choose(entries)
        kept.write_bytes(pickle.dumps([e.place for e in entries]))
    corpus = Corpus(entries, imports, reasons)
    last.write_bytes(pickle.dumps(corpus))
    return corpus


def _version() -> str:
    """A digest of the product's source, and of what is noted of its modules."""
    files = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".jinja"))
    files.append(Path(__file__).with_name("judge.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _import() -> None:
    import onnxgen.verify.check  # noqa: F401
    from benchmarks.mutation import judge  # noqa: F401
