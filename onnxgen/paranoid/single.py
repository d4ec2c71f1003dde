"""Compute one standard node on arrays: with onnxruntime, or with onnx's evaluator if that fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.graph.catalogue import card, is_a
from onnxgen.graph.traits import EXACT
from onnxgen.paranoid.apart import APART, HAS_ONNXRUNTIME, session
from onnxgen.paranoid.claims import LAYOUTS
from onnxgen.paranoid.picture import Made
from onnxgen.paranoid.region import Broken, Unable, Untold
from onnxgen.shapes import usual

DOUBLE = int(ir.DataType.DOUBLE)
NARROW = {int(d) for d in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)}
IR_VERSION = 10
# in what onnxruntime says of an operator that it cannot judge, the last of an opset that is newer than it is
UNKNOWN = ("NOT_IMPLEMENTED", "not a registered", "a crash", "model_load_utils")
PACKED = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1}
PLAIN = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16}


Key = tuple[object, ...]  # nodes with equal keys share a session


class Single:
    """Runs nodes one at a time. Equal nodes share a session.

    Args:
        second: ask onnx's own evaluator alone, for a second opinion.
        quick: compute the usual operators here (see `usual`).
        most: the number of elements that onnx's evaluator may be given, which is slow; None: any.
    """

    def __init__(self, second: bool = False, quick: bool = False, most: int | None = None) -> None:
        self.second, self.quick, self.most = second, quick, most
        self.sessions: dict[Key, Any] = {}
        self.evaluators: dict[Key, Any] = {}

    def run(self, made: Made, inputs: Sequence[Any], wide: bool, types: Sequence[ir.DataType | None] = ()) -> list[Any]:
        """Return the outputs of a node. Raises `Untold`.

        Args:
            wide: in float64, whatever its attributes say.
            types: of the outputs, for operators outside the standard, whose schemas do not infer them all.
        """
        if made.domain in LAYOUTS:
            raise Untold("kernels whose layout is that of the processor that they run on")
        if self.quick:
            with suppress(usual.Unusual), np.errstate(all="ignore"):
                return self._usual(made, inputs, wide)
        attributes = _attributes(made, wide)
        given = tuple(_kind(v) for v in inputs)
        texts = [a.SerializeToString() for a in attributes]
        told = tuple(_told(t, wide) for t in types) if made.domain else ()
        key = (made.domain, made.op, made.version, len(made.outputs), given, told, *texts)
        why, known = "onnxruntime is not installed", False
        if HAS_ONNXRUNTIME and not self.second and not _is_exotic(made, inputs):
            try:
                return self._with_onnxruntime(key, made, attributes, inputs, told)
            except Exception as error:
                why = f"onnxruntime: {_line(error)}"
                known = not any(text in why for text in UNKNOWN)
                if made.domain and "NOT_IMPLEMENTED" in why:
                    raise Untold(f"onnxruntime has no CPU kernel of {made.domain}.{made.op}") from None
        if made.domain == "" and made.version < card("", made.op).since:  # the evaluator computes the newest meaning
            raise (Broken if known else Unable)(f"{made.op}: {why}")
        if known and is_a(made.node, EXACT) and "[ONNXRuntimeError]" in why:
            raise Broken(f"{made.op}: {why}")  # onnx.reference slices as numpy does, also past the end
        try:
            return self._with_onnx(key, made, attributes, inputs)
        except Unable as error:
            raise (Broken(f"{made.op}: {why}") if known else error) from None
        except Exception as error:
            raise (Broken if known else Untold)(f"{made.op}: {why}; onnx.reference: {_line(error)}") from None

    def _usual(self, made: Made, inputs: Sequence[Any], wide: bool) -> list[Any]:
        try:
            return usual.run(made, inputs, wide)
        except usual.Unusual:
            raise
        except Exception as error:
            raise Broken(f"{made.op}: {_line(error)}") from None

    def _with_onnxruntime(
        self, key: Key, made: Made, attributes: list[Any], inputs: Sequence[Any], told: Sequence[int]
    ) -> list[Any]:
        feeds = {f"i{i}": v for i, v in enumerate(inputs) if v is not None}
        if key not in self.sessions:
            model = _model(made, attributes, inputs, told).SerializeToString()
            try:
                self.sessions[key] = model if made.domain else session(model)
            except Exception as error:
                self.sessions[key] = error
        found = self.sessions[key]
        if isinstance(found, Exception):
            raise found
        return APART.run(found, feeds) if made.domain else list(found.run(None, feeds))

    def _with_onnx(self, key: Key, made: Made, attributes: list[Any], inputs: Sequence[Any]) -> list[Any]:
        if self.most is not None and sum(v.size for v in inputs if isinstance(v, np.ndarray)) > self.most:
            raise Unable(f"{made.op}: onnx.reference would take long")
        from onnx.reference import ReferenceEvaluator

        if key not in self.evaluators:
            self.evaluators[key] = ReferenceEvaluator(_model(made, attributes, inputs))
        with np.errstate(all="ignore"):
            found = self.evaluators[key].run(None, {f"i{i}": v for i, v in enumerate(inputs) if v is not None})
        return list(found)


def _is_exotic(made: Made, inputs: Sequence[Any]) -> bool:
    """Return True if a node has types that numpy lacks, and that onnxruntime returns as integers."""
    made_of = [made.attributes[name].value for name in ("to", "dtype", "output_dtype") if name in made.attributes]
    types = {ir.DataType(t) for t in made_of if t} | {dtype_of(v) for v in inputs if isinstance(v, np.ndarray)}
    return any(t.is_floating_point() and t not in PLAIN or t in PACKED for t in types)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _kind(value: Any) -> object:
    if isinstance(value, list):
        return ("list", _kind(value[0]) if value else None)
    return None if value is None else value.dtype.str if value.dtype.kind != "V" else str(value.dtype)


def _model(made: Made, attributes: list[Any], inputs: Sequence[Any], told: Sequence[int] = ()) -> onnx.ModelProto:
    names = ["" if v is None else f"i{i}" for i, v in enumerate(inputs)]
    outputs = [f"o{i}" for i in range(len(made.outputs))]
    node = onnx.helper.make_node(made.op, names, outputs, domain=made.domain)
    node.attribute.extend(attributes)
    given = [onnx.helper.make_value_info(f"i{i}", _type(v)) for i, v in enumerate(inputs) if v is not None]
    made_infos = [onnx.ValueInfoProto(name=o) for o in outputs]
    for output, elem_type in zip(made_infos, told):
        if elem_type:
            output.type.CopyFrom(onnx.helper.make_tensor_type_proto(elem_type, None))
    graph = onnx.helper.make_graph([node], "one", given, made_infos)
    opsets = [onnx.helper.make_opsetid(made.domain, made.version)]
    if made.domain:
        opsets.append(onnx.helper.make_opsetid("", 17))
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _type(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        element = _type(value[0]) if value else onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        return onnx.helper.make_sequence_type_proto(element)
    return onnx.helper.make_tensor_type_proto(int(dtype_of(value)), None)


def _told(dtype: ir.DataType | None, wide: bool) -> int:
    """Return the type of an output; 0 if it is unknown."""
    found = 0 if dtype is None else int(dtype)
    return DOUBLE if wide and found in NARROW else found


def dtype_of(array: Any) -> ir.DataType:
    return ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype)


def _attributes(made: Made, wide: bool) -> list[onnx.AttributeProto]:
    """Return the attributes of a node. In float64 mode GroupNormalization computes its mean and variance in float64."""
    found = [_proto(a, wide) for _, a in sorted(made.attributes.items())]
    if wide and made.op == "GroupNormalization" and made.version >= 21:
        stash = onnx.helper.make_attribute("stash_type", DOUBLE)
        found = [*(a for a in found if a.name != "stash_type"), stash]
    return found


def _proto(attribute: ir.Attr, wide: bool) -> onnx.AttributeProto:
    """Return an attribute, converted to float64 if everything is to be float64."""
    if attribute.type == ir.AttributeType.TENSOR and wide and int(attribute.value.dtype) in NARROW:
        array = np.asarray(attribute.value.numpy()).astype(np.float64)
        return onnx.helper.make_attribute(attribute.name, onnx.numpy_helper.from_array(array))
    if wide and attribute.name in ("to", "dtype") and attribute.type == ir.AttributeType.INT:
        if int(attribute.value) in NARROW:
            return onnx.helper.make_attribute(attribute.name, DOUBLE)
    return ir.serde.serialize_attribute(attribute)
