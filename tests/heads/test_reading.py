"""Heads are read from ONNX files, and decode as onnxruntime does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.export.decoding import need_decoding
from onnxgen.heads.reading import find_tail
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.reader.inputs import cut_graph
from onnxgen.record.tail import Tail, tail_of
from onnxgen.training.goals.detection.boxes import Decoded, Decoder, to_corners
from tests.heads import small
from tests.zoo import detectors

Array = np.ndarray[Any, Any]


def tail_in(path: Path) -> Tail:
    tail = find_tail(read(path, Options()))
    assert tail_of(json.loads(json.dumps(tail.record()))) == tail
    return tail


def run(path: Path, names: tuple[str, ...], feeds: dict[str, Array], plain: bool = False) -> list[Array]:
    """Run a file in onnxruntime, with these values as its outputs."""
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def image(path: Path) -> dict[str, Array]:
    given = onnx.load(path).graph.input[0]
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    return {given.name: np.random.default_rng(0).random(shape, np.float32) * 2}


def decoded(path: Path, tail: Tail, *more: str) -> tuple[Decoded, list[Array]]:
    """Return what the decoder makes of the raw maps, and other values, of one run of onnxruntime."""
    found = run(path, (*tail.maps, *more), image(path))
    maps = [torch.from_numpy(m) for m in found[: len(tail.maps)]]
    return Decoder(tail)(maps), found[len(tail.maps) :]


def close(found: Tensor, wanted: Any, relative: float = 1e-5, absolute: float = 1e-5) -> None:
    np.testing.assert_allclose(found.numpy(), np.asarray(wanted), relative, absolute)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


def made(folder: Path, name: str, dynamo: bool) -> Path:
    """Return the file of one of `zoo.detectors`, with drawn biases. In dynamo's files its head alone is what it is."""
    path = folder / f"{name}-{dynamo}.onnx"
    if not path.exists():
        torch.manual_seed(0)
        net: nn.Module = getattr(detectors, name)()
        net = small.Thin(net) if dynamo else net
        for module in net.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                module.bias.data = torch.randn_like(module.bias)
        small.export(net, path, dynamo, (64, 96))
    return path


DYNAMO = pytest.mark.parametrize("dynamo", [False, True], ids=["legacy", "dynamo"])
BINS = [("yolov8", False), ("yolov8", True), ("yolo11", False)]


@pytest.mark.parametrize("name, dynamo", BINS)
def test_distances_with_bins(folder: Path, name: str, dynamo: bool) -> None:
    path = made(folder, name, dynamo)
    tail = tail_in(path)
    assert (tail.kind, tail.bins, tail.classes, tail.layout, tail.assumed) == ("distances", 16, 3, "centres", "")
    assert [(level.height, level.width, level.stride) for level in tail.levels] == [(8, 12, 8), (4, 6, 16)]
    assert len(tail.maps) == 4 and tail.others == () and tail.points == 120
    found, (whole,) = decoded(path, tail, "output0")
    close(found.boxes, to_corners(torch.from_numpy(whole).mT[..., :4]), absolute=1e-4)  # in pixels
    close(found.scores, whole.transpose(0, 2, 1)[..., 4:])


def test_boxes_before_the_best_are_chosen(folder: Path) -> None:
    """YOLOv10 ends in two TopK. Its outputs are rows of what the decoder makes."""
    path = made(folder, "yolov10", False)
    tail = tail_in(path)
    assert (tail.kind, tail.bins, tail.classes, tail.layout) == ("distances", 16, 3, "corners")
    found, (whole,) = decoded(path, tail, "output0")
    every = torch.cat((found.boxes[0], found.scores[0]), 1)
    for *box, score, label in whole[0]:
        near = (every[:, :4] - torch.tensor(box)).abs().amax(1)
        assert near.min() < 1e-4
        assert abs(every[near.argmin(), 4 + int(label)] - score) < 1e-5


@DYNAMO
def test_anchors(folder: Path, dynamo: bool) -> None:
    path = made(folder, "yolov5", dynamo)
    tail = tail_in(path)
    assert (tail.kind, tail.bins, tail.classes, tail.layout) == ("yolov5", 1, 3, "centres")
    assert tail.levels[0].anchors == ((10, 13), (16, 30), (33, 23))
    assert tail.levels[1].anchors == ((30, 61), (62, 45), (59, 119))
    found, (whole,) = decoded(path, tail, "output0")
    rows = by_anchor(tail)
    close(found.boxes, to_corners(torch.from_numpy(whole[:, rows, :4])), absolute=1e-4)
    close(found.objectness.sigmoid() if found.objectness is not None else found.boxes, whole[:, rows, 4])
    close(found.classes.sigmoid(), whole[:, rows, 5:])


def by_anchor(tail: Tail, coarse_first: bool = False) -> Array:
    """Return, for each point of the decoder, its row in a file that has anchors before rows and columns."""
    levels = tail.levels[::-1] if coarse_first else tail.levels
    parts, start = {}, 0
    for level in levels:
        count = level.height * level.width * len(level.anchors)
        parts[level] = np.arange(start, start + count).reshape(len(level.anchors), -1).T.ravel()
        start += count
    return np.concatenate([parts[level] for level in tail.levels])


def test_offsets(folder: Path) -> None:
    path = small.export(small.Small((4, 1, 3), small.yolox), folder / "yolox.onnx")
    tail = tail_in(path)
    assert (tail.kind, tail.classes, tail.assumed) == ("offsets", 3, "")
    found, (whole,) = decoded(path, tail, "output0")
    close(found.boxes, to_corners(torch.from_numpy(whole[..., :4])), absolute=1e-4)
    close(found.scores, whole[..., 4:5] * whole[..., 5:])


def undecoded(levels: list[list[Tensor]]) -> Tensor:
    """YOLOX without `decode_in_inference`."""
    flat = [[x.flatten(2).transpose(1, 2) for x in maps] for maps in levels]
    return torch.cat([torch.cat((box, objects.sigmoid(), each.sigmoid()), -1) for box, objects, each in flat], 1)


@pytest.mark.parametrize("classes", [1, 3])
def test_offsets_that_the_file_does_not_decode(folder: Path, classes: int) -> None:
    """The oracle is the formula of YOLOX's `demo_postprocess`."""
    path = small.export(small.Small((4, 1, classes), undecoded), folder / "raw.onnx")
    tail = tail_in(path)
    assert (tail.kind, tail.classes, tail.decoded) == ("offsets", classes, "") and "YOLOX" in tail.assumed
    found, (whole,) = decoded(path, tail, "output0")
    (height, width), grids, strides = small.IMAGE, [], []
    for stride in (8, 16):
        x, y = np.meshgrid(np.arange(width // stride), np.arange(height // stride))
        grids.append(np.stack((x, y), 2).reshape(-1, 2))
        strides.append(np.full((grids[-1].shape[0], 1), stride))
    cells, far = np.concatenate(grids), np.concatenate(strides)
    wanted = np.concatenate(((whole[0, :, :2] + cells) * far, np.exp(whole[0, :, 2:4]) * far), 1)
    close(found.boxes[0], to_corners(torch.from_numpy(wanted).float()), absolute=1e-4)
    close(found.scores, whole[..., 4:5] * whole[..., 5:])
    need_decoding(path, Options(), tail, 5)


def test_one_class_is_not_taken_for_the_objectness(folder: Path) -> None:
    """Two maps of one channel each: the names of the outputs or the order of columns decide."""
    path = small.export(small.Small((4, 1, 1), small.yolox), folder / "one.onnx")
    tail, maps = tail_in(path), tail_in(path).maps
    level = tail.levels[0]
    assert level.objectness is not None
    assert "heads.0.1" in maps[level.objectness.map] and "heads.0.2" in maps[level.classes.map]


def test_sigmoids_and_exponentials_of_anchors(folder: Path) -> None:
    path = small.export(small.Small((2 * 8,), small.yolov3, True), folder / "yolov3.onnx")
    tail = tail_in(path)
    assert (tail.kind, tail.classes, tail.layout, tail.shares) == ("yolov3", 3, "corners", True)
    assert tuple(level.anchors for level in tail.levels) == small.YOLOV3_ANCHORS
    boxes, scores = [value.name for value in onnx.load(path).graph.output]
    found, (wanted, probabilities) = decoded(path, tail, boxes, scores)
    rows = by_anchor(tail, coarse_first=True)
    height, width = small.IMAGE
    close(found.boxes / torch.tensor([width, height] * 2), wanted[:, rows])
    close(found.scores, probabilities[:, rows])


def test_priors_and_a_background(folder: Path) -> None:
    path = small.export(small.Small((12, 9), small.ssd, True), folder / "ssd.onnx")
    tail = tail_in(path)
    assert (tail.kind, tail.classes, tail.background, tail.layout) == ("priors", 2, True, "corner")
    assert tail.variances == (0.1, 0.2) and tail.levels[1].anchors == ((16, 8), (24, 12), (40, 20))
    boxes, scores = [value.name for value in onnx.load(path).graph.output]
    found, (wanted, probabilities) = decoded(path, tail, boxes, scores)
    low, size = torch.from_numpy(wanted).split(2, -1)
    close(found.boxes, torch.cat((low, low + size), -1), absolute=1e-4)
    close(found.scores, probabilities[..., 1:])


def test_exponentials_of_distances(folder: Path) -> None:
    """The centerness of FCOS counts as an objectness: it scales the scores, and is high in the middle of a box."""
    path = small.export(small.Small((4, 3, 1), small.fcos, True), folder / "fcos.onnx")
    tail = tail_in(path)
    assert (tail.kind, tail.distance, tail.classes, tail.bins) == ("distances", "exp", 3, 1)
    names = [value.name for value in onnx.load(path).graph.output]
    found, (boxes, scores, centres) = decoded(path, tail, *names)
    close(found.boxes, boxes, absolute=1e-4)
    close(found.scores, scores * centres)


# ---- real files ------------------------------------------------------------------------------------------------------


def test_yunet(shared: Path) -> None:
    """The file does not decode. OpenCV's FaceDetectorYN does (face_detect.cpp): its formula is the oracle."""
    path = shared / "models" / "yunet" / "yunet_n_320_320.onnx"
    tail = tail_in(path)
    assert (tail.kind, tail.classes, tail.points, len(tail.others)) == ("offsets", 1, 2100, 3)
    assert "YuNet" in tail.assumed
    names = [f"{part}_{stride}" for part in ("bbox", "cls", "obj") for stride in (8, 16, 32)]
    found, outputs = decoded(path, tail, *names)
    start = 0
    for level, stride in enumerate((8, 16, 32)):
        raw, classes, objects = (outputs[level + 3 * part][0] for part in range(3))
        side = 320 // stride
        row, column = np.divmod(np.arange(side * side), side)
        x, y = (column + raw[:, 0]) * stride, (row + raw[:, 1]) * stride
        width, height = np.exp(raw[:, 2]) * stride, np.exp(raw[:, 3]) * stride
        wanted = np.stack((x - width / 2, y - height / 2, x + width / 2, y + height / 2), 1)
        part = slice(start, start + side * side)
        close(found.boxes[0, part], wanted, absolute=1e-3)
        close(found.classes.sigmoid()[0, part], classes)
        assert found.objectness is not None
        close(found.objectness.sigmoid()[0, part, None], objects)
        start += side * side


@pytest.mark.parametrize("name", ["version-RFB-320_simplified", "version-slim-320_without_postprocessing"])
def test_ultraface(shared: Path, name: str) -> None:
    """The files do not decode. The priors and the formula are those of the published `generate_priors`."""
    path = shared / "models" / "ultraface" / f"{name}.onnx"
    tail = tail_in(path)
    assert (tail.kind, tail.classes, tail.background, tail.points) == ("priors", 1, True, 4420)
    assert "UltraFace" in tail.assumed
    found, (boxes, scores) = decoded(path, tail, "boxes", "scores")
    priors = []
    sizes = ([10.0, 16.0, 24.0], [32.0, 48.0], [64.0, 96.0], [128.0, 192.0, 256.0])
    for index, widths in enumerate(sizes):
        shrink = (8, 16, 32, 64)[index]
        rows, columns = [int(np.ceil(side / shrink)) for side in (240, 320)]
        for j in range(rows):
            for i in range(columns):
                x, y = (i + 0.5) / (320 / shrink), (j + 0.5) / (240 / shrink)
                priors += [[x, y, width / 320, width / 240] for width in widths]
    prior = np.clip(np.array(priors), 0, 1)
    middle = boxes[0, :, :2] * 0.1 * prior[:, 2:] + prior[:, :2]
    size = np.exp(boxes[0, :, 2:] * 0.2) * prior[:, 2:]
    wanted = np.concatenate((middle - size / 2, middle + size / 2), 1) * [320, 240, 320, 240]
    close(found.boxes[0], wanted, absolute=1e-3)
    close(found.scores, scores[..., 1:])


# ---- the cut ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, dynamo", [*BINS, ("yolov10", False), ("yolov5", False), ("yolov5", True)])
def test_the_part_and_the_rest_are_the_whole(folder: Path, name: str, dynamo: bool) -> None:
    """The graph up to the raw maps, and then the graph behind them, compute every bit of the whole."""
    path = made(folder, name, dynamo)
    tail = tail_in(path)
    (whole,) = run(path, ("output0",), image(path), plain=True)
    cut, rest = folder / f"cut-{name}.onnx", folder / f"rest-{name}.onnx"
    types = [onnx.helper.make_tensor_value_info(m, onnx.TensorProto.FLOAT, None) for m in tail.maps]
    for target, inputs, outputs in ((cut, None, tail.maps), (rest, tail.maps, ("output0",))):
        model = onnx.load(path)
        cut_graph(model.graph, (inputs or (), outputs), {value.name: value.type for value in types})
        assert inputs is None or [value.name for value in model.graph.input] == list(inputs)
        onnx.save(model, target)
    maps = run(cut, tail.maps, image(path), plain=True)
    (again,) = run(rest, ("output0",), dict(zip(tail.maps, maps)), plain=True)
    assert whole.tobytes() == again.tobytes() and np.abs(whole).max() > 1


# ---- what can't be read ----------------------------------------------------------------------------------------------


class Queries(nn.Module):
    """A head of queries, as DETR and RT-DETR have it."""

    several = True

    def __init__(self) -> None:
        super().__init__()
        self.features, self.box, self.classes = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features(images).flatten(2).transpose(1, 2)
        return self.box(x).sigmoid(), self.classes(x).sigmoid()


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.last = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.features(images).mean((2, 3)))


@pytest.mark.parametrize(
    "make, what",
    [
        (Queries, r"no raw maps of a detector: the layers end in .*\[1, 24, 4\].* -> a head of queries \(DETR\)"),
        (
            Classifier,
            r"no raw maps of a detector: the layers end in .*\[1, 5\] -> .*--outputs, which names the raw maps",
        ),
        (
            lambda: small.Small((8, 6), small.nothing_known, True),
            r"the layers end in .*\[1, 8, 4, 6\], .*\[1, 6, 4, 6\].* nothing behind them decodes boxes in a known way",
        ),
    ],
)
def test_what_cannot_be_read_says_what_was_found(folder: Path, make: Callable[[], nn.Module], what: str) -> None:
    path = small.export(make(), folder / "refused.onnx")
    with pytest.raises(OnnxgenError, match=what):
        tail_in(path)


def test_another_formula_is_not_taken_for_a_known_one(folder: Path) -> None:
    """YOLOX, but for the size of boxes: the logarithm to the base of 2."""

    def strange(levels: list[list[Tensor]]) -> Tensor:
        return small.yolox([[torch.cat((box[:, :2], box[:, 2:] * 0.6931), 1), *rest] for box, *rest in levels])

    path = small.export(small.Small((4, 1, 3), strange), folder / "strange.onnx")
    with pytest.raises(OnnxgenError, match="decodes boxes in a known way"):
        tail_in(path)


# ---- open sizes ------------------------------------------------------------------------------------------------------


def test_open_sizes(folder: Path) -> None:
    """An open batch is no matter. Open sizes of the image must be fixed for the reading."""
    path = folder / "open.onnx"
    net = small.Thin(detectors.yolov8()).eval()
    with small.quiet():
        axes = {"images": {0: "batch", 2: "height", 3: "width"}}
        given: dict[str, Any] = {"input_names": ["images"], "dynamic_axes": axes, "opset_version": 17}
        torch.onnx.export(net, (torch.zeros(1, 3, *small.IMAGE),), path, dynamo=False, **given)
    with pytest.raises(OnnxgenError, match="sizes of .* are not fixed -> fix the shape of the inputs"):
        tail_in(path)
    tail = find_tail(read(path, Options(input_shapes={"images": (-1, 3, 64, 32)})))
    assert [(level.height, level.width) for level in tail.levels] == [(8, 4), (4, 2)] and tail.bins == 16
