"""Idioms that move elements without computing, as both exporters spell them: outputs, gradients and text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.exported import held

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
        ".unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)",
    ),
    (_indexed, ".unbind(0)"),
    (lambda x: x.reshape(x.shape[0], x.shape[1], 3, 8).unbind(2), ".unflatten(-1, (3, -1)).unbind(2)"),
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
    (lambda x: x.flatten(0, 1).transpose(1, 2).unflatten(0, (x.shape[0], 4)), "2 * self.fc(i0).transpose(-2, -1)"),
    (lambda x: x.permute(0, 2, 3, 1).transpose(1, 3), "2 * self.fc(i0).transpose(-2, -1)"),
    (lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2), "2 * self.fc(i0)"),
    (lambda x: x.unflatten(-1, (2, 3)).flatten(1, 2), "2 * self.fc(i0).reshape(-1, 20, 2, 3)"),
    (lambda x: x.flatten(2).unflatten(-1, (10, 3)), "2 * self.fc(i0).reshape(-1, 4, 10, 3)"),
    (
        lambda x: x.flatten(2).transpose(1, 2).unflatten(-1, (2, 2)),
        ".flatten(2).transpose(1, 2)",
    ),
]


@pytest.mark.parametrize("turn, text", TURNED)
@pytest.mark.parametrize("case", ["legacy-13", "legacy-17"])
def test_chains_of_views(turn: Callable[[Tensor], Tensor], text: str, case: str) -> None:
    assert text in held(Turned(turn), [torch.randn(2, 4, 5, 6)], case, {0: {0: "batch"}}).forward


def test_rows_of_predictions_keep_the_batch() -> None:
    """As detectors write them, `x.reshape(x.shape[0], -1, 3)`: a fixed batch may have any size."""
    ran = held(Turned(lambda x: x.sin().reshape(2, -1, 3)), [torch.randn(2, 4, 5, 6)], "legacy-17")
    assert ".shape[0], -1, 3)" in ran.forward and ran.model(torch.randn(5, 4, 5, 6)).shape == (5, 40, 3)


# ------------------------------------------------------------------------------------- shuffles, rolls, repetitions


class Image(nn.Module):
    """What `change` does to twelve channels."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.change = nn.Conv2d(3, 12, 1), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.conv(x)).sin()


def spelled_shuffle(x: Tensor, blocks_first: bool) -> Tensor:
    b, c, h, w = x.shape
    if blocks_first:
        return x.view(b, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(b, c // 4, h * 2, w * 2)
    return x.view(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, c // 4, h * 2, w * 2)


def spelled_unshuffle(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, c * 4, h // 2, w // 2)


def channels_shuffled(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, 3, c // 3, h, w).transpose(1, 2).contiguous().view(b, c, h, w)


def windows(x: Tensor) -> Tensor:
    x = x.permute(0, 2, 3, 1)
    b, h, w, c = x.shape
    return x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 2, 2, c)


IMAGES: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), "F.pixel_shuffle(x, 2)", "9 11 17"),
    "pixel shuffle, spelled": (lambda x: spelled_shuffle(x, False), "F.pixel_shuffle(x, 2)", "11 17"),
    "blocks first": (lambda x: spelled_shuffle(x, True), "F.pixel_shuffle(", "11 17"),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), "F.pixel_unshuffle(x, 2)", "9 17"),
    "pixel unshuffle, spelled": (spelled_unshuffle, "F.pixel_unshuffle(x, 2)", "11 17"),
    "channel shuffle": (channels_shuffled, ".unflatten(1, (3, -1)).transpose(1, 2)", "11 17"),
    "windows": (windows, "// 2, 2, ", "11 17"),
    "windows there and back": (
        lambda x: windows(x).view(-1, 2, 3, 2, 2, 12).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 6, 12),
        "self.conv(i0).permute(0, 2, 3, 1)",
        "fixed",
    ),
    "focus": (
        lambda x: torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1),
        "torch.cat([",
        "11 17",
    ),
    "stack": (lambda x: torch.stack([x, x * 2], 1), "torch.stack([x, 2 * x], dim=1)", "9 17"),
    "stack at the end": (lambda x: torch.stack([x, x * 2], 4), "torch.stack([x, 2 * x], dim=-1)", "9 17"),
    "repeat interleave": (lambda x: x.repeat_interleave(2, dim=1), ".repeat_interleave(2, dim=1)", "11 17"),
    "repeated heads": (
        lambda x: x[:, :, None].expand(-1, -1, 3, -1, -1).flatten(1, 2),
        ".repeat_interleave(3, dim=1)",
        "11 17",
    ),
    "repeat": (lambda x: x.repeat(1, 2, 1, 1), ".repeat(1, 2, 1, 1)", "11 17"),
    "roll": (lambda x: torch.roll(x, (-1, -2), (2, 3)), "torch.roll(x, (-1, -2), (2, 3))", "fixed"),
    "roll one": (lambda x: torch.roll(x, 1, 3), "torch.roll(x, 1, 3)", "fixed"),
    "roll of unknown length": (lambda x: torch.roll(x, -2, 2), "torch.cat([x[:, :, 2:], x[:, :, :2]], dim=2)", "11 17"),
    "wrapped": (
        lambda x: torch.cat([x[..., -2:], x, x[..., :1]], -1),
        "F.pad(x, (2, 1, 0, 0), mode='circular')",
        "fixed",
    ),
    "wrapped, of unknown width": (lambda x: torch.cat([x[..., -2:], x, x[..., :1]], -1), "torch.cat(", "17"),
    "halves swapped": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), "torch.roll(x, -6, 1)", "11 17"),
    "flip": (lambda x: x.flip((2, 3)), ".flip((2, 3))", "11 17"),
}


@pytest.mark.parametrize(
    "name, opset", [(name, opset) for name, (_, _, opsets) in IMAGES.items() for opset in opsets.split()]
)
def test_images(name: str, opset: str) -> None:
    change, text, _ = IMAGES[name]
    axes = {0: {0: "batch"}} if opset == "fixed" else {0: {0: "batch", 2: "height", 3: "width"}}
    case = f"legacy-{17 if opset == 'fixed' else opset}"
    hold_text(text, held(Image(change), [torch.randn(2, 3, 4, 6)], case, axes).forward)


@pytest.mark.parametrize("name", ["pixel shuffle", "stack", "repeat interleave", "repeated heads", "roll"])
def test_images_of_the_dynamo_exporter(name: str) -> None:
    change, text, _ = IMAGES[name]
    hold_text(text, held(Image(change), [torch.randn(2, 3, 4, 6)], "dynamo-18", {0: {0: "batch"}}).forward)


def hold_text(text: str, forward: str) -> None:
    """A short call stands around the layer before it."""
    assert text in forward or text.replace("(x, ", "(self.conv(i0), ", 1) in forward, forward


# ------------------------------------------------------------------------------------------------- rotary embeddings


def half_sliced(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def half_chunked(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def in_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=x.dim()).flatten(-2)


class Rotary(nn.Module):
    """A query turned by its positions."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.turn = nn.Linear(8, 8), turn

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = self.q(x)
        return q * cos + self.turn(q) * sin


@pytest.mark.parametrize("case", ["legacy-11", "legacy-17", "dynamo-18"])
@pytest.mark.parametrize(
    "turn, text",
    [(half_sliced, "rotate_half"), (half_chunked, "rotate_half"), (in_pairs, "rotate_pairs")],
)
def test_rotary_embeddings(turn: Callable[[Tensor], Tensor], text: str, case: str) -> None:
    inputs = [torch.randn(2, 5, 8), torch.randn(5, 8), torch.randn(5, 8)]
    forward = held(Rotary(turn), inputs, case, {0: {0: "batch"}}).forward
    assert re.search(rf"{text}\((x|q)\) \* i2", forward) and "cat" not in forward


@pytest.mark.parametrize(
    "turn",
    [
        lambda x: torch.cat((x[..., 4:], -x[..., :4]), dim=-1),  # the other way round
        lambda x: torch.cat((-x[..., 3:], x[..., :3]), dim=-1),  # no halves
        lambda x: torch.cat((-x[..., 4:], x[..., 4:]), dim=-1),  # one half twice
        lambda x: torch.cat((-x[:, 1:], x[:, :1]), dim=1),  # of another axis
        lambda x: torch.stack((-x[..., ::2], x[..., 1::2]), dim=x.dim()).flatten(-2),
        lambda x: torch.stack((-x[..., 1:7:2], x[..., :6:2]), dim=x.dim()).flatten(-2).repeat(1, 1, 4)[..., :8],
    ],
)
def test_near_misses_of_rotary_embeddings(turn: Callable[[Tensor], Tensor]) -> None:
    inputs = [torch.randn(2, 2, 8), torch.randn(2, 8), torch.randn(2, 8)]
    assert "rotate_" not in held(Rotary(turn), inputs, "legacy-17", {0: {0: "batch"}}).source
