"""LSTMs that attend to a memory, and LSTMs of quantised weights."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, MemberRef, call, unless
from onnxgen.errors import WRITER
from onnxgen.graph.operators import op
from onnxgen.graph.traits import RECURRENT
from onnxgen.lowering.builder import Arg, Builder, Unpack
from onnxgen.microsoft import drawn, infer
from onnxgen.microsoft.domain import MICROSOFT
from onnxgen.ops.quant import learned
from onnxgen.ops.rnn import layer_options, trimmed
from onnxgen.passes.match import uniform


@op(
    "AttnLSTM", domain=MICROSOFT, traits=[RECURRENT], weights="W R B P QW MW V AW", infer=infer.lstm,
    axes="s b i; d g e; d g h; d w; b; d b h; d b h; d p; d h a; d m a; d a; b t m; b; d n o",
    drawn={4: drawn.up_to(0, 0), 12: drawn.up_to(11, 1)},
)  # fmt: skip
def attn_lstm(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None, sequence_lens: Arg | None, initial_h: Arg | None,
    initial_c: Arg | None, P: Arg | None, QW: Arg, MW: Arg, V: Arg, M: Arg, memory_seq_lens: Arg | None = None,
    AW: Arg | None = None, *,
    hidden_size: int, activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward", input_forget: int = 0,
) -> Unpack:  # fmt: skip
    """An LSTM that attends to a memory after each step, by Bahdanau's attention."""
    options = layer_options(b, activations, activation_alpha, activation_beta, 3, direction, clip)
    args = B, sequence_lens, initial_h, initial_c, P, QW, MW, V, M, *trimmed(memory_seq_lens, AW)
    forgets = unless(bool(input_forget), False)
    return b.unpack(b.call("attention_lstm", X, W, R, *args, **options, input_forget=forgets), 3)


DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
DEFAULT_ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]


@op("DynamicQuantizeLSTM", domain=MICROSOFT, traits=[RECURRENT], infer=infer.lstm)
def dynamic_quantize_lstm(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None, sequence_lens: Arg | None, initial_h: Arg | None,
    initial_c: Arg | None, P: Arg | None, W_scale: Arg, W_zero_point: Arg, R_scale: Arg, R_zero_point: Arg, *,
    hidden_size: int, direction: str = "forward", clip: float = 0.0, input_forget: int = 0,
    activations: list[str] | None = None, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
) -> Unpack | list[ast.expr]:  # fmt: skip
    """Directions are computed one by one; the input of each product is quantised at run time."""
    if direction not in DIRECTIONS:
        raise b.error(f"attribute 'direction' must be forward, reverse or bidirectional, not {direction!r}", WRITER)
    if sequence_lens is not None or input_forget or not _are_usual(activations):
        raise b.error(
            "sequence_lens, input_forget and other activations are not handled", "quantise the model without its LSTM"
        )
    tensors = {
        "weight_ih": W, "weight_hh": R, "scale_ih": W_scale, "scale_hh": R_scale, "zero_ih": W_zero_point,
        "zero_hh": R_zero_point, "bias": B,
    }  # fmt: skip
    module = _lstm(b, tensors, direction, clip) if P is None else None
    if module is not None:
        return b.unpack(call(module, X.expr, h=_begun(initial_h), c=_begun(initial_c)))
    state = b.let(b("x.new_zeros(x.shape[1], n)", x=X, n=hidden_size), "state")
    directions = []
    for i, is_reverse in enumerate(DIRECTIONS[direction]):
        weights, recurrent = (
            b("(w[i], s[i], z[i])", w=w, s=s, z=z, i=i)
            for w, s, z in ((W, W_scale, W_zero_point), (R, R_scale, R_zero_point))
        )
        stored = [_row(b, v, i, None) for v in (B, P)]
        h, c = (_row(b, v, i, state) for v in (initial_h, initial_c))
        called = b.call("dynamic_lstm", X, weights, recurrent, *stored, h, c, is_reverse, clip=clip or OMIT)
        directions.append(b.let(called, "direction"))
    return [
        b.call("torch.stack", [b("y[k]", y=y, k=k) for y in directions], dim=1 if k == 0 else OMIT) for k in range(3)
    ]


def _are_usual(activations: list[str] | None) -> bool:
    names = activations or DEFAULT_ACTIVATIONS
    return names == DEFAULT_ACTIVATIONS * (len(names) // 3)


def _begun(state: Arg | None) -> Any:
    """Return the first state as an argument, which may be left out if it is zeros."""
    return OMIT if state is None or uniform(state.value) == 0 else state.expr


def _row(b: Builder, value: Arg | None, i: int, absent: Any) -> Any:
    return absent if value is None else b("v[i]", v=value, i=i)


def _lstm(b: Builder, tensors: dict[str, Arg | None], direction: str, clip: float) -> MemberRef | None:
    """Return the module of an LSTM whose tensors are all stored, each with one number or column for each direction."""
    sources = {key: arg.source for key, arg in tensors.items() if arg is not None}
    weight, bias = sources["weight_ih"], tensors["bias"]
    if weight is None or any(source is None for source in sources.values()):
        return None
    count, size, gates = weight.shape
    ranks = {len(source.shape) for key, source in sources.items() if source is not None and key[0] in "sz"}
    if len(ranks) != 1:  # of scales and zero points
        return None
    build = b.call(
        "DynamicLSTM", size, gates // 4, unless(direction, "forward"), bias=unless(bias is not None, True),
        dtype=unless(weight.dtype, ir.DataType.INT8), by_column=unless(ranks == {2}, False),
        learned=learned(bias), clip=unless(clip, 0.0),
    )  # fmt: skip
    module = b.module("lstm", build, **sources)
    if module is not None:
        module.member.is_state = True
    return module
