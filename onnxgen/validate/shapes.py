"""The tensors of torch's layers: keys and shapes, derived from the arguments. Source: the pages of torch.nn."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from onnxgen.code.module_def import Member
from onnxgen.code.torch_api import PARAMETRISATIONS, SIGNATURES, function_of
from onnxgen.errors import OnnxgenError, WrongTranslation

Shapes = dict[str, tuple[int, ...]]
# arguments of layers: channels that must be a multiple of a number of groups
GROUPED = {
    **dict.fromkeys(("nn.Conv", "nn.ConvTranspose"), (("in_channels", "groups"), ("out_channels", "groups"))),
    "nn.GroupNorm": (("num_channels", "num_groups"),),
}


def hold_shapes(members: Sequence[Member]) -> None:
    """Check that every torch layer has the tensors that it registers, with their shapes.

    Raises:
        WrongTranslation: a tensor is missing, or in another form: the weights could not be loaded.
        OnnxgenError: a stored tensor has another shape than the layer's other tensors tell.
    """
    for member in members:
        _hold_groups(member)
        for key, wanted in registered(member.build).items():
            found = member.keys[key].shape if key in member.keys else None
            found = member.extra[key].shape if key in member.extra else found
            name = ".".join((*member.path, key))
            if found is None or (tuple(found) != wanted and math.prod(found) == math.prod(wanted)):
                there = "missing" if found is None else f"of shape {list(found)}"
                raise WrongTranslation(f"{name} is {there}, and should be {list(wanted)}")
            if tuple(found) != wanted:  # no reshape changes how many elements there are: so the file's tensors differ
                what = f"the tensors of a layer do not fit together: {name} has the shape {list(found)}"
                what += f", and {function_of(member.build)} takes {list(wanted)}"
                raise OnnxgenError(what, help="export the file again; if onnxruntime runs it, please report this")


def _hold_groups(member: Member) -> None:
    """Check that a layer's groups divide its channels. Raises `OnnxgenError`."""
    name = function_of(member.build)
    for channels, groups in GROUPED.get(name.rstrip("123d"), ()):
        given = arguments(member.build)
        if given is not None and given.get(channels, 0) % max(given.get(groups, 1), 1):
            what = f"the tensors of a layer do not fit together: {'.'.join(member.path)} is {name} with "
            what += f"{given[channels]} {channels} in {given[groups]} groups"
            raise OnnxgenError(what, help="export the file again; if onnxruntime runs it, please report this")


def arguments(build: ast.expr) -> dict[str, Any] | None:
    """Return the arguments that a layer is made with, by name; None if they are not all numbers and text."""
    if not isinstance(build, ast.Call):
        return None
    try:
        given = dict(zip(SIGNATURES[function_of(build)], map(ast.literal_eval, build.args)))
        options = {k.arg: k.value for k in build.keywords if k.arg not in ("dtype", "device")}
        return given | {str(key): ast.literal_eval(value) for key, value in options.items()}
    except (ValueError, KeyError):
        return None


def registered(build: ast.expr) -> Shapes:
    """Return the tensors that a layer registers; none if it is not in the table or its sizes are unknown."""
    name = function_of(build)
    if name in PARAMETRISATIONS and isinstance(build, ast.Call):
        return _weight_normed(build)
    rule = next((rule for names, rule in TENSOR_RULES.items() if name.rstrip("123d") in names.split()), None)
    if rule is None or not isinstance(build, ast.Call):
        return {}
    given = arguments(build)
    return {} if given is None else rule(name, given)


def _weight_normed(build: ast.Call) -> Shapes:
    """Return the tensors of a layer whose weight is made of its length and its direction."""
    layer = registered(build.args[0])
    given = {k.arg: ast.literal_eval(k.value) for k in build.keywords}
    if "weight" not in layer:
        return layer
    shape, place, dim = layer.pop("weight"), "parametrizations.weight", given.get("dim", 0)
    length = () if dim is None else tuple(n if axis == dim else 1 for axis, n in enumerate(shape))
    return layer | {f"{place}.original0": length, f"{place}.original1": shape}


def _with_bias(weight: tuple[int, ...], size: int, given: Mapping[str, Any]) -> Shapes:
    return {"weight": weight} | ({"bias": (size,)} if given.get("bias", True) else {})


def _linear(name: str, given: Mapping[str, Any]) -> Shapes:
    return _with_bias((given["out_features"], given["in_features"]), given["out_features"], given)


def _convolution(name: str, given: Mapping[str, Any]) -> Shapes:
    rank, kernel, groups = int(name[-2]), given["kernel_size"], given.get("groups", 1)
    sizes = (kernel,) * rank if isinstance(kernel, int) else tuple(kernel)
    first, second = given["out_channels"], given["in_channels"]
    channels = (second, first // groups) if "Transpose" in name else (first, second // groups)
    return _with_bias((*channels, *sizes), first, given)


def _norm(name: str, given: Mapping[str, Any]) -> Shapes:
    size = (given["num_channels" if "Group" in name else "num_features"],)
    affine = given.get("affine", "Instance" not in name)
    measures = given.get("track_running_stats", "Batch" in name)
    keys = ("weight", "bias") * affine + ("running_mean", "running_var") * (measures and "Group" not in name)
    return dict.fromkeys(keys, size)


def _last_axes(name: str, given: Mapping[str, Any]) -> Shapes:
    shape = given["normalized_shape"]
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    keys = ("weight", "bias") if given.get("bias", True) and "Layer" in name else ("weight",)
    return dict.fromkeys(keys, shape) if given.get("elementwise_affine", True) else {}


def _embedding(name: str, given: Mapping[str, Any]) -> Shapes:
    return {"weight": (given["num_embeddings"], given["embedding_dim"])}


def _slope(name: str, given: Mapping[str, Any]) -> Shapes:
    return {"weight": (given.get("num_parameters", 1),)}


def _recurrent(gates: int, name: str, given: Mapping[str, Any]) -> Shapes:
    hidden, projected = given["hidden_size"], given.get("proj_size", 0)
    rows, state = gates * hidden, projected or hidden
    directions = ("", "_reverse") if given.get("bidirectional") else ("",)
    found: Shapes = {}
    for n in range(given.get("num_layers", 1)):
        for direction in directions:
            end = f"_l{n}{direction}"
            size = state * len(directions) if n else given["input_size"]
            found |= {f"weight_ih{end}": (rows, size), f"weight_hh{end}": (rows, state)}
            found |= {f"bias_{i}h{end}": (rows,) for i in "ih"} if given.get("bias", True) else {}
            found |= {f"weight_hr{end}": (projected, hidden)} if projected else {}
    return found


def _multihead(name: str, given: Mapping[str, Any]) -> Shapes:
    width = given["embed_dim"]
    sizes = (width, given.get("kdim", width), given.get("vdim", width))
    found: Shapes = {f"{name}_proj_weight": (width, size) for name, size in zip("qkv", sizes)}
    if set(sizes) == {width}:
        found = {"in_proj_weight": (3 * width, width)}
    biases: Shapes = {"in_proj_bias": (3 * width,), "out_proj.bias": (width,)} if given.get("bias", True) else {}
    return found | {"out_proj.weight": (width, width)} | biases


def _cell(gates: int, name: str, given: Mapping[str, Any]) -> Shapes:
    hidden, rows = given["hidden_size"], gates * given["hidden_size"]
    found: Shapes = {"weight_ih": (rows, given["input_size"]), "weight_hh": (rows, hidden)}
    return found | ({f"bias_{i}h": (rows,) for i in "ih"} if given.get("bias", True) else {})


TENSOR_RULES: dict[str, Callable[[str, Mapping[str, Any]], Shapes]] = {
    "nn.Linear": _linear,
    "nn.Conv nn.ConvTranspose": _convolution,
    "nn.BatchNorm nn.InstanceNorm nn.GroupNorm": _norm,
    "nn.LayerNorm nn.RMSNorm": _last_axes,
    "nn.Embedding": _embedding,
    "nn.PReLU": _slope,
    "nn.LSTM": partial(_recurrent, 4),
    "nn.GRU": partial(_recurrent, 3),
    "nn.RNN": partial(_recurrent, 1),
    "nn.MultiheadAttention": _multihead,
    "nn.LSTMCell": partial(_cell, 4),
    "nn.GRUCell": partial(_cell, 3),
    "nn.RNNCell": partial(_cell, 1),
}
