"""A run that is killed and resumed ends bit for bit like an uninterrupted one."""

import os
import re
import secrets
import signal

import lightning
import pytest
import torch
from safetensors.torch import load_file

from onnxgen.errors import OnnxgenError
from onnxgen.training.checkpoint.callback import Stopped
from onnxgen.training.checkpoint.identity import identity
from onnxgen.training.data.samples import Data
from onnxgen.training.fit import fit
from onnxgen.training.loader import epoch_seed
from onnxgen.training.settings import SETTINGS, Settings
from tests.support import forked
from tests.training.runs import CASES, Noisy, net, state, train

KILLS = 2  # of each case, twice


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("again", range(2))
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_run_killed_at_random_moments_ends_the_same(tmp_path, case, again):
    seed = secrets.randbelow(10**6)
    command = ["-m", "tests.training.runs", tmp_path, str(KILLS), str(seed), str(case)]
    made = forked.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print(f"seed of the moments: {seed}\n{made.stdout}{made.stderr}")
    found = re.findall(r"^case (\d+) killed (\d+) runs (\d+) same (\d+)$", made.stdout, re.M)
    assert made.returncode == 0 and len(found) == 1
    number, killed, runs, same = map(int, found[0])
    assert number == case and killed >= KILLS and runs == same


def test_the_score_before_training_takes_no_seed(tmp_path):
    """Each epoch validates with its own seed, as in a resumed run, which has no score before training."""
    seen = []

    class Seeds(Noisy):
        def take(self, indices, seed):
            seen.append(seed)
            return super().take(indices, seed)

    data = Data(train=Noisy(16, 0), val=Seeds(8, 1), target="y")
    fit(net(), data, out=tmp_path, epochs=2, batch_size=8, seed=3, workers=0, show="nothing")
    first, second, third = (epoch_seed(3, epoch) for epoch in range(3))
    assert [seed for seed in seen if seed in (first, second, third)] == [first, first, second]


class Ask(lightning.Callback):
    """Sends this process a signal at a step."""

    def __init__(self, step, number):
        self.step, self.number = step, number

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("step", [7, 18])  # within an epoch of 19 batches, and in its last batch
def test_a_signal_stops_and_saves(tmp_path, name, step):
    number = getattr(signal, name)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with pytest.raises(Stopped, match=name):
        train(tmp_path / "parts", more=[Ask(step, number)])
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    saved = torch.load(tmp_path / "parts/checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] == step + 1
    train(tmp_path / "parts", resume=True)
    train(tmp_path / "whole")
    assert state(tmp_path / "parts") == state(tmp_path / "whole")


def test_a_run_with_max_steps_resumes_between_two_epochs(tmp_path):
    """With `max_steps`, Lightning would resume as if within an epoch."""
    for step in (56, 75):  # in the last batch of an epoch
        with pytest.raises(Stopped):
            train(tmp_path / "parts", resume=step > 56, more=[Ask(step, signal.SIGTERM)], schedule="step", max_steps=85)
    train(tmp_path / "parts", resume=True, schedule="step", max_steps=85)
    train(tmp_path / "whole", schedule="step", max_steps=85)
    assert state(tmp_path / "parts") == state(tmp_path / "whole")


def test_a_signal_ends_after_the_step_and_without_a_validation(tmp_path):
    class Count(lightning.Callback):
        steps = validations = 0

        def on_train_batch_end(self, *args):
            self.steps += 1

        def on_validation_start(self, *args):
            self.validations += 1

    count, lines = Count(), []
    with pytest.raises(Stopped):
        train(tmp_path, more=[Ask(22, signal.SIGINT), count], say=lines.append)
    assert (count.steps, count.validations) == (23, 1)
    assert lines == ["stopping after this step; interrupt again to stop at once"]


def test_a_signal_within_a_validation_says_that_it_is_finished_first(tmp_path):
    class Validating(lightning.Callback):
        def on_validation_batch_start(self, trainer, task, batch, index, *args):
            if trainer.global_step == 19 and index == 0:
                os.kill(os.getpid(), signal.SIGINT)

    lines = []
    with pytest.raises(Stopped):
        train(tmp_path, more=[Validating()], say=lines.append)
    assert lines == ["stopping after this validation; interrupt again to stop at once"]


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(tmp_path, more=[Ask(22, signal.SIGINT), Ask(22, signal.SIGINT)])
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning leaves it ignored
    assert torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 19


def test_random_numbers_drawn_at_the_start_have_no_effect(tmp_path):
    class Drawing(lightning.Callback):
        def on_train_start(self, *args):
            torch.rand(3)

    with pytest.raises(Stopped):
        train(tmp_path / "parts", more=[Drawing(), Ask(30, signal.SIGTERM)])
    train(tmp_path / "parts", more=[Drawing()], resume=True)
    train(tmp_path / "whole", more=[Drawing()])
    assert (tmp_path / "parts/last.safetensors").read_bytes() == (tmp_path / "whole/last.safetensors").read_bytes()


def test_metrics_of_a_resumed_epoch_include_its_first_part(tmp_path):
    with pytest.raises(Stopped):
        train(tmp_path / "parts", more=[Ask(7, signal.SIGTERM)], max_epochs=1)
    resumed, _ = train(tmp_path / "parts", resume=True, max_epochs=1)
    whole, _ = train(tmp_path / "whole", max_epochs=1)
    assert resumed.callback_metrics == whole.callback_metrics and "train_loss" in whole.callback_metrics


def test_a_finished_run_resumes_with_more_epochs(tmp_path):
    train(tmp_path / "parts", max_epochs=2)
    train(tmp_path / "parts", resume=True, max_epochs=4)
    train(tmp_path / "whole", max_epochs=4)
    assert (tmp_path / "parts/last.safetensors").read_bytes() == (tmp_path / "whole/last.safetensors").read_bytes()


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    train(tmp_path, max_epochs=2)
    before = state(tmp_path)
    trainer, keep = train(tmp_path, resume=True, max_epochs=2)
    assert trainer.global_step == 38 and keep.best is not None and state(tmp_path) == before


def test_the_best_weights_are_saved(tmp_path):
    class Weights(lightning.Callback):
        def __init__(self):
            self.seen = []

        def on_validation_end(self, trainer, task):
            kept = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
            self.seen.append((float(trainer.callback_metrics["val_loss"]), kept))

    weights = Weights()
    _, keep = train(tmp_path, more=[weights], max_epochs=6)
    best, last = load_file(tmp_path / "best.safetensors"), load_file(tmp_path / "last.safetensors")
    losses = [loss for loss, _ in weights.seen]
    assert keep.best_epoch == losses.index(min(losses)) and keep.best == min(losses)
    for found, (_, wanted) in ((best, weights.seen[keep.best_epoch]), (last, weights.seen[-1])):
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_resuming_without_a_run_is_refused(tmp_path):
    with pytest.raises(OnnxgenError, match="there is no run to resume in .*without --resume"):
        train(tmp_path, resume=True, max_epochs=1)
    assert not list(tmp_path.rglob("*.ckpt"))


def test_resuming_without_a_checkpoint_starts_again(tmp_path):
    lines = []
    (tmp_path / "config.toml").touch()
    train(tmp_path, resume=True, max_epochs=1, say=lines.append)
    assert lines == [f"the run in {tmp_path} has no checkpoint yet: it starts again"]


def test_a_new_run_removes_old_checkpoints(tmp_path):
    train(tmp_path, max_epochs=1)
    with pytest.raises(RuntimeError):
        train(tmp_path, model=torch.nn.Linear(3, 2))
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.5}, "lr: None there, 0.5 here"),
        ({"data": Noisy(149, 0)}, r"data: 150 samples \(.*\) there, 149 samples"),
        ({"data": Noisy(150, 8)}, r"data: 150 samples \((\w+)\) there, 150 samples \((?!\1)"),
        (
            {"model": torch.nn.Linear(8, 2)},
            r"another model: Sequential of 210 parameters there, Linear of 18 parameters here; "
            r"tensor 0.weight: 16x8 there, none here.* and 8 tensors more",
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, options, message):
    train(tmp_path, max_epochs=1)
    before = state(tmp_path)
    with pytest.raises(OnnxgenError, match=message):
        train(tmp_path, resume=True, **options)
    assert state(tmp_path) == before


def test_fit_resumes_where_it_was_stopped(tmp_path):
    from onnxgen.training import fit

    def run(out, **options):
        torch.manual_seed(0)
        parts = {"train": (Noisy(150, 0).x, Noisy(150, 0).y), "val": (Noisy(40, 1).x, Noisy(40, 1).y)}
        given = {"epochs": 3, "batch_size": 8, "lr": 0.01, "early_stop": 9, "show": "nothing", "out": out, **options}
        return fit(net(), parts, **given)

    stopped = run(tmp_path / "parts", callbacks=[Ask(30, signal.SIGTERM)])
    assert stopped.stopped == "interrupted" and len(stopped.history) == 1
    resumed, whole = run(tmp_path / "parts", resume=True), run(tmp_path / "whole")
    assert resumed.stopped == whole.stopped == "epochs" and resumed.best_epoch == whole.best_epoch
    untimed = [[{k: v for k, v in row.items() if k != "seconds"} for row in r.history] for r in (resumed, whole)]
    assert untimed[0] == untimed[1] and len(untimed[0]) == 3
    for name in ("best.safetensors", "last.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    best = load_file(tmp_path / "whole/best.safetensors")
    assert all(torch.equal(tensor, best[name]) for name, tensor in whole.model.state_dict().items())
    before = {path: path.read_bytes() for path in (tmp_path / "whole").iterdir() if path.is_file()}
    with pytest.raises(OnnxgenError, match="has 3 whole epochs already"):
        run(tmp_path / "whole", resume=True, epochs=2)
    assert before == {path: path.read_bytes() for path in before}


def test_a_resumed_epoch_is_counted_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("onnxgen.training.report.progress.Lines.every", 0.0)
    given = {"epochs": 2, "batch_size": 4, "workers": 0, "show": "lines", "out": tmp_path}
    data = {"train": (Noisy(24, 0).x, Noisy(24, 0).y), "val": (Noisy(8, 1).x, Noisy(8, 1).y)}
    assert fit(net(), data, callbacks=[Ask(1, signal.SIGTERM)], **given).stopped == "interrupted"
    capsys.readouterr()
    fit(net(), data, resume=True, **given)
    said = capsys.readouterr().out
    assert "continuing after step 2, in epoch 1 of 2\n" in said
    counts = [f"epoch 1 of 2, batch {batch} of 6" for batch in (3, 4, 5)]
    counts += [f"epoch 2 of 2, batch {batch} of 6" for batch in (1, 2, 3, 4, 5)]
    assert re.findall(r"^epoch \d of 2, batch \d of 6", said, re.M) == counts


class Poison(lightning.Callback):
    """Makes the weights infinite after a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, task, *args):
        if trainer.global_step == self.step:
            with torch.no_grad():
                task.model[0].weight.fill_(float("inf"))


@pytest.mark.parametrize(("step", "minutes", "bad"), [(30, 1e9, 31), (38, 1e9, 38), (22, 0, 22)])
def test_values_that_are_not_finite_are_never_saved(tmp_path, step, minutes, bad):
    """Tested within an epoch, at its last step, and with a checkpoint at each step."""
    with pytest.raises(OnnxgenError, match=f"infinite or NaN at step {bad};.*--lr"):
        train(tmp_path, more=[Poison(step)], minutes=minutes)
    saved = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] == (19 if minutes else step - 1)
    for tensors in (saved["state_dict"], load_file(tmp_path / "last.safetensors")):
        assert all(tensor.isfinite().all() for tensor in tensors.values())
    net().load_state_dict(load_file(tmp_path / "best.safetensors"))


def test_another_model_is_refused_before_other_checks(tmp_path):
    """The other model has another number of classes, and other inputs."""
    from onnxgen.training import fit

    given = {"epochs": 1, "show": "nothing", "out": tmp_path, "device": "cpu"}
    fit(net(), (Noisy(150, 0).x, Noisy(150, 0).y), **given)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OnnxgenError, match=r"another model: Sequential of 210 .* there, Linear of 4 .* here"):
        fit(torch.nn.Linear(3, 1), (Noisy(150, 0).x, Noisy(150, 0).y), resume=True, **given)
    assert kept == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_settings_that_a_resumed_run_may_change_are_not_compared():
    """Where and how fast it runs, what it writes, and the file that the settings came from."""
    free = "batch_size device imports devices nodes strategy workers replace_head keep weights name out"
    free += " from_scratch partial val test strict compile checkpoint_minutes resume max_hours gradient_checkpointing"
    free += " profile recipe find_lr loggers tokenizer max_length teacher restartable early_stop"
    found = identity(net(), Noisy(4, 0), Settings())
    assert set(SETTINGS) - set(found) == {*free.split(), "epochs", "max_steps"} - {"batch_size"}
    assert "epochs" in identity(net(), Noisy(4, 0), Settings(schedule="cosineannealinglr"))
