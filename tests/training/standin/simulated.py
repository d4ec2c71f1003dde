"""Simulates a device on the CPU, to test placement: its tensors can't be mixed with those of other devices.

PyTorch's Python registration of a back end (PrivateUse1) makes tensors without storage. The contents are a CPU tensor,
kept here under the address of the storage. This address stays the same when a tensor becomes a parameter or is
detached, while attributes of the Python object are lost. A view gets its own tensor, whose CPU tensor is a view, so
that writes reach the base. One fallback kernel runs every operator on the CPU tensors. Operators that PyTorch
decomposes above the back ends (`linear`, `lstm`, ...) are decomposed as for any external device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tests.training.standin.lacking import check_call, check_tensor

_HELD: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
_RESHAPES = ("view", "_unsafe_view", "_reshape_alias")  # the simulated tensors know no strides
_OVERRIDEABLE = {  # PyTorch leaves these to each external device
    "convolution_overrideable": torch.ops.aten.convolution.default,
    "convolution_backward_overrideable": lambda grad, input, weight, *rest: torch.ops.aten.convolution_backward.default(
        grad, input, weight, [weight.shape[0]], *rest
    ),
}
COUNTS = {"calls": 0}


class Module(_DummyBackendModule):
    """The module `torch.NAME`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def install(name: str = "privateuseone", *, lacking: bool = False) -> torch.device:
    """Register the device. With `lacking`, operators and dtypes that DirectML lacks raise."""
    _setup_privateuseone_for_python_backend(name, backend_module=Module())
    library = torch.library.Library("_", "IMPL")
    fallback = Fallback(name, lacking)
    library.fallback(fallback, "PrivateUse1")
    explicit = torch.library.Library("aten", "IMPL")
    explicit.impl("_copy_from", fallback.copy, "PrivateUse1")
    for name_, instead in _OVERRIDEABLE.items():
        explicit.impl(name_, partial(fallback, instead), "PrivateUse1")
    for operator in torch._C._dispatch_get_all_op_names():
        if operator.startswith("aten::") and _is_view(operator):
            explicit.impl(operator, partial(fallback, _overload(operator)), "PrivateUse1")
    explicit.impl("_local_scalar_dense", lambda t: held(t).item(), "PrivateUse1")
    Fallback.libraries = (library, explicit)  # unregistered when they die
    return torch.device(name, 0)


def _overload(operator: str) -> Any:
    name, _, overload = operator.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def _is_view(operator: str) -> bool:
    """Return True if PyTorch would make this view with strides, which simulated tensors don't have."""
    if operator == "aten::_unsafe_view":
        return True
    if not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CompositeExplicitAutograd"):
        return False
    if operator == "aten::detach":  # shares the storage; and parameters are made before there is a Python object
        return False
    returns = [r.alias_info for r in _overload(operator)._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returns)


def held(tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor behind a simulated one."""
    found = _HELD[tensor.untyped_storage()._cdata][1]
    if found.shape != tensor.shape and found.numel() == tensor.numel():
        return found.view(tensor.shape)  # PyTorch itself made another shape of the same storage
    return found


def hold(tensor: torch.Tensor) -> torch.Tensor:
    """Return a simulated tensor for a CPU tensor."""
    made: torch.Tensor = torch._C._acc.create_empty_tensor(tuple(tensor.shape), tensor.dtype)
    if len(_HELD) % 500 == 499:
        for address in [a for a, (reference, _) in _HELD.items() if reference.expired()]:
            del _HELD[address]
    storage = made.untyped_storage()
    _HELD[storage._cdata] = (StorageWeakRef(storage), tensor)
    return made


class Fallback:
    """The kernel of every operator."""

    libraries: tuple[torch.library.Library, ...] = ()

    def __init__(self, type_: str, lacking: bool) -> None:
        self.type, self.lacking = type_, lacking

    def __call__(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        COUNTS["calls"] += 1
        given = tree_leaves((args, kwargs))
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else ""
        if self.lacking:
            check_call(name)
        for tensor in given:
            if isinstance(tensor, torch.Tensor) and tensor.device.type != self.type and tensor.dim():
                raise RuntimeError(f"{func}: a tensor on {tensor.device} among those on {self.type}")
        pairs = {id(t): (held(t), t) for t in given if isinstance(t, torch.Tensor) and t.device.type == self.type}
        cpu_args, cpu_kwargs = tree_map(
            lambda v: pairs[id(v)][0] if id(v) in pairs else self._to_cpu(v), (args, kwargs)
        )
        if name == "as_strided":
            assert cpu_args[0].is_contiguous(), "as_strided of a view"
        called = torch.ops.aten.reshape.default if name in _RESHAPES else func
        with torch.no_grad():
            if called is not func:
                result = called(cpu_args[0], cpu_args[1])
            else:
                result = func(*cpu_args, **cpu_kwargs)
        for cpu, simulated in pairs.values():
            if simulated.shape != cpu.shape:  # an operator resized its `out`
                simulated.data = hold(cpu)
        ours = {id(cpu): simulated for cpu, simulated in pairs.values()}
        return tree_map(lambda r: self._from_cpu(r, ours), result)

    def copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Copy from or to the CPU, or between simulated tensors."""
        if self.lacking:
            check_tensor(source if source.device.type == self.type else target)
        with torch.no_grad():
            from_, to = (held(t) if t.device.type == self.type else t for t in (source, target))
            to.copy_(from_)
        return target

    def _to_cpu(self, value: Any) -> Any:
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == self.type else value

    def _from_cpu(self, value: Any, ours: dict[int, torch.Tensor]) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self.lacking:
            check_tensor(value)
        return ours[id(value)] if id(value) in ours else hold(value)
