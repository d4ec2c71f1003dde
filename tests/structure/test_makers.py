"""A value that is used again is called after the function or the layer that makes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.structure.test_names import forward

X = torch.rand(2, 4)
RESULTS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "mean": [lambda x: x.mean(1, True)],
    "var": [lambda x: x.var(1, keepdim=True)],
    "std": [lambda x: x.std(1, keepdim=True)],
    "variance": [lambda x: ((x - 1) ** 2).mean(1, True)],
    "norm": [lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True)],
    "scale": [lambda x: x.rsqrt()],
    "probs": [lambda x: x.softmax(1)],
    "log_probs": [lambda x: x.log_softmax(1)],
    "index": [lambda x: x.argmax(1, True), lambda x: x.argmin(1, True)],
    "pooled": [lambda x: F.max_pool1d(x[None], 3, 1, 1)[0]],
}
STEPS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "highest": [lambda x: x.amax(1, True)],
    "lowest": [lambda x: x.amin(1, True)],
    "total": [lambda x: x.sum(1, True), lambda x: x.cumsum(1)],
    "diff": [lambda x: x.tanh() - x.exp()],
    "inverse": [lambda x: 1 / x.exp()],
    "squared": [lambda x: x.tanh() ** 2],
    "product": [lambda x: x.tanh() * x.exp()],
    "joined": [lambda x: torch.cat([x, x.exp()], 0)[:2]],
    "stacked": [lambda x: torch.stack([x, x.exp()])],
    "padded": [lambda x: F.pad(x, (1, 0))[:, :4]],
    "normed": [lambda x: x / x.sum(1, True)],
    "picked": [lambda x: x.gather(1, torch.zeros(2, 4, dtype=torch.int64))],
}


class Beside(nn.Module):
    """A value beside the main chain and a branch of it."""

    def __init__(self, make: Callable[[Tensor], Tensor], scale: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.fc, self.w = nn.Linear(4, 4), nn.Parameter(torch.rand(4))
        self.make, self.scale = make, scale

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h, made = torch.sin(self.fc(x)), self.make(x)
        made = made if self.scale is None else self.scale(made, self.w)
        return made * h, made + x, h.exp() * x


def check(
    table: dict[str, list[Callable[[Tensor], Tensor]]],
    folder: Path,
    scale: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    for name, functions in table.items():
        for make in functions:
            text = forward(Beside(make, scale), (X,), folder, "x")
            assert re.search(rf"^ +{name} = ", text, re.MULTILINE) and not re.search(r"\bh\d", text), text


def test_functions_name_their_results(tmp_path: Path) -> None:
    check(RESULTS, tmp_path)


def test_steps_name_their_results_where_the_name_of_a_branch_is_taken(tmp_path: Path) -> None:
    check(STEPS, tmp_path)


def test_a_number_or_a_weight_beside_a_value_does_not_change_its_name(tmp_path: Path) -> None:
    table = {"std": RESULTS["std"]}
    for scale in (
        lambda x, w: 3 * x, lambda x, w: x / 3, lambda x, w: x - 3, lambda x, w: w * x, lambda x, w: x * w,
        lambda x, w: torch.tanh(x + w), lambda x, w: torch.relu(w * x + 1),
    ):  # fmt: skip
        check(table, tmp_path, scale)


class Layers(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        for name in names:
            setattr(self, name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = [getattr(self, name)(x) for name in self.names]
        return tuple(a * b for a, b in zip(made, made[1:] + made[:1]))


def test_layers_name_their_results(tmp_path: Path) -> None:
    words = {"encoder": "encoded", "decoder": "decoded", "backbone": "features", "classifier": "logits"}
    words |= {"pooler": "pooled", "embedding": "emb", "cls": "logits", "embeddings": "emb", "to_score": "score"}
    words |= {"quality_proj": "quality", "self_attn": "attn", "box_conv": "box"}
    for group in (list(words)[:6], list(words)[6:]):
        text = forward(Layers(group), (X,), tmp_path, "x")
        assert [name for name in group if f" {words[name]} = self.{name}(x)" not in text] == [], text


class Picked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.fc(x)
        places = (h * 3).abs().clamp(0, 3).long()
        return x.gather(1, places) + h, places + 1


def test_what_picks_elements_is_an_index(tmp_path: Path) -> None:
    assert " index = " in forward(Picked(), (X,), tmp_path, "x")


class Irregular(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for size in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
            x = torch.exp(torch.tanh(x[:, :size]).sum(1, keepdim=True) * x)
        return x


def test_steps_with_many_numbers_that_nobody_can_count_are_no_loop(tmp_path: Path) -> None:
    text = forward(Irregular(), (torch.rand(2, 40),), tmp_path, "x")
    assert " for " not in text and all(f":{size}]" in text for size in (2, 19, 37)), text
