"""Operator domains: those that a file imports, read without onnx, and those of other packages.

The domains tell whether installed plugins may be needed. A model's `opset_import` is a field beside its graph. The
graph is skipped as a whole (https://protobuf.dev/programming-guides/encoding/; onnx.proto: ModelProto 8 and 25,
FunctionProto 9, domain 1). `owner` says what a person can do about operators of a domain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

DOMAIN = "onnxgen"  # of onnxgen's own operators: those of torch that ONNX lacks, and those that passes write
# The standard's domains, and those that onnxruntime and PyTorch import even in files that do not use them.
KNOWN = frozenset(
    """
    ai.onnx ai.onnx.ml ai.onnx.training ai.onnx.preview ai.onnx.preview.training ai.onnx.contrib
    com.microsoft com.microsoft.nchwc com.microsoft.experimental com.ms.internal.nhwc org.pytorch.aten
    """.split()
) | {""}
_OPSETS, _FUNCTIONS, _OF_FUNCTION, _DOMAIN = 8, 25, 9, 1
_LENGTH = 2  # the wire type of length-delimited fields


def is_foreign(domain: str) -> bool:
    """Return True if operators of a domain can only come from a plugin or a local function of the file."""
    return domain not in KNOWN and not domain.startswith(DOMAIN)


def imports_foreign(path: Path) -> bool:
    """Return True if a model imports such a domain, or if the file is not a model."""
    try:
        with path.open("rb") as file:
            return any(map(is_foreign, _domains(file)))
    except (OSError, ValueError):
        return True


def _domains(file: BinaryIO) -> Iterator[str]:
    for number, end in _fields(file, os.fstat(file.fileno()).st_size):
        if number == _OPSETS:
            yield _domain(file, end)
        elif number == _FUNCTIONS:
            for inner, stop in _fields(file, end):
                if inner == _OF_FUNCTION:
                    yield _domain(file, stop)


def _domain(file: BinaryIO, end: int) -> str:
    for number, stop in _fields(file, end):
        if number == _DOMAIN:
            return file.read(stop - file.tell()).decode("utf-8")
    return ""


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int]]:
    """Yield the number and end of each length-delimited field of a message. The file is positioned at its content."""
    while file.tell() < end:
        tag = _varint(file)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH:
            stop = _varint(file) + file.tell()
            if stop > end:
                raise ValueError("a field is longer than what it lies in")
            yield number, stop
            file.seek(stop)
        elif wire == 0:
            _varint(file)
        elif wire in (1, 5):
            file.seek(8 if wire == 1 else 4, os.SEEK_CUR)
        else:
            raise ValueError("no protobuf")


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("the file ends within a number")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError("a number is too long")


PLUGIN = "write a plugin for it (docs/EXTENDING.md)"
CUT = "cut it off with --inputs/--outputs and run it outside of the module"
_EXTENSIONS = (
    "tokenizers and other operators of onnxruntime-extensions are out of scope: they work on text, images and sound "
    "before and after a network",
    f"cut it off with --inputs/--outputs and run it in Python (text: tokenize in Python), or {PLUGIN}",
)


def _export(package: str, how: str) -> tuple[str, str]:
    """Return the answer for operators that an exporter wrote because it had no others."""
    return f"the operator is one of {package}, for which ONNX has no name", f"{how}, {CUT}, or {PLUGIN}"


def _runtime(package: str) -> tuple[str, str]:
    """Return the answer for operators that only one runtime or library computes."""
    how = f"export the network again without {package}"
    return f"the operator is one of {package}, which alone computes it", f"{how}, {CUT}, or {PLUGIN}"


_TRT, _MM = _runtime("TensorRT's plugins"), _runtime("MMDeploy and MMCV")
_QONNX = _runtime("QONNX, Brevitas and FINN")
# The reason and the way out, by domain. A domain stands for those below it, too ("a.b" for "a.b.c").
OWNERS = {
    "ai.onnx.contrib": _EXTENSIONS,
    "com.microsoft.extensions": _EXTENSIONS,
    **dict.fromkeys(("trt", "trt.plugins", "tensorrt", "tensorrt.plugins", "nvinfer"), _TRT),
    **dict.fromkeys(("mmdeploy", "mmcv"), _MM),
    "paddle": _export("PaddlePaddle", "export again with a newer paddle2onnx and without custom operators"),
    "ai.onnx.converters": _export("TensorFlow or Keras", "convert again with a newer tf2onnx, without --custom-ops"),
    **dict.fromkeys(
        ("org.pytorch", "aten", "prim", "pytorch", "torch"),
        _export("PyTorch (ATen)", "export again with torch.onnx.export(dynamo=True), or at a newer opset"),
    ),
    "torchvision": _export("torchvision", "export again with a newer torchvision, or the part before the operator"),
    "org.openvinotoolkit": _runtime("OpenVINO"),
    **dict.fromkeys(("qonnx", "onnx.brevitas", "finn"), _QONNX),
    **dict.fromkeys(("com.vai.quantize", "com.amd.quark", "ai.onnx.quark"), _runtime("AMD Quark and Vitis AI")),
    **dict.fromkeys(("qti_aisw", "com.qti.aisw"), _runtime("Qualcomm's AI Engine")),
}
# names of operators that are written into the standard's domain, too
_NAMED = ((re.compile(r"(TRT_?[A-Z]\w*|\w+_TRT)"), _TRT), (re.compile(r"(MMCV|MMDeploy)\w+"), _MM))


def owner(domain: str, name: str) -> tuple[str, str] | None:
    """Return whose operator it is, as a reason and a way out; None if nobody is known."""
    parts = domain.lower().replace("::", ".").split(".")
    for end in range(len(parts), 0, -1):
        if (answer := OWNERS.get(".".join(parts[:end]))) is not None:
            return answer
    return next((answer for pattern, answer in _NAMED if pattern.fullmatch(name)), None) if not domain else None
