"""Groups of ONNX's element types."""

import onnx_ir as ir

# the types that can be trained, and that `--dtype` accepts
FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))

NAMED = {  # by the names that `--dtype` takes
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "float32": ir.DataType.FLOAT,
    "float64": ir.DataType.DOUBLE,
}
