"""What a run leaves: it can be copied, asked, evaluated, gone on from and shipped. Five tasks: images, a table, text,
masks, several labels."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from onnxgen.cli import run as cli
from onnxgen.cli.say import tell_json
from onnxgen.errors import OnnxgenError
from onnxgen.training import Learner, evaluate, fit, load, open_model
from onnxgen.training.data.samples import Data
from onnxgen.training.model import open_module
from onnxgen.training.runs.folder import latest, numbered, slug
from onnxgen.training.runs.record import read_record
from samples.tasks.make import SHAPES, make
from tests.support import forked
from tests.training.small import network

TASKS = {
    "shapes": ("shapes", "--replace-head", "3"),
    "flowers": ("flowers.csv",),
    "words": ("words.npz",),
    "masks": ("masks.npz",),
    "labels": ("labels.npz", "--classes", ",".join(SHAPES)),
}
NEW = {"shapes": "new.png", "flowers": "new.csv"}
SHORT = ("--test", "0.2", "--max-steps", "3", "--workers", "0", "--quiet")
Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which each of the five networks was trained once."""
    folder = tmp_path_factory.mktemp("tasks")
    make(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, (data, *more) in TASKS.items():
            assert cli([f"{name}.onnx", "--quiet"]) == 0
            assert cli(["train", f"{name}.py", "--data", data, *more, *SHORT]) == 0
    yield folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def prepared(learner: Learner, name: str) -> tuple[Data, list[Tensor]]:
    """The inputs of the model for the new samples."""
    data, names = next(iter(learner._opened(NEW.get(name, f"new_{name}.npz"))))
    samples = next(iter(data.parts.values()))
    batch = samples.take(range(len(names)), 0)
    return data, [batch[column] for column in batch]


COPIED = """
import sys
sys.modules["onnxgen"] = sys.modules["lightning"] = None
import torch
torch.set_num_threads(int(sys.argv[1]))
from safetensors.torch import load_file, save_file
from model import Model
assert Model.__module__ == "model"
model, own = Model.from_pretrained("best.safetensors").eval(), Model.from_pretrained().eval()
x = load_file("x.safetensors")["x"]
with torch.inference_mode():
    assert torch.equal(model(x), own(x))
    save_file({"y": model(x)}, "y.safetensors")
"""


@pytest.mark.parametrize("name", TASKS)
def test_a_copied_folder_needs_no_onnxgen(name: str, here: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    learner = load(f"runs/{name}-1")
    _, (x,) = prepared(learner, name)
    copy = tmp_path / "copy"
    shutil.copytree(f"runs/{name}-1", copy)
    save_file({"x": x.contiguous()}, copy / "x.safetensors")
    threads = torch.get_num_threads()  # another number may round otherwise
    forked.run(["-c", COPIED, str(threads)], cwd=copy, env={"PATH": ""}).check_returncode()
    with torch.inference_mode():
        assert torch.equal(load_file(copy / "y.safetensors")["y"], learner.model(x))


@pytest.mark.parametrize("name", TASKS)
def test_what_is_predicted_is_what_onnxruntime_computes(name: str, here: Path, tmp_path: Path) -> None:
    learner = load(f"runs/{name}-1")
    _, (x,) = prepared(learner, name)
    out, answers = tmp_path / "out.onnx", tmp_path / "answers.npz"
    assert cli(["export", f"runs/{name}-1", "-o", str(out), "--quiet"]) == 0
    assert cli(["predict", f"runs/{name}-1", NEW.get(name, f"new_{name}.npz"), "-o", str(answers), "--quiet"]) == 0
    kept = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert tuple(json.loads(kept["onnxgen.classes"])) == learner.record.classes and len(kept["onnxgen.run"]) == 64
    (entry,) = json.loads(kept["onnxgen.preprocessing"])["inputs"]
    kind = "image" if name in ("shapes", "masks", "labels") else "table" if name == "flowers" else "numbers"
    assert entry["shape"] == list(x.shape[1:]) and entry["kind"] == kind
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (computed,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    found = np.load(answers)[session.get_outputs()[0].name]
    wanted = computed.argmax(1) if name == "masks" else computed
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_evaluate_takes_what_was_held_back(here: Path, capsys: Out) -> None:
    """The numbers are those that the run printed of its test part."""
    for name in TASKS:
        result = read_record(Path(f"runs/{name}-1")).result
        assert cli(["evaluate", f"runs/{name}-1", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.pop("samples") == read_record(Path(f"runs/{name}-1")).parts["test"].samples
        assert found.pop("skipped") == 0
        assert found == pytest.approx({k.removeprefix("test_"): v for k, v in result["test"].items()}, rel=1e-6)
    learner = load("runs/flowers-1")
    assert learner.evaluate(part="val") != learner.evaluate()
    assert learner.evaluate("flowers.csv") == learner.evaluate(), "the same data is split as before"
    assert learner.evaluate(part="train")["loss"] != learner.evaluate()["loss"]


def test_training_samples_are_scored_only_if_asked(here: Path, tmp_path: Path, capsys: Out) -> None:
    result = fit("flowers.py", "flowers.csv", val=0.0, max_steps=2, out=tmp_path, show="nothing")
    assert cli(["evaluate", str(result.out)]) == 2
    assert "was trained on all of its data" in capsys.readouterr().err
    assert "loss" in load(result.out).evaluate(part="train")


def test_changed_data_is_refused(here: Path, tmp_path: Path) -> None:
    shutil.copy("flowers.csv", tmp_path / "flowers.csv")
    result = fit("flowers.py", tmp_path / "flowers.csv", test=0.2, max_steps=2, out=tmp_path / "run", show="nothing")
    rows = (tmp_path / "flowers.csv").read_text().splitlines()
    (tmp_path / "flowers.csv").write_text("\n".join([rows[0], *rows[:0:-1]]))
    with pytest.raises(OnnxgenError, match="has changed since the run: its test part is not the same"):
        load(result.out).evaluate()


def test_predict_takes_what_people_have(here: Path) -> None:
    """A file, a pattern, a PIL image and an array are the same image."""
    learner = load("runs/shapes-1")
    image = Image.open("new.png")
    (wanted,) = learner.predict("new.png")
    assert wanted.label in SHAPES and sum(wanted.probabilities.values()) == pytest.approx(1)
    assert list(wanted.probabilities) == sorted(SHAPES) and wanted.answer.top(1)[0][0] == wanted.label
    for given in (Path("new.png"), ["new.png"], "n*w.png", image, [image]):
        (found,) = learner.predict(given)
        assert found.probabilities == wanted.probabilities
    array = np.asarray(image.resize((24, 24), Image.Resampling.BILINEAR))
    for given in (array, torch.from_numpy(array.copy()), {"image": array[None]}):
        (found,) = learner.predict(given)
        assert found.probabilities == pytest.approx(dict(wanted.probabilities), rel=1e-5)
    assert len(learner.predict("shapes/circle")) == 160 and len(learner.predict(np.stack([array, array]))) == 2
    with pytest.raises(OnnxgenError, match="images have values up to 0.5"):
        learner.predict(np.full((24, 24, 3), 0.5, np.float32))
    with pytest.raises(OnnxgenError, match="there is no file no.png"):
        learner.predict(["new.png", "no.png"])


def test_a_training_that_made_the_model_worse(here: Path, tmp_path: Path, capsys: Out) -> None:
    """A line, the report and the record say so, and its weights are the best; a training that helped says nothing."""
    said = "no epoch was better than the model before training"
    for lr, worse in ((1000.0, True), (0.05, False)):
        result = fit("flowers.py", "flowers.csv", lr=lr, epochs=2, workers=0, out=tmp_path / str(lr), show="lines")
        begun, kept = load_file("flowers.safetensors"), load_file(tmp_path / str(lr) / "best.safetensors")
        assert all(torch.equal(kept[n], value) for n, value in begun.items()) == worse  # the best is what it began with
        assert all(torch.equal(result.model.state_dict()[n], value) for n, value in kept.items())
        assert (f"note: {said}" in capsys.readouterr().out) == worse
        assert (said in (tmp_path / str(lr) / "report.html").read_text(encoding="utf-8")) == worse
        found = read_record(tmp_path / str(lr)).result
        assert (found["before"]["val_loss"] < found["best"]["val_loss"]) == worse


def test_predict_a_table(here: Path) -> None:
    learner = load("runs/flowers-1")
    rows = learner.predict("new.csv")
    assert [row.source for row in rows] == [f"new.csv:{n}" for n in range(5)] and rows[0].label in repr(rows[0])
    table = np.genfromtxt("new.csv", delimiter=",", skip_header=1, dtype=np.float32)
    assert [row.probabilities for row in learner.predict(table)] == [row.probabilities for row in rows]
    assert learner.predict(table[0].tolist())[0].probabilities == pytest.approx(dict(rows[0].probabilities))


@pytest.mark.parametrize(
    ("name", "file", "text", "says"),
    [
        ("flowers", "gap.csv", "1,2,,4", "no value -> {} columns sepal_length, sepal_width, petal_length, petal_width"),
        ("flowers", "text.csv", "1,2,x,4", "text, but an input takes numbers -> {} columns sepal_length"),
        ("words", "other.npz", "", r"which column feeds ids\?.* -> {} x \(int64 \[12\]\)"),
    ],
)
def test_advice_is_for_a_run(name: str, file: str, text: str, says: str, here: Path, tmp_path: Path) -> None:
    """It names no options of the training, which `predict` and `evaluate` lack."""
    columns = ("sepal_length", "sepal_width", "petal_length", "petal_width", "target")
    (tmp_path / file).write_text(f"{','.join(columns)}\n1,2,3,4,setosa\n{text},setosa\n")
    if not text:
        np.savez(tmp_path / file, q=np.zeros((3, 12), np.int64), r=np.zeros((3, 12), np.int64))
    learner = load(f"runs/{name}-1")
    for ask in (learner.predict, learner.evaluate):
        with pytest.raises(OnnxgenError, match=says.format("give data like that of the training, without gaps:")) as e:
            ask(tmp_path / file)
        assert "--" not in str(e.value)
    with pytest.raises(OnnxgenError, match="the data is 5 -> give files, images, an array"):
        learner.predict(5)


def reordered(path: Path, order: list[int], out: Path) -> Path:
    """Write a CSV file with its columns in another order."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    out.write_text("\n".join(",".join(row[place] for place in order) for row in rows) + "\n")
    return out


def test_columns_of_a_table_are_found_by_name(here: Path, tmp_path: Path) -> None:
    """Their order in a file does not count, further columns are ignored, and a missing one is named."""
    learner = load("runs/flowers-1")
    wanted = [row.probabilities for row in learner.predict("new.csv")]
    for order in ([2, 0, 3, 1], [3, 3, 2, 1, 0]):
        other = reordered(Path("new.csv"), order, tmp_path / "new.csv")
        if len(order) > 4:
            other.write_text("more" + other.read_text()[len("petal_width") :])
        assert [row.probabilities for row in learner.predict(other)] == wanted
    with pytest.raises(OnnxgenError, match="lacks petal_width, which the run was trained with"):
        learner.predict(reordered(Path("new.csv"), [2, 0, 1], tmp_path / "less.csv"))
    whole = learner.evaluate({"measures": np.zeros((1, 4), np.float32), "target": np.array([0])})
    assert whole["loss"] > 0, "an array for the input has no names"
    other = reordered(Path("flowers.csv"), [4, 2, 0, 3, 1], tmp_path / "flowers.csv")
    again = reordered(other, [2, 4, 1, 3, 0], tmp_path / "again.csv")
    assert learner.evaluate(other, part="train") == pytest.approx(_all_rows(learner, again), rel=1e-5)
    assert cli(["train", "runs/flowers-1", "--data", str(other), *SHORT, "--out", str(tmp_path / "run")]) == 0
    assert read_record(tmp_path / "run").inputs[0].columns == learner.record.inputs[0].columns


def _all_rows(learner: Learner, path: Path) -> dict[str, float]:
    """Loss and accuracy of all rows of a table whose columns are in the order of the training, in plain torch."""
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    with torch.inference_mode():
        scores = learner.model(torch.tensor([[float(value) for value in row[:-1]] for row in rows]))
    labels = torch.tensor([learner.record.classes.index(row[-1]) for row in rows])
    accuracy = (scores.argmax(1) == labels).float().mean()
    return {"loss": float(torch.nn.functional.cross_entropy(scores, labels)), "accuracy": float(accuracy)}


def test_a_copy_of_the_data_is_the_data(here: Path, tmp_path: Path) -> None:
    """Its training samples are not scored unasked, either."""
    for name, data in (("flowers", "flowers.csv"), ("shapes", "shapes")):
        copy = Path(shutil.copytree(data, tmp_path / data) if Path(data).is_dir() else shutil.copy(data, tmp_path))
        learner = load(f"runs/{name}-1")
        assert learner.evaluate(copy) == learner.evaluate()


def test_arrays_in_a_file_have_the_range_of_the_training(here: Path, tmp_path: Path) -> None:
    learner, (name, bytes_) = load("runs/labels-1"), next(iter(np.load("new_labels.npz").items()))
    wanted = [row.probabilities for row in learner.predict("new_labels.npz")]
    for column in (name, "photos"):
        np.savez(tmp_path / "x.npz", **{column: bytes_.astype(np.float32)})
        assert [row.probabilities for row in learner.predict(tmp_path / "x.npz")] == wanted
    for wrong in (bytes_.astype(np.uint16) * 257, bytes_.astype(np.float32) / 255):
        np.savez(tmp_path / "x.npz", **{name: wrong})
        with pytest.raises(OnnxgenError, match="but white was 255 in training"):
            learner.predict(tmp_path / "x.npz")


def test_data_in_parts_is_not_predicted(here: Path, tmp_path: Path) -> None:
    ids = np.load("words.npz")["x"]
    np.savez(tmp_path / "parts.npz", x_train=ids[:4], x_test=ids[4:7])
    with pytest.raises(OnnxgenError, match="has the parts train, test, and a prediction is for one"):
        load("runs/words-1").predict(tmp_path / "parts.npz")


def test_an_image_is_no_row_of_a_table(here: Path) -> None:
    for name in ("flowers", "words"):
        with pytest.raises(OnnxgenError, match="was trained on numbers as they are stored"):
            load(f"runs/{name}-1").predict("new.png")


def test_predict_on_the_command_line(here: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("new.png\n\nnew.png\n"))
    assert cli(["predict", "runs/shapes-1", "-", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 predictions" and len(lines) == 4 and lines[-1].count("%") == 3
    assert cli(["predict", "runs/labels-1", "new_labels.npz", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 5 and list(found[0]["outputs"]["labels"]["probabilities"]) == list(SHAPES)
    assert cli(["predict", "runs/masks-1", "new_masks.npz", "-o", str(tmp_path / "x.csv")]) == 2
    assert "too many for a table" in capsys.readouterr().err
    assert cli(["predict", "runs/flowers-1", "new.csv", "-o", str(tmp_path / "x.csv")]) == 0
    assert (tmp_path / "x.csv").read_text().startswith("source,label,p(setosa),p(versicolor),p(virginica)\n")
    assert cli(["predict", "shapes", "new.png"]) == 2
    assert "shapes is not a run: it has no run.json" in capsys.readouterr().err


def test_open_model_takes_a_run(here: Path) -> None:
    model = open_model("runs/flowers-1")
    run = load("runs/flowers-1")
    asked = evaluate(model, "flowers.csv", val=0.1, test=0.2, batch_size=run.settings.batch)
    assert asked == run.evaluate(), "it knows its classes"


def test_a_run_goes_on(here: Path, capsys: Out, tmp_path: Path) -> None:
    """On its own data it is split as before. On other data its classes keep their places."""
    assert cli(["train", "runs/flowers-1", *SHORT[2:], "--out", str(tmp_path / "again")]) == 0
    first, again = read_record(Path("runs/flowers-1")), read_record(tmp_path / "again")
    assert again.parts == first.parts and again.result["best"]["train_loss"] < first.result["best"]["train_loss"]
    assert again.origin_for(tmp_path / "again").resolve() == Path("flowers.py").resolve(), "where the ONNX file is"
    rows = Path("flowers.csv").read_text().splitlines()
    (tmp_path / "two.csv").write_text("\n".join([rows[0], *(r for r in rows[1:] if "setosa" not in r)]))
    assert (
        cli(["train", "runs/flowers-1", "--data", str(tmp_path / "two.csv"), *SHORT, "--out", str(tmp_path / "t")]) == 0
    )
    assert read_record(tmp_path / "t").classes == first.classes


def test_runs_are_listed_and_compared(here: Path, capsys: Out, tmp_path: Path) -> None:
    assert cli(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "5 runs in runs" and lines[1].split()[:3] == ["run", "model", "data"]
    assert sorted(line.split()[0] for line in lines[2:]) == sorted(f"runs/{name}-1" for name in TASKS)
    assert cli(["runs", "--html", str(tmp_path / "runs.html"), "--quiet"]) == 0
    page = (tmp_path / "runs.html").read_text(encoding="utf-8")
    assert page.count("<tr>") == 6 and "data:image/png;base64," in page and 'src="http' not in page
    assert cli(["runs", "--json"]) == 0
    assert {run["model"] for run in json.loads(capsys.readouterr().out)} >= {"Shapes", "Masks"}
    assert cli(["runs", str(tmp_path)]) == 2 and cli(["runs", "runs/words-1"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "can't be read"),
        ('{"format": 2}', "this version reads 1"),
        ('{"format": 1, "module": "../model.py"}', "its module is '../model.py', not model.py"),
        ('{"format": 1, "module": "model.py"}', "an entry is missing"),
        ('{"format": 1, "module": "model.py", "settings": []}', "its settings is of type list"),
        ('{"format": 1, "module": "model.py", "data": 5}', "its data is of type int"),
    ],
)
def test_a_damaged_record_is_refused(text: str, message: str, tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "run.json").write_text(text)
    assert cli(["evaluate", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_numbers(tmp_path: Path) -> None:
    assert [numbered("net", tmp_path).name for _ in range(3)] == ["net-1", "net-2", "net-3"]
    (tmp_path / "net-9").mkdir()
    assert numbered("net", tmp_path).name == "net-10" and numbered("net-9", tmp_path).name == "net-9-1"
    with pytest.raises(OnnxgenError, match="there is no run net"):
        latest("net", tmp_path)
    assert [slug(text) for text in ("a b/c", "../..", "größe_1", "")] == ["a-b-c", "run", "größe_1", "run"]


def test_a_model_of_no_file_has_no_module(tmp_path: Path) -> None:
    """The record says why, and so does whoever is asked."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    result = fit(net, "digits", max_steps=2, out=tmp_path, show="nothing")
    assert read_record(result.out).module == "" and not (result.out / "model.py").exists()
    with pytest.raises(OnnxgenError, match="Sequential is not the Model of a file that onnxgen generated"):
        load(result.out)


def test_settings_survive(here: Path) -> None:
    """What a record keeps of the settings is what they were."""
    record = read_record(Path("runs/labels-1"))
    settings: Any = record.settings_for(Path("runs/labels-1"))
    assert settings.classes == SHAPES and settings.test == 0.2 and settings.workers == "auto", "devices are not kept"
    assert type(record).from_json(record.to_json()) == record


def test_a_module_that_learned_nothing_yet_is_not_the_best(here: Path, tmp_path: Path) -> None:
    """Weights of a generated file count as learned, however they were loaded, and those of `Model()` do not."""
    for fresh in (True, False):
        file, _ = open_module("flowers.py"), torch.manual_seed(99)
        model = file.Model() if fresh else file.Model.from_pretrained()
        begun = {name: value.clone() for name, value in model.state_dict().items()}
        fit(model, "flowers.csv", lr=1000.0, epochs=1, workers=0, out=tmp_path / str(fresh), show="nothing")
        kept = load_file(tmp_path / str(fresh) / "best.safetensors")
        assert all(torch.equal(kept[name], value) for name, value in begun.items()) != fresh


def test_numbers_that_json_lacks_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A test part whose values are too large has no loss; `metrics.csv` and the table say so."""
    network(tmp_path, x=("float32", ["n", 5]))
    x, y = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32), np.arange(40) % 3
    data = {"x_train": x, "y_train": y, "x_val": x[:8], "y_val": y[:8], "x_test": np.full((8, 5), 3e38, np.float32)}
    given = {"epochs": 1, "show": "nothing", "workers": 0, "device": "cpu", "loggers": "none"}
    fit(tmp_path / "small.py", {**data, "y_test": y[:8]}, out=tmp_path / "run", **given)
    record = json.loads((tmp_path / "run/run.json").read_text(), parse_constant=pytest.fail)
    assert "test_loss" not in record["result"]["test"] and "test_accuracy" in record["result"]["test"]
    capsys.readouterr()
    assert cli(["runs", str(tmp_path), "--json"]) == 0 and cli(["runs", str(tmp_path)]) == 0
    json.loads(capsys.readouterr().out.splitlines()[0], parse_constant=pytest.fail)
    tell_json({"loss": [float("inf"), float("nan"), 1.5]})
    assert capsys.readouterr().out == '{"loss": [null, null, 1.5]}\n'
