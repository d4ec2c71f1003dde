"""Networks without a single name: blocks are found in the graph, and compute what the file does."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onnxgen.options import Options
from onnxgen.pipeline import read_and_simplify
from onnxgen.scopes import find_blocks
from tests.support.nameless_nets import NETS
from tests.support.real import Run, assert_finite_gradients, assert_same, assert_way_back, run
from tests.support.stripped import strip
from tests.zoo import ZOO, Entry
from tests.zoo.export import export

# network: how many modules have a path like this, and how many classes they are at most
EXPECTED = {
    "resnet18": [(r"stage\d\.\d", 8, 1)],
    "resnet_bottleneck": [(r"blocks\.\d", 5, 1)],
    "mobilenet": [(r"blocks\.\d", 3, 1)],
    "mobilenet_v3": [(r"stage\d\.\d", 7, 1), (r"(.*\.)?se\.conv1", 6, 1)],
    "densenet": [(r"stages\.\d", 2, 1), (r"(stages\.\d\.)?blocks\.\d", 9, 1)],
    "convnext": [(r"stages\.\d", 3, 1), (r"(stages\.\d\.)?blocks\.\d", 9, 1)],
    "unet_transpose": [(r"downs\.\d", 2, 1), (r"ups\.\d", 2, 1), (r"block", 1, 1)],
    "unet_nearest": [(r"downs\.\d", 2, 1), (r"ups\.\d", 2, 1), (r"(.*\.)?block", 5, 1)],
    "vit": [(r"layers\.\d", 3, 1), (r"layers\.\d\.attn", 3, 1), (r"layers\.\d\.mlp", 3, 1)],
    "swin": [(r"stages\.\d", 2, 2), (r"(stages\.\d\.)?layers\.\d", 6, 4)],
    "bert": [(r"layers\.\d", 2, 1), (r"layers\.\d\.attn\.[qkv]_proj", 6, 1), (r"layers\.\d\.mlp", 2, 1)],
    "gpt2": [(r"layers\.\d", 2, 1), (r"layers\.\d\.attn", 2, 1), (r"layers\.\d\.mlp", 2, 1)],
    "llama": [(r"layers\.\d", 2, 1), (r"layers\.\d\.mlp\.(gate|up|down)_proj", 6, 1)],
    "hf_clip": [(r"vision_layers\.\d", 2, 1), (r"text_layers\.\d", 2, 1)],
    "encoder_prenorm": [(r"layers\.\d", 2, 1)],
    "squeezenet": [(r"stages\.\d\.blocks\.\d", 5, 1)],
    "lcnet": [(r"stages\.\d\.\d", 10, 1), (r"(.*\.)?se", 11, 2), (r"(.*\.)?se\.conv1", 2, 1)],
    "vgg": [(r"stage\d\.\d", 4, 1)],
    "denoiser": [(r"blocks\.\d", 9, 1), (r"blocks\.\d\.conv", 9, 1)],
    "super_resolution": [(r"blocks\.\d", 5, 1)],
    "detector": [(r"blocks\.\d", 3, 1), (r".*branches|block", 4, 1), (r".*(branches|block)\.blocks\.\d", 6, 1)],
    "cached_decoder": [(r"layers\.\d", 3, 1), (r"layers\.\d\.attn", 3, 1)],
    "translator": [(r"encoder_layers\.\d", 3, 1), (r"decoder_layers\.\d\.cross_attn\.q_proj", 3, 1)],
}
FLAT = ("mlp", "cnn", "audio_cnn", "two_tower", "decoder", "lstm_tagger")


def stripped(name: str, folder: Path, **options: Any) -> tuple[Run, list[np.ndarray[Any, Any]]]:
    """A network of the zoo without names, generated and run, and what onnxruntime makes of the file with names."""
    entry = ZOO.get(name) or _entry(*NETS[name])
    export(entry, folder / "named.onnx", "legacy", 17)
    inputs = entry.inputs(2)
    made = run(
        strip(folder / "named.onnx", folder / "stripped.onnx"),
        folder,
        {str(i): x.numpy() for i, x in enumerate(inputs)},
        Options(**options),
    )
    session = onnxruntime.InferenceSession(folder / "named.onnx", providers=["CPUExecutionProvider"])
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs)}
    return made, session.run(None, feeds)


def _entry(build: Callable[[], nn.Module], inputs: tuple[torch.Tensor, ...]) -> Entry:
    return Entry(build, lambda batch=2: inputs, tuple(f"in{i}" for i in range(len(inputs))), (), {})


def check(made: Run, expected: list[np.ndarray[Any, Any]], path: Path) -> None:
    for i, (ours, theirs) in enumerate(zip(made.outputs, expected, strict=True)):
        assert_same(f"output {i}", ours, theirs)
    assert_finite_gradients(made)
    assert assert_way_back(made, path) > 0


@pytest.mark.parametrize("name", EXPECTED)
def test_what_repeats_is_a_class(name: str, tmp_path: Path) -> None:
    made, expected = stripped(name, tmp_path)
    check(made, expected, tmp_path / "stripped.onnx")
    modules = dict(made.model.named_modules())
    for pattern, count, most in EXPECTED[name]:
        found = [path for path in modules if re.fullmatch(pattern, path)]
        classes = Counter(type(modules[path]).__name__ for path in found)
        assert len(found) == count and len(classes) <= most, (pattern, classes, list(modules))


@pytest.mark.parametrize("name", FLAT)
def test_where_nothing_repeats_all_is_flat(name: str, tmp_path: Path) -> None:
    made, expected = stripped(name, tmp_path)
    check(made, expected, tmp_path / "stripped.onnx")
    assert all(type(m).__module__.startswith("torch.") for m in made.model.children())


def test_a_chain_is_sequential_and_what_shares_a_mask_is_a_loop(tmp_path: Path) -> None:
    (tmp_path / "vit").mkdir()
    (tmp_path / "bert").mkdir()
    vit, _ = stripped("vit", tmp_path / "vit")
    assert isinstance(vit.model.layers, nn.Sequential)
    bert, _ = stripped("bert", tmp_path / "bert")
    assert isinstance(bert.model.layers, nn.ModuleList)
    assert re.search(r"for layer in self\.layers:\n +x = layer\(x, mask2?\)", bert.generated.source)


def test_flat_is_flat(tmp_path: Path) -> None:
    made, expected = stripped("resnet18", tmp_path, flat=True)
    check(made, expected, tmp_path / "stripped.onnx")
    assert len(re.findall(r"^class ", made.generated.source, re.MULTILINE)) == 1


def test_names_that_the_file_knows_stay(tmp_path: Path) -> None:
    """Of a network that has lost most of its names, the head keeps its own, and the rest comes out in blocks."""
    export(ZOO["resnet18"], tmp_path / "named.onnx", "legacy", 17)
    strip(tmp_path / "named.onnx", tmp_path / "partial.onnx")
    model = onnx.load(tmp_path / "partial.onnx")
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    for tensor in model.graph.initializer:
        if tensor.name in gemm.input:
            tensor.name = f"head.classifier.{'weight' if len(tensor.dims) == 2 else 'bias'}"
            gemm.input[1 if len(tensor.dims) == 2 else 2] = tensor.name
    onnx.save(model, tmp_path / "partial.onnx")
    made = run(tmp_path / "partial.onnx", tmp_path, {"0": ZOO["resnet18"].inputs(2)[0].numpy()})
    keys = set(made.model.state_dict())
    assert {"head.classifier.weight", "head.classifier.bias", "stage1.0.conv1.weight", "stage4.1.conv2.weight"} <= keys


def test_blocks_are_found_beside_more_layers_that_have_names(tmp_path: Path) -> None:
    """A folded backbone has no names in files of older exporters; its heads and its neck have theirs."""
    model = onnx.load(residual_net(4, tmp_path / "net.onnx"))
    for tensor in model.graph.initializer:  # as torch calls what it has folded
        for node in model.graph.node:
            node.input[:] = [f"onnx::{name}" if name == tensor.name else name for name in node.input]
        tensor.name = f"onnx::{tensor.name}"
    random = np.random.default_rng(1)
    last = model.graph.output[0].name
    for i in range(12):
        name = f"heads.{i}.weight"
        tensor = random.random((4, 4, 1, 1)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(tensor, name))
        model.graph.node.append(helper.make_node("Conv", [last, name], [f"out{i}"]))
        model.graph.output.append(helper.make_tensor_value_info(f"out{i}", TensorProto.FLOAT, [1, 4, 8, 8]))
    model.producer_name = "pytorch"
    onnx.save(model, tmp_path / "net.onnx")
    feeds = {name: np.ones((1, 4, 8, 8), np.float32) for name in ("x", "mask")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    check(made, session.run(None, feeds), tmp_path / "net.onnx")
    assert "heads.11.weight" in made.model.state_dict()
    assert len(made.model.blocks) == 4 and len({type(block) for block in made.model.blocks}) == 1


def test_a_named_layer_within_a_block_keeps_its_name(tmp_path: Path) -> None:
    """Blocks are found around it; what the file knows is not overruled."""
    model = onnx.load(residual_net(6, tmp_path / "net.onnx"))
    conv = [node for node in model.graph.node if node.op_type == "Conv"][5]
    tensor = next(t for t in model.graph.initializer if t.name == conv.input[1])
    tensor.name = conv.input[1] = "body.middle.weight"
    onnx.save(model, tmp_path / "net.onnx")
    feeds = {name: np.ones((1, 4, 8, 8), np.float32) for name in ("x", "mask")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    check(made, session.run(None, feeds), tmp_path / "net.onnx")
    assert "body.middle.weight" in made.model.state_dict()


@pytest.mark.parametrize("seed", range(3))
def test_another_order_of_nodes_computes_the_same(seed: int, tmp_path: Path) -> None:
    """The order in the file tells what stands together; where it tells nothing, the code is only longer."""
    export(ZOO["bert"], tmp_path / "named.onnx", "legacy", 17)
    model = onnx.load(strip(tmp_path / "named.onnx", tmp_path / "stripped.onnx"))
    shuffle(model.graph, np.random.default_rng(seed))
    onnx.save(model, tmp_path / "shuffled.onnx")
    inputs = [x.numpy() for x in ZOO["bert"].inputs(2)]
    made = run(tmp_path / "shuffled.onnx", tmp_path, {str(i): x for i, x in enumerate(inputs)})
    session = onnxruntime.InferenceSession(tmp_path / "stripped.onnx", providers=["CPUExecutionProvider"])
    feeds = {value.name: x for value, x in zip(session.get_inputs(), inputs)}
    check(made, session.run(None, feeds), tmp_path / "shuffled.onnx")


def shuffle(graph: onnx.GraphProto, random: np.random.Generator) -> None:
    """Put the nodes into another order that their inputs allow."""
    made = {name for node in graph.node for name in node.output}
    waiting = list(graph.node)
    ordered: list[onnx.NodeProto] = []
    done = {name for node in graph.node for name in node.input} - made
    while waiting:
        ready = [i for i, node in enumerate(waiting) if done.issuperset(node.input)]
        node = waiting.pop(int(random.choice(ready)))
        done.update(node.output)
        ordered.append(node)
    del graph.node[:]
    graph.node.extend(ordered)


def residual_net(blocks: int, path: Path) -> Path:
    """A nameless chain of residual blocks that all take one mask."""
    random = np.random.default_rng(0)
    nodes, stored = [], []

    def weight(*shape: int) -> str:
        stored.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), f"w{len(stored)}"))
        return str(stored[-1].name)

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, list(inputs), [str(len(nodes))], **attributes))
        return str(nodes[-1].output[0])

    x = add("Conv", "x", weight(4, 4, 3, 3), pads=[1, 1, 1, 1])
    for _ in range(blocks):
        y = add("Relu", add("Conv", x, weight(4, 4, 3, 3), pads=[1, 1, 1, 1]))
        y = add("Mul", add("Conv", y, weight(4, 4, 3, 3), pads=[1, 1, 1, 1]), "mask")
        x = add("Relu", add("Add", x, y))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 8, 8]) for name in ("x", "mask", x)]
    graph = helper.make_graph(nodes, "g", ends[:2], ends[2:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_one_input_of_all_blocks_is_no_obstacle(tmp_path: Path) -> None:
    feeds = {name: np.ones((1, 4, 8, 8), np.float32) for name in ("x", "mask")}
    made = run(residual_net(12, tmp_path / "net.onnx"), tmp_path, feeds)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    check(made, session.run(None, feeds), tmp_path / "net.onnx")
    assert len({type(block) for block in made.model.blocks}) == 1 and len(made.model.blocks) == 12
    assert "for block in self.blocks:" in made.generated.source


def test_steps_grow_with_the_network(tmp_path: Path) -> None:
    """Lines executed, not seconds: ten times the blocks take at most twelve times the steps."""
    few, many = (steps(residual_net(n, tmp_path / "net.onnx")) for n in (8, 80))
    assert many < 12 * few, (few, many)


def steps(path: Path) -> int:
    """How many lines of `onnxgen.scopes` run for a file."""
    model = read_and_simplify(path, Options())
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "scopes" in frame.f_code.co_filename else None

    sys.settrace(trace)
    try:
        find_blocks(model, Options())
    finally:
        sys.settrace(None)
    return count


def either_net(path: Path, depths: tuple[int, int]) -> Path:
    """An `If` whose branches are convolutions in a row, with strides of their own."""
    random, bodies = np.random.default_rng(1), []
    for branch, depth in enumerate(depths):
        nodes, stored, value, channels = [], [], "x", 1
        for n in range(depth):
            weight = random.normal(size=(4, channels, 3)).astype(np.float32)
            stored.append(numpy_helper.from_array(weight, f"{branch}{n}"))
            nodes.append(helper.make_node("Conv", [value, f"{branch}{n}"], [f"c{branch}{n}"], strides=[1 + branch]))
            nodes.append(helper.make_node("Relu", [f"c{branch}{n}"], [value := f"r{branch}{n}"]))
            channels = 4
        nodes.append(helper.make_node("ReduceMean", [value], [f"out{branch}"], axes=[2], keepdims=0))
        out = helper.make_tensor_value_info(f"out{branch}", TensorProto.FLOAT, None)
        bodies.append(helper.make_graph(nodes, "body", [], [out], stored))
    choice = helper.make_node("If", ["fine"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 64]),
        helper.make_tensor_value_info("fine", TensorProto.BOOL, []),
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([choice], "either", given, [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(("depths", "modules"), [((4, 4), {"branch1", "branch2"}), ((4, 5), set()), ((3, 3), set())])
def test_branches_with_the_same_layers_are_one_class(
    depths: tuple[int, int], modules: set[str], tmp_path: Path
) -> None:
    path = either_net(tmp_path / "either.onnx", depths)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).normal(size=(1, 1, 64)).astype(np.float32)
    for fine in (True, False):
        feeds = {"x": x, "fine": np.array(fine)}
        made = run(path, tmp_path, feeds)
        assert {name for name, _ in made.model.named_children() if name.startswith("branch")} == modules
        assert made.generated.source.count("class Branch(") == bool(modules)
        check(made, session.run(None, feeds), path)
