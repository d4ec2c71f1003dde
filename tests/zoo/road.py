"""Takes an exported network down the whole road, and holds what comes out to the PyTorch module that was exported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnxgen.output.compose import Generated
from onnxgen.pipeline import generate
from tests.support.defaults import given_defaults
from tests.support.real import ATOL, RTOL, Run, assert_finite_gradients, assert_way_back, imported
from tests.zoo import Entry
from tests.zoo.export import Case

RANDOM = {"Dropout", "RandomUniformLike", "RandomNormalLike", "RandomUniform", "RandomNormal", "Bernoulli"}


@dataclass(frozen=True)
class Loss:
    """Keys of the original that a file does not know (`missing`), those that stand in for them (`extra`), and why.

    `held`: parameters that the file has no place for, and that are not trained.
    """

    nets: str
    cases: str
    why: str
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


SWIN_BLOCKS = [f"layers.{layer}.blocks.{block}" for layer in (0, 1, 2) for block in (0, 1)]
SWIN_FOLDED = ("unsqueeze", "unsqueeze_1", "unsqueeze_4", "unsqueeze_5", "unsqueeze_8", "unsqueeze_9")
SWIN_SHIFTED = ("layers.0.blocks.1", "layers.1.blocks.1")
LOSSES = (
    Loss(
        "untouched_encoder",
        "dynamo-*-eval",
        "the exporter drops the addition of zeros, which this bias is before training",
        held=tuple(f"encoder.layers.{n}.self_attn.out_proj.bias" for n in (0, 1)),
    ),
    Loss(
        "sequence_norms",
        "*-eval",
        "weight normalisation is folded into its weight",
        ("weight_norm.parametrizations.weight.original0", "weight_norm.parametrizations.weight.original1"),
        ("weight_norm.weight",),
    ),
    Loss(
        "swin",
        "legacy-*-eval",
        "what is looked up in the table of positions is stored instead of table, index and mask",
        (
            *(f"{block}.attn.relative_position_{part}" for block in SWIN_BLOCKS for part in ("bias_table", "index")),
            "layers.0.blocks.1.attn_mask",
            "layers.1.blocks.1.attn_mask",
        ),
        (
            *(f"{block}.attn.position_bias" for block in SWIN_BLOCKS if block not in SWIN_SHIFTED),
            *(f"{block}.attn.bias" for block in SWIN_SHIFTED),
        ),
    ),
    Loss(
        "swin",
        "dynamo-*-eval",
        "what is looked up in the table of positions is stored instead of table, index and mask",
        (
            *(f"{block}.attn.relative_position_{part}" for block in SWIN_BLOCKS for part in ("bias_table", "index")),
            "layers.0.blocks.1.attn_mask",
            "layers.1.blocks.1.attn_mask",
        ),
        tuple(f"{block}.attn.{name}" for block, name in zip(SWIN_BLOCKS, SWIN_FOLDED)),
    ),
    Loss(
        "hf_t5",
        "dynamo-*",
        "of a tensor with two names it writes the one that is used",
        ("model.shared.weight",),
    ),
    Loss(
        "hf_clip",
        "dynamo-*-eval",
        "what is looked up in the table of positions is stored instead of it, and the exponential of the scale",
        ("model.vision_model.embeddings.position_embedding.weight", "model.logit_scale"),
        ("model.vision_model.embeddings.embedding", "model.exp"),
    ),
    Loss(
        "hf_whisper",
        "legacy-*-eval",
        "what is looked up in the table of positions, which is of sines and not trained, is stored instead of it",
        ("encoder.embed_positions.weight",),
    ),
)
# The keys are the original's, the tensors are not: stored is what the forward makes [8, 1, 1] of them.
RESHAPED = {("image_norms", "legacy-*-eval"): {"channel_norm.bias"}}


@dataclass
class Road:
    """One network in one case: the file at `path`, the module it was exported from, and what was generated from it."""

    name: str
    entry: Entry
    case: Case
    path: Path
    original: nn.Module
    folder: Path

    def __post_init__(self) -> None:
        self.generated: Generated = generate(self.path, self.folder / "generated.py")
        assert given_defaults(self.generated.source) == [], "what torch takes anyway is not written"
        self.module = imported(self.folder / "generated.py")
        self.model: nn.Module = self.module.Model.from_pretrained()

    @cached_property
    def file(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    @cached_property
    def is_random(self) -> bool:
        """Whether the file draws random numbers by other means than Dropout, which evaluation turns off."""
        return bool((RANDOM - {"Dropout"}) & {n.op_type for n in self.file.graph.node})

    @cached_property
    def is_folded(self) -> bool:
        """Whether an exporter folded a BatchNorm into its neighbour, as both do in evaluation."""
        norms = [m for m in self.original.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        return len(norms) > sum(n.op_type == "BatchNormalization" for n in self.file.graph.node)

    @cached_property
    def reshaped(self) -> set[str]:
        return {
            k for (net, case), v in RESHAPED.items() if net == self.name and fnmatch(str(self.case), case) for k in v
        }

    @cached_property
    def losses(self) -> list[Loss]:
        return [x for x in LOSSES if self.name in x.nets.split() and fnmatch(str(self.case), x.cases)]

    def check(self) -> None:
        """Everything that holds of this case."""
        self.assert_keys()
        self.assert_kinds()
        self.assert_homes()
        if self.entry.inexactness(self.case) is None and not self.is_random:
            self.assert_outputs(2)
            self.assert_outputs(3)
            self.assert_gradients()
            self.assert_takes_the_originals_weights()
            if self.case.training:
                self.assert_trains()
        self.assert_moves()
        outputs = _run(self.model.eval(), self.entry.inputs(3))
        run = Run(self.generated, self.module, self.model, outputs)
        assert_finite_gradients(run)
        assert_way_back(run, self.path)

    def assert_keys(self) -> None:
        """The state dict's keys are the original's, but for what is written down."""
        if self.is_folded:
            return
        ours, theirs = set(self.model.state_dict()), set(self.original.state_dict())
        missing = {k for x in self.losses for k in x.missing}
        extra = {k for x in self.losses for k in x.extra}
        found = f"missing {sorted(theirs - ours)}, extra {sorted(ours - theirs)}"
        assert (theirs - ours, ours - theirs) == (missing, extra), found

    def assert_kinds(self) -> None:
        """What the original trains is a parameter, and nothing else is, but for what is written down.

        A bias is made where a BatchNorm is folded into a convolution.
        """
        ours, theirs = (dict(m.named_parameters(remove_duplicate=False)) for m in (self.model, self.original))
        frozen = {n for n, p in theirs.items() if not p.requires_grad}  # what the file cannot know
        false = {n for n in ours.keys() - theirs.keys() if not (self.is_folded and n.endswith(".bias"))}
        assert false <= {k for x in self.losses for k in x.extra}, f"false parameters: {sorted(false)}"
        lost = (self.model.state_dict().keys() & theirs.keys()) - ours.keys() - frozen
        assert not lost, f"false buffers: {sorted(lost)}"

    def assert_homes(self) -> None:
        """Every stored tensor that the file calls by a module path is in that very module."""
        keys = set(self.model.state_dict())
        read = {i for n in self.file.graph.node for i in n.input}
        stored = ir.load(self.path).graph.initializers.values()
        kept = {str(v.name) for v in stored if str(v.name).count(".") >= 2 and _is_state(v)} & read
        lost = {n for n in kept if not any(k.startswith(n.rpartition(".")[0] + ".") for k in keys)}
        assert not lost, f"not in their modules: {sorted(lost)}; keys: {sorted(keys)}"

    def assert_moves(self) -> None:
        """Nothing is bound to a device: on another one (torch's "meta" refuses to meet the CPU's tensors) it runs."""
        inputs = tuple(x.to("meta") for x in self.entry.inputs(3))
        assert all(y.device.type == "meta" for y in _run(copy.deepcopy(self.model).to("meta"), inputs))

    def assert_outputs(self, batch: int) -> None:
        """Evaluation agrees with the original's."""
        inputs = self.entry.inputs(batch)
        with torch.no_grad():
            _close(_run(self.model.eval(), inputs), _run(self.original.eval(), inputs))

    def assert_gradients(self) -> None:
        """In evaluation, every parameter that is the original's has the original's gradient."""
        self._same_gradients(_comparable(self.model).eval(), _comparable(self.original).eval())

    def assert_trains(self) -> None:
        """In training mode, with nothing dropped, outputs, gradients and running statistics are the original's."""
        ours, theirs = _comparable(self.model).train(), _comparable(self.original).train()
        started = {k: int(v) for k, v in (*_counters(ours), *_counters(theirs))}
        self._same_gradients(ours, theirs)
        left, right = dict(ours.named_buffers()), dict(theirs.named_buffers())
        kept = ours.state_dict().keys() & theirs.state_dict().keys() & left.keys()
        for name in {n for n in kept if left[n].is_floating_point()}:
            torch.testing.assert_close(left[name], right[name], rtol=RTOL, atol=ATOL, msg=_named(name))
        ended = {k: int(v) for k, v in (*_counters(ours), *_counters(theirs))}
        assert ended == {k: n + 1 for k, n in started.items()}, "num_batches_tracked"

    def assert_takes_the_originals_weights(self) -> None:
        """A new model takes the original's state dict, all of it, and then computes what the original does."""
        if set(self.model.state_dict()) != set(self.original.state_dict()) or self.reshaped:
            return
        original = _moved(self.original).eval()
        fresh = self.module.Model().eval()
        fresh.load_state_dict(original.state_dict(), strict=True)
        inputs = self.entry.inputs(3)
        with torch.no_grad():
            _close(_run(fresh, inputs), _run(original, inputs))

    def _same_gradients(self, ours: nn.Module, theirs: nn.Module) -> None:
        inputs = self.entry.inputs(3)
        (mine, left), (yours, right) = _gradients(ours, inputs), _gradients(theirs, inputs)
        _close(mine, yours)
        before = dict(theirs.named_parameters(remove_duplicate=False))
        frozen = {n for n, p in before.items() if not p.requires_grad}  # what the file cannot know
        mine_of = dict(ours.named_parameters(remove_duplicate=False))
        held = {n for n, p in mine_of.items() if not p.requires_grad} - frozen
        assert held == {k for x in self.losses for k in x.held}, f"not trained: {sorted(held)}"
        frozen |= held
        same = [n for n, p in mine_of.items() if n in before and _equal(p, before[n]) and n not in frozen]
        lost = {k for x in self.losses for k in x.extra} | self.reshaped | frozen
        assert self.is_folded or set(left) - set(same) <= lost, f"differ: {set(left) - set(same) - lost}"
        for name in same:
            if right[name] is None:
                assert left[name] is None or not left[name].any(), name
                continue
            # What cancels to nearly nothing has no digits of its own: the largest element is the measure.
            atol = ATOL + 1e-4 * float(right[name].abs().max())
            torch.testing.assert_close(left[name], right[name], rtol=RTOL, atol=atol, msg=_named(name))


def _is_state(value: ir.Value) -> bool:
    """Of floating point, and part of the original's state dict: the dynamo exporter tells of a buffer that is not."""
    persistent = value.metadata_props.get("pkg.torch.export.graph_signature.InputSpec.persistent")
    return value.dtype == ir.DataType.FLOAT and persistent != "False"


def _run(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    result = model(*inputs)
    return result if isinstance(result, tuple) else (result,)


def _close(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(a, b, rtol=RTOL, atol=ATOL, msg=_named(f"output {i}"))


def _named(name: str) -> Callable[[str], str]:
    return lambda text: f"{name}: {text}"


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b)


def _gradients(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], dict[str, Tensor | None]]:
    """Outputs, and gradients by parameter of a sum with uneven weights (of a softmax the plain sum has none)."""
    outputs = _run(model, inputs)
    generator = torch.Generator().manual_seed(2)
    loss = torch.stack([(o * torch.rand(o.shape, generator=generator)).sum() for o in outputs]).sum()
    names = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    return outputs, dict(zip(names, torch.autograd.grad(loss, list(names.values()), allow_unused=True)))


def _comparable(model: nn.Module) -> nn.Module:
    """A copy that drops nothing while training, and whose embeddings train every row: ONNX has no padding index."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
        elif isinstance(module, nn.Embedding):
            module.padding_idx = None
    return model


def _counters(model: nn.Module) -> list[tuple[tuple[int, str], Tensor]]:
    """How many batches each BatchNorm has seen; the legacy exporter does not store it."""
    return [((id(model), n), b) for n, b in model.named_buffers() if n.endswith("num_batches_tracked")]


def _moved(model: nn.Module) -> nn.Module:
    """A copy with other weights; running variances stay positive."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=generator) * 0.1)
    return model
