"""QuantizeLinear and DequantizeLinear by the same numbers round a tensor, and are one `onnxgen.FakeQuantize`.

What was rounded before, and only moved since, is not rounded again. This is exact: the integers between say no more
than the steps of the result.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.quantized.pairs import KEPT, is_kept_pair, pairs
from onnxgen.shapes import propagate


def rounded(model: ir.Model, options: Options) -> None:
    """Rewrite every such pair of a file whose integers are kept; `--quantized` has rewritten those of the others."""
    if options.quantized == "keep" and any(map(is_kept_pair, standard_nodes(model, "DequantizeLinear"))):
        propagate(model.graph, options)
        pairs(model, KEPT)
