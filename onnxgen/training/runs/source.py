"""The text of `model.py` in a run's folder: the module's own, with the number of classes that it was trained with."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.digest import LENGTH, code_digest, is_digest, with_fingerprint
from onnxgen.record.sidecar import INDEX
from onnxgen.record.signature import Port
from onnxgen.training.runs.code import READING
from onnxgen.training.runs.folder import BEST

Ports: TypeAlias = Sequence[tuple[Port, Port]]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Place: TypeAlias = tuple[int, int, int]  # line from 0, and the first and last byte of a number in it
MAX_TRIED = 500  # numbers in a module that may be the number of classes
_WEIGHTS = f'WEIGHTS = Path(__file__).with_name("{BEST}")'
_EMBEDDED = re.compile(r'^WEIGHTS = """\n.*?^"""\.replace\("\\n", ""\)$', re.MULTILINE | re.DOTALL)
_BESIDE = "generate the module without --embed and --shard-size"


def shapes_of(model: nn.Module) -> Shapes:
    """Return the shape of each tensor of a model's state dict."""
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def source_of(text: str, space: ModuleType, model: nn.Module, ports: Ports, *, divided: bool = False) -> str:
    """Return the text of a module whose `Model()` has the shapes of a trained model, and whose weights are the best.

    Args:
        text: of the module, as it is or as somebody edited it.
        space: the module itself.
        model: the trained model: an instance of its class, perhaps with another number of classes.
        ports: the model's outputs, as the ONNX file has them and as the trained model has them.
        divided: the weights of the run are several files, as the module's own.

    Raises:
        OnnxgenError: the model was changed in memory in another way, or the text can't be read.
    """
    if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text))):
        raise OnnxgenError("the module imports modules beside it, so it can't be copied alone")
    unedited = is_digest(str(getattr(space, "FINGERPRINT", "")), text)
    wanted, has = shapes_of(model), _shapes_in(text, space)
    if has != wanted:
        text = _resized(text, space, has, wanted, ports)
    text = _with_weights(text, divided)
    if unedited:  # it is again what onnxgen would call its own
        text = with_fingerprint(text, code_digest(text) + str(space.FINGERPRINT)[LENGTH:])
    return text


def _with_weights(text: str, divided: bool) -> str:
    """Let the module read the weights of the run: one file, also if its own are in itself or in several files.

    `divided`: the weights of the run are several files, too.

    Raises:
        OnnxgenError: somebody changed how it reads its own.
    """
    line = _EMBEDDED.search(text) or re.search(r"^WEIGHTS = Path\(.*$", text, re.MULTILINE)
    if line is None:
        return text
    if divided:
        text = text.replace(line[0], _WEIGHTS.replace(BEST, BEST + INDEX), 1)
        return re.sub(r"^(Weights +)[^,\n]+", rf"\g<1>{BEST}{INDEX}", text, count=1, flags=re.MULTILINE)
    text = text.replace(line[0], _WEIGHTS, 1)
    for old, new in READING:
        text = text.replace(old, new)
    if not re.search(r"\bbase64\.", text):
        text = text.replace("import base64\n", "", 1)
    if re.search(r"b85decode\(WEIGHTS|WEIGHTS\.read_text", text):
        raise OnnxgenError("its own code reads its weights, which in a run are one file", help=_BESIDE)
    return re.sub(r"^(Weights +)[^,\n]+", rf"\g<1>{BEST}", text, count=1, flags=re.MULTILINE)


def _shapes_in(text: str, space: ModuleType) -> Shapes:
    """Return the shapes of the model that a text describes. Raises whatever the text raises."""
    names: dict[str, Any] = {"__name__": space.__name__, "__file__": space.__file__, "__package__": space.__package__}
    exec(compile(text, str(space.__file__), "exec", dont_inherit=True), names)
    with torch.device("meta"):
        return shapes_of(names["Model"]())


def _resized(text: str, space: ModuleType, has: Shapes, wanted: Shapes, ports: Ports) -> str:
    """Change the numbers in the constructors that give the model its number of classes.

    Each number that may be it is changed alone. It is one of them if only tensors change that are to change.
    """
    reason = "the trained model was changed in memory, not only its number of classes"
    pairs = {
        (old, new)
        for key in has.keys() & wanted.keys()
        if len(has[key]) == len(wanted[key])
        for old, new in zip(has[key], wanted[key])
        if old != new
    }
    if has.keys() != wanted.keys() or not pairs:
        raise OnnxgenError(reason)
    differing = {key for key in has if has[key] != wanted[key]}
    chosen: dict[Place, int] = {}
    for old, new in pairs:
        for place in list(_numbers(text, old))[:MAX_TRIED]:
            try:
                alone = _shapes_in(_replaced(text, {place: new}), space)
            except Exception:  # the number is that of other features too
                continue
            changed = {key for key in has if alone.get(key) != has[key]}
            if changed and alone.keys() == has.keys() and all(alone[key] == wanted[key] for key in changed & differing):
                chosen |= {place: new} if changed <= differing else {}
    made = _replaced(text, chosen)
    if not chosen or _shapes_in(made, space) != wanted:
        raise OnnxgenError(reason)
    statistics = ("running_mean", "running_var")
    more = sum(prod(wanted[key]) - prod(has[key]) for key in differing if not key.endswith(statistics))
    return _described(made, {old for old, _ in pairs}, more, ports)


def _numbers(text: str, value: int) -> Iterator[Place]:
    """Yield the places where a number stands in the constructors of the classes."""
    for item in ast.parse(text).body:
        for method in item.body if isinstance(item, ast.ClassDef) else []:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                for node in ast.walk(method):
                    if isinstance(node, ast.Constant) and type(node.value) is int and node.value == value:
                        assert node.end_col_offset is not None
                        yield node.lineno - 1, node.col_offset, node.end_col_offset


def _replaced(text: str, numbers: Mapping[Place, int]) -> str:
    """Put new numbers at these places."""
    lines = text.encode().split(b"\n")
    for (line, start, end), new in sorted(numbers.items(), reverse=True):
        lines[line] = lines[line][:start] + str(new).encode() + lines[line][end:]
    return b"\n".join(lines).decode()


def _described(text: str, old: set[int], more: int, ports: Ports) -> str:
    """Correct the module's docstring. A shape in a comment that may be wrong now is removed.

    Args:
        old: the sizes that changed, as they were.
        more: how many parameters the model has more than before.
        ports: the outputs before and after.
    """
    lines = text.split("\n")
    dims = re.compile(rf"(?<=[\[ ])({'|'.join(map(str, old))})(?=[,\]])")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and re.fullmatch(r"# \[.*\]", token.string) and dims.search(token.string):
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    end = next((n for n, line in enumerate(lines) if line.startswith("Weights ")), 0)
    start = next((n for n, line in enumerate(lines[:end]) if line.startswith("Outputs ")), end)
    for n in range(start, end):
        for before, after in ports:
            if f" {before.name} " in lines[n] and before.dims and after.dims:
                lines[n] = lines[n].replace(_row(before.dims), _row(after.dims))
    if count := re.search(r"([\d,]+) parameter", lines[end]):
        lines[end] = lines[end].replace(count[1], f"{int(count[1].replace(',', '')) + more:,}")
    return "\n".join(lines)


def _row(dims: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"
