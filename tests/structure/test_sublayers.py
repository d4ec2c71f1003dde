"""Transformers whose layers are lists of sublayers in wrappers: what their classes are called, and loops over them."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.structure.test_structure import LEGACY, classes, made, rows
from tests.support.real import imported
from tests.zoo import Entry
from tests.zoo.export import Case, export
from tests.zoo.road import Road

DIM, HEADS = 8, 2


class PreNorm(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.fn = fn

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.fn(self.norm(x), *others)


class PostNorm(PreNorm):
    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.norm(self.fn(x, *others))


class Residual(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.fn(x, *others) + x


class Attending(nn.Module):
    """Attention to itself, or to the context that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(DIM, DIM, bias=False)
        self.to_kv = nn.Linear(DIM, 2 * DIM, bias=False)
        self.to_out = nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.0))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        k, v = self.to_kv(x if context is None else context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (self.to_q(x), k, v))
        scores = q @ k.transpose(-1, -2) * (DIM // HEADS) ** -0.5
        return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Feeding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, DIM), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Gating(nn.Module):
    """Two linear layers and an activation that are no feed-forward: the second makes the input's gate."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(DIM, 4), nn.Linear(4, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean(1, keepdim=True)))))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Residual(PreNorm(Attending())), Residual(PreNorm(Feeding()))]) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for attend, feed in self.layers:
            x = feed(attend(x))
        return x


class Normed(nn.Module):
    """Norms after their children, and one wrapper that is alone of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([PostNorm(Attending()), Gating()]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for attend, gate in self.layers:
            x = gate(attend(x) + x)
        return x


def test_wrappers_and_what_they_wrap_are_named_by_what_they_do(tmp_path: Path) -> None:
    found = classes(made(Wrapped, tmp_path, rows))
    assert set(found) == {
        *("Attention", "FeedForward", "PreNormAttention", "PreNormFeedForward"),
        *("ResidualAttention", "ResidualFeedForward", "Net"),
    }
    assert "self.fn = Attention(dim, num_heads)" in found["PreNormAttention"]
    assert "self.fn = PreNormFeedForward(dim)" in found["ResidualFeedForward"]


def test_a_wrapper_alone_and_what_is_no_feed_forward(tmp_path: Path) -> None:
    assert set(classes(made(Normed, tmp_path, rows))) == {"Attention", "PostNorm", "Block", "Net"}


class Scaled(nn.Module):
    """A class for a norm alone."""

    def __init__(self) -> None:
        super().__init__()
        self.n = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.n(x) * 1.0


class Sandwich(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Residual(PreNorm(Attending())), Residual(Scaled())]) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            for part in layer:
                x = part(x)
        return x


def test_a_class_of_a_norm_alone_is_a_norm(tmp_path: Path) -> None:
    assert {"Norm", "Attention", "ResidualAttention"} <= set(classes(made(Sandwich, tmp_path, rows)))


class Pairs(nn.Module):
    """As vit-pytorch writes it, with a norm after the loop."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([PreNorm(Attending()), PreNorm(Feeding())]) for _ in range(depth))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        for attend, feed in self.layers:
            x = attend(x) + x
            x = feed(x) + x
        return self.norm(x)


class Listed(nn.Module):
    """A sublayer that is a list of layers itself, in two turns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [Attending(), nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 4), nn.ReLU(), nn.Linear(4, DIM))]
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for attend, feed in self.layers:
            x = attend(x) + x
            x = feed(x) + x
        return x


class Triples(nn.Module):
    """Attention to itself, attention to a context that is the same in all turns, and a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([PreNorm(Attending()), PreNorm(Attending()), PreNorm(Feeding())]) for _ in range(3)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for attend, cross, feed in self.layers:
            x = attend(x) + x
            x = cross(x, mask) + x
            x = feed(x) + x
        return x


class Parallel(nn.Module):
    """Both parts of a pair read the same value, which is scaled before: the way to the next turn begins that one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attending(), Feeding()]) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for attend, feed in self.layers:
            y = x * 0.5
            x = attend(y) + feed(y)
        return x


class Pasts(nn.Module):
    """Each turn has an input of its own, and what the first part of each makes is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attending(), Feeding()]) for _ in range(3))

    def forward(self, x: Tensor, *pasts: Tensor) -> tuple[Tensor, ...]:
        seen = []
        for (attend, feed), past in zip(self.layers, pasts):
            y = attend(x, past)
            seen.append(y)
            x = feed(x + y) * 2 + x
        return x, *seen


class Reversible(nn.Module):
    """Two values are carried, and a gap stands between the two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attending(), nn.Identity(), Feeding()]) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        left, right = x, x * 2
        for attend, _, feed in self.layers:
            left = left + attend(right)
            right = right + feed(left)
        return left + right


class Residuals(nn.Module):
    """Calls alone, of which one has a second argument: no chain, but a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Residual(Attending()), Residual(Attending()), Residual(Feeding())]) for _ in range(3)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for attend, cross, feed in self.layers:
            x = feed(cross(attend(x), mask))
        return x


class Depths(nn.Module):
    """Two encoders of different depth."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Pairs(2), Pairs(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Uneven(nn.Module):
    """The last turn does something else: no loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attending(), Feeding()]) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for n, (attend, feed) in enumerate(self.layers):
            x = attend(x) + x
            x = feed(x) + x if n < 2 else feed(x) * x
        return x


class Reaching(nn.Module):
    """Each turn reads what the turn before the last one made: no loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Attending(), Feeding()]) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        before = x
        for attend, feed in self.layers:
            before, x = x, feed(attend(x) + before) + x
        return x


class Skipping(nn.Module):
    """One layer an item, and what its result is added to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Feeding() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(torch.tanh(x))
        return x


class Growing(nn.Module):
    """Items of different sizes, and functions between them that an nn.Sequential would have no number for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n, n + 1) for n in range(DIM, DIM + 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x * 2


class Again(nn.Module):
    """One block, several times."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Feeding()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.block(x) + x
        return torch.tanh(x)


def contexts(batch: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 5, DIM, generator=generator), torch.randn(batch, 3, DIM, generator=generator)


def body(source: str) -> list[str]:
    """The lines of the root's `forward`."""
    text = classes(source)["Net"]
    return text[text.index("def forward") :].partition(":\n")[2].rstrip().splitlines()


LOOPS = {
    Pairs: """
        for attention, feed_forward in self.layers:
            x = attention(x) + x
            x = feed_forward(x) + x
        return self.norm(x)
    """,
    Listed: """
        y = x
        for attention, feed_forward in self.layers:
            y = attention(y) + y
            y = feed_forward(y) + y
        return y
    """,
    Triples: """
        y = x
        for attention1, attention2, feed_forward in self.layers:
            y = attention1(y) + y
            y = attention2(y, mask) + y
            y = feed_forward(y) + y
        return y
    """,
    Parallel: """
        y = x
        for attention, feed_forward in self.layers:
            y = 0.5 * y
            y = attention(y) + feed_forward(y)
        return y
    """,
    Reversible: """
        out = 2 * x
        for attention, _, feed_forward in self.layers:
            x = x + attention(out)
            out = out + feed_forward(x)
        return x + out
    """,
    Residuals: """
        y = x
        for attention1, attention2, feed_forward in self.layers:
            y = attention1(y)
            y = attention2(mask, y)
            y = feed_forward(y)
        return y
    """,
    Skipping: """
        y = x
        for layer in self.layers:
            y = y + layer(torch.tanh(y))
        return y
    """,
    Growing: """
        for layer in self.layers:
            x = F.relu(layer(x))
        return 2 * x
    """,
    Again: """
        for _ in range(4):
            x = self.block(x) + x
        return torch.tanh(x)
    """,
}


@pytest.mark.parametrize("build", LOOPS, ids=lambda build: build.__name__)
def test_loops_whose_turns_are_runs_of_statements(build: type[nn.Module], tmp_path: Path) -> None:
    source = made(build, tmp_path, contexts if build in (Triples, Residuals) else rows)
    assert body(source) == LOOPS[build].strip("\n").rstrip().splitlines()


def test_a_loop_over_pairs_with_the_classes_that_an_exporter_recorded(tmp_path: Path) -> None:
    def two_turns() -> Pairs:
        return Pairs(2)

    found = classes(made(two_turns, tmp_path, rows, Case("dynamo", 18, False)))
    assert "for attending, feeding in self.layers:\n            x = attending(x) + x\n" in found["Pairs"]


@pytest.mark.parametrize("build", [Uneven, Reaching])
def test_turns_that_are_not_alike_stay_as_they_are(build: type[nn.Module], tmp_path: Path) -> None:
    source = made(build, tmp_path, rows)
    assert "for " not in "".join(body(source)) and "self.layers[1][1](x)" in source


def test_lists_of_pairs_of_different_length(tmp_path: Path) -> None:
    found = classes(made(Depths, tmp_path, rows))
    assert "for _ in range(2)" in found["First"] and "for _ in range(3)" in found["Second"]
    assert all("for attention, feed_forward in self.layers:" in found[name] for name in ("First", "Second"))


def test_values_that_each_turn_has_of_its_own(tmp_path: Path) -> None:
    def inputs(batch: int = 2) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        return tuple(torch.randn(batch, 5, DIM, generator=generator) for _ in range(4))

    names = ("x", "past_0", "past_1", "past_2"), ("y", "seen_0", "seen_1", "seen_2")
    entry = Entry(Pasts, inputs, *names, {name: {0: "batch"} for name in (*names[0], *names[1])})
    original = export(entry, tmp_path / "net.onnx")
    Road("pasts", entry, LEGACY, tmp_path / "net.onnx", original, tmp_path).check()
    source = " ".join((tmp_path / "generated.py").read_text(encoding="utf-8").split())
    assert "for (attention, feed_forward), past in zip(self.layers, (past_0, past_1, past_2)):" in source
    assert "seens.append(seen)" in source and "return y, *seens" in source


@pytest.mark.parametrize("build", [Pairs, Skipping])
@pytest.mark.parametrize("options", [Options(flat=True), Options(annotate=True)], ids=["flat", "annotate"])
def test_loops_in_flat_and_annotated_code(build: type[nn.Module], options: Options, tmp_path: Path) -> None:
    entry = Entry(build, rows, ("x",), ("y",), {})
    original = export(entry, tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py", options)
    model = imported(tmp_path / "net.py").Model.from_pretrained().eval()
    torch.testing.assert_close(model(*rows()), original.eval()(*rows()))
    assert set(model.state_dict()) == set(original.state_dict())
    if options.annotate:  # a line of the loop stands for the nodes of all turns
        source = (tmp_path / "net.py").read_text(encoding="utf-8")
        sums = [
            node.name for node in onnx.load(tmp_path / "net.onnx").graph.node if re.fullmatch(r"/Add\w*", node.name)
        ]
        assert len(sums) > 3 and [name for name in sums if name not in re.split(r"[\s,]+", source)] == []
