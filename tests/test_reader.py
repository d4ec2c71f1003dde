"""Reading: everything that can be wrong with a file is refused by name, and what is merely unusual is read right."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto, TensorProto
from onnx import helper as oh
from onnx.numpy_helper import from_array

from onnxgen.errors import OnnxgenError
from onnxgen.options import Limits, Options
from onnxgen.reader import read

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10 - 1


def value(name: str, shape: Sequence[Any] | None = (2, 3, 4), dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return oh.make_tensor_value_info(name, dtype, shape)


def weight(name: str, *dims: int) -> TensorProto:
    return from_array(np.arange(np.prod(dims, dtype=int), dtype=np.float32).reshape(dims), name)


def model(
    nodes: Iterable[NodeProto],
    weights: Sequence[TensorProto] = (),
    inputs: Sequence[str | onnx.ValueInfoProto] = ("x",),
    outputs: Sequence[str] = ("y",),
    opsets: dict[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    ir_version: int = 10,
) -> onnx.ModelProto:
    graph = oh.make_graph(
        list(nodes),
        "g",
        [value(i) if isinstance(i, str) else i for i in inputs],
        [value(o, None) for o in outputs],
        list(weights),
    )
    imports = [oh.make_opsetid(d, v) for d, v in (opsets or {"": 17}).items()]
    return oh.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=ir_version)


def node(op: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **kw: Any) -> NodeProto:
    return oh.make_node(op, list(inputs), list(outputs), **kw)


RELU = node("Relu")


def branch(nodes: Iterable[NodeProto], out: str, weights: Sequence[TensorProto] = ()) -> onnx.GraphProto:
    return oh.make_graph(list(nodes), "b", [], [value(out, None)], list(weights))


TRUE = from_array(np.array(True), "c")


def conditional(then: onnx.GraphProto, before: Sequence[NodeProto] = (), after: Sequence[NodeProto] = ()) -> Any:
    other = branch([node("Neg", ["x"], ["other"])], "other")
    both = node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)
    return model([*before, both, *after], [TRUE])


@pytest.fixture
def write(tmp_path: Path) -> Callable[[onnx.ModelProto | bytes], Path]:
    def write(what: onnx.ModelProto | bytes) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(what if isinstance(what, bytes) else what.SerializeToString())
        return path

    return write


Write = Callable[[onnx.ModelProto | bytes], Path]


def refusal(path: Path, options: Options | None = None) -> str:
    with pytest.raises(OnnxgenError) as caught:
        read(path, options or Options())
    message = str(caught.value)
    assert message.isascii() and all(len(line) < 600 for line in message.splitlines())
    return message


def run(proto: onnx.ModelProto, x: Any = X) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    ort.set_default_logger_severity(4)
    session = ort.InferenceSession(proto.SerializeToString())
    return session.run(None, {i.name: x for i in session.get_inputs()})  # type: ignore[no-any-return]


def same_as_before(proto: onnx.ModelProto, found: ir.Model) -> None:
    """onnxruntime gets the same from the model that was read as from the file."""
    for before, after in zip(run(proto), run(ir.to_proto(found)), strict=True):
        np.testing.assert_array_equal(before, after)


# --- files ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"hello, world\n", "a text file"),
        ("héllo".encode(), "a text file"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"ir_version: 8\ngraph { }\n", "textproto"),
        (b'{"irVersion": "8", "graph": {}}', "json"),
        (b'<ir_version: 8, opset_import: ["" : 17]>\ng (float x) => (float y) { y = Relu(x) }', "onnxtxt"),
        (gzip.compress(b"x"), "gzip"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"PK\x03\x04 and no more", "damaged zip"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "safetensors"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite"),
        (bytes(1000), "truncated or damaged"),
        (weight("w", 2, 3).SerializeToString(), "a single ONNX TensorProto"),
        (model([RELU]).graph.SerializeToString(), "a single ONNX GraphProto"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "has no graph"),
        (onnx.ModelProto(graph=model([RELU]).graph).SerializeToString(), "has no ir_version"),
    ],
    ids=lambda d: ascii(d)[:16],
)
def test_not_onnx(write: Write, data: bytes, says: str) -> None:
    assert says in refusal(write(data))


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


# --- structure -----------------------------------------------------------------------------------------------------


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


ADD = node("Add", ["x", "w"], name="plus")


def untyped(**value: Any) -> NodeProto:
    made = node("Softmax", axis=1)
    made.attribute[0].Clear()
    made.attribute[0].name = "axis"
    for name, content in value.items():
        setattr(made.attribute[0], name, content)
    return made


def twice() -> NodeProto:
    made = node("Softmax", axis=1)
    made.attribute.append(made.attribute[0])
    return made


def reference() -> NodeProto:
    made = node("Softmax", axis=1)
    made.attribute[0].Clear()
    made.attribute[0].name, made.attribute[0].ref_attr_name, made.attribute[0].type = "axis", "a", 2
    return made


def no_import(ir_version: int = 10) -> onnx.ModelProto:
    proto = model([RELU], ir_version=ir_version)
    del proto.opset_import[:]
    return proto


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "undeclared": (model([node("Add", ["x", "ghost"], name="plus")]), "node plus (Add-17): its input ghost is no"),
    "undeclared inside": (conditional(branch([node("Neg", ["ghost"], ["q"])], "q")), "ghost"),
    "from a sibling": (conditional(branch([node("Neg", ["other"], ["q"])], "q")), "input other is no"),
    "output of nothing": (model([RELU], outputs=["y", "z"]), "graph output z is made by no node"),
    "no outputs": (model([RELU], outputs=[]), "no outputs"),
    "two makers": (model([RELU, node("Neg")]), "duplicate name y"),
    "one node, one name": (model([node("Split", ["x"], ["y", "y"], axis=0)]), "duplicate name y"),
    "input made": (model([RELU, node("Neg", ["y"], ["x"])]), "duplicate name x"),
    "input twice": (model([RELU], inputs=["x", "x"]), "duplicate name x"),
    "input unnamed": (model([RELU], inputs=["x", ""]), "has no name"),
    "initializer twice": (model([ADD], [weight("w", 4), weight("w", 4)]), "two initializers named w"),
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
    "attribute in the wrong field": (model([untyped(type=2, f=1.0)]), "says it is of type INT but holds another"),
    "attribute of no type": (model([untyped()]), "attribute axis has no known type"),
    "attribute of two types": (model([untyped(i=1, f=1.0)]), "attribute axis has no known type"),
    "attribute without its graph": (model([node("If", ["c"]), untyped(type=5)], [TRUE]), "holds another"),
    "attribute twice": (model([twice()]), "the attribute axis twice"),
    "attribute reference": (model([reference()]), "function attribute that does not exist"),
    "unknown dtype": (model([ADD], [broken_weight(data_type=99)]), "initializer w: it has the unknown element type 99"),
    "undefined dtype": (model([ADD], [broken_weight(data_type=0)]), "unknown element type 0"),
    "input dtype": (model([RELU], inputs=[value("x", [1], 99)]), "value x: it has the unknown element type 99"),
    "short raw": (
        model([ADD], [broken_weight(raw_data=bytes(7))]),
        "7 bytes of data, but its dims [2] and dtype need 8",
    ),
    "long raw": (model([ADD], [broken_weight(raw_data=bytes(12))]), "12 bytes of data"),
    "long data": (model([ADD], [broken_weight(float_data=[1.0, 2.0, 3.0])]), "3 elements of data"),
    "data of another type": (model([ADD], [broken_weight(int64_data=[1, 2])]), "0 elements of data"),
    "no data": (model([ADD], [broken_weight()]), "0 elements of data"),
    "huge dims": (model([ADD], [broken_weight(dims=[2**62, 2**62], raw_data=bytes(8))]), "8 bytes of data"),
    "negative dims": (model([ADD], [broken_weight(dims=[-1, 2], raw_data=bytes(8))]), "negative dims [-1, 2]"),
    "in a Constant": (
        model([node("Constant", [], ["k"], name="k", value=broken_weight(raw_data=b"1")), node("Add", ["x", "k"])]),
        "node k (Constant-17): attribute value: it has 1 bytes",
    ),
    "newer opset": (model([RELU], opsets={"": 9999}), "opset 9999 is newer than"),
    "no opset 0": (model([RELU], opsets={"": 0}), "version 0, which does not exist"),
    "newer IR": (model([RELU], ir_version=9999), "IR version 9999 is newer"),
    "no import": (no_import(), "imports no opset of ai.onnx"),
    "two imports": (
        oh.make_model(model([RELU]).graph, opset_imports=[oh.make_opsetid("", 9), oh.make_opsetid("ai.onnx", 13)]),
        "imported as version 9 and 13",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(write: Write, name: str) -> None:
    proto, says = REFUSED[name]
    assert says in refusal(write(proto))


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


LIMITS: dict[str, tuple[Limits, onnx.ModelProto]] = {
    "nodes": (Limits(nodes=2), model([node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"])])),
    "nodes ": (Limits(nodes=2), conditional(branch([node("Neg", ["x"], ["q"])], "q"))),
    "initializers": (Limits(initializers=1), model([ADD], [weight("w", 4), weight("v", 4)])),
    "deeper": (
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
    "longer than": (Limits(name_length=9), model([node("Relu", name="n" * 10)])),
}


@pytest.mark.parametrize("says", LIMITS)
def test_limits(write: Write, says: str) -> None:
    limits, proto = LIMITS[says]
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


# --- external data -------------------------------------------------------------------------------------------------


def external(location: str, **more: Any) -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, content in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(content))
    return model([ADD], [tensor])


DATA = np.arange(4, dtype=np.float32)


def test_external_data_is_mapped(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(bytes(8) + DATA.tobytes())
    write(external("sub/w.bin", offset=8, length=16))
    monkeypatch.chdir(tmp_path)
    found = read(Path("model.onnx"), Options())
    monkeypatch.chdir(tmp_path.parent)  # data is found later, wherever the process is then
    tensor = found.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor) and tensor.raw is None
    np.testing.assert_array_equal(tensor.numpy(), DATA)


@pytest.mark.parametrize(
    ("location", "more", "says"),
    [
        ("w.bin", {"offset": 4}, "ends at byte 20 of w.bin, which has only 16"),
        ("w.bin", {"length": 12}, "has 12 bytes, but its dtype and dims need 16"),
        ("w.bin", {"length": 20}, "has 20 bytes, but"),
        ("w.bin", {"offset": -4}, "the offset -4, which is no size"),
        ("w.bin", {"offset": "ten"}, "the offset ten"),
        ("w.bin", {"length": "9" * 40}, "which is no size"),
        ("none.bin", {}, "none.bin is missing"),
        ("w.bin/x", {}, "is missing"),
        ("", {}, "names no file"),
        (".", {}, "names no file"),
        ("w\0.bin", {}, "names no file"),
        ("../w.bin", {}, "leaves the model folder by .."),
        ("sub/../../w.bin", {}, "leaves the model folder by .."),
        ("sub\\..\\..\\w.bin", {}, "leaves the model folder by .."),
        ("/etc/passwd", {}, "absolute path"),
        ("\\\\host\\share", {}, "absolute path"),
        ("C:\\w.bin", {}, "absolute path"),
        ("sub", {}, "not a regular file"),
    ],
)
def test_external_data_refused(write: Write, tmp_path: Path, location: str, more: dict[str, Any], says: str) -> None:
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    (tmp_path / "sub").mkdir()
    message = refusal(write(external(location, **more)))
    assert "initializer w: its external data" in message and says in message


def test_external_links_refused(write: Write, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(DATA.tobytes())
    home = tmp_path / "home"
    home.mkdir()
    path = write(external("w.bin")).rename(home / "model.onnx")
    try:
        (home / "w.bin").symlink_to(outside / "w.bin")
    except OSError:
        pytest.skip("no symbolic links on this system")
    assert "is a symbolic link" in refusal(path)
    (home / "w.bin").unlink()
    (home / "w.bin").hardlink_to(outside / "w.bin")
    assert "is a hard link" in refusal(path)
    (home / "link").symlink_to(outside)
    path.write_bytes(external("link/w.bin").SerializeToString())
    assert "by a symbolic link" in refusal(path)
    (home / "own").mkdir()
    (home / "own" / "w.bin").write_bytes(DATA.tobytes())
    (home / "inner").symlink_to(home / "own")
    path.write_bytes(external("inner/w.bin").SerializeToString())
    np.testing.assert_array_equal(read(path, Options()).graph.initializers["w"].const_value.numpy(), DATA)  # type: ignore


def test_external_data_everywhere(write: Write) -> None:
    """Constants, inner graphs and functions name files as well."""
    tensor = external("../w.bin").graph.initializer[0]
    constant = node("Constant", [], ["k"], name="k", value=tensor)
    assert "leaves the model folder" in refusal(write(model([constant, node("Add", ["x", "k"])])))
    inner = branch([node("Add", ["x", "w"], ["q"])], "q", [tensor])
    assert "leaves the model folder" in refusal(write(conditional(inner)))
    function = oh.make_function(
        "f", "F", ["a"], ["b"], [constant, node("Add", ["a", "k"], ["b"])], [oh.make_opsetid("", 17)]
    )
    calling = model([oh.make_node("F", ["x"], ["y"], domain="f")], opsets={"": 17, "f": 1}, functions=[function])
    assert "leaves the model folder" in refusal(write(calling))


def test_external_strings_refused(write: Write, tmp_path: Path) -> None:
    proto = external("w.bin")
    proto.graph.initializer[0].data_type = TensorProto.STRING
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    assert "strings are external" in refusal(write(proto))


# --- unusual, and right --------------------------------------------------------------------------------------------


def old_style() -> onnx.ModelProto:
    return model([ADD], [weight("w", 4)], inputs=["x", value("w", [4])], ir_version=3)


UNUSUAL: dict[str, onnx.ModelProto] = {
    "unsorted": model([node("Relu", ["a"]), node("Add", ["x", "b"], ["a"]), node("Neg", ["x"], ["b"])]),
    "unsorted, through a branch": conditional(
        branch([node("Neg", ["z"], ["q"])], "q"), after=[node("Abs", ["x"], ["z"])]
    ),
    "same names in both branches": conditional(branch([node("Abs", ["x"], ["other"])], "other")),
    "inner initializer hides": conditional(
        branch([node("Add", ["x", "z"], ["q"])], "q", [weight("z", 4)]), [node("Abs", ["x"], ["z"])]
    ),
    "inner name of a later node": conditional(
        branch([node("Neg", ["x"], ["z"])], "z"), after=[node("Abs", ["x"], ["z"])]
    ),
    "input as output": model([], outputs=["x"]),
    "initializer as output": model([], [weight("w", 4)], outputs=["w"]),
    "output twice": model([RELU], outputs=["y", "y"]),
    "unused initializer": model([RELU], [weight("w", 4)]),
    "empty initializer": model([node("Concat", ["x", "w"], axis=0)], [weight("w", 0, 3, 4)]),
    "negative declared dim": model([RELU], inputs=[value("x", [-1, 3, 4])]),
    "ai.onnx spelt out": model([oh.make_node("Softmax", ["x"], ["y"], domain="ai.onnx")], opsets={"ai.onnx": 12}),
    "optional inputs": model([node("Clip", ["x", "", "w"])], [weight("w")]),
    "sparse": model([ADD]),
}
UNUSUAL["sparse"].graph.sparse_initializer.append(
    oh.make_sparse_tensor(from_array(np.float32([5, 7]), "w"), from_array(np.int64([1, 3])), [4])
)


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual(write: Write, name: str) -> None:
    found = read(write(UNUSUAL[name]), Options())
    same_as_before(UNUSUAL[name], found)


def test_unsorted_branch_and_nodes_of_one_name(write: Write) -> None:
    """Fine by the standard, or plain enough; onnxruntime refuses both."""
    inside = [node("Neg", ["r"], ["q"], name="n"), node("Abs", ["x"], ["r"], name="n")]
    found = read(write(conditional(branch(inside, "q"))), Options())
    for i, step in enumerate(found.graph.all_nodes()):
        step.name = str(i)
    np.testing.assert_array_equal(run(ir.to_proto(found))[0], -np.abs(X))


def test_inputs_with_an_initializer_are_weights(write: Write) -> None:
    found = read(write(old_style()), Options())
    assert [v.name for v in found.graph.inputs] == ["x"]
    assert list(found.graph.initializers) == ["w"] and found.graph.initializers["w"].is_initializer()
    same_as_before(model([ADD], [weight("w", 4)]), found)


def test_branch_returns_an_outer_value(write: Write) -> None:
    """onnxruntime refuses this, and onnx_ir would return a value that nothing makes."""
    found = read(write(conditional(branch([], "z"), [node("Abs", ["x"], ["z"])])), Options())
    np.testing.assert_array_equal(run(ir.to_proto(found))[0], np.abs(X))


def test_attribute_without_a_type(write: Write) -> None:
    found = read(write(model([untyped(i=1)])), Options())
    same_as_before(model([node("Softmax", axis=1)]), found)


@pytest.mark.parametrize("pairs", [False, True])
def test_sparse_tensors(write: Write, pairs: bool) -> None:
    dense = np.zeros((3, 4), np.float32)
    dense[0, 1], dense[2, 3] = 5, 7
    indices = np.int64([[0, 1], [2, 3]]) if pairs else np.int64([1, 11])
    sparse = oh.make_sparse_tensor(from_array(np.float32([5, 7]), "w"), from_array(indices), [3, 4])
    constant = node("Constant", [], ["w"], sparse_value=sparse)
    found = read(write(model([constant, ADD])), Options())
    np.testing.assert_array_equal(run(ir.to_proto(found))[0], X + dense)
    for bad in (np.int64([1, 12]), np.int64([-1, 2]), np.int64([[0, 1], [3, 3]]), np.int64([1, 2, 3])):
        sparse.indices.CopyFrom(from_array(bad))
        assert "indices" in refusal(write(model([node("Constant", [], ["w"], sparse_value=sparse), ADD])))
    sparse.dims[:] = [2**40, 4]
    assert "store it dense" in refusal(write(model([node("Constant", [], ["w"], sparse_value=sparse), ADD])))


def test_no_import_before_ir_version_3_is_opset_1(write: Write) -> None:
    assert read(write(no_import(2)), Options()).opset_imports[""] == 1


def test_map_outputs_are_left_to_the_operators(write: Write) -> None:
    proto = model([oh.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml")], opsets={"ai.onnx.ml": 1})
    kind = oh.make_map_type_proto(TensorProto.INT64, oh.make_tensor_type_proto(TensorProto.FLOAT, []))
    proto.graph.output[0].type.CopyFrom(oh.make_sequence_type_proto(kind))
    assert read(write(proto), Options()).graph.outputs[0].type is None


@pytest.mark.parametrize(
    "dtype", ["FLOAT16", "BFLOAT16", "INT4", "UINT4", "FLOAT8E4M3FN", "COMPLEX64", "BOOL", "STRING"]
)
@pytest.mark.parametrize("raw", [False, True])
def test_every_way_to_store_a_tensor(write: Write, dtype: str, raw: bool) -> None:
    if raw and dtype == "STRING":
        pytest.skip("strings are never raw")
    number = TensorProto.DataType.Value(dtype)
    content: Any = [b"a", b"b", b"c"] if dtype == "STRING" else np.array([0, 1, 1], oh.tensor_dtype_to_np_dtype(number))
    tensor = from_array(content, "w") if raw else oh.make_tensor("w", number, [3], content)
    read(write(model([RELU], [tensor])), Options())


# --- local functions -----------------------------------------------------------------------------------------------


def function(name: str, nodes: Sequence[NodeProto], opset: int = 17, **kw: Any) -> onnx.FunctionProto:
    imports = [oh.make_opsetid("", opset), oh.make_opsetid("f", 1)]
    return oh.make_function("f", name, ["a"], ["b"], list(nodes), imports, **kw)


def call(op: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **kw: Any) -> NodeProto:
    return oh.make_node(op, list(inputs), list(outputs), domain="f", **kw)


def calling(nodes: Sequence[NodeProto], functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    return model(nodes, opsets={"": 17, "f": 1}, functions=functions)


def test_functions_are_inlined(write: Write) -> None:
    alpha = node("LeakyRelu", ["a"], ["t"], name="leaky")
    alpha.attribute.append(onnx.AttributeProto(name="alpha", type=1, ref_attr_name="slope"))
    inner = function("Inner", [alpha, node("Exp", ["t"], ["b"], name="exp")], attributes=["slope"])
    outer = function("Outer", [call("Inner", ["a"], ["m"], name="first", slope=0.5), call("Inner", ["m"], ["b"])])
    chain = [call("Outer", ["x"], ["z"], name="encoder/block"), call("Outer", ["z"], ["y"])]
    found = read(write(calling(chain, [outer, inner])), Options())
    assert not found.functions and len(found.graph) == 8
    same_as_before(calling(chain, [outer, inner]), found)
    # The first call had a name, and so had the first one inside; node metadata is clean again.
    assert [n.meta["scope"] for n in found.graph][:3] == [("encoder", "block", "first")] * 2 + [("encoder", "block")]
    assert not any(n.metadata_props for n in found.graph)


def test_functions_in_branches_and_with_branches(write: Write) -> None:
    other = branch([node("Neg", ["a"], ["other"])], "other")
    body = [
        node("Constant", [], ["c"], value=from_array(np.array(True))),
        node("If", ["c"], ["b"], then_branch=branch([node("Abs", ["a"], ["q"])], "q"), else_branch=other),
    ]
    proto = conditional(branch([call("F", ["x"], ["k"]), call("F", ["k"], ["m"])], "m"))
    proto.functions.append(function("F", body))
    proto.opset_import.append(oh.make_opsetid("f", 1))
    same_as_before(proto, read(write(proto), Options()))


def test_function_of_another_opset(write: Write) -> None:
    """Softmax flattened before opset 13: a node must keep the version of the function that it came from."""
    old = function("Old", [node("Softmax", ["a"], ["b"])], opset=11)
    found = read(write(calling([call("Old", ["x"], ["z"]), node("Softmax", ["z"])], [old])), Options())
    assert [(n.op_type, n.version) for n in found.graph] == [("Softmax", 11), ("Softmax", None)]
    assert found.opset_imports[""] == 17


def test_function_refusals(write: Write) -> None:
    loop = [function("A", [call("B", ["a"], ["b"])]), function("B", [call("A", ["a"], ["b"])])]
    assert "call themselves" in refusal(write(calling([call("A")], loop)))
    assert "call themselves: A, A" in refusal(write(calling([call("A")], [function("A", [call("A", ["a"], ["b"])])])))
    twice = [function("A", [node("Neg", ["a"], ["b"])])] * 2
    assert "defined twice" in refusal(write(calling([call("A")], twice)))
    ghost = function("A", [node("Neg", ["ghost"], ["b"])])
    assert "ghost" in refusal(write(calling([call("A")], [ghost])))
    nothing = function("A", [node("Neg", ["a"], ["q"])])
    assert "output b of local function A" in refusal(write(calling([call("A")], [nothing])))
    single = function("A", [node("Neg", ["a"], ["b"])])
    assert "it has 2 inputs, but the local function only 1" in refusal(
        write(calling([call("A", ["x", "x"])], [single]))
    )
    assert "it has 2 outputs, but" in refusal(write(calling([call("A", ["x"], ["y", "z"])], [single])))
    through = function("A", [])
    through.output[:] = ["a"]
    assert "an input that was left out" in refusal(write(calling([call("A", [""])], [through])))


def test_function_hands_its_input_through(write: Write) -> None:
    pair = oh.make_function("f", "P", ["a"], ["a", "b", "b2"], [node("Neg", ["a"], ["b"])], [oh.make_opsetid("", 17)])
    pair.output[:] = ["a", "b", "b"]
    proto = model(
        [call("P", ["x"], ["y", "z", "w"])], outputs=["y", "z", "w"], opsets={"": 17, "f": 1}, functions=[pair]
    )
    found = read(write(proto), Options())
    assert [v.name for v in (*found.graph.inputs, *found.graph.outputs)] == ["x", "y", "z", "w"]
    for got, expected in zip(run(ir.to_proto(found)), (X, -X, -X), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_function_takes_and_gives_fewer(write: Write) -> None:
    """Trailing inputs and outputs may be left out; so may attributes, which then have the function's default."""
    leaky = node("LeakyRelu", ["t"], ["b"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", type=1, ref_attr_name="slope"))
    body = [node("Clip", ["a", "", "top"], ["t"]), leaky, node("Neg", ["b"], ["spare"])]
    many = oh.make_function("f", "M", ["a", "top"], ["b", "spare"], body, [oh.make_opsetid("", 17)], ["slope"])
    default = oh.make_function("f", "D", ["a", "top"], ["b", "spare"], body, [oh.make_opsetid("", 17)])
    default.attribute_proto.append(oh.make_attribute("slope", 0.5))
    expected = np.where(X < 0, X * np.float32(0.5), X)
    for function_, kw in ((many, {"slope": 0.5}), (default, {})):
        proto = calling([call(function_.name, ["x"], ["y"], **kw)], [function_])
        np.testing.assert_array_equal(run(ir.to_proto(read(write(proto), Options())))[0], expected)


def test_many_calls_are_linear(write: Write) -> None:
    chain = [call("A", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)]
    chain[0].input[0], chain[-1].output[0] = "x", "y"
    found = read(
        write(calling(chain, [function("A", [node("Neg", ["a"], ["t"]), node("Neg", ["t"], ["b"])])])), Options()
    )
    names = [v.name for n in found.graph for v in n.outputs]
    assert len(set(names)) == len(names) == 40_000


def test_functions_that_nest_graphs_too_deep(write: Write) -> None:
    functions = [function("F0", [node("Neg", ["a"], ["b"])])]
    for i in range(40):
        inner = branch([call(f"F{i}", ["a"], ["q"])], "q")
        truth = node("Constant", [], ["c"], value=from_array(np.array(True)))
        functions.append(function(f"F{i + 1}", [truth, node("If", ["c"], ["b"], then_branch=inner, else_branch=inner)]))
    limits = Limits(function_nodes=10**20)
    assert "nests graphs deeper" in refusal(write(calling([call("F40")], functions)), Options(limits=limits))


def test_exponential_functions_are_refused(write: Write) -> None:
    names = [f"F{i}" for i in range(60)]
    functions = [function("F0", [node("Neg", ["a"], ["t"]), node("Neg", ["t"], ["b"])])]
    for inner, name in itertools.pairwise(names):
        functions.append(function(name, [call(inner, ["a"], ["t"]), call(inner, ["t"], ["b"])]))
    assert "makes more than 10**15 nodes" in refusal(write(calling([call("F59")], functions)))


# --- input shapes --------------------------------------------------------------------------------------------------


def test_input_shapes(write: Write) -> None:
    proto = model([node("Add", ["x", "m"])], inputs=[value("x", ["n", 3, None]), value("m", ["n", 1, 1])])
    proto.graph.output[0].CopyFrom(value("y", ["n", 3, "k"]))
    found = read(write(proto), Options(input_shapes={"x": (5, -1, 4)}))
    shapes = [list(v.shape or ()) for v in (*found.graph.inputs, *found.graph.outputs)]
    assert shapes[0] == [5, 3, 4] and shapes[1] == [5, 1, 1]  # n is 5 wherever it is named
    assert shapes[2][:2] == [5, 3] and not isinstance(shapes[2][2], int)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"z": (1,)}, "no input z -> its inputs are: x, m"),
        ({"x": (1, 3)}, "it has 3 dims, not 2"),
        ({"x": (1, 4, 4)}, "the file fixes dim 1 at 3, not 4"),
        ({"x": (1, 3, -2)}, "a negative dim"),
        ({"x": (1, 3, 4), "m": (2, 1, 1)}, "dim 0 is n, which is 1 elsewhere, not 2"),
    ],
)
def test_wrong_input_shapes(write: Write, shapes: dict[str, tuple[int, ...]], says: str) -> None:
    path = write(model([node("Add", ["x", "m"])], inputs=[value("x", ["n", 3, None]), value("m", ["n", 1, 1])]))
    assert says in refusal(path, Options(input_shapes=shapes))


# --- real files ----------------------------------------------------------------------------------------------------


def test_every_real_file_is_read() -> None:
    if not (MODELS / "manifest.json").is_file():
        pytest.skip(f"{MODELS} is not there")
    refused = {}
    for entry in json.loads((MODELS / "manifest.json").read_text()):
        try:
            found = read(MODELS / entry["file"], Options())
        except OnnxgenError as error:
            refused[entry["file"]] = str(error)
            continue
        made = {v for n in found.graph.all_nodes() for v in n.outputs}
        assert all(v in made or v.is_graph_input() or v.is_initializer() for v in found.graph.outputs), entry["file"]
        assert all(isinstance(n.meta["scope"], tuple) for n in found.graph.all_nodes())
    assert refused == {}


def test_unsorted_real_files_agree_with_onnxruntime_order() -> None:
    files = sorted(MODELS.glob("ort/transform/fusion/skip_layer_norm*.onnx"))
    if not files:
        pytest.skip(f"{MODELS} is not there")
    for file in files:
        found = read(file, Options())
        seen = {id(v) for v in (*found.graph.inputs, *found.graph.initializers.values())}
        for step in found.graph:
            assert all(v is None or id(v) in seen for v in step.inputs), re.sub(r".*/", "", str(file))
            seen.update(id(v) for v in step.outputs)
