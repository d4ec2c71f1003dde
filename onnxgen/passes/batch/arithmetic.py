"""Rules for operators that compute: element by element, row by row, along an axis, and products of matrices."""

from __future__ import annotations

from onnxgen.graph.traits import ELEMENTWISE, REDUCTION, SAMPLES, Trait
from onnxgen.passes.batch.stack import Here, Refusal, Rule, Stack


def elementwise(h: Here) -> Stack | None:
    """Operators that broadcast: every stack has the batch on the same axis of the result."""
    rank = len(h.result())
    stacks = {s.moved(s.axis + rank - len(h.shape(i))) for i in h.given if (s := h.stack(i)) is not None}
    if len(stacks) != 1:
        raise Refusal("the inputs have the batch on different axes")
    (stack,) = stacks
    if h.result()[stack.axis] != stack.size(h.batch.size):
        raise Refusal("the batch is broadcast to another size")
    for i in h.given:
        if h.stack(i) is None:
            h.meet(i, stack, rank)
    return stack


def rows(h: Here) -> list[Stack | None]:
    """The first axis is the batch, and every row is computed by itself with the same further inputs."""
    h.only(0)
    stack = h.need(0)
    if stack.axis != 0:
        raise Refusal(f"the batch is on axis {stack.axis}, but must be on the first")
    if h.node.op_type == "BatchNormalization" and h.attribute("training_mode"):
        h.batch.notes.append("BatchNorm records training mode: in it, and only in it, samples of a batch are mixed")
    if any(o.uses() or o.is_graph_output() for o in h.node.outputs[1:]):
        raise Refusal("the further outputs mix all samples")  # statistics, or positions in the whole tensor
    return [stack]


def quantize(h: Here) -> Stack:
    """Scale and zero point are for the whole tensor, or for each slice along an axis."""
    h.only(0)
    stack = h.need(0)
    rank = len(h.shape(0))
    if len(h.shape(1)) > 0 and h.shape(1) != (1,) and h.attribute("axis", 1) % rank == stack.axis:
        raise Refusal("the scale differs between samples")
    return stack


# ---- along axes ------------------------------------------------------------------------------------------------------


def _reduce(h: Here, axes: list[int], keeps: bool) -> Stack:
    h.only(0)
    stack = h.need(0)
    if stack.axis in axes:
        raise Refusal("the operator reduces over the batch")
    return stack if keeps else stack.moved(stack.axis - sum(axis < stack.axis for axis in axes))


def reduction(h: Here) -> Stack:
    rank = len(h.shape(0))
    axes = h.ints("axes", 1)
    if not axes:
        if axes is not None and h.attribute("noop_with_empty_axes"):
            return h.need(0)
        axes = list(range(rank))
    return _reduce(h, [axis % rank for axis in axes], bool(h.attribute("keepdims", 1)))


def arg_reduction(h: Here) -> Stack:
    return _reduce(h, [h.attribute("axis", 0) % len(h.shape(0))], bool(h.attribute("keepdims", 1)))


def _along(h: Here, axis: int) -> Stack:
    stack = h.need(0)
    if stack.axis == axis % len(h.shape(0)):
        raise Refusal("the operator works along the batch")
    return stack


def softmax(h: Here) -> Stack:
    """Before opset 13 it is over all axes from `axis` on."""
    h.only(0)
    axis = h.attribute("axis", -1 if h.opset >= 13 else 1) % len(h.shape(0))
    if h.opset < 13 and h.need(0).axis >= axis:
        raise Refusal("the operator works along the batch")
    return _along(h, axis)


def along_axis(h: Here) -> list[Stack | None]:
    """TopK, LpNormalization: one axis, -1 unless told."""
    h.only(0)
    return [_along(h, h.attribute("axis", -1))] * len(h.node.outputs)


def cumsum(h: Here) -> Stack:
    h.only(0)
    return _along(h, int(h.numbers(1).reshape(-1)[0]))


def trilu(h: Here) -> Stack:
    h.only(0)
    stack = h.need(0)
    if stack.axis >= len(h.shape(0)) - 2:
        raise Refusal("the batch is an axis of the matrices")
    return stack


def last_axes(h: Here) -> list[Stack | None]:
    """LayerNormalization and RMSNormalization: over all axes from `axis` on."""
    h.only(0)
    stack, rank = h.need(0), len(h.shape(0))
    if stack.axis >= h.attribute("axis", -1) % rank:
        raise Refusal("the operator normalises over the batch")
    for i in h.given[1:]:
        h.meet(i, stack, rank)
    return [stack] * len(h.node.outputs)


# ---- products --------------------------------------------------------------------------------------------------------


def matmul(h: Here) -> Stack:
    """The batch is among the leading axes of both, or the rows of the first, or the columns of the second."""
    ranks = [len(h.shape(i)) for i in (0, 1)]
    rank = max(ranks)
    found: set[Stack] = set()
    for i, summed in ((0, ranks[0] - 1), (1, max(ranks[1] - 2, 0))):
        stack = h.stack(i)
        if stack is None:
            continue
        if stack.axis == summed:
            raise Refusal("the operator sums over the batch")
        if stack.axis >= ranks[i] - 2:
            return _outer(h, i, stack)
        found.add(stack.moved(stack.axis + rank - ranks[i]))
    if len(found) != 1:
        raise Refusal("the inputs have the batch on different axes")
    (stack,) = found
    if 1 in ranks:
        return stack
    for i in (0, 1):
        if h.stack(i) is None:
            h.meet(i, stack, rank)
    return stack


def _outer(h: Here, i: int, stack: Stack) -> Stack:
    """The batch is the rows (or columns) of one matrix: the other one is the same for all."""
    if h.stack(1 - i) is not None:
        raise Refusal("the operator multiplies samples with each other")
    if len(h.shape(1 - i)) == 1:
        return stack if i == 0 else stack.moved(stack.axis - 1)
    return stack.moved(len(h.result()) - (2 if i == 0 else 1))


def gemm(h: Here) -> Stack:
    summed = (0 if h.attribute("transA", 0) else 1), (1 if h.attribute("transB", 0) else 0)
    carrying = [i for i in (0, 1) if h.stack(i) is not None]
    if len(carrying) != 1:
        raise Refusal(
            "the operator multiplies samples with each other" if carrying else "only the bias depends on the batch"
        )
    (i,) = carrying
    stack = h.need(i)
    if stack.axis == summed[i]:
        raise Refusal("the operator sums over the batch")
    stack = stack.moved(i)
    if h.has(2):
        bias = h.stack(2)
        if bias is None:
            h.meet(2, stack, 2)
        elif bias.moved(bias.axis + 2 - len(h.shape(2))) != stack:
            raise Refusal("the inputs have the batch on different axes")
    return stack


def einsum(h: Here) -> Stack:
    """The batch has one letter, which the result has too."""
    equation = h.attribute("equation")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow or "." in text or len(terms) != len(h.given):
        raise Refusal("the equation leaves axes unnamed")
    stacks = {i: s for i in h.given if (s := h.stack(i)) is not None}
    letters = {(terms[i][s.axis], s.moved(0)) for i, s in stacks.items()}
    if len(letters) != 1:
        raise Refusal("the inputs have the batch under different letters")
    ((letter, stack),) = letters
    if letter not in right:
        raise Refusal("the operator sums over the batch")
    if any(letter in term for i, term in enumerate(terms) if i not in stacks) or any(
        terms[i].count(letter) > 1 for i in stacks
    ):
        raise Refusal("the batch's letter stands for another axis too")
    return stack.moved(right.index(letter))


def attention(h: Here) -> Stack:
    """Queries, keys and values of every sample; a mask that is the same for all, or has the batch first."""
    stack = h.need(0)
    if any(h.need(i) != stack or stack.axis != 0 for i in (1, 2)) or len(h.node.outputs) > 1 or len(h.given) > 4:
        raise Refusal("queries, keys and values do not all have the batch first")
    if h.has(3) and h.stack(3) is None:
        h.meet(3, stack, 4)
    elif h.has(3) and (h.need(3) != stack or len(h.shape(3)) != 4):
        raise Refusal("the mask does not have the batch first")
    return stack


OF_KIND: dict[Trait, Rule] = {ELEMENTWISE: elementwise, SAMPLES: rows, REDUCTION: reduction}
RULES: dict[str, Rule] = {
    "ArgMax": arg_reduction,
    "ArgMin": arg_reduction,
    "Attention": attention,
    "CumSum": cumsum,
    "DequantizeLinear": quantize,
    "Einsum": einsum,
    "Gemm": gemm,
    "Hardmax": softmax,
    "LayerNormalization": last_axes,
    "LogSoftmax": softmax,
    "LpNormalization": along_axis,
    "MatMul": matmul,
    "MatMulInteger": matmul,
    "QuantizeLinear": quantize,
    "RMSNormalization": last_axes,
    "Softmax": softmax,
    "TopK": along_axis,
    "Trilu": trilu,
}
