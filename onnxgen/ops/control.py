"""If, Loop and Scan as the `if`, `for` and `while` that a person would write."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import onnx_ir as ir

from onnxgen.code.module_def import Assign, If, Loop, Statement
from onnxgen.code.quote import DeviceOf, Ref, call, literal, quote, refs
from onnxgen.errors import WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.wide import flipped
from onnxgen.shapes.info import Info, info

ENDLESS = 2**62  # as many turns as this are no limit: exporters write it for a `while`


@op("If", still="cond")
def if_(b: Builder, cond: Arg, *, then_branch: ir.Graph, else_branch: ir.Graph) -> list[ast.expr | None]:
    """The branch itself where the condition is known, else a Python `if`."""
    known = cond.constant
    if known is not None and known.size == 1:
        statements, results = b.block(then_branch if known.item() else else_branch, [])
        for statement in statements:
            b.emit(statement)
        return [_as_output(b, i, result) if b.wants(i) else None for i, result in enumerate(results)]
    then, then_results = b.block(then_branch, [])
    orelse, else_results = b.block(else_branch, [])
    names: list[str] = []
    made: list[ast.expr | None] = []
    for i, (one, other) in enumerate(zip(then_results, else_results)):
        if not b.wants(i):
            made.append(None)
            continue
        names.append(b.fresh(b.node.outputs[i].name or "x", b.out(i)))
        made.append(Ref(names[-1]))
        then.append(Assign((names[-1],), one, b.scope))
        orelse.append(Assign((names[-1],), other, b.scope))
    b.emit(If(cond.expr, then, orelse, tuple(names), b.scope, b.nodes))
    return made


@op("Loop")
def loop(
    b: Builder, M: Arg | None = None, cond: Arg | None = None, *v_initial: Arg, body: ir.Graph
) -> list[ast.expr | None]:
    """`for turn in range(M)`, `while keep`, or the one with a `break` for the other.

    Values that the body makes for each turn are collected in lists and stacked. Of no turn at all, as onnxruntime has
    it, comes a tensor of size 0 in the first dim, and in each other one that the file leaves open.
    """
    count = len(v_initial)
    turn = b.fresh("i")
    states = [_state(b, value, arg.expr) for value, arg in zip(body.inputs[2:], v_initial)]
    number, going = _scalar(b, body.inputs[0]), _scalar(b, body.inputs[1])
    statements, results = b.block(body, [Ref(name) for name in (number, going, *states)])
    keep, keeps = _condition(b, cond, going, body.outputs[0], results[0])
    endless = M is None or _endless(M)
    iterable = None if endless or M is None else b("range(n)", n=M.as_int())
    head: list[Statement] = []
    ends: list[tuple[str, ast.expr]] = list(zip(states, results[1 : count + 1]))
    if _uses(statements, results, number):
        value: ast.expr = Ref(turn)
        if endless:  # a `while` has no turns: the number is a state
            turn = b.fresh("i", Info(kind="int"))
            b.emit(Assign((turn,), literal(0), b.scope))
            value, states, ends = Ref(turn), [turn, *states], [*ends, (turn, b("i + 1", i=Ref(turn)))]
        head.append(Assign((number,), _tensor(value, body.inputs[0]), b.scope))
    if _uses(statements, results, going):
        head.append(Assign((going,), _tensor(literal(True), body.inputs[1]), b.scope))
    if keep is not None:
        states = [keep, *states]
        ends += [(keep, keeps)] if keeps is not None else []
    elif endless:
        raise b.error("the Loop has neither a trip count nor a condition, so it never ends", WRITER)
    stacks = _Stacks(b, count, body.outputs[count + 1 :], results[count + 1 :])
    inner = [*head, *statements, *stacks.appends, *_together(b, ends)]
    stop = None if keep is None else Ref(keep)
    turns = () if endless else (turn,)
    b.emit(Loop(turns, iterable, stop, inner, (*states, *stacks.lists), b.scope, b.nodes))
    offset = len(states) - count
    made = [_as_output(b, i, Ref(states[offset + i])) if b.wants(i) else None for i in range(count)]
    fixed = stop is None and M is not None and (M.scalar or 0) > 0
    return made + stacks.results([0] * len(stacks.values), [0] * len(stacks.values), may_be_empty=not fixed)


@op("Scan", since=9)
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
    """`for x in xs.unbind(axis)`, the state carried from turn to turn."""
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    states = [_state(b, v, a.expr) for v, a in zip(body.inputs[:count], initial_state_and_scan_inputs)]
    scanned = initial_state_and_scan_inputs[count:]
    axes = scan_input_axes or [0] * num_scan_inputs
    reverse = scan_input_directions or [0] * num_scan_inputs
    slices = [_slices(b, x, axis, r) for x, axis, r in zip(scanned, axes, reverse)]
    outputs = len(body.outputs) - count
    made = _turns(b, body, states, slices, scan_output_axes or [0] * outputs, scan_output_directions or [0] * outputs)
    return [_as_output(b, i, e) if e is not None else None for i, e in enumerate(made)]


@op("Scan", since=1)
def scan_batched(
    b: Builder,
    sequence_lens: Arg | None = None,
    *initial_state_and_scan_inputs: Arg,
    body: ir.Graph,
    num_scan_inputs: int,
    directions: list[int] | None = None,
) -> list[ast.expr | None]:
    """Scan-8: the same for each sequence of a batch, the first axis of every input and output."""
    if sequence_lens is not None:
        raise b.error(
            "sequence_lens of a Scan are not handled", "convert the file to opset 9 or newer (onnx.version_converter)"
        )
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    row = b.fresh("row")
    facts = [_element(a) for a in initial_state_and_scan_inputs]
    rows = [b.fresh(a.name or "x", f) for a, f in zip(initial_state_and_scan_inputs, facts)]
    head: list[Statement] = [
        Assign((r,), b("x[i]", x=a, i=Ref(row)), b.scope) for r, a in zip(rows, initial_state_and_scan_inputs)
    ]
    with b.writing(head):
        states = [_state(b, v, Ref(r)) for v, r in zip(body.inputs[:count], rows)]
        reverse = directions or [0] * num_scan_inputs
        slices = [
            flipped(b, Ref(r), f.dtype, 0) if d else Ref(r) for r, f, d in zip(rows[count:], facts[count:], reverse)
        ]
        outputs = len(body.outputs) - count
        results = _turns(b, body, states, slices, [0] * outputs, [0] * outputs, wants=range(len(body.outputs)))
    stacks = _Stacks(b, 0, body.outputs, [r for r in results if r is not None])
    size = b("range(x.shape[0])", x=initial_state_and_scan_inputs[-1])
    b.emit(Loop((row,), size, None, [*head, *stacks.appends], tuple(stacks.lists), b.scope, b.nodes))
    return stacks.results([0] * len(results), [0] * len(results), may_be_empty=False)


def _turns(
    b: Builder,
    body: ir.Graph,
    states: list[str],
    slices: list[ast.expr],
    axes: list[int],
    reverse: list[int],
    wants: Sequence[int] | None = None,
) -> list[ast.expr | None]:
    """The loop over what is scanned; returns final states and stacked outputs."""
    count = len(states)
    items = [b.fresh(v.name or "x", info(v)) for v in body.inputs[count:]]
    statements, results = b.block(body, [Ref(name) for name in (*states, *items)])
    stacks = _Stacks(b, count, body.outputs[count:], results[count:], wants)
    inner = [*statements, *stacks.appends, *_together(b, list(zip(states, results)))]
    iterable = slices[0] if len(slices) == 1 else call("zip", *slices)
    b.emit(Loop(tuple(items), iterable, None, inner, (*states, *stacks.lists), b.scope, b.nodes))
    return [*map(Ref, states), *stacks.results(axes, reverse, may_be_empty=False)]


def _slices(b: Builder, x: Arg, axis: int, reverse: int) -> ast.expr:
    """What a `for` goes through: the slices of a tensor along an axis (iterating does it along the first)."""
    made = flipped(b, x, x.dtype, axis) if reverse else x.expr
    return made if axis == 0 else quote("x.unbind(axis)", x=made, axis=axis)


def _element(arg: Arg) -> Info:
    return Info(arg.dtype, None if arg.shape is None else arg.shape[1:])


class _Stacks:
    """The values that a body makes in each turn, in lists that grow: `ys = []`, `ys.append(y)`, `torch.stack(ys)`."""

    def __init__(
        self,
        b: Builder,
        first: int,
        values: Sequence[ir.Value],
        turns: Sequence[ast.expr],
        wants: Sequence[int] | None = None,
    ) -> None:
        """`first`: which output of the node the first of these is; `wants`: which count (default: what is used)."""
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

    def results(self, axes: list[int], reverse: list[int], may_be_empty: bool) -> list[ast.expr | None]:
        """The stacked tensors."""
        made: list[ast.expr | None] = []
        for value, name, axis, back in zip(self.values, self.names, axes, reverse):
            if name is None:
                made.append(None)
                continue
            steps = self.b("ys[::-1]" if back else "ys", ys=Ref(name))
            package = "np" if info(value).dtype == ir.DataType.STRING else "torch"
            stacked = call(f"{package}.stack", steps, *([axis] if axis else []))
            made.append(self._or_empty(stacked, name, value) if may_be_empty else stacked)
        return made

    def _or_empty(self, stacked: ast.expr, name: str, value: ir.Value) -> ast.expr:
        """Of no turn at all nothing can be stacked; dims that the file leaves open are 0 then, as in onnxruntime."""
        facts = info(value)
        shape = (0, *(d if isinstance(d, int) else 0 for d in facts.shape or ()))
        if facts.dtype == ir.DataType.STRING:
            empty = call("np.empty", shape, dtype=quote("object"))
            return self.b("stacked if ys else empty", stacked=stacked, ys=Ref(name), empty=empty)
        empty = call("torch.empty", shape, dtype=facts.dtype or ir.DataType.FLOAT, device=DeviceOf())
        return self.b("stacked if ys else empty", stacked=stacked, ys=Ref(name), empty=empty)


def _state(b: Builder, value: ir.Value, initial: ast.expr) -> str:
    """A variable that a loop carries, as the body knows it; its first value is assigned here."""
    name = b.fresh(value.name or "x", info(value))
    b.emit(Assign((name,), initial, b.scope))
    return name


def _scalar(b: Builder, value: ir.Value) -> str:
    return b.fresh(value.name or "x", info(value))


def _tensor(value: ast.expr, like: ir.Value) -> ast.expr:
    """The number of the turn, or the condition, as the tensor that the body declares: of rank 0, else 1."""
    rank = info(like).rank
    return call("torch.tensor", ast.List([value], ast.Load()) if rank == 1 else value, device=DeviceOf())


def _endless(M: Arg) -> bool:
    return isinstance(M.scalar, int) and M.scalar >= ENDLESS


def _condition(
    b: Builder, cond: Arg | None, going: str, after: ir.Value, result: ast.expr
) -> tuple[str | None, ast.expr | None]:
    """The variable that says whether another turn comes (None: always), and its value after a turn (None: the same)."""
    start = True if cond is None else cond.scalar
    same = isinstance(result, Ref) and result.value == going
    known = info(after).constant
    always = same or (known is not None and known.size == 1 and bool(known.item()))
    if start and always:
        return None, None
    keep = b.fresh("keep", Info(kind="bool"))
    first = literal(bool(start)) if start is not None or cond is None else cond.expr
    b.emit(Assign((keep,), first, b.scope))
    if always:
        return keep, None
    return keep, literal(bool(known.item())) if known is not None and known.size == 1 else result


def _together(b: Builder, ends: list[tuple[str, ast.expr]]) -> list[Statement]:
    """Assignments as if they were simultaneous: in an order in which none spoils another, else as one tuple."""
    pending = [(name, value) for name, value in ends if not (isinstance(value, Ref) and value.value == name)]
    made: list[Statement] = []
    while pending:
        for k, (name, value) in enumerate(pending):
            if not any(name in refs(v) for j, (_, v) in enumerate(pending) if j != k):
                made.append(Assign((name,), value, b.scope))
                del pending[k]
                break
        else:
            names, values = zip(*pending)
            made.append(Assign(tuple(names), ast.Tuple(list(values), ast.Load()), b.scope))
            break
    return made


def _uses(statements: list[Statement], results: list[ast.expr], name: str) -> bool:
    from onnxgen.code.module_def import expressions

    trees = [*results, *(e for s in statements for e in expressions(s))]
    return any(name in refs(tree) for tree in trees)


def _as_output(b: Builder, index: int, made: ast.expr) -> ast.expr:
    """A value from inside a body under what is known of it outside: dims that only mean something inside are others."""
    if isinstance(made, Ref) and b.known(made.value) != b.out(index):
        return b.let(made, b.node.outputs[index].name or "x", b.out(index))
    return made
