"""Text from a file never becomes code: hostile names everywhere, and only an allow-list of syntax in the output.

Each model computes something; the generated module is held against the allow-list, run, and compared with onnxruntime.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import black
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgen.code.printer import LINE_LENGTH
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.support.clean_source import assert_safe
from tests.support.hostile import HOSTILE, decorated, model_of
from tests.support.real import assert_finite_gradients, assert_same, assert_way_back, run, tensor

# ---- the allow-list --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "from os import path",
        "exec('x')",
        "x = unknown",
        "x = 1\nx()",
        "torch.__class__",
        "open('x')",
        "# it's\n1",
        "'é'",
    ],
)
def test_the_allow_list_refuses(code: str) -> None:
    assert_safe('"""Fine."""\n\nimport torch\n')
    with pytest.raises(AssertionError):
        assert_safe(f'"""Fine."""\n\nimport torch\n{code}\n')


# ---- names -----------------------------------------------------------------------------------------------------------


def feeds(model: onnx.ModelProto, condition: bool) -> dict[str, Any]:
    names = [value.name for value in model.graph.input]
    x = np.random.default_rng(2).standard_normal((3, 4), np.float32)
    return dict(zip(names, (x, np.array(condition), np.array([0, 7, 39], np.int64))))


def expected(path: Path, given: dict[str, Any]) -> list[Any]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, given)
    return outputs


@pytest.mark.parametrize("flat", [False, True], ids=["tree", "flat"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_names_are_no_code(kind: str, flat: bool, tmp_path: Path) -> None:
    text = HOSTILE[kind]
    model = model_of(text)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    given = feeds(model, condition=True)
    made = run(path, tmp_path, given, Options(flat=flat))
    assert_safe(made.generated.source)
    for name, theirs, ours in zip("xyz", expected(path, given), made.outputs, strict=True):
        assert_same(name, ours, theirs)
    assert assert_finite_gradients(made) >= 3
    assert assert_way_back(made, path) >= 3
    other = feeds(model, condition=False)
    generated = made.model(*[tensor(v) for v in other.values()])
    for name, theirs, ours in zip("xyz", expected(path, other), generated, strict=True):
        assert_same(name, ours, theirs)


@pytest.mark.parametrize("kind", HOSTILE)
def test_annotations_are_no_code(kind: str, tmp_path: Path) -> None:
    """Names of nodes as comments: the same module, which black leaves as it is and has read to its end."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(HOSTILE[kind]).SerializeToString())
    plain, annotated = (generate(path, options=Options(annotate=a), force=True).source for a in (False, True))
    assert_safe(annotated)
    assert "# onnx: " in annotated and "# onnx: " not in plain
    assert ast.unparse(ast.parse(annotated)) == ast.unparse(ast.parse(plain))
    assert black.format_str(annotated, mode=black.Mode(line_length=LINE_LENGTH)) == annotated
    long = annotated.replace("# onnx: ", "# onnx:  ").replace(" = ", "  =  ")  # black takes this for its own to repair
    assert black.format_str(long, mode=black.Mode(line_length=LINE_LENGTH)).count("  =  ") == annotated.count("  =  ")


@pytest.mark.parametrize("kind", ["quotes", "statement", "jinja", "backslash", "non_ascii", "newlines", "path"])
def test_file_names_are_no_code(kind: str, tmp_path: Path) -> None:
    """The model's own name becomes a class name, a comment and a file name."""
    text = HOSTILE[kind].replace("/", "_").strip()[:40]
    path = tmp_path / f"{text}.onnx"
    try:
        path.write_bytes(model_of("x").SerializeToString())
    except OSError:
        pytest.skip("this file system can't have such a name")
    generated = generate(path)
    (module,) = tmp_path.glob("*.py")
    assert_safe(module.read_text(encoding="utf-8"))
    assert generated.report.status == "written" and module.stem.isidentifier()


def test_all_at_once(tmp_path: Path) -> None:
    """One model with every hostile text as an initializer's and a node's name."""
    make = helper.make_node
    texts = list(dict.fromkeys(HOSTILE.values()))
    nodes = [
        make("Mul" if i % 2 else "Add", ["x" if i == 0 else f"h{i}", text], [f"h{i + 1}"], text)
        for i, text in enumerate(texts)
    ]
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(rng.uniform(0.5, 1.5, 4).astype(np.float32), text) for text in texts]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    outputs = [helper.make_tensor_value_info(f"h{len(texts)}", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph(nodes, "all", inputs, outputs, tensors)
    path = tmp_path / "all.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path.write_bytes(decorated(model, HOSTILE["statement"]).SerializeToString())
    x = rng.standard_normal((2, 4), np.float32)
    made = run(path, tmp_path, {"x": x})
    assert_safe(made.generated.source)
    assert_same("y", made.outputs[0], expected(path, {"x": x})[0])
    assert assert_finite_gradients(made) == len(texts) == assert_way_back(made, path)


@pytest.mark.parametrize("options", [{}, {"embed": True}, {"shard_size": 2000}], ids=["sidecar", "embedded", "sharded"])
def test_a_parameter_called_like_a_constant(options: dict[str, Any], tmp_path: Path) -> None:
    """`constants.*` is where the sidecar keeps constants, unless the network has parameters of that name."""
    make = helper.make_node
    rng = np.random.default_rng(0)
    table = rng.integers(-1000, 1000, (200, 3))  # no literal, no pattern: a constant in the sidecar
    tensors = [numpy_helper.from_array(rng.standard_normal(3).astype(np.float32), "constants.table.weight")]
    tensors.append(numpy_helper.from_array(table, "table"))
    nodes = [
        make("Gather", ["table", "index"], ["rows"]),
        make("Cast", ["rows"], ["floats"], to=TensorProto.FLOAT),
        make("Mul", ["floats", "constants.table.weight"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("index", TensorProto.INT64, ["n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    graph = helper.make_graph(nodes, "all", inputs, outputs, tensors)
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    index = np.array([0, 199, 7])
    made = run(path, tmp_path, {"index": index}, Options(**options))
    assert_safe(made.generated.source)
    assert_same("y", made.outputs[0], expected(path, {"index": index})[0])
    assert "constants.table.weight" in made.model.state_dict() and "def constant(" in made.generated.source
