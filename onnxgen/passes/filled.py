"""Arithmetic of a tensor that is one number everywhere, and of constants, is such a tensor.

torch.zeros(n, 1) + 8   is   torch.full((n, 1), 8.0)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import BROADCASTS
from onnxgen.options import Options
from onnxgen.passes.match import scalar, standard_nodes, uniform
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.shapes.evaluate import evaluate
from onnxgen.shapes.info import Info, info
from onnxgen.shapes.node_facts import NodeFacts, Symbols


def filled(model: ir.Model, options: Options) -> None:
    """Compute the number once, where the file computes it for each element."""
    for fill in standard_nodes(model, "ConstantOfShape"):
        while (user := only_user(fill.outputs[0])) is not None and (number := _number(fill, user)) is not None:
            made = ir.node(fill.op_type, fill.inputs, {"value": ir.tensor(number)}, version=fill.version)
            replace(user, made)
            fill = made


def _number(fill: ir.Node, user: ir.Node) -> NDArray[np.generic] | None:
    """Return the one number of a node that takes a tensor of one number, and otherwise constants; None if unknown."""
    tensor, made = info(fill.outputs[0]), info(user.outputs[0])
    is_float = made.dtype is not None and made.dtype.is_floating_point()
    if user.domain or not is_a(user, BROADCASTS) or not is_float or tensor.shape is None or tensor.shape != made.shape:
        return None
    inputs: list[Info | None] = []
    for value in user.inputs:
        number, dtype = uniform(value) if value is fill.outputs[0] else scalar(value), info(value).dtype
        if number is None or dtype is None or not dtype.is_floating_point():
            return None
        inputs.append(Info(dtype, (1,), np.asarray([number], dtype.numpy())))
    facts = NodeFacts(user, user.version or 1, inputs, Symbols({}))
    facts.inferred = [Info(made.dtype, (1,))]
    return evaluate(facts, 1)[0].constant
