"""What `__init__` registers: submodules, parameters and buffers, and under which names.

Names come from the file, in this order of trust: the parameter's own name (`layer1.0.conv1.weight`), the scope that its
node was written in, the role it plays (`conv1`, `fc2`). `state_dict` keys are therefore the original ones wherever the
file still knows them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.literals import tensor_literal
from onnxgen.code.module_def import Member, Path, Statement, Tie, expressions
from onnxgen.code.quote import MemberRef, quote, walk
from onnxgen.names import identifier, module_part
from onnxgen.ops.parameter import initial, role
from onnxgen.options import Options
from onnxgen.passes.trainable import stored_values
from onnxgen.places import settle
from onnxgen.reader.origin import param_path
from onnxgen.stored import folded_from, stored
from onnxgen.wayback import Source

CPU = ast.Constant("cpu")
_NOISE = re.compile(r"^(onnx::\w+|\d+|.*::.*|val_\d+)$")


class Members:
    """The members of one network, while it is lowered.

    Attributes:
        constants: arrays too large for source, by the key they have in the sidecar.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self.options = options
        self.constants: dict[str, NDArray[Any]] = {}
        self.prefix = "constants."
        self.members: list[Member] = []
        self._by_path: dict[Path, Member] = {}
        self._modules: dict[tuple[str, str, tuple[tuple[str, Source], ...]], Member] = {}
        self._parameters: dict[ir.Value, Member] = {}
        # whole tensors of rank 2 or more that are a module's weight, by their ONNX name
        self._weights: dict[str, tuple[Member, str]] = {}
        # the array stays alive with its buffer: a large one is told from others by its `id`
        self._buffers: dict[tuple[Any, ...], tuple[Member, NDArray[Any]]] = {}
        self._large: dict[int, NDArray[Any]] = {}  # arrays for the sidecar, by their member's `id`
        self._frozen = {v.name or "" for v in stored_values(model.graph) if not v.meta.get("trainable", (False, ""))[0]}
        values = list(stored_values(model.graph))
        self._shared = {v.name or "" for v in values if len(v.uses()) > 1} | {folded_from(v) for v in values}
        self._crowd: Counter[Path] = Counter()
        for node in model.graph.all_nodes():
            scope = tuple(node.meta.get("scope", ()))
            if any(stored(i) is not None and _is_weight(stored(i)) for i in node.inputs if i is not None):
                for n in range(1, len(scope) + 1):
                    self._crowd[scope[:n]] += 1

    # modules

    def module(self, scope: Path, role: str, build: ast.expr, sources: dict[str, Source]) -> MemberRef | None:
        """The submodule with these tensors; the very same one if it is asked for twice."""
        identity = (role, ast.dump(build), tuple(sorted(sources.items(), key=lambda i: i[0])))
        if sources and identity in self._modules:
            return MemberRef(self._modules[identity])
        home, elsewhere = self._home(sources)
        if elsewhere:
            return None
        if home is not None and any(n in self._shared for s in sources.values() for n in s.names):
            home = self._own_scope(scope, home)
        path, named = self._module_path(scope, role, home)
        frozen = {k for k, s in sources.items() if all(n in self._frozen for n in s.names)}
        member = self._register(Member(path, build, "module", dict(sources), frozen, named))
        self._modules[identity] = member
        return MemberRef(member)

    def _home(self, sources: dict[str, Source]) -> tuple[Path | None, bool]:
        """The module path that the tensors' own names give, and whether a name contradicts being this module's.

        `fc.weight` as the weight makes it `fc`; `attn.in_proj_weight` can't be a module's `weight`, so it stays a
        parameter by that name. Where the names disagree the first tensor's counts: exporters share equal biases.
        """
        paths = {key: self._named_path(source) for key, source in sources.items()}
        first = next(iter(paths), None)
        decisive = paths[first] if first is not None else None
        if decisive is not None and decisive[-1] == first:
            # its other tensors are its own whatever they are called: dynamo calls a folded norm's bias `x.weight_bias`
            return (decisive[:-1] or None), False
        if any(path is not None and path[-1] != key for key, path in paths.items()):
            return None, True
        homes = [path[:-1] for path in paths.values() if path is not None and len(path) > 1]
        return (homes[0] if homes else None), False

    def _own_scope(self, scope: Path, home: Path) -> Path:
        """Of a tied weight's users one has its name; another is called by the scope that its own node stands in."""
        clean = tuple(module_part(p) for p in scope)
        return scope if scope != home and scope and self._crowd[scope] <= 1 and clean not in self._by_path else home

    def _module_path(self, scope: Path, role: str, home: Path | None) -> tuple[Path, bool]:
        if home is not None:
            home = tuple(module_part(p) for p in home)
            if home not in self._by_path:
                return home, True
        clean = tuple(module_part(p) for p in scope)
        if clean and self._crowd[scope] <= 1 and clean not in self._by_path:
            return clean, True
        return (*clean, role), False

    def _named_path(self, source: Source) -> Path | None:
        """The dotted name of the one tensor that a source is made of, as a path; None if it has none.

        The legacy exporter stores equal tensors once, and gives the others their names by Identity nodes (`label`).
        """
        if len(source.names) != 1:
            return None
        return param_path(source.label) if source.label and param_path(source.label) else param_path(source.names[0])

    # parameters and buffers

    def parameter(self, b: Any, value: ir.Value) -> ast.expr:
        """A trainable tensor that no module takes: a parameter of its own."""
        name = value.name or "weight"
        if name in self._weights:
            member, key = self._weights[name]
            return ast.Attribute(MemberRef(member), key, ast.Load())
        if value not in self._parameters:
            tensor = stored(value)
            assert tensor is not None
            path, named = self._parameter_path(b.scope, name, role(b.node))
            source = Source.of(tensor, name)
            build = initial(source, b.node, value)
            self._parameters[value] = self._register(Member(path, build, "parameter", {"": source}, set(), named))
        return MemberRef(self._parameters[value])

    def _parameter_path(self, scope: Path, name: str, part: str) -> tuple[Path, bool]:
        found = param_path(name)
        if found is not None:
            path = tuple(module_part(p) for p in found)
            if path not in self._by_path:
                return path, True
        clean = tuple(module_part(p) for p in scope)
        if _NOISE.match(name) or "/" in name:
            return (*clean, part), False
        return (*clean, module_part(identifier(name.split(".")[-1].split(":")[0]))), False

    def buffer(self, scope: Path, array: NDArray[Any], hint: str, dtype: ir.DataType) -> ast.expr:
        """A constant tensor as a non-persistent buffer; equal ones in one scope are one buffer."""
        content = array.tobytes() if array.nbytes <= 4096 else id(array)
        identity = (scope, dtype, array.shape, content)
        if identity not in self._buffers:
            clean = tuple(module_part(p) for p in scope)
            made = tensor_literal(array, dtype, CPU)
            member = Member((*clean, _buffer_name(hint)), made or ast.Constant(None), "buffer", {}, set(), False)
            if made is None:
                self._large[id(member)] = array  # its expression follows in `finish`, when it has its name
            self._buffers[identity] = self._register(member), array
        return MemberRef(self._buffers[identity][0])

    def named_buffer(self, value: ir.Value) -> ast.expr:
        """A stored tensor that is not trained but has a name of its own: a buffer that the state dict keeps."""
        if value not in self._parameters:
            tensor, name = stored(value), value.name or ""
            assert tensor is not None
            path = tuple(module_part(p) for p in param_path(name) or (name,))
            source = Source.of(tensor, name)
            build = tensor_literal(tensor.numpy(), source.dtype, CPU) or ast.Constant(None)  # its key follows
            named = path not in self._by_path
            self._parameters[value] = self._register(Member(path, build, "buffer", {"": source}, set(), named))
        return MemberRef(self._parameters[value])

    def _register(self, member: Member) -> Member:
        if member.named:
            self._by_path[member.path] = member
        for key, source in member.keys.items():
            if key and len(source.shape) >= 2 and source.is_identity:
                self._weights.setdefault(source.names[0], (member, key))
        self.members.append(member)
        return member

    # the end

    def finish(self, body: list[Statement], outputs: list[ast.expr]) -> list[Member]:
        """The members that the code uses, with their final names."""
        trees = [*(e for s in body for e in expressions(s)), *outputs]
        used = {id(n.member) for tree in trees for n in walk(tree) if isinstance(n, MemberRef)}
        members = [m for m in self.members if id(m) in used]
        settle(members)
        taken = {member.path[0] for member in members}
        while self.prefix[:-1] in taken:
            self.prefix = "_" + self.prefix
        for member in members:
            key = ".".join(member.path)
            if id(member) in self._large:
                key = self.prefix + key
                self.constants[key] = self._large[id(member)]
            if _is_to_be_read(member):
                member.build = quote("constant(k)", k=key)
        return members

    def ties(self, members: list[Member]) -> list[Tie]:
        """Stored matrices that are a weight in two places.

        Not those that the file names apart: the legacy exporter stores equal tensors once, and names each by Identity.
        """
        first: dict[Source, tuple[Member, str, str]] = {}
        pairs = []
        for member in members:
            for key, source in member.keys.items():
                if len(source.shape) < 2:
                    continue
                kept, kept_key, label = first.setdefault(source, (member, key, source.label))
                if kept is not member and label == source.label:
                    pairs.append(Tie(kept, kept_key, member, key))
        return pairs


def is_named_buffer(value: ir.Value) -> bool:
    """A stored tensor with a parameter's name that the original's state dict had too: a persistent buffer.

    The legacy exporter names only what is in the state dict; the dynamo exporter records what is not.
    """
    path = param_path(value.name or "")
    return (
        path is not None
        and len(path) > 1
        and stored(value) is not None
        and value.metadata_props.get("pkg.torch.export.graph_signature.InputSpec.persistent") != "False"
    )


def _is_to_be_read(member: Member) -> bool:
    """A buffer too large for source: its expression is written when it has its name."""
    return member.kind == "buffer" and isinstance(member.build, ast.Constant)


def _is_weight(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) > 0


def _buffer_name(hint: str) -> str:
    last = re.split(r"[./]", hint)[-1]
    return (
        "constant"
        if not last or _NOISE.match(hint) or "/" in hint or "output" in last.lower()
        else module_part(identifier(last))
    )
