"""Finds how several processes divide a network: it runs once, without values, in a group that is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.sharded.tensor import PRODUCTS, Divided, TensorPlan, whole

Function = Callable[..., Any]
_ADDS: tuple[Function, ...] = (Tensor.add, Tensor.__add__, torch.add)
_TRIAL = "trial"  # another name than that of the real mesh: DTensor caches what it found for equal meshes


def tensor_plan(model: nn.Module, inputs: Sequence[Tensor], size: int) -> TensorPlan:
    """Return how `size` processes divide the parameters of a model, by what a training run of `inputs` shows.

    Raises:
        OnnxgenError: nothing can be divided, or DTensor can't compute the network or its gradients.
    """
    with _made_up(size) as mesh, _buffers_kept(model), FakeTensorMode(allow_non_fake_inputs=True) as fake:
        trial = _Trial(model, mesh, fake)
        try:
            with implicit_replication(), _Seeded(trial):
                with trial:
                    made = model(*map(fake.from_tensor, inputs))
                outputs = [one for one in tree_leaves(whole(made)) if isinstance(one, Tensor) and one.requires_grad]
                torch.autograd.backward([one.float().sum() for one in outputs])
        except Exception as error:
            what = f"--tensor-parallel can't divide {type(model).__name__}: {one_line(error, 200)}"
            raise OnnxgenError(what, help="leave out --tensor-parallel") from error
    if not trial.plan.axes:
        what = f"{type(model).__name__} has nothing that --tensor-parallel {size} divides"
        raise OnnxgenError(what, help="leave out --tensor-parallel")
    trial.plan.mode.random, trial.plan.tried = trial.seeded, trial.ways
    return trial.plan


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Undo that a forward pass puts other tensors in the place of buffers."""
    before = [(module, {**module._buffers}) for module in model.modules()]
    try:
        yield
    finally:
        for module, buffers in before:
            module._buffers.update(buffers)


@contextmanager
def _made_up(size: int) -> Iterator[Any]:
    """Yield a mesh of processes of which there is only this one. Nothing is sent between them."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        shape = dist.get_world_size() // size, size
        yield init_device_mesh("cpu", shape, mesh_dim_names=("others", _TRIAL))[_TRIAL]
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,), mesh_dim_names=(_TRIAL,))
    finally:
        dist.destroy_process_group()


class _Trial(Divided):
    """Puts a DTensor without values in the place of each parameter, divided as its first use suggests.

    In the place of a buffer it puts a plain tensor, which the network may change.
    """

    def __init__(self, model: nn.Module, mesh: Any, fake: FakeTensorMode) -> None:
        super().__init__()
        self._buffers: dict[int, Tensor] = {id(one): fake.from_tensor(one) for one in model.buffers()}
        self.mesh, self.plan = mesh, TensorPlan(mesh.size())
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._every: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._every.setdefault(id(parameter), []).append(name)
        self._made: dict[int, nn.Parameter] = {}
        self.calls: list[Function] = []
        self.seeded: set[Function] = set()  # not `random`: on another device they are called on parts

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._decide(func, args, kwargs or {})
        args, kwargs = tree_map_only(Tensor, self._stand_in, (args, kwargs or {}))
        self.calls.append(func)
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            self.calls.pop()

    def _stand_in(self, parameter: Tensor) -> Tensor:
        if id(parameter) not in self._names or not parameter.ndim:
            return self._buffers.get(id(parameter), parameter)
        if id(parameter) not in self._made:
            axis, shape = self.plan.axes.get(self._names[id(parameter)]), list(parameter.shape)
            if axis is not None:
                shape[axis] = -(-shape[axis] // self.plan.size)
            local = torch.empty(shape, dtype=parameter.dtype)
            place = Replicate() if axis is None else Shard(axis)
            given: dict[str, Any] = {"shape": parameter.shape, "stride": parameter.contiguous().stride()}
            made = DTensor.from_local(local, self.mesh, [place], run_check=False, **given)
            self._made[id(parameter)] = nn.Parameter(made, parameter.requires_grad)
        return self._made[id(parameter)]

    def _decide(self, func: Function, args: Any, kwargs: Any) -> None:
        """Choose the axis of a weight that is used for the first time."""
        if func in _ADDS and len(args) == 2:
            self._decide_bias(*args)
        if len(args) < 2 or (weight := self._undecided(args[1])) is None or weight.ndim != 2:
            return
        if func is F.embedding:
            rows, size = weight.shape
            renormed = args[3] if len(args) > 3 else kwargs.get("max_norm")  # in place
            if rows > size and renormed is None:
                self._divide(weight, 0, "vocabulary")
        elif func in PRODUCTS:
            outputs, inputs = PRODUCTS[func]
            if _last(args[0]):
                self._divide(weight, inputs, "rows")
            elif self._worth(weight.shape[outputs], weight.shape[inputs]):
                self._divide(weight, outputs, "columns")
                bias = self._undecided(args[2] if len(args) > 2 else kwargs.get("bias"))
                if bias is not None:
                    self._divide(bias, 0)

    def _decide_bias(self, a: Any, b: Any) -> None:
        """Divide a vector that is added to what a layer's columns gave."""
        for value, other in ((a, b), (b, a)):
            bias = self._undecided(other)
            if _last(value) and bias is not None and bias.shape == value.shape[-1:]:
                self._divide(bias, 0)

    def _worth(self, outputs: int, inputs: int) -> bool:
        """Return True if outputs are divided: in equal parts, or more of them than inputs, as those of a vocabulary."""
        return outputs % self.plan.size == 0 or outputs > max(inputs, self.plan.size)

    def _undecided(self, value: Any) -> nn.Parameter | None:
        known = isinstance(value, nn.Parameter) and id(value) in self._names and id(value) not in self._made
        return value if known else None

    def _divide(self, parameter: nn.Parameter, axis: int, role: str = "") -> None:
        for name in self._every[id(parameter)]:
            self.plan.axes[name] = axis
        if role:
            self.plan.roles[self._names[id(parameter)]] = role


def _last(value: Any) -> bool:
    """Return True if the last axis of a value is divided."""
    return isinstance(value, DTensor) and value.placements == (Shard(value.ndim - 1),)


class _Seeded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the functions that draw random numbers."""

    def __init__(self, trial: _Trial) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trial = trial

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | (kwargs or {})
        drawn = given.get("dropout_p", given.get("p", 1))  # attention without dropout draws nothing
        if torch.Tag.nondeterministic_seeded in func.tags and drawn and self.trial.calls:
            self.trial.seeded.add(self.trial.calls[-1])
        return func(*args, **(kwargs or {}))
