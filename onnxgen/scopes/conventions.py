"""Module paths from the names that frameworks other than PyTorch give.

Keras, Paddle, MATLAB and their converters name a weight after its layer (`conv2_expand_weights`, `dense/kernel:0`,
`fc_0.w_0`, `conv_1_W`), and write groups of layers with underscores (`block_1_expand`, `block_1_project`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnxgen.common.names import ModulePath

_WEIGHT = re.compile(
    r"(?P<layer>[^A-Za-z]*[A-Za-z].*?)[_/.]"
    r"(weights?|(recurrent_|depthwise_|pointwise_)?kernel|embeddings|bias(es)?|offset|scale|gamma|beta|alpha"
    r"|((moving|running)_)?(mean|var|variance)|[WRBwb]|[wb]_\d+)"
    r"(_new|_?\d+)?"  # converters add this to a name that they change or have used before
)
_LAYER = re.compile(r"[A-Za-z0-9_\-/]+")
_MAX_LENGTH = 200


def layer_of(name: str, op_type: str) -> ModulePath | None:
    """Return the layer in the name of a weight of a node: `("fc_1",)` of `fc_1_MatMul_W`; None if there is none."""
    found = _WEIGHT.fullmatch(name.split(";")[0].split(":")[0]) if len(name) <= _MAX_LENGTH else None
    if found is None or not _LAYER.fullmatch(found["layer"]):
        return None
    parts = [part for part in found["layer"].removesuffix(f"_{op_type}").split("/") if part]
    return tuple(parts) or None


def regrouped(scopes: Iterable[ModulePath]) -> dict[ModulePath, ModulePath]:
    """Return new scopes for those of one file: without a common root, and with groups by the numbers in names.

    `model/block_1_expand` becomes `("block_1", "expand")` if at least two such groups, which differ only in that
    number, have at least two layers each.
    """
    known = {scope for scope in scopes if scope}
    shared = 1 if len(known) > 1 and len({scope[0] for scope in known}) == 1 else 0
    children: dict[ModulePath, set[str]] = {}
    for scope in known:
        for i in range(shared, len(scope)):
            children.setdefault(scope[:i], set()).add(scope[i])
    parts = {(parent, name): new for parent, names in children.items() for name, new in _groups(names).items()}
    return {
        scope: tuple(part for i in range(shared, len(scope)) for part in parts[scope[:i], scope[i]]) for scope in known
    }


def _groups(names: set[str]) -> dict[str, ModulePath]:
    """Return the names of siblings as paths, divided after their numbered beginnings."""
    members: dict[str, set[str]] = {}
    for name in names:
        for end in re.finditer(r"(?<=\d)_", name):
            members.setdefault(name[: end.start()], set()).add(name[end.end() :])
    alike: dict[str, list[str]] = {}
    for group, rests in members.items():
        if group not in names and len(rests) > 1 and not group.isdigit() and not any(r.isdigit() for r in rests):
            alike.setdefault(re.sub(r"\d+$", "#", group), []).append(group)
    groups = {group for found in alike.values() if len(found) > 1 for group in found}
    inner = {group: _groups(members[group]) for group in groups}
    made: dict[str, ModulePath] = {}
    for name in names:
        ends = (name[: end.start()] for end in re.finditer(r"(?<=\d)_", name))
        within = next((beginning for beginning in ends if beginning in groups), "")
        made[name] = (within, *inner[within][name[len(within) + 1 :]]) if within else (name,)
    return {name: (*path[:-1], _turned(path[-1])) for name, path in made.items()}


def _turned(name: str) -> str:
    """Return `conv_1` for `1_conv`, since an attribute cannot begin with a digit."""
    return re.sub(r"^(\d+)_(.+)$", r"\2_\1", name)
