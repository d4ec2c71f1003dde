"""Columns of a table are encoded as scikit-learn does it, fitted to the training part alone, and kept as plain data."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, evaluate, fit, predict
from onnxgen.training.config import read_config, write_config
from onnxgen.training.data import Data, check, feed, open_data
from onnxgen.training.data.preprocessing import Column, Table
from tests.training.small import network

RNG = np.random.default_rng(0)
N = 60
AGE = np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(40, 12, N).round(1))
INCOME = RNG.lognormal(8, 2, N)
CITY = np.where(RNG.random(N) < 0.15, None, RNG.choice(["Bern", "Basel", "Zug, old", 'a "b" = c'], N))
ROOMS = RNG.integers(1, 5, N)
LABEL = np.arange(N) % 3
COLUMNS = {"age": AGE, "city": CITY, "income": INCOME, "rooms": ROOMS}


def written(path: Path, rows: Any = slice(None), between: str = ",", **columns: Any) -> Path:
    """Write the table (or some of its rows) as CSV; NaN and None are empty."""
    columns = {**COLUMNS, "label": LABEL, **columns}

    def cell(value: Any) -> str:
        text = "" if value is None or value != value else value if isinstance(value, str) else repr(value)
        return '"' + text.replace('"', '""') + '"' if {*text} & {between, '"'} else text

    lines = zip(*(np.asarray(values)[rows].tolist() for values in columns.values()))
    path.write_text("\n".join([between.join(columns), *(between.join(map(cell, line)) for line in lines)]) + "\n")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a model with these inputs; each is made once."""

    @cache
    def of(**inputs: Any) -> nn.Module:
        return network(tmp_path_factory.mktemp("table"), **inputs)

    return of


def opened(spec: Any, network: nn.Module, **settings: Any) -> Data:
    given = Settings(**{"val": 0.25, "batch_size": 4, "table": "auto"} | settings)
    data = open_data(spec, network, given)
    check(network, data, feed(data, network, given), given)
    return data


def said(spec: Any, network: nn.Module, **settings: Any) -> str:
    with pytest.raises(OnnxgenError) as caught:
        opened(spec, network, **settings)
    return str(caught.value)


def taken(data: Data, part: str, column: str = "x") -> Any:
    samples = data.parts[part]
    return samples.take(range(len(samples)), 0)[column].numpy()


def rows_of(data: Data, part: str) -> Any:
    return data.parts[part].samples.rows.numpy()  # type: ignore[attr-defined]


def sklearns(rows: Any, **steps: Any) -> Any:
    """Return scikit-learn's own transform of the columns, fitted to some rows of them, as doubles [N, width]."""
    names = list(COLUMNS)
    given = np.empty((N, len(names)), dtype=object)
    for i, values in enumerate(COLUMNS.values()):
        given[:, i] = values
    made = ColumnTransformer([(name, step, [names.index(name)]) for name, step in steps.items()], sparse_threshold=0)
    return made.fit(given[rows]).transform(given).astype(np.float64)


def impute(strategy: str) -> SimpleImputer:
    return SimpleImputer(strategy=strategy, missing_values=None if strategy == "most_frequent" else np.nan)


def number() -> Any:
    return make_pipeline(impute("median"), StandardScaler())


# ---- as scikit-learn does it -----------------------------------------------------------------------------------------


def test_auto_is_what_scikit_learn_computes(model: Any, tmp_path: Path) -> None:
    """To the last bit, in the training part and in the one that was split off and took no part in the fitting."""
    network = model(x=("float32", ("batch", 7)))
    data = opened(written(tmp_path / "t.csv"), network)
    rows = rows_of(data, "train")
    assert len(rows) == 45 and np.isnan(AGE[rows]).any() and np.isnan(AGE).sum() > np.isnan(AGE[rows]).sum()
    city = make_pipeline(impute("most_frequent"), OneHotEncoder(sparse_output=False))
    expected = sklearns(rows, age=number(), city=city, income=number(), rooms=number())
    assert not np.array_equal(expected, sklearns(range(N), age=number(), city=city, income=number(), rooms=number()))
    for part in ("train", "val"):
        assert np.array_equal(taken(data, part), expected[rows_of(data, part)].astype(np.float32))
    assert data.table is not None and np.array_equal(data.table.transform(COLUMNS)["x"], expected)
    way = "age=median+scale, city=frequent+onehot, income=median+scale, rooms=median+scale"
    assert f"table, fitted to the train part: {way}" in data.notes


def test_auto_takes_the_encoding_whose_width_is_that_of_the_input(model: Any, tmp_path: Path) -> None:
    data = opened(written(tmp_path / "t.csv"), model(x=("float32", ("batch", 4))))
    city = make_pipeline(impute("most_frequent"), OrdinalEncoder())
    expected = sklearns(rows_of(data, "train"), age=number(), city=city, income=number(), rooms=number())
    assert np.array_equal(taken(data, "val"), expected[rows_of(data, "val")].astype(np.float32))
    open_width = opened(tmp_path / "t.csv", model(x=("float32", ("batch", "width"))))
    assert taken(open_width, "train").shape == (45, 7)


@pytest.mark.parametrize(
    "way, step",
    [
        ("scale", StandardScaler()),
        ("onehot", OneHotEncoder(sparse_output=False)),
        ("ordinal", OrdinalEncoder()),
        ("median+onehot", make_pipeline(impute("median"), OneHotEncoder(sparse_output=False))),
        ("", "passthrough"),
    ],
)
def test_ways_to_treat_numbers(way: str, step: Any, model: Any, tmp_path: Path) -> None:
    ways = {"city": "onehot+zeros", "age": "median"} | ({"rooms": way} if way else {})
    data = opened(written(tmp_path / "t.csv"), model(x=("float32", ("batch", "width"))), table=ways)
    rows = rows_of(data, "train")
    known = sorted({*CITY[rows]} - {None})
    city = OneHotEncoder(categories=[known], handle_unknown="ignore", sparse_output=False)
    expected = sklearns(rows, age=impute("median"), city=city, income="passthrough", rooms=step)
    assert data.table is not None and np.array_equal(data.table.transform(COLUMNS)["x"], expected)
    assert np.array_equal(taken(data, "val"), expected[rows_of(data, "val")].astype(np.float32))


def test_a_constant_and_extreme_numbers(model: Any) -> None:
    columns = {"one": np.full(N, 7.25), "huge": INCOME * 1e100, "tiny": INCOME * 1e-300, "t": ROOMS * 10**18 + 1}
    data = opened({**columns, "label": LABEL}, model(x=("float32", ("batch", 4))), val=0)
    each = [StandardScaler().fit_transform(v.astype(np.float64)[:, None]) for v in columns.values()]
    assert data.table is not None and np.array_equal(data.table.transform(columns)["x"], np.concatenate(each, 1))


def test_inputs_of_whole_numbers_get_categories(tmp_path: Path) -> None:
    """One column for each input: text becomes the index of an embedding; whole numbers stay as they are."""
    network_ = network(
        tmp_path, rows=5, ids=("int64", ("batch",)), rooms=("int32", ("batch", 1)), age=("float32", ("n",))
    )
    table = {"city": "frequent+ordinal", "age": "median+scale"}
    for asked in ("auto", table):
        data = opened(written(tmp_path / "t.csv"), network_, table=asked, inputs={"ids": "city"})
        rows = rows_of(data, "val")
        steps = {"age": number(), "city": make_pipeline(impute("most_frequent"), OrdinalEncoder())}
        expected = sklearns(rows_of(data, "train"), **steps)[rows]
        assert taken(data, "val", "city").dtype == np.int64 and np.array_equal(
            taken(data, "val", "city"), expected[:, 1]
        )
        assert np.array_equal(taken(data, "val", "age"), expected[:, 0].astype(np.float32))
        assert taken(data, "val", "rooms").dtype == np.int32 and taken(data, "val", "rooms").shape == (15, 1)
        assert np.array_equal(taken(data, "val", "rooms")[:, 0], ROOMS[rows])


def test_parquet_and_objects_have_the_same_gaps(model: Any, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    network = model(x=("float32", ("batch", 7)))
    expected = taken(opened(written(tmp_path / "t.csv"), network), "train")
    gapless = {name: [None if v is None or v != v else v for v in x.tolist()] for name, x in COLUMNS.items()}
    pq.write_table(pa.table({**gapless, "label": LABEL}), tmp_path / "t.parquet")
    assert np.array_equal(taken(opened(tmp_path / "t.parquet", network), "train"), expected)
    assert np.array_equal(taken(opened({**COLUMNS, "label": LABEL}, network), "train"), expected)
    tensors = {n: torch.from_numpy(x) if x.dtype != object else x for n, x in COLUMNS.items()}
    assert np.array_equal(taken(opened({**tensors, "label": torch.tensor(LABEL)}, network), "train"), expected)


# ---- kept, and applied to other data ---------------------------------------------------------------------------------


def test_a_table_is_kept_as_plain_data(model: Any, tmp_path: Path) -> None:
    network = model(x=("float32", ("batch", 7)))
    first = opened(written(tmp_path / "t.csv"), network)
    assert first.table is not None
    kept = first.table.to_json()
    again = Table.from_json(json.loads(json.dumps(kept)))
    assert again == first.table and again.to_json() == kept
    write_config(tmp_path / "config.toml", Settings(table=kept), {})
    asked = read_config(tmp_path / "config.toml")["table"]
    assert Table.from_json(asked) == first.table

    some = [3, 50, 7]
    (tmp_path / "new").mkdir()
    turned = {name: COLUMNS[name] for name in ("rooms", "city", "income", "age")}
    path = written(tmp_path / "new" / "n.csv", some, between=";", label=LABEL, more=np.zeros(N))
    data = open_data(path, network, Settings(table=asked, val=0), targets=False)
    expected = first.table.transform({n: v[some] for n, v in turned.items()})["x"].astype(np.float32)
    assert np.array_equal(taken(data, "train"), expected) and data.table == first.table


def test_transforming_needs_no_scikit_learn(monkeypatch: pytest.MonkeyPatch, model: Any, tmp_path: Path) -> None:
    network = model(x=("float32", ("batch", 7)))
    table = opened(written(tmp_path / "t.csv"), network).table
    assert table is not None
    monkeypatch.setitem(sys.modules, "sklearn.impute", None)
    assert opened(tmp_path / "t.csv", network, table=table.to_json()).table == table
    assert said(tmp_path / "t.csv", network).startswith("--table needs scikit-learn -> pip install ")


def test_other_data_that_a_table_can_not_represent(model: Any, tmp_path: Path) -> None:
    network = model(x=("float32", ("batch", 7)))
    data = opened(written(tmp_path / "t.csv"), network)
    assert data.table is not None
    table = data.table.to_json()
    strange = CITY.copy()
    strange[4] = "Chur"
    way = "change it, remove the sample, or fit a table that takes it, as --table COLUMN=median, COLUMN=frequent, or "
    way += "COLUMN=onehot+zeros for categories that the training part does not have"
    for column, values, has in (
        ("city", strange, "'Chur' in row 4"),
        ("city", ROOMS, f"{str(ROOMS[0])!r} in row 0"),  # text in training, so text here
        ("age", CITY, f"{CITY[0]!r} in row 0"),
        ("income", np.where(np.arange(N) == 5, np.nan, INCOME), None),
        ("income", np.where(np.arange(N) == 5, -np.inf, INCOME), "-inf in row 5"),
    ):
        path = written(tmp_path / "o.csv", **{column: values})
        if has:
            assert said(path, network, table=table, val=0) == f"column {column!r} of train has {has} -> {way}"
        else:
            opened(path, network, table=table, val=0)
    (tmp_path / "o.csv").write_text("age,city,label\n1,Bern,0\n")
    assert said(tmp_path / "o.csv", network, table=table, val=0).splitlines() == [
        "--table: the data has no column 'income' (it has age, city, label)",
        "--table: the data has no column 'rooms' (it has age, city, label)",
    ]
    assert said(tmp_path / "t.csv", network, table=table, inputs={"x": "city+age"}) == (
        "input 'x' is made of city, age, but the table was fitted to age, city, income, rooms"
        " -> give the columns and inputs of the training"
    )
    other = model(y=("float32", ("batch", 7)))
    assert said(tmp_path / "t.csv", other, table=table).startswith("which column feeds y? ")
    assert said(tmp_path / "t.csv", other, table=table, inputs={"y": "age+city"}) == (
        "input 'y' is made of age, city, but the table was fitted to no column"
        " -> give the columns and inputs of the training"
    )
    empty = opened(written(tmp_path / "o.csv", age=np.full(N, np.nan), city=np.full(N, None)), network, table=table)
    fill = {name: data.table.columns[name].fill for name in ("age", "city")}
    filled = data.table.transform({**COLUMNS, "age": [fill["age"]] * N, "city": [fill["city"]] * N})["x"]
    assert np.array_equal(taken(empty, "val"), filled[rows_of(empty, "val")].astype(np.float32))


def test_a_category_that_only_the_validation_part_has(model: Any) -> None:
    train = {"city": np.array(["a", "b"] * 4), "label": LABEL[:8]}
    val = {"city": np.array(["a", "c"]), "label": LABEL[:2]}
    network = model(x=("float32", ("batch", 2)))
    assert said({"train": train, "val": val}, network).startswith("column 'city' of val has 'c' in row 1 -> ")
    data = opened({"train": train, "val": val}, network, table={"city": "onehot+zeros"})
    assert taken(data, "val").tolist() == [[1, 0], [0, 0]] and data.table is not None
    alone = opened({"test": val}, network, table=data.table.to_json())
    assert taken(alone, "test").tolist() == [[1, 0], [0, 0]]
    assert said({"test": val}, network) == "data has no train part, to which a table is fitted"


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"inputs": {"x": ["a"]}},
        {"inputs": {"x": ["a"]}, "columns": {}},
        {"inputs": {"x": ["a"]}, "columns": {"a": {"mean": "no"}}},
        {"inputs": {"x": ["a"]}, "columns": {"a": {"scale": 0}}},
        {"inputs": {"x": ["a"]}, "columns": {"a": {"categories": []}}},
        {"inputs": {"x": ["a"]}, "columns": {"a": {"categories": ["b", 1]}}},
        {"inputs": {"x": ["a"]}, "columns": {"a": {"fill": "b"}}},
        {"inputs": {"x": ["a"]}, "columns": {"a": {"other": 1}}},
        {"inputs": {"x": "a"}, "columns": {"a": 1}},
    ],
)
def test_what_is_no_table(kept: Any) -> None:
    with pytest.raises(OnnxgenError, match="^this is not a fitted table: "):
        Table.from_json(kept)


def test_numbers_written_by_hand() -> None:
    table = Table.from_json({"inputs": {"x": ["a"]}, "columns": {"a": {"mean": 1, "scale": 2}}})
    assert table == Table({"x": ("a",)}, {"a": Column(mean=1.0, scale=2.0)})
    assert table.transform({"a": [1, 5]})["x"].tolist() == [[0], [2]]
    with pytest.raises(OnnxgenError, match="^the data has no column 'a' -> "):
        table.transform({"b": [1]})


# ---- training --------------------------------------------------------------------------------------------------------


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)  # type: ignore[no-any-return]


def test_a_run_applies_its_table_to_other_data(tmp_path: Path) -> None:
    network, settings = Linear(), Settings(epochs=1, device="cpu", workers=0, out=tmp_path / "run", table="auto")
    path = written(tmp_path / "t.csv")
    fit(network, path, settings=settings, show="nothing")
    table = Table.from_json(read_config(tmp_path / "run" / "config.toml")["table"])
    with torch.no_grad():
        expected = network(torch.from_numpy(table.transform(COLUMNS)["x"][:9]).float())
    few = written(tmp_path / "few.csv", slice(9))
    found = predict(network, few, device="cpu", workers=0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        predict(network, few, settings=settings), expected
    )  # these ask to fit one: it is not done

    other = Linear()
    other.load_state_dict(network.state_dict())
    torch.testing.assert_close(predict(other, few, table=table.to_json(), device="cpu", workers=0), expected)
    measured = evaluate(other, path, table=table.to_json(), device="cpu", workers=0)
    assert measured == evaluate(network, path, device="cpu", workers=0)
    for asked in ("auto", {"age": "median"}):
        with pytest.raises(OnnxgenError, match="^a table is fitted to training data, not to what is evaluated -> "):
            evaluate(other, path, table=asked, device="cpu", workers=0)


def test_a_resumed_run_has_the_table_of_its_beginning(tmp_path: Path) -> None:
    path, found = written(tmp_path / "t.csv"), []
    given: dict[str, Any] = {"device": "cpu", "workers": 0, "table": "auto", "show": "nothing"}
    for epochs, resume in ((1, False), (2, True)):
        torch.manual_seed(0)
        fit(Linear(), path, epochs=epochs, resume=resume, out=tmp_path / "run", **given)
        found.append(read_config(tmp_path / "run" / "config.toml")["table"])
    assert found[0] == found[1]


# ---- refused ---------------------------------------------------------------------------------------------------------

FORM = "none, auto, or COLUMN=HOW,... with HOW made of median or frequent, and scale, onehot, onehot+zeros or ordinal"


@pytest.mark.parametrize(
    "table, message",
    [
        ("yes", f"--table yes is no way to treat columns -> {FORM}"),
        ({"age": "mode"}, f"--table age=mode is no way to treat a column -> {FORM}"),
        ({"age": "median+frequent"}, f"--table age=median+frequent is no way to treat a column -> {FORM}"),
        ({"age": "scale+onehot"}, f"--table age=scale+onehot is no way to treat a column -> {FORM}"),
        ({"age": "ordinal+zeros"}, f"--table age=ordinal+zeros is no way to treat a column -> {FORM}"),
        ({"none": "scale"}, "--table none=scale: no input is made of such a column -> the inputs are made of "),
        ({"label": "scale"}, "--table label=scale: no input is made of such a column -> the inputs are made of "),
        ({"age": "median"}, "column 'city' holds text, but an input takes numbers -> encode it: --table auto, "),
        ({"city": "scale"}, "column 'city' holds text, but an input takes numbers -> encode it: --table auto, "),
        (
            {"city": "ordinal", "age": "median"},
            "column 'city' of train has no value in row {city} -> change it, remove the sample, or fit a table that ",
        ),
        (
            {"city": "frequent+onehot", "age": "median"},
            "input 'x' takes 9 numbers for each sample, but the columns become 7: age 1, city 4, income 1, rooms 1 -> ",
        ),
    ],
)
def test_refused(table: Any, message: str, model: Any, tmp_path: Path) -> None:
    message = message.replace("{city}", str(CITY.tolist().index(None)))
    network = model(x=("float32", ("batch", 9)))
    assert said(written(tmp_path / "t.csv"), network, table=table, val=0).splitlines()[0].startswith(message)


def test_columns_that_can_not_be_fitted(model: Any, tmp_path: Path) -> None:
    network = model(x=("float32", ("batch", 4)))
    leave = "leave it out: --inputs INPUT=COLUMN+COLUMN"
    assert said(written(tmp_path / "t.csv", age=np.full(N, np.nan)), network) == (
        f"column 'age' of the train part has no value at all -> {leave}"
    )
    infinite = AGE.copy()
    infinite[5] = np.inf
    assert said(written(tmp_path / "t.csv", age=infinite), network, val=0) == (
        f"column 'age' of the train part has infinite numbers -> {leave}"
    )
    assert said(written(tmp_path / "t.csv", age=INCOME * 1e300), network) == (
        "the numbers of column 'age' are too large to be scaled -> store smaller ones"
    )
    large = ROOMS * 2**53 + ROOMS % 2
    ways = {"city": "frequent+ordinal", "age": "median", "rooms": "ordinal"}
    assert said(written(tmp_path / "t.csv", rooms=large), network, table=ways, val=0) == (
        "the numbers of column 'rooms' are too large for categories -> store them as text"
    )
    labels = [None if i == 6 else int(v) for i, v in enumerate(LABEL)]
    assert "line 8: column 'label' has no value" in said(written(tmp_path / "t.csv", label=labels), network)


def test_data_without_single_columns(model: Any) -> None:
    assert said((RNG.random((10, 5)), LABEL[:10]), model(x=("float32", ("batch", 5)))) == (
        "--table: no input is made of columns with one number or text each -> --table none"
    )


def test_a_value_that_is_no_category_is_no_row_of_zeros_unless_that_is_asked() -> None:
    usual, zeros = (Column(categories=("a", "b"), onehot=True, **more) for more in ({}, {"zeros": True}))
    values = np.array(["b", "c"], object)
    np.testing.assert_array_equal(usual.transform(values), [[0, 1], [np.nan, np.nan]])
    np.testing.assert_array_equal(zeros.transform(values), [[0, 1], [0, 0]])
