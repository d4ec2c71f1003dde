"""Loads batches in an order that depends only on the seed, and can resume at any batch.

`balanced_order` is the order of `--sampler balanced`, in which every class is as frequent as any other.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Batch, Samples
from onnxgen.training.data.streaming.stream import Order, Spans, Unreadable, Window, stream_of
from onnxgen.training.goals.goal import Goal
from onnxgen.training.launch import deaf, held, said_alone
from onnxgen.training.losses import Objective

# All that a batch depends on: the seed of the epoch, the indices of the samples, and of a stream the windows that they
# are in, and the one that this reader needs after them.
Ticket = tuple[int, list[int], list[Window], Window | None]
Taken = tuple[Batch, list[str]]  # a batch, and which of its samples were skipped and why
TOLD = 5  # samples that can't be read, of which each is told


class Loader:
    """Iterates over the batches of `samples`, once for each epoch.

    The order is a pure function of seed and epoch; no global random state is used or changed. Each *global* batch has
    `batch_size * world` samples, of which rank r takes the r-th part. So several processes see the same global batches
    as one process with the larger batch. The rest at the end of an epoch is a smaller batch, whose parts differ by at
    most one sample (see `weight`). A rest of fewer than `smallest` samples per rank joins the batch before it: every
    rank has the same number of batches, and no sample is left out.

    A stream is not shuffled as a whole (see `Order`). Each rank, and each of its workers, reads a run of its own in
    that order. So the order also depends on their numbers.

    Lightning saves and restores the position with its loops. `state_dict` counts the batches that were handed out, not
    those that workers prepared.

    Attributes:
        epoch: the epoch of the next iteration, from 0. It advances by itself, or by `set_epoch`.
        weight: number of samples in the latest batch on this rank, divided by the mean over all ranks and over the
            `accumulate` batches of the step. Multiply a mean loss by it: then the mean of all gradients is that of all
            samples of the step. It is 1 except in the last step of an epoch, which may be smaller.
        skipped: number of samples of a stream that could not be read.
        step, place: with `ahead`, the batches of the step on this rank, and the place of the latest one among them.
    """

    batch_sampler = None  # Lightning looks for `set_epoch` here before it looks at `sampler`

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        workers: int | str = "auto",
        rank: int = 0,
        world: int = 1,
        smallest: int = 1,
        drop_last: bool = False,
        pin_memory: bool = False,
        accumulate: int = 1,
        classes: np.ndarray | None = None,
        ahead: bool = False,
        say: Callable[[str], None] = warnings.warn,
    ) -> None:
        """
        Args:
            samples: worker processes get a copy. If its attribute `in_memory` is true, "auto" means no workers.
            batch_size: samples per rank.
            shuffle: use a new order in each epoch, instead of the order of the samples.
            workers: number of processes that prepare batches; 0: this process, which is best for arrays in memory.
            rank, world: number of this process, and of the processes that share each global batch.
            smallest: minimum samples of a rank in a batch (BatchNorm can't train with one).
            drop_last: leave out an incomplete last batch, for a model with a fixed batch size.
            accumulate: number of batches whose gradients make one step; see `weight`.
            classes: the class of each sample [n]: draw each class equally often, in place of each sample once.
            ahead: load all batches of a step before its first one is handed out; see `step`.
            say: tells which samples of a stream were skipped.
            pin_memory: put batches into page-locked memory, from which CUDA copies while it computes.

        Raises:
            OnnxgenError: there are too few samples for one batch.
        """
        batches, end = _batches(len(samples), batch_size * world, smallest * world, drop_last)
        facts = batch_size * world, batches, end, len(samples), shuffle, seed, rank, world, accumulate, classes
        self.samples, self.pin_memory = samples, pin_memory
        self.workers = count_workers(samples, workers, world)
        stream = stream_of(samples)
        self.plan = BatchPlan(*facts)
        if stream is not None:
            self.plan = StreamPlan(*facts, spans=stream.spans, window=stream.window, readers=max(1, self.workers))
        if len(samples) < world or not len(self):
            needed = batch_size * world if drop_last else world
            what = f"the data has {counted(len(samples), 'sample')}, but one batch needs at least {needed}"
            raise OnnxgenError(what, help="use smaller batches, fewer processes or more data")
        self.epoch, self.weight = 0, 1.0
        self.step: list[Batch] = []
        self.place, self._ahead = 0, ahead
        self._start = self._given = self.skipped = 0
        self._say = say
        self._order = _Order()
        self._workers: DataLoader[Taken | OnnxgenError] | None = None

    def __len__(self) -> int:
        return self.plan.batches

    @property
    def sampler(self) -> Loader:
        """Lightning looks for `set_epoch` here."""
        return self

    def close(self) -> None:
        """End the worker processes; another iteration starts others.

        Left to the garbage collector, they are ended when their queues may be gone: none of them hears of it, and torch
        waits five seconds for each.
        """
        if self._workers is not None and self._workers._iterator is not None:
            self._workers._iterator._shutdown_workers()  # type: ignore[attr-defined]
        self._workers = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. It starts at its first batch, unless `epoch` is already set."""
        if epoch != self.epoch:
            self.epoch, self._start, self._given = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, how many of its batches were handed out, and what the order of a stream depends on."""
        return {"epoch": self.epoch, "given": self._given, **self.plan.readers_of_order}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where `state_dict` was taken: the next iteration yields the rest of the epoch.

        Raises:
            OnnxgenError: the samples are a stream, the state is within an epoch, and `world` was another.
        """
        self.epoch, self._start = int(state["epoch"]), int(state["given"])
        self._given = self._start
        if not isinstance(self.plan, StreamPlan) or self._start in (0, len(self)) or "world" not in state:
            return
        if state["world"] != self.plan.world:
            what = f"the run was stopped within an epoch of {counted(state['world'], 'process')}"
            what += f", and streamed data was divided among them; now there are {self.plan.world}"
            raise OnnxgenError(what, help=f"--devices {state['world']} for the rest of this epoch")
        if state["readers"] != self.plan.readers:
            self.plan, self.workers = replace(self.plan, readers=state["readers"]), state["readers"]

    def __iter__(self) -> Iterator[Batch]:
        if self._given == len(self):
            self.set_epoch(self.epoch + 1)
        first, self._start = self._start, 0
        self._given = first
        tickets = self.plan.tickets(self.epoch, first)
        batches = self._parallel(tickets) if self.workers else self._here(tickets)
        for number, (batch, skipped) in enumerate(self._steps(batches, first) if self._ahead else batches, first):
            self._given = number + 1
            self.weight = self.plan.weight(number)
            self._tell(skipped)
            yield batch

    def _steps(self, batches: Iterator[Taken], first: int) -> Iterator[Taken]:
        """Yield what `batches` does, once all batches of a step are there."""
        accumulate = self.plan.accumulate
        while taken_ones := list(itertools.islice(batches, accumulate - first % accumulate)):
            self.step = [batch for batch, _ in taken_ones]
            for self.place, one in enumerate(taken_ones):
                yield one
            first += len(taken_ones)

    def _tell(self, skipped: list[str]) -> None:
        for text in skipped:
            self.skipped += 1
            more = "; more of them are skipped without a word" if self.skipped == TOLD else ""
            if self.skipped <= TOLD:
                self._say(f"skipped, since it can't be read: {text}{more}")

    def _here(self, tickets: Iterator[Ticket]) -> Iterator[Taken]:
        for ticket in tickets:
            batch, skipped = taken(self.samples, ticket)
            yield {n: c.pin_memory() for n, c in batch.items()} if self.pin_memory else batch, skipped

    def _parallel(self, tickets: Iterator[Ticket]) -> Iterator[Taken]:
        if self._workers is None:
            self._workers = DataLoader(
                _Taken(self.samples),
                batch_size=None,
                sampler=self._order,
                num_workers=self.workers,
                collate_fn=_same,
                persistent_workers=True,
                pin_memory=self.pin_memory,
                worker_init_fn=_begin,
                generator=torch.Generator(),  # else it draws a number from the global generator each epoch
            )
        self._order.tickets = tickets
        for loaded in _running(self._workers):
            if isinstance(loaded, OnnxgenError):
                raise loaded
            yield loaded[0], loaded[1]  # pinning makes a list of the pair


@dataclass(frozen=True)
class BatchPlan:
    """Tells which samples are in each batch of each epoch.

    It has no reference to the loader. In a cycle of references, a forked worker would garbage-collect its copy of the
    loader and thereby end the workers of its parent.

    Attributes:
        size: samples of a global batch; the last one may have more or fewer.
        batches: number of global batches.
        end: the end of the last one in the order of an epoch.
        classes: of the samples, if each class is drawn equally often.
        seed: for the order, and for random augmentation of samples.
    """

    size: int
    batches: int
    end: int
    count: int
    shuffle: bool
    seed: int
    rank: int
    world: int
    accumulate: int = 1
    classes: np.ndarray | None = None

    @property
    def readers_of_order(self) -> dict[str, int]:
        """What the order depends on besides seed and epoch."""
        return {}

    def tickets(self, epoch: int, first: int = 0) -> Iterator[Ticket]:
        """Yield the tickets of this rank's batches, from batch number `first` on."""
        seed = epoch_seed(self.seed, epoch)
        order, random = np.arange(self.count), np.random.Generator(np.random.PCG64(seed))
        if self.classes is not None:
            order = balanced_order(self.classes, random)
        elif self.shuffle:
            order = random.permutation(self.count)
        for number in range(first, self.batches):
            begin, end = self.share(number)
            yield seed, order[begin:end].tolist(), [], None

    def share(self, number: int) -> tuple[int, int]:
        """Return begin and end of this rank's part of a batch."""
        begin, end = self._bound(number), self._bound(number + 1)
        return begin + self.rank * (end - begin) // self.world, begin + (self.rank + 1) * (end - begin) // self.world

    def weight(self, number: int) -> float:
        """Return the size of this rank's part, divided by the mean over all ranks and all batches of the step."""
        begin, end = self.share(number)
        first = number - number % self.accumulate
        last = min(first + self.accumulate, self.batches)
        return (end - begin) * self.world * self.accumulate / (self._bound(last) - self._bound(first))

    def _bound(self, number: int) -> int:
        """Return the start of a global batch in the order of an epoch."""
        return self.end if number == self.batches else number * self.size


@dataclass(frozen=True)
class StreamPlan(BatchPlan):
    """Like `BatchPlan`, for a stream, whose samples are read in order.

    The order of an epoch (`Order`) is cut into a run for each rank, and each of these into one for each reader. Batch
    `number` of a rank comes from its reader `number % readers`. All readers together read each sample once.

    Attributes:
        window: see `Order`.
        readers: of each rank; its worker processes, or this process.
    """

    spans: Spans = field(kw_only=True)
    window: int = field(kw_only=True)
    readers: int = field(kw_only=True)

    @property
    def readers_of_order(self) -> dict[str, int]:
        return {"world": self.world, "readers": self.readers}

    def tickets(self, epoch: int, first: int = 0) -> Iterator[Ticket]:
        seed = epoch_seed(self.seed, epoch)
        order = Order(self.spans, self.window, seed if self.shuffle else None)
        for number in range(first, self.batches):
            begin, end = self.run(number)
            indices, windows = order.taken(begin, end)
            last = number + (self.batches - 1 - number) // self.readers * self.readers  # batch of this reader
            later = -(-end // self.window) * self.window
            yield seed, indices, windows, order.window(later) if later < self.run(last)[1] else None

    def run(self, number: int) -> tuple[int, int]:
        """Return the begin and the end of a batch of this rank, in the order of the epoch."""
        whole, each = self.batches - 1, self.size // self.world  # all batches but the last have `each` samples
        begin, end = self.share(whole)
        start = self.rank * whole * each + begin - self._bound(whole)  # after the other ranks' samples
        reader = number % self.readers
        start += (whole // self.readers * reader + min(whole % self.readers, reader)) * each
        if whole % self.readers < reader:  # an earlier reader has the last batch
            start += end - begin
        start += number // self.readers * each
        return start, start + (end - begin if number == whole else each)


def epoch_seed(seed: int, epoch: int) -> int:
    """Return a 63-bit seed for one epoch, different from those of other epochs and seeds."""
    words = np.random.SeedSequence([seed & (2**64 - 1), epoch]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def _batches(count: int, size: int, smallest: int, drop_last: bool) -> tuple[int, int]:
    """Return the number of global batches, and the end of the last one."""
    whole, rest = divmod(count, size)
    if drop_last or not rest:
        return whole, whole * size
    return whole + int(rest >= smallest or not whole), count


def taken(samples: Samples, ticket: Ticket) -> Taken:
    """Return the batch of a ticket. Samples of a stream that can't be read are left out.

    Raises:
        OnnxgenError: none of them can be read, or anything else is wrong.
    """
    seed, indices, windows, ahead = ticket
    if windows and (stream := stream_of(samples)) is not None:
        stream.hold(windows, ahead)
    try:
        return samples.take(indices, seed), []
    except Unreadable as found:
        left = [index for index in indices if index not in found.why]
        if not left:
            raise OnnxgenError(f"no sample of a batch can be read: {found}", help="repair the shard") from None
        return samples.take(left, seed), list(found.why.values())


class _Order:
    """The DataLoader's sampler. It yields the ticket of a whole batch."""

    tickets: Iterable[Ticket] = ()

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self.tickets)


class _Taken(Dataset[Taken | OnnxgenError]):
    """Takes the samples of a ticket. Errors are returned: torch would add the worker's traceback to a raised one."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, ticket: Ticket) -> Taken | OnnxgenError:
        try:
            return taken(self.samples, ticket)
        except OnnxgenError as error:
            return error


def _running(loader: DataLoader[Any]) -> Iterator[Any]:
    """Return the iterator of a loader, whose workers are deaf to signals to stop from their first moment on."""
    if loader._iterator is not None:
        return iter(loader)
    with held():
        iterator = iter(loader)
    for worker in iterator._workers:  # type: ignore[attr-defined]
        worker._popen.terminate = worker._popen.kill  # torch's way to end one that does not end by itself
    return iterator


def _same(batch: Any) -> Any:
    return batch


def _begin(worker: int) -> None:
    deaf()
    _follow_parent()
    sys.excepthook = said_alone


def _follow_parent() -> None:
    """End a worker whose parent was killed while the worker started.

    torch's worker ends when its parent's id changes after its first look, which comes later than this (torch 2.13). If
    the parent is dead by then, the worker would wait for work forever. This is checked only after a fork: with other
    start methods there may be a process between the two.
    """
    parent = multiprocessing.parent_process()
    if parent and multiprocessing.get_start_method() == "fork" and os.getppid() != parent.pid:
        os._exit(1)


MAX_WORKERS = 8


def count_workers(samples: Samples, workers: int | str, world: int = 1) -> int:
    """Return the number of worker processes; "auto": none for arrays in memory, else one per core of this rank."""
    if isinstance(workers, int):
        return workers
    if getattr(samples, "in_memory", False):
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return max(1, min(_cores() // max(local, 1), MAX_WORKERS))


def _cores() -> int:
    """Return the number of cores that this process may use. In a container these are fewer than the machine has."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def balanced_order(classes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return as many indices of samples as there are, each class equally often (or once more).

    In a class no sample comes a second time before all of them came once.

    Args:
        classes: the class of each sample [n], integers.
    """
    kinds = [np.flatnonzero(classes == kind) for kind in random.permutation(np.unique(classes))]
    shares = [len(part) for part in np.array_split(np.arange(len(classes)), len(kinds))]
    drawn = []
    for members, share in zip(kinds, shares, strict=True):
        rounds = [random.permutation(members) for _ in range(-(-share // len(members)))]
        drawn.append(np.concatenate([members[:0], *rounds])[:share])
    return random.permutation(np.concatenate(drawn))


def classes_of(samples: Samples, objectives: Sequence[Goal]) -> np.ndarray:
    """Return the class of each training sample [n] by the first classifier.

    Raises:
        OnnxgenError: there is none with a class for each sample, or the classes can't be told without reading all.
    """
    way = "leave out --sampler balanced"
    classifiers = [o for o in objectives if isinstance(o, Objective) and o.classes]
    classifier = next((o for o in classifiers if samples.fields[o.column].shape in ((), (1,))), None)
    if classifier is None:
        raise OnnxgenError("--sampler balanced needs a class for each sample", help=way)
    column = column_of(samples, classifier.column)
    if column is None:
        what = f"the classes of column {classifier.column!r} can't be told without reading every sample"
        raise OnnxgenError(what, help=way)
    return column.flatten().numpy()
