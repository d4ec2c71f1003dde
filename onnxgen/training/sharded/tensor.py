"""Tensor parallelism: several processes divide the weights of a layer, and compute its result together.

Weights become DTensors, and so do the results. A DTensor means the whole tensor, whoever holds which part of it. So the
generated `forward` stays as it is, and no plan can change what it computes: a plan says who holds what. A function that
DTensor can't compute on parts is computed on whole tensors, by every process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from onnxgen.training.memory import is_out_of_memory

Function = Callable[..., Any]

# The axes of the weight [outputs, inputs], or the other way round, that are those of the outputs and of the inputs.
PRODUCTS: Mapping[Function, tuple[int, int]] = {
    F.linear: (0, 1),
    torch.matmul: (1, 0),
    torch.mm: (1, 0),
    Tensor.matmul: (1, 0),
    Tensor.mm: (1, 0),
    Tensor.__matmul__: (1, 0),
}
_CUTS: tuple[Function, ...] = (Tensor.chunk, Tensor.split, torch.chunk, torch.split)
# Attributes such as `x.shape`, and what FSDP2 calls to make parameters.
_AS_DTENSORS = ("__get__", "__set__", "detach", "requires_grad_")
# What DTensor raises. Others must pass: torch ends the second computation of a block by an exception of its own.
_CANNOT = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)
_AS_IS, _PLAIN_ATTENTION, _GATHERED, _WHOLE = range(4)  # the ways to call a function, until one works


class Divided(TorchFunctionMode):
    """Calls functions on divided values, which are DTensors. All other values are plain, the same in each process.

    Attributes:
        random: functions that draw random numbers. On a CPU, where DTensor does not, all processes draw those of the
            whole tensor.
        ways: how functions are called that DTensor can't compute on parts, by what they are called with.
    """

    def __init__(self, random: set[Function] | None = None) -> None:
        super().__init__()
        self.random: set[Function] = random or set()
        self.ways: dict[Function, dict[Hashable, int]] = {}

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = [one for one in tree_leaves((args, kwargs)) if isinstance(one, DTensor)]
        if not found or getattr(func, "__name__", "") in _AS_DTENSORS:
            return func(*args, **kwargs)
        if not any(map(is_divided, found)):
            return func(*_plain(args), **_plain(kwargs))
        args = _arranged(func, args)
        args, kwargs = tree_map_only(Tensor, lambda one: _met(one, found[0].device_mesh), (args, kwargs))
        way = self._first_way(func, found)
        key: Hashable = None
        if func in self.ways:
            way = max(way, self.ways[func].get(key := _key(args, kwargs), way))
        while True:
            try:
                made = _called(func, args, kwargs, way)
                return tree_map_only(DTensor, _settled, _cut_again(func, args, made))
            except _CANNOT as error:
                if way == _WHOLE or is_out_of_memory(error):
                    raise
            way += 2 if way == _AS_IS and func is not F.scaled_dot_product_attention else 1
            self.ways.setdefault(func, {})[key or _key(args, kwargs)] = way

    def _first_way(self, func: Function, found: list[DTensor]) -> int:
        if found[0].device.type != "cpu":
            return _AS_IS
        if func in self.random:
            return _WHOLE
        # DTensor has no rule for the CPU's own kernel of attention, and takes minutes to say so (torch 2.13).
        return _PLAIN_ATTENTION if func is F.scaled_dot_product_attention else _AS_IS


def is_divided(tensor: DTensor) -> bool:
    """Return True if processes hold parts of a tensor."""
    return any(isinstance(one, Shard) for one in tensor.placements)


def _place(tensor: DTensor) -> Shard:
    return next(one for one in tensor.placements if isinstance(one, Shard))


def _whole(made: Any) -> Any:
    return tree_map_only(DTensor, lambda one: one.redistribute(placements=[Replicate()]), made)


def _plain(made: Any) -> Any:
    return tree_map_only(DTensor, lambda one: one.to_local(), made)


def _met(tensor: Tensor, mesh: Any) -> Tensor:
    """Return a plain value that meets a divided one as a DTensor, so that its gradient is summed up over the processes.

    A constant can stay as it is.
    """
    return _shared(tensor, mesh) if tensor.requires_grad else tensor


def _shared(tensor: Tensor, mesh: Any) -> DTensor:
    """Return a tensor that each process has as a DTensor."""
    return tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)


def _settled(made: DTensor) -> Tensor:
    """Return a result that is not divided as a plain tensor. Parts of a sum are summed up at once."""
    return made if is_divided(made) else made.redistribute(placements=[Replicate()]).to_local()


def _arranged(func: Function, args: Any) -> Any:
    """Return the arguments of a product with a divided weight: its input is divided as the weight's rows, or whole.

    Attention whose queries are divided by heads gets keys and values divided like them.
    """
    if func is F.scaled_dot_product_attention and isinstance(args[0], DTensor) and is_divided(args[0]):
        place = _place(args[0])
        alike = [one.shape[:-2] == args[0].shape[:-2] and place.dim < one.ndim - 2 for one in args[1:3]]
        given = zip(args[1:3], alike, strict=True)
        pair = [
            _shared(one, args[0].device_mesh).redistribute(placements=[place]) if fits else one for one, fits in given
        ]
        return (args[0], *pair, *args[3:])
    axes = PRODUCTS.get(func)
    if axes is None or len(args) < 2 or not isinstance(args[1], nn.Parameter) or not isinstance(args[1], DTensor):
        return args
    if not is_divided(args[1]):
        return args
    place = _place(args[1])
    value = _shared(args[0], args[1].device_mesh)
    wanted: Placement = Replicate() if place.dim == axes[0] else Shard(value.ndim - 1)
    return (value.redistribute(placements=[wanted]), *args[1:])


def _key(args: Any, kwargs: Any) -> Hashable:
    def brief(one: Any) -> Hashable:
        if isinstance(one, DTensor):
            return one.placements, one.ndim
        return one if isinstance(one, (int, float, str, torch.dtype, type(None))) else type(one).__name__

    leaves, shape = tree_flatten((args, kwargs))
    return (*map(brief, leaves), str(shape))


def _called(func: Function, args: Any, kwargs: Any, way: int) -> Any:
    if way >= _GATHERED:
        args, kwargs = _whole((args, kwargs))
    if way == _PLAIN_ATTENTION:
        with sdpa_kernel(SDPBackend.MATH):
            return func(*args, **kwargs)
    return func(*args, **kwargs) if way < _WHOLE else func(*_plain(args), **_plain(kwargs))


def _cut_again(func: Function, args: Any, made: Any) -> Any:
    """Divide the pieces of a divided tensor, which DTensor gathers to cut it: q, k and v of one product."""
    if func not in _CUTS or not isinstance(args[0], DTensor) or not is_divided(args[0]):
        return made
    place = _place(args[0])

    def cut(piece: Any) -> Any:
        piece = _shared(piece, args[0].device_mesh)
        fits = not is_divided(piece) and piece.shape[place.dim] % piece.device_mesh.size() == 0
        return piece.redistribute(placements=[place]) if fits else piece

    return tree_map_only(Tensor, cut, made)


# ---- the plan --------------------------------------------------------------------------------------------------------


@dataclass
class TensorPlan:
    """Which axis of each parameter is divided among the processes of a group.

    Attributes:
        axes: by the parameters' names; a parameter without an entry is whole in each process.
        roles: what becomes of the weights, by their names: "columns", "rows", "vocabulary".
        tried: how the trial called the functions that did not work on parts; see `Divided.ways`.
    """

    size: int
    axes: dict[str, int] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    mode: Divided = field(default_factory=Divided)
    tried: dict[Function, dict[Hashable, int]] = field(default_factory=dict)

    def said(self) -> list[str]:
        """Return the plan in words, a line for each role. In a name, `*` is any number."""
        lines = []
        for role in dict.fromkeys(self.roles.values()):
            names = (name for name, found in self.roles.items() if found == role)
            shown = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "*", name) for name in names)
            lines.append(f"{self.size} processes divide by {role}: {', '.join(shown)}")
        gathered = [name.__name__ for name, ways in self.tried.items() if max(ways.values()) >= _GATHERED]
        if gathered:
            lines.append(f"each gathers the parts for {', '.join(gathered)}: these can't be computed on parts")
        return lines

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this, a model of DTensors computes. A plain tensor counts as the same one in all processes."""
        with implicit_replication(), self.mode:
            yield

    def gradients(self) -> AbstractContextManager[None]:
        """Within this, the gradients of such a model are computed."""
        return implicit_replication()


def whole(made: Any) -> Any:
    """Return the results of a model as plain tensors, the same ones in each process of a group."""
    return tree_map_only(DTensor, lambda one: one.full_tensor(), made)


def draw_alike(mesh: Any) -> None:
    """Give the processes of a group the random numbers of its first one, for what each of them computes whole."""
    import torch.distributed as dist

    device = mesh.device_type
    modules: list[Any] = [torch] + ([torch.get_device_module(device)] if device != "cpu" else [])
    for module in modules:
        state = module.get_rng_state().to(device)
        dist.broadcast(state, group=mesh.get_group(), group_src=0)
        module.set_rng_state(state.cpu())


def distribute(model: nn.Module, part: nn.Module, plan: TensorPlan, mesh: Any) -> None:
    """Make DTensors of the parameters of a part of a model, which may be mapped from files; not of single numbers."""
    own = {id(parameter) for parameter in part.parameters() if parameter.ndim and not isinstance(parameter, DTensor)}
    made: dict[int, nn.Parameter] = {}
    for name, parameter in [*model.named_parameters(remove_duplicate=False)]:
        if id(parameter) not in own:
            continue
        if id(parameter) not in made:
            place = Shard(plan.axes[name]) if name in plan.axes else Replicate()
            value = distribute_tensor(parameter.detach(), mesh, [place], src_data_rank=None)
            made[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, made[id(parameter)])
