"""Weights at the speed of the disk: a large model with external data, written as shards, and loaded again.

    python -m benchmarks.weights [--size 10] [--rounds 3] [--parts writing,loading,loaders] [--folder FOLDER]
                                 [--json FILE]

Linux only. The model is random numbers in layers of 256 MiB, `--size` GiB together; the folder needs three times that.

Generating: `onnxgen.generate`, from reading the model to the last rename, beside `cp` of the data file, in turns, with
what is read cached and not. Generating has what it wrote on disk (fsync) before it renames it, and `cp` has not: the
one row adds `sync FILE` to `cp`, the other does not.

Loading: `from_pretrained()`, which builds on `meta`, and then one element of each page of its tensors; beside reading
the same files to the end. Then one shard alone. Then by others' loaders: accelerate's `device_map`, half of the layers
left on disk; FSDP2 in two processes on gloo.

Memory is anonymous memory (RssAnon) at its peak, over that of the imports: pages of files can be dropped at any time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.common import arguments, environment, finish, interleaved, ratio
from benchmarks.memory import peak

GIB, MIB = 1 << 30, 1 << 20
WIDTH = 8192  # a layer of 256 MiB
Row = dict[str, Any]


def network(folder: Path, layers: int) -> Path:
    """Linear layers whose weights are random, written a layer at a time."""
    path, data = folder / "large.onnx", folder / "large.data"
    nodes, tensors = [], []
    block = np.random.default_rng(0).integers(0, 1 << 32, WIDTH * WIDTH, np.uint32)
    with open(data, "wb") as file:
        for n in range(layers):
            tensor = onnx.TensorProto(name=f"layers.{n}.weight", data_type=1, dims=[WIDTH, WIDTH])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            where = {"location": data.name, "offset": file.tell(), "length": block.nbytes}
            for key, value in where.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(((block + np.uint32(n)) & np.uint32(0x3F7FFFFF)).data)  # finite numbers
            tensors.append(tensor)
            x, y = f"h{n}" if n else "x", f"h{n + 1}" if n + 1 < layers else "y"
            nodes.append(helper.make_node("Gemm", [x, tensor.name], [y], f"/layers.{n}/Gemm", transB=1))
        file.flush()
        os.fsync(file.fileno())
    values = [helper.make_tensor_value_info(name, 1, ["batch", WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "large", values[:1], values[1:], tensors)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    return path


def drop(*files: Path) -> None:
    """Let the system forget what it has of files in memory; what is not on disk yet is written first."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def warm(*files: Path) -> None:
    """Have the system read files to the end."""
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)


def prepared(cached: bool, *files: Path) -> None:
    drop(*files)
    if cached:
        warm(*files)


# ---- writing ---------------------------------------------------------------------------------------------------------

GENERATE = """
import sys, time
import click, jinja2, black, numpy, onnx, onnx_ir, safetensors
import onnxgen.pipeline
from pathlib import Path
print("ready", flush=True), sys.stdin.readline()
options = onnxgen.Options(shard_size={shard_size})
start = time.perf_counter()
report = onnxgen.pipeline.generate(Path({path!r}), Path({out!r}), options).report
Path({out!r} + ".seconds").write_text(str(time.perf_counter() - start))
assert report.status == "written"
print("done", flush=True), sys.stdin.readline()
"""


def generating(path: Path) -> float:
    """Generate in a process of its own; returns its peak of anonymous memory in MiB."""
    size = path.with_suffix(".data").stat().st_size
    code = GENERATE.format(path=str(path), out=str(path.with_suffix(".py")), shard_size=min(5 * 10**9, size // 2))
    return peak(code, ("RssAnon",))


def clear(folder: Path) -> None:
    for path in [*folder.glob("large*.safetensors*"), folder / "large.py", folder / "copy"]:
        path.unlink(missing_ok=True)


def writing(path: Path, rounds: int, cached: bool) -> list[Row]:
    """Rows of writing beside copying."""
    folder, data, out = path.parent, path.with_suffix(".data"), path.with_suffix(".py")
    plain: list[float] = []
    peaks: list[float] = []

    def ours() -> float:
        clear(folder)
        prepared(cached, data)
        peaks.append(generating(path))
        took = float(Path(f"{out}.seconds").read_text())
        print(f"generating: {took:.1f} s", file=sys.stderr)
        return took

    def theirs() -> float:
        clear(folder)
        prepared(cached, data)
        start = time.perf_counter()
        subprocess.run(["cp", data, folder / "copy"], check=True)
        plain.append(time.perf_counter() - start)
        subprocess.run(["sync", folder / "copy"], check=True)
        took = time.perf_counter() - start
        print(f"cp: {plain[-1]:.1f} s, with sync {took:.1f} s", file=sys.stderr)
        return took

    pairs = interleaved(ours, theirs, rounds)
    how = "cached" if cached else "not cached"
    speed = 1 / ratio(pairs)
    against = statistics.median(b / a for a, b in zip(pairs[0], plain))
    return [
        row(f"generating, {how}", pairs[0], "cp, sync", pairs[1], speed, ">= 0.7"),
        row(f"generating, {how}", pairs[0], "cp", plain, against, ">= 0.7"),
        {"what": f"generating, {how}: peak anonymous MiB", "figure": round(max(peaks)), "target": "<= 500"},
    ]


def row(what: str, ours: list[float], other: str, theirs: list[float], found: float, target: str) -> Row:
    return {
        "what": what,
        "figure": f"{statistics.median(ours):.2f} s",
        "against": other,
        "its": f"{statistics.median(theirs):.2f} s",
        "ratio": f"{found:.2f}",
        "target": target,
    }


# ---- loading ---------------------------------------------------------------------------------------------------------

IMPORTED = """
import sys, time, torch, safetensors, importlib.util
from pathlib import Path
spec = importlib.util.spec_from_file_location("generated", {out!r})
module = importlib.util.module_from_spec(spec)
sys.modules["generated"] = module
spec.loader.exec_module(module)
torch.ones(3).sum()

def touched(tensors):
    return sum(float(t.detach().reshape(-1)[::1024].sum()) for t in tensors)

"""
TIMED = """
start = time.perf_counter()
{act}
print(time.perf_counter() - start)
"""
WHOLE = "touched(module.Model.from_pretrained().parameters())"
SHARD = "touched(module.load_weights(Path({shard!r})).values())"
READ = """
import sys, time
buffer = memoryview(bytearray(1 << 20))
start = time.perf_counter()
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
print(time.perf_counter() - start)
"""
WATCHED = """
print("ready", flush=True), sys.stdin.readline()
{act}
print("done", flush=True), sys.stdin.readline()
"""


def seconds(code: str, *args: Path) -> float:
    command = [sys.executable, "-c", code, *map(str, args)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment()).stdout)


def loading(out: Path, rounds: int, cached: bool) -> list[Row]:
    shards = sorted(out.parent.glob("large-*.safetensors"))
    how = "cached" if cached else "not cached"
    rows = []
    for what, act, files in (
        ("from_pretrained()", WHOLE, shards),
        ("one shard", SHARD.format(shard=str(shards[0])), shards[:1]),
    ):

        def ours(act: str = act, files: list[Path] = files) -> float:
            prepared(cached, *files)
            return seconds(IMPORTED.format(out=str(out)) + TIMED.format(act=act))

        def theirs(files: list[Path] = files) -> float:
            prepared(cached, *files)
            return seconds(READ, *files)

        pairs = interleaved(ours, theirs, rounds)
        rows.append(row(f"{what}, {how}", pairs[0], "reading", pairs[1], ratio(pairs), "<= 1.1"))
    return rows


MAPPED = """
from accelerate import load_checkpoint_and_dispatch
with torch.device("meta"):
    model = module.Model()
names = [name for name, layer in model.named_modules() if [*layer.parameters(recurse=False)]]
places = dict.fromkeys(names[: len(names) // 2], "cpu") | dict.fromkeys(names[len(names) // 2 :], "disk")
model = load_checkpoint_and_dispatch(model, {index!r}, places, offload_folder={folder!r})
touched(p for p in model.parameters() if p.device.type == "cpu")
"""
SHARDED = """
import os, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", init_method="file://" + {store!r}, rank={rank}, world_size=2)
model = module.Model.from_pretrained()
for layer in [*model.modules()][1:]:
    if not [*layer.children()]:
        fully_shard(layer, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
touched(p.to_local() for p in model.parameters())
dist.barrier()
"""


def loaders(out: Path) -> list[Row]:
    """Anonymous memory of others' ways to load, in MiB, beside the bytes of the weights."""
    total = sum(path.stat().st_size for path in out.parent.glob("large-*.safetensors")) / MIB
    begin = IMPORTED.format(out=str(out))
    index = f"{out.with_suffix('.safetensors')}.index.json"
    code = MAPPED.format(index=index, folder=str(out.parent / "offloaded"))
    found = peak(begin + WATCHED.format(act=code), ("RssAnon",))
    rows = [memory("accelerate, device_map: half on the CPU, half on disk", found, total, 0.6)]
    with ThreadPoolExecutor(2) as pool:
        codes = [SHARDED.format(store=str(out.parent / "store"), rank=rank) for rank in (0, 1)]
        peaks = pool.map(lambda code: peak(begin + WATCHED.format(act=code), ("RssAnon",)), codes)
        rows += [memory("FSDP2, one of two processes", max(peaks), total, 0.6)]
    return rows


def memory(what: str, found: float, total: float, share: float) -> Row:
    return {
        "what": f"{what}: anonymous MiB",
        "figure": round(found),
        "against": "the weights",
        "its": round(total),
        "ratio": f"{found / total:.2f}",
        "target": f"<= {share}",
    }


def measure(path: Path, rounds: int, parts: list[str]) -> list[Row]:
    rows: list[Row] = []
    for cached in (True, False) if "writing" in parts else ():
        rows += writing(path, rounds, cached)
    if parts == ["writing"]:
        return rows
    clear(path.parent)
    generating(path)
    path.with_suffix(".data").unlink()
    for cached in (True, False) if "loading" in parts else ():
        rows += loading(path.with_suffix(".py"), rounds, cached)
    return rows + (loaders(path.with_suffix(".py")) if "loaders" in parts else [])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", type=float, default=10, help="GiB of weights (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured (default: 3)")
    parser.add_argument("--parts", default="writing,loading,loaders", help="what to measure (default: all)")
    parser.add_argument("--folder", type=Path, help="where to write the model (default: a temporary folder)")
    given = parser.parse_args()
    needed = 3 * given.size * GIB
    if shutil.disk_usage(given.folder or tempfile.gettempdir()).free < needed:
        parser.error(f"{needed / GIB:.0f} GiB of free disk are needed: take a smaller --size, or another --folder")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = network(Path(folder), max(2, round(given.size * GIB / (4 * WIDTH * WIDTH))))
        rows = measure(path, given.rounds, given.parts.split(","))
    columns = ("what", "figure", "against", "its", "ratio", "target")
    finish([{column: found.get(column, "") for column in columns} for found in rows], given.json)


if __name__ == "__main__":
    main()
