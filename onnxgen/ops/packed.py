"""Tables of onnxruntime whose rows are packed as GGML packs them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxgen.ops.arg import Arg
from onnxgen.ops.microsoft import MICROSOFT
from onnxgen.ops.registry import op

if TYPE_CHECKING:
    from onnxgen.ops.builder import Builder

# by GGML's number of a format: how many numbers a block has, of how many bytes, and the helper that unpacks rows
BLOCKS = {
    2: (32, 18, "unpack_q4_0"),
    6: (32, 22, "unpack_q5_0"),
    8: (32, 34, "unpack_q8_0"),
    13: (256, 176, "unpack_q5_k"),
    14: (256, 210, "unpack_q6_k"),
    20: (32, 18, "unpack_iq4_nl"),
    23: (256, 136, "unpack_iq4_xs"),
    42: (64, 18, "unpack_q2_0"),
}
PLAIN = {0: ir.DataType.FLOAT, 1: ir.DataType.FLOAT16, 30: ir.DataType.BFLOAT16}
CODEBOOKS = {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 22: "IQ2_S"}
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@op("GatherPacked", domain=MICROSOFT)
def gather_packed(
    b: Builder, data: Arg, indices: Arg, *, packed_type: int, K: int, output_dtype: int = ir.DataType.BFLOAT16.value
) -> ast.expr:
    """Rows of `K` numbers, of a table of bytes; computed in float32. An index that is outside is the first row's."""
    if packed_type in CODEBOOKS:
        what = f"its rows are packed as {CODEBOOKS[packed_type]}, vectors of a large codebook"
        raise b.error(what, "pack them as Q4_0, Q5_0, Q8_0, Q5_K, Q6_K, IQ4_NL or IQ4_XS")
    if packed_type not in BLOCKS and packed_type not in PLAIN or output_dtype not in FLOATS:
        raise b.error("its packed_type or its output_dtype is none that onnxruntime has", "fix the file")
    plain = PLAIN.get(packed_type)
    size, count = (1, plain.itemsize) if plain else BLOCKS[packed_type][:2]
    width = None if data.shape is None or len(data.shape) != 2 else data.shape[1]
    if K < 1 or K % size or isinstance(width, int) and width != K // size * count:
        raise b.error(f"its rows of {width} bytes are not {K} numbers", "fix the file")
    rows = b.call("packed_rows", data, indices)
    made = b.call("bytes_as", rows, plain) if plain else b.call(BLOCKS[packed_type][2], rows)
    dtype = ir.DataType(output_dtype)
    return made if dtype == ir.DataType.FLOAT else b("y.to(t)", y=made, t=dtype)
