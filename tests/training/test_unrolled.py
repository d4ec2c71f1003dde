"""Unrolled recurrent layers are compared with torch's: outputs, states and all gradients."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from onnxgen.errors import OnnxgenError
from onnxgen.training.devices.prepared import unroll


class NoKernels(TorchDispatchMode):
    """Fails on the recurrent kernels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert not any(part in name for part in ("lstm", "gru", "rnn")), f"{name} is called"
        return func(*args, **(kwargs or {}))


def pair(cls: type[nn.Module], *sizes: int, **options: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    original = cls(*sizes, dtype=torch.float64, **options)
    ours = nn.ModuleList([copy.deepcopy(original)])
    unroll(ours)
    return original, ours[0]


def gradients(module: nn.Module, x: torch.Tensor, hx: Any) -> list[torch.Tensor]:
    """Return outputs, last states, and the gradients of the input, the first states and the parameters."""
    x = x.clone().requires_grad_()
    states = [h.clone().requires_grad_() for h in (hx if isinstance(hx, tuple) else () if hx is None else (hx,))]
    given = None if hx is None else tuple(states) if isinstance(hx, tuple) else states[0]
    torch.manual_seed(5)  # for Dropout
    output, last = module(x, given)
    results = [output, *(last if isinstance(last, tuple) else (last,))]
    loss = sum((r * torch.linspace(-1, 2, r.numel(), dtype=r.dtype).view_as(r)).sum() for r in results)
    loss.backward()
    leaves = [x, *states, *module.parameters()]
    assert all(leaf.grad is not None for leaf in leaves)
    return [r.detach() for r in results] + [leaf.grad for leaf in leaves if leaf.grad is not None]


def compare(original: nn.Module, ours: nn.Module, x: torch.Tensor, hx: Any = None) -> None:
    assert type(ours).__module__.startswith("onnxgen") and isinstance(ours, type(original))
    with NoKernels():
        got = gradients(ours, x, hx)
    for a, b in zip(got, gradients(original, x, hx), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


OPTIONS = list(itertools.product((1, 3), (False, True), (False, True), (True, False)))


@pytest.mark.parametrize("layers, bidirectional, batch_first, bias", OPTIONS)
@pytest.mark.parametrize("kind", ["LSTM", "projected", "GRU", "tanh", "relu"])
def test_unrolled_layers_match_torchs(
    kind: str, layers: int, bidirectional: bool, batch_first: bool, bias: bool
) -> None:
    cls = {"LSTM": nn.LSTM, "projected": nn.LSTM, "GRU": nn.GRU}.get(kind, nn.RNN)
    extra: dict[str, Any] = {"projected": {"proj_size": 3}, "relu": {"nonlinearity": "relu"}}.get(kind, {})
    original, ours = pair(
        cls, 4, 5, num_layers=layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias, **extra
    )
    x = torch.randn(6, 2, 4, dtype=torch.float64)
    batch = 6 if batch_first else 2
    compare(original, ours, x)
    count = layers * (2 if bidirectional else 1)
    h = torch.randn(count, batch, extra.get("proj_size", 5), dtype=torch.float64)
    c = torch.randn(count, batch, 5, dtype=torch.float64)
    compare(original, ours, x, (h, c) if cls is nn.LSTM else h)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_one_sample_without_a_batch(cls: type[nn.Module], batch_first: bool) -> None:
    original, ours = pair(cls, 4, 5, num_layers=2, bidirectional=True, batch_first=batch_first)
    x, h = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    compare(original, ours, x)
    compare(original, ours, x, (h, h.flip(0)) if cls is nn.LSTM else h)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_layers_matches_torchs(cls: type[nn.Module]) -> None:
    original, ours = pair(cls, 4, 5, num_layers=3, dropout=0.5)
    x = torch.randn(6, 2, 4, dtype=torch.float64)
    compare(original, ours, x)
    torch.manual_seed(5)
    first = ours(x)[0]
    torch.manual_seed(6)
    assert not torch.equal(first, ours(x)[0])
    compare(original.eval(), ours.eval(), x)
    assert torch.equal(ours(x)[0], ours(x)[0])


@pytest.mark.parametrize("cls", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 4), (4,)])
def test_cells(cls: type[nn.Module], bias: bool, shape: tuple[int, ...]) -> None:
    for options in ({}, {"nonlinearity": "relu"}) if cls is nn.RNNCell else ({},):
        original, ours = pair(cls, 4, 5, bias=bias, **options)
        x, h = torch.randn(shape, dtype=torch.float64), torch.randn(*shape[:-1], 5, dtype=torch.float64)
        for hx in (None, (h, h * 2) if cls is nn.LSTMCell else h):
            results = []
            for module in (original, ours):
                module.zero_grad()
                found = module(x, hx)
                found = found if isinstance(found, tuple) else (found,)
                sum((f * f).sum() for f in found).backward()
                results.append([*found, *(p.grad for p in module.parameters())])
            for a, b in zip(*results, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_keys_and_parameters_are_kept() -> None:
    model = nn.Sequential(nn.LSTM(4, 5, num_layers=2, bidirectional=True), nn.Linear(10, 2))
    keys, parameters = list(model.state_dict()), [id(p) for p in model.parameters()]
    unroll(model)
    assert list(model.state_dict()) == keys and [id(p) for p in model.parameters()] == parameters
    unroll(model)  # a second time changes nothing
    assert type(model[0]).__name__ == "LSTM" and isinstance(model[0], nn.LSTM)


def test_wrong_sizes_raise_torchs_errors() -> None:
    _, ours = pair(nn.LSTM, 4, 5)
    with pytest.raises(RuntimeError, match="input.size"):
        ours(torch.randn(6, 2, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="hidden"):
        ours(torch.randn(6, 2, 4, dtype=torch.float64), (torch.zeros(1, 3, 5).double(), torch.zeros(1, 2, 5).double()))


def test_packed_sequences_are_refused() -> None:
    _, ours = pair(nn.GRU, 4, 5)
    with pytest.raises(OnnxgenError, match="packed"):
        ours(pack_padded_sequence(torch.randn(6, 2, 4, dtype=torch.float64), [6, 3]))


def test_subclasses_are_refused() -> None:
    class Mine(nn.LSTM):
        pass

    with pytest.raises(OnnxgenError, match="rnn is a Mine"):
        unroll(nn.ModuleDict({"rnn": Mine(4, 5)}))


def test_torchs_lstm_calls_a_kernel() -> None:
    """Otherwise the tests above would prove nothing. (On the CPU, GRU and RNN have no such kernel.)"""
    with pytest.raises(AssertionError, match="is called"), NoKernels():
        nn.LSTM(4, 5)(torch.randn(6, 2, 4))
