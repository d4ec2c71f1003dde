"""Large files: the weights stay in the file until they are asked for, and are what onnx itself reads there."""

from __future__ import annotations

import os
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from onnxgen import OnnxgenError, Options
from onnxgen.graph.nodes import all_nodes
from onnxgen.pipeline import generate
from onnxgen.reader import parsing, read
from onnxgen.weights.file_tensor import FileTensor
from onnxgen.weights.sidecar import read_tensors
from tests.conftest import ROOT
from tests.fuzz.mutate import mutate
from tests.fuzz.seeds import few
from tests.support import forked
from tests.support.reader_models import ADD, Write, branch, conditional, model, node, refusal, write

__all__ = ["write"]  # a fixture

DTYPES = ("float32", "float16", "float64", "int64", "bool", "complex64", "bfloat16", "float8_e4m3fn", "int4", "uint4")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as large, and so does every tensor of more than a few bytes."""
    monkeypatch.setattr(parsing, "MIN_FILE_BYTES", 0)
    monkeypatch.setattr(parsing, "MIN_TENSOR_BYTES", 24)


def tensors_of(path: Path) -> dict[str, ir.TensorProtocol]:
    found = {name: value.const_value for name, value in read(path, Options()).graph.initializers.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("large")
def test_elements(dtype: str, write: Write) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    array = (np.arange(15 * 17) % 7).astype(kind).reshape(15, 17)
    stored = [numpy_helper.from_array(array, "w"), numpy_helper.from_array(array[:1, :3].copy(), "small")]
    path = write(model([ADD], stored))
    tensors = tensors_of(path)
    assert isinstance(tensors["w"], FileTensor)
    assert isinstance(tensors["small"], FileTensor) == (array[:1, :3].nbytes >= 24 and kind.itemsize > 1)
    for proto in onnx.load(path).graph.initializer:
        found, expected = tensors[proto.name], numpy_helper.to_array(proto)
        assert found.dtype == proto.data_type and tuple(found.shape.numpy()) == expected.shape
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.tobytes() == proto.raw_data and proto.name in repr(found)
        assert not found.numpy().flags.writeable or "int4" in dtype  # these are unpacked


@pytest.mark.usefixtures("large")
def test_only_what_is_asked_for(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(100 * 100, dtype=np.float32)
    tensor = tensors_of(write(model([ADD], [numpy_helper.from_array(array, "w")])))["w"]
    assert isinstance(tensor, FileTensor)
    spans = []
    reads = tensor.source.read
    monkeypatch.setattr(tensor.source, "read", lambda begin, end: spans.append(end - begin) or reads(begin, end))
    np.testing.assert_array_equal(tensor.elements(7, 9), array[7:9])
    assert spans == [8]


@pytest.mark.usefixtures("large")
def test_in_attributes_and_branches(write: Write) -> None:
    """A Constant's tensor, also in a branch, and a branch's own initializer."""
    one, two = (np.arange(30, dtype=np.float32) + i for i in range(2))
    inner = [node("Constant", [], ["k"], value=numpy_helper.from_array(one, "t")), node("Add", ["k", "w"], ["b"])]
    before = [node("Constant", [], ["d"], value=numpy_helper.from_array(one, "t"))]
    path = write(conditional(branch(inner, "b", [numpy_helper.from_array(two, "w")]), before))
    graph = read(path, Options()).graph
    found = [a.value for n in all_nodes(graph) for a in n.attributes.values() if a.type == ir.AttributeType.TENSOR]
    found = [tensor for tensor in found if tensor.size == 30]
    stored = [v.const_value for g in graph.subgraphs() for v in g.initializers.values()]
    assert len(found) == 2 and len(stored) == 1
    for tensor, expected in zip((*found, *stored), (one, one, two)):
        assert isinstance(tensor, FileTensor)
        np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.usefixtures("large")
def test_wire_format(tmp_path: Path) -> None:
    """Protobuf joins a graph that comes in two, takes the last of two fields, lengths in more bytes than needed, and
    numbers that are not packed."""
    first, second = (np.arange(40, dtype=np.float32) + i for i in range(2))
    net = model([ADD], [numpy_helper.from_array(first, "w")])
    rest = onnx.ModelProto(graph=onnx.GraphProto(initializer=[numpy_helper.from_array(second, "v")]))
    twice = TensorProto(name="u", data_type=TensorProto.FLOAT, dims=[40], raw_data=first.tobytes()).SerializeToString()
    twice += TensorProto(raw_data=second.tobytes()).SerializeToString()
    initializer = b"\x2a" + bytes([len(twice) & 127 | 128, len(twice) >> 7 | 128, 128, 0]) + twice
    graph = b"\x3a" + bytes([len(initializer) & 127 | 128, len(initializer) >> 7 | 128, 0]) + initializer
    apart = [
        (b"\x25", "<f4", "s", TensorProto.FLOAT),
        (b"\x51", "<f8", "t", TensorProto.DOUBLE),
    ]  # not packed: a tag each
    for tag, dtype, name, kind in apart:
        tensor = TensorProto(name=name, data_type=kind, dims=[40]).SerializeToString()
        tensor += b"".join(tag + number.tobytes() for number in first.astype(dtype))
        initializer = b"\x2a" + bytes([len(tensor) & 127 | 128, len(tensor) >> 7]) + tensor
        graph += b"\x3a" + bytes([len(initializer) & 127 | 128, len(initializer) >> 7]) + initializer
    path = tmp_path / "net.onnx"
    path.write_bytes(net.SerializeToString() + rest.SerializeToString() + graph)
    assert [t.name for t in onnx.load(path).graph.initializer] == ["w", "v", "u", "s", "t"]
    tensors = tensors_of(path)
    assert [isinstance(tensors[name], FileTensor) for name in "wvust"] == [True, True, False, False, False]
    for name, expected in zip("wvust", (first, second, second, first, first)):
        np.testing.assert_array_equal(tensors[name].numpy(), expected)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("change", ["touched", "cut short", "longer"])
def test_a_file_that_changes(change: str, write: Write) -> None:
    path = write(model([ADD], [numpy_helper.from_array(np.arange(40, dtype=np.float32), "w")]))
    tensor = tensors_of(path)["w"]
    assert isinstance(tensor, FileTensor)
    tensor.source.check()
    if change == "touched":
        os.utime(path, ns=(1, 1))
    else:
        os.truncate(path, path.stat().st_size + (9 if change == "longer" else -99))
    for act in (tensor.numpy, tensor.source.check):  # the latter after the system has copied from file to file
        with pytest.raises(
            OnnxgenError, match=r"model.onnx changed while it was read -> run it again when the file is"
        ):
            act()


@pytest.mark.usefixtures("large")
def test_a_file_that_is_replaced(write: Write, tmp_path: Path) -> None:
    """What was parsed is what is read, though another file has its name by now."""
    path = write(model([ADD], [numpy_helper.from_array(np.arange(40, dtype=np.float32), "w")]))
    tensor = tensors_of(path)["w"]
    (tmp_path / "other").write_bytes(bytes(path.stat().st_size))
    os.replace(tmp_path / "other", path)
    np.testing.assert_array_equal(tensor.numpy(), np.arange(40))


@pytest.mark.usefixtures("large")
def test_only_a_large_file_stays_open(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(model([ADD], [numpy_helper.from_array(np.ones(4, np.float32), "w")]))
    for least, stays in ((path.stat().st_size, True), (path.stat().st_size + 1, False)):
        monkeypatch.setattr(parsing, "MIN_FILE_BYTES", least)
        data, source = parsing.structure(path)
        assert (source is not None) == stays and onnx.ModelProto.FromString(data).graph.node


def test_a_length_that_is_wrong(write: Write) -> None:
    wrong = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 5], raw_data=bytes(64))
    path = write(model([ADD], [wrong]))
    assert "the tensor has 64 bytes of data, but its dims [3, 5] and dtype need 60" in refusal(path)


def test_the_same_as_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutated files: the same error, or the same tensors, read either way."""
    rng, seeds = random.Random(5), few()
    outcomes = set()
    for _ in range(400):
        data = mutate(rng, rng.choice(seeds), rng.choice(seeds))
        (tmp_path / "net.onnx").write_bytes(data)
        found = []
        for whole in (1 << 22, 0):
            monkeypatch.setattr(parsing, "MIN_FILE_BYTES", whole)
            monkeypatch.setattr(parsing, "MIN_TENSOR_BYTES", 24)
            found.append(_outcome(tmp_path / "net.onnx"))
        assert found[0] == found[1]
        outcomes.add(type(found[0]))
    assert outcomes == {str, dict}


def _outcome(path: Path) -> str | dict[str, tuple[object, ...]]:
    try:
        return {name: (t.dtype, t.shape, t.tobytes()) for name, t in tensors_of(path).items() if t.dtype != 8}
    except OnnxgenError as error:
        return str(error)


MEASURED = """
import re, sys
from pathlib import Path
from onnxgen.pipeline import generate
generate(Path(sys.argv[1]), Path(sys.argv[1]).with_suffix(".py"))
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
def test_memory(tmp_path: Path) -> None:
    """A file of 24 MB in twelve matrices takes little more than one of a few bytes, and all of them are stored."""
    peaks = []
    for size in (8, 724):
        weights = [np.full((size, size), i, np.float32) for i in range(12)]
        nodes = [onnx.helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(12)]
        stored = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
        inputs = [onnx.helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, size])]
        path = tmp_path / f"net{size}.onnx"
        onnx.save(model(nodes, stored, inputs, ["x12"]), path)
        done = forked.run(["-c", MEASURED, path], env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) >> 10)
        tensors = read_tensors(path.with_suffix(".safetensors")).values()
        assert sorted(float(t.flat[0]) for t in tensors if t.ndim == 2) == list(range(12))
    assert peaks[1] - peaks[0] < 12, peaks


def test_generate_goes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar of a large file, copied by the system or not, is that of the same file read as a whole."""
    rng = np.random.default_rng(0)
    weights = {f"layer.{i}.weight": rng.normal(size=(20, 20)).astype(np.float32) for i in range(4)}
    nodes = [  # every other is stored as it lies
        onnx.helper.make_node("Gemm", [f"x{i}", name], [f"x{i + 1}"], transB=i % 2) for i, name in enumerate(weights)
    ]
    stored = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    inputs = [onnx.helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["N", 20])]
    path, out = tmp_path / "net.onnx", tmp_path / "net.py"
    onnx.save(model(nodes, stored, inputs, ["x4"]), path)
    made = []
    for whole in (1 << 22, 0):
        monkeypatch.setattr(parsing, "MIN_FILE_BYTES", whole)
        monkeypatch.setattr(parsing, "MIN_TENSOR_BYTES", 24)
        generate(path, out, force=True)
        made.append((out.read_bytes(), out.with_suffix(".safetensors").read_bytes()))
    assert made[0] == made[1]
