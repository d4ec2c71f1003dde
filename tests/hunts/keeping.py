"""Edits of names, statements, classes and loops that keep the function."""

from __future__ import annotations

import ast
import random
import re
from copy import deepcopy

from tests.hunts.rewriting import (
    COMMON,
    Edited,
    Source,
    called,
    calls_of,
    drawn,
    indent,
    keeps,
    layers,
    made,
    with_helper,
)

# ---- names -----------------------------------------------------------------------------------------------------------


def _renamable(source: Source) -> list[str]:
    names = {name for owner in source.classes() for name in made(owner)}
    return sorted(n for n in names if n not in COMMON and f'"{n}"' not in source.text and len(n) > 1)


@keeps
def rename_attribute(source: Source, rng: random.Random) -> Edited | None:
    name = drawn(rng, _renamable(source))
    return Edited(re.sub(rf"\.{name}\b", f".my_{name}", source.text)) if name else None


@keeps
def rename_all(source: Source, rng: random.Random) -> Edited | None:
    text, names = source.text, _renamable(source)
    for number, name in enumerate(names):
        text = re.sub(rf"\.{name}\b", f".part{number}", text)
    return Edited(text) if names else None


@keeps
def rename_class(source: Source, rng: random.Random) -> Edited | None:
    name = drawn(rng, (c.name for c in source.classes()[:-1]))
    return (
        Edited(re.sub(rf"(?<![.\w]){name}\b(?!\()|(?<![.\w]){name}\b(?=\()", f"My{name}", source.text))
        if name
        else None
    )


@keeps
def rename_local(source: Source, rng: random.Random) -> Edited | None:
    for _, method in rng.sample(all_ := list(source.methods(False)), len(all_)):
        names = {n.id for n in ast.walk(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        names -= {a.arg for a in method.args.args}
        if names and not any(isinstance(n, (ast.Lambda, ast.FunctionDef)) for n in ast.walk(method) if n is not method):
            name = drawn(rng, sorted(names))
            nodes = [n for n in ast.walk(method) if isinstance(n, ast.Name) and n.id == name]
            return source.replaced(*((n, f"{name}_now") for n in nodes))
    return None


# ---- statements ------------------------------------------------------------------------------------------------------


@keeps
def extract_variable(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for block, number in source.statements():
        statement = block[number]
        if any(isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.Lambda, ast.IfExp)) for n in ast.walk(statement)):
            continue
        places += [
            (statement, n)
            for n in ast.walk(statement)
            if isinstance(n, (ast.Call, ast.BinOp)) and n is not statement.value
        ]
    if not places:
        return None
    statement, node = rng.choice(places)
    inner = source.of(statement)
    start = Source(inner) if False else None  # the statement is replaced as a whole
    del start
    part = source.of(node)
    at = source.text.index(inner)
    del at
    new = inner.replace(part, "extracted", 1)
    if "\n" in part or new == inner or inner.count(part) > 1:
        return None
    return source.replaced((statement, f"extracted = {part}\n{indent(statement)}{new}"))


@keeps
def inline_variable(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for block, number in source.statements():
        one = block[number]
        if number + 1 >= len(block) or not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Name):
            continue
        name, after = one.targets[0].id, block[number + 1]
        if not isinstance(after, (ast.Assign, ast.Return)) or any(
            isinstance(n, (ast.ListComp, ast.Lambda)) for n in ast.walk(after)
        ):
            continue
        uses = [n for b in block[number + 1 :] for n in ast.walk(b) if isinstance(n, ast.Name) and n.id == name]
        inside = [
            n for n in ast.walk(after) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        ]
        again = isinstance(after, ast.Assign) and ast.unparse(after.targets[0]) == name
        if len(inside) == 1 and (len(uses) == 1 or again):
            places.append((one, inside[0]))
    if not places:
        return None
    one, use = rng.choice(places)
    return source.replaced((use, f"({source.of(one.value)})"), (one, "pass"))


@keeps
def reorder_statements(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for block, number in source.statements():
        if (
            number + 1 < len(block)
            and isinstance(block[number], ast.Assign)
            and isinstance(block[number + 1], ast.Assign)
        ):
            one, other = block[number], block[number + 1]
            names = [[n for n in ast.walk(s) if isinstance(n, ast.Name) and n.id != "self"] for s in (one, other)]
            stored = [{n.id for n in each if isinstance(n.ctx, ast.Store)} for each in names]
            used = [{n.id for n in each} for each in names]
            if not stored[0] & used[1] and not stored[1] & used[0]:
                places.append((one, other))
    if not places:
        return None
    one, other = rng.choice(places)
    return source.replaced((one, source.of(other)), (other, source.of(one)))


@keeps
def reorder_layers(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for _, init in source.methods(True):
        for one, other in zip(init.body, init.body[1:], strict=False):
            if all(
                isinstance(s, ast.Assign)
                and ast.unparse(s.value).startswith("nn.")
                and "Parameter" not in ast.unparse(s)
                for s in (one, other)
            ):
                places.append((one, other))
    if not places:
        return None
    one, other = rng.choice(places)
    return source.replaced((one, source.of(other)), (other, source.of(one)))


@keeps
def extract_function(source: Source, rng: random.Random) -> Edited | None:
    nodes = [n for n in source.found(ast.BinOp) if "self" not in ast.unparse(n) and "\n" not in source.of(n)]
    node = drawn(rng, nodes)
    if node is None:
        return None
    names = sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id not in ("torch", "F", "nn")})
    bound = {a.arg for n in ast.walk(source.tree) if isinstance(n, (ast.Lambda, ast.FunctionDef)) for a in n.args.args}
    del bound
    edited = source.replaced((node, f"combined({', '.join(names)})"))
    edited.text = with_helper(edited.text, f"def combined({', '.join(names)}):\n    return {source.of(node)}\n")
    return edited


# ---- classes ---------------------------------------------------------------------------------------------------------


@keeps
def wrap_in_sequential(source: Source, rng: random.Random) -> Edited | None:
    places = [
        (name, call)
        for owner, name, call in layers(source, "nn.Linear", "nn.Conv2d", "nn.LayerNorm", "nn.Conv1d", "nn.BatchNorm2d")
        if source.text.count(f".{name}.") == 0 and calls_of(owner, name)
    ]
    if not places:
        return None
    name, call = rng.choice(places)
    return source.replaced((call, f"nn.Sequential({source.of(call)})"), attributes={name})


@keeps
def wrap_in_class(source: Source, rng: random.Random) -> Edited | None:
    places = [
        (name, call)
        for owner, name, call in layers(
            source, "nn.Linear", "nn.Conv2d", "nn.LayerNorm", *(c.name for c in source.classes())
        )
        if source.text.count(f".{name}.") == 0 and calls_of(owner, name)
    ]
    if not places:
        return None
    name, call = rng.choice(places)
    edited = source.replaced((call, f"Wrapped({source.of(call)})"), attributes={name})
    body = "    def __init__(self, inner):\n        super().__init__()\n        self.inner = inner\n\n"
    body += "    def forward(self, *args):\n        return self.inner(*args)\n"
    edited.text = with_helper(edited.text, f"class Wrapped(nn.Module):\n{body}")
    return edited


class _Inlined(ast.NodeTransformer):
    """Puts a class's names into those of its user."""

    def __init__(self, prefix: str, values: dict[str, ast.expr], names: dict[str, str]) -> None:
        self.prefix, self.values, self.names = prefix, values, names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            node.attr = f"{self.prefix}_{node.attr}"
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.values:
            return self.values[node.id]
        node.id = self.names.get(node.id, node.id)
        return node


@keeps
def inline_class(source: Source, rng: random.Random) -> Edited | None:
    """Put the body of a class in the place of the one call of its instance."""
    by_name = {c.name: c for c in source.classes()}
    places = []
    for owner, name, call in layers(source, *by_name):
        inner = by_name[ast.unparse(call.func)]
        forward, outer = source.forward(inner), source.forward(owner)
        uses = calls_of(owner, name)
        if forward is None or outer is None or len(uses) != 1 or len(inner.body) > 3 or f".{name}." in source.text:
            continue
        plain = all(isinstance(s, ast.Assign) for s in forward.body[:-1]) and isinstance(forward.body[-1], ast.Return)
        holder = next((s for s in outer.body if uses[0] in ast.walk(s)), None)
        if (
            plain
            and isinstance(holder, (ast.Assign, ast.Return))
            and not uses[0].keywords
            and len(uses[0].args) == len(forward.args.args) - 1
        ):
            places.append((name, call, inner, forward, uses[0], holder))
    if not places:
        return None
    name, call, inner, forward, use, holder = rng.choice(places)
    init = next((f for f in inner.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    if init is None:
        return None
    values: dict[str, ast.expr] = {}
    arguments = [a.arg for a in init.args.args[1:]]
    for argument, default in zip(reversed(arguments), reversed(init.args.defaults), strict=False):
        values[argument] = default
    values |= dict(zip(arguments, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    lines = [ast.unparse(_Inlined(name, values, {}).visit(deepcopy(s))) for s in init.body[1:]]
    names = {
        n.id: f"{name}_{n.id}" for n in ast.walk(forward) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    names |= {a.arg: f"{name}_{a.arg}" for a in forward.args.args[1:]}
    steps = [f"{name}_{a.arg} = {source.of(v)}" for a, v in zip(forward.args.args[1:], use.args, strict=True)]
    steps += [ast.unparse(_Inlined(name, {}, names).visit(deepcopy(s))) for s in forward.body[:-1]]
    last = forward.body[-1]
    assert isinstance(last, ast.Return)
    result = ast.unparse(_Inlined(name, {}, names).visit(deepcopy(last.value)))
    whole, part = source.of(holder), source.of(use)
    if whole.count(part) != 1 or any(isinstance(n, (ast.Lambda, ast.ListComp)) for n in ast.walk(holder)):
        return None
    steps.append(whole.replace(part, f"({result})"))
    statement = next(s for o in source.classes() for s in made(o).values() if s.value is call)
    return source.replaced(
        (statement, f"\n{indent(statement)}".join(lines)), (holder, f"\n{indent(holder)}".join(steps))
    )


# ---- loops -----------------------------------------------------------------------------------------------------------


@keeps
def loop_by_number(source: Source, rng: random.Random) -> Edited | None:
    loops = [
        n
        for n in source.found(ast.For)
        if isinstance(n.target, ast.Name) and ast.unparse(n.iter).startswith("self.") and "(" not in ast.unparse(n.iter)
    ]
    node = drawn(rng, loops)
    if node is None:
        return None
    over, first = source.of(node.iter), node.body[0]
    return source.replaced(
        (node.target, "number"),
        (node.iter, f"range(len({over}))"),
        (first, f"{node.target.id} = {over}[number]\n{indent(first)}{source.of(first)}"),
    )


@keeps
def sequential_to_loop(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for owner, name, _ in layers(source, "nn.Sequential"):
        for block, number in source.statements():
            statement = block[number]
            for use in calls_of(owner, name):
                if use in ast.walk(statement) and len(use.args) == 1 and not isinstance(use.args[0], ast.Starred):
                    places.append((name, statement, use))
    if not places:
        return None
    name, statement, use = rng.choice(places)
    space = indent(statement)
    text = source.of(statement)
    if text.count(source.of(use)) != 1 or any(isinstance(n, (ast.ListComp, ast.Lambda)) for n in ast.walk(statement)):
        return None
    new = f"flow = {source.of(use.args[0])}\n{space}for part in self.{name}:\n{space}    flow = part(flow)\n{space}"
    return source.replaced((statement, new + text.replace(source.of(use), "flow")))


@keeps
def list_to_copies(source: Source, rng: random.Random) -> Edited | None:
    """Write a list of layers as attributes, and the loop over it as one over a tuple of them."""
    places = []
    for owner, name, call in layers(source, "nn.ModuleList", "nn.Sequential"):
        given = call.args[0].value if call.args and isinstance(call.args[0], ast.Starred) else (call.args or [None])[0]
        if (
            not isinstance(given, ast.ListComp)
            or not called(given.generators[0].iter, "range")
            or given.generators[0].ifs
        ):
            continue
        count = _number(source, owner, given.generators[0].iter)
        if count and source.text.count(f"self.{name}") == 2 and len(given.generators) == 1:
            places.append((owner, name, call, given, count))
    if not places:
        return None
    owner, name, call, given, count = rng.choice(places)
    statement, variable = made(owner)[name], ast.unparse(given.generators[0].target)
    body = source.of(given.elt)
    lines = [
        f"self.{name}_{i} = {re.sub(rf'(?<![.=]){variable}(?![=])', str(i), body) if variable != '_' else body}"
        for i in range(count)
    ]
    uses = [
        n
        for n in ast.walk(owner)
        if isinstance(n, ast.Attribute) and ast.unparse(n) == f"self.{name}" and isinstance(n.ctx, ast.Load)
    ]
    group = f"({', '.join(f'self.{name}_{i}' for i in range(count))},)"
    use = uses[0]
    parent = next((n for n in ast.walk(owner) if isinstance(n, ast.Call) and n.func is use), None)
    if parent is not None:
        text = source.of(parent.args[0])
        for i in range(count):
            text = f"self.{name}_{i}({text})"
        return source.replaced((statement, f"\n{indent(statement)}".join(lines)), (parent, text))
    return source.replaced((statement, f"\n{indent(statement)}".join(lines)), (use, group))


def _number(source: Source, owner: ast.ClassDef, node: ast.Call) -> int | None:
    """Return the count of a range with one argument that is a number, or a default of the root class."""
    if len(node.args) != 1:
        return None
    given = node.args[0]
    if isinstance(given, ast.Constant):
        return int(given.value)
    root = source.classes()[-1]
    if not isinstance(given, ast.Name) or owner is not root and ast.unparse(root).count(given.id) < 2:
        return None
    init = next(f for f in root.body if isinstance(f, ast.FunctionDef) and f.name == "__init__")
    pairs = zip(reversed(init.args.args), reversed(init.args.defaults), strict=False)
    return next((d.value for a, d in pairs if a.arg == given.id and isinstance(d, ast.Constant)), None)  # type: ignore[misc]
