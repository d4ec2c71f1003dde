"""ONNX's node tests at older opsets: what they state must come of older schema versions of their operators, too.

A model is taken to an older opset by the standard's converter, or as it is where the older schemas have the same
inputs and attributes. An input that was an attribute then is made one, with the value that the test feeds.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, shape_inference, version_converter
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator

from onnxgen.backend import OnnxgenRep, narrowed
from tests.backend.exclusions import ROUNDED
from tests.ops.harness import generate, instantiate, run_onnxruntime

DOMAINS = ("", "ai.onnx.ml")
Version = tuple[str, str, int]  # domain, operator, since_version
# the reference computes these by their newest meaning, whatever the opset
NEWEST_ONLY = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "PRelu": 7}
NEVER = ("test_bernoulli",)


@dataclass
class Older:
    """A test's model at an older opset, and what is fed to it."""

    case: Any
    opset: int
    model: onnx.ModelProto
    inputs: list[Any]
    how: str

    @property
    def outputs(self) -> list[Any]:
        return arrays(self.case.data_sets[0][1])

    def compare(self, made: Sequence[Any]) -> None:
        """Raises AssertionError, by the rules of ONNX's runner, if it is not what the test states."""
        atol = ROUNDED.get(self.case.name, {}).get("atol", self.case.atol)
        Runner.assert_similar_outputs(self.outputs, list(made), self.case.rtol, atol)

    @property
    def is_kept(self) -> bool:
        """Whether onnxruntime, or else the reference, makes of the older model what the test states."""
        feeds = dict(zip([i.name for i in self.model.graph.input], self.inputs, strict=True))
        return any(self._agrees(run, feeds) for run in (run_onnxruntime, self._reference))

    def _agrees(self, run: Any, feeds: dict[str, Any]) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.compare(run(self.model, feeds))
        except Exception:
            return False
        return True

    def _reference(self, model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
        if any(self.opset < NEWEST_ONLY.get(node.op_type, 0) for node in nodes(model.graph)):
            raise ValueError("another meaning")
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        return ReferenceEvaluator(model).run(None, feeds)

    def run(self) -> None:
        """The road; raises if it does not make what the test states."""
        self.compare(OnnxgenRep(instantiate(generate(self.model)), narrowed(self.model)).run(self.inputs))


def arrays(values: Sequence[Any]) -> list[Any]:
    return [onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes(inner)


def schema(node: onnx.NodeProto, opset: int) -> defs.OpSchema | None:
    return _schema(node.op_type, opset, node.domain)


@functools.cache
def _schema(name: str, opset: int, domain: str) -> defs.OpSchema | None:
    try:
        found = defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None
    return None if found.deprecated else found


def imported(model: onnx.ModelProto) -> dict[str, int]:
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}


def versions(model: onnx.ModelProto, opsets: dict[str, int] | None = None) -> set[Version]:
    """The schema versions of the operators in a model, or what they are at other opsets."""
    opsets = opsets or imported(model)
    found = ((node, schema(node, opsets.get(node.domain, 1))) for node in nodes(model.graph) if node.domain in DOMAINS)
    return {(node.domain, node.op_type, s.since_version) for node, s in found if s is not None}


def older(case: Any, opsets: Sequence[int] | None = None) -> Iterator[Older]:
    """A test's model as it is at each opset that has other schemas for it, newest first; then as it is converted."""
    newest = imported(case.model)
    domain = next((d for d in DOMAINS[::-1] if any(n.domain == d for n in case.model.graph.node)), "")
    foreign = any(node.domain != domain for node in nodes(case.model.graph))
    if foreign or case.name.startswith(NEVER) or domain not in newest or case.model.functions:
        return
    seen = {frozenset(versions(case.model))}
    for opset in range(newest[domain] - 1, 0, -1):
        key = frozenset(versions(case.model, {**newest, domain: opset}))
        if key not in seen and (made := carried(case, domain, opset)) is not None:
            seen.add(key)
            yield made
    if domain == "":
        for opset in opsets if opsets is not None else range(newest[""] - 1, 6, -1):
            made = converted(case, opset)
            if made is not None and (key := frozenset(versions(made.model))) not in seen:
                seen.add(key)
                yield made


def converted(case: Any, opset: int) -> Older | None:
    """By the standard's converter; None where it can't."""
    if opset >= imported(case.model)[""]:
        return None
    try:
        model = version_converter.convert_version(case.model, opset)
    except Exception:
        return None
    return Older(case, opset, model, arrays(case.data_sets[0][0]), "converted")


def carried(case: Any, domain: str, opset: int) -> Older | None:
    """As it is, but for inputs that were attributes; None where an older schema has not the same."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for entry in model.opset_import:
        if entry.domain == domain:
            entry.version = opset
    feeds = dict(zip([i.name for i in model.graph.input], arrays(case.data_sets[0][0]), strict=True))
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    before = imported(case.model)
    for node in nodes(model.graph):
        if node.domain == domain and not _fit(node, schema(node, before[domain]), schema(node, opset), feeds, stored):
            return None
    used = {name for node in nodes(model.graph) for name in node.input} | {o.name for o in model.graph.output}
    kept = [i for i in model.graph.input if i.name in used]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return Older(case, opset, model, [feeds[i.name] for i in kept], "carried over")


def _fit(node: onnx.NodeProto, new: Any, old: Any, feeds: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Make a node one of the older schema, in place; False if it can't be."""
    if new is None or old is None:
        return False
    names = [i.name for i in new.inputs]
    kept = {i.name for i in old.inputs}
    while (
        kept != set(names) and len(node.input) <= len(names) and node.input and names[len(node.input) - 1] not in kept
    ):
        name, given = names[len(node.input) - 1], node.input.pop()
        value = feeds.get(given, stored.get(given))
        if given and not _as_attribute(node, old.attributes.get(name), value):
            return False
    known = all(a.name in old.attributes and a.type == old.attributes[a.name].type.value for a in node.attribute)
    missing = {n for n, a in old.attributes.items() if a.required} - {a.name for a in node.attribute}
    fits = old.min_input <= len(node.input) <= old.max_input and len(node.output) <= old.max_output
    return known and not missing and fits


def _as_attribute(node: onnx.NodeProto, attribute: Any, value: Any) -> bool:
    """Say as an attribute what an input says now; False if the older schema has no such attribute."""
    if attribute is None or value is None:
        return False
    types = defs.OpSchema.AttrType
    array = np.asarray(value)
    if attribute.type not in (types.INT, types.INTS, types.FLOAT, types.FLOATS) or array.dtype.kind not in "biuf":
        return False
    plain = array.astype(np.int64 if attribute.type in (types.INT, types.INTS) else np.float32).reshape(-1).tolist()
    several = attribute.type in (types.INTS, types.FLOATS)
    if not several and len(plain) != 1:
        return False
    kind = attribute.type.value
    node.attribute.append(helper.make_attribute(attribute.name, plain if several else plain[0], attr_type=kind))
    return True
