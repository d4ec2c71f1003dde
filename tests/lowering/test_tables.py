"""Rows of an embedding that are added without a lookup, and equal rows, because an exporter folded what makes them."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.code.module_def import Assign, Member, Statement, expressions
from onnxgen.code.quote import MemberRef, quote, rewrite
from onnxgen.export.report import BACK
from onnxgen.lowering.constants import share_beginnings
from tests.export.test_shared import back
from tests.structure.test_structure import classes, made
from tests.support.exported import exported, held
from tests.zoo.export import Case

DYNAMO = Case("dynamo", 18, False)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(5, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.position_embeddings(torch.arange(5)))
        return self.head(x)


def tokens(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 5, 8, generator=torch.Generator().manual_seed(1)),)


def test_positions_are_an_embedding(tmp_path: Path) -> None:
    source = made(Tokens, tmp_path, tokens, DYNAMO)
    assert [*classes(source)] == ["Tokens"]
    assert "self.position_embeddings = nn.Embedding(5, 8)" in source
    assert "x + self.position_embeddings.weight" in source


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position_embeddings, self.norm = nn.Embedding(5, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.position_embeddings(torch.arange(5)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.head = Embeddings(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embeddings(x))


def test_positions_of_a_module_inside_are_its_embedding(tmp_path: Path) -> None:
    source = made(Encoder, tmp_path, tokens, DYNAMO)
    assert "self.position_embeddings = nn.Embedding(5, dim)" in classes(source)["Embeddings"]


class Scaled(nn.Module):
    """A table beside another tensor of its module, and a row that is a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8))
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.scale + self.weight) + x


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.row = Scaled(), Scaled(), nn.Module()
        self.row.weight = nn.Parameter(torch.randn(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + self.row.weight


def test_a_module_with_more_than_a_table_keeps_its_class(tmp_path: Path) -> None:
    source = made(Other, tmp_path, tokens, DYNAMO)
    assert "nn.Embedding" not in source and "self.weight" in classes(source)["Scaled"]


class Policy(nn.Module):
    """One deviation for all samples; not `expanded`: each of the four samples has its own, and they are equal."""

    def __init__(self, expanded: bool) -> None:
        super().__init__()
        self.mean, row = nn.Linear(5, 6), torch.linspace(-1, 1, 6)[None] ** 3
        self.log_std = nn.Parameter(row if expanded else row.repeat(4, 1))
        self.expanded = expanded

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x)
        if not self.expanded:
            return mean - self.log_std
        log_std = self.log_std.clamp(-5, 2).expand_as(mean)
        return (mean / log_std.exp()) ** 2 - log_std


class Queried(nn.Module):
    """A token before the others and learned queries, each expanded to the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.asked = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(3, 8))
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.fc(x)], dim=1)
        q = self.asked[None].repeat(x.shape[0], 1, 1)
        x = torch.softmax(q @ x.transpose(1, 2) / math.sqrt(8), dim=-1) @ x + q
        return self.head(x.mean(dim=1))


def test_a_token_and_queries_that_an_exporter_expanded_are_stored_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ran = held(Queried(), tokens(4), "dynamo-18", keys=False)
    assert "self.cls_token.expand(4, -1, -1)" in ran.source and "self.query.expand(4, -1, -1)" in ran.source
    shapes = {key: tuple(value.shape) for key, value in ran.model.named_parameters()}
    assert (shapes["cls_token"], shapes["query"]) == ((1, 1, 8), (1, 3, 8))
    report, _ = back(exported(Queried(), tokens(4), "dynamo-18"), tmp_path, [x.numpy() for x in tokens(4)])
    assert report.method == BACK


def test_equal_rows_that_an_exporter_expanded_are_stored_once(tmp_path: Path) -> None:
    inputs = (torch.randn(4, 5, generator=torch.Generator().manual_seed(1)),)
    net = Policy(expanded=True)
    ran = held(net, inputs, "dynamo-18", keys=False)
    assert "self.bias = nn.Parameter(torch.zeros(1, 6))" in ran.source and ".expand(" not in ran.source
    assert torch.equal(ran.model.state_dict()["bias"], net.log_std)
    report, _ = back(exported(net, inputs, "dynamo-18"), tmp_path, [x.numpy() for x in inputs])
    assert report


def test_equal_rows_that_are_trained_apart_stay_apart() -> None:
    inputs = (torch.randn(4, 5, generator=torch.Generator().manual_seed(1)),)
    ran = held(Policy(expanded=False), inputs, "dynamo-18", keys=False)
    assert {(4, 6), (6, 5), (6,)} == {tuple(t.shape) for t in ran.model.state_dict().values()}


def test_a_table_that_begins_another_is_not_stored() -> None:
    table = np.sin(np.arange(24.0)).reshape(6, 4)
    tables = {"whole": table, "start": table[:2], "other": -table[:2], "late": np.vstack([table[:1], -table[1:3]])}
    tables["inner"] = table[:2]  # of another module
    members = {n: Member(("m", n) if n == "inner" else (n,), ast.Constant(None), "buffer") for n in tables}
    body: list[Statement] = [Assign(("y",), quote("f(t)", t=MemberRef(m))) for m in members.values()]
    share_beginnings(body, members.values(), {id(m): tables[n] for n, m in members.items()})
    made = [
        rewrite(e, lambda t: ast.Name(t.member.path[-1]) if isinstance(t, MemberRef) else None)
        for s in body
        for e in expressions(s)
    ]
    assert [ast.unparse(e) for e in made] == ["f(whole)", "f(whole[:2])", "f(other)", "f(late)", "f(inner)"]
