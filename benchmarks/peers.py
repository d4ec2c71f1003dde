"""onnxgen beside its peers and the hand-written originals, on the same files: ready model, memory, forward, backward.

    python -m benchmarks.peers [--nets resnet50,gpt2] [--tools onnxgen,pnnx] [--rounds 3] [--json FILE] [--write]

"Ready" is a new process that imports what it needs, makes the model of the ONNX file and reads every parameter once:
its CPU seconds (user and system, with the processes that it starts) and its peak resident memory, mapped files
included; medians, and medians of the rounds' ratios. "forward" and "backward" (forward, then backward) are CPU
milliseconds of one thread, in eval mode. All tools stand ready at once, each in a process of its own, and take turns,
ten times as often; the quickest call counts, since what else a machine does only adds. Each has freed 31 MiB before,
so that its allocator keeps the memory of one call for the next. Outputs are compared with the original's. "onnxgen"
is the command and the module that it writes, "onnxgen.load" is `onnxgen.load(FILE)`, "onnxgen, generated" the module
alone, written before.

The peers get environments of their own in --cache, made on the first run, which see this one's torch. `--write` renews
PEERS.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch

from benchmarks.common import arguments, environment, finish
from benchmarks.nets import NETS, export
from onnxgen.cli.say import aligned

PAGE = Path(__file__).with_name("PEERS.md")
CHILD = Path(__file__).with_name("peer.py")
REMARKS = "\n## Remarks\n"  # what follows is written by hand
COLUMNS = (
    "net",
    "tool",
    "ready s",
    "/ours",
    "peak MiB",
    "/ours ",
    "forward ms",
    "/original",
    "backward ms",
    "/original ",
)
VISION = f"torchvision==0.{int(torch.__version__.split('.')[1]) + 15}.*"  # it goes with one torch, and counts from 0.15


@dataclass(frozen=True)
class Tool:
    """One way from an ONNX file to a model; `packages`: of its own environment, without what they need."""

    packages: tuple[str, ...] = ()


TOOLS = {
    "original": Tool(),
    "onnxgen": Tool(),
    "onnxgen.load": Tool(),
    "onnxgen, generated": Tool(),
    "onnx2torch": Tool(("onnx2torch==1.5.15", VISION)),
    "onnx2pytorch": Tool(("onnx2pytorch==0.6.0", VISION)),
    "onnx-pytorch": Tool(("onnx-pytorch==0.1.5", "onnx==1.17.0", "protobuf==5.29.5", VISION)),
    "pnnx": Tool(("pnnx==20261020",)),
}


def interpreter(name: str, cache: Path) -> str:
    """The Python of a tool's environment, which is made if it is not there."""
    packages = TOOLS[name].packages
    if not packages:
        return sys.executable
    folder = cache / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = folder / "installed"
    if not done.is_file() or done.read_text() != " ".join(packages):
        venv.create(folder, clear=True, with_pip=True)
        inside = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
        shared = Path(inside) / "shared.pth"  # behind what the environment has itself
        shared.write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *packages], check=True)
        done.write_text(" ".join(packages))
    return str(python)


Child = subprocess.Popen[str]


@contextmanager
def started(name: str, net: str, folder: Path, cache: Path) -> Iterator[Child]:
    """A process that makes the model, says so in a line of JSON, and then times whatever line it is sent."""
    command = [interpreter(name, cache), str(CHILD), name, net, str(folder)]
    own = environment() | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        child = subprocess.Popen(
            [*command, scratch],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=own,
            cwd=scratch,
        )
        try:
            yield child
        finally:
            child.kill()
            child.communicate()


def answer(child: Child, question: str = "") -> dict[str, Any]:
    """What the process says to a line; its `error` where it died."""
    assert child.stdin is not None and child.stdout is not None
    try:
        if question:
            child.stdin.write(question + "\n")
            child.stdin.flush()
        found: dict[str, Any] = json.loads(child.stdout.readline())
        return found
    except (OSError, ValueError):
        return {"error": f"died ({child.wait()})"}


def run_times(children: Mapping[str, Child], rounds: int) -> dict[str, dict[str, list[Any]]]:
    """Milliseconds of each round, by tool and by what is timed; all tools in turn, forwards and backwards."""
    times: dict[str, dict[str, list[Any]]] = {name: {} for name in children}
    for what in ("forward", "backward"):
        for turn in range(rounds + 1):  # the first warms up
            for name in children if turn % 2 else reversed(list(children)):
                found = answer(children[name], what)
                if "error" in found:
                    times[name][f"{what} error"] = [found["error"]]
                elif turn:
                    times[name].setdefault(what, []).append(found["ms"])
    return times


def median(values: Sequence[float] | None) -> float | None:
    return statistics.median(values) if values else None


def over(values: Sequence[float] | None, others: Sequence[float] | None) -> str:
    """The median of the rounds' ratios."""
    return f"{statistics.median(a / b for a, b in zip(values, others)):.2f}" if values and others else ""


def measure(net: str, tools: Sequence[str], rounds: int, cache: Path) -> list[dict[str, Any]]:
    """The rows of one network."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(net, folder)
        cold: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
        with ExitStack() as last:
            children: dict[str, Child] = {}
            for turn in range(rounds):
                for tool in tools if turn % 2 else reversed(tools):
                    if any("error" in found for found in cold[tool]):
                        continue
                    with ExitStack() as this:
                        stack = last if turn == rounds - 1 else this
                        children[tool] = stack.enter_context(started(tool, net, folder, cache))
                        cold[tool].append(answer(children[tool]))
            alive = {tool: children[tool] for tool in tools if "error" not in cold[tool][-1]}
            times = run_times(alive, 10 * rounds)
    return [row(net, tool, cold, times) for tool in tools]


def row(
    net: str, tool: str, cold: dict[str, list[dict[str, Any]]], times: dict[str, dict[str, list[Any]]]
) -> dict[str, Any]:
    found, note = cold[tool], cold[tool][-1].get("error", "")
    series = {key: {t: [f[key] for f in fs if key in f] for t, fs in cold.items()} for key in ("seconds", "mib")}
    made: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"net": net, "tool": tool}
    for (column, ratio), (key, digits) in zip((COLUMNS[2:4], COLUMNS[4:6]), (("seconds", 2), ("mib", 0))):
        if (value := median(series[key][tool])) is not None:
            made[column] = f"{value:.{digits}f}"
            made[ratio] = over(series[key][tool], series[key].get("onnxgen"))
    for (column, ratio), what in zip((COLUMNS[6:8], COLUMNS[8:10]), ("forward", "backward")):
        own = times.get(tool, {})
        if what in own:
            made[column] = f"{min(own[what]):.2f}"
            made[ratio] = f"{min(own[what]) / min(times['original'][what]):.2f}"
        note = note or "".join(own.get(f"{what} error", []))
    return made | {"note": note or found[-1].get("note", "") or _trained(found[-1], cold["original"][-1])}


def _trained(found: dict[str, Any], original: dict[str, Any]) -> str:
    """Says so where a tool's backward has less to do than the original's."""
    mine, its = (round(f.get("trained", 0) / 1e6, 1) for f in (found, original))
    return "" if mine == its else f"trains {mine} of {its} million parameters"


def prepare(net: str, folder: Path) -> None:
    """The ONNX file, the original's weights, example inputs with the original's outputs, and a generated module."""
    from onnxgen.pipeline import generate

    entry = NETS[net]
    model = export(entry, folder / "net.onnx")
    torch.save(model.state_dict(), folder / "state.pt")
    with torch.no_grad():
        outputs = model(*entry.inputs())
    torch.save((entry.inputs(), outputs if isinstance(outputs, tuple) else (outputs,)), folder / "example.pt")
    (folder / "generated").mkdir()
    generate(folder / "net.onnx", folder / "generated" / "net.py")


def page(rows: Sequence[dict[str, Any]], rounds: int) -> str:
    said = (__doc__ or "").partition("\n\n")[2].rstrip()
    versions = ", ".join(f"{p.replace('==', ' ')}" for t in TOOLS.values() for p in t.packages[:1])
    table = "\n".join(f"    {line}" for line in table_of(rows))
    _, mark, remarks = PAGE.read_text(encoding="utf-8").partition(REMARKS) if PAGE.is_file() else ("", "", "")
    return (
        f"# onnxgen and its peers\n\n{said}\n\n"
        f"torch {torch.__version__}, {versions}; {os.cpu_count()} cores, one thread, {rounds} rounds.\n\n{table}\n"
        f"{mark}{remarks}"
    )


def table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    columns = [*COLUMNS, "note"]
    return aligned([columns, *[[str(r.get(c, "")) for c in columns] for r in rows]])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--nets", default=",".join(NETS), help="which networks (default: all)")
    parser.add_argument("--tools", help="which tools (default: all); onnxgen and the original are always there")
    parser.add_argument("--rounds", type=int, default=3, help="processes, and timings, of each (default: 3)")
    parser.add_argument("--cache", type=Path, default=platformdirs.user_cache_path("onnxgen") / "peers")
    parser.add_argument("--write", action="store_true", help=f"renew {PAGE.name}")
    given = parser.parse_args()
    wanted = set(given.tools.split(",")) if given.tools else set(TOOLS)
    tools = [name for name in TOOLS if name in wanted | {"original", "onnxgen"}]
    rows: list[dict[str, Any]] = []
    measure("mnist", tools, 1, given.cache)  # environments, byte code and the file cache
    for net in given.nets.split(","):
        begun = time.perf_counter()
        rows += measure(net, tools, given.rounds, given.cache)
        print(f"{net}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    finish(rows, given.json)
    if given.write:
        PAGE.write_text(page(rows, given.rounds), encoding="utf-8")


if __name__ == "__main__":
    main()
