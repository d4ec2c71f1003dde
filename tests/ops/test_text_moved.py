"""Text through operators that only move, pick or compare, against onnxruntime (or numpy where it takes no text)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.backend.road import imported
from tests.ops.harness import refusal, run_model, run_node, run_onnxruntime


def words(*shape: int) -> np.ndarray:
    items = ["b", "a", "é", "", "b", "zz", "Z", "a b", "a", "0", "c", "b"]
    return np.array([items[i % 12] for i in range(int(np.prod(shape)))], dtype=object).reshape(shape)


X = words(2, 3)
CASES: dict[str, tuple[list[Any], dict[str, Any], set[int]]] = {
    "Reshape": ([X, np.array([3, -1])], {}, {1}),
    "Flatten": ([words(2, 3, 2)], {"axis": 1}, set()),
    "Transpose": ([X], {}, set()),
    "Squeeze": ([words(1, 3), np.array([0])], {}, {1}),
    "Unsqueeze": ([X, np.array([0, 3])], {}, {1}),
    "Concat": ([X, words(1, 3)], {"axis": 0}, set()),
    "Slice": ([X, np.array([1]), np.array([-4]), np.array([1]), np.array([-1])], {}, {1, 2, 3, 4}),
    "Gather": ([X, np.array([[2, -3], [0, 1]])], {"axis": 1}, set()),
    "GatherElements": ([X, np.array([[2, 0], [-1, 1]])], {"axis": 1}, set()),
    "GatherND": ([X, np.array([[1, 2], [0, 0]])], {}, set()),
    "ScatterElements": ([X, np.array([[1, 0]]), np.array([["new", "b"]], dtype=object)], {"axis": 1}, set()),
    "ScatterND": ([X, np.array([[1]]), np.array([["n", "m", "k"]], dtype=object)], {}, set()),
    "Where": ([np.array([[True], [False]]), X, np.array("no", dtype=object)], {}, set()),
    "Equal": ([X, np.array(["b", "a", "x"], dtype=object)], {}, set()),
    "Expand": ([words(3, 1), np.array([2, 3, 2])], {}, {1}),
    "Tile": ([X, np.array([2, 1])], {}, {1}),
    "Compress": ([X, np.array([True, False, True])], {"axis": 1}, set()),
    "OneHot": ([np.array([1, 0, 2]), np.array(3), np.array(["off", "on"], dtype=object)], {}, {1}),
    "ReverseSequence": ([X, np.array([2, 1, 2])], {}, set()),
    "Pad": ([X, np.array([0, 1, 1, 0]), np.array("pad", dtype=object)], {}, {1}),
    "Identity": ([X], {}, set()),
    "Size": ([X], {}, set()),
}
# onnxruntime has no kernels of text for these
EXPECTED = {
    "Tile": np.tile(X, (2, 1)),
    "ReverseSequence": np.array([["", "a", "zz"], ["b", "b", "é"]], dtype=object),
    "Pad": np.array([["pad", *X[0]], ["pad", *X[1]], ["pad"] * 4], dtype=object),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_moved(name: str, dynamic: bool) -> None:
    inputs, attrs, stored = CASES[name]
    expected = [EXPECTED[name]] if name in EXPECTED else None
    run_node(name, inputs, attrs, initializers=stored, dynamic=dynamic, expected=expected)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("Size", "OneHot", "Identity")])
def test_moved_constants(name: str) -> None:
    """Text that the file stores, too."""
    inputs, attrs, stored = CASES[name]
    text = {i for i, x in enumerate(inputs) if x.dtype == object and (i or name in ("Equal", "Concat"))}
    if text and text != {*range(len(inputs))}:
        run_node(
            name, inputs, attrs, initializers=stored | text, expected=[EXPECTED[name]] if name in EXPECTED else None
        )


def test_split() -> None:
    run_node("Split", [X, np.array([1, 2])], {"axis": 1}, outputs=2, initializers={1})


@pytest.mark.parametrize("attrs", [{}, {"sorted": 0}, {"axis": 1}])
def test_unique(attrs: dict[str, int]) -> None:
    x = words(2, 12) if "axis" in attrs else words(12)
    if "axis" in attrs:
        x = np.array([["b", "a", "b"], ["x", "", "x"]], dtype=object)
    run_node("Unique", [x], attrs, outputs=4)


def test_nothing_at_all() -> None:
    run_node("Concat", [X[:0], X[:0]], {"axis": 0}, dynamic=True)


def test_refusals() -> None:
    assert "does not take strings" in refusal("Pad", [X, np.array([0, 1, 1, 0])], initializers={1})
    assert "does not take strings" in refusal("NonZero", [X])


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, int], **stored: Any
) -> onnx.ModelProto:
    kinds = {"O": TensorProto.STRING, "i": TensorProto.INT64, "b": TensorProto.BOOL, "f": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(n, kinds[x.dtype.kind], [f"{n}_{a}" for a in range(x.ndim)])
            for n, x in inputs.items()
        ],  # fmt: skip
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        [onnx.numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def same(made: onnx.ModelProto, feeds: dict[str, Any]) -> str:
    ran = run_model(made, feeds)
    for actual, expected in zip(ran.outputs, run_onnxruntime(made, feeds), strict=True):
        assert actual.shape == expected.shape and actual.tolist() == expected.tolist()
    return ran.source


def branch(name: str, *nodes: onnx.NodeProto, kind: int = TensorProto.STRING) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(name, kind, None)])


@pytest.mark.parametrize("flag", [True, False])
def test_branches(flag: bool) -> None:
    nodes = [
        helper.make_node(
            "If", ["flag"], ["y"],
            then_branch=branch("then", helper.make_node("StringConcat", ["x", "tail"], ["then"])),
            else_branch=branch("other", helper.make_node("Gather", ["x", "back"], ["other"])),
        )
    ]  # fmt: skip
    feeds = {"flag": np.array(flag), "x": words(4)}
    made = model(nodes, feeds, {"y": 8}, tail=np.array("!", dtype=object), back=np.array([3, 2, 1, 0]))
    same(made, feeds)


def test_a_loop_that_makes_text() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("StringConcat", ["text", "x"], ["longer"]),
            helper.make_node("Gather", ["longer", "i"], ["one"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", 7, []),
            helper.make_tensor_value_info("going", 9, []),
            helper.make_tensor_value_info("text", 8, [None]),
        ],  # fmt: skip
        [
            helper.make_tensor_value_info("on", 9, []),
            helper.make_tensor_value_info("longer", 8, [None]),
            helper.make_tensor_value_info("one", 8, []),
        ],  # fmt: skip
    )
    for turns in (3, 0):
        feeds = {"turns": np.array(turns), "x": words(4)}
        made = model(
            [helper.make_node("Loop", ["turns", "", "x"], ["last", "all"], body=body)], feeds, {"last": 8, "all": 8}
        )
        same(made, feeds)


def test_lists_of_text() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("StringConcat", ["x", "x"], ["xx"]),
        helper.make_node("SequenceInsert", ["s", "xx", "one"], ["t"]),
        helper.make_node("SequenceAt", ["t", "one"], ["y"]),
        helper.make_node("ConcatFromSequence", ["t"], ["z"], axis=0),
    ]
    feeds = {"x": words(4)}
    same(model(nodes, feeds, {"y": 8, "z": 8}, one=np.array(1)), feeds)


def test_a_large_table_lies_in_the_sidecar(tmp_path: Path) -> None:
    """Through a real file, and with the table in the module itself."""
    table = np.array([f"label {i}: \u00e9'\"\n" for i in range(5000)], dtype=object).reshape(100, 50)
    nodes = [helper.make_node("GatherND", ["table", "x"], ["y"])]
    feeds = {"x": np.array([[99, 49], [0, 3], [7, 7]])}
    made = model(nodes, feeds, {"y": 8}, table=table)
    assert "label 4999" not in same(made, feeds)
    path = tmp_path / "labels.onnx"
    onnx.save(made, path)
    for number, embed in enumerate((False, True)):
        out = tmp_path / f"labels{number}.py"
        generate(path, out, Options(embed=embed))
        network = imported(out).Model.from_pretrained()
        assert network(torch.from_numpy(feeds["x"])).tolist() == [table[99, 49], table[0, 3], table[7, 7]]


def test_constants_of_text() -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], value_strings=["x", "y\u00e9"]),
        helper.make_node("Constant", [], ["b"], value_string="end"),
        helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(words(2, 2), "c")),
        helper.make_node("StringConcat", ["x", "a"], ["xa"]),
        helper.make_node("StringConcat", ["xa", "b"], ["xab"]),
        helper.make_node("StringConcat", ["xab", "c"], ["y"]),
    ]
    feeds = {"x": words(2)}
    same(model(nodes, feeds, {"y": 8, "a": 8, "c": 8}), feeds)
