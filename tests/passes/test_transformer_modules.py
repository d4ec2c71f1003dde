"""torch's attention and transformer modules come back as themselves; `long_transformer_modules.py` draws more."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import onnxgen
from onnxgen import Options
from onnxgen.export.report import ANEW
from onnxgen.passes.rewrite import names_of
from onnxgen.pipeline import read_and_simplify
from tests.ops.harness import generate, instantiate, run_model, run_onnxruntime
from tests.support.exported import exported, held
from tests.support.real import imported
from tests.support.transformers import (
    BATCH,
    LENGTH,
    WIDTH,
    Drawn,
    Whole,
    attention,
    hold,
    hold_back,
    trained,
    transformer,
)

X = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("seed", range(8))
def test_attention(seed: int) -> None:
    hold(attention(seed))


@pytest.mark.parametrize("seed", range(10))
def test_transformers(seed: int) -> None:
    hold(transformer(seed))


def test_a_stack_has_nested_tensors_where_torch_can_use_them() -> None:
    """torch warns of stacks that ask for them otherwise."""
    for heads in (2, 3):
        layer = nn.TransformerEncoderLayer(WIDTH, heads, 20, 0.0, batch_first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = nn.TransformerEncoder(layer, 1).use_nested_tensor
        plain = Whole(trained(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)), {})
        proto = exported(plain.eval(), [X])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (stack,) = [m for m in instantiate(generate(proto)).modules() if isinstance(m, nn.TransformerEncoder)]
        assert stack.use_nested_tensor == wanted, heads


def test_a_layer_stands_for_every_node_behind_its_attention(tmp_path: Path) -> None:
    """A difference is located by the names of the file's nodes."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 20, batch_first=True)
    proto = exported(Whole(trained(layer), {}).eval(), [X])
    onnx.save(proto, tmp_path / "m.onnx")
    stands = {name for node in read_and_simplify(tmp_path / "m.onnx", Options()).graph for name in names_of(node)}
    named = {node.name for node in proto.graph.node if "self_attn" not in node.name and node.op_type != "Constant"}
    assert len(named) > 8 and named <= stands, named - stands


@pytest.mark.parametrize("model", [nn.TransformerEncoderLayer, nn.MultiheadAttention])
def test_modules_have_a_place_where_names_are_not_obeyed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxgen.scopes.origin._are_keys", lambda model: False)
    monkeypatch.setattr("onnxgen.scopes.origin.LONGER", 0.0)
    made = trained(model(WIDTH, 2, batch_first=True)).eval()
    whole = Whole(made, {}) if model is nn.TransformerEncoderLayer else Attending(made)
    proto = exported(whole, [X])
    feeds = {proto.graph.input[0].name: X.numpy()}
    ran = run_model(proto, feeds)
    assert any(isinstance(m, model) for m in ran.model.modules())
    np.testing.assert_allclose(ran.outputs[0], run_onnxruntime(proto, feeds)[0], atol=1e-5)


class Attending(nn.Module):
    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attn(x, x, x, need_weights=False)[0]
        return found


@pytest.mark.parametrize("draw,seed", [(attention, 1), (transformer, 0), (transformer, 2)])
def test_trained_values_go_back(draw: Any, seed: int, tmp_path: Path) -> None:
    hold_back(draw(seed), tmp_path)


def test_initial_values_that_are_stored_once_part(tmp_path: Path) -> None:
    """An untrained module's biases are zeros, and its norms ones: the file has one tensor for all of them."""
    model = Whole(nn.Transformer(WIDTH, 2, 1, 2, 20, batch_first=True), {})
    hold_back(Drawn(model, [X, X[:, 1:]], "legacy-17", "nn.TransformerDecoder("), tmp_path)


@pytest.mark.parametrize("form", ["attention", "encoder", "decoder"])
def test_a_bias_of_zeros_that_the_exporter_drops_stays_zeros(form: str, tmp_path: Path) -> None:
    """The file has no place for the output's bias of an untrained attention, so it is not trained."""
    made: dict[str, tuple[nn.Module, list[Tensor]]] = {
        "attention": (Padded(), [X, torch.zeros(BATCH, LENGTH, dtype=torch.bool)]),
        "encoder": (nn.TransformerEncoderLayer(WIDTH, 2, 20, batch_first=True), [X]),
        "decoder": (nn.TransformerDecoderLayer(WIDTH, 2, 20, batch_first=True), [X, X[:, 1:]]),
    }
    model, given = made[form]
    drawn = Drawn(Whole(model.eval(), {}), given, "dynamo-18", "nn.MultiheadAttention(")
    hold_back(drawn, tmp_path, fixed="out_proj.bias")
    source = (tmp_path / "model.py").read_text()
    assert source.count("out_proj.bias.requires_grad_(False)") == (2 if form == "decoder" else 1)
    model = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    next(value for key, value in model.named_parameters() if key.endswith("out_proj.bias")).data += 1
    anew = onnxgen.export(tmp_path / "model.py", weights=model, out=tmp_path / "more.onnx")
    assert anew.method == ANEW and "out_proj.bias, which is not zeros any more" in anew.why
    assert anew.verified is not None and not anew.verified.differs


class Padded(nn.Module):
    def __init__(self, layer: bool = False) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, batch_first=True) if layer else None
        self.attn = None if layer else nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        if self.layer is not None:
            y: Tensor = self.layer(x, src_key_padding_mask=padding)
            return y
        assert self.attn is not None
        made: Tensor = self.attn(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return made


@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
@pytest.mark.parametrize("layer", [False, True])
def test_a_sample_of_padding_alone(case: str, layer: bool) -> None:
    """NaN, as in the file, with gradients and without: torch's own layer has zeros there if gradients are computed."""
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1], padding[2, 3:] = True, True
    proto = exported(trained(Padded(layer)).eval(), (X, padding), case)
    feeds = {"i0": X.numpy(), "i1": padding.numpy()}
    ran, expected = run_model(proto, feeds), run_onnxruntime(proto, feeds)[0]
    assert np.isnan(expected[1]).all() and not np.isnan(expected[[0, 2]]).any()
    for made in (ran.outputs[0], ran.model(X, padding).detach().numpy()):
        np.testing.assert_allclose(made, expected, 1e-4, 1e-5)
    assert "nn.MultiheadAttention(" in ran.source


class Masked(nn.Module):
    """A layer with a stored mask. `hidden`: the number beside 0."""

    def __init__(self, hidden: float, first: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, batch_first=True)
        mask = torch.triu(torch.full((LENGTH, LENGTH), hidden), 1)
        mask[0, 0] = first
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x, src_mask=self.mask)
        return made


@pytest.mark.parametrize(
    ("hidden", "first", "is_layer"), [(-1.0, 0.0, False), (-1e9, 0.0, True), (-1e9, -1e9, False), (-torch.inf, 0, True)]
)
def test_a_mask_is_the_layers_if_it_only_hides(hidden: float, first: float, is_layer: bool) -> None:
    """Without gradients, torch's layer takes each number but 0 for True."""
    proto = exported(trained(Masked(hidden, first)).eval(), (X,), "legacy-17")
    ran, expected = run_model(proto, {"i0": X.numpy()}), run_onnxruntime(proto, {"i0": X.numpy()})[0]
    with torch.no_grad():
        made = ran.model.eval()(X).numpy()
    np.testing.assert_allclose(made, expected, 1e-4, 1e-5)
    np.testing.assert_allclose(ran.model(X).detach().numpy(), expected, 1e-4, 1e-5)
    assert ("nn.TransformerEncoderLayer(" in ran.source) == is_layer


class StoredMask(nn.Module):
    """Self-attention with a mask that the exporter stores. `first`: it has batches first."""

    def __init__(self, mask: Tensor, first: bool) -> None:
        super().__init__()
        self.attn, self.mask = nn.MultiheadAttention(WIDTH, 2, batch_first=first), mask

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attn(x, x, x, attn_mask=self.mask.clone(), need_weights=False)[0]
        return made


LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
MASKS = {
    "bool": (LATER, True),
    "least": (torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1), True),
    "inf": (torch.full((LENGTH, LENGTH), -torch.inf).triu(1), True),
    "a penalty": (torch.full((LENGTH, LENGTH), -2.0).triu(1), False),
    "itself, too": (torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2), False),
    "earlier": (LATER.T, False),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
def test_a_stored_causal_mask_is_made_of_the_length(name: str, case: str) -> None:
    mask, is_causal = MASKS[name]
    for first in (False, True):
        net, x = trained(StoredMask(mask, first)).eval(), X if first else X.transpose(0, 1)
        ran = held(net, [x], case)
        assert ("causal_mask(" in ran.forward) == is_causal and ("register_buffer" in ran.source) != is_causal
        if is_causal and first:  # for other lengths
            short = StoredMask(mask[:2, :2], first)
            short.load_state_dict(net.state_dict())
            torch.testing.assert_close(ran.model(x[:, :2]), short.eval()(x[:, :2]), rtol=1e-4, atol=1e-5)


class Wrong(nn.Module):
    """Attention that differs from torch's module in one thing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.attn = Parts()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attn(x, self.what)
        return made


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.randn(3 * WIDTH, WIDTH) / 4)
        self.in_proj_bias = nn.Parameter(torch.randn(3 * WIDTH))
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, what: str) -> Tensor:
        heads = (LENGTH, BATCH * 2, WIDTH // 2) if what != "sizes before heads" else (LENGTH, BATCH, WIDTH // 2, 2)
        qkv = nn.functional.linear(x.transpose(0, 1), self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.unflatten(-1, (3, WIDTH)).movedim(-2, 0)
        if what == "sizes before heads":
            q, k, v = (t.reshape(heads).movedim(-1, -2).reshape(LENGTH, BATCH * 2, -1) for t in (q, k, v))
        q, k, v = (t.reshape(LENGTH, BATCH * 2, WIDTH // 2).transpose(0, 1) for t in (q, k, v))
        scores = q @ k.transpose(1, 2) * (0.5 if what == "another scale" else (WIDTH // 2) ** -0.5)
        weights = scores.softmax(1 if what == "another axis" else -1)
        y = (weights @ v).transpose(0, 1).reshape(LENGTH * BATCH, WIDTH)
        y = y.reshape(BATCH, LENGTH, WIDTH).transpose(0, 1).reshape(-1, WIDTH) if what == "samples mixed" else y
        y = y.relu() if what == "relu" else y
        return self.out_proj(y).reshape(LENGTH, BATCH, WIDTH).transpose(0, 1)


@pytest.mark.parametrize(
    "what", ["nothing", "another scale", "another axis", "samples mixed", "sizes before heads", "relu"]
)
def test_what_differs_stays_written_out(what: str) -> None:
    torch.manual_seed(0)
    ran = held(Wrong(what), [X], "dynamo-18")
    assert ("nn.MultiheadAttention(" in ran.source) == (what == "nothing")


class Own(nn.Module):
    """A layer like torch's, but for one thing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        activation = torch.tanh if what == "tanh" else nn.functional.relu
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, activation, batch_first=True)
        if what == "eps":
            self.body.norm2.eps = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x)
        return made


@pytest.mark.parametrize("what", ["tanh", "eps", "nothing"])
def test_a_layer_that_differs_stays_written_out(what: str) -> None:
    ran = held(trained(Own(what)), [X], "legacy-17")
    assert ("nn.TransformerEncoderLayer(" in ran.source) == (what == "nothing")
    assert "nn.MultiheadAttention(" in ran.source or what == "nothing"


class Mixed(nn.Module):
    """A list that begins with a layer, and goes on with something else."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Module()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, batch_first=True)
        self.body.layers = nn.ModuleList([layer, nn.Linear(WIDTH, WIDTH, bias=False)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
def test_a_list_with_other_layers_is_no_encoder(case: str) -> None:
    """Keys are those of the original: an `nn.TransformerEncoder` would take the list for its own."""
    ran = held(trained(Mixed()), [X], case)
    assert "nn.TransformerEncoder(" not in ran.source


class Author(nn.Module):
    """A class of an author with `layers` and a `norm` of its own, which is no `nn.TransformerEncoder`."""

    def __init__(self, where: str) -> None:
        super().__init__()
        made = (nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, batch_first=True) for _ in range(2))
        self.layers, self.where = nn.ModuleList(made), where
        norms = {
            "RMSNorm": nn.RMSNorm(WIDTH),
            "Linear": nn.Linear(WIDTH, WIDTH),
            "two axes": nn.LayerNorm((LENGTH, WIDTH)),
        }
        self.norm = norms.get(where, nn.LayerNorm(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = y = self.norm(x) if self.where == "before" else x
        for layer in self.layers:
            x = layer(x)
        if self.where == "before":
            return x
        first: Any = self.layers[0]
        read = x + first.norm1.weight if self.where == "read" else x
        x = {"first token": x[:, 0], "mean": x.mean(1), "sum": x + y}.get(self.where, read)
        made: Tensor = self.norm(x)
        return made


class Body(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.body(x))
        return made


@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
@pytest.mark.parametrize("where", ["before", "first token", "mean", "sum", "RMSNorm", "Linear", "two axes", "nothing"])
def test_an_authors_norm_is_applied_once(where: str, case: str) -> None:
    """`nn.TransformerEncoder` would apply what is called `norm` itself, behind the last layer."""
    torch.manual_seed(0)
    if (where, case) == ("RMSNorm", "legacy-17"):
        pytest.skip("the exporter refuses it: aten::rms_norm")
    ran = held(trained(Body(Author(where))).eval(), [X], case)
    is_torchs = where == "nothing" and case.startswith("legacy")  # the other exporter records the class
    assert ("nn.TransformerEncoder(" in ran.source) == is_torchs


def test_a_weight_that_is_read_beside_its_layer() -> None:
    torch.manual_seed(0)
    proto = exported(trained(Body(Author("read"))).eval(), [X], "legacy-17")
    ran, expected = run_model(proto, {"i0": X.numpy()}), run_onnxruntime(proto, {"i0": X.numpy()})
    np.testing.assert_allclose(ran.outputs[0], expected[0], 1e-4, 1e-5)


class Beside(nn.Module):
    """A layer beside which the class has something that is called as a part of torch's layer is."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, batch_first=True)
        self.name = name
        setattr(self.net, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        own, torchs = getattr(self.net, self.name), nn.Identity()
        setattr(self.net, self.name, torchs)
        x = self.net(x)
        setattr(self.net, self.name, own)
        made: Tensor = own(x)
        return made


@pytest.mark.parametrize("name", ["dropout1", "norm3"])
def test_a_part_that_is_called_as_one_of_torchs(name: str) -> None:
    torch.manual_seed(0)
    held(trained(Beside(name)).eval(), [X], "legacy-17")
