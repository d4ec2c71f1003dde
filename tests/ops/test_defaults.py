"""What an operator's function takes where a node lacks an attribute, against the schemas of onnx and onnxruntime."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state

from onnxgen.graph.nodes import plain
from onnxgen.graph.operators import find, operators

# The attribute came with a version of another default than what older versions meant; a typing error of the schema.
OTHERS = {
    ("RoiAlign", "coordinate_transformation_mode"): "output_half_pixel",
    ("GRU", "direction"): "forward",
}


def stated() -> Iterator[tuple[str, str, int, str, Any]]:
    """Every default that a schema states: domain, operator, version, attribute, value."""
    for schema in onnx.defs.get_all_schemas_with_history():
        for name, attribute in schema.attributes.items():
            yield schema.domain, schema.name, schema.since_version, name, attribute.default_value
    for schema in onnxruntime_pybind11_state.get_all_operator_schema():
        if schema.domain == "com.microsoft":
            for name, attribute in schema.attributes.items():
                proto = onnx.AttributeProto.FromString(attribute._default_value)
                yield schema.domain, schema.name, schema.since_version, name, proto


def is_same(taken: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return isinstance(taken, float) and math.isclose(taken, wanted, rel_tol=1e-6)
    return list(taken) == wanted if isinstance(wanted, list) else bool(taken == wanted)


def test_functions_take_what_the_schemas_state() -> None:
    """A function of several versions may take what one of them states; None tells that an attribute is absent."""
    wrong: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
    seen: dict[tuple[Any, ...], list[Any]] = {}
    for domain, op, version, name, proto in stated():
        function = find(domain, op, version) if (domain, op) in operators() else None
        parameter = function and function.parameters.get(function.renames.get(name, name))
        if proto.name and function is not None and parameter and parameter.kind is parameter.KEYWORD_ONLY:
            known = seen.setdefault((domain, op, function.since, name), [OTHERS.get((op, name))])
            known.append(plain(ir.serde.deserialize_attribute(proto).value))
            wrong[domain, op, function.since, name] = parameter.default, known
    wrong = {
        place: (taken, known)
        for place, (taken, known) in wrong.items()
        if taken not in (None, inspect.Parameter.empty) and not any(is_same(taken, value) for value in known)
    }
    assert len(seen) > 350 and wrong == {}
