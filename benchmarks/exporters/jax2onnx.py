"""jax2onnx: functions of JAX, networks of Flax and Equinox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

REQUIREMENTS = ["jax[cpu]", "jax2onnx", "flax", "equinox", "onnx"]
NNX = ("dense", "conv", "attention", "norms", "words")
WINDOW, STRIDES = (1, 3, 3, 1), (1, 2, 2, 1)
FUNCTIONS = ("looped", "scanned", "chosen", "sums", "sorted", "windows", "numbers")


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Networks and functions with a free batch."""
    for name in NNX:
        yield name, partial(_flax, name)
    yield "conv_opset21", partial(_flax, "conv", opset=21)
    yield "conv_channels_first", partial(_flax, "conv", inputs_as_nchw=[0])
    yield "equinox", _equinox
    for name in FUNCTIONS:
        yield name, partial(_function, name)


def _flax(name: str, path: Path, **options: Any) -> None:
    import jax
    from flax import nnx

    rngs = nnx.Rngs(0)
    shape: list[Any] = ["B", 8]
    if name == "dense":
        parts = [nnx.Linear(8, 16, rngs=rngs), jax.nn.gelu, nnx.Dropout(0.2, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)]
    elif name == "conv":
        shape = ["B", 16, 16, 3]
        parts = [
            nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs), jax.nn.relu,
            lambda x: nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2)), _flat, nnx.Linear(512, 5, rngs=rngs),
        ]  # fmt: skip
    elif name == "attention":
        shape = ["B", 5, 8]
        parts = [nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs), nnx.LayerNorm(8, rngs=rngs)]
    elif name == "norms":
        shape = ["B", 6, 8]
        parts = [nnx.RMSNorm(8, rngs=rngs), nnx.GroupNorm(8, 4, rngs=rngs), jax.nn.softmax]
    else:
        shape = ["B", 6]
        parts = [nnx.Embed(30, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)]
    network = nnx.Sequential(*parts)
    network.eval()
    given: list[Any] = [jax.ShapeDtypeStruct((3, 6), "int32")] if name == "words" else [shape]
    _write(network, given, path, **options)


def _flat(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


def _equinox(path: Path) -> None:
    import equinox
    import jax

    network = equinox.nn.MLP(8, 3, 16, 2, key=jax.random.key(0))
    _write(jax.vmap(network), [["B", 8]], path)


def _function(name: str, path: Path) -> None:
    import jax
    import jax.numpy as jnp

    def scanned(x: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            total = jnp.tanh(total * 0.5 + row)
            return total, total

        return jax.lax.scan(step, jnp.zeros(x.shape[1]), x)[1]

    functions: dict[str, tuple[list[Any], Any]] = {
        "looped": ([4, 3], lambda x: jax.lax.fori_loop(0, 4, lambda i, y: jnp.tanh(y) * 0.5 + y, x)),
        "scanned": ([5, 3], scanned),
        "chosen": ([4], lambda x: jax.lax.cond(x.sum() > 0, lambda y: y * 2, jax.nn.relu, x)),
        "sums": (["B", 5, 3], lambda x: jnp.einsum("bij,bkj->bik", x, jnp.cumsum(x, axis=1)) / jnp.linalg.norm(x)),
        "sorted": (["B", 7], lambda x: jnp.sort(x, axis=-1)[:, ::-1] + jnp.argmax(x, -1)[:, None]),
        "windows": ([2, 8, 8, 3], lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, WINDOW, STRIDES, "SAME")),
        "numbers": (["B", 6], lambda x: jnp.where(x > 0, jnp.log1p(abs(x)), jnp.expm1(x)) + jax.lax.erf(x)),
    }  # fmt: skip
    shape, function = functions[name]
    _write(function, [shape], path)


def _write(function: Any, given: list[Any], path: Path, **options: Any) -> None:
    from jax2onnx import to_onnx

    to_onnx(function, given, return_mode="file", output_path=str(path), **options)
