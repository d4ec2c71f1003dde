"""Decoding of image files."""

from __future__ import annotations

import ast

from onnxgen.code.quote import unless
from onnxgen.errors import CHECK
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder


@op("ImageDecoder")
def image_decoder(b: Builder, encoded_stream: Arg, *, pixel_format: str = "RGB") -> ast.expr:
    """Decoded with Pillow, whose JPEG decoder is libjpeg-turbo, the one that the standard names."""
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise b.error(f"attribute 'pixel_format' must be RGB, BGR or Grayscale, not {pixel_format!r}", CHECK)
    b.note("the network decodes images: the module needs Pillow (pip install pillow)")
    return b.call("decode_image", encoded_stream, unless(pixel_format, "RGB"))
