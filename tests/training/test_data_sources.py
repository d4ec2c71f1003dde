"""The result of opening each kind of data."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import signature_of
from onnxgen.training import Settings
from onnxgen.training.data import Data, check, feed, open_data
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.encoding import stacked
from onnxgen.training.data.fitting import split
from onnxgen.training.data.image_options import RECIPES
from onnxgen.training.data.opening import FILES, from_object
from onnxgen.training.data.samples import Batch, Samples, bits
from onnxgen.training.data.source import DataSource
from tests.conftest import ROOT
from tests.training.small import network

WHOLE = Settings(val=0, normalize="none", batch_size=2)
RNG = np.random.default_rng(0)


def all_of(samples: Samples | None) -> Batch:
    assert samples is not None
    return samples.take(range(len(samples)), 0)


def opened(spec: Any, model: torch.nn.Module, settings: Settings = WHOLE) -> Data:
    """Open, feed and check data."""
    data = open_data(spec, model, settings)
    check(model, data, feed(data, model, settings), settings)
    return data


@pytest.fixture(scope="module")
def gray(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return network(tmp_path_factory.mktemp("gray"), classes=10, image=("float32", ("batch", 1, 28, 28)))


@pytest.fixture(scope="module")
def vector(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return network(tmp_path_factory.mktemp("vector"), x=("float32", ("batch", 2)))


# ---- idx -------------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray[Any, Any]) -> bytes:
    kind = {"u1": 0x08, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D}[array.dtype.str[1:]]
    big = array.astype(array.dtype.newbyteorder(">"))
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + big.tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_a_folder_of_idx_files(packed: bool, gray: torch.nn.Module, tmp_path: Path) -> None:
    made = {}
    for part, count in (("train", 6), ("t10k", 4)):
        x, y = RNG.integers(0, 256, (count, 28, 28), np.uint8), np.arange(count, dtype=np.uint8)
        made[part] = x, y
        for name, array in (("images-idx3", x), ("labels-idx1", y)):
            data = idx(array)
            path = tmp_path / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
    data = opened(tmp_path, gray)
    assert data.train is not None and data.val is None
    for samples, part in ((data.train, "train"), (data.test, "t10k")):
        batch = all_of(samples)
        assert np.array_equal(batch["image"].squeeze(1).numpy(), made[part][0])  # values as in the file
        assert batch["label"].tolist() == made[part][1].tolist()
    assert data.train.fields["label"].classes == tuple("012345")
    one = opened(tmp_path / f"t10k-images-idx3-ubyte{'.gz' if packed else ''}", gray)
    assert torch.equal(all_of(one.train)["image"], all_of(data.test)["image"]) and one.test is None


def test_mnist_and_fashion_mnist(shared: Path, gray: torch.nn.Module) -> None:
    for name in ("mnist", "fashion-mnist"):
        settings = Settings(val=0.1)
        data = opened(shared / "data" / name, gray, settings)
        assert data.train is not None and data.val is not None and data.test is not None
        assert [len(data.train), len(data.val), len(data.test)] == [54_000, 6_000, 10_000]
        raw = gzip.decompress((shared / "data" / name / "t10k-labels-idx1-ubyte.gz").read_bytes())
        labels = np.frombuffer(raw, np.uint8, offset=8)
        first = data.test.take(range(1000), 0)
        assert first["label"].tolist() == labels[:1000].tolist()
        pixels = gzip.decompress((shared / "data" / name / "t10k-images-idx3-ubyte.gz").read_bytes())
        image = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28, 28)[:1000].astype(np.float32)
        mean, std = map(float, data.normalize.split(","))
        torch.testing.assert_close(first["image"].squeeze(1), torch.from_numpy((image / 255 - mean) / std))
        if name == "mnist":  # the numbers that the world knows: 0.1307 and 0.3081 of all 60,000
            assert abs(mean - 0.1307) < 5e-4 and abs(std - 0.3081) < 5e-4


# ---- arrays ----------------------------------------------------------------------------------------------------------


X, Y = RNG.normal(size=(5, 2)), np.array([0, 2, 1, 1, 0])


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": X, "y": Y},
        {"images": X, "labels": Y},
        {"features": X, "target": Y},
        {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]},
        {"train_images": X, "train_labels": Y, "test_images": X[:2], "test_labels": Y[:2]},
        {"x_train": X, "y_train": Y, "x_val": X[:2], "y_val": Y[:2]},
    ],
)
@pytest.mark.parametrize("kind", ["npz", "safetensors", "dict"])
def test_named_arrays(arrays: dict[str, Any], kind: str, vector: torch.nn.Module, tmp_path: Path) -> None:
    spec: Any = tmp_path / f"some.{kind}"
    if kind == "npz":
        np.savez(spec, **arrays)
    elif kind == "safetensors":
        save_file({k: torch.from_numpy(v.copy()) for k, v in arrays.items()}, spec)
    else:
        spec = arrays
    data = opened(spec, vector)
    feeding = feed(data, vector, WHOLE)
    batch = all_of(data.train)
    assert batch[feeding.inputs[0]].tolist() == X.astype(np.float32).tolist()
    assert batch[feeding.targets[0]].tolist() == Y.tolist()
    held = data.test if data.test is not None else data.val
    assert (held is not None) == (len(arrays) == 4)
    if held is not None:
        assert all_of(held)[feeding.inputs[0]].tolist() == X[:2].astype(np.float32).tolist()


def test_a_target_of_text_has_sorted_classes(vector: torch.nn.Module, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=np.array(["owl", "cat", "owl", "ape", "cat"]))
    data = opened(tmp_path / "a.npz", vector)
    assert data.train is not None
    assert data.train.fields["y"].classes == ("ape", "cat", "owl")
    assert all_of(data.train)["y"].tolist() == [2, 1, 2, 0, 1]


def test_an_npy_is_enough_to_predict(vector: torch.nn.Module, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    data = open_data(tmp_path / "a.npy", vector, Settings(), targets=False)
    assert all_of(data.train)["x"].tolist() == X.astype(np.float32).tolist()
    assert data.val is None


def test_the_digits(gray: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()  # a folder of that name is ./digits
    monkeypatch.chdir(tmp_path)
    data = opened("digits", gray)
    assert data.train is not None and len(data.train) == 1797
    batch = all_of(data.train)
    assert batch["label"].tolist() == load_digits().target.tolist()
    assert batch["image"].shape == (1797, 1, 28, 28) and batch["image"].max() <= 16
    eight = load_digits().images[0].astype(np.float32)
    by_pil = np.asarray(Image.fromarray(eight).resize((28, 28), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(batch["image"][0, 0].numpy(), by_pil, atol=1e-5)


# ---- tables ----------------------------------------------------------------------------------------------------------

CSV = "age,height,kind\n1,2.5,owl\n3,-4e1,cat\n5,6,owl\n"


@pytest.mark.parametrize("between, suffix", [(",", ".csv"), (";", ".csv"), ("\t", ".tsv"), ("\t", ".csv")])
def test_a_table(between: str, suffix: str, vector: torch.nn.Module, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_text("\ufeff" + CSV.replace(",", between), encoding="utf-8")
    data = opened(path, vector, Settings(val=0, target="kind", batch_size=2))
    batch = all_of(data.train)
    assert batch["x"].tolist() == [[1, 2.5], [3, -40], [5, 6]] and batch["x"].dtype == torch.float32
    assert batch["kind"].tolist() == [1, 0, 1]


def test_the_columns_of_a_table_can_be_named(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a,city,b,label\n7,1,x,,0\n8,2,y,4,1\n".replace("x,,", "x,3,"))
    settings = Settings(val=0, inputs={"x": "b+a"}, batch_size=2)
    assert all_of(opened(tmp_path / "t.csv", vector, settings).train)["b+a"].tolist() == [[3, 1], [4, 2]]


def test_several_labels_of_a_table(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("rain,a,snow,b\n1,10,0,20\n0,30,0,40\n")
    found = opened(tmp_path / "t.csv", vector, Settings(val=0, target="rain+snow", batch_size=2))
    batch = all_of(found.train)
    assert batch["rain+snow"].tolist() == [[1, 0], [0, 0]] and batch["x"].tolist() == [[10, 20], [30, 40]]
    assert "the target gets 2 columns: rain, snow" in found.notes
    with pytest.raises(OnnxgenError, match="--target: the data has no column 'hail'"):
        opened(tmp_path / "t.csv", vector, Settings(val=0, target="rain+hail", batch_size=2))


def test_columns_are_joined_in_new_data(vector: torch.nn.Module) -> None:
    """Twice the same data may be joined, in two ways."""
    columns = {name: torch.tensor([n, n + 1]) for n, name in enumerate("abc")}
    source = DataSource({"train": Columns(columns, {})}, "data", notes=["read"])
    for given in ("a+b", "c+a"):
        made = stacked(source, signature_of(vector), Settings(target="c", inputs={"x": given}), True)
        wanted = torch.stack([columns[name] for name in given.split("+")], 1)
        assert torch.equal(all_of(made.parts["train"])[given], wanted)
        assert made.joined == {given: given.split("+")} and made.notes[0] == "read" and len(made.notes) == 2
    assert [*source.parts["train"].fields] == [*columns] and (source.joined, source.notes) == ({}, ["read"])


def test_missing_values_of_a_column_that_is_not_used(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,cabin,label\n1,2,,0\n3,4,C85,1\n")
    settings = Settings(val=0, inputs={"x": "a+b"}, batch_size=2)
    assert all_of(opened(tmp_path / "t.csv", vector, settings).train)["a+b"].tolist() == [[1, 2], [3, 4]]


def test_columns_with_the_names_of_inputs(tmp_path: Path) -> None:
    model = network(tmp_path, height=("float32", ("batch", 1)), age=("float32", ("batch",)))
    (tmp_path / "t.csv").write_text("age,height,label\n1,2,0\n3,4,1\n")
    batch = all_of(opened(tmp_path / "t.csv", model).train)
    assert batch["height"].tolist() == [[2], [4]] and batch["age"].tolist() == [1, 3]


def test_parquet(vector: torch.nn.Module, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1, 2], "b": [0.5, 1.5], "kind": ["b", "a"]}), tmp_path / "t.parquet")
    batch = all_of(opened(tmp_path / "t.parquet", vector, Settings(val=0, target="kind", batch_size=2)).train)
    assert batch["x"].tolist() == [[1, 0.5], [2, 1.5]] and batch["kind"].tolist() == [1, 0]
    lists = pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "label": pa.array(["u", "v"]).dictionary_encode()})
    pq.write_table(lists, tmp_path / "l.parquet")
    batch = all_of(opened(tmp_path / "l.parquet", vector).train)
    assert batch["x"].tolist() == [[1, 2], [3, 4]] and batch["label"].tolist() == [0, 1]


def test_a_file_for_each_part(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,label\n1,2,x\n3,4,z\n")
    (tmp_path / "validation.csv").write_text("a,b,label\n5,6,z\n7,8,x\n")
    data = opened(tmp_path, vector)
    assert all_of(data.train)["x"].tolist() == [[1, 2], [3, 4]]
    assert all_of(data.val)["x"].tolist() == [[5, 6], [7, 8]] and all_of(data.val)["label"].tolist() == [1, 0]


# ---- folders of images -----------------------------------------------------------------------------------------------


def picture(path: Path, value: int, mode: str = "L", size: tuple[int, int] = (28, 28)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode != "RGB" else (value, 0, 0)).save(path)


def test_a_folder_of_images(gray: torch.nn.Module, tmp_path: Path) -> None:
    for name, value in (("owl/a.png", 10), ("owl/b.PNG", 20), ("cat/c.bmp", 30), ("cat/deep/d.png", 40)):
        picture(tmp_path / name, value)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".git").mkdir()
    data = opened(tmp_path, gray)
    assert data.train is not None and data.train.fields["label"].classes == ("cat", "owl")
    batch = all_of(data.train)
    assert batch["image"].shape == (4, 1, 28, 28) and batch["label"].tolist() == [0, 0, 1, 1]
    assert batch["image"].amax((1, 2, 3)).tolist() == [30, 40, 10, 20] == batch["image"].amin((1, 2, 3)).tolist()


def test_a_folder_with_parts(gray: torch.nn.Module, tmp_path: Path) -> None:
    for part, value in (("train", 1), ("valid", 2), ("Test", 3), ("spare", 4)):
        for name in ("cat", "owl"):
            picture(tmp_path / part / name / "a.png", value)
    data = opened(tmp_path, gray)
    for samples, value in ((data.train, 1), (data.val, 2), (data.test, 3)):
        batch = all_of(samples)
        assert batch["label"].tolist() == [0, 1] and batch["image"].unique().tolist() == [value]
    assert "not part of the data, ignored: spare" in data.notes


def test_classes_with_the_names_of_parts(gray: torch.nn.Module, tmp_path: Path) -> None:
    for name in ("train", "test", "bus"):
        picture(tmp_path / name / "a.png", 1)
    data = opened(tmp_path, gray)
    assert data.train is not None and data.train.fields["label"].classes == ("bus", "test", "train")


def test_corrupt_images_are_named_and_skipped(gray: torch.nn.Module, tmp_path: Path) -> None:
    for name, value in (("cat/a.png", 1), ("cat/b.png", 2), ("owl/c.png", 3), ("owl/d.jpg", 4)):
        picture(tmp_path / name, value)
    (tmp_path / "cat/a.png").write_bytes(b"not a picture")
    whole = (tmp_path / "owl/d.jpg").read_bytes()
    (tmp_path / "owl/d.jpg").write_bytes(whole[: len(whole) // 2])
    data = opened(tmp_path, gray)
    assert all_of(data.train)["image"].amax((1, 2, 3)).tolist() == [2, 3]
    said = next(note for note in data.notes if "skipped" in note)
    assert said.startswith(f"2 images of {tmp_path} can't be read, skipped: cat/a.png (")
    assert "owl/d.jpg (" in said


def test_unlabelled_images_can_be_predicted(gray: torch.nn.Module, tmp_path: Path) -> None:
    for name, value in (("b.png", 1), ("a.png", 2)):
        picture(tmp_path / name, value)
    data = open_data(tmp_path, gray, WHOLE, targets=False)
    assert all_of(data.train)["image"].amax((1, 2, 3)).tolist() == [2, 1]


def test_readable_files_of_large_folders_are_cached(
    gray: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxgen.training.data import looking

    looked = []
    look = looking._look_at_colours
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(looking, "MIN_CACHED", 2)
    monkeypatch.setattr(looking, "_look_at_colours", lambda path: looked.append(path.name) or look(path))
    for name in ("cat/a.png", "owl/b.png", "owl/c.png"):
        picture(tmp_path / "data" / name, 1)
    (tmp_path / "data/owl/c.png").write_bytes(b"nothing")
    first = opened(tmp_path / "data", gray)
    assert sorted(looked) == ["a.png", "b.png", "c.png"]
    again = opened(tmp_path / "data", gray)
    assert len(looked) == 3 and again.notes == first.notes
    (tmp_path / "data/cat/a.png").write_bytes(b"nothing at all")
    picture(tmp_path / "data/cat/new.png", 5)
    data = opened(tmp_path / "data", gray)
    assert sorted(looked[3:]) == ["a.png", "new.png"] and data.train is not None and len(data.train) == 2


# ---- objects ---------------------------------------------------------------------------------------------------------


class Drawn(Dataset[Any]):
    """Uses all three global generators, as transforms do."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import random

        return torch.tensor([random.random() + np.random.rand(), torch.rand(()).item() + 10 * index]), index % 3


def test_random_transforms_depend_only_on_seed_and_sample(vector: torch.nn.Module) -> None:
    data = opened(Drawn(), vector)
    assert data.train is not None
    import random

    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    whole = data.train.take(range(6), 5)["0"]
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]
    torch.manual_seed(99)
    for i in (4, 0, 5):
        assert torch.equal(data.train.take([i], 5)["0"][0], whole[i])
    assert torch.equal(data.train.take([3, 1], 5)["0"], whole[[3, 1]])
    assert not torch.equal(data.train.take(range(6), 6)["0"], whole)
    assert len((whole[:, 0]).unique()) == 6, "each sample draws its own"


class ByName(Drawn):
    def __getitem__(self, index: int) -> Any:
        return {"mask": np.float64(index), "x": [index, 1.5], "label": index % 2}


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        (torch.from_numpy(X), torch.from_numpy(Y)),
        {"train": (X, Y), "validation": (X[:2], Y[:2])},
        ((X, Y), (X[:2], Y[:2])),
        {"train": {"x": X, "y": Y}, "val": {"x": X[:2], "y": Y[:2]}},
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        [(x, int(y)) for x, y in zip(torch.from_numpy(X), Y)],
        {"train": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), "val": (X[:2], Y[:2])},
    ],
)
def test_objects(given: Any, vector: torch.nn.Module) -> None:
    data = opened(given, vector)
    feeding = feed(data, vector, WHOLE)
    batch = all_of(data.train)
    assert batch[feeding.inputs[0]].tolist() == X.astype(np.float32).tolist()
    assert batch[feeding.targets[0]].tolist() == Y.tolist() and batch[feeding.targets[0]].dtype == torch.int64
    if data.val is not None:
        assert len(data.val) == 2


def test_columns_of_a_dataset_by_name(vector: torch.nn.Module) -> None:
    data = opened(ByName(), vector)
    assert data.train is not None and set(data.train.fields) == {"x", "label"}, "what is not fed is not made"
    assert data.train.take([4, 2], 0)["x"].tolist() == [[4, 1.5], [2, 1.5]]


def test_data_is_returned_unchanged(vector: torch.nn.Module) -> None:
    data = opened((X, Y), vector)
    assert open_data(data, vector, WHOLE) is data


@pytest.mark.parametrize("returns", ["(x, y)", "{'train': (x, y)}", "[(x[i], int(y[i])) for i in range(5)]"])
def test_a_function_of_a_module_in_the_current_folder(
    returns: str, vector: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"made_{abs(hash(returns))}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\n\n\ndef data():\n    x, y = torch.arange(10.).reshape(5, 2), torch.arange(5) % 3\n"
        f"    return {returns}\n"
    )
    path = list(sys.path)
    try:
        data = opened(f"{name}:data", vector)
    finally:
        sys.modules.pop(name, None)
    assert all_of(data.train)["0"].tolist() == torch.arange(10.0).reshape(5, 2).tolist()
    assert sys.path == path


# ---- splits ----------------------------------------------------------------------------------------------------------


def test_a_split_is_stratified_and_depends_on_the_seed(vector: torch.nn.Module) -> None:
    labels = np.array([0] * 60 + [1] * 30 + [2] * 10)
    x = np.arange(200).reshape(100, 2)

    def parts(seed: int) -> list[list[int]]:
        data = opened((x, labels), vector, Settings(val=0.2, test=0.1, seed=seed))
        for samples, counts in ((data.val, [12, 6, 2]), (data.test, [6, 3, 1]), (data.train, [42, 21, 7])):
            assert all_of(samples)["target"].bincount().tolist() == counts
        return [(all_of(s)["0"][:, 0] / 2).long().tolist() for s in (data.train, data.val, data.test)]

    first = parts(0)
    assert sorted(sum(first, [])) == list(range(100)) and parts(0) == first
    assert [set(a) == set(b) for a, b in zip(parts(1), first)] == [False] * 3
    said = opened((x, labels), vector, Settings(val=0.2, test=0.1)).notes[0]
    drawn = "val and test drawn from train with seed 0: held_back.csv of the run lists them"
    assert said == f"samples: 70 train, 20 val, 10 test; {drawn}"


M, GAMMA = 2**64 - 1, 0x9E3779B97F4A7C15


def mixed(state: int) -> int:
    """One step of SplitMix64 in Python integers."""
    z = (state + GAMMA) & M
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M
    return z ^ (z >> 31)


def test_the_split_is_the_same_everywhere() -> None:
    """Another version of numpy or torch must not move a sample from test to train."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]  # published for the seed 1234567
    assert [mixed(1234567 + k * GAMMA) for k in range(3)] == known
    keys = [mixed(mixed(mixed((mixed(7) + 0) & M) + i)) for i in range(10)]
    assert bits(7, range(10), 1)[:, 0].tolist() == keys
    data = from_object((np.arange(10), np.zeros(10)), "ten")
    assert isinstance(data, DataSource)
    split(data, "", Settings(val=0.3, seed=7))
    assert sorted(all_of(data.parts["val"])["0"].tolist()) == sorted(sorted(range(10), key=keys.__getitem__)[:3])


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_docs_list_every_recipe_and_file_type() -> None:
    page = (ROOT / "docs" / "DATA.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in RECIPES) and all(f"`{ending}`" in page for ending in FILES)
