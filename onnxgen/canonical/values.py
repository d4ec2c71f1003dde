"""Compute terms: of parameters and constants, and of inputs where they are given. All floats are float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.canonical.terms import Term, Terms
from onnxgen.canonical.views import Pattern

LEAVES = ("parameter", "frozen")
HIDDEN = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"})


class Unknown(Exception):
    """A term has no value: it depends on something that is not given."""


class Values:
    """The elements of terms."""

    def __init__(self, terms: Terms, leaves: Mapping[Term, Tensor]) -> None:
        """`leaves`: the elements of parameters and buffers; those of others are unknown."""
        self.terms, self.leaves = terms, leaves
        self.known: dict[Term, Any] = {}

    def of(self, term: Term) -> Tensor:
        """Return a term's elements. Raises `Unknown`."""
        todo = [term]
        while todo:
            part = todo[-1]
            missing = [p for p in part.parts() if p not in self.known] if part not in self.known else []
            if missing:
                todo += missing
                continue
            todo.pop()
            if part not in self.known:
                self.known[part] = self._computed(part)
        return self.known[term]  # type: ignore[no-any-return]

    def _computed(self, term: Term) -> Any:
        of = self.known.__getitem__
        match term.op:
            case "parameter" | "frozen" | "input":
                return self._leaf(term)
            case "constant":
                return _wide(self.terms.elements[term])
            case "view":
                return viewed(of(term.args[0]), term.args[1])
            case "reshape":
                return of(term.args[0]).reshape(term.shape)
            case "expand":
                return of(term.args[0]).expand(term.shape)
            case "slice":
                return of(term.args[0])[region(term)]
            case "cat":
                return torch.cat([of(piece) for piece in term.args[0]], term.args[1])
            case "sum":
                return _sum(term, of)
            case "contract" | "amax" | "amin":
                return _contraction(term, of)
            case "each" if term.args[0] in EACH:
                return EACH[term.args[0]](*(of(part) for part in term.args[2:]), *term.args[1]).expand(term.shape)
            case "call":
                return _called(term, of)
            case "item":
                return of(term.args[0])[term.args[1]]
            case "detach":
                return of(term.args[0])
        raise Unknown(term.op)

    def _leaf(self, term: Term) -> Tensor:
        if term not in self.leaves:
            raise Unknown(str(term.args[0]))
        return _wide(self.leaves[term])


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double() if tensor.is_floating_point() else tensor.detach().cpu()


def region(term: Term) -> tuple[slice, ...]:
    """Return the index of a slice."""
    base, axis, start, stop, step = term.args
    return tuple(slice(start, stop, step) if i == axis else slice(None) for i in range(len(base.shape)))


def viewed(tensor: Tensor, pattern: Pattern) -> Tensor:
    split = tensor.reshape(pattern.sizes).permute([n for group in pattern.groups for n in group])
    return split.reshape(pattern.shape)


EACH: dict[str, Any] = {
    "power": lambda x, exponent: x**exponent,
    "cast": lambda x, name: x.double() if "float" in name else x.to(getattr(torch, name)),
    "where": lambda condition, one, other: torch.where(condition.bool(), one, other),
    "nothing_for_nan": lambda x: x.nan_to_num(0.0),
    **{
        name: getattr(torch, name)
        for name in """exp log tanh erf sin cos tan abs sign floor ceil round trunc log1p expm1 log2 log10 logical_not
        bitwise_not isnan isinf asin acos atan sinh cosh erfc exp2 sigmoid maximum minimum lt le eq ne logical_and
        logical_or bitwise_and bitwise_or""".split()
    },
}


def _sum(term: Term, of: Callable[[Term], Tensor]) -> Tensor:
    kind = torch.float64 if "float" in term.dtype else getattr(torch, term.dtype)
    total = torch.zeros((), dtype=kind)
    for monomial, coefficient in term.args[0]:
        part: Any = torch.tensor(coefficient, dtype=kind)
        for factor, exponent in monomial:
            part = part * of(factor) ** exponent
        total = total + part
    return total.to(kind).expand(term.shape)


def labelled(tensor: Tensor, axes: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Return an operand of a contraction with an axis for each label, and the labels."""
    labels = [n for group in axes for n in group]
    return tensor.reshape([sizes[n] for n in labels]), labels


def _contraction(term: Term, of: Callable[[Term], Tensor]) -> Tensor:
    operands, out, sizes = term.args
    parts = [labelled(of(operand), axes, sizes) for operand, axes in operands]
    if term.op == "contract":
        flat = [
            value for pair in ((t.double() if t.is_floating_point() else t, ls) for t, ls in parts) for value in pair
        ]
        return torch.einsum(*flat, list(out))
    ((tensor, labels),) = parts
    reduced = [i for i, label in enumerate(labels) if label not in out]
    result = getattr(torch, term.op)(tensor, reduced)
    kept = [label for label in labels if label in out]
    return result.permute([kept.index(label) for label in out])  # type: ignore[no-any-return]


def _called(term: Term, of: Callable[[Term], Tensor]) -> Any:
    def value(part: Any) -> Any:
        if isinstance(part, Term):
            return of(part)
        if isinstance(part, tuple):
            return [value(p) for p in part]
        return part

    name, *rest = term.args
    given = [value(part) for part in rest]
    if name in CALLS:
        return CALLS[name](term, *given)
    if "::" not in name or any(isinstance(p, tuple) and p and p[0] == "drawn" for p in rest):
        raise Unknown(name)
    package, _, operator = name.partition("::")
    function, _, overload = operator.partition(".")
    target = getattr(getattr(getattr(torch.ops, package), function), overload or "default")
    names = [a for a in target._schema.arguments if a.name not in HIDDEN]
    keywords = {}
    for argument, part in zip(names, given):
        if "ScalarType" in str(argument.real_type) and isinstance(part, str):
            part = torch.float64 if "float" in part else getattr(torch, part)
        keywords[argument.name] = part
    try:
        return target(**keywords)
    except Exception as error:
        raise Unknown(f"{name}: {error}") from error


def _conv(term: Term, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    stride, padding, dilation, groups = rest
    function = (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3]
    return function(x, weight, None, stride, padding, dilation, groups)


def _index(term: Term, table: Tensor, indices: Sequence[Any], *_: Any) -> Tensor:
    return torch.ops.aten.index.Tensor(table, list(indices))  # type: ignore[no-any-return]


def _max_pool(term: Term, x: Tensor, *rest: Any) -> Any:
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(rest[0]) - 1](x, *rest)


def _avg_pool(term: Term, x: Tensor, *rest: Any) -> Any:
    return (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(rest[0]) - 1](x, *rest)


CALLS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pad": lambda term, x, pads: F.pad(x, list(pads)),
    "softplus": lambda term, x: F.softplus(x),
    "causal": lambda term: torch.ones(term.shape, dtype=torch.bool).tril(),
    "aten::index.Tensor": _index,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
}
