"""Recurrent layers: `nn.LSTM`, `nn.GRU`, `nn.RNN` where `passes.recurrent` found them, else ONNX's own, in helpers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign
from onnxgen.code.quote import OMIT, MemberRef, Ref, shortest, unless
from onnxgen.errors import BUG, CHECK, counted
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import RECURRENT
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder, Unpack
from onnxgen.weights.provenance import Source, concat

# where torch's gates are among ONNX's: LSTM i, o, f, c -> i, f, g, o; GRU z, r, h -> r, z, n
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}

# what ONNX's activation functions take, and the defaults that onnxruntime has (ONNX names none for most of them)
ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("Relu", ()),
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
    "affine": ("Affine", (0.0, 0.0)),
    "leakyrelu": ("LeakyRelu", (0.01,)),
    "thresholdedrelu": ("ThresholdedRelu", (0.0,)),
    "scaledtanh": ("ScaledTanh", (0.0, 0.0)),
    "hardsigmoid": ("HardSigmoid", (0.2, 0.5)),
    "elu": ("Elu", (1.0,)),
    "softsign": ("Softsign", ()),
    "softplus": ("Softplus", ()),
}


# ------------------------------------------------------------------------------------------------- torch's layers


@op("LSTM", domain=DOMAIN, traits=[RECURRENT], matrix="weights")
def torch_lstm(
    b: Builder, X: Arg, h: Arg | None = None, c: Arg | None = None, *weights: Arg | None,
    hidden_size: int, directions: int, batch_first: int, relu: int, dropout: float = 0.0,
) -> Any:  # fmt: skip
    """`y, (h, c) = self.lstm(x, (h, c))`, all as torch has them."""
    if h is None and c is not None:
        state = b("(torch.zeros_like(c), c)", c=c)
    elif h is not None:
        state = b("(h, c)", h=h, c=b("torch.zeros_like(h)", h=h) if c is None else c)
    else:
        state = None
    return _layer(b, "LSTM", X, state, (h, c), weights, hidden_size, directions, batch_first, relu, dropout)


@op("GRU", domain=DOMAIN, traits=[RECURRENT], matrix="weights")
def torch_gru(
    b: Builder, X: Arg, h: Arg | None = None, *weights: Arg | None,
    hidden_size: int, directions: int, batch_first: int, relu: int, dropout: float = 0.0,
) -> Any:  # fmt: skip
    """`y, h = self.gru(x, h)`."""
    return _layer(b, "GRU", X, h, (h,), weights, hidden_size, directions, batch_first, relu, dropout)


@op("RNN", domain=DOMAIN, traits=[RECURRENT], matrix="weights")
def torch_rnn(
    b: Builder, X: Arg, h: Arg | None = None, *weights: Arg | None,
    hidden_size: int, directions: int, batch_first: int, relu: int, dropout: float = 0.0,
) -> Any:  # fmt: skip
    """`y, h = self.rnn(x, h)`."""
    return _layer(b, "RNN", X, h, (h,), weights, hidden_size, directions, batch_first, relu, dropout)


def _layer(
    b: Builder,
    kind: str,
    X: Arg,
    state: Any,
    states: Sequence[Arg | None],
    weights: Sequence[Arg | None],
    hidden: int,
    directions: int,
    batch_first: int,
    relu: int,
    dropout: float,
) -> Any:
    module = _module(b, kind, weights, hidden, directions, batch_first, relu, dropout)
    if module is None and dropout:
        raise b.error(
            "recurrent layers with Dropout between them do not own their weights", "export the model in evaluation mode"
        )
    if module is None:
        return _spelled_out(b, kind, X, states, weights, directions, batch_first, relu)
    made = b.call(module, X, OMIT if state is None else state)
    if kind == "LSTM":
        wanted = b.wants(1) or b.wants(2)
        return b.unpack(made, 3, "{}, ({}, {})") if wanted else b.unpack(made, 2)
    return b.unpack(made, 2)


def _module(
    b: Builder,
    kind: str,
    weights: Sequence[Arg | None],
    hidden: int,
    directions: int,
    batch_first: int,
    relu: int,
    dropout: float,
) -> MemberRef | None:
    first = weights[0]
    assert first is not None and first.source is not None
    keys: dict[str, Source | None] = {}
    for k in range(len(weights) // 3):
        w, r, bias = (None if a is None else a.source for a in weights[3 * k : 3 * k + 3])
        assert w is not None and r is not None
        for d in range(directions):
            suffix = f"_l{k}" + "_reverse" * d
            keys["weight_ih" + suffix] = _gates(kind, w, d, 0, hidden)
            keys["weight_hh" + suffix] = _gates(kind, r, d, 0, hidden)
            if bias is not None:
                keys["bias_ih" + suffix] = _gates(kind, bias, d, 0, hidden)
                keys["bias_hh" + suffix] = _gates(kind, bias, d, bias.shape[1] // 2, hidden)
    build = b.call(
        f"nn.{kind}",
        first.source.shape[2],
        hidden,
        num_layers=unless(len(weights) // 3, 1),
        nonlinearity=unless("relu" if relu else "tanh", "tanh"),
        bias=unless(weights[2] is not None, True),
        batch_first=unless(bool(batch_first), False),
        dropout=unless(shortest(dropout, ir.DataType.FLOAT), 0.0),
        bidirectional=unless(directions == 2, False),
        dtype=unless(first.source.dtype, ir.DataType.FLOAT),
    )
    return b.module(kind.lower(), build, **keys)


def _gates(kind: str, source: Source, direction: int, start: int, hidden: int) -> Source:
    """One direction's tensor, its gates in torch's order."""
    one = source.slice(0, direction, direction + 1).squeeze(0)
    parts = [one.slice(0, start + g * hidden, start + (g + 1) * hidden) for g in GATES[kind]]
    return parts[0] if len(parts) == 1 else concat(parts, 0)


def _spelled_out(
    b: Builder,
    kind: str,
    X: Arg,
    states: Sequence[Arg | None],
    weights: Sequence[Arg | None],
    directions: int,
    batch_first: int,
    relu: int,
) -> Any:
    """The same by ONNX's own operator, where names keep the tensors from being one module's."""
    if len(weights) != 3:
        raise b.error("the weights are named as parts of several modules", BUG)
    made = b.call(
        "onnx_" + kind.lower(),
        b("x.transpose(0, 1)", x=X) if batch_first else X,
        *weights,
        None,
        *states,
        activations=[("Relu", 0.0, 0.0)] * directions if relu else OMIT,
        linear_before_reset=True if kind == "GRU" else OMIT,
    )
    names = [b.fresh(name) for name in ("y", "h", "c")[: len(states) + 1]]
    b.emit(Assign(tuple(names), made, b.scope, b.nodes))
    y, *ends = map(Ref, names)
    order = (2, 0, 1, 3) if batch_first else (0, 2, 1, 3)
    return [b("y.permute(order).flatten(2)", y=y, order=order), *ends]


# ------------------------------------------------------------------------------------------------- ONNX's own


@op("LSTM", renames={"output_sequence": "_"}, traits=[RECURRENT], matrix="W", weights="W R B P")
def lstm(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None = None, sequence_lens: Arg | None = None,
    initial_h: Arg | None = None, initial_c: Arg | None = None, P: Arg | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0, _: int = 0,
) -> Unpack:  # fmt: skip
    """Everything that `nn.LSTM` is not: peepholes, clipping, lengths, one direction backwards, ..."""
    made = b.call(
        "onnx_lstm",
        *(X, W, R, *_trimmed(B, sequence_lens, initial_h, initial_c, P)),
        activations=_activations(b, activations, activation_alpha, activation_beta, 3, direction),
        clip=OMIT if clip is None else shortest(clip),
        direction=unless(_direction(direction), "forward"),
        input_forget=unless(bool(input_forget), False),
        layout=unless(layout, 0),
    )
    return b.unpack(made, 3)


@op("GRU", renames={"output_sequence": "_"}, traits=[RECURRENT], matrix="W", weights="W R B")
def gru(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None = None, sequence_lens: Arg | None = None,
    initial_h: Arg | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0, _: int = 0,
) -> Unpack:  # fmt: skip
    """Everything that `nn.GRU` is not, above all `linear_before_reset=0`."""
    made = b.call(
        "onnx_gru",
        *(X, W, R, *_trimmed(B, sequence_lens, initial_h)),
        activations=_activations(b, activations, activation_alpha, activation_beta, 2, direction),
        clip=OMIT if clip is None else shortest(clip),
        direction=unless(_direction(direction), "forward"),
        layout=unless(layout, 0),
        linear_before_reset=unless(bool(linear_before_reset), False),
    )
    return b.unpack(made, 2)


@op("RNN", renames={"output_sequence": "_"}, traits=[RECURRENT], matrix="W", weights="W R B")
def rnn(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None = None, sequence_lens: Arg | None = None,
    initial_h: Arg | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, _: int = 0,
) -> Unpack:  # fmt: skip
    """Everything that `nn.RNN` is not."""
    made = b.call(
        "onnx_rnn",
        *(X, W, R, *_trimmed(B, sequence_lens, initial_h)),
        activations=_activations(b, activations, activation_alpha, activation_beta, 1, direction),
        clip=OMIT if clip is None else shortest(clip),
        direction=unless(_direction(direction), "forward"),
        layout=unless(layout, 0),
    )
    return b.unpack(made, 2)


@op("AttnLSTM", domain="com.microsoft", traits=[RECURRENT], weights="W R B P QW MW V AW")
def attn_lstm(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None, sequence_lens: Arg | None, initial_h: Arg | None,
    initial_c: Arg | None, P: Arg | None, QW: Arg, MW: Arg, V: Arg, M: Arg, memory_seq_lens: Arg | None = None,
    AW: Arg | None = None, *,
    hidden_size: int, activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward", input_forget: int = 0,
) -> Unpack:  # fmt: skip
    """Between two steps of the LSTM, its output asks a memory by Bahdanau's attention."""
    made = b.call(
        "attention_lstm",
        *(X, W, R, B, sequence_lens, initial_h, initial_c, P, QW, MW, V, M, *_trimmed(memory_seq_lens, AW)),
        activations=_activations(b, activations, activation_alpha, activation_beta, 3, direction),
        clip=OMIT if clip is None else shortest(clip),
        direction=unless(_direction(direction), "forward"),
        input_forget=unless(bool(input_forget), False),
    )
    return b.unpack(made, 3)


def _trimmed(*args: Arg | None) -> list[Arg | None]:
    """Optional arguments without the absent ones at the end."""
    given = list(args)
    while given and given[-1] is None:
        given.pop()
    return given


def _direction(direction: str) -> str:
    """Which way to go; what is bidirectional is seen from the weights."""
    return "reverse" if direction == "reverse" else "forward"


def _activations(
    b: Builder, names: list[str] | None, alpha: list[float] | None, beta: list[float] | None, count: int, direction: str
) -> Any:
    """(name, alpha, beta) for each gate function; alphas and betas go, in order, to those functions that take one."""
    if not names:
        return OMIT
    wanted = count * (2 if direction == "bidirectional" else 1)
    names = names[:wanted]  # RNN's default has two, whatever the direction
    if len(names) < wanted:
        raise b.error(
            f"attribute 'activations' has {counted(len(names), 'name')}, but {wanted} gate functions need one", CHECK
        )
    alphas, betas = list(alpha or []), list(beta or [])
    made = []
    for given in names:
        if given.lower() not in ACTIVATIONS:
            raise b.error(
                f"activation {given!r} is unknown", "ONNX defines " + ", ".join(n for n, _ in ACTIVATIONS.values())
            )
        name, defaults = ACTIVATIONS[given.lower()]
        values = [0.0, 0.0]
        for i, (default, queue) in enumerate(zip(defaults, (alphas, betas))):
            values[i] = shortest(queue.pop(0)) if queue else default
        made.append((name, *values))
    return OMIT if made == [(n, 0.0, 0.0) for n in ("Sigmoid", "Tanh", "Tanh")] * (wanted // 3) else made
