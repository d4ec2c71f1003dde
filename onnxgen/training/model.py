"""Opens the model of a generated file, with the weights that training begins with.

It also tells the model's fixed batch size, and remembers how data was fed to it (`Known`), so that other data is fed in
the same way. What a sharded run begins with is built with its weights in files (`built_outside`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from onnxgen.common.paths import like, python_file
from onnxgen.errors import OnnxgenError, one_line, typed
from onnxgen.record.sidecar import space_of
from onnxgen.runtime.checkpoint import SkipInit, load_partly, under_own_keys, without_prefix
from onnxgen.runtime.load import PARTIAL, build_fresh, from_pretrained
from onnxgen.surgery.ports import set_classes
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.preprocessing import Table, fitted
from onnxgen.training.data.presets import PRESETS
from onnxgen.training.data.streaming.stream import leading
from onnxgen.training.finetune.freezing import reset
from onnxgen.training.goals.goal import keep_state
from onnxgen.training.runs.folder import BEST, GOAL, NAME
from onnxgen.training.runs.record import Record, need_own_code, need_same_code, read_record, whole_weights
from onnxgen.training.settings import Settings

if TYPE_CHECKING:
    from onnxgen.training.data.samples import Batch, Samples


_STAMP = "__onnxgen_stamp__"


def open_module(path: Path | str) -> ModuleType:
    """Import a generated file. It stays imported, since worker processes and pickle look up its classes by name.

    Raises:
        OnnxgenError: there is no such file, it is not a Python file, or running it fails.
    """
    path = Path(os.path.realpath(path))
    if not path.is_file():
        raise OnnxgenError(f"there is no file or folder {path}", help=like(path, NAME))
    facts = python_file(path).stat()
    stamp = facts.st_mtime_ns, facts.st_size
    for module in list(sys.modules.values()):
        if _file_of(module) == str(path) and hasattr(module, "Model"):
            if getattr(module, _STAMP, stamp) == stamp:  # it was not generated again since
                return module
    name, number = path.stem, 1
    while not name.isidentifier() or name in sys.modules:  # pickle must still find the other module's classes
        name, number = f"onnxgen_model_{number}", number + 1
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    setattr(module, _STAMP, stamp)
    try:
        # Not the spec's loader: it would take byte code of an older file of the same size and second.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:  # a file that ends the program is not a module
        del sys.modules[name]
        what = f"{path} can't be imported: {typed(error)}"
        raise OnnxgenError(what, help="generate it again with --force") from error
    return module


def _file_of(module: object) -> object:
    """Return a module's file, without an import of one that waits for its first use (`importlib.util.LazyLoader`)."""
    try:
        return object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None


@contextmanager
def _without_dtensor() -> Iterator[None]:
    """Tell `torch.testing`, which a generated module loads its weights with, that no tensor is a `DTensor`.

    It would import `torch.distributed.tensor` to know, which takes longer than to load a small network. Nothing has
    made such a tensor before that was imported.
    """
    name = "_HAS_DTENSOR"
    if "torch.distributed.tensor" in sys.modules or not hasattr(torch.testing._comparison, name):
        yield
        return
    before = getattr(torch.testing._comparison, name)
    setattr(torch.testing._comparison, name, False)
    try:
        yield
    finally:
        setattr(torch.testing._comparison, name, before)


def open_model(
    path: Path | str,
    weights: Path | str | None = None,
    *,
    from_scratch: bool = False,
    strict: bool = True,
    ignore_mismatched_sizes: bool = False,
) -> nn.Module:
    """Return the model of a generated file or of a run, with its own weights, those of a checkpoint, or fresh ones.

    If the checkpoint differs only in its number of classes (see `replace_head`), the model gets that number. The
    weights of a run are its best ones.

    Args:
        weights: a safetensors file, or one of `torch.save` or Lightning. Prefixes of wrappers, such as `module.`, are
            removed if all keys have them.
        strict: if False, tensors are loaded whose keys the module has. All others start as `Model()` makes them, and a
            warning names what is newly initialised and what is not used.
        ignore_mismatched_sizes: with `strict=False`, a tensor of another shape counts as newly initialised.

    Raises:
        OnnxgenError: the file can't be imported, has no `Model`, or the weights don't fit it.
    """
    weights = None if weights is None else Path(weights)
    model, warning = load_model(Path(path), weights, from_scratch, strict, ignore_mismatched_sizes)
    if warning:
        warnings.warn(warning, stacklevel=2)
    return model


def load_model(path: Path, weights: Path | None, fresh: bool, strict: bool, ignore: bool) -> tuple[nn.Module, str]:
    """Return the model of `open_model`, and what it warns of."""
    if path.is_dir():
        record = read_record(path)
        if record.settings.get("lora"):
            return _with_adapter(path, record, weights, fresh)
        if not record.module:
            what = f"{path} has no module: {record.note}"
            raise OnnxgenError(what, help=f"load its {BEST} into the model yourself")
        need_own_code(path, record)
        weights = weights or (None if fresh else whole_weights(path, record))
        model, warning = load_model(path / record.module, weights, fresh, strict, ignore)
        return _as_in(model, record, path), warning
    module = open_module(path)
    if not hasattr(module, "Model"):
        raise OnnxgenError(f"{path} has no class Model", help="name a module that onnxgen generated")
    if fresh:
        return build_fresh(module, path), ""
    model, warning = _with_weights(path, module, weights, strict, ignore)
    note_learned(model)
    return model, warning


def _with_weights(
    path: Path, module: ModuleType, weights: Path | None, strict: bool, ignore: bool
) -> tuple[nn.Module, str]:
    if not strict:
        return load_partly(module, path, weights, ignore_mismatched_sizes=ignore)
    if weights is None:
        with _without_dtensor():
            return from_pretrained(module, path), ""
    with under_own_keys(weights, module) as (file, _), _without_dtensor():
        try:
            with SkipInit():
                return module.Model.from_pretrained(file), ""
        except Exception as error:
            return _with_other_head(module, path, weights, error), ""


def _as_in(model: nn.Module, record: Record, run: Path) -> nn.Module:
    """Return a model with the scales and the classes of a run."""
    settings = record.settings_for(run)
    note_learned(model)
    set_known(model, settings.normalize, fitted(settings.table), settings)
    set_classes(model, settings.classes)
    if (run / GOAL).is_file():
        try:
            keep_state(model, load_file(run / GOAL))
        except SafetensorError as error:
            raise OnnxgenError(f"{run / GOAL} is damaged: {one_line(error)}", help="restore it") from None
    return model


def _with_adapter(run: Path, record: Record, weights: Path | None, fresh: bool) -> tuple[nn.Module, str]:
    """Return the base of a run that trained an adapter, with the adapter merged into its weights.

    Raises:
        OnnxgenError: the base is gone, or is not the one that was trained.
    """
    from onnxgen.training.finetune.adapters import attach

    base, file = record.place_of_origin(run), weights or whole_weights(run, record)
    way = "keep the module and its weights where they were, or export the run while they are"
    if fresh or not record.origin or not base.is_file():
        what = f"{run} has an adapter alone" + (f", and {base} is gone" if not fresh else "")
        raise OnnxgenError(what, help=way if not fresh else "start afresh from its base")
    need_same_code(base, run, way)
    model = from_pretrained(open_module(base), base)
    attach(model, file)
    return _as_in(model, record, run), ""


def _with_other_head(module: ModuleType, path: Path, weights: Path, error: Exception) -> nn.Module:
    """Return the model for a checkpoint with another number of classes, which `error` did not load.

    Raises:
        OnnxgenError: the checkpoint differs otherwise. The message names some keys or shapes; torch would name all.
    """
    from onnxgen.export.state import misfits, read_state
    from onnxgen.surgery.replacing import resize_head
    from onnxgen.verify.convert import to_torch

    model = from_pretrained(module, path)
    state = without_prefix(read_state(weights), model.state_dict())
    stored = {key: tuple(array.shape) for key, array in state.items()}
    wanted = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    if not resize_head(model, stored):
        what = f"{weights} does not fit {path}: {misfits(wanted, stored) or one_line(error)}"
        raise OnnxgenError(what, help=f"give the weights of this module, under its own keys; {PARTIAL}") from error
    model.load_state_dict({key: to_torch(array) for key, array in state.items()})
    return model


_LEARNED: WeakSet[nn.Module] = WeakSet()


def note_learned(model: nn.Module) -> None:
    """Remember that this object has weights that were trained."""
    _LEARNED.add(model)


def has_learned(model: nn.Module) -> bool:
    """Return True if a model was opened or trained here, or is a generated one with its file's weights."""
    if model in _LEARNED:
        return True
    file = space_of(model).get("__file__")
    stored = None if file is None else Path(file).with_suffix(".safetensors")
    if stored is None or not stored.is_file():
        return False
    with safe_open(stored, "pt") as tensors:
        names = set(tensors.keys())
        parameters = [(n, p) for n, p in model.named_parameters() if n in names and p.numel() > 1]
        return bool(parameters) and all(torch.equal(tensors.get_tensor(n), p.detach().cpu()) for n, p in parameters[:8])


def fixed_batch(model: nn.Module) -> int | None:
    """Return the batch size that the ONNX file fixes, or None if it fixes none."""
    dims = {port.dims[0] for port in fed(model).inputs if port.dims}
    numbers = {dim for dim in dims if isinstance(dim, int)}
    return numbers.pop() if len(numbers) == len(dims) == 1 else None


def as_tuple(output: Any) -> tuple[Any, ...]:
    """Return what a model returned as a tuple of its outputs."""
    return output if isinstance(output, tuple) else (output,)


def trial_batch(model: nn.Module, samples: Samples, seed: int) -> Batch:
    """Return the first samples for a trial run: 2, or as many as the file fixes."""
    return samples.take(leading(samples, fixed_batch(model) or 2), seed)


@dataclass(frozen=True)
class Known:
    """How data was fed to a model: images ("0.13,0.31"), a table, and settings of images by name."""

    normalize: str = ""
    table: Table | None = None
    images: Mapping[str, Any] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()
OF_IMAGES = ("resize", "beside", "channel_order")  # settings that other images get, too


def set_known(model: nn.Module, normalize: str, table: Table | None, settings: Settings) -> None:
    """Remember how data was fed to a model, so that other data is fed in the same way."""
    _KNOWN[model] = Known(normalize, table, {name: getattr(settings, name) for name in OF_IMAGES})


def known_of(model: nn.Module) -> Known:
    """Return what `set_known` stored for this very object; nothing is known of another one."""
    return _KNOWN.get(model, Known())


def note_known(model: nn.Module, known: Known) -> None:
    """Remember for a model what is known of another one."""
    _KNOWN[model] = known


def as_trained(settings: Settings, model: nn.Module) -> Settings:
    """Return the settings with those of images with which a model was trained, where they are left open.

    A preset that they name counts more.
    """
    if settings.preprocess in PRESETS:
        return settings
    known = known_of(model).images
    left = {name for name in known if getattr(settings, name) in ("auto", None)}
    return replace(settings, **{name: known[name] for name in left})


def scale_of(model: nn.Module) -> str:
    """Return the normalisation that `set_known` stored for this very object; empty if none was."""
    return known_of(model).normalize


def begun(model: nn.Module | Path | str, settings: Settings) -> tuple[nn.Module, str]:
    """Return the model with the weights that training begins with, and what was loaded in part."""
    partial = settings.partial
    if not isinstance(model, nn.Module):
        if settings.lora and Path(model).is_dir() and read_record(Path(model)).settings.get("lora"):
            what = f"{model} has an adapter, and a second one can't be put on it"
            raise OnnxgenError(what, help="continue it with --resume, or start from its base with --lora again")
        return _loaded(Path(model), settings)
    if settings.weights is not None or partial:
        what = "weights= and partial= need a model that is given as a file"
        raise OnnxgenError(f"{what}: load the weights into this model yourself")
    if settings.from_scratch:
        note_known(model, Known())
        reset(model)
    return model, ""


def _loaded(model: Path, settings: Settings) -> tuple[nn.Module, str]:
    """Return a model as `load_model` does. What a sharded run begins with is mapped from files."""

    def load() -> tuple[nn.Module, str]:
        partial = settings.partial
        return load_model(model, settings.weights, settings.from_scratch, not partial, partial)

    if settings.strategy != "fsdp" or not (settings.from_scratch or settings.partial):
        return load()

    notes: list[str] = []

    def build() -> nn.Module:
        network, note = load()
        notes.append(note)
        return network

    return built_outside(build), notes[0]


def built_outside(build: Callable[[], nn.Module]) -> nn.Module:
    """Return what `build` returns, with its parameters mapped from temporary files, which are deleted already.

    So no more than the parameters of one layer are in memory. The values are those that `build` gives them: random
    numbers are drawn in the same order. Buffers stay in memory.

    Raises:
        OSError: the folder for temporary files (TMPDIR) is full.
    """
    done: dict[int, nn.Parameter] = {}

    def move(module: nn.Module) -> None:
        for parameter in module.parameters():
            if id(parameter) not in done and parameter.numel() and parameter.device.type == "cpu":
                parameter.data = _mapped(parameter.detach())
                done[id(parameter)] = parameter

    def added(module: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None:
            move(child)

    hook = register_module_module_registration_hook(added)
    try:
        model = build()
    finally:
        hook.remove()
    move(model)
    return model


def _mapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values that a file holds. What is written to it goes into the file."""
    handle, name = tempfile.mkstemp(prefix="onnxgen-")
    os.close(handle)
    try:
        mapped = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        return mapped.view(tensor.shape).copy_(tensor)
    finally:
        os.unlink(name)
