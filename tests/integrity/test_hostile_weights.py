"""Weights that somebody else wrote: one clear line wherever they are read, and none where they are replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxgen.cli import run as command
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import read_header
from onnxgen.runtime.checkpoint import read_weights
from tests.support.reader_models import Write, model, node, weight, write

__all__ = ["write"]  # a fixture

F32 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def file(header: object, data: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "short": b"abc",
    "zeros": b"\0" * 100,
    "header beyond the file": (10**6).to_bytes(8, "little") + b"{}",
    "header of 2 ** 63": (2**63).to_bytes(8, "little") + b"{}",
    "deep": file(b'{"a":' + b"[" * 100_000),
    "a list": file(b"[]"),
    "no text": file(b"\xff\xfe{}"),
    "metadata a list": file({"__metadata__": [1], "w": F32}),
    "metadata of numbers": file({"__metadata__": {"generator": 5}, "w": F32}),
    "no description": file({"w": None}),
    "unknown type": file({"w": F32 | {"dtype": ["F32"]}}),
    "negative shape": file({"w": F32 | {"shape": [-2, -2]}}),
    "float shape": file({"w": F32 | {"shape": [4.0]}}),
    "huge and empty": file({"w": {"dtype": "F32", "shape": [2**70, 0], "data_offsets": [0, 0]}}),
    "three offsets": file({"w": F32 | {"data_offsets": [0, 16, 16]}}),
    "negative offsets": file({"w": F32 | {"data_offsets": [-16, 0]}}),
    "overlapping": file({"v": F32, "w": F32 | {"data_offsets": [8, 24]}}, b"\0" * 24),
    "cut short": file({"w": F32 | {"shape": [400], "data_offsets": [0, 1600]}}),
    "longer": file({"w": F32}, b"\0" * 17),
    "a hole": file({"w": F32 | {"data_offsets": [8, 24]}}, b"\0" * 24),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_header_is_checked_in_every_field(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(HOSTILE[kind])
    for read in (read_header, read_weights):  # the latter of `predict --weights`, by the library
        with pytest.raises(OnnxgenError, match="is not a safetensors file: "):
            read(path)


def generated(write: Write, folder: Path) -> tuple[Path, Path]:
    path = write(model([node("Add", ["x", "w"])], [weight("w", 4)]))
    out = folder / "net.py"
    assert command([str(path), "-o", str(out), "-q"]) == 0
    return path, out


def test_whatever_lies_there_is_generated_anew(write: Write, tmp_path: Path) -> None:
    path, out = generated(write, tmp_path)
    sidecar = out.with_suffix(".safetensors")
    good = sidecar.read_bytes()
    for kind, data in HOSTILE.items():
        sidecar.write_bytes(data)
        assert command([str(path), "-o", str(out), "-q"]) == 0, kind
        assert sidecar.read_bytes() == good, kind


@pytest.mark.parametrize("name", ["verify", "export", "export --weights"])
def test_commands_say_so_in_one_line(
    name: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = generated(write, tmp_path)
    given = out.with_suffix(".safetensors") if name != "export --weights" else tmp_path / "given.safetensors"
    asked = {
        "verify": ["verify", str(path), str(out)],
        "export": ["export", str(out), "-o", str(tmp_path / "back.onnx")],
        "export --weights": ["export", str(out), "--weights", str(given), "-o", str(tmp_path / "back.onnx")],
    }
    for kind, data in HOSTILE.items():
        given.write_bytes(data)
        capsys.readouterr()
        assert command(asked[name]) == 2, kind
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith("error: ") and given.name in said, (kind, said)


def test_records_in_the_metadata_that_are_nested_deeply(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = generated(write, tmp_path)
    sidecar = out.with_suffix(".safetensors")
    metadata, entries = read_header(sidecar)
    data = sidecar.read_bytes()[-16:]
    for record in ("wayback", "signature", "uses", "functions", "batch", "approximation"):
        header = {"__metadata__": metadata | {record: "[" * 100_000}, **dict.fromkeys(entries, F32)}
        sidecar.write_bytes(file(header, data))
        for asked in (["verify", str(path), str(out)], ["export", str(out), "-o", str(tmp_path / "back.onnx")]):
            assert command(asked) in (0, 2), (record, capsys.readouterr().err)
        assert command([str(path), "-o", str(out), "-q"]) == 0
