"""What a network does while it is trained, which no drawn input shows: claims are computed as in evaluation.

Layers that behave otherwise in training neither come nor go: norms of a batch, and whatever draws random numbers. The
one exception is `--restore-batchnorm`, whose norms are the identity.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.paranoid.picture import RANDOM, Made, Picture

NORM = "BatchNormalization"
DROPS = frozenset("Dropout BitmaskDropout BiasDropout BitmaskBiasDropout StochasticDepth".split())
STACKS = ("recurrent",)  # passes that make one layer of several, which has the drops between them
ADDS = ("restore_batchnorm",)
EPSILON = 1e-5
FOLDED = re.compile(r"onnx::Conv(Transpose)?_\d+|.+\.weight_bias|.*_fused_bn")  # what exporters call what they folded
TOLD = re.compile(rf"{FOLDED.pattern}|\d+")
HIERARCHY = "pkg.torch.onnx.class_hierarchy"
CONVOLUTIONS = ("Conv", "ConvTranspose")
IDENTITY = ("scale", 1.0), ("", 0.0), ("mean", 0.0), ("variance", 1.0 - EPSILON)  # of channels; the bias is the layer's


def untrue(name: str, model: ir.Model, options: Options, before: Picture, after: Picture) -> str:
    """What is wrong about training after a pass; "" if nothing is."""
    old, new = Counter(_kinds(before)), Counter(_kinds(after))
    for kind in old | new:
        fewer = name in STACKS and kind == "drop" and 0 < new[kind] <= old[kind]
        more = name in ADDS and kind == NORM and options.restore_batchnorm and new[kind] >= old[kind]
        if old[kind] != new[kind] and not fewer and not more:
            what = "norms of a batch" if kind == NORM else "nodes that drop elements or draw random numbers"
            return f"there were {old[kind]} {what}, and are {new[kind]}"
    norms = [made for node, made in after.nodes.items() if made.op == NORM and node not in before.nodes]
    if name not in ADDS:
        return ""
    if options.restore_batchnorm and "restored" not in model.meta:
        return "no norm was looked for, though it was asked for"
    wrong = (_wrong_norm(after, made) for made in norms)
    return next(filter(None, (*wrong, *_wrong_folds(model, after), *_forgotten(before, after))), "")


def _kinds(picture: Picture) -> Iterator[str]:
    """The layers that behave otherwise in training, of those that something depends on."""
    live = {value for _, outputs in picture.graphs.values() for value in outputs}
    for made in reversed(picture.nodes.values()):
        if live.isdisjoint(made.outputs) and not made.bodies:
            continue
        live.update(v for v in made.inputs if v is not None)
        if made.op == NORM:
            yield NORM
        elif made.op in RANDOM or _drops(picture, made):
            yield "drop"


def _drops(picture: Picture, made: Made) -> bool:
    """Whether a node drops elements of what depends on the network's inputs or trained tensors."""
    ratio = next((made.attributes[n].value for n in ("ratio", "dropout", "p") if n in made.attributes), None)
    if made.op not in DROPS and not ("dropout" in made.attributes and ratio):
        return False
    return ratio != 0 and any(v in picture.moving for v in made.inputs if v is not None)


# ---- norms that were put back ----------------------------------------------------------------------------------------


def _wrong_norm(picture: Picture, made: Made) -> str:
    """A norm that was put back stands behind a convolution, has a number for each of its channels, and is the identity
    beside its bias."""
    x, *tensors = made.inputs
    conv = picture.maker[x][0] if x in picture.maker else None
    if x is None or conv is None or conv.op not in CONVOLUTIONS or conv.domain:
        return f"the norm {made.name} stands behind no convolution"
    weight = conv.inputs[1]
    size = None if weight is None else picture.facts[weight].shape
    axis, groups = _channels(conv)
    channels = None if size is None or not isinstance(size[axis], int) else size[axis] * groups
    epsilon = float(made.attributes["epsilon"].value) if "epsilon" in made.attributes else EPSILON
    if not np.isclose(epsilon, EPSILON):
        return f"the norm {made.name} has the epsilon {epsilon}"
    for (what, number), value in zip(IDENTITY, tensors):
        tensor = None if value is None else picture.stored.get(value)
        if tensor is None or tuple(tensor.shape.numpy()) != (channels,):
            return f"the norm {made.name} has not one number for each of {channels} channels"
        if what and not np.allclose(np.asarray(tensor.numpy()).astype(np.float64), number, rtol=1e-2, atol=1e-6):
            return f"the norm {made.name} is not the identity: its {what} is not {number:g}"
    return ""


def _channels(conv: Made) -> tuple[int, int]:
    """The axis of a convolution's weight that is its output channels, and of how many groups these are."""
    if conv.op == "Conv":
        return 0, 1
    return 1, int(conv.attributes["group"].value) if "group" in conv.attributes else 1


def _wrong_folds(model: ir.Model, picture: Picture) -> Iterator[str]:
    """How each norm is folded again: along the output channels of the convolution that it is of."""
    for made in picture.nodes.values():
        weight = picture.names.get(made.inputs[1]) if made.op in CONVOLUTIONS and made.inputs[1] else None
        for norm in model.meta.get("restored", []):
            if norm.weight == weight and (norm.axis, norm.groups) != _channels(made):
                yield f"the norm of {weight} is folded along axis {norm.axis} in {norm.groups} groups"


def _forgotten(before: Picture, after: Picture) -> Iterator[str]:
    """The convolutions that surely had a norm, and got none.

    The file says so by a tensor's name. Or it says so of no layer, has no norm, and the convolution leads through one
    activation to nothing but another convolution.
    """
    users: dict[ir.Value, list[Made]] = {}
    for made in before.nodes.values():
        for value in made.inputs:
            users.setdefault(value, []).append(made) if value is not None else None
    outputs = {value for _, values in before.graphs.values() for value in values}
    is_told = any(map(_tells, before.nodes.values())) or any(TOLD.fullmatch(before.names[v]) for v in before.stored)
    has_norms = any("Normalization" in made.op for made in before.nodes.values())
    normed = {made.inputs[0] for made in after.nodes.values() if made.op == NORM}
    for conv in before.nodes.values():
        if not _may_be_folded(before, conv, users) or conv.outputs[0] in normed | outputs:
            continue
        names = [before.names[v] for v in conv.inputs[1:3] if v is not None]
        if any(FOLDED.fullmatch(name) for name in names) and not has_norms:
            yield f"the norm that {' and '.join(names)} hold is not put back"
        following = users.get(conv.outputs[0], [])
        inner = [user for made in following for user in users.get(made.outputs[0], [])]
        is_activated = [made.op for made in following] in (["Relu"], ["LeakyRelu"], ["Clip"])
        if is_activated and inner and not is_told | has_norms and all(made.op in CONVOLUTIONS for made in inner):
            if following[0].outputs[0] not in outputs:
                yield f"no norm is put behind {conv.name}"


def _tells(made: Made) -> bool:
    return "batch_norm" in made.node.metadata_props.get(HIERARCHY, "")


def _may_be_folded(picture: Picture, made: Made, users: Mapping[ir.Value, list[Made]]) -> bool:
    """Whether it is a convolution that alone has its weight, and has a bias, both of the file."""
    tensors = made.inputs[1:3]
    if made.op not in CONVOLUTIONS or made.domain or len(tensors) < 2 or None in tensors:
        return False
    return all(v in picture.stored for v in tensors) and len(users[tensors[0]]) == 1 and len(users[tensors[1]]) == 1  # type: ignore[index]
