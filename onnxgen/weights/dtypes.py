"""Types of elements: in ONNX, in torch and in safetensors."""

from __future__ import annotations

import onnx_ir as ir

_NARROW = "INT4:INT8 UINT4:UINT8 INT2:INT8 UINT2:UINT8 FLOAT4E2M1:FLOAT8E4M3FN FLOAT8E8M0:FLOAT"
_SINCE_ONNX_IR_1_1 = "FLOAT6E2M3:FLOAT8E4M3FN FLOAT6E3M2:FLOAT8E4M3FN"
_PAIRS = [pair.split(":") for pair in f"{_NARROW} {_SINCE_ONNX_IR_1_1}".split()]
WIDER = {ir.DataType[narrow]: ir.DataType[wide] for narrow, wide in _PAIRS if hasattr(ir.DataType, narrow)}
"""Types that torch lacks, and the next wider one that they travel in (it holds each of their values exactly)."""

_SHARED = (
    "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL COMPLEX64 COMPLEX128"
    " FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ"
)
TORCH_DTYPES = {ir.DataType[name]: str(ir.DataType[name].numpy()) for name in _SHARED.split()} | {
    # torch lacks these types: their values are stored in the next wider one
    ir.DataType.INT4: "int8",
    ir.DataType.INT2: "int8",
    ir.DataType.UINT4: "uint8",
    ir.DataType.UINT2: "uint8",
    ir.DataType.FLOAT4E2M1: "float32",
    ir.DataType.FLOAT8E8M0: "float32",
}

_NAMES = (
    "BOOL:BOOL U8:UINT8 I8:INT8 U16:UINT16 I16:INT16 U32:UINT32 I32:INT32 U64:UINT64 I64:INT64 F16:FLOAT16"
    " BF16:BFLOAT16 F32:FLOAT F64:DOUBLE C64:COMPLEX64 F8_E4M3:FLOAT8E4M3FN F8_E5M2:FLOAT8E5M2"
    " F8_E4M3FNUZ:FLOAT8E4M3FNUZ F8_E5M2FNUZ:FLOAT8E5M2FNUZ F8_E8M0:FLOAT8E8M0"
)
BY_NAME = {name: ir.DataType[dtype] for name, dtype in (pair.split(":") for pair in _NAMES.split())}
SAFETENSORS_DTYPES = {dtype: name for name, dtype in BY_NAME.items()}
