"""Read shards that are larger than memory: rate, memory, and the order of a resumed epoch.

    python -m benchmarks.streaming [--size 20] [--kinds tar,parquet,tokens] [--folder FOLDER] [--json FILE]

Linux only. `--size` is the gigabytes of tar shards; Parquet and tokens get a tenth of it. The tar shards hold an `.npy`
of 150 KB and a `.cls` for each sample, the Parquet files rows of 256 float32 in row groups of 10,000, the tokens are
uint16 for blocks of 1,024. An epoch is read in shuffled batches, of tar with two workers, else in this process.

- `read`: gigabytes per second of plain reading of these bytes, by as many processes, each with its part of the files.
- `unpacked`: the shortest program that makes batches of the same samples, through torch's DataLoader with as many
  workers: tarfile and numpy, pyarrow, or numpy; file after file, not shuffled, and not resumable.
- `streamed`: our loader. `of unpacked` is the ratio of the rates. `CPU s/GB` are the CPU seconds of all processes for
  each gigabyte, unpacked and streamed: other work on the machine changes them less.
- `MB each`: the largest resident memory of a process, read every 0.2 s. `MB sum`: of all processes together, pages that
  they share counted once (Pss), beyond that of this process before the first batch.
- `resumed`: batches after the middle of the epoch that a new loader gave as the first did, of those that were compared,
  and the seconds until its first batch.

The system's cache of files is dropped before each reading, which needs root; otherwise the row says `cached`. The
folder needs the size once, and is removed.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import resource
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.common import arguments, finish
from onnxgen.training.data import open_data
from onnxgen.training.data.samples import Samples
from onnxgen.training.loader import Loader
from onnxgen.training.settings import Settings

GB = 10**9
BATCH = {"tar": 64, "parquet": 256, "tokens": 64}  # samples
COMPARED = 100  # batches after the middle
READERS = {"tar": 2, "parquet": 1, "tokens": 1}
WIDTH, ROW, BLOCK = 75_000, 256, 1024  # numbers: of a sample in tar (float16), of a row, tokens of a block
SHARD = GB // 2


class Vectors(nn.Module):
    """Takes what a sample holds, as it is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.float().mean(1, keepdim=True))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1 << 16, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(input_ids)


def tar_shards(folder: Path, size: float) -> None:
    random, sizes, each = np.random.default_rng(0), {}, SHARD // (2 * WIDTH)
    for shard in range(max(1, round(size * GB / SHARD))):
        path = folder / f"train-{shard:03}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(each):
                file = BytesIO()
                np.save(file, random.integers(0, 1 << 14, WIDTH, np.uint16).view(np.float16))
                for ending, content in (("npy", file.getvalue()), ("cls", str(i % 10).encode())):
                    member = tarfile.TarInfo(f"{shard:03}{i:06}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, BytesIO(content))
        sizes[path.name] = each
    (folder / "sizes.json").write_text(json.dumps(sizes))


def parquet_shards(folder: Path, size: float) -> None:
    import pyarrow
    from pyarrow import parquet

    random, rows = np.random.default_rng(0), 100_000
    for shard in range(max(1, round(size * GB / (rows * ROW * 4)))):
        x = pyarrow.array(random.random(rows * ROW, np.float32))
        columns = {"x": pyarrow.FixedSizeListArray.from_arrays(x, ROW), "label": np.arange(rows) % 10}
        table = pyarrow.table(columns)
        parquet.write_table(table, folder / f"train-{shard:03}.parquet", row_group_size=10_000, compression="none")


def token_files(folder: Path, size: float) -> None:
    random = np.random.default_rng(0)
    with open(folder / "train.bin", "wb") as file:
        for _ in range(max(1, round(size * GB / SHARD))):
            file.write(random.integers(0, 1 << 16, SHARD // 2, np.uint16).tobytes())


class Unpacked(IterableDataset):  # type: ignore[type-arg]
    """Batches of files in order; each worker has its part of the files."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        for path in self.paths if worker is None else self.paths[worker.id :: worker.num_workers]:
            yield from {".tar": of_tar, ".parquet": of_parquet, ".bin": of_tokens}[path.suffix](path)


def of_tar(path: Path) -> Iterator[Any]:
    x: list[np.ndarray] = []
    labels = []
    with tarfile.open(path) as tar:
        for member in tar:
            tar.members = []
            content = tar.extractfile(member)
            assert content is not None
            if member.name.endswith("npy"):
                x.append(np.load(BytesIO(content.read())))
            else:
                labels.append(int(content.read()))
            if len(labels) == BATCH["tar"]:
                yield torch.from_numpy(np.stack(x)), torch.tensor(labels)
                x, labels = [], []


def of_parquet(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    for batch in parquet.ParquetFile(path).iter_batches(BATCH["parquet"], use_threads=False):
        x = batch["x"].flatten().to_numpy().reshape(-1, ROW)
        yield torch.from_numpy(x.copy()), torch.from_numpy(batch["label"].to_numpy().copy())


def of_tokens(path: Path) -> Iterator[Any]:
    tokens = np.memmap(path, np.uint16, "r")
    tokens = tokens[: len(tokens) // BLOCK * BLOCK].reshape(-1, BLOCK)
    for start in range(0, len(tokens), BATCH["tokens"]):
        yield torch.from_numpy(tokens[start : start + BATCH["tokens"]].astype(np.int64))


def unpacked(paths: list[Path], kind: str) -> float:
    """Return the seconds of an epoch."""
    begun = time.monotonic()
    for _ in DataLoader(Unpacked(paths), batch_size=None, num_workers=workers_of(kind)):
        pass
    return time.monotonic() - begun


def read(paths: list[Path]) -> None:
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def by_processes(work: Callable[[list[Path]], None], paths: list[Path], count: int) -> float:
    """Return the seconds that processes take, each with a part of the files."""
    begun = time.monotonic()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(paths[i::count],)) for i in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.monotonic() - begun


def forget() -> bool:
    """Drop the system's cache of files; False if that is not allowed."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


class Memory(threading.Thread):
    """Watches the memory of this process and its children: the largest of one, and the most of all, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.each = self.sum = 0
        self.stopped = False
        self.before = psutil.Process().memory_full_info().pss

    def run(self) -> None:
        own = psutil.Process()
        while not self.stopped:
            try:
                found = [process.memory_full_info() for process in (own, *own.children(recursive=True))]
                self.each = max(self.each, *(facts.rss for facts in found))
                self.sum = max(self.sum, sum(facts.pss for facts in found) - self.before)
            except psutil.Error:
                pass  # a worker that has just ended
            time.sleep(0.2)


def digest(batch: dict[str, torch.Tensor]) -> str:
    """Return a digest of the beginning of each sample."""
    found = (column.reshape(len(column), -1)[:, :32].contiguous().view(torch.uint8) for column in batch.values())
    return hashlib.sha256(b"".join(column.numpy().tobytes() for column in found)).hexdigest()


def workers_of(kind: str) -> int:
    return READERS[kind] if READERS[kind] > 1 else 0


def loader(samples: Samples, kind: str) -> Loader:
    return Loader(samples, BATCH[kind], shuffle=True, seed=1, workers=workers_of(kind))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(facts.ru_utime + facts.ru_stime for facts in found)


def streamed(samples: Samples, kind: str) -> tuple[float, list[str], Memory]:
    """Return the seconds of an epoch, some batches after its middle, and the memory that it took."""
    memory, found, count, made = Memory(), [], 0, loader(samples, kind)
    middle = len(made) // 2
    memory.start()
    begun = time.monotonic()
    for number, batch in enumerate(made):
        if middle <= number < middle + COMPARED:
            found.append(digest(batch))
        count += len(next(iter(batch.values())))
    seconds, memory.stopped = time.monotonic() - begun, True
    assert count == len(samples), f"{count} samples of {len(samples)}"
    return seconds, found, memory


def resumed(samples: Samples, kind: str, found: list[str]) -> str:
    made = loader(samples, kind)
    made.load_state_dict({**made.state_dict(), "given": len(made) // 2})
    begun, first, same = time.monotonic(), 0.0, 0
    for batch, wanted in zip(made, found):
        first = first or time.monotonic() - begun
        same += digest(batch) == wanted
    return f"{same} of {len(found)}, {first:.1f} s"


def measured(kind: str, size: float, folder: Path) -> dict[str, Any]:
    write = {"tar": tar_shards, "parquet": parquet_shards, "tokens": token_files}[kind]
    write(folder, size)
    paths = sorted(path for path in folder.iterdir() if path.suffix != ".json")
    gigabytes = sum(path.stat().st_size for path in paths) / GB
    settings, model = Settings(val=0, normalize="none"), Vectors() if kind != "tokens" else Language()
    samples = open_data(str(folder), model, settings, targets=True) if kind != "tokens" else None
    if samples is None:
        samples = open_data(str(folder), model, Settings(val=0, max_length=BLOCK))
    train = samples.train
    assert train is not None
    cold = forget()
    rates = {"read": gigabytes / by_processes(read, paths, READERS[kind])}
    forget()
    before = cpu_seconds()
    rates["unpacked"] = gigabytes / unpacked(paths, kind)
    gc.collect()  # the workers end
    between = cpu_seconds()
    forget()
    seconds, found, memory = streamed(train, kind)
    gc.collect()
    costs = [(between - before) / gigabytes, (cpu_seconds() - between) / gigabytes]
    rates["streamed"] = gigabytes / seconds
    row = {"kind": kind, "GB": f"{gigabytes:.1f}", "samples": f"{len(train):,}", "files": "cold" if cold else "cached"}
    row |= {name: f"{rate:.2f}" for name, rate in rates.items()}
    row |= {"of unpacked": f"{rates['streamed'] / rates['unpacked']:.2f}", "CPU s/GB": "{:.2f}, {:.2f}".format(*costs)}
    row |= {"MB each": f"{memory.each / 1e6:,.0f}", "MB sum": f"{memory.sum / 1e6:,.0f}"}
    return row | {"resumed": resumed(train, kind, found)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", type=float, default=20, help="gigabytes of tar shards")
    parser.add_argument("--kinds", default="tar,parquet,tokens")
    parser.add_argument("--folder", type=Path, help="default: the system's folder for temporary files")
    given = parser.parse_args()
    rows = []
    for kind in given.kinds.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            rows.append(measured(kind, given.size if kind == "tar" else given.size / 10, Path(folder)))
    finish(rows, given.json)


if __name__ == "__main__":
    main()
