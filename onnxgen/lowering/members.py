"""The members that `__init__` registers (submodules, parameters and buffers), and their names.

Names come from the file: first the parameter's own name (`layer1.0.conv1.weight`), then the scope of its node, then its
role (`conv1`, `fc2`). So `state_dict` keys are the original ones if the file still has them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.module_def import Member, Statement, User, expressions, is_rounding
from onnxgen.code.quote import MemberRef, call, members, quote, unless
from onnxgen.common.names import ModulePath, identifier, module_part, unscoped
from onnxgen.graph.annotations import CLASSES, KEPT, is_trained
from onnxgen.lowering.constants import share_beginnings, written, written_text
from onnxgen.lowering.member_paths import settle
from onnxgen.lowering.parameter import (
    INTEGERS,
    NOISE,
    ParameterPaths,
    initial,
    is_repeated,
    is_table,
    role,
    role_in_integers,
    vector,
)
from onnxgen.lowering.sharing import Sharing
from onnxgen.options import Options
from onnxgen.passes.broadcasts import broadcasts_itself
from onnxgen.passes.regular import name_of
from onnxgen.passes.roles import is_function_name
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import is_alias, siblings
from onnxgen.weights.dtypes import WIDER
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import Copied, is_uniform, note_copy, stored, viewed_from

COUNTED = re.compile(r"[A-Za-z]\d+")  # `v96`: a letter and a count say nothing


class Members:
    """The members of one network, while it is lowered.

    Attributes:
        constants: arrays too large for source, by their key in the sidecar.
        prefix: of these keys.
        sharing: which members are one parameter.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self.options = options
        self.constants: dict[str, NDArray[Any]] = {}
        self.prefix = "constants."
        self.members: list[Member] = []
        self._by_path: dict[ModulePath, Member] = {}
        # by how they are made, each with the scope that asked first
        self._modules: dict[tuple[Any, ...], list[tuple[ModulePath, Member]]] = {}
        self._parameters: dict[tuple[Any, ...], list[tuple[ModulePath, Member]]] = {}
        # whole tensors of rank 2 or more that are a module's weight, by their ONNX name
        self._weights: dict[str, tuple[Member, str]] = {}
        # the array is kept alive, since the key has the `id` of a large one
        self._buffers: dict[tuple[Any, ...], Member] = {}
        self.written: dict[int, tuple[ir.DataType, tuple[int, ...]]] = {}  # dtype and shape of buffers in source, by id
        self._large: dict[int, NDArray[Any]] = {}  # arrays for the sidecar, by the `id` of their member
        self._shapes: dict[int, tuple[int, ...]] = {}  # of strings, which are JSON in the sidecar
        self.sharing = Sharing(model, options)
        self._frozen = {v.name or "" for v in stored_values(model.graph) if not is_trained(v)}
        self._paths, self._classes = ParameterPaths(model.graph), CLASSES.get(model)

    # modules

    def module(
        self, scope: ModulePath, role: str, build: ast.expr, sources: dict[str, Source], users: Mapping[str, User],
        known_home: ModulePath | None = None,
    ) -> MemberRef | None:  # fmt: skip
        """Return the submodule with these tensors, always the same one. `known_home`: see `Builder.module_at`."""
        own = {key: s for key, s in sources.items() if not is_rounding(key)}
        is_layer = bool(own) or not sources  # otherwise it only quantises a layer's input or result
        home, elsewhere = self._home(scope, own) if known_home is None else (known_home or None, False)
        identity = self._identity(scope, role, build, sources, home)
        # a layer without tensors has a scope of its own if it is a module, which may be called several times
        is_one = bool(sources) or (bool(scope) and not self._paths.crowd.get(scope))
        known = self._known(self._modules.setdefault(identity, []), scope, own.values()) if is_one else None
        if known is not None:
            return _used(known, users)
        if elsewhere:
            return None
        home = None if home is None else self._own_scope(scope, home, sources.values())
        path, named = self._module_path(scope, role, home, is_layer)
        frozen = {key for key, s in sources.items() if self._frozen.issuperset(s.names)}
        member = self._register(Member(path, build, "module", dict(sources), frozen, named))
        member.scope = scope
        if is_one:
            self._modules[identity].append((scope, member))
        return _used(member, users)

    def _identity(
        self, scope: ModulePath, role: str, build: ast.expr, sources: dict[str, Source], home: ModulePath | None
    ) -> tuple[Any, ...]:
        """Return what is equal for calls that may be of one module."""
        labels = tuple((key, source, source.label) for key, source in sorted(sources.items(), key=lambda i: i[0]))
        # untrained norms are all equal, and several modules may share a weight, each with its own name
        is_alone = home is not None and is_alias(scope, home) and self._paths.is_alone(scope)
        apart = is_alone or all(len(s.shape) < 2 for s in sources.values())
        kind = role.rpartition("_")[2]  # in one table, ids of several kinds may be looked up
        return kind, ast.dump(build), labels, scope if apart else ()

    def _home(self, scope: ModulePath, sources: dict[str, Source]) -> tuple[ModulePath | None, bool]:
        """Return the module path in the tensors' names, and whether a name contradicts being this module's.

        A weight `fc.weight` makes it `fc`. `attn.in_proj_weight` cannot be a module's `weight`, so it stays a parameter
        of that name. If the names disagree the first tensor's counts, since exporters share equal biases.
        """
        homes: list[ModulePath] = []
        is_elsewhere = False
        for i, (key, source) in enumerate(sources.items()):
            path = self._paths.source_path(source, scope)
            if path is None:
                continue
            home = path[: -1 - key.count(".")]
            if i == 0 and _ends(path, key):
                # its other tensors may have any name: dynamo names a folded norm's bias `x.weight_bias`
                return home or None, False
            if not self._paths.is_vague(source):
                is_elsewhere |= not _ends(path, key)
                homes += [home] if home else []
        return (None, True) if is_elsewhere else (next(iter(homes), None), False)

    def _own_scope(self, scope: ModulePath, home: ModulePath, sources: Iterable[Source]) -> ModulePath:
        """Return the path of a user of a tied weight: the first has its name, another the scope of its node."""
        if self._paths.shared.isdisjoint(name for s in sources for name in s.names) and not is_alias(scope, home):
            return home
        is_free = bool(scope) and self._paths.is_alone(scope) and _cleaned(scope) not in self._by_path
        return scope if is_free else home

    def _module_path(
        self, scope: ModulePath, role: str, home: ModulePath | None, is_layer: bool
    ) -> tuple[ModulePath, bool]:
        if home is not None:
            home = _cleaned(home)
            if home not in self._by_path:
                return home, True
        clean = _cleaned(scope)
        if is_layer and clean and self._paths.is_alone(scope) and clean not in self._by_path:
            return clean, True
        return (*clean, role), False

    # parameters and buffers

    def parameter(
        self, arg: Any, label: str = "", transposed: bool = False, shape: tuple[int, ...] | None = None
    ) -> ast.expr:
        """Return a trainable tensor that is in no module, as a parameter of its own.

        Args:
            arg: the operator's input that it is (a `lowering.arg.Arg`).
            label: its name in the original network, if known.
            transposed: the exporter folded a transposition of the parameter.
            shape: its shape before the exporter folded axes of size 1 in.
        """
        node, value = arg.builder.node, arg.value
        label = label or viewed_from(value)
        if not transposed and (of_layer := self._of_layer(arg, label)) is not None:
            return of_layer
        tensor = stored(value)
        assert tensor is not None
        dims = tuple(tensor.shape.numpy())
        axes = None if transposed or shape is not None else vector(node, value, dims)
        shape = axes or shape
        rows = dims[0] if shape is None and not transposed and is_repeated(value) else 1
        reference = self._own_parameter(arg, label, transposed, shape, rows)
        if rows > 1 and not broadcasts_itself(node, value):
            return call(quote("p.expand", p=reference), rows, *[-1] * (len(dims) - 1))
        return reference if axes is None else _viewed(reference, dims)

    def _own_parameter(
        self, arg: Any, label: str, transposed: bool, shape: tuple[int, ...] | None, rows: int
    ) -> ast.expr:
        """Return a parameter as it is stored; `rows`: how many equal rows the file has of it."""
        scope, value, tensor = arg.builder.scope, arg.value, stored(arg.value)
        assert tensor is not None
        source = Source.of(tensor, value.name or "weight")
        is_merged = is_uniform(tensor) and not self._paths.is_exact(label)
        identity = (value, transposed, shape, label, scope if is_merged else ())
        candidates = self._parameters.setdefault(identity, [])
        member = self._known(candidates, scope, [source])
        if member is None:
            source = replace(source.transpose() if transposed else source, label=label)
            source = source.reshape(shape) if shape is not None else source
            member, key = self._new_parameter(arg, source, rows, is_merged)
            if key:
                return ast.Attribute(_used(member, {key: _user(arg)}), key, ast.Load())
            candidates.append((scope, member))
        return _used(member, {"": _user(arg)})

    def _of_layer(self, arg: Any, label: str) -> ast.expr | None:
        """Return a tensor as that of a layer which has it, unless its name is another's."""
        member, key = self._weights.get(arg.value.name or "weight", (None, ""))
        if member is None:
            return None
        path, own = self._paths.path(arg.value.name or "weight", label, arg.builder.scope), (*member.path, key)
        if path is not None and path != own and (label or siblings(path, own)):
            return None
        return ast.Attribute(_used(member, {key: _user(arg)}), key, ast.Load())

    def _new_parameter(self, arg: Any, source: Source, rows: int, is_merged: bool) -> tuple[Member, str]:
        """Register a parameter, or the embedding whose weight it is. Returns the member and its key."""
        b, (name,) = arg.builder, source.names
        known_as = "/" if rows > 1 else name  # an exporter calls what it has expanded after the function
        path, named = self._parameter_path(b.scope, known_as, source.label, role(b.node, arg.value), is_merged)
        if rows > 1:
            count = math.prod(source.shape[1:])
            source = source.slice(0, 0, 1)
            note_copy(arg.value, [Copied(name, row * count) for row in range(1, rows)])
        if named and self._is_no_class(path[:-1]) and is_table(path, source, b.node):
            build = quote("nn.Embedding(n, d)", n=source.shape[0], d=source.shape[1])
            return self._register(Member(path[:-1], build, "module", {path[-1]: source}, set(), True)), path[-1]
        build = initial(source, b.node, arg.value)
        member = self._register(Member(path, build, "parameter", {"": source}, set(), named))
        member.scope = b.scope
        return member, ""

    def _is_no_class(self, path: ModulePath) -> bool:
        """Return True if the exporter recorded classes but none here, so that nothing was computed in this module."""
        return bool(self._classes) and path not in self._classes and self._paths.is_alone(path)

    def _parameter_path(
        self, scope: ModulePath, name: str, label: str, part: str, is_merged: bool
    ) -> tuple[ModulePath, bool]:
        """`is_merged`: tensors of several layers may have been merged, so only the last part of the name is right."""
        told_path = self._paths.path(name, label, scope)
        clean = _cleaned(scope)
        if told_path is not None:
            path = _cleaned(told_path)
            depth = min(len(clean), len(path) - 1)
            if is_merged and path[:depth] != clean[:depth]:
                return (*clean, path[-1]), False
            if path not in self._by_path:
                return path, True
        if self._paths.is_noise(name, scope) or "/" in name:
            return (*clean, part), False
        return (*clean, module_part(identifier(unscoped(name).split(".")[-1].split(":")[0]))), False

    def buffer(self, scope: ModulePath, array: NDArray[Any], hint: str, dtype: ir.DataType) -> ast.expr:
        """Return a constant tensor as a non-persistent buffer. Equal constants in one scope share a buffer."""
        if dtype in WIDER and WIDER[dtype].is_floating_point():
            array, dtype = array.astype(np.float32), ir.DataType.FLOAT
        identity = (scope, dtype, array.shape, hashlib.sha256(array.tobytes()).digest())
        if identity not in self._buffers:
            expression = written(array, dtype)
            name = _buffer_name("" if self._paths.is_noise(hint, scope) else hint, array)
            name = "weight" if name == "constant" and dtype in INTEGERS and array.ndim > 1 else name
            member = Member((*_cleaned(scope), name), expression or ast.Constant(None), "buffer", named=False)
            if expression is None:
                self._large[id(member)] = array  # `finish` makes the expression, which needs the final name
            else:
                self.written[id(member)] = dtype, array.shape
            self._buffers[identity] = self._register(member)
        return MemberRef(self._buffers[identity])

    def texts(self, scope: ModulePath, array: NDArray[Any], hint: str) -> ast.expr:
        """Return strings, written out if there are few, else as an attribute that is read from the sidecar."""
        items = [t.decode("utf-8", "replace") if isinstance(t, bytes) else str(t) for t in array.reshape(-1)]
        expression = written_text(items, array.shape)
        if expression is not None:
            return expression
        identity = (scope, ir.DataType.STRING, array.shape, tuple(items))
        if identity not in self._buffers:
            name = _buffer_name("" if self._paths.is_noise(hint, scope) else hint)
            member = Member((*_cleaned(scope), name), ast.Constant(None), "text", named=False)
            self._large[id(member)] = np.frombuffer(json.dumps(items).encode(), np.uint8)
            self._shapes[id(member)] = array.shape
            self._buffers[identity] = self._register(member)
        return MemberRef(self._buffers[identity])

    def stored_buffer(self, arg: Any) -> ast.expr:
        """Return a stored tensor that is not trained as a buffer of the state dict, whose name the file may tell.

        A weight in integers begins as zeros, as parameters begin as drawn numbers: loading fills both.
        """
        scope, value = arg.builder.scope, arg.value
        candidates = self._parameters.setdefault((value,), [])
        member = self._known(candidates, scope)
        if member is None:
            tensor, name = stored(value), value.name or ""
            assert tensor is not None
            source, told_path = Source.of(tensor, name), self._paths.path(name, "", scope)
            build = written(tensor.numpy(), source.dtype, is_loaded=True) or ast.Constant(None)  # see `finish`
            if known_as := role_in_integers(value):
                begin = "torch.ones" if known_as == "scale" else "torch.zeros"
                build = call(begin, *(source.shape or ((),)), dtype=unless(source.dtype, ir.DataType.FLOAT))
            if KEPT.get(value):
                known_as = _last_word(name)
            path = _cleaned(told_path or ((*scope, known_as) if known_as else (name,)))
            named = (told_path is not None or not known_as) and path not in self._by_path
            member = self._register(Member(path, build, "buffer", {"": source}, set(), named))
            candidates.append((scope, member))
        return _used(member, {"": _user(arg)})

    def _known(
        self, candidates: list[tuple[ModulePath, Member]], scope: ModulePath, sources: Iterable[Source] = ()
    ) -> Member | None:
        """Return the member that was made for this scope, or for another that is no sibling and may have the same."""
        for other, member in candidates:
            if not siblings(other, scope) and not self.sharing.apart(sources, other, scope):
                return member
        return None

    def _register(self, member: Member) -> Member:
        if member.named:
            self._by_path[member.path] = member
        for key, source in member.keys.items():
            if key and len(source.shape) >= 2 and source.is_identity:
                self._weights.setdefault(source.names[0], (member, key))
        self.members.append(member)
        return member

    # the end

    def share(self, body: list[Statement]) -> None:
        """Let one table stand for those that begin it."""
        share_beginnings(body, self.members, self._large)

    def read_inside(self, body: list[Statement], outputs: list[ast.expr]) -> list[ast.expr]:
        """Let parameters that are a layer's own tensor be read from the layer. Returns the outputs."""
        return self.sharing.read_inside(self._used(body, outputs), body, outputs)

    def _used(self, body: list[Statement], outputs: list[ast.expr]) -> list[Member]:
        trees = [*(e for s in body for e in expressions(s)), *outputs]
        used = {id(member) for tree in trees for member in members(tree)}
        return [m for m in self.members if id(m) in used]

    def finish(self, body: list[Statement], outputs: list[ast.expr]) -> list[Member]:
        """Return the members that the code uses, with their final names."""
        members = self._used(body, outputs)
        members = [*self._holders(members), *members]
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
            elif member.kind == "text":
                member.build = quote("read_texts(constant(k), s)", k=key, s=self._shapes[id(member)])
        return members

    def _holders(self, members: list[Member]) -> list[Member]:
        """Return modules without calls that have the original name of another module's weight, such as T5's `shared`,
        whose weight is also that of `encoder.embed_tokens`.
        """
        keys = {(*member.path, key) for member in members for key in member.keys}
        holders: dict[ModulePath, Member] = {}
        for member in members:
            for key, source in member.keys.items() if member.kind == "module" and len(member.keys) == 1 else ():
                path = _cleaned(self._paths.path(source.names[0], "", ()) or ())
                if len(source.shape) < 2 or not source.is_identity or source.label or path[-1:] != (key,):
                    continue
                if path not in keys and path[:-1] not in self._by_path and len(path) > 1:
                    copy = Member(path[:-1], member.build, "module", {key: source}, set(member.frozen), True)
                    holders.setdefault(path, copy)
        return list(holders.values())


def _last_word(name: str) -> str:
    """Return the last word of a path that is none of a module, "" for the name of one of the root's buffers."""
    words = [part for part in name.split(".") if not part.isdigit()]
    return (words or ["constant"])[-1] if "." in name else ""


def _ends(path: ModulePath, key: str) -> bool:
    """Return True if a path ends with a key of a layer, which may have dots."""
    return path[-1 - key.count(".") :] == tuple(key.split("."))


def _viewed(tensor: ast.expr, dims: tuple[int, ...]) -> ast.expr:
    return call(quote("p.view", p=tensor), *(d if d == 1 else -1 for d in dims))


def _used(member: Member, users: Mapping[str, User]) -> MemberRef:
    """Return the member, and record the users of its tensors."""
    for key, user in users.items():
        member.users.setdefault(key, []).append(user)
    return MemberRef(member)


def _user(arg: Any) -> User:
    node, index = arg.builder.node, arg.index
    return node, tuple(i for i, v in enumerate(node.inputs) if v is arg.value) if index is None else (index,)


def is_named_buffer(value: ir.Value) -> bool:
    """Return True for a stored tensor that was a persistent buffer of the original network."""
    return KEPT.get(value) and stored(value) is not None


def _is_to_be_read(member: Member) -> bool:
    """Return True for a buffer too large for source, whose expression needs its final name."""
    return member.kind == "buffer" and isinstance(member.build, ast.Constant)


def _buffer_name(hint: str, array: NDArray[Any] | None = None) -> str:
    hint = unscoped(hint)
    last = re.split(r"[./]", hint)[-1]
    is_noise = not last or NOISE.match(hint) or "/" in hint or "output" in last.lower() or COUNTED.fullmatch(last)
    says_nothing = is_noise or last == "constant" or ":" in last or is_function_name(last)  # "y:3": a pass made it
    if array is not None and says_nothing and (name := name_of(array)):
        return name
    return "constant" if is_noise else module_part(identifier(last))


def _cleaned(path: ModulePath) -> ModulePath:
    """Make every part of a path a valid attribute name."""
    return tuple(map(module_part, path))
