"""The steps of a PyTorch module, whose tensors may be on `meta`: nothing is computed. Imports torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.identify.reading import convolution, heads_of, norm_detail, numbers, vector
from onnxgen.identify.steps import NOTHING, Network, Sources, Table

UNARY = {
    **{name: name for name in ("relu", "relu6", "hardswish", "hardsigmoid", "sigmoid", "tanh", "silu", "mish")},
    **{name: name for name in ("elu", "selu", "prelu", "softplus", "softmax")},
    "log_softmax": "softmax",
    "_softmax": "softmax",
    "_prelu_kernel": "prelu",
}
BINARY = {
    **dict.fromkeys(("add", "__add__", "__radd__", "__iadd__"), "add"),
    **dict.fromkeys(("sub", "__sub__", "__rsub__", "__isub__", "rsub"), "sub"),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "__imul__", "multiply"), "mul"),
    **dict.fromkeys(("div", "__truediv__", "__rtruediv__", "__itruediv__", "true_divide"), "div"),
}
PRODUCTS = ("matmul", "__matmul__", "bmm", "mm", "einsum")
CATS = ("cat", "concat", "concatenate", "hstack")

# Layers of libraries that are one operator, written as several functions.
WRITTEN_OUT = {
    r"\w*RMSNorm|T5LayerNorm|RmsNorm\w*": "rms",
    r"QuickGELUActivation": "silu 1.7",
    r"NewGELUActivation|PytorchGELUTanh|FastGELUActivation|GELUTanh": "gelu tanh",
}


def steps_of_module(module: nn.Module, *inputs: Tensor, **named: Tensor) -> Network:
    """Return the steps of a module for these inputs, in evaluation mode."""
    module.eval()
    tracing = _Tracing(module)
    with torch.no_grad(), _written_out(module, tracing), tracing:
        result = module(*inputs, **named)
    tracing.network.outputs = NOTHING.union(*map(tracing.of, tensors_in(result)))
    return tracing.network


@contextmanager
def _written_out(module: nn.Module, tracing: _Tracing) -> Iterator[None]:
    with ExitStack() as stack:
        part: Any
        for part in module.modules():
            for pattern, kind in WRITTEN_OUT.items():
                if re.fullmatch(pattern, type(part).__name__) and not any(part.children()):
                    before = part.__dict__.get("forward")
                    part.forward = _one_step(part, kind, tracing)
                    stack.callback(_put_back, part, before)
        yield


def _put_back(part: nn.Module, before: Any) -> None:
    del part.__dict__["forward"]
    if before is not None:
        part.__dict__["forward"] = before


def _one_step(part: nn.Module, kind: str, tracing: _Tracing) -> Callable[..., Tensor]:
    def forward(x: Tensor, *_: Any, **__: Any) -> Tensor:
        taken = tracing.of(x)
        tracing.paused = True
        out = x.clone()
        tracing.paused = False
        weight = getattr(part, "weight", None)
        if kind == "rms" and isinstance(weight, Tensor):
            taken = tracing.network.add("norm", f"rms {weight.numel()}", taken)
        elif kind != "rms" and taken:
            first, _, rest = kind.partition(" ")
            taken = tracing.network.add(first, rest, taken)
        tracing.note(out, taken)
        return out

    return forward


class _Tracing(TorchFunctionMode):
    """Sees every function of torch that a module calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.network, self.paused = Network(), False
        self.kept: dict[int, Tensor] = {}
        self.sources: dict[int, Sources] = {}
        self.fixed = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def of(self, value: Any) -> Sources:
        return self.sources.get(id(value), NOTHING) if isinstance(value, Tensor) else NOTHING

    def note(self, result: Any, sources: Sources) -> None:
        for tensor in tensors_in(result):
            self.kept[id(tensor)] = tensor
            if sources:
                self.sources[id(tensor)] = sources
            else:
                self.sources.pop(id(tensor), None)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self.paused:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        given = list(tensors_in((args, kwargs)))
        rule = RULES.get(name)
        result = func(*args, **kwargs)
        if not any(True for _ in tensors_in(result)) and name != "__setitem__":
            return result
        if name.startswith("__get__") or name == "__get__":
            self.derived(func, given, result)
            return result
        if rule is not None:
            sources = rule(self, args, kwargs, result)
        elif (plain := name.rstrip("_") if not name.startswith("__") else name) in UNARY:
            taken = NOTHING.union(*map(self.of, given))
            sources = self.network.add(UNARY[plain], "", taken) if taken else taken
        elif BINARY.get(plain) == "mul" and len(given) == 2 and (size := self.scaled(given)):
            sources = self.network.scale(size, NOTHING.union(*map(self.of, given)))
        elif (plain in BINARY) or plain in CATS:
            sources = self.network.join(BINARY.get(plain, "cat"), "", map(self.of, given))
        else:
            sources = NOTHING.union(*map(self.of, given))
        if name == "__setitem__":
            self.note(args[0], sources)
            return result
        self.derived(func, given, result)
        self.note(result, sources)
        return result

    def scaled(self, operands: Sequence[Tensor]) -> int:
        """Return the size of the fixed vector that the other operand is multiplied by, or 0."""
        fixed = [tensor for tensor in operands if id(tensor) in self.fixed]
        return vector(fixed[0].shape) if len(fixed) == 1 and any(map(self.of, operands)) else 0

    def derived(self, func: Any, given: list[Tensor], result: Any) -> None:
        """Note that what is made of fixed tensors alone is fixed."""
        if given and all(id(tensor) in self.fixed for tensor in given):
            for tensor in tensors_in(result):
                self.kept[id(tensor)] = tensor
                self.fixed.add(id(tensor))
        elif any(self.of(tensor) for tensor in given) and len(given) == 1:
            self.note(result, self.of(given[0]))

    # ---- rules ----

    def conv(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, transposed: bool = False) -> Sources:
        names: tuple[str, ...] = ("input", "weight", "bias", "stride", "padding")
        names += ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        weight, rank = given["weight"], given["weight"].dim() - 2
        groups, taken = given.get("groups", 1), self.of(given["input"])
        if self.of(weight):
            return self.network.add("conv", "computed", taken | self.of(weight))
        out, wide = weight.shape[0], weight.shape[1] * groups
        if transposed:
            out, wide = weight.shape[1] * groups, weight.shape[0]
        strides, spaces = (_many(given.get(name, 1), rank) for name in ("stride", "dilation"))
        return convolution(self.network, wide, out, weight.shape[2:], strides, spaces, groups, transposed, taken)

    def transposed(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        return self.conv(args, kwargs, result, transposed=True)

    def linear(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        x, weight = (*args, *kwargs.values())[:2]
        return self.network.dense(weight.shape[1], weight.shape[0], self.of(x))

    def addmm(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        return self.product(args[1:3], {}, result)

    def product(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        operands = list(tensors_in((args, kwargs)))[:2]
        for x, matrix, left in ((operands[0], operands[-1], False), (operands[-1], operands[0], True)):
            if id(matrix) in self.fixed and matrix.dim() >= 2 and len(operands) == 2:
                wide, out = matrix.shape[-2:][::-1] if left else matrix.shape[-2:]
                return self.network.dense(wide, out, self.of(x))
        first, second = self.of(operands[0]), self.of(operands[-1])
        if not first or not second:
            return first | second
        return self.network.add("product", heads_of(list(operands[0].shape)), first | second)

    def attention(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        query, key, value = [*args, *(kwargs[n] for n in ("query", "key", "value") if n in kwargs)][:3]
        return self.network.attention(heads_of(list(query.shape)), *map(self.of, (query, key, value)))

    def multihead(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        given = {**dict(zip(MULTIHEAD, args, strict=False)), **kwargs}
        width, heads, query = given["embed_dim_to_check"], given["num_heads"], given["query"]
        parts: dict[int, Sources] = {}  # one layer for each of the three that is another tensor
        given_ones = [given[name] for name in ("query", "key", "value")]
        for x in given_ones:
            if id(x) not in parts:
                wide = width * sum(x is other for other in given_ones)
                parts[id(x)] = self.network.dense(x.shape[-1], wide, self.of(x))
        mixed = self.network.attention(str(heads), *(parts[id(x)] for x in given_ones))
        return self.network.dense(width, query.shape[-1], mixed)

    def layer_norm(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        given = {**dict(zip(("input", "normalized_shape", "weight"), args, strict=False)), **kwargs}
        taken = self.of(given["input"])
        if given.get("weight") is None:
            return taken
        return self.network.add("norm", f"layer {prod(given['normalized_shape'])}", taken)

    def rms_norm(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        given = {**dict(zip(("input", "normalized_shape", "weight"), args, strict=False)), **kwargs}
        taken = self.of(given["input"])
        if given.get("weight") is None:
            return taken
        return self.network.add("norm", f"rms {prod(given['normalized_shape'])}", taken)

    def group_norm(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        x, groups = (*args, *kwargs.values())[:2]
        return self.network.add("norm", norm_detail("group", x.shape[1], groups), self.of(x))

    def instance_norm(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        x = (*args, *kwargs.values())[0]
        return self.network.add("norm", norm_detail("instance", x.shape[1], 0), self.of(x))

    def embedding(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        rows, table = (*args, *kwargs.values())[:2]
        if id(rows) not in self.fixed:
            self.network.tables.append(Table(*table.shape))
        return NOTHING

    def gelu(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        way = kwargs.get("approximate", args[1] if len(args) > 1 else "none")
        return self.one("gelu", "" if way == "none" else "tanh", args[0])

    def leaky(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        slope = kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
        return self.one("leaky", f"{slope:.3g}", args[0])

    def clamp(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        names = ("min_val", "max_val") if "min_val" in kwargs or "max_val" in kwargs else ("min", "max")
        limits = [kwargs.get(name, args[at] if len(args) > at else None) for at, name in enumerate(names, 1)]
        if limits == [0, 6]:
            return self.one("relu6", "", args[0])
        return self.one("relu", "", args[0]) if limits == [0, None] else self.of(args[0])

    def addcmul(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        added, *factors = (*args, *kwargs.values())[:3]
        size = self.scaled(factors)
        taken = NOTHING.union(*map(self.of, factors))
        product = self.network.scale(size, taken) if size else self.network.join("mul", "", map(self.of, factors))
        return self.network.join("add", "", (self.of(added), product))

    def glu(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        taken = self.of(args[0])
        return self.network.join("mul", "", (taken, self.one("sigmoid", "", args[0])))

    def pool(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        given = {**dict(zip(("input", "kernel_size", "stride"), args, strict=False)), **kwargs}
        rank = given["input"].dim() - 2
        kernel = _many(given["kernel_size"], rank)
        stride = given.get("stride") or kernel
        return self.one("maxpool", numbers(kernel, _many(stride, rank)), given["input"])

    def recurrent(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, name: str = "lstm") -> Sources:
        weights, layers, both = args[2], args[4], args[7]
        taken, hidden = self.of(args[0]), weights[1].shape[1]
        for _ in range(layers):
            taken = self.network.add("recurrent", f"{name} {hidden} {1 + both}", taken)
        return taken

    def gru(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Sources:
        return self.recurrent(args, kwargs, result, "gru")

    def one(self, kind: str, detail: str, x: Any) -> Sources:
        taken = self.of(x)
        return self.network.add(kind, detail, taken) if taken else taken


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested sequences and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_in(inner)


def _many(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


MULTIHEAD = ("query", "key", "value", "embed_dim_to_check", "num_heads")
Rule = Callable[[_Tracing, Sequence[Any], Mapping[str, Any], Any], Sources]
RULES: dict[str, Rule] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _Tracing.conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _Tracing.transposed),
    **dict.fromkeys(PRODUCTS, _Tracing.product),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d", "boolean_dispatch"), _Tracing.pool),
    **dict.fromkeys(("clamp", "clamp_", "hardtanh", "hardtanh_"), _Tracing.clamp),
    **dict.fromkeys(("leaky_relu", "leaky_relu_"), _Tracing.leaky),
    **dict.fromkeys(("addmm", "baddbmm"), _Tracing.addmm),
    "addcmul": _Tracing.addcmul,
    "linear": _Tracing.linear,
    "scaled_dot_product_attention": _Tracing.attention,
    "multi_head_attention_forward": _Tracing.multihead,
    "layer_norm": _Tracing.layer_norm,
    "rms_norm": _Tracing.rms_norm,
    "group_norm": _Tracing.group_norm,
    "instance_norm": _Tracing.instance_norm,
    "embedding": _Tracing.embedding,
    "gelu": _Tracing.gelu,
    "glu": _Tracing.glu,
    "lstm": _Tracing.recurrent,
    "gru": _Tracing.gru,
}
