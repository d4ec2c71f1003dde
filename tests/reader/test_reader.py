"""Reading bad files: each is refused, by the name of what is wrong with it."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto
from onnx import helper as oh
from onnx.numpy_helper import from_array

from onnxgen.common.limits import Limits
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.reader.check import attribute_type
from onnxgen.reader.parsing import _proto_kind
from onnxgen.reader.protos import tensors_of
from tests.support.reader_models import (
    ADD,
    RELU,
    TRUE,
    Write,
    branch,
    conditional,
    model,
    no_import,
    node,
    refusal,
    untyped,
    value,
    weight,
    write,
)

__all__ = ["write"]  # a fixture


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.onnx")
    (tmp_path / "file").write_bytes(b"x")
    assert "no such file" in refusal(tmp_path / "file" / "none.onnx")
    assert "cannot be read" in refusal(Path("a\0b"))
    assert "File name too long" in refusal(tmp_path / ("n" * 5000))


def test_folder(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in refusal(tmp_path / "pipe.onnx")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_file(write: Write) -> None:
    path = write(model([RELU]))
    path.chmod(0)
    assert "cannot be read" in refusal(path)


def zipped(tmp_path: Path, name: str) -> bytes:
    with zipfile.ZipFile(tmp_path / "z", "w") as archive:
        archive.writestr(name, "content")
    return (tmp_path / "z").read_bytes()


def tarred(kind: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind) as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"), io.BytesIO())
    return made.getvalue()


NOT_ONNX: list[tuple[bytes, str]] = [
    *((tarred(kind), "a tar archive") for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
    (b"", "is empty"),
    (b"hello, world\n", "a text file"),
    ("héllo".encode(), "a text file"),
    (b"<!DOCTYPE html><html></html>", "a web page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    (b"ir_version: 8\ngraph { }\n", "textproto"),
    (b'{"irVersion": "8", "graph": {}}', "json"),
    (b'<ir_version: 8, opset_import: ["" : 17]>\ng (float x) => (float y) { y = Relu(x) }', "onnxtxt"),
    (gzip.compress(b"x", mtime=0), "gzip"),
    (b"\x80\x02}q\x00.", "pickle"),
    (b"PK\x03\x04 and no more", "damaged zip"),
    ((8).to_bytes(8, "little") + b'{"a": 1}', "safetensors"),
    (b"\x1c\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite"),
    (bytes(1000), "truncated or damaged"),
    (weight("w", 2, 3).SerializeToString(), "a single ONNX TensorProto"),
    (model([RELU]).graph.SerializeToString(), "a single ONNX GraphProto"),
    (onnx.ModelProto(ir_version=8).SerializeToString(), "has no graph"),
    (onnx.ModelProto(graph=model([RELU]).graph).SerializeToString(), "has no ir_version"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras?)"),
    (b"\x93NUMPY\x01\0", "a NumPy array"),
    (b"GGUF\x03\0\0\0", "a GGUF file"),
    *((bytes([128, version]) + b"}q\x00.", "a Python pickle") for version in (3, 4, 5)),
    (b"\x18\x00\x00\x00ORTM" + bytes(40), "convert the .onnx file that it was made from"),
]


def test_not_onnx(write: Write) -> None:
    said = [(*refusal(write(data)).split(" -> "), says) for data, says in NOT_ONNX]
    assert [row for row in said if row[2] not in row[0] and row[2] not in row[1]] == []


def test_a_message_with_fields_that_onnx_lacks_is_not_named() -> None:
    """Many bytes parse as some message."""
    for message in (weight("w", 2, 3), model([RELU]).graph):
        data = message.SerializeToString()
        assert "a single ONNX" in str(_proto_kind(data))
        assert _proto_kind(data + b"\xc2\x3e\x04more") is None  # field 1000


def test_zip_and_checkpoint(write: Write, tmp_path: Path) -> None:
    assert "a zip archive" in refusal(write(zipped(tmp_path, "model.onnx")))
    assert "torch.onnx.export" in refusal(write(zipped(tmp_path, "archive/data.pkl")))


def test_onnx_text_formats_are_named(write: Write) -> None:
    for kind in ("textproto", "json", "onnxtxt"):
        onnx.save(model([RELU]), (path := write(b"")), format=kind)
        assert "an ONNX model" in refusal(path) and f"calls it {kind}" in refusal(path)


def test_truncated_anywhere(write: Write) -> None:
    data = model([node("Add", ["x", "w"])], [weight("w", 3, 4)]).SerializeToString()
    for end in range(1, len(data)):
        try:
            read(write(data[:end]), Options())
        except OnnxgenError:
            continue
        # Only what comes after the whole graph may be missing unnoticed by protobuf: the opset is checked apart.
        pytest.fail(f"a file cut at byte {end} of {len(data)} was read")


def test_random_bytes_and_flipped_bits_never_crash(write: Write) -> None:
    rng = random.Random(0)
    good = bytearray(conditional(branch([node("Neg", ["x"], ["q"])], "q")).SerializeToString())
    for i in range(400):
        data = rng.randbytes(rng.randrange(1, 300)) if i % 2 else bytearray(good)
        if not i % 2:
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)  # type: ignore[index]
        path = write(bytes(data))
        try:
            read(path, Options())
        except OnnxgenError as error:
            assert str(error)


def broken_weight(**fields: Any) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
    for name, content in fields.items():
        if name == "dims":
            del tensor.dims[:]
        if isinstance(content, list):
            getattr(tensor, name).extend(content)
        else:
            setattr(tensor, name, content)
    return tensor


def twice() -> NodeProto:
    made = node("Softmax", axis=1)
    made.attribute.append(made.attribute[0])
    return made


def reference() -> NodeProto:
    made = node("Softmax", axis=1)
    made.attribute[0].Clear()
    made.attribute[0].name, made.attribute[0].ref_attr_name, made.attribute[0].type = "axis", "a", 2
    return made


def sparse(indices: Any) -> onnx.ModelProto:
    made = model([ADD])
    stored = oh.make_sparse_tensor(from_array(np.float32([5, 7]), "w"), from_array(indices), [4])
    made.graph.sparse_initializer.append(stored)
    return made


def test_a_cycle_is_shown_in_part(write: Write) -> None:
    """Six of its nodes, which follow each other."""
    shown = refusal(write(REFUSED["a long cycle"][0])).partition("has a cycle: ")[2].partition(" ->")[0].split(", ")
    places = [int(name[1:]) for name in shown[:6]]
    steps = {(b - a) % 9 for a, b in itertools.pairwise(places)}
    assert steps in ({1}, {8}) and shown[6:] == ["..."]


MAP = onnx.TypeProto(map_type=onnx.TypeProto.Map(key_type=99, value_type=oh.make_tensor_type_proto(1, [])))
REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "undeclared": (
        model([node("Add", ["x", "ghost"], name="plus")]),
        "node plus (Add-17): input ghost is not a graph input",
    ),
    "undeclared inside": (conditional(branch([node("Neg", ["ghost"], ["q"])], "q")), "ghost"),
    "from a sibling": (conditional(branch([node("Neg", ["other"], ["q"])], "q")), "input other is no"),
    "output of nothing": (model([RELU], outputs=["y", "z"]), "no node computes graph output z"),
    "no outputs": (model([RELU], outputs=[]), "no outputs"),
    "two makers": (model([RELU, node("Neg")]), "duplicate name y"),
    "one node, one name": (model([node("Split", ["x"], ["y", "y"], axis=0)]), "duplicate name y"),
    "input made": (model([RELU, node("Neg", ["y"], ["x"])]), "duplicate name x"),
    "input twice": (model([RELU], inputs=["x", "x"]), "duplicate name x"),
    "input unnamed": (model([RELU], inputs=["x", ""]), "has no name"),
    "initializer twice": (model([ADD], [weight("w", 4), weight("w", 4)]), "two initializers are named w"),
    "initializer unnamed": (model([RELU], [weight("", 4)]), "an initializer has no name"),
    "initializer made": (model([RELU], [weight("y", 4)]), "duplicate name y"),
    "hides an outer value": (
        conditional(branch([node("Neg", ["x"], ["z"])], "z"), [node("Abs", ["x"], ["z"])]),
        "hides a value of an outer graph",
    ),
    "cycle": (
        model([node("Add", ["x", "b"], ["a"], name="one"), node("Neg", ["a"], ["b"], name="two"), node("Neg", ["b"])]),
        "the graph has a cycle: ",
    ),
    "self": (model([node("Add", ["x", "y"], name="me")]), "cycle: me, me"),
    "a long cycle": (
        model([node("Neg", [f"v{i}"], [f"v{(i + 1) % 9}"], name=f"n{i}") for i in range(9)], outputs=["v0"]),
        ", ...",
    ),
    "cycle through a branch": (conditional(branch([node("Neg", ["y"], ["q"])], "q")), "cycle: if, if"),
    "cycle inside": (
        conditional(branch([node("Add", ["x", "r"], ["q"]), node("Neg", ["q"], ["r"])], "r")),
        "the graph has a cycle",
    ),
    "no operator": (model([node("")]), "names no operator"),
    "attribute type": (
        model([node("Softmax", axis=1.5)]),
        "attribute axis is of type FLOAT, but the operator needs INT",
    ),
    "attribute in the wrong field": (
        model([untyped(type=2, f=1.0)]),
        "is declared as INT but holds a value of another type",
    ),
    "attribute of no type": (model([untyped()]), "attribute axis has no known type"),
    "attribute of two types": (model([untyped(i=1, f=1.0)]), "attribute axis has no known type"),
    "attribute without its graph": (
        model([node("If", ["c"]), untyped(type=5)], [TRUE]),
        "holds a value of another type",
    ),
    "a type in an attribute": (
        model([oh.make_node("Optional", [], ["y"], name="none", type=oh.make_tensor_type_proto(99, []))]),
        "node none (Optional-17): attribute type: the tensor has the unknown element type 99",
    ),
    "a sparse initializer": (
        sparse(np.int64([1, 12])),
        "initializer w: the tensor is sparse and its indices are out of range",
    ),
    "attribute twice": (model([twice()]), "attribute axis is given twice"),
    "attribute reference": (model([reference()]), "function attribute that does not exist"),
    "unknown dtype": (
        model([ADD], [broken_weight(data_type=99)]),
        "initializer w: the tensor has the unknown element type 99",
    ),
    "undefined dtype": (model([ADD], [broken_weight(data_type=0)]), "unknown element type 0"),
    "input dtype": (model([RELU], inputs=[value("x", [1], 99)]), "value x: the tensor has the unknown element type 99"),
    "short raw": (
        model([ADD], [broken_weight(raw_data=bytes(7))]),
        "7 bytes of data, but its dims [2] and dtype need 8",
    ),
    "long raw": (model([ADD], [broken_weight(raw_data=bytes(12))]), "12 bytes of data"),
    "long data": (model([ADD], [broken_weight(float_data=[1.0, 2.0, 3.0])]), "3 elements of data"),
    "data of another type": (
        model([ADD], [broken_weight(int64_data=[1, 2])]),
        "the tensor is of type FLOAT, but its elements are of another type",
    ),
    "data of two types": (
        model([ADD], [broken_weight(float_data=[1.0, 2.0], int32_data=[1])]),
        "the tensor is of type FLOAT, but its elements are of another type",
    ),
    "a map of nothing": (
        model([RELU], inputs=["x", onnx.ValueInfoProto(name="m", type=MAP)]),
        "value m: the tensor has the unknown element type 99",
    ),
    "no data": (model([ADD], [broken_weight()]), "0 elements of data"),
    "huge dims": (model([ADD], [broken_weight(dims=[2**62, 2**62], raw_data=bytes(8))]), "8 bytes of data"),
    "negative dims": (model([ADD], [broken_weight(dims=[-1, 2], raw_data=bytes(8))]), "negative dims [-1, 2]"),
    "in a Constant": (
        model([node("Constant", [], ["k"], name="k", value=broken_weight(raw_data=b"1")), node("Add", ["x", "k"])]),
        "node k (Constant-17): attribute value: the tensor has 1 bytes",
    ),
    "too few inputs": (model([node("Add", ["x"], name="plus")]), "node plus (Add-17): required input 1 is missing"),
    "left out input": (model([node("Add", ["x", ""], name="plus")]), "required input 1 is missing"),
    "too many inputs": (model([node("Relu", ["x", "x"])]), "the node has 2 inputs; the operator takes 1 at most"),
    "too many outputs": (model([node("Relu", ["x"], ["y", "z"])]), "the node has 2 outputs; the operator has 1"),
    "no attribute": (model([node("Cast")]), "required attribute to is missing"),
    "a node without outputs": (
        model([node("Log", ["x"], [], domain="d", name="log"), RELU], opsets={"": 17, "d": 1}),
        "node log (Log-1): the node has no outputs",
    ),
    "unknown attribute": (model([node("Relu", slope=1.0)]), "attribute slope is not defined for the operator"),
    "no such type": (model([node("Cast", to=-1)]), "attribute to is -1, which is not an element type"),
    "no attribute of a newer operator": (model([node("Gelu", ["x", "x"])], opsets={"": 11}), "the node has 2 inputs"),
    "vast opset": (model([node("Relu", domain="d")], opsets={"d": 2**40}), "version 1099511627776, which does not"),
    "newer opset": (model([RELU], opsets={"": 9999}), "opset 9999 is newer than"),
    "no opset 0": (model([RELU], opsets={"": 0}), "version 0, which does not exist"),
    "newer IR": (model([RELU], ir_version=9999), "IR version 9999 is newer"),
    "no import": (no_import(), "imports no opset of ai.onnx"),
    "two imports": (
        oh.make_model(model([RELU]).graph, opset_imports=[oh.make_opsetid("", 9), oh.make_opsetid("ai.onnx", 13)]),
        "imported as version 9 and 13",
    ),
}


def test_refused(write: Write) -> None:
    said = {name: (refusal(write(proto)), says) for name, (proto, says) in REFUSED.items()}
    assert {name: row for name, row in said.items() if row[1] not in row[0]} == {}


def test_the_type_of_an_attribute_is_onnxs() -> None:
    sparse = oh.make_sparse_tensor(weight("w", 1), from_array(np.int64([1])), [4])
    kind, graph = oh.make_tensor_type_proto(TensorProto.FLOAT, None), model([RELU]).graph
    for one in (1.5, 2, "text", weight("w", 2), graph, sparse, kind):
        for given in (one, [one, one]):
            made = oh.make_attribute("a", given)
            stated = made.type
            assert attribute_type(made) == stated
            made.ClearField("type")
            assert attribute_type(made) == stated, made
    assert attribute_type(oh.make_attribute("a", [], attr_type=onnx.AttributeProto.INTS)) == onnx.AttributeProto.INTS
    assert attribute_type(onnx.AttributeProto(name="a", i=1, f=1.0)) == 0


def test_tensors_are_those_that_are_stored() -> None:
    """An attribute without a tensor has none, although protobuf makes an empty one of it."""
    inner = branch([node("Constant", [], ["q"], value=weight("k", 4))], "q", [weight("inner", 4)])
    proto = conditional(inner, [node("Softmax", axis=1)])
    assert [tensor.name for tensor in tensors_of(proto)] == ["c", "inner", "k"]


def test_all_problems_at_once(write: Write) -> None:
    proto = model([node("Add", ["x", "ghost"], ["a"]), node("Add", ["a", "w"])], [broken_weight()], outputs=["y", "z"])
    with pytest.raises(OnnxgenError) as caught:
        read(write(proto), Options())
    assert len(caught.value.problems) == 3


def test_names_are_shown_safely(write: Write) -> None:
    message = refusal(write(model([node("Add", ["x", "gh'o\nst\x1b[31m\\"], name='"""' + "n" * 999)])))
    assert len(message) < 400 and "\n" not in message and "\x1b" not in message and "'" not in message


def test_invalid_utf8(write: Write) -> None:
    data = model([node("Add", ["x", "ghost"])]).SerializeToString()
    assert refusal(write(data.replace(b"ghost", b"gh\xff\xfet")))
    data = model([node("Softmax", axis=1)]).SerializeToString()
    assert "the name of attribute ax?? is not valid UTF-8" in refusal(write(data.replace(b"axis", b"ax\xff\xfe")))


LIMITS: dict[str, tuple[Limits, onnx.ModelProto]] = {
    "nodes": (Limits(nodes=2), model([node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"])])),
    "nodes ": (Limits(nodes=2), conditional(branch([node("Neg", ["x"], ["q"])], "q"))),
    "initializers": (Limits(initializers=1), model([ADD], [weight("w", 4), weight("v", 4)])),
    "graphs are nested 2 deep": (
        Limits(depth=1),
        conditional(
            branch(
                [
                    node(
                        "If",
                        ["c"],
                        ["q"],
                        then_branch=branch([node("Neg", ["x"], ["r"])], "r"),
                        else_branch=branch([node("Neg", ["x"], ["s"])], "s"),
                    )
                ],
                "q",
            )
        ),
    ),
    "dims; the limit": (Limits(rank=2), model([ADD], [weight("w", 1, 1, 4)])),
    "dims; the limit ": (Limits(rank=2), model([RELU])),
    "characters; the limit": (
        Limits(name_length=9),
        model([node("Relu", ["x"], ["a" * 10]), node("Relu", ["a" * 10])]),
    ),
    "operator or domain has 10 characters": (Limits(name_length=9), model([node("Relu", name="n" * 10)])),
}


def test_limits(write: Write) -> None:
    for says, (limits, proto) in LIMITS.items():
        path = write(proto)
        assert says.strip() in refusal(path, Options(limits=limits))
        read(path, Options())


def field(number: int, content: bytes) -> bytes:
    """A protobuf field of bytes."""
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def test_a_very_deep_file_is_refused(write: Write) -> None:
    graph = b""
    for _ in range(2000):  # graph.node.attribute.g, deeper than protobuf would write
        graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
    assert "truncated or damaged" in refusal(write(b"\x08\x08" + field(7, graph)))
