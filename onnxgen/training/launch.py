"""The processes of a run: started by a launcher, alone in their folder, stopped by signals.

`launched` reads from the environment how many processes torchrun, SLURM or Kubernetes started, and
which this one is. `alone_in` holds the folder of a run: no second run writes there at once, and no
file of other programs is replaced. `Stopping` notes Ctrl-C, SIGTERM, and what job schedulers send
before the time is up; workers never hear them. Nothing here imports torch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from onnxgen.common.atomic import held as held_file
from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.runs.folder import (
    BEST,
    CHECKPOINT_FILES,
    CHECKPOINTS,
    CONFIG,
    LAST,
    METRICS,
    MODULE,
    RECORD,
    RUNS,
)
from onnxgen.training.settings import Settings

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK", "GROUP_RANK")
_PODS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")  # of Kubeflow's PyTorchJob: a process in each pod


class Lost(OnnxgenError):
    """Another process of the run ended, or can't be reached. The job may be started again."""

    exit_code = 75  # of a failure that may pass (EX_TEMPFAIL of sysexits.h)


def launched(settings: Settings, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings with the numbers of devices and nodes for which a launcher started processes.

    Raises:
        OnnxgenError: the settings ask for other numbers; or without a launcher, they ask for several nodes, and the
            environment does not say which one this is, and where the first one is.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        launcher, devices = "torchrun", int(environment["LOCAL_WORLD_SIZE"])
        nodes, rest = divmod(int(environment["WORLD_SIZE"]), devices)
        if rest:
            raise OnnxgenError("torchrun started different numbers of processes on its nodes")
    # Lightning's rule: an interactive shell on SLURM starts no processes.
    elif "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        launcher, tasks = "SLURM", int(environment["SLURM_NTASKS"])
        nodes = int(environment.get("SLURM_NNODES", "1"))
        devices = int(environment.get("SLURM_NTASKS_PER_NODE", tasks if tasks == 1 else 0))
        if tasks != devices * nodes:  # Lightning needs the number for each node
            what = f"SLURM started {counted(tasks, 'process')} on {counted(nodes, 'node')}"
            raise OnnxgenError(what, help="start them with --nodes and --ntasks-per-node, and not with --ntasks")
    elif in_pods(environment):
        launcher, devices, nodes = "Kubernetes", 1, int(environment["WORLD_SIZE"])
    else:
        _check_nodes(settings.nodes, environment)
        return settings
    asked = (settings.devices, settings.nodes)
    if asked not in ((1, 1), (devices, nodes)):
        there = f"{counted(devices, 'process')} on each of {counted(nodes, 'node')}"
        what = f"{launcher} started {there}, not {asked[0]} on {asked[1]}"
        raise OnnxgenError(what, help="leave out --devices and --nodes")
    return replace(settings, devices=devices, nodes=nodes)


def in_pods(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if this is the process of a pod, by the variables of Kubeflow's PyTorchJob."""
    ours = {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"} & environment.keys()  # also of processes that Lightning started
    return not ours and all(name in environment for name in _PODS) and int(environment["WORLD_SIZE"]) > 1


def _check_nodes(nodes: int, environment: Mapping[str, str]) -> None:
    """Refuse what would train alone on each node, or wait for the others for ever."""
    rank = environment.get("NODE_RANK", environment.get("GROUP_RANK"))
    if rank is not None and int(rank) >= nodes:
        what = f"NODE_RANK is {rank}, but --nodes is {nodes}"
        raise OnnxgenError(what, help="--nodes N, the number of machines, the same on each; the first one is 0")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if nodes > 1 and (missing := missing + ([] if rank is not None else ["NODE_RANK"])):
        what = f"--nodes {nodes}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        way = "set MASTER_ADDR and MASTER_PORT (of the first machine), and NODE_RANK; or start with torchrun or srun"
        raise OnnxgenError(what, help=way)


def first_process(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True for the first of all processes of a run. Only this one prints and writes."""
    return all(environment.get(name, "0") == "0" for name in _RANKS)


def restarted(settings: Settings) -> Settings:
    """Return the settings of a command that may be started again: it goes on if there is a checkpoint.

    All processes decide alike, since no checkpoint is written before all of them have begun.

    Raises:
        OnnxgenError: no folder of the run is given.
    """
    if not settings.restartable or settings.resume:
        return settings
    if settings.out == RUNS:
        raise OnnxgenError("--restartable needs the folder of the run", help="--out FOLDER")
    return replace(settings, resume=any((settings.out / CHECKPOINTS / name).exists() for name in CHECKPOINT_FILES))


RUNNING = ".running"  # locked while a run writes to its folder
_WRITTEN = (MODULE, CONFIG, METRICS, BEST, LAST)


@contextmanager
def alone_in(out: Path, resume: bool) -> Iterator[None]:
    """Hold the folder of a run, which is made. Further processes of the run do nothing here.

    Raises:
        OnnxgenError: another process trains there, or, without `resume`, the folder has files that no run wrote.
        OSError: the folder can't be made.
    """
    if not first_process():
        yield
        return
    there = [name for name in _WRITTEN if (out / name).exists()]
    began = (out / RECORD).exists() or (out / RUNNING).exists()  # the latter is all that tells of a run that was killed
    if there and not resume and not began:
        what = f"{out} has {' and '.join(there)}, but no {RECORD}: it is not the folder of a run"
        raise OnnxgenError(f"{what}, and nothing is replaced", help="name another --out")
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with held_file(out / RUNNING) as alone:
            if not alone:
                what = f"another process is training in {out} at this moment"
                raise OnnxgenError(what, help="name another --out, or wait for its end")
            yield
    finally:
        with suppress(OSError):
            if new:
                out.rmdir()  # only if nothing was written to it


STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")  # job schedulers send the last one before the time is up
_SIGNALS: list[signal.Signals] = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]


class Stopped(Exception):
    """A run received a signal to stop.

    Attributes:
        begun: True if a checkpoint was saved; False before the first step.
    """

    def __init__(self, signum: int, begun: bool = True) -> None:
        self.signum, self.begun = signum, begun
        super().__init__(f"stopped by {signal.Signals(signum).name}")


class Stopping:
    """Notes the first signal to stop, so that the run ends where its state is whole. A second Ctrl-C ends it at once.

    Attributes:
        signum: the latest signal; 0 before there is one.
        ends: what the run does first, for the message.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.signum, self.ends = say, 0, "before the first step"
        self._before: dict[signal.Signals, Any] = {}  # the handlers of the command

    def listen(self) -> None:
        """Install the handlers. Python allows it in the main thread alone."""
        if threading.current_thread() is threading.main_thread():
            for name in _SIGNALS:
                signal.signal(name, self._asked)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen from the first line of a run to its report; Lightning's own handlers are between these two."""
        before = self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        if any(getattr(handler, "came", False) for handler in before.values()):  # a library has swallowed it
            raise KeyboardInterrupt
        self.listen()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _asked(self, signum: int, frame: Any) -> None:
        if self.signum and signum == signal.SIGINT:  # a second Ctrl-C
            getattr(self._before.get(signal.SIGINT), "end", lambda: None)()  # a command ends here
            raise KeyboardInterrupt
        self.signum = signum
        with suppress(RuntimeError):  # the signal came while a line was printed
            self.say(f"stopping {self.ends}; interrupt again to stop at once")


@contextmanager
def held() -> Iterator[None]:
    """Hold signals to stop back. Processes that are started meanwhile receive none of them until `deaf`."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def deaf() -> None:
    """Ignore signals to stop in this process, a worker. Its parent decides when it ends.

    A terminal, and most supervisors, signal all processes of a run, and a worker that ended by itself would take the
    batches of the parent's current step with it.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def said_alone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what a thread of a worker raised, but not that the parent, which it hands batches to, was killed."""
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)
