"""Gradients of every operator against differences of the function, in float64.

What cards say (`flat`) is held to it: where no gradient flows, none does, and the
differences are zeros, too. Every other input that may be of floating point has a gradient in some case.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import onnx
import onnxruntime
import pytest

from onnxgen.graph.operators import BITS, SETS_SIZE, bodies, by_input, key, operators, reason
from onnxgen.microsoft.domain import MICROSOFT
from tests.gradients.cases import Case, Name, by_operator
from tests.gradients.checked import check


def _known() -> list[Name]:
    """Every operator that a file may have."""
    all_schemas: Any = onnx.defs.get_all_schemas()
    schemas = {
        (s.domain, s.name)
        for s in all_schemas
        if not s.deprecated and (s.has_function or s.has_context_dependent_function)
    }
    return sorted(schemas | {*bodies()} | {name for name in operators() if name[0] != "onnxgen"})


KNOWN = _known()


def test_cards_name_inputs_of_operators() -> None:
    for name in KNOWN:
        schema = _schema(name)
        inputs = _function_parameters(name) if schema is None else [i.name for i in schema.inputs]
        if name[0] == MICROSOFT:
            inputs += _function_parameters(name)  # an older onnxruntime knows fewer
        assert by_input(*name).keys() <= {*inputs}, name


@pytest.mark.parametrize("name", KNOWN, ids=lambda name: key(*name))
def test_gradients(name: Name) -> None:
    flows: set[str] = set()
    still: set[str] = set()
    for case in [] if reason(*name) == BITS else by_operator().get(name, []):
        at = _parameters(case)
        held = frozenset(origin for origin, p in at.items() if reason(*name, p) == SETS_SIZE)
        for origin, flowing in check(case, held).items():
            (flows if flowing else still).add(at.get(origin, origin.rpartition(".")[2]))
        assert not {p for p in flows if reason(*name, p)}, f"{case.name}: a gradient where the card says none"
    wanted = _of_numbers(name) | still
    missing = {p for p in wanted - flows if reason(*name, p) is None}
    assert not missing, f"no gradient of {key(*name)} for {', '.join(sorted(missing))}, but its card does not say so"


def _parameters(case: Case) -> dict[str, str]:
    """The operator's name of what each input of the graph is to it."""
    node = case.model.graph.node[-1]
    version = next((o.version for o in case.model.opset_import if o.domain == node.domain), 1)
    schema = _schema(case.operator, version)
    names = _function_parameters(case.operator) if schema is None else [i.name for i in schema.inputs]
    return {given: names[min(i, len(names) - 1)] for i, given in enumerate(node.input) if given and names}


def _of_numbers(name: Name) -> set[str]:
    """The inputs that may be of floating point."""
    schema = _schema(name)
    if schema is None:
        return {*_function_parameters(name)[:1]}
    return {i.name for i in schema.inputs if any("float)" in t or "double)" in t for t in i.types)}


@cache
def _microsoft() -> dict[str, Any]:
    """onnxruntime's schemas of its own operators."""
    schemas = onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    return {schema.name: schema for schema in schemas if schema.domain == MICROSOFT}


def _schema(name: Name, version: int | None = None) -> Any:
    """The schema of an operator, the newest one without a version; None for those that nobody has."""
    if name[0] == MICROSOFT:
        return _microsoft().get(name[1])
    try:
        return onnx.defs.get_schema(name[1], *(() if version is None else (version,)), name[0])  # type: ignore[call-overload]
    except onnx.defs.SchemaError:
        return None


def _function_parameters(name: Name) -> list[str]:
    """The inputs of an operator that has no schema, by our function of it."""
    function = (bodies() | operators())[name][-1].function
    _, *parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind != p.KEYWORD_ONLY]
