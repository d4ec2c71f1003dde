"""What plugins say of their operators in numpy, for the evaluator that comes with onnx: an oracle of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onnxgen.ops.registry import Operator
from onnxgen.plugins.loading import load

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


def evaluators(plugins: Sequence[str]) -> list[type[OpRun]]:
    """A class for each operator with a `reference`, as `onnx.reference.ReferenceEvaluator(new_ops=...)` takes them."""
    newest = [versions[-1] for versions in load(plugins).values()]
    return [_evaluator(operator) for operator in newest if operator.reference is not None]


def _evaluator(operator: Operator) -> type[OpRun]:
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        assert operator.reference is not None
        made = operator.reference(*inputs, **attributes)
        return tuple(made) if isinstance(made, (list, tuple)) else (made,)

    return type(operator.name, (OpRun,), {"op_domain": operator.domain, "_run": run})
