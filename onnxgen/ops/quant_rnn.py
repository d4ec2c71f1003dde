"""onnxruntime's LSTM with 8-bit weights."""

from __future__ import annotations

import ast

from onnxgen.code.quote import OMIT
from onnxgen.errors import WRITER
from onnxgen.graph.operators import op
from onnxgen.graph.traits import RECURRENT
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.microsoft import MICROSOFT

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
DEFAULT_ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]


@op("DynamicQuantizeLSTM", domain=MICROSOFT, traits=[RECURRENT])
def dynamic_quantize_lstm(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None, sequence_lens: Arg | None, initial_h: Arg | None,
    initial_c: Arg | None, P: Arg | None, W_scale: Arg, W_zero_point: Arg, R_scale: Arg, R_zero_point: Arg, *,
    hidden_size: int, direction: str = "forward", clip: float = 0.0, input_forget: int = 0,
    activations: list[str] | None = None, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
) -> list[ast.expr]:  # fmt: skip
    """Directions are computed one by one; the input of each product is quantised at run time."""
    if direction not in DIRECTIONS:
        raise b.error(f"attribute 'direction' must be forward, reverse or bidirectional, not {direction!r}", WRITER)
    names = activations or DEFAULT_ACTIVATIONS
    if sequence_lens is not None or input_forget or names != DEFAULT_ACTIVATIONS * (len(names) // 3):
        raise b.error(
            "sequence_lens, input_forget and other activations are not handled", "quantise the model without its LSTM"
        )
    state = b.let(b("x.new_zeros(x.shape[1], n)", x=X, n=hidden_size), "state")
    made = []
    for i, is_reverse in enumerate(DIRECTIONS[direction]):
        weights, recurrent = (
            b("(w[i], s[i], z[i])", w=w, s=s, z=z, i=i)
            for w, s, z in ((W, W_scale, W_zero_point), (R, R_scale, R_zero_point))
        )
        given = [None if v is None else b("v[i]", v=v, i=i) for v in (B, P)]
        h, c = (state if v is None else b("v[i]", v=v, i=i) for v in (initial_h, initial_c))
        called = b.call("dynamic_lstm", X, weights, recurrent, *given, h, c, is_reverse, clip=clip or OMIT)
        made.append(b.let(called, "direction"))
    parts = [[b("y[k]", y=y, k=k) for y in made] for k in range(3)]
    return [b.call("torch.stack", p, dim=1 if k == 0 else OMIT) for k, p in enumerate(parts)]
