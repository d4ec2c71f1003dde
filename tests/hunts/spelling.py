"""Other spellings of expressions and layers."""

from __future__ import annotations

import ast
import random
import re
from typing import Any

from tests.hunts.rewriting import (
    Edited,
    Source,
    args_of,
    called,
    calls_of,
    gives_tensor,
    indent,
    is_tensor_like,
    keeps,
    layers,
    spelled,
)

# ---- other spellings of an expression --------------------------------------------------------------------------------


@spelled("view_reshape", ast.Call)
def _view(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if (
        not isinstance(n.func, ast.Attribute)
        or n.func.attr not in ("view", "reshape")
        or n.keywords
        or ast.unparse(n.func) == "torch.reshape"
    ):
        return None
    return (
        f"torch.reshape({s.of(n.func.value)}, ({', '.join(args_of(s, n))},))"
        if not isinstance(n.args[0], ast.Tuple)
        else None
    )


@spelled("flatten_reshape", ast.Call)
def _flatten(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".flatten") or len(n.args) != 1 or not isinstance(n.args[0], ast.Constant):
        return None
    assert isinstance(n.func, ast.Attribute)
    return f"(lambda v: v.reshape(*v.shape[:{n.args[0].value}], -1))({s.of(n.func.value)})"


@spelled("unflatten_view", ast.Call)
def _unflatten(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".unflatten") or len(n.args) != 2 or ast.unparse(n.args[0]) not in ("-1", "1"):
        return None
    assert isinstance(n.func, ast.Attribute)
    tail = "" if ast.unparse(n.args[0]) == "-1" else ", *v.shape[2:]"
    head = "*v.shape[:-1]" if not tail else "v.shape[0]"
    return f"(lambda v: v.reshape({head}, *{s.of(n.args[1])}{tail}))({s.of(n.func.value)})"


@spelled("transpose_spelling", ast.Call)
def _transpose(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".transpose") or len(n.args) != 2 or ast.unparse(n.func) == "torch.transpose":
        return None
    assert isinstance(n.func, ast.Attribute)
    one, other = args_of(s, n)
    return rng.choice(
        [f"{s.of(n.func.value)}.swapaxes({other}, {one})", f"torch.transpose({s.of(n.func.value)}, {other}, {one})"]
    )


@spelled("permute_spelling", ast.Call)
def _permute(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".permute") or not all(isinstance(a, ast.Constant) for a in n.args):
        return None
    assert isinstance(n.func, ast.Attribute)
    axes = [int(a.value) for a in n.args]  # type: ignore[attr-defined]
    if any(a < 0 for a in axes):
        return None
    letters = "abcdefgh"
    target = "".join(letters[a] for a in axes)
    inverse = [axes.index(i) for i in range(len(axes))]
    value = s.of(n.func.value)
    ways = [
        f"torch.einsum('{letters[: len(axes)]}->{target}', {value})",
        f"{value}.movedim({tuple(range(len(axes)))}, {tuple(inverse)})",
    ]
    return rng.choice(ways)


@spelled("double_permute", ast.Call)
def _double(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    return (
        f"{s.of(n)}.flip(0).flip(0)"
        if called(n, "F.relu", "F.gelu") and rng.random() < 0.2
        else (f"{s.of(n)}.mT.mT" if called(n, "F.gelu", "F.silu", "torch.matmul") else None)
    )


@spelled("no_op", ast.Call)
def _no_op(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not ast.unparse(n.func).startswith(("self.", "F.")) or not gives_tensor(n):
        return None
    return rng.choice(
        [f"({s.of(n)} * 1)", f"{s.of(n)}.contiguous()", f"{s.of(n)}.clone()", f"(0 + {s.of(n)})", f"(-(-{s.of(n)}))"]
    )


@spelled("swap_commutative", ast.BinOp)
def _swap(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if not isinstance(n.op, (ast.Add, ast.Mult)):
        return None
    return f"({s.of(n.right)}) {'+' if isinstance(n.op, ast.Add) else '*'} ({s.of(n.left)})"


@spelled("arithmetic", ast.BinOp)
def _arithmetic(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    one, other = f"({s.of(n.left)})", f"({s.of(n.right)})"
    if not is_tensor_like(n.left) or "shape" in ast.unparse(n) or "self." not in ast.unparse(n):
        return None
    if isinstance(n.op, ast.Add):
        return rng.choice(
            [
                f"torch.add({one}, {other})",
                f"({one} - (-{other}))",
                f"torch.sum(torch.stack([{one}, {other}]), 0)"
                if is_tensor_like(n.right) and rng.random() < 0.1
                else f"({one}).add({other})",
            ]
        )
    if isinstance(n.op, ast.Mult):
        return rng.choice([f"torch.mul({one}, {other})", f"(({one} * 2) * (0.5 * {other}))", f"(-{one} * -{other})"])
    if isinstance(n.op, ast.Div):
        return rng.choice([f"torch.div({one}, {other})", f"(({one} * 3) / (3 * {other}))"])
    if isinstance(n.op, ast.Sub):
        return rng.choice([f"({one} + (-1) * {other})", f"torch.sub({one}, {other})", f"(-({other} - {one}))"])
    return None


@spelled("matmul_spelling", ast.BinOp)
def _matmul(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if not isinstance(n.op, ast.MatMult):
        return None
    one, other = s.of(n.left), s.of(n.right)
    return rng.choice(
        [
            f"torch.matmul({one}, {other})",
            f"torch.einsum('...ij,...jk->...ik', {one}, {other})",
            f"({other}.mT @ {one}.mT).mT",
        ]
    )


@spelled("gelu", ast.Call)
def _gelu(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, "F.gelu"):
        return None
    x = s.of(n.args[0])
    if n.keywords:
        return f"(lambda v: 0.5 * v * (1 + torch.tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))))({x})"
    return rng.choice(
        [
            f"(lambda v: v * 0.5 * (1.0 + torch.erf(v / 2**0.5)))({x})",
            f"(lambda v: 0.5 * (v + v * torch.erf(v * 0.7071067811865476)))({x})",
            f"nn.GELU()({x})",
            f"(lambda v: v / 2 * (torch.special.erf(v / 1.4142135) + 1))({x})",
        ]
    )


@spelled("relu", ast.Call)
def _relu(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, "F.relu", "torch.relu") or len(n.args) != 1:
        return None
    x = s.of(n.args[0])
    ways = [
        f"torch.relu({x})",
        f"{x}.clamp(min=0)",
        f"(lambda v: torch.maximum(v, torch.zeros_like(v)))({x})",
        f"nn.ReLU()({x})",
        f"F.threshold({x}, 0, 0)",
    ]
    return rng.choice(
        [*ways, f"(lambda v: torch.where(v > 0, v, 0.0))({x})", f"(lambda v: (v + v.abs()) / 2)({x})"][
            : 6 if rng.random() < 0.9 else 7
        ]
    )


@spelled("silu_sigmoid", ast.Call)
def _silu(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    x = s.of(n.args[0]) if getattr(n, "args", None) else ""
    if called(n, "F.silu"):
        return rng.choice([f"(lambda v: v * torch.sigmoid(v))({x})", f"(lambda v: v / (1 + torch.exp(-v)))({x})"])
    if called(n, "F.sigmoid", "torch.sigmoid"):
        return f"(1 / (1 + torch.exp(-({x}))))"
    if called(n, "F.hardswish"):
        return f"(lambda v: v * F.relu6(v + 3) / 6)({x})"
    if called(n, "F.hardsigmoid"):
        return f"((({x}) + 3).clamp(0, 6) / 6)"
    if called(n, "F.leaky_relu"):
        slope = n.keywords[0].value if n.keywords else n.args[1] if len(n.args) > 1 else ast.Constant(0.01)
        return f"(lambda v: torch.where(v > 0, v, {ast.unparse(slope)} * v))({x})"
    return None


@spelled("softmax", ast.Call)
def _softmax(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    axis = next((ast.unparse(k.value) for k in getattr(n, "keywords", ()) if k.arg == "dim"), None)
    if not called(n, "F.softmax", "torch.softmax", ".softmax"):
        return None
    if called(n, ".softmax") and not called(n, "F.softmax", "torch.softmax"):
        assert isinstance(n.func, ast.Attribute)
        x, axis = s.of(n.func.value), axis or s.of(n.args[0])
    else:
        x, axis = s.of(n.args[0]), axis or s.of(n.args[1])
    return rng.choice(
        [
            f"(lambda v: (v - v.amax({axis}, keepdim=True)).exp()"
            f" / (v - v.amax({axis}, keepdim=True)).exp().sum({axis}, keepdim=True))({x})",
            f"torch.softmax({x}, {axis})",
            f"F.log_softmax({x}, {axis}).exp()" if rng.random() < 0.3 else f"nn.Softmax({axis})({x})",
        ]
    )


@spelled("tanh_method", ast.Call)
def _tanh(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if (
        called(n, "torch.tanh", "torch.sigmoid", "torch.exp", "torch.sqrt", "torch.sin", "torch.cos")
        and len(n.args) == 1
    ):
        return f"({s.of(n.args[0])}).{ast.unparse(n.func).split('.')[1]}()"
    return None


@spelled("mean_by_sum", ast.Call)
def _mean(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".mean") or len(n.args) != 1 or ast.unparse(n.func) == "torch.mean":
        return None
    assert isinstance(n.func, ast.Attribute)
    axes = n.args[0].elts if isinstance(n.args[0], ast.Tuple) else [n.args[0]]
    keep = ", ".join(f"{k.arg}={ast.unparse(k.value)}" for k in n.keywords)
    size = " * ".join(f"v.shape[{ast.unparse(a)}]" for a in axes)
    return f"(lambda v: v.sum({s.of(n.args[0])}{', ' + keep if keep else ''}) / ({size}))({s.of(n.func.value)})"


@spelled("attention_by_hand", ast.Call)
def _attention(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    words = {k.arg: s.of(k.value) for k in getattr(n, "keywords", ())}
    if not called(n, "F.scaled_dot_product_attention") or not {*words} <= {"attn_mask", "scale"} or len(n.args) != 3:
        return None
    scale = words.get("scale", "q.shape[-1] ** -0.5")
    mask = "" if "attn_mask" not in words else " + m"
    order = rng.choice(
        [
            f"(q @ k.transpose(-2, -1)) * ({scale})",
            f"torch.einsum('...id,...jd->...ij', q * ({scale}), k)",
            f"q @ (k * ({scale})).mT",
        ]
    )
    given = ", ".join([*args_of(s, n), str(words.get("attn_mask"))])
    return f"(lambda q, k, v, m: F.softmax({order}{mask}, dim=-1) @ v)({given})"


@spelled("slice_select", ast.Subscript)
def _select(s: Source, n: ast.Subscript, rng: random.Random) -> str | None:
    text = ast.unparse(n.slice)
    if ".shape" in ast.unparse(n) or not isinstance(n.ctx, ast.Load):
        return None
    if m := re.fullmatch(r"\(?:, (\d+)\)?", text.strip()):
        return f"{s.of(n.value)}.select(1, {m[1]})"
    if text in ("(:, None)", ":, None"):
        return f"{s.of(n.value)}.unsqueeze(1)"
    if text == "(:, None, None)":
        return f"{s.of(n.value)}.unsqueeze(1).unsqueeze(1)"
    return None


@spelled("cat_spelling", ast.Call)
def _cat(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    return (
        f"torch.concat({', '.join([*args_of(s, n), *(s.of(k) for k in n.keywords)])})"
        if called(n, "torch.cat")
        else None
    )


# ---- layers as functions ---------------------------------------------------------------------------------------------

CONVOLVED = ", ".join(
    ["{x}", *(f"self.{{n}}.{name}" for name in ("weight", "bias", "stride", "padding", "dilation", "groups"))]
)
CALLS = {
    "nn.Linear": "F.linear({x}, self.{n}.weight, self.{n}.bias)",
    "nn.LayerNorm": "F.layer_norm({x}, self.{n}.normalized_shape, self.{n}.weight, self.{n}.bias, self.{n}.eps)",
    "nn.Conv2d": f"F.conv2d({CONVOLVED})",
    "nn.Conv1d": f"F.conv1d({CONVOLVED})",
    "nn.Embedding": "F.embedding({x}, self.{n}.weight)",
    "nn.Dropout": "F.dropout({x}, self.{n}.p, self.training)",
    "nn.ReLU": "F.relu({x})",
    "nn.GELU": "F.gelu({x}, approximate=self.{n}.approximate)",
    "nn.SiLU": "F.silu({x})",
    "nn.Sigmoid": "torch.sigmoid({x})",
    "nn.Tanh": "torch.tanh({x})",
    "nn.Flatten": "{x}.flatten(1)",
    "nn.MaxPool2d": "F.max_pool2d({x}, self.{n}.kernel_size, self.{n}.stride, self.{n}.padding)",
    "nn.AdaptiveAvgPool2d": "F.adaptive_avg_pool2d({x}, self.{n}.output_size)",
    "nn.GroupNorm": "F.group_norm({x}, self.{n}.num_groups, self.{n}.weight, self.{n}.bias, self.{n}.eps)",
}
BY_HAND = {
    "nn.Linear": [
        "((lambda v, l: v @ l.weight.T if l.bias is None else v @ l.weight.T + l.bias)({x}, self.{n}))",
        "((lambda v, l: F.linear(v, l.weight) if l.bias is None else l.bias + F.linear(v, l.weight))({x}, self.{n}))",
        "((lambda v, l: torch.einsum('...i,oi->...o', v, l.weight)"
        " + (0 if l.bias is None else l.bias))({x}, self.{n}))",
    ],
    "nn.LayerNorm": [
        "((lambda v, l: (v - v.mean(-1, keepdim=True))"
        " / (v.var(-1, keepdim=True, unbiased=False) + l.eps).sqrt() * l.weight"
        " + (0 if l.bias is None else l.bias))({x}, self.{n}))",
        "((lambda v, l: F.layer_norm(v, l.normalized_shape, eps=l.eps) * l.weight"
        " + (0 if l.bias is None else l.bias))({x}, self.{n}))",
        "((lambda v, l: (v - v.mean(-1, True))"
        " * torch.rsqrt((v - v.mean(-1, True)).pow(2).mean(-1, True) + l.eps) * l.weight"
        " + (0 if l.bias is None else l.bias))({x}, self.{n}))",
    ],
    "nn.Conv2d": [
        "((lambda v, l: F.conv2d(v, l.weight, None, l.stride, l.padding, l.dilation, l.groups)"
        " + (0 if l.bias is None else l.bias[:, None, None]))({x}, self.{n}))"
    ],
    "nn.BatchNorm2d": [],
}


def _as_calls(source: Source, rng: random.Random, table: dict[str, Any]) -> Edited | None:
    places = [
        (name, ast.unparse(call.func), use)
        for owner, name, call in layers(source, *table)
        for use in calls_of(owner, name)
        if len(use.args) == 1
        and not isinstance(use.args[0], ast.Starred)
        and table.get(ast.unparse(call.func))
        and "padding_mode" not in ast.unparse(call)
        and "elementwise" not in ast.unparse(call)
    ]
    if not places:
        return None
    name, kind, use = rng.choice(places)
    form = table[kind] if isinstance(table[kind], str) else rng.choice(table[kind])
    x = source.of(use.args[0])
    x = f"({x})" if form.startswith("{x}.") else x
    return source.replaced((use, form.replace("{x}", x).replace("{n}", name)))


@keeps
def layer_as_function(source: Source, rng: random.Random) -> Edited | None:
    return _as_calls(source, rng, CALLS)


@keeps
def layer_by_hand(source: Source, rng: random.Random) -> Edited | None:
    return _as_calls(source, rng, BY_HAND)


@keeps
def split_linear(source: Source, rng: random.Random) -> Edited | None:
    """Compute a linear layer by halves of its outputs."""
    halves = (
        "((lambda v, l: torch.cat([F.linear(v, w, b) for w, b in zip(l.weight.split([1, l.weight.shape[0] - 1]),"
        " (None, None) if l.bias is None else l.bias.split([1, l.weight.shape[0] - 1]))], -1))({x}, self.{n}))"
    )
    table = {"nn.Linear": halves}
    return _as_calls(source, rng, table)


@keeps
def activation_as_layer(source: Source, rng: random.Random) -> Edited | None:
    """Make `F.relu` an `nn.ReLU` of the class."""
    kinds = {
        "F.relu": "nn.ReLU()",
        "F.gelu": "nn.GELU()",
        "F.silu": "nn.SiLU()",
        "torch.tanh": "nn.Tanh()",
        "torch.sigmoid": "nn.Sigmoid()",
    }
    places = []
    for owner, init in source.methods(True):
        for node in ast.walk(owner):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in kinds
                and len(node.args) == 1
                and not node.keywords
                and init not in ()
            ):
                if node.lineno > (init.end_lineno or 0):
                    places.append((init, node))
    if not places:
        return None
    init, node = rng.choice(places)
    last = init.body[-1]
    return source.replaced(
        (node.func, "self.activation_of_mine"),
        (last, f"{source.of(last)}\n{indent(last)}self.activation_of_mine = {kinds[ast.unparse(node.func)]}"),
    )
