"""Sizes of a network are arguments of its constructor: what it is made with, it also works with."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ops.harness import Ran
from tests.support.exported import held


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Text(nn.Module):
    """A transformer: the sizes of its blocks are passed down to them."""

    def __init__(self, words: int = 30, dim: int = 16, heads: int = 2, depth: int = 3, classes: int = 5) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(words, dim), nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)).mean(1))


class Image(nn.Module):
    """Two widths, a depthwise convolution, and what `flatten` makes of channels."""

    def __init__(self, colours: int = 3, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(colours, width, 3, 2, 1)
        self.depthwise = nn.Conv2d(width, width, 3, 1, 1, groups=width)
        self.conv2, self.norm = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(2, 2 * width)
        self.head = nn.Linear(2 * width * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv2(torch.relu(self.depthwise(self.conv1(x))))).flatten(1))


class Table(nn.Module):
    """Widths of what it is given and of what it returns are arguments; that it returns one number more is none."""

    def __init__(self, columns: int = 3, values: int = 2) -> None:
        super().__init__()
        self.enc, self.mid = nn.Linear(columns, 16), nn.Linear(16, 16)
        self.mean, self.spread = nn.Linear(16, values), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.mid(torch.relu(self.enc(x))))
        return self.mean(x), self.spread(x)


class Fixed(nn.Module):
    """Sizes that `forward` has numbers for."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 24), nn.Linear(8, 24), nn.Linear(24, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x) + self.c(self.b(x))
        return y.reshape(-1, 2, 3, 4).permute(0, 3, 1, 2).reshape(-1, 12, 2)


def defaults(ran: Ran) -> dict[str, Any]:
    return {k: p.default for k, p in inspect.signature(type(ran.model)).parameters.items()}


CASES = ["legacy-17", "dynamo-18"]


WORDS, IMAGES, ROWS = torch.randint(0, 30, (2, 7)), torch.rand(2, 3, 16, 16), torch.rand(2, 3)
THEIRS = {
    Text: ("words", "classes", "dim", "heads", "depth"),
    Image: ("colours", "classes", "width"),
    Table: ("columns", "values"),
}


@pytest.mark.parametrize(
    ("network", "given", "wanted", "case"),
    [
        (Text, WORDS, {"vocab_size": 30, "num_classes": 5, "dim": 16, "num_heads": 2, "num_blocks": 3}, "legacy-17"),
        *((Image, IMAGES, {"in_channels": 3, "num_classes": 5, "widths": (8, 16)}, case) for case in CASES),
        *((Table, ROWS, {"in_features": 3, "out_features": 2}, case) for case in CASES),
    ],
)
def test_what_an_argument_gives(network: Any, given: Tensor, wanted: dict[str, Any], case: str) -> None:
    ran = held(network().eval(), [given], case)
    assert {name: defaults(ran)[name] for name in wanted} == wanted
    assert {*defaults(ran)} - {*wanted} <= {"hidden_dim"}
    theirs = dict(zip(wanted, THEIRS[network]))
    for name, number in wanted.items():
        twice = tuple(2 * width for width in number) if isinstance(number, tuple) else 2 * number
        own = twice[0] if isinstance(twice, tuple) else twice
        changed, original = type(ran.model)(**{name: twice}), network(**{theirs[name]: own})
        shapes = {key: tensor.shape for key, tensor in original.state_dict().items()}
        assert {key: tensor.shape for key, tensor in changed.state_dict().items()} == shapes
        changed.load_state_dict(original.state_dict())
        x = torch.cat([given, given], 1) if name in ("in_channels", "in_features") else given
        torch.testing.assert_close(changed.eval()(x), original.eval()(x))


class Merging(nn.Module):
    """Widths that do not depend on each other, and levels in both directions that a concatenation joins."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32, 64), classes: int = 5) -> None:
        super().__init__()
        pairs = [*pairwise(widths)]
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1)
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, 2, 1) for a, b in pairs])
        self.reduce = nn.ModuleList([nn.Conv2d(b, a, 1, bias=False) for a, b in pairs[::-1]])
        self.up = nn.ModuleList([nn.Conv2d(2 * a, a, 3, 1, 1) for a, _ in pairs[::-1]])
        self.head = nn.Linear(widths[0] * 8 * 8, classes)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.stem(x)]
        for down in self.down:
            skips.append(torch.relu(down(skips[-1])))
        x = skips.pop()
        for reduce, up in zip(self.reduce, self.up):
            x = torch.relu(up(torch.cat([skips.pop(), F.interpolate(reduce(x), scale_factor=2)], 1)))
        return self.head(x.flatten(1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("widths", [(8, 16, 32, 64), (7, 24, 5, 9)])
def test_widths_that_do_not_depend_on_each_other_are_a_table(widths: tuple[int, ...], case: str) -> None:
    given = torch.rand(2, 3, 8, 8)
    ran = held(Merging().eval(), [given], case)
    assert defaults(ran) == {"in_channels": 3, "widths": (8, 16, 32, 64), "num_classes": 5}
    assert "nn.Conv2d(widths[i + 1], widths[i], kernel_size=1, bias=False) for i in reversed(range(3))" in ran.source
    changed, original = type(ran.model)(widths=widths), Merging(widths).eval()
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(given), original(given))


class Head(nn.Module):
    """Three maps of different widths."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.scores = nn.ModuleList([nn.Conv2d(width, 5, 3, 1, 1) for width in widths])
        self.mixed = nn.Conv2d(15, 4, 1)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.mixed(torch.cat([score(one) for score, one in zip(self.scores, (x, y, z))], 1)).mean((2, 3))


class Levels(nn.Module):
    """A head that needs only the last widths of the network."""

    def __init__(self, widths: tuple[int, ...] = (7, 9, 11, 13, 17)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1)
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, 1, 1) for a, b in pairwise(widths)])
        self.head = Head(widths[2:])

    def forward(self, x: Tensor) -> Tensor:
        maps = [torch.relu(self.stem(x))]
        for conv in self.convs:
            maps.append(torch.relu(conv(maps[-1])))
        return self.head(*maps[2:])


@pytest.mark.parametrize("case", CASES)
def test_a_class_is_given_the_widths_that_it_needs(case: str) -> None:
    given, widths = torch.rand(2, 3, 6, 6), (5, 8, 6, 4, 10)
    ran = held(Levels().eval(), [given], case)
    assert "self.head = Head(widths[2:]" in ran.source and "range(2, 5)" not in ran.source
    rest = defaults(ran)["widths"][len(widths) :]  # of the head's own convolutions
    changed, original = type(ran.model)(widths=(*widths, *rest)), Levels(widths).eval()
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(given), original(given))


class Focused(nn.Module):
    """A first layer that takes a multiple of the channels that the network takes."""

    def __init__(self, colours: int = 3) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4 * colours, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return self.head(torch.relu(self.conv2(torch.relu(self.conv1(torch.cat(parts, 1))))).mean((2, 3)))


@pytest.mark.parametrize("case", CASES)
def test_channels_are_those_of_the_input(case: str) -> None:
    ran = held(Focused().eval(), [IMAGES], case)
    assert defaults(ran)["in_channels"] == 3
    changed, original, given = type(ran.model)(in_channels=5), Focused(5).eval(), torch.rand(2, 5, 8, 8)
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(given), original(given))


@pytest.mark.parametrize("case", CASES)
def test_what_forward_has_a_number_for_is_no_argument(case: str) -> None:
    assert defaults(held(Fixed(), [torch.rand(3, 8)], case)) == {"in_features": 8}


class Half(nn.Module):
    """A width that a reshape fixes on one side of a bottleneck, and that is free on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.fc1, self.fc2, self.conv3 = nn.Linear(512, 6), nn.Linear(6, 512), nn.Conv2d(32, 16, 3, 1, 1)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc2(self.fc1(self.conv2(torch.relu(self.conv1(x))).flatten(1)))
        return self.head(torch.relu(self.conv3(x.reshape(-1, 32, 4, 4))))


@pytest.mark.parametrize("case", CASES)
def test_a_width_that_reaches_half_of_the_network_is_no_argument(case: str) -> None:
    assert 32 not in defaults(held(Half(), [IMAGES], case)).values()


class Step(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, stride, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv1(x))
        return x + torch.sigmoid(self.conv2(x))


class Row(nn.Module):
    """Two equal blocks in a row, a layer before them, and what stands behind them."""

    def __init__(self, stride: int = 1, count: int = 2, kind: str = "") -> None:
        super().__init__()
        self.stem, self.kind, self.head = nn.Conv2d(3, 8, 1), kind, nn.Linear(8, 5)
        self.blocks = nn.ModuleList([Step(stride) for _ in range(count)])
        if kind == "one more":
            self.last = Step(1)
        if kind == "tied":
            self.blocks[1].conv1.weight = self.blocks[0].conv1.weight

    def forward(self, x: Tensor) -> Tensor:
        x, found = self.stem(x), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = torch.cat(found, 3) if self.kind == "collected" else self.last(x) if self.kind == "one more" else x
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("case", CASES)
def test_a_row_of_two_blocks_may_have_more(case: str) -> None:
    ran = held(Row().eval(), [IMAGES], case)
    longer, original = type(ran.model)(num_blocks=4), Row(count=4)
    longer.load_state_dict(original.state_dict())
    torch.testing.assert_close(longer.eval()(IMAGES), original.eval()(IMAGES))


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (Row(stride=2), "each block halves the map: a head behind more of them might get none"),
        (Row(kind="collected"), "what the blocks return is collected"),
        (Row(kind="one more"), "a block of the class stands behind the row"),
        (nn.Sequential(Row(kind="tied"), nn.Linear(5, 5)), "the network ties the second block to the first"),
    ],
)
def test_a_row_of_a_set_length(network: nn.Module, why: str) -> None:
    assert not {"num_blocks", "num_layers"} & {*defaults(held(network.eval(), [IMAGES], "legacy-17"))}, why


class Attention(nn.Module):
    """Attention written out. `kind`: how q, k and v are made, or what else depends on the number of heads."""

    def __init__(self, kind: str, heads: int = 2) -> None:
        super().__init__()
        self.kind, self.heads = kind, heads
        self.inp, self.qkv, self.out, self.head = (nn.Linear(a, b) for a, b in ((6, 16), (16, 48), (16, 16), (16, 5)))
        if kind == "biased":
            self.bias = nn.Parameter(torch.randn(heads, 4, 4))
        if kind == "normed":
            self.norm = nn.LayerNorm(16 // heads)

    def forward(self, x: Tensor) -> Tensor:
        x = self.qkv(self.inp(x))
        if self.kind == "packed":
            q, k, v = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in x.chunk(3, dim=-1))
        q = self.norm(q) if self.kind == "normed" else q
        mask = self.bias if self.kind == "biased" else None
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.kind == "causal")
        return self.head(self.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["packed", "separate", "causal"])
def test_the_number_of_heads_is_stored(kind: str, case: str) -> None:
    ran = held(Attention(kind).eval(), [x := torch.randn(2, 4, 6)], case)
    assert "self.num_heads = num_heads" in ran.source and defaults(ran)["num_heads"] == 2
    changed, original = type(ran.model)(num_heads=4), Attention(kind, 4)
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(x), original.eval()(x))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["biased", "normed"])
def test_heads_that_something_else_sees(kind: str, case: str) -> None:
    """A bias with an axis of heads, or a norm over the width of one: the number can't change alone."""
    assert "num_heads" not in defaults(held(Attention(kind).eval(), [torch.randn(2, 4, 6)], case))


class Square(nn.Module):
    """Every width is that of the input."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Carried(nn.Module):
    """An LSTM that is given a state of the size that it has."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(30, 5), nn.LSTM(5, hidden), nn.Linear(hidden, 4)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(self.embed(x), (h, c))
        return self.head(y), h, c


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("network", "given"),
    [(Square, [torch.rand(2, 6)]), (Carried, [WORDS, torch.rand(1, 7, 8), torch.rand(1, 7, 8)])],
    ids=["square", "carried"],
)
def test_which_inputs_an_argument_changes(network: type[nn.Module], given: list[Tensor], case: str) -> None:
    """An argument of an equal number is another size than the input's. A given state has the width of its layer."""
    ran = held(network().eval(), given, case)
    for name, number in defaults(ran).items():
        wider = [torch.cat([given[0], given[0]], 1)] if name == "in_features" else given
        if name == "hidden_size":
            wider = [given[0], *(torch.cat([state, state], -1) for state in given[1:])]
        type(ran.model)(**{name: 2 * number}).eval()(*wider)


class Policy(nn.Module):
    """How likely the given actions are: they are as wide as what the network tells of them."""

    def __init__(self, states: int = 5, actions: int = 3, width: int = 8) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(states, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.mean, self.scale = nn.Linear(width, actions), nn.Parameter(torch.full((1, actions), 0.5))

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        return -0.5 * ((action - self.mean(self.actor(x))) * self.scale).square().sum(-1)


class Points(nn.Module):
    """Where the maps of a convolution have their mass; the axes are constants."""

    def __init__(self, colours: int = 3, width: int = 8, points: int = 5) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(colours, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.final = nn.Conv2d(width, points, 1)
        self.register_buffer("xs", torch.linspace(0, 1, 9))

    def forward(self, x: Tensor) -> Tensor:
        maps = self.final(torch.relu(self.conv2(torch.relu(self.conv1(x)))))
        return (torch.softmax(maps.sum(2), -1) * self.xs).sum(-1)


class Letters(nn.Module):
    """A language model: it tells one of the letters that it takes."""

    def __init__(self, letters: int = 24, width: int = 24) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(letters, width), nn.GRU(width, width)
        self.out = nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(x))[0])


@pytest.mark.parametrize(
    ("network", "given", "theirs"),
    [
        (Policy, [torch.rand(2, 5), torch.rand(2, 3)], {"in_features": "states", "out_features": "actions"}),
        (Points, [torch.rand(2, 3, 9, 9)], {"in_channels": "colours", "out_channels": "points"}),
        (Letters, [torch.randint(0, 24, (7, 2))], {"vocab_size": "letters", "hidden_size": "width"}),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_sizes_of_inputs_and_results(network: Any, given: list[Tensor], theirs: dict[str, str], case: str) -> None:
    ran = held(network().eval(), given, case)
    found = defaults(ran)
    for name, own in theirs.items():
        changed, original = type(ran.model)(**{name: 2 * found[name]}), network(**{own: 2 * found[name]})
        shapes = {key: tensor.shape for key, tensor in original.state_dict().items()}
        assert {key: changed.state_dict()[key].shape for key in shapes} == shapes
        changed.load_state_dict(original.state_dict(), strict=False)
        wider = [
            x.repeat_interleave(2, 1) if found[name] in x.shape[1:2] and name != "vocab_size" else x for x in given
        ]
        torch.testing.assert_close(changed.eval()(*wider), original.eval()(*wider))


class Gate(nn.Module):
    """A block of diffusion networks: its scale is a root of its width, written as such."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.q, self.k, self.v, self.proj = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (part(h).flatten(2) for part in (self.q, self.k, self.v))
        weights = torch.softmax(q.transpose(1, 2) @ k * int(x.shape[1]) ** -0.5, 2)
        return x + self.proj((v @ weights.transpose(1, 2)).reshape(x.shape))


def test_a_default_may_be_a_root() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Gate(32), nn.Conv2d(32, 16, 3, 2, 1), Gate(16), nn.Conv2d(16, 32, 1), Gate(32))
    made = held(net, [torch.randn(1, 32, 8, 8)], "legacy-17")
    assert "=1 / math.sqrt(32)" in made.source


class Joined(nn.Module):
    """A concatenation of two widths, and one of a width and a column."""

    def __init__(self, dims: tuple[int, int] = (6, 4), hidden: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.words, self.cases = nn.Embedding(30, dims[0]), nn.Embedding(30, dims[1])
        self.mid, self.head = nn.Linear(sum(dims), hidden), nn.Linear(hidden + 1, classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.relu(self.mid(torch.cat([self.words(x), self.cases(x)], -1)))
        return self.head(torch.cat([h, y], -1))


@pytest.mark.parametrize("case", CASES)
def test_what_a_concatenation_makes_is_a_sum(case: str) -> None:
    given = [WORDS, torch.rand(2, 7, 1)]
    ran = held(Joined().eval(), given, case)
    assert "nn.Linear(dims[0] + dims[1], hidden_dim)" in ran.source and "nn.Linear(hidden_dim + 1, " in ran.source
    changed, original = type(ran.model)(dims=(5, 9), hidden_dim=7), Joined((5, 9), 7).eval()
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(*given), original(*given))


class Divided(nn.Module):
    """A detector's head: what it makes of a map is divided into unequal parts, of which one is a score."""

    def __init__(self, sizes: tuple[int, int] = (8, 5)) -> None:
        super().__init__()
        self.sizes, self.stem, self.both = [*sizes], nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, sum(sizes), 1)
        self.box = nn.Conv2d(sizes[0], 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(torch.relu(self.stem(x))).split(self.sizes, 1)
        return torch.cat([self.box(torch.relu(a)), torch.sigmoid(b)], 1)


@pytest.mark.parametrize("case", CASES)
def test_a_class_stores_the_sizes_of_parts(case: str) -> None:
    ran = held(Divided().eval(), [IMAGES], case)
    assert defaults(ran)["num_classes"] == 5 and ".split(self.split_sizes, dim=1)" in ran.source
    changed, original = type(ran.model)(num_classes=3), Divided((8, 3)).eval()
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(IMAGES), original(IMAGES))


class Taken(Divided):
    """The same with a layer that has the name of what would be stored."""

    def __init__(self) -> None:
        super().__init__()
        self.split_sizes = self.both
        del self.both

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.split_sizes(torch.relu(self.stem(x))).split(self.sizes, 1)
        return torch.cat([self.box(torch.relu(a)), torch.sigmoid(b)], 1)


def test_a_layer_that_is_called_as_the_stored_sizes_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found before the class is written, not only by the check of what was written."""
    monkeypatch.setenv("ONNXGEN_STRICT", "1")
    ran = held(Taken().eval(), [IMAGES], "legacy-17")
    assert "self.split_sizes = nn.Conv2d(" in ran.source and ".split([8, 5], dim=1)" in ran.source
    assert defaults(ran)["in_channels"] == 3


class Inverted(nn.Module):
    def __init__(self, a: int, b: int, stride: int, factor: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(a, factor * a, 1), nn.Conv2d(factor * a, factor * a, 3, stride, 1)
        self.conv3 = nn.Conv2d(factor * a, b, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(torch.relu(self.conv2(torch.relu(self.conv1(x)))))


class Stages(nn.Module):
    """Widths of which some are multiples of others by accident."""

    def __init__(self, widths: tuple[int, ...] = (12, 24, 40)) -> None:
        super().__init__()
        a, b, c = widths
        self.stem, self.head = nn.Conv2d(3, a, 3, 1, 1), nn.Linear(c, 5)
        self.blocks = nn.Sequential(Inverted(a, a, 1, 2), Inverted(a, b, 2, 4), Inverted(b, c, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


@pytest.mark.parametrize("case", CASES)
def test_a_width_within_a_block_follows_from_what_the_block_takes(case: str) -> None:
    ran = held(Stages().eval(), [IMAGES], case)
    assert defaults(ran) == {"in_channels": 3, "widths": (12, 24, 40), "num_classes": 5}
    changed, original = type(ran.model)(widths=(6, 7, 9)), Stages((6, 7, 9)).eval()
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(IMAGES), original(IMAGES))


class Cells(nn.Module):
    """A cell that is called several times."""

    def __init__(self, hidden: int = 12) -> None:
        super().__init__()
        self.enc, self.cell, self.head = nn.Linear(6, hidden), nn.GRUCell(hidden, hidden), nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.enc(x))
        for _ in range(3):
            h = self.cell(torch.tanh(h), h)
        return self.head(h)


@pytest.mark.parametrize("case", CASES)
def test_a_cell_has_the_width_of_its_state(case: str) -> None:
    ran = held(Cells().eval(), [x := torch.rand(2, 6)], case)
    (name,) = (name for name, number in defaults(ran).items() if number == 12)
    changed, original = type(ran.model)(**{name: 5}), Cells(5).eval()
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(x), original(x))


class Coder(nn.Module):
    """A map becomes a vector, half of which becomes a map again. `latent` is as many as the map has channels."""

    def __init__(self, widths: tuple[int, ...] = (8, 16), latent: int = 16) -> None:
        super().__init__()
        (a, b), self.width, self.latent = widths, widths[1], latent
        self.conv1, self.conv2 = nn.Conv2d(3, a, 4, 2, 1), nn.Conv2d(a, b, 4, 2, 1)
        self.stats, self.decode = nn.Linear(b * 4 * 4, 2 * latent), nn.Linear(latent, b * 4 * 4)
        self.conv3, self.conv4 = nn.ConvTranspose2d(b, a, 4, 2, 1), nn.ConvTranspose2d(a, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stats(torch.relu(self.conv2(torch.relu(self.conv1(x)))).flatten(1))
        x = self.decode(x[:, : self.latent] - x[:, self.latent :])
        return self.conv4(torch.relu(self.conv3(x.reshape(-1, self.width, 4, 4))))


@pytest.mark.parametrize("case", CASES)
def test_a_class_stores_the_channels_of_a_map_that_it_makes(case: str) -> None:
    ran = held(Coder().eval(), [IMAGES], case)
    changed, original = type(ran.model)(widths=(5, 12)), Coder((5, 12)).eval()
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(IMAGES), original(IMAGES))
    assert ".reshape(-1, self.channels, 4, 4)" in ran.source


class Deep(nn.Module):
    """Stages of a ResNet. `stride`: of the blocks behind the first of a stage; `more`: a block that is in no stage."""

    def __init__(self, depths: tuple[int, ...] = (1, 3, 2), stride: int = 1, more: bool = False) -> None:
        super().__init__()
        layers, width = list[nn.Module](), 4
        for i, depth in enumerate(depths):
            first = Inverted(width, 8 * 2**i, 2, 2)
            layers.append(nn.Sequential(first, *[Inverted(8 * 2**i, 8 * 2**i, stride, 2) for _ in range(depth)]))
            width = 8 * 2**i
        self.stem, self.layer1, self.layer2, self.layer3 = nn.Conv2d(3, 4, 1), *layers
        self.tail = nn.Sequential(Inverted(width, 12, 1, 2), nn.Tanh()) if more else nn.Tanh()
        self.head = nn.Linear(12 if more else width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.head(self.tail(x).mean((2, 3)))


@pytest.mark.parametrize("case", CASES)
def test_stages_have_depths(case: str) -> None:
    ran = held(Deep().eval(), [IMAGES], case)
    changed, original = type(ran.model)(depths=(3, 2, 4)), Deep((2, 1, 3)).eval()  # with the first of each
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(IMAGES), original(IMAGES))


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (Deep((1, 1, 1), stride=2), "each block halves the map"),
        (Deep(more=True), "a block of the class stands in no stage"),
    ],
)
def test_stages_of_set_depths(network: nn.Module, why: str) -> None:
    assert "depths" not in defaults(held(network.eval(), [IMAGES], "legacy-17")), why
