"""tf2onnx: functions of TensorFlow and models of Keras, at several opsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

REQUIREMENTS = ["tensorflow-cpu", "tf2onnx", "onnx", "numpy<2", "protobuf<6"]
NETS = ("dense", "conv", "separable", "residual", "lstm", "gru", "rnn", "attention", "words", "upsampled", "signal")
FUNCTIONS = ("resized", "sliced", "looped", "chosen", "sums", "matched", "spectrum", "best")


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each network, some at older opsets and with channels first at the inputs; functions of single operators."""
    for name in NETS:
        yield name, partial(_keras, name)
    for name, opset in (("conv", 9), ("conv", 13), ("lstm", 11), ("attention", 15), ("upsampled", 10)):
        yield f"{name}_opset{opset}", partial(_keras, name, opset=opset)
    yield "conv_channels_first", partial(_keras, "conv", inputs_as_nchw=["x"])
    for name in FUNCTIONS:
        yield name, partial(_function, name)


def net(name: str) -> tuple[Any, Any]:
    """A model of Keras with random weights, and what its input looks like."""
    import tensorflow as tf

    keras = tf.keras
    layers = keras.layers
    keras.utils.set_random_seed(0)
    shape, dtype = {"words": ((7,), tf.int32), "dense": ((12,), tf.float32)}.get(name, ((16, 16, 3), tf.float32))
    if name in ("lstm", "gru", "rnn", "attention", "signal"):
        shape = (9, 8)
    x = given = keras.Input(shape, name="x", dtype=dtype.name)
    if name == "dense":
        x = layers.Dense(16, activation="gelu")(x)
        x = layers.BatchNormalization()(x)
        x = layers.Dense(4, activation="softmax")(layers.Dropout(0.3)(x))
    elif name == "conv":
        for width in (8, 16):
            x = layers.Conv2D(width, 3, padding="same", strides=2, use_bias=False)(x)
            x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
        x = layers.Dense(5)(layers.Flatten()(layers.MaxPool2D()(x)))
    elif name == "separable":
        x = layers.SeparableConv2D(8, 3, padding="same", activation="swish")(x)
        x = layers.DepthwiseConv2D(3, padding="valid")(layers.ZeroPadding2D(((0, 1), (1, 0)))(x))
        x = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.LayerNormalization()(x)))
    elif name == "residual":
        x = layers.Conv2D(8, 3, padding="same")(x)
        for _ in range(2):
            y = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
            x = layers.add([x, layers.Conv2D(8, 3, padding="same")(y)])
        x = layers.concatenate([layers.AveragePooling2D(2)(x), layers.Conv2D(4, 3, strides=2, padding="same")(x)])
    elif name in ("lstm", "gru", "rnn"):
        layer = {"lstm": layers.LSTM, "gru": layers.GRU, "rnn": layers.SimpleRNN}[name]
        x = layers.Bidirectional(layer(6, return_sequences=True))(x)
        x = layers.Dense(2)(layer(5)(x))
    elif name == "attention":
        y = layers.MultiHeadAttention(2, 4)(x, x)
        x = layers.LayerNormalization()(layers.add([x, y]))
        x = layers.add([x, layers.Dense(8)(layers.Dense(32, activation="gelu")(x))])
    elif name == "words":
        x = layers.Embedding(30, 8)(x)
        x = layers.Dense(1, activation="sigmoid")(layers.GlobalMaxPooling1D()(layers.Conv1D(6, 3)(x)))
    elif name == "upsampled":
        x = layers.UpSampling2D(2, interpolation="bilinear")(layers.Conv2D(4, 3, dilation_rate=2)(x))
        x = layers.Conv2DTranspose(3, 3, strides=2, padding="same", activation="tanh")(x)
    else:
        x = layers.Conv1D(6, 3, padding="causal", activation="elu")(x)
        x = layers.PReLU(shared_axes=[1])(layers.Conv1D(4, 3, dilation_rate=2)(x))
    return keras.Model(given, x), tf.TensorSpec((None, *shape), dtype, name="x")


def _keras(name: str, path: Path, *, opset: int = 17, **options: Any) -> None:
    import tensorflow as tf
    import tf2onnx

    model, spec = net(name)
    function = tf.function(lambda x: model(x, training=False), input_signature=[spec])
    tf2onnx.convert.from_function(function, [spec], opset=opset, output_path=str(path), **options)


def _function(name: str, path: Path) -> None:
    import tensorflow as tf
    import tf2onnx

    def looped(x: Any) -> Any:
        total = tf.zeros_like(x[:, 0])
        for i in tf.range(tf.shape(x)[1]):
            total = total * 0.5 + x[:, i]
        return total

    functions = {
        "resized": ((2, 8, 8, 3), lambda x: tf.image.resize(x, (5, 12), method="bicubic")),
        "sliced": ((None, 6, 4), lambda x: tf.pad(x[:, 1:-1:2, ::-1], [[0, 0], [1, 2], [0, 0]], mode="REFLECT")),
        "looped": ((None, 5, 3), looped),
        "chosen": ((None, 5), lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: tf.nn.relu(x))),
        "sums": ((None, 5, 3), lambda x: tf.einsum("bij,bkj->bik", x, tf.cumsum(x, axis=1)) / tf.norm(x)),
        "matched": ((None, 5), lambda x: tf.where(x > tf.reduce_mean(x, 1, keepdims=True), x, tf.math.erf(x))),
        "spectrum": ((4, 16), lambda x: tf.abs(tf.signal.rfft(x))),
        "best": ((None, 9), lambda x: tf.math.top_k(x, 3).values + tf.cast(tf.argmax(x, 1), tf.float32)[:, None]),
    }
    shape, function = functions[name]
    spec = tf.TensorSpec(shape, tf.float32, name="x")
    tf2onnx.convert.from_function(tf.function(function), [spec], opset=17, output_path=str(path))
