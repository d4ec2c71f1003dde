"""Edits of generated modules, judged by `prove`: `python -m tests.hunts edits --cases 300 --seed 0`.

A seed draws a network, one edit of its module (`rewriting`), or several at once, and what `prove` should say. Whether
an edit changes the function is also found by numbers, apart from `prove`: an edit that should and doesn't is void, as
is one that should not and does.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import onnxgen
from onnxgen.canonical.prove import Proof, _feeds, prove
from onnxgen.canonical.sizes import runs
from onnxgen.options import Options
from onnxgen.runtime.load import imported
from tests.hunts import changing, keeping, spelling
from tests.hunts.rewriting import CHANGE, KEEP, Edited, Source
from tests.support.exporter import keep_tables
from tests.zoo import ZOO
from tests.zoo.export import export

MACHINES = (changing, keeping, spelling)  # importing them registers their edits
LARGE = {"resnet50", "efficientnet", "hf_clip", "hf_gpt2", "hf_llama", "hf_whisper"}
POOL = Path(os.environ.get("ONNXGEN_POOL", Path(tempfile.gettempdir()) / "onnxgen_edits"))
RUNS = 3
STACKED = 6  # edits of a rewriting of the whole file


@dataclass
class Judged:
    """What became of one seed: `right`, `unproved`, `wrong`, `void` or `line` (different, but another line named)."""

    kind: str
    edit: str
    network: str
    verdict: str
    why: str = ""
    seconds: tuple[float, float] = (0, 0)
    detail: dict[str, Any] = field(default_factory=dict)


def networks() -> list[Path]:
    """The folders of the pool: each with a file and its module. What is missing is made."""
    POOL.mkdir(parents=True, exist_ok=True)
    for name in ZOO:
        if name not in LARGE and not (POOL / name / "model.py").exists():
            _add(name, lambda path, name=name: export(ZOO[name], path))  # type: ignore[misc]
    shared = os.environ.get("ONNXGEN_SHARED")
    for path in _shared(Path(shared)) if shared else ():
        name = f"shared_{path.stem}"[:40]
        if not (POOL / name / "model.py").exists() and not (POOL / name / "refused").exists():
            _add(name, lambda to, path=path: shutil.copyfile(path, to))  # type: ignore[misc]
    return sorted(p.parent for p in POOL.glob("*/model.py"))


def _shared(folder: Path) -> Iterator[Path]:
    """Small files with parameters from real exporters."""
    entries = json.loads((folder / "models" / "manifest.json").read_text())
    for entry in entries:
        if (
            entry["ort"] == "ok"
            and entry["category"] in ("net", "graph")
            and entry["bytes"] < 300_000
            and entry["nodes"] >= 3
        ):
            if not entry["external"] and entry.get("init_types"):
                yield folder / "models" / entry["file"]
    yield from sorted((folder / "findings").glob("*.onnx"))


def _add(name: str, write: Any) -> None:
    keep_tables(anyway=True)
    folder = POOL / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write(folder / "net.onnx")
        onnxgen.generate(folder / "net.onnx", folder / "model.py")
    except Exception as error:
        (folder / "refused").write_text(repr(error))


def outputs(folder: Path, module: Path, feeds: list[list[Any]]) -> list[Any] | str:
    """Run a module in float64, in both modes. Returns a text if it fails."""
    found: list[Any] = []
    try:
        with imported(module) as space:
            model = space.Model.from_pretrained(strict=False).double()
            for training in (False, True):
                for number, feed in enumerate(feeds):
                    torch.manual_seed(number)
                    model.train(training)
                    wide = [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in feed]
                    with torch.no_grad():
                        made = model(*wide)
                    found += list(made) if isinstance(made, (tuple, list)) else [made]
            found += [b for n, b in sorted(model.state_dict().items()) if n.split(".")[-1].startswith("running")]
            found.append(torch.tensor([float(sum(p.numel() for p in model.parameters() if p.requires_grad))]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return found


def apart(one: list[Any], other: list[Any]) -> float:
    if len(one) != len(other):
        return float("inf")
    worst = 0.0
    for a, b in zip(one, other, strict=True):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return 0.0 if a is b else float("inf")
        a, b = a.double(), b.double()
        if not torch.equal(a.isfinite(), b.isfinite()):
            return float("inf")
        a, b = a[a.isfinite()], b[b.isfinite()]
        if a.numel():
            worst = max(worst, float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)))
    return worst


def edited(text: str, rng: random.Random, keep: bool) -> tuple[str, Edited] | None:
    """Draw an edit that applies."""
    if keep and rng.random() < 1 / 6:
        names: list[str] = []
        now = Edited(text)
        for name in rng.sample(sorted(KEEP), len(KEEP)):
            if len(names) < STACKED and (made := _applied(KEEP[name], now.text, rng)) is not None:
                now = made
                names.append(name)
        return "+".join(names), now
    table = KEEP if keep else CHANGE
    for name in rng.sample(sorted(table), len(table)):
        made = _applied(table[name], text, rng)
        if made is not None:
            return name, made
    return None


def _applied(edit: Any, text: str, rng: random.Random) -> Edited | None:
    try:
        made: Edited | None = edit(Source(text), rng)
        if made is not None:
            Source(made.text)
    except (SyntaxError, ValueError, StopIteration, IndexError):
        return None
    return made if made is not None and made.text != text else None


def judge(seed: int, folders: list[Path], only: str | None = None, keep: bool | None = None) -> Judged:
    rng = random.Random(seed)
    folder = rng.choice(folders)
    text = (folder / "model.py").read_text(encoding="utf-8")
    keeps = rng.random() < 1 / 3 if keep is None else keep
    found = edited(text, rng, keeps) if only is None else _one(only, text, rng)
    if found is None:
        return Judged("void", "none", folder.name, "no edit applies")
    name, made = found
    keeps = name in KEEP or "+" in name if only else keeps
    with tempfile.TemporaryDirectory() as work:
        there = Path(work)
        for file in ("net.onnx", "model.safetensors", "model.py"):
            if (folder / file).exists():
                shutil.copyfile(folder / file, there / file)
        (there / "ours").mkdir()
        for file in ("model.safetensors", "model.py"):
            if (folder / file).exists():
                shutil.copyfile(folder / file, there / "ours" / file)
        (there / "model.py").write_text(made.text, encoding="utf-8")
        return _judged(there, folder.name, name, made, keeps, seed)


def _one(name: str, text: str, rng: random.Random) -> tuple[str, Edited] | None:
    table = {**KEEP, **CHANGE}
    made = _applied(table[name], text, rng)
    return None if made is None else (name, made)


def _judged(there: Path, network: str, name: str, made: Edited, keep: bool, seed: int) -> Judged:
    model = there / "net.onnx"
    feeds = []
    with imported(there / "ours" / "model.py") as space:
        for feed in islice(_feeds(model, Options(), vars(space), 2, 100), 2):
            feeds.append(feed)
    before, after = outputs(there, there / "ours" / "model.py", feeds), outputs(there, there / "model.py", feeds)
    if isinstance(before, str) or isinstance(after, str):
        return Judged("void", name, network, "it does not run", str(after if isinstance(before, list) else before))
    distance = apart(before, after)
    renames = keep and any(word in name for word in ("rename", "wrap", "inline", "copies"))
    if not renames and ((keep and distance > 1e-6) or (not keep and distance < 1e-12 and not made.hidden)):
        return Judged("void", name, network, f"apart by {distance:.1e}")
    if not keep and distance < 1e-12 and not made.hidden:
        return Judged("void", name, network, "no change")
    started = time.perf_counter()
    try:
        proof = prove(model, there / "model.py", runs=RUNS, seed=seed)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:300]
        return Judged("unproved" if not isinstance(error, AssertionError) else "wrong", name, network, "error", text)
    took = time.perf_counter() - started
    if proof.verdict == "proved" and name == "one_sample_only" and not _takes_one(there, feeds[0]):
        return Judged("void", name, network, "the file takes no input of one sample")
    started = time.perf_counter()
    onnxgen.generate(model, there / "again.py", write=True) if False else onnxgen.load(model)
    seconds = (took, time.perf_counter() - started)
    detail = {
        "places": [(p.side, p.line, p.code) for p in proof.places],
        "lines": sorted(made.lines),
        "apart": distance,
        "seed": seed,
    }
    kind = _kind(proof, made, keep)
    return Judged(kind, name, network, proof.verdict, proof.why, seconds, detail)


def _takes_one(there: Path, feed: list[Any]) -> bool:
    """Whether the generated module runs on the first sample alone."""
    with imported(there / "ours" / "model.py") as space:
        return runs(space.Model.from_pretrained(), [a[:1] if a.dim() else a for a in feed])


def _kind(proof: Proof, made: Edited, keep: bool) -> str:
    if proof.verdict == "not proved":
        return "unproved"
    if keep:
        return "right" if proof.verdict == "proved" else "wrong"
    if proof.verdict == "proved":
        return "wrong"
    lines = right_lines(made)
    return "right" if any(p.line in lines for p in proof.places if p.side == "edited") else "line"


def right_lines(made: Edited) -> set[int]:
    """The lines that were edited, and those that call what was edited in `__init__`."""
    lines = set(made.lines)
    for number, row in enumerate(made.text.splitlines(), 1):
        if any(f"self.{name}" in row for name in made.attributes):
            lines.add(number)
    return lines


def hunt(first: int, cases: int, only: str | None = None, keep: bool | None = None, show: bool = False) -> Counter[str]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folders = networks()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    why: Counter[str] = Counter()
    ratios: list[float] = []
    total: Counter[str] = Counter()
    for seed in range(first, first + cases):
        try:
            found = judge(seed, folders, only, keep)
        except KeyboardInterrupt:  # then the tables are of the seeds so far
            break
        for name in {found.edit if "+" not in found.edit else "whole file"}:
            table[name][found.kind] += 1
        total[f"{'change' if found.edit in CHANGE else 'keep'} {found.kind}"] += 1
        if found.kind == "unproved":
            why[f"{'change' if found.edit in CHANGE else 'keep'}: {found.why}"[:150]] += 1
        if found.seconds[1]:
            ratios.append(found.seconds[0] / found.seconds[1])
        if found.kind in ("wrong", "line", "unproved") or show:
            print(
                f"== {seed} {found.kind} {found.edit} {found.network}: {found.verdict}: {found.why} {found.detail}",
                flush=True,
            )
    for name in sorted(table):
        print(f"{name:24} {'keep' if name not in CHANGE else 'change':7} {dict(table[name])}")
    for text, times in why.most_common():
        print(f"{times:5} {text}")
    ratios.sort()
    if ratios:
        print(f"time of prove / of load: median {ratios[len(ratios) // 2]:.1f}, worst {ratios[-1]:.1f}")
    print(f"edits: {sum(total.values())} seeds from {first}: {dict(total)}", flush=True)
    return total
