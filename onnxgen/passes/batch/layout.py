"""Batch rules for operators that arrange, select or repeat elements, and for layers with a batch axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.passes.batch.stack import Refusal, RuleNode, Stack
from onnxgen.shapes.dims import Dim, exact_div, product
from onnxgen.shapes.info import Shape, info

SLICE_TO_END = (1 << 63) - 1


def placed(old: Shape, stack: Stack, new: Shape, size: int) -> list[Stack]:
    """Return where the batch can be after a reshape, best first: an axis of its own, then the axis where it was.

    In row-major order, `outer` elements come before the batch and `inner` after it. A new axis can hold the batch if
    the axes before and after it divide these numbers. Every result is correct: with a batch of 1 there may be several,
    and only later operators can tell them apart.
    """
    outer = product(old[: stack.axis]) * stack.outer
    inner = stack.inner * product(old[stack.axis + 1 :])
    candidates = []
    for axis, dim in enumerate(new):
        before, after = exact_div(outer, product(new[:axis])), exact_div(inner, product(new[axis + 1 :]))
        if before is not None and after is not None and before * size * after == dim:
            candidates.append(Stack(axis, before, after))

    def order(s: Stack) -> tuple[bool, bool, int]:
        is_last = not s.is_pure and s.axis == len(new) - 1  # merged batches are rows, and the last axis is features
        return not s.is_pure, s.axis != stack.axis or is_last, s.axis

    return sorted(candidates, key=order)


def _place(n: RuleNode) -> Stack:
    candidates = placed(n.shape(0), n.need(0), n.result(), n.batch.size)
    if not candidates:
        raise Refusal(f"the operator splits the batch axis: {_text(n.shape(0))} to {_text(n.result())}")
    return candidates[0]


def _text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def reshape(n: RuleNode) -> Stack:
    n.only(0)
    stack = _place(n)
    if n.node.op_type == "Reshape" and n.has(1) and not n.attribute("allowzero"):
        n.set_input(1, n.sizes(n.batch.free(n.result(), stack)))
    else:  # Flatten, and opset 1, where the shape is an attribute
        n.into_reshape(stack)
    return stack


flatten = reshape


def _axes(n: RuleNode, rank: int) -> list[int] | None:
    axes = n.ints("axes", 1)
    return None if axes is None else [axis % rank for axis in axes]


def squeeze(n: RuleNode) -> Stack:
    """Removing the batch axis (named, or of size 1 where no axes are given) merges the batch into a neighbour."""
    stack, shape = n.only_stack(), n.shape(0)
    axes = _axes(n, len(shape))
    if axes is not None and stack.axis not in axes:
        return stack.moved(stack.axis - sum(axis < stack.axis for axis in axes))
    if len(n.result()) == 0:
        raise Refusal("the operator removes the batch axis")
    stack = _place(n)
    n.into_reshape(stack)
    return stack


def unsqueeze(n: RuleNode) -> Stack:
    stack = n.only_stack()
    axes = _axes(n, len(n.result()))
    if axes is None:
        raise Refusal("the axes are unknown")
    old = [axis for axis in range(len(n.result())) if axis not in axes]
    moved = stack.moved(old[stack.axis])
    if stack.is_pure:
        return moved
    candidates = placed(n.shape(0), stack, n.result(), n.batch.size)
    if candidates and candidates[0].is_pure:  # the axis that a Squeeze merged away
        n.into_reshape(candidates[0])
        return candidates[0]
    return moved


def transpose(n: RuleNode) -> Stack:
    stack, rank = n.need(0), len(n.shape(0))
    perm = list(n.attribute("perm", range(rank - 1, -1, -1)))
    return stack.moved(perm.index(stack.axis))


def concat(n: RuleNode) -> Stack:
    rank = len(n.result())
    stacks = {s for i in n.given if (s := n.stack(i)) is not None}
    axis = n.attribute("axis", 1) % rank
    if len({(s.axis, s.inner) for s in stacks}) > 1:
        raise Refusal("the inputs have the batch on different axes")
    first = next(iter(stacks))
    if first.axis == axis:
        if any(n.stack(i) is None for i in n.given):
            raise Refusal("the operator joins the samples with something that is not a sample")
        return Stack(axis, sum((n.need(i).outer for i in n.given), start=0), first.inner)
    if len(stacks) > 1:
        raise Refusal("the inputs have the batch in different places of an axis")
    for i in n.given:
        if n.stack(i) is None:
            n.repeat(i, first)
    return first


def split(n: RuleNode) -> Stack:
    stack = n.only_stack()
    if n.attribute("axis", 0) % len(n.shape(0)) != stack.axis:
        return stack
    if len(n.node.outputs) > 1:
        raise Refusal("the operator splits the batch axis")
    n.into_reshape(stack)
    return stack


def slices(n: RuleNode) -> Stack:
    """Along the batch, a Slice must take everything. An end at the file's batch size then becomes open."""
    stack = n.only_stack()
    if n.opset < 10:
        return _old_slice(n, stack)
    bounds: list[list[Dim]] = [[*n.elements(1)], [*n.elements(2)]]
    axes = [a % len(n.shape(0)) for a in n.elements(3)] if n.has(3) else list(range(len(bounds[0])))
    if stack.axis not in axes:
        return stack
    at = axes.index(stack.axis)
    step = n.elements(4)[at] if n.has(4) else 1
    if step != 1 or n.result()[stack.axis] != n.shape(0)[stack.axis]:
        raise Refusal("the operator cuts out a part of the batch")
    bounds[0][at], bounds[1][at] = 0, SLICE_TO_END
    n.set_input(1, n.sizes(bounds[0], "starts"))
    n.set_input(2, n.sizes(bounds[1], "ends"))
    return stack


def _old_slice(n: RuleNode, stack: Stack) -> Stack:
    axes = [a % len(n.shape(0)) for a in n.attribute("axes", range(len(n.attribute("starts"))))]
    if stack.axis in axes:
        if n.result()[stack.axis] != n.shape(0)[stack.axis]:
            raise Refusal("the operator cuts out a part of the batch")
        at = axes.index(stack.axis)
        for name, bound in (("starts", 0), ("ends", SLICE_TO_END)):
            values = list(n.attribute(name))
            values[at] = bound
            n.node.attributes[name] = ir.AttrInt64s(name, values)
    return stack


def pad(n: RuleNode) -> Stack:
    stack, rank = n.only_stack(), len(n.shape(0))
    pads = n.ints("pads", 1) or list(n.attribute("paddings", []))
    axes = [a % rank for a in n.elements(3)] if n.has(3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise Refusal("the pads are unknown")
    if stack.axis in axes and any(pads[axes.index(stack.axis) :: len(axes)]):
        raise Refusal("the operator pads the batch")
    return stack


def gather(n: RuleNode) -> Stack:
    rank = len(n.shape(0))
    axis = n.attribute("axis", 0) % rank
    data, indices = n.stack(0), n.stack(1)
    if data is not None and indices is not None:
        raise Refusal("the operator selects with different indices from each sample")
    if indices is not None:
        return indices.moved(axis + indices.axis)
    assert data is not None
    count = len(n.shape(1))
    if data.axis != axis:
        return data if data.axis < axis else data.moved(data.axis + count - 1)
    if count == 0 and n.shape(0)[axis] == 1 and rank > 1:  # takes the only sample of a file with batch size 1
        stack = _place(n)
        n.into_reshape(stack)
        return stack
    return _gather_from_each(n, data)


def _gather_from_each(n: RuleNode, stack: Stack) -> Stack:
    """Handle constant indices into an axis that contains the batch and select the same elements from every sample.

    Exporters look masks up like that: `mask.flatten()[sample * length + position]`.
    """
    size, axis, shape = n.batch.size, stack.axis, n.shape(0)
    indices = n.numbers(1)
    inner = stack.inner
    if stack.outer != 1 or not isinstance(inner, int):
        raise Refusal("the operator selects from the batch")
    indices = np.where(indices < 0, indices + size * inner, indices)
    for at, length in enumerate(indices.shape):
        one = np.take(indices, [0], at)
        order = np.arange(size).reshape([-1 if i == at else 1 for i in range(indices.ndim)]) * inner
        if length == size and (one // inner == 0).all() and (indices == one + order).all():
            break
    else:
        raise Refusal("the operator selects from the batch")
    apart = (*shape[:axis], size, inner, *shape[axis + 1 :])
    data = n.add("Reshape", [n.value(0), n.sizes(n.batch.free(apart, Stack(axis)))], apart, "apart")
    chosen = np.squeeze(one, at)
    inputs, attributes = [data, n.integers(chosen, "indices")], [ir.AttrInt64("axis", axis + 1)]
    if at == 0:
        n.into("Gather", inputs, attributes)
        return Stack(axis)
    picked = (*shape[:axis], size, *chosen.shape, *shape[axis + 1 :])
    data = n.add("Gather", inputs, picked, "picked", attributes)
    perm = [i for i in range(len(picked)) if i != axis]
    perm.insert(axis + at, axis)
    n.into("Transpose", [data], [ir.AttrInt64s("perm", perm)])
    return Stack(axis + at)


def gather_elements(n: RuleNode) -> Stack:
    """Both inputs have the batch on the same axis, which is not the axis that is selected from."""
    stacks = {s for i in (0, 1) if (s := n.stack(i)) is not None}
    if len(stacks) != 1:
        raise Refusal("the inputs have the batch on different axes")
    (stack,) = stacks
    if stack.axis == n.attribute("axis", 0) % len(n.shape(0)):
        raise Refusal("the operator selects from the batch")
    for i in (0, 1):
        if n.stack(i) is None:
            n.repeat(i, stack)
    return stack


def one_hot(n: RuleNode) -> Stack:
    stack, rank = n.only_stack(), len(n.result())
    axis = n.attribute("axis", -1) % rank
    return stack if stack.axis < axis else stack.moved(stack.axis + 1)


def expand(n: RuleNode) -> Stack:
    """The batch must keep its size. In the wanted shape it becomes 1, which broadcasts to any size."""
    stack = n.only_stack()
    stack = stack.moved(stack.axis + len(n.result()) - len(n.shape(0)))
    if n.result()[stack.axis] != stack.size(n.batch.size):
        raise Refusal(f"the operator repeats the batch: {_text(n.shape(0))} to {_text(n.result())}")
    n.set_input(1, n.sizes([1 if axis == stack.axis else dim for axis, dim in enumerate(n.result())]))
    return stack


def tile(n: RuleNode) -> Stack:
    stack = n.only_stack()
    times = n.elements(1)[stack.axis]
    return Stack(stack.axis, times * stack.outer, stack.inner)


def resize(n: RuleNode) -> Stack:
    """The batch must keep its size. A wanted size for it becomes the symbol."""
    stack = n.only_stack()
    scales = _scales(n)
    if n.result()[stack.axis] != n.shape(0)[stack.axis] or scales and scales[stack.axis] != 1:
        raise Refusal("the operator resizes the batch")
    if n.opset >= 11 and n.has(3):
        rank = len(n.shape(0))
        axes = [a % rank for a in n.attribute("axes", range(rank))]
        if stack.axis in axes:
            wanted = n.elements(3)
            free = n.batch.free(n.result(), stack)
            n.set_input(3, n.sizes([free[a] if a == stack.axis else wanted[at] for at, a in enumerate(axes)], "sizes"))
    return stack


def _scales(n: RuleNode) -> list[float]:
    """Return the factor of each axis, or [] if sizes are given instead."""
    if "scales" in n.node.attributes:
        return list(n.attribute("scales"))
    at, rank = (2 if n.opset >= 11 else 1), len(n.shape(0))
    if not n.has(at) or info(n.value(at)).shape == (0,):
        return []
    factors = [1.0] * rank
    for axis, scale in zip(n.attribute("axes", range(rank)), n.numbers(at).reshape(-1), strict=True):
        factors[axis % rank] = float(scale)
    return factors


def recurrent(n: RuleNode) -> list[Stack | None]:
    """The input is [length, batch, features], or batch first with `layout`. States and lengths belong to samples."""
    n.only(0, 4, 5, 6)
    first = bool(n.attribute("layout", 0))
    at = 0 if first else 1
    stack = n.need(0)
    if stack != Stack(at):
        raise Refusal(f"the batch is not on axis {at}")
    for i in (4, 5, 6):
        if not n.has(i):
            continue
        wanted = Stack(0 if i == 4 else at)
        if n.stack(i) is None:
            n.repeat(i, wanted)
        elif n.stack(i) != wanted:
            raise Refusal(f"{n.name(i)} does not have the batch on axis {wanted.axis}")
    stacks: list[Stack | None] = [Stack(0 if first else 2), Stack(at), Stack(at)]
    return stacks[: len(n.node.outputs)]


def grid_sample(n: RuleNode) -> Stack:
    for i in (0, 1):
        if n.stack(i) is None:
            n.repeat(i, Stack(0))
        elif n.stack(i) != Stack(0):
            raise Refusal("the inputs do not have the batch first")
    return Stack(0)
