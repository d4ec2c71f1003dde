"""Operators of onnxruntime (`com.microsoft`, `com.microsoft.nchwc`), which its optimisers and quantisers write.

This is a bundled plugin that is always on (`BUNDLED` in `onnxgen.graph.operators`). It uses only what a user's plugin
can use: `@onnxgen.op`, for functions that write source, and for bodies that write standard nodes (`domain.py`). Most
operators have a body: layers become modules, and weights are found, as if nothing had been fused. Those that the
standard can't express have a function: `functions.py`, `recurrent.py`, `cached_attention.py`, `linear_attention.py`,
`moe.py`. Each operator needs a shape rule (`infer.py`): a body asks for the types and ranks of its inputs, and another
operator of this kind may produce them.
"""

from onnxgen.microsoft import (  # noqa: F401
    attention,
    attention_variants,
    cached_attention,
    functions,
    fused,
    layers,
    linear_attention,
    moe,
    nchwc,
    norms,
    ordered,
    quantized,
    recurrent,
    renamed,
)
