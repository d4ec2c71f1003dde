"""Data that does not fit is reported before the first epoch, with a way out."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings
from onnxgen.training.data import Data, check, feed, open_data
from tests.training.small import network

X, Y = np.random.default_rng(0).normal(size=(10, 5)), np.arange(10) % 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a model with these inputs; each is made once."""

    @cache
    def of(classes: int = 3, rows: int = 7, **inputs: Any) -> nn.Module:
        return network(tmp_path_factory.mktemp("check"), classes=classes, rows=rows, **inputs)

    return of


def checked(spec: Any, network: nn.Module, **settings: Any) -> Data:
    given = Settings(**{"val": 0.2, "batch_size": 4} | settings)
    data = open_data(spec, network, given)
    check(network, data, feed(data, network, given), given)
    return data


def said(spec: Any, network: nn.Module, **settings: Any) -> str:
    with pytest.raises(OnnxgenError) as caught:
        checked(spec, network, **settings)
    return str(caught.value)


# ---- shapes and dtypes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, dims, gives",
    [((10, 5), (4,), "[n, 5]"), ((10, 5), (5, 2), "[n, 5]"), ((10,), ("length", 3), "[n]"), ((10, 2, 3), (6, 1), None)],
)
def test_shapes(shape: tuple[int, ...], dims: tuple[Any, ...], gives: str | None, model: Any) -> None:
    network = model(x=("float32", ("batch", *dims)))
    takes = f"[{', '.join(map(str, ('batch', *dims)))}]"
    gives = gives or "[n, 2, 3]"
    assert said({"x": np.zeros(shape), "y": Y}, network) == (
        f"input 'x' takes {takes}, but column 'x' gives {gives}"
        " -> change the data, or generate the model for this shape with --input-shape"
    )


def test_images_of_floating_point_are_not_resized(model: Any) -> None:
    network = model(image=("float32", ("batch", 1, 6, 5)))
    assert said((np.zeros((10, 7, 7)), Y), network) == (
        "input 'image' takes [batch, 1, 6, 5], but column '0' gives [n, 7, 7]"
        " -> images as uint8 are resized and converted; or generate the model with --input-shape"
    )


@pytest.mark.parametrize(
    "shape, dims",
    [
        ((10, 5), (5,)),
        ((10, 5), (5, 1)),
        ((10, 5), ("length", 1)),
        ((10, 5, 1), (5,)),
        ((10,), (1,)),
        ((10, 2, 3), (6,)),
        ((10, 5), ("length",)),
    ],
)
def test_axes_of_size_one_are_added_and_removed(shape: tuple[int, ...], dims: tuple[Any, ...], model: Any) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    data = checked({"x": x, "y": Y}, model(x=("float32", ("batch", *dims))), val=0)
    assert data.train is not None
    fed = data.train.take(range(10), 0)["x"]
    assert fed.ndim == len(dims) + 1 and np.array_equal(fed.flatten().numpy(), x.flatten().astype(np.float32))


@pytest.mark.parametrize(
    "column, dtype, has, way",
    [
        (np.zeros(10), "int64", "float32", "store whole numbers"),
        (np.zeros(10, np.float32), "int32", "float32", "store whole numbers"),
        (np.zeros(10), "bool", "float32", "store it as bool"),
        (np.zeros(10, np.int64), "bool", "int64", "store it as bool"),
    ],
)
def test_dtypes(column: Any, dtype: str, has: str, way: str, model: Any) -> None:
    network = model(x=(dtype, ("batch",)))
    assert said({"x": column, "y": Y}, network) == f"input 'x' takes {dtype}, but column 'x' holds {has} -> {way}"


@pytest.mark.parametrize("stored", ["uint8", "int16", "int32", "int64", "uint16", "bool", "float64", "float16"])
def test_numbers_are_converted_to_the_dtype_of_the_input(stored: str, model: Any) -> None:
    for dtype in ("float32", "float64") if stored in ("bool", "float64", "float16") else ("float32", "int64", "int32"):
        data = checked({"x": np.arange(10).astype(stored), "y": Y}, model(x=(dtype, ("batch",))), val=0)
        assert data.train is not None
        fed = data.train.take(range(10), 0)["x"]
        assert fed.dtype == getattr(torch, dtype) and fed.tolist() == np.arange(10).astype(stored).tolist()


def test_integers_too_large_for_the_input_are_refused(model: Any) -> None:
    x = np.arange(10)
    x[7] = 2**40
    assert said({"x": x, "y": Y}, model(x=("int32", ("batch",))), val=0) == (
        "column 'x' of train has 1099511627776 in row 7: input 'x' takes int32, up to 2147483647"
        " -> remove the sample, or renumber the values"
    )


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value, shown", [(np.nan, "nan"), (-np.inf, "-inf")])
def test_inputs_that_are_not_finite_are_refused(value: float, shown: str, model: Any) -> None:
    x = X.copy()
    x[8, 2] = value
    message = f"has {shown} in row 8 -> remove the sample, or fill in the value"
    network = model(x=("float32", ("batch", 5)))
    assert said({"x": x, "y": Y}, network, val=0) == f"column 'x' of train {message}"
    found = {said({"x": x, "y": Y}, network, val=0.5, seed=seed) for seed in range(8)}
    assert found == {f"column 'x' of {part} {message}" for part in ("train", "val")}, "the row as it was read"
    assert (
        said([(torch.tensor(a, dtype=torch.float32), 1) for a in x], network, val=0) == f"column '0' of train {message}"
    )


def test_numbers_too_large_for_the_input_are_refused(model: Any) -> None:
    x = X.copy()
    x[8, 2] = -1e39
    assert said({"x": x, "y": Y}, model(x=("float32", ("batch", 5))), val=0) == (
        "column 'x' of train has -1e+39 in row 8 -> remove the sample, or fill in the value"
    )
    checked({"x": x, "y": Y}, model(x=("float64", ("batch", 5))), val=0)


def test_missing_numbers_of_a_table(model: Any) -> None:
    given = {"a": np.arange(10.0), "b": np.where(np.arange(10) == 4, np.nan, 1), "label": Y}
    assert said(given, model(x=("float32", ("batch", 2))), val=0, inputs={"x": "a+b"}) == (
        "column 'a+b' of train has nan in row 4 -> remove the sample, or fill in the value: --table auto"
    )


def test_targets_that_are_not_finite_are_refused(model: Any) -> None:
    y = np.zeros((10, 3))
    y[4, 1] = np.nan
    network = model(x=("float32", ("batch", 5)))
    message = "column 'target' of train has nan in row 4 -> remove the sample, or fill in the value"
    assert said((X, y), network, val=0, loss="mse_loss") == message
    assert said([(torch.zeros(5), row) for row in torch.from_numpy(y)], network, val=0, loss="mse_loss") == message


def test_samples_are_read_once(model: Any) -> None:
    network, read = model(x=("float32", ("batch", 5))), []

    class Counted:
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return torch.zeros(5), index % 3

    data = open_data(Counted(), network, Settings(val=0))
    read.clear()
    check(network, data, feed(data, network, Settings(val=0)), Settings(val=0))
    assert len(read) == 502, "500 that are looked at, and 2 that are tried"


def test_classes_out_of_range(model: Any) -> None:
    network = model(x=("float32", ("batch", 5)))
    labels = Y.copy()
    labels[6] = 3
    assert said((X, labels), network) == (
        "the data has 4 classes (0, 1, 2, ...), but the model has 3 -> --replace-head 4"
    )
    labels = Y.copy()
    labels[6] = -1
    assert said((X, labels), network, val=0) == (
        "column 'target' of train has -1 in row 6: the model's 3 classes are 0 to 2 -> count the classes from 0"
    )
    items = [(torch.zeros(5), 3 if i == 4 else 0) for i in range(10)]
    assert said(items, network, val=0) == (
        "column 'target' has the labels 0, 3 (3 in row 4), but the model's 3 are 0 to 2"
        " -> number them 0 to 1; --replace-head 4 keeps their numbers"
    )


def test_fewer_classes_are_a_note(model: Any) -> None:
    network = model(x=("float32", ("batch", 5)))
    data = checked((X, np.arange(10) % 2), network)
    assert "the model has 3 classes, the data 2: --replace-head 2 fits the model to the data" in data.notes
    assert not any("replace-head" in note for note in checked((X, Y), network).notes)


def test_regression_targets_are_not_taken_for_classes(model: Any) -> None:
    network = model(x=("float32", ("batch", 5)))
    checked((X, np.random.default_rng(0).normal(size=(10, 3))), network, loss="mse_loss")
    checked((X, np.full((10, 3), 7)), network, loss="mse_loss")


@pytest.mark.parametrize("loss", ["auto", "mse", "huber"])
def test_names_are_not_trained_as_numbers(loss: str, model: Any) -> None:
    network, kinds = model(classes=1, x=("float32", ("batch", 5))), np.array(["cat", "dog", "owl"])[Y]
    assert said((X, kinds), network, loss=loss) == (
        "target 'target' holds 3 names (cat, dog, owl), but output 'scores' is one number for each sample"
        " -> store numbers, if the names stand for some; or make it a classifier: --replace-head 3"
    )
    checked((X, kinds), model(classes=3, x=("float32", ("batch", 5))))
    checked((X, kinds[:, None] == "cat"), network)
    checked((X, kinds == "cat"), network)
    checked((X, np.where(kinds == "cat", "yes", "no")), network)
    checked((X, Y), network, loss="mse")


class Positions(nn.Module):
    """Scores for each position, [n, length, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids)


def test_classes_of_positions() -> None:
    ids = np.random.default_rng(0).integers(0, 7, (10, 5))
    labels = ids % 4
    labels[:, 0] = -100  # ignored, as in torch
    checked((ids, labels), Positions())
    labels[3, 2] = 4
    assert said((ids, labels), Positions(), val=0) == (
        "column 'target' of train has 4 in row 3: the model's 4 classes are 0 to 3 -> --replace-head 5"
    )


def test_indices_out_of_range_of_an_embedding_are_refused(model: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 7, (10, 5))
    network = model(ids=("int64", ("batch", "length")), mask=("int64", ("batch", "length")))
    mask = np.ones_like(ids)
    checked({"ids": ids, "mask": mask, "label": Y}, network)
    way = "the numbers must come from the same preprocessing as in training, for example the tokenizer"
    for wrong in (7, -1):
        ids[9, 1] = wrong
        assert said({"ids": ids, "mask": mask, "label": Y}, network, val=0) == (
            f"column 'ids' of train has {wrong} in row 9: embed has 7 rows -> {way}"
        )
    small = np.clip(ids, 0, 6).astype(np.uint8)
    checked(
        {"ids": small, "mask": mask, "label": Y},
        model(ids=("int64", ("batch", "length")), mask=("int64", ("batch", "length")), rows=300),
        val=0,
    )
    ids[0, 0] = 8  # among the samples that are tried
    assert said({"ids": ids, "mask": mask, "label": Y}, network, val=0) == (
        f"column 'ids' of train has 8 in row 0: embed has 7 rows -> {way}"
    )
    checked({"ids": mask, "mask": ids, "label": Y}, network)


class Packed(nn.Module):
    """Three embeddings, each of a column of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.city, self.kind, self.year = nn.Embedding(5, 2), nn.Embedding(3, 2), nn.Embedding(9, 2)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        kind, year = x[:, 1:].t().unbind(0)
        scores: Tensor = self.fc(
            torch.cat([self.city(x[:, 0]), self.kind(kind), self.year(year.reshape(-1, 1)).squeeze(1)], 1)
        )
        return scores


def test_each_column_of_a_packed_input_is_checked_against_its_own_embedding(tmp_path: Path) -> None:
    way = "the numbers must come from the same preprocessing as in training, for example the tokenizer"
    ids = np.stack([np.arange(10) % 5, np.arange(10) % 3, np.arange(10) % 9], 1)
    checked({"x": ids, "label": Y}, Packed(), val=0)
    for row in (0, 7):  # among the samples that are tried, and among the others
        wrong = ids.copy()
        wrong[row] = 5, 4, 8
        assert said({"x": wrong, "label": Y}, Packed(), val=0).splitlines() == [
            f"column 'x'[:, 0] of train has 5 in row {row}: city has 5 rows -> {way}",
            f"column 'x'[:, 1] of train has 4 in row {row}: kind has 3 rows -> {way}",
        ]
    (tmp_path / "t.csv").write_text("town,sort,year,label\n" + "4,2,8,0\n1,1,1,1\n2,2,9,2\n" + "0,0,0,0\n" * 9)
    assert said(tmp_path / "t.csv", Packed(), val=0, inputs={"x": "town+sort+year"}) == (
        f"column 'year' of train has 9 in row 2: year has 9 rows -> {way}"
    )


def test_numbers_that_are_computed_with_are_not_those_of_the_column() -> None:
    class Shifted(Packed):
        def forward(self, x: Tensor) -> Tensor:
            moved = x.clone()
            moved[:, 1] += 1
            moved[:, 2] = 0
            return super().forward(moved)

    ids = np.stack([np.arange(10) % 5, np.arange(10) % 2, np.arange(10) + 100], 1)
    checked({"x": ids, "label": Y}, Shifted(), val=0)


def test_several_places_of_a_sample() -> None:
    class Halves(Positions):
        def forward(self, ids: Tensor) -> Tensor:
            return self.embed(ids[:, 1:]).mean(1)  # type: ignore[no-any-return]

    ids = np.random.default_rng(0).integers(0, 7, (10, 5))
    ids[:, 0] = 99  # this one is not looked up
    labels = np.arange(10) % 4
    checked((ids, labels), Halves(), val=0)
    ids[6, 3] = 7
    message = said((ids, labels), Halves(), val=0)
    assert message.startswith("column '0', at 4 places from 1, of train has 7 in row 6: embed has 7 rows")


# ---- batches and parts -----------------------------------------------------------------------------------------------


def test_a_fixed_batch_size(model: Any) -> None:
    network = model(x=("float32", (4, 5)))
    checked((X, Y), network, val=0)
    again = "generate the model again with --dynamic-batch"
    assert said((X, Y), network, val=0, batch_size=8) == (
        f"input 'x' [4, 5] fixes the batch at 4, but --batch-size is 8 -> --batch-size 4, or {again}"
    )
    given = {"train": (X, Y), "val": (X[:6], Y[:6])}
    assert said(given, network) == f"input 'x' [4, 5] fixes the batch at 4, but the val part has 6 samples -> {again}"
    held = checked((X, Y), network, val=0.2).val
    assert held is not None and len(held) == 4, "what is drawn is a whole batch"


def test_empty_parts_are_refused(model: Any) -> None:
    network = model(x=("float32", ("batch", 5)))
    assert said({"train": (X, Y), "val": (X[:0], Y[:0])}, network) == (
        "the val part of data is empty -> add samples to it, or remove the part"
    )


def test_fewer_samples_than_a_batch_are_a_note(model: Any) -> None:
    data = checked((X, Y), model(x=("float32", ("batch", 5))), batch_size=64)
    assert "a batch has only 8 samples: the train part has no more" in data.notes


def test_all_problems_are_reported_together(model: Any) -> None:
    network = model(x=("float32", (4, 5)), t=("int64", (4,)))
    message = said({"x": X[:, :3], "t": X[:, 0], "y": Y}, network, batch_size=2, val=0)
    assert [line.split(" -> ")[0] for line in message.splitlines()] == [
        "input 'x' [4, 5] fixes the batch at 4, but --batch-size is 2",
        "input 't' [4] fixes the batch at 4, but --batch-size is 2",
        "input 'x' takes [4, 5], but column 'x' gives [n, 3]",
        "input 't' takes int64, but column 't' holds float32",
    ]


# ---- the model is tried ----------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A model that onnxgen did not write, so its inputs are unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.drop(self.norm(self.fc(x)))
        return found


def test_an_error_of_the_model_is_reported() -> None:
    message = said((X, Y), Odd())
    assert message.startswith("the model fails on a batch of 0 [2, 5] float32: RuntimeError: mat1 and mat2 shapes")


def test_checking_does_not_change_the_model() -> None:
    network = Odd().train()
    network.norm.eval()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    random_state = torch.get_rng_state()
    python_state = random.getstate()
    checked((X[:, :4], Y), network)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert network.training and network.drop.training and not network.norm.training
    assert torch.equal(torch.get_rng_state(), random_state) and random.getstate() == python_state
    assert not network.fc._forward_pre_hooks and network.fc.weight.grad is None


def test_the_classes_of_a_replaced_head_count(model: Any, tmp_path: Path) -> None:
    changed = network(tmp_path, x=("float32", ("batch", 5)))
    changed.fc = nn.Linear(1, 5)  # type: ignore[assignment]
    checked((X, np.arange(10) % 5), changed)
    assert said((X, np.arange(10) % 6), changed).endswith("but the model has 5 -> --replace-head 6")


@pytest.mark.parametrize(
    "labels, classes, message",
    [
        (
            [5, 6, 7],
            3,
            "labels 5, 6, 7 \\(. in row .\\), but the model's 3 are 0 to 2 -> number them 0 to 2; --replace-head 8",
        ),
        ([0, 2, 9, 4], 3, "labels 0, 2, 4, 9 .* -> number them 0 to 3 and --replace-head 4; --replace-head 10"),
        ([0, 3], 3, "labels 0, 3 .*, but the model's 3 are 0 to 2 -> number them 0 to 1; --replace-head 4 keeps"),
        (
            [0, 10**6, 1],
            3,
            "labels 0, 1, 1000000 .1000000 in row .., but .* -> number them 0 to 2; --replace-head 1000001",
        ),
    ],
)
def test_labels_with_gaps_are_listed(labels: list[int], classes: int, message: str, model: Any) -> None:
    network = model(classes, x=("float32", ("batch", 5)))
    assert re.search(message, said((X, np.resize(labels, 10)), network))
