"""Frozen weights of a quantised file as the integers that it stores: QLoRA (Dettmers et al. 2305.14314).

A layer makes the floats of its weight when it runs, and again in the backward pass. In between it keeps the integers.

`pack` takes a model of a module that was generated with `--quantized float`; `unpack` gives it floats again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.export.state import Origin, origin_of
from onnxgen.record.sidecar import metadata_of, read_header, sidecar_files, sidecar_of, space_of
from onnxgen.record.way_back import QUANTISED, parts
from onnxgen.surgery.ports import Example, call, is_below, undisturbed
from onnxgen.training.memory import return_freed
from onnxgen.verify.convert import to_torch
from onnxgen.weights.dequantised import BITS, TABLE, Dequantised, table
from onnxgen.weights.dtypes import BY_NAME

TYPES = {ir.DataType[name] for name in "INT2 UINT2 INT4 UINT4 INT8 UINT8 INT16".split()}
AT_ONCE = 1 << 17  # bytes of numbers that are looked up at once
LARGE = 1 << 22  # bytes of a block
Stored = Callable[[str], ir.TensorProtocol]


class Integers(nn.Module):
    """A matrix of the file: its numbers as they are stored, and the arithmetic that makes floats of them.

    Floats are float32 in buffers of integers, so that `model.bfloat16()` does not round them. If a byte holds several
    numbers, `meaning` has them as floats for each of the 256 bytes.
    """

    numbers: Tensor
    scale: Tensor
    zero: Tensor
    meaning: Tensor

    def __init__(self, how: Dequantised, stored: Stored) -> None:
        super().__init__()
        tensor, scale = stored(how.tensor), how.scale(lambda name: stored(name).numpy())
        self.how, self.dtype = how, getattr(torch, str(scale.dtype))
        signed, bits = tensor.dtype.is_signed(), how.bits or (4 if how.form == TABLE else int(tensor.dtype.bitwidth))
        wide = torch.int16 if bits == 16 else torch.int8 if signed and bits == 8 else torch.uint8
        zero: Any = 2 ** (how.bits - 1) if how.form == BITS else 0
        if how.zero:
            zero = stored(how.zero).numpy()
            zero = how.unpacked_zero(zero) if how.form == BITS and zero.dtype == np.uint8 else zero
        self.per_byte = 8 // bits if bits < 8 else 1
        buffers = {"numbers": torch.frombuffer(bytearray(tensor.tobytes()), dtype=wide)}
        buffers |= {"scale": _hidden(scale), "zero": _hidden(zero)}
        buffers |= {"meaning": _hidden(_meaning(bits, signed, how))} if bits < 8 else {}
        for name, values in buffers.items():
            self.register_buffer(name, values, persistent=False)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers())

    def forward(self) -> Tensor:
        """Return the floats, [*how.shape] in the type of the file's scales: exactly those of `Dequantised.floats`."""
        how, count = self.how, math.prod(self.how.shape)
        scale, zero = self.scale.view(torch.float32), self.zero.view(torch.float32)
        floats = self.numbers.float() if self.per_byte == 1 else self._looked_up()
        if how.form == TABLE:
            scales = scale.flatten().repeat_interleave(how.block)[:count]
            return floats[:count].mul_(scales).view(how.shape).to(self.dtype)
        # The last block of a row of MatMulNBits is whole.
        floats = floats.view(how.shape[0], -1) if how.form == BITS else floats[:count].view(how.shape)
        if how.zero or how.form == BITS:
            self._by_block(floats, zero, Tensor.sub_)
        self._by_block(floats, scale, Tensor.mul_)
        return floats[:, : how.shape[1]].to(self.dtype) if how.form == BITS else floats.to(self.dtype)

    def _looked_up(self) -> Tensor:
        """Return all numbers as floats. A few at a time, since the index of each byte has four."""
        group = {2: torch.int64, 4: torch.complex128}[self.per_byte]  # a type of as many bytes as the floats of a byte
        floats = self.scale.new_empty(len(self.numbers), self.per_byte, dtype=torch.float32)
        meaning, groups = self.meaning.view(torch.float32).view(group).flatten(), floats.view(group).flatten()
        for some, target in zip(torch.split(self.numbers, AT_ONCE), torch.split(groups, AT_ONCE)):
            torch.index_select(meaning, 0, some.int(), out=target)
        return floats.flatten()

    def _by_block(self, floats: Tensor, values: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Change floats in place by a value for all, for each index of an axis, or for each block."""
        how, axis = self.how, self.how.axis
        values = values.reshape(len(floats), -1) if how.form == BITS and values.numel() > 1 else values
        if values.numel() == 1:
            change(floats, values.reshape(()))
        elif not how.block:
            change(floats, values.reshape(-1, *[1] * (floats.ndim - 1 - axis)))
        elif floats.shape[axis] == values.shape[axis] * how.block:
            change(torch.unflatten(floats, axis, (-1, how.block)), values.unsqueeze(axis + 1))
        else:
            change(floats, values.repeat_interleave(how.block, axis).narrow(axis, 0, floats.shape[axis]))


def _hidden(values: Any) -> Tensor:
    """Return float32 values as integers with the same bits."""
    return torch.from_numpy(np.array(values, np.float32)).view(torch.int32)


def _meaning(bits: int, signed: bool, how: Dequantised) -> Any:
    """Return the numbers in each byte, [256, 8 / bits]. The lowest bits come first, but last in a table's codes."""
    places = [4, 0] if how.form == TABLE else range(0, 8, bits)
    codes = np.stack([np.arange(256) >> place & (2**bits - 1) for place in places], -1)
    if how.form == TABLE:
        return table(how.kind)[codes]
    return np.where(codes >> (bits - 1), codes - 2**bits, codes) if signed else codes


class Block(NamedTuple):
    """A block of a weight: a strided view of an `Integers`' elements. `at`: its place in the weight, None for all."""

    source: int
    at: tuple[slice, ...] | None
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Packed(nn.Module):
    """A layer whose weight is made of integers for each use.

    Attributes:
        integers: where the numbers are; layers that share a tensor of the file share its `Integers`.
        reads: how often others than the layer itself have read the weight.
    """

    integers: nn.ModuleList
    like: Tensor  # empty, of the type and on the device that the model has
    blocks: tuple[Block, ...]
    form: tuple[int, ...]
    reads: int
    opened: Tensor | None

    def __new__(cls, *sizes: Any, **more: Any) -> Any:
        """Make a layer of floats: peft gives a convolution's adapter the class of the convolution."""
        return FLOATS[cls](*sizes, **more) if sizes or more else super().__new__(cls)  # copies and pickles give none

    @property
    def weight(self) -> Tensor:
        if self.opened is not None:
            return self.opened
        self.reads += 1
        return self.floats()

    def floats(self) -> Tensor:
        """Return the weight in the model's type."""
        weight: Any = None
        for block in self.blocks:
            whole = self.integers[block.source]().flatten().to(self.like.dtype)
            part: Tensor = whole.as_strided(block.size, block.stride, block.offset)
            if block.at is None:
                return part.reshape(self.form)
            weight = whole.new_empty(self.form) if weight is None else weight
            target = weight[block.at]
            target.copy_(part.reshape(target.shape))
        return torch.as_tensor(weight)

    @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
    def forward(self, *args: Any) -> Any:
        kind = self.like.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.like.dtype
        with torch.no_grad():
            weight = self.opened = self.floats().to(dtype)
        place = weight.untyped_storage().data_ptr()

        def keep(saved: Tensor) -> tuple[Tensor | None, Any]:
            if saved.untyped_storage().data_ptr() == place:
                return None, (saved.shape, saved.stride(), saved.storage_offset())
            return saved, saved._version

        def give(kept: tuple[Tensor | None, Any]) -> Tensor:
            saved, how = kept
            if saved is None:
                with torch.no_grad():
                    return self.floats().to(dtype).as_strided(*how)
            if saved._version != how:
                raise RuntimeError("a value that the backward pass needs was changed in place")
            return saved

        try:
            with saved_tensors_hooks(keep, give):
                return super().forward(*args)
        finally:
            self.opened = None


class PackedLinear(Packed, nn.Linear): ...  # type: ignore[override]


class PackedConv1d(Packed, nn.Conv1d): ...  # type: ignore[override]


class PackedConv2d(Packed, nn.Conv2d): ...  # type: ignore[override]


class PackedConv3d(Packed, nn.Conv3d): ...  # type: ignore[override]


class PackedEmbedding(Packed, nn.Embedding): ...  # type: ignore[override]


# Layers of integers by torch's layers of floats, and the other way round.
KINDS: dict[type[nn.Module], type[Packed]] = {
    getattr(nn, kind.__name__.removeprefix("Packed")): kind
    for kind in (PackedLinear, PackedConv1d, PackedConv2d, PackedConv3d, PackedEmbedding)
}
FLOATS = {packed: kind for kind, packed in KINDS.items()}


def pack(model: nn.Module, file: Path, without: tuple[str, ...] = ()) -> list[str]:
    """Replace the weights that the file stores as integers by these integers. The model computes the same.

    Args:
        model: as `open_model(file)` returns it; its weights must not have been changed since.
        file: a generated module, whose ONNX file is still there.
        without: patterns of modules that keep their floats.

    Returns:
        notes for the user: what is kept as integers, and what is not and why. Empty if the file is not quantised.
    """
    space = space_of(model)
    if metadata_of(space).get(QUANTISED, "{}") == "{}":
        return []
    from onnxgen.export.places import places_of  # imported here: it reads graphs

    try:
        origin = origin_of(file, space, None)
    except OnnxgenError as error:
        return [f"the weights are kept as floats, not as the integers of the file: {one_line(error)}"]
    return_freed(LARGE)  # of 500 MB of weights, glibc would keep more than the floats
    packing = _Packing(model, origin, places_of(origin.onnx), without)
    packing.run()
    return packing.notes()


class _Packing:
    def __init__(self, model: nn.Module, origin: Origin, stored: Mapping[str, Any], without: tuple[str, ...]) -> None:
        self.model, self.record, self.without = model, origin.record, without
        self.folder, self.onnx = origin.onnx.absolute().parent, origin.onnx
        self.stored = stored
        self.integers: dict[str, Integers | None] = {}
        self.value = _values(origin.space)
        self.packed: list[Packed] = []
        self.left: list[str] = []

    def run(self) -> None:
        quantised = self.record.quantised
        sources: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for name, entries in self.record.tensors.items():
            for part in parts(entries, tuple(quantised.get(name, {}).get("shape", ()))):
                sources[part["key"]].append((name, part))
        modules, shared = dict(self.model.named_modules(remove_duplicate=False)), self._shared()
        for key, pieces in sources.items():
            path, _, member = key.rpartition(".")
            matrix = any(len(quantised[name]["shape"]) > 1 for name, _ in pieces if name in quantised)
            if matrix and not is_below(path, self.without):
                own = path in modules and member == "weight" and key not in shared
                if not own or not self._pack(modules[path], key, pieces):
                    self.left.append(key)

    def _shared(self) -> set[str]:
        """Return the names of parameters that have other names, too."""
        names = {id(p): n for n, p in self.model.named_parameters()}
        return {names[id(p)] for n, p in self.model.named_parameters(remove_duplicate=False) if names[id(p)] != n}

    def _pack(self, module: nn.Module, key: str, pieces: list[tuple[str, Any]]) -> bool:
        """Replace a layer's weight if it is exactly what the file's integers stand for."""
        weight, kind = module._parameters.get("weight"), KINDS.get(type(module))
        sources = [self._integers(name) for name, _ in pieces]
        if weight is None or kind is None or any(source is None for source in sources):
            return False
        blocks = [_block(part, number) for number, (_, part) in enumerate(pieces)]
        if any(block is None for block in blocks) or sum(math.prod(b.size) for b in blocks if b) != weight.numel():
            return False
        before = type(module)
        del module._parameters["weight"]
        module.__class__ = kind
        assert isinstance(module, Packed)
        module.integers, module.form = nn.ModuleList(filter(None, sources)), tuple(weight.shape)
        module.blocks, module.reads, module.opened = tuple(filter(None, blocks)), 0, None
        module.register_buffer("like", weight.detach().new_empty(0), persistent=False)
        expected = self.value(key)
        if not torch.equal(module.floats(), weight.detach() if expected is None else expected):
            _restore(module, before, weight)
            return False
        self.packed.append(module)
        return True

    def _integers(self, name: str) -> Integers | None:
        if name not in self.integers:
            how = self.record.quantised.get(name)
            self.integers[name] = None if how is None else self._of(Dequantised.of_record(how))
        return self.integers[name]

    def _of(self, how: Dequantised) -> Integers | None:
        if any(name not in self.stored for name in how.names):
            return None
        dtype = self.stored[how.tensor].read(self.folder).dtype
        whole = how.form != BITS or (8 % how.bits == 0 and how.block * how.bits % 8 == 0)
        return Integers(how, lambda name: self.stored[name].read(self.folder)) if dtype in TYPES and whole else None

    def notes(self) -> list[str]:
        notes = []
        if self.packed:
            integers = {id(i): i.nbytes for layer in self.packed for i in layer.integers if isinstance(i, Integers)}
            size, floats = sum(integers.values()), sum(math.prod(p.form) * p.like.element_size() for p in self.packed)
            what = f"{counted(len(self.packed), 'weight')} stay integers of {self.onnx.name}"
            notes.append(f"{what}: {size / 1e6:,.1f} MB, as floats {floats / 1e6:,.1f} MB")
        if self.left:
            shown = ", ".join(self.left[:3]) + (", ..." if self.left[3:] else "")
            notes.append(f"{counted(len(self.left), 'quantised tensor')} are kept as floats: {shown}")
        return notes


def _values(space: Mapping[str, Any]) -> Callable[[str], Tensor | None]:
    """Return a function that reads a float weight from the sidecar, without mapping the file into memory."""
    sidecar = sidecar_of(space)
    files = [] if sidecar is None else sidecar_files(sidecar)
    where = {key: (file, entry) for file in files for key, entry in read_header(file)[1].items()}

    def value(key: str) -> Tensor | None:
        if key not in where:
            return None
        file, entry = where[key]
        dtype = BY_NAME[entry.dtype].numpy()
        tensor: Tensor = to_torch(
            np.fromfile(file, dtype, math.prod(entry.shape), offset=entry.start).reshape(entry.shape)
        )
        return tensor

    return value


def _block(part: Mapping[str, Any], source: int) -> Block | None:
    """Return the block of the weight that a part of the record describes; None if arithmetic made it."""
    if "fold" in part or part.get("lossy"):
        return None
    at = tuple(slice(*ends) for ends in part["slice"]) if "slice" in part else None
    return Block(source, at, part.get("offset", 0), tuple(part["size"]), tuple(part["stride"]))


def packed_layers(model: nn.Module) -> Iterator[tuple[str, Packed]]:
    """Yield the layers whose weights are integers, by path."""
    yield from ((path, module) for path, module in model.named_modules() if isinstance(module, Packed))


def unpack(model: nn.Module) -> None:
    """Give each layer with integers its weight as a frozen parameter of floats."""
    for _, module in list(packed_layers(model)):
        _restore(module, FLOATS[type(module)], nn.Parameter(module.floats().contiguous(), requires_grad=False))


def _restore(module: nn.Module, kind: type[nn.Module], weight: nn.Parameter) -> None:
    del module.integers, module.like, module.blocks, module.form, module.reads, module.opened
    module.__class__ = kind
    module.register_parameter("weight", weight)
    module._parameters = dict(sorted(module._parameters.items(), key=lambda item: item[0] != "weight"))


def read_outside(model: nn.Module, example: Example) -> Container[str]:
    """Return the paths of the layers whose integers are also read by others. The model runs once."""
    for _, module in packed_layers(model):
        module.reads = 0
    with undisturbed(model), torch.enable_grad():  # with gradients, no fused kernel reads the weights of several layers
        call(model, example)
    return {path for path, module in packed_layers(model) if module.reads}
