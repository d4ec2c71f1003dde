"""A number that differs between places which are alike is a parameter; one that a person types is a constant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import helper, numpy_helper

from onnxgen import generate
from onnxgen.options import Options
from onnxgen.passes.roles import is_typed
from tests.ops.harness import assert_same, run_onnxruntime
from tests.support.real import assert_way_back, imported, run

LEARNED = (1.3841065, 2.1115580, 2.4821107, 1.5236348, 2.1388680, 2.8309770)


def blocks(
    path: Path, scales: Sequence[float], producer: str = "", op: str = "Mul", shifts: Sequence[float] = ()
) -> onnx.ModelProto:
    """Convolutions whose results are multiplied by a number, each in a Constant node; `shifts` are added then."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i, scale in enumerate(scales):
        name = f"layers.{i}.weight" if producer == "pytorch" else f"w{i}"
        weights.append(numpy_helper.from_array(random.standard_normal((4, 4, 1, 1)).astype("float32"), name))
        number = numpy_helper.from_array(np.array([scale], "float32"), f"number{i}")
        nodes.append(helper.make_node("Constant", [], [f"number{i}"], value=number))
        nodes.append(helper.make_node("Conv", [x, name], [f"c{i}"]))
        nodes.append(helper.make_node(op, [f"c{i}", f"number{i}"], [f"m{i}"]))
        if shifts:
            shift = numpy_helper.from_array(np.array(shifts[i], "float32"), f"shift{i}")
            nodes.append(helper.make_node("Constant", [], [f"shift{i}"], value=shift))
            nodes.append(helper.make_node("Add", [f"shift{i}", f"m{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Relu", [f"s{i}" if shifts else f"m{i}"], [x := f"r{i}"]))
    io = [helper.make_tensor_value_info(v, 1, ["n", 4, 8, 8]) for v in ("x", x)]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], weights)
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name=producer, ir_version=8)
    onnx.save(model, path)
    return model


def test_numbers_that_differ_are_parameters(tmp_path: Path) -> None:
    model = blocks(tmp_path / "net.onnx", LEARNED)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    scales = [p for name, p in made.model.named_parameters() if name.endswith("scale")]
    assert [p.item() for p in scales] == [np.float32(scale) for scale in LEARNED]
    assert made.generated.source.count("(nn.Module):") == 2, "the blocks are one class"


SHIFTS = (0.118325417, -0.284001352, 0.0771934186, -0.331022632, 0.492115073, -0.0593177452)


def test_a_learned_scale_and_bias_are_a_layer(tmp_path: Path) -> None:
    """Whether a number is stored with or without an axis; it is trained, and written back."""
    model = blocks(tmp_path / "net.onnx", LEARNED, shifts=SHIFTS)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    layers = [m for m in made.model.modules() if type(m).__name__ == "LearnableAffine"]
    text = (tmp_path / "model.py").read_text()
    assert text.index("class LearnableAffine") < text.index("LearnableAffine()") < text.index("WEIGHTS =")
    assert [m.scale.item() for m in layers] == [np.float32(scale) for scale in LEARNED]
    assert [m.bias.item() for m in layers] == [np.float32(shift) for shift in SHIFTS]
    assert_way_back(made, tmp_path / "net.onnx")
    made.outputs[0].sum().backward()
    assert all(p.grad is not None for p in made.model.parameters())


def test_second_names_of_values_hide_nothing(tmp_path: Path) -> None:
    """PaddlePaddle's newer exporter puts an Identity behind every node."""
    model = blocks(tmp_path / "net.onnx", LEARNED, shifts=SHIFTS)
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type != "Constant" and node.output[0] != model.graph.output[0].name:
            nodes.append(helper.make_node("Identity", [f"{node.output[0]}_"], [node.output[0]]))
            node.output[0] += "_"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "net.onnx")
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    assert sum(type(m).__name__ == "LearnableAffine" for m in made.model.modules()) == len(LEARNED)


@pytest.mark.parametrize(
    "options", [Options(frozen="number3|shift4"), Options(dtype="float16")], ids=["frozen", "half"]
)
def test_numbers_that_are_not_trained_are_no_layer(options: Options, tmp_path: Path) -> None:
    blocks(tmp_path / "net.onnx", LEARNED, shifts=SHIFTS)
    generate(tmp_path / "net.onnx", tmp_path / "net.py", options)
    model = imported(tmp_path / "net.py").Model.from_pretrained()
    layers = [m for m in model.modules() if type(m).__name__ == "LearnableAffine"]
    assert len(layers) == (4 if options.frozen else 6)
    assert all(p.requires_grad for m in layers for p in m.parameters())
    fresh = {p.dtype for p in imported(tmp_path / "net.py").Model().parameters()}
    assert fresh == {torch.float16 if options.dtype else torch.float32}


def changed(model: onnx.ModelProto, change: str) -> onnx.ModelProto:
    """The network of blocks with numbers that are more than a layer's own."""
    if change == "output":
        model.graph.output.append(helper.make_tensor_value_info("number3", 1, []))
    else:
        for node in model.graph.node:
            for i, name in enumerate(node.input):
                node.input[i] = named(name)
            node.output[0] = named(node.output[0])
        for tensor in model.graph.initializer:
            tensor.name = named(tensor.name)
    return model


def named(name: str) -> str:
    """The names of a block that owns its two numbers beside its convolution."""
    kinds = {"w": "conv.weight", "number": "scale", "shift": "bias"}
    found = re.fullmatch(r"(w|number|shift)(\d)", name)
    return name if found is None else f"blocks.{found[2]}.{kinds[found[1]]}"


@pytest.mark.parametrize("shape", [[], None], ids=["no axes", "unknown"])
def test_a_value_without_axes_gets_none(shape: list[int] | None, tmp_path: Path) -> None:
    """The layer's numbers have an axis, which they would give to the result."""
    nodes, tensors, x = [], [], "x"
    for i, numbers in enumerate(zip(LEARNED, SHIFTS, strict=True)):
        tensors += [numpy_helper.from_array(np.float32(n), f"n{i}.{k}") for k, n in enumerate(numbers)]
        nodes += [
            helper.make_node("Mul", [x, f"n{i}.0"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", f"n{i}.1"], [f"a{i}"]),
        ]
        nodes.append(helper.make_node("Tanh", [f"a{i}"], [x := f"t{i}"]))
    io = [helper.make_tensor_value_info(name, 1, shape) for name in ("x", x)]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    feeds = {"x": np.array(0.3, "float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize(("change", "count"), [("output", 5), ("names", 0)])
def test_what_is_more_than_a_layers_own_is_no_layer(change: str, count: int, tmp_path: Path) -> None:
    model = changed(blocks(tmp_path / "net.onnx", LEARNED, shifts=SHIFTS), change)
    onnx.save(model, tmp_path / "net.onnx")
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    for ours, theirs in zip(made.outputs, run_onnxruntime(model, feeds), strict=True):
        assert_same(ours.detach().numpy(), theirs)
    assert sum(type(m).__name__ == "LearnableAffine" for m in made.model.modules()) == count
    assert sum(p.numel() for p in made.model.parameters()) == 6 * 18


@pytest.mark.parametrize(
    ("scales", "producer", "op"),
    [
        ((1.3841065,) * 4, "", "Mul"),  # equal everywhere
        ((0.5, 3.0, 1 / 6, 0.044715), "", "Mul"),  # typed
        ([d**-0.5 for d in (32, 48, 96, 160)], "", "Mul"),  # the scales of attention
        (LEARNED[:2], "", "Mul"),  # two may be anything
        (LEARNED, "pytorch", "Mul"),  # its parameters are initializers
        (LEARNED, "", "Pow"),  # an exponent
        ((2.0, 3.0, 6.0, 255.0), "", "Div"),
    ],
)
def test_constants_stay_constants(scales: Sequence[float], producer: str, op: str, tmp_path: Path) -> None:
    blocks(tmp_path / "net.onnx", scales, producer, op)
    made = generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert "nn.Parameter" not in made.source


@pytest.mark.parametrize(
    "cut",
    [
        "c0, c1, c2 = Split <axis = 1> (x)",
        " ".join(f"i{i} = Constant <value_ints = [{i}]> () c{i} = Gather <axis = 1> (x, i{i})" for i in range(3)),
    ],
)
def test_columns_of_the_input_are_normalised(cut: str, tmp_path: Path) -> None:
    """Each with a mean and a deviation of its own, which are no parameters."""
    columns = " ".join(f"s{i} = Mul (c{i}, scale{i}) m{i} = Add (s{i}, mean{i})" for i in range(3))
    text = f"""<ir_version: 8, opset_import: ["" : 12]> net (float[N, 3, 8, 8] x) => (float[N, 2, 8, 8] y) {{
    {cut} {columns} j = Concat <axis = 1> (m0, m1, m2) y = Conv (j, w) }}"""
    model = onnx.parser.parse_model(text)
    numbers = {f"scale{i}": 0.0171247538 + i * 0.0003 for i in range(3)}
    numbers |= {f"mean{i}": -2.1179039 + i * 0.08218 for i in range(3)}
    for name, number in numbers.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(number, "float32"), name))
    kernel = np.random.default_rng(0).standard_normal((2, 3, 1, 1)).astype("float32")
    model.graph.initializer.append(numpy_helper.from_array(kernel, "w"))
    onnx.save(model, tmp_path / "net.onnx")
    assert "nn.Parameter" not in generate(tmp_path / "net.onnx", tmp_path / "net.py").source


@pytest.mark.parametrize(
    "number",
    [
        0,
        1,
        3,
        6,
        1 / 6,
        1 / 255,
        2 / 3,
        0.044715,
        1e-5,
        2**0.5,
        64**-0.5,
        32**-0.25,
        0.7978845608,
        2.0**-20,
        np.log(10),
    ],
)
def test_a_person_types(number: float) -> None:
    assert is_typed(float(np.float32(number)))


@pytest.mark.parametrize("number", [*LEARNED, -0.24310489, 0.58607715, 3.0696151])
def test_training_makes(number: float) -> None:
    assert not is_typed(number)


@pytest.mark.parametrize("rank", [0, 1, 3, 4])
def test_a_number_of_more_axes_than_the_map_gives_them_to_the_result(rank: int, tmp_path: Path) -> None:
    """Only of as many axes as the map has is it a layer."""
    random, nodes, weights = np.random.default_rng(0), [], []
    for i, pair in enumerate(zip(LEARNED, SHIFTS)):
        for kind, number in zip(("scale", "shift"), pair):
            weights.append(numpy_helper.from_array(np.full([1] * rank, number, "float32"), f"{kind}{i}"))
        weights.append(numpy_helper.from_array(random.standard_normal((4, 4, 1)).astype("float32"), f"w{i}"))
        x, y = "x" if i == 0 else f"r{i - 1}", f"a{i}"
        nodes += [helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"]), helper.make_node("Relu", [f"c{i}"], [f"d{i}"])]
        nodes += [helper.make_node("Mul", [f"d{i}", f"scale{i}"], [f"m{i}"])]
        nodes += [helper.make_node("Add", [f"m{i}", f"shift{i}"], [y])]
        shape = helper.make_node("Reshape", [y, "shape"], [f"r{i}"])
        nodes.append(shape)
    weights.append(numpy_helper.from_array(np.array([1, 4, -1]), "shape"))
    io = [helper.make_tensor_value_info("x", 1, [1, 4, 8]), helper.make_tensor_value_info("a5", 1, None)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", io[:1], io[1:], weights),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "net.onnx")
    feeds = {"x": random.standard_normal((1, 4, 8)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    (expected,) = run_onnxruntime(model, feeds)
    assert tuple(made.outputs[0].shape) == expected.shape
    assert_same(made.outputs[0].detach().numpy(), expected)
