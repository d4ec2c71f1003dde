"""Chooses the final path of each member of the module, so that no two conflict.

A file may name one tensor `a.weight` and another `a.weight.bias`, or use `a.bias` elsewhere although the layer `a` has
no bias. In a tree of modules a tensor has no children, and an attribute of a layer belongs to the layer. So one of the
two names gets an underscore.
"""

from __future__ import annotations

import ast
from collections import Counter

from onnxgen.code.module_def import Member
from onnxgen.common.names import ModulePath

# Attributes that torch's layers read when they are called. A list, since generating never imports torch; a test
# compares it with the layers that operators use.
_LAYER_ATTRIBUTES = """
    weight bias in_features out_features in_channels out_channels kernel_size stride padding dilation transposed
    output_padding groups padding_mode eps momentum affine track_running_stats num_features running_mean running_var
    num_batches_tracked normalized_shape elementwise_affine num_groups num_channels num_parameters num_embeddings
    embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse mode input_size hidden_size num_layers
    batch_first dropout bidirectional proj_size all_weights flatten_parameters init nonlinearity embed_dim kdim vdim
    num_heads head_dim bias_k bias_v add_zero_attn in_proj_weight in_proj_bias out_proj merge_masks
    """
LAYER_ATTRIBUTES: frozenset[str] = frozenset(_LAYER_ATTRIBUTES.split())

# Those of composite layers, besides.
_IN_LAYERS = "self_attn linear1 linear2 dropout norm1 norm2 dropout1 dropout2 activation norm_first"
COMPOSITE_ATTRIBUTES = {
    "TransformerEncoderLayer": f"{_IN_LAYERS} activation_relu_or_gelu",
    "TransformerDecoderLayer": f"{_IN_LAYERS} multihead_attn norm3 dropout3",
    "TransformerEncoder": "layers num_layers norm enable_nested_tensor use_nested_tensor mask_check",
    "TransformerDecoder": "layers num_layers norm",
    "Transformer": "encoder decoder d_model nhead",
}


def attributes_of(member: Member) -> frozenset[str]:
    """Return the names that a layer gives a meaning; others may lie in it."""
    build = member.build
    name = build.func.attr if isinstance(build, ast.Call) and isinstance(build.func, ast.Attribute) else ""
    own = COMPOSITE_ATTRIBUTES.get(name)
    return LAYER_ATTRIBUTES if own is None else LAYER_ATTRIBUTES | {*own.split()}


def settle(members: list[Member]) -> None:
    """Give every member its final path: first those named by the file, then `conv`, or `conv1`, `conv2`, ..."""
    places = Places()
    for member in sorted((m for m in members if m.named), key=lambda m: m.kind != "module"):
        member.path = places.near(member)
        places.take(member)
    modules = {m.path for m in members if m.named and m.kind == "module"}
    _settle_roles([m for m in members if not m.named], modules, places)


def _settle_roles(unnamed: list[Member], modules: set[ModulePath], places: Places) -> None:
    """Number the members that have a role instead of a name. `modules`: those named by the file."""
    for member in unnamed:
        while not modules.isdisjoint(_around(member.path)):
            member.path = (*member.path[:-2], member.path[-1])
    places.inner.update(path for m in unnamed for path in _around(m.path))
    counts = Counter(m.path for m in unnamed)
    turn: Counter[ModulePath] = Counter()
    for member in unnamed:
        base = member.path
        while (counts[base] > 1 and member.path == base) or not places.is_free(member, member.path):
            turn[base] += 1
            member.path = (*places.clear(base[:-1]), f"{base[-1]}{turn[base]}")
        places.take(member)


def _around(path: ModulePath) -> list[ModulePath]:
    return [path[:n] for n in range(1, len(path))]


class Places:
    """The paths that are in use.

    Attributes:
        tensors: parameters and buffers, those of layers included.
        modules: layers, each with the names that it gives a meaning.
        inner: paths that have children.
    """

    def __init__(self) -> None:
        self.tensors: set[ModulePath] = set()
        self.modules: dict[ModulePath, frozenset[str]] = {}
        self.inner: set[ModulePath] = set()

    def take(self, member: Member) -> None:
        tensors = _tensors(member, member.path)
        self.tensors.update(tensors)
        if member.kind == "module":
            self.modules[member.path] = attributes_of(member)
        self.inner.update(around for path in (member.path, *tensors) for around in _around(path))

    def is_free(self, member: Member, path: ModulePath) -> bool:
        """Return True if a member can have this path."""
        if path in self.modules or path in self.tensors or self.clear(path[:-1]) != path[:-1]:
            return False
        if path[-1] in self.modules.get(path[:-1], ()):
            return False
        if member.kind != "module":
            return path not in self.inner
        if path not in self.inner:
            return True
        own = ((*path, name) for name in attributes_of(member))
        return not any(p in self.tensors or p in self.inner for p in own)

    def clear(self, path: ModulePath) -> ModulePath:
        """Rename the modules on a path that are tensors or attributes of a layer."""
        for n in range(1, len(path) + 1):
            while path[:n] in self.tensors or path[n - 1] in self.modules.get(path[: n - 1], ()):
                path = (*path[: n - 1], _other(path[n - 1]), *path[n:])
        return path

    def near(self, member: Member) -> ModulePath:
        """Return the path most like the member's own that it can have."""
        path = (*self.clear(member.path[:-1]), member.path[-1])
        while not self.is_free(member, path):
            path = (*path[:-1], _other(path[-1]))
        return path


def _other(name: str) -> str:
    return f"part_{name}" if name.isdigit() else f"{name}_"


def _tensors(member: Member, path: ModulePath) -> list[ModulePath]:
    if member.kind != "module":
        return [path]
    return [(*path, *key.split(".")) for key in (*member.keys, *member.extra)]
