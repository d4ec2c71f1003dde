"""Edits that change the function."""

from __future__ import annotations

import ast
import random
import re

from tests.hunts.rewriting import (
    Edited,
    Source,
    args_of,
    called,
    changes,
    drawn,
    gives_tensor,
    indent,
    is_tensor_like,
    layers,
    made,
    spelled,
    with_helper,
)

# ---- edits that change the function ----------------------------------------------------------------------------------


def _init_attribute(source: Source, node: ast.AST) -> set[str]:
    for owner in source.classes():
        for name, statement in made(owner).items():
            if node in ast.walk(statement):
                return {name}
    return set()


@changes
def epsilon(source: Source, rng: random.Random) -> Edited | None:
    nodes = [
        k
        for k in ast.walk(source.tree)
        if isinstance(k, ast.keyword) and k.arg == "eps" and isinstance(k.value, ast.Constant)
    ]
    node = drawn(rng, nodes)
    if node is not None:
        return source.replaced(
            (node.value, repr(rng.choice([10, 100]) * node.value.value)), attributes=_init_attribute(source, node)
        )
    found = drawn(rng, layers(source, "nn.LayerNorm", "nn.BatchNorm2d", "nn.BatchNorm1d", "nn.GroupNorm"))
    if found is None:
        return None
    _, name, call = found
    return source.replaced((call, f"{source.of(call)[:-1]}, eps=1e-3)"), attributes={name})


@spelled("swap_operands", ast.BinOp, keep=False)
def _swapped(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    signs = {ast.Sub: "-", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}
    sign = signs.get(type(n.op))
    return f"({s.of(n.right)}) {sign} ({s.of(n.left)})" if sign and "shape" not in ast.unparse(n) else None


@spelled("swap_arguments", ast.Call, keep=False)
def _arguments(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if called(n, "F.scaled_dot_product_attention", "torch.cat", "torch.stack"):
        if isinstance(n.args[0], (ast.List, ast.Tuple)):
            parts = [s.of(e) for e in n.args[0].elts][::-1]
            rest = [s.of(k) for k in (*n.args[1:], *n.keywords)]
            return f"{s.of(n.func)}([{', '.join(parts)}], {', '.join(rest)})" if len(parts) > 1 else None
        given = args_of(s, n)
        given[:2] = given[1::-1] if rng.random() < 0.5 else [given[0], given[1]]
        given[1:3] = given[2:0:-1]
        return f"{s.of(n.func)}({', '.join([*given, *(s.of(k) for k in n.keywords)])})"
    return None


@spelled("drop_scale", ast.BinOp, keep=False)
def _scale(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if (
        isinstance(n.op, (ast.Mult, ast.Div))
        and "shape" not in ast.unparse(n)
        and is_tensor_like(n.left)
        and is_tensor_like(n)
    ):
        return (
            f"({s.of(n.left)})"
            if "self" in ast.unparse(n) or "torch" in ast.unparse(n) or isinstance(n.right, ast.Constant)
            else None
        )
    return None


@spelled("skip_residual", ast.BinOp, keep=False)
def _residual(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if isinstance(n.op, ast.Add) and is_tensor_like(n.left) and is_tensor_like(n.right):
        return f"({s.of(rng.choice([n.left, n.right]))})"
    return None


@spelled("another_sign", ast.BinOp, keep=False)
def _sign(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if isinstance(n.op, ast.Add) and is_tensor_like(n.left):
        return f"({s.of(n.left)}) - ({s.of(n.right)})"
    return None


@spelled("another_number", ast.Constant, keep=False)
def _constant(s: Source, n: ast.Constant, rng: random.Random) -> str | None:
    return repr(n.value * rng.choice([1.001, 1.01, 2])) if isinstance(n.value, float) and n.value else None


@spelled("another_axis", ast.Call, keep=False)
def _axis(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if called(
        n,
        ".transpose",
        ".mean",
        ".sum",
        ".softmax",
        "F.softmax",
        "torch.cat",
        ".permute",
        ".unbind",
        ".select",
        ".amax",
    ):
        nodes = [
            a
            for a in ast.walk(n)
            if isinstance(a, ast.Constant) and type(a.value) is int and a in (*n.args, *(k.value for k in n.keywords))
        ]
        node = drawn(rng, nodes)
        if node is None:
            return None
        if called(n, ".permute"):
            given = args_of(s, n)
            i, j = rng.sample(range(len(given)), 2)
            given[i], given[j] = given[j], given[i]
            return f"{s.of(n.func)}({', '.join(given)})"
        inner = Source(s.of(n))
        target = next(
            c
            for c in ast.walk(inner.tree)
            if isinstance(c, ast.Constant)
            and c.value == node.value
            and c.col_offset == (node.col_offset - n.col_offset if node.lineno == n.lineno else -1)
        )
        return inner.replaced(
            (target, str(max(0, node.value - 1) if node.value and rng.random() < 0.5 else node.value + 1))
        ).text
    return None


@spelled("other_activation", ast.Call, keep=False)
def _activation(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    others = {
        "F.relu": "F.relu6",
        "F.gelu": "F.silu",
        "F.silu": "F.gelu",
        "torch.tanh": "torch.sigmoid",
        "torch.sigmoid": "torch.tanh",
        "F.hardswish": "F.silu",
        "F.softmax": "F.log_softmax",
    }
    new = others.get(ast.unparse(n.func))
    if new and called(n, "F.gelu") and rng.random() < 0.5:
        return f"F.gelu({s.of(n.args[0])}, approximate='tanh')"
    return f"{new}({', '.join([*args_of(s, n), *(s.of(k) for k in n.keywords)])})" if new else None


@spelled("drop_call", ast.Call, keep=False)
def _drop(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    """Skip a layer or an activation: if shapes fit, the module still runs."""
    return f"({s.of(n.args[0])})" if (ast.unparse(n.func).startswith(("self.", "F.")) and len(n.args) == 1) else None


@changes
def layer_setting(source: Source, rng: random.Random) -> Edited | None:
    """Change a number or a flag of a layer's constructor."""
    places = [
        (name, k)
        for _, name, call in layers(
            source, *{ast.unparse(c.func) for c in ast.walk(source.tree) if isinstance(c, ast.Call)}
        )
        for k in call.keywords
    ]
    places = [
        (n, k)
        for n, k in places
        if k.arg
        in ("stride", "padding", "dilation", "bias", "p", "momentum", "affine", "kernel_size", "ceil_mode", "num_heads")
    ]
    found = drawn(rng, places)
    if found is None:
        return None
    name, keyword = found
    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    if value is None:
        return None
    new = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2
    return source.replaced((keyword.value, repr(new)), attributes={name})


@changes
def dropout_rate(source: Source, rng: random.Random) -> Edited | None:
    found = drawn(rng, layers(source, "nn.Dropout", "nn.Dropout2d", "nn.Dropout1d"))
    if found is None:
        return None
    _, name, call = found
    kind = ast.unparse(call.func)
    return source.replaced((call, f"{kind}(0.37)"), attributes={name})


@changes
def norm_momentum(source: Source, rng: random.Random) -> Edited | None:
    found = drawn(rng, layers(source, "nn.BatchNorm2d", "nn.BatchNorm1d", "nn.BatchNorm3d"))
    if found is None:
        return None
    _, name, call = found
    return (
        source.replaced((call, f"{source.of(call)[:-1]}, momentum=0.3)"), attributes={name})
        if "momentum" not in source.of(call)
        else None
    )


@changes
def train_mode_only(source: Source, rng: random.Random) -> Edited | None:
    owner = drawn(rng, [o for o in source.classes() if source.forward(o)])
    forward = source.forward(owner) if owner else None
    last = forward.body[-1] if forward else None
    if not isinstance(last, ast.Return) or isinstance(last.value, ast.Tuple):
        return None
    space, value = indent(last), source.of(last.value)  # type: ignore[arg-type]
    new = f"answer = {value}\n{space}if self.training:\n{space}    answer = answer * 1.01\n{space}return answer"
    return source.replaced((last, new))


@changes
def untie(source: Source, rng: random.Random) -> Edited | None:
    nodes = [
        s
        for _, m in source.methods(True)
        for s in m.body
        if isinstance(s, ast.Assign)
        and re.fullmatch(r"self\.[\w.\[\]]+\.(weight|bias) = self\.[\w.\[\]]+\.(weight|bias)", ast.unparse(s))
    ]
    node = drawn(rng, nodes)
    return (
        source.replaced((node, "pass"), attributes={ast.unparse(node.targets[0]).split(".")[1]})
        if node is not None
        else None
    )


@changes
def tie(source: Source, rng: random.Random) -> Edited | None:
    """Give two layers of one class one weight."""
    for owner in source.classes():
        found = [(n, c) for o, n, c in layers(source, "nn.Linear", "nn.LayerNorm") if o is owner]
        for (a, one), (b, other) in zip(found, found[1:], strict=False):
            if ast.unparse(one) == ast.unparse(other):
                statement = made(owner)[b]
                return source.replaced(
                    (statement, f"{source.of(statement)}\n{indent(statement)}self.{b}.weight = self.{a}.weight"),
                    attributes={a, b},
                )
    return None


@changes
def freeze(source: Source, rng: random.Random) -> Edited | None:
    found = drawn(rng, layers(source, "nn.Linear", "nn.Conv2d", "nn.LayerNorm", "nn.Embedding"))
    if found is None:
        return None
    owner, name, _ = found
    statement = made(owner)[name]
    return source.replaced(
        (statement, f"{source.of(statement)}\n{indent(statement)}self.{name}.requires_grad_(False)"), attributes={name}
    )


@changes
def detached(source: Source, rng: random.Random) -> Edited | None:
    nodes = [n for n in source.found(ast.Call) if gives_tensor(n)]
    node = drawn(rng, nodes)
    return source.replaced((node, f"{source.of(node)}.detach()"), hidden=True) if node is not None else None


@changes
def without_gradient(source: Source, rng: random.Random) -> Edited | None:
    blocks = [
        (b[i])
        for b, i in source.statements()
        if isinstance(b[i], ast.Assign) and any(isinstance(n, ast.Call) and gives_tensor(n) for n in ast.walk(b[i]))
    ]
    node = drawn(rng, blocks)
    return (
        source.replaced((node, f"with torch.no_grad():\n{indent(node)}    {source.of(node)}"), hidden=True)
        if node is not None and "\n" not in source.of(node)
        else None
    )


@changes
def shorter_loop(source: Source, rng: random.Random) -> Edited | None:
    loops = [
        n for n in source.found(ast.For) if ast.unparse(n.iter).startswith("self.") and "(" not in ast.unparse(n.iter)
    ]
    node = drawn(rng, loops)
    return (
        source.replaced((node.iter, f"{source.of(node.iter)}[{rng.choice(['1:', ':-1', '::-1'])}]"))
        if node is not None
        else None
    )


@changes
def one_sample_only(source: Source, rng: random.Random) -> Edited | None:
    """Compute something else for one sample."""
    return _guarded(source, "{x}.shape[0] == 1", rng)


@changes
def many_samples_only(source: Source, rng: random.Random) -> Edited | None:
    return _guarded(source, "{x}.shape[0] > 64", rng)


@changes
def large_values_only(source: Source, rng: random.Random) -> Edited | None:
    return _guarded(source, "bool(({x}.double() > 1e5).any())", rng)


@changes
def second_call_only(source: Source, rng: random.Random) -> Edited | None:
    """Compute something else from the third call on."""
    edited = _guarded(source, "counted()", rng)
    if edited is not None:
        edited.text = with_helper(
            edited.text, "CALLS = []\n\n\ndef counted():\n    CALLS.append(1)\n    return len(CALLS) > 500\n"
        )
    return edited


def _guarded(source: Source, condition: str, rng: random.Random) -> Edited | None:
    owner = source.classes()[-1]
    forward = source.forward(owner)
    last = forward.body[-1] if forward else None
    if (
        forward is None
        or len(forward.args.args) < 2
        or not isinstance(last, ast.Return)
        or isinstance(last.value, ast.Tuple)
    ):
        return None
    if "shape" in condition and re.search(r"Inputs +\S+ +\S+ +\[\d", source.text):  # the file takes one size only
        return None
    first, space = forward.args.args[1].arg, indent(last)
    stored = {n.id for n in ast.walk(forward) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if first in stored:
        return None
    value = source.of(last.value)  # type: ignore[arg-type]
    condition = condition.replace("{x}", first)
    rows = (f"answer = {value}", f"if {condition}:", "    answer = answer * 1.01", "return answer")
    new = f"\n{space}".join(rows)
    return source.replaced((last, new), hidden=True)


@changes
def clamp_large(source: Source, rng: random.Random) -> Edited | None:
    node = drawn(rng, [n for n in source.found(ast.Call) if gives_tensor(n)])
    return source.replaced((node, f"{source.of(node)}.clamp(max=1e6)"), hidden=True) if node is not None else None


@changes
def rounded(source: Source, rng: random.Random) -> Edited | None:
    node = drawn(rng, [n for n in source.found(ast.Call) if gives_tensor(n)])
    new = drawn(rng, [".half().float()", ".int().float()", ".round()", ".bool().float()", ".abs()"])
    return (
        source.replaced((node, f"{source.of(node)}{new}"), hidden=new == ".half().float()")
        if node is not None
        else None
    )


@changes
def in_place(source: Source, rng: random.Random) -> Edited | None:
    """Change a value in place that is read again."""
    block = [
        (b, i)
        for b, i in source.statements()
        if isinstance(b[i], ast.Assign) and isinstance(b[i].targets[0], ast.Name) and i + 1 < len(b)
    ]
    found = drawn(rng, block)
    if found is None:
        return None
    node = found[0][found[1]]
    name = ast.unparse(node.targets[0])
    return source.replaced((node, f"{source.of(node)}\n{indent(node)}{name}.mul_(1.25)"))
