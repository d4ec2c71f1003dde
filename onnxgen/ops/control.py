"""If, Loop and Scan as Python's `if`, `for` and `while`; values that are lists, `None` or text.

Sequences are Python lists, optionals a value or `None`; `onnxgen.classical` has more on strings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign, If, Loop, Statement, expressions
from onnxgen.code.quote import DeviceOf, Ref, call, literal, quote, refs, unless
from onnxgen.errors import WRITER
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import COUNTED, INTEGERS, TEXT, op
from onnxgen.graph.traits import EXACT, TEXTS
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.cast import flipped
from onnxgen.ops.rules import rules
from onnxgen.shapes import bodies, own, ranges
from onnxgen.shapes.info import Info, info

ENDLESS = 2**62  # exporters write a trip count of at least this for a `while`
ZEROS = repeat(0)


@op("If", traits=[TEXTS], still="cond", inner=bodies.choice)
def if_(b: Builder, cond: Arg, *, then_branch: ir.Graph, else_branch: ir.Graph) -> list[ast.expr | None]:
    """A Python `if`, or only the branch that is taken if the condition is known."""
    known = cond.constant
    if known is not None and known.size == 1:
        statements, results = b.block(then_branch if known.item() else else_branch, [])
        for statement in statements:
            b.emit(statement)
        return _as_outputs(b, results)
    then, then_results = b.block(then_branch, [])
    orelse, else_results = b.block(else_branch, [])
    names: list[str] = []
    outputs: list[ast.expr | None] = []
    for i, (one, other) in enumerate(zip(then_results, else_results)):
        outputs.append(None)
        if b.wants(i):
            names.append(_fresh(b, b.node.outputs[i]))
            outputs[i] = Ref(names[-1])
            then.append(Assign((names[-1],), one, b.scope))
            orelse.append(Assign((names[-1],), other, b.scope))
    b.emit(If(cond.truth, then, orelse, tuple(names), b.scope, b.nodes))
    return outputs


@op("Loop", traits=[TEXTS], inner=bodies.loop, ranges=ranges.constant_of_shape)
def loop(
    b: Builder, M: Arg | None = None, cond: Arg | None = None, *v_initial: Arg, body: ir.Graph
) -> list[ast.expr | None]:
    """`for i in range(M)`, `while keep`, or a `for` with a `break` if there is both a trip count and a condition.

    Values that the body computes in each iteration are collected in lists and stacked. Without any iteration the result
    has size 0 in the first dim and, as in onnxruntime, in every dim that the file leaves open.
    """
    count = len(v_initial)
    turn = b.fresh("i")
    states = [_state(b, value, arg.expr) for value, arg in zip(body.inputs[2:], v_initial)]
    number, going = _fresh(b, body.inputs[0]), _fresh(b, body.inputs[1])
    statements, results = b.block(body, [Ref(name) for name in (number, going, *states)])
    condition = _condition(b, cond, going, body.outputs[0], results[0])
    trips = None if M is None else M.scalar
    if isinstance(trips, int) and trips >= ENDLESS:
        M = None
    turns, iterable = ((), None) if M is None else ((turn,), b("range(n)", n=M.as_int()))
    head: list[Statement] = []
    ends: list[tuple[str, ast.expr]] = list(zip(states, results[1 : count + 1]))
    if _uses(statements, results, number):
        value: ast.expr = Ref(turn)
        if M is None:  # a `while` has no loop variable: the number is a state
            turn = b.fresh("i", Info(kind="int"))
            b.emit(Assign((turn,), literal(0), b.scope))
            value, states, ends = Ref(turn), [turn, *states], [*ends, (turn, b("i + 1", i=Ref(turn)))]
        head.append(Assign((number,), _tensor(value, body.inputs[0]), b.scope))
    if _uses(statements, results, going):
        head.append(Assign((going,), _tensor(literal(True), body.inputs[1]), b.scope))
    if condition is not None:
        states = [condition[0], *states]
        ends.append(condition)
    elif M is None:
        raise b.error("the Loop has neither a trip count nor a condition, so it never ends", WRITER)
    stacks = _Stacks(b, count, body.outputs[count + 1 :], results[count + 1 :])
    inner = [*head, *statements, *stacks.appends, *_together(b, ends)]
    stop = None if condition is None else Ref(condition[0])
    b.emit(Loop(turns, iterable, stop, inner, (*states, *stacks.lists), b.scope, b.nodes))
    final_states = _as_outputs(b, map(Ref, states[len(states) - count :]))
    return final_states + stacks.results(may_be_empty=condition is not None or (trips or 0) <= 0)


@op("Scan", since=9, inner=bodies.scan)
def scan(
    b: Builder,
    *initial_state_and_scan_inputs: Arg,
    body: ir.Graph,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> list[ast.expr | None]:
    """`for x in xs.unbind(axis)`, with a state that is carried from iteration to iteration."""
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    states = [_state(b, v, a.expr) for v, a in zip(body.inputs[:count], initial_state_and_scan_inputs)]
    scanned = initial_state_and_scan_inputs[count:]
    axes, reverse = scan_input_axes or ZEROS, scan_input_directions or ZEROS
    slices = [_slices(b, x, axis, r) for x, axis, r in zip(scanned, axes, reverse)]
    outputs = _iterate(b, body, states, slices, scan_output_axes or ZEROS, scan_output_directions or ZEROS)
    return [None if e is None else _as_output(b, i, e) for i, e in enumerate(outputs)]


@op("Scan", since=1)
def scan_batched(
    b: Builder,
    sequence_lens: Arg | None = None,
    *initial_state_and_scan_inputs: Arg,
    body: ir.Graph,
    num_scan_inputs: int,
    directions: list[int] | None = None,
) -> list[ast.expr | None]:
    """Scan-8: the loop runs for each sequence of a batch, which is the first axis of every input and output."""
    if sequence_lens is not None:
        way_out = "convert the file to opset 9 or newer (onnx.version_converter)"
        raise b.error("input 'sequence_lens' of a Scan is not handled", way_out)
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    row = b.fresh("row")
    facts = [Info(a.dtype, None if a.shape is None else a.shape[1:]) for a in initial_state_and_scan_inputs]
    rows = [b.fresh(a.name or "x", f) for a, f in zip(initial_state_and_scan_inputs, facts)]
    head: list[Statement] = [
        Assign((r,), b("x[i]", x=a, i=Ref(row)), b.scope) for r, a in zip(rows, initial_state_and_scan_inputs)
    ]
    with b.writing(head):
        states = [_state(b, v, Ref(r)) for v, r in zip(body.inputs[:count], rows)]
        scanned = zip(rows[count:], facts[count:], directions or ZEROS)
        slices = [flipped(b, Ref(r), f.dtype, 0) if backwards else Ref(r) for r, f, backwards in scanned]
        results = _iterate(b, body, states, slices, wants=range(len(body.outputs)))
    stacks = _Stacks(b, 0, body.outputs, [r for r in results if r is not None])
    size = b("range(x.shape[0])", x=initial_state_and_scan_inputs[-1])
    b.emit(Loop((row,), size, None, [*head, *stacks.appends], tuple(stacks.lists), b.scope, b.nodes))
    return stacks.results()


def _iterate(
    b: Builder,
    body: ir.Graph,
    states: list[str],
    slices: list[ast.expr],
    axes: Iterable[int] = ZEROS,
    reverse: Iterable[int] = ZEROS,
    wants: Sequence[int] | None = None,
) -> list[ast.expr | None]:
    """Write the loop over the scanned slices, and return the final states and the stacked outputs."""
    count = len(states)
    items = [_fresh(b, v) for v in body.inputs[count:]]
    statements, results = b.block(body, [Ref(name) for name in (*states, *items)])
    stacks = _Stacks(b, count, body.outputs[count:], results[count:], wants)
    inner = [*statements, *stacks.appends, *_together(b, list(zip(states, results)))]
    iterable = slices[0] if len(slices) == 1 else call("zip", *slices)
    b.emit(Loop(tuple(items), iterable, None, inner, (*states, *stacks.lists), b.scope, b.nodes))
    return [*map(Ref, states), *stacks.results(axes, reverse)]


def _slices(b: Builder, x: Arg, axis: int, reverse: int) -> ast.expr:
    """Return what a `for` iterates over: the slices of a tensor along an axis."""
    tensor = flipped(b, x, x.dtype, axis) if reverse else x.expr
    return tensor if axis == 0 else b("x.unbind(axis)", x=tensor, axis=axis)


class _Stacks:
    """The values that a body computes in each iteration: `ys = []`, `ys.append(y)`, `torch.stack(ys)`."""

    def __init__(
        self,
        b: Builder,
        first: int,
        values: Sequence[ir.Value],
        turns: Sequence[ast.expr],
        wants: Sequence[int] | None = None,
    ) -> None:
        """`first`: the number of the first of these among the node's outputs. `wants`: the outputs to collect, by
        default those that are used.
        """
        self.b, self.first, self.values = b, first, values
        self.names: list[str | None] = []
        self.appends: list[Statement] = []
        for i, turn in enumerate(turns):
            wanted = b.wants(first + i) if wants is None else first + i in wants
            self.names.append(b.fresh("steps", Info(kind="sequence")) if wanted else None)
            name = self.names[-1]
            if name is not None:
                b.emit(Assign((name,), literal([]), b.scope))
                self.appends.append(Assign((), b("ys.append(y)", ys=Ref(name), y=turn), b.scope))

    @property
    def lists(self) -> list[str]:
        return [name for name in self.names if name is not None]

    def results(
        self, axes: Iterable[int] = ZEROS, reverse: Iterable[int] = ZEROS, may_be_empty: bool = False
    ) -> list[ast.expr | None]:
        """Return the stacked tensors."""
        tensors: list[ast.expr | None] = []
        for value, name, axis, back in zip(self.values, self.names, axes, reverse):
            if name is None:
                tensors.append(None)
                continue
            steps = self.b("ys[::-1]" if back else "ys", ys=Ref(name))
            package = "np" if info(value).dtype == ir.DataType.STRING else "torch"
            stacked = call(f"{package}.stack", steps, *([axis] if axis else []))
            tensors.append(self._or_empty(stacked, name, value) if may_be_empty else stacked)
        return tensors

    def _or_empty(self, stacked: ast.expr, name: str, value: ir.Value) -> ast.expr:
        """Without iterations nothing can be stacked; dims that the file leaves open are then 0, as in onnxruntime."""
        facts = info(value)
        shape = (0, *(d if isinstance(d, int) else 0 for d in facts.shape or ()))
        if facts.dtype == ir.DataType.STRING:
            empty = call("np.empty", shape, dtype=quote("object"))
        else:
            empty = call("torch.empty", shape, dtype=facts.dtype or ir.DataType.FLOAT, device=DeviceOf())
        return self.b("stacked if ys else empty", stacked=stacked, ys=Ref(name), empty=empty)


def _state(b: Builder, value: ir.Value, initial: ast.expr) -> str:
    """Assign the first value of a variable that a loop carries, and return its name in the body."""
    name = _fresh(b, value)
    b.emit(Assign((name,), initial, b.scope))
    return name


def _fresh(b: Builder, value: ir.Value) -> str:
    return b.fresh(value.name or "x", info(value))


def _tensor(value: ast.expr, like: ir.Value) -> ast.expr:
    """Return the iteration number or the condition as a tensor of the rank that the body declares, 0 or 1."""
    return call("torch.tensor", ast.List([value], ast.Load()) if info(like).rank == 1 else value, device=DeviceOf())


def _condition(
    b: Builder, cond: Arg | None, going: str, after: ir.Value, result: ast.expr
) -> tuple[str, ast.expr] | None:
    """Return the variable that says whether to go on, and its next value, which may be itself; None: always."""
    start = True if cond is None else cond.scalar
    same = isinstance(result, Ref) and result.value == going
    known = info(after).truth
    always = same or known
    if start and always:
        return None
    keep = b.fresh("keep", Info(kind="bool"))
    first = literal(bool(start)) if start is not None or cond is None else cond.truth
    b.emit(Assign((keep,), first, b.scope))
    if always:
        return keep, Ref(keep)
    return keep, result if known is None else literal(known)


def _together(b: Builder, ends: list[tuple[str, ast.expr]]) -> list[Statement]:
    """Return assignments that act as if simultaneous: in an order in which none changes another, else as one tuple."""
    pending = [(name, value) for name, value in ends if not (isinstance(value, Ref) and value.value == name)]
    assignments: list[Statement] = []
    while pending:
        for k, (name, value) in enumerate(pending):
            if not any(name in refs(v) for j, (_, v) in enumerate(pending) if j != k):
                assignments.append(Assign((name,), value, b.scope))
                del pending[k]
                break
        else:
            names, values = zip(*pending)
            assignments.append(Assign(tuple(names), ast.Tuple(list(values), ast.Load()), b.scope))
            break
    return assignments


def _uses(statements: list[Statement], results: list[ast.expr], name: str) -> bool:
    return any(name in refs(tree) for tree in (*results, *(e for s in statements for e in expressions(s))))


def _as_outputs(b: Builder, results: Iterable[ast.expr]) -> list[ast.expr | None]:
    return [_as_output(b, i, result) if b.wants(i) else None for i, result in enumerate(results)]


def _as_output(b: Builder, index: int, result: ast.expr) -> ast.expr:
    """Return a result of a body; a new variable if its facts differ outside, where symbolic dims have other names."""
    if isinstance(result, Ref) and b.known(result.value) != b.out(index):
        return b.let(result, b.node.outputs[index].name or "x", b.out(index))
    return result


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
    outputs: list[ast.expr | None] = []
    for i, result in enumerate(results):
        outputs.append(None)
        if b.wants(i):
            name = b.fresh(b.node.outputs[i].name or "x", b.out(i))
            b.emit(Assign((name,), literal([]), b.scope))
            statements.append(Assign((), b("s.append(x)", s=Ref(name), x=result), b.scope))
            outputs[i] = Ref(name)
    targets = tuple(m.value for m in outputs if isinstance(m, Ref))
    iterable = lists[0].expr if len(lists) == 1 else b.call("zip", *lists)
    b.emit(Loop(tuple(items), iterable, None, statements, targets, b.scope, b.nodes))
    return outputs


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
