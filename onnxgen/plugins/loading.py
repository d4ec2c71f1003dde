"""Run plugins: their operators, their rules for dtypes and shapes, their numpy references.

A file is run under a unique module name, and again when it has changed. A dotted name is imported, and again when its
files have changed. Either way, a generation has the operators of its own plugins only. onnx's reference evaluator,
which is an oracle of `verify`, computes with the references. An error of a plugin is described in one line.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxgen.common.names import identifier, printable
from onnxgen.errors import OnnxgenError, Problem, typed
from onnxgen.graph.domains import is_foreign
from onnxgen.graph.nodes import all_nodes, told
from onnxgen.graph.operators import Operator, OperatorTable, layer, noted_in
from onnxgen.plugins.finding import INIT, files_of, is_path, place_of, searching_here
from onnxgen.shapes.dims import TooComplex
from onnxgen.shapes.info import UNKNOWN, Contradiction, Info, NodeFacts, Rule, Unknown

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


_HERE = str(Path(__file__).resolve().parents[1]) + os.sep


def why(error: BaseException) -> str:
    """Return an error's type and text, and the last line of code outside onnxgen that led to it."""
    places = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_HERE, "<"))]
    where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    return typed(error) + where


def inferred(plugin: Plugin, rule: Rule, n: NodeFacts) -> list[Info]:
    """Return the facts of a node's outputs by a plugin's rule, without elements: only onnxgen's own rules know these.

    Raises:
        OnnxgenError: the rule fails, or does not return facts.
    """
    op = printable(f"{n.node.domain}.{n.op}" if n.node.domain else n.op)
    try:
        infos = list(rule(n))
        if not all(isinstance(facts, Info) for facts in infos):
            raise TypeError("an infer rule must return a list of Info")
    except (Unknown, Contradiction, TooComplex):
        return []
    except Exception as error:
        what = f"plugin {plugin.name}: the infer rule fails: {why(error)}"
        raise OnnxgenError(Problem(printable(what, 400), told(n.node), op, n.opset)) from error
    return [UNKNOWN if facts == UNKNOWN else replace(facts, data=None) for facts in infos]


@dataclass(frozen=True)
class Plugin:
    """A module with operators.

    Attributes:
        name: as the user named it.
        place: its file, or its folder if it is a package; None if it has no file.
        operators: its operators.
    """

    name: str
    place: Path | None
    operators: list[Operator] = field(default_factory=list, compare=False, repr=False)


_lock = threading.RLock()
_numbers = itertools.count(1)
_run: dict[Path, tuple[str, ModuleType]] = {}  # plugins that were run as files, with their digests
_imported: dict[str, str] = {}  # digests of plugins that were imported here


def load(names: Sequence[str]) -> OperatorTable:
    """Return the operators of some plugins.

    Raises:
        OnnxgenError: a plugin can't be found or run, has no operator, or has the same operator as another.
    """
    plugins: dict[object, Plugin] = {}
    for name in map(os.fspath, names):
        plugins.setdefault(place_of(name) or name, plugin(name))
    return together(plugins.values())


def plugin(name: str) -> Plugin:
    """Return a plugin, by its path or dotted name."""
    place = place_of(name)
    with _lock, _naming(name):
        modules = _as_file(place) if place is not None and is_path(name) else _as_module(name, place)
    noted = [operator for module in modules for operator in noted_in(module)]
    if not noted:
        way_out = 'decorate a function in it: @onnxgen.op("Name", domain="com.acme")'
        raise OnnxgenError(f"--plugin {name}: the plugin registers no operator", help=way_out)
    for operator in noted:
        if not inspect.signature(operator.function).parameters:
            what = f"the function of {printable(operator.name)} takes no arguments"
            raise OnnxgenError(f"--plugin {name}: {what}", help="it must take a Builder, the inputs and the attributes")
    loaded = Plugin(name, place)
    loaded.operators.extend(
        replace(o, plugin=loaded, infer=o.infer and partial(inferred, loaded, o.infer)) for o in noted
    )
    return loaded


def together(plugins: Iterable[Plugin]) -> OperatorTable:
    """Return the operators of several plugins. Raises `OnnxgenError` if two have the same operator."""
    first: dict[tuple[str, str, int], Operator] = {}
    for operator in (operator for plugin in plugins for operator in plugin.operators):
        other = first.setdefault(operator.key, operator)
        if other is not operator:
            domain = f"{operator.domain}." if operator.domain else ""
            names = dict.fromkeys(o.plugin.name for o in (other, operator) if o.plugin is not None)
            what = f"{printable(domain + operator.name)} is registered twice from opset {operator.since} on"
            way_out = "remove one of them, or change its since="
            raise OnnxgenError(f"--plugin {' and '.join(names)}: {what}", help=way_out)
    return layer(first.values())


# ---- running ---------------------------------------------------------------------------------------------------------


def _as_file(place: Path) -> list[ModuleType]:
    """Run a file, or the `__init__.py` of a folder, unless it has not changed since the last run."""
    digest = _digest(place)
    known = _run.get(place)
    if known is None or known[0] != digest:
        module = _fresh(place)
        sys.modules[module.__name__] = module
        try:
            exec(compile(_file(place).read_bytes(), str(_file(place)), "exec"), module.__dict__)
        except BaseException:
            _forget(module.__name__)
            raise
        if known is not None:
            _forget(known[1].__name__)
        _run[place] = digest, module
    return _with_parts(_run[place][1])


def _fresh(place: Path) -> ModuleType:
    """Return an empty module for a file, in which relative imports work."""
    name = f"onnxgen_plugin_{next(_numbers)}_{identifier(place.stem)}"
    spec = ModuleSpec(name, None, origin=str(_file(place)), is_package=place.is_dir())
    if place.is_dir():
        spec.submodule_search_locations = [str(place)]
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(_file(place))
    return module


def _as_module(name: str, place: Path | None) -> list[ModuleType]:
    digest = _digest(place)
    if _imported.get(name, digest) != digest:
        _forget(name)
    is_new = name not in sys.modules
    with searching_here():
        importlib.invalidate_caches()
        module = importlib.import_module(name)
    if is_new:
        _imported[name] = digest
    return _with_parts(module)


def _with_parts(module: ModuleType) -> list[ModuleType]:
    """Return a module, and the modules of its package that are imported."""
    inside = f"{module.__name__}."
    loaded = sys.modules.copy()  # garbage collection may remove modules meanwhile (`onnxgen.load`)
    return [module, *(m for name, m in sorted(loaded.items()) if name.startswith(inside) and m is not None)]


def _forget(name: str) -> None:
    for module in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
        del sys.modules[module]


def _digest(place: Path | None) -> str:
    sha256 = hashlib.sha256()
    for file in files_of(place) if place is not None else ():
        sha256.update(f"{file}\0".encode(errors="surrogateescape") + file.read_bytes() + b"\0")
    return sha256.hexdigest()


def _file(place: Path) -> Path:
    return place / INIT if place.is_dir() else place


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turn an error of a plugin into an `OnnxgenError` of one line."""
    try:
        yield
    except OnnxgenError:
        raise
    except (Exception, SystemExit) as error:
        raise OnnxgenError(f"--plugin {name}: {why(error)}") from error


def evaluators(plugins: Sequence[str]) -> list[type[OpRun]]:
    """Return a class for each operator with a `reference`, for `onnx.reference.ReferenceEvaluator(new_ops=...)`."""
    newest = [versions[-1] for versions in load(plugins).values()]
    return [_evaluator(operator) for operator in newest if operator.reference is not None]


def without_reference(model: ir.Model, evaluators: Sequence[type[OpRun]]) -> list[str]:
    """Return the operators of a file that neither an oracle knows nor a plugin has a reference for."""
    used = {(node.domain, node.op_type) for node in all_nodes(model.graph) if is_foreign(node.domain)}
    known = {(evaluator.op_domain, evaluator.__name__) for evaluator in evaluators}
    return [printable(f"{domain}.{name}") for domain, name in sorted(used - known)]


def _evaluator(operator: Operator) -> type[OpRun]:
    from onnx.reference.op_run import OpRun

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        assert operator.reference is not None
        results = operator.reference(*inputs, **attributes)
        return tuple(results) if isinstance(results, (list, tuple)) else (results,)

    return type(operator.name, (OpRun,), {"op_domain": operator.domain, "_run": run})
