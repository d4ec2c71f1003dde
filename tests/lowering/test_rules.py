"""Rules that are small and decide much: how a node is bound, what constants and states are called, what shares rows."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser
from torch import nn

from onnxgen.code import literals
from onnxgen.code.module_def import Assign, Member, Statement, expressions
from onnxgen.code.quote import Ref, quote, rewrite
from onnxgen.errors import OnnxgenError
from onnxgen.graph.operators import Operator
from onnxgen.lowering import constants
from onnxgen.lowering.builder import Builder
from onnxgen.lowering.dynamic_sizes import _Rows, free_rows
from onnxgen.lowering.lower import bind
from onnxgen.lowering.member_paths import _tensors, settle
from onnxgen.lowering.members import _buffer_name, _ends
from onnxgen.lowering.sharing import Sharing
from onnxgen.lowering.strides import is_contiguous
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.shapes import propagate
from onnxgen.shapes.info import Info
from tests.ops.harness import generate as written
from tests.ops.harness import run_model

PLUGIN = """import onnxgen
@onnxgen.op("Pair", domain="acme")
def pair(b, x, y, *, k: int = 1):
    return b("x + y * k", x=x, y=y, k=k)
"""


def model_of(text: str, opset: int = 17, **stored: Any) -> onnx.ModelProto:
    domains = f'"" : {opset}, "acme" : 1, "com.microsoft" : 1'
    model = parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> g {text}")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
    return model


def unloaded(source: str) -> nn.Module:
    """The model of a generated text, as its constructor makes it."""
    namespace: dict[str, Any] = {"__name__": "net", "__file__": "/nowhere/net.py"}
    exec(source, namespace)
    made: nn.Module = namespace["Model"]()
    return made


def test_nodes_that_fit_no_function_are_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(PLUGIN)
    plugin = tmp_path / "ops.py"
    said = {
        "acme.Pair (x, x, x)": f"(acme.Pair-1): the node has 3 inputs, but the function in plugin {plugin} takes 2"
        " -> give the function another parameter, or *more",
        "acme.Pair <j = 2> (x, x)": f"(acme.Pair-1): attribute 'j' is no parameter of the function in plugin {plugin}"
        " -> give the function a keyword of that name (see renames=), or **attributes",
        "acme.Pair (x)": "(acme.Pair-1): 'y' is missing -> give y a default if it may be left out",
        "com.microsoft.BiasGelu (x, x, x)": "(com.microsoft.BiasGelu-1): the node has 3 inputs, but the schema has 2"
        " -> a newer onnxruntime may have it: update onnxgen, or export the model without it (or write a plugin for "
        "the operator: docs/EXTENDING.md)",
        "acme.Other (x)": "(acme.O?[31mther-1): the operator is not supported -> write a plugin for it "
        "(docs/EXTENDING.md), leave it open with --allow-unsupported, or open an issue",
    }
    for node, wanted in said.items():
        model = model_of(f"(float[2, 4] x) => (float[2, 4] y) {{ y = {node} }}")
        if model.graph.node[0].op_type == "Other":
            model.graph.node[0].op_type = "O\x1b[31mther"
        onnx.save(model, tmp_path / "net.onnx")
        with pytest.raises(OnnxgenError) as caught:
            generate(tmp_path / "net.onnx", tmp_path / "net.py", Options(plugins=(str(plugin),)))
        assert str(caught.value) == f"node y {wanted}" and caught.value.exit_code == 2


def test_an_input_that_the_function_lacks_is_no_silent_loss() -> None:
    """It may be absent, and then it is; an input that is there is a bug of ours."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))

    def clip(b: Any, input: Any, min: Any = None) -> None: ...

    operator = Operator("Clip", "", 13, clip)
    for inputs, fits in (([x], True), ([x, x], True), ([x, x, None], True), ([x, None, x], False), ([x] * 3, False)):
        node = ir.Node("", "Clip", inputs, num_outputs=1)
        builder: Any = SimpleNamespace(node=node, opset=17, plugin=None, error=lambda what, way: OnnxgenError(what))
        if fits:
            positional, keywords = bind(builder, operator)
            assert [arg is None for arg in positional] == [v is None for v in [*inputs, None][:2]] and not keywords
        else:
            with pytest.raises(OnnxgenError, match="input 'max' is not handled"):
                bind(builder, operator)
    assert list(inspect.signature(clip).parameters) == ["b", *operator.parameters]


NAMED = {  # what is done with an integer constant, which is not trained: the buffer's name
    "y = Sub (x, c)": "mean",
    "r = Abs (x)  y = Sub (r, c)": "offset",
    "y = Add (x, c)": "offset",
    "y = Mul (x, c)": "scale",
    "r = Abs (x)  y = Mul (r, c)": "scale",
    "y = GatherElements <axis = 1> (x, c)": "index",
    "y = GatherElements <axis = 1> (c, x)": "constant",
    "a = Sub (x, c)  b = Mul (x, c)  y = Add (a, b)": "constant",
}


def test_constants_are_named_by_what_they_do(tmp_path: Path) -> None:
    """In the module that their node is in."""
    constant = numpy_helper.from_array(np.array([[3, 1, 0, 1], [2, 2, 1, 3]]), "")
    for text, name in NAMED.items():
        model = model_of(f"(int64[2, 4] x) => (int64[2, 4] y) {{ {text} }}")
        made = onnx.helper.make_node("Constant", [], ["/block/Constant_output_0"], value=constant)
        for node in model.graph.node:
            node.name = f"/block/{node.op_type}"
            node.input[:] = [made.output[0] if value == "c" else value for value in node.input]
        model.graph.node.insert(0, made)
        onnx.save(model, tmp_path / "net.onnx")
        ours = unloaded(generate(tmp_path / "net.onnx", tmp_path / "net.py").source)
        assert [key for key, _ in ours.named_buffers()] == [f"block.{name}"], text


def test_equal_constants_of_a_module_are_one_buffer_however_large() -> None:
    for size in (5, 40):
        table = np.random.default_rng(0).integers(0, 99, (size, size))
        shape = f"int64[{size}, {size}]"
        text = f"({shape} x) => ({shape} y) {{ a = Add (x, c)  b = Mul (a, d)  y = Sub (b, e) }}"
        source = written(model_of(text, c=table, d=table.copy(), e=table + 1)).source
        assert source.count("register_buffer") == 2, source


def test_states_of_a_recurrent_layer_are_called_so() -> None:
    rng, called = np.random.default_rng(0), {"h": "hidden", "c": "cell"}
    for kind, gates, states in (("GRU", 3, "h"), ("LSTM", 4, "hc")):
        stored = {name: rng.random((1, 4 * gates, size)).astype(np.float32) for name, size in (("w", 3), ("r", 4))}
        given = ", ".join(f"float[1, 2, 4] {name}0" for name in states)
        made = "".join(f"{name}9 = Tanh ({name}0)  {name}8 = Mul ({name}9, {name}9)  " for name in states)
        outputs = ", ".join(f"float[1, 2, 4] {name}8" for name in states)
        layer = (
            f"y = {kind} <hidden_size = 4, linear_before_reset = 1> (z, w, r, , , {', '.join(s + '9' for s in states)})"
        )
        layer = layer if kind == "GRU" else layer.replace(", linear_before_reset = 1", "")
        text = f"(float[5, 2, 3] i, {given}) => (float[5, 1, 2, 4] y, float[5, 2, 3] more, {outputs}) {{ "
        source = written(model_of(f"{text} z = Relu (i)  more = Mul (z, z)  {made} {layer} }}", **stored)).source
        for name in states:
            assert f"        {called[name]} = torch.tanh({name}0)" in source, source
        assert "x = F.relu(i)" in source


def test_stored_integers_begin_as_zeros_and_their_scales_as_ones() -> None:
    model = model_of(
        """(float[2, 4] x) => (float[2, 3] y) <float s = {0.5}, int8 zero = {1}> {
        d = DequantizeLinear (w, s, zero)  y = MatMul (x, d) }""",
        w=np.arange(12, dtype=np.int8).reshape(4, 3),
    )
    buffers = dict(unloaded(written(model).source).named_buffers())
    for name, begin in (("weight", torch.zeros(4, 3, dtype=torch.int8)), ("scale", torch.ones(()))):
        assert buffers[name].dtype == begin.dtype and torch.equal(buffers[name], begin)


def test_layers_that_keep_rows_take_them_with_a_batch() -> None:
    """torch takes operands without a batch, too, whose first axis is no row."""
    layers: dict[str, tuple[nn.Module, int]] = {"nn.Linear": (nn.Linear(3, 3), 2), "nn.LayerNorm": (nn.LayerNorm(3), 2)}
    for n in (1, 2, 3):
        for kind in (f"Conv{n}d", f"ConvTranspose{n}d"):
            layers[f"nn.{kind}"] = getattr(nn, kind)(3, 3, 1), n + 2
    for layer, (module, least) in layers.items():
        for rank in range(1, 6):
            rows = _Rows({"x": Info(ir.DataType.FLOAT, (3,) * rank)}, ["x"])
            is_by_rows = rows._by_rows(layer, [Ref("x")])
            assert is_by_rows is (rank == least if "Conv" in layer else rank >= least), (layer, rank)
            if is_by_rows:
                x = torch.randn((3,) * rank)
                assert torch.allclose(module(x)[1:], module(x[1:]), atol=1e-6)
    assert not _Rows({}, [])._by_rows("nn.Conv2d", [])


def test_paths_of_members() -> None:
    for path, key, ends in (
        (("a", "weight"), "weight", True),
        (("weight",), "weight", True),
        (("a", "weight", "b"), "weight", False),
        (("a", "out_proj", "weight"), "out_proj.weight", True),
        (("a", "weight"), "out_proj.weight", False),
        (("a", "out_proj"), "weight", False),
        ((), "weight", False),
    ):
        assert _ends(path, key) is ends
    layer = Member(("a",), ast.Constant(None), "module", {})
    for kind in ("parameter", "buffer"):
        assert _tensors(Member(("a", "w"), ast.Constant(None), kind), ("b", "w")) == [("b", "w")]  # type: ignore[arg-type]
    assert _tensors(layer, ("b",)) == [("b", *key.split(".")) for key in (*layer.keys, *layer.extra)]


VIEWS = {
    "Gather (t, i)": lambda t: t[torch.tensor([[0, 1, 2], [2, 1, 0]])],
    "Expand (t, s)": lambda t: t.expand(2, 3, 4),
    "Identity (t)": lambda t: t,
    "Transpose <perm = [1, 0]> (t)": lambda t: t.transpose(0, 1),
}


def test_more_axes_by_indices_are_copies_and_by_broadcasting_are_views() -> None:
    for text, view in VIEWS.items():
        sizes = "<int64[3] s = {2, 3, 4}, int64[2, 3] i = {0, 1, 2, 2, 1, 0}>"
        model = model_of(f"(float[3, 4] t) => (float[a, b, c] y) {sizes} {{ y = {text} }}")
        graph = ir.serde.deserialize_model(model).graph
        propagate(graph, Options())
        assert is_contiguous(graph.outputs[0]) is view(torch.randn(3, 4)).is_contiguous(), text


def test_equal_tensors_of_siblings_are_one_by_what_the_modules_around_say() -> None:
    """Each of these: what is said of the modules from the inside out, if the tensor is plain, and what follows."""
    siblings = ("blocks", "0", "fc"), ("blocks", "1", "fc")
    for said, plain, same, guessed in (
        (["same"], False, True, False),
        (["copied"], False, False, False),
        (["", "same"], False, True, False),
        (["equal", "copied"], False, False, False),
        (["equal", "equal"], False, True, False),
        (["equal", "equal"], True, True, False),
        (["fresh", "equal"], False, True, False),
        (["equal", "fresh"], False, False, True),
        (["equal", "fresh"], True, False, False),
        (["", ""], False, True, False),
        (["", ""], True, False, False),
        (["equal", ""], True, True, False),
        (["differ", "equal"], False, True, False),
        (["differ", "equal"], True, False, False),
    ):
        verdicts = iter(said)
        source = SimpleNamespace(names=["w"])
        a, b = (SimpleNamespace(path=path, source=source) for path in siblings)
        found: Any = SimpleNamespace(
            _is_plain=lambda _, plain=plain: plain, _verdict=lambda *_, left=verdicts: next(left), _guesses={}
        )
        assert Sharing._by_structure(found, a, b) is same, (said, plain)  # type: ignore[arg-type]
        assert bool(found._guesses) is guessed, (said, plain)


def test_rows_are_those_of_values_and_not_of_what_is_made_of_numbers() -> None:
    """`a` and `b` have 2 rows in the file; only what is joined with a value has as many as that.

    The values `x` and `v` exist before, as do the stored tensors `s`; `v` has one axis.
    """
    info, zeros = Info(ir.DataType.FLOAT, (2, 2)), "torch.zeros(2, 2)"
    infos = dict.fromkeys("abcsxy", info) | {"v": Info(ir.DataType.FLOAT, (2,))}
    for made, middle, end, wanted in (
        (zeros, "s", "a + b", zeros),
        (zeros, "s", "b + x", "torch.zeros_like(x)"),
        (zeros, "s", "torch.cat([b, x], dim=1)", "torch.zeros_like(x)"),
        (zeros, "s", "torch.cat([b, x], dim=0)", zeros),
        (zeros, "s + x", "b + c", "torch.zeros_like(x)"),
        (zeros, "v + s", "b + c", zeros),
        ("s.expand(2, -1)", "s", "b + x", "s.expand_as(x)"),
        ("s.expand(2, 2)", "s", "b + x", "s.expand(x.shape[0], 2)"),
    ):
        texts = {"a": "torch.ones(2, 2)", "b": made, "c": middle, "y": end}
        block: list[Statement] = [Assign((name,), _parsed(text)) for name, text in texts.items()]
        free_rows(block, infos, ["x", "v"], ["y"])
        found = [ast.unparse(_named(tree)) for statement in block for tree in expressions(statement)]
        assert found == ["torch.ones(2, 2)", wanted, middle, end], (made, middle, end)


def _parsed(text: str) -> ast.expr:
    return quote(text, **{name: Ref(name) for name in "abcsvxy" if re.search(rf"\b{name}\b", text)})


def _named(tree: ast.expr) -> ast.expr:
    return rewrite(tree, lambda t: ast.Name(t.value) if isinstance(t, Ref) else None)


def test_what_is_known_of_an_output_is_that_of_the_first() -> None:
    model = model_of("(float[2, 5] x) => (float[2, 3] y, int64[2, 3] i) <int64[1] k = {3}> { y, i = TopK (x, k) }")
    graph = ir.serde.deserialize_model(model).graph
    propagate(graph, Options())
    found: Any = SimpleNamespace(node=graph[0])
    assert Builder.out(found) == Builder.out(found, 0) == Info(ir.DataType.FLOAT, (2, 3))
    assert Builder.out(found, 1) == Info(ir.DataType.INT64, (2, 3)) and Builder.out(found, 2) == Info()


def test_statistics_of_two_norms_are_two_also_where_the_file_has_them_once() -> None:
    """Exporters store equal tensors once; in training each norm has statistics of its own."""
    model = model_of(
        """(float[2, 4, 3] x) => (float[2, 4, 3] y) {
        a = BatchNormalization (x, s, b, m, v)  r = Relu (a)  y = BatchNormalization (r, t, c, m, v) }""",
        **{name: np.linspace(1, 2 + i, 4, dtype=np.float32) for i, name in enumerate("sbmvtc")},
    )
    source = written(model).source
    norms = [layer for layer in unloaded(source).modules() if isinstance(layer, nn.BatchNorm1d)]
    assert len(norms) == 2 and norms[0].weight is not norms[1].weight
    assert norms[0].running_mean is not norms[1].running_mean and norms[0].running_var is not norms[1].running_var
    assert "running" not in source.partition("def from_pretrained")[0]


def test_norms_of_siblings_that_are_untrained_are_two() -> None:
    """Their ones and zeros are equal by chance, whatever else the file stores once."""
    model = model_of(
        "(float[2, 4] x) => (float[2, 4] y) "
        "{ a = LayerNormalization (x, s, b)  r = Relu (a)  y = LayerNormalization (r, s, b) }",
        s=np.ones(4, np.float32),
        b=np.zeros(4, np.float32),
    )
    for node, scope in zip(model.graph.node, ("blocks/0/norm", "blocks/0/act", "blocks/1/norm"), strict=True):
        node.name = f"/{scope}/{node.op_type}"
    names = [name for name, _ in unloaded(written(model).source).named_parameters()]  # each parameter once
    assert names == [f"blocks.{i}.norm.{key}" for i in range(2) for key in ("weight", "bias")]


def test_layers_bear_the_names_of_their_biases_where_the_weights_have_none() -> None:
    """PyTorch's exporter calls a weight that it has computed `onnx::Conv_12`. Both are called in another module."""
    model = model_of("(float[2, 3, 8] x) => (float[2, 3, 8] y) { a = Conv (x, w, b)  y = Conv (a, w, b) }")
    for node, weight, bias in zip(model.graph.node, ("onnx::Conv_12", "onnx::Conv_15"), ("up", "down")):
        node.name, node.input[1:] = "/body/Conv", (weight, f"{bias}.bias")
        for name, shape in (weight, (3, 3, 1)), (f"{bias}.bias", (3,)):
            numbers = np.random.default_rng(len(bias)).random(shape, np.float32)
            model.graph.initializer.append(numpy_helper.from_array(numbers, name))
    keys = unloaded(written(model).source).state_dict().keys()
    assert keys == {f"{name}.{key}" for name in ("up", "down") for key in ("weight", "bias")}


def test_a_bias_with_a_norm_that_is_put_back_is_another_than_that_of_a_layer() -> None:
    """The file stores one bias for two layers; without the norm they are one parameter."""
    rng = np.random.default_rng(0)
    shapes = {"w": (3, 3, 3, 3), "u": (3, 3, 3, 3), "b": (3,)}
    model = model_of(
        "(float[2, 3, 8, 8] x) => (float[2, 3, 4, 4] y) { a = Conv (x, w, b)  r = Relu (a)  y = Conv (r, u, b) }",
        **{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
    )
    for is_restored, count in ((False, 3), (True, 5)):
        ours = unloaded(written(model, Options(restore_batchnorm=is_restored)).source)
        assert len([*ours.parameters()]) == count


def test_outputs_that_nothing_uses_are_not_computed() -> None:
    """Where the others are known or give their shape alone."""
    for text in (
        "r = RandomNormalLike (x)  s = Shape (r)  y = Expand (c, s)",
        "r = MatMul (x, w)  s = Shape (r)  y = Expand (c, s)",
        "r, q = Split <axis = 1> (v)  e = Shape (q)  s = Shape (x)  y = Expand (c, s)",
        "s = Shape (x)  a, b = Split (s)  t = Concat <axis = 0> (a, k)  y = Expand (c, t)",
    ):
        model = model_of(f"(float[n, 3] x) => (float[n, 3] y) <float[1] c = {{2}}, int64[1] k = {{3}}> {{ {text} }}")
        model.graph.initializer.extend(numpy_helper.from_array(np.eye(3, dtype=np.float32), name) for name in "wv")
        assert not unloaded(written(model).source).state_dict()
        forward = written(model).source.partition("def forward")[2].partition("WEIGHTS")[0]
        assert not any(word in forward for word in ("randn", "split", "unbind", "chunk", "dropout")), forward
        assert forward.count(" = ") == 0, forward


def test_errors_of_nodes_show_no_text_of_the_file_as_it_is() -> None:
    node = ir.Node("acme", "O\x1b[31mther", [], num_outputs=1, name="n\x1b[2J")
    given: Any = SimpleNamespace(node=node, opset=7)
    problem = Builder.problem(given, "it is \x1b wrong", "do this")
    assert (problem.op, problem.help) == ("acme.O?[31mther", "do this") and str(problem).isprintable()
    given.node = ir.Node("acme", "line\n" * 99, [], num_outputs=1)
    assert "\n" not in str(Builder.problem(given, "what")) and len(Builder.problem(given, "what").op) < 100
    given.node = ir.Node("", "Relu", [], num_outputs=1)
    assert Builder.problem(given, "what").op == "Relu"


def test_a_form_that_makes_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant then is listed, or stored if it is long."""
    monkeypatch.setattr(literals.Form, "of", lambda *_: quote("torch.arange(4) + 1"))
    short, long = (constants.written(np.arange(n, dtype=np.int64), ir.DataType.INT64) for n in (4, 99))
    assert short is not None and "1, 2, 3" in ast.unparse(short) and long is None


def test_sizes_of_outputs_that_nothing_else_uses_are_known() -> None:
    """The number of elements that are not zero is one that only running tells."""
    model = model_of(
        """(float[n, 4] x) => (int64[k] y) <int64[1] one = {1}> {
        found = NonZero (x)  s = Shape (found)  count = Gather (s, one)  y = ConstantOfShape (count) }"""
    )
    for x in np.eye(3, 4, dtype=np.float32), np.ones((2, 4), np.float32):
        run_model(model, {"x": x})


def test_a_matrix_of_whole_numbers_is_a_constant() -> None:
    """Only layers that compute in integers have them in their state."""
    table = np.random.default_rng(0).integers(-9, 9, (4, 3)).astype(np.int32)
    for node in ("MatMul (x, w)", "Gemm (x, w)"):
        made = run_model(
            model_of(f"(int32[2, 4] x) => (int32[2, 3] y) {{ y = {node} }}", w=table),
            {"x": np.arange(8, dtype=np.int32).reshape(2, 4)},
        ).model
        assert not made.state_dict() and len([*made.buffers()]) == 1


def test_what_lies_in_a_layer_moves_out() -> None:
    """A layer has no other tensors than its own; what bears its path gets a number."""
    for paths, wanted in (
        (["conv module", "conv.constant"], ["conv", "constant"]),
        (["a.conv module", "a.conv.constant", "a.conv.scale"], ["a.conv", "a.constant", "a.scale"]),
        (["a.conv module", "a.conv.b.constant"], ["a.conv", "a.constant"]),
        (["a module", "a.b.c.constant"], ["a", "constant"]),
        (["a.conv module", "a.conv"], ["a.conv", "a.conv1"]),
        (["a.conv module", "a.constant", "b.constant"], ["a.conv", "a.constant", "b.constant"]),
    ):
        members = [
            Member(
                tuple(path.removesuffix(" module").split(".")),
                quote("nn.Conv1d(1, 1, 1)") if path.endswith("module") else ast.Constant(None),
                "module" if path.endswith("module") else "buffer",
                named=path.endswith("module"),
            )
            for path in paths
        ]
        settle(members)
        assert [".".join(member.path) for member in members] == wanted, paths


def test_a_tensor_with_the_name_of_a_module_is_called_otherwise() -> None:
    """Where the file gives both names. No attribute begins with a digit."""
    for name, other in (("b", "b_"), ("0", "part_0"), ("b_", "b__")):
        tensor = Member(("a", name), ast.Constant(None), "parameter", named=True)
        layer = Member(("a", name, "conv"), quote("nn.Conv1d(1, 1, 1)"), "module", named=True)
        settle([tensor, layer])
        assert (tensor.path, layer.path) == (("a", other), ("a", name, "conv"))


@pytest.mark.parametrize(
    ("hint", "name"), [("v96", "constant"), ("a.b.mask", "mask"), ("x/y", "constant"), ("", "constant")]
)
def test_a_constant_is_called_by_a_name_that_says_something(hint: str, name: str) -> None:
    assert _buffer_name(hint) == name
