"""Rules for outputs over positions of a sequence: text, labels of tokens, letters of a line or of speech, sound."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RECURRENT, SCALES, SIGMOID
from onnxgen.purpose.ends import CAUSAL, End, behind, op_of
from onnxgen.purpose.network import (
    BESIDE_TOKENS,
    BUILT,
    CACHE,
    CTC,
    DECODER,
    ENCODER,
    FITS,
    NAMED,
    SOUND,
    STATES,
    TAGS,
    Network,
    Tokens,
    Vote,
    called,
    quoted,
    shown,
    words,
)
from onnxgen.shapes.dims import Dim, TooComplex, evaluate, symbols
from onnxgen.shapes.info import info

_FEW = 64  # labels of tokens; more numbers than these may be features
_LINE = 64  # pixels: the height of an image of one line of text
_LETTERS = 20
_FACTORS = (2, 4, 8, 16)  # by which a trunk shortens a line of text
_SIZES = (640, 1280)


def language_model(net: Network) -> Iterator[Vote]:
    """Scores of the next token, or of hidden ones: as many as the embedding has rows."""
    for end, tokens in _wide(net):
        facts = _vocabulary(net, end) | {"input": tokens.value.name or ""}
        rows = f"the {tokens.rows} rows of the embedding of {shown(tokens.value)}"
        text = f"output {shown(end.value)} has a score for each of {rows}"
        yield Vote("language-model", BUILT, (text,), facts, frozenset({end.name}), whole=True)
    caches = [v for v in net.inputs if called(v, *CACHE)]
    for end in net.ends if caches else ():
        if words(end.name) & {"logits", "lm"} and end.shape is not None and len(end.shape) in (2, 3):
            text = f"input {shown(caches[0])} is a cache of earlier tokens, and output {shown(end.value)} has scores"
            yield Vote("language-model", NAMED, (text,), _vocabulary(net, end), whole=True)


def seq2seq(net: Network) -> Iterator[Vote]:
    """A decoder's scores of the next token, given what an encoder read."""
    wide: list[tuple[End, Tokens | None]] = [*_wide(net)] or [
        (end, None) for end in net.ends if words(end.name) & {"logits"} and _positions(end)
    ]
    for end, tokens in wide:
        sources = [v for v in net.inputs if _is_source(net, v, tokens)]
        if not sources or tokens is None and not net.has_input(*DECODER, *ENCODER):
            continue
        own = tokens.value if tokens is not None else None
        target = next((v for v in net.inputs if called(v, *DECODER)), own)
        into = target.name or "" if target is not None else ""
        facts = _vocabulary(net, end) | {"source": sources[0].name or "", "target": into}
        both = f"of {shown(target)} and of another sequence, {shown(sources[0])}"
        text = f"output {shown(end.value)} has scores of tokens, {both}"
        yield Vote("seq2seq", BUILT if tokens is not None else NAMED, (text,), facts, frozenset({end.name}), whole=True)


def _is_source(net: Network, value: ir.Value, tokens: Tokens | None) -> bool:
    """Return True for what an encoder reads, or what it found: not the decoder's tokens, masks, positions, caches."""
    shape, own = info(value).shape, info(tokens.value).shape if tokens is not None else None
    if called(value, *CACHE, *BESIDE_TOKENS):
        return False
    if tokens is not None and value is tokens.value:  # they are the encoder's if the decoder's are called so
        return net.has_input(*DECODER) and not called(value, *DECODER)
    if called(value, *DECODER):
        return False
    if called(value, *ENCODER) or any(image.value is value for image in net.images):
        return True
    if any(other.value is value and other.rows > 4 for other in net.tokens):
        return own is not None and shape is not None and len(shape) == len(own) and shape[-1] != own[-1]
    dtype = info(value).dtype
    floats = dtype is not None and dtype.is_floating_point()
    return floats and shape is not None and len(shape) == 3 and tokens is not None and not words(value.name) & STATES


def token_classification(net: Network) -> Iterator[Vote]:
    """A label for each token."""
    rows = {tokens.rows for tokens in net.tokens}
    for end in net.ends:
        shape, width = end.shape, _positions(end)
        if shape is None or width is None or width < 2 or width in rows:
            continue
        facts = {"output": end.name, "axis": 2, "classes": width, "activation": end.softmax}
        each = any((info(tokens.value).shape or ())[:2] == shape[:2] for tokens in net.tokens)
        named = words(end.name) & TAGS
        scores = end.is_linear or end.is_softmax
        text = f"output {shown(end.value)} has {width} scores for each token"
        text += f" of {shown(net.tokens[0].value)}" if each else ""
        sure = width <= _FEW and bool(end.is_softmax or named or width < (_inner(end) or 0))
        if each and scores and sure:
            yield Vote("token-classification", BUILT, (text,), facts, frozenset({end.name}))
        elif each and scores:
            yield Vote("token-classification", NAMED if named else FITS, (text,), facts, frozenset({end.name}))
        elif scores and not net.images:
            yield Vote("token-classification", FITS, (f"output {shown(end.value)}: a label for each step fits",), facts)


def _inner(end: End) -> int | None:
    """Return the number of features that the last layer takes."""
    width = (info(end.layer.inputs[0]).shape or (None,))[-1] if end.layer is not None else None
    return width if isinstance(width, int) else None


def ctc(net: Network) -> Iterator[Vote]:
    """Scores of letters, and of none, along a line of text or along speech (Graves et al. 2006)."""
    for end in net.ends if not net.tokens else ():
        width = _positions(end)
        if width is None or end.shape is None or not (end.is_linear or end.is_softmax):
            continue
        time = _time(net, end)
        if time is None or end.is_softmax and end.axis != 2:
            continue
        axis, factor = time
        facts = {"output": end.name, "axis": 2, "classes": width, "time": axis, "batch": 1 - axis,
                 "activation": end.softmax}  # fmt: skip
        named = words(end.name) & CTC or {"log", "probs"} <= words(end.name)
        steps = f"each step of axis {axis}, {factor} times fewer than the input"
        text = f"output {shown(end.value)} has {width} scores for {steps}"
        line = bool(net.images) and isinstance(net.images[0].height, int) and net.images[0].height <= _LINE
        heard = not net.images and end.softmax == "log_softmax"
        if (line and (end.is_softmax or _reads_both_ways(net)) or heard) and width >= _LETTERS:
            yield Vote("ctc", BUILT, (text, "one of them is the blank"), facts, frozenset({end.name}))
        else:
            yield Vote("ctc", NAMED if named else FITS, (text,), facts, frozenset({end.name}))


def _time(net: Network, end: End) -> tuple[int, str] | None:
    """Return the axis of time of [T, N, C] or [N, T, C], and how much shorter than the input it is."""
    for axis in (1, 0):
        if end.shape is None or net.images and not net.is_batch(end.shape[1 - axis]):
            continue
        wholes = [net.images[0].width] if net.images else [d for v in net.inputs for d in (info(v).shape or ())[1:]]
        for whole in wholes:
            factors = [_factor(end.shape[axis], whole, size) for size in _SIZES]
            exact = [n for n in _FACTORS if all(abs(f - n) < n / 8 for f in factors)]
            if net.images and exact:
                return axis, str(exact[0])
            if not net.images and min(factors) > 1.8 and abs(factors[0] - factors[1]) < factors[0] / 8:
                return axis, str(round(factors[1]))
    return None


def _factor(part: Dim, whole: Dim, size: int) -> float:
    """Return how many times longer the whole is, for one size of what may be any; 0 if it can't be computed."""
    sizes = dict.fromkeys({*symbols(part), *symbols(whole)}, size)
    try:
        below = evaluate(part, sizes)
        return evaluate(whole, sizes) / below if below > 1 else 0
    except (KeyError, ArithmeticError, ValueError, TooComplex):
        return 0


def _reads_both_ways(net: Network) -> bool:
    return any(is_a(n, RECURRENT) and n.attributes.get_int("directions", 1) == 2 for n in net.nodes)


def denoising(net: Network) -> Iterator[Vote]:
    """Sound of sound, or the mask of its spectrum."""
    if net.tokens or net.images:
        return
    for end in net.ends:
        for value in net.inputs:
            shape, dtype = info(value).shape, info(value).dtype
            if (
                shape is None
                or shape != end.shape
                or len(shape) < 2
                or shape[-1] == 1
                or dtype is None
                or not dtype.is_floating_point()
            ):
                continue
            named, facts = words(end.name) & SOUND, {"output": end.name, "input": value.name or ""}
            same = f"output {shown(end.value)} has the shape of {shown(value)}"
            explained = frozenset({end.name})
            if end.is_sigmoid and _is_spectrum(shape[-1]) and net.is_recurrent:
                text = f"{same} and ends in {end.op}: a mask of {shape[-1]} frequencies"
                yield Vote("denoising", BUILT, (text,), facts | {"mask": True}, explained)
            elif _is_masked(net, end, value):
                text = f"{same}, which is multiplied by a mask at the end"
                yield Vote("denoising", BUILT, (text,), facts | {"mask": False}, explained)
            elif named:
                yield Vote("denoising", NAMED, (f"{same}, and {quoted(named)} in its name",), facts, explained)
            else:
                yield Vote("denoising", FITS, (f"{same}: what it is without noise fits",), facts)


def _is_spectrum(width: Dim) -> bool:
    """Return True for the number of frequencies of a Fourier transform over a usual window."""
    return isinstance(width, int) and width > 64 and (width - 1) * 2 in (256, 320, 400, 480, 512, 960, 1024, 2048, 4096)


def _is_masked(net: Network, end: End, value: ir.Value) -> bool:
    if end.node is None or not end.is_a(SCALES) or len(end.shape or ()) < 3:
        return False
    sides = [behind(v, (), net.live)[0] for v in end.node.inputs if v is not None]
    makers = [v.producer() for v in sides]
    return value in sides and any(node is not None and is_a(node, SIGMOID) for node in makers)


def _wide(net: Network) -> Iterator[tuple[End, Tokens]]:
    """Yield the outputs with as many numbers as an embedding has rows, for each position or for the last."""
    for end in net.ends:
        shape = end.shape
        if shape is None or len(shape) not in (2, 3) or not (end.is_linear or end.is_softmax):
            continue
        for tokens in sorted(net.tokens, key=lambda t: (info(t.value).shape or ())[:2] != shape[:2]):
            if shape[-1] == tokens.rows and tokens.rows > 4:
                yield end, tokens
                break


def _positions(end: End) -> int | None:
    """Return the numbers for each position, if the output has positions."""
    shape = end.shape
    return shape[-1] if shape is not None and len(shape) == 3 and isinstance(shape[-1], int) else None


def _vocabulary(net: Network, end: End) -> dict[str, object]:
    shape = end.shape or ()
    facts: dict[str, object] = {"output": end.name, "axis": len(shape) - 1}
    facts |= {"vocabulary": shape[-1]} if shape and isinstance(shape[-1], int) else {}
    past = net.has_input(*CACHE)
    causal = past or any(n.attributes.get_int("is_causal", 0) or n.attributes.get_int("unidirectional", 0)
                         for n in net.nodes if "ttention" in op_of(n)) or net.has(*CAUSAL)  # fmt: skip
    causal |= net.is_recurrent and not _reads_both_ways(net)
    return facts | {"causal": bool(causal), "cache": past}
