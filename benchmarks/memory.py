"""Peak memory of generating from, and loading, a model of 1 GB: external data, inline weights, tied weights.

    python -m benchmarks.memory [--megabytes 1024] [--json FILE]

Linux only. A parent reads /proc/PID/status of the child every 2 ms. Generating counts *anonymous* memory (RssAnon) over
that of the bare imports: pages of a mapped file can be dropped at any time. `from_pretrained()` counts anonymous and
mapped pages (RssAnon + RssFile) over those before the call, until every parameter was read once: the weights may be
mapped, but they are the weights.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.common import arguments, environment, finish

IMPORTS = "import click, jinja2, black, numpy, onnx, onnx_ir, safetensors"
GENERATE = """
{imports}
import sys
print("ready", flush=True), sys.stdin.readline()
from onnxgen.cli import run
code = run([{path!r}, "-o", {out!r}, "-q"])
print("done", flush=True), sys.stdin.readline()
sys.exit(code)
"""
LOAD = """
import sys, torch, safetensors.torch, importlib.util
spec = importlib.util.spec_from_file_location("generated", {out!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
torch.ones(3).sum()
print("ready", flush=True), sys.stdin.readline()
model = module.Model.from_pretrained()
for parameter in model.parameters():
    parameter.detach().view(-1)[::512].sum()
print("done", flush=True), sys.stdin.readline()
"""
MIB = 1 << 20


def peak(code: str, fields: tuple[str, ...]) -> float:
    """MiB by which the sum of these lines of /proc/PID/status rises at most, between "ready" and "done"."""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "ready\n", "the child failed before it began"
    before = highest = resident(child.pid, fields)
    child.stdin.write("\n"), child.stdin.flush()
    done = _Line(child.stdout)
    while not done.there():
        highest = max(highest, resident(child.pid, fields))
        time.sleep(0.002)
    highest = max(highest, resident(child.pid, fields))
    child.communicate("\n")
    assert done.text == "done\n" and child.returncode == 0, f"the child failed: {child.returncode}"
    return (highest - before) / MIB


class _Line:
    """Whether a line can be read, without waiting for it."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.text = stream, ""

    def there(self) -> bool:
        import select

        if select.select([self.stream], [], [], 0)[0]:
            self.text = self.stream.readline()
            return True
        return False


def resident(pid: int, fields: tuple[str, ...]) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return sum(int(re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)[1]) << 10 for field in fields)  # type: ignore[index]


def network(path: Path, megabytes: int, external: bool, tied: bool = False) -> int:
    """16 Linear layers of equal size (the last one of twice the size), or an embedding tied to the output layer.

    Returns the bytes of the largest tensor. The weights are random: a disk or a file system can't compress them away.
    """
    make = onnx.helper
    shapes = tied_shapes(megabytes) if tied else linear_shapes(megabytes)
    model, tensors = onnx.ModelProto(), []
    with open(path.with_suffix(".data"), "wb") as data:
        for n, (name, shape) in enumerate(shapes.items()):
            array = np.random.default_rng(n).random(shape, np.float32) - np.float32(0.5)
            tensors.append(_tensor(name, array, data if external else None))
    nodes, names = (tied_nodes if tied else linear_nodes)(list(shapes))
    kind = (7, ["batch", "length"]) if tied else (1, ["batch", shapes[names[0]][1]])
    inputs = [make.make_tensor_value_info("x", *kind)]
    outputs = [make.make_tensor_value_info("y", 1, None)]
    graph = make.make_graph(nodes, "large", inputs, outputs, tensors)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return max(4 * int(np.prod(shape)) for shape in shapes.values())


def _tensor(name: str, array: np.ndarray[Any, Any], data: Any) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=1, dims=array.shape)
    if data is None:
        tensor.raw_data = array.tobytes()
        return tensor
    tensor.data_location = onnx.TensorProto.EXTERNAL
    where = {"location": Path(data.name).name, "offset": str(data.tell()), "length": str(array.nbytes)}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=value)
    data.write(array.tobytes())
    return tensor


def linear_shapes(megabytes: int) -> dict[str, tuple[int, ...]]:
    width = int((megabytes * MIB / 4 / 17) ** 0.5)
    return {f"layers.{n}.weight": (width * (1 + (n == 15)), width) for n in range(16)}


def linear_nodes(names: list[str]) -> tuple[list[onnx.NodeProto], list[str]]:
    made = onnx.helper.make_node
    nodes = [
        made("Gemm", [f"h{n}" if n else "x", name], [f"h{n + 1}" if n < 15 else "y"], f"/layers.{n}/Gemm", transB=1)
        for n, name in enumerate(names)
    ]
    return nodes, names


def tied_shapes(megabytes: int) -> dict[str, tuple[int, ...]]:
    return {"wte.weight": (megabytes * MIB // 4 // 1024, 1024)}


def tied_nodes(names: list[str]) -> tuple[list[onnx.NodeProto], list[str]]:
    made = onnx.helper.make_node
    return [
        made("Gather", ["wte.weight", "x"], ["h"], "/wte/Gather"),
        made("Transpose", ["wte.weight"], ["t"], "/lm_head/Transpose", perm=[1, 0]),
        made("MatMul", ["h", "t"], ["y"], "/lm_head/MatMul"),
    ], names


def measure(name: str, folder: Path, megabytes: int, external: bool, tied: bool) -> list[dict[str, Any]]:
    folder.mkdir()
    path, out = folder / f"{name}.onnx", folder / f"{name}.py"
    largest = network(path, megabytes, external, tied) / MIB
    size = path.stat().st_size / MIB
    code = GENERATE.format(imports=IMPORTS, path=str(path), out=str(out))
    generating = peak(code, ("RssAnon",))
    allowed = largest + 200 if external else 2.2 * size
    weights = out.with_suffix(".safetensors").stat().st_size / MIB
    loading = peak(LOAD.format(out=str(out)), ("RssAnon", "RssFile"))
    shutil.rmtree(folder)
    rule = f"largest tensor ({largest:.0f}) + 200" if external else f"2.2 x file ({size:.0f})"
    rows = [("generate", generating, allowed, rule)]
    rows += [("from_pretrained()", loading, 1.3 * weights, f"1.3 x weights ({weights:.0f})")]
    return [
        {
            "model": name,
            "what": what,
            "peak MiB": round(got),
            "target MiB": f"<= {limit:.0f}",
            "target": rule,
            "": "ok" if got <= limit else "MISSED",
        }
        for what, got, limit, rule in rows
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the weights (default: 1024)")
    parser.add_argument("--folder", type=Path, help="where to write the models (default: a temporary folder)")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name, external, tied in (("external", True, False), ("inline", False, False), ("tied", True, True)):
            rows += measure(name, Path(folder) / name, given.megabytes, external, tied)
    finish(rows, given.json)


if __name__ == "__main__":
    main()
