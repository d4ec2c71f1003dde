"""Drawn PyTorch modules, exported by either of torch's exporters: containers, functional calls, odd arguments,
residuals, blocks of which one is odd, modules called twice, tied weights."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.hunts.judge import Case, Unmade
from tests.hunts.layers import Draw, Recipe, recipe
from tests.support.exported import exported

SHAPES = ((2, 4), (2, 3, 4), (2, 4, 4), (2, 5, 6), (2, 2, 8), (2, 3, 6, 6), (2, 4, 5, 7), (2, 1, 8, 8), (2, 4, 4, 4))
NAMES = ("conv", "fc", "norm", "body", "head", "proj", "sub", "act", "layer1", "layer2", "stem", "blocks")
DYNAMO = 0.03  # of the cases: they take seconds each
MOST = 3000  # elements of a value
TRIES = 20


class Chain(nn.Module):
    """Steps one after another, those that are modules registered in one of the ways that there are."""

    def __init__(self, steps: list[Any], style: str, residual: str, names: list[str]) -> None:
        super().__init__()
        modules = list(dict.fromkeys(s for s in steps if isinstance(s, nn.Module)))
        named = {f"{names[k % len(names)]}{k or ''}": m for k, m in enumerate(modules)}
        if style == "list":
            self.layers = nn.ModuleList(modules)
        elif style == "dict":
            self.parts = nn.ModuleDict(named)
        else:
            for name, module in named.items():
                self.add_module(name, module)
        self.order = tuple(steps)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        before = x
        for step in self.order:
            x = step(x)
            x = x[0] if isinstance(x, tuple) else x
        if self.residual == "add":
            return before + x
        return x - before if self.residual == "minus" else x


def make(seed: int) -> Case:
    """The file of a seed's module, and what it is run with.

    Raises:
        Unmade: the exporter refuses the module.
    """
    d = random.Random(seed)
    torch.manual_seed(seed)
    d.choice(SHAPES)  # as in `_shape`
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = drawn(seed)
        free = d.random() < 0.5
        case = f"dynamo-{d.choice((18, 20))}" if d.random() < DYNAMO else f"legacy-{d.choice((11, 13, 17))}"
        try:
            proto = exported(net, [torch.randn(_shape(seed))], case, {0: {0: "N"}} if free else {})
        except Exception as error:
            raise Unmade(" ".join(str(error).split())) from None
    shape = _shape(seed)
    numbers = np.random.default_rng(seed)
    sizes = (2, 3, 1) if free else (2,)
    feeds = [{"i0": numbers.standard_normal((n, *shape[1:])).astype(np.float32)} for n in sizes]
    return Case(seed, proto, feeds)


def _shape(seed: int) -> tuple[int, ...]:
    return random.Random(seed).choice(SHAPES)


def drawn(seed: int) -> nn.Module:
    """The module of a seed, in eval mode, its weights and statistics drawn."""
    d = random.Random(seed + 2**32)
    torch.manual_seed(seed)
    net, _ = _chain(d, torch.randn(_shape(seed)), depth=2)
    for tensor in [*net.parameters(), *net.buffers()]:
        if tensor.is_floating_point():
            with torch.no_grad():
                tensor.copy_(torch.rand_like(tensor) * 0.9 + (0.1 if tensor.ndim == 1 else -0.5))
    _tied(d, net)
    return net.eval()


def _tied(d: Draw, net: nn.Module) -> None:
    """Now and then two layers have one weight."""
    layers = [m for m in net.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d))]
    if len(layers) > 1 and d.random() < 0.2:
        one, other = d.sample(layers, 2)
        if one.weight.shape == other.weight.shape:
            other.weight = one.weight


def _chain(d: Draw, x: Tensor, depth: int, same: bool = False) -> tuple[nn.Module, Tensor]:
    """Drawn steps for a value, and what they make of it; `same`: of the same shape."""
    start = x
    steps: list[Any] = []
    for _ in range(d.randint(1, 3)):
        kind = d.random()
        if depth and kind < 0.3:
            step, x = _chain(d, x, depth - 1, same)
            steps.append(step)
        elif depth and kind < 0.55:
            blocks, x = _blocks(d, x)
            steps += blocks
        else:
            _, step, x = _fitting(d, x, same or d.random() < 0.3)
            steps.append(step)
    style = d.choice(("names", "names", "list", "dict", "sequential"))
    if style == "sequential" and all(isinstance(s, nn.Module) and not isinstance(s, nn.RNNBase) for s in steps):
        return nn.Sequential(*steps), x
    residual = d.choice(("add", "minus", "", "")) if x.shape == start.shape else ""
    made = Chain(steps, style, residual, d.sample(NAMES, 4))
    return made, _run(made, start)


def _blocks(d: Draw, x: Tensor) -> tuple[list[Any], Tensor]:
    """Blocks that repeat: all alike, one odd, or one that is called again. A Sequential or a list of items."""
    before = x
    recipes: list[Recipe] = []
    for _ in range(d.randint(1, 3)):
        made, _, x = _fitting(d, x, True)
        recipes.append(made)
    count, style, names = d.randint(2, 3), d.choice(("names", "list", "sequential")), d.sample(NAMES, 4)
    residual = d.choice(("add", "", "minus"))

    def block(of: list[Recipe], how: str) -> nn.Module:
        steps = [r() for r in of]
        if style == "sequential" and not how and all(isinstance(s, nn.Module) for s in steps):
            if not any(isinstance(s, nn.RNNBase) for s in steps):
                return nn.Sequential(*steps)
        return Chain(steps, "names" if style == "sequential" else style, how, names)

    if d.random() < 0.15:
        blocks = [block(recipes, residual)] * count
    else:
        blocks = [block(recipes, residual) for _ in range(count)]
        if d.random() < 0.6:
            k = d.randrange(count)
            odd = block(_odd(d, recipes, before), residual if d.random() < 0.7 else d.choice(("add", "", "minus")))
            blocks[k] = odd if _run(odd, before) is not None and _run(odd, before).shape == before.shape else blocks[k]
    whole: list[Any] = [nn.Sequential(*blocks)] if d.random() < 0.5 else [Chain(list(blocks), "list", "", names)]
    made = _run(whole[0], before)
    return whole, made


def _odd(d: Draw, recipes: list[Recipe], x: Tensor) -> list[Recipe]:
    """The recipes of a block with one difference."""
    changed, k, kind = list(recipes), d.randrange(len(recipes)), d.randrange(4)
    new, _, _ = _fitting(d, x, True)
    if kind == 0:
        changed[k] = new
    elif kind == 1:
        changed.insert(k, new)
    elif kind == 2 and len(changed) > 1:
        del changed[k]
    else:
        changed.reverse()
    return changed


def _fitting(d: Draw, x: Tensor, same: bool) -> tuple[Recipe, Any, Tensor]:
    """A recipe, its step and what it makes of a value; an Identity where none fits."""
    for _ in range(TRIES):
        try:
            made = recipe(d, tuple(x.shape))
            step = made()
            out = _run(step, x)
        except Exception:  # torch refuses the arguments, or there is no such choice
            continue
        fits = out.ndim >= 2 and out.ndim <= 4 and 0 < out.numel() <= MOST and out.shape[0] == x.shape[0]
        if fits and (not same or out.shape == x.shape):
            return made, step, out
    return nn.Identity, nn.Identity(), x


def _run(step: Any, x: Tensor) -> Tensor:
    if isinstance(step, nn.Module):
        step.eval()
    with torch.no_grad():
        out = step(x)
    made: Tensor = out[0] if isinstance(out, tuple) else out
    return made
