"""One comparison, step by step: the sources, the canonical forms, the operators, the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onnxgen.diff.aligning import Alignment
from onnxgen.diff.answer import Change, Comparison, Weight
from onnxgen.diff.changes import Changes, partners
from onnxgen.diff.interface import Facts, beside, ports
from onnxgen.diff.nodes import FEW, FEW_OF, aligned_nodes, has_few_changes
from onnxgen.diff.side import Side, opened
from onnxgen.diff.texts import changed_lines
from onnxgen.diff.weights import compared, rounded, told
from onnxgen.errors import OnnxgenError, counted
from onnxgen.options import Options
from onnxgen.runtime.load import need_torch

if TYPE_CHECKING:
    from torch import Tensor

    from onnxgen.canonical.prove import Feeds
    from onnxgen.diff.forms import Forms
    from onnxgen.diff.numbers import Apart

FOLDED = 1e-4  # of the largest element: by how much outputs may differ if tensors were folded in float32


def compare(one: Path, other: Path, runs: int, seed: int, options: Options) -> Comparison:
    """See `onnxgen.diff.diff`."""
    if runs < 1:
        raise OnnxgenError("comparing needs at least one run")
    with ExitStack() as stack:
        sides = [stack.enter_context(opened(path, options)) for path in (one, other)]
        return Comparing(sides[0], sides[1], runs, seed).run()


class Comparing:
    """Two models."""

    def __init__(self, one: Side, other: Side, runs: int, seed: int) -> None:
        self.one, self.other, self.runs, self.seed = one, other, runs, seed
        self.result = Comparison(str(one.path), str(other.path), sources=(one.lines, other.lines))
        self.sides = one, other  # whose operators and tensors are compared: of quantised files the networks in floats
        self.inputs: Feeds | None = None
        self.blocks: list[str] = []
        self.found: Apart | None = None

    def run(self) -> Comparison:
        result = self.result
        result.file = beside(self.one.facts, self.other.facts)
        result.ports, names, self.alike = ports(self.one.signature, self.other.signature)
        result.file += names
        if self.one.program == self.other.program:
            result.weights = list(by_key(self.one, self.other))
            if not result.changed_weights:
                self._same("their sources are one program, and their weights are equal")
            else:
                self._judge("the architecture is the same")
        elif self._are_proved_in_integers():
            self._proved()
        elif self._are_of_one_network():
            self._judge("they are one network in floats")
        elif not any(self.quantised) and self._differ_in_few_nodes():
            self._judge("a few nodes differ")
        else:
            self._followed()
        if all(self.quantised) and result.verdict == "different" and not result.changes and not result.changed_weights:
            result.changes.append(Change("changed", "they are quantised otherwise"))
        result.summary = self._summary()
        return result

    # ---- the ways to an answer ---------------------------------------------------------------------------------------

    @property
    def quantised(self) -> list[bool]:
        return [s.facts is not None and s.facts.is_quantised for s in (self.one, self.other)]

    def _are_proved_in_integers(self) -> bool:
        """Return True if both are quantised, and the same with their integers."""
        if not all(self.quantised):
            return False
        need_torch("diff", "verify")
        from onnxgen.canonical.rules import NotFollowed
        from onnxgen.diff.forms import Forms

        try:
            arguments = self._arguments()
            forms = Forms([self.one.module, self.other.module], arguments, list(map(self._free, arguments)))
            matched = forms.match()
        except (NotFollowed, OnnxgenError):
            return False
        if matched.is_same:
            self.result.weights = matched.weights
        return matched.is_same and not self.result.changed_weights

    def _are_of_one_network(self) -> bool:
        """Return True if one is the other, rounded to integers."""
        floats = self.one.in_floats(), self.other.in_floats()
        quantised = tuple(f is not s for f, s in zip(floats, self.sides, strict=True))
        if not any(quantised):
            return False
        if quantised != (True, True):
            which = "second" if quantised[1] else "first"
            self.result.changes.append(Change("changed", f"the {which} is quantised"))
        self.sides = floats
        if floats[0].program != floats[1].program:
            return False
        self.result.weights = [rounded(weight) for weight in by_key(*floats)]
        return True

    def _differ_in_few_nodes(self) -> bool:
        """Return True if few nodes differ, and outputs by more than rounding: then no network has to be followed."""
        one, other = self.one.facts, self.other.facts
        if one is None or other is None or one.opset != other.opset or not self.alike or _are_far(one, other):
            return False
        changes, weights, alignment = self._nodes()
        if not has_few_changes(alignment, len(changes)):
            return False
        found = self._numbers()
        from onnxgen.diff.numbers import FAR

        shown = found.largest is not None and (FAR < found.largest < math.inf or found.why)
        if not shown:
            return False
        self.result.changes, self.result.weights = changes, weights
        return True

    def _nodes(self) -> tuple[list[Change], list[Weight], Alignment]:
        """Return what the nodes of two files say."""
        alignment, nodes = aligned_nodes((self.one, self.other))
        pairs = {b: a for a, b in partners(alignment) if a is not None and b is not None}
        return Changes(alignment, nodes).all(), list(by_key(self.one, self.other, pairs)), alignment

    def _followed(self) -> None:
        """Compare the canonical forms, and where they part, the operators."""
        need_torch("diff", "verify")
        from onnxgen.canonical.rules import NotFollowed
        from onnxgen.diff.forms import Forms

        try:
            self._need_pure()
            arguments = self._arguments()
            forms = Forms([side.module for side in self.sides], arguments, list(map(self._free, arguments)))
            try:
                matched = forms.match()
                self.result.weights = matched.weights
                if self.sides != (self.one, self.other):
                    self.result.weights = list(map(rounded, matched.weights))
                elif matched.is_same and not self.result.changed_weights:
                    return self._proved()
                if matched.is_same:
                    return self._judge("the architecture is the same, but for its spelling")
                why = "their canonical forms differ"
            except NotFollowed as stop:
                why = str(stop)
            self._aligned(forms)
        except (NotFollowed, OnnxgenError) as stop:
            why = str(stop)
            self._by_lines()
        self._judge(why)

    def _proved(self) -> None:
        """Say that they are the same, if numbers don't say otherwise."""
        found, is_rounded = self._numbers(), any(w.how == "rounding" for w in self.result.weights)
        if found.largest is not None and found.largest > max(found.equal, FOLDED if is_rounded else 0):
            self.result.verdict = "different"
            self.result.why = "the canonical forms are the same, but not the numbers: please report these files"
            return
        rest = ", but for the rounding of folded tensors" if is_rounded else ""
        self._same(f"their canonical forms are the same, with equal weights{rest}")

    def _same(self, why: str) -> None:
        self.result.verdict, self.result.why = "same", why
        if not self.alike:
            self.result.verdict = "different"
            self.result.why = f"they take other inputs; else {why}"

    def _has_folded_norms(self) -> bool:
        """Return True if one file has fewer norms: then its tensors may be rounded where those were folded."""
        one, other = self.one.facts, self.other.facts
        return one is not None and other is not None and one.norms != other.norms

    def _judge(self, why: str) -> None:
        """Say how far outputs are apart: only numbers show that networks differ."""
        result, found = self.result, self._numbers()
        largest = found.largest
        if largest is not None and largest > max(found.equal, FOLDED if self._has_folded_norms() else 0):
            size = "have other shapes or types" if largest == math.inf else f"differ by {largest:.2g} of the largest"
            result.verdict = "different"
            result.why = found.why or f"outputs {size}, on {counted(found.runs, 'drawn input')}"
        elif not self.alike:
            result.verdict, result.why = "different", "they take other inputs, or return other outputs"
        elif largest is not None:
            same = "no output differs" if not largest else f"outputs differ by {largest:.1g} of the largest"
            result.verdict = "not proved"
            result.why = f"{same} on {counted(found.runs, 'drawn input')}, but that is no proof: {why}"
        else:
            result.verdict, result.why = "not proved", f"{found.why}; {why}"

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _drawn(self) -> Feeds:
        from onnxgen.canonical.prove import Feeds
        from onnxgen.diff.numbers import feeds

        if self.inputs is None:
            self.inputs = Feeds(feeds(self.one, self.other, self.alike, self.runs, self.seed), self.runs)
        return self.inputs

    def _numbers(self) -> Apart:
        if self.found is not None:
            return self.found
        need_torch("diff", "verify")
        from onnxgen.diff.numbers import Apart, apart

        try:
            found = apart(self.one, self.other, self._drawn())
        except OnnxgenError as error:
            found = Apart(None, 0, str(error))
        self.result.apart, self.result.runs = found.largest, found.runs
        self.found = found
        return found

    def _arguments(self) -> list[list[Tensor]]:
        """Return an example of inputs for both: the same one, if they take the same inputs."""
        from torch import Tensor

        from onnxgen.canonical.rules import NotFollowed

        both = self._drawn().first()
        if any(not isinstance(a, Tensor) for arguments in both for a in arguments):
            raise NotFollowed("an input that is no tensor")
        return both

    def _free(self, arguments: list[Tensor]) -> list[list[int]]:
        """Return, for each input, the axes that have any size in both."""
        dims = [[port.dims for port in s.signature.inputs] if s.signature else [] for s in (self.one, self.other)]
        found = []
        for number, argument in enumerate(arguments):
            fixed = {
                axis
                for side in dims
                for axis, dim in enumerate((side[number] if number < len(side) else None) or ())
                if isinstance(dim, int)
            }
            found.append([axis for axis, size in enumerate(argument.shape) if size > 1 and axis not in fixed])
        return found

    def _need_pure(self) -> None:
        """Raise `NotFollowed` if a module that a person may have edited is no Python that is followed."""
        from onnxgen.canonical.purity import objections
        from onnxgen.canonical.rules import NotFollowed

        for side in (self.one, self.other):
            if side.generated is None:
                for objection in objections(side.text, side.text):
                    raise NotFollowed(objection)

    def _aligned(self, forms: Forms) -> None:
        """Say which operators changed, and compare the tensors of those that stand for each other."""
        from onnxgen.diff.forms import digest
        from onnxgen.diff.steps import Traced, aligned_programs, blocks

        digests = [{path: digest(t) for path, t in state.items()} for state in forms.states]
        alignment = aligned_programs(forms.exported, digests, forms.states)
        sources = [
            Traced(side.file, side.nodes, side.facts.kinds if side.facts is not None else {}, side.module, steps)
            for side, steps in zip(self.sides, (alignment.ones, alignment.others), strict=True)
        ]
        changes = Changes(alignment, sources).all()
        self.result.changes += changes
        self.blocks = list(blocks(*(side.module for side in self.sides)))
        mine, theirs = (
            {**side.tensors, **{path: tensor.numpy() for path, tensor in folded.items()}}
            for side, folded in zip(self.sides, alignment.folded, strict=True)
        )
        computed = {*alignment.folded[0], *alignment.folded[1]}
        weights = []
        for a, b in partners(alignment):
            if (a is not None and a not in mine) or (b is not None and b not in theirs):
                continue
            if a is None or b is None:
                name = b or a or ""
                tensor = theirs[b] if b is not None else mine[a or ""]
                weights.append(Weight(name, (), "added" if a is None else "removed", "", tuple(tensor.shape)))
            elif mine[a].shape != theirs[b].shape:
                what = f"{list(mine[a].shape)} -> {list(theirs[b].shape)}"
                weights.append(Weight(b, (a,), "resized", what, tuple(theirs[b].shape)))
            else:
                is_folded = bool({a, b} & computed)
                old, new = (t.astype(np.float64) if is_folded else t for t in (mine[a], theirs[b]))
                weights.append(compared(b, [a], old, new, computed=is_folded))
        self.result.weights = weights if self.sides == (self.one, self.other) else list(map(rounded, weights))
        if not changes and self.alike:
            self._by_lines()

    def _by_lines(self) -> None:
        """Say which nodes, or else which lines of the sources, differ, where the operators can't be followed or are the
        same."""
        if self.sides == (self.one, self.other) and self.one.model is not None and self.other.model is not None:
            self.result.changes, self.result.weights, _ = self._nodes()
        if not self.result.changes:
            self.result.changes += changed_lines(*self.sides)
        if not self.result.weights:
            self.result.weights = list(by_key(*self.sides))

    def _summary(self) -> list[str]:
        result = self.result
        said = []
        kinds = [change.kind for change in result.changes]
        what = "architecture" if result.verdict == "different" else "spelling"
        for kind in ("added", "removed", "changed"):
            if kinds.count(kind):
                said.append(f"{what}: {counted(kinds.count(kind), 'place')} {kind}")
        said += self.blocks
        said += [f"weights: {text}" for text in told(result.weights)]
        if result.ports:
            said.append(f"inputs and outputs: {counted(len(result.ports), 'difference')}")
        if not said and result.file:
            said.append("only what the files say beside the network differs")
        return said or ["nothing differs"] * (result.verdict == "same")


def by_key(one: Side, other: Side, partners: Mapping[str, str] | None = None) -> Iterator[Weight]:
    """Compare the tensors of two sides by their keys. `partners`: keys of the first for those of the second, if they
    are known otherwise."""
    mine, theirs = one.tensors, other.tensors
    known = dict(partners or {})
    pairs = {key: key for key in theirs if key in mine and key not in {*known.values()}} | known
    taken: set[str] = set()
    for key, new in theirs.items():
        was = pairs.get(key, "")
        old = mine.get(was)
        if old is None:
            yield Weight(key, (), "added", "", tuple(new.shape))
            continue
        taken.add(was)
        if old.shape != new.shape:
            yield Weight(key, (was,), "resized", f"{list(old.shape)} -> {list(new.shape)}", tuple(new.shape))
        else:
            yield compared(key, [was], old, new)
    for key, old in mine.items():
        if key not in taken:
            yield Weight(key, (), "removed", "", tuple(old.shape))


def _are_far(one: Facts, other: Facts) -> bool:
    """Return True if two files have quite other operators, so that their nodes are not worth aligning."""
    apart = sum(((one.operators - other.operators) + (other.operators - one.operators)).values())
    return apart > max(FEW, FEW_OF * sum(other.operators.values()))
