"""What propagation says of onnxgen's own operators, which ONNX's inference does not know, is what torch returns."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import helper

from onnxgen.graph.domains import DOMAIN
from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info
from tests.paranoid.test_own import CASES

KNOWN = ("FakeQuantize", "FakeQuantizeDynamic", "WeightNorm")  # later shapes depend on these weights


def test_sizes_and_types_are_those_of_torchs_functions() -> None:
    seen = set()
    for op, inputs, attributes, original in CASES:
        expected = original(*inputs)
        arrays = [t.numpy() for t in (expected if isinstance(expected, (list, tuple)) else [expected])]
        names, results = [f"i{i}" for i in range(len(inputs))], [f"o{i}" for i in range(len(arrays))]
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(t.numpy().dtype), t.shape)
            for name, t in zip(names, inputs, strict=True)
        ]
        node = helper.make_node(op, names, results, domain=DOMAIN, **attributes)
        graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name=name) for name in results])
        model = ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid(DOMAIN, 1)]))
        propagate(model.graph, Options())
        for value, array in zip(model.graph.outputs, arrays, strict=True):
            facts = info(value)
            assert facts.shape in (array.shape, *(() if op in KNOWN else (None,))), (op, attributes)
            assert facts.dtype is None or facts.dtype.numpy() == array.dtype, (op, attributes)
        seen.add(op)
    assert seen.issuperset(KNOWN)
