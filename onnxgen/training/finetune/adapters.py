"""Low-rank adapters (Hu et al. 2106.09685; DoRA: Liu et al. 2402.09353) on any network, by peft.

adapter = add_adapter(model, 8)              # only the adapter is trained
...
save_adapter(model, adapter, "adapter.safetensors")     # some hundred kilobytes
attach(fresh_model, "adapter.safetensors")   # merged into the weights: the model has its own classes and keys again
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from onnxgen.common.built import json_object
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.record.sidecar import read_header
from onnxgen.surgery.ports import Example, call, check_patterns, example_for, is_below, near, outputs, undisturbed
from onnxgen.surgery.replacing import resize_head
from onnxgen.training.finetune.freezing import freeze, unfreeze
from onnxgen.training.finetune.packed import Packed, packed_layers, read_outside, unpack

KEY = "adapter"  # of the metadata of a file that holds an adapter
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NAME = "default"  # peft's name of the only adapter
CHECKED_AT_ONCE = 1 << 27  # elements of weights that are merged at once for the check
SAMPLED = 64  # values of each tensor in a digest
SAME = 0.02  # of what an adapter changes: a layer whose weight is used elsewhere differs by about all of it


@dataclass(frozen=True)
class Adapter:
    """What an adapter is put on.

    Attributes:
        rank: of its matrices.
        dora: the size of each row of the weight is trained apart from its direction.
        layers: the paths of the adapted layers.
        packed: the adapted parameters of modules that are no layers: `in_proj_weight` of an `nn.MultiheadAttention`.
        whole: modules that are trained as a whole (a new head).
        base: a digest of the weights that it was trained with; see `digest`.
    """

    rank: int
    dora: bool = False
    layers: tuple[str, ...] = ()
    packed: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    base: str = ""

    @classmethod
    def from_json(cls, text: str) -> Adapter:
        """Raises `ValueError` or `TypeError` for anything that `to_json` did not write."""
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in json_object(text).items()}
        return cls(**values)


def add_adapter(
    model: nn.Module,
    rank: int,
    *targets: str,
    dora: bool = False,
    whole: Sequence[str] = (),
    example: Example | None = None,
) -> Adapter:
    """Put an adapter on layers of a model, and freeze all else. The network computes the same as before.

    Args:
        rank: of the two matrices whose product, times 2, is added to each weight.
        targets: patterns (see `freeze`) of the layers. Default: each `nn.Linear`, convolution without groups and
            dilation, and packed projection of an `nn.MultiheadAttention`. An `nn.Embedding` only if it is named.
        dora: also train the size of each row of the weights. Packed projections are left out: peft has no DoRA of them.
        whole: paths of modules that are trained as a whole, such as a new head.
        example: see `find_head`; a generated model needs none.

    Returns:
        the adapter. Layers whose weight is also used outside of them, such as an embedding that is the output's matrix,
        are left out; merged, they would compute something else.

    Raises:
        OnnxgenError: a pattern matches no layer of these kinds, or the rank does not fit.
    """
    need(["peft"])
    check_patterns(model, targets)
    paths = [path for path in _layers(model, targets) if not is_below(path, whole)]
    if dora:
        paths = [path for path in paths if not isinstance(model.get_submodule(path), nn.MultiheadAttention)]
    _need_some(model, targets, paths)
    base, inputs = digest(model, whole), example_for(model, example)
    paths = _faithful(model, paths, inputs)
    if not paths:
        raise OnnxgenError("each of these weights is also used outside its layer", help="name other layers")
    adapter = Adapter(rank, dora, *_sorted_out(model, paths), tuple(whole), base)
    inject(model, adapter)
    trained = trained_names(model)  # peft does not train the adapters of frozen parameters
    freeze(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained or is_below(name, whole))
    return adapter


def _layers(model: nn.Module, targets: Sequence[str]) -> Iterator[str]:
    """Yield the paths of layers that can be adapted: all that match a pattern, or the usual ones."""
    shared = _shared(model)
    inside: list[str] = []  # of an attention, whose own code uses the weights of its layers
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            inside.append(path)
        elif is_below(path, inside):
            continue
        weight = module._parameters.get(_weight_of(module))
        wanted = is_below(path, targets) if targets else not isinstance(module, nn.Embedding)
        own = weight is not None and id(weight) not in shared and weight.is_floating_point()
        if wanted and _can_be_merged(module) and (own or isinstance(module, Packed)):
            yield path


def _can_be_merged(module: nn.Module) -> bool:
    """Return True if peft can add an adapter to the layer's weight, and merge it.

    As of 0.21 it can't merge grouped convolutions: the adapter's first convolution sees all channels, and no grouped
    weight does. That convolution has no dilation, and pads with zeros. A Conv3d whose kernel begins with 1, 1 is taken
    for a pointwise Conv2d.
    """
    if isinstance(module, CONVOLUTIONS):
        plain = module.groups == 1 and {*module.dilation} == {1} and module.padding_mode == "zeros"
        return plain and not (isinstance(module, nn.Conv3d) and module.kernel_size[:2] == (1, 1))
    return isinstance(module, (nn.Linear, nn.Embedding, nn.MultiheadAttention))


def _weight_of(module: nn.Module) -> str:
    return "in_proj_weight" if isinstance(module, nn.MultiheadAttention) else "weight"


def _shared(model: nn.Module) -> set[int]:
    """Return the `id` of each parameter that has several names."""
    names: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)] = names.get(id(parameter), 0) + 1
    return {number for number, count in names.items() if count > 1}


def _need_some(model: nn.Module, targets: Sequence[str], paths: Sequence[str]) -> None:
    for pattern in targets or ("**",):
        if not any(is_below(path, [pattern]) for path in paths):
            what = f"{pattern!r} matches no layer that can be adapted" if targets else "no layer can be adapted"
            raise OnnxgenError(what, help=_way(model, pattern))


def _way(model: nn.Module, pattern: str) -> str:
    integers = [b for b in model.buffers() if b.dtype in (torch.int8, torch.uint8) and b.numel() > 1]
    if integers and not any(_layers(model, ())):
        return "a quantised file needs layers: generate it again with --quantized float; its integers stay in memory"
    kinds = "Linear, Conv without groups and dilation, Embedding and MultiheadAttention with own weights"
    return f"{near(pattern, [*_layers(model, ())])}: {kinds}"


def _sorted_out(model: nn.Module, paths: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the layers, and the packed parameters."""
    packed = [path for path in paths if isinstance(model.get_submodule(path), nn.MultiheadAttention)]
    return tuple(path for path in paths if path not in packed), tuple(f"{path}.in_proj_weight" for path in packed)


def inject(model: nn.Module, adapter: Adapter) -> None:
    """Put an adapter that changes nothing on a model.

    Raises:
        OnnxgenError: the model has no such layers, or peft refuses them.
    """
    need(["peft"])
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=2 * adapter.rank,
        use_dora=adapter.dora,
        target_modules="|".join(map(re.escape, adapter.layers)) or [],  # a list would match the ends of names, too
        target_parameters=list(adapter.packed),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inject_adapter_in_model(config, model)
    except (ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise OnnxgenError(f"the layers can't be adapted: {one_line(error)}", help="name others") from error
    adapted = {path for path, module in model.named_modules() if _is_adapted(module)}
    wanted = {*adapter.layers, *(name.rpartition(".")[0] for name in adapter.packed)}
    if adapted != wanted:
        more = ", ".join(sorted(adapted ^ wanted)[:3])
        raise OnnxgenError(f"peft adapts other layers than it was told: {more}", help="name the layers in another way")


def trained_names(model: nn.Module) -> frozenset[str]:
    """Return the names in the state dict of what is trained."""
    return frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def merge(model: nn.Module) -> None:
    """Add the adapter to the weights, and remove it: the model has its former classes and keys.

    Weights that were kept as integers become floats.
    """
    unpack(model)
    _merge(model)
    unfreeze(model)


def _merge(model: nn.Module) -> None:
    adapted = [(path, module) for path, module in model.named_modules() if _is_adapted(module)]
    for _, module in adapted:
        module.merge()
    for path, module in reversed(adapted):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, module.get_base_layer())


def _is_adapted(module: nn.Module) -> Any:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return isinstance(module, BaseTunerLayer)


def adapter_in(path: Path) -> Adapter | None:
    """Return the adapter that a file of weights holds, or None if it holds weights.

    Raises:
        OnnxgenError: the file is damaged.
    """
    text = read_header(path)[0].get(KEY)
    try:
        return None if text is None else Adapter.from_json(text)
    except (ValueError, TypeError) as error:
        raise OnnxgenError(f"{path}: its adapter can't be read: {one_line(error)}") from None


def load_adapter(model: nn.Module, path: Path) -> None:
    """Load the values of an adapter into a model that has it.

    Raises:
        OnnxgenError: the file has other names or shapes.
    """
    read_header(path)  # its faults are one line
    state = safetensors.torch.load_file(path)
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name in state or "lora_" in name}
    wrong = sorted(wanted.keys() ^ state.keys()) or [n for n in state if state[n].shape != wanted[n].shape]
    if wrong:
        raise OnnxgenError(f"{path} does not fit the model: {wrong[0]}")
    model.load_state_dict(state, strict=False)


def attach(model: nn.Module, path: Path) -> None:
    """Merge the adapter in a file into a model that has the weights which it was trained with.

    Raises:
        OnnxgenError: the file has no adapter, or one for another model.
    """
    adapter = adapter_in(path)
    if adapter is None:
        raise OnnxgenError(f"{path} has no adapter, but whole weights")
    if adapter.base != digest(model, adapter.whole):
        way = "attach it to the module with the weights that it was trained with"
        raise OnnxgenError(f"{path} was trained with other weights than those that the model has", help=way)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    header = read_header(path)[1]
    shapes |= {name: tuple(entry.shape) for name, entry in header.items() if name in shapes}
    resize_head(model, shapes)
    inject(model, adapter)
    load_adapter(model, path)
    merge(model)


def digest(model: nn.Module, without: Sequence[str] = ()) -> str:
    """Return a digest of names, shapes and some values of all tensors, without those of some modules."""
    hasher = hashlib.sha256()
    state: dict[str, Tensor | Packed] = {f"{path}.weight": layer for path, layer in packed_layers(model)}
    for name, value in sorted({**model.state_dict(), **state}.items(), key=lambda item: item[0]):
        if not is_below(name, without):
            tensor = value.floats() if isinstance(value, Packed) else value.detach()
            flat = tensor.flatten()
            some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].double().cpu()
            hasher.update(f"{name} {list(tensor.shape)}".encode() + some.numpy().tobytes())
    return hasher.hexdigest()[:16]


# Layers that compute the same with the adapter and with it merged.


def _faithful(model: nn.Module, paths: Sequence[str], example: Example) -> list[str]:
    """Return the layers whose weights are used by the layers themselves alone.

    The network runs with random adapters, and with the same ones merged into the weights. Integers are not merged: who
    reads them is counted.
    """
    packed, outside = {path for path, _ in packed_layers(model)}, read_outside(model, example)
    paths, integers = [path for path in paths if path not in packed], [path for path in paths if path in packed]
    return _unread(model, paths, example) + [path for path in integers if path not in outside]


def _unread(model: nn.Module, paths: Sequence[str], example: Example) -> list[str]:
    if not paths:
        return []
    with torch.random.fork_rng(devices=[]):
        inject(model, Adapter(2, False, *_sorted_out(model, paths)))
    adapted = {path: model.get_submodule(path) for path in paths}
    try:
        with undisturbed(model):
            good: list[str] = []
            for some in _chunks(paths, adapted):
                alone = [[path] for path in some]
                for part in [some] if _same(model, adapted, some, example) else alone:
                    good += part if part is some or _same(model, adapted, part, example) else []
            return good
    finally:
        _merge(model)  # they are zero again
        unfreeze(model)


def _chunks(paths: Sequence[str], adapted: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the layers in groups whose merged weights need little memory."""
    some: list[str] = []
    size = 0
    for path in paths:
        count = sum(p.numel() for p in adapted[path].get_base_layer().parameters())
        if some and size + count > CHECKED_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(path)
        size += count
    if some:
        yield some


def _same(model: nn.Module, adapted: Mapping[str, Any], paths: Sequence[str], example: Example) -> bool:
    """Return True if the network computes the same with random adapters and with the same ones merged."""
    base = outputs(call(model, example))
    weights: list[tuple[Tensor, Tensor, Tensor]] = []  # and what they were, and are merged
    for layer in map(adapted.__getitem__, paths):
        _fill(layer)
        inner = layer.get_base_layer()
        weight = getattr(inner, _weight_of(inner)).data
        weights.append((weight, weight.clone(), weight + layer.get_delta_weight(NAME)))
    with_adapters = outputs(call(model, example))
    for path in paths:
        _clear(adapted[path])
    try:
        for weight, _, merged in weights:
            weight.copy_(merged)
        with_merged = outputs(call(model, example))
    finally:
        for weight, before, _ in weights:
            weight.copy_(before)
    return all(map(_near, with_merged, with_adapters, base))


def _near(merged: Tensor, adapted: Tensor, base: Tensor) -> bool:
    if not merged.is_floating_point():
        return True
    changed = max(_largest(adapted - base), _largest(merged - base))
    return _largest(merged - adapted) <= SAME * changed + 1e-6 * _largest(base)


def _largest(values: Tensor) -> float:
    return float(values.double().abs().nan_to_num(0, 0, 0).max()) if values.numel() else 0.0


def _matrices(layer: Any) -> Iterator[tuple[Tensor, Tensor]]:
    for first, second in ((layer.lora_A, layer.lora_B), (layer.lora_embedding_A, layer.lora_embedding_B)):
        if NAME in first:
            yield tuple(getattr(m[NAME], "weight", m[NAME]) for m in (first, second))


def _fill(layer: Any) -> None:
    """Make an adapter that changes its layer's weight by about a tenth."""
    base = layer.get_base_layer()
    size = getattr(base, _weight_of(base)).detach().float().std(correction=0).item() or 1e-2
    generator = torch.Generator().manual_seed(0)
    for first, second in _matrices(layer):
        for matrix in (first, second):
            drawn = torch.randn(matrix.shape, generator=generator) * math.sqrt(0.05 * size)
            matrix.data.copy_(drawn)


def _clear(layer: Any) -> None:
    for _, second in _matrices(layer):
        second.data.zero_()
