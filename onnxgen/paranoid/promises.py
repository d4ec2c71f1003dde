"""Properties that passes guarantee and that no comparison on drawn inputs shows.

- *A freed batch*: several batches at once must give the same as one after the other.
- *Training.* Claims are computed in evaluation mode. A pass must neither add nor remove layers that
  behave differently in training: batch norms, and layers that draw random numbers. The one
  exception is `--restore-batchnorm`, whose norms are the identity.
- *`--dtype`*: the same network in another floating point type. No value can be compared, since each
  is rounded otherwise. But what had one type in a node has one type again, the network's inputs,
  outputs and weights have the new one, and no number is another one but for rounding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import DECIDED, FREED, RESTORED, SCOPE, is_trained
from onnxgen.graph.nodes import FLOATS, all_nodes
from onnxgen.graph.operators import find, is_a, known
from onnxgen.graph.traits import CONVOLUTION, MOVES, PRODUCT, RECTIFIER, RESAMPLES, SAMPLES, VIEW
from onnxgen.options import Options
from onnxgen.paranoid.claims import Broken, Untold
from onnxgen.paranoid.comparison import unlike
from onnxgen.paranoid.draws import STYLES, drawn, element_count, shape_counts
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.paranoid.run import Side
from onnxgen.paranoid.single import Single
from onnxgen.paranoid.trained import wrong_decisions
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.dims import symbols
from onnxgen.shapes.info import Shape, info

BATCH_COUNT = 3  # number of batches
NAMED_DIM_SIZE = 4  # size of every named dim
MAX_ELEMENTS = 20_000_000  # elements of all values of one batch; larger networks are not computed


def mixed_samples(model: ir.Model, before: Picture, after: Picture, single: Single) -> Iterator[str]:
    """Yield the outputs that differ between several batches at once and one after the other, on drawn inputs in
    float64.
    """
    freed = FREED.get(model)
    if freed is None or not freed.inputs:
        return
    numbers = _named((facts.shape for facts in before.facts.values()), NAMED_DIM_SIZE)
    try:
        if element_count(shape_counts(before.facts.values()), numbers) > MAX_ELEMENTS:
            return
        batches = [_inputs(model, before, numbers, freed.inputs, turn) for turn in range(BATCH_COUNT)]
        alone = [_outputs(model, before, single, numbers, batch) for batch in batches]
    except Untold:
        return
    together = _joined(batches, freed.inputs)
    batch = _named((info(v).shape for v in model.graph.inputs if v.name in freed.inputs), BATCH_COUNT * freed.size)
    try:
        results = _outputs(model, after, single, batch | numbers, together)
    except Broken as error:
        yield f"it no longer runs: {error}"
        return
    except Untold:
        return
    for output, result, *each in zip(model.graph.outputs, results, *alone):
        name = output.name or ""
        if wrong := _unlike_together(each, result, freed.outputs.get(name)):
            yield f"of {BATCH_COUNT} batches at once the output {name!r} is another: {wrong}"


def _named(shapes: Iterable[Shape | None], size: int) -> dict[str, int]:
    """Return a size for each named dim."""
    return {name: size for shape in shapes for dim in shape or () for name in symbols(dim)}


def _joined(batches: list[dict[str, Any]], axes: Mapping[str, int]) -> dict[str, Any]:
    """Return several batches as one. Inputs without an axis of samples are those of the first."""
    shared = batches[0].keys() & axes.keys()
    return batches[0] | {name: np.concatenate([batch[name] for batch in batches], axes[name]) for name in shared}


def _unlike_together(each: Sequence[Any], together: Any, axis: int | None) -> str:
    """Describe how an output of several batches at once differs from those of each; "" if it is no tensor."""
    if not all(isinstance(value, np.ndarray) for value in each):
        return ""
    return unlike(each[0] if axis is None else np.concatenate(each, axis), together, wide=True, exact=False)


def misplaced(model: ir.Model, before: Picture) -> Iterator[str]:
    """Yield the outputs whose samples follow each other along another axis although the batch's own axis is there."""
    freed = FREED.get(model)
    assert freed is not None
    usual = set(freed.inputs.values())
    for value, output in zip(before.graphs[model.graph][1], model.graph.outputs):
        shape, axis = before.facts[value].shape, freed.outputs.get(output.name or "")
        if shape is None or axis is None or len(usual) != 1 or shape[axis] == freed.size:
            continue
        (own,) = usual
        if own < len(shape) and shape[own] == freed.size:
            yield f"the samples of {output.name!r} follow each other along axis {axis}, not {own}"


def _inputs(
    model: ir.Model, before: Picture, numbers: Mapping[str, int], freed: Mapping[str, int], turn: int
) -> dict[str, Any]:
    """Return a batch of inputs. Inputs without a batch are the same in each."""
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    return {
        v.name or "": drawn(before.facts[v], numbers, STYLES[0], True, i + 100 * turn * (v.name in freed))
        for i, v in enumerate(inputs)
    }


def _outputs(
    model: ir.Model, picture: Picture, single: Single, numbers: Mapping[str, int], inputs: Mapping[str, Any]
) -> list[Any]:
    """Return the outputs of the whole network. Raises `Untold`, and `Broken` if an operator refuses its inputs."""
    side = Side(picture, single, numbers, wide=True)
    values = {v: inputs[v.name] for v in picture.graphs[model.graph][0] if v.name is not None and v.name in inputs}
    with np.errstate(all="ignore"):
        outputs = side.body(model.graph, [], values)
    if side.narrowed:
        raise Untold("an operator computes in float32 alone")
    return outputs


COMPARE = ("Equal", "Unique")  # text that stands for numbers, too
FLAGS = frozenset(
    "keepdims ceil_mode count_include_pad exclusive reverse transA transB allowzero select_last_index largest sorted "
    "is_causal noop_with_empty_axes layout align_corners exclude_outside center_point_box".split()
)  # standard attributes that must be 0 or 1, which kernels need not check
EXPAND = "expand"


def broken(
    name: str, model: ir.Model, options: Options, before: Picture, after: Picture, known: Set[ir.Node], single: Single
) -> Iterator[str]:
    """Yield the guarantees that the pass of this name broke. `propagate` answers for `trainable`, as it finds types.

    Args:
        known: `known_nodes` before the pass `EXPAND`.
    """
    yield from _wrong_flags(step for node, step in after.nodes.items() if node not in before.nodes)
    if name == "propagate" and not DECIDED.has(model):
        DECIDED.set(model, True)
        yield from map(str, wrong_decisions(model, options))
    elif name == "decide":
        yield from _conditions(before, after)
    elif name == "text":
        yield from _text_that_is_moved(after)
    elif name == "dynamic_batch" and options.dynamic_batch:
        yield from _fixed_batch(model, options, before)
        yield from mixed_samples(model, before, after, single)
    elif name == EXPAND:  # a composition of other operators may round differently
        gone = (before.nodes[node] for node in known - after.nodes.keys())
        yield from (f"it expands {step.op} {step.name}, whose operator is known" for step in gone)


def _wrong_flags(steps: Iterable[Made]) -> Iterator[str]:
    for step in steps:
        for name in () if step.domain else FLAGS & step.attributes.keys():
            if step.attributes[name].value not in (0, 1):
                yield f"{name} of {step.op} {step.name} is neither 0 nor 1"


def _conditions(before: Picture, after: Picture) -> Iterator[str]:
    for node, step in after.nodes.items():
        condition = step.inputs[0] if "then_branch" in node.attributes and step.inputs else None
        if condition is not None and step.inputs != before.nodes[node].inputs:
            chosen = after.facts[condition].data
            if chosen is None or chosen.size != 1:
                yield f"{step.name} is not given one condition"


def _text_that_is_moved(after: Picture) -> Iterator[str]:
    for step in after.nodes.values():
        texts = [after.facts[v].dtype == ir.DataType.STRING for v in step.inputs if v is not None]
        moves = is_a(step.node, MOVES) and step.op != "Identity" or step.op in COMPARE
        if moves and not step.domain and any(texts):
            yield f"{step.op} {step.name} is given text"
        elif step.op == "TextCodes" and not all(texts):
            yield f"{step.name} makes numbers of values that are not text"
        elif step.op == "TextAt":
            if texts != [True, False] or after.facts[step.outputs[0]].dtype != ir.DataType.STRING:
                yield f"{step.name} does not make text of numbers"


def known_nodes(model: ir.Model) -> frozenset[ir.Node]:
    """Return the nodes whose operators are known."""
    opsets = model.opset_imports
    nodes = ((n, find(n.domain, n.op_type, n.version or opsets.get(n.domain, 1))) for n in all_nodes(model.graph))
    return frozenset(node for node, operator in nodes if operator is not None and operator.takes(node))


def _fixed_batch(model: ir.Model, options: Options, before: Picture) -> Iterator[str]:
    freed = FREED.get(model)
    if freed is None:
        yield "it recorded no batch"
        return
    if not freed.inputs and _has_batch(model, options):
        yield "it freed no batch of an input"
    yield from misplaced(model, before)
    sides = (model.graph.inputs, freed.inputs), (model.graph.outputs, freed.outputs)
    for value, axis in ((v, axes[v.name]) for values, axes in sides for v in values if v.name in axes):
        shape = info(value).shape
        if shape is not None and isinstance(shape[axis], int):
            yield f"axis {axis} of {value.name!r} is still {shape[axis]}"


def _has_batch(model: ir.Model, options: Options) -> bool:
    """Return True if the options name the axis of a batch, or if the first axes of all inputs are fixed."""
    axes = options.batch_axes
    if any(axis is not None for axis in axes.values()):
        return True
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers and info(v).kind == "tensor"]
    shapes = [info(v).shape for v in inputs if axes.get(v.name or "", 0) is not None]
    first = [shape[0] for shape in shapes if shape]
    return bool(first) and all(isinstance(dim, int) and dim for dim in first)


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
    wrong = _other_counts(name, options, before, after)
    if wrong or name not in ADDS:
        return wrong
    if options.restore_batchnorm and RESTORED.get(model) is None:
        return "no norms were restored, although that was asked for"
    norms = [step for node, step in after.nodes.items() if step.op == NORM and node not in before.nodes]
    faults = (_wrong_norm(after, step) for step in norms)
    return next(filter(None, (*faults, *_wrong_folds(model, after), *_misplaced(model, before, after))), "")


def _other_counts(name: str, options: Options, before: Picture, after: Picture) -> str:
    """Describe which layers that behave differently in training became more or fewer; "" if none did, or should."""
    old, new = Counter(_kinds(before)), Counter(_kinds(after))
    for kind in old | new:
        fewer = name in STACKS and kind == "drop" and 0 < new[kind] <= old[kind]
        more = name in ADDS and kind == NORM and options.restore_batchnorm and new[kind] >= old[kind]
        if old[kind] != new[kind] and not fewer and not more:
            what = "norms of a batch" if kind == NORM else "nodes that drop elements or draw random numbers"
            return f"there were {old[kind]} {what}, and now there are {new[kind]}"
    return ""


def _kinds(picture: Picture) -> Iterator[str]:
    """Yield the used layers that behave differently in training."""
    if not any(step.is_random or step.op in UNLIKE or "dropout" in step.attributes for step in picture.nodes.values()):
        return  # most networks have none
    live = {value for _, outputs in picture.graphs.values() for value in outputs}
    for step in reversed(picture.nodes.values()):
        if live.isdisjoint(step.outputs) and not step.bodies:
            continue
        live.update(v for v in step.inputs if v is not None)
        if step.op in NORMS:
            yield NORM
        elif step.is_random or _drops(picture, step):
            yield "drop"


def _drops(picture: Picture, step: Made) -> bool:
    """Return True if a node drops elements that depend on the network's inputs or trained tensors."""
    ratio = next((step.attributes[n].value for n in ("ratio", "dropout", "p") if n in step.attributes), None)
    if step.op in DROPS and ratio is None and len(step.inputs) > 1:
        constant = info(step.inputs[1]).constant
        ratio = None if constant is None else float(constant.reshape(-1)[0])
    if step.op not in DROPS and not ("dropout" in step.attributes and ratio):
        return False
    return ratio != 0 and any(v in picture.moving for v in step.inputs if v is not None)


# ---- norms that were put back ----------------------------------------------------------------------------------------


def _wrong_norm(picture: Picture, norm: Made) -> str:
    """Describe what is wrong with a restored norm: it must follow a convolution, match its channels, and be the
    identity.
    """
    x, *tensors = norm.inputs
    conv = picture.maker.get(x)
    if conv is None or not _slides(conv):
        return f"the norm {norm.name} does not follow a convolution"
    weight = conv.inputs[1]
    size = None if weight is None else picture.facts[weight].shape
    axis, groups = _channels(conv)
    channels = None if size is None or not isinstance(size[axis], int) else size[axis] * groups
    epsilon = float(norm.attribute("epsilon", EPSILON))
    if not np.isclose(epsilon, EPSILON):
        return f"the norm {norm.name} has the epsilon {epsilon}"
    for (what, number), value in zip(IDENTITY, tensors):
        tensor = None if value is None else picture.stored.get(value)
        if tensor is None or tuple(tensor.shape.numpy()) != (channels,):
            return f"the norm {norm.name} does not have one number for each of {channels} channels"
        if what and not np.allclose(np.asarray(tensor.numpy()).astype(np.float64), number, rtol=1e-2, atol=1e-6):
            return f"the norm {norm.name} is not the identity: its {what} is not {number:g}"
    return "" if _tells(conv) else _misnamed(conv, norm)


def _misnamed(conv: Made, norm: Made) -> str:
    """Describe a wrong name: beside `conv2` there must be `bn2`."""
    layer, other = (SCOPE.get(step.node) for step in (conv, norm))
    if layer == other or not layer or not other or layer[:-1] != other[:-1] or "conv" not in layer[-1]:
        return ""
    numbers = [re.findall(r"\d+", path[-1]) for path in (layer, other)]
    return "" if numbers[0] == numbers[1] else f"the norm of {'.'.join(layer)} is called {'.'.join(other)}"


def _slides(step: Made) -> bool:
    return is_a(step.node, PRODUCT) and is_a(step.node, SAMPLES)


def _channels(conv: Made) -> tuple[int, int]:
    """Return the output channel axis of a convolution's weight, and its number of groups."""
    return (0, 1) if is_a(conv.node, CONVOLUTION) else (1, int(conv.attribute("group", 1)))


def _wrong_folds(model: ir.Model, picture: Picture) -> Iterator[str]:
    """Yield norms that are not folded along the output channels of their convolution."""
    for step in picture.nodes.values():
        weight = picture.names.get(step.inputs[1]) if _slides(step) and step.inputs[1] else None
        for norm in RESTORED.get(model) or ():
            if norm.weight == weight and (norm.axis, norm.groups) != _channels(step):
                yield f"the norm of {weight} is folded along axis {norm.axis} in {norm.groups} groups"


def _misplaced(model: ir.Model, before: Picture, after: Picture) -> Iterator[str]:
    """Yield convolutions that certainly had a norm but got none, and those that got one but certainly had none.

    If the file marks any layer as having had a norm, the marked layers had one. If it marks none and has no norms, all
    convolutions had one except the last ones, which neither a layer nor an activation follows.
    """
    if any("Normalization" in step.op for step in before.nodes.values()):
        return
    users, is_told = _users(before), _is_told(model, before)
    normed = {step.inputs[0] for step in after.nodes.values() if step.op == NORM}
    for conv in before.nodes.values():
        if not _slides(conv):
            continue
        had = _is_named_folded(before, conv) or not is_told and _is_inner(conv, users)
        if conv.outputs[0] in normed and not is_told and not had:
            yield f"a norm was added after {conv.name}, which is a last layer"
        if conv.outputs[0] not in normed and had and _may_be_folded(before, conv, users):
            yield f"no norm was added after {conv.name}"


def _users(picture: Picture) -> dict[ir.Value, list[Made]]:
    users: dict[ir.Value, list[Made]] = {}
    for step in picture.nodes.values():
        for value in step.inputs:
            if value is not None:
                users.setdefault(value, []).append(step)
    return users


def _is_told(model: ir.Model, picture: Picture) -> bool:
    """Return True if the file marks a layer as having had a norm, by its class or by the name of a folded tensor."""
    names = [picture.names[value] for value in picture.stored]
    by_pytorch = model.producer_name in ("pytorch", "optimum-onnx") and any(map(param_path, names))
    pattern = NUMBERED if by_pytorch else FOLDED
    return any(map(_tells, picture.nodes.values())) or any(map(pattern.fullmatch, names))


def _is_named_folded(picture: Picture, conv: Made) -> bool:
    return any(value is not None and FOLDED.fullmatch(picture.names[value]) for value in conv.inputs[1:3])


def _tells(step: Made) -> bool:
    return "batch_norm" in step.node.metadata_props.get(HIERARCHY, "")


def _is_inner(conv: Made, users: Mapping[ir.Value, list[Made]]) -> bool:
    """Return True if a layer with a weight, or an activation, follows after nothing but sums and views."""
    todo, near, far = [(conv, True)], set[ir.Node](), set[ir.Node]()
    while todo:
        step, is_near = todo.pop()
        for user in (user for value in step.outputs for user in users.get(value, ())):
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


RTOL, LEAST = {ir.DataType.FLOAT16: 1e-3, ir.DataType.BFLOAT16: 8e-3}, 1e-7  # of a rounded number; below are zeros
SINGLE_RTOL = 1e-6  # of any other type


def mistyped(before: Picture, after: Picture, dtype: ir.DataType, most: int | None = None) -> Iterator[str]:
    """Yield what is wrong with a graph whose floats are to have a type. `most`: elements of a tensor that is read."""
    if before.graphs != after.graphs or before.nodes.keys() != after.nodes.keys():
        yield "it changed the graph"
        return
    inputs, outputs = after.graphs[next(iter(after.graphs))]
    for value in (*inputs, *outputs):
        if before.facts[value].dtype in FLOATS and after.facts[value].dtype != dtype:
            yield f"{after.names[value]!r} is {after.facts[value].dtype}"
    for node, step in after.nodes.items():
        yield from _of_node(before, after, before.nodes[node], step)
    yield from _wrong_tensors(before, after, dtype, most)


def _wrong_tensors(before: Picture, after: Picture, dtype: ir.DataType, most: int | None) -> Iterator[str]:
    for value, tensor in after.stored.items():
        old = before.stored.get(value, tensor)
        if old.dtype not in FLOATS:
            continue
        if tensor.dtype != after.facts[value].dtype or is_trained(value) and tensor.dtype != dtype:
            yield f"{after.names[value]!r} is stored as {tensor.dtype}"
        elif tensor is not old and (most is None or tensor.size <= most) and not _same_numbers(old, tensor):
            yield f"{after.names[value]!r} has other numbers"


def _of_node(before: Picture, after: Picture, old: Made, step: Made) -> Iterator[str]:
    if (old.inputs, old.op, old.domain) != (step.inputs, step.op, step.domain):
        yield f"it changed {step.name!r}"
    if any(len(dtypes) > 1 for dtypes in _new_types(before, after, step).values()):
        yield f"{step.name!r} has floats of several types"
    made_of = after.facts[step.outputs[0]].dtype if step.outputs else None
    for name, attribute in step.attributes.items():
        original = old.attributes.get(name)
        if name in ("to", "dtype") and made_of in FLOATS and attribute.value != made_of:
            yield f"{step.name!r} makes {made_of} of another name"
        elif attribute.type == ir.AttributeType.TENSOR and original is not None and original.type == attribute.type:
            if not _same_numbers(original.value, attribute.value):
                yield f"{step.name!r} has other numbers"


def _new_types(before: Picture, after: Picture, step: Made) -> dict[Any, set[Any]]:
    """Return, for each type of floats in a node, the types that these have now."""
    dtypes: dict[Any, set[Any]] = {}
    if step.op == "Cast" and not step.domain:
        return dtypes
    values = (*step.inputs, *step.outputs)
    for value in values[:1] if is_a(step.node, RESAMPLES) else values:
        if value is not None and before.facts[value].dtype in FLOATS and not _is_number(before, value):
            dtypes.setdefault(before.facts[value].dtype, set()).add(after.facts[value].dtype)
    return dtypes


def _is_number(picture: Picture, value: ir.Value) -> bool:
    """Return True for a single number that is not trained: torch takes these beside a tensor of any type."""
    maker, shape = picture.maker.get(value), picture.facts[value].shape
    is_stored = value in picture.stored or maker is not None and maker.op == "Constant"
    return is_stored and shape is not None and all(n == 1 for n in shape) and not is_trained(value)


def _same_numbers(old: ir.TensorProtocol, new: ir.TensorProtocol) -> bool:
    """Return True if one tensor is the other one, rounded. Finite numbers stay finite, a single one is not 0."""
    if old is new or old.dtype not in FLOATS:
        return old is new or old.dtype == new.dtype and np.array_equal(old.numpy(), new.numpy())
    a, b = (np.asarray(tensor.numpy()).astype(np.float64) for tensor in (old, new))
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    if a.size == 1 and a.any() != b.any():
        return False
    most = float(ml_dtypes.finfo(ir.DataType(new.dtype).numpy()).max)  # type: ignore[no-untyped-call]
    finite = np.isfinite(a)
    a = np.where(finite, np.clip(a, -most, most), a)
    return bool(np.allclose(a, b, RTOL.get(ir.DataType(new.dtype), SINGLE_RTOL), LEAST, equal_nan=True))
