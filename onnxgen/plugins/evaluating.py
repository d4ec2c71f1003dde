"""The numpy references of plugins' operators, for onnx's reference evaluator, which is an oracle of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.graph.domains import is_foreign
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import Operator
from onnxgen.plugins.loading import load

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


def evaluators(plugins: Sequence[str]) -> list[type[OpRun]]:
    """Return a class for each operator with a `reference`, for `onnx.reference.ReferenceEvaluator(new_ops=...)`."""
    newest = [versions[-1] for versions in load(plugins).values()]
    return [_evaluator(operator) for operator in newest if operator.reference is not None]


def without_reference(model: ir.Model, evaluators: Sequence[type[OpRun]]) -> list[str]:
    """Return the operators of a file that neither an oracle knows nor a plugin has a reference for."""
    used = {(node.domain, node.op_type) for node in all_nodes(model.graph) if is_foreign(node.domain)}
    known = {(evaluator.op_domain, evaluator.__name__) for evaluator in evaluators}
    return [printable(f"{domain}.{name}") for domain, name in sorted(used - known)]


def _evaluator(operator: Operator) -> type[OpRun]:
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        assert operator.reference is not None
        made = operator.reference(*inputs, **attributes)
        return tuple(made) if isinstance(made, (list, tuple)) else (made,)

    return type(operator.name, (OpRun,), {"op_domain": operator.domain, "_run": run})
