"""What recurrent layers are in terms: one layer in one direction after the other, forwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.rules import Result, rule
from onnxgen.canonical.terms import Term, plain


def layer(t: Algebra, kind: str, x: Term, states: Sequence[Term], weights: Sequence[Term]) -> tuple[Term, list[Term]]:
    """Return the outputs of a layer, and its last states. `x`: [length, batch, features].

    The last hidden state is the last output.
    """
    shape = (*x.shape[:2], states[0].shape[-1])
    whole = t.term("call", ("recurrent", kind, x, tuple(states), tuple(weights)), (), "tuple")
    outputs = t.term("item", (whole, 0), shape, x.dtype)
    end = x.shape[0]
    last = [t.reshaped(t.sliced(outputs, 0, plain(end - 1), end), shape[1:])]
    return outputs, last + [t.term("item", (whole, n), shape[1:], x.dtype) for n in range(1, len(states))]


def layers(
    t: Algebra, kind: str, x: Term, states: Sequence[Term], given: Sequence[Term], *options: Any
) -> tuple[Any, ...] | None:
    """Return what a stack of layers makes: its outputs, and each last state of all layers."""
    biases, count, dropout, train, both, batch_first = options
    per, ways = (4 if biases else 2), (2 if both else 1)
    if not t.thorough or len(given) != per * count * ways or (train and dropout and count > 1) or len(x.shape) != 3:
        return None
    x = t.permuted(x, [1, 0, 2]) if batch_first else x
    lasts: list[list[Term]] = [[] for _ in states]
    for number in range(count):
        made = []
        for way in range(ways):
            place = number * ways + way
            start = [t.reshaped(t.sliced(s, 0, place, place + 1), s.shape[1:]) for s in states]
            inside = turned(t, x) if way else x
            outputs, last = layer(t, kind, inside, start, given[place * per : (place + 1) * per])
            made.append(turned(t, outputs) if way else outputs)
            for kept, state in zip(lasts, last, strict=True):
                kept.append(t.reshaped(state, (1, *state.shape)))
        x = t.joined(made, 2)
    return (t.permuted(x, [1, 0, 2]) if batch_first else x), *(t.joined(kept, 0) for kept in lasts)


def turned(t: Algebra, x: Term) -> Term:
    """Return a sequence from its end."""
    if x.op == "call" and x.args[0] == "flip" and x.args[2] == (0,):
        return x.args[1]  # type: ignore[no-any-return]
    return x if x.shape[0] == 1 else t.term("call", ("flip", x, (0,)), x.shape, x.dtype)


@rule("lstm.input")
def lstm(t: Algebra, out: Result, x: Term, states: Any, weights: Any, *options: Any) -> Any:
    return layers(t, "lstm", x, states, weights, *options)


for _kind in ("gru", "rnn_tanh", "rnn_relu"):
    rule(f"{_kind}.input")(
        lambda t, out, x, state, weights, *options, kind=_kind: layers(t, kind, x, [state], weights, *options)
    )


def cell(t: Algebra, kind: str, x: Term, states: Sequence[Term], weights: Sequence[Any]) -> list[Term] | None:
    """Return the new states of a cell: of a layer, after a sequence of one."""
    given = [w for w in weights if w is not None]
    if not t.thorough or len(x.shape) != 2:
        return None
    return layer(t, kind, t.reshaped(x, (1, *x.shape)), states, given)[1]


@rule("lstm_cell")
def lstm_cell(t: Algebra, out: Result, x: Term, states: Any, *weights: Any) -> Any:
    made = cell(t, "lstm", x, states, weights)
    return None if made is None else tuple(made)


for _kind in ("gru", "rnn_tanh", "rnn_relu"):

    def _cell(t: Algebra, out: Result, x: Term, state: Term, *weights: Any, kind: str = _kind) -> Any:
        made = cell(t, kind, x, [state], weights)
        return None if made is None else made[0]

    rule(f"{_kind}_cell")(_cell)
