"""`from_pretrained(strict=False)`: what fits is loaded, what is new is initialised, and both are named.

The oracles are the sidecar as safetensors reads it, and `Model()` with the same seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from onnxgen.options import Options  # noqa: E402
from onnxgen.pipeline import build, generate  # noqa: E402
from onnxgen.runtime.load import imported  # noqa: E402
from tests.integrity.pairs import ONE, SHARDS, network  # noqa: E402

LAYERS = "self.layers = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(3)])"
MADE = """self.layers = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(2)])
        self.out = nn.Linear(8, 5)
        self.register_buffer("steps", torch.arange(5), persistent=False)"""
EDITS = {LAYERS: MADE, "return self.layers(x)": "return self.out(self.layers(x)) * self.steps"}
SAID = "newly initialised: out.weight, out.bias; not used: layers.2.weight"


def edit(path: Path, changes: Mapping[str, str]) -> Path:
    text = path.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


def made(folder: Path, options: Options = ONE) -> Path:
    """A module whose last layer was replaced by another, which also uses a buffer that is in no file."""
    out = folder / "model.py"
    generate(network(folder / "net.onnx", 1), out, options)
    return edit(out, EDITS)


def partial(module: ModuleType, *given: Any, **more: Any) -> tuple[Any, list[str]]:
    """The model of `strict=False`, and what is said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = module.Model.from_pretrained(*given, strict=False, **more)
    return model, [str(warning.message) for warning in said]


def fresh(module: ModuleType) -> Any:
    torch.manual_seed(7)
    return module.Model()


@pytest.mark.parametrize("options", [ONE, SHARDS, Options(embed=True)], ids=["one", "shards", "embedded"])
def test_a_module_with_other_layers(tmp_path: Path, options: Options) -> None:
    tensors = build(network(tmp_path / "net.onnx", 1), ONE, tmp_path / "model.py").tensors
    stored = {k: np.asarray(s.numpy()) for k, s in tensors.items()}
    with imported(made(tmp_path, options)) as module:
        with pytest.raises(RuntimeError, match='(?s)Missing.*"out.weight", "out.bias".*Unexpected.*"layers.2.weight"'):
            module.Model.from_pretrained()
        new = fresh(module).state_dict()
        torch.manual_seed(7)
        model, said = partial(module)
        assert said == [SAID]
        state = model.state_dict()
        assert state.keys() == {"layers.0.weight", "layers.1.weight", "out.weight", "out.bias"}
        for key, tensor in state.items():
            np.testing.assert_array_equal(tensor, stored[key] if key in stored else new[key])
        x = torch.randn(4, 8)
        hidden = x @ state["layers.0.weight"].T @ state["layers.1.weight"].T
        wanted = (hidden @ state["out.weight"].T + state["out.bias"]) * torch.arange(5)
        torch.testing.assert_close(model(x), wanted)
        model(x).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_moved_and_converted(tmp_path: Path) -> None:
    with imported(made(tmp_path)) as module:
        model, said = partial(module, dtype=torch.float16)
        assert said == [SAID] and {value.dtype for value in model.state_dict().values()} == {torch.float16}
        assert torch.equal(model.layers[0].weight, load_file(module.WEIGHTS)["layers.0.weight"].half())


def test_nothing_is_said_where_all_fits(tmp_path: Path) -> None:
    generate(network(tmp_path / "net.onnx", 1), tmp_path / "model.py")
    with imported(tmp_path / "model.py") as module:
        model, said = partial(module)
        whole = module.Model.from_pretrained().state_dict()
        assert said == [] and all(torch.equal(value, whole[key]) for key, value in model.state_dict().items())


def test_a_part_of_the_weights(tmp_path: Path) -> None:
    generate(network(tmp_path / "net.onnx", 1), tmp_path / "model.py")
    with imported(tmp_path / "model.py") as module:
        state = load_file(module.WEIGHTS)
        kept = {"layers.1.weight": state["layers.1.weight"] + 1, "more": torch.zeros(1)}
        save_file(kept, tmp_path / "part.safetensors")
        model, said = partial(module, str(tmp_path / "part.safetensors"))
        assert said == ["newly initialised: layers.0.weight, layers.2.weight; not used: more"]
        assert torch.equal(model.layers[1].weight, kept["layers.1.weight"])


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (torch.zeros(8, 9), RuntimeError, r"(?s)layers.0.weight.*\[8, 9\].*\[8, 8\]"),
        (torch.zeros(8, 8).double(), TypeError, "layers.0.weight is torch.float64 .*, not torch.float32"),
        (torch.zeros(8, 8).int(), RuntimeError, "(?s)layers.0.weight.*floating point"),
    ],
)
def test_what_has_the_key_must_fit(tmp_path: Path, value: Any, error: type[Exception], says: str) -> None:
    with imported(made(tmp_path)) as module:
        save_file({"layers.0.weight": value}, tmp_path / "other.safetensors")
        with pytest.raises(error, match=says):
            partial(module, tmp_path / "other.safetensors")


def test_the_sidecar_of_another_module(tmp_path: Path) -> None:
    with imported(made(tmp_path)) as module:
        save_file(load_file(module.WEIGHTS), module.WEIGHTS, {"fingerprint": "0"})
        with pytest.raises(ValueError, match="does not belong here"):
            partial(module)


def test_half_precision_stays_what_the_layer_is(tmp_path: Path) -> None:
    """A new layer gets the width of the network, whether its constructor says it or not."""
    generate(network(tmp_path / "net.onnx", 1), path := tmp_path / "model.py", Options(dtype="float16"))
    edit(path, {"super().__init__()": "super().__init__()\n        self.out = nn.Linear(8, 5)"})
    for change in ({}, {"nn.Linear(8, 5)": "nn.Linear(8, 5, dtype=torch.float16)"}):
        with imported(edit(path, change)) as module:
            model, said = partial(module)
            assert said == ["newly initialised: out.weight, out.bias; not used: "]
            assert {value.dtype for value in model.state_dict().values()} == {torch.float16}


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A language model whose last matrix is its embedding."""
    shapes = {"embed.weight": (6, 4), "inner.weight": (4, 4)}
    tensors = [
        numpy_helper.from_array(np.random.default_rng(n).standard_normal(shape).astype(np.float32), key)
        for n, (key, shape) in enumerate(shapes.items())
    ]
    nodes = [
        helper.make_node("Gather", ["embed.weight", "ids"], ["h"], "/embed/Gather"),
        helper.make_node("Gemm", ["h", "inner.weight"], ["g"], "/inner/Gemm", transB=1),
        helper.make_node("Gemm", ["g", "embed.weight"], ["y"], "/head/Gemm", transB=1),
    ]
    values = [helper.make_tensor_value_info("ids", 7, ["n"]), helper.make_tensor_value_info("y", 1, ["n", 6])]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "model.py")
    assert "self.head.weight = self.embed.weight" in (tmp_path / "model.py").read_text()
    return tmp_path / "model.py"


@pytest.mark.parametrize("names", [("embed.weight",), ("head.weight",), ("embed.weight", "head.weight"), ()])
def test_tied_weights_under_either_name(tied: Path, names: tuple[str, ...]) -> None:
    with imported(tied) as module:
        own = load_file(module.WEIGHTS)
        state = {name: own["embed.weight"].clone() + 1 for name in names} | {"inner.weight": own["inner.weight"]}
        save_file(state, path := tied.with_name("other.safetensors"))
        embed = fresh(module).embed.weight
        torch.manual_seed(7)
        model, said = partial(module, path)
        assert model.head.weight is model.embed.weight
        if names:
            assert said == [] and torch.equal(model.embed.weight, own["embed.weight"] + 1)
            strict = module.Model.from_pretrained(path)
            assert strict.head.weight is strict.embed.weight and torch.equal(strict.embed.weight, model.embed.weight)
        else:
            assert said == ["newly initialised: embed.weight, head.weight; not used: "]
            assert torch.equal(model.embed.weight, embed)
            with pytest.raises(RuntimeError, match="(?s)Missing.*embed.weight"):
                module.Model.from_pretrained(path)
