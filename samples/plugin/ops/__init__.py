"""Operators of com.acme, for `onnxgen --plugin`."""

from __future__ import annotations

import ast

from onnxgen import Arg, Builder, op


@op("Snake", domain="com.acme", infer=lambda node: [node.input(0)])
def snake(b: Builder, x: Arg, a: Arg, *, power: int) -> ast.expr:
    """A layer of its own, which has the tensor; written out where the tensor is computed."""
    if power != 2:
        raise b.error(f"a sine to the power of {power} is not known", "export it with power 2")
    if a.shape is not None and len(a.shape) == 1 and a.source is not None:
        layer = b.module("snake", b.call(b.helper("Snake"), a.shape[0]), a=a)
        if layer is not None:
            return b("layer(x)", layer=layer, x=x)
    return b("snake(x, a)", snake=b.helper("snake"), x=x, a=a)
