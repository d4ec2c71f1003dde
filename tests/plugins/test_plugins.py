"""Operators of a person's own: what they make, which generations they count in, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from onnxgen import OnnxgenError, Options
from onnxgen.cli import run as command
from onnxgen.code.copied import FRAME
from onnxgen.lowering.builder import FILE_NAMES
from onnxgen.pipeline import build, check, generate
from tests.plugins.nets import SWISH, model, net, one, saved, written
from tests.support.real import Run, assert_way_back, imported


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, which the process is in."""
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith(("acme", "other", "onnxgen_plugin")):
            del sys.modules[name]


def made(proto: onnx.ModelProto, *plugins: object) -> str:
    """The source that plugins make of a model."""
    return build(saved(proto, Path("m.onnx")), Options(plugins=[str(p) for p in plugins]), Path("m.py")).source


def problems(proto: onnx.ModelProto, *plugins: object) -> list[str]:
    with pytest.raises(OnnxgenError) as refused:
        made(proto, *plugins)
    assert refused.value.exit_code == 2
    return [str(p) for p in refused.value.problems]


# ---- what it makes ---------------------------------------------------------------------------------------------------


def test_a_network_trains_and_goes_back(here: Path) -> None:
    """Held to onnxruntime on the same network in standard operators, before training and, by the way back, after."""
    written(here / "ops.py", SWISH)
    source, options = saved(net(), here / "net.onnx"), Options(plugins=["ops.py"])
    generated = generate(source, here / "net.py", options)
    assert check(source, here / "net.py", options)
    module = imported(here / "net.py")
    network = module.Model.from_pretrained()
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(net(standard=True).SerializeToString()).run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(network(torch.from_numpy(x)), expected, rtol=1e-5, atol=1e-6)
    keys = {"fc1.weight", "fc1.bias", "act1.beta", "act2.beta", "fc2.weight"}
    assert set(network.state_dict()) == keys == {n for n, _ in network.named_parameters()}
    assert assert_way_back(Run(generated, module, network), source) == len(keys)
    network(torch.from_numpy(x)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.parameters())


def test_training_goes_back_into_the_file(here: Path) -> None:
    """What was trained, in the original file; its values in the standard network give what the module computes."""
    written(here / "ops.py", SWISH)
    generate(saved(net(), here / "net.onnx"), here / "net.py", Options(plugins=["ops.py"]))
    network = imported(here / "net.py").Model.from_pretrained()
    x = torch.randn(16, 4)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    before = network(x).detach()
    (network(x) - 1).square().mean().backward()
    optimizer.step()
    from onnxgen import export

    export(here / "net.py", weights=network, out=here / "tuned.onnx", verify=False)
    tuned, standard = onnx.load(here / "tuned.onnx"), net(standard=True)
    assert [n.SerializeToString() for n in tuned.graph.node] == [n.SerializeToString() for n in net().graph.node]
    values = {t.name: t for t in tuned.graph.initializer}
    for tensor in standard.graph.initializer:
        tensor.CopyFrom(values.get(tensor.name, tensor))
    (got,) = onnxruntime.InferenceSession(standard.SerializeToString()).run(None, {"x": x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(network(x), got, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(network(x), before)


def test_a_module_with_weights(here: Path) -> None:
    """An operator may be a layer: its tensors are the layer's own, by their names in the file."""
    written(
        here / "ops.py",
        "import onnxgen\n"
        '@onnxgen.op("Dense", domain="com.acme")\n'
        "def dense(b, x, w, bias):\n"
        "    rows, columns = w.shape\n"
        '    layer = b.module("dense", b.call("nn.Linear", columns, rows), weight=w, bias=bias)\n'
        '    return b("m(x)", m=layer, x=x) if layer is not None else b("F.linear(x, w, c)", x=x, w=w, c=bias)\n',
    )
    draw = np.random.default_rng(0)
    tensors = [
        onnx.numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("head.weight", (3, 4)), ("head.bias", (3,)))
    ]
    node = helper.make_node("Dense", ["x", "head.weight", "head.bias"], ["y"], "/head/Dense", domain="com.acme")
    proto = model([node], [("x", ["n", 4])], [("y", ["n", 3])], tensors)
    source = made(proto, here / "ops.py")
    assert "self.head = nn.Linear(4, 3)" in source and "return self.head(x)" in source


def test_several_outputs_and_versions(here: Path) -> None:
    written(
        here / "ops.py",
        "import onnxgen\n"
        '@onnxgen.op("Both", domain="com.acme")\n'
        "def both(b, x):\n"
        '    return b("-x", x=x), b("x + 1", x=x)\n'
        '@onnxgen.op("Both", domain="com.acme", since=2)\n'
        "def newer(b, x):\n"
        '    return b.unpack(b("torch.aminmax(x, dim=0)", x=x))\n',
    )
    node = helper.make_node("Both", ["x"], ["y", "z"], domain="com.acme")
    proto = model([node], [("x", ["n", 4])], [("y", None), ("z", None)])
    assert "y = -x\n        z = x + 1\n" in made(proto, "ops.py")
    proto.opset_import[1].version = 3
    assert "torch.aminmax(x, dim=0)" in made(proto, "ops.py")


def test_attributes_of_every_kind(here: Path) -> None:
    """By name; `renames` and `**attributes` take those that no parameter can be called by."""
    written(
        here / "ops.py",
        "import onnxgen\n"
        '@onnxgen.op("Odd", domain="com.acme", renames={"a-b": "a_b"})\n'
        "def odd(b, *xs, a_b=0, words=(), **more):\n"
        "    assert more == {'x y': 2.5, 'class': [1, 2]}, more\n"
        '    return b("torch.stack([*xs]).sum(0) + n", xs=list(xs), n=a_b + len(words[0]))\n',
    )
    odd: dict[str, Any] = {"a-b": 3, "x y": 2.5, "class": [1, 2]}
    proto = one("Odd", 3, words=["ab", "c"], **odd)
    assert "torch.stack([*[x0, x1, x2]]).sum(0) + 5" in made(proto, "ops.py")


# ---- which generations it counts in ----------------------------------------------------------------------------------


def test_nothing_is_left_after_a_generation(here: Path) -> None:
    written(here / "ops.py", SWISH)
    assert "torch.sigmoid" in made(net(), "ops.py")
    assert "(com.acme.Swish-1): the operator is not supported" in problems(net())[0]
    written(here / "other.py", SWISH.replace("torch.sigmoid", "torch.tanh"))
    assert "torch.tanh" in made(net(), "other.py") and "torch.sigmoid" in made(net(), "ops.py")


def test_a_changed_file_counts_at_once(here: Path) -> None:
    """In one process, in the same second, at the same length."""
    written(here / "ops.py", SWISH)
    assert "torch.sigmoid" in made(net(), "ops.py")
    written(here / "ops.py", SWISH.replace("torch.sigmoid", "torch.softmax"))
    assert "torch.softmax" in made(net(), "ops.py")


def test_a_module_by_name_changes_too(here: Path) -> None:
    written(here / "acme_ops/__init__.py", "from . import layers\n")
    written(here / "acme_ops/layers.py", SWISH)
    assert "torch.sigmoid" in made(net(), "acme_ops")
    written(here / "acme_ops/layers.py", SWISH.replace("torch.sigmoid", "torch.tanh") + "\n# longer\n")
    assert "torch.tanh" in made(net(), "acme_ops")


def test_a_package_by_its_folder(here: Path) -> None:
    written(here / "deep/acme/__init__.py", "from .layers import swish\n")
    written(here / "deep/acme/layers.py", SWISH)
    assert "torch.sigmoid" in made(net(), "deep/acme/")
    assert "torch.sigmoid" in made(net(), "deep/acme/", here / "deep/acme"), "the same one, twice"


def test_threads_have_plugins_of_their_own(here: Path) -> None:
    names = ("sigmoid", "tanh", "exp", "sin")
    for name in names:
        written(here / f"{name}.py", SWISH.replace("torch.sigmoid", f"torch.{name}"))
    path, found = saved(net(), here / "m.onnx"), {}

    def work(name: str) -> None:
        sources = [build(path, Options(plugins=[f"{name}.py"]), Path("m.py")).source for _ in range(3)]
        found[name] = {source.count(f"torch.{n}(") for n in names for source in sources if n == name}
        found[name] |= {-source.count(f"torch.{n}(") for n in names for source in sources if n != name}

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: {0, 1} for name in names}


@pytest.mark.parametrize(
    "text, says",
    [
        ("a * x * torch.sigmoid(gama * x)", "the text uses gama without a value"),
        ("os.system(x * beta * a)", "the text uses os without a value"),
        ("x * a", "the text does not use beta"),
        ("x * a * beta *", "the text is not a Python expression"),
    ],
)
def test_a_text_names_what_it_is_given(here: Path, text: str, says: str) -> None:
    written(here / "ops.py", SWISH.replace("x * torch.sigmoid(beta * x) * a", text))
    assert any(says in problem for problem in problems(net(), "ops.py"))


def test_a_text_may_name_what_every_generated_file_knows() -> None:
    assert set(FRAME) < FILE_NAMES and not FILE_NAMES & {
        "eval",
        "exec",
        "open",
        "getattr",
        "vars",
        "print",
        "input",
        "type",
    }


def test_a_plugin_writes_what_no_other_code_may_have(here: Path) -> None:
    """A person may write what they like; what onnxgen writes is held to a list."""
    text = "torch.ops.aten.relu(x0)"
    written(
        here / "ops.py",
        f'import onnxgen\n@onnxgen.op("Mine", domain="com.acme")\ndef mine(b, x0): return b("{text}", x0=x0)',
    )
    assert text in made(one("Mine"), "ops.py")


def test_a_plugin_wins(here: Path) -> None:
    """Over onnxgen's own function, and over a local function in the file."""
    text = SWISH + '\n@onnxgen.op("Relu")\ndef relu(b, X):\n    return b("X.clamp(min=0)", X=X)\n'
    written(here / "ops.py", text)
    assert ".clamp(min=0)" in made(one("Relu", domain=""), "ops.py")
    proto = net()
    body = [helper.make_node("Neg", ["x"], ["y"])]
    swish = helper.make_function(
        "com.acme", "Swish", ["x", "beta"], ["y"], body, [helper.make_opsetid("", 17)], ["alpha"]
    )
    proto.functions.append(swish)
    assert "torch.sigmoid" not in made(proto) and "torch.sigmoid" in made(proto, "ops.py")


def test_a_function_for_newer_opsets_leaves_the_older_ones(here: Path) -> None:
    written(
        here / "ops.py", 'import onnxgen\n@onnxgen.op("Relu", since=18)\ndef relu(b, X):\n    return b("-X", X=X)\n'
    )
    assert "F.relu" in made(one("Relu", domain=""), "ops.py")


# ---- shapes ----------------------------------------------------------------------------------------------------------


def test_a_rule_for_shapes(here: Path) -> None:
    """Without one, dims after the operator are read of its result; with one they are known."""
    text = (
        "import onnxgen\n"
        "from onnxgen.shapes.info import tensor\n"
        "def rule(n):\n"
        "    return [tensor(n.dtype(), (*n.shape()[:-1], 2 * n.shape()[-1]))]\n"
        '@onnxgen.op("Twice", domain="com.acme"RULE)\n'
        "def twice(b, x):\n"
        '    return b("torch.cat([x, x], -1)", x=x)\n'
    )
    written(here / "without.py", text.replace("RULE", ""))
    written(here / "with_it.py", text.replace("RULE", ", infer=rule"))
    shape = onnx.numpy_helper.from_array(np.array([0, 2, 4], np.int64), "shape")
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], domain="com.acme"),
        helper.make_node("Reshape", ["t", "shape"], ["y"]),
    ]
    proto = model(nodes, [("x", ["n", 4])], [("y", None)], [shape])
    for plugin, dims in (("without.py", "?"), ("with_it.py", "[n, 2, 4]")):
        generated = build(saved(proto, here / "m.onnx"), Options(plugins=[plugin]), here / "m.py")
        assert f"Outputs   y  float32  {dims}" in generated.source or dims == "?"
        generate(here / "m.onnx", here / "m.py", Options(plugins=[plugin]), force=True)
        x = torch.randn(3, 4)
        torch.testing.assert_close(imported(here / "m.py").Model()(x), torch.cat([x, x], -1).reshape(3, 2, 4))


def test_elements_are_never_a_rules(here: Path) -> None:
    """A rule that hands on what is known of a constant must not make the result that constant."""
    written(here / "ops.py", SWISH)
    constant = onnx.numpy_helper.from_array(np.arange(4, dtype=np.int64), "k")
    nodes = [
        helper.make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Swish", ["f", "x"], ["s"], domain="com.acme"),
        helper.make_node("Add", ["s", "x"], ["y"]),
    ]
    assert "torch.sigmoid" in made(model(nodes, [("x", [4])], [("y", [4])], [constant]), "ops.py")


# ---- what is refused -------------------------------------------------------------------------------------------------

ONE = 'import onnxgen\n@onnxgen.op("Swish", domain="com.acme")\ndef swish({}):\n    {}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0\n", "ops.py: ZeroDivisionError: division by zero ("),
        ("def f(:\n", "ops.py: SyntaxError: "),
        ("import nothing_of_this_name\n", "ops.py: ModuleNotFoundError: No module named"),
        ("raise SystemExit('bye')\n", "ops.py: SystemExit: bye"),
        ("x = 1\n", "ops.py: the plugin registers no operator -> decorate a function"),
        (SWISH + SWISH.partition("\n\n\n")[2], "ops.py: com.acme.Swish is registered twice from opset 1 on"),
        ('import onnxgen\n@onnxgen.op("A")\ndef a(): ...\n', "ops.py: the function of A takes no arguments"),
    ],
    ids=["raises", "syntax", "import", "exit", "nothing", "twice", "takes nothing"],
)
def test_a_bad_plugin_is_one_line(here: Path, text: str, said: str) -> None:
    written(here / "ops.py", text)
    (problem,) = problems(net(), "ops.py")
    assert problem.startswith(f"--plugin {said}") and "\n" not in problem


def test_missing_plugins(here: Path) -> None:
    (here / "empty").mkdir()
    for name, said in (
        ("no.py", "there is no such file"),
        ("no_such_module", "there is no such module -> install it, or name its file"),
        ("json.no.such", "there is no such module"),
        ("a b", "is neither the path of a .py file nor the name of a module"),
        ("empty/", "the folder has no __init__.py"),
        ("json", "the plugin registers no operator"),
    ):
        (problem,) = problems(net(), name)
        assert problem.startswith(f"--plugin {name}: {said}")


def test_the_same_operator_in_two_plugins(here: Path) -> None:
    written(here / "a.py", SWISH)
    written(here / "b.py", SWISH)
    (problem,) = problems(net(), "a.py", "b.py")
    assert problem.startswith("--plugin a.py and b.py: com.acme.Swish is registered twice from opset 1 on -> ")


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (
            "b, x",
            "return x",
            "the node has 2 inputs, but the function in plugin ops.py takes 1 -> give the function another",
        ),
        ("b, x, y, z, *, alpha", "return x", "'z' is missing -> give z a default if it may be left out"),
        ("b, x, y, *, beta", "return x", "attribute 'alpha' is no parameter of the function in plugin ops.py -> "),
        ("b, x, y, *, alpha", "return 'x'", "plugin ops.py returns str, which is not an expression -> return b("),
        ("b, x, y, *, alpha", "pass", "plugin ops.py returns None for output 0, which is used"),
        ("b, x, y, *, alpha", "return [x, y]", "plugin ops.py returns 2 values for 1 output"),
        ("b, x, y, *, alpha", "return x.no_such_thing", "plugin ops.py: AttributeError: "),
        ("b, x, y, *, alpha", "return b('x +')", "plugin ops.py: the text is not a Python expression: x +"),
        ("b, x, y, *, alpha", "raise b.error('not so', 'but so')", "not so -> but so"),
    ],
    ids=["inputs", "missing", "attribute", "text", "nothing", "many", "raises", "template", "own"],
)
def test_a_node_that_does_not_fit(here: Path, arguments: str, body: str, said: str) -> None:
    written(here / "ops.py", ONE.format(arguments, body))
    (problem,) = problems(one(inputs=2, alpha=1.5), "ops.py")
    assert problem.startswith(f"node node (com.acme.Swish-1): {said}")


def test_a_rule_that_fails(here: Path) -> None:
    written(here / "ops.py", SWISH.replace("[n.input(0)]", "n.no_such"))
    (problem,) = problems(net(), "ops.py")
    assert "(com.acme.Swish-1): plugin ops.py: the infer rule fails: AttributeError: " in problem
    written(here / "ops.py", SWISH.replace("[n.input(0)]", "[1]"))
    assert "an infer rule must return a list of Info" in problems(net(), "ops.py")[0]


def test_plugins_are_a_list() -> None:
    with pytest.raises(OnnxgenError, match="plugins must be a list"):
        Options(plugins="ops.py")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(here / "ops.py", SWISH)
    saved(net(), here / "m.onnx")
    assert command(["m.onnx", "-q"]) == 2
    assert command(["m.onnx", "-q", "--plugin", "ops.py"]) == 0
    assert command(["m.onnx", "-q", "--plugin", "ops.py", "--check"]) == 0
    assert command(["inspect", "m.onnx", "-q", "--plugin", "ops.py"]) == 0
    capsys.readouterr()
    assert command(["ops", "--plugin", "ops.py", "--json"]) == 0
    found = [o for o in json.loads(capsys.readouterr().out) if o["plugin"]]
    expected = {"name": "Swish", "domain": "com.acme", "since": [1], "parameters": ["x", "beta", "alpha"]}
    assert found == [{**expected, "plugin": "ops.py"}]
    assert command(["ops", "--plugin", "no.py"]) == 2
    assert capsys.readouterr().err == "error: --plugin no.py: there is no such file\n"


def test_a_plugin_imports_no_torch(here: Path) -> None:
    """Nor does a script that has its operators in itself."""
    saved(net(), here / "m.onnx")
    code = f"{SWISH}\nimport sys\nonnxgen.generate('m.onnx', 'm.py', onnxgen.Options(plugins=['__main__']))\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n" and "torch.sigmoid" in (here / "m.py").read_text()


# ---- names that the standard has, too --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Cast", "MatMul", "Round", "Identity", "Constant", "Relu", "Dropout", "If", "Shape"])
def test_an_operator_called_like_a_standard_one(here: Path, name: str) -> None:
    """It means what the plugin says: no pattern takes it for the other, and its weights are trained."""
    written(
        here / "ops.py",
        f"import onnxgen\n@onnxgen.op({name!r}, domain='com.acme')\n"
        'def own(b, x, w, **more):\n    return b("x * w.exp()", x=x, w=w)\n',
    )
    values = np.array([0.5, -1, 2, 3], np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node(name, ["h", "w"], ["t"], domain="com.acme"),
        helper.make_node("Add", ["t", "h"], ["y"]),
    ]
    proto = model(nodes, [("x", ["n", 4])], [("y", ["n", 4])], [onnx.numpy_helper.from_array(values, "w")])
    assert "is not supported" in problems(proto)[0]
    generate(saved(proto, here / "m.onnx"), here / "m.py", Options(plugins=["ops.py"]))
    network = imported(here / "m.py").Model.from_pretrained()
    x = torch.randn(3, 4)
    torch.testing.assert_close(network(x), x.relu() * torch.from_numpy(values).exp() + x.relu())
    assert [n for n, _ in network.named_parameters()] == ["w"]


# ---- compared with what the plugin says in numpy ---------------------------------------------------------------------

REFERENCE = SWISH.replace("import onnxgen\n", "import numpy as np\n\nimport onnxgen\n").replace(
    "infer=", "reference=lambda x, beta, alpha: (alpha * x / (1 + np.exp(-beta * x))).astype(x.dtype), infer="
)


def test_verify_and_export_compare(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(here / "ops.py", REFERENCE)
    saved(net(), here / "net.onnx")
    assert command(["net.onnx", "-q", "--plugin", "ops.py"]) == 0
    assert command(["verify", "net.onnx", "net.py", "--plugin", "ops.py"]) == 0
    assert command(["export", "net.py", "-o", "out.onnx", "--plugin", "ops.py"]) == 0
    assert "verified against the module" in capsys.readouterr().out
    written(here / "wrong.py", REFERENCE.replace("alpha * x /", "alpha + x /"))
    assert command(["verify", "net.onnx", "net.py", "--plugin", "wrong.py"]) == 1
    assert command(["export", "net.py", "-o", "no.onnx", "--plugin", "wrong.py"]) == 1
    assert not (here / "no.onnx").exists()
    written(here / "none.py", SWISH)
    capsys.readouterr()
    assert command(["verify", "net.onnx", "net.py", "--plugin", "none.py"]) == 2
    said = " -> give a reference for com.acme.Swish in a --plugin: @onnxgen.op(..., reference=...)\n"
    assert capsys.readouterr().err.endswith(said)
