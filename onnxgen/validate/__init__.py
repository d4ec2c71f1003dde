"""Translation validation: prove that a generated file computes what its flat module specifies.

The flat module is executed on symbols before structure (`specify`), the finished text after formatting (`validate`).
Both make nodes of one graph, in which equal computations are one node. They agree if their results are the same node,
and if they register the same members with the same options. Code that the checker can't follow never counts as equal.

Nothing here is shared with `onnxgen/structure` or the printer. The checker relies only on dims (`shapes/dims.py`) and
on the terms of a flat module (`code/module_def.py`, the placeholders of `code/quote.py`).
"""

from onnxgen.errors import WrongTranslation
from onnxgen.validate.check import Difference, translated, validate
from onnxgen.validate.flat import Specification, same_either_way, specify
from onnxgen.validate.stored import Stored, decided, hold, hold_keys, stored_by

__all__ = [
    "Difference",
    "Specification",
    "Stored",
    "WrongTranslation",
    "decided",
    "hold",
    "hold_keys",
    "same_either_way",
    "specify",
    "stored_by",
    "translated",
    "validate",
]
