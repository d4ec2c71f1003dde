"""The ports of a model in memory: its inputs, outputs and class labels, and a call on an example.

`owners` finds which modules hold a tensor.

The outputs of a module that somebody edited are called as the variables that `forward` returns. A
forward pass on an example, which is made from the signature, has no side effects (`undisturbed`).
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onnxgen.common.names import MAX_LISTED_PATHS, matches
from onnxgen.errors import OnnxgenError, Problem, typed
from onnxgen.record.base import BASE, UNREADABLE, unpacked
from onnxgen.record.sidecar import metadata_of, space_of
from onnxgen.record.signature import Port, Signature, recorded


def signature_of(model: nn.Module) -> Signature:
    """Return the inputs and outputs of a model, in the order of `forward`.

    The sidecar of a generated module has them; outputs that were added by hand are called as their variables. For any
    other module only the names of the arguments are known: dtypes and dims are None, and there are no outputs.
    """
    metadata: Mapping[str, str] = {}
    with suppress(OnnxgenError):
        metadata = metadata_of(space_of(model))
    if (signature := recorded(metadata)) is not None:
        return replace(signature, outputs=as_returned(signature.outputs, type(model), metadata))
    required = (p for p in inspect.signature(model.forward).parameters.values() if p.default is p.empty)
    names = [p.name for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Signature(tuple(Port(name, None, None) for name in names), ())


def as_returned(outputs: tuple[Port, ...], kind: type[nn.Module], metadata: Mapping[str, str]) -> tuple[Port, ...]:
    """Return the outputs of a class, which are those of the graph unless its `forward` returns another number.

    An expression that the module was generated with stays the output of the graph. Any other one is called as its
    variable, or `output1` by its place, and nothing is known of it.
    """
    now = _of_function(kind.forward)
    if len(now) < 2 or len(now) == len(outputs):
        return outputs
    then = _of_text(unpacked(metadata.get(BASE, "")) or "", kind.__name__)
    known = dict(zip(then, outputs, strict=True)) if len(then) == len(outputs) else {}
    ports: list[Port] = []
    for number, text in enumerate(now):
        port = known.get(text) or Port(text if text.isidentifier() else f"output{number}", None, None)
        if port.name in {other.name for other in ports}:
            port = Port(f"output{number}", None, None)
        ports.append(port)
    return tuple(ports)


@lru_cache(maxsize=64)
def _of_function(forward: Callable[..., Any]) -> Sequence[str]:
    """Return what `forward` returns last, as text; () if its source is not to be had."""
    try:
        return _returned(ast.parse(textwrap.dedent(inspect.getsource(forward))))
    except (OSError, TypeError, *UNREADABLE):
        return ()


def _of_text(text: str, name: str) -> Sequence[str]:
    try:
        classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    except UNREADABLE:
        return ()
    functions = [node for one in classes for node in one.body if getattr(node, "name", "") == "forward"]
    return _returned(functions[0]) if functions else ()


def _returned(tree: ast.AST) -> Sequence[str]:
    """Return the expressions of the last `return`, which is that of `forward` itself."""
    body = tree.body[0] if isinstance(tree, ast.Module) else tree
    last = body.body[-1] if isinstance(body, ast.FunctionDef) else None
    if not isinstance(last, ast.Return) or last.value is None:
        return ()
    values = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    return [ast.unparse(value) for value in values]


_CLASSES: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()


def set_classes(model: nn.Module, classes: tuple[str, ...]) -> None:
    """Remember the class labels of a model's outputs, in the order in which it was trained."""
    _CLASSES[model] = classes


def told_classes(model: nn.Module) -> tuple[str, ...] | None:
    """Return what `set_classes` stored for this object, which may be (); None if it was not called."""
    return _CLASSES.get(model)


def classes_of(model: nn.Module) -> tuple[str, ...]:
    """Return the labels that `set_classes` stored for this object; empty if there are none."""
    return told_classes(model) or ()


NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Owner:
    """One place where a tensor is registered: `getattr(module, name)`, by its path in the model."""

    module: nn.Module
    name: str
    path: str

    @property
    def home(self) -> str:
        """Return the path of the module."""
        return self.path.rpartition(".")[0]


def owners(model: nn.Module) -> dict[int, list[Owner]]:
    """Return the owners of each parameter and buffer, by `id`. A module that is registered twice counts once."""
    by_tensor: dict[int, list[Owner]] = defaultdict(list)
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if isinstance(tensor, Tensor):
                by_tensor[id(tensor)].append(Owner(module, name, f"{path}.{name}" if path else name))
    return by_tensor


def is_below(path: str, patterns: Iterable[str]) -> bool:
    """Return True if a pattern matches a path or one of its parents ("" is the model itself)."""
    parts = tuple(path.split("."))
    return any(matches(pattern, parts[:count]) for pattern in patterns for count in range(1, len(parts) + 1))


def check_patterns(model: nn.Module, patterns: Iterable[str]) -> None:
    """Check that every pattern matches a module or a parameter.

    Raises:
        OnnxgenError: a pattern matches nothing; the error lists paths similar to each.
    """
    modules = [path for path, _ in model.named_modules(remove_duplicate=False) if path]
    paths = [*modules, *(path for path, _ in model.named_parameters(remove_duplicate=False))]
    split = [tuple(path.split(".")) for path in paths]
    wrong = [p for p in patterns if not any(matches(p, path) for path in split)]
    if wrong:
        raise OnnxgenError(*(Problem(f"no module or parameter is called {p!r}", help=near(p, paths)) for p in wrong))


def near(text: str, paths: list[str]) -> str:
    """Return a sentence that lists the paths most similar to a text; of a name the model's own parts, too."""
    first = [path for path in paths if path and "." not in path]
    alike = difflib.get_close_matches(text, paths, MAX_LISTED_PATHS, 0.6) if "." in text or not first else []
    alike = alike or difflib.get_close_matches(text, first, MAX_LISTED_PATHS, 0.6)
    candidates = [*dict.fromkeys([*alike, *first])] if "." not in text or not alike else alike
    some = candidates[:MAX_LISTED_PATHS]
    return f"there are {', '.join(some)}{', ...' if len(paths) > len(some) else ''}" if some else "there are none"


Example: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]  # one argument, several, or by name

BATCH_SIZE = 2  # size of axes named "batch", and of symbolic first axes
TRIED_SIZES = (8, 32, 64, 224)  # tried for all other symbolic axes until the model runs


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode for the block. Afterwards each module has its former mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Like `evaluating`, with gradients disabled. The random generator's state is restored afterwards."""
    with evaluating(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        yield


def call(model: nn.Module, example: Example) -> Any:
    """Call the model with an example. Returns its result."""
    if isinstance(example, Mapping):
        return model(**example)
    return model(example) if isinstance(example, Tensor) else model(*example)


def outputs(result: Any) -> list[Tensor]:
    """Return the tensors of a result, in order, from any container (tuple, dict, output class of transformers)."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def output_names(model: nn.Module, result: Any) -> list[str]:
    """Return a name for each tensor of `outputs(result)`: its ONNX or dict name, else its number."""
    if isinstance(result, Mapping) and all(isinstance(value, Tensor) for value in result.values()):
        return list(map(str, result))
    count = len(outputs(result))
    ports = signature_of(model).outputs
    return [port.name for port in ports] if len(ports) == count else list(map(str, range(count)))


def example_for(model: nn.Module, example: Example | None = None) -> Example:
    """Return the caller's example, or make one with which the model runs: floats are random, integers are ones.

    Raises:
        OnnxgenError: the model's signature says too little about its inputs, or no tried size works.
    """
    if example is not None:
        return example
    ports = signature_of(model).inputs
    way_out = "give example=, the arguments of forward (a tensor, a tuple of tensors, or a dict by argument)"
    if not ports or not all(map(_is_known, ports)):
        raise OnnxgenError("the inputs of the model are unknown", help=way_out)
    reason, like = "", _any_parameter(model)
    with undisturbed(model):
        for size, cast in itertools.product(TRIED_SIZES, (False, True)):
            sizes = _sizes(ports, size)
            inputs = tuple(_made(port, sizes, like, cast) for port in ports)
            try:
                call(model, inputs)
            except Exception as error:  # the model's code may raise anything for a size that it does not accept
                reason = reason or typed(error, 200)
            else:
                return inputs
    raise OnnxgenError(f"the model fails on a random input ({reason})", help=way_out)


def _is_known(port: Port) -> bool:
    return port.dtype not in (None, "str") and port.dims is not None and port.kind == "tensor"


def _sizes(ports: Sequence[Port], size: int) -> dict[str, int]:
    """Return a size for each symbolic one: that of a small batch, or `size`."""
    names = {dim for port in ports for dim in port.dims or () if isinstance(dim, str)}
    first = {port.dims[0] for port in ports if port.dims}
    return {dim: BATCH_SIZE if dim in first or re.search("batch", dim, re.I) else size for dim in names}


def _any_parameter(model: nn.Module) -> Tensor:
    floating = (t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point())
    return next(floating, torch.zeros(()))


def _made(port: Port, sizes: Mapping[str, int], like: Tensor, cast: bool) -> Tensor:
    """Make an input tensor on the device of `like`. A model that was cast gets floats of its new dtype."""
    dtype = getattr(torch, port.dtype or "")
    shape = [dim if isinstance(dim, int) else sizes[dim] for dim in port.dims or ()]
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.ones(shape, dtype=dtype, device=like.device)
    floats = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return floats.to(like.device, like.dtype if cast and dtype.is_floating_point else dtype)
