"""Sequences (Python lists), optionals (a value or `None`) and strings; `onnxgen.classical` has more on strings."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign, Loop
from onnxgen.code.quote import DeviceOf, Ref, call, literal, unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.gradients import COUNTED, INTEGERS, TEXT
from onnxgen.graph.operators import op
from onnxgen.graph.traits import EXACT, TEXTS
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.rules import rules
from onnxgen.shapes import bodies, own, ranges
from onnxgen.shapes.info import info


@op("SequenceConstruct", traits=[EXACT, TEXTS])
def sequence_construct(b: Builder, *inputs: Arg) -> ast.expr:
    return literal(list(inputs))


@op("SequenceEmpty", flat=COUNTED)
def sequence_empty(b: Builder, *, dtype: int = 1) -> ast.expr:
    return literal([])


@op("SequenceAt", traits=[EXACT], **rules("sequence_at"))
def sequence_at(b: Builder, input_sequence: Arg, position: Arg) -> ast.expr:
    return b("s[i]", s=input_sequence, i=position.as_int())


@op("SequenceLength", flat=INTEGERS)
def sequence_length(b: Builder, input_sequence: Arg) -> ast.expr:
    return b("torch.tensor(len(s), device=d)", s=input_sequence, d=DeviceOf())


@op("SequenceInsert", traits=[TEXTS])
def sequence_insert(b: Builder, input_sequence: Arg, tensor: Arg, position: Arg | None = None) -> ast.expr:
    """Makes a new list, since the old one may still be used."""
    if position is None:
        return b("[*s, t]", s=input_sequence, t=tensor)
    if position.scalar == 0:
        return b("[t, *s]", s=input_sequence, t=tensor)
    return b("sequence_insert(s, t, i)", s=input_sequence, t=tensor, i=position.as_int())


@op("SequenceErase")
def sequence_erase(b: Builder, input_sequence: Arg, position: Arg | None = None) -> ast.expr:
    where = -1 if position is None else position.scalar
    if where in (0, -1):
        return b("s[1:]" if where == 0 else "s[:-1]", s=input_sequence)
    assert position is not None
    return b("sequence_erase(s, i)", s=input_sequence, i=position.as_int())


@op("SplitToSequence", traits=[EXACT], ranges=ranges.split)
def split_to_sequence(
    b: Builder, input: Arg, split: Arg | None = None, *, axis: int = 0, keepdims: int = 1
) -> ast.expr:
    """Slices of size 1 (without the axis unless `keepdims`), of one size, or of the sizes in a vector."""
    sizes: Any = 1
    if split is not None:
        ints = split.ints
        sizes = split.as_int() if split.known_rank == 0 else split.as_ints() if ints is None else ints
    elif not keepdims:
        return b("list(x.unbind(axis))", x=input, axis=axis)
    return b("list(made)", made=call(b("x.split", x=input), sizes, unless(axis, 0)))


@op("ConcatFromSequence", traits=[EXACT])
def concat_from_sequence(b: Builder, input_sequence: Arg, *, axis: int, new_axis: int = 0) -> ast.expr:
    is_text = input_sequence.dtype == ir.DataType.STRING
    stack, join = ("np.stack", "np.concatenate") if is_text else ("torch.stack", "torch.cat")
    return b.call(stack if new_axis else join, input_sequence, unless(axis, 0))


@op("SequenceMap", traits=[TEXTS], inner=bodies.sequence_map)
def sequence_map(b: Builder, input_sequence: Arg, *additional_inputs: Arg, body: ir.Graph) -> list[ast.expr | None]:
    """A `for` over one or more lists. Further inputs that are tensors are the same in each iteration."""
    lists: list[Arg] = []
    items: list[str] = []
    values: list[ast.expr] = []
    for arg, value in zip((input_sequence, *additional_inputs), body.inputs):
        if arg is input_sequence or arg.info.kind == "sequence":
            lists.append(arg)
            items.append(b.fresh(value.name or "x", info(value)))
            values.append(Ref(items[-1]))
        else:
            values.append(arg.expr)
    statements, results = b.block(body, values)
    made: list[ast.expr | None] = []
    for i, result in enumerate(results):
        made.append(None)
        if b.wants(i):
            name = b.fresh(b.node.outputs[i].name or "x", b.out(i))
            b.emit(Assign((name,), literal([]), b.scope))
            statements.append(Assign((), b("s.append(x)", s=Ref(name), x=result), b.scope))
            made[i] = Ref(name)
    targets = tuple(m.value for m in made if isinstance(m, Ref))
    iterable = lists[0].expr if len(lists) == 1 else b.call("zip", *lists)
    b.emit(Loop(tuple(items), iterable, None, statements, targets, b.scope, b.nodes))
    return made


@op("Optional", traits=[TEXTS])
def optional(b: Builder, input: Arg | None = None, *, type: Any = None) -> ast.expr:
    return literal(None) if input is None else input.expr


@op("OptionalHasElement", traits=[TEXTS], flat=INTEGERS)
def optional_has_element(b: Builder, input: Arg | None = None) -> ast.expr:
    is_optional = input is not None and input.info.kind == "optional"
    has = b("x is not None", x=input) if is_optional else literal(input is not None)
    return b("torch.tensor(has, device=d)", has=has, d=DeviceOf())


@op("OptionalGetElement", traits=[TEXTS])
def optional_get_element(b: Builder, input: Arg) -> ast.expr:
    return input.expr


@op("TextCodes", traits=[EXACT], domain=DOMAIN, reference=own.TextCodes)
def text_codes(b: Builder, *inputs: Arg) -> Any:
    """The sorted distinct strings of all inputs; then each input as indices into them."""
    return b.unpack(b.call("text_codes", *inputs, device=DeviceOf()))


@op("TextAt", traits=[EXACT], domain=DOMAIN, reference=own.TextAt)
def text_at(b: Builder, table: Arg, index: Arg) -> ast.expr:
    return b("text_at(table, i)", table=table, i=index)


@op("StringConcat", traits=[TEXTS], flat=TEXT)
def string_concat(b: Builder, X: Arg, Y: Arg) -> ast.expr:
    return b("x + y" if b.out().rank else "string_concat(x, y)", x=X, y=Y)
