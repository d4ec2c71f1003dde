"""Nine ways to train faster, or in less memory, measured one by one on the MNIST sample's network.

    python -m samples.speed.run [--seconds 1.5]

Each row is a loop beside another that differs in one thing, in turn in the same run. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from onnxgen.training import Settings, devices
from onnxgen.training.data import Samples, open_data
from onnxgen.training.loader import Loader
from samples.common import ROOT, Row, markdown, onnxgen
from samples.speed import memory, parallel
from samples.speed.loops import Training, side_by_side

HEADER = ("speed-up", "before", "after", "images/s", "ratio", "memory", "onnxgen train")
PHOTOS, PHOTO = 64, (320, 240)  # how many JPEG files, and their size
BATCH = 64


class Table:
    """Measures the rows; `seconds` is the time that one loop is measured for, of six a row."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.model = folder / "model.py"
        onnxgen(ROOT / "samples" / "mnist" / "mnist.onnx", "-o", self.model)

    def rows(self) -> Iterator[Row]:
        """One by one, each when it is measured."""
        photos = self.photos()
        yield ("DataLoader", "files read between steps", "by 1 worker, meanwhile", *self.loading(photos, 0, 1), "", "")
        yield ("workers", "1 worker", "2 workers", *self.loading(photos, 1, 2), "", "`--workers`")
        yield ("batch size", "8", "128", *self.sized(8, 128), "", "`--batch-size`")
        yield self.accumulated()
        yield self.detached()
        yield self.on_device()
        yield ("16-bit", "float32", "bfloat16 autocast", *self.half(), "", "`--precision bf16-mixed`")
        yield ("data parallel", "1 process", "2 processes", *self.parallel(1), "", "`--devices 2`")
        yield ("several nodes", "1 node", "2 nodes (of this machine)", *self.parallel(2), "", "`--nodes 2`")

    def compare(self, before: Callable[[], int], after: Callable[[], int], device: str = "cpu") -> tuple[str, str]:
        return shown(*side_by_side(before, after, self.seconds, device))

    def photos(self) -> Samples:
        """A folder of JPEG files, as a person would have it: in each batch they are decoded and made smaller."""
        random = np.random.default_rng(0)
        for i in range(PHOTOS):
            folder = self.folder / "photos" / str(i % 10)
            folder.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(random.integers(0, 256, (12, 16), np.uint8))
            coarse.resize(PHOTO, Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")
        network = Training(self.model).model
        found = open_data(self.folder / "photos", network, Settings(val=0.0, normalize="0.5,0.5")).train
        assert found is not None
        return found

    def loading(self, photos: Samples, before: int, after: int) -> tuple[str, str]:
        training = Training(self.model)
        loops = []
        for workers in (before, after):
            batches = forever(Loader(photos, 16, shuffle=True, workers=workers))
            loops.append(lambda batches=batches: training.step(*next(batches)))
        return self.compare(*loops)

    def sized(self, before: int, after: int) -> tuple[str, str]:
        training = Training(self.model)
        small, large = training.batch(before), training.batch(after)
        return self.compare(lambda: training.step(*small), lambda: training.step(*large))

    def accumulated(self) -> Row:
        training = Training(self.model)
        batch, parts = training.batch(memory.BATCH), memory.PARTS
        rates = self.compare(lambda: training.step(*batch), lambda: training.step(*batch, parts))
        after = f"{parts} of {memory.BATCH // parts}, summed"
        needed = self.needed("whole", "accumulated")
        return ("accumulation", f"a batch of {memory.BATCH}", after, *rates, needed, "`--accumulate`")

    def detached(self) -> Row:
        training, needed = Training(self.model), self.needed("kept", "detached")
        kept, detached = (lambda d=d: memory.look(training, memory.LOOKED_AT, 4, d) for d in (False, True))
        rates = self.compare(kept, detached)
        before = f"{memory.LOOKS} losses summed with their graphs"
        return ("detached losses", before, "each one detached", *rates, needed, "always")

    def on_device(self) -> Row:
        name, *others = [d.torch_device for d in devices() if str(d.torch_device) != "cpu"] or [None]
        row = ("device", "cpu")
        if name is None:
            return (*row, "not run: no such device", "", "", "", "`--device`")
        here, there = Training(self.model), Training(self.model, str(name))
        batch, same = here.batch(BATCH), there.batch(BATCH)
        rates = self.compare(lambda: here.step(*batch), lambda: there.step(*same), str(name))
        return (*row, str(name), *rates, "", "`--device`")

    def half(self) -> tuple[str, str]:
        full, half = Training(self.model), Training(self.model, half=True)
        batch = full.batch(BATCH)
        return self.compare(lambda: full.step(*batch), lambda: half.step(*batch))

    def needed(self, *loops: str) -> str:
        """MiB that two loops of `samples.speed.memory` need at most, each in a process of its own."""
        before, after = (float(child("samples.speed.memory", self.model, loop)) for loop in loops)
        return f"{before:,.0f} -> {after:,.0f} MiB"

    def parallel(self, nodes: int) -> tuple[str, str]:
        """Two processes that torchrun starts: on one node, or one on each of two."""
        command = ["torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}"]
        command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        script = ["-m", "samples.speed.parallel", self.model, str(max(2, round(20 * self.seconds)))]
        started = [start(*command, f"--node-rank={rank}", *script) for rank in range(nodes)]
        said = finish_together(started)
        before, after = said[0].split()
        return shown(float(before), float(after))


def shown(before: float, after: float) -> tuple[str, str]:
    return f"{before:,.0f} -> {after:,.0f}", f"{after / before:.2f}"


def forever(loader: Loader) -> Iterator[tuple[torch.Tensor, ...]]:
    for _ in cycle([0]):
        for batch in loader:
            yield tuple(batch.values())


def start(*command: object) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", *map(str, command)]
    return subprocess.Popen(words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, process.args))}\n{errors[-2000:]}")
    return said


def finish_together(started: list[subprocess.Popen[str]]) -> list[str]:
    """What all of them said; where one fails, the others are stopped, which would wait for it."""
    codes = [process.poll() for process in started]
    while None in codes and not any(codes):
        time.sleep(0.1)
        codes = [process.poll() for process in started]
    for process, code in zip(started, codes, strict=True):
        if code is None:
            process.terminate()
    failed = [process for process, code in zip(started, codes, strict=True) if code]
    return [finish(process) for process in failed or started]


def child(*command: object) -> str:
    return finish(start(*command))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="that each loop is measured for, six times a row")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in Table(Path(folder), args.seconds).rows():
            rows.append(row)
            print(*filter(None, row), sep="; ", flush=True)
    print(f"\n{torch.get_num_threads()} threads, batches of {BATCH} if nothing else is said; of several processes,")
    print(f"each has one thread and a batch of {parallel.BATCH}. Memory is what the network itself does not need.\n")
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    main()
