"""Put the weights of an ONNX file into a module of the same architecture."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.back import export_back
from onnxgen.canonical.binding import Binding, Piece, Walk, assembled
from onnxgen.canonical.capture import Captured, Reader, constant, exported
from onnxgen.canonical.matching import below
from onnxgen.canonical.numbers import difference
from onnxgen.canonical.places import Place, place_of
from onnxgen.canonical.prove import drawn
from onnxgen.canonical.rules import NotFollowed
from onnxgen.canonical.terms import Term
from onnxgen.canonical.values import Unknown, value
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.runtime.load import load

APART = 1e-5  # of the largest element, in float64
NORMS = nn.modules.batchnorm._BatchNorm


@dataclass
class Report:
    """What was filled, and with what.

    Attributes:
        filled: for each parameter or buffer of the module, the keys of the generated module that it was made of.
        folded: the paths of BatchNorms that became the identity: their fold is in the layer before them.
        kept: parameters and buffers that the network does not use; they keep their values.
        difference: the largest difference of outputs, as a share of the largest element, in float64.
        runs: the number of drawn inputs that were compared.
        source, options: the ONNX file, and how it was read.
        pieces: what the parts of each parameter were made of.
        behind: for each folded BatchNorm, the layer that has its fold.
    """

    filled: dict[str, list[str]] = field(default_factory=dict)
    folded: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    difference: float = 0.0
    runs: int = 0
    source: Path = field(default_factory=Path, repr=False)
    options: Options = field(default_factory=Options, repr=False)
    pieces: dict[str, list[Piece]] = field(default_factory=dict, repr=False)
    behind: dict[str, str] = field(default_factory=dict, repr=False)

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


def transplant(
    model: Path | str, module: nn.Module, *, runs: int = 3, seed: int = 0, options: Options | None = None
) -> Report:
    """Fill a module of the same architecture with the weights of an ONNX file, in place.

    The canonical forms of both networks are walked from their outputs to their inputs, and each parameter of the module
    gets what the file has in its place: renamed, transposed, cut out of a fused matrix or joined from parts. Where the
    file has a convolution with a folded BatchNorm, the module's BatchNorm becomes the identity. Then the outputs of both
    are compared on drawn inputs.

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
    options = options or Options()
    reference = load(model, options)
    names, feeds = drawn(Path(model), options, reference, runs, seed)
    return Transplant(reference, module, names, feeds).run(Path(model), options)


class Transplant:
    """The network of a file, and a module that is to get its weights."""

    def __init__(
        self, reference: nn.Module, module: nn.Module, names: Sequence[str], feeds: Sequence[Sequence[Any]]
    ) -> None:
        self.reference, self.module = reference.float(), module
        self.feeds = [[a.float() if _is_half(a) else a for a in feed] for feed in feeds]
        taken = inspect.signature(module.forward).parameters
        self.names = list(names) if all(name in taken for name in names) else []
        self.terms = Algebra()
        self.behind: dict[str, str] = {}

    def run(self, model: Path, options: Options) -> Report:
        before = copy.deepcopy(self.module.state_dict())
        modes = {m: m.training for m in self.module.modules()}
        try:
            self.module.eval()
            try:
                report = self._filled()
            except NotFollowed as stop:
                raise OnnxgenError(f"the module can't be followed: {stop}") from stop
            report.source, report.options = model, options
            report.behind = {path: self.behind[path] for path in report.folded if path in self.behind}
            return report
        except BaseException:
            self.module.load_state_dict(before)
            raise
        finally:
            for part, mode in modes.items():
                part.training = mode

    def _filled(self) -> Report:
        one = self._read(self.reference, self._program(self.reference, []), "")
        program = self._program(self.module, self.names)
        best: tuple[int, NotTheSame] | None = None
        for fixed, folded in self._foldings():
            other = self._read(self.module, program, "module ", fixed)
            report, missing = self._bound(one, other, fixed, folded)
            report.difference = self._difference()
            report.runs = len(self.feeds)
            if report.difference <= APART and not missing:
                return report
            score = len(missing) + len(self.binding.apart)
            if best is None or score < best[0]:
                best = score, self._refused(other, self.binding, missing, report.difference)
        assert best is not None
        raise best[1]

    def _refused(self, other: Captured, binding: Binding, missing: Sequence[str], apart: float) -> NotTheSame:
        """Return the error that says where the two networks part: at the first of the pairs that can't be the same."""
        nodes = {term: node for term, node in reversed(other.places)}
        known = [_noted(t, nodes) for _, t in binding.apart if isinstance(t, Term)]
        first = min((t for t in known if t is not None), key=lambda t: t.number, default=None)
        place = None if first is None else place_of(nodes[first], "edited", "")
        where = f"{place.code} (line {place.line}, in {place.module or 'forward'})" if place else ""
        what = f"outputs differ by {apart:.2g} of the largest" if apart < math.inf else "outputs have other shapes"
        if missing:
            what += f"; nothing in the file stands for {missing[0]}" + (
                f" and {len(missing) - 1} more" if missing[1:] else ""
            )
        what = f"the module is another network than the file: {what}"
        error = NotTheSame(what, help=f"compare what it computes at: {where}" if where else "")
        error.places = [place] if place else []
        return error

    def _program(self, module: nn.Module, names: Sequence[str]) -> Any:
        arguments = self.feeds[0]
        if any(not isinstance(a, Tensor) for a in arguments):
            raise NotFollowed("an input that is no tensor")
        free = [[axis for axis, size in enumerate(a.shape) if size > 1] for a in arguments]
        return exported(module, arguments, free, names)

    def _read(self, module: nn.Module, program: Any, prefix: str, fixed: Mapping[str, Term] | None = None) -> Captured:
        state = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        leaves: dict[str, Term | str] = {path: f"{prefix}{path}" for path in state}
        leaves |= {p: constant(self.terms, t) for p, t in state.items() if not t.is_floating_point()}
        return Reader(self.terms, program, {**leaves, **(fixed or {})}).read()

    def _foldings(self) -> Any:
        """Yield the leaves that are fixed, and the BatchNorms that become the identity by that."""
        yield {}, []
        norms = {
            path: m for path, m in self.module.named_modules() if isinstance(m, NORMS) and m.running_var is not None
        }
        if not norms:
            return
        behind = self.behind = self._behind_convolutions(norms)
        for chosen in dict.fromkeys((tuple(behind), tuple(norms))):
            yield self._identities(chosen, norms, behind), list(chosen)

    def _identities(
        self, chosen: Sequence[str], norms: Mapping[str, Any], behind: Mapping[str, str]
    ) -> dict[str, Term]:
        fixed: dict[str, Term] = {}
        for path in chosen:
            norm = norms[path]
            shape = tuple(norm.running_var.shape)
            numbers = {"running_mean": 0.0, "running_var": 1 - norm.eps}
            numbers |= {"weight": 1.0} if norm.weight is not None else {}
            fixed |= {f"{path}.{name}": self.terms.constant(n, shape, "float32") for name, n in numbers.items()}
            bias = f"{behind.get(path)}.bias"
            own = dict(self.module.named_parameters()).get(bias)
            if own is not None and norm.bias is not None:
                fixed[bias] = self.terms.constant(0.0, tuple(own.shape), "float32")
        return fixed

    def _behind_convolutions(self, norms: Mapping[str, Any]) -> dict[str, str]:
        """Return the BatchNorms that take what a layer with weights makes, each with that layer's path."""
        made: dict[int, str] = {}
        behind: dict[str, str] = {}
        layers = (nn.modules.conv._ConvNd, nn.Linear)
        paths = {m: path for path, m in self.module.named_modules()}
        kept: list[Any] = []

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(module, layers):
                made[id(output)] = paths[module]
                kept.append(output)
            elif paths[module] in norms and id(inputs[0]) in made:
                behind[paths[module]] = made[id(inputs[0])]

        handles = [m.register_forward_hook(hook) for m in self.module.modules() if isinstance(m, (*layers, NORMS))]
        try:
            with torch.no_grad():
                self._run(self.module, self.feeds[0])
        finally:
            for handle in handles:
                handle.remove()
        return behind

    # ---- filling -----------------------------------------------------------------------------------------------------

    def _bound(
        self, one: Captured, other: Captured, fixed: Mapping[str, Term], folded: list[str]
    ) -> tuple[Report, list[str]]:
        """Fill the module with what its leaves are bound to. Returns the report, and the leaves without a value."""
        binding = self.binding = Walk(self.terms).walk(one.outputs, _chosen(one.outputs, other.outputs))
        values = dict(self.reference.state_dict(keep_vars=False))
        state = self.module.state_dict()
        report, missing = Report(folded=folded), []
        for path, leaf in other.leaves.items():
            made = assembled(self.terms, leaf, binding.pieces[leaf]) if leaf in binding.pieces else None
            tensor = None
            if made is not None:
                try:
                    tensor = value(made, {k: v.double() if v.is_floating_point() else v for k, v in values.items()})
                except (Unknown, KeyError):
                    pass
            if tensor is None or made is None:
                missing.append(path)
                continue
            report.filled[path] = sorted({t.args[0] for t in _leaves(made)})
            report.pieces[path] = binding.pieces[leaf]
            with torch.no_grad():
                state[path].copy_(tensor.reshape(state[path].shape))
        for path, term in fixed.items():
            with torch.no_grad():
                state[path].copy_(value(term, {}))
        self.module.load_state_dict(state)
        used = {*other.leaves, *fixed}
        report.kept = [path for path in state if path not in used]
        return report, missing

    def _run(self, module: nn.Module, feed: Sequence[Any]) -> Any:
        if module is self.module and self.names:
            return module(**dict(zip(self.names, feed)))
        return module(*feed)

    def _difference(self) -> float:
        """Return the largest difference of outputs in float64."""
        reference, module = (copy.deepcopy(m).double().eval() for m in (self.reference, self.module))
        worst = 0.0
        for feed in self.feeds:
            wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in feed]
            with torch.no_grad():
                expected = _flat(reference(*wide))
                got = _flat(module(**dict(zip(self.names, wide))) if self.names else module(*wide))
            for a, b in zip(expected, _chosen(expected, got)):
                worst = max(worst, difference(a, b))
        return worst


def _noted(term: Term, nodes: Mapping[Term, Any]) -> Term | None:
    """Return the term, or else the last one that it is made of, that an operator of the module made."""
    if term in nodes:
        return term
    return next((part for part in reversed(below([term])) if part in nodes), None)


def _chosen(wanted: Sequence[Any], there: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of the module that stand for those of the file: the first with the same number of axes."""
    if len(wanted) == len(there):
        return there
    rest = list(there)
    chosen = []
    for each in wanted:
        found = next((o for o in rest if hasattr(o, "shape") and len(o.shape) == len(each.shape)), None)
        if found is None:
            raise NotFollowed("it returns other outputs than the file")
        rest = rest[[id(o) for o in rest].index(id(found)) + 1 :]
        chosen.append(found)
    return chosen


def _flat(value_: Any) -> list[Tensor]:
    if isinstance(value_, Tensor):
        return [value_]
    if isinstance(value_, Mapping):
        return [t for v in value_.values() for t in _flat(v)]
    if isinstance(value_, (list, tuple)):
        return [t for v in value_ for t in _flat(v)]
    return []


def _leaves(term: Term) -> list[Term]:
    return [t for t in below([term]) if t.op in ("parameter", "frozen")]


def _is_half(value_: Any) -> bool:
    return isinstance(value_, Tensor) and value_.dtype in (torch.float16, torch.bfloat16)
