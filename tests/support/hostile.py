"""Hostile text, and models that have it wherever a file has text."""

from __future__ import annotations

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HOSTILE = {
    "spaces": "a name with  spaces ",
    "dots": "..a..b.",
    "slashes": "/a//b\\c/",
    "quotes": 'it\'s "quoted" `so`',
    "triple": '""" + evil() + """',
    "triple_single": "''' + evil() + '''",
    "newlines": "a\nimport os\r\nos.system('x')\n",
    "separators": "a\x0bb\x0c\u2028import os\u2029\x85import os",
    "statement": '"); import os; os.system("x"); ("',
    "subscript": "]); evil(); x([",
    "comment": "x # coding: utf-7",
    "coding": "# -*- coding: rot13 -*-",
    "backslash": "ends with \\",
    "escape": "\\x22); evil() #\\n\\u0022",
    "jinja": "{{ ''.__class__.__mro__ }}{% include 'x' %}{# #}",
    "fstring": "{evil()}{0}{x!r:>{width}}%s%(x)s",
    "keyword": "lambda",
    "soft_keyword": "match",
    "builtin": "print",
    "dunder": "__class__",
    "init": "__init__",
    "torch_name": "torch",
    "module_name": "nn",
    "functional": "F",
    "model": "Model",
    "self": "self",
    "forward": "forward",
    "helper": "load_weights.weight",
    "state": "state_dict.training",
    "path": "../../../etc/passwd",
    "dotted_code": "layer.0.evil();x.weight",
    "dotted_keyword": "class.def.0.import.weight",
    "dotted_dunder": "__class__.__init__.weight",
    "digits": "0.1.2.weight",
    "constants": "constants.x",
    "non_ascii": "日本語.ñ.𝒻𝑜𝓇",
    "bidi": "\u202eevil\u202c\u200b",
    "control": "\x1b[31m\x07\x7f",
    "long": "x" * 5000,
    "option": "--force",
    "json": '{"a": 1}, "b": [',
    "pragma": "# fmt: off # fmt: skip; # type: ignore # noqa",
    "pragma_alone": "fmt: off " * 12,
}
SECOND = " "  # what a second name has in front: the same name again, once it is cleaned


def model_of(text: str) -> onnx.ModelProto:
    """A Linear, arithmetic, a table, an If, and a shape of a named dim: every name is hostile."""
    make = helper.make_node
    n = [f"{text}{SECOND * i}" for i in range(24)]
    dim = n[20]
    weight = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    table = np.random.default_rng(1).standard_normal((40, 6), np.float32)
    branch = [
        helper.make_graph(
            [make(op, [n[6]], [n[name]], n[7], doc_string=text)],
            text,
            [],
            [helper.make_tensor_value_info(n[name], TensorProto.FLOAT, None)],
        )
        for op, name in (("Neg", 15), ("Exp", 16))
    ]
    nodes = [
        make("Gemm", [n[0], n[1], n[2]], [n[3]], text, doc_string=text, transB=1),
        make("Mul", [n[3], n[4]], [n[5]], n[1]),
        make("Add", [n[5], n[3]], [n[6]], n[2]),
        make("If", [n[8]], [n[9]], n[3], then_branch=branch[0], else_branch=branch[1]),
        make("Shape", [n[0]], [n[10]], n[4]),
        make("ReduceSum", [n[9]], [n[11]], n[7], keepdims=0),
        make("Identity", [n[10]], [n[12]], n[8]),
        make("Expand", [n[11], n[12]], [n[13]], n[5]),
        make("Gather", [n[14], n[17]], [n[18]], n[6]),
    ]
    initializers = [
        numpy_helper.from_array(weight, n[1]),
        numpy_helper.from_array(np.arange(6, dtype=np.float32), n[2]),
        numpy_helper.from_array(np.linspace(1, 2, 6, dtype=np.float32), n[4]),
        numpy_helper.from_array(table, n[14]),
    ]
    inputs = [
        helper.make_tensor_value_info(n[0], TensorProto.FLOAT, [dim, 4], text),
        helper.make_tensor_value_info(n[8], TensorProto.BOOL, []),
        helper.make_tensor_value_info(n[17], TensorProto.INT64, [dim]),
    ]
    outputs = [
        helper.make_tensor_value_info(n[13], TensorProto.FLOAT, [dim, 4]),
        helper.make_tensor_value_info(n[18], TensorProto.FLOAT, [dim, 6], text),
        helper.make_tensor_value_info(n[9], TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, text, inputs, outputs, initializers, text)
    return decorated(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), text)


def decorated(model: onnx.ModelProto, text: str) -> onnx.ModelProto:
    """Everything else in a file that is text: producer, metadata, a domain that nothing uses, exporters' notes."""
    model.producer_name = model.producer_version = model.domain = model.doc_string = text
    scopes = {"namespace": text, "pkg.torch.onnx.class_hierarchy": repr([text, text]), text: text}
    scopes["pkg.torch.onnx.name_scopes"] = repr([text, text])
    for node in model.graph.node:
        for key, value in scopes.items():
            node.metadata_props.add(key=key, value=value)
    for key, value in {**scopes, "names": json.dumps({"0": text}), "author": text}.items():
        model.metadata_props.add(key=key, value=value)
    model.opset_import.add(domain=text, version=1)
    return model
