"""A module that is a part of its network is written back into the whole graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnxgen
from onnxgen.export import ExportReport
from onnxgen.export.report import BACK
from onnxgen.heads.reading import find_tail
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.training.goals.detection.boxes import Decoder, to_centres
from tests.export.trained import blank, perturbed
from tests.heads import small
from tests.support.real import imported
from tests.zoo import detectors

RANDOM = np.random.default_rng(0)


def values(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def two_layers(second: str, extra: list[onnx.NodeProto] | None = None, bias: str = "b") -> onnx.ModelProto:
    """Two convolutions with one bias. The module ends in `a`, between them."""
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["a"]), helper.make_node("Relu", ["a"], ["r"]), *(extra or [])]
    nodes += [helper.make_node("Conv", ["r", second, bias], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 2, 2]) for name in ("x", "y")]
    tensors = {"w": values(4, 4, 1, 1), "v": values(4, 4, 1, 1), "b": np.zeros(4, np.float32)}
    stored = [numpy_helper.from_array(a, n) for n, a in tensors.items() if n != "v" or second == "v"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def exported(model: onnx.ModelProto, folder: Path, external: bool = False) -> tuple[ExportReport, dict[str, Any]]:
    """Generate the part up to `a`, move its values, write it back. Return the report, and the convolutions' tensors."""
    onnx.save(model, folder / "m.onnx", save_as_external_data=external, location="m.data", size_threshold=0)
    onnxgen.generate(folder / "m.onnx", folder / "model.py", Options(outputs=["a"]))
    part = imported(folder / "model.py").Model.from_pretrained()
    part.load_state_dict(perturbed(part))
    report = onnxgen.export(folder / "model.py", weights=part, out=folder / "out.onnx")
    assert report.method == BACK and report.verified is not None and report.verified.agrees
    made = onnx.load(folder / "out.onnx")
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    convolutions = [node for node in made.graph.node if node.op_type == "Conv"]
    names = ("w1", "b1"), ("w2", "b2")
    found = {k: stored.get(v) for n, keys in zip(convolutions, names) for k, v in zip(keys, n.input[1:])}
    assert np.array_equal(found["b1"], part.state_dict()["conv.bias"].numpy()) and found["b1"].any()
    return report, found


@pytest.mark.parametrize("external", [False, True], ids=["inline", "external"])
def test_the_rest_keeps_a_bias_that_it_shares(tmp_path: Path, external: bool) -> None:
    model = two_layers("v")
    kernel = numpy_helper.to_array(model.graph.initializer[1])
    report, found = exported(model, tmp_path, external)
    assert not found["b2"].any() and np.array_equal(found["w2"], kernel)
    assert report.added == ["b_2"] and "b stays as it is in the rest of the network: b_2" in report.notes


def test_also_behind_an_identity(tmp_path: Path) -> None:
    """PyTorch's older exporter writes one for a parameter that equals another."""
    _, found = exported(two_layers("v", [helper.make_node("Identity", ["b"], ["c"])], "c"), tmp_path)
    assert not found["b2"].any()


def test_numbers_that_are_no_tensor_have_no_rank(tmp_path: Path) -> None:
    """The rest adds a list of floats that a Constant has as an attribute."""
    model = two_layers("v", [helper.make_node("Constant", [], ["c"], value_floats=[0.0])])
    model.graph.node.insert(3, helper.make_node("Add", ["r", "c"], ["s"]))
    model.graph.node[4].input[0] = "s"
    report, _ = exported(model, tmp_path)
    assert report.added == ["b_2"]


def test_the_rest_follows_a_tied_layer(tmp_path: Path) -> None:
    report, found = exported(two_layers("w"), tmp_path)
    assert np.array_equal(found["w1"], found["w2"]) and np.array_equal(found["b1"], found["b2"])
    assert report.added == [] and "the rest of the network has b, w, too" in report.notes


def test_of_what_the_rest_follows_three_are_named(tmp_path: Path) -> None:
    """Of a tied layer and the two functions behind it, which have a number for each channel."""
    model = two_layers("w")
    conv, relu, last = model.graph.node
    conv.output[0], last.output[0] = "a0", "y0"
    slopes = [helper.make_node("PRelu", [f"{v}{i}", s], [f"{v}{i + 1}"]) for v in "ay" for i, s in enumerate("pq")]
    slopes[1].output[0], slopes[3].output[0] = "a", "y"
    nodes = [conv, *slopes[:2], relu, last, *slopes[2:]]
    model.graph.initializer.extend(numpy_helper.from_array(values(4, 1, 1), name) for name in "pq")
    model.graph.CopyFrom(helper.make_graph(nodes, "g", model.graph.input, model.graph.output, model.graph.initializer))
    report, _ = exported(model, tmp_path)
    assert "the rest of the network has b, p, q, too, and 1 more" in report.notes


def test_the_tail_of_a_detector_stays(tmp_path: Path) -> None:
    """The exported file decodes the boxes of the trained module's raw maps, by nodes that have not changed."""
    torch.manual_seed(0)
    path = small.export(small.Thin(detectors.yolov8()), tmp_path / "net.onnx")
    tail = find_tail(read(path, Options()))
    onnxgen.generate(path, tmp_path / "net.py", Options(outputs=tail.maps))
    module = vars(imported(tmp_path / "net.py")).values()
    net: Any = next(found for found in module if hasattr(found, "from_pretrained")).from_pretrained().eval()
    net.load_state_dict(perturbed(net))
    report = onnxgen.export(tmp_path / "net.py", weights=net, out=tmp_path / "tuned.onnx")
    assert report.method == BACK and report.verified is not None and report.verified.agrees
    before, after = onnx.load(path), onnx.load(tmp_path / "tuned.onnx")
    assert blank(after).graph.output == before.graph.output
    for old, new in zip(before.graph.node, onnx.load(tmp_path / "tuned.onnx").graph.node, strict=True):
        renamed = [f"{n}_{i}" for n in old.input for i in range(2, 20)]  # shared biases
        assert all(a == b or b in renamed for a, b in zip(old.input, new.input, strict=True))
        del old.input[:], new.input[:]
        assert old == new
    images = np.random.default_rng(1).random((1, 3, *small.IMAGE), np.float32)
    session = ort.InferenceSession(tmp_path / "tuned.onnx", providers=["CPUExecutionProvider"])
    (whole,) = session.run(None, {"images": images})
    with torch.no_grad():
        found = Decoder(tail)(net(torch.from_numpy(images)))
    wanted = torch.cat((to_centres(found.boxes), found.scores), -1).transpose(1, 2)
    np.testing.assert_allclose(whole, wanted.numpy(), 1e-4, 1e-4)
