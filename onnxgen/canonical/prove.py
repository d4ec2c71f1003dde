"""Prove that a module computes what the network in an ONNX file computes, with the same parameters."""

from __future__ import annotations

import copy
import linecache
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.capture import Captured, Reader, exported
from onnxgen.canonical.matching import below, match
from onnxgen.canonical.purity import objections
from onnxgen.canonical.places import Place, part_ways
from onnxgen.canonical.rules import NotFollowed
from onnxgen.canonical.terms import Term
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.record.asked import recorded_options
from onnxgen.record.sidecar import metadata_of
from onnxgen.runtime.checkpoint import SkipInit
from onnxgen.runtime.load import build_fresh, imported, load
from onnxgen.verify.check import Check
from onnxgen.verify.convert import to_torch

RUNS = 20  # drawn inputs on which modules are compared
APART = 1e-6  # of the largest element, in float64: what two spellings of a function may differ by
MODES = ("evaluation", "training")


@dataclass(frozen=True)
class Counterexample:
    """Inputs on which two modules differ.

    Attributes:
        mode: "evaluation" or "training".
        run: the number of the drawn inputs.
        output: the number of the output.
        difference: the largest difference, as a share of the largest element.
    """

    mode: str
    run: int
    output: int
    difference: float


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
    """

    verdict: str
    why: str = ""
    places: list[Place] = field(default_factory=list)
    counterexample: Counterexample | None = None
    renamed: dict[str, str] = field(default_factory=dict)
    runs: int = 0

    def as_json(self) -> dict[str, Any]:
        example = self.counterexample
        return {
            "verdict": self.verdict,
            "why": self.why,
            "places": [vars(place) for place in self.places],
            "counterexample": None if example is None else vars(example),
            "renamed": self.renamed,
            "runs": self.runs,
        }


def prove(model: Path | str, module: Path | str, *, runs: int = RUNS, seed: int = 0) -> Proof:
    """Prove that an edited module is the same function as the network in an ONNX file.

    The module that onnxgen writes for the file today and the edited one are brought to one canonical form, in evaluation
    and, if anything depends on it, in training mode. It holds for all sizes of the inputs, and for all values of inputs
    and parameters, computed without rounding. Both are also computed in float64 on drawn inputs.

    Args:
        model: the ONNX file.
        module: the edited file, with the sidecar from its generation.
        runs: the number of drawn inputs.
        seed: for the inputs.

    Returns:
        the verdict. "proved": the canonical forms are the same. "different": `counterexample` shows it, or the trained
        parameters are others. "not proved": neither is known.

    Raises:
        OnnxgenError: a file can't be read, or the module can't be imported.
    """
    model, module = Path(model), Path(module)
    with imported(module) as space:
        options = recorded_options(metadata_of(vars(space)), module.parent) or Options()
        reference = load(model, options)
        edited = _built(space, module)
        feeds = list(islice(_feeds(model, options, vars(space), runs, seed), runs))
        return Pair(reference, edited, feeds, str(module)).prove()


def _built(space: Any, path: Path) -> nn.Module:
    """Return the edited module, with whatever weights."""
    with SkipInit():
        try:
            return space.Model.from_pretrained()  # type: ignore[no-any-return]
        except Exception:
            return build_fresh(space, path)


def _feeds(
    model: Path, options: Options, space: Mapping[str, Any], runs: int, seed: int
) -> Iterator[list[Any]]:
    """Yield inputs that the oracle accepts."""
    check = Check(model, options, rtol=1e-3, atol=1e-5)
    check.prepare(space)
    for answer in check.answers(runs, seed, None):
        yield [to_torch(value) for value in answer.feeds.values()]


class Pair:
    """A generated module, and an edited one."""

    def __init__(self, reference: nn.Module, edited: nn.Module, feeds: Sequence[Sequence[Any]], file: str) -> None:
        self.reference, self.edited, self.feeds, self.file = reference, edited, feeds, file
        self.renamed: dict[str, str] = {}

    def prove(self) -> Proof:
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
            return self._numbers(Proof("proved", renamed=self.renamed))
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
        for mode in modes:
            terms = Algebra()
            one, other = (self._captured(m, mode, terms) for m in (self.reference, self.edited))
            pairs = match(one[0], other[0]) if mode == MODES[0] else self.renamed
            self.renamed = self.renamed or pairs
            again = other[0]
            if pairs:
                again = Reader(terms, other[1], {new: one[0].leaves[old] for new, old in pairs.items()}).read()
                again.changed = {pairs.get(path, path): value for path, value in again.changed.items()}
            _need_same_inputs(one[0], again)
            if (one[0].outputs, one[0].changed) != (again.outputs, again.changed):
                return part_ways(one[0], again, self.file)
        return None

    def _depends_on_mode(self) -> bool:
        kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RNNBase, nn.MultiheadAttention, nn.RReLU)
        if any(isinstance(m, kinds) for both in (self.reference, self.edited) for m in both.modules()):
            return True
        return any(word in Path(self.file).read_text(encoding="utf-8") for word in ("training", "dropout"))

    def _captured(self, module: nn.Module, mode: str, terms: Algebra) -> tuple[Captured, Any]:
        arguments = self.feeds[0]
        if any(not isinstance(a, Tensor) for a in arguments):
            raise NotFollowed("an input that is no tensor")
        free = [[axis for axis, size in enumerate(a.shape) if size > 1] for a in arguments]
        module.train(mode == MODES[1])
        with _kept(module):
            program = exported(module, arguments, free)
        return Reader(terms, program, {}).read(), program

    # ---- numbers -----------------------------------------------------------------------------------------------------

    def _numbers(self, proof: Proof) -> Proof:
        """Compare both on drawn inputs, and correct the verdict."""
        if not self._same_weights():
            if proof.verdict == "proved":
                return proof
            return proof
        modes = MODES if self._depends_on_mode() else MODES[:1]
        for mode in modes:
            for run, feed in enumerate(self.feeds):
                example = self._differ(feed, mode, run)
                if isinstance(example, str):
                    proof.verdict, proof.why = "not proved", example
                    return proof
                if example is not None:
                    if proof.verdict == "proved":
                        raise AssertionError(f"proved, but the numbers differ: {example}")
                    proof.verdict, proof.counterexample = "different", example
                    return proof
                proof.runs = max(proof.runs, run + 1)
        return proof

    def _same_weights(self) -> bool:
        """Give the edited module the weights of the generated one. Returns False if some have no partner."""
        state = self.reference.state_dict()
        wanted = {path: self.renamed.get(path, path) for path in self.edited.state_dict()}
        if any(old not in state for old in wanted.values()):
            return False
        try:
            self.edited.load_state_dict({new: state[old] for new, old in wanted.items()})
        except RuntimeError:
            return False
        return True

    def _differ(self, feed: Sequence[Any], mode: str, run: int) -> Counterexample | str | None:
        """Return how outputs differ in float64; a text if the edited module fails."""
        results = []
        for module in (self.reference, self.edited):
            with _kept(module), _double(module) as wide:
                wide.train(mode == MODES[1])
                torch.manual_seed(run)
                try:
                    with torch.no_grad():
                        out = wide(*(_wide(a) for a in feed))
                except Exception as error:
                    if module is self.reference:
                        return f"the generated module does not run in float64: {type(error).__name__}"
                    return f"it fails on drawn inputs: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
                changed = [b for _, b in sorted(_by_old_name(wide, self.renamed if module is self.edited else {}))]
                results.append([*(out if isinstance(out, (tuple, list)) else [out]), *(changed if mode == MODES[1] else [])])
        if len(results[0]) != len(results[1]):
            return Counterexample(mode, run, min(map(len, results)), math.inf)
        for number, (a, b) in enumerate(zip(*results, strict=True)):
            apart = difference(a, b)
            if apart > APART:
                return Counterexample(mode, run, number, apart)
        return None


def _by_old_name(module: nn.Module, renamed: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    state = module.state_dict()
    for name, buffer in module.named_buffers():
        if name in state:
            yield renamed.get(name, name), buffer


def difference(one: Any, other: Any) -> float:
    """Return the largest difference of two outputs, as a share of the largest element; infinite for another shape."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return 0.0 if one == other else math.inf
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else math.inf
    if not torch.equal(one.isfinite(), other.isfinite()):
        return math.inf
    finite = one.isfinite()
    one, other = one[finite], other[finite]
    if not one.numel():
        return 0.0
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-30))


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def _double(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a copy of a module in float64."""
    yield copy.deepcopy(module).double()


@contextmanager
def _kept(module: nn.Module) -> Iterator[None]:
    """Restore the modes of all modules after the block."""
    modes = {m: m.training for m in module.modules()}
    with ExitStack() as stack:
        stack.callback(lambda: [setattr(m, "training", mode) for m, mode in modes.items()])
        yield


def _need_same_inputs(one: Captured, other: Captured) -> None:
    """Raises `NotFollowed` if the second takes fewer sizes than the first."""
    if one.inputs != other.inputs:
        raise NotFollowed(f"it takes inputs of the sizes {other.inputs}, and the generated module {one.inputs}")
    for name, (low, high) in one.ranges.items():
        theirs = other.ranges.get(name, (low, high))
        if theirs[0] > low or theirs[1] < high:
            raise NotFollowed(f"of {name} it takes the sizes {theirs[0]} to {theirs[1]} only")
    for guard in sorted(other.guards - one.guards):
        raise NotFollowed(f"it asks for a size, and may be another function of other sizes: {guard}")


__all__ = ["Counterexample", "OnnxgenError", "Proof", "Term", "below", "prove"]
