"""Takes one real ONNX file down the whole road and compares with its reference: outputs, gradients, way back."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator
from safetensors import safe_open

from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.pipeline import generate
from onnxgen.weights.provenance import rebuild

DEFAULTS = Options()
RTOL, ATOL = 1e-3, 1e-5  # float32; float16 has 11 bits
HALF_RTOL, HALF_ATOL = 1e-2, 1e-3


@dataclass
class Run:
    """One file generated, imported and run.

    Attributes:
        generated: what the pipeline made.
        module: the imported file.
        model: `from_pretrained()` in eval mode.
        outputs: what it returned, one entry a graph output.
    """

    generated: Generated
    module: ModuleType
    model: torch.nn.Module
    outputs: tuple[Any, ...] = field(default_factory=tuple)


def imported(path: Path) -> ModuleType:
    """Import a generated file by its path, under a name of its own."""
    name = f"generated_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def tensor(array: Any) -> Any:
    """A numpy array as `forward` takes it (strings stay numpy)."""
    return array if array.dtype == object else torch.from_numpy(np.array(array))


def run(path: Path, folder: Path, feeds: dict[str, Any], options: Options = DEFAULTS) -> Run:
    """Generate into `folder`, import, load the weights, and run in eval mode."""
    generated = generate(path, folder / "model.py", options)
    module = imported(folder / "model.py")
    model = module.Model.from_pretrained().eval()
    outputs = model(*[tensor(a) for a in feeds.values()])
    return Run(generated, module, model, outputs if isinstance(outputs, tuple) else (outputs,))


def computes_in_half(path: Path) -> bool:
    """Whether a file computes in float16 or bfloat16: its results are then right to those types' precision, whatever
    type they are cast to at the end (onnxruntime on CPU has few such kernels and computes in float32 instead)."""
    halves = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    graph = onnx.load(path, load_external_data=False).graph
    casts = {a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"}
    declared = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    return bool(halves & (casts | declared | {t.data_type for t in graph.initializer}))


def by_the_letter(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """What ONNX's reference evaluator makes of a file: each operator rounds to its own type.

    For files that compute in half precision: onnxruntime on CPU has few such kernels, and else keeps float32 between.
    """
    model = ir.load(path)
    model.graph.sort()  # the evaluator runs nodes in the order in which they stand
    evaluator = ReferenceEvaluator(ir.serde.serialize_model(model))
    return dict(zip(evaluator.output_names, evaluator.run(None, feeds)))


def assert_same(name: str, ours: Any, reference: Any, values: bool = True, half: bool = False) -> None:
    """Shape, dtype and, unless the reference is random, every value (`half`: to float16's precision)."""
    if reference is None or isinstance(reference, (list, dict)):
        assert isinstance(ours, type(reference)), name
        for i, (a, b) in enumerate(zip(ours or [], reference or [], strict=True)):
            assert_same(f"{name}[{i}]", a, b, values, half)
        return
    array = ours.detach().cpu().numpy() if isinstance(ours, torch.Tensor) else np.asarray(ours)
    assert array.shape == reference.shape, f"{name}: shape {array.shape}, reference {reference.shape}"
    assert array.dtype == reference.dtype, f"{name}: dtype {array.dtype}, reference {reference.dtype}"
    if not values:
        return
    if array.dtype.kind == "f":
        rtol, atol = (HALF_RTOL, HALF_ATOL) if half or array.dtype == np.float16 else (RTOL, ATOL)
        np.testing.assert_allclose(array.astype(np.float64), reference, rtol, atol, err_msg=name)
    else:
        np.testing.assert_array_equal(array, reference, err_msg=name)


def compare(made: Run, expected: dict[str, Any], values: bool, half: bool) -> None:
    """Hold each output to the reference's."""
    for (name, theirs), ours in zip(expected.items(), made.outputs):
        assert_same(name, ours, theirs, values, half)


def assert_finite_gradients(made: Run) -> int:
    """A backward pass gives every trained parameter a finite gradient; returns how many there are.

    From an output that is not finite itself nothing finite need flow: only that a gradient arrives is asked of those.
    """
    floats = [o for o in made.outputs if isinstance(o, torch.Tensor) and o.is_floating_point() and o.requires_grad]
    parameters = {n: p for n, p in made.model.named_parameters() if p.requires_grad}
    if not parameters:
        return 0
    assert floats, "there are trained parameters, and no output depends on them"
    branches = _branches(made.generated.source)
    finite = [o for o in floats if bool(torch.isfinite(o).all())]
    total = sum((o.double().sum() for o in floats), torch.zeros((), dtype=torch.float64))
    again = len(finite) < len(floats)
    gradients = torch.autograd.grad(total, list(parameters.values()), retain_graph=again, allow_unused=True)
    missing = [n for n, g in zip(parameters, gradients) if g is None and not _is_in(n, branches)]
    assert not missing, f"no gradient reached {missing}"
    if again:
        total = sum((o.double().sum() for o in finite), torch.zeros((), dtype=torch.float64, requires_grad=True))
        gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    infinite = [n for n, g in zip(parameters, gradients) if g is not None and not bool(torch.isfinite(g).all())]
    assert not infinite, f"gradients that are not finite: {infinite}"
    return len(parameters)


def _branches(source: str) -> str:
    """The bodies of every `if` in the classes' methods: one of two runs, and only its parameters get a gradient."""
    found = []
    for top in ast.parse(source).body:
        if isinstance(top, ast.ClassDef):
            found += [ast.unparse(s) for n in ast.walk(top) if isinstance(n, ast.If) for s in (*n.body, *n.orelse)]
    return re.sub(r"""\[["']?(\w+)["']?\]""", r".\1", "\n".join(found))


def _is_in(parameter: str, code: str) -> bool:
    """Whether code uses a parameter, or calls a module that it belongs to."""
    parts = parameter.split(".")
    called = (rf"\bself\.{re.escape('.'.join(parts[:n]))}\(" for n in range(1, len(parts)))
    return any(re.search(pattern, code) for pattern in (*called, rf"\bself\.{re.escape(parameter)}\b"))


def stored_tensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor of the file by name, read by onnx alone: initializers and Constant nodes, also of subgraphs."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    model = onnx.load(path)
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        found.update({t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer})
        for node in graph.node:
            pending.extend(a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
            for a in node.attribute:
                if node.op_type == "Constant" and a.type == onnx.AttributeProto.TENSOR:
                    found[node.output[0]] = onnx.numpy_helper.to_array(a.t)
                elif node.op_type == "Constant" and a.name in ("value_float", "value_floats"):
                    found[node.output[0]] = np.asarray(onnx.helper.get_attribute_value(a), np.float32)
    return found


def assert_way_back(made: Run, path: Path) -> int:
    """Every trained tensor of the file, rebuilt from the sidecar bit for bit; returns how many there are."""
    originals = stored_tensors(path)
    trained = [name for name, (yes, _) in made.generated.report.trainable.items() if yes]
    if not trained:
        return 0
    with safe_open(made.generated.weights, "np") as file:
        record = json.loads(file.metadata()["wayback"])
        for name in trained:
            assert name in record, f"trained tensor {name!r} has no way back"
            original, rebuilt = originals[name], rebuild(record, name, file.get_tensor)
            assert rebuilt.shape == original.shape and rebuilt.dtype == original.dtype, name
            assert rebuilt.tobytes() == original.tobytes(), f"{name!r} comes back different"
    return len(trained)
