"""Runs cases in child processes, counts them, and stores what is worth to go on with.

A child runs a batch. One that dies, by a signal or by memory, leaves the case that it died of; the next child goes on
after it. `state.json` has the counts and is written after every batch, so that a run can be ended at any time.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz.cases import Place
from tests.fuzz.judge import Broken, Judge
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS

KEPT = 6000  # cases in a corpus, beside the seeds
ALIKE = 3  # cases kept that ended in one and the same way


@dataclass
class State:
    """How far a target has come."""

    executions: int = 0
    findings: int = 0
    seconds: float = 0.0
    made: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)


class Fuzzer:
    """One target over one corpus: `folder/seeds`, `folder/TARGET/{cases,findings,state.json}`."""

    def __init__(self, target: str, folder: Path, seeds: Sequence[bytes], batch: int = 2000) -> None:
        self.target, self.folder, self.batch = target, folder / target, batch
        for name in ("cases", "findings"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.file = self.folder / "state.json"
        self.state = State(**json.loads(self.file.read_text())) if self.file.exists() else State()
        self.corpus = [*seeds, *(path.read_bytes() for path in sorted((self.folder / "cases").iterdir()))]
        self.seeds = len(seeds)

    def run(self, executions: int, told: bool = False) -> State:
        """Go on until `executions` cases have been run in all."""
        while self.state.executions < executions:
            count = min(self.batch, executions - self.state.executions)
            begun = time.monotonic()
            self._batch(count)
            self.state.seconds += time.monotonic() - begun
            _write(self.file, json.dumps(asdict(self.state), indent=1))
            if told:
                s = self.state
                rate = s.executions / max(s.seconds, 1e-9)
                print(
                    f"{self.target} {s.executions:,} of {executions:,}, {rate:.0f}/s, made {s.made:,}, "
                    f"{len(s.outcomes)} outcomes, {len(self.corpus)} in the corpus, {s.findings} findings",
                    flush=True,
                )
        return self.state

    def _batch(self, count: int) -> None:
        root = Path(tempfile.mkdtemp(prefix="onnxgen-fuzz-"))
        shared = mmap.mmap(-1, 8)
        place = Place(root / "place")
        first = self.state.executions
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _Child(self, root, place, shared).run(first, count)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        (done,) = struct.unpack("q", shared[:8])
        try:
            self._collect(root, place, first, done, status)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _collect(self, root: Path, place: Place, first: int, done: int, status: int) -> None:
        report = root / "report.json"
        if report.exists():
            found = json.loads(report.read_text())
            self.state.made += found["made"]
            for name, number in found["outcomes"].items():
                self.state.outcomes[name] = self.state.outcomes.get(name, 0) + number
            for path in sorted((root / "new").iterdir()) if (root / "new").exists() else ():
                self._keep(path.read_bytes())
        if not place.model.exists():
            raise RuntimeError(f"the child ran nothing: {_death(status, root)}")
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status):
            done += 1  # the one that it died of
            self._finding(place.model.read_bytes(), _death(status, root))
        self.state.executions = first + done

    def _finding(self, data: bytes, said: str) -> None:
        name = hashlib.sha256(said.encode()[-200:]).hexdigest()[:8]
        number = len(list((self.folder / "findings").glob(f"{name}-*.onnx")))
        self.state.findings += 1
        if number < ALIKE:
            (self.folder / "findings" / f"{name}-{number}.onnx").write_bytes(data)
            (self.folder / "findings" / f"{name}-{number}.txt").write_text(said)

    def _keep(self, data: bytes) -> None:
        if len(self.corpus) - self.seeds < KEPT:
            (self.folder / "cases" / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            self.corpus.append(data)


class _Child:
    """The process that runs a batch; it writes what is new to `root/new` and counts to `root/report.json`."""

    def __init__(self, fuzzer: Fuzzer, root: Path, place: Place, shared: mmap.mmap) -> None:
        self.fuzzer, self.root, self.place, self.shared = fuzzer, root, place, shared
        self.judge = Judge(place, TARGETS[fuzzer.target])
        self.outcomes: Counter[str] = Counter()
        self.new = root / "new"

    def run(self, first: int, count: int) -> int:
        """Returns the exit code: 3 if a case broke a promise, which `root/broken.txt` then tells."""
        log = os.open(self.root / "stderr.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 2)
        os.dup2(log, 1)
        try:
            for number in range(count):
                self._one(first + number)
                self.shared[:8] = struct.pack("q", number + 1)
            self.judge.finish()
        except Broken as broken:
            (self.root / "broken.txt").write_text(str(broken), errors="replace")
            return 3
        finally:
            made = self.outcomes.pop("made", 0)
            _write(self.root / "report.json", json.dumps({"made": made, "outcomes": self.outcomes}))
        return 0

    def _one(self, number: int) -> None:
        rng = random.Random(f"{self.fuzzer.target} {number}")
        corpus = self.fuzzer.corpus
        data = mutate(rng, rng.choice(corpus), rng.choice(corpus))
        outcome = self.judge.run(data)
        self.outcomes[outcome] += 1
        seen = self.outcomes[outcome] + self.fuzzer.state.outcomes.get(outcome, 0)
        if outcome != "made" and seen <= ALIKE or outcome == "made" and rng.random() < 0.002:
            self.new.mkdir(exist_ok=True)
            (self.new / f"{number}").write_bytes(data)


def _death(status: int, root: Path) -> str:
    said = [path.read_text(errors="replace") for path in (root / "stderr.txt", root / "broken.txt") if path.exists()]
    how = f"exit code {os.WEXITSTATUS(status)}"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        slow = {signal.SIGPROF: "it took more time than it may: ", signal.SIGALRM: "it waits: "}
        how = f"{slow.get(signal.Signals(number), '')}signal {signal.Signals(number).name}"
    return "".join(text[-6000:] for text in said) + f"\n{how}\n"


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(text)
    partial.replace(path)
