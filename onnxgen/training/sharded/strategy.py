"""Lightning's strategy for FSDP2, with checkpoints that are folders, replaced as a whole."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from onnxgen.errors import OnnxgenError, one_line, typed
from onnxgen.training.checkpoint.store import PREVIOUS, Store, reason
from onnxgen.training.sharded.folder import begin, check, put_in_place, read_rest, read_shards, remove
from onnxgen.training.sharded.rows import agreed

_M_MMAP_THRESHOLD = -3  # of malloc.h


class Sharded(ModelParallelStrategy):
    """Shards the model as `Task.configure_model` says. Each process saves its part, and reads what it holds.

    A checkpoint may be read by another number of processes than wrote it. On an accelerator it is written while
    training goes on. On a CPU the copy that this needs would take memory from training, so training waits.

    Attributes:
        background: whether checkpoints are written while training goes on; None: on an accelerator.
    """

    background: bool | None = None

    def __init__(self, processes: int) -> None:
        super().__init__(processes, tensor_parallel_size=1, save_distributed_checkpoint=True)
        self._writing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1)
        self._group: Any = None

    def setup_environment(self) -> None:
        if self.root_device.type == "cpu":
            _give_memory_back()
        super().setup_environment()

    @property
    def _store(self) -> Store:
        store = self.checkpoint_io
        assert isinstance(store, Store)
        return store

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint. If any process can't, the old one stays, and training goes on."""
        state = {"state_dict": checkpoint.pop("state_dict")}
        state |= {f"optimizer_{n}": found for n, found in enumerate(checkpoint.pop("optimizer_states", []))}
        self.finish()
        store, first = self._store, self.global_rank == 0
        new = store.folder / f".{store.last.name}.new"

        def put(writing: Future[Any] | None) -> None:
            _as_system(writing.result if writing is not None else lambda: save(state, storage_writer=writer))
            if first:  # it ends when all have written
                put_in_place(new, store.last, store.folder / PREVIOUS)

        try:
            agreed(lambda: begin(new, checkpoint) if first else None)
            writer = FileSystemWriter(new)
            if self.root_device.type == "cpu" if self.background is None else not self.background:
                agreed(lambda: put(None))
            else:
                self._group = self._group or dist.new_group(backend="gloo")
                writing: Any = async_save(state, storage_writer=writer, process_group=self._group)
                self._writing = self._thread.submit(put, writing)
        except OSError as error:
            self._tell(error)

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is in place. All processes call this."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                agreed(writing.result)
            except OSError as error:
                self._tell(error)

    def _tell(self, error: OSError) -> None:
        if self.global_rank == 0:
            self._store.say(f"no checkpoint was written: {reason(error)}; the one before it is kept")
            remove(self._store.folder / f".{self._store.last.name}.new")

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the checkpoint that `Store.read` found, or the one before it if that is damaged.

        Returns:
            what is not sharded.

        Raises:
            OnnxgenError: no checkpoint is whole. All processes raise it.
        """
        path = Path(self.broadcast(checkpoint_path))
        if path.is_file():  # of a run that was not sharded
            return super().load_checkpoint(path, weights_only)
        path = self._whole(path)
        assert self.model is not None
        state: dict[str, Any] = {"state_dict": get_model_state_dict(self.model)}
        for number, optimizer in enumerate(self.optimizers):
            state[f"optimizer_{number}"] = get_optimizer_state_dict(self.model, optimizer)
        try:
            read_shards(state, path)
        except CheckpointException as error:
            what = f"{path} can't be read: {typed(_first(error), 120)}"
            raise OnnxgenError(what, help="start a new run without --resume") from None
        self.model.load_state_dict(state["state_dict"])
        options = StateDictOptions(cpu_offload=True)
        for number, optimizer in enumerate(self.optimizers):
            set_optimizer_state_dict(self.model, optimizer, state[f"optimizer_{number}"], options=options)
        return read_rest(path)

    def _whole(self, path: Path) -> Path:
        """Return the checkpoint at a path, or the one before it if any process finds it damaged."""
        previous, damaged = self._store.folder / PREVIOUS, list[str]()
        for one in dict.fromkeys((path, previous) if previous.is_dir() else (path,)):
            found: list[str] = [""] * self.world_size
            dist.all_gather_object(found, _damage(one, self.global_rank, self.world_size))
            if not any(found):
                if damaged and self.global_rank == 0:
                    self._store.say(f"{damaged[0]}; continuing from {one.name}")
                return one
            damaged.append(next(filter(None, found)))
        raise OnnxgenError("; ".join(damaged), help="start a new run without --resume")

    def teardown(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None and isinstance(error := writing.exception(), OSError):  # the others may have ended
            self._tell(error)
        super().teardown()


def _give_memory_back() -> None:
    """Have glibc's allocator return blocks of a MiB and more to the system once they are freed (mallopt(3)).

    By default it keeps blocks of up to 32 MiB. Each unit that was gathered would stay in memory then. Other allocators
    lack the function.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _damage(path: Path, rank: int, processes: int) -> str:
    """Say what is wrong with the part of a checkpoint that a process looks at; "" if nothing is."""
    try:
        check(path, rank, processes)
    except Exception as error:  # for a damaged file torch and pickle raise any exception
        return f"{path} is damaged ({one_line(error, 120)})"
    return ""


def _as_system(action: Callable[[], Any]) -> None:
    """Call what writes a checkpoint. If the system refused, this raises its error, in all processes.

    DCP tells all processes of a failure.
    """
    try:
        action()
    except CheckpointException as error:
        found = _first(error)
        if isinstance(found, OSError):
            raise found from None
        if isinstance(found, RuntimeError) and isinstance(found.__context__, OSError):
            raise found.__context__ from None  # torch's writer hides the error of a full disk
        raise RuntimeError(f"the checkpoint was not written: {typed(found)}") from error


def _first(error: CheckpointException) -> BaseException:
    return next(iter(error.failures.values()))[0]


def is_sharded(trainer: Any) -> bool:
    """Return True if the trainer's model is sharded."""
    return isinstance(trainer.strategy, Sharded)
