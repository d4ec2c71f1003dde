"""Finds the tail of a detector: its raw maps, and what they mean.

The graph behind the raw maps is not compared with the forms in which exporters write it. It is computed, for maps of
zeros, of ones and of drawn numbers. A reading counts if it computes the same boxes and probabilities of drawn maps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import FIX_SHAPE, OnnxgenError
from onnxgen.graph.element_types import FLOATS
from onnxgen.heads.boxes import Maps, boxes, undecoded
from onnxgen.heads.classes import with_classes
from onnxgen.heads.frontier import behind, raw_values
from onnxgen.heads.published import published
from onnxgen.heads.response import Response, sizes
from onnxgen.heads.seen import Probe
from onnxgen.options import Options
from onnxgen.passes.trainable import trainable
from onnxgen.record.tail import Channels, Tail
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info

QUERIES = "a head of queries (DETR) is trained by matching, which onnxgen can't do"
CUT = "generate the module again with --outputs, which names the raw maps, and train it with a loss of your own"


def find_tail(model: ir.Model) -> Tail:
    """Return the tail of a detector.

    Args:
        model: the whole network, as `reader.read` returns it. Nodes are not changed.

    Raises:
        OnnxgenError: the graph is no detector that can be read. The error says what was found.
    """
    options = Options()
    propagate(model.graph, options)
    trainable(model, options)
    raw = raw_values(model.graph)
    spatial = [value for value in raw if len(info(value).shape or ()) == 4]
    if not spatial:
        is_queries = any(len(shape := info(value).shape or ()) == 3 and shape[-1] == 4 for value in raw)
        what = f"no raw maps of a detector: the layers end in {_told(raw)}"
        raise OnnxgenError(what, help=QUERIES if is_queries else CUT)
    if any(value.dtype not in (None, ir.DataType.FLOAT) for value in spatial):
        raise OnnxgenError("the raw maps of the detector are not float32", help="convert the file to float32")
    maps = _maps(model, spatial)
    probe = Probe(Response(model, raw, behind(raw, model.graph)))
    hints = [_hint(value) for value in spatial]
    reading = boxes(maps, probe)
    if reading is not None:
        tail = with_classes(maps, probe, reading, hints)
        if tail is None:
            raise OnnxgenError(f"boxes are decoded from {_told(spatial)}, but no map has their classes", help=CUT)
    else:
        reading = undecoded(maps, probe)
        tail = None if reading is None else with_classes(maps, probe, reading, hints)
        tail = None if tail is None else published(tail)
        if tail is None:
            what = f"the layers end in {_told(raw)}, and nothing behind them decodes boxes in a known way"
            raise OnnxgenError(what, help=CUT)
    return _used(tail, [str(value.name) for value in raw])


def _maps(model: ir.Model, spatial: Sequence[ir.Value]) -> Maps:
    """Sort raw maps by their sizes. A size that has fewer maps than most belongs to something else, such as masks."""
    shapes = [sizes(value) for value in spatial]
    groups = defaultdict[tuple[int, int], list[int]](list)
    for index, (_, _, height, width) in enumerate(shapes):
        groups[height, width].append(index)
    usual, _ = Counter(map(len, groups.values())).most_common(1)[0]
    levels = sorted((size for size, found in groups.items() if len(found) == usual), reverse=True)
    parts = [sorted(groups[size], key=lambda index: (shapes[index][1], index)) for size in levels]
    names = tuple(str(value.name) for value in spatial)
    image = _image(model, FIX_SHAPE)
    return Maps(names, tuple(shape[1] for shape in shapes), tuple(zip(*parts)), tuple(levels), image)


def _image(model: ir.Model, way_out: str) -> tuple[int, int]:
    """Return height and width of the only image among the inputs."""
    images = [v for v in model.graph.inputs if len(info(v).shape or ()) == 4 and info(v).dtype in FLOATS]
    if len(images) != 1:
        raise OnnxgenError(f"a detector has one image as its input, but the inputs are {_told(model.graph.inputs)}")
    _, _, height, width = sizes(images[0])
    return height, width


def _used(tail: Tail, raw: Sequence[str]) -> Tail:
    """Leave out maps that are no part of the boxes and their classes."""
    parts = [part for level in tail.levels for part in (level.boxes, level.classes, level.objectness) if part]
    used = sorted({part.map for part in parts})
    names = tuple(tail.maps[index] for index in used)

    def moved(part: Channels | None) -> Channels | None:
        return None if part is None else replace(part, map=used.index(part.map))

    levels = []
    for level in tail.levels:
        found = {name: moved(getattr(level, name)) for name in ("boxes", "classes", "objectness")}
        levels.append(replace(level, **found))  # type: ignore[arg-type]
    return replace(tail, maps=names, levels=tuple(levels), others=tuple(name for name in raw if name not in names))


def _hint(value: ir.Value) -> str:
    """Return names that may say what a map is: its own, and those of its layer's weights."""
    node = value.producer()
    given = [] if node is None else [v.name for v in node.inputs[1:] if v is not None]
    outputs = [o.name for use in value.uses() for o in use.node.outputs]
    return " ".join(str(name) for name in (value.name, *given, *outputs))


def _told(values: Sequence[ir.Value]) -> str:
    """Return names and shapes of values for a message."""
    found = []
    for value in values[:4]:
        shape = info(value).shape
        dims = "" if shape is None else f" [{', '.join(str(dim) for dim in shape)}]"
        found.append(f"{printable(value.name or '')}{dims}")
    more = f" and {len(values) - 4} more" if len(values) > 4 else ""
    return (", ".join(found) or "nothing") + more
