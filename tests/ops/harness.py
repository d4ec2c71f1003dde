"""One-node models through the whole road, compared with onnxruntime or with stated outputs.

    run_node("Add", [a, b])                      # generated source against onnxruntime: value, shape and dtype
    run_node("Clip", [x, lo, None], initializers={1})
    run_case(case)                               # one of ONNX's own node tests, see `backend_cases`

Nothing is written but one small ONNX file: the source is executed in memory and its weights are handed over directly.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxgen.code import render
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.pipeline import build
from onnxgen.verify.graph import PRODUCTS
from onnxgen.verify.oracle import Onnxruntime
from onnxgen.weights.dtypes import TORCH_DTYPES
from tests.shapes.agreeing import hold_elements, hold_sizes
from tests.support.defaults import given_defaults
from tests.support.onnx_cases import node_cases

DEFAULTS = Options()
OBSERVERS: list[Callable[[onnx.ModelProto, Ran], None]] = []  # are shown what is about to be compared with onnxruntime
Value = Any  # an array, a list of arrays (a sequence) or None (absent)

# numpy's stand-ins for torch dtypes that numpy lacks
_EXTRA = {
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_BITS = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16)}
# relative and absolute tolerance by dtype, for results of different but equally good kernels
TOLERANCE = {
    "float64": (1e-9, 1e-11),
    "float32": (1e-5, 1e-6),
    "float16": (2e-3, 1e-3),
    "bfloat16": (2e-2, 1e-2),
    "complex64": (1e-5, 1e-6),
}


@dataclass
class Ran:
    """What a run made: `outputs` of the generated module as arrays, its `source`, the module, and what it should be."""

    outputs: list[Value]
    source: str
    model: torch.nn.Module
    expected: list[Value]

    @property
    def forward(self) -> str:
        """The body of the last class's `forward`, as text."""
        text = self.source.rpartition("def forward(")[2].partition("\n\nWEIGHTS = ")[0]
        return text.partition("\n")[2]


def to_torch(value: Value) -> Any:
    """An array as a tensor of the dtype in which generated code has it; lists by element, strings as they are."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [to_torch(v) for v in value]
    if isinstance(value, dict):
        return dict(value)
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return array.astype(object)
    wanted = getattr(torch, TORCH_DTYPES[ir.DataType.from_numpy(array.dtype)])
    if wanted in _EXTRA:
        numpy_bits, torch_bits = _BITS[array.dtype.itemsize]
        bits = torch.from_numpy(np.ascontiguousarray(array).view(numpy_bits).copy())
        return bits.reshape(array.shape).to(torch_bits).view(wanted)
    if array.dtype.kind not in "biufc":
        array = array.astype(np.float32 if wanted == torch.float32 else np.int8 if wanted == torch.int8 else np.uint8)
    return torch.from_numpy(np.array(array, order="C").view(array.dtype.name))  # ulonglong is not uint64 to torch


def to_numpy(value: Any) -> Value:
    """The way back."""
    if isinstance(value, (list, tuple)):
        return [to_numpy(v) for v in value]
    if isinstance(value, dict):
        return {key: to_numpy(held) for key, held in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    if value.dtype in _EXTRA:
        extra = _EXTRA[value.dtype]
        bits = value.contiguous().view(_BITS[extra.itemsize][1]).numpy()
        return bits.view(extra).reshape(tuple(value.shape))
    return value.numpy()


# ------------------------------------------------------------------------------------------------------- models


def node_model(
    op_type: str,
    inputs: Sequence[Value],
    attrs: dict[str, Any] | None = None,
    opset: int = 21,
    outputs: int | Sequence[str] = 1,
    initializers: set[int] | frozenset[int] = frozenset(),
    dynamic: bool | Container[int] = False,
    domain: str = "",
    producer: str = "",
) -> onnx.ModelProto:
    """A model of one node; `outputs` names them or says how many ("" for one that is left out).

    Inputs whose index is in `initializers` are stored in the file; the others are graph inputs, of named dims if
    `dynamic`, or only along the axes in it.
    """
    names = ["" if v is None else f"i{n}" for n, v in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    results = [f"o{n}" for n in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(op_type, names, results, name="node", domain=domain, **(attrs or {}))
    arguments = [(n, v) for n, v in zip(names, inputs) if n and int(n[1:]) not in initializers]
    graph = helper.make_graph(
        [node],
        "graph",
        [_declared(name, value, dynamic) for name, value in arguments],
        [onnx.ValueInfoProto(name=r) for r in results if r],
        [tensor_proto(inputs[i], names[i]) for i in sorted(initializers)],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, producer_name=producer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return onnx.shape_inference.infer_shapes(model)


def tensor_proto(value: Any, name: str) -> TensorProto:
    array = np.asarray(value)
    if array.dtype.kind in "biufcOUS":
        return numpy_helper.from_array(array, name)
    return ir.serde.serialize_tensor(ir.Tensor(array, name=name))


def _declared(name: str, value: Value, dynamic: bool | Container[int]) -> onnx.ValueInfoProto:
    first = np.asarray(value[0] if isinstance(value, list) and value else value)
    kind = TensorProto.STRING if first.dtype.kind in "OUS" else int(ir.DataType.from_numpy(first.dtype))
    if isinstance(value, list):
        return helper.make_tensor_sequence_value_info(name, kind, None)
    named = range(first.ndim * dynamic) if isinstance(dynamic, bool) else dynamic
    shape = [f"{name}_{axis}" if axis in named else d for axis, d in enumerate(first.shape)]
    return helper.make_tensor_value_info(name, kind, shape)


# ------------------------------------------------------------------------------------------------------ running


@contextlib.contextmanager
def unformatted() -> Iterator[None]:
    """Without black: it costs more than all else and changes nothing that runs."""
    formatted = render.formatted
    render.formatted = lambda source: source
    try:
        yield
    finally:
        render.formatted = formatted


def generate(model: onnx.ModelProto, options: Options = DEFAULTS, pretty: bool = False) -> Generated:
    """The generated source and weights of a model in memory. Raises `OnnxgenError` as `pipeline.build` does."""
    path = Path(_folder().name) / "model.onnx"
    path.unlink(missing_ok=True)  # what still maps the last one keeps it
    path.write_bytes(model.SerializeToString())
    with contextlib.nullcontext() if pretty else unformatted():
        return build(path, options, path.with_suffix(".py"))


@cache
def _folder() -> TemporaryDirectory[str]:
    """One for all models: removing a folder takes longer than anything else that a small one needs."""
    return TemporaryDirectory(prefix="onnxgen-tests-")


def instantiate(generated: Generated) -> torch.nn.Module:
    """The generated module with its weights, in eval mode."""
    namespace: dict[str, Any] = {"__file__": "/nowhere/model.py", "__name__": "generated"}
    tensors = {
        key: to_torch(t if isinstance(t, np.ndarray) else t.numpy()) for key, t in dict(generated.tensors).items()
    }
    exec(compile(generated.source, "<generated>", "exec"), namespace)
    namespace["constant"] = lambda key: tensors.get("constants." + key, tensors.get(key))
    made = namespace["Model"]()
    buffers = {key for key, _ in made.named_buffers()} - made.state_dict().keys()  # read by `constant`
    state = {key: t for key, t in tensors.items() if not key.startswith("constants.") and key not in buffers}
    for key in made.state_dict().keys() - state.keys():
        state[key] = made.state_dict()[key]  # tied to one that is there
    made.load_state_dict(state, strict=True)
    return made.eval()


def run_model(model: onnx.ModelProto, feeds: dict[str, Value], options: Options = DEFAULTS) -> Ran:
    """Generate a model and run it; nothing is compared."""
    generated = generate(model, options)
    module = instantiate(generated)
    stored = {i.name for i in model.graph.initializer}
    arguments = [to_torch(feeds[i.name]) for i in model.graph.input if i.name not in stored]
    with torch.no_grad():
        made = module(*arguments)
    outputs = [to_numpy(m) for m in (made if isinstance(made, tuple) else (made,))]
    assert given_defaults(generated.source) == [], "what torch takes anyway is not written"
    return Ran(outputs, generated.source, module, [])


def run_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Value]) -> list[Value]:
    """What onnxruntime (its optimisations off, but for exact products of bytes) computes."""
    import onnxruntime as ort

    if any(PRODUCTS.fullmatch(node.op_type) for node in model.graph.node):
        session = Onnxruntime(Path("model.onnx"), model, (), alone=True, exact=True).session
    else:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    return list(session.run(None, {k: v for k, v in feeds.items() if k in wanted}))


def assert_same(actual: Value, expected: Value, rtol: float | None = None, atol: float | None = None) -> None:
    """Value, shape and dtype; NaN equals NaN."""
    if isinstance(expected, list):
        assert isinstance(actual, list) and len(actual) == len(expected), (actual, expected)
        for a, e in zip(actual, expected):
            assert_same(a, e, rtol, atol)
        return
    if expected is None:
        assert actual is None, actual
        return
    if isinstance(expected, dict):
        assert isinstance(actual, dict) and actual.keys() == expected.keys(), (actual, expected)
        for key, held in expected.items():  # onnxruntime hands out numbers as Python's
            assert_same(actual[key], np.asarray(held, np.float32) if isinstance(held, float) else held, rtol, atol)
        return
    expected, actual = np.asarray(expected), np.asarray(actual)
    assert actual.shape == expected.shape, f"shape {actual.shape}, not {expected.shape}"
    if expected.dtype.kind in "OUS":
        assert actual.astype(str).tolist() == expected.astype(str).tolist()
        return
    assert to_torch(expected[..., :0] if expected.ndim else expected).dtype == to_torch(actual).dtype, (
        f"dtype {actual.dtype}, not {expected.dtype}"
    )
    kind = expected.dtype.name
    relative, absolute = TOLERANCE.get(kind, (0.0, 0.0))
    if expected.dtype.kind not in "biufc":  # ml_dtypes
        wide = np.int64 if kind.startswith(("int", "uint")) else np.float32
        expected, actual = expected.astype(wide), actual.astype(wide)
    np.testing.assert_allclose(
        actual,
        expected,
        rtol=relative if rtol is None else rtol,
        atol=absolute if atol is None else atol,
        equal_nan=True,
    )


def run_node(
    op_type: str,
    inputs: Sequence[Value],
    attrs: dict[str, Any] | None = None,
    opset: int = 21,
    outputs: int | Sequence[str] = 1,
    initializers: set[int] | frozenset[int] = frozenset(),
    dynamic: bool = False,
    domain: str = "",
    expected: Sequence[Value] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    compare: bool = True,
) -> Ran:
    """Build a one-node model, generate it, run it, and compare with onnxruntime (or with `expected`).

    Arguments as of `node_model`. `compare=False`: only run (outputs that are random).
    """
    model = node_model(op_type, inputs, attrs, opset, outputs, initializers, dynamic, domain)
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None and n not in initializers}
    ran = run_model(model, feeds)
    if compare:
        ran.expected = list(run_onnxruntime(model, feeds) if expected is None else expected)
        for observe in OBSERVERS if expected is None else ():
            observe(model, ran)
        assert len(ran.outputs) == len(ran.expected)
        for actual, wanted in zip(ran.outputs, ran.expected):
            assert_same(actual, wanted, rtol, atol)
        no_strings = op_type == "Tokenizer" and np.size(inputs[0]) == 0  # it leaves out an axis of no length, then
        if domain and not no_strings:  # `tests/shapes/test_node_cases.py` has the others
            hold_sizes(model, feeds, ran.expected)
            hold_elements(model, feeds, ran.expected)
    return ran


def refusal(op_type: str, inputs: Sequence[Value], *args: Any, **kwargs: Any) -> str:
    """The message of the `OnnxgenError` that such a node is refused with; fails if it is not."""
    try:
        generate(node_model(op_type, inputs, *args, **kwargs))
    except OnnxgenError as error:
        return str(error)
    raise AssertionError(f"{op_type} was not refused")


# ------------------------------------------------------------------------------------- ONNX's own tests and schemas


@cache
def _cases() -> tuple[Any, ...]:
    return tuple(node_cases())


def all_cases() -> tuple[Any, ...]:
    """All of ONNX's own node tests."""
    return _cases()


def backend_cases(*op_types: str, expanded: bool = False) -> list[Any]:
    """ONNX's own node tests for some operators: `case.name`, `case.model`, `case.data_sets`.

    `expanded`: those in which the node is replaced by its function body, instead.
    """
    if expanded:
        prefixes = {c.name + "_" for c in backend_cases(*op_types)}
        return [c for c in _cases() if "_expanded" in c.name and any(c.name.startswith(p) for p in prefixes)]
    return [
        c
        for c in _cases()
        if "_expanded" not in c.name and any(n.op_type in op_types and not n.domain for n in c.model.graph.node)
    ]


def run_case(case: Any, rtol: float | None = None, atol: float | None = None) -> Ran:
    """Generate and run one of ONNX's node tests and compare with the outputs that it states."""
    ran = None
    for inputs, outputs in case.data_sets:
        names = [i.name for i in case.model.graph.input]
        ran = run_model(case.model, dict(zip(names, map(as_array, inputs))))
        ran.expected = [as_array(o) for o in outputs]
        assert len(ran.outputs) == len(ran.expected)
        for actual, wanted in zip(ran.outputs, ran.expected):
            assert_same(actual, wanted, rtol or case.rtol, atol or case.atol)
    assert ran is not None, "a case without data"
    return ran


def as_array(value: Any) -> Value:
    if isinstance(value, TensorProto):
        return ir.serde.deserialize_tensor(value).numpy()
    if isinstance(value, onnx.SequenceProto):
        return [as_array(v) for v in numpy_helper.to_list(value)]
    if isinstance(value, onnx.OptionalProto):
        return as_array(numpy_helper.to_optional(value))
    if isinstance(value, (list, tuple)):
        return [as_array(v) for v in value]
    return value


def unbound_names(op_type: str, domain: str = "") -> list[str]:
    """Every schema input or attribute of every version of an operator that its function can't be given; [] is right."""
    from onnxgen.graph.operators import find
    from onnxgen.lowering.lower import IGNORED_ATTRIBUTES

    missing = []
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.name != op_type or schema.domain != domain or schema.deprecated:
            continue
        operator = find(domain, op_type, schema.since_version)
        if operator is None:
            missing.append(f"{op_type}-{schema.since_version}: not registered")
            continue
        for name in [*(i.name for i in schema.inputs), *schema.attributes]:
            if operator.renames.get(name, name) not in operator.parameters and name not in IGNORED_ATTRIBUTES:
                missing.append(f"{op_type}-{schema.since_version}: {name}")
    return missing
