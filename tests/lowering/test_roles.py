"""Roles of values: by what makes them and what uses them."""

from __future__ import annotations

import ast

from onnxgen.code.module_def import Assign, Member, Statement
from onnxgen.code.quote import MemberRef, Ref, quote
from onnxgen.lowering.roles import find_roles

LAYERS = {name: f"nn.{name.upper()}Cell" for name in ("gru", "rnn", "lstm")}
ATTENTION = "y = F.scaled_dot_product_attention(q, k, v)"
BODIES: dict[tuple[str, ...], dict[str, str]] = {
    ("y = gru(x, s)",): {"y": "hidden", "s": "hidden"},
    ("y = rnn(x, s)",): {"y": "hidden", "s": "hidden"},
    ("y, z = lstm(x, (s, t))",): {"y": "hidden", "z": "cell", "s": "hidden", "t": "cell"},
    ("a = torch.relu(x)", "q = a[0]", "k = a[1]", "v = a[2]", ATTENTION): {"a": "qkv", "q": "q", "k": "k", "v": "v"},
    ("a = torch.relu(x)", "q, k, v = a.unbind(0)", ATTENTION): {"a": "qkv", "q": "q", "k": "k", "v": "v"},
    # the first of several roles stays
    ("a = torch.relu(x)", "y = F.scaled_dot_product_attention(a, a, a)"): {"a": "q"},
    ("a = torch.relu(x)", "b = torch.relu(z)", "y = F.scaled_dot_product_attention(a, b, b)"): {"a": "q", "b": "k"},
    # it goes back where all uses have one
    ("a = torch.relu(x)", "q = a[0]", ATTENTION): {"a": "q", "q": "q"},
    ("a = torch.relu(x)", "q = a[0]", "b = a[1]", ATTENTION): {"q": "q"},
    # sines alone are activations
    ("a = torch.relu(x)", "c = torch.cos(a)", "s = torch.sin(a)"): {"a": "angles", "c": "cos", "s": "sin"},
    ("a = torch.relu(x)", "s = torch.sin(a)"): {},
}


def body_of(lines: tuple[str, ...]) -> list[Statement]:
    """Statements as they are lowered: of values, and of layers by the names in `LAYERS`."""
    members = {name: Member((name,), quote("f()", f=ast.Name(layer)), "module") for name, layer in LAYERS.items()}
    body: list[Statement] = []
    for line in lines:
        targets, _, text = line.partition(" = ")
        names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)} - {"torch", "F"}
        parts = {n: MemberRef(members[n]) if n in members else Ref(n) for n in names}
        body.append(Assign(tuple(targets.split(", ")), quote(text, **parts)))
    return body


def test_roles_are_those_of_what_makes_and_uses_a_value() -> None:
    for lines, wanted in BODIES.items():
        roles: dict[str, str] = {}
        find_roles(body_of(lines), {}, roles)
        assert roles == wanted, lines
