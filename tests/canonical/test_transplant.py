"""`onnxgen transplant`: what is filled from which files, what is refused and where, and the way back."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import onnxgen
from onnxgen.canonical.transplant import NotTheSame, transplant
from onnxgen.cli import run as main
from onnxgen.errors import OnnxgenError


class Block(nn.Module):
    """A block of a ResNet."""

    def __init__(self, before: int, after: int, stride: int = 1, act: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(after)
        self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(out)) + self.down(x))


class Images(nn.Module):
    """A small ResNet."""

    def __init__(self, depth: int = 2, width: int = 4, act: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(Block(width, width, act=act) for _ in range(depth)))
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))  # type: ignore[no-any-return]


class Packed(nn.Module):
    """Attention, whose three projections are one matrix."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, size = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, count, size))  # type: ignore


class NormedHeads(Packed):
    """The same with norms of the queries and keys of each head."""

    def forward(self, x: Tensor) -> Tensor:
        batch, count, size = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = (F.layer_norm(t, t.shape[-1:]) for t in (q, k))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, count, size))  # type: ignore


class Split(nn.Module):
    """Attention with three matrices, stored the other way round, and with its softmax written out."""

    q: nn.Parameter
    k: nn.Parameter
    v: nn.Parameter
    q_bias: nn.Parameter
    k_bias: nn.Parameter
    v_bias: nn.Parameter

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        for name in ("q", "k", "v"):
            self.register_parameter(name, nn.Parameter(torch.empty(size, size)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(size)))
        self.out = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, size = x.shape
        q, k, v = (
            (x @ m + b).view(batch, count, self.heads, -1).transpose(1, 2)
            for m, b in ((self.q, self.q_bias), (self.k, self.k_bias), (self.v, self.v_bias))
        )
        shares = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((shares @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Words(nn.Module):
    """A transformer of two layers on tokens."""

    def __init__(
        self,
        attention: Callable[[int, int], nn.Module] = Packed,
        size: int = 16,
        heads: int = 4,
        depth: int = 2,
        epsilon: float = 1e-5,
        act: str = "gelu",
        late: bool = False,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, size), nn.Embedding(12, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size, epsilon) for _ in range(2 * depth))
        self.attention = nn.ModuleList(attention(size, heads) for _ in range(depth))
        self.wide = nn.ModuleList(nn.Linear(size, 24) for _ in range(depth))
        self.narrow = nn.ModuleList(nn.Linear(24, size) for _ in range(depth))
        self.act, self.late = getattr(F, act), late

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for number, (attention, wide, narrow) in enumerate(zip(self.attention, self.wide, self.narrow, strict=True)):
            one, other = self.norms[2 * number], self.norms[2 * number + 1]
            x = one(x + attention(x)) if self.late else x + attention(one(x))
            x = x + narrow(self.act(wide(other(x))))
        return x @ self.words.weight.T  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Branches that are alike, some of which share a layer; `order` says in which they are registered."""

    a: nn.Linear
    b: nn.Linear
    c: nn.Linear
    d: nn.Linear

    def __init__(self, order: str = "abcd") -> None:
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = (torch.tanh(layer(x)) for layer in (self.a, self.b, self.c, self.d))
        return torch.cat([self.a(b) + self.c(d), (a * b) + (c * d), a - d], 1)


class Normed(nn.Module):
    def __init__(self, norm: Callable[[nn.Module], nn.Module] = lambda m: m) -> None:
        super().__init__()
        self.conv = norm(nn.Conv1d(3, 4, 3))
        self.fc = norm(nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).mean(2))  # type: ignore[no-any-return]


def drawn(module: nn.Module, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5 if "var" in name else torch.randn_like(value) * 0.3)
    return module.eval()


IMAGES, TOKENS = torch.randn(2, 3, 8, 8), torch.randint(0, 20, (2, 7))


def written(module: nn.Module, x: Tensor, path: Path, **more: Any) -> Path:
    quiet = contextlib.redirect_stdout(io.StringIO())
    with torch.no_grad(), quiet, contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), **{"dynamo": False, **more})
    return path


def nameless(path: Path) -> Path:
    """Replace all names in a file by numbers."""
    model = onnx.load(path)
    names = {"": ""}
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer, *model.graph.value_info):
        value.name = names.setdefault(value.name, f"v{len(names)}")
    for node in model.graph.node:
        node.name = ""
        for side in (node.input, node.output):
            side[:] = [names.setdefault(name, f"v{len(names)}") for name in side]
    onnx.save(model, path)
    return path


def assert_filled(file: Path, module: nn.Module, original: nn.Module, x: Tensor, near: float = 1e-5) -> Any:
    """Fill a module, and compare it with the one that was exported."""
    report = transplant(file, module)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(x), original(x), rtol=near, atol=near)
    return report


TRAINING = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}


@pytest.mark.parametrize("strip", [False, True])
def test_folded_norms(tmp_path: Path, strip: bool) -> None:
    original = drawn(Images(), 1)
    file = written(original, IMAGES, tmp_path / "net.onnx")
    report = assert_filled(nameless(file) if strip else file, drawn(Images(), 2), original, IMAGES)
    assert len(report.folded) == 7


def test_norms_as_they_were(tmp_path: Path) -> None:
    original, other = drawn(Images(), 1), drawn(Images(), 2)
    report = assert_filled(written(original, IMAGES, tmp_path / "net.onnx", **TRAINING), other, original, IMAGES)
    assert not report.folded and not report.chosen
    wanted = {k: v for k, v in original.state_dict().items() if v.is_floating_point()}
    found = other.state_dict()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


@pytest.mark.parametrize("one, other", [(Packed, Packed), (Packed, Split), (Split, Packed), (NormedHeads, NormedHeads)])
def test_transformer(tmp_path: Path, one: Any, other: Any) -> None:
    original = drawn(Words(one), 1)
    report = assert_filled(written(original, TOKENS, tmp_path / "net.onnx"), drawn(Words(other), 2), original, TOKENS)
    assert report.partly == ["places.weight"]


def test_dynamo(tmp_path: Path) -> None:
    original = drawn(Words(), 1)
    file = written(original, TOKENS, tmp_path / "net.onnx", dynamo=True, verbose=False)
    assert_filled(nameless(file), drawn(Words(Split), 2), original, TOKENS)


def test_half(tmp_path: Path) -> None:
    original = drawn(Images(), 1)
    file = written(copy.deepcopy(original).half(), IMAGES.half(), tmp_path / "net.onnx")
    assert_filled(file, drawn(Images(), 2), original, IMAGES, near=2e-2)


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac"])
def test_alike_branches(tmp_path: Path, order: str) -> None:
    x = torch.randn(3, 4)
    original = drawn(Branches(), 1)
    file = nameless(written(original, x, tmp_path / "net.onnx"))
    assert_filled(file, drawn(Branches(order), 2), original, x)


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore")
def test_weight_norm(tmp_path: Path, norm: Any) -> None:
    x = torch.randn(2, 3, 9)
    original = drawn(Normed(), 1)
    file = written(original, x, tmp_path / "net.onnx")
    assert_filled(file, drawn(Normed(norm), 2), original, x)
    wrapped = drawn(Normed(norm), 3)
    assert_filled(written(wrapped, x, tmp_path / "normed.onnx"), drawn(Normed(), 2), wrapped, x)


def test_a_bias_that_the_file_has_not(tmp_path: Path) -> None:
    x, original = torch.randn(3, 4), drawn(nn.Sequential(nn.Linear(4, 4, bias=False)), 1)
    other = drawn(nn.Sequential(nn.Linear(4, 4)), 2)
    assert_filled(written(original, x, tmp_path / "net.onnx"), other, original, x)
    assert not other.state_dict()["0.bias"].any()


class Placed(nn.Module):
    """Adds what a layer makes of positions, or what was stored of that."""

    def __init__(self, stored: Tensor | None, layer: nn.Module, positions: Tensor) -> None:
        super().__init__()
        self.layer = layer if stored is None else nn.Identity()
        self.places = None if stored is None else nn.Parameter(stored)
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        places = self.layer(self.positions) if self.places is None else self.places
        return F.relu(x + places)


@pytest.mark.parametrize("count", [3, 30])  # fewer positions than weights of a channel, and more
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_a_layer_of_positions(tmp_path: Path, kind: str, count: int) -> None:
    layer, positions = (
        (nn.Linear(6, 4), torch.randn(1, count, 6))
        if kind == "linear"
        else (nn.Conv1d(6, 4, 3, padding=1), torch.randn(1, 6, count))
    )
    stored = layer(positions).detach()
    x, original = torch.randn(2, *stored.shape[1:]), Placed(stored, layer, positions).eval()
    file = written(original, x, tmp_path / "net.onnx")
    report = assert_filled(file, drawn(Placed(None, layer, positions), 2), original, x)
    assert report.fitted == ["layer.weight", "layer.bias"]
    if count > 18:  # what no layer makes is refused
        other = written(Placed(torch.randn_like(stored), layer, positions).eval(), x, tmp_path / "other.onnx")
        with pytest.raises(NotTheSame):
            transplant(other, drawn(Placed(None, layer, positions), 2))


WRONG: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "depth": (lambda: Words(depth=3), "norms.4"),
    "width": (lambda: Words(size=24), ""),
    "heads": (lambda: Words(heads=2), "attention.0"),
    "activation": (lambda: Words(act="silu"), ""),
    "epsilon": (lambda: Words(epsilon=1e-3), "norms.0"),
    "order": (lambda: Words(late=True), "attention.0"),
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(drawn(Words(), 1), TOKENS, tmp_path_factory.mktemp("words") / "net.onnx")


@pytest.mark.parametrize("kind", WRONG)
def test_another_network(words: Path, kind: str) -> None:
    make, where = WRONG[kind]
    module = drawn(make(), 2)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(NotTheSame) as caught:
        transplant(words, module)
    assert caught.value.places and caught.value.places[0].module.startswith(where)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_a_wrong_layer_is_named(tmp_path: Path) -> None:
    file = written(drawn(Images(), 1), IMAGES, tmp_path / "net.onnx")
    module = Images()
    setattr(module.blocks[1], "act", F.silu)  # noqa: B010
    with pytest.raises(NotTheSame, match=r"silu|self\.act\(.*blocks\.1") as caught:
        transplant(file, module)
    assert "blocks.1" in str(caught.value)


# ---- the way back ----------------------------------------------------------------------------------------------------


def trained(module: nn.Module, x: Tensor) -> nn.Module:
    """Return a module after three steps."""
    module.train()
    steps = torch.optim.SGD(module.parameters(), 0.05)
    for _ in range(3):
        steps.zero_grad()
        module(x).pow(2).mean().backward()
        steps.step()
    return module.eval()


def assert_computes(file: Path, module: nn.Module, x: Tensor) -> None:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("more", [{}, TRAINING], ids=["folded", "as they were"])
def test_back(tmp_path: Path, more: dict[str, Any]) -> None:
    file = written(drawn(Images(depth=1), 1), IMAGES, tmp_path / "net.onnx", **more)
    module = drawn(Images(depth=1), 2)
    report = transplant(file, module)
    before = module(IMAGES)
    trained(module, IMAGES)
    assert not torch.allclose(before, module(IMAGES))
    report.export(module, tmp_path / "tuned.onnx")
    assert_computes(tmp_path / "tuned.onnx", module, IMAGES)
    assert len(onnx.load(tmp_path / "tuned.onnx").graph.node) == len(onnx.load(file).graph.node)


@pytest.mark.parametrize("other", [Packed, Split])
def test_back_from_a_transformer(words: Path, tmp_path: Path, other: Any) -> None:
    module = drawn(Words(other), 2)
    report = transplant(words, module)
    report.export(trained(module, TOKENS), tmp_path / "tuned.onnx")
    assert_computes(tmp_path / "tuned.onnx", module, TOKENS)


def test_what_the_file_has_no_tensor_for(tmp_path: Path) -> None:
    """A bias that the file has not is zero; once it was trained, there is no way back."""
    x = torch.randn(3, 4)
    file = written(drawn(nn.Sequential(nn.Linear(4, 4, bias=False)), 1), x, tmp_path / "net.onnx")
    module = drawn(nn.Sequential(nn.Linear(4, 4)), 2)
    report = transplant(file, module)
    with pytest.raises(OnnxgenError, match=r"0\.bias was trained"):
        report.export(trained(module, x), tmp_path / "tuned.onnx")
    assert not (tmp_path / "tuned.onnx").exists()


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n\n\ndef net(width=4):\n    return nn.Sequential(nn.Linear(3, width), nn.ReLU())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written(drawn(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), 1), torch.randn(2, 3), tmp_path / "net.onnx")
    yield tmp_path


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["transplant", "net.onnx", "--into", "my_nets:net"]
    assert main([*command, "-o", "mine.safetensors"]) == 0
    assert "2 tensors" in capsys.readouterr().out
    weights = load_file(folder / "mine.safetensors")
    stored = {tuple(t.dims): numpy_helper.to_array(t) for t in onnx.load(folder / "net.onnx").graph.initializer}
    np.testing.assert_array_equal(weights["0.bias"].numpy(), stored[(4,)])
    save_file({key: value * 2 for key, value in weights.items()}, folder / "tuned.safetensors")
    assert main([*command, "--back", "tuned.safetensors", "-o", "tuned.onnx"]) == 0
    x = torch.randn(2, 3)
    assert_computes(folder / "tuned.onnx", lambda x: F.relu(F.linear(x, weights["0.weight"], weights["0.bias"])) * 2, x)  # type: ignore


def test_command_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["transplant", "net.onnx", "--into", "my_nets:net", "-o", "mine.safetensors"]
    assert main([*command, "--arg", "width=5"]) == 1
    assert "another network" in capsys.readouterr().out
    assert main([*command[:3], "my_nets:other", *command[4:]]) == 2
    assert not (folder / "mine.safetensors").exists()


def test_public_name(folder: Path) -> None:
    report = onnxgen.transplant("net.onnx", nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    assert report.filled.keys() == {"0.weight", "0.bias"}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.fc(x) * scale  # type: ignore[no-any-return]


class ScaledFirst(Scaled):
    def forward(self, scale: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(x) * scale  # type: ignore[no-any-return]


def test_inputs_by_name(tmp_path: Path) -> None:
    original, x, scale = drawn(Scaled(), 1), torch.randn(3, 4), torch.randn(3, 4)
    file = tmp_path / "net.onnx"
    torch.onnx.export(original, (x, scale), str(file), dynamo=False, input_names=["x", "scale"])
    other = drawn(ScaledFirst(), 2)
    transplant(file, other)
    torch.testing.assert_close(other(scale, x), original(x, scale))
    with pytest.raises(NotTheSame):  # names say which is which
        transplant(nameless(file), drawn(ScaledFirst(), 2))
