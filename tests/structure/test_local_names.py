"""A local variable is one thing: what it is called after what makes it and what uses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.pipeline import generate
from tests.structure.test_names import forward


class Branch(nn.Module):
    """Between the layers of a branch are hidden values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Siblings(nn.Module):
    """Results of one layer, and of layers of one list, have its name and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.branches = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        k1 = self.f(x)
        k2 = self.f(x + k1 * 0.5)
        one, two = self.branches[0](k1), self.branches[1](k2)
        return x * (k1 - k2) + one * two - two


class Heads(nn.Module):
    """The heads of a network each have their own name; sigmoids that are multiplied with each other are no gates."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.score, self.box, self.quality = nn.Linear(8, 2), nn.Linear(8, 4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.relu(self.fc(x))
        box = F.softplus(self.box(x)).reshape(-1, 2, 2).flip(1)
        score, quality = torch.sigmoid(self.score(x)), torch.sigmoid(self.quality(x))
        return box * 2, torch.sqrt(score * quality), quality - score


class Mixture(nn.Module):
    """The last head has its own name beside heads that are outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.pi, self.mu, self.sigma = nn.Linear(8, 2), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.relu(self.fc(x))
        pi, mu = F.softmax(self.pi(x), dim=-1), self.mu(x)
        sigma = F.softplus(self.sigma(x)) + 0.01
        return pi, mu, (sigma * pi + mu).sum(-1)


class Sines(nn.Module):
    """A sine without the cosine of its angle is an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.fc1(x) * 10)
        return self.fc2(x) + x


class Collected(nn.Module):
    """What a list collects has the singular of its name."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 6), nn.Linear(6, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        h, c, found = b, b * 2, []
        for t in range(4):
            h, c = self.cell(a[:, t], (h, c))
            found.append(torch.tanh(self.head(h)) * c.mean())
        return torch.stack(found, 1)


class Parts(nn.Module):
    """Parts of a value have its name; of the layer that makes it, if it has none."""

    def __init__(self) -> None:
        super().__init__()
        self.to_stats = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.to_stats(x).chunk(2, dim=1)
        logvar = logvar.clamp(-20, 10)
        return mu * 2, logvar, mu + torch.exp(0.5 * logvar)


class Edges(nn.Module):
    """Two parts that are indices are `i` and `j`; the difference of what they pick, and its norm, say so."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        i, j = b[0], b[1]
        near = a[i] - a[j]
        far = torch.sqrt((near**2).sum(-1, keepdim=True))
        return torch.cat([near, self.fc(far), far], dim=-1)


class Cross(nn.Module):
    """What attention reads beside its queries is the memory, also as an argument of a submodule."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.cross = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, kept: Tensor) -> Tensor:
            return x + self.cross(self.norm(x), kept, kept, need_weights=False)[0]

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self.Layer(), self.Layer()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.second(self.first(a, b), b)


class Cached(nn.Module):
    """Earlier keys and values, to which new ones are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 24)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.proj(a).chunk(3, dim=-1)
        k, v = torch.cat([b[0], k], dim=1), torch.cat([b[1], v], dim=1)
        return F.softmax(q @ k.transpose(1, 2), dim=-1) @ v, k, v


class Tokens(nn.Module):
    """The example's batch size is not in the code: it is that of the value that the token is joined with."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.fc = nn.Parameter(torch.randn(1, 1, 4)), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        return x.amax(dim=1), self.fc(x[:, 0]).view(-1, 3, 4)


class Begun(nn.Module):
    """The main chain is `x`, although the input has the name of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, a: Tensor) -> Tensor:
        x = torch.relu(a)
        return torch.tanh(self.fc(x)) * x


class Masked(nn.Module):
    """The view of a mask that is still used is called after its last word, if that is a word."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x, mask = torch.relu(self.fc1(a)), b.unsqueeze(1)
        return (self.fc2(x) * mask + mask).sum(1) + b


class Widths(nn.Module):
    """Vectors skip no layers, whatever their sizes are before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.layers = nn.ModuleList(nn.Linear(size, size + 2) for size in range(6, 14, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = before = torch.relu(self.fc(x))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.cat([x, before], dim=1)


IDS = torch.tensor([[0, 1, 2], [1, 2, 0]])
VECTORS = torch.randn(2, 4)
CASES: dict[type[nn.Module], tuple[tuple[Tensor, ...], str, list[str]]] = {
    Tokens: (
        (torch.randn(2, 3, 4),),
        "x",
        ["self.token.expand(x.shape[0], -1, -1)", "return x.amax(dim=1), self.fc(x[:, 0]).reshape(-1, 3, 4)"],
    ),
    Branch: ((VECTORS,), "x", ["hidden = F.relu(self.fc1(x))", "hidden = F.relu(self.fc2(hidden))"]),
    Siblings: ((VECTORS,), "x", ["f1 = self.f(x)", "f2 = self.f(x + 0.5 * f1)", "branch1 = ", "branch2 = "]),
    Heads: (
        (VECTORS,),
        "x",
        ["box = F.softplus(self.box(x))", "score = torch.sigmoid", "quality = ", "torch.sqrt(score * quality)"],
    ),
    Sines: ((VECTORS,), "x", ["x = torch.sin(10 * self.fc1(x))"]),
    Collected: (
        (torch.randn(2, 4, 4), torch.randn(2, 6)),
        "ab",
        [
            "for item in ",
            "hidden, cell = self.cell(item, (hidden, cell))",
            "output = torch.tanh(",
            "outputs.append(output)",
        ],
    ),
    Begun: ((VECTORS,), "y", ["x = F.relu(y)", "return torch.tanh(self.fc(x)) * x"]),
    Widths: ((VECTORS,), "x", ["out = x", "for layer in self.layers:", "torch.cat([out, x], dim=1)"]),
    Parts: ((VECTORS,), "x", ["stat1, stat2 = self.to_stats(x).chunk(2, dim=", "stat2 = stat2.clamp(-20, 10)"]),
    Edges: ((torch.randn(3, 3), IDS), "ab", ["i, j = b.unbind(0)", "diff = a[i] - a[j]", "dist = "]),
    Cross: ((torch.randn(2, 3, 8), torch.randn(2, 5, 8)), "ab", ["x, memory", "memory, memory"]),
    Cached: (
        (torch.randn(2, 1, 8), torch.randn(2, 2, 4, 8)),
        "ab",
        ["past_k, past_v = b.unbind(0)", "q, k, v = ", "k = torch.cat([past_k, k], dim=1)"],
    ),
}


@pytest.mark.parametrize("net", CASES, ids=lambda net: net.__name__)
def test_names(net: type[nn.Module], tmp_path: Path) -> None:
    example, names, expected = CASES[net]
    text = forward(net(), example, tmp_path, names)
    assert [part for part in expected if part not in text] == [], text
    assert not re.search(r"\b[xyz]\d+ = |\by = ", text), text


@pytest.mark.parametrize("given, kept", [("attention_mask", "mask"), ("attention_of", "out"), ("attention", "out")])
def test_a_view_is_called_after_a_word_of_what_it_is_a_view_of(given: str, kept: str, tmp_path: Path) -> None:
    assert f"{kept} = {given}.unsqueeze(1)" in forward(Masked(), (VECTORS, VECTORS), tmp_path, ["x", given])


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, a: Tensor) -> Tensor:
        return torch.relu(self.fc2(torch.relu(self.fc1(a))))[:, 0]


def test_a_whole_has_not_the_name_of_its_part(tmp_path: Path) -> None:
    """What an output is only a part of is not called like the output."""
    path = tmp_path / "net.onnx"
    torch.onnx.export(First(), (torch.randn(2, 3, 4),), path, output_names=["logits"], dynamo=False, opset_version=17)
    text = generate(path, tmp_path / "net.py").source
    assert all(line.endswith("[:, 0]") for line in text.splitlines() if "logits = " in line), text


def test_a_head_beside_outputs_has_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    names = ["weight", "mean", "total"]
    torch.onnx.export(Mixture(), (VECTORS,), path, output_names=names, dynamo=False, opset_version=17)
    text = generate(path, tmp_path / "net.py").source
    assert "sigma = F.softplus(self.sigma(x)) + 0.01" in text, text


@pytest.mark.parametrize(
    "given, named",
    [(["x.1"], "x: Tensor"), (["k.1", "k"], "k_1: Tensor, k: Tensor"), (["k.1", "k.2"], "k_1: Tensor, k_2: Tensor")],
)
def test_the_number_of_an_input_is_left_out_if_no_other_has_the_name(
    given: list[str], named: str, tmp_path: Path
) -> None:
    """PyTorch's legacy exporter counts an input that is called like the argument of a submodule."""
    net, example = (Branch(), (VECTORS,)) if len(given) == 1 else (Added(), (VECTORS, VECTORS))
    assert f"def forward(self, {named})" in forward(net, example, tmp_path, given)


class Added(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(a) + b


class Excited(nn.Module):
    """What is pooled, bounded and then a factor is a scale, on its whole way."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))
        return x * torch.sigmoid(self.fc2(out))


class Staged(nn.Module):
    """The main chain has the name of what it becomes, and views keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.backbone = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3)
        self.neck, self.proj = nn.Linear(4, 4), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone(self.stem(x))
        x = self.neck((x + x.amin((2, 3), keepdim=True)).permute(0, 2, 3, 1)).flatten(1)
        return self.proj(torch.tanh(x))


class Prenorm(nn.Module):
    """The result of a norm beside what it normalises; a value beside the main chain is not `x`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm, self.attn = nn.Linear(8, 8), nn.LayerNorm(8), nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.encoder(x)
        mask = y.unsqueeze(-1).abs()
        normed = self.norm(x)
        x = x * mask + self.attn(normed, normed, normed, need_weights=False)[0]
        return (x * mask).sum(1) / mask.sum(1)


class Row(nn.Module):
    """Two layers are one statement, but not two of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.neck = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layer1, self.layer2, self.layer3 = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.neck(self.stem(x))
        x = self.layer3(self.layer2(self.layer1(x)))
        return x * x.mean()


class Reading(nn.Module):
    """What tables of embeddings give together, the output of a recurrent layer, the mean of it over places."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.kind, self.scale = nn.Embedding(9, 4), nn.Embedding(3, 4), nn.Parameter(torch.rand(4))
        self.bias, self.gru = nn.Embedding(9, 1), nn.GRU(4, 4, batch_first=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        total = (self.word(x) + self.kind(y)) * self.scale
        output, _ = self.gru(total.tanh() * total.sigmoid())
        pooled = (self.bias(x) * output + self.bias(y)).relu().mean(1)
        return (self.fc(pooled) * pooled.amin(1, keepdim=True)).unflatten(1, (2, 1)).softmax(1)


class Spectrum(nn.Module):
    """The root of two squares is a magnitude; a mean that keeps its axes is no vector that is pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv1d(2, 8, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        real, imag = self.conv(x).chunk(2, dim=1)
        x = torch.sqrt(real**2 + imag**2)
        x = x * x.amax((1, 2), keepdim=True)
        return self.fc(x.mean(2, keepdim=True).flatten(1)) * x.sum()


class Meeting(nn.Module):
    """What is left when the branches of the main chain have come together is the main chain again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 4, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = F.max_pool2d(x, 2) * x.mean()
        z = F.max_pool2d(y, 2) * y.mean()
        last = F.max_pool2d(z, 2) * z.mean()
        maps = [F.interpolate(v.exp() + v.sin(), scale_factor=n) for v, n in ((z, 8), (y, 4), (x, 2))]
        x = self.conv(torch.cat([*maps, F.interpolate(last * last, scale_factor=16)], 1)).tanh()
        return x * x.amax((1, 2, 3), keepdim=True)


class Narrowed(nn.Module):
    """What is returned is one statement with an activation between two layers, but not behind a third of their row."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 4)
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.fc1(x))
        return self.fc2(x) if self.layers == 2 else self.fc3(F.gelu(self.fc2(x)))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(2, ["return self.fc2(F.gelu(self.fc1(x)))"]), (3, ["x = F.gelu(self.fc2(x))", "return self.fc3(x)"])],
)
def test_what_is_returned_of_two_layers(layers: int, expected: list[str], tmp_path: Path) -> None:
    text = forward(Narrowed(layers), (VECTORS,), tmp_path, "x")
    assert [part for part in expected if part not in text] == [], text


PURPOSES: dict[type[nn.Module], tuple[tuple[Tensor, ...], str, list[str]]] = {
    Excited: (
        (torch.randn(2, 4, 6, 6),),
        "x",
        ["scale = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))", "return x * torch.sigmoid("],
    ),
    Staged: ((torch.randn(2, 3, 4, 4),), "x", ["features = self.backbone(self.stem(x))", "x = torch.tanh(self.neck("]),
    Prenorm: (
        (torch.randn(3, 2, 8), torch.randn(3, 2)),
        "xy",
        ["encoded = self.encoder(x)", "out = torch.abs(", "normed = self.norm(encoded)", "(normed, normed, "],
    ),
    Row: (
        (VECTORS,),
        "x",
        ["x = self.neck(self.stem(x))", "x = self.layer1(x)", "x = self.layer2(x)", "x = self.layer3(x)"],
    ),
    Reading: (
        (torch.randint(3, (2, 5)), torch.randint(3, (2, 5))),
        "xy",
        ["embeddings = ", "output, _ = self.gru(", "x = self.bias(x) * output", "pooled = F.relu(x", "logits = "],
    ),
    Meeting: ((torch.randn(2, 3, 8, 8),), "x", ["x = torch.tanh(self.conv(", "return x * x.amax("]),
    Spectrum: ((torch.randn(2, 2, 7),), "x", ["magnitude = torch.sqrt(", "mean(dim=2, keepdim=True)", "x = "]),
}


@pytest.mark.parametrize("net", PURPOSES, ids=lambda net: net.__name__)
def test_what_values_are_for(net: type[nn.Module], tmp_path: Path) -> None:
    example, names, expected = PURPOSES[net]
    text = forward(net(), example, tmp_path, names)
    assert [part for part in expected if part not in text] == [], text


class Residual(nn.Module):
    """A norm stands before its layer, and what is added to the input needs no statement of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(F.relu(self.norm2(out)))


class Terms(nn.Module):
    """The terms of a sum are one statement, as are the steps of a solver."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.fc(x)
        b = self.fc(x + a / 2)
        return x + (a + 2 * b + 2 * x.sin() + x.cos()) / 4


def test_the_terms_of_a_sum_are_one_statement(tmp_path: Path) -> None:
    text = forward(Residual(), (torch.randn(1, 4, 6, 6),), tmp_path, "x")
    assert "out = self.conv1(F.relu(self.norm1(x)))" in text
    assert "return x + self.conv2(F.relu(self.norm2(out)))" in text
    assert "fc + 2 * out + 2 * torch.sin(x) + torch.cos(x)" in forward(Terms(), (VECTORS,), tmp_path, "x")


class Averaged(nn.Module):
    """Embeddings keep their name behind a norm; a mask weights their mean, probabilities that of stored places."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.norm = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.LayerNorm(4)
        self.fc1, self.fc2, self.fc = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(8, 2)
        self.register_buffer("xs", torch.linspace(0, 1, 4))
        self.register_buffer("ys", torch.tensor([0.1, 0.5, 0.2, 0.7]))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        x = self.norm(self.word(a) + self.place(b))
        x = x + self.fc2(F.relu(self.fc1(x)))
        keep = (b > 0).unsqueeze(-1).float()
        x = (x * keep).sum(1) / keep.sum(1).clamp(min=1e-9)
        p = x.softmax(-1)
        return (p * self.xs).sum(-1), (p * self.ys).sum(-1), self.fc(torch.cat([x, x], 1))


class Near(nn.Module):
    """A norm of a difference is a distance; corners of boxes lie before and behind a point."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("points", torch.rand(1, 2))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        before, behind = self.fc(a).exp().chunk(2, dim=-1)
        far = torch.sqrt(((a - b) ** 2).sum(-1, keepdim=True))
        found = torch.cat([self.points - before, self.points + behind], dim=-1)
        return far * far.exp(), found * found.clamp(0, 9), (a * b).sum(1) / far.sum(1)


def test_what_a_value_is_made_of_names_it(tmp_path: Path) -> None:
    text = forward(Averaged(), (IDS, IDS), tmp_path)
    for name in ("embeddings", "hidden", "mask", "pooled", "mean_x", "mean_y"):
        assert f" {name} = " in text or f"return {name}" in text, (name, text)
    text = forward(Near(), (VECTORS, VECTORS), tmp_path)
    for start in ("lt, rb = ", "dist = ", "boxes = "):
        assert f" {start}" in text, (start, text)


class Postnorm(nn.Module):
    """Three short calls, two of them of layers, are one statement, and so is a sum with the norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(16, 8)
        self.proj, self.rnn, self.enc = nn.Linear(8, 8), nn.GRU(8, 8), nn.Linear(8, 8)

    def forward(self, a: Tensor) -> Tensor:
        x = self.enc(a)
        x = self.norm(x + self.mix(torch.cat([x, a], dim=-1)))
        output, _ = self.rnn(F.gelu(self.proj(x)))
        return output * x


def test_short_calls_and_sums_with_their_norm_are_one_statement(tmp_path: Path) -> None:
    text = forward(Postnorm(), (torch.randn(3, 2, 8),), tmp_path, ["frames"])
    assert "encoded = self.enc(frames)" in text, text
    assert "x = self.norm(encoded + self.mix(torch.cat([encoded, frames], dim=-1)))" in text, text
    assert "output, _ = self.rnn(F.gelu(self.proj(x)))" in text, text


class Looked(nn.Module):
    """Integers that are looked up in a table are ids of what the table is called after."""

    def __init__(self, tables: dict[str, int]) -> None:
        super().__init__()
        self.tables = list(tables)
        for name in tables:
            setattr(self, name, nn.Embedding(9, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = getattr(self, self.tables[0])(a)
        keep = (b > 0).float() if len(self.tables) == 1 else getattr(self, self.tables[1])(b).mean(-1)
        return x * keep.unsqueeze(-1)


class Padded(nn.Module):
    """Integers that are compared with a number and are the weights of a mean are a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings, self.attn = nn.Embedding(9, 4), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = self.word_embeddings(a)
        x = x + self.attn(x, x, x, key_padding_mask=b == 0, need_weights=False)[0]
        keep = b.unsqueeze(-1).float()
        return (x * keep).sum(1) / keep.sum(1).clamp(min=1e-9)


class Graph(nn.Module):
    """Two rows of indices are the edges of a graph; what they pick and subtract are places."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.sqrt(((a[b[0]] - a[b[1]]) ** 2).sum(-1))


@pytest.mark.parametrize(
    ("net", "given", "expected"),
    [
        (Looked({"src_embedding": 9, "tgt_emb": 9}), (IDS, IDS), "src_ids: Tensor, tgt_ids: Tensor"),
        (Looked({"P": 9, "Q": 9}), (IDS, IDS), "x: Tensor, input_: Tensor"),
        (Looked({"embed": 9}), (IDS, VECTORS[:, :3]), "input_ids: Tensor, "),
        (Looked({"embed": 9}), (IDS[0], VECTORS[0, :3]), "ids: Tensor, "),
        (Padded(), (IDS, IDS), "input_ids: Tensor, attention_mask: Tensor"),
        (Graph(), (torch.randn(3, 3), IDS[:, :2]), "pos: Tensor, edge_index: Tensor"),
    ],
    ids=lambda one: "",
)
def test_inputs_without_a_name_are_called_after_their_use(
    net: nn.Module, given: tuple[Tensor, ...], expected: str, tmp_path: Path
) -> None:
    """PyTorch's legacy exporter names inputs `onnx::Gather_0` if nobody else does."""
    path = tmp_path / "net.onnx"
    torch.onnx.export(net.eval(), given, path, dynamo=False, opset_version=17)
    assert f"def forward(self, {expected}" in generate(path, tmp_path / "net.py").source


class Headed(nn.Module):
    """What the last layer gets from a part of the network are features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(4, 4, 1), nn.Linear(4, 2)
        self.network = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Tanh(), nn.Conv1d(4, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = self.network(x * x.mean()).transpose(1, 2)
        return self.head(x).squeeze(-1)


def test_what_a_head_gets_are_features(tmp_path: Path) -> None:
    assert "features = self.network(" in forward(Headed(), (torch.randn(2, 4, 5),), tmp_path, "x")
