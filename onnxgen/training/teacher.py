"""Teachers: trained networks whose outputs another network learns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError, did_you_mean
from onnxgen.record.signature import Port
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data.images import shown
from onnxgen.training.data.samples import Batch
from onnxgen.training.endings import ending_of
from onnxgen.training.model import known_of, load_model
from onnxgen.training.runs.record import code_of

Tensors = dict[str, Tensor]  # outputs and features by name
_SUM = 1e-3  # probabilities sum to 1 within this
TOLD = "a teacher is an ONNX file, a module that onnxgen generated, or the folder of a run"


class Network(Protocol):
    """What a teacher is made of.

    Attributes:
        inputs: in order.
        outputs: their names.
        sha256: of all that decides its outputs.
        scale: how its images were normalised, in the form of `Settings.normalize`; empty if that is not known.
        images: the settings of images with which it was trained, by name; {} if they are not known.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]
    sha256: str
    scale: str
    images: Mapping[str, Any]

    def run(self, inputs: Sequence[Tensor]) -> Tensors:
        """Return outputs and features, in evaluation mode and without gradients."""
        ...

    def endings(self, inputs: Sequence[Tensor]) -> dict[str, str]:
        """Return the last operation of each output, as `losses.Ending.kind`."""
        ...


class ModuleNetwork:
    """A generated module, or that of a run with its best weights."""

    def __init__(self, path: Path, features: Sequence[str]) -> None:
        """`features` are paths of modules. Raises `OnnxgenError`: it can't be opened, or has no such module."""
        self.path, self.model = path, load_model(path, None, False, True, False)[0].eval()
        ports = signature_of(self.model)
        self.inputs, self.outputs = ports.inputs, tuple(port.name for port in ports.outputs)
        known = known_of(self.model)
        self.scale, self.images = known.normalize, known.images
        self.seen = {name: Seen(module_called(self.model, name, f"teacher {path}"), always=True) for name in features}
        digest = hashlib.sha256((code_of(path) or code_of(path / "model.py") or "").encode())
        for name, tensor in self.model.state_dict().items():
            digest.update(name.encode() + tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        self.sha256 = digest.hexdigest()

    def run(self, inputs: Sequence[Tensor]) -> Tensors:
        self.model.to(inputs[0].device)
        with torch.no_grad():
            outputs = _tuple(self.model(*inputs))
        return dict(zip(self.outputs, outputs)) | {name: seen.taken() for name, seen in self.seen.items()}

    def endings(self, inputs: Sequence[Tensor]) -> dict[str, str]:
        tracked = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        with torch.enable_grad():
            outputs = _tuple(self.model(*tracked))
        self.model.requires_grad_(False)
        return {name: ending_of(output).kind for name, output in zip(self.outputs, outputs)}


class Seen:
    """Keeps the latest result of a module, until it is taken; of passes without gradients only if `always`."""

    def __init__(self, module: nn.Module, always: bool = False) -> None:
        self.output: Tensor | None = None
        self.always = always
        self.handle = module.register_forward_hook(self)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.always or torch.is_grad_enabled():
            self.output = next(iter(_tuple(output)))

    def taken(self) -> Tensor:
        output, self.output = self.output, None
        assert output is not None, "the module was not called"
        return output


@dataclass
class Teacher:
    """A network with the columns of a batch that it takes, one for each input."""

    network: Network
    columns: tuple[str, ...]

    def __call__(self, batch: Batch) -> Tensors:
        """Return its outputs and features for a batch, on the batch's device.

        Images [n, channels, height, width] of another size are resized (bilinear, antialiased).
        """
        pairs = zip(self.network.inputs, self.columns)
        return self.network.run([_as_taken(batch[column], port) for port, column in pairs])


def open_teacher(path: Path, features: Sequence[str], inputs: Mapping[str, str], batch: Batch, scale: str) -> Teacher:
    """Return a teacher for batches like this one.

    Args:
        features: names of further values: of the graph, or of modules.
        inputs: the student's inputs, in order, with their columns.
        scale: how the student's images are normalised.

    Raises:
        OnnxgenError: there is no such file, it can't be run, or it takes other inputs than the student.
    """
    if not path.exists():
        raise OnnxgenError(f"there is no teacher {path}", help=TOLD)
    if path.suffix == ".onnx":
        from onnxgen.training.onnx_teacher import OnnxNetwork  # imported here: it reads graphs

        network: Network = OnnxNetwork(path, features)
    else:
        network = ModuleNetwork(path, features)
    names = [port.name for port in network.inputs]
    if set(names) <= inputs.keys():
        columns = tuple(inputs[name] for name in names)
    elif len(names) == len(inputs):
        columns = tuple(inputs.values())
    else:
        what = f"the teacher {path} takes {listed(names)}, but the student takes {listed(inputs)}"
        raise OnnxgenError(what, help="cut the teacher with --inputs of `onnxgen`, so that both take the same")
    if network.scale and scale and network.scale != scale:
        what = f"the teacher {path} was trained with images normalised by {network.scale}, and the student gets {scale}"
        raise OnnxgenError(what, help=f"--normalize {network.scale}")
    for port, column in zip(network.inputs, columns):
        _check(path, port, column, batch[column])
    return Teacher(network, columns)


def kinds_of(teacher: Teacher, batch: Batch, outputs: Tensors) -> dict[str, str]:
    """Return what each output ends in. Numbers that are not negative and sum to 1 come from a softmax."""
    pairs = zip(teacher.network.inputs, teacher.columns)
    kinds = teacher.network.endings([_as_taken(batch[column], port) for port, column in pairs])
    for name, kind in kinds.items():
        values = outputs[name]
        if not kind and values.ndim == 2 and values.shape[1] > 1 and values.is_floating_point():
            sums = values.double().sum(1)
            if bool((values >= 0).all()) and bool((sums - 1).abs().max() < _SUM):
                kinds[name] = "softmax"
    return kinds


def module_called(model: nn.Module, path: str, owner: str) -> nn.Module:
    """Return the module with a path. `owner` names the model in the error, `OnnxgenError`, if there is none."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if path not in modules or not path:
        raise OnnxgenError(f"the {owner} has no module {path!r}", help=did_you_mean(path, [*filter(None, modules)]))
    return modules[path]


def _check(path: Path, port: Port, column: str, values: Tensor) -> None:
    """Check that an input takes a column, as `_as_taken` makes it."""
    what = f"the teacher {path} takes {port.name} {shown(port)}"
    has = f"column {column!r} gives {['n', *values.shape[1:]]}".replace("'n'", "n")
    wanted = values.dtype if port.dtype is None else getattr(torch, port.dtype, torch.bool)
    both = values.is_floating_point() and wanted.is_floating_point
    if not both and torch.promote_types(values.dtype, wanted) != wanted:
        kind = str(values.dtype).removeprefix("torch.")
        raise OnnxgenError(f"{what} as {port.dtype}, but column {column!r} holds {kind}", help=f"give {port.dtype}")
    dims = port.dims
    if dims is None:
        return
    if dims and isinstance(dims[0], int):
        way = "give it as a module: `onnxgen teacher.onnx --dynamic-batch`"
        raise OnnxgenError(f"{what}: batches of {dims[0]} only", help=way)
    fits = [not isinstance(dim, int) or dim == size for dim, size in zip(dims, values.shape)]
    if len(dims) != values.ndim or not all(fits[:2] if _is_image(values) else fits):
        way = "give a teacher for these shapes, or a student for the teacher's (--input-shape of `onnxgen`)"
        raise OnnxgenError(f"{what}, but {has}", help=way)


def _is_image(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_floating_point() and x.shape[1] in (1, 3, 4)


def _as_taken(x: Tensor, port: Port) -> Tensor:
    """Return a column in an input's type, and an image in its height and width."""
    if port.dims is not None and _is_image(x):
        size = [dim if isinstance(dim, int) else have for dim, have in zip(port.dims[2:], x.shape[2:])]
        if size != list(x.shape[2:]):
            x = F.interpolate(x, size, mode="bilinear", antialias=True)
    return x if port.dtype is None else x.to(getattr(torch, port.dtype))


def _tuple(output: Any) -> tuple[Tensor, ...]:
    return tuple(output) if isinstance(output, (tuple, list)) else (output,)
