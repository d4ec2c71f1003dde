"""Networks around torch's attention and transformer modules, drawn by a seed, with what their files must become."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

import onnxgen
from onnxgen.export.report import BACK
from tests.export.trained import perturbed
from tests.ops.harness import Ran
from tests.support.exported import exported, held
from tests.support.real import imported

WIDTH, BATCH, LENGTH, KEYS = 12, 3, 5, 7
CASES = ("legacy-17", "legacy-17-train", "dynamo-18", "dynamo-18-train")


@dataclass
class Drawn:
    """A network, its inputs, how it is exported, and the call that must stand for it."""

    model: nn.Module
    inputs: list[Tensor]
    case: str
    wanted: str
    axes: dict[int, dict[int, str]] = field(default_factory=dict)
    told: str = ""


class Attention(nn.Module):
    """An `nn.MultiheadAttention` between two layers, called with keywords and the masks that are given."""

    def __init__(self, cross: str, masks: list[str], call: dict[str, Any], **options: Any) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, **options)
        self.cross, self.masks, self.call = cross, masks, call

    def forward(self, a: Tensor, b: Any = None, c: Any = None, d: Any = None, e: Any = None) -> Any:
        given = [t for t in (a, b, c, d, e) if t is not None]
        query, *rest = given
        key = query if self.cross == "self" else rest.pop(0)
        value = rest.pop(0) if self.cross == "value" else key
        masks = dict(zip(self.masks, rest, strict=True))
        y, weights = self.attn(query.tanh(), key, value, **masks, **self.call) if self.cross != "self" else self.attn(
            *[query.tanh()] * 3, **masks, **self.call
        )  # fmt: skip
        return y.sin() if weights is None else (y.sin(), weights)


class Whole(nn.Module):
    """A transformer module between two functions."""

    def __init__(self, net: nn.Module, masks: dict[str, Tensor]) -> None:
        super().__init__()
        self.net, self.names = net, list(masks)
        for name, mask in masks.items():
            self.register_buffer(name, mask, persistent=False)

    def forward(self, a: Tensor, b: Any = None) -> Tensor:
        given = [a] if b is None else [a, b]
        return torch.sin(self.net(given[0].tanh(), *given[1:], **{name: getattr(self, name) for name in self.names}))


def trained(model: nn.Module) -> nn.Module:
    """Move every parameter: equal tensors would be stored once, and zeros left out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def attention(seed: int) -> Drawn:
    """Draw an `nn.MultiheadAttention`."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    case = CASES[seed % 4]
    batch_first, cross = rng.random() < 0.5, rng.choice(["self", "self", "key", "value"])
    sizes = {"kdim": 8, "vdim": 6} if cross == "value" else {"kdim": 8, "vdim": 8} if cross == "key" else {}
    sizes = sizes if rng.random() < 0.4 else {}
    options = {"num_heads": rng.choice([2, 3, 4]), "bias": rng.random() < 0.7, "batch_first": batch_first, **sizes}
    options["dropout"] = rng.choice([0.0, 0.2])
    call: dict[str, Any] = rng.choice([{}, {"need_weights": False}, {"average_attn_weights": False}])
    if case.startswith("dynamo") and options["dropout"]:
        options["dropout"] = 0.0  # the exporter leaves it out of attention without weights
    keys = LENGTH if cross == "self" else KEYS
    inputs = [torch.randn(BATCH, LENGTH, WIDTH)]
    if cross != "self":
        inputs.append(torch.randn(BATCH, KEYS, sizes.get("kdim", WIDTH)))
    if cross == "value":
        inputs.append(torch.randn(BATCH, KEYS, sizes.get("vdim", WIDTH)))
    inputs = inputs if batch_first else [x.transpose(0, 1).contiguous() for x in inputs]
    axes = {k: {0: f"a{k}", 1: f"b{k}"} for k in range(len(inputs))} if case == "legacy-17" and seed % 8 > 3 else {}
    masks = []
    is_bool = rng.random() < 0.5
    if rng.random() < 0.4:
        rows = rng.choice([(), (BATCH * options["num_heads"],)])
        masks.append("attn_mask")
        inputs.append(_mask((*rows, LENGTH, keys), is_bool))
    if rng.random() < 0.4:
        masks.append("key_padding_mask")
        inputs.append(_mask((BATCH, keys), is_bool))
    model = trained(Attention(cross, masks, call, **options))
    return Drawn(model, inputs, case, "nn.MultiheadAttention(", axes, f"{cross} {options} {masks} {call}")


def _mask(shape: tuple[int, ...], is_bool: bool) -> Tensor:
    """Return a mask that leaves each row its first key."""
    hidden = torch.rand(shape) < 0.4
    hidden[..., 0] = False
    return hidden if is_bool else torch.zeros(shape).masked_fill(hidden, float("-inf")) + 0.1 * torch.rand(shape)


def transformer(seed: int) -> Drawn:
    """Draw a layer, a stack, or the two stacks of an `nn.Transformer`."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    case = CASES[seed % 4]
    kind = rng.choice(["EncoderLayer", "DecoderLayer", "Encoder", "Decoder", ""])
    options: dict[str, Any] = {
        "dim_feedforward": 20, "activation": rng.choice(["relu", "gelu"]), "batch_first": rng.random() < 0.5,
        "norm_first": rng.random() < 0.5, "dropout": rng.choice([0.0, 0.2]), "layer_norm_eps": rng.choice([1e-5, 1e-6]),
    }  # fmt: skip
    if case == "dynamo-18-train":
        options["dropout"] = 0.0  # the exporter leaves it out of attention
    heads = rng.choice([2, 3])
    masks = {}
    if rng.random() < 0.4:
        name = {"Encoder": "mask", "EncoderLayer": "src_mask"}.get(kind, "tgt_mask")
        masks[name] = nn.Transformer.generate_square_subsequent_mask(LENGTH if kind else KEYS)
        if case.startswith("dynamo") and "Layer" not in kind:  # it can't export the question whether a mask is causal
            masks = {}
    if kind == "":
        net: nn.Module = nn.Transformer(WIDTH, heads, 2, 1, **options)
    else:
        net = getattr(nn, f"Transformer{kind[:7]}Layer")(WIDTH, heads, **options)
    if kind in ("Encoder", "Decoder"):
        extra = {"enable_nested_tensor": False} if kind == "Encoder" else {}
        norm = nn.LayerNorm(WIDTH) if rng.random() < 0.5 else None
        net = getattr(nn, f"Transformer{kind}")(net, rng.choice([1, 2, 3]), norm=norm, **extra)
    inputs = [torch.randn(BATCH, LENGTH, WIDTH)]
    if not kind.startswith("Encoder"):
        inputs.append(torch.randn(BATCH, KEYS, WIDTH))
    inputs = inputs if options["batch_first"] else [x.transpose(0, 1).contiguous() for x in inputs]
    return Drawn(
        trained(Whole(net, masks)), inputs, case, f"nn.Transformer{kind or 'Decoder'}(", {}, f"{options} {list(masks)}"
    )


def hold(drawn: Drawn) -> Ran:
    """Outputs, keys and gradients are the original's, weights fit both ways, and the module is that of torch."""
    ran = held(drawn.model, drawn.inputs, drawn.case, drawn.axes)
    ran.model.load_state_dict(drawn.model.state_dict(), strict=True)
    drawn.model.load_state_dict(ran.model.state_dict(), strict=True)
    classes = 2 if isinstance(getattr(drawn.model, "net", None), nn.Transformer) else 1  # an encoder and a decoder
    assert ran.source.count(drawn.wanted) == 1 and ran.source.count("(nn.Module)") == classes, ran.source
    ran.model.eval()
    with torch.no_grad():  # torch's kernels for evaluation
        fast = ran.model(*drawn.inputs)
    slow = ran.model(*drawn.inputs)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5, equal_nan=True)
    return ran


def hold_back(drawn: Drawn, folder: Path, fixed: str = "") -> None:
    """What is written back untouched is the file, bit for bit; changed values are what onnxruntime computes with.

    `fixed`: parameters whose names end so are not changed.
    """
    proto = exported(drawn.model.eval(), drawn.inputs, drawn.case.removesuffix("-train"), drawn.axes)
    onnx.save(proto, folder / "m.onnx")
    onnxgen.generate(folder / "m.onnx", folder / "model.py")
    model: nn.Module = imported(folder / "model.py").Model.from_pretrained().eval()
    assert onnxgen.export(folder / "model.py", weights=model, out=folder / "same.onnx").method == BACK
    same = {t.name: t.raw_data for t in onnx.load(folder / "same.onnx").graph.initializer}
    assert all(same[t.name] == t.raw_data for t in proto.graph.initializer)
    kept = {key: value for key, value in model.state_dict().items() if fixed and key.endswith(fixed)}
    model.load_state_dict({**perturbed(model), **kept})
    assert onnxgen.export(folder / "model.py", weights=model, out=folder / "out.onnx").method == BACK
    session = ort.InferenceSession(folder / "out.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), drawn.inputs, strict=True)})
    expected = model(*drawn.inputs)
    for ours, theirs in zip(expected if isinstance(expected, tuple) else (expected,), found, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, 1e-3, 1e-5)
