"""Put the weights of an ONNX file into a module of the same architecture."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from onnxgen.canonical.back import export_back
from onnxgen.canonical.binding import Equation, Laid, Walk
from onnxgen.canonical.capture import Captured, exported
from onnxgen.canonical.colours import Colours
from onnxgen.canonical.folding import FoldingReader
from onnxgen.canonical.hiding import ASSUMED, Hiding, Showing
from onnxgen.canonical.matching import below
from onnxgen.canonical.numbers import WideMasks, difference
from onnxgen.canonical.parting import Parting
from onnxgen.canonical.places import Place
from onnxgen.canonical.prove import drawn
from onnxgen.canonical.rules import NotFollowed
from onnxgen.canonical.solving import Choice, Solution, Solver
from onnxgen.canonical.standing import plain_copy, put, tensors_of
from onnxgen.canonical.terms import Term
from onnxgen.canonical.values import Values
from onnxgen.errors import OnnxgenError, counted
from onnxgen.options import Options
from onnxgen.runtime.load import load, need_torch

APART, APART_HALF = 1e-5, 1e-2  # of the largest element, in float64: what rounded constants of the file make
SCALE = 30  # of inputs: what is done to large ones shows,
APART_SCALED = 0.1  # as more than what rounded constants make of them
SMALLEST_HALF = 2.0**-23  # what converters to float16 make of positive numbers below 1e-7
NEAR, NEAR_HALF = (1e-4, 0.0), (2e-3, SMALLEST_HALF)  # how far constants may be apart: of the largest, and at least
MORE = 20  # drawn inputs, if the first break what was assumed
NORMS = nn.modules.batchnorm._BatchNorm


@dataclass
class Report:
    """What was filled, and with what.

    Attributes:
        filled: for each parameter or buffer of the module, the keys of the generated module that it was made of.
        folded: the paths of BatchNorms that became the identity: their fold is in the layer before them.
        chosen: parameters that the file has folded into others, with the number that they got.
        fitted: parameters of layers whose inputs never change: the file has what they make, and many make the same.
        partly: parameters of which the file has only a part; the other elements keep their values.
        kept: parameters and buffers that the network does not use; they keep their values.
        assumed: what has to hold for inputs, so that both are the same; inputs that break it are not compared.
        difference: the largest difference of outputs, as a share of the largest element, in float64.
        runs: the number of drawn inputs that were compared.
        source, options: the ONNX file, and how it was read.
    """

    filled: dict[str, list[str]] = field(default_factory=dict)
    folded: list[str] = field(default_factory=list)
    chosen: dict[str, float] = field(default_factory=dict)
    fitted: list[str] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    assumed: str = ""
    difference: float = 0.0
    runs: int = 0
    source: Path = field(default_factory=Path, repr=False)
    options: Options = field(default_factory=Options, repr=False)
    matched: Any = field(default=None, repr=False)

    def export(self, module: nn.Module, out: Path | str, *, force: bool = False) -> Any:
        """Write the module's values, after a training, into the graph of the ONNX file that they came from.

        Args:
            module: the module that was filled.
            out: the file to write.
            force: overwrite any file.

        Returns:
            the report of `onnxgen.export`.

        Raises:
            OnnxgenError: a value can't be written back, or `out` must not be overwritten.
            DiffersError: the new file does not compute the same as the module; nothing was written.
        """
        return export_back(self, module, Path(out), force=force)


class NotTheSame(OnnxgenError):
    """The module is another network. `places`: where they part."""

    places: list[Place] = []


@dataclass
class Matched:
    """What a module was filled with: the equations, and the parameters of both networks by their terms."""

    terms: Showing
    equations: list[Equation]
    one: dict[Term, str]
    other: dict[Term, str]
    behind: dict[str, str] = field(default_factory=dict)


def transplant(
    model: Path | str, module: nn.Module, *, runs: int = 3, seed: int = 0, options: Options | None = None
) -> Report:
    """Fill a module of the same architecture with the weights of an ONNX file, in place.

    The canonical forms of both networks are walked from their outputs to their inputs, and each parameter of the module
    gets what the file has in its place: renamed, transposed, cut out of a fused matrix or joined from parts. Where the
    file has folded something into another layer, such as a BatchNorm into a convolution, the module's layer becomes the
    identity. Then the outputs of both are compared on drawn inputs, and only then the module is filled.

    Args:
        model: the ONNX file.
        module: the module. Its `forward` takes the file's inputs by their names, or in their order.
        runs: the number of drawn inputs.
        seed: for the inputs.
        options: as for `onnxgen.load`.

    Returns:
        what was filled.

    Raises:
        NotTheSame: the networks differ; the module is as it was. The message and `places` say where.
        OnnxgenError: the file can't be read, or the module can't be followed.
    """
    need_torch("transplant", "verify")
    options = options or Options()
    reference, read_as = load(model, options), options
    is_half = any(_is_half(t) for t in reference.state_dict().values())
    if is_half:
        read_as = replace(options, dtype="float32")
        reference = load(model, read_as)
    if not isinstance(module, nn.Module):
        raise OnnxgenError(f"this is a {type(module).__name__}, and no nn.Module", help="name what makes a module")
    names, feeds = drawn(Path(model), read_as, reference, runs, seed)
    more = lambda: drawn(Path(model), read_as, reference, MORE + runs, seed)[1][runs:]  # noqa: E731
    report = Transplant(reference, module, names, feeds, is_half, more).run()
    report.source, report.options = Path(model), options
    return report


class Transplant:
    """The network of a file, and a module that is to get its weights."""

    def __init__(
        self,
        reference: nn.Module,
        module: nn.Module,
        names: Sequence[str],
        feeds: Sequence[Sequence[Any]],
        is_half: bool,
        more: Callable[[], Sequence[Sequence[Any]]],
    ) -> None:
        self.module, self.is_half = module, is_half
        self.reference, self.filled = plain_copy(reference), plain_copy(module).float()
        self.feeds, self.more = _plain(feeds), more
        taken = inspect.signature(module.forward).parameters
        self.names = list(names) if all(name in taken for name in names) else []
        self.terms = Showing()

    def run(self) -> Report:
        try:
            one, noted = self._captured(self.reference, [], "file "), self.terms.taken()
            other = self._captured(self.filled, self.names, "module ")
        except NotFollowed as stop:
            raise OnnxgenError(f"the module can't be followed: {stop}") from stop
        numbers = self._outputs(one, other)
        theirs = [other.outputs[n] for n in numbers]
        draws = self._draws([*one.outputs, *theirs])
        colours = Colours(one.outputs, draws), Colours(theirs, draws)
        known = {t: self._tensor(self.reference, one, t) for t in _leaves(one.outputs)}
        unknown = _leaves(theirs)
        known |= {t: self._tensor(self.filled, other, t) for t in unknown if "float" not in t.dtype}
        unknown = [t for t in unknown if t not in known]
        choices = Norms(self.filled, other, unknown)
        near = NEAR_HALF if self.is_half else NEAR
        solver = Solver(self.terms, Values(self.terms, known), unknown, choices.of, near)
        laid = Walk(self.terms, *colours, solver.same).walk(one.outputs, theirs)
        solution = solver.solve(laid.equations)
        parting = Parting((one, other), colours)
        missing = [_path(other, t) for t, v in solution.values.items() if bool(v.isnan().all()) and v.numel()]
        if laid.apart or solution.apart or solution.open or missing:
            raise self._refused(parting, laid, solution, missing)
        report = self._report(one, other, laid, solution)
        report.assumed = self._assumed(Hiding(self.terms, (noted, self.terms.taken()), colours, laid))
        put(self.filled, {p: solution.values[t] for p, t in other.leaves.items() if p in report.filled})
        report.difference, report.runs = self._difference(numbers), len(self.feeds)
        if not report.difference <= (APART_HALF if self.is_half else APART):
            raise self._refused(parting, laid, solution, missing, report.difference)
        self._put(report)
        report.matched = self._matched(one, other, laid, report)
        return report

    def _put(self, report: Report) -> None:
        """Fill the module itself as its copy was filled."""
        if any(tensor.is_inference() for tensor in self.module.state_dict().values()):
            raise OnnxgenError("it was made in inference mode, and can't be filled", help="make it outside of it")
        before = copy.deepcopy(self.module.state_dict())
        wanted = tensors_of(self.filled)
        put(self.module, {path: wanted[path] for path in report.filled})
        found = tensors_of(plain_copy(self.module))
        for path in report.filled:
            near = 1e-2 if _is_half(found[path]) else 1e-5
            if not torch.allclose(found[path].to(wanted[path]), wanted[path], rtol=near, atol=near):
                self.module.load_state_dict(before)
                raise OnnxgenError(f"{path} is computed from other parameters, and can't be what the file has")

    def _captured(self, module: nn.Module, names: Sequence[str], prefix: str) -> Captured:
        arguments = self.feeds[0]
        if any(not isinstance(a, Tensor) for a in arguments):
            raise NotFollowed("an input that is no tensor")
        program = exported(module, arguments, [[] for _ in arguments], names)
        state = tensors_of(module)
        leaves: dict[str, Term | str] = {path: f"{prefix}{path}" for path in state}
        return FoldingReader(self.terms, program, leaves).read()

    def _draws(self, roots: Sequence[Any]) -> list[Values]:
        """Return values of the inputs, of those drawn that have the sizes of the first."""
        inputs = {t.args[0]: t for t in below(roots) if t.op == "input"}
        alike = [f for f in self.feeds if [a.shape for a in f] == [a.shape for a in self.feeds[0]]]
        return [Values(self.terms, {t: feed[n] for n, t in inputs.items()}) for feed in alike]

    def _assumed(self, hiding: Hiding) -> str:
        """Leave out the drawn inputs for which what was assumed does not hold. Returns what was assumed."""
        if not hiding.masks:
            return ""
        inputs = {t.args[0]: t for t in below(hiding.masks) if t.op == "input"}

        def known(feed: Sequence[Any]) -> dict[Term, Tensor]:
            return {t: feed[n] for n, t in inputs.items()}

        count, feeds = len(self.feeds), self.feeds
        self.feeds = []
        for draw in (feeds, None):
            every = _plain(self.more()) if draw is None else draw
            drawn_ = [f for f in every if [a.shape for a in f] == [a.shape for a in feeds[0]]]
            self.feeds += [f for f in drawn_ if hiding.holds(known(f))]
            if len(self.feeds) >= count and hiding.hides([*map(known, self.feeds[:count])]):
                break
        self.feeds = self.feeds if draw is None else self.feeds[:count]
        if not hiding.hides([*map(known, self.feeds)]):
            raise NotTheSame("the module is another network than the file: masks of attention hide every key, or none")
        return ASSUMED

    def _tensor(self, module: nn.Module, captured: Captured, leaf: Term) -> Tensor:
        return tensors_of(module)[_path(captured, leaf)]

    def _outputs(self, one: Captured, other: Captured) -> list[int]:
        """Return the numbers of the module's outputs that stand for those of the file."""
        if len(one.outputs) == len(other.outputs):
            return list(range(len(one.outputs)))
        mine, theirs = Colours(one.outputs), Colours(other.outputs)
        chosen: list[int] = []
        for wanted in one.outputs:
            rest = [n for n, o in enumerate(other.outputs) if n not in chosen and isinstance(o, Term)]
            alike = [n for n in rest if mine.inside(wanted) == theirs.inside(other.outputs[n])]
            alike = alike or [n for n in rest if wanted.shape == other.outputs[n].shape]
            if not alike:
                there = f"{counted(len(other.outputs), 'output')}, and the file {len(one.outputs)}"
                raise NotTheSame(f"the module is another network than the file: it returns {there}")
            chosen.append(alike[0])
        return chosen

    def _report(self, one: Captured, other: Captured, laid: Laid, solution: Solution) -> Report:
        sources: dict[Term, set[str]] = {}
        for equation in laid.equations:
            made_of = {_path(one, t) for t in _leaves([equation.one])}
            for leaf in _leaves([equation.other]):
                sources.setdefault(leaf, set()).update(made_of)
        report = Report()
        for path, leaf in other.leaves.items():
            value = solution.values.get(leaf)
            if value is None:
                continue
            report.filled[path] = sorted(sources.get(leaf, ()))
            if bool(value.isnan().any()):
                report.partly.append(path)
                value[value.isnan()] = tensors_of(self.filled)[path].detach().cpu().double()[value.isnan()]
        for choice in solution.chosen:
            if not choice.norm:
                report.chosen[_path(other, choice.leaf)] = choice.number
        report.fitted = [_path(other, leaf) for leaf in dict.fromkeys(solution.fitted)]
        report.folded = list(dict.fromkeys(c.norm for c in solution.chosen if c.norm))
        report.kept = [path for path in self.filled.state_dict() if path not in report.filled]
        return report

    def _matched(self, one: Captured, other: Captured, laid: Laid, report: Report) -> Matched:
        behind = self._behind_layers()
        paths = [{t: _path(c, t) for t in _leaves(c.outputs)} for c in (one, other)]
        return Matched(
            self.terms, laid.equations, paths[0], paths[1], {n: behind[n] for n in report.folded if n in behind}
        )

    def _behind_layers(self) -> dict[str, str]:
        """Return the BatchNorms that take what a layer with weights makes, each with that layer's path."""
        made: dict[int, str] = {}
        behind: dict[str, str] = {}
        layers = (nn.modules.conv._ConvNd, nn.Linear)
        paths = {m: path for path, m in self.filled.named_modules()}
        kept: list[Any] = []

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(module, layers):
                made[id(output)] = paths[module]
                kept.append(output)
            elif id(inputs[0]) in made:
                behind[paths[module]] = made[id(inputs[0])]

        handles = [m.register_forward_hook(hook) for m in self.filled.modules() if isinstance(m, (*layers, NORMS))]
        try:
            with torch.no_grad():
                self._run(self.filled, self.feeds[0])
        finally:
            for handle in handles:
                handle.remove()
        return behind

    # ---- refusing ----------------------------------------------------------------------------------------------------

    def _refused(
        self, parting: Parting, laid: Laid, solution: Solution, missing: Sequence[str], apart: float | None = None
    ) -> NotTheSame:
        """Return the error that says where the two networks part."""
        places = parting.places(laid, [*solution.apart, *solution.open])
        what = parting.numbers(solution.apart)
        if apart is not None:
            what = f"outputs differ by {apart:.2g} of the largest" if apart < math.inf else "outputs have other shapes"
        elif not what and missing:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            what = f"nothing in the file stands for {missing[0]}{more}"
        what = what or "they part"
        where = [f"{p.code} (line {p.line}, in {p.module or 'forward'})" for p in places]
        said = [f"{side} has: {text}" for side, text in zip(("the module", "the file"), where)]
        error = NotTheSame(f"the module is another network than the file: {what}", help="; ".join(said))
        error.places = places
        return error

    # ---- comparing ---------------------------------------------------------------------------------------------------

    def _run(self, module: nn.Module, feed: Sequence[Any]) -> Any:
        if module is not self.reference and self.names:
            return module(**dict(zip(self.names, feed, strict=True)))
        return module(*feed)

    def _difference(self, numbers: Sequence[int]) -> float:
        """Return the largest difference of outputs in float64."""
        worst = 0.0
        reference, module = (copy.deepcopy(m).double() for m in (self.reference, self.filled))
        for feed, scale in ((feed, scale) for scale in (1, SCALE) for feed in self.feeds):
            wide = [a.double() * scale if a.is_floating_point() else a for a in feed]
            with torch.no_grad(), WideMasks():
                expected = reference(*wide)
                got = tree_leaves(self._run(module, wide))
            expected = [expected] if isinstance(expected, Tensor) else list(expected)
            for a, b in zip(expected, [got[n] for n in numbers], strict=True):
                apart = difference(a, b, scale != 1)
                worst = max(worst, apart if scale == 1 or apart > APART_SCALED else 0)
        return worst


class Norms:
    """The BatchNorms of a module, whose statistics may be chosen."""

    def __init__(self, module: nn.Module, captured: Captured, leaves: Iterable[Term]) -> None:
        wanted = {*leaves}
        self.norms: dict[Term, tuple[str, Any]] = {}
        self.captured = captured
        for path, norm in module.named_modules():
            if not isinstance(norm, NORMS):
                continue
            for name in ("running_mean", "running_var"):
                leaf = captured.leaves.get(f"{path}.{name}")
                if leaf in wanted:
                    self.norms[leaf] = path, norm

    def of(self, leaves: Sequence[Term]) -> list[Choice]:
        """Return the choices that make the first of the norms among leaves one that keeps what it gets."""
        found = next((self.norms[leaf] for leaf in leaves if leaf in self.norms), None)
        if found is None:
            return []
        path, norm = found
        mean, spread = (self.captured.leaves[f"{path}.{name}"] for name in ("running_mean", "running_var"))
        return [Choice(spread, 1 - norm.eps, norm=path), Choice(mean, 0.0, norm=path)]


def _path(captured: Captured, leaf: Term) -> str:
    return next(path for path, term in captured.leaves.items() if term is leaf)


def _leaves(roots: Iterable[Any]) -> list[Term]:
    return [t for t in below(roots) if t.op in ("parameter", "frozen")]


def _plain(feeds: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[a.float() if _is_half(a) else a for a in feed] for feed in feeds]


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
