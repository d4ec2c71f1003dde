"""Rules for outputs over positions of a sequence: text, labels of tokens, letters of a line or of speech, sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RECURRENT, SCALES, SIGMOID
from onnxgen.purpose import names
from onnxgen.purpose.ends import CAUSAL, End, behind, op_of
from onnxgen.purpose.names import called, name_of, quoted, words
from onnxgen.purpose.network import BUILT, FITS, NAMED, SIZES, Network, Tokens, Vote, is_float, shown, size_of
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import info

_FEW = 64  # labels of tokens; more numbers than these may be features
_LINE = 64  # pixels: the height of an image of one line of text
_LETTERS = 20
_FACTORS = (2, 4, 8, 16)  # by which a trunk shortens a line of text


def language_model(net: Network) -> Iterator[Vote]:
    """Scores of the next token, or of hidden ones: as many as the embedding has rows."""
    for end, tokens in _wide(net):
        facts = _vocabulary(net, end) | {"input": name_of(tokens.value)}
        rows = f"the {tokens.rows} rows of the embedding of {shown(tokens.value)}"
        text = f"output {shown(end.value)} has a score for each of {rows}"
        yield replace(Vote.on(end, "language-model", BUILT, facts, text), whole=True)
    caches = [v for v in net.inputs if called(v, *names.CACHE)]
    for end in net.ends if caches else ():
        if words(end.name) & {"logits", "lm"} and len(end.dims) in (2, 3):
            text = f"input {shown(caches[0])} is a cache of earlier tokens, and output {shown(end.value)} has scores"
            yield Vote("language-model", NAMED, (text,), _vocabulary(net, end), whole=True)


def seq2seq(net: Network) -> Iterator[Vote]:
    """A decoder's scores of the next token, given what an encoder read."""
    for end, tokens in [*_wide(net)] or _called_logits(net):
        sources = [v for v in net.inputs if _is_source(net, v, tokens)]
        if not sources or tokens is None and not net.has_input(*names.DECODER, *names.ENCODER):
            continue
        own = tokens.value if tokens is not None else None
        target = next((v for v in net.inputs if called(v, *names.DECODER)), own)
        facts = _vocabulary(net, end) | {"source": name_of(sources[0]), "target": name_of(target)}
        both = f"of {shown(target)} and of another sequence, {shown(sources[0])}"
        text = f"output {shown(end.value)} has scores of tokens, {both}"
        weight = BUILT if tokens is not None else NAMED
        yield replace(Vote.on(end, "seq2seq", weight, facts, text), whole=True)


def _called_logits(net: Network) -> list[tuple[End, None]]:
    return [(end, None) for end in net.ends if "logits" in words(end.name) and _positions(end)]


def _is_source(net: Network, value: ir.Value, tokens: Tokens | None) -> bool:
    """Return True for what an encoder reads, or what it found: not the decoder's tokens, masks, positions, caches."""
    if called(value, *names.CACHE, *names.BESIDE_TOKENS, *names.DECODER):
        return False
    if tokens is not None and value is tokens.value:  # they are the encoder's if the decoder's are called so
        return net.has_input(*names.DECODER)
    if called(value, *names.ENCODER) or any(image.value is value for image in net.images):
        return True
    return tokens is not None and _is_beside(net, value, tokens)


def _is_beside(net: Network, value: ir.Value, tokens: Tokens) -> bool:
    """Return True for tokens of another length than the decoder's, or for features of a sequence."""
    shape, own = info(value).shape or (), info(tokens.value).shape or ()
    if any(other.value is value and other.rows > 4 for other in net.tokens):
        return 0 < len(shape) == len(own) and shape[-1] != own[-1]
    return is_float(value) and len(shape) == 3 and not words(value.name) & names.STATES


def token_classification(net: Network) -> Iterator[Vote]:
    """A label for each token."""
    rows = {tokens.rows for tokens in net.tokens}
    for end in net.ends:
        width = _positions(end)
        if width is not None and width > 1 and width not in rows and (end.is_linear or end.is_softmax):
            yield from _labels(net, end, width)


def _labels(net: Network, end: End, width: int) -> Iterator[Vote]:
    facts = {"output": end.name, "axis": 2, "classes": width, "activation": end.softmax}
    named = words(end.name) & names.TAGS
    if any((info(tokens.value).shape or ())[:2] == end.dims[:2] for tokens in net.tokens):
        text = f"output {shown(end.value)} has {width} scores for each token of {shown(net.tokens[0].value)}"
        is_sure = width <= _FEW and bool(end.is_softmax or named or width < (_inner(end) or 0))
        yield Vote.on(end, "token-classification", BUILT if is_sure else NAMED if named else FITS, facts, text)
    elif not net.images:
        yield Vote("token-classification", FITS, (f"output {shown(end.value)}: a label for each step fits",), facts)


def _inner(end: End) -> int | None:
    """Return the number of features that the last layer takes."""
    width = (info(end.layer.inputs[0]).shape or (None,))[-1] if end.layer is not None else None
    return width if isinstance(width, int) else None


def ctc(net: Network) -> Iterator[Vote]:
    """Scores of letters, and of none, along a line of text or along speech (Graves et al. 2006)."""
    for end in net.ends if not net.tokens else ():
        is_scored = end.is_linear or end.is_softmax and end.axis == 2
        width, time = _positions(end), _time(net, end) if is_scored else None
        if width is not None and time is not None:
            yield _letters(net, end, width, *time)


def _letters(net: Network, end: End, width: int, axis: int, factor: str) -> Vote:
    facts = {"output": end.name, "axis": 2, "classes": width, "time": axis, "batch": 1 - axis,
             "activation": end.softmax}  # fmt: skip
    steps = f"each step of axis {axis}, {factor} times fewer than the input"
    text = f"output {shown(end.value)} has {width} scores for {steps}"
    if net.images:
        is_line = isinstance(net.images[0].height, int) and net.images[0].height <= _LINE
        is_built = is_line and (end.is_softmax or _reads_both_ways(net))
    else:
        is_built = end.softmax == "log_softmax"
    if is_built and width >= _LETTERS:
        return Vote.on(end, "ctc", BUILT, facts, text, "one of them is the blank")
    is_named = words(end.name) & names.CTC or {"log", "probs"} <= words(end.name)
    return Vote.on(end, "ctc", NAMED if is_named else FITS, facts, text)


def _time(net: Network, end: End) -> tuple[int, str] | None:
    """Return the axis of time of [T, N, C] or [N, T, C], and how much shorter than the input it is."""
    for axis in (1, 0) if len(end.dims) == 3 else ():
        if net.images:
            shorter = _shortened(end.dims[axis], net.images[0].width) if net.is_batch(end.dims[1 - axis]) else 0
        else:
            wholes = (dim for v in net.inputs for dim in (info(v).shape or ())[1:])
            shorter = next(filter(None, (_heard(end.dims[axis], whole) for whole in wholes)), 0)
        if shorter:
            return axis, str(shorter)
    return None


def _shortened(part: Dim, width: Dim) -> int:
    """Return by which power of two a line of text is shortened, 0 if by none."""
    factors = [_factor(part, width, size) for size in SIZES]
    return next((n for n in _FACTORS if all(abs(factor - n) < n / 8 for factor in factors)), 0)


def _heard(part: Dim, whole: Dim) -> int:
    """Return by how much speech is shortened, 0 if it is not, or not alike for all lengths."""
    first, second = (_factor(part, whole, size) for size in SIZES)
    return round(second) if min(first, second) > 1.8 and abs(first - second) < first / 8 else 0


def _factor(part: Dim, whole: Dim, size: int) -> float:
    """Return how many times longer the whole is, for one size of what may be any; 0 if it can't be computed."""
    below = size_of(part, size)
    return size_of(whole, size) / below if below > 1 else 0


def _reads_both_ways(net: Network) -> bool:
    return any(is_a(n, RECURRENT) and n.attributes.get_int("directions", 1) == 2 for n in net.nodes)


def denoising(net: Network) -> Iterator[Vote]:
    """Sound of sound, or the mask of its spectrum."""
    for end in net.ends if not net.tokens and not net.images else ():
        for value in net.inputs:
            shape = info(value).shape or ()
            if shape == end.shape and len(shape) > 1 and shape[-1] != 1 and is_float(value):
                yield _denoised(net, end, value, shape[-1])


def _denoised(net: Network, end: End, value: ir.Value, width: Dim) -> Vote:
    named, facts = words(end.name) & names.SOUND, {"output": end.name, "input": name_of(value)}
    same = f"output {shown(end.value)} has the shape of {shown(value)}"
    if end.is_sigmoid and _is_spectrum(width) and net.is_recurrent:
        text = f"{same} and ends in {end.op}: a mask of {width} frequencies"
        return Vote.on(end, "denoising", BUILT, facts | {"mask": True}, text)
    if _is_masked(net, end, value):
        text = f"{same}, which is multiplied by a mask at the end"
        return Vote.on(end, "denoising", BUILT, facts | {"mask": False}, text)
    if named:
        return Vote.on(end, "denoising", NAMED, facts, f"{same}, and {quoted(named)} in its name")
    return Vote.on(end, "denoising", FITS, facts, f"{same}: what it is without noise fits")


def _is_spectrum(width: Dim) -> bool:
    """Return True for the number of frequencies of a Fourier transform over a usual window."""
    return isinstance(width, int) and width > 64 and (width - 1) * 2 in (256, 320, 400, 480, 512, 960, 1024, 2048, 4096)


def _is_masked(net: Network, end: End, value: ir.Value) -> bool:
    if end.node is None or not end.is_a(SCALES) or len(end.dims) < 3:
        return False
    sides = [behind(v, (), net.live)[0] for v in end.node.inputs if v is not None]
    makers = [v.producer() for v in sides]
    return value in sides and any(node is not None and is_a(node, SIGMOID) for node in makers)


def _wide(net: Network) -> Iterator[tuple[End, Tokens]]:
    """Yield the outputs with as many numbers as an embedding has rows, for each position or for the last."""
    for end in net.ends:
        shape = end.dims
        if len(shape) not in (2, 3) or not (end.is_linear or end.is_softmax):
            continue
        for tokens in sorted(net.tokens, key=lambda t: (info(t.value).shape or ())[:2] != shape[:2]):
            if shape[-1] == tokens.rows and tokens.rows > 4:
                yield end, tokens
                break


def _positions(end: End) -> int | None:
    return end.dims[-1] if len(end.dims) == 3 and isinstance(end.dims[-1], int) else None


def _vocabulary(net: Network, end: End) -> dict[str, object]:
    facts: dict[str, object] = {"output": end.name, "axis": len(end.dims) - 1}
    facts |= {"vocabulary": end.dims[-1]} if end.dims and isinstance(end.dims[-1], int) else {}
    past = net.has_input(*names.CACHE)
    causal = past or any(n.attributes.get_int("is_causal", 0) or n.attributes.get_int("unidirectional", 0)
                         for n in net.nodes if "ttention" in op_of(n)) or net.has(*CAUSAL)  # fmt: skip
    causal |= net.is_recurrent and not _reads_both_ways(net)
    return facts | {"causal": bool(causal), "cache": past}
