"""External tensor data stays inside the folder of its model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from onnx import helper as oh

from onnxgen.options import Options
from onnxgen.reader import read
from tests.support.reader_models import ADD, Write, branch, conditional, model, node, refusal, write

__all__ = ["write"]  # a fixture


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


WRONG_DATA: list[tuple[str, dict[str, Any], str]] = [
    ("w.bin", {"offset": 4}, "ends at byte 20 of w.bin, which has only 16"),
    ("w.bin", {"length": 12}, "has 12 bytes, but its dtype and dims need 16"),
    ("w.bin", {"length": 20}, "has 20 bytes, but"),
    ("w.bin", {"offset": -4}, "the offset -4, which is not a size"),
    ("w.bin", {"offset": "ten"}, "the offset ten"),
    ("w.bin", {"length": "9" * 40}, "which is not a size"),
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
]


def test_external_data_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    (tmp_path / "sub").mkdir()
    for location, more, says in WRONG_DATA:
        message = refusal(write(external(location, **more)))
        assert "initializer w: the external data" in message and says in message, location


@pytest.mark.skipif(os.sep == "\\", reason="a backslash separates folders on this system")
def test_a_file_may_have_a_backslash_in_its_name(write: Write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("w\\b.bin", "sub/w\\b.bin"):
        (tmp_path / name).write_bytes(DATA.tobytes())
        found = read(write(external(name)), Options()).graph.initializers["w"].const_value
        assert found is not None
        np.testing.assert_array_equal(found.numpy(), DATA)


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
