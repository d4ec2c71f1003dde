"""The road with one compiled graph at its end, and the list of models that no graph can hold."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import onnx.backend.test
import torch
from onnx.backend.base import BackendRep
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.guards import CheckFunctionManager
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from onnxgen.backend import OnnxgenRep, narrowed
from tests.backend.road import Road
from tests.ops.harness import generate, instantiate

# Sizes and numbers that are data stay in the graph (NonZero, Unique), and so do recurrent layers and gradients.
SETTINGS = {
    "capture_dynamic_output_shape_ops": True,
    "capture_scalar_outputs": True,
    "allow_rnn": True,
    "trace_autograd_ops": True,
}
REFUSALS = (TorchDynamoException, GuardOnDataDependentSymNode, ConstraintViolationError)


class Compiled(Road):
    """The road, and one graph of the module at its end; `stored` names the inputs that are stored in the file first."""

    stored: Sequence[str] = ()

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        return Storing(model, cls.stored) if cls.stored else compiled(model)


class Storing(BackendRep):
    """A model that is generated when the values of some inputs are known."""

    def __init__(self, model: onnx.ModelProto, names: Sequence[str]) -> None:
        self.model, self.names = model, names

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> list[Any]:
        feeds = {declared.name: value for declared, value in zip(self.model.graph.input, inputs, strict=True)}
        model = with_stored(self.model, {name: feeds.pop(name) for name in self.names})
        return compiled(model).run(list(feeds.values()))


class OneGraph(torch.nn.Module):
    """A module compiled without a break; `axes` are those of the tensors in each argument that are dynamic."""

    def __init__(self, module: torch.nn.Module, axes: Sequence[Sequence[int]], backend: str) -> None:
        super().__init__()
        torch._dynamo.reset()
        forget_guards()
        self.compiled = torch.compile(module, fullgraph=True, backend=backend)
        self.axes = axes

    def forward(self, *arguments: Any) -> Any:
        for argument, axes in zip(arguments, self.axes, strict=True):
            for tensor in tensors(argument):
                for axis in axes:
                    torch._dynamo.mark_dynamic(tensor, axis)
        # To time the guards, torch 2.13 first empties the processor's cache: a fifth of the time.
        with (
            torch._dynamo.config.patch(SETTINGS),
            mock.patch.object(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0),
        ):
            return self.compiled(*arguments)


def forget_guards() -> None:
    """Let go of the graphs before this one.

    torch 2.13 watches what a guard compares by identity with finalizers that hold the guard, its module and weights.
    Of `torch.nn.functional` they stay for ever; and with each class that lives on, `torch.fx` takes longer to patch
    `nn.Module`.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        watched = finalizer.peek()
        manager = getattr(getattr(watched and watched[1], "func", None), "__self__", None)
        if isinstance(manager, CheckFunctionManager):
            finalizer.detach()


def compiled(model: onnx.ModelProto, backend: str = "aot_eager") -> OnnxgenRep:
    """The module of a model as one graph."""
    stored = {tensor.name for tensor in model.graph.initializer}
    axes = [free_axes(value.type) for value in model.graph.input if value.name not in stored]
    return OnnxgenRep(OneGraph(instantiate(generate(model)), axes, backend), narrowed(model))


def with_stored(model: onnx.ModelProto, values: Mapping[str, Any]) -> onnx.ModelProto:
    """A model whose inputs of these names are initializers instead."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.input[:]
    made.graph.input.extend(declared for declared in model.graph.input if declared.name not in values)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    return made


def free_axes(declared: onnx.TypeProto) -> list[int]:
    """The axes whose size a declaration does not say; of a list, those of its elements."""
    kind = declared.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return free_axes(getattr(declared, kind).elem_type)
    return [axis for axis, dim in enumerate(declared.tensor_type.shape.dim) if not dim.HasField("dim_value")]


def tensors(argument: Any) -> Iterator[torch.Tensor]:
    for value in argument if isinstance(argument, list) else [argument]:
        if isinstance(value, torch.Tensor):
            yield value


def python_bound() -> dict[str, tuple[str, list[str]]]:
    """The list: for each test the reason, and the inputs whose values a graph would have to know."""
    listed: dict[str, tuple[str, list[str]]] = {}
    for paragraph in Path(__file__).with_name("python_bound.txt").read_text().strip().split("\n\n"):
        lines = paragraph.splitlines()
        reason = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
        for name, *inputs in (line.split() for line in lines if not line.startswith("#")):
            assert name not in listed, f"{name} is listed twice"
            listed[name] = (reason, inputs)
    return listed
