"""Rules for operators that arrange, select or repeat elements, and for layers with a batch of their own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.passes.batch.stack import Here, Refusal, Rule, Stack
from onnxgen.shapes.dims import Dim, exact_div, product
from onnxgen.shapes.info import Shape, info

END = (1 << 63) - 1  # of a Slice: as far as there is


# ---- the same elements in the same order -----------------------------------------------------------------------------


def placed(old: Shape, stack: Stack, new: Shape, size: int) -> list[Stack]:
    """Where the batch can be after a reshape: those that keep it an axis of its own first, then on the same axis.

    With `outer` elements before the batch and `inner` after it in row-major order, an axis of the new shape can hold it
    if whole numbers of the axes before and after it make up these. Each of them is right: with a batch of 1 there may
    be several, between which nothing but later operators decide.
    """
    outer = product(old[: stack.axis]) * stack.outer
    inner = stack.inner * product(old[stack.axis + 1 :])
    found = []
    for axis, dim in enumerate(new):
        before, after = exact_div(outer, product(new[:axis])), exact_div(inner, product(new[axis + 1 :]))
        if before is not None and after is not None and before * size * after == dim:
            found.append(Stack(axis, before, after))

    def order(s: Stack) -> tuple[bool, bool, int]:
        is_last = not s.is_pure and s.axis == len(new) - 1  # of features: what is merged are the rows before them
        return not s.is_pure, s.axis != stack.axis or is_last, s.axis

    return sorted(found, key=order)


def _place(h: Here) -> Stack:
    found = placed(h.shape(0), h.need(0), h.result(), h.batch.size)
    if not found:
        raise Refusal(f"the operator splits the batch axis: {_text(h.shape(0))} to {_text(h.result())}")
    return found[0]


def _text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def reshape(h: Here) -> Stack:
    h.only(0)
    stack = _place(h)
    if h.node.op_type == "Reshape" and h.has(1) and not h.attribute("allowzero"):
        h.set_input(1, h.sizes(h.batch.free(h.result(), stack)))
    else:  # Flatten, and opset 1, where the shape is an attribute
        h.into_reshape(stack)
    return stack


def _axes(h: Here, rank: int) -> list[int] | None:
    found = h.ints("axes", 1)
    return None if found is None else [axis % rank for axis in found]


def squeeze(h: Here) -> Stack:
    """Without axes it drops the batch if that is 1; so does one that names the batch: its elements join the next."""
    h.only(0)
    stack, shape = h.need(0), h.shape(0)
    axes = _axes(h, len(shape))
    if axes is not None and stack.axis not in axes:
        return stack.moved(stack.axis - sum(axis < stack.axis for axis in axes))
    if len(h.result()) == 0:
        raise Refusal("the operator removes the batch axis")
    stack = _place(h)
    h.into_reshape(stack)
    return stack


def unsqueeze(h: Here) -> Stack:
    h.only(0)
    stack = h.need(0)
    axes = _axes(h, len(h.result()))
    if axes is None:
        raise Refusal("the axes are unknown")
    old = [axis for axis in range(len(h.result())) if axis not in axes]
    moved = stack.moved(old[stack.axis])
    if stack.is_pure:
        return moved
    found = placed(h.shape(0), stack, h.result(), h.batch.size)
    if found and found[0].is_pure:  # the batch gets back the axis that it had before a Squeeze
        h.into_reshape(found[0])
        return found[0]
    return moved


# ---- moved, joined, cut ----------------------------------------------------------------------------------------------


def transpose(h: Here) -> Stack:
    stack, rank = h.need(0), len(h.shape(0))
    perm = list(h.attribute("perm", range(rank - 1, -1, -1)))
    return stack.moved(perm.index(stack.axis))


def concat(h: Here) -> Stack:
    rank = len(h.result())
    stacks = {s for i in h.given if (s := h.stack(i)) is not None}
    axis = h.attribute("axis", 1) % rank
    if len({(s.axis, s.inner) for s in stacks}) > 1:
        raise Refusal("the inputs have the batch on different axes")
    first = next(iter(stacks))
    if first.axis == axis:
        if any(h.stack(i) is None for i in h.given):
            raise Refusal("the operator joins the samples with something that is not a sample")
        return Stack(axis, sum((h.need(i).outer for i in h.given), start=0), first.inner)
    if len(stacks) > 1:
        raise Refusal("the inputs have the batch in different places of an axis")
    for i in h.given:
        if h.stack(i) is None:
            h.lift(i, first)
    return first


def split(h: Here) -> list[Stack | None]:
    h.only(0)
    stack = h.need(0)
    if h.attribute("axis", 0) % len(h.shape(0)) != stack.axis:
        return [stack] * len(h.node.outputs)
    if len(h.node.outputs) > 1:
        raise Refusal("the operator splits the batch axis")
    h.into_reshape(stack)
    return [stack]


def slices(h: Here) -> Stack:
    """Along the batch only all of it: an end at the file's batch size is one at any."""
    h.only(0)
    stack = h.need(0)
    if h.opset < 10:
        return _old_slice(h, stack)
    starts, ends = h.numbers(1).reshape(-1), h.numbers(2).reshape(-1)
    axes = [int(a) % len(h.shape(0)) for a in h.numbers(3).reshape(-1)] if h.has(3) else list(range(len(starts)))
    if stack.axis not in axes:
        return stack
    at = axes.index(stack.axis)
    step = int(h.numbers(4).reshape(-1)[at]) if h.has(4) else 1
    if step != 1 or h.result()[stack.axis] != h.shape(0)[stack.axis]:
        raise Refusal("the operator cuts out a part of the batch")
    bounds: list[list[Dim]] = [[int(v) for v in values] for values in (starts, ends)]
    bounds[0][at], bounds[1][at] = 0, END
    h.set_input(1, h.sizes(bounds[0], "starts"))
    h.set_input(2, h.sizes(bounds[1], "ends"))
    return stack


def _old_slice(h: Here, stack: Stack) -> Stack:
    axes = [a % len(h.shape(0)) for a in h.attribute("axes", range(len(h.attribute("starts"))))]
    if stack.axis in axes:
        if h.result()[stack.axis] != h.shape(0)[stack.axis]:
            raise Refusal("the operator cuts out a part of the batch")
        at = axes.index(stack.axis)
        for name, bound in (("starts", 0), ("ends", END)):
            values = list(h.attribute(name))
            values[at] = bound
            h.node.attributes[name] = ir.AttrInt64s(name, values)
    return stack


def pad(h: Here) -> Stack:
    h.only(0)
    stack, rank = h.need(0), len(h.shape(0))
    pads = h.ints("pads", 1) or list(h.attribute("paddings", []))
    axes = [int(a) % rank for a in h.numbers(3).reshape(-1)] if h.has(3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise Refusal("the pads are unknown")
    if stack.axis in axes and any(pads[axes.index(stack.axis) :: len(axes)]):
        raise Refusal("the operator pads the batch")
    return stack


# ---- selected --------------------------------------------------------------------------------------------------------


def gather(h: Here) -> Stack:
    rank = len(h.shape(0))
    axis = h.attribute("axis", 0) % rank
    data, indices = h.stack(0), h.stack(1)
    if data is not None and indices is not None:
        raise Refusal("the operator selects with different indices from each sample")
    if indices is not None:
        return indices.moved(axis + indices.axis)
    assert data is not None
    count = len(h.shape(1))
    if data.axis != axis:
        return data if data.axis < axis else data.moved(data.axis + count - 1)
    if count == 0 and h.shape(0)[axis] == 1 and rank > 1:  # the one sample of a file's batch of 1
        stack = _place(h)
        h.into_reshape(stack)
        return stack
    return _gather_from_each(h, data)


def _gather_from_each(h: Here, stack: Stack) -> Stack:
    """Constant indices into an axis that holds the batch: from each sample the same, in the order of the samples.

    Masks are looked up so: `mask.flatten()[sample * length + position]`.
    """
    size, axis, shape = h.batch.size, stack.axis, h.shape(0)
    indices = h.numbers(1)
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
    data = h.add("Reshape", [h.value(0), h.sizes(h.batch.free(apart, Stack(axis)))], apart, "apart")
    chosen = np.squeeze(one, at)
    inputs, attributes = [data, h.integers(chosen, "indices")], {"axis": ir.AttrInt64("axis", axis + 1)}
    if at == 0:
        h.into("Gather", inputs, attributes)
        return Stack(axis)
    picked = (*shape[:axis], size, *chosen.shape, *shape[axis + 1 :])
    data = h.add("Gather", inputs, picked, "picked", attributes)
    perm = [i for i in range(len(picked)) if i != axis]
    perm.insert(axis + at, axis)
    h.into("Transpose", [data], {"perm": ir.AttrInt64s("perm", perm)})
    return Stack(axis + at)


def gather_elements(h: Here) -> Stack:
    """Both have the batch on one axis, which is not the one that is selected from."""
    stacks = {s for i in (0, 1) if (s := h.stack(i)) is not None}
    if len(stacks) != 1:
        raise Refusal("the inputs have the batch on different axes")
    (stack,) = stacks
    if stack.axis == h.attribute("axis", 0) % len(h.shape(0)):
        raise Refusal("the operator selects from the batch")
    for i in (0, 1):
        if h.stack(i) is None:
            h.lift(i, stack)
    return stack


def one_hot(h: Here) -> Stack:
    h.only(0)
    stack, rank = h.need(0), len(h.result())
    axis = h.attribute("axis", -1) % rank
    return stack if stack.axis < axis else stack.moved(stack.axis + 1)


# ---- repeated --------------------------------------------------------------------------------------------------------


def expand(h: Here) -> Stack:
    """The batch is not repeated: its size in the wanted shape is whatever it is."""
    h.only(0)
    stack = h.need(0)
    stack = stack.moved(stack.axis + len(h.result()) - len(h.shape(0)))
    if h.result()[stack.axis] != stack.size(h.batch.size):
        raise Refusal(f"the operator repeats the batch: {_text(h.shape(0))} to {_text(h.result())}")
    h.set_input(1, h.sizes([1 if axis == stack.axis else dim for axis, dim in enumerate(h.result())]))
    return stack


def tile(h: Here) -> Stack:
    h.only(0)
    stack = h.need(0)
    times = int(h.numbers(1).reshape(-1)[stack.axis])
    return Stack(stack.axis, times * stack.outer, stack.inner)


def resize(h: Here) -> Stack:
    """The batch keeps its size: a wanted size is whatever it is."""
    h.only(0)
    stack = h.need(0)
    scales = _scales(h)
    if h.result()[stack.axis] != h.shape(0)[stack.axis] or scales and scales[stack.axis] != 1:
        raise Refusal("the operator resizes the batch")
    if h.opset >= 11 and h.has(3):
        rank = len(h.shape(0))
        axes = [a % rank for a in h.attribute("axes", range(rank))]
        if stack.axis in axes:
            wanted = [int(v) for v in h.numbers(3).reshape(-1)]
            free = h.batch.free(h.result(), stack)
            h.set_input(3, h.sizes([free[a] if a == stack.axis else wanted[n] for n, a in enumerate(axes)], "sizes"))
    return stack


def _scales(h: Here) -> list[float]:
    """The factor of each axis; empty where sizes are given instead."""
    if "scales" in h.node.attributes:
        return list(h.attribute("scales"))
    at, rank = (2 if h.opset >= 11 else 1), len(h.shape(0))
    if not h.has(at) or info(h.value(at)).shape == (0,):
        return []
    found = [1.0] * rank
    for axis, scale in zip(h.attribute("axes", range(rank)), h.numbers(at).reshape(-1), strict=True):
        found[axis % rank] = float(scale)
    return found


# ---- layers ----------------------------------------------------------------------------------------------------------


def recurrent(h: Here) -> list[Stack | None]:
    """[length, batch, features] unless `layout` says otherwise; the states and lengths are each sample's own."""
    h.only(0, 4, 5, 6)
    first = bool(h.attribute("layout", 0))
    at = 0 if first else 1
    stack = h.need(0)
    if stack != Stack(at):
        raise Refusal(f"the batch is not on axis {at}")
    for i in (4, 5, 6):
        if not h.has(i):
            continue
        wanted = Stack(0 if i == 4 else at)
        if h.stack(i) is None:
            h.lift(i, wanted)
        elif h.stack(i) != wanted:
            raise Refusal(f"{h.name(i)} does not have the batch on axis {wanted.axis}")
    found: list[Stack | None] = [Stack(0 if first else 2), Stack(at), Stack(at)]
    return found[: len(h.node.outputs)]


def grid_sample(h: Here) -> Stack:
    for i in (0, 1):
        if h.stack(i) is None:
            h.lift(i, Stack(0))
        elif h.stack(i) != Stack(0):
            raise Refusal("the inputs do not have the batch first")
    return Stack(0)


RULES: dict[str, Rule] = {
    "Concat": concat,
    "Expand": expand,
    "Flatten": reshape,
    "GRU": recurrent,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GridSample": grid_sample,
    "LSTM": recurrent,
    "OneHot": one_hot,
    "Pad": pad,
    "RNN": recurrent,
    "Reshape": reshape,
    "Resize": resize,
    "Slice": slices,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
    "Upsample": resize,
}
