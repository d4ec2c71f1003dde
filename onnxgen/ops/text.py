"""Joining of strings, and their conversion to numbers for operators that only move elements.

Other operators on strings are in `onnxgen.classical`.
"""

from __future__ import annotations

import ast
from typing import Any

from onnxgen.code.quote import DeviceOf
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder


@op("TextCodes", domain=DOMAIN)
def text_codes(b: Builder, *inputs: Arg) -> Any:
    """The sorted distinct strings of all inputs; then each input as indices into them."""
    return b.unpack(b.call("text_codes", *inputs, device=DeviceOf()))


@op("TextAt", domain=DOMAIN)
def text_at(b: Builder, table: Arg, index: Arg) -> ast.expr:
    return b("text_at(table, i)", table=table, i=index)


@op("StringConcat")
def string_concat(b: Builder, X: Arg, Y: Arg) -> ast.expr:
    return b("x + y" if b.out().rank else "string_concat(x, y)", x=X, y=Y)
