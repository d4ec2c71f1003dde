"""Groups of ONNX's element types."""

import onnx_ir as ir

# those that are trained, and that `--dtype` knows
FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
