"""The order of batches is a pure function of seed and epoch; ranks share it, and it resumes at any batch."""

import multiprocessing
import os
import random
import select
import signal
from collections import Counter
from contextlib import nullcontext

import lightning
import numpy as np
import pytest
import torch

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, predict
from onnxgen.training.data.samples import Field
from onnxgen.training.launch import said_alone
from onnxgen.training.loader import Loader, count_workers
from tests.conftest import ROOT
from tests.support import forked


class Numbers:
    """Samples whose values are their index, and the seed given to `take`."""

    def __init__(self, count, bad=-1):
        self.count, self.bad = count, bad
        self.fields = {"x": Field(torch.int64), "seed": Field(torch.int64)}

    def __len__(self):
        return self.count

    def take(self, indices, seed):
        if self.bad in indices:
            raise OnnxgenError(f"sample {self.bad} can't be read")
        return {"x": torch.tensor(indices), "seed": torch.full((len(indices),), seed)}


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """No test leaves workers: they would be waited for in another one, when they are collected."""
    made, usual = [], Loader.__init__

    def init(self, *args, **kwargs):
        usual(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Loader, "__init__", init)
    yield
    for loader in made:
        loader.close()


def epoch(loader):
    return [batch["x"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_has_every_sample_once_in_a_new_order(workers):
    loader = Loader(Numbers(50), 8, shuffle=True, workers=workers)
    first, second = epoch(loader), epoch(loader)
    assert [len(batch) for batch in first] == [8] * 6 + [2]
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(50))
    assert first != second and sum(first, []) != list(range(50))


def test_without_shuffling_samples_are_in_order():
    assert sum(epoch(Loader(Numbers(10), 4)), []) == list(range(10))


def test_the_order_depends_only_on_seed_and_epoch():
    wanted = [epoch(loader) for loader in [Loader(Numbers(40), 8, shuffle=True, seed=3, workers=0)] for _ in range(3)]
    torch.manual_seed(99), np.random.seed(99), random.seed(99)
    loader = Loader(Numbers(40), 8, shuffle=True, seed=3, workers=2)
    loader.set_epoch(2)
    assert epoch(loader) == wanted[2]
    loader.set_epoch(0)
    assert epoch(loader) == wanted[0]
    assert epoch(Loader(Numbers(40), 8, shuffle=True, seed=4)) != wanted[0]
    assert epoch(Loader(Numbers(40), 8, shuffle=True, seed=-4))


@pytest.mark.parametrize("workers", [0, 1])
def test_global_random_states_are_not_changed(workers):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    epoch(Loader(Numbers(20), 4, shuffle=True, workers=workers))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1], before[2]) == (np.random.get_state()[1].tolist(), random.getstate())


def test_each_epoch_and_run_has_its_own_seed_for_samples():
    def seeds(seed):
        loader = Loader(Numbers(8), 4, seed=seed)
        return [{int(s) for batch in loader for s in batch["seed"]} for _ in range(3)]

    assert all(len(each) == 1 for each in seeds(0))
    assert len(set.union(*seeds(0), *seeds(1))) == 6
    assert seeds(0) == seeds(0)


@pytest.mark.parametrize(("count", "world"), [(48, 2), (50, 3), (61, 4), (7, 4), (4, 4), (33, 2)])
def test_ranks_share_the_batches_of_one_process(count, world):
    alone = epoch(Loader(Numbers(count), 4 * world, shuffle=True, smallest=world))
    loaders = [Loader(Numbers(count), 4, shuffle=True, rank=rank, world=world) for rank in range(world)]
    shared = [sum(parts, []) for parts in zip(*map(epoch, loaders), strict=True)]
    assert shared == alone


@pytest.mark.parametrize("count", [48, 50, 53, 47])
def test_weighted_means_of_ranks_give_the_mean_of_the_batch(count):
    loaders = [Loader(Numbers(count), 4, rank=rank, world=3) for rank in range(3)]
    for parts in zip(*loaders, strict=True):
        whole = torch.cat([part["x"] for part in parts]).double()
        means = [loader.weight * part["x"].double().mean() for loader, part in zip(loaders, parts, strict=True)]
        torch.testing.assert_close(sum(means) / 3, whole.mean())


def test_a_rest_too_small_to_share_joins_the_previous_batch():
    sizes = [[len(batch) for batch in epoch(Loader(Numbers(17), 4, rank=rank, world=2))] for rank in (0, 1)]
    assert sizes == [[4, 4], [4, 5]]
    assert [len(batch) for batch in epoch(Loader(Numbers(9), 4, smallest=2))] == [4, 5]
    assert [len(batch) for batch in epoch(Loader(Numbers(1), 4, smallest=2))] == [1]


def test_drop_last():
    assert [len(batch) for batch in epoch(Loader(Numbers(19), 4, drop_last=True))] == [4, 4, 4, 4]


@pytest.mark.parametrize("options", [{"world": 4}, {"drop_last": True}])
def test_too_few_samples(options):
    with pytest.raises(OnnxgenError, match="3 samples, but one batch needs at least 4"):
        Loader(Numbers(3), 4, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_a_loader_resumes_after_the_batches_handed_out(workers, stop):
    plain = Loader(Numbers(48), 8, shuffle=True, seed=5, workers=0)
    wanted = epoch(plain) + epoch(plain)
    first = Loader(Numbers(48), 8, shuffle=True, seed=5, workers=workers)
    batches = iter(first)
    seen = [next(batches)["x"].tolist() for _ in range(stop)]
    again = Loader(Numbers(48), 8, shuffle=True, seed=5, workers=2 - workers)
    again.load_state_dict(first.state_dict())
    if stop < 6:
        seen += epoch(again)
    assert seen + epoch(again) == wanted
    assert len(again) == 6


def test_setting_the_current_epoch_does_not_restart_it():
    loader = Loader(Numbers(16), 4)
    loader.load_state_dict({"epoch": 3, "given": 3})
    loader.set_epoch(3)
    assert len(epoch(loader)) == 1
    loader.load_state_dict({"epoch": 3, "given": 3})
    loader.set_epoch(4)
    assert len(epoch(loader)) == 4


def test_an_abandoned_iteration_starts_again():
    loader = Loader(Numbers(16), 4, shuffle=True)
    first = next(iter(loader))["x"].tolist()
    assert epoch(loader)[0] == first


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no process can be sent such a signal")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_to_all_processes_ends_no_worker(name):
    """A terminal, and most supervisors, signal all of them; the parent alone decides when the workers end."""
    heard, own = [], os.getpid()

    def hear(*_):
        if os.getpid() != own:
            raise KeyboardInterrupt  # as Python does where nobody has set a handler
        heard.append(name)

    before = signal.signal(getattr(signal, name), hear)
    try:
        loader, seen = Loader(Numbers(400), 4, workers=2), []
        for number, batch in enumerate(loader):
            seen += batch["x"].tolist()
            if number in (0, 40):
                for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
                    os.kill(process, getattr(signal, name))
    finally:
        signal.signal(getattr(signal, name), before)
    children = multiprocessing.active_children()
    loader.close()
    assert seen == list(range(400)) and heard == [name] * 2 and len(children) == 2
    assert not any(child.is_alive() for child in children)


def test_a_closed_loader_has_no_workers_and_begins_anew():
    loader = Loader(Numbers(20), 4, workers=2)
    first = epoch(loader)
    before = {process.pid for process in multiprocessing.active_children()}
    loader.close()
    assert len(before - {process.pid for process in multiprocessing.active_children()}) == 2
    assert epoch(loader) == first
    next(half := iter(loader))
    loader.close()
    assert {process.pid for process in multiprocessing.active_children()}.isdisjoint(before)
    half.close()


class Failing(lightning.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        raise ZeroDivisionError


@pytest.mark.parametrize("callbacks", [[], [Failing()]], ids=["to its end", "an error"])
def test_a_run_leaves_no_workers(callbacks, tmp_path):
    before = {process.pid for process in multiprocessing.active_children()}
    data = torch.rand(40, 2), torch.arange(40) % 2
    with pytest.raises(ZeroDivisionError) if callbacks else nullcontext():
        fit(torch.nn.Linear(2, 2), data, epochs=1, workers=2, out=tmp_path / "out", callbacks=callbacks)
    evaluate(torch.nn.Linear(2, 2), data, workers=2)
    predict(torch.nn.Linear(2, 2), data, workers=2)
    assert {process.pid for process in multiprocessing.active_children()} <= before


def test_an_error_of_a_worker_is_one_line():
    with pytest.raises(OnnxgenError) as caught:
        epoch(Loader(Numbers(20, bad=11), 4, workers=1))
    assert str(caught.value) == "sample 11 can't be read"


def test_the_number_of_workers(monkeypatch):
    samples = Numbers(4)
    assert count_workers(samples, 3) == 3
    monkeypatch.setattr("onnxgen.training.loader._cores", lambda: 64)
    assert (count_workers(samples, "auto"), count_workers(samples, "auto", 16)) == (8, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert count_workers(samples, "auto", 64) == 2
    samples.in_memory = True
    assert count_workers(samples, "auto") == 0


def test_no_sample_is_in_two_batches():
    counted = Counter(sum(epoch(Loader(Numbers(33), 5, shuffle=True, rank=1, world=2)), []))
    assert max(counted.values()) == 1


ORPHAN = """
import os, signal, time
from onnxgen.training.loader import Loader
from tests.training.test_loader import Numbers

def killed(me=os.getpid()):
    os.kill(me, signal.SIGKILL)

def once_the_parent_is_dead(parent=os.getpid()):
    while os.getppid() == parent:
        time.sleep(0.01)

loader = Loader(Numbers(20), 2, workers=1)
os.register_at_fork(after_in_parent=killed, after_in_child=once_the_parent_is_dead)
list(loader)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_worker_ends_if_its_parent_is_killed_while_it_starts(tmp_path):
    """Otherwise it would keep inherited pipes open, and their readers would wait forever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    started = forked.start(["-c", ORPHAN], pipe, pipe, cwd=ROOT)
    said = b""
    with open(pipe, "rb", buffering=0) as reader:
        while part := reader.read(1 << 16) if select.select([reader], [], [], 60)[0] else None:
            said += part
    started.join(60)
    started.kill()
    assert part == b"", "a worker keeps the pipe open"
    assert started.exitcode == -signal.SIGKILL, said


def test_a_worker_does_not_tell_that_its_parent_was_killed(capsys):
    """Its thread that hands tensors on hears that the other end is gone, on the terminal of whoever killed the run."""
    for error in (ConnectionResetError("Connection reset by peer"), EOFError()):
        said_alone(type(error), error, None)
    assert capsys.readouterr().err == ""
    said_alone(ValueError, ValueError("another"), None)
    assert "ValueError: another" in capsys.readouterr().err
