"""Lightning's strategy for FSDP2, with checkpoints that are folders, replaced as a whole.

`units` says which modules are gathered one at a time, `shard` divides the parameters, and
`refuse_sharded` refuses what `--strategy fsdp` can't train.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
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
from onnxgen.training.checkpoint.store import (
    PREVIOUS,
    Store,
    begin,
    check,
    put_in_place,
    read_rest,
    read_shards,
    reason,
    remove,
)
from onnxgen.training.checkpoint.weights import agreed
from onnxgen.training.goals.goal import own_modules
from onnxgen.training.memory import return_freed
from onnxgen.training.optimizers import NOT_SHARDED, optimizer_class
from onnxgen.training.prepare import Plan


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
            return_freed(1 << 20)  # each unit that was gathered would stay in memory
        super().setup_environment()

    @property
    def _store(self) -> Store:
        store = self.checkpoint_io
        assert isinstance(store, Store)
        return store

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint. If any process can't, the old one stays, and training goes on."""
        state = {"state_dict": checkpoint.pop("state_dict")}
        state |= {f"optimizer_{n}": optimizer for n, optimizer in enumerate(checkpoint.pop("optimizer_states", []))}
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
            faults: list[str] = [""] * self.world_size
            dist.all_gather_object(faults, _damage(one, self.global_rank, self.world_size))
            if not any(faults):
                if damaged and self.global_rank == 0:
                    self._store.say(f"{damaged[0]}; continuing from {one.name}")
                return one
            damaged.append(next(filter(None, faults)))
        raise OnnxgenError("; ".join(damaged), help="start a new run without --resume")

    def teardown(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None and isinstance(error := writing.exception(), OSError):  # the others may have ended
            self._tell(error)
        super().teardown()


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
        failure = _first(error)
        if isinstance(failure, OSError):
            raise failure from None
        if isinstance(failure, RuntimeError) and isinstance(failure.__context__, OSError):
            raise failure.__context__ from None  # torch's writer hides the error of a full disk
        raise RuntimeError(f"the checkpoint was not written: {typed(failure)}") from error


def _first(error: CheckpointException) -> BaseException:
    return next(iter(error.failures.values()))[0]


def is_sharded(trainer: Any) -> bool:
    """Return True if the trainer's model is sharded."""
    return isinstance(trainer.strategy, Sharded)


LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DDP = "--strategy ddp"


def units(model: nn.Module) -> list[str]:
    """Return the paths of the modules whose parameters are gathered together, a module before those that contain it.

    They are the items of lists (`nn.Sequential`, `nn.ModuleList`, `nn.ModuleDict`) and the instances of classes of the
    module's own file that occur more than once. Within a unit, only instances of such classes in lists are units. What
    is left is divided into the largest modules that contain no unit: embeddings, the head. A module that shares a
    parameter with another unit is none, because FSDP2 can't gather one parameter in two places: the network gathers it.
    """
    own = type(model).__module__
    counts = Counter(type(module) for module in model.modules() if type(module).__module__ == own)
    paths = [*_repeated(model, "", {kind for kind, count in counts.items() if count > 1}, own, inside=False)]
    paths = [*paths, *_rest(model, "", paths)]
    paths = sorted(dict.fromkeys(paths), key=lambda path: -path.count("."))
    return [path for path in paths if path not in _sharing(model, paths)]


def _repeated(module: nn.Module, path: str, kinds: set[type], own: str, inside: bool) -> Iterator[str]:
    for name, child in module.named_children():
        if not any(True for _ in child.parameters()):
            continue
        inner = f"{path}.{name}" if path else name
        listed = isinstance(module, LISTS) and (not inside or type(child).__module__ == own)
        unit = not isinstance(child, LISTS) and (listed or (not inside and type(child) in kinds))
        if unit:
            yield inner
        yield from _repeated(child, inner, kinds, own, inside or unit)


def _rest(module: nn.Module, path: str, units: list[str]) -> Iterator[str]:
    """Yield the largest modules that are no units, are in none and contain none."""
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if inner in units or not any(True for _ in child.parameters()):
            continue
        if isinstance(child, LISTS) or any(unit.startswith(f"{inner}.") for unit in units):
            yield from _rest(child, inner, units)
        else:
            yield inner


def _sharing(model: nn.Module, modules: list[str]) -> set[str]:
    """Return the units that share a parameter with another one, or with the network itself."""
    owners: dict[int, set[str]] = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners[id(parameter)].add(next((path for path in modules if name.startswith(f"{path}.")), ""))
    return {path for paths in owners.values() if len(paths) > 1 for path in paths}


def shard(model: nn.Module, mesh: Any) -> None:
    """Divide each parameter by its rows among the processes of a mesh: first those of the units, then the rest.

    Parameters that are mapped from files stay there until their unit is sharded; of these, each process copies its rows
    alone. Frozen numbers (parameters without an axis) stay whole.

    Args:
        mesh: of the dimension "data_parallel".

    Raises:
        OnnxgenError: FSDP2 can't shard the network; the message has its reason.
    """
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            # It would move the gathered weights to memory of its own, where the next gathering does not write: cuDNN
            # then computes with the weights of the first step (torch 2.11).
            vars(module)["flatten_parameters"] = _nothing
    whole = {parameter for parameter in model.parameters() if parameter.ndim == 0}
    for path in (*units(model), ""):
        try:
            fully_shard(
                model.get_submodule(path), mesh=mesh["data_parallel"], reshard_after_forward=True, ignored_params=whole
            )
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise OnnxgenError(f"{path or 'the network'} can't be sharded: {one_line(error)}", help=_DDP) from error


def _nothing() -> None:
    """In place of `nn.RNNBase.flatten_parameters`."""


def refuse_unshardable(model: nn.Module, processes: int, cast: bool = False) -> None:
    """Raise `OnnxgenError` if a process would have nothing, a number (without an axis) is to be trained, or a unit has
    parameters of two types; with `cast`, all get one type.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0 and parameter.requires_grad:
            what = f"{name} is a single number, which --strategy fsdp can't divide among processes"
            raise OnnxgenError(what, help=f"--freeze {name}, or {_DDP}")
    paths, types = units(model), dict[str, torch.dtype]()
    for name, parameter in model.named_parameters():
        unit = next((path for path in paths if name.startswith(f"{path}.")), "")
        if parameter.requires_grad and not cast and types.setdefault(unit, parameter.dtype) != parameter.dtype:
            what = f"{unit or 'the network'} has parameters of the types {types[unit]} and {parameter.dtype} ({name})"
            raise OnnxgenError(f"{what}, which --strategy fsdp gathers together", help=_DDP)
    most = max(((p.shape[0], name) for name, p in model.named_parameters() if p.ndim), default=(0, ""))
    if processes > most[0]:
        what = f"{processes} processes can't share this network: {most[1]} has the most rows, and these are {most[0]}"
        raise OnnxgenError(what, help=f"start at most {most[0]}")


def refuse_sharded(plan: Plan) -> None:
    """Raise `OnnxgenError` if the strategy is fsdp, which can't train this."""
    if plan.settings.strategy != "fsdp":
        return
    optimizer = optimizer_class(plan.settings.optimizer)
    if optimizer in NOT_SHARDED:
        what = f"{optimizer.__name__} can't update sharded weights: torch lacks operators for them"
        raise OnnxgenError(what, help="--optimizer adamw, or --strategy ddp")
    cast = plan.settings.precision in ("bf16-true", "16-true", "64-true")
    refuse_unshardable(plan.model, plan.settings.processes, cast)
    if any(True for module in own_modules(plan.objectives) for _ in module.parameters()):
        what = f"--task {plan.settings.task} has parameters of its own, which --strategy fsdp does not exchange"
        raise OnnxgenError(what, help="--strategy ddp")
