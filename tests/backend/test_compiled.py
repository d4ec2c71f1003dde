"""ONNX's own backend tests once more, under `torch.compile(fullgraph=True, backend="aot_eager")`.

Dims that a model leaves open are dynamic. What no graph can hold is listed with its reason in `python_bound.txt`;
a run prints it at its end. The list is strict: torch must refuse what is on it, in its own words, and take the rest.

Where names of inputs follow a test's name, the values of these inputs decide what the graph is. Stored in the file, as
exporters have them, they are known, and the model must compile.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import onnx.backend.test
import pytest
import torch
from onnx.backend.base import BackendRep
from torch._dynamo.exc import TorchDynamoException
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode

from tests.backend.exclusions import ROUNDED
from tests.backend.road import Generated, Road, narrowed
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
        model, free = onnx.ModelProto(), []
        model.CopyFrom(self.model)
        del model.graph.input[:]
        for declared, value in zip(self.model.graph.input, inputs, strict=True):
            if declared.name in self.names:
                model.graph.initializer.append(onnx.numpy_helper.from_array(value, declared.name))
            else:
                model.graph.input.append(declared)
                free.append(value)
        assert len(free) + len(self.names) == len(inputs)
        return compiled(model).run(free)


class OneGraph(torch.nn.Module):
    """A module compiled without a break; `axes` are those of the tensors in each argument that are dynamic."""

    def __init__(self, module: torch.nn.Module, axes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        torch._dynamo.reset()
        self.compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        self.axes = axes

    def forward(self, *arguments: Any) -> Any:
        for argument, axes in zip(arguments, self.axes, strict=True):
            for tensor in tensors(argument):
                for axis in axes:
                    torch._dynamo.mark_dynamic(tensor, axis)
        with torch._dynamo.config.patch(SETTINGS):
            return self.compiled(*arguments)


def compiled(model: onnx.ModelProto) -> Generated:
    stored = {tensor.name for tensor in model.graph.initializer}
    axes = [free_axes(value.type) for value in model.graph.input if value.name not in stored]
    return Generated(OneGraph(instantiate(generate(model)), axes), narrowed(model))


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


LISTED = python_bound()


def with_stored(function: Callable[[Any], None], names: list[str]) -> Callable[[Any], None]:
    """A test of the runner's, on the model in which these inputs are stored."""

    def run(self: Any) -> None:
        with mock.patch.object(Compiled, "stored", names):
            function(self)

    return run


suite = onnx.backend.test.BackendTest(Compiled, __name__, test_kwargs=ROUNDED)
found = suite.test_cases
given: dict[str, Callable[[Any], None]] = {}
seen = set()
for cases in found.values():
    for name, function in list(vars(cases).items()):
        test = name.removesuffix("_cpu")
        if name.endswith("_cuda") or test.startswith("test_bernoulli"):  # see exclusions.py
            delattr(cases, name)
        elif test in LISTED:
            reason, inputs = LISTED[test]
            setattr(cases, name, pytest.mark.xfail(strict=True, raises=REFUSALS, reason=reason)(function))
            seen.add(test)
            if inputs:
                given[name] = with_stored(function, inputs)
globals().update(found)

WithStoredInputs = type("WithStoredInputs", (unittest.TestCase,), {"__module__": __name__, **given})


@pytest.fixture(autouse=True)
def models_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ONNX's runner writes data of the real models there, also while another process reads it."""
    monkeypatch.setenv("ONNX_MODELS", str(tmp_path))


def test_the_list_names_tests() -> None:
    assert set(LISTED) == seen
