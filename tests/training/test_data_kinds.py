"""Data as people have it: labels of classical models, bools, decimal commas, wide tables, files that can't be read."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image

from onnxgen import OnnxgenError, generate
from onnxgen.cli import run as cli
from onnxgen.training import fit, load
from onnxgen.training.data.table import read_csv
from onnxgen.training.evaluate import predict
from tests.training.small import network

Out = pytest.CaptureFixture[str]
QUIET: dict[str, Any] = {"show": "nothing", "workers": 0, "device": "cpu", "loggers": "none"}
NAMES = ["a", "b", "c"]


def classical(folder: Path, *, text: bool, zipmap: bool) -> Path:
    """Write a pipeline as sklearn's converter writes it, Scaler and LinearClassifier, and generate its module."""
    rng = np.random.default_rng(0)
    labels = {"classlabels_strings": NAMES} if text else {"classlabels_ints": [0, 1, 2]}
    given = {"coefficients": rng.normal(size=12).tolist(), "intercepts": [0.0] * 3, "post_transform": "SOFTMAX"}
    ml = "ai.onnx.ml"
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain=ml, offset=[0.5] * 4, scale=[2.0] * 4),
        helper.make_node("LinearClassifier", ["s"], ["label", "raw"], domain=ml, multi_class=1, **labels, **given),
    ]
    kind = TensorProto.STRING if text else TensorProto.INT64
    outputs = [helper.make_tensor_value_info("label", kind, ["n"])]
    if zipmap:
        keys = {"classlabels_strings": NAMES} if text else {"classlabels_int64s": [0, 1, 2]}
        nodes.append(helper.make_node("ZipMap", ["raw"], ["maps"], domain=ml, **keys))
        one = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        outputs.append(helper.make_value_info("maps", helper.make_sequence_type_proto(one)))
    else:
        outputs.append(helper.make_tensor_value_info("raw", TensorProto.FLOAT, ["n", 3]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ml, 3)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", [x], outputs), opset_imports=opsets, ir_version=8),
        folder / "c.onnx",
    )
    generate(folder / "c.onnx", folder / "c.py")
    return folder / "c.py"


def data(kind: str) -> dict[str, Any]:
    x = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    target = {"text": np.array(NAMES)[np.arange(40) % 3], "numbers": np.arange(40) % 3, "bool": x[:, 0] > 0}[kind]
    return {"x": x, "target": target}


@pytest.mark.parametrize("kind", ["text", "numbers", "bool"])
@pytest.mark.parametrize("text", [True, False])
def test_the_scores_of_a_classical_model_are_trained(text: bool, kind: str, tmp_path: Path) -> None:
    """The label beside them is text or a whole number, and no target; the run is asked as any other."""
    given = data(kind)
    fit(classical(tmp_path, text=text, zipmap=False), given, max_steps=2, out=tmp_path / "run", **QUIET)
    learner = load(tmp_path / "run")
    assert learner.evaluate(given, part="train")["accuracy"] >= 0
    (found,) = learner.predict({"x": given["x"][:1]})
    assert list(found.answers) == ["raw"] and isinstance(found.label, str)


@pytest.mark.parametrize("zipmap", [True, False])
def test_text_and_maps_are_predicted_as_onnxruntime_does(zipmap: bool, tmp_path: Path) -> None:
    path, x = classical(tmp_path, text=True, zipmap=zipmap), data("text")["x"]
    label, scores = predict(path, {"x": x}, batch_size=7, workers=0, device="cpu")
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    wanted, wanted_scores = session.run(None, {"x": x})
    assert list(label) == list(wanted) and len(scores) == len(wanted_scores) == 40
    if zipmap:
        assert [{k: float(v) for k, v in row.items()} for row in scores] == [
            pytest.approx(row) for row in wanted_scores
        ]


@pytest.mark.parametrize(
    ("zipmap", "target", "says"),
    [
        (
            True,
            None,
            r"no output of the model can be trained: label \(text\), maps \(of kind maps\) -> .*--outputs NAME",
        ),
        (True, {"maps": "target"}, "no output of the model can be trained"),
        (False, {"label": "target"}, "output 'label' is text, and no gradient comes through it -> .*raw"),
    ],
)
def test_an_output_without_a_gradient_is_no_target(zipmap: bool, target: Any, says: str, tmp_path: Path) -> None:
    path = classical(tmp_path, text=True, zipmap=zipmap)
    with pytest.raises(OnnxgenError, match=says):
        fit(path, data("text"), target=target, max_steps=1, out=tmp_path / "run", **QUIET)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_bool_labels_are_two_classes(classes: int, tmp_path: Path) -> None:
    network(tmp_path, classes=classes, x=("float32", ["n", 4]))
    found = fit(tmp_path / "small.py", data("bool"), epochs=2, out=tmp_path / "run", **QUIET)
    numbers = {**data("bool"), "target": data("bool")["target"].astype(np.int64)}
    same = fit(tmp_path / "small.py", numbers, epochs=2, out=tmp_path / "other", **QUIET)
    assert [row["train_loss"] for row in found.history] == [row["train_loss"] for row in same.history]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a;b\n1,5;x\n2;y\n", [1.5, 2.0]),
        ("a;b\n-0,125;x\n1,250;y\n", [-0.125, 1.25]),
        ('a,b\n"1,5e3",x\n"12345,678",y\n', [1500.0, 12345.678]),
        ("a;b\n1,234;x\n5;y\n", "has '1,234': is the comma that of decimals, or of thousands?"),
        ("a;b\n1,5;x\nmore;y\n", ["1,5", "more"]),
        ("a;b\n1,5,2;x\n3,4;y\n", ["1,5,2", "3,4"]),
    ],
)
def test_decimal_commas(text: str, wanted: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    found = read_csv(tmp_path / "t.csv")
    if isinstance(wanted, str):
        assert wanted in str(found["a"])
    else:
        assert list(found["a"]) == wanted
        assert bool(found.notes) == isinstance(wanted[0], float)


def test_a_wide_table_is_read_at_once(tmp_path: Path) -> None:
    count = 40_000
    rows = [",".join(f"c{n}" for n in range(count)), *[",".join("1" * count)] * 3]
    (tmp_path / "w.csv").write_text("\n".join(rows) + "\n")
    began = time.process_time()
    assert len(read_csv(tmp_path / "w.csv")) == count
    assert time.process_time() - began < 8, "comparing each name with all before it takes a minute"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    network(folder, x=("float32", ["n", 3, 8, 8]))
    for n in range(30):
        (folder / "d" / NAMES[n % 3]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (n * 8, 0, 0)).save(folder / "d" / NAMES[n % 3] / f"{n}.png")
    fit(folder / "small.py", folder / "d", epochs=1, out=folder / "run", **QUIET)
    (folder / "new").mkdir()
    for n in range(3):
        Image.new("RGB", (8, 8), (n, 0, 0)).save(folder / "new" / f"{n}.png")
    (folder / "new" / "broken.png").write_bytes(b"no image")
    return folder


def test_a_broken_image_is_named_and_left_out(photos: Path, tmp_path: Path, capsys: Out) -> None:
    assert cli(["predict", str(photos / "run"), str(photos / "new"), "-o", str(tmp_path / "o.csv"), "-q"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"skipped: {photos / 'new' / 'broken.png'} can't be read: ")
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 4
    assert cli(["predict", str(photos / "run"), str(photos / "new" / "broken.png")]) == 2
    with pytest.raises(OnnxgenError, match="broken.png can't be read"):
        load(photos / "run").predict(photos / "new")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_no_image(photos: Path, tmp_path: Path, capsys: Out) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    os.mkfifo(tmp_path / "pipe.png")
    codes: list[int] = []
    asking = threading.Thread(
        target=lambda: codes.append(cli(["predict", str(photos / "run"), str(tmp_path)])), daemon=True
    )
    asking.start()
    asking.join(60)
    assert codes == [1] and "pipe.png can't be read: it is not a regular file" in capsys.readouterr().err
