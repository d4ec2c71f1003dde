"""onnxoptimizer: torch's files by its default passes, all its passes that fuse, and its splits of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnxoptimizer"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each of torch's networks by the default passes; unfolded ones by all that fuse or eliminate."""
    for name, path in sources(out, "cnn", "unet", "causal", "lstm", "encoder_pre", "mobile", "mlp"):
        yield name, partial(_optimise, path, ())
    for name, path in sources(out, "cnn_training", "encoder_post_training", "cnn_unoptimised", "causal_unoptimised"):
        yield f"{name}_fused", partial(_optimise, path, ("fuse_", "eliminate_", "extract_constant"))
    for name, path in sources(out, "cnn", "mlp", tools=("torch_script",)):
        yield f"{name}_lifted", partial(_optimise, path, ("lift_lexical", "rewrite_", "set_unique_name", "rename_"))
        yield f"{name}_inputs", _with_inputs(path)


def _optimise(source: Path, begins: tuple[str, ...], path: Path) -> None:
    import onnxoptimizer

    passes = [name for name in onnxoptimizer.get_available_passes() if name.startswith(begins)] if begins else None
    onnx.save(onnxoptimizer.optimize(onnx.load(source), passes), path)


def _with_inputs(source: Path) -> Callable[[Path], None]:
    """Initializers that are inputs too, as files had them before IR version 4."""

    def write(path: Path) -> None:
        import onnxoptimizer

        model = onnx.load(source)
        for tensor in model.graph.initializer:
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.ir_version = 3
        onnx.save(onnxoptimizer.optimize(model, ["fuse_bn_into_conv", "fuse_matmul_add_bias_into_gemm"]), path)

    return write
