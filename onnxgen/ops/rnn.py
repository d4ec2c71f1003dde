"""Recurrent layers: `nn.LSTM`, `nn.GRU`, `nn.RNN` where `passes.recurrent` found them, else helpers of ONNX's own."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign
from onnxgen.code.quote import OMIT, MemberRef, Ref, shortest, unless
from onnxgen.errors import BUG, CHECK, counted
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import Lowering, card, op
from onnxgen.graph.traits import RECURRENT
from onnxgen.lowering.builder import Arg, Builder, Unpack
from onnxgen.lowering.strides import is_contiguous
from onnxgen.ops.rules import rules
from onnxgen.shapes import own_layers
from onnxgen.weights.provenance import Source, concat

# ONNX's activation functions, with onnxruntime's defaults for alpha and beta (ONNX has none for most of them).
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


@op("LSTM", domain=DOMAIN, traits=[RECURRENT], matrix="weights", reference=own_layers.LSTM)
def torch_lstm(
    b: Builder, X: Arg, h: Arg | None = None, c: Arg | None = None, *weights: Arg | None,
    hidden_size: int, directions: int, batch_first: int, relu: int, dropout: float = 0.0,
) -> Any:  # fmt: skip
    """`y, (h, c) = self.lstm(x, (h, c))`, with torch's layout of inputs and outputs."""
    if h is None and c is not None:
        state = b("(torch.zeros_like(c), c)", c=_rows(b, c))
    elif h is not None:
        state = b("(h, c)", h=_rows(b, h), c=b("torch.zeros_like(h)", h=_rows(b, h)) if c is None else _rows(b, c))
    else:
        state = None
    layers = _Layers("LSTM", weights, hidden_size, directions, batch_first, relu, dropout)
    return layers.outputs(b, X, state, (h, c))


def _torch_layer(kind: str) -> Lowering:
    def lower(
        b: Builder, X: Arg, h: Arg | None = None, *weights: Arg | None,
        hidden_size: int, directions: int, batch_first: int, relu: int, dropout: float = 0.0,
    ) -> Any:  # fmt: skip
        """`y, h = self.layer(x, h)`, with torch's layout of inputs and outputs."""
        layers = _Layers(kind, weights, hidden_size, directions, batch_first, relu, dropout)
        return layers.outputs(b, X, _rows(b, h), (h,))

    return lower


for _kind in ("GRU", "RNN"):
    _reference = getattr(own_layers, _kind)
    op(_kind, domain=DOMAIN, traits=[RECURRENT], matrix="weights", reference=_reference)(_torch_layer(_kind))


@op("LSTMCell", domain=DOMAIN, traits=[RECURRENT], matrix="weight_ih", reference=own_layers.LSTMCell)
def lstm_cell(
    b: Builder, X: Arg, h: Arg | None, c: Arg | None, weight_ih: Arg, weight_hh: Arg, bias_ih: Arg | None = None,
    bias_hh: Arg | None = None,
) -> Any:  # fmt: skip
    """`h, c = self.cell(x, (h, c))`; the gates are in torch's order."""
    state: Any = None
    if h is not None or c is not None:
        state = b("(h, c)", h=h or b("torch.zeros_like(c)", c=c), c=c or b("torch.zeros_like(h)", h=h))
    return b.unpack(_cell(b, "LSTM", X, state, (weight_ih, weight_hh, bias_ih, bias_hh)), 2)


def _torch_cell(kind: str) -> Lowering:
    def lower(
        b: Builder, X: Arg, h: Arg | None, weight_ih: Arg, weight_hh: Arg, bias_ih: Arg | None = None,
        bias_hh: Arg | None = None, *, relu: int = 0,
    ) -> ast.expr:  # fmt: skip
        """`h = self.cell(x, h)`; the gates are in torch's order."""
        return _cell(b, kind, X, h, (weight_ih, weight_hh, bias_ih, bias_hh), relu)

    return lower


for _kind in ("GRU", "RNN"):
    _reference = getattr(own_layers, f"{_kind}Cell")
    op(f"{_kind}Cell", domain=DOMAIN, traits=[RECURRENT], matrix="weight_ih", reference=_reference)(_torch_cell(_kind))


def _cell(
    b: Builder, kind: str, X: Arg, state: Any, weights: tuple[Arg, Arg, Arg | None, Arg | None], relu: int = 0
) -> ast.expr:
    keys = {
        key: arg.source
        for key, arg in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), weights)
        if arg is not None
    }
    first = weights[0].source
    assert first is not None
    build = b.call(
        f"nn.{kind}Cell",
        first.shape[1],
        first.shape[0] // len(card("", kind).rules.gates),
        bias=unless(weights[2] is not None, True),
        nonlinearity=unless("relu" if relu else "tanh", "tanh"),
        dtype=unless(first.dtype, ir.DataType.FLOAT),
    )
    module = b.module("cell", build, **keys)
    if module is None:
        raise b.error("the weights of a recurrent cell are named as parts of other modules", BUG)
    return b.call(module, X, unless(state, None))


def _rows(b: Builder, state: Arg | None) -> Any:
    """Return a state as cuDNN's layers take it: stored row by row."""
    if state is None or state.value is None or is_contiguous(state.value):
        return state
    return b("h.contiguous()", h=state)


@dataclass(frozen=True)
class _Layers:
    """What torch builds a recurrent module from. `weights`: weight, recurrent weight and bias of each layer."""

    kind: str
    weights: Sequence[Arg | None]
    hidden_size: int
    directions: int
    batch_first: int
    relu: int
    dropout: float

    def outputs(self, b: Builder, X: Arg, state: Any, states: Sequence[Arg | None]) -> Any:
        """Write the call. `state`: the first states as the module takes them; `states`: as they are."""
        module = self._module(b)
        if module is None and self.dropout:
            raise b.error(
                "the weights of recurrent layers with Dropout between them belong to other modules",
                "export the model in evaluation mode",
            )
        if module is None:
            return self._onnx_outputs(b, X, states)
        outputs = b.call(module, X, unless(state, None))
        if self.kind == "LSTM" and (b.wants(1) or b.wants(2)):
            return b.unpack(outputs, 3, "{}, ({}, {})")
        return b.unpack(outputs, 2)

    def _module(self, b: Builder) -> MemberRef | None:
        first, count = self.weights[0], len(self.weights) // 3
        assert first is not None and first.source is not None
        keys: dict[str, Source | None] = {}
        for k in range(count):
            w, r, bias = (None if a is None else a.source for a in self.weights[3 * k : 3 * k + 3])
            assert w is not None and r is not None
            for d in range(self.directions):
                suffix = f"_l{k}" + "_reverse" * d
                keys["weight_ih" + suffix] = self._gates(w, d)
                keys["weight_hh" + suffix] = self._gates(r, d)
                if bias is not None:
                    keys["bias_ih" + suffix] = self._gates(bias, d)
                    keys["bias_hh" + suffix] = self._gates(bias, d, bias.shape[1] // 2)
        build = b.call(
            f"nn.{self.kind}",
            first.source.shape[2],
            self.hidden_size,
            num_layers=unless(count, 1),
            nonlinearity=unless("relu" if self.relu else "tanh", "tanh"),
            bias=unless(self.weights[2] is not None, True),
            batch_first=unless(bool(self.batch_first), False),
            dropout=unless(shortest(self.dropout, ir.DataType.FLOAT), 0.0),
            bidirectional=unless(self.directions == 2, False),
            dtype=unless(first.source.dtype, ir.DataType.FLOAT),
        )
        return b.module(self.kind.lower(), build, **keys)

    def _gates(self, source: Source, direction: int, start: int = 0) -> Source:
        """Return the tensor of one direction, with the gates in torch's order."""
        one, n = source.slice(0, direction, direction + 1).squeeze(0), self.hidden_size
        parts = [one.slice(0, start + g * n, start + (g + 1) * n) for g in card("", self.kind).rules.gates]
        return parts[0] if len(parts) == 1 else concat(parts, 0)

    def _onnx_outputs(self, b: Builder, X: Arg, states: Sequence[Arg | None]) -> Any:
        """Call the helper of ONNX's operator, for tensors whose names put them into other modules."""
        if len(self.weights) != 3:
            raise b.error("the weights are named as parts of several modules", BUG)
        outputs = b.call(
            "onnx_" + self.kind.lower(),
            b("x.transpose(0, 1)", x=X) if self.batch_first else X,
            *self.weights,
            None,
            *states,
            activations=[("Relu", 0.0, 0.0)] * self.directions if self.relu else OMIT,
            linear_before_reset=True if self.kind == "GRU" else OMIT,
        )
        names = [b.fresh(name) for name in ("y", "h", "c")[: len(states) + 1]]
        b.emit(Assign(tuple(names), outputs, b.scope, b.nodes))
        y, *ends = map(Ref, names)
        order = (2, 0, 1, 3) if self.batch_first else (0, 2, 1, 3)
        return [b("y.permute(order).flatten(2)", y=y, order=order), *ends]


# ------------------------------------------------------------------------------------------------- ONNX's own


RULES = rules("recurrent", axes="s b i; d g i; d g h; d w; b; d b h; d b h")


@op(
    "LSTM", renames={"output_sequence": "_"}, traits=[RECURRENT], matrix="W", weights="W R B P",
    gates=(0, 2, 3, 1), activations=("sigmoid", "tanh", "tanh"), **RULES,  # i, o, f, c -> i, f, g, o
)  # fmt: skip
def lstm(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None = None, sequence_lens: Arg | None = None,
    initial_h: Arg | None = None, initial_c: Arg | None = None, P: Arg | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0, _: int = 0,
) -> Unpack:  # fmt: skip
    """For what `nn.LSTM` lacks: peepholes, clipping, lengths, a single reverse direction, ..."""
    options = layer_options(b, activations, activation_alpha, activation_beta, 3, direction, clip)
    options |= {"input_forget": unless(bool(input_forget), False), "layout": unless(layout, 0)}
    return b.unpack(b.call("onnx_lstm", X, W, R, *trimmed(B, sequence_lens, initial_h, initial_c, P), **options), 3)


@op(
    "GRU", renames={"output_sequence": "_"}, traits=[RECURRENT], matrix="W", weights="W R B",
    gates=(1, 0, 2), activations=("sigmoid", "tanh"), **RULES,  # z, r, h -> r, z, n
)  # fmt: skip
def gru(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None = None, sequence_lens: Arg | None = None,
    initial_h: Arg | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0, _: int = 0,
) -> Unpack:  # fmt: skip
    """For what `nn.GRU` lacks, above all `linear_before_reset=0`."""
    options = layer_options(b, activations, activation_alpha, activation_beta, 2, direction, clip)
    options |= {"layout": unless(layout, 0), "linear_before_reset": unless(bool(linear_before_reset), False)}
    return b.unpack(b.call("onnx_gru", X, W, R, *trimmed(B, sequence_lens, initial_h), **options), 2)


@op(
    "RNN", renames={"output_sequence": "_"}, traits=[RECURRENT], matrix="W", weights="W R B",
    gates=(0,), activations=("tanh",), **RULES,
)  # fmt: skip
def rnn(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None = None, sequence_lens: Arg | None = None,
    initial_h: Arg | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, layout: int = 0, _: int = 0,
) -> Unpack:  # fmt: skip
    """For what `nn.RNN` lacks."""
    options = layer_options(b, activations, activation_alpha, activation_beta, 1, direction, clip)
    args = trimmed(B, sequence_lens, initial_h)
    return b.unpack(b.call("onnx_rnn", X, W, R, *args, **options, layout=unless(layout, 0)), 2)


def trimmed(*args: Arg | None) -> list[Arg | None]:
    """Leave out absent optional arguments at the end."""
    trimmed = list(args)
    while trimmed and trimmed[-1] is None:
        trimmed.pop()
    return trimmed


def layer_options(
    b: Builder, names: list[str] | None, alpha: list[float] | None, beta: list[float] | None, count: int,
    direction: str, clip: float | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the options that all helpers take. They see from the weights if the layer is bidirectional."""
    return {
        "activations": _activations(b, names, alpha, beta, count * (2 if direction == "bidirectional" else 1)),
        "clip": OMIT if clip is None else shortest(clip),
        "direction": "reverse" if direction == "reverse" else OMIT,
    }


def _activations(
    b: Builder, names: list[str] | None, alpha: list[float] | None, beta: list[float] | None, wanted: int
) -> Any:
    """Return (name, alpha, beta) of each gate function. Alphas and betas go, in order, to the functions with one."""
    if not names:
        return OMIT
    names = names[:wanted]  # RNN's default has two names for any direction
    if len(names) < wanted:
        raise b.error(
            f"attribute 'activations' has {counted(len(names), 'name')}, but {wanted} gate functions need one", CHECK
        )
    alphas, betas = list(alpha or []), list(beta or [])
    functions = []
    for spelling in names:
        if spelling.lower() not in ACTIVATIONS:
            raise b.error(
                f"activation {spelling!r} is unknown", "ONNX defines " + ", ".join(n for n, _ in ACTIVATIONS.values())
            )
        name, defaults = ACTIVATIONS[spelling.lower()]
        values = [0.0, 0.0]
        for i, (default, queue) in enumerate(zip(defaults, (alphas, betas))):
            values[i] = shortest(queue.pop(0)) if queue else default
        functions.append((name, *values))
    return OMIT if functions == [(n, 0.0, 0.0) for n in ("Sigmoid", "Tanh", "Tanh")] * (wanted // 3) else functions
