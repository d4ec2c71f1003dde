"""Plants changes in ONNX files, and asks `onnxgen diff` what changed: is it located, and is nothing invented?

    python -m tests.hunts differences --cases 100 --seed 0 [--what keep | --what change] [--only KIND]

The files are drawn from the samples, and from the shared models if they are there. A change is located if the answer
names the node, the layer or the tensor. A rewriting that keeps the function must be the same function for `diff`.
"""

from __future__ import annotations

import copy
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper as h
from onnx import numpy_helper as nh

from onnxgen.diff import Comparison, diff
from onnxgen.errors import OnnxgenError

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 3_000_000
SIMPLE = ("Relu", "Sigmoid", "Tanh", "Elu", "Softplus", "LeakyRelu", "HardSigmoid")


@dataclass
class Planted:
    """A file with a change: the names of nodes and tensors, one of which the answer has to name, and words of it.

    `part`: "changes", "weights", "ports" or "file"; where it has to be named. `keys`: in the generated state dict.
    """

    model: onnx.ModelProto
    part: str
    names: set[str] = field(default_factory=set)
    words: str = ""
    keys: str = ""


Kind = Callable[[onnx.ModelProto, random.Random], Planted | None]
CHANGES: dict[str, Kind] = {}
KEEPS: dict[str, Callable[[onnx.ModelProto, random.Random], onnx.ModelProto | None]] = {}


def change(kind: Kind) -> Kind:
    CHANGES[kind.__name__] = kind
    return kind


def keep(kind: Any) -> Any:
    KEEPS[kind.__name__] = kind
    return kind


def drawn_files() -> list[Path]:
    """Return small files with weights."""
    folders = [ROOT / "samples"]
    if shared := os.environ.get("ONNXGEN_SHARED"):
        folders.append(Path(shared) / "models")
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*.onnx")):
            parts = {*path.parts}
            if not parts & {"ops", "transform", "java"} and 2000 < path.stat().st_size < MAX_BYTES:
                found.append(path)
    return found


def weights(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the float initializers that layers take."""
    used = {
        n.input[1]
        for n in model.graph.node
        if n.op_type in ("Conv", "Gemm", "MatMul", "ConvTranspose")
        if len(n.input) > 1
    }
    return {t.name: t for t in model.graph.initializer if t.name in used and t.data_type == onnx.TensorProto.FLOAT}


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a name for each node."""
    model = copy.deepcopy(model)
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"node_{number}_{node.op_type}"
    return model


def users(model: onnx.ModelProto, value: str) -> set[str]:
    return {n.name for n in model.graph.node if value in n.input}


def only_input(model: onnx.ModelProto) -> Any:
    """Return the first input that is no initializer, or None."""
    stored = {t.name for t in model.graph.initializer}
    return next((i for i in model.graph.input if i.name not in stored), None)


# ---- changes ---------------------------------------------------------------------------------------------------------


@change
def perturbed(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """One element of a weight."""
    names = sorted(weights(model))
    if not names:
        return None
    tensor = weights(model)[rng.choice(names)]
    array = nh.to_array(tensor).copy()
    array.flat[rng.randrange(array.size)] += 0.1 * float(np.abs(array).max() or 1)
    tensor.CopyFrom(nh.from_array(array, tensor.name))
    return Planted(model, "weights", {tensor.name} | users(model, tensor.name))


@change
def retrained(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """All of a layer's weight."""
    names = sorted(weights(model))
    if not names:
        return None
    tensor = weights(model)[names[rng.randrange(len(names))]]
    array = nh.to_array(tensor)
    noise = np.random.default_rng(rng.randrange(2**31)).standard_normal(array.shape).astype(np.float32)
    tensor.CopyFrom(nh.from_array(array + noise * (float(array.std()) or 1) * np.float32(0.3), tensor.name))
    return Planted(model, "weights", {tensor.name} | users(model, tensor.name))


@change
def quantised(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """A weight on a grid of 8 bits."""
    names = sorted(n for n, t in weights(model).items() if np.prod(t.dims) >= 64)
    if not names:
        return None
    tensor = weights(model)[rng.choice(names)]
    array = nh.to_array(tensor)
    step = np.float32(np.abs(array).max() / 127)
    if not step:
        return None
    rounded = (np.round(array / step) * step).astype(np.float32)
    if np.array_equal(rounded, array):
        return None  # it is on the grid already: nothing would change
    tensor.CopyFrom(nh.from_array(rounded, tensor.name))
    return Planted(model, "weights", {tensor.name} | users(model, tensor.name), "8 bits")


@change
def epsilon(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """The epsilon of a norm."""
    nodes = [
        n
        for n in model.graph.node
        if n.op_type in ("BatchNormalization", "LayerNormalization", "InstanceNormalization")
    ]
    if not nodes:
        return None
    node = rng.choice(nodes)
    kept = [a for a in node.attribute if a.name != "epsilon"]
    del node.attribute[:]
    node.attribute.extend([*kept, h.make_attribute("epsilon", 0.01)])
    return Planted(model, "changes", {node.name}, "eps")


@change
def activation(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    nodes = [n for n in model.graph.node if n.op_type in SIMPLE]
    if not nodes:
        return None
    node = rng.choice(nodes)
    node.op_type = rng.choice([s for s in SIMPLE if s != node.op_type])
    del node.attribute[:]
    return Planted(model, "changes", {node.name}, "->")


@change
def added(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """An operator behind a layer."""
    nodes = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm", "MatMul", "Add")]
    if not nodes:
        return None
    node = rng.choice(nodes)
    made, new = node.output[0], f"{node.output[0]}_before"
    node.output[0] = new
    at = list(model.graph.node).index(node)
    model.graph.node.insert(at + 1, h.make_node("Tanh", [new], [made], name="the_new_node"))
    return Planted(model, "changes", {"the_new_node"})


@change
def removed(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """An activation is left out."""
    outputs = {o.name for o in model.graph.output}
    nodes = [n for n in model.graph.node if n.op_type in SIMPLE and n.output[0] not in outputs]
    if not nodes:
        return None
    node = rng.choice(nodes)
    for other in model.graph.node:
        other.input[:] = [node.input[0] if i == node.output[0] else i for i in other.input]
    name = node.name
    model.graph.node.remove(node)
    return Planted(model, "changes", {name})


@change
def swapped(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """The operands of a subtraction or division, or the order of a concatenation."""
    nodes = [n for n in model.graph.node if n.op_type in ("Sub", "Div", "Concat") and len(set(n.input)) > 1]
    stored = {t.name for t in model.graph.initializer} | {
        n.output[0] for n in model.graph.node if n.op_type == "Constant"
    }
    nodes = [n for n in nodes if not (set(n.input) & stored) and not _is_squared(model, n)]
    if not nodes:
        return None
    node = rng.choice(nodes)
    node.input[:] = list(node.input)[::-1]
    del model.graph.value_info[:]
    return Planted(model, "changes", {node.name})


def _is_squared(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Return True for a difference that is only squared: (a - b)^2 is (b - a)^2."""
    stored = {t.name: nh.to_array(t) for t in model.graph.initializer}
    stored |= {
        n.output[0]: nh.to_array(n.attribute[0].t)
        for n in model.graph.node
        if n.op_type == "Constant" and n.attribute[0].name == "value"
    }
    taking = [n for n in model.graph.node if node.output[0] in n.input]
    squares = [n for n in taking if n.op_type == "Pow" and np.all(stored.get(n.input[1], np.zeros(1)) == 2)]
    return node.op_type == "Sub" and bool(taking) and len(squares) == len(taking)


@change
def head(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """Two more classes."""
    outputs = {o.name for o in model.graph.output}
    nodes = [
        n for n in model.graph.node if n.op_type == "Gemm" and n.output[0] in outputs and n.input[1] in weights(model)
    ]
    if not nodes or len(outputs) > 1:
        return None
    node = nodes[0]
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    for name, axis in zip(node.input[1:], (0 if transposed else 1, 0), strict=False):
        tensor = next((t for t in model.graph.initializer if t.name == name), None)
        if tensor is None:
            return None
        array = nh.to_array(tensor)
        more = np.take(array, [0, 0], axis) * np.float32(0.5)
        tensor.CopyFrom(nh.from_array(np.concatenate([array, more], axis), name))
    model.graph.output[0].type.tensor_type.shape.dim[-1].Clear()
    del model.graph.value_info[:]
    return Planted(model, "changes", {node.name, node.input[1]})


@change
def metadata(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    entry = model.metadata_props.add()
    entry.key, entry.value = "the_new_entry", "its value"
    return Planted(model, "file", {"the_new_entry"})


@change
def renamed_input(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    given = only_input(model)
    if given is None:
        return None
    old, given.name = given.name, "another_name"
    for node in model.graph.node:
        node.input[:] = ["another_name" if i == old else i for i in node.input]
    return Planted(model, "file", {"another_name"})


@change
def shape(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """A fixed batch becomes another one, or a free one fixed."""
    given = only_input(model)
    dims = given.type.tensor_type.shape.dim if given is not None else []
    if not dims:
        return None
    dims[0].dim_value = 1 if dims[0].dim_value != 1 else 2
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return Planted(model, "ports", {only_input(model).name})


@change
def stride(model: onnx.ModelProto, rng: random.Random) -> Planted | None:
    """The padding of a convolution or pooling that changes no shape: its dilation."""
    nodes = [n for n in model.graph.node if n.op_type in ("MaxPool", "AveragePool", "Conv") and _at(n, "strides")]
    if not nodes:
        return None
    node = rng.choice(nodes)
    strides = next(a for a in node.attribute if a.name == "strides")
    strides.ints[:] = [2 if s == 1 else 1 for s in strides.ints]
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return Planted(model, "changes", {node.name}, "stride")


def _at(node: onnx.NodeProto, name: str) -> bool:
    return any(a.name == name for a in node.attribute)


# ---- the same function -----------------------------------------------------------------------------------------------


@keep
def everything_renamed(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    def new(name: str) -> str:
        return f"v_{name}_x".replace(".", "_").replace("/", "_") if name else name

    for node in model.graph.node:
        node.name = f"n{rng.randrange(10**9)}"
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
    for item in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        item.name = new(item.name)
    del model.graph.value_info[:]
    return model


@keep
def reordered(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Another topological order."""
    nodes, known = (
        list(model.graph.node),
        {"", *(i.name for i in model.graph.input), *(t.name for t in model.graph.initializer)},
    )
    order = []
    while nodes:
        ready = [n for n in nodes if set(n.input) <= known]
        if not ready:
            return model
        node = rng.choice(ready)
        order.append(node)
        nodes.remove(node)
        known |= set(node.output)
    del model.graph.node[:]
    model.graph.node.extend(order)
    return model


@keep
def opset(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto | None:
    try:
        return onnx.version_converter.convert_version(model, rng.choice([17, 19, 21]))  # type: ignore[no-any-return]
    except Exception:
        return None


def _optimised(model: onnx.ModelProto, level: str) -> onnx.ModelProto | None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/m.onnx"
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return onnx.load(f"{folder}/m.onnx")  # type: ignore[no-any-return]
        except Exception:
            return None


@keep
def optimised_basic(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto | None:
    return _optimised(model, "ORT_ENABLE_BASIC")


@keep
def optimised_extended(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto | None:
    return _optimised(model, "ORT_ENABLE_EXTENDED")


@keep
def as_constants(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Initializers as Constant nodes."""
    nodes = [h.make_node("Constant", [], [t.name], value=t) for t in model.graph.initializer]
    rest = list(model.graph.node)
    given = [i for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}]
    for list_, new in ((model.graph.initializer, []), (model.graph.node, nodes + rest), (model.graph.input, given)):
        del list_[:]
        list_.extend(new)
    return model


@keep
def identities(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """An Identity behind some values."""
    nodes = []
    for number, node in enumerate(list(model.graph.node)):
        if node.output and node.output[0] and rng.random() < 0.3 and node.op_type != "Constant":
            made, node.output[0] = node.output[0], f"before_{number}"
            nodes += [node, h.make_node("Identity", [f"before_{number}"], [made], name=f"identity_{number}")]
        else:
            nodes.append(node)
    kept = [copy.deepcopy(n) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


@keep
def gemm_as_matmul(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto | None:
    """Gemm as a product with the transposed weight, and a sum."""
    stored = {t.name: t for t in model.graph.initializer}
    nodes, found = [], False
    for number, node in enumerate(list(model.graph.node)):
        given = {a.name: a for a in node.attribute}
        plain = all(given[n].f == 1 for n in ("alpha", "beta") if n in given) and not (
            "transA" in given and given["transA"].i
        )
        if node.op_type != "Gemm" or node.input[1] not in stored or not plain:
            nodes.append(copy.deepcopy(node))
            continue
        found, weight = True, nh.to_array(stored[node.input[1]])
        weight = weight.T if "transB" in given and given["transB"].i else weight
        model.graph.initializer.append(nh.from_array(np.ascontiguousarray(weight), f"transposed_{number}"))
        out = f"product_{number}" if len(node.input) > 2 else node.output[0]
        nodes.append(h.make_node("MatMul", [node.input[0], f"transposed_{number}"], [out], name=f"{node.name}_mm"))
        if len(node.input) > 2:
            nodes.append(h.make_node("Add", [out, node.input[2]], [node.output[0]], name=f"{node.name}_add"))
    if not found:
        return None
    used = {i for n in nodes for i in n.input}
    kept = [copy.deepcopy(t) for t in model.graph.initializer if t.name in used]
    given_inputs = [copy.deepcopy(i) for i in model.graph.input if i.name not in stored]
    for list_, new in ((model.graph.node, nodes), (model.graph.initializer, kept), (model.graph.input, given_inputs)):
        del list_[:]
        list_.extend(new)
    return model


@keep
def simplified(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto | None:
    try:
        import onnxsim
    except ImportError:
        return None
    return onnxsim.simplify(model)[0]  # type: ignore[no-any-return]


@keep
def with_unused(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A tensor that nothing takes, and a doc string."""
    model.graph.initializer.append(nh.from_array(np.ones(3, np.float32), "unused_tensor"))
    model.doc_string = "another text"
    return model


@keep
def external(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """External data: `judged` writes it so."""
    model.doc_string = EXTERNAL
    return model


EXTERNAL = "saved with external data"

# ---- verdicts --------------------------------------------------------------------------------------------------------


def judged(path: Path, kind: str, seed: int) -> tuple[str, str]:
    """Return the verdict of a case ("ok", "void", or what is wrong), and why."""
    rng = random.Random(f"{path.name} {kind} {seed}")
    model = named(onnx.load(path))
    made = (CHANGES.get(kind) or KEEPS[kind])(copy.deepcopy(model), rng)
    if made is None:
        return "void", "nothing to change"
    if isinstance(made, Planted) and made.model.SerializeToString() == model.SerializeToString():
        return "void", "the planted change is none: both files are the same bytes"
    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder) / "one.onnx", Path(folder) / "other.onnx"
        onnx.save(model, one)
        new = made.model if isinstance(made, Planted) else made
        apart = new.doc_string == EXTERNAL
        onnx.save(new, other, save_as_external_data=apart, location="data.bin", size_threshold=0)
        try:
            found = diff(one, other, runs=2, seed=seed)
        except OnnxgenError as error:
            return "void", str(error)[:100]
        if isinstance(made, Planted):
            made.keys = keys_of(one, made.names) if made.part == "weights" else ""
            verdict, why = _located(found, made)
            return ("void", "the changed file does not run") if verdict != "ok" and not runs(other) else (verdict, why)
        if found.verdict == "different" and inputs_of(one) != inputs_of(other):
            return "void", "the rewriting made other inputs, as onnxruntime says"
    if found.verdict == "same" and not found.changes and not found.changed_weights and not found.ports:
        return "ok", found.why
    return ("not proved" if found.verdict == "not proved" else "invented"), _told(found)


def keys_of(path: Path, names: set[str]) -> str:
    """Return the keys of ONNX tensors in the generated state dict, as a text."""
    from onnxgen.options import Options
    from onnxgen.pipeline import build
    from onnxgen.record.way_back import WayBack

    made = WayBack.from_metadata(build(path, Options(), path.with_suffix(".py")).metadata).tensors
    return " ".join(str(made[name]) for name in names if name in made)


def inputs_of(path: Path) -> int:
    """Return how many inputs a file needs: an optimiser may drop the initializer of one."""
    import onnxruntime

    return len(onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs())


def runs(path: Path) -> bool:
    """Return True if an oracle runs a file."""
    from onnxgen.canonical.prove import drawn
    from onnxgen.options import Options

    try:
        return bool(drawn(path, Options(), None, 1, 0))  # type: ignore[arg-type]
    except OnnxgenError:
        return False


def _told(found: Comparison) -> str:
    changes, weights_ = [str(c) for c in found.changes[:4]], [f"{w.name} {w.how}" for w in found.changed_weights[:4]]
    return f"{found.verdict}: {found.why} {changes} {weights_} {found.ports}"


def _located(found: Comparison, made: Planted) -> tuple[str, str]:
    is_function = made.part in ("changes", "weights")
    if is_function and found.verdict == "same":
        return "missed", _told(found)
    if made.part == "ports" and (
        found.verdict != "different" or not any(n in " ".join(found.ports) for n in made.names)
    ):
        return "missed", _told(found)
    if made.part == "file":
        if not any(n in " ".join(found.file) for n in made.names):
            return "missed", _told(found)
        return ("ok", "") if found.verdict == "same" and not found.changes else ("invented", _told(found))
    if made.part == "changes":
        return _in_changes(found, made)
    if made.part == "weights":
        return _in_weights(found, made)
    return "ok", ""


def _in_changes(found: Comparison, made: Planted) -> tuple[str, str]:
    named_ = [
        c for c in found.changes if {n for side in (c.was, c.now) if side is not None for n in side.nodes} & made.names
    ]
    if not named_:
        return "elsewhere", _told(found)
    if made.words and not any(made.words in c.what for c in named_):
        return "other words", _told(found)
    if len(found.changes) > (3 if made.words != "stride" else 9):
        return "invented", _told(found)
    return ("invented", _told(found)) if _values(found) else ("ok", "")


def _values(found: Comparison) -> bool:
    """Return True if the answer says that a tensor of the same shape has other values."""
    return any(w.how not in ("added", "removed", "resized") for w in found.changed_weights)


def _in_weights(found: Comparison, made: Planted) -> tuple[str, str]:
    values = [w for w in found.changed_weights if w.how not in ("added", "removed")]
    if len(values) != 1 or found.changes:
        return ("missed" if not values else "invented"), _told(found)
    if values[0].name not in made.keys:
        return "elsewhere", f"{values[0].name} is none of {made.keys}"
    if made.words and made.words not in values[0].what:
        return "other words", f"{values[0]}"
    return "ok", ""


def hunt(seed: int, cases: int, only: str | None, kept: bool | None) -> Counter[str]:
    """Judge cases; print each that is not as it should be, and the table."""
    kinds = [only] if only else [*(CHANGES if kept is not True else ()), *(KEEPS if kept is not False else ())]
    files, table, done, started = drawn_files(), Counter[str](), 0, time.monotonic()
    names = set()
    for path, kind, number in _draws(files, kinds, seed):
        if done >= cases:
            break
        verdict, why = judged(path, kind, number)
        what = "keep" if kind in KEEPS else "change"
        table[f"{what} {verdict}"] += 1
        if verdict == "void":
            if table[f"{what} void"] > 20 * cases:
                break
            continue
        done += 1
        names.add(path)
        if verdict != "ok":
            print(f"== {kind} {path.name} {number}: {verdict}: {why}"[:700], flush=True)
    took = time.monotonic() - started
    print(f"differences: {done} cases of {len(names)} files, seed {seed}: {dict(table)}, {took:.0f} s", flush=True)
    return table


def _draws(files: list[Path], kinds: list[str], seed: int) -> Iterator[tuple[Path, str, int]]:
    rng = random.Random(seed)
    number = 0
    while True:
        for kind in kinds:
            yield rng.choice(files), kind, seed + number
            number += 1
