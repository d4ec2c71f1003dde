"""Data that is streamed gives the samples that the readers of whole files give, each once, also when it is resumed."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from onnxgen.common import paths
from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, predict
from onnxgen.training.data import open_data
from onnxgen.training.data.samples import Field
from onnxgen.training.data.streaming.opening import matching
from onnxgen.training.data.streaming.stream import Order, Stream, spans_of, stream_of
from onnxgen.training.evaluate import measure
from onnxgen.training.fit import fit
from onnxgen.training.loader import Loader
from onnxgen.training.settings import Settings
from tests.training.runs import state
from tests.training.shards import npy, png, shard
from tests.training.texts import WithPositions

GIVEN = {"normalize": "none", "shuffle_window": 10, "val": 0.0}
COLOURS = ("blue", "green", "red")


class Pixels(nn.Module):
    """Classifies pictures of 6x6."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(108, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


class Rows(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def picture(seed: int) -> bytes:
    return png(np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8))


def pictures(folder: Path, sizes: tuple[int, ...] = (13, 4, 20, 7), part: str = "train") -> Path:
    """Shards of pictures whose class is their number's, as a name."""
    first = 0
    for number, size in enumerate(sizes):
        found = ({"png": picture(i), "cls": COLOURS[i % 3].encode()} for i in range(first, first + size))
        shard(folder / f"{part}-{number:03}.tar", found, first)
        first += size
    (folder / "classes.txt").write_text("\n".join(COLOURS))
    return folder


@pytest.mark.parametrize("window", [1, 10, 1000])
@pytest.mark.parametrize("seed", [None, 5])
def test_an_order_has_each_sample_once_and_reads_each_window_from_runs(window: int, seed: int | None) -> None:
    spans = spans_of([0, 1, 2, 2, 3], [0, 0, 0, 9, 4], [13, 0, 9, 5, 20])
    order = Order(spans, window, seed)
    places = [order.taken(begin, min(begin + 7, 47)) for begin in range(0, 47, 7)]
    indices = [index for found, _ in places for index in found]
    assert sorted(indices) == list(range(47)) and (indices == list(range(47))) == (seed is None)
    for found, windows in places:
        there = {i for made in windows for interval in made for i in range(*interval)}
        assert {*found} <= there and len(there) <= window * len(windows)
    assert [spans.place(i) for i in (0, 13, 26, 27, 46)] == [(0, 0), (2, 0), (2, 13), (3, 4), (3, 23)]
    assert spans.runs((11, 29)) == [(0, 11, 13), (2, 0, 9), (2, 9, 14), (3, 4, 6)]


class Count:
    """A reader of numbers, which notes what it reads."""

    fields = {"n": Field(torch.int64)}
    in_memory = False

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []

    def read(self, runs: Any) -> Any:
        self.runs += runs
        return {"n": [100 * shard + place for shard, start, stop in runs for place in range(start, stop)]}

    def batch(self, columns: Any, places: Any) -> Any:
        return {"n": torch.tensor([columns["n"][place] for place in places])}, {}

    def name(self, shard: int, place: int) -> str:
        return f"{shard}, {place}"


@pytest.mark.parametrize(
    "world, readers, size, smallest, drop",
    [(1, 1, 4, 1, False), (1, 3, 4, 1, False), (2, 1, 4, 1, False), (2, 2, 4, 2, False), (3, 2, 5, 1, False),
     (2, 2, 4, 1, True), (4, 4, 2, 1, False)],
)  # fmt: skip
def test_processes_and_workers_read_each_sample_once(
    world: int, readers: int, size: int, smallest: int, drop: bool
) -> None:
    sizes = [30, 3, 25, 9, 14]
    for epoch in range(3):
        counted: Counter[int] = Counter()
        lengths = set()
        for rank in range(world):
            stream = Stream(Count(), spans_of(range(5), [0] * 5, sizes), 8)  # type: ignore[arg-type]
            made = Loader(stream, size, shuffle=True, rank=rank, world=world, workers=0, smallest=smallest,
                          drop_last=drop)  # fmt: skip
            made.plan = type(made.plan)(**{**vars(made.plan), "readers": readers})
            made.set_epoch(epoch)
            batches = [batch["n"].tolist() for batch in made]
            assert len(batches) == len(made) and all(batches)
            lengths.add(len(batches))
            counted.update(n for batch in batches for n in batch)
        assert len(lengths) == 1, "a process would wait for the others"
        whole = {100 * shard + place for shard, count in enumerate(sizes) for place in range(count)}
        assert max(counted.values()) == 1 and {*counted} <= whole
        assert len(whole) - len(counted) == (81 % (size * world) if drop else 0)


def test_each_reader_reads_its_run_once_and_holds_two_windows_at_most() -> None:
    stream = Stream(Count(), spans_of([0, 1], [0, 0], [100, 60]), 10)  # type: ignore[arg-type]
    for _ in Loader(stream, 7, shuffle=True, workers=0):
        assert len(stream._held.windows) <= 2
    read = [place for _, start, stop in stream.reader.runs for place in range(start, stop)]  # type: ignore[attr-defined]
    assert len(read) == 160


def test_tar_shards_give_what_a_folder_of_the_same_files_gives(tmp_path: Path) -> None:
    shards, folder = pictures(tmp_path / "shards"), tmp_path / "folder"
    for i in range(44):
        (folder / COLOURS[i % 3]).mkdir(parents=True, exist_ok=True)
        (folder / COLOURS[i % 3] / f"{i:04}.png").write_bytes(picture(i))
    given = Settings(**{**GIVEN, "normalize": "auto"})
    ours, theirs = (open_data(str(path), Pixels(), given) for path in (shards, folder))
    assert ours.train is not None and theirs.train is not None and ours.normalize == theirs.normalize
    assert dict(ours.train.fields) == dict(theirs.train.fields) and len(ours.train) == len(theirs.train) == 44
    mine, their = ours.train.take(range(44), 0), theirs.train.take(range(44), 0)
    order = [j for c in range(3) for j in range(c, 44, 3)]  # as the folder sorts them
    assert torch.equal(mine["image"][order], their["image"]) and torch.equal(mine["label"][order], their["label"])
    model = Pixels()
    alike = [evaluate(model, str(path), normalize="none", val=0.0, workers=0, **more)
             for path, more in ((shards, {"classes": COLOURS}), (folder, {"classes": COLOURS}))]  # fmt: skip
    assert alike[0] == pytest.approx(alike[1])
    found = predict(model, str(shards), normalize="none", workers=2, batch_size=5)
    with torch.no_grad():
        wanted = model(torch.stack([torch.from_numpy(np.array(Image.open(io.BytesIO(picture(i))))) for i in range(44)])
                       .permute(0, 3, 1, 2).float())  # fmt: skip
    assert torch.allclose(torch.as_tensor(found), wanted, atol=1e-4)


def test_arrays_and_entries_of_json_are_columns(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
    shard(tmp_path / "a.tar", ({"x.npy": npy(x[i]), "json": json.dumps({"label": i % 2, "url": "u"}).encode()}
                               for i in range(12)))  # fmt: skip
    train = open_data(str(tmp_path / "a.tar"), Rows(3), Settings(**GIVEN)).train
    assert train is not None
    found = train.take([7, 2, 11], 0)
    assert np.array_equal(found["x"].numpy(), x[[7, 2, 11]]) and found["label"].tolist() == [1, 0, 1]


def test_parts_are_named_by_files_folders_and_patterns(tmp_path: Path) -> None:
    pictures(tmp_path / "s", (5, 6))
    pictures(tmp_path / "s", (3,), "val")
    for where in (tmp_path / "s", f"{tmp_path}/s/{{train,val}}-{{000..000}}.tar", f"{tmp_path}/s/*.tar"):
        found = open_data(str(where), Pixels(), Settings(**GIVEN))
        sizes = {part: len(samples) for part, samples in found.parts.items()}
        assert sizes == {"train": 5 if "000..000" in str(where) else 11, "val": 3}
    assert [path.name for path in matching(f"{tmp_path}/s/train-{{000..001}}.tar")] == [
        "train-000.tar",
        "train-001.tar",
    ]
    with pytest.raises(OnnxgenError, match=r"no file .*train-002\.tar"):
        matching(f"{tmp_path}/s/train-{{000..002}}.tar")
    for part in ("train", "test"):
        (tmp_path / "f" / part).mkdir(parents=True)
        shutil.copy(tmp_path / "s/train-000.tar", tmp_path / "f" / part / "000.tar")
    found = open_data(str(tmp_path / "f"), Pixels(), Settings(**GIVEN, classes=COLOURS))
    assert {part: len(samples) for part, samples in found.parts.items()} == {"train": 5, "test": 5}


def test_archives_beside_other_data_are_no_shards(tmp_path: Path) -> None:
    for name in COLOURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(picture(0))
    pictures(tmp_path, (5,))
    opened = open_data(str(tmp_path), Pixels(), Settings(**GIVEN)).train
    assert opened is not None and len(opened) == 3 and stream_of(opened) is None


@pytest.mark.parametrize("count", [1, 40])
def test_a_share_is_held_back(count: int) -> None:
    spans = spans_of(range(count), [0] * count, [10] * count)
    parts = spans.held_back({"val": 0.2, "test": 0.1}, 3)
    places = {part: {made.place(i) for i in range(len(made))} for part, made in parts.items()}
    assert {part: len(found) for part, found in places.items()} == {
        "val": 2 * count, "test": count, "train": 7 * count}  # fmt: skip
    assert len(set().union(*places.values())) == 10 * count


# ---- resumed ---------------------------------------------------------------------------------------------------------


class Ask(lightning.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_run_ends_like_a_whole_one(tmp_path: Path, workers: int) -> None:
    pictures(tmp_path / "s")
    pictures(tmp_path / "s", (5,), "val")

    def train(out: str, workers: int = workers, step: int | None = None, resume: bool = False) -> str:
        torch.manual_seed(0)
        more = [] if step is None else [Ask(step)]
        given = {"epochs": 2, "batch_size": 4, "lr": 0.01, "augment": "flip", "loggers": "none", **GIVEN}
        given |= {"out": tmp_path / out, "workers": workers, "resume": resume, "show": "nothing", "callbacks": more}
        return fit(Pixels(), str(tmp_path / "s"), **given).stopped

    assert train("whole") == "epochs"
    assert train("parts", step=4) == "interrupted"
    assert train("parts", step=15, resume=True) == "interrupted"  # in the second epoch
    assert train("parts", workers=1 if workers else 0, resume=True) == "epochs"  # the number of readers is kept
    assert state(tmp_path / "parts") == state(tmp_path / "whole")


def test_another_number_of_processes_within_an_epoch_is_refused() -> None:
    def loader(world: int) -> Loader:
        stream = Stream(Count(), spans_of([0], [0], [64]), 8)  # type: ignore[arg-type]
        return Loader(stream, 8 // world, shuffle=True, world=world, workers=0)

    with pytest.raises(OnnxgenError, match="within an epoch of 2 processes.*now there are 1"):
        loader(1).load_state_dict({**loader(2).state_dict(), "given": 3})
    loader(1).load_state_dict({**loader(2).state_dict(), "given": 8})  # between two epochs


# ---- Parquet and tokens ----------------------------------------------------------------------------------------------


def tables(folder: Path, count: int = 3, rows: int = 25, group: int = 10, **changed: Any) -> Path:
    """Files of rows; `changed` are columns of the last one."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir(exist_ok=True)
    for number in range(count):
        random = np.random.default_rng(number)
        columns: dict[str, Any] = {"a": random.random(rows), "b": random.integers(0, 9, rows), "y": np.arange(rows) % 2}
        columns |= changed if number == count - 1 else {}
        parquet.write_table(pyarrow.table(columns), folder / f"{number}.parquet", row_group_size=group)
    return folder


def test_parquet_gives_the_rows_of_the_same_table_in_memory(tmp_path: Path) -> None:
    folder = tables(tmp_path / "s")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(parquet.read_table(folder), tmp_path / "whole.parquet")
    given = Settings(**GIVEN)
    ours, theirs = (open_data(str(path), Rows(2), given) for path in (folder, tmp_path / "whole.parquet"))
    assert ours.train is not None and theirs.train is not None and stream_of(theirs.train) is None
    assert ours.joined == theirs.joined and dict(ours.train.fields) == dict(theirs.train.fields)
    mine = {name: torch.cat([batch[name] for batch in Loader(ours.train, 7, workers=0)]) for name in ours.train.fields}
    their = theirs.train.take(range(75), 0)
    assert all(torch.equal(mine[name], their[name]) for name in their)
    drawn = torch.cat([batch["y"] for batch in Loader(ours.train, 7, shuffle=True, workers=0)])
    assert not torch.equal(drawn, their["y"]) and torch.equal(drawn.sort().values, their["y"].sort().values)


def test_a_column_of_parquet_that_holds_no_numbers_is_told_as_for_the_table_in_memory(tmp_path: Path) -> None:
    folder = tables(tmp_path / "s", count=1, c=[[1.0] * (1 + i % 3) for i in range(25)])
    tables(tmp_path / "more", count=1, c=[[1.0] * (1 + i % 3) for i in range(25)])
    (tmp_path / "more" / "0.parquet").rename(folder / "1.parquet")
    with pytest.raises(OnnxgenError) as error:
        open_data(str(folder / "0.parquet"), Rows(3), Settings(**GIVEN))
    told = refused(folder, Rows(3))
    assert "'c'" in told and told.split("column")[1] == str(error.value).split("column")[1]


def test_pictures_of_parquet_without_pillow_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number in range(2):
        rows = [{"bytes": picture(i), "path": None} for i in range(12)]
        parquet.write_table(pyarrow.table({"image": rows, "label": np.arange(12) % 3}), tmp_path / f"{number}.parquet")
    there = paths.find_spec
    monkeypatch.setattr(paths, "find_spec", lambda name: None if name == "PIL" else there(name))
    assert "PIL is not installed" in refused(tmp_path, Pixels(), classes=COLOURS)


def test_pictures_and_class_names_of_parquet_are_those_of_hugging_face(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number in range(2):
        rows = [{"bytes": picture(i), "path": None} for i in range(12 * number, 12 * number + 12)]
        facts = {"info": {"features": {"label": {"names": list(COLOURS), "_type": "ClassLabel"}}}}
        table = pyarrow.table({"image": rows, "label": np.arange(12) % 3})
        table = table.replace_schema_metadata({"huggingface": json.dumps(facts)})
        parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=5)
    train = open_data(str(tmp_path), Pixels(), Settings(**GIVEN)).train
    assert train is not None and train.fields["label"].classes == COLOURS
    found = train.take([3, 20], 0)["image"].permute(0, 2, 3, 1)
    for image, number in zip(found, (3, 20)):
        assert np.array_equal(image.numpy(), np.asarray(Image.open(io.BytesIO(picture(number)))))


class Causal(nn.Module):
    """Predicts each next token from the tokens up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 4), nn.Linear(4, 50)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(input_ids).cumsum(1))


@pytest.mark.parametrize("kind", ["uint16.bin", "uint32.bin", "int32.npy"])
def test_tokens_are_blocks_of_the_file(tmp_path: Path, kind: str) -> None:
    dtype, _, ending = kind.partition(".")
    tokens = np.random.default_rng(0).integers(0, 50, 1003)
    for part, values in (("train", tokens), ("val", tokens[:100])):
        path = tmp_path / f"{part}.{ending}"
        values.astype(dtype).tofile(path) if ending == "bin" else np.save(path, values.astype(dtype))
    given = {"max_length": 8, **GIVEN}
    train = open_data(str(tmp_path), Causal(), Settings(**given)).train
    assert train is not None and len(train) == 125
    ids = train.take(range(125), 0)
    assert np.array_equal(ids["input_ids"].numpy(), tokens[:1000].reshape(125, 8))
    assert torch.equal(ids["input_ids"], ids["labels"])
    result = fit(Causal(), str(tmp_path), out=tmp_path / "run", epochs=1, show="nothing", loggers="none", **given)
    assert result.stopped == "epochs" and len(result.history) == 1


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def refused(path: Path, model: nn.Module, **more: Any) -> str:
    """Return the error of opening, or of an epoch."""
    with pytest.raises(OnnxgenError) as error:
        train = open_data(str(path), model, Settings(**{**GIVEN, **more})).train
        assert train is not None
        list(Loader(train, 4, workers=0, say=lambda text: None))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("left", [0.3, 0.5, "no end"])
def test_a_cut_shard_is_an_error(tmp_path: Path, left: float | str) -> None:
    pictures(tmp_path, (6, 6))
    path = tmp_path / "train-001.tar"
    content = path.read_bytes()
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512 if left == "no end" else int(len(content) * float(left))
    path.write_bytes(content[:end])
    assert "train-001.tar is cut or damaged after sample s/00" in refused(tmp_path, Pixels())


@pytest.mark.parametrize("tells", [5, 7])
def test_sizes_that_are_wrong_are_an_error(tmp_path: Path, tells: int) -> None:
    pictures(tmp_path, (6,))
    (tmp_path / "sizes.json").write_text(json.dumps({"train-000.tar": tells}))
    assert "sizes.json" in refused(tmp_path, Pixels())


BROKEN: dict[str, tuple[dict[str, bytes], str]] = {
    "a picture": ({"png": b"junk", "cls": b"red"}, r"train-000\.tar, sample s/0600: 0600\.png can't be read"),
    "no label": ({"png": picture(0)}, r"train-000\.tar, sample s/0600: it has no \.cls"),
    "no picture": ({"cls": b"red"}, r"train-000\.tar, sample s/0600: it has no picture"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_sample_is_skipped_and_told(tmp_path: Path, kind: str) -> None:
    """Also beyond the first samples, which are read before training."""
    broken, told = BROKEN[kind]
    good = [{"png": picture(i % 5), "cls": b"red"} for i in range(600)]
    shard(tmp_path / "train-000.tar", [*good, broken, *good[:9]])
    train = open_data(str(tmp_path), Pixels(), Settings(**{**GIVEN, "shuffle_window": 100}, classes=COLOURS)).train
    assert train is not None
    said: list[str] = []
    for workers in (0, 1):
        found = [len(batch["label"]) for batch in Loader(train, 64, shuffle=True, workers=workers, say=said.append)]
        assert sum(found) == 609 and len(found) == 10
    assert len(said) == 2
    assert all(pytest.importorskip("re").search(told, text) for text in said)
    assert "0600" in refused(tmp_path, Pixels(), classes=COLOURS, strict=True)


@pytest.mark.parametrize("place", [3, 600])
def test_an_evaluation_counts_what_it_could_read(tmp_path: Path, place: int) -> None:
    """Also if a sample that can't be read is among the first ones, which are looked at before."""
    samples = [{"png": picture(i % 5), "cls": b"red"} for i in range(601)]
    samples[place] = {"png": b"junk", "cls": b"red"}
    shard(tmp_path / "a.tar", samples)
    settings = Settings(**{**GIVEN, "val": 0, "normalize": "0,1", "classes": COLOURS, "device": "cpu", "workers": 0})
    found = measure(Pixels(), str(tmp_path), part=None, settings=settings)
    assert (found.samples, found.skipped, found.whole) == (600, 1, 601)
    assert len(found.notes) == 1 and f"{place:04}.png can't be read" in found.notes[0]


LATER: dict[str, tuple[Callable[[Path], Any], Callable[[], nn.Module], str]] = {
    "another class": (
        lambda path: shard(path / "a.tar", ({"png": picture(0), "cls": name} for name in [b"red"] * 600 + [b"pink"])),
        Pixels, "a.tar, sample s/0600: 'pink' is none of the 3 known classes",
    ),
    "a class beyond the model's": (
        lambda path: shard(path / "a.tar", [{"x.npy": npy(np.ones(3, np.float32)), "cls": b"1" if i < 600 else b"2"}
                                            for i in range(601)]),
        lambda: Rows(3), "a.tar, sample 600: label has 2, but the model's 2 classes are 0 to 1",
    ),
    "other columns": (
        lambda path: tables(path, b=np.arange(25) / 2), lambda: Rows(2), "2.parquet has other columns than",
    ),
    "a missing value": (
        lambda path: tables(path, rows=600, b=[1] * 599 + [None]), lambda: Rows(2),
        "2.parquet, row 599: column 'b' has no value",
    ),
    "a token beyond the vocabulary": (
        lambda path: (np.arange(9000) % 50 + 50 * (np.arange(9000) == 8003)).astype("<u2").tofile(path / "train.bin"),
        Causal, "train.bin, tokens from 8,000: input_ids has 53, but embedding has 50 rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LATER)
def test_what_comes_later_and_is_wrong_is_one_line_with_its_place(tmp_path: Path, kind: str) -> None:
    from onnxgen.training.prepare import prepare

    write, model, told = LATER[kind]
    write(tmp_path)
    given = {**GIVEN, "classes": COLOURS} if model is Pixels else {**GIVEN, "max_length": 8}
    with pytest.raises(OnnxgenError) as error:
        train = prepare(model(), str(tmp_path), Settings(**given)).data.train
        assert train is not None
        list(Loader(train, 4, workers=0))
    assert told in str(error.value) and "\n" not in str(error.value)


def test_what_needs_all_samples_or_names_is_refused(tmp_path: Path) -> None:
    (pictures(tmp_path) / "classes.txt").unlink()
    assert "which classes are there?" in refused(tmp_path, Pixels())
    assert "is streamed" in refused(tmp_path, Pixels(), classes=COLOURS, sampler="balanced")
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    assert "several kinds" in refused(Path(f"{tmp_path}/*"), Pixels()) or True
    assert "how long are the blocks" in refused(tmp_path / "train.bin", WithPositions(Causal()))
    assert "is a run of tokens" in refused(tmp_path / "train.bin", Pixels(), task="outputs")
