"""Mutations of ONNX files: of bytes, of the protobuf's structure, and of what only a model has.

All are pure functions of the random numbers that they are given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import AttributeProto, TensorProto, helper

from tests.fuzz.cases import LOCATIONS
from tests.support.hostile import HOSTILE

INTS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    7,
    8,
    16,
    24,
    64,
    127,
    255,
    256,
    1000,
    4096,
    65_536,
    10**6,
    2**24,
    2**31 - 1,
    2**31,
    -(2**31),
)
INTS += (2**32, 2**40, 2**48, 2**62, 2**63 - 1, -(2**63), -2, -3, -100, 10**9)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, 3.5e38, -1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = (*HOSTILE.values(), "", "\0", "x", "y", "w", "NOTSET", "SAME_UPPER", "constant", "linear", "sum", "é", "\ud7ff")
EXTERNAL = ("location", "offset", "length", "checksum", "basepath")
OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})
LARGEST = 100_000  # bytes of a case
Mutation = Callable[[random.Random, onnx.ModelProto, onnx.ModelProto], None]


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A mutation of `data`, which may take parts of `other`."""
    if rng.random() < 0.12:
        return in_bytes(rng, data, other)
    try:
        model, donor = onnx.ModelProto.FromString(data), onnx.ModelProto.FromString(other)
    except (DecodeError, ValueError, RuntimeError):
        return in_bytes(rng, data, other)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        mutation: Mutation = rng.choice(MUTATIONS)
        try:
            mutation(rng, model, donor)
        except (ValueError, TypeError, IndexError, DecodeError):  # nothing there that it fits, or too deep
            continue
    try:
        made: bytes = model.SerializePartialToString()
    except (EncodeError, ValueError):  # nested too deep, or text that has no UTF-8
        return in_bytes(rng, data, other)
    if len(made) > LARGEST:
        return in_bytes(rng, data, other)
    return in_bytes(rng, made, other) if rng.random() < 0.03 else made


# ---- bytes -----------------------------------------------------------------------------------------------------------


def in_bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    made = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, kind = rng.randrange(len(made) + 1), rng.randrange(7)
        end = min(len(made), at + rng.choice((1, 2, 4, 16, 64)))
        if kind == 0 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(made):
            made[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            del made[at:end]
        elif kind == 3:
            made[at:at] = rng.randbytes(end - at + 1)
        elif kind == 4:
            made[at:at] = made[at:end] * rng.choice((1, 2, 30))
        elif kind == 5 and other:
            start = rng.randrange(len(other))
            made[at:end] = other[start : start + rng.choice((4, 16, 64))]
        else:
            del made[rng.choice((at, len(made))) :]
        made = made or bytearray(b"\x08")
    return bytes(made[:LARGEST])


# ---- any message -----------------------------------------------------------------------------------------------------


def _pick(rng: random.Random, message: Message) -> tuple[Message, Any]:
    """A message inside and one of its fields."""
    while True:
        filled = message.ListFields()
        inner = [(f, v) for f, v in filled if f.message_type is not None and len(v if _many(f) else "x")]
        if not inner or rng.random() < 0.18:
            fields = [f for f, _ in filled] if filled and rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
            return message, rng.choice(fields)
        weights = [
            10 if f.name == "graph" else 4 if f.name in ("node", "initializer", "attribute") else 1 for f, _ in inner
        ]
        field, value = rng.choices(inner, weights)[0]
        message = rng.choice(value) if _many(field) else value


def _many(field: Any) -> bool:
    return bool(field.is_repeated)


def _scalar(rng: random.Random, field: Any, model: onnx.ModelProto) -> Any:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if kind == field.CPPTYPE_STRING:
        text = rng.choice(names(model)) if rng.random() < 0.5 else rng.choice(TEXTS)
        if isinstance(text, bytes):  # a name that is no UTF-8
            text = text.decode("latin-1")
        return text.encode("utf-8") if field.type == field.TYPE_BYTES else text
    if kind == field.CPPTYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    value = rng.choice(INTS)
    return value if -(2**31) <= value < 2**31 or kind in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 1


def structure(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """Some field somewhere: changed, cleared, repeated, moved, or taken from another model."""
    message, field = _pick(rng, model)
    if _many(field):
        _repeated(rng, getattr(message, field.name), field, model, donor)
    elif rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.message_type is None:
        setattr(message, field.name, _scalar(rng, field, model))
    else:
        _take(rng, getattr(message, field.name), donor)


def _repeated(rng: random.Random, items: Any, field: Any, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    kind = rng.randrange(5)
    if kind == 0 and items:
        del items[rng.randrange(len(items))]
    elif field.message_type is None:
        new = [_scalar(rng, field, model) for _ in range(rng.choice((1, 1, 1, 2, 6)))]
        if kind == 1 or not items:
            items.extend(new)
        elif kind == 2:
            items[rng.randrange(len(items))] = new[0]
        else:
            order = [*items, *new] if kind == 3 else list(items)
            rng.shuffle(order)
            del items[:]
            items.extend(order)
    elif kind == 1 and items:
        items.add().CopyFrom(rng.choice(items))
    elif kind == 2 and len(items) > 1:
        a, b = rng.sample(range(len(items)), 2)
        kept = type(items[a])()
        kept.CopyFrom(items[a])
        items[a].CopyFrom(items[b])
        items[b].CopyFrom(kept)
    else:
        _take(rng, items.add() if kind == 3 or not items else rng.choice(items), donor)


def _take(rng: random.Random, target: Message, donor: Message) -> None:
    """Make `target` a message of its type somewhere in `donor`."""
    found: Message = donor
    for _ in range(12):
        if found.DESCRIPTOR is target.DESCRIPTOR and found is not donor:
            target.CopyFrom(found)
            return
        inner = [v for f, v in found.ListFields() if f.message_type is not None and (not _many(f) or len(v))]
        if not inner:
            return
        value = rng.choice(inner)
        found = value if isinstance(value, Message) else rng.choice(value)


# ---- what only a model has -------------------------------------------------------------------------------------------


def names(model: onnx.ModelProto) -> list[str]:
    """Names of values of the main graph."""
    graph = model.graph
    found = [v.name for v in (*graph.input[:8], *graph.output[:8], *graph.initializer[:8])]
    found += [name for node in graph.node[:12] for name in node.output]
    return found or ["x"]


def _node(rng: random.Random, model: onnx.ModelProto) -> onnx.NodeProto:
    found: onnx.NodeProto = rng.choice(model.graph.node)
    for _ in range(4):
        inner = [a.g for a in found.attribute if a.g.node]
        if not inner or rng.random() < 0.4:
            break
        found = rng.choice(rng.choice(inner).node)
    return found


def rename(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """A value gets another name wherever the main graph uses it."""
    old, new = rng.choice(names(model)), rng.choice((*TEXTS, *names(model)))
    graph = model.graph
    for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        if item.name == old:
            item.name = new
    for node in graph.node:
        for sides in (node.input, node.output):
            for i, name in enumerate(sides):
                if name == old:
                    sides[i] = new


def operator(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """A node becomes another operator, or has another opset."""
    if rng.random() < 0.3:
        rng.choice(model.opset_import).version = rng.choice((1, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 20, 23, 25))
    else:
        _node(rng, model).op_type = rng.choice(OPERATORS)


def wire(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """An input of a node is another value, none, or one more."""
    node, name = _node(rng, model), rng.choice((*names(model), ""))
    if node.input and rng.random() < 0.7:
        node.input[rng.randrange(len(node.input))] = name
    else:
        node.input.append(name)


def attribute(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """An attribute of the operator's schema with a value of its type, or of another."""
    node = _node(rng, model)
    try:
        known = sorted(onnx.defs.get_schema(node.op_type, 20, node.domain).attributes.items())
    except onnx.defs.SchemaError:
        known = []
    name, kind = "axis", "INT"
    if known:
        name, schema = rng.choice(known)
        kind = str(schema.type).rpartition(".")[2]
    if rng.random() < 0.1:
        kind = rng.choice(AttributeProto.AttributeType.keys())
    kept = [a for a in node.attribute if a.name != name or rng.random() < 0.05]
    values: dict[str, Callable[[], Any]] = {
        "INT": lambda: rng.choice(INTS),
        "FLOAT": lambda: min(max(rng.choice(FLOATS), -3e38), 3e38),
        "STRING": lambda: rng.choice(TEXTS),
    }
    new = AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind))
    if kind in values:
        new.CopyFrom(helper.make_attribute(name, values[kind]()))
    elif kind[:-1] in values:
        items = [values[kind[:-1]]() for _ in range(rng.choice((0, 1, 2, 4, 70)))]
        new.CopyFrom(helper.make_attribute(name, items, attr_type=new.type))
    else:
        _take(rng, new, donor)
        new.name = name
    del node.attribute[:]
    node.attribute.extend([*kept, new])


def stored_numbers(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """An input becomes a stored tensor of a few integers (sizes, axes, counts), or one that is stored gets others."""
    graph = model.graph
    count = rng.choice((0, 1, 1, 2, 3, 4, 8))
    kind = rng.choice((TensorProto.INT64, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.FLOAT))
    numbers = [rng.choice(INTS) for _ in range(count)]
    if kind != TensorProto.INT64:
        numbers = [n % 2 if kind == TensorProto.BOOL else n % 100 for n in numbers]
    dims = [] if count == 1 and rng.random() < 0.4 else [count]
    if graph.input and (rng.random() < 0.6 or not graph.initializer):
        at = rng.randrange(len(graph.input))
        name = graph.input[at].name
        del graph.input[at]
        target = graph.initializer.add()
    else:
        target = rng.choice(graph.initializer)
        name = target.name
    target.CopyFrom(helper.make_tensor(name, kind, dims, numbers))


def sizes(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """Dims of a stored tensor or of an input; those of a tensor may no longer fit its bytes."""
    graph = model.graph
    if graph.initializer and rng.random() < 0.5:
        dims = rng.choice(graph.initializer).dims
        if dims and rng.random() < 0.7:
            dims[rng.randrange(len(dims))] = rng.choice(INTS)
        else:
            dims.extend([rng.choice((0, 1, 2))] * rng.choice((1, 2, 70)))
        return
    shape = rng.choice((*graph.input, *graph.output, *graph.value_info)).type.tensor_type.shape
    if not shape.dim or rng.random() < 0.2:
        shape.dim.add()
    dim = rng.choice(shape.dim)
    if rng.random() < 0.5:
        dim.dim_param = rng.choice((*TEXTS, "N", "N + 1", "2*N", *(d.dim_param for d in shape.dim)))
    else:
        dim.dim_value = rng.choice(INTS)


def external(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """The bytes of a stored tensor lie in a file, or are said to."""
    tensors = [*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute if a.HasField("t"))]
    tensor = rng.choice(tensors)
    if rng.random() < 0.7 or not tensor.external_data:
        nbytes = len(tensor.raw_data)
        for name in ("raw_data", "float_data", "int32_data", "int64_data", "external_data"):
            tensor.ClearField(name)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(("w.bin", "w.bin", *LOCATIONS)))
        if rng.random() < 0.5:
            tensor.external_data.add(key="length", value=str(nbytes))
    if rng.random() < 0.6:
        value = rng.choice((*map(str, INTS), "0x10", " 8", "1e3", "+4", "٣", *TEXTS[:6]))
        tensor.external_data.add(key=rng.choice((*EXTERNAL, rng.choice(TEXTS))), value=value)


def function(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """A node goes into a local function, which may call itself, or double itself several times."""
    node, name = rng.choice(model.graph.node), rng.choice(("f", *TEXTS))
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    opsets = list(model.opset_import)
    made = helper.make_function("local", name, list(node.input), list(node.output), [inner], opsets)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 5, 40))):  # each calls the one before twice
        called = made.name
        ends = [f"{o}{i}" for i, o in enumerate(made.output)]
        calls = [
            helper.make_node(called, list(made.input), ends, domain="local"),
            helper.make_node(called, list(made.input), list(made.output), domain="local"),
        ]
        model.functions.append(made)
        made = helper.make_function("local", called + "_", list(made.input), list(made.output), calls, opsets)
    if rng.random() < 0.1:
        made.node.add(op_type=made.name, domain="local", input=made.input, output=[f"{o}q" for o in made.output])
    model.functions.append(made)
    node.op_type, node.domain = made.name, "local"
    del node.attribute[:]
    if not any(o.domain == "local" for o in model.opset_import):
        model.opset_import.add(domain="local", version=1)


def nest(rng: random.Random, model: onnx.ModelProto, donor: onnx.ModelProto) -> None:
    """A node goes into a branch or the body of a loop, several times over."""
    at = rng.randrange(len(model.graph.node))
    for _ in range(rng.choice((1, 1, 2, 5, 20, 40))):
        node = model.graph.node[at]
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        outputs = [onnx.ValueInfoProto(name=f"{o}_in") for o in inner.output]
        del inner.output[:]
        inner.output.extend(o.name for o in outputs)
        node.Clear()
        node.output.extend(o.name[:-3] for o in outputs)
        if rng.random() < 0.5:
            flat = [helper.make_node("Identity", [name], [o.name]) for o in outputs for name in names(model)[:1]]
            node.op_type = "If"
            node.input.append(rng.choice(names(model)))
            for key, nodes in (("then_branch", [inner]), ("else_branch", flat)):  # not both: that would double it
                node.attribute.append(helper.make_attribute(key, helper.make_graph(nodes, "b", [], outputs)))
        else:
            node.op_type = "Loop"
            node.input.extend([rng.choice((*names(model), "")), ""])
            given = [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, [])]
            inner_go = helper.make_node("Identity", ["go"], ["go_on"])
            body = helper.make_graph([inner, inner_go], "b", given, [onnx.ValueInfoProto(name="go_on"), *outputs])
            node.attribute.append(helper.make_attribute("body", body))


MUTATIONS: Sequence[Mutation] = (
    *(structure, structure, structure, structure, rename, operator, operator, wire, attribute, attribute, attribute),
    *(stored_numbers, stored_numbers, sizes, sizes, external, function, nest),
)
