"""onnxruntime's own optimised files: what a session saves at each level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnxruntime"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each level of a few networks; the last lays weights out for the processor it runs on."""
    names = ("cnn", "encoder_post", "encoder_pre", "lstm", "causal", "window", "unet", "detect")
    for name, path in sources(out, *names, tools=("torch_script",)):
        for level in ("BASIC", "EXTENDED"):
            yield f"{name}_{level.lower()}", partial(_save, path, level)
    for name, path in sources(out, "cnn", "encoder_post", tools=("torch_script", "torch_dynamo")):
        yield f"{name}_all", partial(_save, path, "ALL")


def _save(source: Path, level: str, path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
