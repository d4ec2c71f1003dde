"""Idioms that move elements without computing, as both exporters spell them: outputs, gradients and text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.exported import held

DYNAMIC = {0: {0: "batch", 1: "length"}}


class Packed(nn.Module):
    """A packed projection, taken apart in one of several ways."""

    def __init__(self, apart: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.qkv, self.apart = nn.Linear(8, 24), apart

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.apart(self.qkv(x))
        return q.tanh().sum() + (k * k).mean() + v.sigmoid().sum()


def _indexed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.reshape(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
    return x[0], x[1], x[2]


PACKED: list[tuple[Callable[[Tensor], Any], str]] = [
    (
        lambda x: x.reshape(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0),
        ".unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)",
    ),
    (_indexed, ".unbind(0)"),
    (lambda x: x.reshape(x.shape[0], x.shape[1], 3, 8).unbind(2), ".unflatten(-1, (3, 8)).unbind(2)"),
    (lambda x: x.reshape(x.shape[0], x.shape[1], 8, 3).unbind(-1), ".unflatten(-1, (8, 3)).unbind(-1)"),
    (lambda x: x.chunk(3, dim=-1), ".chunk(3, dim=-1)"),
    (lambda x: x.split(8, dim=2), ".chunk(3, dim=-1)"),
    (lambda x: (x[..., :8], x[..., 8:16], x[..., 16:]), ".chunk(3, dim=-1)"),
    (lambda x: (x[..., 16:], x[..., 8:16], x[..., :8]), ".chunk(3, dim=-1)"),
]


@pytest.mark.parametrize("case", ["legacy-11", "legacy-17", "legacy-17-train"])
@pytest.mark.parametrize("apart, text", PACKED)
def test_packed_projections(apart: Callable[[Tensor], Any], text: str, case: str) -> None:
    ran = held(Packed(apart), [torch.randn(2, 5, 8)], case, DYNAMIC)
    assert text in ran.forward
    assert "squeeze" not in ran.forward and "[" not in ran.forward.replace("# [", "")


@pytest.mark.parametrize("apart, text", [PACKED[0], PACKED[1], PACKED[4], PACKED[6]])
def test_packed_projections_of_the_dynamo_exporter(apart: Callable[[Tensor], Any], text: str) -> None:
    ran = held(Packed(apart), [torch.randn(2, 5, 8)], "dynamo-18", DYNAMIC)
    assert text in ran.forward


def test_uneven_parts() -> None:
    ran = held(Packed(lambda x: (x[..., :4], x[..., 4:8], x[..., 8:12])), [torch.randn(2, 5, 8)], "legacy-17", DYNAMIC)
    assert "chunk" not in ran.forward and "split" not in ran.forward  # the rest of the axis is nobody's
    ran = held(Packed(lambda x: (x[..., :1], x[..., 1:8], x[..., 8:])), [torch.randn(2, 5, 8)], "legacy-17", DYNAMIC)
    assert ".split([1, 7, 16], dim=-1)" in ran.forward


@pytest.mark.parametrize(
    "apart",
    [
        lambda x: (x[..., :9], x[..., 7:16], x[..., 15:]),  # they overlap
        lambda x: (x[..., :8:1], x[:, :1, :8], x[..., 16:]),  # of two axes
        lambda x: (x[..., :8], x[..., 8:16], x[..., 16:] + x.mean()),  # the whole is used, too
    ],
)
def test_what_is_no_partition_stays(apart: Callable[[Tensor], Any]) -> None:
    ran = held(Packed(apart), [torch.randn(2, 5, 8)], "legacy-17", DYNAMIC)
    assert "chunk" not in ran.forward and "split" not in ran.forward and "unbind" not in ran.forward


class Turned(nn.Module):
    """Views of one tensor."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.turn = nn.Linear(6, 6), turn

    def forward(self, x: Tensor) -> Tensor:
        return self.turn(self.fc(x)) * 2


TURNED: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (lambda x: x.flatten(0, 1).transpose(1, 2).unflatten(0, (x.shape[0], 4)), "self.fc(i0).transpose(-2, -1) * 2"),
    (lambda x: x.permute(0, 2, 3, 1).transpose(1, 3), "self.fc(i0).transpose(-2, -1) * 2"),
    (lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2), "self.fc(i0) * 2"),
    (lambda x: x.unflatten(-1, (2, 3)).flatten(1, 2), "self.fc(i0).reshape(-1, 20, 2, 3) * 2"),
    (lambda x: x.flatten(2).unflatten(-1, (10, 3)), "self.fc(i0).reshape(-1, 4, 10, 3) * 2"),
    (
        lambda x: x.flatten(2).transpose(1, 2).unflatten(-1, (2, 2)),
        ".flatten(2).transpose(-2, -1)",
    ),
]


@pytest.mark.parametrize("turn, text", TURNED)
@pytest.mark.parametrize("case", ["legacy-13", "legacy-17"])
def test_chains_of_views(turn: Callable[[Tensor], Tensor], text: str, case: str) -> None:
    assert text in held(Turned(turn), [torch.randn(2, 4, 5, 6)], case, {0: {0: "batch"}}).forward
