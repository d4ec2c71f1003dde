"""The attacks: every place of a file that holds text, times every way to break out of where text may end up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

MARK = "PWNED"  # the file that an attack would write
CODE = f"open('{MARK}', 'w').close()"
TEXTS = {
    "statement": f"x'\n{CODE}\n'",
    "double quotes": f'"); {CODE}; ("',
    "triple quotes": f'"""\n{CODE}\n"""',
    "backslash": f"\\\n{CODE} #",
    "jinja": "{{ ''.__class__.__mro__[1].__subclasses__() }}{% raw %}"
    + f"{{{{ cycler.__init__.__globals__.os.{CODE} }}}}",
    "fstring": f"{{{CODE}}}{{__import__('os')!r:>{{9}}}}",
    "separators": f"a\u2028{CODE}\u2029\x85{CODE}\x0b\x0c{CODE}\r{CODE}",
    "coding": f"# -*- coding: utf-7 -*-\n+AAo-{CODE}",
}


def base() -> onnx.ModelProto:
    """A Linear, a table, text, a branch, a local function, a named dim, and an operator that nobody knows."""
    make, info = helper.make_node, helper.make_tensor_value_info
    weight = np.random.default_rng(0).standard_normal((4, 4), np.float32)
    branches = {
        name: helper.make_graph([make(op, ["h"], [f"{op}_out"], f"{op}_node")], name, [], [info(f"{op}_out", 1, None)])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Exp"))
    }
    nodes = [
        make("MatMul", ["x", "w"], ["m"], "product"),
        make("block", ["m"], ["h"], "call", domain="local", slope=0.5),
        make("If", ["c"], ["z"], "choice", **branches),
        make("Constant", [], ["words"], "text", value_strings=["word"]),
        make("Identity", ["words"], ["said"], "say"),
        make("Strange", ["z"], ["s"], "strange", domain="acme", way="there"),
        make("Shape", ["x"], ["n"], "size"),
        make("Expand", ["s", "n"], ["y"], "wide"),
    ]
    leaky = make("LeakyRelu", ["a"], ["b"], "inner")
    leaky.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1), helper.make_opsetid("acme", 1)]
    function = helper.make_function("local", "block", ["a"], ["b"], [leaky], opsets[:2], ["slope"])
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", TensorProto.FLOAT, ["batch", 4]), info("c", TensorProto.BOOL, [])],
        [info("y", TensorProto.FLOAT, ["batch", 4]), info("said", TensorProto.STRING, [1])],
        [from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10, producer_name="maker")


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for item in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        item.name = new if item.name == old else item.name
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _function(model: onnx.ModelProto, text: str) -> None:
    model.functions[0].name = model.graph.node[1].op_type = text


def _function_domain(model: onnx.ModelProto, text: str) -> None:
    model.functions[0].domain = model.graph.node[1].domain = model.opset_import[1].domain = text


def _operator_domain(model: onnx.ModelProto, text: str) -> None:
    model.graph.node[5].domain = model.opset_import[2].domain = text


def _parameter(model: onnx.ModelProto, text: str) -> None:
    function = model.functions[0]
    function.attribute[0] = function.node[0].attribute[0].ref_attr_name = model.graph.node[1].attribute[0].name = text


def _function_value(model: onnx.ModelProto, text: str) -> None:
    function = model.functions[0]
    function.input[0] = function.node[0].input[0] = text


def _dim(model: onnx.ModelProto, text: str) -> None:
    for value in (*model.graph.input[:1], *model.graph.output[:1]):
        value.type.tensor_type.shape.dim[0].dim_param = text


def _external(model: onnx.ModelProto, **entries: str) -> None:
    tensor = model.graph.initializer[0]
    data = {"location": "w.bin", "length": "64", **entries}
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in data.items():
        tensor.external_data.add(key=key, value=value)


def _scopes(model: onnx.ModelProto, text: str) -> None:
    for node in model.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(["", text]))
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=repr([text, text]))


def _node_names(model: onnx.ModelProto, text: str) -> None:
    for number, node in enumerate(model.graph.node):
        node.name = f"/{text}/{number}/{text}"


Place = Callable[[onnx.ModelProto, str], object]
PLACES: dict[str, Place] = {
    "graph": lambda m, t: setattr(m.graph, "name", t),
    "node": _node_names,
    "input": lambda m, t: _rename(m, "x", t),
    "output": lambda m, t: _rename(m, "y", t),
    "value": lambda m, t: _rename(m, "h", t) if not t else _rename(m, "m", t),
    "initializer": lambda m, t: _rename(m, "w", t),
    "parameter's path": lambda m, t: _rename(m, "w", f"net.{t}.weight"),
    "documents": lambda m, t: [setattr(p, "doc_string", t) for p in (m, m.graph, *m.graph.node, *m.functions)],
    "metadata key": lambda m, t: m.metadata_props.add(key=t, value="x"),
    "metadata value": lambda m, t: m.metadata_props.add(key="names", value=t),
    "node's metadata": lambda m, t: m.graph.node[0].metadata_props.add(key=t, value=t),
    "exporter's scopes": _scopes,
    "producer and domain": lambda m, t: [
        setattr(m, name, t) for name in ("producer_name", "producer_version", "domain")
    ],
    "opset domain": lambda m, t: m.opset_import.add(domain=t, version=1),
    "strings": lambda m, t: m.graph.node[3].attribute[0].strings.__setitem__(0, t.encode()),
    "unknown operator's string": lambda m, t: setattr(m.graph.node[5].attribute[0], "s", t.encode()),
    "unknown operator's attribute": lambda m, t: setattr(m.graph.node[5].attribute[0], "name", t),
    "operator": lambda m, t: setattr(m.graph.node[5], "op_type", t),
    "operator's domain": _operator_domain,
    "dim": _dim,
    "external data's key": lambda m, t: _external(m, **{t: "x"}),
    "external data's value": lambda m, t: _external(m, checksum=t),
    "function": _function,
    "function's domain": _function_domain,
    "function's attribute": _parameter,
    "function's value": _function_value,
    "denotation": lambda m, t: setattr(m.graph.input[0].type, "denotation", t),
}
PROJECT = ("class-name", "weights", "output", "trainable", "dropout", "input-shape", "templates", "plugins", "dtype")


def attacks(kind: str) -> dict[str, onnx.ModelProto]:
    """Every place with one of the texts."""
    found = {}
    for place, put in PLACES.items():
        model = base()
        put(model, TEXTS[kind])
        found[f"{place}: {kind}"] = model
    return found
