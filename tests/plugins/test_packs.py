"""Packs: folders of onnxgen that it works without. Only what needs one notices that it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import helper, parser

from onnxgen import OnnxgenError, Options
from onnxgen.graph import operators
from onnxgen.pipeline import build
from tests.conftest import ROOT
from tests.support import forked

PACKS = ("classical", "microsoft", "paranoid", "training")
SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"
NETWORKS = {
    "layers": "(float[N,4] x) => (float[N,3] y) { h = Gemm<transB = 1>(x, w, b) y = Softmax<axis = 1>(h) }",
    "norm": """(float[N,4] x) => (float[N,4] y) {
        m = ReduceMean<axes = [-1], keepdims = 1>(x) d = Sub(x, m) q = Mul(d, d)
        v = ReduceMean<axes = [-1], keepdims = 1>(q) e = Constant<value_float = 0.00001>() a = Add(v, e) s = Sqrt(a)
        z = Div(d, s) g = Mul(z, scale) y = Add(g, shift) }""",
    "dropped": "(float[N,4] x) => (float[N,4] y) { y = ScaledTanh<alpha = 2.0, beta = 0.5>(x) }",
    "branch": """(float[N,4] x, bool c) => (float[N,4] y) {
        y = If(c) <then_branch = t () => (float[N,4] a) { a = Neg(x) },
                   else_branch = f () => (float[N,4] b) { b = Abs(x) }> }""",
}
STORED = {"w": [3, 4], "b": [3], "scale": [4], "shift": [4]}
# What needs a pack, with what its refusal names.
NEEDS = {
    "classical": ('y = ai.onnx.ml.Normalizer<norm = "L2">(x)', "ai.onnx.ml.Normalizer"),
    "microsoft": ("y = com.microsoft.BiasGelu(x, shift)", "com.microsoft.BiasGelu"),
}
RUN = """
import sys
sys.path.insert(0, sys.argv[1])
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
from pathlib import Path
import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options

assert Path(onnxgen.__file__).is_relative_to(sys.argv[1])
for name in sys.argv[2:]:
    name, _, option = name.partition(" ")
    try:
        onnxgen.generate(name, name + ".py", Options(paranoid=True) if option else Options())
    except OnnxgenError as error:
        print(name, str(error).replace(chr(10), " "))
    else:
        print(name, "written")
parts = {name.split(".")[1] for name in sys.modules if name.startswith("onnxgen.")}
print("loaded", *sorted(parts & {"classical", "microsoft", "paranoid", "training"}))
"""


def saved(path: Path, graph: str, opset: int = 13) -> Path:
    made = parser.parse_graph(f"net {graph}")
    for name, shape in STORED.items():
        if any(name in node.input for node in made.node):
            count = shape[0] * shape[-1] if len(shape) > 1 else shape[0]
            numbers = [0.5 + i / count for i in range(count)]
            made.initializer.append(helper.make_tensor(name, onnx.TensorProto.FLOAT, shape, numbers))
    opsets = [helper.make_opsetid(*pair) for pair in (("", opset), ("ai.onnx.ml", 3), ("com.microsoft", 1))]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    for name, graph in NETWORKS.items():
        saved(folder / name, graph, 6 if name == "dropped" else 13)
    for name, (node, _) in NEEDS.items():
        saved(folder / name, f"(float[N,4] x) => (float[N,4] y) {{ {node} }}")
    shutil.copy(SAMPLE, folder / "mnist")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, as it is installed."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "onnxgen", folder / "onnxgen")
    shutil.copytree(ROOT / "templates", folder / "onnxgen" / "templates")
    shutil.copytree(ROOT / "build_hooks", folder / "onnxgen" / "build_hooks")
    return folder


@pytest.fixture(params=[*PACKS, "all"])
def missing(request: pytest.FixtureRequest, whole: Path, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Packs that the copy lacks for one test."""
    packs = PACKS if request.param == "all" else (request.param,)
    for pack in packs:
        (whole / "onnxgen" / pack).rename(tmp_path / pack)
    yield packs
    for pack in packs:
        (tmp_path / pack).rename(whole / "onnxgen" / pack)


def answers(copy: Path, networks: Path, *names: str) -> dict[str, str]:
    done = forked.run(["-c", RUN, str(copy), *names], cwd=networks)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(line.split(" ", 1) if " " in line else (line, "") for line in done.stdout.splitlines())


def test_each_can_be_missing(missing: tuple[str, ...], whole: Path, networks: Path) -> None:
    """Other networks are written as ever, and what needs the pack is refused by the name of its operator."""
    for path in networks.glob("*.py"):
        path.unlink()
    found = answers(whole, networks, "mnist", *NETWORKS, *NEEDS)
    assert {found[name] for name in ("mnist", *NETWORKS)} == {"written"}, found
    for pack, (_, operator) in NEEDS.items():
        if pack in missing:
            assert found[pack].startswith("node ") and f"({operator}" in found[pack] and "Error" not in found[pack]
            assert "not supported" in found[pack]
        else:
            assert found[pack] == "written", found[pack]
    for name in ("mnist", *NETWORKS):
        source = build(networks / name, Options(), networks / f"{name}.py").source
        assert (networks / f"{name}.py").read_text(encoding="utf-8") == source, name


def test_packs_are_loaded_only_for_what_needs_them(whole: Path, networks: Path) -> None:
    for path in networks.glob("*.py"):
        path.unlink()
    assert answers(whole, networks, "mnist", "layers", "norm", "branch")["loaded"] == "paranoid"


def test_a_check_that_is_missing_is_said(whole: Path, networks: Path, tmp_path: Path) -> None:
    (whole / "onnxgen" / "paranoid").rename(tmp_path / "paranoid")
    found = answers(whole, networks, "layers paranoid")
    (tmp_path / "paranoid").rename(whole / "onnxgen" / "paranoid")
    assert "--paranoid: the package onnxgen.paranoid is missing" in found["layers"]


BODY = """
import onnxgen


@onnxgen.op("BiasGelu", domain="com.acme", body=True, infer=lambda n: [n.input(0)])
def bias_gelu(g, x, bias, *, times=1):
    if times < 1:
        raise ZeroDivisionError("no turns")
    for _ in range(times):
        x = g("Gelu", g("Add", x, bias))
    return x
"""


def test_a_plugin_may_have_bodies(tmp_path: Path) -> None:
    """They are written in the place of their operators, as those of `onnxgen.microsoft` are."""
    plugin = tmp_path / "ops.py"
    plugin.write_text(BODY)
    options = Options(plugins=[str(plugin)])

    def source(node: str, options: Options) -> str:
        path = saved(tmp_path / "net.onnx", f"(float[N,4] x) => (float[N,4] y) {{ {node} }}")
        return build(path, options, tmp_path / "net.py").source.partition("import")[2]

    own = source("y = com.microsoft.BiasGelu(x, shift)", Options())
    assert "F.gelu(x + self.shift)" in own and source("y = com.acme.BiasGelu(x, shift)", options) == own
    assert source("y = com.acme.BiasGelu<times = 2>(x, shift)", options).count("F.gelu") == 2
    for node, why in (
        ("com.acme.BiasGelu<times = 0>(x, shift)", "the body fails: ZeroDivisionError: no turns"),
        ("com.acme.BiasGelu(x)", "input 'bias' is missing"),
        ("com.acme.BiasGelu<turns = 2>(x, shift)", "attribute 'turns' is not handled"),
    ):
        with pytest.raises(OnnxgenError, match=why):
            source(f"y = {node}", options)


def test_named_as_a_plugin_it_writes_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bundled plugin is a plugin like any other, with its bodies."""
    path = saved(tmp_path / "net.onnx", f"(float[N,4] x) => (float[N,4] y) {{ {NEEDS['microsoft'][0]} }}")
    own = build(path, Options(), tmp_path / "net.py").source
    monkeypatch.setattr(operators, "BUNDLED", ())
    kept = operators.bundled, operators._others
    for cached in kept:
        cached.cache_clear()
    named = build(path, Options(plugins=["onnxgen.microsoft"]), tmp_path / "net.py").source
    monkeypatch.undo()
    for cached in kept:
        cached.cache_clear()
    assert named == own and "gelu" in own
