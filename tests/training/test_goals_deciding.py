"""`--task auto`: what the sidecar says of a network decides, if the data has what that task reads."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onnxgen import generate
from onnxgen.common.built import as_json
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import METADATA
from onnxgen.record.signature import Port, Purpose, Signature
from onnxgen.training import Settings, evaluate, fit, load
from onnxgen.training.checkpoint.identity import KEY
from onnxgen.training.config import read_config
from onnxgen.training.data.columns import from_columns
from onnxgen.training.data.source import DataSource
from onnxgen.training.goals.outputs import PLACES, decide
from onnxgen.training.runs.record import read_record
from onnxgen.training.tasks import CARDS
from onnxgen.training.tasks.card import PLACE_LOSSES

QUIET: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "epochs": 1, "batch_size": 16}
X = np.zeros((6, 4), np.float32)
IDS, MASK = (Port(name, "int64", ("batch", "length")) for name in ("input_ids", "attention_mask"))
NAMES = np.array(["cat", "dog", "ape"] * 2)
KEYPOINTS = np.zeros((6, 3, 2), np.float32)
SCORES = Port("y", "float32", (24, "batch", 11))
VECTOR = Port("y", "float32", ("batch", 16))


def network(
    kind: str, output: Port, inputs: tuple[Port, ...] = (Port("x", "float32", ("batch", 4)),), **more: Any
) -> nn.Module:
    """Return a model whose module says what it is for, as a generated one without a file does."""
    space = types.ModuleType(f"said_{len(sys.modules)}")
    facts = {"output": "y", **more.pop("facts", {})}
    purpose = Purpose(kind, ("output 'y' ends so",) if kind else (), more.pop("candidates", ()), facts)
    vars(space)[METADATA] = {"signature": as_json(Signature(inputs, (output,), "", "", purpose))}
    sys.modules[space.__name__] = space
    return type("Model", (nn.Module,), {"__module__": space.__name__})()  # type: ignore[no-any-return]


def decided(model: nn.Module, data: dict[str, Any] | DataSource, **settings: Any) -> tuple[str, list[str]]:
    source = data if isinstance(data, DataSource) else from_columns(data, "data")
    return decide(source, model, Settings(**settings)), source.notes


def source(texts: dict[str, Any], running: bool = False) -> DataSource:
    arrays = {name: np.array(v, dtype=object if isinstance(v[0], str) else None) for name, v in texts.items()}
    found = from_columns(arrays, "texts", True)
    found.running = running
    return found


LINES = ["a b", "c d", "e f", "g h"]
RANKS = [0.0, 2.5, 5.0, 1.0]
CAUSAL, BOTH_WAYS = {"causal": True, "axis": 2}, {"causal": False, "axis": 2}
DECODER = Port("decoder_input_ids", "int64", ("batch", "length"))


@pytest.mark.parametrize(
    "kind, output, data, task",
    [
        ("embedding", VECTOR, {"x": X, "label": NAMES}, "embedding"),
        ("embedding", VECTOR, {"x": X, "label": np.arange(6)}, "embedding"),
        ("ctc", SCORES, {"x": X, "text": NAMES}, "ctc"),
        ("ctc", SCORES, {"x": X, "y": np.zeros((6, 3), np.int64)}, "ctc"),
        ("keypoints", Port("y", "float32", ("batch", 6)), {"x": X, "keypoints": KEYPOINTS}, "keypoints"),
    ],
)
def test_a_sure_purpose_decides_if_the_data_fits(kind: str, output: Port, data: dict[str, Any], task: str) -> None:
    found, (note,) = decided(network(kind, output), data)
    assert found == task
    assert note.startswith(f"trained with --task {task}: output 'y' ends so, and column ")
    assert note.endswith("; for a loss of each output, --task outputs")


@pytest.mark.parametrize(
    "kind, facts, inputs, texts, task",
    [
        ("language-model", CAUSAL, (IDS,), {"story": LINES}, "language-model"),
        ("language-model", BOTH_WAYS, (IDS,), {"story": LINES}, "masked-language-model"),
        ("seq2seq", {}, (IDS, DECODER), {"de": LINES, "en": LINES}, "seq2seq"),
        ("language-model", CAUSAL, (IDS,), {"story": LINES, "label": LINES}, "outputs"),
        ("language-model", {**CAUSAL, "axis": 1}, (IDS,), {"story": LINES}, "outputs"),
        ("seq2seq", {}, (IDS, DECODER), {"de": LINES}, "outputs"),
        ("seq2seq", {}, (IDS,), {"de": LINES, "en": LINES}, "outputs"),
        ("embedding", {}, (IDS, MASK), {"anchor": LINES, "positive": LINES, "id": RANKS}, "embedding"),
        ("embedding", {}, (IDS, MASK), {"one": LINES, "other": LINES, "score": RANKS}, "embedding"),
        ("embedding", {}, (IDS, MASK), {"one": LINES, "other": LINES}, "outputs"),
        ("embedding", {}, (IDS, MASK), {"one": LINES, "score": RANKS}, "outputs"),
    ],
)
def test_texts(kind: str, facts: dict[str, Any], inputs: tuple[Port, ...], texts: dict[str, Any], task: str) -> None:
    found, (note,) = decided(network(kind, Port("y", "float32", ("n", "t", 9)), inputs, facts=facts), source(texts))
    assert found == task and ("--task outputs" in note) == (task != "outputs")


@pytest.mark.parametrize(
    "kind, data, settings, says",
    [
        ("embedding", {"x": X, "y": X}, {}, "for embedding .*, but the data has no class for each sample: trained"),
        ("embedding", {"x": X, "label": NAMES}, {"loss": "ce"}, "but --loss is for a loss of each output"),
        ("embedding", {"x": X, "label": NAMES}, {"label_smoothing": 0.1}, "but --label-smoothing is for"),
        ("embedding", {"x": X, "label": NAMES}, {"sampler": "balanced"}, "but --sampler is for"),
        ("ctc", {"x": X, "label": np.arange(6)}, {}, "but the data has no text for each sample"),
        ("keypoints", {"x": X, "y": X}, {}, "but the data has no places for each sample"),
    ],
)
def test_data_or_settings_for_something_else_are_told(
    kind: str, data: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    import re

    found, (note,) = decided(network(kind, VECTOR), data, **settings)
    assert found == "outputs" and re.search(says, note)


def test_losses_of_a_task_are_no_reason_against_it() -> None:
    for name, kind in CARDS.items():
        for loss in kind.losses:
            fitting = {"embedding": NAMES, "keypoints": KEYPOINTS, "image-to-image": np.zeros((6, 8, 8), np.uint8)}
            assert decided(network(name, VECTOR), {"x": X, "target": fitting[name]}, loss=loss)[0] == name
    assert {*PLACE_LOSSES} == {*PLACES}


@pytest.mark.parametrize("kind", ["classification", "regression", "segmentation", "multilabel", "of a later version"])
def test_other_purposes_and_new_heads_are_as_before(kind: str) -> None:
    assert decided(network(kind, VECTOR), {"x": X, "label": NAMES}) == ("outputs", [])
    assert decided(network("embedding", VECTOR), {"x": X, "label": NAMES}, replace_head=3) == ("outputs", [])
    assert decided(nn.Linear(4, 16), {"x": X, "label": NAMES}) == ("outputs", [])


def test_a_column_of_keypoints_settles_an_unsure_purpose() -> None:
    unsure = network("", Port("y", "float32", ("batch", 6)), candidates=("ctc", "regression", "keypoints"))
    found, (note,) = decided(unsure, {"x": X, "keypoints": KEYPOINTS})
    assert found == "keypoints" and note.startswith("trained with --task keypoints: the network may be for ctc or")
    found, (note,) = decided(unsure, {"x": X, "target": KEYPOINTS})
    assert found == "outputs" and "the data also suits --task keypoints" in note


@pytest.mark.parametrize("sure", [True, False])
def test_a_new_head_of_classes_leaves_a_reader_a_reader(sure: bool) -> None:
    """A network of another kind becomes a classifier."""
    for kind, output, task in (("ctc", SCORES, "ctc"), ("embedding", VECTOR, "outputs")):
        model = network(kind if sure else "", output, candidates=() if sure else (kind, "regression"))
        data = {"x": X, "text" if kind == "ctc" else "label": NAMES}
        assert decided(model, data, replace_head=5)[0] == task


def test_an_unsure_purpose_names_what_else_the_data_suits() -> None:
    unsure = network("", VECTOR, candidates=("classification", "embedding"))
    found, (note,) = decided(unsure, {"x": X, "label": NAMES})
    assert found == "outputs"
    assert note == (
        "the network may be for classification or embedding: trained with a loss of each output; "
        "the data also suits --task embedding"
    )
    assert decided(unsure, {"x": X, "label": np.arange(6) * 3}) == ("outputs", [])  # 16 classes, as many as outputs
    assert decided(unsure, {"x": X, "y": X}) == ("outputs", [])
    both = network("", SCORES, candidates=("ctc", "regression", "embedding"))
    for name, task in (("text", "ctc"), ("label", "outputs")):  # classes are not called texts
        listed = from_columns({"x": X, name: NAMES}, "data")
        listed.target = name  # as a list of images has it
        assert decided(both, listed)[0] == task
    ctc = network("", SCORES, candidates=("ctc", "regression"))
    found, (note,) = decided(ctc, {"x": X, "text": NAMES})
    assert found == "ctc" and "may be for ctc or regression, and column 'text' has a text" in note


def test_a_detector_without_boxes_is_refused() -> None:
    model = network("detection", Port("y", "float32", ("batch", 84, 8400)))
    with pytest.raises(OnnxgenError, match=r"finds boxes \(output 'y' ends so\), but column 'label' has a class"):
        decided(model, {"x": X, "label": NAMES})
    assert decided(model, {"x": X, "label": NAMES}, loss="ce")[0] == "outputs"
    assert decided(model, {"x": X, "label": NAMES}, target={"y": "label"})[0] == "outputs"


# ---- from a file to a run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    torch.onnx.export(
        nn.Sequential(nn.Linear(6, 16)), (torch.zeros(2, 6),), folder / "vectors.onnx", opset_version=17, dynamo=False,
        input_names=["x"], output_names=["embedding"], dynamic_axes={"x": {0: "batch"}, "embedding": {0: "batch"}},
    )  # fmt: skip
    generate(folder / "vectors.onnx", folder / "vectors.py")
    return folder / "vectors.py"


def data(count: int = 48) -> dict[str, Any]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0)).numpy()
    return {"x": x, "label": np.arange(count) % 12}


def test_a_run_keeps_what_was_decided(module: Path, tmp_path: Path) -> None:
    made = fit(module, data(), out=tmp_path / "run", val=0.25, **QUIET)
    assert "val_recall_at_1" in made.history[0]
    assert read_record(tmp_path / "run").settings["task"] == "embedding"
    assert "recall_at_1" in load(tmp_path / "run", device="cpu").evaluate(data())
    asked = fit(module, data(), out=tmp_path / "asked", val=0.25, task="outputs", **QUIET)
    assert "val_accuracy" in asked.history[0]
    headed = fit(module, data(), out=tmp_path / "headed", val=0.25, replace_head=12, **QUIET)
    assert "val_accuracy" in headed.history[0]
    again = fit(tmp_path / "headed", data(40), out=tmp_path / "again", val=0.25, **QUIET)  # other data
    assert "val_accuracy" in again.history[0]


def test_runs_from_before_are_as_they_were(module: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(module, data(), out=run, val=0.25, task="outputs", **QUIET)
    held = load(run, device="cpu").evaluate(data())
    for name, new, old in (
        ("run.json", '"task": "outputs",', ""),
        ("config.toml", 'task = "outputs"', 'task = "auto"'),
    ):
        text = (run / name).read_text()
        assert text.count(new) == 1
        (run / name).write_text(text.replace(new, old))
    checkpoint = run / "checkpoints/last.ckpt"
    state = torch.load(checkpoint, weights_only=False)
    assert state[KEY]["identity"]["task"] == "outputs"
    state[KEY]["identity"]["task"] = "auto"
    del state[KEY]["identity"]["noise"]  # a setting of later versions
    torch.save(state, checkpoint)
    assert load(run, device="cpu").evaluate(data()) == held and "accuracy" in held
    config = read_config(run / "config.toml")
    assert config["task"] == "outputs"
    resumed = fit(module, data(), **{**QUIET, "epochs": 2}, val=0.25, out=run, resume=True, task=config["task"])
    assert len(resumed.history) == 2 and "val_accuracy" in resumed.history[1]


def test_an_edited_module_decides_nothing(module: Path, tmp_path: Path) -> None:
    text = module.read_text()
    for file in module.parent.glob("vectors.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    changed = text.replace("\nModel = ", "\nMINE = 1\nModel = ")
    assert changed != text
    (tmp_path / "vectors.py").write_text(changed)
    assert "accuracy" in evaluate(tmp_path / "vectors.py", data(), device="cpu")
    with pytest.raises(OnnxgenError, match="task='embedding': the loss has parameters of its own"):
        evaluate(module, data(), device="cpu")
