"""What a sharded run holds, writes and reads; `long_sharded.py` has runs of several processes."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lightning.pytorch.plugins.environments import LightningEnvironment
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from onnxgen import cli
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import files_there
from onnxgen.training.checkpoint import store as folder
from onnxgen.training.checkpoint import weights
from onnxgen.training.checkpoint.callback import Checkpoints
from onnxgen.training.checkpoint.identity import KEY, peek
from onnxgen.training.checkpoint.store import Store
from onnxgen.training.checkpoint.weights import tied_names
from onnxgen.training.data.samples import Feeding
from onnxgen.training.model import built_outside
from onnxgen.training.optimizers import NOT_SHARDED, make_optimizer
from onnxgen.training.running import without_values
from onnxgen.training.settings import Settings
from onnxgen.training.sharded.strategy import Sharded, refuse_sharded, refuse_unshardable, shard, units
from onnxgen.training.task import Task
from tests.training.test_optimizers import CPU, DENSE, net, train


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 4)
        if listed:
            self.layers = nn.ModuleList([Block(), Block()])
        else:
            self.first, self.second = Block(), Block()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.tokens(x)
        for layer in self.layers if hasattr(self, "layers") else (self.first, self.second):
            h = layer(h)
        return self.norm(h)


class Net(nn.Module):
    """A decoder within a network, whose head may be tied to the embedding."""

    def __init__(self, tied: bool = False, listed: bool = True) -> None:
        super().__init__()
        self.decoder, self.head = Decoder(listed), nn.Linear(4, 11, bias=False)
        if tied:
            self.head.weight = self.decoder.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decoder(x))


@pytest.mark.parametrize("listed, names", [(True, ("layers.0", "layers.1")), (False, ("first", "second"))])
def test_units_are_repeated_classes_and_what_is_left(listed: bool, names: tuple[str, ...]) -> None:
    wanted = {*(f"decoder.{name}" for name in names), "decoder.tokens", "decoder.norm", "head"}
    assert {*units(Net(listed=listed))} == wanted
    assert {*units(Net(tied=True, listed=listed))} == wanted - {"decoder.tokens", "head"}


def test_layers_in_a_list_are_units_unless_a_unit_has_the_list() -> None:
    assert units(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == ["0", "2"]
    assert units(Block()) == ["mlp.0", "mlp.2"]


def test_what_fsdp_can_not_share_is_told_by_name() -> None:
    model = Net()
    refuse_unshardable(model, 11)
    with pytest.raises(OnnxgenError, match=r"12 processes can't share this network: head.weight .* are 11"):
        refuse_unshardable(model, 12)
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(OnnxgenError, match=r"scale is a single number.*--strategy ddp"):
        refuse_unshardable(model, 2)
    model.scale.requires_grad_(False)
    refuse_unshardable(model, 2)
    model.head.bias = nn.Parameter(torch.zeros(11, dtype=torch.float64))
    with pytest.raises(OnnxgenError, match=r"head has parameters of the types torch.float32 and torch.float64"):
        refuse_unshardable(model, 2)
    refuse_unshardable(model, 2, cast=True)


# ---- in one process, which is all of the group, or claims to be one of four ------------------------------------------


def test_optimizers_without_operators_for_shards_are_refused_by_name() -> None:
    for strategy in ("fsdp", "ddp"):
        for optimizer in NOT_SHARDED:
            plan: Any = SimpleNamespace(settings=Settings(strategy=strategy, optimizer=optimizer.__name__.lower()))
            with pytest.raises(OnnxgenError, match=optimizer.__name__) if strategy == "fsdp" else nullcontext():
                refuse_sharded(plan)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
    dist.destroy_process_group()


def test_a_sharded_network_computes_the_same_and_holds_tied_weights_once(alone: Any) -> None:
    torch.manual_seed(0)
    model, x = Net(tied=True), torch.arange(11)[None]
    with torch.no_grad():
        expected = model(x)
    whole = without_values(model)
    shard(model, alone)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    assert model.head.weight is model.decoder.tokens.weight and isinstance(model.head.weight, DTensor)
    assert whole.head.weight is whole.decoder.tokens.weight and not whole.head.weight.numel()
    assert tied_names(model) == tied_names(Net(tied=True)) == frozenset()  # no sidecar says which one it has


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0])


def test_a_recurrent_layer_leaves_its_weights_where_they_are_gathered(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA, torch moves the weights of such a layer when they are new objects. So does this one on the CPU."""

    def flatten(layer: nn.RNNBase) -> None:
        for weight in layer._flat_weights:
            weight.data = weight.data.clone()

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flatten)
    x, found = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1)), []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = Recurrent()
        if sharded:
            shard(model, alone)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            losses.append(model(x).square().mean())
            losses[-1].backward()
            optimizer.step()
        found.append(torch.stack(losses).detach())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", DENSE)
def test_every_optimizer_updates_shards_or_is_known_not_to(name: str, alone: Any) -> None:
    expected, sharded = net(name), net(name)
    shard(sharded, alone)
    settings = Settings(optimizer=name, lr=0.01, strategy="fsdp")
    made = []
    for model in (expected, sharded):
        optimizer = make_optimizer([{"params": list(model.parameters())}], settings, CPU)
        if model is sharded and type(optimizer) in NOT_SHARDED:
            with pytest.raises((NotImplementedError, RuntimeError)):
                train(model, optimizer, 2)
            return
        made.append(train(model, optimizer, 2))
    for ours, theirs in zip(made[1], made[0], strict=True):
        assert isinstance(ours, DTensor)
        torch.testing.assert_close(ours.full_tensor(), theirs)


def parts(rank: int, state: dict[str, Tensor], whole: tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors of a process of four, of which this one claims to be `rank`."""
    mesh, made = init_device_mesh("cpu", (4,)), {}
    for name, value in state.items():
        if name in whole:
            made[name] = value
            continue
        chunks = [*value.chunk(4)] + [value[:0]] * 4  # as FSDP2 divides: equal numbers of rows, the last ones fewer
        given = {"shape": value.shape, "stride": value.stride()}
        made[name] = DTensor.from_local(chunks[rank].clone(), mesh, [Shard(0)], **given)
    return made


STATE = {
    "a": torch.randn(7, 3, generator=torch.Generator().manual_seed(1)),
    "b": torch.arange(2, dtype=torch.bfloat16),
    "c": torch.arange(16, dtype=torch.int8).reshape(8, 2, 1),
    "mean": torch.tensor(2.5, dtype=torch.float64),
    "flags": torch.tensor([True, False, True]),
}
DTYPES = {"b": torch.float32}


def written(path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes, one after the other, write their rows."""
    with ExitStack() as stack:
        begun: list[Any] = []
        for rank in range(4):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
            try:
                mine = parts(rank, STATE, ("mean", "flags"))
                shaped = {key: weights._Shaped.of(value, DTYPES.get(key)) for key, value in mine.items()}
                begun = begun or weights._begun(stack, shaped, path, {"fingerprint": "f"}, size)
                weights._written(mine, DTYPES, begun, rank == 0)
            finally:
                dist.destroy_process_group()


@pytest.mark.parametrize("size", [0, 40])
def test_four_processes_write_and_read_what_is_theirs(size: int, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "best.safetensors"
    path.write_bytes(b"older")
    written(path, size, monkeypatch)
    files = files_there(path)
    assert [file.name for file in files][:1] == (["best.safetensors.index.json"] if size else ["best.safetensors"])
    found = {key: value for file in files if file.suffix != ".json" for key, value in load_file(file).items()}
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[key], STATE[key].to(found[key].dtype)) for key in found)
    assert {key: value.dtype for key, value in found.items()} == {k: v.dtype for k, v in STATE.items()} | DTYPES
    if size:
        index = json.loads(files[0].read_text())
        assert index["metadata"]["fingerprint"] == "f" and len(set(index["weight_map"].values())) == len(files) - 1 > 1
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            empty = parts(rank, {key: torch.zeros_like(value) for key, value in STATE.items()}, ("mean", "flags"))
            assert weights.read_rows(empty, files[0]) == STATE.keys()
            wanted = parts(rank, STATE, ("mean", "flags"))
            assert all(torch.equal(weights.block_of(empty[key])[1], weights.block_of(wanted[key])[1]) for key in wanted)
        finally:
            dist.destroy_process_group()


def test_several_processes_compute_the_gradients_of_a_batch_at_once() -> None:
    """A batch is not split: each backward pass exchanges gradients."""
    layer = nn.Linear(3, 2)
    task = Task(layer, [], Feeding(("x",), {}))
    task.trainer = SimpleNamespace(world_size=2)  # type: ignore[assignment]
    task.backward(layer(torch.full((1, 3), 2.0)).sum())
    assert layer.weight.grad is not None and torch.equal(layer.weight.grad, torch.full((2, 3), 2.0))


def test_a_disk_that_is_full_keeps_the_former_weights(alone: Any, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "best.safetensors"
    weights.write_rows({"a": torch.ones(3)}, path, {}, 0)
    before = path.read_bytes()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "_written", full)
    with pytest.raises(OSError, match="No space left"):
        weights.write_rows({"a": torch.zeros(3)}, path, {}, 0)
    assert path.read_bytes() == before and {file.name for file in tmp_path.iterdir()} == {path.name, "store"}


def test_fresh_weights_are_in_files_and_are_those_of_a_plain_network() -> None:
    torch.manual_seed(0)
    plain = Net(tied=True)
    torch.manual_seed(0)
    made = built_outside(lambda: Net(tied=True))
    assert all(parameter.untyped_storage().filename for parameter in made.parameters())
    assert made.head.weight is made.decoder.tokens.weight
    torch.testing.assert_close(made.state_dict(), plain.state_dict(), rtol=0, atol=0)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def checkpoint(path: Path, number: int) -> None:
    folder.begin(path, {"number": number})
    state = {"state_dict": {"w": torch.full((50,), float(number))}, "optimizer_0": {"lr": 0.5}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path))


@pytest.fixture
def store(alone: Any, tmp_path: Path) -> Store:
    found = Store(tmp_path / "checkpoints", [].append)
    for number in range(3):
        checkpoint(new := found.folder / "new", number)
        folder.put_in_place(new, found.last, found.folder / "previous.ckpt")
    return found


def number_of(store: Store) -> int:
    found = store.read()
    assert found is not None and store.found is not None
    state = {"state_dict": {"w": torch.zeros(50)}, "optimizer_0": {"lr": 0.0}}
    folder.check(store.found, 0, 1)
    folder.read_shards(state, store.found)
    assert state["optimizer_0"]["lr"] == 0.5 and bool((state["state_dict"]["w"] == found["number"]).all())  # type: ignore[index]
    return int(found["number"])


def test_the_last_two_checkpoints_are_kept_and_a_missing_shard_is_noticed(store: Store) -> None:
    assert sorted(path.name for path in store.folder.iterdir()) == ["last.ckpt", "previous.ckpt"]
    assert number_of(store) == 2 and peek(store.folder) == {}  # no part of onnxgen's is in it
    (store.last / "__0_0.distcp").write_bytes((store.last / "__0_0.distcp").read_bytes()[:-1])
    assert number_of(store) == 1
    (store.folder / "previous.ckpt" / "__0_0.distcp").unlink()
    with pytest.raises(OnnxgenError, match=r"__0_0.distcp is cut short.*__0_0.distcp is missing.*without --resume"):
        store.read()
    store.clear()
    assert store.read() is None and not [*store.folder.iterdir()]


def test_the_strategy_writes_the_last_checkpoint_and_takes_the_one_before_a_damaged_one(store: Store) -> None:
    said: list[str] = []
    store.say = said.append
    strategy = Sharded(1)
    strategy.checkpoint_io, strategy.parallel_devices = store, [torch.device("cpu")]
    strategy.cluster_environment = LightningEnvironment()
    state = {"state_dict": {"w": torch.full((50,), 3.0)}, "optimizer_states": [{"lr": 0.5}], "number": 3}
    strategy.save_checkpoint(state, store.last)
    assert number_of(store) == 3 and strategy._whole(store.last) == store.last and not said
    (store.last / "__0_0.distcp").unlink()
    assert strategy._whole(store.last) == store.folder / "previous.ckpt" and "is damaged" in said[0]
    (store.folder / "previous.ckpt" / "__0_0.distcp").unlink()
    with pytest.raises(OnnxgenError, match="last.ckpt is damaged.*previous.ckpt is damaged"):
        strategy._whole(store.last)


def test_a_kill_while_a_checkpoint_is_put_in_place_leaves_a_whole_one(store: Store, monkeypatch: Any) -> None:
    kept = shutil.copytree(store.folder, store.folder.parent / "kept")
    replace, seen = os.replace, set()
    for steps in range(4):
        shutil.rmtree(store.folder)
        shutil.copytree(kept, store.folder)
        checkpoint(new := store.folder / "new", 3)
        left = iter(range(steps))

        def killed(*args: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            replace(*args)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt) if steps < 3 else ExitStack():
            patched.setattr(os, "replace", killed)
            folder.put_in_place(new, store.last, store.folder / "previous.ckpt")
        seen.add(number_of(store))
    assert seen == {2, 3}


def test_code_in_a_checkpoint_is_not_run(store: Store, tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    (store.last / ".metadata").write_bytes(pickle.dumps(Bad()))
    assert number_of(store) == 1
    state = {"optimizer_0": {"lr": Bad()}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "bad"))
    with pytest.raises(BaseException, match="mkdir"):
        folder.read_shards({"optimizer_0": {"lr": 0.0}}, tmp_path / "bad")
    assert not (tmp_path / "made").exists()


def test_a_changed_byte_of_a_shard_is_noticed(store: Store) -> None:
    file = store.last / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[content.index(torch.full((9,), 2.0).numpy().tobytes())] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="wrong checksum"):
        folder.check(store.last, 0, 1)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher, ended, told", [("torchrun", False, False), ("", True, False), ("", False, True)])
def test_the_first_process_tells_the_error(
    launcher: str, ended: bool, told: bool, monkeypatch: Any, capsys: Any
) -> None:
    """A further process of Lightning's tells it only if the first one, which started it, goes on."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(cli, "GRACE", 0.1)
    monkeypatch.setattr(cli, "_PARENT", os.getppid() + ended)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if launcher:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert cli.run(["train", "missing.py"]) == 2
    assert ("error: " in capsys.readouterr().err) == told


def test_a_sharded_run_is_not_resumed_whole(store: Store, tmp_path: Path) -> None:
    identity = {"model": "Net"}
    for name in ("last.ckpt", "previous.ckpt"):
        torch.save({KEY: {"identity": identity}}, store.folder / name / folder.REST)
    found = Checkpoints(store, identity, out=tmp_path, minutes=1, monitor="val_loss", say=print)
    with pytest.raises(OnnxgenError, match="is sharded, and --strategy is ddp.*--strategy fsdp"):
        found.start(True, None, "ddp")
