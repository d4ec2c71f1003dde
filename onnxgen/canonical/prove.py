"""Prove that a module computes what the network in an ONNX file computes, with the same parameters."""

from __future__ import annotations

import ast
import itertools
import linecache
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.asking import decides
from onnxgen.canonical.capture import Captured, Followed, exported, functional, read, still_free
from onnxgen.canonical.guards import Questions
from onnxgen.canonical.kept import Kept
from onnxgen.canonical.matching import below, match
from onnxgen.canonical.numbers import MODES, Counterexample, Numbers, Unrun
from onnxgen.canonical.places import Place, Texts, part_ways
from onnxgen.canonical.purity import objections, said
from onnxgen.canonical.renaming import rename as write_renamed
from onnxgen.canonical.rules import NotFollowed
from onnxgen.canonical.sizes import (
    LARGEST,
    MOST,
    Axes,
    Region,
    enlarged,
    groups_of,
    numbers_in,
    others,
    paths,
    resized,
    trains,
)
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.record.asked import recorded_options
from onnxgen.record.sidecar import metadata_of, sidecar_of
from onnxgen.runtime.checkpoint import SkipInit
from onnxgen.runtime.load import build_fresh, imported, load, need_torch
from onnxgen.verify.check import Check
from onnxgen.verify.convert import to_torch
from onnxgen.view.page import traced

RUNS = 20  # drawn inputs on which modules are compared
GUARDS = 3  # of them are enough where the canonical forms are the same,
ENOUGH = 2.0  # or as many as were run in so many seconds


@dataclass
class Proof:
    """The answer of `prove`.

    Attributes:
        verdict: "proved", "different" or "not proved".
        why: what differs, or what can't be followed.
        places: where they part, if that is known.
        counterexample: inputs on which they differ.
        renamed: for each parameter or buffer with another name, that of the generated module.
        runs: on how many drawn inputs both were compared.
        written: the files that `rename` wrote.
        given: what holds for the sizes of inputs with which the network was seen to run; `L` are the inputs. It is
            proved for these sizes.
    """

    verdict: str
    why: str = ""
    places: list[Place] = field(default_factory=list)
    counterexample: Counterexample | None = None
    renamed: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    written: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        example = self.counterexample
        return {
            "verdict": self.verdict,
            "why": self.why,
            "places": [vars(place) for place in self.places],
            "counterexample": None if example is None else vars(example),
            "renamed": self.renamed,
            "runs": self.runs,
            "written": self.written,
            "given": self.given,
        }


def prove(model: Path | str, module: Path | str, *, runs: int = RUNS, seed: int = 0, rename: bool = False) -> Proof:
    """Prove that an edited module is the same function as the network in an ONNX file.

    The module that onnxgen writes for the file today and the edited one are brought to one canonical form: in
    evaluation mode, and in training mode if anything depends on it. That holds for all sizes of the inputs, and for all
    values of inputs and parameters, computed without rounding. Both are also computed in float64 on drawn inputs.

    Args:
        model: the ONNX file.
        module: the edited file, with the sidecar from its generation.
        runs: the number of drawn inputs.
        seed: for the inputs.
        rename: if it is proved, write the weights beside the module again, under its names. `export` works from them.

    Returns:
        the verdict. "proved": the canonical forms are the same. "different": `counterexample` shows it, or the trained
        parameters are others. "not proved": neither is known.

    Raises:
        OnnxgenError: a file can't be read, or the module can't be imported.
    """
    need_torch("prove", "verify")
    if runs < 1:
        raise OnnxgenError("proving needs at least one run")
    model, module = Path(model), Path(module)
    with imported(module) as space:
        options = recorded_options(metadata_of(vars(space)), module.parent) or Options()
        reference = load(model, options)
        edited = _built(space, module)
        feeds = Feeds(_feeds(model, options, vars(space), runs, seed), runs)
        pair = Pair(reference, edited, feeds, str(module), vars(space))
        proof = pair.prove()
        if proof.verdict == "different" and not any(place.side == "edited" for place in proof.places):
            first = pair.texts().first()  # what can't be followed is in what was edited
            proof.places = [*proof.places, *([] if first is None else [first])]
        weights = sidecar_of(vars(space))
    if rename and proof.verdict == "proved" and proof.renamed and weights is not None:
        _need_same_shapes(reference, edited, proof.renamed)
        proof.written = [str(file) for file in write_renamed(module, weights, proof.renamed)]
    if proof.places:
        proof.places = with_nodes(proof.places, model, options, module)
    return proof


def _need_same_shapes(reference: nn.Module, edited: nn.Module, renamed: Mapping[str, str]) -> None:
    """Raises `OnnxgenError` if a tensor has more than another name: `export` needs the file's shapes."""
    mine, theirs = reference.state_dict(), edited.state_dict()
    for new, old in renamed.items():
        if mine[old].shape != theirs[new].shape:
            raise OnnxgenError(
                f"{new} has the shape {[*theirs[new].shape]}, and {old} of the generated module {[*mine[old].shape]}",
                help=f"give {new} that shape, then ask for --rename again",
            )


def _built(space: Any, path: Path) -> nn.Module:
    """Return the edited module, with whatever weights."""
    with SkipInit():
        try:
            return space.Model.from_pretrained()  # type: ignore[no-any-return]
        except Exception:
            return build_fresh(space, path)


def _feeds(model: Path, options: Options, space: Mapping[str, Any], runs: int, seed: int) -> Iterator[list[Any]]:
    """Yield inputs that the oracle accepts."""
    check = Check(model, options, rtol=1e-3, atol=1e-5)
    check.prepare(space)
    for answer in check.answers(runs, seed, None):
        yield [to_torch(value) for value in answer.feeds.values()]


def drawn(
    model: Path, options: Options, reference: nn.Module, runs: int, seed: int
) -> tuple[list[str], list[list[Any]]]:
    """Return the names of a file's inputs, and values of them that the oracle accepts."""
    check = Check(model, options, rtol=1e-3, atol=1e-5)
    check.prepare({})
    answers = list(islice(check.answers(runs, seed, None), runs))
    return list(answers[0].feeds), [[to_torch(value) for value in answer.feeds.values()] for answer in answers]


class Pair:
    """A generated module, and an edited one."""

    def __init__(
        self, reference: nn.Module, edited: nn.Module, feeds: Feeds, file: str, space: Mapping[str, Any]
    ) -> None:
        self.reference, self.edited, self.feeds, self.file, self.space = reference, edited, feeds, file, space
        self.arguments = feeds.first()
        self.groups: list[Axes] = []
        self.asks = True  # whether the generated module can be followed for sizes unlike those of the example
        self.given: list[str] = []
        self.renamed: dict[str, str] = {}
        self.has_gradients_of_its_own = False
        self.sizes: set[int] = set()  # that the edited module asks for, and the generated one doesn't

    def prove(self) -> Proof:
        if _statements(Path(self.file).read_text(encoding="utf-8")) == _statements(self._generated()):
            return Proof("proved")  # nobody edited it
        others = self._other_parameters()
        for objection in objections(Path(self.file).read_text(encoding="utf-8"), self._generated()):
            return self._numbers(Proof("not proved", objection))
        try:
            places = self._compared()
        except NotFollowed as stop:
            return self._numbers(Proof("not proved", str(stop), renamed=self.renamed))
        if others:
            return Proof("different", others, places or [], None, self.renamed)
        if places is None:
            return self._numbers(Proof("proved", renamed=self.renamed, given=self.given))
        return self._numbers(Proof("not proved", "their canonical forms differ", places, renamed=self.renamed))

    def _generated(self) -> str:
        """The text that the reference was made of."""
        return "".join(linecache.getlines(type(self.reference).forward.__code__.co_filename))

    def _other_parameters(self) -> str:
        """Say how many numbers are trained, if that differs."""
        counts = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (self.reference, self.edited)]
        if counts[0] == counts[1]:
            return ""
        return f"it trains {counts[1]:,} numbers, and the generated module {counts[0]:,}"

    def _compared(self) -> list[Place] | None:
        """Return where the canonical forms part, or None if they are the same."""
        modes = MODES if self._depends_on_mode() else MODES[:1]
        if any(not isinstance(a, Tensor) for a in self.arguments):
            raise NotFollowed("an input that is no tensor")
        self.groups = groups_of(self.reference, self.arguments)
        self.arguments = enlarged(self.reference, self.arguments, self.groups)
        regions: list[Region] = []
        by_numbers = False
        for arguments in itertools.chain([self.arguments], others(self.arguments, self.groups, regions)):
            for path in paths(self.reference, arguments):
                if any(region.holds(path, arguments) for region in regions):
                    continue
                if len(regions) > MOST:
                    raise NotFollowed(f"it may be another function of sizes beside {sorted(regions[0].conditions)[0]}")
                regions.append(Region(path))
                if len(regions) == 2 and not decides(*self._both()):
                    modes = MODES[:1]  # no edit asks for the mode and a size at once
                places = self._compared_at(arguments, modes, regions[-1])
                if places is not None and len(regions) > 1 and self._is_alike(arguments):
                    regions[-1].conditions = self._ones(arguments)
                    by_numbers = True
                elif places is not None:
                    return places
        if not regions:
            raise NotFollowed("the generated module does not run on an input that the file takes")
        self.given = sorted(regions[0].conditions) if len(regions) == 1 or by_numbers else []
        return None

    def _ones(self, arguments: Sequence[Tensor]) -> set[str]:
        """Return which axes of any size have a size of 1 in an example, and not in the first."""
        places = [(n, a) for axes in self.groups for n, a in axes if arguments[n].shape[a] == 1]
        return {f"L[{n}].size()[{a}] == 1" for n, a in places if self.arguments[n].shape[a] != 1}

    def _is_alike(self, arguments: Sequence[Tensor]) -> bool:
        """Whether both are the same in numbers where a size is 1.

        There, an operator may have another form. But no Python of an edit may have asked for that size.
        """
        numbers = Numbers(self.reference, self.edited, self.renamed)
        if not self._ones(arguments) or decides(*self._both()) or not numbers.has_same_weights():
            return False
        return all(numbers.differ(arguments, MODES[0], 0, scale) is None for scale in (1, 1e-2))

    def _compared_at(self, arguments: Sequence[Tensor], modes: Sequence[str], region: Region) -> list[Place] | None:
        """Compare for all sizes that are like those of the example. Notes them."""
        free = [sorted(a for axes in self.groups for m, a in axes if m == n) for n in range(len(arguments))]
        free = [[axis for axis in axes if a.shape[axis] > 1] for a, axes in zip(arguments, free, strict=True)]
        for mode in modes:
            terms = Algebra(thorough=True)
            try:
                one = self._followed(self.reference, mode, arguments, free, region.path)
            except NotFollowed:
                if mode == MODES[0] or trains(self.reference, arguments):
                    raise
                continue
            other = self._followed(self.edited, mode, arguments, still_free(one), region.path)
            if {one.decided, other.decided} != {region.path}:
                raise NotFollowed("it decides by the values of tensors elsewhere")
            places, mine, ones = self._read(terms, one, other, mode)
            if places is not None:
                return places
            region.narrow(mine, self.groups, sorted({*terms.asked, *ones}, key=str))
        return None

    def _read(
        self, terms: Algebra, one: Followed, other: Followed, mode: str
    ) -> tuple[list[Place] | None, Captured, set[Any]]:
        """Return where two programs part, if they do; the first as terms; the sizes that the second asks to be 1."""
        if one.is_functional != other.is_functional:
            one, other = (functional(followed) for followed in (one, other))
        mine = read(terms, one, {})
        theirs = read(terms, other, {}, mine.equal)
        pairs = match(mine, theirs, terms) if mode == MODES[0] and not self.renamed else self.renamed
        self.renamed = self.renamed or pairs
        again = theirs
        if pairs:
            again = read(terms, other, {new: mine.leaves[old] for new, old in pairs.items()}, mine.equal)
            again.changed = {pairs.get(path, path): value for path, value in again.changed.items()}
        self.sizes |= _sizes_asked(mine, again)
        ones = _need_same_inputs(mine, again)
        if (mine.outputs, mine.changed) == (again.outputs, again.changed):
            return None, mine, ones
        self.has_gradients_of_its_own = _cuts(mine) != _cuts(again)
        return part_ways(mine, again, self.file, self.texts()), mine, set()

    def _both(self) -> tuple[str, str]:
        """The text of the edited file, and the text that was generated."""
        return Path(self.file).read_text(encoding="utf-8"), self._generated()

    def texts(self) -> Texts:
        return Texts(*self._both())

    def _depends_on_mode(self) -> bool:
        kinds = (
            nn.modules.dropout._DropoutNd,
            nn.modules.batchnorm._NormBase,
            nn.RNNBase,
            nn.MultiheadAttention,
            nn.RReLU,
        )
        if any(isinstance(m, kinds) for both in (self.reference, self.edited) for m in both.modules()):
            return True
        texts = (Path(self.file).read_text(encoding="utf-8"), self._generated())
        return any(word in text for text in texts for word in ("training", "dropout", "rrelu", "def train", "getattr("))

    def _followed(
        self,
        module: nn.Module,
        mode: str,
        arguments: Sequence[Tensor],
        free: Sequence[Sequence[int]],
        answers: Sequence[bool],
    ) -> Followed:
        with _in_mode(module, mode):
            if module is self.reference:
                try:
                    return exported(module, arguments, free, asks=self.asks, answers=answers)
                except NotFollowed:  # it needs sizes that are like those of the example
                    if not self.asks:
                        raise
                    self.asks = False
                    return exported(module, arguments, free, asks=False, answers=answers)
            kept = Kept(module, self.space)
            followed = exported(module, arguments, free, asks=self.asks, answers=answers)
            kept.need_same()
        return followed

    def _numbers(self, proof: Proof) -> Proof:
        """Compare both on drawn inputs, and correct the verdict."""
        numbers = Numbers(self.reference, self.edited, self.renamed)
        if not numbers.has_same_weights():
            return proof
        modes = MODES if self._depends_on_mode() else MODES[:1]
        found: Counterexample | None = None
        started = time.monotonic()
        try:
            for run, feed in enumerate(self.feeds.all(GUARDS if proof.verdict == "proved" else None)):
                for mode in modes:
                    found = found or numbers.differ(feed, mode, run)
                proof.runs = run + 1
                is_enough = proof.verdict == "proved" and time.monotonic() - started > ENOUGH
                if found is not None or is_enough:
                    break
            if found is None and self.sizes:
                found = self._at_other_sizes(numbers)
            if found is None and proof.verdict != "proved":
                found = numbers.elsewhere(self.feeds.first(), modes, self.has_gradients_of_its_own)
        except Unrun as error:
            if proof.verdict != "proved" or error.module is not self.reference:  # else numbers can't guard it
                proof.verdict, proof.why = "not proved", str(error)
            return proof
        if found is not None:
            if proof.verdict == "proved":
                proof.why = "the canonical forms are the same, but not the numbers: please report this file"
            proof.verdict, proof.counterexample = "different", found
        return proof

    def _at_other_sizes(self, numbers: Numbers) -> Counterexample | None:
        """Compare on inputs of the sizes that the edited module asks for, where the generated module takes them."""
        for size in sorted(self.sizes):
            for axes in self.groups:
                feed = resized(self.arguments, axes, size)
                try:
                    found = numbers.differ(feed, MODES[0], 0)
                except Unrun as error:
                    if "the edited module" not in str(error):
                        continue
                    found = Counterexample(MODES[0], 0, 0, math.inf, f"it fails on inputs of size {size}: output 0")
                if found is not None:
                    said = f"{found.what or f'output {found.output}'} with size {size} of axis {axes[0][1]}"
                    return replace(found, what=said)
        return None


def _statements(text: str) -> str:
    """Return what a file says, apart from comments and how it is laid out."""
    return "\n".join(map(said, ast.parse(text).body))


def _sizes_asked(one: Captured, other: Captured) -> set[int]:
    """Return the sizes at which the second may be another function than the first: its bounds, and a step beyond."""
    numbers = numbers_in(other.guards - one.guards)
    for name, bounds in other.ranges.items():
        known = one.ranges.get(name, bounds)
        numbers |= {int(n) for n, k in zip(bounds, known, strict=True) if n != k and abs(n) < LARGEST}
    return {n + step for n in numbers for step in (-1, 0, 1) if 0 < n + step <= LARGEST}


class Feeds:
    """Inputs, drawn as they are needed."""

    def __init__(self, drawn: Iterator[list[Any]], runs: int) -> None:
        self.drawn, self.runs, self.known = drawn, runs, list[list[Any]]()

    def first(self) -> list[Any]:
        return next(self.all(1))

    def all(self, most: int | None = None) -> Iterator[list[Any]]:
        for number in range(self.runs if most is None else min(most, self.runs)):
            if number == len(self.known):
                try:
                    self.known.append(next(self.drawn))
                except StopIteration:
                    return
            yield self.known[number]


def _cuts(captured: Captured) -> int:
    """Return how many values are cut off from gradients."""
    return sum(term.op == "detach" for term in below([*captured.outputs, *captured.changed.values()]))


def with_nodes(places: Sequence[Place], model: Path, options: Options, module: Path) -> list[Place]:
    """Return places with the nodes of the ONNX file that their lines were made of."""
    generated, lines, nodes = traced(model, options, module)
    del generated
    texts = Texts(module.read_text(encoding="utf-8"), "\n".join(lines))
    found = []
    for place in places:
        line = place.line if place.side == "generated" else texts.back(place.line)
        found.append(replace(place, nodes=tuple(nodes.get(line or 0, ()))))
    return found


@contextmanager
def _in_mode(module: nn.Module, mode: str) -> Iterator[None]:
    """Put a module into a mode for the block."""
    modes = {m: m.training for m in module.modules()}
    module.train(mode == MODES[1])
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _need_same_inputs(one: Captured, other: Captured) -> set[Any]:
    """Return the sizes that the second asks to be more than 1, where the first doesn't.

    Raises `NotFollowed` if the second takes fewer sizes than the first.
    """
    if one.inputs != other.inputs:
        raise NotFollowed(f"it takes inputs of the sizes {other.inputs}, and the generated module {one.inputs}")
    if one.structure != other.structure:
        raise NotFollowed("it returns its outputs in another structure of tuples, lists and dicts")
    for name, (low, high) in one.ranges.items():
        theirs = other.ranges.get(name, (low, high))
        if theirs[0] > low or theirs[1] < high:
            raise NotFollowed(f"of {name} it takes the sizes {theirs[0]} to {theirs[1]} only")
    ones, rest = Questions(other.guards, other.inputs).beyond(Questions(one.guards, one.inputs))
    if rest:
        raise NotFollowed(f"it asks for a size, and may be another function of other sizes: {rest[0]}")
    return ones


__all__ = ["Counterexample", "OnnxgenError", "Proof", "prove"]
