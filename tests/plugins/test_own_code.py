"""What a plugin's functions bring into a generated file: copies of their own code, and imports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from onnxgen import OnnxgenError, Options
from onnxgen.pipeline import build, generate
from tests.plugins.nets import model, net, one, saved, written
from tests.support.real import Run, assert_way_back, imported

LAYERS = '''\
import math
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from fractions import Fraction as Ratio

SCALE = float(Ratio(3, 2))


def scaled(x: Tensor) -> Tensor:
    return SCALE * x


class Swish(nn.Module):
    """x * sigmoid(beta * x), times a number."""

    def __init__(self, size: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha  # of the paper
        self.beta = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return scaled(x) * F.sigmoid(self.beta * x) * self.alpha / math.fabs(SCALE)


def unused(x: Tensor) -> Tensor:
    return x
'''
OPS = """\
import onnxgen


@onnxgen.op("Swish", domain="com.acme", infer=lambda n: [n.input(0)])
def swish(b, x, beta, *, alpha=1.0):
    layer = b.module("act", b.call(b.helper("Swish"), beta.shape[0], alpha), beta=beta)
    return b("layer(x)", layer=layer, x=x)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_class_of_the_plugin_holds_the_weights(here: Path) -> None:
    """Its text is copied with what it uses; it is trained, named and written back as any layer."""
    written(here / "acme/__init__.py", OPS)
    written(here / "acme/layers.py", LAYERS + "\nraise RuntimeError('only read')\n")
    generated = generate(saved(net(), here / "net.onnx"), here / "net.py", Options(plugins=["acme/"]))
    source = generated.source
    assert "self.act1 = Swish(8, 2.0)" in source and "self.act2 = Swish(8, 0.5)" in source
    assert "# of the paper" in source and "def unused" not in source and "import math\n" in source
    assert "from fractions import Fraction as Ratio\n" in source
    module = imported(here / "net.py")
    network = module.Model.from_pretrained()
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    import onnxruntime

    (expected,) = onnxruntime.InferenceSession(net(standard=True).SerializeToString()).run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_allclose(network(torch.from_numpy(x)), expected, rtol=1e-5, atol=1e-6)
    assert assert_way_back(Run(generated, module, network), here / "net.onnx") == 5
    assert set(network.state_dict()) == {"fc1.weight", "fc1.bias", "act1.beta", "act2.beta", "fc2.weight"}


FUNCTION = '''\
import onnxgen
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@onnxgen.op("Swish", domain="com.acme")
def op_swish(b, x):
    return b("f(x)", f=b.helper("swish"), x=x)


def swish(swish):
    """A function whose argument has its own name."""
    return swish * torch.sigmoid(swish)
'''


def test_a_function_of_the_same_file(here: Path) -> None:
    """torch is not imported to generate; and a local variable has another name than the function."""
    written(here / "ops.py", FUNCTION)
    proto = one()
    proto.graph.node[0].output[0] = proto.graph.output[0].name = "swish"
    generate(saved(proto, here / "m.onnx"), here / "m.py", Options(plugins=["ops.py"]))
    x = torch.randn(3, 4)
    torch.testing.assert_close(imported(here / "m.py").Model()(x), x * x.sigmoid())


def test_a_class_of_the_network_has_another_name(here: Path) -> None:
    """A scope called `swish` would be a class Swish, which the plugin brings."""
    written(here / "ops.py", OPS + LAYERS)
    proto = net()
    for node in proto.graph.node:
        node.name = node.name.replace("/act", "/swish/act")
        for i, name in enumerate(node.input):
            node.input[i] = name.replace("act1.beta", "swish.act1.beta").replace("act2.beta", "swish.act2.beta")
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace("act", "swish.act")
    generate(saved(proto, here / "m.onnx"), here / "m.py", Options(plugins=["ops.py"]))
    source = (here / "m.py").read_text()
    assert source.count("class Swish(") == 1
    assert imported(here / "m.py").Model.from_pretrained()(torch.randn(2, 4)).shape == (2, 3)


def test_an_import(here: Path) -> None:
    written(
        here / "ops.py",
        'import onnxgen\n@onnxgen.op("Swish", domain="com.acme")\n'
        'def swish(b, x):\n    return b("f(x)", f=b.imported("acme_pkg.layers", "swish_fast"), x=x)\n',
    )
    source = build(saved(one(), here / "m.onnx"), Options(plugins=["ops.py"]), here / "m.py").source
    assert "from acme_pkg.layers import swish_fast\n" in source and "return swish_fast(x0)" in source


def test_what_a_dead_node_asked_for_is_not_there(here: Path) -> None:
    written(here / "ops.py", FUNCTION)
    proto = one()
    proto.graph.node.append(helper.make_node("Neg", ["x0"], ["z"]))
    proto.graph.output[0].name = "z"
    source = build(saved(proto, here / "m.onnx"), Options(plugins=["ops.py"]), here / "m.py").source
    assert "swish" not in source.lower()


def test_what_an_operator_did_not_write_is_not_there(here: Path) -> None:
    """It asked for a function and an import of the file, and then took another way."""
    body = "    b.helper('spare'), b.imported('acme_pkg', 'unwanted')\n    return b('f(x)', f=b.helper('used'), x=x)\n"
    more = "def spare(x):\n    return x\n\n\ndef inner(x):\n    return x * 2\n\n\ndef used(x):\n    return inner(x)\n"
    written(
        here / "ops.py", f'import onnxgen\n@onnxgen.op("Swish", domain="com.acme")\ndef swish(b, x):\n{body}\n\n{more}'
    )
    generate(saved(one(), here / "m.onnx"), here / "m.py", Options(plugins=["ops.py"]))
    source = (here / "m.py").read_text()
    assert "spare" not in source and "unwanted" not in source
    x = torch.randn(3, 4)
    assert torch.equal(imported(here / "m.py").Model()(x), 2 * x)


@pytest.mark.parametrize(
    ("body", "call", "said"),
    [
        ("", 'b.helper("swish")', "the plugin has no function or class swish at the top level of its files"),
        (
            "from .x import y\ndef f(x): return y(x)",
            'b.helper("f")',
            "y is imported from .x -> a copied helper stands alone",
        ),
        (
            "def f(x): return onnxgen.load(x)",
            'b.helper("f")',
            "onnxgen is part of onnxgen, which generated code never imports",
        ),
        (
            "def Model(x): return x",
            'b.helper("Model")',
            "the generated file already has another Model -> give it another name",
        ),
        ("def crop(x): return x", 'b.helper("resize")', "the plugin has no function or class resize"),
        ("def resize(x): return x", 'b.helper("resize")', "the generated file already has another resize"),
        ("import os.path\ndef f(x): return os.path.join(x)", 'b.helper("f")', "import os.path can?t be copied"),
        (
            "from acme import F\ndef f(x): return F(x)",
            'b.helper("f")',
            "acme.F would be called F, which has another meaning",
        ),
        ("", 'b.imported("a b", "c")', "from a b import c is not Python"),
        ("", 'b.imported("onnxgen.ops", "c")', "c is part of onnxgen, which generated code never imports"),
        (
            "",
            '(b.imported("a", "c"), b.imported("b", "c"))[0]',
            "b.c would be called c, which has another meaning there",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_copied(here: Path, body: str, call: str, said: str) -> None:
    lines = (
        f'import onnxgen\n@onnxgen.op("Swish", domain="com.acme")\ndef op(b, x):\n    return b("f(x)", f={call}, x=x)\n'
    )
    written(
        here / "ops.py",
        lines
        + body.replace("from .x", "if False:\n    from .x").replace("from acme", "if False:\n    from acme")
        + "\n",
    )
    with pytest.raises(OnnxgenError) as refused:
        build(saved(one(), here / "m.onnx"), Options(plugins=["ops.py"]), here / "m.py")
    (problem,) = map(str, refused.value.problems)
    assert f"plugin ops.py: {said}".replace("?s", "'s").replace("?t", "'t") in problem


def test_a_network_called_as_its_helper(here: Path) -> None:
    written(here / "ops.py", OPS + LAYERS)
    saved(net(), here / "swish.onnx")
    with pytest.raises(
        OnnxgenError, match="the network and a name of a plugin are both called Swish -> give the class another name"
    ):
        build(here / "swish.onnx", Options(plugins=["ops.py"]), here / "m.py")
    build(here / "swish.onnx", Options(plugins=["ops.py"], class_name="Net"), here / "m.py")


def test_two_plugins_with_code_of_one_name(here: Path) -> None:
    written(here / "a.py", FUNCTION)
    written(here / "b.py", FUNCTION.replace('op("Swish"', 'op("Other"').replace("torch.sigmoid", "torch.tanh"))
    nodes = [helper.make_node(op, ["x"], [y], domain="com.acme") for op, y in (("Swish", "y"), ("Other", "z"))]
    proto = model(nodes, [("x", ["n", 4])], [("y", None), ("z", None)])
    with pytest.raises(
        OnnxgenError, match=r"plugin b\.py: the generated file already has another swish -> give it another name"
    ):
        build(saved(proto, here / "m.onnx"), Options(plugins=["a.py", "b.py"]), here / "m.py")


def test_the_same_bytes_each_time(here: Path) -> None:
    written(here / "acme/__init__.py", OPS)
    written(here / "acme/layers.py", LAYERS)
    saved(net(), here / "net.onnx")
    made = {build(here / "net.onnx", Options(plugins=["acme/"]), here / "net.py").source for _ in range(3)}
    assert len(made) == 1
    onnx.checker.check_model(onnx.load(here / "net.onnx"))
