"""Check the behaviour of a network in training. Drawn inputs do not show it: claims are computed in evaluation mode.

A pass must neither add nor remove layers that behave differently in training: batch norms, and layers that draw random
numbers. The one exception is `--restore-batchnorm`, whose norms are the identity.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import RESTORED, SCOPE
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.traits import CONVOLUTION, PRODUCT, RECTIFIER, SAMPLES, VIEW
from onnxgen.options import Options
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info

NORM = "BatchNormalization"
NORMS = frozenset((NORM, "Standardize"))
DROPS = frozenset("Dropout BitmaskDropout BiasDropout BitmaskBiasDropout StochasticDepth".split())
UNLIKE = NORMS | DROPS  # operators that do something else in training
STACKS = ("recurrent", "transformer")  # passes that merge several layers into one, with the dropout between them
ADDS = ("restore_batchnorm",)
KNOWN = "known"  # puts in what no weight decides: a norm of which only the shape was used is gone then
EPSILON = 1e-5
# names that exporters give to folded tensors
FOLDED = re.compile(r"onnx::Conv(Transpose)?_\d+|.+\.weight_bias|.*_fused_bn")
NUMBERED = re.compile(rf"{FOLDED.pattern}|\d+")
HIERARCHY = "pkg.torch.onnx.class_hierarchy"
# parameters of an identity norm; its bias is the layer's
IDENTITY = ("scale", 1.0), ("", 0.0), ("mean", 0.0), ("variance", 1.0 - EPSILON)


def untrue(name: str, model: ir.Model, options: Options, before: Picture, after: Picture) -> str:
    """Describe what is wrong about training after a pass; "" if nothing is."""
    if name == KNOWN:
        return ""
    old, new = Counter(_kinds(before)), Counter(_kinds(after))
    for kind in old | new:
        fewer = name in STACKS and kind == "drop" and 0 < new[kind] <= old[kind]
        more = name in ADDS and kind == NORM and options.restore_batchnorm and new[kind] >= old[kind]
        if old[kind] != new[kind] and not fewer and not more:
            what = "norms of a batch" if kind == NORM else "nodes that drop elements or draw random numbers"
            return f"there were {old[kind]} {what}, and now there are {new[kind]}"
    norms = [made for node, made in after.nodes.items() if made.op == NORM and node not in before.nodes]
    if name not in ADDS:
        return ""
    if options.restore_batchnorm and RESTORED.get(model) is None:
        return "no norms were restored, although that was asked for"
    wrong = (_wrong_norm(after, made) for made in norms)
    return next(filter(None, (*wrong, *_wrong_folds(model, after), *_misplaced(model, before, after))), "")


def _kinds(picture: Picture) -> Iterator[str]:
    """Yield the used layers that behave differently in training."""
    if not any(made.is_random or made.op in UNLIKE or "dropout" in made.attributes for made in picture.nodes.values()):
        return  # most networks have none
    live = {value for _, outputs in picture.graphs.values() for value in outputs}
    for made in reversed(picture.nodes.values()):
        if live.isdisjoint(made.outputs) and not made.bodies:
            continue
        live.update(v for v in made.inputs if v is not None)
        if made.op in NORMS:
            yield NORM
        elif made.is_random or _drops(picture, made):
            yield "drop"


def _drops(picture: Picture, made: Made) -> bool:
    """Return True if a node drops elements that depend on the network's inputs or trained tensors."""
    ratio = next((made.attributes[n].value for n in ("ratio", "dropout", "p") if n in made.attributes), None)
    if made.op in DROPS and ratio is None and len(made.inputs) > 1:
        given = info(made.inputs[1]).constant
        ratio = None if given is None else float(given.reshape(-1)[0])
    if made.op not in DROPS and not ("dropout" in made.attributes and ratio):
        return False
    return ratio != 0 and any(v in picture.moving for v in made.inputs if v is not None)


# ---- norms that were put back ----------------------------------------------------------------------------------------


def _wrong_norm(picture: Picture, made: Made) -> str:
    """Describe what is wrong with a restored norm: it must follow a convolution, match its channels, and be the
    identity.
    """
    x, *tensors = made.inputs
    conv = picture.maker.get(x)
    if conv is None or not _slides(conv):
        return f"the norm {made.name} does not follow a convolution"
    weight = conv.inputs[1]
    size = None if weight is None else picture.facts[weight].shape
    axis, groups = _channels(conv)
    channels = None if size is None or not isinstance(size[axis], int) else size[axis] * groups
    epsilon = float(made.attribute("epsilon", EPSILON))
    if not np.isclose(epsilon, EPSILON):
        return f"the norm {made.name} has the epsilon {epsilon}"
    for (what, number), value in zip(IDENTITY, tensors):
        tensor = None if value is None else picture.stored.get(value)
        if tensor is None or tuple(tensor.shape.numpy()) != (channels,):
            return f"the norm {made.name} does not have one number for each of {channels} channels"
        if what and not np.allclose(np.asarray(tensor.numpy()).astype(np.float64), number, rtol=1e-2, atol=1e-6):
            return f"the norm {made.name} is not the identity: its {what} is not {number:g}"
    return "" if _tells(conv) else _misnamed(conv, made)


def _misnamed(conv: Made, norm: Made) -> str:
    """Describe a wrong name: beside `conv2` there must be `bn2`."""
    layer, found = (SCOPE.get(made.node) for made in (conv, norm))
    if layer == found or not layer or not found or layer[:-1] != found[:-1] or "conv" not in layer[-1]:
        return ""
    numbers = [re.findall(r"\d+", path[-1]) for path in (layer, found)]
    return "" if numbers[0] == numbers[1] else f"the norm of {'.'.join(layer)} is called {'.'.join(found)}"


def _slides(made: Made) -> bool:
    return is_a(made.node, PRODUCT) and is_a(made.node, SAMPLES)


def _channels(conv: Made) -> tuple[int, int]:
    """Return the output channel axis of a convolution's weight, and its number of groups."""
    return (0, 1) if is_a(conv.node, CONVOLUTION) else (1, int(conv.attribute("group", 1)))


def _wrong_folds(model: ir.Model, picture: Picture) -> Iterator[str]:
    """Yield norms that are not folded along the output channels of their convolution."""
    for made in picture.nodes.values():
        weight = picture.names.get(made.inputs[1]) if _slides(made) and made.inputs[1] else None
        for norm in RESTORED.get(model) or ():
            if norm.weight == weight and (norm.axis, norm.groups) != _channels(made):
                yield f"the norm of {weight} is folded along axis {norm.axis} in {norm.groups} groups"


def _misplaced(model: ir.Model, before: Picture, after: Picture) -> Iterator[str]:
    """Yield convolutions that certainly had a norm but got none, and those that got one but certainly had none.

    If the file marks any layer as having had a norm, the marked layers had one. If it marks none and has no norms, all
    convolutions had one except the last ones, which neither a layer nor an activation follows.
    """
    users: dict[ir.Value, list[Made]] = {}
    for made in before.nodes.values():
        for value in made.inputs:
            users.setdefault(value, []).append(made) if value is not None else None
    by_pytorch = model.producer_name in ("pytorch", "optimum-onnx") and any(
        param_path(before.names[v]) for v in before.stored
    )
    told = NUMBERED if by_pytorch else FOLDED
    is_told = any(map(_tells, before.nodes.values())) or any(told.fullmatch(before.names[v]) for v in before.stored)
    if any("Normalization" in made.op for made in before.nodes.values()):
        return
    normed = {made.inputs[0] for made in after.nodes.values() if made.op == NORM}
    for conv in before.nodes.values():
        if not _slides(conv):
            continue
        names = [before.names[v] for v in conv.inputs[1:3] if v is not None]
        had = any(FOLDED.fullmatch(name) for name in names) or not is_told and _is_inner(conv, users)
        if conv.outputs[0] in normed and not is_told and not had:
            yield f"a norm was added after {conv.name}, which is a last layer"
        if conv.outputs[0] not in normed and had and _may_be_folded(before, conv, users):
            yield f"no norm was added after {conv.name}"


def _tells(made: Made) -> bool:
    return "batch_norm" in made.node.metadata_props.get(HIERARCHY, "")


def _is_inner(conv: Made, users: Mapping[ir.Value, list[Made]]) -> bool:
    """Return True if a layer with a weight, or an activation, follows after nothing but sums and views."""
    todo, near, far = [(conv, True)], set[ir.Node](), set[ir.Node]()
    while todo:
        made, is_near = todo.pop()
        for user in (user for value in made.outputs for user in users.get(value, ())):
            is_layer = known(user.node).matrix is not None and user.op != "Gather"
            if is_layer or is_near and is_a(user.node, RECTIFIER):
                return True
            passes = is_near and (is_a(user.node, VIEW) or user.op in ("Add", "Cast"))
            seen = near if passes else far
            if user.node not in seen:
                seen.add(user.node)
                todo.append((user, passes))
    return False


def _may_be_folded(picture: Picture, conv: Made, users: Mapping[ir.Value, list[Made]]) -> bool:
    """Return True if weight and bias are the file's, and only calls of this convolution use the weight."""
    weight, bias = (*conv.inputs[1:3], None, None)[:2]
    if weight is None or bias is None or weight not in picture.stored or bias not in picture.stored:
        return False
    if any(weight in values for _, values in picture.graphs.values()):
        return False
    return all(_slides(user) and user.inputs[1:] == (weight, bias) for user in users[weight])
