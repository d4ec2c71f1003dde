"""Text from a file never becomes code: hostile names everywhere, and only an allow-list of syntax in the output.

Each model computes something; the generated module is held against the allow-list, run, and compared with onnxruntime.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import tokenize
from pathlib import Path
from typing import Any

import black
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.real import assert_finite_gradients, assert_same, assert_way_back, run, tensor

HOSTILE = {
    "spaces": "a name with  spaces ",
    "dots": "..a..b.",
    "slashes": "/a//b\\c/",
    "quotes": 'it\'s "quoted" `so`',
    "triple": '""" + evil() + """',
    "triple_single": "''' + evil() + '''",
    "newlines": "a\nimport os\r\nos.system('x')\n",
    "separators": "a\x0bb\x0c\u2028import os\u2029\x85import os",
    "statement": '"); import os; os.system("x"); ("',
    "subscript": "]); evil(); x([",
    "comment": "x # coding: utf-7",
    "coding": "# -*- coding: rot13 -*-",
    "backslash": "ends with \\",
    "escape": "\\x22); evil() #\\n\\u0022",
    "jinja": "{{ ''.__class__.__mro__ }}{% include 'x' %}{# #}",
    "fstring": "{evil()}{0}{x!r:>{width}}%s%(x)s",
    "keyword": "lambda",
    "soft_keyword": "match",
    "builtin": "print",
    "dunder": "__class__",
    "init": "__init__",
    "torch_name": "torch",
    "module_name": "nn",
    "functional": "F",
    "model": "Model",
    "self": "self",
    "forward": "forward",
    "helper": "load_weights.weight",
    "state": "state_dict.training",
    "path": "../../../etc/passwd",
    "dotted_code": "layer.0.evil();x.weight",
    "dotted_keyword": "class.def.0.import.weight",
    "dotted_dunder": "__class__.__init__.weight",
    "digits": "0.1.2.weight",
    "constants": "constants.x",
    "non_ascii": "日本語.ñ.𝒻𝑜𝓇",
    "bidi": "\u202eevil\u202c\u200b",
    "control": "\x1b[31m\x07\x7f",
    "long": "x" * 5000,
    "option": "--force",
    "json": '{"a": 1}, "b": [',
    "pragma": "# fmt: off # fmt: skip; # type: ignore # noqa",
    "pragma_alone": "fmt: off " * 12,
}
SECOND = " "  # what a second name has in front: the same name again, once it is cleaned


def model_of(text: str) -> onnx.ModelProto:
    """A Linear, arithmetic, a table, an If, and a shape of a named dim: every name is hostile."""
    make = helper.make_node
    n = [f"{text}{SECOND * i}" for i in range(24)]
    dim = n[20]
    weight = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    table = np.random.default_rng(1).standard_normal((40, 6), np.float32)
    branch = [
        helper.make_graph(
            [make(op, [n[6]], [n[name]], n[7], doc_string=text)],
            text,
            [],
            [helper.make_tensor_value_info(n[name], TensorProto.FLOAT, None)],
        )
        for op, name in (("Neg", 15), ("Exp", 16))
    ]
    nodes = [
        make("Gemm", [n[0], n[1], n[2]], [n[3]], text, doc_string=text, transB=1),
        make("Mul", [n[3], n[4]], [n[5]], n[1]),
        make("Add", [n[5], n[3]], [n[6]], n[2]),
        make("If", [n[8]], [n[9]], n[3], then_branch=branch[0], else_branch=branch[1]),
        make("Shape", [n[0]], [n[10]], n[4]),
        make("ReduceSum", [n[9]], [n[11]], n[7], keepdims=0),
        make("Identity", [n[10]], [n[12]], n[8]),
        make("Expand", [n[11], n[12]], [n[13]], n[5]),
        make("Gather", [n[14], n[17]], [n[18]], n[6]),
    ]
    initializers = [
        numpy_helper.from_array(weight, n[1]),
        numpy_helper.from_array(np.arange(6, dtype=np.float32), n[2]),
        numpy_helper.from_array(np.linspace(1, 2, 6, dtype=np.float32), n[4]),
        numpy_helper.from_array(table, n[14]),
    ]
    inputs = [
        helper.make_tensor_value_info(n[0], TensorProto.FLOAT, [dim, 4], text),
        helper.make_tensor_value_info(n[8], TensorProto.BOOL, []),
        helper.make_tensor_value_info(n[17], TensorProto.INT64, [dim]),
    ]
    outputs = [
        helper.make_tensor_value_info(n[13], TensorProto.FLOAT, [dim, 4]),
        helper.make_tensor_value_info(n[18], TensorProto.FLOAT, [dim, 6], text),
        helper.make_tensor_value_info(n[9], TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, text, inputs, outputs, initializers, text)
    return decorated(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), text)


def decorated(model: onnx.ModelProto, text: str) -> onnx.ModelProto:
    """Everything else in a file that is text: producer, metadata, a domain that nothing uses, exporters' notes."""
    model.producer_name = model.producer_version = model.domain = model.doc_string = text
    scopes = {"namespace": text, "pkg.torch.onnx.class_hierarchy": repr([text, text]), text: text}
    scopes["pkg.torch.onnx.name_scopes"] = repr([text, text])
    for node in model.graph.node:
        for key, value in scopes.items():
            node.metadata_props.add(key=key, value=value)
    for key, value in {**scopes, "names": json.dumps({"0": text}), "author": text}.items():
        model.metadata_props.add(key=key, value=value)
    model.opset_import.add(domain=text, version=1)
    return model


# ---- the allow-list --------------------------------------------------------------------------------------------------

MODULES = {"torch", "torch.nn.functional", "safetensors", "safetensors.torch", "numpy", "pathlib"}
MODULES |= {"math", "json", "base64", "re", "collections.abc", "typing", "__future__"}
FORBIDDEN = {"exec", "eval", "open", "compile", "__import__", "input", "breakpoint", "globals", "locals", "vars"}
FORBIDDEN |= {"setattr", "delattr", "getattr", "os", "sys", "subprocess"}
STATEMENTS = (
    *(ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr, ast.If, ast.For, ast.While, ast.With),
    *(ast.withitem, ast.Raise, ast.Assert, ast.Pass, ast.Break, ast.Continue, ast.Delete, ast.Try, ast.ExceptHandler),
)
EXPRESSIONS = (
    *(ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Starred),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.JoinedStr, ast.FormattedValue, ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.SetComp),
    *(ast.comprehension, ast.Lambda, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
CALLABLE = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)
DUNDERS = {"__init__", "__file__"}


def assert_safe(source: str) -> None:
    """Tokens are printable ASCII; the syntax is of the allow-list; every name is defined; nothing reaches dunders."""
    assert source.isascii() and not set(source) - set(map(chr, range(32, 127))) - {"\n"}
    assert source.startswith('"""') and "coding" not in "".join(source.splitlines()[:2])
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            assert not set(token.string) & set("'\"\\`") and len(token.string) <= 120
    tree = ast.parse(source)
    defined = set(dir(builtins)) | {"__file__"}
    for node in ast.walk(tree):
        assert isinstance(node, (*STATEMENTS, *EXPRESSIONS)), ast.dump(node)[:100]
        defined |= bound(node)
    functions = {n for node in ast.walk(tree) if isinstance(node, CALLABLE) for n in bound(node)} | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id in functions | {"cls", "layer"}, f"calls {node.func.id}"
        if isinstance(node, ast.Name):
            assert node.id in defined and node.id not in FORBIDDEN, node.id
            assert not node.id.startswith("__") or node.id in DUNDERS, node.id
        elif isinstance(node, ast.Attribute):
            assert node.attr not in FORBIDDEN and (
                not node.attr.startswith("__") or node.attr in DUNDERS | {"__name__"}
            )
        elif isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= MODULES
        elif isinstance(node, ast.ImportFrom):
            assert node.module in MODULES


def bound(node: ast.AST) -> set[str]:
    """The names that a node defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.ExceptHandler):
        return {node.name or ""}
    return {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()


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
    assert black.format_str(annotated, mode=black.Mode()) == annotated
    long = annotated.replace("# onnx: ", "# onnx:  ").replace(" = ", "  =  ")  # black takes this for its own to repair
    assert black.format_str(long, mode=black.Mode()).count("  =  ") == annotated.count("  =  ")


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
