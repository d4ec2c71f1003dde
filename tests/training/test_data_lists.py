"""Lists of image files in every form, compared with the same images in arrays and folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, evaluate, predict
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.source import DataSource
from samples.tasks.goals import Lines, lines
from samples.tasks.scenes import draw_scenes, write_masks

IMAGES, _texts = lines(12, np.random.default_rng(0))
TEXTS = ["007", *map(str, _texts[1:])]  # a text that looks like a number
LABELS = ["cat", "dog", "bird"] * 4
Rows = Sequence[tuple[str, str]]


def save(folder: Path, numbers: range = range(12)) -> list[str]:
    """Write images as PNG files, and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        Image.fromarray(IMAGES[number]).save(folder / f"{number:02}.png")
    return [f"{number:02}.png" for number in numbers]


def opened(path: Path, **settings: Any) -> DataSource:
    found = open_source(path, Settings(**settings))
    assert isinstance(found, DataSource)
    return found


def taken(path: Path) -> dict[str, dict[str, Any]]:
    """Return what each part has: images, and the other columns, with names in place of their numbers."""
    source = opened(path)
    return {part: taken_of(source, part) for part in source.parts}


def taken_of(source: DataSource, part: str = "train") -> dict[str, Any]:
    samples = source.parts[part]
    names = {name: field.classes for name, field in samples.fields.items()}
    batch = samples.take(range(len(samples)), 0)
    return {n: [names[n][i] for i in x] if names[n] and x.ndim == 1 else x.numpy() for n, x in batch.items()}


def write(path: Path, between: str, rows: Sequence[Sequence[str]]) -> None:
    path.write_text("".join(between.join(row) + "\n" for row in rows))


# ---- texts -----------------------------------------------------------------------------------------------------------


def labels_csv(folder: Path) -> None:
    write(folder / "labels.csv", ",", [("image", "text"), *zip(save(folder), TEXTS)])


def labels_tsv_of_another_folder(folder: Path) -> None:
    rows = [(f"crops/{name}", text) for name, text in zip(save(folder / "crops"), TEXTS)]
    write(folder / "labels.tsv", "\t", [("path", "text"), *rows])


def metadata_jsonl(folder: Path) -> None:
    rows = [json.dumps({"file_name": name, "text": text}) for name, text in zip(save(folder), TEXTS)]
    write(folder / "metadata.jsonl", "", rows)


def rec_gt_train(folder: Path) -> None:
    write(folder / "rec_gt_train.txt", "\t", [(f"i/{n}", text) for n, text in zip(save(folder / "i"), TEXTS)])


def train_list_from_above(folder: Path) -> None:
    """The lists of PaddleOCR begin at the folder in which its programs run."""
    inside = f"{folder.parent.name}/{folder.name}/train"
    rows = [(f"{inside}/{name}", text) for name, text in zip(save(folder / "train"), TEXTS)]
    write(folder / "train_list.txt", "\t", rows)


def names_of_a_folder_inside(folder: Path) -> None:
    (folder / "other").mkdir()
    write(folder / "labels.csv", ",", [("filename", "text"), *zip(save(folder / "photos"), TEXTS)])


def with_titles(folder: Path) -> None:
    rows = [("file name", "text"), *((f"i/{name}", text) for name, text in zip(save(folder / "i"), TEXTS))]
    write(folder / "labels.txt", "\t", rows)


TEXT_LISTS = [labels_csv, labels_tsv_of_another_folder, metadata_jsonl, rec_gt_train, train_list_from_above]
TEXT_LISTS += [names_of_a_folder_inside, with_titles]


@pytest.mark.parametrize("lay", TEXT_LISTS)
def test_texts(lay: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    lay(folder)
    found = taken(folder)["train"]
    assert np.array_equal(found["image"], IMAGES) and found["text"] == TEXTS


def test_names_that_two_folders_have_are_not_guessed(tmp_path: Path) -> None:
    for folder in ("day", "night"):
        save(tmp_path / folder)
    write(tmp_path / "labels.csv", ",", [("image", "text"), *((f"{n:02}.png", text) for n, text in enumerate(TEXTS))])
    with pytest.raises(OnnxgenError, match="no image of the train part can be used: 12 faults"):
        opened(tmp_path)


def test_a_first_row_without_its_file_decides_nothing(tmp_path: Path) -> None:
    """The others may begin at a folder above the list's all the same."""
    rows = [(f"data/i/{name}", text) for name, text in zip(save(tmp_path / "data" / "i"), TEXTS)]
    write(tmp_path / "data" / "train_list.txt", "\t", [("data/i/gone.png", "7"), *rows])
    assert taken(tmp_path / "data")["train"]["text"] == TEXTS


@pytest.mark.parametrize("lay", [labels_csv, rec_gt_train])
def test_a_list_is_scored_as_its_arrays_are(lay: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lay(tmp_path / "data")
    np.savez(tmp_path / "data.npz", image=IMAGES, text=np.array(TEXTS))
    torch.manual_seed(0)
    model = Lines().eval()
    given: dict[str, Any] = {"task": "ctc", "normalize": "0,1", "classes": tuple("0123456789"), "device": "cpu"}
    found, wanted = (evaluate(model, tmp_path / name, **given) for name in ("data", "data.npz"))
    assert found == pytest.approx(wanted, rel=1e-6) and found["loss"] > 0
    (file,) = (tmp_path / "data").glob("*.??[tv]")
    assert evaluate(model, file, **given) == found, "the list itself is named"


@pytest.mark.parametrize(("task", "title", "values"), [("ctc", "text", TEXTS), ("auto", "label", LABELS)])
def test_a_further_column_asks_for_nothing(task: str, title: str, values: list[str], tmp_path: Path) -> None:
    """An input of images takes no other column than that of images."""
    names = save(tmp_path / "data")
    write(tmp_path / "data" / "labels.csv", ",", [("image", title), *zip(names, values)])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3))
    model = model if task == "auto" else torch.nn.Sequential(Lines())
    model(torch.zeros(1, 1, *IMAGES.shape[1:]))
    given: dict[str, Any] = {"task": task, "normalize": "0,1", "device": "cpu"}
    given["classes"] = tuple("0123456789") if task == "ctc" else tuple(sorted({*LABELS}))
    wanted = evaluate(model.eval(), tmp_path / "data", **given)
    rows = [(name, value, str(n)) for n, (name, value) in enumerate(zip(names, values))]
    write(tmp_path / "data" / "labels.csv", ",", [("image", title, "photographer"), *rows])
    assert evaluate(model, tmp_path / "data", **given) == wanted


def test_parts_of_paddleocr(tmp_path: Path) -> None:
    rows = [(f"i/{name}", text) for name, text in zip(save(tmp_path / "i"), TEXTS)]
    for name, some in (("rec_gt_train.txt", rows[:6]), ("rec_gt_eval.txt", rows[6:9]), ("rec_gt_test.txt", rows[9:])):
        write(tmp_path / name, "\t", some)
    write(tmp_path / "dict.txt", "", ["0", "1"])
    found = {part: columns["text"] for part, columns in taken(tmp_path).items()}
    assert found == {"train": TEXTS[:6], "val": TEXTS[6:9], "test": TEXTS[9:]}


# ---- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metadata.csv", "labels.csv", "train_list.txt"])
def test_classes(name: str, tmp_path: Path) -> None:
    is_text = name.endswith("txt")
    rows = [*([] if is_text else [("file_name", "label")]), *zip(save(tmp_path), LABELS)]
    write(tmp_path / name, " " if is_text else ",", rows)
    source, found = opened(tmp_path), taken(tmp_path)["train"]
    assert source.target == ("text" if is_text else "label")
    assert found[source.target] == LABELS and np.array_equal(found["image"], IMAGES)
    assert source.parts["train"].fields[source.target].classes == ("bird", "cat", "dog")


def test_parts_of_hugging_face(tmp_path: Path) -> None:
    for part, numbers in (("train", range(8)), ("validation", range(8, 12))):
        names = save(tmp_path / part / "deep", numbers)
        rows = [(f"deep/{name}", LABELS[n], str(n / 2)) for name, n in zip(names, numbers)]
        write(tmp_path / part / "metadata.csv", ",", [("file_name", "label", "age"), *rows])
    found = taken(tmp_path)
    assert found["train"]["label"] == LABELS[:8] and found["val"]["label"] == LABELS[8:]
    assert np.array_equal(found["val"]["image"], IMAGES[8:]) and found["val"]["age"].tolist() == [4, 4.5, 5, 5.5]


def test_a_table_that_names_no_images_leaves_the_folder(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        save(tmp_path / label, range(2))
    write(tmp_path / "labels.csv", ",", [("label", "count"), ("cat", "2"), ("dog", "2")])
    assert taken(tmp_path)["train"]["label"] == ["cat", "cat", "dog", "dog"]


# ---- images as targets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["labels.csv", "train_list.txt"])
def test_masks(name: str, tmp_path: Path) -> None:
    write_masks(tmp_path / "both", {"train": draw_scenes(4)})
    wanted = taken(tmp_path / "both")["train"]
    files = [f"train/train_{n:03}.png" for n in range(4)]
    if name == "labels.csv":
        write(tmp_path / "both" / name, ",", [("mask", "image"), *((f"masks/{f}", f"images/{f}") for f in files)])
    else:
        write(tmp_path / "both" / name, " ", [(f"images/{file}", f"masks/{file}") for file in files])
    source, found = opened(tmp_path / "both" / name), taken(tmp_path / "both" / name)["train"]
    assert {*found} == {"image", "mask"} and all(np.array_equal(found[key], wanted[key]) for key in found)
    assert source.placed == {"mask"} and source.name == "both"


def test_images_as_targets(tmp_path: Path) -> None:
    names = save(tmp_path / "a")
    for number, name in enumerate(names):
        Image.fromarray(255 - IMAGES[number]).save(tmp_path / f"b{name}")
    write(tmp_path / "pairs.csv", ",", [("noisy", "clean"), *((f"a/{name}", f"b{name}") for name in names)])
    found = taken(tmp_path / "pairs.csv")["train"]
    assert np.array_equal(found["image"], IMAGES) and np.array_equal(found["target"], 255 - IMAGES)
    assert opened(tmp_path / "pairs.csv").task == "image-to-image"


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_each_fault_has_its_line(tmp_path: Path) -> None:
    labels_csv(tmp_path)
    (tmp_path / "01.png").unlink()
    (tmp_path / "02.png").write_bytes(b"no image")
    said = opened(tmp_path).notes
    assert len(said) == 1 and "labels.csv, line 3: 01.png: there is no such file" in said[0]
    assert "labels.csv, line 4: 02.png: can't be read" in said[0] and said[0].endswith("2 images skipped")
    found = taken(tmp_path)["train"]
    assert np.array_equal(found["image"], IMAGES[[0, *range(3, 12)]]) and found["text"] == [TEXTS[0], *TEXTS[3:]]
    with pytest.raises(OnnxgenError, match="2 faults in .*without --strict skips"):
        opened(tmp_path, strict=True)


def test_the_line_of_a_fault_names_the_list_of_its_part(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write(tmp_path / part / "labels.csv", ",", [("image", "text"), *zip(save(tmp_path / part), TEXTS)])
    (tmp_path / "val" / "01.png").unlink()
    (tmp_path / "train" / "labels.csv").write_text("image,text\n00.png,7\n02.png,\n")
    (said,) = opened(tmp_path).notes
    assert "val/labels.csv, line 3: val/01.png: there is no such file" in said
    assert "train/labels.csv, line 3: column 'text' has no value" in said


def jsonl(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """A table as JSON, where a missing value is null."""
    write(folder / f"{name}.jsonl", "", [[json.dumps({k: v or None for k, v in row.items()})] for row in rows])


def csv(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    write(folder / f"{name}.csv", ",", [[*rows[0]], *([str(v) for v in row.values()] for row in rows)])


@pytest.mark.parametrize("form", [csv, jsonl])
@pytest.mark.parametrize(
    ("column", "values", "target"),
    [("text", TEXTS, None), ("label", LABELS, None), ("label", [str(n % 3) for n in range(12)], None),
     ("what", LABELS, None), ("what", LABELS, "what"), ("image", LABELS, None)],
)  # fmt: skip
def test_a_row_without_a_value_is_a_fault(
    form: Callable[..., None], column: str, values: list[str], target: str | None, tmp_path: Path
) -> None:
    """Of the image or the target; the other rows are as they are without it. Gaps of other columns do not count."""
    other = column if column != "image" else "label"
    rows = [{"image": name, other: value} for name, value in zip(save(tmp_path), values)]
    if target is not None:
        rows = [{**row, "notes": "" if n % 2 else "seen"} for n, row in enumerate(rows)]
    form(tmp_path, "labels", [row for n, row in enumerate(rows) if n not in (4, 7)])
    wanted = taken_of(opened(tmp_path, target=target))
    (tmp_path / f"labels.{form.__name__}").unlink()
    form(tmp_path, "labels", [{**row, column: ""} if n in (4, 7) else row for n, row in enumerate(rows)])
    source = opened(tmp_path, target=target)
    found, line = taken_of(source), 6 if form is csv else 5
    assert {*found} == {*wanted} and all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert source.parts["train"].fields == opened(tmp_path, target=target).parts["train"].fields
    (note,) = source.notes
    assert f"labels.{form.__name__}, line {line}: column '{column}' has no value" in note
    assert note.startswith("2 faults") and note.endswith("2 images skipped")
    with pytest.raises(OnnxgenError, match="2 faults in .*without --strict skips"):
        opened(tmp_path, target=target, strict=True)


def test_texts_of_nothing_are_faults_in_lists_of_paddleocr(tmp_path: Path) -> None:
    write(tmp_path / "train_list.txt", "\t", [(n, "" if n == "03.png" else t) for n, t in zip(save(tmp_path), TEXTS)])
    source = opened(tmp_path)
    assert source.notes[0].endswith("train_list.txt, line 4: column 'text' has no value; 1 image skipped")
    assert len(source.parts["train"]) == 11


def test_images_without_a_text_can_be_predicted(tmp_path: Path) -> None:
    labels_csv(tmp_path)
    (tmp_path / "labels.csv").write_text((tmp_path / "labels.csv").read_text().replace(f",{TEXTS[3]}\n", ",\n", 1))
    found = predict(Lines().eval(), tmp_path / "labels.csv", normalize="0,1", device="cpu")
    assert isinstance(found, torch.Tensor) and found.shape[1] == 12


def test_all_rows_without_a_value_are_refused(tmp_path: Path) -> None:
    csv(tmp_path, "labels", [{"image": name, "text": "", "label": ""} for name in save(tmp_path)])
    with pytest.raises(OnnxgenError, match="no image of the train part can be used: 12 faults .* 'label' has no value"):
        opened(tmp_path)


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "no such images": ({"labels.csv": "image,text\nx.png,a\n"}, "no image of the train part can be used"),
    "two lists": (
        {"labels.csv": "a\nb\n", "metadata.csv": "a\nb\n"},
        "several lists: metadata.csv, labels",
    ),
    "two of a part": ({"train_list.txt": "a.png\tb\n", "rec_gt_train.txt": "a.png\tb\n"}, "has two lists of train"),
    "three columns": ({"labels.csv": "a,b,c\n1.png,2.png,3.png\n"}, "several columns of images: a, b, c"),
    "another line": ({"train_list.txt": "a.png\tb\n\nonly text\n"}, "line 3 is not the path of an image, a tab and"),
    "listed twice": ({"labels.csv": "image,mask\n00.png,00.png\n00.png,00.png\n"}, "line 3: 00.png: is listed twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    files, what = REFUSED[case]
    save(tmp_path, range(1))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(OnnxgenError, match=what):
        opened(tmp_path, strict=True)


def test_the_images_of_a_list_are_predicted(tmp_path: Path) -> None:
    labels_csv(tmp_path)
    torch.manual_seed(0)
    model = Lines().eval()
    wanted = model(torch.from_numpy(IMAGES[:, None] / 255).float())
    found = predict(model, tmp_path / "labels.csv", normalize="0,1", device="cpu")
    torch.testing.assert_close(next(iter(found.values())) if isinstance(found, dict) else found, wanted)
