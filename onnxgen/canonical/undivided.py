"""Recurrent layers as one operator each: torch's own are taken apart into steps while they are followed, of which there
would be as many as the example has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LIBRARY = torch.library.Library("onnxgen", "DEF")  # type: ignore[no-untyped-call]
REPLACED: dict[Any, Any] = {}  # functions of torch, each with the operator that stands for it
MEANT: dict[Any, Any] = {}  # these operators, each with torch's


def _shaped(given: Tensor, states: list[Tensor], is_first: bool, is_both: bool) -> list[Tensor]:
    """Return empty tensors of the shapes of the results: the outputs, and the last states."""
    width = states[0].shape[-1] * (2 if is_both else 1)
    return [given.new_empty(*given.shape[:-1], width), *(torch.empty_like(state) for state in states)]


def _define(name: str) -> None:
    meant = getattr(torch.ops.aten, name).input
    LIBRARY.define(str(meant._schema).replace(f"aten::{name}.input", name))  # type: ignore[no-untyped-call]

    def fake(given: Tensor, hx: Any, *rest: Any) -> Any:
        states = list(hx) if isinstance(hx, (tuple, list)) else [hx]
        return tuple(_shaped(given, states, rest[-1], rest[-2]))

    torch.library.register_fake(f"onnxgen::{name}", fake, lib=LIBRARY)
    REPLACED[getattr(torch, name)] = getattr(torch.ops.onnxgen, name).default
    MEANT[getattr(torch.ops.onnxgen, name).default] = meant


for _name in NAMES:
    _define(_name)


def whole(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Return what is called in the place of a function of torch."""
    is_followed = len(args) == 9 and isinstance(args[0], FakeTensor)  # with fewer, it is of packed sequences
    return REPLACED.get(function, function) if is_followed else function
