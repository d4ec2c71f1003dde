"""Trace one forward pass as a graph of ATen operations, which shows where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onnxgen.surgery.example import Example, call, outputs, undisturbed

VIEWS = {"t", "transpose", "permute", "numpy_T", "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze"}
VIEWS |= {"_to_copy", "clone", "detach", "alias", "contiguous"}


@dataclass(eq=False)
class Value:
    """A tensor at one point in time. An in-place operation makes a new value.

    Attributes:
        tensor: kept alive, so that its id is not reused.
        made_by: the operation; None for inputs, parameters and constants.
        varies: True if it depends on the model's inputs.
    """

    tensor: Tensor
    made_by: Operation | None = None
    varies: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass(eq=False)
class Operation:
    """One call of an ATen operator.

    Attributes:
        name: the name without the overload: "addmm", "convolution".
        inputs: the tensors among its arguments, in order.
        arguments: the positional arguments; tensors are replaced by their `Value`.
    """

    name: str
    inputs: list[Value]
    arguments: tuple[Any, ...]


@dataclass
class Trace:
    """A forward pass.

    Attributes:
        result: what the model returned.
        outputs: its tensors.
        operations: in order of execution.
    """

    result: Any = None
    outputs: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


def trace(model: nn.Module, example: Example) -> Trace:
    """Run a model in evaluation mode and record the operations it performs."""
    recorder = _Recorder(example)
    with undisturbed(model), recorder:
        result = call(model, example)
    found = recorder.trace
    found.result = result
    found.outputs = [recorder.value(tensor) for tensor in outputs(result)]
    return found


def is_view(made: Operation) -> bool:
    """Return True if an operation arranges, casts, or multiplies by one number the elements of a tensor."""
    return bool(made.inputs) and (made.name in VIEWS or (made.name in ("mul", "div") and len(made.inputs) == 1))


def source(value: Value) -> tuple[Value, int]:
    """Return the tensor that a value is a view of (`is_view`), and the number of times that two axes were swapped."""
    turns = 0
    while (made := value.made_by) is not None and is_view(made):
        turns += made.name in ("t", "transpose", "permute", "numpy_T")
        value = made.inputs[0]
    return value, turns


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, example: Example) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        leaves = pytree.tree_leaves(dict(example) if not isinstance(example, (Tensor, tuple, list)) else example)
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.now = {id(tensor): Value(tensor, varies=True) for tensor in given}

    def value(self, tensor: Tensor) -> Value:
        found = self.now.get(id(tensor))
        if found is None:
            found = self.now[id(tensor)] = Value(tensor)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = pytree.tree_map_only(Tensor, self.value, (args, kwargs or {}))
        inputs = list(_values(given))
        result = func(*args, **(kwargs or {}))
        operation = Operation(func.overloadpacket.__name__.rstrip("_"), inputs, given[0])
        self.trace.operations.append(operation)
        varies = any(value.varies for value in inputs)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.now[id(tensor)] = Value(tensor, operation, varies)
        return result


def _values(tree: Any) -> Iterator[Value]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Value))
