"""Errors for data that can't be read, with a way out."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from onnxgen import generate
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Purpose, Signature
from onnxgen.surgery.ports import signature_of
from onnxgen.training import Settings
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.images import classifies, frame, reads_lines, wanted_axes
from onnxgen.training.data.opening import KINDS
from onnxgen.training.model import open_model
from onnxgen.training.original import size_told
from tests.training.small import network
from tests.zoo.export import quiet

X, Y = np.zeros((4, 2)), np.arange(4) % 2


@pytest.fixture(scope="module")
def vector(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return network(tmp_path_factory.mktemp("vector"), x=("float32", ("batch", 2)))


@pytest.fixture(scope="module")
def gray(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return network(tmp_path_factory.mktemp("gray"), image=("float32", ("batch", 1, 6, 5)))


def said(spec: Any, model: torch.nn.Module, **settings: Any) -> str:
    with pytest.raises(OnnxgenError) as caught:
        open_data(spec, model, Settings(**settings))
    assert caught.value.exit_code == 2
    return str(caught.value)


# ---- names and files -------------------------------------------------------------------------------------------------


def test_no_such_path(vector: torch.nn.Module, tmp_path: Path) -> None:
    assert said(tmp_path / "nothing", vector) == f"no file or folder {tmp_path / 'nothing'} -> {KINDS}"


def test_a_file_of_another_kind(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("")
    assert said(tmp_path / "a.docx", vector) == f"onnxgen can't read data from {tmp_path / 'a.docx'} -> {KINDS}"


def test_no_such_function(vector: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refused_data.py").write_text("def data():\n    return 1 / 0\n")
    way = "is called without arguments"
    assert said("no_such_module:data", vector) == (
        "data no_such_module:data: ModuleNotFoundError: No module named 'no_such_module'"
        f" -> a function data() of no_such_module.py {way}"
    )
    assert said("refused_data:data", vector) == (
        f"data refused_data:data: ZeroDivisionError: division by zero -> a function data() of refused_data.py {way}"
    )
    assert "has no attribute 'more'" in said("refused_data:more", vector)


# ---- idx -------------------------------------------------------------------------------------------------------------


def idx(folder: Path, images: int = 2, labels: int = 2, cut: int = 0, gz: bool = False) -> Path:
    data = {
        "train-images-idx3-ubyte": struct.pack(">HBB3I", 0, 8, 3, images, 6, 5) + bytes(images * 30),
        "train-labels-idx1-ubyte": struct.pack(">HBBI", 0, 8, 1, labels) + bytes(labels),
    }
    for name, content in data.items():
        content = gzip.compress(content) if gz else content
        cut_here = len(content) - (cut if "images" in name else 0)
        (folder / f"{name}{'.gz' if gz else ''}").write_bytes(content[:cut_here])
    return folder


def test_damaged_idx_files(gray: torch.nn.Module, tmp_path: Path) -> None:
    images = tmp_path / "train-images-idx3-ubyte"
    assert said(idx(tmp_path, cut=7), gray) == (
        f"{images} is truncated: 53 bytes of data, 60 by its header -> download it again"
    )
    assert said(idx(tmp_path, images=3), gray) == (
        f"{images.name} has 3 images, but train-labels-idx1-ubyte has 2 labels -> download both again"
    )
    assert said(idx(tmp_path, images=0, labels=0), gray) == f"{images} has no images"
    idx(tmp_path)
    with images.open("ab") as file:
        file.write(b"more")
    assert said(tmp_path, gray) == f"{images} is too long: 64 bytes of data, 60 by its header -> download it again"
    images.write_bytes(b"\x89PNG")
    assert said(tmp_path, gray) == (
        f"{images} is not an idx file -> an idx file begins with 0, 0, its type and its rank"
    )
    images.write_bytes(b"")
    assert said(images, gray).startswith(f"{images} is not an idx file")
    idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    assert said(tmp_path, gray) == f"the file of labels for {images} is missing -> put it into {tmp_path}"


def test_a_truncated_gzipped_idx_file(gray: torch.nn.Module, tmp_path: Path) -> None:
    message = said(idx(tmp_path, cut=5, gz=True), gray)
    assert message.startswith(f"{tmp_path / 'train-images-idx3-ubyte.gz'} is truncated or not a gzip file (")
    assert message.endswith(") -> download it again")


def test_idx_files_of_several_sets(gray: torch.nn.Module, tmp_path: Path) -> None:
    for name in ("emnist-letters-", "emnist-digits-"):
        for file in list(idx(tmp_path).glob("train-*")):
            file.rename(file.with_name(name + file.name))
    assert said(tmp_path, gray) == (
        f"{tmp_path} has idx files of several sets: emnist-digits-, emnist-letters- -> name one of the files of images"
    )
    open_data(tmp_path / "emnist-digits-train-images-idx3-ubyte", gray, Settings())


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_that_are_not_samples(vector: torch.nn.Module, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=np.arange(5))
    assert said(tmp_path / "a.npz", vector) == (
        "a.npz: columns are of different length: x 4, y 5 -> the first axis of each must be the samples"
    )
    np.savez(tmp_path / "a.npz", x=X[:0], y=Y[:0])
    assert said(tmp_path / "a.npz", vector) == "a.npz has no samples"
    np.savez(tmp_path / "a.npz", x=X, y=np.array(3))
    assert said(tmp_path / "a.npz", vector) == (
        "a.npz: column 'y' is a single number; its first axis must be the samples"
    )
    np.savez(tmp_path / "a.npz")
    assert said(tmp_path / "a.npz", vector) == "a.npz has no arrays"
    np.savez(tmp_path / "a.npz", x=X.astype(complex), y=Y)
    assert said(tmp_path / "a.npz", vector) == (
        "a.npz: column 'x' has dtype complex128 -> give numbers or text, all of one shape"
    )
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X)
    assert said(tmp_path / "a.npz", vector) == "a.npz: part test has columns x, but part train has x, y"


def test_python_objects_are_not_unpickled(vector: torch.nn.Module, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}, []], dtype=object))
    message = said(tmp_path / "a.npz", vector)
    assert message.startswith(f"{tmp_path / 'a.npz'} can't be read: Object arrays cannot be loaded")
    assert message.endswith("-> save arrays of numbers: reading pickled objects would run code")


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.safetensors"])
def test_truncated_array_files(name: str, vector: torch.nn.Module, tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", x=X, y=Y)
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2] if name == "a.npz" else b"\x93NUMPY\x01\x00")
    message = said(tmp_path / name, vector)
    assert message.startswith(f"{tmp_path / name} can't be read: ") and "\n" not in message
    assert message.endswith("-> save it again")


def test_an_npy_has_no_target(vector: torch.nn.Module, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    assert said(tmp_path / "a.npy", vector) == (
        "which column is the target? The model's outputs are scores; the data's columns are x -> --target COLUMN"
    )


# ---- tables ----------------------------------------------------------------------------------------------------------

LEAVE = "fill it in (--table auto), drop the row, or name only the columns to use: --inputs INPUT=COLUMN+COLUMN"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "{path} is empty"),
        ("a,b,label\n", "{path} has no rows"),
        ("1,2,0\n3,4,1\n", "{path} has no line of column names -> put a line of names at the top"),
        ("a,a,label\n1,2,0\n", "{path} has two columns called 'a' -> give each column a different name"),
        ("a,,label\n1,2,0\n", "{path} has no name for column 2 -> give each column a different name"),
        ("a,b,label\n1,2,0\n3,4\n", "{path}, line 3: 2 values, but 3 columns"),
        ("a,b,label\n1,,0\n3,nan,1\n", "{path}, line 2: column 'b' has no value, and 1 more -> " + LEAVE),
        ("a,b,label\n1,2,0\n3,4,\n", "{path}, line 3: column 'label' has no value -> give it one, or drop the row"),
        (
            "a,b,label\n1,x,0\n3,y,1\n",
            "column 'b' holds text, but an input takes numbers -> "
            "encode it: --table auto, or --table b=onehot or ordinal; "
            "or name the columns to use: --inputs INPUT=COLUMN+COLUMN",
        ),
        (
            "a,b,species\n1,2,0\n",
            "which column is the target? The model's outputs are scores; the data's columns are a, b, species"
            " -> --target COLUMN",
        ),
    ],
)
def test_tables(text: str, message: str, vector: torch.nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    assert said(path, vector) == message.format(path=path)


def test_missing_columns_of_a_table(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c,label\n1,2,,0\n")
    path = tmp_path / "t.csv"
    assert said(path, vector, inputs={"x": "a+z"}) == ("--inputs: the data has no column 'z' (it has a, b, label)")
    assert said(path, vector, inputs={"x": "a+c"}) == f"{path}, line 2: column 'c' has no value -> {LEAVE}"
    assert said(path, vector, target="c") == (
        f"{path}, line 2: column 'c' has no value -> give it one, or drop the row"
    )
    assert said(path, vector, target="z", inputs={"x": "a+b"}) == (
        "--target z: the data has no such column (it has a, b, label, a+b)"
    )


def test_a_table_in_another_encoding(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("größe,label\n1,0\n".encode("latin-1"))
    message = said(tmp_path / "t.csv", vector)
    assert message.startswith(f"{tmp_path / 't.csv'} can't be read: ")
    assert message.endswith("-> save it as CSV in UTF-8")


def test_parquet(vector: torch.nn.Module, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 or so")
    assert said(path, vector).startswith(f"{path} can't be read: ")
    pq.write_table(pa.table({"a": [1, None], "b": [1, 2], "label": [0, 1]}), path)
    assert said(path, vector) == f"{path}, row 1: column 'a' has no value -> {LEAVE}"
    pq.write_table(pa.table({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]}), path)
    assert said(path, vector) == (
        f"{path}: column 'x' is of type list<element: double> -> store numbers, text, or lists of numbers of one length"
    )


# ---- folders ---------------------------------------------------------------------------------------------------------

ENDINGS = ".bmp, .gif, .jpeg, .jpg, .pbm, .pgm, .png, .ppm, .tif, .tiff, .webp"


def image(path: Path, size: tuple[int, int] = (5, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(path)


def test_folders_without_images(gray: torch.nn.Module, tmp_path: Path) -> None:
    layout = "lay it out as folder/class_name/*.png"
    assert said(tmp_path, gray) == f"{tmp_path} has no images -> {layout}"
    image(tmp_path / "a.png")
    assert said(tmp_path, gray) == f"{tmp_path} has images but no folder for each class -> {layout}"
    image(tmp_path / "cat" / "a.png")
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "a.txt").write_text("")
    assert said(tmp_path, gray) == (
        f"the class folder {tmp_path / 'owl'} has no images -> put images into it ({ENDINGS}), or remove it"
    )


def test_parts_without_folders_of_classes_are_no_classes(gray: torch.nn.Module, tmp_path: Path) -> None:
    """So archives lie whose labels are in train.csv and test.csv."""
    for name in ("test/a.png", "train/b.png"):
        image(tmp_path / name)
    (tmp_path / "test.csv").write_text("image,label\ntest/a.png,0\n")
    assert said(tmp_path, gray) == (
        f"{tmp_path} has test, train, with no folders for classes inside "
        f"-> lay it out as train/class_name/FILE, or name {tmp_path / 'test.csv'}"
    )


def test_corrupt_images(gray: torch.nn.Module, tmp_path: Path) -> None:
    for name in ("cat/a.png", "cat/b.png", "owl/c.png"):
        image(tmp_path / name)
    (tmp_path / "cat/a.png").write_bytes(b"")
    message = said(tmp_path, gray, strict=True)
    assert message.startswith(f"1 image of {tmp_path} can't be read: cat/a.png (cannot identify image file")
    assert message.endswith("-> remove or repair them; training without --strict skips them")
    open_data(tmp_path, gray, Settings())
    (tmp_path / "cat/b.png").write_bytes(b"")
    assert said(tmp_path, gray) == f"none of the images of 'cat' in {tmp_path} can be read"


def test_an_image_that_disappears_later(gray: torch.nn.Module, tmp_path: Path) -> None:
    for name in ("cat/a.png", "owl/c.png"):
        image(tmp_path / name)
    data = open_data(tmp_path, gray, Settings(val=0))
    (tmp_path / "owl/c.png").unlink()
    assert data.train is not None
    with pytest.raises(OnnxgenError, match=r"owl.c\.png can't be read: .*No such file"):
        data.train.take([0, 1], 0)


def chosen(folder: Path, model: torch.nn.Module, **settings: Any) -> tuple[str, str, list[str]]:
    """Return the size and the placing of the data's images, and the notes that tell of them."""
    data = open_data(folder, model, Settings(val=0, **settings))
    assert data.train is not None
    height, width = map(int, data.size.split("x"))
    axes = wanted_axes(signature_of(model).inputs[0])
    given = dict(zip(axes, data.train.take([0], 0)["image"].shape[1:]))
    assert (given["H"], given["W"]) == (height, width)
    return data.size, data.resize, [note for note in data.notes if note.startswith("images ")]


def valued(folder: Path, *values: str) -> None:
    """List the two images of a folder with a value for each, in place of the classes of their folders."""
    rows = [f"{path.relative_to(folder)},{value}" for path, value in zip(sorted(folder.glob("*/*.png")), values)]
    (folder / "labels.csv").write_text("\n".join(["image,target", *rows]) + "\n")


WAY = "the model takes any size: --size HEIGHTxWIDTH names another one, and --resize another way"


def test_images_of_different_sizes_for_an_input_of_any_size(tmp_path: Path) -> None:
    """The network gets about the size of the data, and one note tells it and the ways out."""
    model = network(tmp_path, image=("float32", ("batch", 3, "height", "width")))
    image(tmp_path / "data/cat/a.png")
    image(tmp_path / "data/owl/b.png", (7, 7))
    valued(tmp_path / "data", "0.5", "1.5")
    told = [f"images of 6x5 and 7x7 are stretched to 32x32; {WAY}"]
    assert chosen(tmp_path / "data", model) == ("32x32", "stretch", told)
    asked = ["images of 6x5 and 7x7 are letterboxed to 64x32"]
    assert chosen(tmp_path / "data", model, size="64x32", resize="letterbox") == ("64x32", "letterbox", asked)


@pytest.mark.parametrize(
    ("purpose", "told", "size"),
    [
        (Purpose("classification"), None, "224x224"),
        (Purpose("classification"), (96, 64), "96x64"),
        (None, None, "32x32"),
    ],
)
def test_a_classifier_gets_the_size_that_its_file_tells_or_the_usual_one(
    purpose: Purpose | None, told: tuple[int, int] | None, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(tmp_path, image=("float32", ("batch", 3, "height", "width")))
    image(tmp_path / "data/cat/a.png")
    image(tmp_path / "data/owl/b.png", (7, 7))
    monkeypatch.setattr("onnxgen.training.data.fitting.classifies", lambda ports, asked: purpose is not None)
    monkeypatch.setattr("onnxgen.training.original.size_told", lambda model: told)
    assert chosen(tmp_path / "data", model)[0] == size
    assert classifies(Signature((), (), purpose=purpose)) is (purpose is not None)


@pytest.mark.parametrize(
    ("data", "head", "size"),
    [("folders", None, 224), ("cat owl", None, 224), ("0 1", 2, 224), ("0.5 1.5", None, 32)],
)
def test_what_is_trained_decides_what_the_graph_leaves_open(
    data: str, head: int | None, size: int, tmp_path: Path
) -> None:
    """Two numbers of a Linear layer are classes or values: with folders of classes, or a new head, they are classes."""

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x.mean((2, 3)))

    with quiet():
        torch.onnx.export(
            Two(), torch.zeros(2, 3, 40, 40), tmp_path / "net.onnx", input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "n", 2: "h", 3: "w"}, "y": {0: "n"}}, dynamo=False,
        )  # fmt: skip
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    model = open_model(tmp_path / "net.py")
    purpose = signature_of(model).purpose
    assert purpose is not None and purpose.candidates == ("classification", "regression") and not purpose.kind
    image(tmp_path / "data/cat/a.png")
    image(tmp_path / "data/owl/b.png", (7, 7))
    if data != "folders":
        valued(tmp_path / "data", *data.split())
    assert chosen(tmp_path / "data", model, replace_head=head)[0] == f"{size}x{size}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("imgsz", "[96, 64]"), ("onnxgen.preprocessing", '{"inputs": [{"height": 96, "width": 64}]}'), ("imgsz", "x")],
)
def test_the_size_that_a_file_tells(key: str, value: str, tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, "h", "w"]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(file, {key: value})
    onnx.save(file, tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert size_told(open_model(tmp_path / "net.py")) == (None if value == "x" else (96, 64))


@pytest.mark.parametrize(
    "dims, size",
    [
        ((1, 1, 6, "w"), "6x7"),
        ((1, 1, "h", 4), "9x4"),
        ((1, 6, "w", 1), "6x7"),
        (("batch", "c", 6, 5), "6x5"),
    ],
)
def test_what_is_fixed_stays(dims: tuple[int | str, ...], size: str, tmp_path: Path) -> None:
    model = network(tmp_path, image=("float32", dims))
    image(tmp_path / "data/cat/a.png")
    image(tmp_path / "data/owl/b.png", (7, 9))
    found, _, notes = chosen(tmp_path / "data", model)
    assert found == size
    assert notes[0].endswith(WAY) is (dims[1] != "c")  # only the number of channels was open there


@pytest.mark.parametrize(
    ("dims", "least", "size"),
    [
        (("batch", 3, "height", "width"), 1, "48x288"),  # 16 x 96 is the longest line
        (("batch", 3, "height", "width"), 33, "48x288"),
        (("batch", 3, "height", "width"), 64, "64x384"),
        (("batch", 3, 40, "width"), 1, "40x256"),
    ],
)
@pytest.mark.parametrize("other", [(60, 20), (96, 16)])
def test_lines_of_text_keep_their_proportions(
    dims: tuple[int | str, ...], least: int, size: str, other: tuple[int, int], tmp_path: Path
) -> None:
    """A reader of lines gets its usual height, and the width of the longest line in proportion."""

    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[2] >= least
            return x.mean((1, 2))

    model = network(tmp_path, image=("float32", dims))
    model.forward = Rows().forward  # type: ignore[method-assign]
    image(tmp_path / "data/a.png", (96, 16))
    image(tmp_path / "data/b.png", other)
    (tmp_path / "data/labels.csv").write_text("image,text\na.png,ab\nb.png,c\n")
    found, placed, notes = chosen(tmp_path / "data", model, task="ctc")
    assert (found, placed) == (size, "line")
    assert notes[0].endswith(f"put at the left, and shrunk or enlarged, to {size}; {WAY}")
    assert chosen(tmp_path / "data", model, task="ctc", resize="stretch")[:2] == (size, "stretch")


def test_a_reader_of_lines_is_known_by_its_purpose() -> None:
    for purpose, wanted in (
        (None, False),
        (Purpose("ctc"), True),
        (Purpose("", candidates=("ctc",)), True),
        (Purpose("classification"), False),
    ):
        assert reads_lines(Signature((), (), purpose=purpose)) is wanted


class FixedRows(torch.nn.Module):
    """Images [n, 3, h, w], whose height is pooled by 16: 48 to 63 are three rows, which it wants."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x, (16, 1)).reshape(len(x), 9, -1).mean(2)


def fixed_rows(folder: Path) -> torch.nn.Module:
    model = network(folder, image=("float32", ("batch", 3, "height", "width")))
    model.forward = FixedRows().forward  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("same", [False, True])
def test_the_size_that_is_chosen_is_one_that_runs(same: bool, tmp_path: Path) -> None:
    image(tmp_path / "data/cat/a.png", (112, 32))
    image(tmp_path / "data/owl/b.png", (112, 32) if same else (110, 30))
    valued(tmp_path / "data", "0.5", "1.5")
    model = fixed_rows(tmp_path)
    assert chosen(tmp_path / "data", model)[0] == "48x192"
    model.forward = lambda x: x.reshape(len(x), 7, 7)  # type: ignore[method-assign]
    if not same:
        what = "input 'image' takes images of any size [batch, 3, height, width], and it runs at none of those tried"
        assert said(tmp_path / "data", model) == f"{what} -> name one at which it runs: --size HEIGHTxWIDTH"


@pytest.mark.parametrize("size", ["224x224", "32x100"])
def test_a_size_that_fails_is_answered_with_one_that_runs(size: str, tmp_path: Path) -> None:
    for name in ("cat/a.png", "cat/b.png", "owl/c.png", "owl/d.png"):
        image(tmp_path / "data" / name, (112, 32))
    model = fixed_rows(tmp_path)
    settings = Settings(size=size, val=0, batch_size=2)
    data = open_data(tmp_path / "data", model, settings)
    with pytest.raises(OnnxgenError) as caught:
        check(model, data, feed(data, model, settings), settings)
    assert str(caught.value).endswith(" -> --size 48x192, at which it runs")


def test_a_width_that_is_not_known_is_4_heights() -> None:
    """Nothing was read of the data's images but that they differ."""
    found = frame(Port("x", "float32", (1, 1, 64, "w")), None)
    assert (found.shape, found.chosen) == ((1, 64, 256), True)


def test_inputs_that_take_no_images(tmp_path: Path) -> None:
    image(tmp_path / "data/cat/a.png")
    image(tmp_path / "data/owl/b.png")
    way = "give floating-point arrays of exactly that shape (.npz)"
    deep = network(tmp_path, image=("float32", ("batch", 13, 6, 5)))
    assert said(tmp_path / "data", deep) == (
        f"input 'image' is [batch, 13, 6, 5]: 13 channels are not a gray, RGB or RGBA image -> {way}"
    )
    (tmp_path / "flat").mkdir()
    flat = network(tmp_path / "flat", image=("float32", ("batch", 31)))
    assert said(tmp_path / "data", flat) == (
        f"input 'image' is [batch, 31], which is not a square gray, RGB or RGBA image -> {way}"
    )
    (tmp_path / "video").mkdir()
    video = network(tmp_path / "video", image=("float32", ("batch", 3, 8, 6, 5)))
    assert said(tmp_path / "data", video) == "input 'image' is [batch, 3, 8, 6, 5], which is not an image"


# ---- objects ---------------------------------------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([1])


class Odd(Dataset[Any]):
    """Three items, of which the last is `odd`."""

    def __init__(self, odd: Any) -> None:
        self.odd = odd

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.odd, Exception) and index == 2:
            raise self.odd
        return self.odd if index == 2 else (torch.zeros(2), 1)


def test_objects_that_are_not_data(vector: torch.nn.Module) -> None:
    assert said(Stream(), vector) == (
        "data, train is Stream, which lacks a length or items by index"
        " -> give a torch Dataset with __len__ and __getitem__ (an IterableDataset can't be shuffled or resumed), "
        "arrays, or a dict of columns"
    )
    assert said(DataLoader([(X[0], 1)]), vector) == (
        "data, train is a DataLoader -> give its dataset: the trainer makes the batches"
    )
    assert said([], vector) == "data, train has no samples"
    assert said({"val": (X, Y), "test": (X, Y)}, vector) == "data has parts val, test, but no train"
    assert said([("word", 1)], vector) == (
        "column '0' of item 0 is str, which is not a number, array or image -> let the dataset turn it into a tensor"
    )


@pytest.mark.parametrize(
    "odd, message",
    [
        (
            (torch.zeros(3), 1),
            "column '0' is [3] torch.float32 in item 2, but [2] torch.float32 in item 0"
            " -> let the dataset give all samples one shape",
        ),
        ((torch.zeros(2),), "item 2 has no column 'target', but the first item has"),
        (KeyError("label"), "item 2 of Odd can't be read: KeyError: 'label'"),
    ],
)
def test_items_that_differ_from_the_first(odd: Any, message: str, vector: torch.nn.Module) -> None:
    data = open_data(Odd(odd), vector, Settings(val=0))
    assert data.train is not None
    with pytest.raises(OnnxgenError) as caught:
        data.train.take([0, 2], 0)
    assert str(caught.value) == message


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, what",
    [
        ("0.5", "normalize '0.5' is not a pair of numbers"),
        ("a,b", "normalize 'a,b' is not a pair of numbers"),
        ("0.1/0.2,1/1", "normalize '0.1/0.2,1/1' does not fit 1 channels"),
        ("0,0", "normalize '0,0': a standard deviation must be positive"),
        ("nan,1", "normalize 'nan,1': a standard deviation must be positive"),
    ],
)
def test_normalize(text: str, what: str, gray: torch.nn.Module) -> None:
    way = "--normalize takes auto, none, or mean,std such as 0.1307,0.3081 (a channel each: 0.5/0.5/0.5,0.2/0.2/0.2)"
    assert said("digits", gray, normalize=text) == f"{what} -> {way}"


def test_normalize_without_images(vector: torch.nn.Module) -> None:
    message = "--normalize 0.5,0.5: the data has no images -> --normalize none"
    assert said((X, Y), vector, normalize="0.5,0.5") == message


def test_augment(gray: torch.nn.Module, vector: torch.nn.Module) -> None:
    assert said("digits", gray, augment="flip,turn") == (
        "there is no augmentation 'turn'"
        " -> use none, auto, or some of flip, vflip, rotate, shift, crop, light, noise, erase"
    )
    assert said((X, Y), vector, augment="flip") == "--augment flip: the data has no images -> --augment none"


def test_too_few_to_split(vector: torch.nn.Module) -> None:
    assert (
        said((X[:1], Y[:1]), vector)
        == "data has too few samples to split: 1 -> use all samples for training with --val 0"
    )
