"""Batches that don't fit into memory are trained in parts, with the same result."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit
from onnxgen.training.memory import Micro, is_out_of_memory

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3


class Failing(torch.autograd.Function):
    """Runs out of memory in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, most: int) -> Tensor:
        ctx.most = most
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit(grad, ctx.most)
        return grad, None


def limit(x: Tensor, most: int) -> None:
    if len(x) > most:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Net(nn.Module):
    """x [batch, 6] to logits [batch, 3]. It fails with more than `most` samples."""

    def __init__(self, most: int = 10**6, backward: int = 10**6, middle: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)
        self.middle = nn.Identity() if middle is None else middle
        self.most, self.backward_most = most, backward
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        x = self.middle(torch.tanh(self.first(x)))
        limit(x, self.most)
        logits: Tensor = self.last(x)
        # Between the layers: the last layer's gradient is there already when memory runs out.
        return logits if self.backward_most > len(x) else self.last(Failing.apply(x, self.backward_most))


def by_hand(batches: list[slice], accumulate: int) -> list[Tensor]:
    """Train with a hand-written loop, for comparison."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for number, batch in enumerate(batches):
        (nn.functional.cross_entropy(net(X[batch]), Y[batch]) / accumulate).backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


def trained(net: nn.Module, out: Path) -> list[Tensor]:
    given: dict[str, Any] = {"epochs": 2, "batch_size": 24, "workers": 0, "val": 0.0, "device": "cpu", "out": out}
    given |= {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "optimizer_args": {"momentum": 0.9}}
    fit(net, {"train": (X, Y)}, **given)
    return [p.detach() for p in net.parameters()]


def shares(net: nn.Module) -> Callable[[dict[str, Tensor], dict[str, Tensor]], tuple[Tensor, int]]:
    """Return the function for `Micro`: it returns a part's share of the mean loss, and its size."""

    def compute(part: dict[str, Tensor], whole: dict[str, Tensor]) -> tuple[Tensor, int]:
        share = len(part["x"]) / len(whole["x"])
        return nn.functional.cross_entropy(net(part["x"]), part["y"]) * share, len(part["x"])

    return compute


@pytest.mark.parametrize("where", [{"most": 7}, {"backward": 7}, {"most": 11, "backward": 5}])
def test_weights_trained_in_parts_match_whole_batches(where: dict[str, int], tmp_path: Path) -> None:
    net = Net(**where)
    with pytest.warns(UserWarning, match="out of memory with 24 samples at once: .* parts of 12"):
        got = trained(net, tmp_path)
    whole = slice(0, 24)
    for a, b in zip(got, by_hand([whole, whole], 1), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert net.seen.count(24) <= 2 and max(net.seen[-4:]) <= 6  # what was too much is not tried again


def test_accumulated_gradients_survive_a_failed_attempt() -> None:
    """Two batches are accumulated as in Lightning, and the second runs out of memory half way."""
    net, micro, found = Net(backward=7), Micro(), []
    for batch in (slice(0, 6), slice(6, 24)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shown = micro.forward(net, {"x": X[batch], "y": Y[batch]}, shares(net))
            found.append(micro.backward(net, shown / 2, shares(net)))
    expected = Net()
    for batch in (slice(0, 6), slice(6, 24)):
        (nn.functional.cross_entropy(expected(X[batch]), Y[batch]) / 2).backward()
    for a, b in zip(net.parameters(), expected.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-7)
    assert found == [[6], [6, 6, 6]] or found == [[6], [5, 5, 4, 4]]


@pytest.mark.parametrize("first", [False, True])
def test_dropout_and_running_statistics_are_restored(first: bool) -> None:
    """After a failed attempt the result is the same as if smaller parts had been used from the start."""
    results = []
    for most in (10**6, 7):
        net = Net(backward=most, middle=nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.5))).train()
        micro = Micro()
        micro.size = 6 if most > 24 else None
        torch.manual_seed(7)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            micro.backward(net, micro.forward(net, {"x": X, "y": Y}, shares(net)), shares(net), first=first)
        assert (most > 24) or "BatchNorm takes its statistics from the parts" in str(said[0].message)
        results.append([*(p.grad for p in net.parameters()), *copy.deepcopy(list(net.buffers())), torch.rand(1)])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_one_sample_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="out of memory with a single sample"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(Net(backward=0), tmp_path)


def test_evaluation_in_parts_gives_the_same_metrics() -> None:
    whole = evaluate(Net(), {"test": (X, Y)}, batch_size=24, device="cpu")
    with pytest.warns(UserWarning, match="out of memory"):
        parts = evaluate(Net(most=5), {"test": (X, Y)}, batch_size=24, device="cpu")
    assert parts == pytest.approx(whole, abs=1e-6)


def test_other_errors_are_raised() -> None:
    def broken(part: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        Micro().each({"x": X}, broken)


@pytest.mark.parametrize(
    "error, verdict",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5.05 GB)"), True),
        (RuntimeError("XPU out of memory. Tried to allocate 16.00 GiB"), True),
        (RuntimeError("Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), True),
        (RuntimeError("Could not allocate tensor with 411041792 bytes. There is not enough GPU video memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_out_of_memory(error: BaseException, verdict: bool) -> None:
    assert is_out_of_memory(error) == verdict


def test_a_model_may_change_its_modules_between_steps() -> None:
    """Callbacks do so if they prune a layer or replace a norm."""
    results = []
    for most in (10**6, 7):
        net = Net(backward=10**6, middle=nn.BatchNorm1d(16)).train()
        micro, batch, compute = Micro(), {"x": X, "y": Y}, shares(net)
        micro.backward(net, micro.forward(net, batch, compute), compute)
        net.middle, net.last.weight = nn.BatchNorm1d(16), nn.Parameter(net.last.weight.detach() / 2)
        net.last.weight.grad = torch.ones_like(net.last.weight)  # of a batch that was accumulated before
        micro.size, net.backward_most = 6 if most > 24 else None, most
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            micro.backward(net, micro.forward(net, batch, compute), compute)
        results.append([*(p.grad for p in net.parameters()), *net.buffers()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
