"""A generated module as training sees it: opened from its file, and what it takes and returns."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from weakref import WeakKeyDictionary

from torch import nn

from onnxgen.common.paths import python_file
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.runtime.load import from_pretrained
from onnxgen.surgery.ports import signature_of


def open_module(path: Path | str) -> ModuleType:
    """Import a generated file, and leave it imported: worker processes and pickle look its classes up by name.

    Raises:
        OnnxgenError: there is no such file, it is none of Python's, or running it fails.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise OnnxgenError(f"no file {path}", help="name a module that onnxgen generated")
    stamp = _stamp(python_file(path))
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path) and hasattr(module, "Model"):
            if getattr(module, _STAMP, stamp) == stamp:  # else it was generated again since
                return module
    name, number = path.stem, 1
    while not name.isidentifier() or name in sys.modules:  # the other's classes must stay where pickle finds them
        name, number = f"onnxgen_model_{number}", number + 1
    spec = importlib.util.spec_from_file_location(name, path, loader=_Fresh(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    setattr(module, _STAMP, stamp)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise OnnxgenError(
            f"{path} can't be imported: {type(error).__name__}: {error}", help="generate it again with --force"
        ) from error
    return module


_STAMP = "__onnxgen_stamp__"


class _Fresh(SourceFileLoader):
    """Compiles what is in the file: its byte code is told by size and whole seconds, within which it may change."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def open_model(path: Path | str, weights: Path | str | None = None, *, from_scratch: bool = False) -> nn.Module:
    """The model of a generated file: with its own weights, with those of a checkpoint, or freshly initialised.

    A checkpoint of `replace_head` fits, too: the model gets as many classes as it has.

    Raises:
        OnnxgenError: the file can't be imported, has no `Model`, or the weights don't fit it.
    """
    module = open_module(path)
    if not hasattr(module, "Model"):
        raise OnnxgenError(f"{path} has no class Model", help="name a module that onnxgen generated")
    if from_scratch:
        made: nn.Module = module.Model()
        return made
    if weights is None:
        return from_pretrained(module, Path(path))
    if not Path(weights).is_file():
        raise OnnxgenError(f"there is no file {weights}")
    try:
        made = module.Model.from_pretrained(weights)
    except Exception as error:
        other = _with_other_head(module, Path(path), Path(weights))
        if other is None:
            raise _unfit(module, Path(path), Path(weights), error) from error
        made = other
    return made


def _unfit(module: ModuleType, path: Path, weights: Path, error: Exception) -> OnnxgenError:
    """Says which keys and shapes differ; torch's own words name every key of both.

    Raises:
        OnnxgenError: it is no file of safetensors at all.
    """
    from onnxgen.export.state import misfits, read_state

    given = {key: tuple(array.shape) for key, array in read_state(weights).items()}
    wanted = {key: tuple(value.shape) for key, value in from_pretrained(module, path).state_dict().items()}
    why = misfits(wanted, given) or one_line(error)
    help = "give the weights of this module, under its own keys"
    return OnnxgenError(f"{weights} does not fit {path}: {why}", help=help)


def _with_other_head(module: ModuleType, path: Path, weights: Path) -> nn.Module | None:
    """The model for a checkpoint whose classifier was replaced; None if that is not what makes it differ."""
    from onnxgen.export.state import read_state
    from onnxgen.surgery.replacing import resize_head
    from onnxgen.verify.convert import to_torch

    try:
        state = {key: to_torch(array) for key, array in read_state(weights).items()}
    except Exception:  # it can't be read at all
        return None
    model = from_pretrained(module, path)
    if not resize_head(model, {key: tuple(value.shape) for key, value in state.items()}):
        return None
    model.load_state_dict(state)
    return model


_SCALES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def set_scale(model: nn.Module, normalize: str) -> None:
    """Remember by which numbers a model's images are normalised ("0.1307,0.3081"): other data has to be by the same."""
    _SCALES[model] = normalize


def scale_of(model: nn.Module) -> str:
    """What `set_scale` was told of this very object; empty if nothing was."""
    return _SCALES.get(model, "")


def fixed_batch(model: nn.Module) -> int | None:
    """The number of samples that the file fixes its inputs to, if it does."""
    found = {port.dims[0] for port in signature_of(model).inputs if port.dims}
    numbers = {dim for dim in found if isinstance(dim, int)}
    return numbers.pop() if len(numbers) == len(found) == 1 else None
