"""Networks with operators of com.acme as ONNX files, and the same in standard operators, which are the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SWISH = """\
import onnxgen


@onnxgen.op("Swish", domain="com.acme", infer=lambda n: [n.input(0)])
def swish(b, x, beta, *, alpha=1.0):
    return b("x * torch.sigmoid(beta * x) * a", x=x, beta=beta, a=alpha)
"""


def swish(x: str, beta: str, y: str, alpha: float, standard: bool) -> list[onnx.NodeProto]:
    """`y = alpha * x * sigmoid(beta * x)`: one node of com.acme, or four standard ones."""
    if not standard:
        return [helper.make_node("Swish", [x, beta], [y], f"/{y}/Swish", domain="com.acme", alpha=alpha)]
    return [
        helper.make_node("Mul", [x, beta], [f"{y}.a"]),
        helper.make_node("Sigmoid", [f"{y}.a"], [f"{y}.b"]),
        helper.make_node("Mul", [f"{y}.b", x], [f"{y}.c"]),
        helper.make_node("Mul", [f"{y}.c", f"alpha.{y}"], [y]),
    ]


def net(standard: bool = False) -> onnx.ModelProto:
    """Two linear layers, with a Swish of trained beta after the first, and one more."""
    draw = np.random.default_rng(0)
    shapes = {"fc1.weight": (8, 4), "fc1.bias": (8,), "act1.beta": (8,), "act2.beta": (8,), "fc2.weight": (3, 8)}
    tensors = [numpy_helper.from_array(draw.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    tensors += [numpy_helper.from_array(np.array(a, np.float32), f"alpha.{n}") for n, a in (("act1", 2), ("act2", 0.5))]
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "/fc1/Gemm", transB=1),
        *swish("h", "act1.beta", "act1", 2.0, standard),
        *swish("act1", "act2.beta", "act2", 0.5, standard),
        helper.make_node("Gemm", ["act2", "fc2.weight"], ["y"], "/fc2/Gemm", transB=1),
    ]
    return model(nodes, [("x", ["batch", 4])], [("y", ["batch", 3])], tensors if standard else tensors[:-2])


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, list[int | str]]],
    outputs: list[tuple[str, list[int | str] | None]],
    tensors: list[TensorProto] = [],  # noqa: B006
    domains: tuple[str, ...] = ("com.acme",),
) -> onnx.ModelProto:
    """A model of float32 inputs and outputs."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="pytorch")


def one(op: str = "Swish", inputs: int = 1, domain: str = "com.acme", **attributes: Any) -> onnx.ModelProto:
    """A single node of vectors."""
    names = [f"x{i}" for i in range(inputs)]
    node = helper.make_node(op, names, ["y"], "node", domain=domain, **attributes)
    domains = (domain,) if domain else ()
    return model([node], [(n, ["n", 4]) for n in names], [("y", ["n", 4])], domains=domains)


def saved(proto: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(proto.SerializeToString())
    return path


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
