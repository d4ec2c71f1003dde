"""Judges the cases of many seeds, and says what was found."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import onnx
import torch

from tests.hunts.judge import Case, Unmade, Verdict, judge
from tests.hunts.shrink import shrink

HERE = Path(__file__).parent
CHUNK = 20
SHOWN = 2  # failures of one kind that are made small and printed


def maker(hunt: str) -> Callable[[int], Case]:
    make: Callable[[int], Case] = import_module(f"tests.hunts.{hunt}").make
    return make


def judged(hunt: str, seeds: Iterable[int]) -> list[tuple[int, Verdict]]:
    """The verdicts of seeds. What a hunt can't make, an exporter refused: such a seed is void."""
    torch.set_num_threads(1)
    make, found, known = maker(hunt), [], set(recorded(hunt, "known.txt"))
    for seed in seeds:
        try:
            case = make(seed)
        except Unmade as error:
            found.append((seed, Verdict("void", f"exporter: {error}"[:100])))
            continue
        verdict = judge(case)
        found.append((seed, replace(verdict, kind="known") if verdict.is_bad and seed in known else verdict))
    gc.collect()
    return found


def recorded(hunt: str, file: str) -> list[int]:
    """Seeds of a hunt in a list: `scopes 17  what it was`."""
    lines = (HERE / file).read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return [int(w[1]) for w in words if w[0] == hunt]


def hunt(name: str, first: int, cases: int, workers: int) -> Counter[str]:
    """Judge `cases` seeds from `first` on; print each failure as it comes, and the table at the end or on Ctrl-C."""
    started, table, said = time.monotonic(), Counter[str](), Counter[str]()
    chunks = [range(n, min(n + CHUNK, first + cases)) for n in range(first, first + cases, CHUNK)]
    try:
        with ProcessPoolExecutor(workers) as pool:
            each = pool.map if workers > 1 else map
            for found in each(judged, [name] * len(chunks), chunks):
                for seed, verdict in found:
                    table[verdict.kind] += 1
                    if verdict.is_bad:
                        report(name, seed, verdict, small=said[verdict.what] < SHOWN)
                    said[verdict.what if verdict.is_bad else f"{verdict.kind}: {verdict.what}"] += 1
    except KeyboardInterrupt:
        print("interrupted")
    for text, times in said.most_common(12):
        print(f"{times:6} {text}")
    total = sum(table.values())
    print(f"{name}: {total} seeds from {first}: {dict(table)}, {time.monotonic() - started:.0f} s", flush=True)
    return table


def report(name: str, seed: int, verdict: Verdict, small: bool) -> None:
    print(f"== {name} {seed}: {verdict.kind}: {verdict.what}", flush=True)
    if small:
        case = shrink(maker(name)(seed), verdict)
        print(judge(case).detail[:1800])
        print(onnx.printer.to_text(case.model)[:3000], flush=True)
