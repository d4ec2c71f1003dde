"""Batches of samples in an order that depends on nothing but the seed, and that can be taken up again anywhere."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.data.samples import Batch, Samples

Ticket = tuple[int, list[int]]  # what a batch is made of: the seed of its epoch, the indices of its samples
MOST_WORKERS = 8


class Loader:
    """The batches of `samples`, epoch by epoch; iterate it once for each epoch.

    The order is a pure function of seed and epoch; no global random state is used or changed. Each *global* batch, of
    `batch_size * world` samples, is shared out: rank r takes the r-th part of it. So several processes see the same
    global batches as one process with the larger batch. What remains at the end of an epoch is a smaller batch, whose
    parts differ by one sample at most (see `weight`); a remainder of fewer than `smallest` samples a rank joins the
    batch before it, so that each rank has as many batches as the others and no sample is left out.

    It goes on where it was: `state_dict` counts the batches that were given out, not those that workers prepared.
    (Lightning saves and restores it with its own loops.)

    Attributes:
        epoch: the one that the next iteration gives, counted from 0. It advances by itself, or by `set_epoch`.
        weight: of the batch given last: its samples on this rank, as a multiple of the mean over all ranks and over
            `accumulate` batches. A loss that is a mean over the batch is multiplied by it, so that the mean of the
            ranks' and batches' gradients is that of all samples of the step. 1 except for the last step of an epoch,
            which may have fewer batches, and a smaller last one.
    """

    batch_sampler = None  # Lightning looks here before it looks at `sampler`

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
    ) -> None:
        """
        Args:
            samples: worker processes get a copy. If it has a true attribute `in_memory`, "auto" takes no workers.
            batch_size: samples a rank.
            shuffle: a new order each epoch; else that of the samples.
            workers: processes that prepare batches; 0 prepares them in this one, which is best for arrays in memory.
            rank, world: this process, and how many share each global batch.
            smallest: samples that a rank needs in a batch (training BatchNorm takes no single one).
            drop_last: give whole batches only, for a model of a fixed batch.
            accumulate: batches whose gradients make one step; see `weight`.
            pin_memory: put batches into page-locked memory, from where CUDA copies while it computes.

        Raises:
            OnnxgenError: there are too few samples for one batch.
        """
        bounds = _bounds(len(samples), batch_size * world, smallest * world, drop_last)
        self.plan = Plan(tuple(bounds), len(samples), shuffle, seed, rank, world, accumulate)
        self.samples, self.pin_memory = samples, pin_memory
        self.workers = count_workers(samples, workers, world)
        if len(samples) < world or not len(self):
            needed = batch_size * world if drop_last else world
            ways = "smaller batches, fewer processes or more data"
            what = f"{counted(len(samples), 'sample')}, and one batch takes at least {needed}"
            raise OnnxgenError(what, help=ways)
        self.epoch, self.weight = 0, 1.0
        self._start = self._given = 0
        self._order = _Order()
        self._workers: DataLoader[Batch | OnnxgenError] | None = None

    def __len__(self) -> int:
        return len(self.plan.bounds) - 1

    @property
    def sampler(self) -> Loader:
        """Where Lightning looks for `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iteration gives, from its start unless it is under way."""
        if epoch != self.epoch:
            self.epoch, self._start, self._given = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its batches were given out."""
        return {"epoch": self.epoch, "given": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state_dict` was taken: the next iteration gives only what is left of the epoch."""
        self.epoch, self._start = int(state["epoch"]), int(state["given"])
        self._given = self._start

    def __iter__(self) -> Iterator[Batch]:
        if self._given == len(self):
            self.set_epoch(self.epoch + 1)
        first, self._start = self._start, 0
        self._given = first
        tickets = self.plan.tickets(self.epoch, first)
        for number, batch in enumerate(self._parallel(tickets) if self.workers else self._made(tickets), first):
            self._given = number + 1
            self.weight = self.plan.weight(number)
            yield batch

    def _made(self, tickets: Iterator[Ticket]) -> Iterator[Batch]:
        for seed, indices in tickets:
            batch = self.samples.take(indices, seed)
            yield {name: column.pin_memory() for name, column in batch.items()} if self.pin_memory else batch

    def _parallel(self, tickets: Iterator[Ticket]) -> Iterator[Batch]:
        if self._workers is None:
            self._workers = DataLoader(
                _Taken(self.samples),
                batch_size=None,
                sampler=self._order,
                num_workers=self.workers,
                collate_fn=_same,
                persistent_workers=True,
                pin_memory=self.pin_memory,
                worker_init_fn=_follow_parent,
                generator=torch.Generator(),  # its own: else it draws a number of the global one each epoch
            )
        self._order.tickets = tickets
        for batch in self._workers:
            if isinstance(batch, OnnxgenError):
                raise batch
            yield batch


@dataclass(frozen=True)
class Plan:
    """Which samples are in which batch of which epoch.

    It knows nothing of the loader: a loader in a circle of references would be collected in a worker, too, and end
    the workers of its parent.

    Attributes:
        bounds: where each global batch begins in the order of an epoch, and where the last ends.
        seed: of the order, and of what is drawn for samples.
    """

    bounds: tuple[int, ...]
    count: int
    shuffle: bool
    seed: int
    rank: int
    world: int
    accumulate: int = 1

    def tickets(self, epoch: int, first: int = 0) -> Iterator[Ticket]:
        """What this rank's batches are made of, from number `first` on."""
        seed = epoch_seed(self.seed, epoch)
        order = np.arange(self.count)
        if self.shuffle:
            order = np.random.Generator(np.random.PCG64(seed)).permutation(self.count)
        for number in range(first, len(self.bounds) - 1):
            begin, end = self.share(number)
            yield seed, order[begin:end].tolist()

    def share(self, number: int) -> tuple[int, int]:
        """Begin and end of this rank's part of a batch."""
        begin, end = self.bounds[number], self.bounds[number + 1]
        return begin + self.rank * (end - begin) // self.world, begin + (self.rank + 1) * (end - begin) // self.world

    def weight(self, number: int) -> float:
        """Size of this rank's part, as a multiple of the mean of all ranks and of all batches of the same step."""
        begin, end = self.share(number)
        first = number - number % self.accumulate
        last = min(first + self.accumulate, len(self.bounds) - 1)
        return (end - begin) * self.world * self.accumulate / (self.bounds[last] - self.bounds[first])


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of one epoch of a run: 63 bits, unlike those of other epochs and seeds."""
    words = np.random.SeedSequence([seed & (2**64 - 1), epoch]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def count_workers(samples: Samples, workers: int | str, world: int = 1) -> int:
    """How many processes prepare batches; "auto": none for arrays in memory, else the cores that a rank has."""
    if isinstance(workers, int):
        return workers
    if getattr(samples, "in_memory", False):
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return max(1, min(_cores() // max(local, 1), MOST_WORKERS))


def _cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _bounds(count: int, size: int, smallest: int, drop_last: bool) -> list[int]:
    """Where global batches begin, and last where they end."""
    bounds = list(range(0, count + 1, size))
    rest = count - bounds[-1]
    if rest and not drop_last:
        if rest < smallest and len(bounds) > 1:
            bounds.pop()
        bounds.append(count)
    return bounds


class _Order:
    """The sampler of the processes' DataLoader: whole batches."""

    tickets: Iterable[Ticket] = ()

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self.tickets)


class _Taken(Dataset[Batch | OnnxgenError]):
    """Samples by the ticket. Errors are handed over as they are: torch would put a worker's traceback into them."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, ticket: Ticket) -> Batch | OnnxgenError:
        seed, indices = ticket
        try:
            return self.samples.take(indices, seed)
        except OnnxgenError as error:
            return error


def _same(batch: Any) -> Any:
    return batch


def _follow_parent(worker: int) -> None:
    """End a worker whose parent was killed while the worker started.

    torch's worker ends when its parent is no longer the one that it had when it first looked, and it looks later than
    this (2.13): of a parent that is dead by now it would wait for work for ever. Only a fork is its parent's child for
    certain: other ways to start may put a process between them.
    """
    parent = multiprocessing.parent_process()
    if parent and multiprocessing.get_start_method() == "fork" and os.getppid() != parent.pid:
        os._exit(1)
