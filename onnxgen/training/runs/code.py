"""The code that a run may run: its own `model.py`. All other code is named by the user, never by a record alone.

This module does not import torch.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from onnxgen.errors import OnnxgenError
from onnxgen.record.digest import FINGERPRINT, tree_digest
from onnxgen.training.byname import FUNCTION
from onnxgen.training.runs.folder import MODULE

READING = (  # how the templates read weights that are in the module or in several files; and in one file
    ("Path(weights).read_bytes() if weights else base64.b85decode(WEIGHTS)", "Path(weights or WEIGHTS).read_bytes()"),
    ("load(base64.b85decode(WEIGHTS))[key]", "load(WEIGHTS.read_bytes())[key]"),
    ('    name = json.loads(WEIGHTS.read_text())["weight_map"][key]\n', ""),
    ("safe_open(WEIGHTS.with_name(name), ", "safe_open(WEIGHTS, "),
)
_OPTIONS = {"imports": "import"}  # settings whose option has another name
_FORMS = ('Path(__file__).with_name("")', 'Path(__file__).parent / ""', '"".replace("", "")')  # of the templates
_BASE64 = ast.dump(ast.parse("import base64").body[0])
_PLACES = [ast.dump(ast.parse(form, mode="eval").body) for form in _FORMS]


def refuse_code(values: Mapping[str, Any], given: Collection[str], run: Path) -> None:
    """Refuse the code that the record of a run names outside of its folder, unless the user named it, too.

    Args:
        values: `data` and settings, as the record has them.
        given: the names of those that the user gave.

    Raises:
        OnnxgenError: the data or the task is a function, the teacher a module, or a module is to be imported.
    """
    found = {name: value for name, value in values.items() if name not in given and _is_code(name, value)}
    if not found:
        return
    said = {name: " ".join(value) if isinstance(value, tuple) else str(value) for name, value in found.items()}
    named = " and ".join(f"{name} {value}" for name, value in said.items())
    options = " ".join(f"--{_OPTIONS.get(name, name)} {value}" for name, value in said.items())
    what = f"{run} names code outside of its folder, which is not run unasked: {named}"
    raise OnnxgenError(what, help=f"if you trust it, name it yourself: {options}")


def _is_code(name: str, value: Any) -> bool:
    if name in ("data", "task"):
        return FUNCTION.fullmatch(str(value)) is not None and not (name == "data" and Path(value).exists())
    return bool(value) and (name == "imports" or (name == "teacher" and Path(value).suffix != ".onnx"))


def need_same_code(module: Path, run: Path, way: str) -> None:
    """Refuse a module that a record of a run names, and that does not do what the run's `model.py` does.

    Args:
        way: what the user can do.

    Raises:
        OnnxgenError: it is another, or the run has none.
    """
    if not is_same_code(module, run):
        what = f"{run} names {module}, whose code is not that of its {MODULE}: it is not run unasked"
        raise OnnxgenError(what, help=way)


def is_same_code(module: Path, run: Path) -> bool:
    """Return True if a module does what the `model.py` of a run does.

    Two things may differ: where the weights are, and the numbers in constructors, since a run writes the number of
    classes there that it trained. To run such a module is to run `model.py`.
    """
    module = module / MODULE if module.is_dir() else module
    try:
        one, other = (path.read_text(encoding="utf-8") for path in (module, run / MODULE))
        return one == other or _what_it_does(one) == _what_it_does(other)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False


def _what_it_does(text: str) -> str:
    text = FINGERPRINT.sub('FINGERPRINT = ""', text.replace("\r\n", "\n"))
    for old, new in READING:
        text = text.replace(old, new)
    tree = ast.parse(text)
    tree.body = [_without_weights(item) for item in tree.body if ast.dump(item) != _BASE64]
    for item in tree.body:
        for method in item.body if isinstance(item, ast.ClassDef) else []:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                for node in ast.walk(method):
                    if isinstance(node, ast.Constant) and type(node.value) is int:
                        node.value = 0
    return tree_digest(tree)


def _without_weights(item: ast.stmt) -> ast.stmt:
    """Return a statement, but `WEIGHTS = ...` of the templates without the name of the file or its contents."""
    match item:
        case ast.Assign(targets=[ast.Name("WEIGHTS")]):
            value = copy.deepcopy(item.value)
        case _:
            return item
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.parse("WEIGHTS = None").body[0] if ast.dump(value) in _PLACES else item
