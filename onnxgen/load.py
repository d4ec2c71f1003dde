"""From an ONNX file to an `nn.Module` in memory, and from a generated file to its class."""

from __future__ import annotations

import itertools
import linecache
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.options import Options

if TYPE_CHECKING:
    from torch import nn

_numbers = itertools.count(1)


def load(path: Path | str, options: Options | None = None) -> nn.Module:
    """The network in an ONNX file, as a PyTorch module with its trained weights, in eval mode.

    The source is generated in memory and registered with `linecache`: tracebacks and `inspect.getsource` show it. The
    weights pass through a temporary sidecar, gone when this returns; so one copy of them is in memory.

    Args:
        path: the `.onnx` file.
        options: as for `generate`; `weights` is ignored, nothing is left behind.

    Returns:
        an instance of the generated class. `forward` takes the graph's inputs in order, with the dtypes and dims of the
        file, and returns one tensor or a tuple in graph order.

    Raises:
        OnnxgenError: everything `generate` refuses; PyTorch or safetensors missing.
    """
    need_torch("load")
    from onnxgen import pipeline
    from onnxgen.verify.integrity import METADATA

    path, options = Path(path), options or Options()
    with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "model.py"
        generated = pipeline.generate(path, out, replace(options, weights=None))
        source = out.read_text(encoding="utf-8")
        module = _execute(source, out, f"<onnxgen {path.name} {next(_numbers)}>")
        model = from_pretrained(module, path)
        vars(module)[METADATA] = generated.metadata  # the sidecar is gone
    return model.eval()


def _execute(source: str, file: Path, shown: str) -> ModuleType:
    """Run generated source as a module that is registered, as pickle and torch.compile look modules up by name, for as
    long as anything of it is in use."""
    name = f"onnxgen_loaded_{shown.split()[-1].rstrip('>')}"
    module = ModuleType(name)
    module.__file__ = str(file)  # the sidecar is looked for beside it
    linecache.cache[shown] = (len(source), None, source.splitlines(keepends=True), shown)
    sys.modules[name] = _Registered(module)
    weakref.finalize(module, _forget, name, shown)
    exec(compile(source, shown, "exec"), module.__dict__)
    module.__file__ = shown
    vars(module)["__module__"] = module  # functions and classes keep their globals, and so the module
    return module


class _Registered(ModuleType):
    """Stands in `sys.modules` for a module without keeping it alive, and with it one more network for each `load`."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        super().__setattr__("_module", weakref.ref(module))

    def __getattribute__(self, name: str) -> Any:
        module = super().__getattribute__("_module")()
        return super().__getattribute__(name) if module is None or name == "__class__" else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(super().__getattribute__("_module")(), name, value)


def _forget(name: str, shown: str) -> None:
    sys.modules.pop(name, None)
    linecache.cache.pop(shown, None)


@contextmanager
def imported(path: Path) -> Iterator[ModuleType]:
    """A generated file as a module, while the context lasts: no `.pyc`, nothing left in `sys.modules`.

    Raises:
        OnnxgenError: no such file, or running it fails; the message has the reason.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise OnnxgenError(f"can't read {path}: {error.strerror}") from None
    name = f"onnxgen_imported_{next(_numbers)}"
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module
    try:
        try:
            exec(compile(source, str(path), "exec"), module.__dict__)
        except Exception as error:
            raise OnnxgenError(
                Problem(f"{path} can't be imported: {_reason(error)}", help="generate it again with --force")
            ) from error
        yield module
    finally:
        del sys.modules[name]


def from_pretrained(module: ModuleType, shown: Path) -> nn.Module:
    """`Model.from_pretrained()` of a generated module.

    Raises:
        OnnxgenError: the file has no class `Model` of that kind, or the weights don't load.
    """
    model: Any = getattr(module, "Model", None)
    if not hasattr(model, "from_pretrained"):
        raise OnnxgenError(
            Problem(f"{shown} has no class Model with from_pretrained()", help="is it a file that onnxgen generated?")
        )
    try:
        built = model.from_pretrained()
    except Exception as error:
        raise OnnxgenError(
            Problem(f"{shown}: the weights can't be loaded: {_reason(error)}", help="generate module and weights again")
        ) from error
    return built  # type: ignore[no-any-return]


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def need_torch(what: str) -> None:
    try:
        import safetensors.torch  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise OnnxgenError(Problem(f"{what} needs PyTorch ({error})", help="pip install 'onnxgen[torch]'")) from None


callable_module(__name__, load)
