"""The zoo is what it says: every case exports or is refused as recorded, and the file computes what the module does.

What is generated from the file is then held to the module, too (`tests.zoo.road`).
"""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from tests.support.exporter import keep_tables
from tests.zoo import ZOO, Entry
from tests.zoo.export import CASES, DYNAMO_OPSETS, Case, as_recorded, export, quiet
from tests.zoo.rnn import Tagger
from tests.zoo.road import RANDOM, Road

WHOLE = bool(os.environ.get("ONNXGEN_WHOLE_ZOO"))


VARIANTS = {"resnet_bottleneck", "unet_nearest", "unet_bilinear", "gru_tagger", "encoder_prenorm"}
# dynamo's export in training mode is read in `test_zoo_training.py`, too, or in `test_golden.py`, to the same text
ELSEWHERE = {"resnet18", "vit", "llama", "bert", "encoder", "decoder", "gru_last", "unet_transpose"}
LARGE = {
    "resnet50",
    "mobilenet_v3",
    "efficientnet",
    "densenet",
    "convnext",
    "swin",
    *(n for n in ZOO if n.startswith("hf_")),
}


def cases() -> Iterator[Any]:
    """Every network in every case. A dynamo export takes seconds, so by default a network has two of its four: one
    opset in evaluation and the other in training mode, the other way round for the next network; and a variant of
    another network has one, as has what other tests export in training mode. A large one has none, and no old opset:
    `test_zoo_training.py` has it, too. Opset 11 lies between two others, and has evaluation and training in turn."""
    for number, name in enumerate(ZOO):
        for case in CASES:
            skipped = case.exporter == "dynamo" and (
                (DYNAMO_OPSETS.index(case.opset) + case.training + number) % 2
                or (case.training and name in VARIANTS | ELSEWHERE)
            )
            skipped = skipped or (name in LARGE and (case.exporter, case.opset) != ("legacy", 17))
            skipped = skipped or (case.opset == 11 and (number + case.training) % 2)
            marks = pytest.mark.skipif(bool(skipped) and not WHOLE, reason="only with ONNXGEN_WHOLE_ZOO=1")
            yield pytest.param(name, case, id=f"{name}-{case}", marks=marks)


def run_onnx(path: Path, entry: Entry, inputs: tuple[Tensor, ...]) -> list[np.ndarray[Any, Any]]:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {name: x.numpy() for name, x in zip(entry.input_names, inputs, strict=True)})


def run_torch(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        result = model(*inputs)
    return result if isinstance(result, tuple) else (result,)


def agrees(path: Path, entry: Entry, model: nn.Module, batch: int) -> bool:
    inputs = entry.inputs(batch)
    expected, got = run_torch(model, inputs), run_onnx(path, entry, inputs)
    assert [y.shape for y in expected] == [y.shape for y in got]
    return all(close(a.numpy(), b) for a, b in zip(expected, got, strict=True))


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """To rounding: what fifty batch norms divide by their own statistics has lost the last digits of the largest."""
    return np.allclose(a, b, rtol=1e-3, atol=1e-5 + 2e-5 * float(np.abs(a).max()))


@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_exports_and_agrees(name: str, case: Case, tmp_path: Path) -> None:
    entry, path = ZOO[name], tmp_path / "model.onnx"
    refusal = entry.refusal(case)
    if refusal is not None:
        with pytest.raises(Exception) as caught, quiet():
            export(entry, path, case.exporter, case.opset, case.training)
        assert refusal in str(caught.value)
        return
    model = export(entry, path, case.exporter, case.opset, case.training)
    assert model.training == case.training
    road = Road(name, entry, case, path, copy.deepcopy(model), tmp_path)  # an export takes longer than all the rest
    file = onnx.load(path)
    assert {o.domain: o.version for o in file.opset_import}[""] == case.opset
    assert tuple(i.name for i in file.graph.input) == entry.input_names
    assert tuple(o.name for o in file.graph.output) == entry.output_names
    for value in file.graph.input:
        dims = value.type.tensor_type.shape.dim
        static = entry.static_in_dynamo if case.exporter == "dynamo" else frozenset()
        dynamic = {axis for axis, dim in entry.dynamic.get(value.name, {}).items() if dim not in static}
        assert {axis for axis, dim in enumerate(dims) if dim.dim_param} == dynamic, value.name
    if not case.training:
        exact = entry.inexactness(case) is None
        assert agrees(path, entry, model, 2) == exact and agrees(path, entry, model, 3) == exact
    elif not RANDOM & {n.op_type for n in file.graph.node} and (case.exporter == "dynamo" or case.opset >= 14):
        # onnxruntime has no batch statistics before opset 14; a random file has no result to compare.
        assert agrees(path, entry, as_recorded(model, case.exporter), 3)
    road.check()


def batch_norms(file: onnx.ModelProto) -> list[bool]:
    """For each BatchNormalization whether the file says that it trains."""
    nodes = [n for n in file.graph.node if n.op_type == "BatchNormalization"]
    return [len(n.output) == 5 or any(a.name == "training_mode" and a.i for a in n.attribute) for n in nodes]


@pytest.mark.parametrize("case", [c for c in CASES if c.training], ids=str)
def test_what_a_training_file_records(case: Case, tmp_path: Path) -> None:
    """Legacy: BatchNorm and Dropout train. Dynamo: Dropout trains, BatchNorm does not. `as_recorded` relies on it."""
    path = tmp_path / "model.onnx"
    export(ZOO["cnn"], path, case.exporter, case.opset, training=True)
    file = onnx.load(path)
    assert batch_norms(file) == [case.exporter == "legacy"] * 2
    assert sum(n.op_type == "Dropout" for n in file.graph.node) == 1


@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].static_in_dynamo])
def test_static_dims_are_still_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="inferred a static shape"), quiet():
        export(replace(ZOO[name], static_in_dynamo=frozenset()), tmp_path / "model.onnx", "dynamo", 18)


@pytest.mark.parametrize(("name", "kind"), [("lstm_tagger", "LSTM"), ("gru_tagger", "GRU")])
def test_an_export_does_not_depend_on_the_one_before(name: str, kind: str, tmp_path: Path) -> None:
    """One layer of it and two steps are enough: it would be unrolled the second time."""
    path, (ids,) = tmp_path / "model.onnx", ZOO[name].inputs()
    one_layer = {"build": lambda: Tagger(kind, 1, bidirectional=False), "inputs": lambda: (ids[:, :2],)}
    entry = replace(ZOO[name], **one_layer)
    for _ in range(2):
        export(entry, path, "dynamo", 18, keep=False)
        assert sum(n.op_type == kind for n in onnx.load(path).graph.node) == 1


@pytest.mark.parametrize("name", ZOO)
def test_made_alike_every_time(name: str) -> None:
    first, second = ZOO[name].make(), ZOO[name].make()
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(ZOO[name].inputs(3), ZOO[name].inputs(3), strict=True))


def test_gpt2_is_tied() -> None:
    model: Any = ZOO["gpt2"].make()
    assert model.lm_head.weight is model.transformer.wte.weight


def test_tables_that_are_kept_are_those_that_torch_makes() -> None:
    """An export that adds an operator leaves the next one's table alone; operators that come later are found."""
    keep_tables(anyway=True)
    tables: Any = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    relu = torch.ops.aten.relu.default
    first = tables.from_torchlib()
    known = first.get_decomps(relu)
    first.register_op(relu, lambda x: x)
    assert known and len(first.get_decomps(relu)) == len(known) + 1
    assert tables.from_torchlib().get_decomps(relu) == known

    look_up = importlib.import_module("torch._export.utils")._materialize_cpp_cia_ops
    look_up()
    library = torch.library.Library("onnxgen_later", "DEF")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x, "CompositeImplicitAutograd")
    look_up()
    assert "same" in vars(torch.ops.onnxgen_later)
