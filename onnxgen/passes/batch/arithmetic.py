"""Batch rules for operators that compute elementwise, by row, along an axis, and for matrix products."""

from __future__ import annotations

from onnxgen.passes.batch.stack import Refusal, RuleNode, Stack
from onnxgen.passes.rewrite import is_used


def elementwise(n: RuleNode) -> Stack:
    """All stacks must have the batch on the same axis of the broadcast result."""
    rank = len(n.result())
    stacks = {s.moved(s.axis + rank - len(n.shape(i))) for i in n.given if (s := n.stack(i)) is not None}
    if len(stacks) != 1:
        raise Refusal("the inputs have the batch on different axes")
    (stack,) = stacks
    if n.result()[stack.axis] != stack.size(n.batch.size):
        raise Refusal("the batch is broadcast to another size")
    for i in n.given:
        if n.stack(i) is None:
            n.broadcast(i, stack, rank)
    return stack


def rows(n: RuleNode) -> list[Stack | None]:
    """The batch is the first axis. Every row is computed separately, with the same other inputs."""
    stack = n.only_stack()
    if stack.axis != 0:
        raise Refusal(f"the batch is on axis {stack.axis}, but must be on the first")
    if n.node.op_type == "BatchNormalization" and n.attribute("training_mode"):
        n.batch.notes.append("BatchNorm records training mode: only in training does it mix the samples of a batch")
    if any(map(is_used, n.node.outputs[1:])):
        raise Refusal("the further outputs mix all samples")  # statistics, or positions in the whole tensor
    return [stack]


def quantize(n: RuleNode) -> Stack:
    """Scale and zero point apply to the whole tensor, or to each slice along an axis."""
    stack = n.only_stack()
    rank = len(n.shape(0))
    if len(n.shape(1)) > 0 and n.shape(1) != (1,) and n.attribute("axis", 1) % rank == stack.axis:
        raise Refusal("the scale differs between samples")
    return stack


dequantize = quantize


def _reduce(n: RuleNode, axes: list[int], keeps: bool) -> Stack:
    stack = n.only_stack()
    if stack.axis in axes:
        raise Refusal("the operator reduces over the batch")
    return stack if keeps else stack.moved(stack.axis - sum(axis < stack.axis for axis in axes))


def reduction(n: RuleNode) -> Stack:
    rank = len(n.shape(0))
    axes = n.ints("axes", 1)
    if not axes:
        if axes is not None and n.attribute("noop_with_empty_axes"):
            return n.need(0)
        axes = list(range(rank))
    return _reduce(n, [axis % rank for axis in axes], bool(n.attribute("keepdims", 1)))


def position(n: RuleNode) -> Stack:
    return _reduce(n, [n.attribute("axis", 0) % len(n.shape(0))], bool(n.attribute("keepdims", 1)))


def _along(n: RuleNode, axis: int) -> Stack:
    stack = n.only_stack()
    if stack.axis == axis % len(n.shape(0)):
        raise Refusal("the operator works along the batch")
    return stack


def softmax(n: RuleNode) -> Stack:
    """Before opset 13, Softmax reduces all axes from `axis` on."""
    axis = n.attribute("axis", -1 if n.opset >= 13 else 1) % len(n.shape(0))
    if n.opset < 13 and n.need(0).axis >= axis:
        raise Refusal("the operator works along the batch")
    return _along(n, axis)


hardmax = log_softmax = softmax


def top_k(n: RuleNode) -> Stack:
    """TopK and LpNormalization work along one axis, by default the last."""
    return _along(n, n.attribute("axis", -1))


lp_norm = top_k


def cumsum(n: RuleNode) -> Stack:
    return _along(n, n.elements(1)[0])


def trilu(n: RuleNode) -> Stack:
    stack = n.only_stack()
    if stack.axis >= len(n.shape(0)) - 2:
        raise Refusal("the batch is an axis of the matrices")
    return stack


def layer_norm(n: RuleNode) -> Stack:
    """LayerNormalization and RMSNormalization normalise over all axes from `axis` on."""
    stack, rank = n.only_stack(), len(n.shape(0))
    if stack.axis >= n.attribute("axis", -1) % rank:
        raise Refusal("the operator normalises over the batch")
    for i in n.given[1:]:
        n.broadcast(i, stack, rank)
    return stack


rms_norm = layer_norm


def matmul(n: RuleNode) -> Stack:
    """The batch is a leading axis of both operands, the rows of the first, or the columns of the second."""
    ranks = [len(n.shape(i)) for i in (0, 1)]
    rank = max(ranks)
    stacks: set[Stack] = set()
    for i, summed in ((0, ranks[0] - 1), (1, max(ranks[1] - 2, 0))):
        stack = n.stack(i)
        if stack is None:
            continue
        if stack.axis == summed:
            raise Refusal("the operator sums over the batch")
        if stack.axis >= ranks[i] - 2:
            return _outer(n, i, stack)
        stacks.add(stack.moved(stack.axis + rank - ranks[i]))
    if len(stacks) != 1:
        raise Refusal("the inputs have the batch on different axes")
    (stack,) = stacks
    if 1 in ranks:
        return stack
    for i in (0, 1):
        if n.stack(i) is None:
            n.broadcast(i, stack, rank)
    return stack


matmul_integer = matmul


def _outer(n: RuleNode, i: int, stack: Stack) -> Stack:
    """The batch is the rows (or columns) of one matrix. The other matrix must be the same for all samples."""
    if n.stack(1 - i) is not None:
        raise Refusal("the operator multiplies samples with each other")
    if len(n.shape(1 - i)) == 1:
        return stack if i == 0 else stack.moved(stack.axis - 1)
    return stack.moved(len(n.result()) - (2 if i == 0 else 1))


def gemm(n: RuleNode) -> Stack:
    summed = (0 if n.attribute("transA", 0) else 1), (1 if n.attribute("transB", 0) else 0)
    carrying = [i for i in (0, 1) if n.stack(i) is not None]
    if len(carrying) != 1:
        both = "the operator multiplies samples with each other"
        raise Refusal(both if carrying else "only the bias depends on the batch")
    (i,) = carrying
    stack = n.need(i)
    if stack.axis == summed[i]:
        raise Refusal("the operator sums over the batch")
    stack = stack.moved(i)
    if n.has(2):
        bias = n.stack(2)
        if bias is None:
            n.broadcast(2, stack, 2)
        elif bias.moved(bias.axis + 2 - len(n.shape(2))) != stack:
            raise Refusal("the inputs have the batch on different axes")
    return stack


def einsum(n: RuleNode) -> Stack:
    """One letter stands for the batch, and the result has it too."""
    equation = n.attribute("equation")
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow or "." in text or len(terms) != len(n.given):
        raise Refusal("the equation leaves axes unnamed")
    stacks = {i: s for i in n.given if (s := n.stack(i)) is not None}
    letters = {(terms[i][s.axis], s.moved(0)) for i, s in stacks.items()}
    if len(letters) != 1:
        raise Refusal("the inputs have the batch under different letters")
    ((letter, stack),) = letters
    if letter not in right:
        raise Refusal("the operator sums over the batch")
    if any(term.count(letter) != (i in stacks) for i, term in enumerate(terms)):
        raise Refusal("the batch's letter stands for another axis too")
    return stack.moved(right.index(letter))


def attention(n: RuleNode) -> Stack:
    """Queries, keys and values have the batch first. A mask is the same for all samples, or has the batch first."""
    stack = n.need(0)
    if any(n.need(i) != stack or stack.axis != 0 for i in (1, 2)) or len(n.node.outputs) > 1 or len(n.given) > 4:
        raise Refusal("queries, keys and values do not all have the batch first")
    if n.has(3) and n.stack(3) is None:
        n.broadcast(3, stack, 4)
    elif n.has(3) and (n.need(3) != stack or len(n.shape(3)) != 4):
        raise Refusal("the mask does not have the batch first")
    return stack
