"""Which modules FSDP2 gathers one at a time, and the sharding itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from onnxgen.errors import OnnxgenError, one_line

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DDP = "--strategy ddp"


def units(model: nn.Module) -> list[str]:
    """Return the paths of the modules whose parameters are gathered together, a module before those that contain it.

    They are the items of lists (`nn.Sequential`, `nn.ModuleList`, `nn.ModuleDict`) and the instances of classes of the
    module's own file that occur more than once. Within a unit, only instances of such classes in lists are units. What
    is left is divided into the largest modules that contain no unit: embeddings, the head. A module that shares a
    parameter with another unit is none, because FSDP2 can't gather one parameter in two places: the network gathers it.
    """
    own = type(model).__module__
    counts = Counter(type(module) for module in model.modules() if type(module).__module__ == own)
    found = [*_repeated(model, "", {kind for kind, count in counts.items() if count > 1}, own, inside=False)]
    found = [*found, *_rest(model, "", found)]
    found = sorted(dict.fromkeys(found), key=lambda path: -path.count("."))
    return [path for path in found if path not in _sharing(model, found)]


def _repeated(module: nn.Module, path: str, kinds: set[type], own: str, inside: bool) -> Iterator[str]:
    for name, child in module.named_children():
        if not any(True for _ in child.parameters()):
            continue
        inner = f"{path}.{name}" if path else name
        listed = isinstance(module, LISTS) and (not inside or type(child).__module__ == own)
        unit = not isinstance(child, LISTS) and (listed or (not inside and type(child) in kinds))
        if unit:
            yield inner
        yield from _repeated(child, inner, kinds, own, inside or unit)


def _rest(module: nn.Module, path: str, found: list[str]) -> Iterator[str]:
    """Yield the largest modules that are no units, are in none and contain none."""
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if inner in found or not any(True for _ in child.parameters()):
            continue
        if isinstance(child, LISTS) or any(unit.startswith(f"{inner}.") for unit in found):
            yield from _rest(child, inner, found)
        else:
            yield inner


def _sharing(model: nn.Module, found: list[str]) -> set[str]:
    """Return the units that share a parameter with another one, or with the network itself."""
    owners: dict[int, set[str]] = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners[id(parameter)].add(next((path for path in found if name.startswith(f"{path}.")), ""))
    return {path for paths in owners.values() if len(paths) > 1 for path in paths}


def shard(model: nn.Module, mesh: Any) -> None:
    """Divide each parameter by its rows among the processes of a mesh: first those of the units, then the rest.

    Parameters that are mapped from files stay there until their unit is sharded; of these, each process copies its rows
    alone. Frozen numbers (parameters without an axis) stay whole.

    Args:
        mesh: of the dimension "data_parallel".

    Raises:
        OnnxgenError: FSDP2 can't shard the network; the message has its reason.
    """
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            # It would move the gathered weights to memory of its own, where the next gathering does not write: cuDNN
            # then computes with the weights of the first step (torch 2.11).
            vars(module)["flatten_parameters"] = _nothing
    whole = {parameter for parameter in model.parameters() if parameter.ndim == 0}
    for path in (*units(model), ""):
        try:
            fully_shard(
                model.get_submodule(path), mesh=mesh["data_parallel"], reshard_after_forward=True, ignored_params=whole
            )
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise OnnxgenError(f"{path or 'the network'} can't be sharded: {one_line(error)}", help=_DDP) from error


def _nothing() -> None:
    """In place of `nn.RNNBase.flatten_parameters`."""


def refuse_unshardable(model: nn.Module, processes: int, cast: bool = False) -> None:
    """Raise `OnnxgenError` if a process would have nothing, a number (without an axis) is to be trained, or a unit has
    parameters of two types; with `cast`, all get one type.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0 and parameter.requires_grad:
            what = f"{name} is a single number, which --strategy fsdp can't divide among processes"
            raise OnnxgenError(what, help=f"--freeze {name}, or {_DDP}")
    found, types = units(model), dict[str, torch.dtype]()
    for name, parameter in model.named_parameters():
        unit = next((path for path in found if name.startswith(f"{path}.")), "")
        if parameter.requires_grad and not cast and types.setdefault(unit, parameter.dtype) != parameter.dtype:
            what = f"{unit or 'the network'} has parameters of the types {types[unit]} and {parameter.dtype} ({name})"
            raise OnnxgenError(f"{what}, which --strategy fsdp gathers together", help=_DDP)
    most = max(((p.shape[0], name) for name, p in model.named_parameters() if p.ndim), default=(0, ""))
    if processes > most[0]:
        what = f"{processes} processes can't share this network: {most[1]} has the most rows, and these are {most[0]}"
        raise OnnxgenError(what, help=f"start at most {most[0]}")
