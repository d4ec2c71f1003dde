"""Files whose outputs hang on the last place of a number: no two right implementations agree on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnxgen.verify.compare import Tolerance, compare

DRAWS = 16


class Rounded(TorchDispatchMode):
    """Whatever an operator computes differs in its last place from what it would be, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not isinstance(made, torch.Tensor) or not made.is_floating_point() or made.requires_grad:
            return made
        if any(made is given or _same_place(made, given) for given in args if isinstance(given, torch.Tensor)):
            return made  # a view
        steps = torch.randint(-1, 2, made.shape, generator=self.draw).to(made.dtype)
        return made * (1 + steps * torch.finfo(made.dtype).eps)


class Lowest(TorchDispatchMode):
    """A maximum over nothing but padding is the lowest number, as in onnxruntime, where torch has -inf."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if "max_pool" not in func.name():
            return made
        values = made[0] if isinstance(made, tuple) else made
        values.masked_fill_(values.isneginf(), torch.finfo(values.dtype).min)
        return made


def _same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def hangs_on_rounding(model: torch.nn.Module, arguments: list[Any], k: int, got: Any, tolerance: Tolerance) -> bool:
    """Whether an output moves when every operator rounds otherwise."""
    return any(compare(got, _run(Rounded(n), model, arguments, k, got), tolerance).why for n in range(DRAWS))


def opened(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The file in onnxruntime, as it is written: nothing is optimised."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def overflows(model: onnx.ModelProto, feed: dict[str, Any]) -> bool:
    """Whether a node makes infinity of finite numbers: a layer that computes in another order may stay below it."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = {name for node in shown.graph.node for name in node.output if name} - {v.name for v in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    session = opened(shown)
    made = feed | dict(zip((output.name for output in session.get_outputs()), session.run(None, feed), strict=True))
    infinite = {name for name, value in made.items() if isinstance(value, np.ndarray) and _has_infinity(value)}
    return any(infinite & {*node.output} and not infinite & {*node.input} for node in shown.graph.node if node.input)


def _has_infinity(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and not np.isfinite(array).all()


def agrees_on_padding(model: torch.nn.Module, arguments: list[Any], k: int, theirs: Any, tolerance: Tolerance) -> bool:
    """Whether the module computes what onnxruntime does where a maximum over padding alone is the lowest number."""
    return not compare(theirs, _run(Lowest(), model, arguments, k, theirs), tolerance).why


def _run(mode: TorchDispatchMode, model: torch.nn.Module, arguments: list[Any], k: int, like: Any) -> Any:
    dtype = getattr(torch, str(like.dtype)) if like.dtype.kind == "f" else None
    with torch.no_grad(), mode:
        made = model(*arguments)
    output = (made if isinstance(made, tuple) else (made,))[k].detach()
    return np.asarray(output.to(dtype) if dtype is not None else output)
