"""Run a model's forward pass without side effects, on an input made from its signature."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onnxgen.errors import OnnxgenError, typed
from onnxgen.record.signature import Port
from onnxgen.surgery.ports import signature_of

Example: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]  # one argument, several, or by name

BATCH_SIZE = 2  # size of axes named "batch", and of symbolic first axes
TRIED_SIZES = (8, 32, 64, 224)  # tried for all other symbolic axes until the model runs


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode for the block. Afterwards each module has its former mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Like `evaluating`, with gradients disabled. The random generator's state is restored afterwards."""
    with evaluating(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        yield


def call(model: nn.Module, example: Example) -> Any:
    """Call the model with an example. Returns its result."""
    if isinstance(example, Mapping):
        return model(**example)
    return model(example) if isinstance(example, Tensor) else model(*example)


def outputs(result: Any) -> list[Tensor]:
    """Return the tensors of a result, in order, from any container (tuple, dict, output class of transformers)."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def output_names(model: nn.Module, result: Any) -> list[str]:
    """Return a name for each tensor of `outputs(result)`: its ONNX or dict name, else its number."""
    if isinstance(result, Mapping) and all(isinstance(value, Tensor) for value in result.values()):
        return list(map(str, result))
    count = len(outputs(result))
    ports = signature_of(model).outputs
    return [port.name for port in ports] if len(ports) == count else list(map(str, range(count)))


def example_for(model: nn.Module, example: Example | None = None) -> Example:
    """Return the caller's example, or make one with which the model runs: floats are random, integers are ones.

    Raises:
        OnnxgenError: the model's signature says too little about its inputs, or no tried size works.
    """
    if example is not None:
        return example
    ports = signature_of(model).inputs
    way_out = "give example=, the arguments of forward (a tensor, a tuple of tensors, or a dict by argument)"
    if not ports or any(port.dtype in (None, "str") or port.dims is None or port.kind != "tensor" for port in ports):
        raise OnnxgenError("the inputs of the model are unknown", help=way_out)
    reason, like = "", _any_parameter(model)
    names = {dim for port in ports for dim in port.dims or () if isinstance(dim, str)}
    first = {port.dims[0] for port in ports if port.dims}
    with undisturbed(model):
        for size, cast in itertools.product(TRIED_SIZES, (False, True)):
            sizes = {dim: BATCH_SIZE if dim in first or re.search("batch", dim, re.I) else size for dim in names}
            made = tuple(_made(port, sizes, like, cast) for port in ports)
            try:
                call(model, made)
            except Exception as error:  # the model's code may raise anything for a size that it does not accept
                reason = reason or typed(error, 200)
            else:
                return made
    raise OnnxgenError(f"the model fails on a random input ({reason})", help=way_out)


def _any_parameter(model: nn.Module) -> Tensor:
    floating = (t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point())
    return next(floating, torch.zeros(()))


def _made(port: Port, sizes: Mapping[str, int], like: Tensor, cast: bool) -> Tensor:
    """Make an input tensor on the device of `like`. A model that was cast gets floats of its new dtype."""
    dtype = getattr(torch, port.dtype or "")
    shape = [dim if isinstance(dim, int) else sizes[dim] for dim in port.dims or ()]
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.ones(shape, dtype=dtype, device=like.device)
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return made.to(like.device, like.dtype if cast and dtype.is_floating_point else dtype)
