"""Another number of classes: the head, the decoding of the whole graph for it, and the run that trained it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.export.decoding import fit_decoding, need_decoding, same_boxes
from onnxgen.export.places import CannotWriteBack
from onnxgen.heads.labels import labels_of
from onnxgen.heads.reading import find_tail
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.record.asked import recorded_options
from onnxgen.record.sidecar import metadata_at
from onnxgen.record.tail import Tail
from onnxgen.training import fit, load, reset
from onnxgen.training.goals.detection.boxes import Decoder, to_corners
from onnxgen.training.goals.detection.goal import REPORTED
from onnxgen.training.goals.detection.head import PRIOR, begin_fresh, replace_classes, tail_of_model
from onnxgen.training.model import open_model
from samples.tasks.scenes import draw_scenes, write_yolo
from tests.heads import small
from tests.zoo import detectors

Array = np.ndarray[Any, Any]


def tail_in(path: Path) -> Tail:
    return find_tail(read(path, Options()))


def nets() -> dict[str, nn.Module]:
    """Heads of each kind, three classes each but SSD's two."""
    torch.manual_seed(0)
    return {
        "yolov8": small.Thin(detectors.yolov8()),
        "yolov5": small.Thin(detectors.yolov5()),
        "yolov10": small.Thin(detectors.yolov10()),
        "yolox": small.Small((4, 1, 3), small.yolox),
        "yolov3": small.Small((16,), small.yolov3, True),
        "ssd": small.Small((12, 9), small.ssd, True),
        "fcos": small.Small((4, 3, 1), small.fcos, True),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classes")


def generated(folder: Path, name: str) -> tuple[nn.Module, Tail]:
    """Return the module of a head's raw maps, and its tail."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        net = nets()[name]
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                layer.bias.data = torch.randn_like(layer.bias)
        small.export(net, path)
        onnxgen.generate(path, path.with_suffix(".py"), Options(task="detection"))
    return open_model(path.with_suffix(".py")), tail_in(path)


def run(path: Path, x: Array) -> list[Array]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"images": x}))


def decoded(name: str, whole: list[Array], tail: Tail) -> tuple[Tensor, Tensor] | None:
    """Return corners in pixels and probabilities that a graph's outputs hold, by the layout of each test network."""
    found = [torch.from_numpy(value) for value in whole]
    if name == "yolov8":
        return to_corners(found[0].mT[..., :4]), found[0].mT[..., 4:]
    if name == "yolox":
        return to_corners(found[0][..., :4]), found[0][..., 4:5] * found[0][..., 5:]
    if name == "ssd":
        low, size = found[0].split(2, -1)
        return torch.cat((low, low + size), -1), found[1][..., 1:]
    return (found[0], found[1] * found[2]) if name == "fcos" else None


@pytest.mark.parametrize(
    "name, classes",
    [(n, 5) for n in ("yolov8", "yolov5", "yolov10", "yolox", "yolov3", "fcos")] + [("ssd", 1)],
)
def test_the_whole_graph_decodes_the_new_classes(folder: Path, tmp_path: Path, name: str, classes: int) -> None:
    model, before = generated(folder, name)
    x = np.random.default_rng(0).random((1, 3, *small.IMAGE), np.float32)
    old = model(torch.from_numpy(x))
    replace_classes(model, before, range(len(before.maps)), classes)
    torch.manual_seed(1)
    for parameter in model.parameters():  # "trained"
        parameter.data += 0.1 * torch.randn_like(parameter)
    report = onnxgen.export(folder / f"{name}.py", weights=model, out=tmp_path / "new.onnx", runs=1)
    assert report.method == "written back" and not report.verified.differs  # type: ignore[union-attr]
    maps = model(torch.from_numpy(x))
    tail = tail_of_model(before, [m.shape for m in maps])
    assert tail.classes == classes and tail == before.of_classes(classes)
    again = tail_in(tmp_path / "new.onnx")
    assert (again.levels, again.classes, again.kind) == (tail.levels, classes, tail.kind), "the new file reads the same"
    whole, made = run(tmp_path / "new.onnx", x), Decoder(tail)(maps)
    assert old[0].shape[0] == 1 and made.scores.shape == (1, tail.points, classes)
    if (found := decoded(name, whole, tail)) is not None:
        torch.testing.assert_close(found[0], made.boxes.detach(), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(found[1], made.scores.detach(), rtol=1e-4, atol=1e-5)
    if name == "yolov10":  # rows of the best: each is one that the decoder makes
        every = torch.cat((made.boxes[0], made.scores[0]), 1).detach()
        best = made.scores[0].detach().amax(1).topk(len(whole[0][0])).values
        for *box, score, label in whole[0][0].tolist():
            near = (every[:, :4] - torch.tensor(box)).abs().amax(1) + (every[:, 4 + int(label)] - score).abs()
            assert near.min() < 1e-3 and 0 <= label < classes
        assert abs(whole[0][0, 0, 4] - best[0]) < 1e-4
    if name in ("yolov5", "yolov3"):
        shape = whole[0].shape if name == "yolov5" else whole[1].shape
        assert shape == (1, tail.points, classes + (5 if name == "yolov5" else 0))
        order = [
            (made.scores if name == "yolov3" else made.classes.sigmoid()),
            torch.from_numpy(whole[-1][..., -classes:]),
        ]
        first, second = (part.detach().flatten(0, 1).sort(0).values for part in order)
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_a_file_with_a_free_size_decodes_the_new_classes(tmp_path: Path) -> None:
    """Its decoding asks the maps for their sizes: two nodes take one shape, whose part is the number of channels."""
    height, width = small.IMAGE
    path = small.export(nets()["yolov8"], tmp_path / "net.onnx", free=True)
    graph = onnx.load(path)
    maker = {output: node.op_type for node in graph.graph.node for output in node.output}
    joined = [n for n in graph.graph.node if [maker.get(name) for name in n.input] == ["Concat", "Concat"]]
    first, second, *_ = [node for node in joined if node.op_type == "Reshape"]
    second.input[1] = first.input[1]  # as a simplifier merges them
    onnx.save(graph, path)
    shape = Options(task="detection", input_shapes={"images": (-1, 3, height, width)})
    onnxgen.generate(path, tmp_path / "net.py", shape)
    model = open_model(tmp_path / "net.py")
    fixed = Options(input_shapes=shape.input_shapes)
    before = find_tail(read(path, fixed))
    need_decoding(path, fixed, before, 5)
    replace_classes(model, before, range(len(before.maps)), 5)
    report = onnxgen.export(tmp_path / "net.py", weights=model, out=tmp_path / "new.onnx", same_graph=True)
    assert report.method == "written back" and not report.verified.differs  # type: ignore[union-attr]
    x = np.random.default_rng(0).random((2, 3, height, 2 * width), np.float32)
    (whole,) = run(tmp_path / "new.onnx", x)
    made = Decoder(before.of_classes(5))(model(torch.from_numpy(x)))
    torch.testing.assert_close(torch.from_numpy(whole[:, 4:]).transpose(1, 2), made.scores.detach())


@pytest.mark.parametrize("name", ["yolov8", "yolov5", "ssd"])
def test_boxes_keep_their_weights_and_classes_begin_rare(folder: Path, name: str) -> None:
    model, tail = generated(folder, name)
    x = torch.rand(1, 3, *small.IMAGE)
    before = Decoder(tail)(model(x))
    replace_classes(model, tail, range(len(tail.maps)), 4)
    after = Decoder(tail.of_classes(4))(model(x))
    torch.testing.assert_close(before.boxes, after.boxes)  # of a layer of another size: other last digits
    if before.objectness is not None:
        assert after.objectness is not None
        torch.testing.assert_close(before.objectness, after.objectness)
    odds = PRIOR / (1 - PRIOR)
    wanted = odds / (1 + 4 * odds) if tail.background else PRIOR
    torch.testing.assert_close(after.classes.sigmoid().mean().item(), wanted, rtol=0.1, atol=0)


@pytest.mark.parametrize("name", ["yolov8", "yolov5", "yolox"])
def test_a_fresh_head_begins_with_rare_classes_and_objects(folder: Path, name: str) -> None:
    model, tail = generated(folder, name)
    torch.manual_seed(0)
    boxes = Decoder(tail)(reset(model)(x := torch.rand(1, 3, *small.IMAGE))).boxes
    begin_fresh(model, tail, range(len(tail.maps)))
    made = Decoder(tail)(model(x))
    torch.testing.assert_close(boxes, made.boxes)
    for logits in (made.classes, *([] if made.objectness is None else [made.objectness])):
        assert 0.5 * PRIOR < logits.sigmoid().mean() < 2 * PRIOR


def test_a_number_for_each_class_is_refused_before_training(tmp_path: Path) -> None:
    """YOLOX's head, with a number of its own for each class behind the raw maps."""
    small.export(small.Small((4, 1, 3), small.yolox), tmp_path / "net.onnx")
    need_decoding(tmp_path / "net.onnx", Options(), tail_in(tmp_path / "net.onnx"), 5)
    model = onnx.load(tmp_path / "net.onnx")
    last = model.graph.node[-1]
    scale = np.array([1] * 5 + [1, 0.5, 0.25], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(scale, "scale"))
    model.graph.node.append(onnx.helper.make_node("Mul", [last.output[0], "scale"], ["scaled"]))
    model.graph.output[0].name = "scaled"
    onnx.save(model, tmp_path / "scaled.onnx")
    with pytest.raises(OnnxgenError, match=r"can't decode 5 classes in place of 3: Mul .* a number for each of the 3"):
        need_decoding(tmp_path / "scaled.onnx", Options(), tail_in(tmp_path / "scaled.onnx"), 5)


def test_the_proof_sees_a_wrong_constant(folder: Path) -> None:
    """The decoding is fitted, and then one of its sizes is spoilt: another cut between boxes and classes."""
    generated(folder, "yolov8")
    path = folder / "yolov8.onnx"
    tail = tail_in(path)
    model = onnx.load(path)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for level in tail.levels:
        layer = next(node for node in model.graph.node if tail.maps[level.classes.map] in node.output)
        for name in layer.input[1:]:
            array = onnx.numpy_helper.to_array(weights[name])
            weights[name].CopyFrom(onnx.numpy_helper.from_array(array[:2], name))
    changed = fit_decoding(model, path, Options(), tail, 2)
    labels = labels_of(read(path, Options()), tail, 2)
    assert changed
    same_boxes(onnx.load(path), model, tail, 2, labels.axes)
    (last,) = [n for n in model.graph.node if n.op_type == "Concat" and n.output[0] == model.graph.output[0].name]
    last.input[:] = last.input[::-1]
    with pytest.raises(CannotWriteBack, match="with 2 classes it computes another output0"):
        same_boxes(onnx.load(path), model, tail, 2, labels.axes)


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(folder: Path) -> Path:
    """A folder with a detector of five classes as a plain generation leaves it, and data of three classes."""
    torch.manual_seed(0)
    small.export(small.Small((4, 1, 5), small.yolox), folder / "net.onnx")
    onnxgen.generate(folder / "net.onnx", folder / "net.py")
    write_yolo(folder / "data", {"train": draw_scenes(8, seed=0), "val": draw_scenes(4, seed=1)})
    return folder


GIVEN: dict[str, Any] = {"epochs": 1, "batch_size": 4, "lr": 0.01, "show": "nothing", "normalize": "0,1", "workers": 0}


def test_a_plain_module_trains_with_the_classes_of_the_data(place: Path, tmp_path: Path) -> None:
    found = fit(place / "net.py", place / "data", out=tmp_path / "run", **GIVEN)
    assert (place / "net_maps.py").is_file() and (place / "net.py").is_file()
    run_ = load(tmp_path / "run")
    assert run_.record.classes == ("circle", "square", "triangle")
    best = found.history[found.best_epoch]
    assert run_.evaluate() == pytest.approx({n: best[f"val_{n}"] for n in ("loss", *REPORTED)}, abs=1e-6)
    again = fit(tmp_path / "run", epochs=1, out=tmp_path / "more", show="nothing")
    assert again.model(torch.zeros(1, 3, *small.IMAGE))[2].shape[1] == 3
    onnxgen.export(place / "net_maps.py", weights=tmp_path / "run" / "best.safetensors", out=tmp_path / "new.onnx")
    (whole,) = run(tmp_path / "new.onnx", np.zeros((1, 3, *small.IMAGE), np.float32))
    assert whole.shape == (1, 30, 5 + 3)


def test_steps_are_of_another_size_than_the_grid_of_the_file(place: Path, tmp_path: Path) -> None:
    """The file has constants for 2x3 and 4x6 points, and so has what is written; training has fewer points."""
    found = fit(place / "net.py", place / "data", out=tmp_path / "run", train_size="16x24", **GIVEN)
    assert load(tmp_path / "run").record.inputs[0].shape == (3, *small.IMAGE)
    onnxgen.export(place / "net_maps.py", weights=tmp_path / "run" / "best.safetensors", out=tmp_path / "new.onnx")
    x = torch.rand(1, 3, *small.IMAGE)
    (whole,) = run(tmp_path / "new.onnx", x.numpy())
    made = Decoder(tail_in(place / "net.onnx").of_classes(3))(found.model.eval()(x))
    assert made.objectness is not None and whole.shape == (1, 30, 5 + 3)
    torch.testing.assert_close(to_corners(torch.from_numpy(whole[..., :4])), made.boxes.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(whole[..., 5:]), made.classes.sigmoid().detach())


def test_a_number_of_classes_is_named(place: Path, tmp_path: Path) -> None:
    found = fit(place / "net.py", place / "data", out=tmp_path / "run", replace_head=7, **GIVEN)
    assert found.model(torch.zeros(1, 3, *small.IMAGE))[2].shape[1] == 7


def test_the_options_of_a_module_are_kept(place: Path, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes((place / "net.onnx").read_bytes())
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py", Options(annotate=True, dtype="float64"))
    found = fit(tmp_path / "net.py", place / "data", out=tmp_path / "run", **GIVEN)
    assert {parameter.dtype for parameter in found.model.parameters()} == {torch.float64}
    given = recorded_options(metadata_at(tmp_path / "net_maps.safetensors"), tmp_path)
    assert given == Options(annotate=True, dtype="float64", task="detection")
