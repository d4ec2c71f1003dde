"""Embeddings of words by their letters."""

from __future__ import annotations

import math

from onnxgen.errors import WRITER, counted
from onnxgen.passes.contrib.writer import INT64, Refused, Value, Writer, body, size_of
from onnxgen.shapes import drawn, infer_microsoft
from onnxgen.shapes.info import info


@body("WordConvEmbedding", infer=infer_microsoft.word_conv, axes="n l; f i k e; f; r e", drawn={0: drawn.words(3)})
def word_conv_embedding(
    g: Writer, Sequence: Value, W: Value, B: Value, C: Value, *, char_embedding_size: int | None = None,
    conv_window_size: int | None = None, embedding_size: int | None = None,
) -> Value:  # fmt: skip
    """The maximum of a convolution over the letters of each word. Letters are numbers above 0.

    A window that passes the word's end counts only at the first letter, where there may be no other window. onnxruntime
    leaves the result of a word that begins with 0 uninitialised; here it is zeros.
    """
    _check_sizes(g, Sequence, W, (embedding_size, None, conv_window_size, char_embedding_size))
    window = size_of(W, 2)
    letters = g("Unsqueeze", g("Gather", C, Sequence, axis=0), g.ints(1))
    made = g("Squeeze", g("Conv", letters, W, B), g.ints(3))  # [words, filters, places]
    above = g("Greater", Sequence, g.number(0, Sequence))
    count = g("ReduceSum", g("Cast", above, to=INT64), g.ints(1), keepdims=1)
    places = g.range(None, g("Sub", g("Shape", Sequence, start=1), g.ints(window - 1)))
    last = g("Max", g("Sub", count, g.ints(window)), g.ints(0))
    inside = g("Unsqueeze", g("LessOrEqual", places, last), g.ints(1))
    best = g("Tanh", g("ReduceMax", g("Where", inside, made, g.float32(-math.inf)), g.ints(2), keepdims=0))
    begun = g("Slice", above, g.ints(0), g.ints(1), g.ints(1))
    return g("Where", begun, best, g.float32(0))


def _check_sizes(g: Writer, words: Value, weight: Value, stated: tuple[int | None, ...]) -> None:
    """Raise `Refused` unless words are the rows of a matrix and the weight has the sizes that the attributes state."""
    if g.rank(words) != 2 or g.rank(weight) != 4:
        raise Refused("the words must be rows of a matrix, and the weight have 4 axes", WRITER)
    shape = info(weight).shape or ()
    if size_of(weight, 1) != 1:
        raise Refused(f"the weight has {counted(size_of(weight, 1), 'channel')}, not 1", WRITER)
    for size, given in zip(shape, stated):
        if given is not None and isinstance(size, int) and size != given:
            raise Refused(f"the weight has a size of {size} where an attribute says {given}", WRITER)
