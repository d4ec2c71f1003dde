"""The options that a sidecar records are the same when they are read again, and as words of a command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import onnxgen
from onnxgen.cli.options import generation_options, take_options
from onnxgen.common.limits import Limits
from onnxgen.options import OPTIONS, Options
from onnxgen.record.asked import KEY, asked, command, recorded_options, words
from onnxgen.record.sidecar import read_header
from tests.conftest import ROOT

GIVEN: dict[str, Any] = {
    "class_name": "Net",
    "flat": True,
    "annotate": True,
    "style": "timm",
    "input_shapes": {"x=y": (-1, 3, 8, 8), "scale": ()},
    "const": {"sr": 16000, "on": True, "half": 0.5, "ids": (1, 2)},
    "inputs": ("a b", "c"),
    "outputs": ("o",),
    "dynamic_batch": True,
    "batch_axes": {"x": 1, "m": None},
    "dtype": "float16",
    "trainable": "w.*",
    "frozen": "b'",
    "dropout": {"a.*": 0.25},
    "restore_batchnorm": True,
    "quantized": "qat",
    "limits": Limits(nodes=7, seconds=9),
    "embed": True,
    "shard_size": 500,
    "tied": "e",
    "untied": "f",
    "allow_unsupported": True,
    "nchwc_block": 8,
    "task": "detection",
}


@click.command()
@generation_options()
@click.pass_context
def told(context: click.Context, **given: Any) -> None:
    context.obj.append(take_options(given))


@pytest.mark.parametrize("name", [*GIVEN, ""])
def test_options_are_read_again(name: str, tmp_path: Path) -> None:
    needed = {"dynamic_batch": True} if name == "batch_axes" else {}
    together = {key: value for key, value in GIVEN.items() if key != "task"}  # it finds the outputs itself
    options = Options(**({name: GIVEN[name], **needed} if name else together))
    assert recorded_options({KEY: asked(options, tmp_path)}, tmp_path) == options
    found = list[Options]()
    told.main(words(options), standalone_mode=False, obj=found)
    assert found == [options]


def test_paths_are_seen_from_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "own.py").touch()
    (tmp_path / "looks").mkdir()
    monkeypatch.chdir(tmp_path / "ops")
    options = Options(plugins=("own.py", "package.ops"), templates=Path("../looks"), weights=Path("w.safetensors"))
    text = asked(options, tmp_path)
    assert json.loads(text) == {"plugins": ["ops/own.py", "package.ops"], "templates": "looks"}
    monkeypatch.chdir("/")
    found = recorded_options({KEY: text}, tmp_path)
    assert found == Options(plugins=(str(tmp_path / "ops/own.py"), "package.ops"), templates=tmp_path / "looks")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"later": 1}', '{"flat": 1}', '{"dtype": "int4"}', '{"flat": true'])
def test_what_was_not_recorded_is_not_known(text: str, tmp_path: Path) -> None:
    assert recorded_options({KEY: text} if text else {}, tmp_path) is None


def test_a_sidecar_has_them(tmp_path: Path) -> None:
    path = tmp_path / "mnist.onnx"
    path.write_bytes((ROOT / "samples" / "mnist" / "mnist.onnx").read_bytes())
    onnxgen.generate(path, tmp_path / "net.py", Options(annotate=True, class_name="Mine"))
    metadata = read_header(tmp_path / "net.safetensors")[0]
    assert recorded_options(metadata, tmp_path) == Options(annotate=True, class_name="Mine")
    said = command(path, tmp_path / "net 2.py", Options(annotate=True, frozen="a b"))
    assert shlex.split(said) == [
        "onnxgen",
        str(path),
        "-o",
        str(tmp_path / "net 2.py"),
        "--annotate",
        "--frozen",
        "a b",
    ]


def test_every_option_is_recorded_or_left_out_on_purpose() -> None:
    assert set(OPTIONS) == {*GIVEN, "plugins", "templates"} | {"weights", "paranoid"}
