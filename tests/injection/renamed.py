"""A model with code that parses in place of every text, each text's the same everywhere, so that it stays valid."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnxgen.code.copied import helper_names
from onnxgen.common.names import MODULE_ATTRIBUTES, RESERVED

RUN = '__import__("os").system("touch PWNED")'
CODE = (
    f"x; {RUN}; y",
    f"x\n{RUN}\ny",
    f"x = {RUN}",
    f") or {RUN} or (",
    f"x: {RUN}",
    f"{RUN} if x else y",
    f"[{RUN} for x in y]",
    f"x, y = {RUN}, z",
    f"(lambda: {RUN})()",
    f'"""; {RUN}; """',
    f"'; {RUN}; '",
    f'f"{{{RUN}}}"',
    f"x # {RUN}",
    f"x \\\n; {RUN}",
    f"x\r{RUN}",
    f"x\u2028{RUN}\x0c{RUN}",
    f"{{{{ {RUN} }}}}",
    "x ??/\n y",
    "%s %(x)s {0} {x!r}",
    "\x1b]0;PWNED\x07\x1b[31m",
    "\x9b31m\u202ePWNED\u2066",
    "ｅｘｅｃ",
    "ｉｍｐｏｒｔ",
    "ﬁlter",
    "ªbs",
    "ſelf",
    "x" * 10_000,
)
WORDS = (
    *("class def return lambda None True False import from yield await async with pass raise del global".split()),
    *("match case type _ range print len int float tuple list zip super max min getattr isinstance slice".split()),
    *("self cls __class__ __init__ __import__ torch nn F np math Tensor Model Path WEIGHTS constant".split()),
    *("forward load_weights from_pretrained tie_weights layers item x y z i".split()),
    *sorted(helper_names()),
    *sorted(RESERVED),
    *sorted(MODULE_ATTRIBUTES),
)
STANDARD = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training")
# names that layers are known by: with them the parts before stay a module's path
TELLING = frozenset("weight bias running_mean running_var num_batches_tracked in_proj_weight in_proj_bias".split())


class Renaming:
    """What each text becomes; `parts`: names are replaced part by part, so that they still are paths."""

    def __init__(self, seed: str, parts: bool) -> None:
        texts = [*CODE, *WORDS]
        start = zlib.crc32(seed.encode()) % len(texts)
        self.texts = itertools.chain(texts[start:], texts[:start])
        self.code = itertools.cycle(CODE)
        self.parts = parts
        self.known: dict[str, str] = {}
        self.taken: set[str] = set()

    def __call__(self, text: str) -> str:
        if not text:
            return ""
        if not self.parts:
            return self._new(text)
        pieces = re.split(r"([./:])", text)
        return "".join(p if p in "./:" or p.isdigit() or p in TELLING else self._new(p) for p in pieces)

    def _new(self, text: str) -> str:
        if text not in self.known:
            new = next(self.texts, "") or f"{next(self.code)} # {len(self.known)}"
            if self.parts:
                new = re.sub(r"[./:]", "_", new)
            while new in self.taken:
                new += "'"
            self.taken.add(new)
            self.known[text] = new
        return self.known[text]


def renamed(model: ModelProto, seed: str, parts: bool) -> ModelProto:
    """A copy with every text replaced that is no operator's, no attribute's of an operator, and no place of data."""
    made = ModelProto()
    made.CopyFrom(model)
    new = Renaming(seed, parts)
    domains = {d.domain for d in made.opset_import} - {*STANDARD, "com.microsoft"} - {f.domain for f in made.functions}
    functions = {(f.domain, f.name) for f in made.functions}
    attributes = {name for f in made.functions for name in (*f.attribute, *(a.name for a in f.attribute_proto))}
    change = _Change(new, functions, attributes, domains)
    for item in made.opset_import:
        item.domain = change.domain(item.domain)
    made.producer_name, made.producer_version = new(made.producer_name), new(made.producer_version)
    made.doc_string = new(made.doc_string)
    change.properties(made.metadata_props)
    change.graph(made.graph)
    for function in made.functions:
        change.function(function)
    return made


class _Change:
    def __init__(
        self, new: Callable[[str], str], functions: set[tuple[str, str]], attributes: set[str], domains: set[str]
    ) -> None:
        self.new, self.functions, self.attributes = new, functions, attributes
        self.own = domains | {domain for domain, _ in functions} - set(STANDARD)

    def domain(self, text: str) -> str:
        return self.new(text) if text in self.own else text

    def graph(self, graph: GraphProto) -> None:
        graph.name, graph.doc_string = self.new(graph.name), self.new(graph.doc_string)
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name, value.doc_string = self.new(value.name), self.new(value.doc_string)
            self.type(value.type)
            self.properties(value.metadata_props)
        for tensor in graph.initializer:
            self.tensor(tensor)
        for sparse in graph.sparse_initializer:
            self.tensor(sparse.values)
        for node in graph.node:
            self.node(node)
        self.properties(graph.metadata_props)

    def function(self, function: onnx.FunctionProto) -> None:
        for item in function.opset_import:
            item.domain = self.domain(item.domain)
        function.name, function.domain = self.new(function.name), self.domain(function.domain)
        for names in (function.input, function.output, function.attribute):
            names[:] = map(self.new, names)
        for attribute in function.attribute_proto:
            attribute.name = self.new(attribute.name)
        for node in function.node:
            self.node(node)

    def node(self, node: NodeProto) -> None:
        calls = (node.domain, node.op_type) in self.functions
        node.name, node.doc_string = self.new(node.name), self.new(node.doc_string)
        for names in (node.input, node.output):
            names[:] = map(self.new, names)
        for attribute in node.attribute:
            self.attribute(attribute, calls)
        if calls:
            node.op_type = self.new(node.op_type)
        node.domain = self.domain(node.domain)
        self.properties(node.metadata_props)

    def attribute(self, attribute: AttributeProto, of_function: bool) -> None:
        if of_function and attribute.name in self.attributes:
            attribute.name = self.new(attribute.name)
        attribute.ref_attr_name = self.new(attribute.ref_attr_name)
        attribute.doc_string = self.new(attribute.doc_string)
        if attribute.name.endswith(("_strings", "_string", "stopwords", "pool_strings")):
            attribute.strings[:] = [self.text(text) for text in attribute.strings]
            if attribute.HasField("s"):
                attribute.s = self.text(attribute.s)
        for tensor in ([attribute.t] if attribute.HasField("t") else []) + list(attribute.tensors):
            self.tensor(tensor)
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            self.graph(graph)

    def tensor(self, tensor: TensorProto) -> None:
        tensor.name, tensor.doc_string = self.new(tensor.name), self.new(tensor.doc_string)
        tensor.string_data[:] = [self.text(text) for text in tensor.string_data]
        self.properties(tensor.metadata_props)

    def text(self, text: bytes) -> bytes:
        return self.new(text.decode("utf-8", "replace")).encode()

    def properties(self, properties: Any) -> None:
        for item in properties:
            is_known = item.key.startswith(("pkg.", "namespace"))
            item.key, item.value = item.key if is_known else self.new(item.key), self.listed(item.value)

    def listed(self, text: str) -> str:
        """The text; a list of names, as exporters record scopes, stays one."""
        found = re.findall(r"'([^'\"]*)'", text) if text.startswith("[") else []
        return repr([self.new(name) for name in found]) if found else self.new(text)

    def type(self, kind: TypeProto) -> None:
        kind.denotation = self.new(kind.denotation)
        for inner in _inner(kind):
            self.type(inner)
        for tensor in (kind.tensor_type, kind.sparse_tensor_type):
            for dim in tensor.shape.dim:
                if dim.HasField("dim_param"):
                    dim.dim_param = self.new(dim.dim_param)
                dim.denotation = self.new(dim.denotation)


def _inner(kind: TypeProto) -> Iterator[TypeProto]:
    for name, field in (("sequence_type", "elem_type"), ("optional_type", "elem_type"), ("map_type", "value_type")):
        if kind.HasField(name):
            yield getattr(getattr(kind, name), field)
