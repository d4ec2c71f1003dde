"""`--dynamic-batch`: a fixed batch made free, held to the file's own runs, stacked; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper as h
from safetensors import safe_open

from onnxgen import OnnxgenError, Options, verify
from onnxgen import export as export_back
from onnxgen.cli import run
from onnxgen.export.report import BACK
from onnxgen.passes.batch.layout import placed
from onnxgen.passes.batch.stack import Stack
from onnxgen.pipeline import build, check, generate
from tests.support.real import Run, assert_finite_gradients, assert_way_back, imported
from tests.zoo import ZOO
from tests.zoo.export import export

FREE = Options(dynamic_batch=True)
SIZES = (1, 2, 5)
NETS = "cnn resnet18 mobilenet decoder unet_bilinear lstm_tagger vit encoder bert gpt2 llama image_norms sequence_norms"
NETS += " swin convnext densenet hf_bert hf_llama hf_t5 hf_whisper"
AXES = {
    "lstm_state": dict.fromkeys(("frames", "hidden", "cell"), 1),
    "gru_last": {"frames": 1},
    "cross_attention": {"query": 1, "memory": 1},
}
CASES = [(name, "legacy", 1) for name in (*NETS.split(), *AXES)]
CASES += [("cnn", "legacy", 8), ("gru_tagger", "legacy", 8), ("vit", "legacy", 8), ("bert", "legacy", 8)]
CASES += [("cnn", "dynamo", 1), ("encoder", "dynamo", 1)]


def stacked(path: Path, feeds: dict[str, Any], axes: dict[str, int], size: int) -> list[list[Any]]:
    """What onnxruntime makes of each portion of `size` samples (the last one filled up with its last sample)."""
    session = onnxruntime.InferenceSession(path)
    name, axis = next(iter(axes.items()))
    count = feeds[name].shape[axis]
    found = []
    for start in range(0, count, size):
        chosen = [min(start + i, count - 1) for i in range(size)]
        found.append(session.run(None, {n: np.take(x, chosen, axes[n]) if n in axes else x for n, x in feeds.items()}))
    return [list(parts) for parts in zip(*found, strict=True)]


def assert_stacked(got: Any, parts: list[Any], size: int, count: int) -> None:
    """One output holds, for each sample, what its own run gives; along the only axis that has another length."""
    one = parts[0].shape
    axis = next((a for a, (x, y) in enumerate(zip(got.shape, one)) if x != y), None)
    if axis is None:
        axis = next(a for a, n in enumerate(one) if n == size) if count == size else -1
    assert axis >= 0, f"{got.shape} for {count} samples"
    expected = np.concatenate(parts, axis)
    rows = one[axis] // size * count
    np.testing.assert_allclose(got, np.take(expected, range(rows), axis), 1e-3, 1e-5)


def assert_written_back(path: Path, module: Path, drawn: list[dict[str, Any]], model: Any) -> None:
    """The exported file has the free batch, and computes with it what the module does."""
    report = export_back(module, out=path.with_name("out.onnx"))
    assert report.method == BACK and report.notes == ["the batch is free, as in the module"]
    assert report.verified is not None and not report.verified.differs
    session = onnxruntime.InferenceSession(path.with_name("out.onnx"))
    names = [value.name for value in session.get_inputs()]
    for feeds in drawn:
        wanted = model(*[torch.from_numpy(feeds[n]) for n in names])
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for got, expected in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(got, expected.detach().numpy(), 1e-3, 1e-5)
    old, new = ([n.op_type for n in onnx.load(p).graph.node] for p in (path, path.with_name("out.onnx")))
    layers = {"Conv", "Gemm", "MatMul", "LSTM", "GRU", "Softmax", "Relu", "Erf", "Tanh", "LayerNormalization", "Einsum"}
    assert [op for op in old if op in layers] == [op for op in new if op in layers]


@pytest.mark.parametrize(("name", "exporter", "size"), CASES)
def test_networks(name: str, exporter: str, size: int, tmp_path: Path) -> None:
    """Every sample of a batch gets what a run of its own gives it; gradients flow and the way back is exact."""
    entry, axes = ZOO[name], AXES.get(name, {})
    fixed = replace(entry, dynamic={}, inputs=lambda batch=2: entry.inputs(size))
    path = tmp_path / "net.onnx"
    export(fixed, path, exporter, 17 if exporter == "legacy" else 18)
    options = replace(FREE, batch_axes=axes)
    generated = generate(path, tmp_path / "model.py", options)
    module = imported(tmp_path / "model.py")
    model = module.Model.from_pretrained().eval()
    names = [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]
    for count in SIZES:
        given = dict(zip(entry.input_names, entry.inputs(count)))
        feeds = {n: given[n].numpy() for n in names}
        outputs = model(*[given[n] for n in names])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        parts = stacked(path, feeds, {n: axes.get(n, 0) for n in names}, size)
        for got, wanted in zip(outputs, parts, strict=True):
            assert_stacked(got.detach().numpy(), wanted, size, count)
    assert_written_back(path, tmp_path / "model.py", [{n: x.numpy() for n, x in given.items() if n in names}], model)
    made = Run(generated, module, model, outputs)
    assert assert_finite_gradients(made) and assert_way_back(made, path)
    assert "batch of 1" not in "".join(generated.report.notes)


# ---- single steps ----------------------------------------------------------------------------------------------------


def save(path: Path, nodes: list[Any], inputs: dict[str, Any], stored: dict[str, Any], outputs: str = "y") -> Path:
    """Nodes as (operator, inputs, outputs, attributes); integers in `stored` become int64 tensors."""
    made = [h.make_node(op, i.split(" "), o.split(), f"n_{o.split()[0]}", **dict(*a)) for op, i, o, *a in nodes]
    tensors = []
    for name, value in stored.items():
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        tensors.append(onnx.numpy_helper.from_array(array, name))
    ports = [h.make_tensor_value_info(n, T.INT64 if n == "ids" else T.FLOAT, d) for n, d in inputs.items()]
    results = [h.make_tensor_value_info(n, T.UNDEFINED, None) for n in outputs.split()]
    model = h.make_model(
        h.make_graph(made, "g", ports, results, tensors), opset_imports=[h.make_opsetid("", 17)], ir_version=8
    )
    for value in model.graph.output:
        value.ClearField("type")
    onnx.save(model, path)
    return path


RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 6))
LOOKED_UP = [("Reshape", "x s", "a"), ("Gather", "a i", "y")]
ACCEPTED: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "reshape to [1, -1]": ([("Reshape", "x s", "y")], {"x": [1, 3, 4]}, {"s": [1, -1]}),
    "heads": (
        [("Reshape", "x s", "a"), ("Transpose", "a", "b", {"perm": [0, 2, 1, 3]}), ("Softmax", "b", "y")],
        {"x": [1, 5, 6]},
        {"s": [1, 5, 2, 3]},
    ),
    "heads merged with the batch": (  # [length, batch, features] to [length, batch * heads, features of one head]
        [("Reshape", "x s", "a"), ("Transpose", "a", "b", {"perm": [1, 0, 2]}), ("Softmax", "b", "c"),
         ("Transpose", "c", "d", {"perm": [1, 0, 2]}), ("Reshape", "d t", "y")],
        {"x": [5, 1, 6]},
        {"s": [5, 2, 3], "t": [5, 1, 6]},
    ),
    "a Gemm over all steps": (
        [("Reshape", "x s", "a"), ("Gemm", "a w", "b"), ("Reshape", "b t", "y")],
        {"x": [1, 5, 4]},
        {"s": [5, 4], "t": [1, 5, 6], "w": W},
    ),
    "a Tile of 8": (
        [("Tile", "c s", "a"), ("Concat", "a x", "y", {"axis": 1})],
        {"x": [8, 2, 4]},
        {"c": W[None, :1, :4], "s": [8, 1, 1]},
    ),
    "an Expand of 8": (
        [("Expand", "c s", "a"), ("Add", "a x", "y")],
        {"x": [8, 2, 4]},
        {"c": W[None, :2, :4], "s": [8, 1, 4]},
    ),
    "a constant that a folded Expand made": (
        [("Concat", "c x", "y", {"axis": 1})],
        {"x": [1, 2, 4]},
        {"c": W[None, :1, :4]},
    ),
    "zeros for a state": (
        [("ConstantOfShape", "s", "z"), ("GRU", "x w r  z".replace("  ", "   "), "y_ h", {"hidden_size": 2}),
         ("Identity", "h", "y")],
        {"x": [5, 8, 4]},
        {"s": [1, 8, 2], "w": W[None, :, :4].repeat(2, 1)[:, :6], "r": W[None, :2, :2].repeat(3, 1)},
    ),
    "the batch dropped and made again": (
        [("Squeeze", "x a", "b"), ("Relu", "b", "c"), ("Unsqueeze", "c a", "y")], {"x": [1, 3, 4]}, {"a": [0]}
    ),
    "the first sample of one": (
        [("Gather", "x i", "b"), ("Unsqueeze", "b a", "y")], {"x": [1, 3, 4]}, {"i": 0, "a": [0]}
    ),
    "all of the batch as a slice": ([("Slice", "x a e", "y")], {"x": [1, 3, 4]}, {"a": [0], "e": [1]}),
    "a number of elements as a factor": (
        [("Shape", "x", "s"), ("Cast", "s", "f", {"to": 1}), ("ReduceProd", "f", "p"), ("Div", "x p", "y")],
        {"x": [1, 3, 4]},
        {},
    ),
    "sizes of a Resize": ([("Resize", "x   s", "y")], {"x": [1, 2, 3, 3]}, {"s": [1, 2, 6, 6]}),
    "einsum": ([("Einsum", "x w", "y", {"equation": "bij,jk->bki"})], {"x": [1, 3, 4]}, {"w": W}),
    "embedding, mask and one for all": (
        [("Gather", "w ids", "e"), ("Mul", "e x", "f"), ("ReduceSum", "f a", "y", {"keepdims": 0})],
        {"ids": [1, 3], "x": [1, 3, 6]},
        {"w": W, "a": [1]},
    ),
    "put side by side": (
        [("Concat", "x x", "a", {"axis": 0}), ("Reshape", "a s", "b"), ("ReduceSum", "b z", "y", {"keepdims": 0})],
        {"x": [1, 3, 4]},
        {"s": [2, 1, 12], "z": [0]},
    ),
    "positions of each sample": (
        LOOKED_UP, {"x": [2, 3, 4]}, {"s": [6, 4], "i": [[0, 2], [3, 5]]}
    ),
    "positions of each sample, along one axis": (
        LOOKED_UP, {"x": [2, 3, 4]}, {"s": [6, 4], "i": [[0, 3], [2, -1], [1, 4]]}
    ),
    "one position of one sample": (
        LOOKED_UP, {"x": [1, 3, 4]}, {"s": [3, 4], "i": [[1, 1, 2]]}
    ),
    "an embedding of the same ids": (
        [("Gather", "w i", "e"), ("Add", "e x", "y")], {"x": [2, 3, 6]}, {"w": W, "i": [[0, 1, 1], [0, 1, 1]]}
    ),
    "everything without axes": ([("Squeeze", "x", "b"), ("Reshape", "b s", "y")], {"x": [1, 3, 1, 4]}, {"s": [1, 12]}),
}  # fmt: skip
BATCH_SECOND = {"heads merged with the batch", "zeros for a state"}


@pytest.mark.parametrize("what", ACCEPTED)
def test_steps(what: str, tmp_path: Path) -> None:
    nodes, inputs, tensors = ACCEPTED[what]
    path = save(tmp_path / "m.onnx", nodes, inputs, tensors)
    axes = dict.fromkeys(inputs, 1 if what in BATCH_SECOND else 0)
    options = replace(FREE, batch_axes={n: a for n, a in axes.items() if a})
    generate(path, tmp_path / "model.py", options)
    model = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    size = next(iter(inputs.values()))[1 if what in BATCH_SECOND else 0]
    drawn = []
    for count in (*SIZES, 8):
        feeds: dict[str, Any] = {}
        for name, shape in inputs.items():
            shape = [count if axis == axes[name] else n for axis, n in enumerate(shape)]
            normal = RNG.standard_normal(shape).astype(np.float32)
            feeds[name] = RNG.integers(0, 4, shape) if name == "ids" else normal
        got = model(*map(torch.from_numpy, feeds.values())).detach().numpy()
        (parts,) = stacked(path, feeds, axes, size)
        assert_stacked(got, parts, size, count)
        drawn.append(feeds)
    assert verify(path, tmp_path / "model.py", options=options).agrees
    assert_written_back(path, tmp_path / "model.py", drawn, model)


REFUSED: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any], str, str]] = {
    "a mean over the batch": ([("ReduceMean", "x", "y", {"axes": [0]})], {"x": [1, 4]}, {}, "n_y", "reduces over"),
    "a mean over everything": ([("ReduceMean", "x", "y")], {"x": [1, 4]}, {}, "n_y", "reduces over the batch"),
    "a softmax over the batch": ([("Softmax", "x", "y", {"axis": 0})], {"x": [1, 4]}, {}, "n_y", "along the batch"),
    "a product of samples": (
        [("Transpose", "x", "t"), ("MatMul", "x t", "y")], {"x": [1, 4]}, {}, "n_y", "multiplies samples"
    ),
    "a sum over samples": ([("MatMul", "w x", "y")], {"x": [4, 2]}, {"w": W.T}, "n_y", "sums over the batch"),
    "a weight for each sample": ([("Mul", "x w", "y")], {"x": [4, 6]}, {"w": W}, "n_y", "element of its own"),
    "a sample among constants": (
        [("Concat", "x c", "y", {"axis": 0})], {"x": [1, 6]}, {"c": W}, "n_y", "with something that is not a sample"
    ),
    "some of the samples": ([("Slice", "x a e", "y")], {"x": [8, 3]}, {"a": [0], "e": [4]}, "n_y", "cuts out a part"),
    "one of the samples": ([("Gather", "x i", "y")], {"x": [8, 3]}, {"i": 0}, "n_y", "selects from the batch"),
    "samples in another order": (
        LOOKED_UP, {"x": [2, 3]}, {"s": [6], "i": [[3, 5], [0, 2]]}, "n_y", "selects"
    ),
    "another position of each sample": (
        LOOKED_UP, {"x": [2, 3]}, {"s": [6], "i": [[0, 2], [3, 4]]}, "n_y", "selects"
    ),
    "an embedding of ids for each sample": (
        [("Gather", "w i", "e"), ("Add", "e x", "y")], {"x": [2, 6]}, {"w": W, "i": [0, 1]}, "n_y", "element of its own"
    ),
    "the batch broadcast": ([("Add", "x w", "y")], {"x": [1, 6]}, {"w": W}, "n_y", "broadcast to another size"),
    "the batch on two axes": (
        [("Transpose", "x", "t"), ("Add", "x t", "y")], {"x": [1, 1]}, {}, "n_y", "on different axes"
    ),
    "a batch torn apart": ([("Reshape", "x s", "y")], {"x": [4, 3]}, {"s": [2, 6]}, "n_y", "splits the batch axis"),
    "an operator without a rule": ([("NonZero", "x", "y")], {"x": [1, 6]}, {}, "n_y", "does not know how"),
    "dynamic quantization": (
        [("DynamicQuantizeLinear", "x", "y s z")], {"x": [1, 6]}, {}, "n_y", "does not know how"
    ),
    "random numbers for all": (
        [("RandomNormal", "", "r", {"shape": [1, 6]}), ("Add", "x r", "y")], {"x": [1, 6]}, {}, "n_r", "same random"
    ),
    "the indices of a pool": (
        [("MaxPool", "x", "p y", {"kernel_shape": [2]})], {"x": [1, 2, 6]}, {}, "n_p", "mix all samples"
    ),
    "padding of the batch": ([("Pad", "x p", "y")], {"x": [1, 6]}, {"p": [0, 0, 1, 0]}, "n_y", "pads the batch"),
    "the size as a result": ([("Shape", "x", "y")], {"x": [1, 6]}, {}, "n_y", "returns the size of the batch"),
    "every second sample's own": ([("Tile", "x r", "y")], {"x": [1, 6]}, {"r": [2, 1]}, "", "along one axis"),
    "a state of the wrong axis": (
        [("GRU", "x w r", "y", {"hidden_size": 2})],
        {"x": [1, 8, 4]}, {"w": W[None, :, :4].repeat(2, 1)[:, :6], "r": W[None, :2, :2].repeat(3, 1)}, "n_y", "axis 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str, tmp_path: Path) -> None:
    """With the node's name, the reason and a way out; nothing is written."""
    nodes, inputs, tensors, node, says = REFUSED[what]
    path = save(tmp_path / "m.onnx", nodes, inputs, tensors)
    with pytest.raises(OnnxgenError) as caught:
        generate(path, tmp_path / "model.py", FREE)
    (problem,) = caught.value.problems
    assert problem.node == node and says in problem.what and "leave --dynamic-batch out" in problem.help
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_branch_is_refused(tmp_path: Path) -> None:
    then = h.make_graph([h.make_node("Relu", ["x"], ["r"])], "t", [], [h.make_tensor_value_info("r", T.FLOAT, None)])
    other = h.make_graph([h.make_node("Abs", ["x"], ["a"])], "e", [], [h.make_tensor_value_info("a", T.FLOAT, None)])
    nodes = [
        ("ReduceSum", "c", "s"),
        ("Cast", "s", "b", {"to": 9}),
        ("If", "b", "y", {"then_branch": then, "else_branch": other}),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": [1, 4], "c": [3]}, {})
    with pytest.raises(OnnxgenError, match=r"n_y \(If-17\).*does not know how"):
        build(path, replace(FREE, batch_axes={"c": None}), tmp_path / "model.py")


def test_every_node_in_the_way_is_named(tmp_path: Path) -> None:
    nodes = [("NonZero", "x", "a"), ("Softmax", "x", "b", {"axis": 0}), ("Relu", "b", "y")]
    path = save(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, {}, "a y")
    with pytest.raises(OnnxgenError) as caught:
        build(path, FREE, tmp_path / "model.py")
    assert [p.node for p in caught.value.problems] == ["n_a", "n_b"]


@pytest.mark.parametrize(
    ("old", "stack", "new", "size", "found"),
    [
        ([1, 12], Stack(0), [1, 3, 4], 1, Stack(0)),
        ([1, 3, 4], Stack(0), [3, 4], 1, Stack(0, 1, 3)),
        ([5, 1, 6], Stack(1), [5, 2, 3], 1, Stack(1, 1, 2)),
        ([5, 1, 6], Stack(1), [5, 6], 1, Stack(0, 5, 1)),
        ([2, 6], Stack(0, 1, 2), [1, 2, 6], 1, Stack(0)),
        ([8, 64], Stack(0), [8, 8, 8], 8, Stack(0)),
        ([2, 8, 3], Stack(1), [16, 3], 8, Stack(0, 2, 1)),
        ([8, 6], Stack(0), [4, 12], 8, None),
        ([4, 3], Stack(0), [2, 2, 3], 4, None),
    ],
)
def test_places_after_a_reshape(old: list[int], stack: Stack, new: list[int], size: int, found: Stack | None) -> None:
    """Held to numpy too: the elements of each sample are where the stack says."""
    places = placed(tuple(old), stack, tuple(new), size)
    assert (places[0] if places else None) == found
    for place in places:
        assert (_samples(old, stack, size).reshape(new) == _samples(new, place, size)).all()


def _samples(shape: list[int], stack: Stack, size: int) -> Any:
    """For each element of a stack the number of its sample."""
    apart = (*shape[: stack.axis], stack.outer, size, stack.inner, *shape[stack.axis + 1 :])
    return np.indices(apart)[stack.axis + 1].reshape(shape)


# ---- options ---------------------------------------------------------------------------------------------------------


def _linear(path: Path, **inputs: Any) -> Path:
    nodes = [("Gemm", "x w", "a"), ("Mul", "a k", "y")]
    return save(path, nodes, {"x": [1, 4], "k": [1], **inputs}, {"w": W})


def test_inputs_that_have_no_batch(tmp_path: Path) -> None:
    """A factor [1] beside rows [1, 4]: it could be one number for each sample, or one for all."""
    path = _linear(tmp_path / "m.onnx")
    with pytest.raises(OnnxgenError, match="n_y .*on different axes.*--batch-axis"):
        build(path, FREE, tmp_path / "model.py")
    options = replace(FREE, batch_axes={"k": None})
    generate(path, tmp_path / "model.py", options)
    assert verify(path, tmp_path / "model.py", options=options).agrees
    source = (tmp_path / "model.py").read_text()
    assert "[batch, 4]" in source and "float32  [1]" in source


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ({"z": 0}, "the model has no input z -> its inputs are: x, k"),
        ({"x": 5}, "input x has no axis 5"),
        ({"x": 1, "k": 0}, "input k has size 1 on axis 0, but the batch is 4"),
    ],
)
def test_axes_that_are_wrong(axes: dict[str, int | None], says: str, tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match=says):
        build(_linear(tmp_path / "m.onnx"), replace(FREE, batch_axes=axes), tmp_path / "model.py")
    with pytest.raises(OnnxgenError, match="--batch-axis needs --dynamic-batch"):
        Options(batch_axes=axes)


def test_a_batch_that_is_free_already(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [("Relu", "x", "y")], {"x": ["n", 4]}, {})
    report = build(path, FREE, tmp_path / "model.py").report
    assert "--dynamic-batch has nothing to do" in "".join(report.notes)


def test_the_name_of_the_dim_is_free(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [("Relu", "x", "y")], {"x": [1, "batch"]}, {})
    assert "[batch_0, batch]" in build(path, FREE, tmp_path / "model.py").source


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """verify knows by the sidecar what to compare with; --check tells by the options."""
    path, out = _linear(tmp_path / "m.onnx"), tmp_path / "model.py"
    given = ["--dynamic-batch", "--batch-axis", "k=none"]
    assert run([str(path), "-o", str(out), *given, "--verify"]) == 0
    assert "batch=3" in capsys.readouterr().out
    assert run(["verify", str(path), str(out)]) == 0
    assert "onnxruntime, stacked runs of 1" in capsys.readouterr().out
    with safe_open(out.with_suffix(".safetensors"), "np") as file:
        assert json.loads(file.metadata()["batch"]) == {"size": 1, "inputs": {"x": 0}, "outputs": {"y": 0}}
    options = replace(FREE, batch_axes={"k": None})
    assert check(path, out, options) and not check(path, out)
    assert run([str(path), "-o", str(out), "--dynamic-batch"]) == 2
    assert "node n_y (Mul-17): the batch can't be made free" in capsys.readouterr().err
    assert run([str(path), "--batch-axis", "k"]) == 2 and "NAME=1 or NAME=none" in capsys.readouterr().err


def test_verify_tells_a_module_that_mixes_samples(tmp_path: Path) -> None:
    path, out = save(tmp_path / "m.onnx", [("Relu", "x", "y")], {"x": [1, 4]}, {}), tmp_path / "model.py"
    generate(path, out, FREE)
    assert verify(path, out, options=FREE).agrees
    out.write_text(out.read_text().replace("F.relu(x)", "F.relu(x).mean(0, keepdim=True).expand(x.shape)"))
    report = verify(path, out, options=FREE)
    assert not report.agrees and [r.sizes["batch"] for r in report.runs if not r.agrees] == [2, 3]
