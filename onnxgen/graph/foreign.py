"""Operators of other packages: whose a domain is, and what a person can do about its operators."""

from __future__ import annotations

import re

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
        if (found := OWNERS.get(".".join(parts[:end]))) is not None:
            return found
    return next((found for pattern, found in _NAMED if pattern.fullmatch(name)), None) if not domain else None
