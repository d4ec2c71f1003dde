"""Merged decoders become one network: each weight and each statement once, an `if` only where the branches differ."""

from __future__ import annotations

import ast
from functools import cache

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import Tensor, nn

from onnxgen.code.module_def import Assign, If, Input, ModuleDef, expressions
from onnxgen.code.quote import Ref, quote, rewrite
from onnxgen.shapes.info import Info
from onnxgen.structure.branches import Branch, Pairs, _drop_copies
from onnxgen.structure.nesting import drop_copies
from onnxgen.structure.scopes import Scope
from onnxgen.validate import same_either_way
from tests.ops.harness import Ran
from tests.support.exported import exported, held_graph
from tests.support.merged import CONDITION, merged


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, states: Tensor | None, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
        q = self.heads(self.q_proj(x))
        if states is None:  # of x itself, after those of the cache
            k, v = self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        elif past is None:
            k, v = self.heads(self.k_proj(states)), self.heads(self.v_proj(states))
        else:
            k, v = past
        y = F.softmax(q @ k.transpose(2, 3) / 2, -1) @ v
        return self.out_proj(y.transpose(1, 2).flatten(2)), k, v

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, 4)).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.encoder_attn = Attention(), Attention()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: Tensor, states: Tensor, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        y, *own = self.self_attn(x, None, (past[0], past[1]) if past else None)
        x = self.norm1(x + y)
        y, *cross = self.encoder_attn(x, states, (past[2], past[3]) if past else None)
        return self.norm2(x + y), [*own, *([] if past else cross)]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.lm_head = nn.Linear(8, 11, bias=False)

    def forward(self, ids: Tensor, states: Tensor, *past: Tensor) -> list[Tensor]:
        x, present = self.embed_tokens(ids), list[Tensor]()
        for n, layer in enumerate(self.layers):
            x, made = layer(x, states, list(past[4 * n : 4 * n + 4]))
            present += made
        return [self.lm_head(x), *present]


def past_of(length: int) -> list[Tensor]:
    """The caches of two layers: of the decoder's own values, and of the encoder's states."""
    return [torch.randn(2, 2, size, 4) for _ in range(2) for size in (length, length, 6, 6)]


@cache
def files() -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, Tensor]]:
    """The merged file, the one with a cache alone, and the network's state dict."""
    torch.manual_seed(0)
    decoder = Decoder()
    for parameter in decoder.parameters():
        nn.init.normal_(parameter)
    given = [torch.zeros(2, 3, dtype=torch.long), torch.randn(2, 6, 8)]
    axes = {0: {0: "batch", 1: "length"}, 1: {0: "batch", 1: "encoder_length"}}
    past = {2 + n: {0: "batch", 2: "encoder_length" if n % 4 > 1 else "past_length"} for n in range(8)}
    without = _named(exported(decoder, given, axes=axes), ["self.k", "self.v", "cross.k", "cross.v"])
    with_cache = _named(exported(decoder, [*given, *past_of(5)], axes=axes | past), ["self.k", "self.v"])
    alone = onnx.ModelProto()
    alone.CopyFrom(with_cache)
    return merged(with_cache, without), alone, decoder.state_dict()


def _named(proto: onnx.ModelProto, kinds: list[str]) -> onnx.ModelProto:
    """Name the outputs, so that those of two files are the same."""
    names = ["logits", *(f"present.{n}.{kind}" for n in range(2) for kind in kinds)]
    for output, name in zip(proto.graph.output, names, strict=True):
        proto.graph.node.append(helper.make_node("Identity", [output.name], [name]))
        output.name = name
        for axis in (0, 1 if name == "logits" else 2):
            output.type.tensor_type.shape.dim[axis].dim_param = f"{name}.{axis}"
    return proto


def ran(use_cache: bool) -> Ran:
    torch.manual_seed(1)
    given = [torch.randint(11, (2, 1 if use_cache else 4)), torch.randn(2, 6, 8), *past_of(5)]
    feeds = {f"i{n}": t.numpy() for n, t in enumerate(given) if f"i{n}" in {i.name for i in files()[0].graph.input}}
    return held_graph(files()[0], feeds | {CONDITION: np.array([use_cache])})


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_merged_decoder_is_one_network(use_cache: bool) -> None:
    made = ran(use_cache)
    wanted = files()[2]
    assert made.model.state_dict().keys() == wanted.keys()
    for key, tensor in made.model.state_dict().items():
        torch.testing.assert_close(tensor, wanted[key])
    classes = made.source[made.source.index("\nclass ") :]
    assert classes.count("k_proj = nn.Linear(") == 2 and "layers[0]" not in classes and "_merged" not in classes
    assert classes.count("self.q_proj(") == 2 and classes.count("self.lm_head(") == 1


def test_it_is_hardly_longer_than_with_a_cache_alone() -> None:
    alone = held_graph(files()[1], {f"i{n}": t.numpy() for n, t in _past_feeds().items()})
    lines = [len(made.source.splitlines()) for made in (ran(True), alone)]
    assert lines[0] <= 1.3 * lines[1], lines


def _past_feeds() -> dict[int, Tensor]:
    names = {i.name for i in files()[1].graph.input}
    given = [torch.randint(11, (2, 1)), torch.randn(2, 6, 8), *past_of(5)]
    return {n: t for n, t in enumerate(given) if f"i{n}" in names}


def module(*body: Assign | If) -> ModuleDef:
    names = ["x", "flag", "a", "b", "y"]
    infos = {name: Info() for name in names}
    return ModuleDef("Net", inputs=[Input("x"), Input("flag")], outputs=[Ref("y")], body=list(body), infos=infos)


def of(target: str, text: str) -> Assign:
    return Assign((target,), quote(text, x=Ref("x"), a=Ref("a"), flag=Ref("flag")))


def test_a_joined_body_is_proven_for_both_values_of_the_condition() -> None:
    """Wrong joins are seen: of the wrong value, of swapped branches, of one branch for both."""
    plain = module(If(Ref("flag"), [of("y", "x.exp().sin()")], [of("y", "x.cos().sin()")], ("y",)))
    end = of("y", "a.sin()")

    def joined(then: str, orelse: str) -> ModuleDef:
        return module(If(Ref("flag"), [of("a", then)], [of("a", orelse)], ("a",)), end)

    assert same_either_way(plain, joined("x.exp()", "x.cos()"), "flag")
    assert not same_either_way(plain, joined("x.cos()", "x.exp()"), "flag")
    assert not same_either_way(plain, joined("x.exp()", "x.exp()"), "flag")
    assert not same_either_way(plain, joined("x.cos()", "x.cos()"), "flag")
    assert not same_either_way(plain, module(of("y", "x.exp().sin()")), "flag")


def test_a_condition_that_is_assigned_twice_proves_nothing() -> None:
    both = module(of("flag", "x.any()"), of("flag", "x.all()"), of("y", "x.exp()"))
    assert not same_either_way(both, both, "flag")


def test_what_a_join_says_of_shapes_is_compared() -> None:
    plain, other = (module(of("y", "x.exp()")) for _ in range(2))
    plain.infos["y"], other.infos["y"] = Info(shape=(2, 3)), Info(shape=(2, 4))
    assert same_either_way(plain, plain, "flag")
    assert not same_either_way(plain, other, "flag")


def test_copies_before_a_place_are_left_out_one_after_the_other() -> None:
    """But for one that a later statement uses."""
    for later, left in ([], ["y"]), ([of("x", "a.sin()")], ["y", "b", "a", "x"]), ([of("x", "x.sin()")], ["y", "x"]):
        made = module(of("y", "x.exp()"), Assign(("b",), Ref("y"), ()), Assign(("a",), Ref("b"), ()), *later)
        made.outputs = [Ref("a")]
        _drop_copies(made, 3)
        assert [s.targets[0] for s in made.body] == left
        assert [output.value for output in made.outputs if isinstance(output, Ref)] == ["a" if "a" in left else "y"]


def test_what_computes_from_the_same_values_is_paired_before_what_computes_from_some_of_them() -> None:
    """In whichever order: else a joined statement would have to choose an operand that both branches have."""
    cases = [
        (["u = x * a", "v = x * b"], ["v = x * b", "u = x * a"], {0: 1, 1: 0}),
        (["u = x * a", "v = x * b"], ["u = x * a", "v = x * b"], {0: 0, 1: 1}),
        (["u = x * a", "v = a.exp()"], ["u = x * b", "v = b.exp()"], {0: 0, 1: 1}),  # of some of them, if need be
        (["u = x * a", "v = u * b"], ["u = x * a", "v = u * b"], {0: 0, 1: 1}),
    ]
    for then, orelse, wanted in cases:
        choice = If(Ref("flag"), block(then), block(orelse), ("u", "v"))
        whole = module(choice)
        one, other = (Branch(side, choice, whole) for side in (choice.then, choice.orelse))
        assert Pairs(one, other, whole).found() == wanted, (then, orelse)


def block(texts: list[str]) -> list[Assign]:
    """Assignments to names of one letter."""
    pairs = (text.split(" = ") for text in texts)
    return [Assign((a,), quote(b, **{n: Ref(n) for n in "xabyu" if n in b.replace("exp", "")})) for a, b in pairs]


@pytest.mark.parametrize(
    ("then", "orelse", "end", "wanted"),
    [
        (["b = a.exp()"], ["b = a"], "b.sin()", (["b = b.exp()"], 0)),
        (["b = a"], ["b = a.cos()"], "b.sin()", None),  # the `then` would be empty
        (["b = a.exp()"], ["b = a"], "b.sin() + a", None),  # it is used later
        (["b = a.exp()", "y = a.cos()"], ["b = a", "y = b.sin()"], "y + b", None),  # and in the other branch
        (["y = a.cos()", "b = a.exp()"], ["b = a", "y = b.sin()"], "y + b", (["y = b.cos()", "b = b.exp()"], 1)),
    ],
)
def test_a_branch_that_only_hands_a_value_on(
    then: list[str], orelse: list[str], end: str, wanted: tuple[list[str], int] | None
) -> None:
    choice = If(Ref("flag"), block(then), block(orelse), tuple(dict.fromkeys(t[0] for t in then)))
    scope = Scope((), [*block(["a = x.tan()"]), choice], outputs=[block([f"y = {end}"])[0].value])
    anew = drop_copies(scope)
    assert anew == ({"b"} if wanted else set())
    if wanted is not None:
        made = [f"{s.targets[0]} = {shown(next(expressions(s)))}" for s in choice.then]
        assert (made, len(choice.orelse)) == wanted


LOOPS_IN_BRANCHES = """
<ir_version: 9, opset_import: ["": 18]> net (float[N,3] x, bool c) => (float[N,3] y)
<int64 trips = {2}, bool go = {1}, float[3] w = {1, 2, 3}> {
  z = Loop (trips, go, x) <body = turn (int64 i, bool on, float[N,3] a) => (bool on_, float[N,3] d) {
    b = Add (a, w)
    d = If (c) <then_branch = yes () => (float[N,3] t) {
      t = Loop (trips, go, b) <body = one (int64 j, bool on1, float[N,3] e) => (bool on1_, float[N,3] f)
        { f = Tanh (e) on1_ = Identity (on1) }>
    }, else_branch = no () => (float[N,3] u) {
      v = Loop (trips, go, b) <body = two (int64 k, bool on2, float[N,3] g) => (bool on2_, float[N,3] h)
        { h = Sin (g) on2_ = Identity (on2) }>
      u = Mul (v, w)
    }>
    on_ = Identity (on)
  }>
  y = Tanh (z)
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_loops_in_both_branches_begin_with_one_value(condition: bool) -> None:
    """A branch needs from outside what it assigns later."""
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    held_graph(onnx.parser.parse_model(LOOPS_IN_BRANCHES), {"x": x, "c": np.array(condition)})


def shown(tree: ast.expr) -> str:
    return ast.unparse(rewrite(tree, lambda n: ast.Name(n.value) if isinstance(n, Ref) else None))


# two networks, of one end: a sum that both have is computed twice in the first of them
TWO_RATES = """
<ir_version: 9, opset_import: ["": 18]> net (float[1,2,N] x, bool fast) => (float[1,2] y, float[2,1,2,M] z)
<float[2,2,3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[2,2,1] w = {4, 3, 2, 1}, int64[1] two = {2},
 int64[1] first = {0}> {
  y, z = If (fast) <then_branch = yes () => (float[1,2] ya, float[2,1,2,M] za) {
    a = Conv (x, v)
    ta = Tanh (a)
    ua = Unsqueeze (a, first)
    va = Unsqueeze (ta, first)
    za = Concat <axis = 0> (ua, va)
    sa = Sigmoid (ta)
    ya = ReduceMean <keepdims = 0> (sa, two)
  }, else_branch = no () => (float[1,2] yb, float[2,1,2,M] zb) {
    b = Conv (x, w)
    tb = %s (b)
    ub = Unsqueeze (b, first)
    vb = Unsqueeze (tb, first)
    zb = Concat <axis = 0> (ub, vb)
    sb = Sigmoid (tb)
    yb = ReduceMean <keepdims = 0> (sb, two)
  }>
}"""


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("other", ["Tanh", "Sin"])
def test_an_end_that_both_branches_have_is_behind_the_if(fast: bool, other: str) -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, 7)).astype(np.float32) / 9
    made = held_graph(onnx.parser.parse_model(TWO_RATES % other), {"x": x, "fast": np.array(fast)})
    forward = made.source[made.source.index("def forward") :]
    counts = [forward.count(text) for text in ("torch.tanh", "torch.sigmoid", "torch.stack", ".mean(", "else:")]
    assert counts == [1, 1, 1, 1, 1], forward
    assert forward.index("else:") < forward.index("torch.sigmoid") and "return y, z" in forward


def test_one_statement_is_no_end() -> None:
    text = TWO_RATES % "Sin"
    text = text.replace("sb = Sigmoid (tb)", "sb = Cos (tb)").replace("(ub, vb)", "(vb, ub) zb = Neg (nb)")
    text = text.replace("zb = Concat", "nb = Concat")
    feeds = {"x": np.ones((1, 2, 7), np.float32) / 9, "fast": np.array(True)}
    assert held_graph(onnx.parser.parse_model(text), feeds).source.count(".mean(") == 2
