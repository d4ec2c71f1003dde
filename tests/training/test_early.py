"""What is refused early: bad data before PyTorch is imported, a bad plan before Lightning is; `predict` needs neither.

What a command imports is seen in a process of its own, by `sys.modules`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.optim import lr_scheduler

import onnxgen
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.training import fit
from onnxgen.training.byname import subclasses_in
from onnxgen.training.data.glance import glance
from onnxgen.training.goals.detection.goal import REPORTED
from onnxgen.training.goals.embedding import COUNTED
from onnxgen.training.goals.goal import known_metrics
from onnxgen.training.goals.names import LOSSES, check_names, snake
from onnxgen.training.losses import Objective
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import CARDS
from tests.conftest import ROOT

WATCHED = ("torch", "lightning", "torchmetrics", "matplotlib")
LOOK = f"""
import contextlib, io, json, os, sys
from onnxgen.cli import run
for folder, words in json.loads(sys.argv[1]):
    os.chdir(folder)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = run(words)
    print(json.dumps([code, [name for name in {WATCHED} if name in sys.modules], said.getvalue().strip()]))
"""
Ran = tuple[int, list[str], str]  # the exit code of a command, which of the packages are imported, and its errors


def ran(*commands: tuple[Path, Sequence[str | Path]]) -> list[Ran]:
    """Run commands in their folders, in one process: what one has imported, those behind it find imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    told = json.dumps([(str(folder), [*map(str, words)]) for folder, words in commands])
    call = [sys.executable, "-c", LOOK, told]
    made = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=120)
    return [tuple(json.loads(line)) for line in made.stdout.splitlines() if line.startswith("[")]


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)).save(path)


def empty(folder: Path) -> str:
    (folder / "data").mkdir()
    return "data has no images"


def a_class_without(folder: Path) -> str:
    picture(folder / "data" / "cat" / "1.png")
    (folder / "data" / "dog").mkdir()
    return "the class folder data/dog has no images"


def without_classes(folder: Path) -> str:
    picture(folder / "data" / "1.png")
    return "data has images but no folder for each class"


def too_many(folder: Path) -> str:
    for name in "abcdefghijk":
        picture(folder / "data" / name / "1.png")
    return "the data has 11 classes (a, b, c, ...), but the model has 10 -> --replace-head 11"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("early") / "mnist.py"
    onnxgen.generate(ROOT / "samples" / "mnist" / "mnist.onnx", made)
    return made


def many(folder: Path) -> str:
    """A table with rows that are cut, beside options that are wrong in each way: all of it is said at once."""
    (folder / "data.csv").write_text("a,b,label\n1,2,x\n3,4\n5,6,y\n7\n")
    (folder / "old").mkdir()
    (folder / "old" / "best.safetensors").touch()
    return "\n".join(
        f"error: {line}"
        for line in (
            "Invalid value for '--epochs': 'many' is not a whole number (try: onnxgen train -h)",
            "Invalid value for '--lr': 'high' is not a number (try: onnxgen train -h)",
            "classes has 'a' twice",
            "classes has 'b' twice",
            "val and test must be shares of the data: each at least 0, together less than 1",
            "keep says which classes stay in a new head of a classifier -> --replace-head 12 --keep",
            "there is no file mine.safetensors",
            "old already has a run -> continue it with --resume, or name another --out",
            "there is no augmentation 'spin' -> use none, auto, or some of flip, vflip, rotate, shift, crop, light, "
            "noise, erase",
            "size 3x3: input 'image' is [batch, 1, 28, 28] -> leave --size out",
            "data.csv, line 3: 2 values, but 3 columns",
            "data.csv, line 5: 1 value, but 3 columns",
        )
    )


WRONG = "--epochs many --lr high --classes a,a,b,b --val 2 --keep --weights mine.safetensors --out old --augment spin"


def lacking(folder: Path) -> str:
    """Columns, inputs and values that options name, and that there are not."""
    (folder / "data.csv").write_text("a,b,label\n1,2,x\n3,4,\n5,,y\n")
    return "\n".join(
        f"error: {line}"
        for line in (
            "the model has no input 'x' (it has image)",
            "--inputs image=a+c: the data has no such column (it has a, b, label)",
            "--inputs x=d: the data has no such column (it has a, b, label)",
            "--target kind: the data has no such column (it has a, b, label)",
        )
    )


def gaps(folder: Path) -> str:
    (folder / "data.csv").write_text("a,b,label\n1,2,x\n3,4,\n5,,y\n")
    way = "fill it in (--table auto), drop the row, or name only the columns to use: --inputs INPUT=COLUMN+COLUMN"
    ways = {"line 4: column 'b'": way, "line 3: column 'label'": "give it one, or drop the row"}
    return "\n".join(f"error: data.csv, {place} has no value -> {way}" for place, way in ways.items())


def pipe(folder: Path) -> str:
    """A pipe as data: to read it would never end."""
    os.mkfifo(folder / "data.csv")
    return "error: data.csv is neither a file nor a folder -> save its contents in a file"


def bare(folder: Path) -> str:
    """Class folders without images."""
    for name in ("cat", "dog", "emu"):
        (folder / "data" / name).mkdir(parents=True)
    picture(folder / "data" / "cat" / "1.png")
    way = "put images into it (.bmp, .gif, .jpeg, .jpg, .pbm, .pgm, .png, .ppm, .tif, .tiff, .webp), or remove it"
    return "\n".join(f"error: the class folder data/{name} has no images -> {way}" for name in ("dog", "emu"))


def few_classes(folder: Path) -> str:
    """A new head that has fewer classes than the data."""
    too_many(folder)
    return "error: the data has 11 classes (a, b, c, ...), but the model has 3 -> --replace-head 11"


def nowhere(folder: Path) -> str:
    """Layers that the module does not have, beside some that it has: one of them has no weights."""
    (folder / "data.csv").write_text("a,label\n1,x\n2,y\n")
    way = "there are norm1, norm2, conv1, conv2, conv3, fc1, fc2"
    wrong = [f"no module or parameter is called {name!r} -> {way}" for name in ("backbone", "body.*.bias")]
    way = "change the data, or generate the model for this shape with --input-shape"
    wrong.append(f"input 'image' takes [batch, 1, 28, 28], but column 'image' gives [n, 1] -> {way}")
    return "\n".join(f"error: {line}" for line in wrong)


def unknown(folder: Path) -> str:
    """Names that neither torch nor torchmetrics nor onnxgen has."""
    (folder / "data.csv").write_text("a,label\n1,x\n2,y\n")
    there = "train_loss, val_loss, and others that a run shows: val_accuracy, val_ and a name of --metric"
    return "\n".join(
        f"error: no {line}"
        for line in (
            "task is called 'detecton' -> perhaps detection",
            "optimizer is called 'adamm' -> perhaps Adam, RAdam, NAdam",
            "schedule is called 'step_l' -> perhaps StepLR",
            "metric is called 'f1_scor' -> perhaps f1_score",
            f"metric is called 'val_los' -> there are {there}",
        )
    )


def arrays(folder: Path) -> str:
    """Columns of types that torch has not, of several lengths."""
    dates, y = np.full(8, "2020-01-01", "datetime64[D]"), np.arange(7)
    np.savez(folder / "data.npz", x=np.zeros((8, 2), complex), d=dates, t=[["a", "b"]] * 8, y=y)
    way = " -> give numbers or text, all of one shape"
    return "\n".join(
        f"error: data.npz: column {line}"
        for line in (
            f"'x' has dtype complex128{way}",
            f"'d' has dtype datetime64[D]{way}",
            "'t' is text of rank 2; text must be one class name for each sample",
        )
    )


def lengths(folder: Path) -> str:
    np.savez(folder / "data.npz", x_train=np.zeros((8, 2)), y_train=np.zeros(8), x_test=np.zeros((3, 2)), y_test=[1, 2])
    way = "the first axis of each must be the samples"
    return f"error: data.npz: columns are of different length: x 3, y 2 -> {way}"


def damaged(folder: Path) -> str:
    np.savez(folder / "data.npz", x=np.zeros((8, 2)))
    (folder / "data.npz").write_bytes((folder / "data.npz").read_bytes()[:100])
    return "error: data.npz can't be read: File is not a zip file -> save it again"


def classes(folder: Path) -> str:
    """More names of classes than the model has, beside an input of another size with a value that is none."""
    x = np.zeros((24, 1, 20, 28), np.float32)
    x[5, 0, 3, 3] = np.inf
    np.savez(folder / "data.npz", x=x, y=[f"c{n % 12}" for n in range(24)])
    ways = "images as uint8 are resized and converted; or generate the model with --input-shape"
    return "\n".join(
        f"error: {line}"
        for line in (
            "the data has 12 classes (c0, c1, c10, ...), but the model has 10 -> --replace-head 12",
            "column 'x' has inf in row 5 -> remove the sample, or fill in the value",
            f"input 'image' takes [batch, 1, 28, 28], but column 'x' gives [n, 1, 20, 28] -> {ways}",
        )
    )


def numbers(folder: Path) -> str:
    np.savez(folder / "data.npz", x=np.zeros((24, 1, 28, 28), np.float32), y=np.arange(24) % 4 + 8)
    way = "number them 0 to 3; --replace-head 12 keeps their numbers"
    return f"error: column 'y' has the labels 8, 9, 10, 11, but the model's 10 are 0 to 9 -> {way}"


def parquet(folder: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"a": ["x", "y"] * 4, "label": [*range(8)]}), folder / "data.parquet")
    way = "encode it: --table auto, or --table a=onehot or ordinal; or name the columns to use: --inputs INPUT=COLUMN+"
    return f"error: column 'a' holds text, but an input takes numbers -> {way}COLUMN"


def broken(folder: Path) -> str:
    """A class whose images are all broken."""
    for name in ("cat/1.png", "dog/1.png", "dog/2.png"):
        picture(folder / "data" / name)
    (folder / "data/cat/1.png").write_bytes(b"nothing")
    return "error: none of the images of 'cat' in data can be read"


def strictly(folder: Path) -> str:
    broken(folder)
    picture(folder / "data/cat/2.png")
    picture(folder / "data/cat/3.png")
    (folder / "data/cat/3.png").write_bytes((folder / "data/cat/3.png").read_bytes()[:60])  # its header is whole
    way = "remove or repair them; training without --strict skips them"
    return f"error: 2 images of data can't be read: cat/1.png (cannot identify image file), cat/3.png (*) -> {way}"


def open_columns(folder: Path) -> str:
    """Arrays none of which is called as an input or a target."""
    x, y = np.zeros((24, 1, 28, 28), np.float32), np.arange(24) % 10
    np.savez(folder / "data.npz", a=x, b=y, c=y)
    has = "the data's columns are a, b, c"
    return f"""error: which column feeds image? The model's inputs are image; {has} -> --inputs image=COLUMN
error: which column is the target? The model's outputs are log_probabilities; {has} -> --target COLUMN"""


def alone(folder: Path) -> str:
    np.save(folder / "data.npy", np.zeros((24, 1, 28, 28), np.float32))
    what = "error: which column is the target? The model's outputs are log_probabilities; the data's columns are x"
    return f"{what} -> --target COLUMN"


def of_numbers(folder: Path) -> str:
    """Metrics of numbers, and one of classes, for images in folders of classes."""
    for name in ("cat/1.png", "dog/1.png"):
        picture(folder / "data" / name)
    return """error: no metric of classes is called 'mean_squared_error' -> one of *, precision, recall
error: no metric of classes is called 'R2Score' -> perhaps f1_score*"""


def of_another_task(folder: Path) -> str:
    alone(folder)
    return "error: --metric does not go with --task ctc -> leave out --metric"


def wrapped(folder: Path) -> str:
    """A folder in a folder, as an archive is unpacked: what else is wrong is that of the classes in it."""
    for name in "abcdefghijk":
        picture(folder / "data" / "photos" / "photos" / name / "1.png")
    return """error: size 3x3: input 'image' is [batch, 1, 28, 28] -> leave --size out
error: the data has 11 classes (a, b, c, ...), but the model has 10 -> --replace-head 11"""


ASKED: dict[Callable[[Path], str], tuple[str, str]]
ASKED = {
    many: ("data.csv", f"{WRONG} --size 3x3"),
    lacking: ("data.csv", "--inputs image=a+c,x=d --target kind"),
    gaps: ("data.csv", "--inputs image=a+b"),
    bare: ("data", ""),
    open_columns: ("data.npz", ""),
    alone: ("data.npy", ""),
    of_numbers: ("data", "--metric mean_squared_error --metric R2Score --metric f1_score"),
    of_another_task: ("data.npy", "--task ctc --metric recall"),
    wrapped: ("data", "--size 3x3"),
    pipe: ("data.csv", ""),
    few_classes: ("data", "--replace-head 3"),
    unknown: (
        "data.csv",
        "--task detecton --optimizer adamm --schedule step_l --metric f1_scor --monitor val_los",
    ),
    arrays: ("data.npz", ""),
    lengths: ("data.npz", ""),
    damaged: ("data.npz", ""),
    classes: ("data.npz", ""),
    numbers: ("data.npz", ""),
    parquet: ("data.parquet", ""),
    broken: ("data", ""),
    strictly: ("data", "--strict"),
    nowhere: ("data.csv", "--freeze backbone --freeze conv1 --freeze dropout --freeze *.bias --freeze body.*.bias"),
}
LAID = [empty, a_class_without, without_classes, too_many]


@pytest.fixture(scope="module")
def seen(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str, Ran]]:
    """By name the folder of a command, the error that is wanted, and what it did: those that import nothing first."""
    asked, wanted = dict[str, tuple[Path, Sequence[str | Path]]](), dict[str, str]()

    def ask(name: str, error: str, *words: str | Path) -> None:
        asked[name], wanted[name] = (folder, words), error

    for lay in LAID:
        folder = tmp_path_factory.mktemp(lay.__name__)
        ask(lay.__name__, lay(folder), "train", model, "--data", "data")
    for lay, (data, words) in ASKED.items():
        folder = tmp_path_factory.mktemp(lay.__name__)
        ask(lay.__name__, lay(folder), "train", model, "--data", data, *words.split())
    folder = tmp_path_factory.mktemp("predict")
    arrays = {"x": np.zeros((40, 1, 28, 28), np.float32), "y": np.arange(40) % 10}
    fit(model, arrays, epochs=1, out=folder / "run", device="cpu", show="nothing", max_steps=1)
    np.save(folder / "new.npy", arrays["x"][:2])
    np.savez(folder / "data.npz", x=np.zeros((20, 3), np.uint8), y=np.arange(20) % 10)
    (folder / "bad.png").write_bytes(b"nothing")
    (folder / "empty").mkdir()
    ask("gone", "error: there is no file gone.npy -> ", "predict", "run", "new.npy", "gone.npy")
    ask("bad", "error: bad.png can't be read: cannot identify image file", "predict", "run", "bad.png")
    ask("away", "error: there is no data at away -> ", "evaluate", "run", "--data", "away")
    ask("nothing", "error: empty has no images -> ", "evaluate", "run", "--data", "empty")
    ask("lost", "error: there is no run lost", "export", "lost")
    ask("unfit", "input 'image' takes", "train", model, "--data", "data.npz")
    ask("predict", "", "predict", "run", "new.npy")
    made = ran(*asked.values())
    return {name: (asked[name][0], wanted[name], of) for name, of in zip(asked, made, strict=True)}


@pytest.mark.parametrize("lay", LAID)
def test_bad_folders_are_refused_before_pytorch_is_imported(
    lay: Callable[[Path], str], model: Path, seen: dict[str, tuple[Path, str, Ran]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, wanted, (code, imported, said) = seen[lay.__name__]
    assert (code, imported) == (2, []) and wanted in said, said
    monkeypatch.chdir(folder)
    with pytest.raises(OnnxgenError, match=re.escape(wanted.partition(" -> ")[0])):  # Python's `fit` says the same
        fit(model, "data", out=folder / "out")


@pytest.mark.parametrize("lay", ASKED)
def test_all_that_is_wrong_is_told_at_once(lay: Callable[[Path], str], seen: dict[str, tuple[Path, str, Ran]]) -> None:
    """With options and data, before PyTorch is imported."""
    _, wanted, (code, imported, said) = seen[lay.__name__]
    assert (code, imported) == (2, []) and re.fullmatch(re.escape(wanted).replace(r"\*", ".*"), said), said


def test_names_that_torch_or_the_model_lacks_are_told_at_once(model: Path, tmp_path: Path) -> None:
    given = {"optimizer": "foo", "schedule": "bar", "loss": "baz", "freeze": ("nope", "conv1"), "device": "cuda:77"}
    with pytest.raises(OnnxgenError) as caught:
        fit(model, tmp_path / "gone.npz", out=tmp_path / "out", **given)
    said = [problem.what.split(" is called ")[0] for problem in caught.value.problems]
    gone = f"no file or folder {tmp_path / 'gone.npz'}"
    assert said[1:] == ["no optimizer", "no schedule", "no loss", "no module or parameter", gone]
    assert said[0].startswith("no device cuda:77")


def test_classes_are_left_to_what_the_options_change(model: Path, tmp_path: Path) -> None:
    """They are not refused before the model is opened if they may fit it."""
    too_many(tmp_path)
    for given in ({"replace_head": 11}, {"weights": Path("other.safetensors")}, {"loss": "mse"}, {"task": "embedding"}):
        glance(model, str(tmp_path / "data"), Settings(**given))
    with pytest.raises(OnnxgenError, match="has 11 classes"):
        glance(model, str(tmp_path / "data"), Settings())
    x, y = np.zeros((24, 1, 28, 28), np.float32), np.arange(24)
    np.savez(tmp_path / "data.npz", x=x, y=y, z=y % 10)  # another column than `y` is the target
    for target in ("z", {"log_probabilities": "z"}):
        glance(model, str(tmp_path / "data.npz"), Settings(target=target, inputs={"image": "x"}))


def test_data_that_does_not_fit_is_refused_before_lightning_is_imported(seen: dict[str, tuple[Path, str, Ran]]) -> None:
    folder, wanted, (code, imported, said) = seen["unfit"]
    assert (code, imported) == (2, ["torch"]) and wanted in said, said
    assert not (folder / "runs").exists()


def test_predict_imports_pytorch_alone(seen: dict[str, tuple[Path, str, Ran]]) -> None:
    _, _, (code, imported, said) = seen["predict"]
    assert (code, imported) == (0, ["torch"]), said


@pytest.mark.parametrize("name", ["gone", "bad", "away", "nothing", "lost"])
def test_what_is_not_there_is_refused_before_pytorch_is_imported(
    name: str, seen: dict[str, tuple[Path, str, Ran]]
) -> None:
    _, wanted, (code, imported, said) = seen[name]
    assert (code, imported) == (2, []) and said.startswith(wanted), said


def test_the_names_that_are_known_early_are_those_of_torch() -> None:
    """Nothing that a run takes is refused before torch is imported."""
    optimizers = subclasses_in(torch.optim, torch.optim.Optimizer)
    schedules = {*subclasses_in(lr_scheduler, lr_scheduler.LRScheduler), "ReduceLROnPlateau"}
    kinds = [Objective(0, "", "y", "mse_loss")]
    kinds += [Objective(0, "", "y", loss, classes=3, labels=n) for loss in LOSSES[:5] for n in (1, 3)]
    metrics = {name for kind in kinds for name in known_metrics(kind)}
    settings = [Settings(optimizer=name) for name in optimizers] + [Settings(schedule=name) for name in schedules]
    settings += [Settings(metric=(name, snake(name)), monitor=f"val_{snake(name)}_part") for name in metrics]
    settings += [Settings(task=name) for name in (*CARDS, "auto", "outputs", "module:function")]
    settings += [Settings(monitor=f"val_{name}") for name in _of_goals()]
    for given in settings:
        problems = Problems()
        check_names(given, problems)
        assert not problems.found, (given, problems.found)
    of_classes = {name for kind in kinds[1:] if kind.classes and not kind.is_binary for name in known_metrics(kind)}
    check_names(Settings(metric=(*of_classes, *map(snake, of_classes))), problems := Problems(), classes=True)
    assert len(of_classes) > 10 and not problems.found, problems.found


def _of_goals() -> set[str]:
    """Return the names of the metrics of all tasks, as their files write them."""
    files = [path for path in (ROOT / "onnxgen/training/goals").rglob("*.py") if "Scores(" in path.read_text()]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    dicts = [
        node
        for node in nodes
        if isinstance(node, ast.Dict) and isinstance(node.values[:1] and node.values[0], ast.Call)
    ]
    names = {key.value for node in dicts for key in node.keys if isinstance(key, ast.Constant)} | {*REPORTED, COUNTED}
    assert len(names) >= 12
    return names
