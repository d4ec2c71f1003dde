"""A small run with random order, augmentation and Dropout, and with state in all its parts.

As a script it runs several times. Each time a fork trains and is killed (SIGKILL) at a random moment; the next one
resumes. Forks are quick, since Python and torch are loaded only once.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn

from onnxgen.training.checkpoint.callback import Checkpoints
from onnxgen.training.checkpoint.identity import identity
from onnxgen.training.checkpoint.store import Store
from onnxgen.training.data.samples import Data, Feeding, Field
from onnxgen.training.fit import fit
from onnxgen.training.loader import Loader
from onnxgen.training.losses import Objective
from onnxgen.training.prepare import quiet
from onnxgen.training.runs.folder import holds_a_run
from onnxgen.training.settings import Settings
from onnxgen.training.task import QUIET, LogEpoch, Task
from tests.training.sketches import sketched


class Noisy:
    """Two classes of points, with a little noise that depends only on seed and index."""

    def __init__(self, count, seed, in_memory=True):
        generator = torch.Generator().manual_seed(seed)
        self.in_memory = in_memory
        self.x = torch.randn(count, 8, generator=generator)
        self.y = (self.x[:, 0] * 2 + self.x[:, 1] > 0).long()
        self.fields = {"x": Field(torch.float32, (8,)), "y": Field(torch.int64, (), ("0", "1"))}

    def __len__(self):
        return len(self.x)

    def take(self, indices, seed):
        generators = [torch.Generator().manual_seed(hash((seed, i)) % 2**63) for i in indices]
        noise = torch.stack([torch.randn(8, generator=generator) for generator in generators])
        return {"x": self.x[indices] + 0.1 * noise, "y": self.y[indices]}


def net():
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)
    return nn.Sequential(*layers)


def configure(schedule):
    def made(model, steps):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if schedule == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.05)
            scheduler = {"scheduler": plateau, "monitor": "val_loss", "interval": "epoch"}
        else:
            scheduler = {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 1000), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    return made


def train(out, *, resume=False, minutes=1e9, schedule="plateau", lr=None, model=None, data=None, say=print, more=(),
          workers=0, **options):  # fmt: skip
    """Train as `fit` does; `options` are the Trainer's."""
    with quiet():
        lightning.seed_everything(3, verbose=False)
        model, data = model or net(), data or Noisy(150, 0)
        task = Task(model, [Objective(0, "", "y", "cross_entropy", classes=2)], Feeding(("x",), {0: "y"}),
                    configure(schedule))  # fmt: skip
        keep = Checkpoints(Store(out / "checkpoints", say), identity(model, data, Settings(lr=lr)), out=out,
                           minutes=minutes, monitor="val_loss", say=say)  # fmt: skip
        stopping = EarlyStopping("val_loss", patience=9, check_finite=False)
        options = {"max_epochs": 5, "accelerator": "cpu", **QUIET, **options}
        trainer = lightning.Trainer(callbacks=[LogEpoch(), *more, stopping, keep], plugins=[keep.store], **options)
        path = keep.start(resume)
        loader = Loader(data, 8, shuffle=True, workers=workers)
        trainer.fit(task, loader, Loader(Noisy(40, 1), 8), ckpt_path=path)
        return trainer, keep


def fitted(out, *, data, resume=False, minutes=1e9, **options):
    """Train with `fit` itself."""
    data = Data(train=data, val=Noisy(40, 1), target="y")
    given = {"epochs": 5, "batch_size": 8, "optimizer": "sgd", "lr": 0.05, "optimizer_args": {"momentum": 0.9}}
    given |= {"seed": 3, "schedule": "reducelronplateau", "early_stop": 9, "monitor": "val_loss"}
    fit(net(), data, out=out, resume=resume, checkpoint_minutes=minutes, show="nothing", **given | options)


def state(out):
    """Return everything that must be equal at the end, bit for bit, by file and place; durations are left out."""
    checkpoint = torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)
    for row in checkpoint["callbacks"].get("Metrics", {}).get("rows", ()):
        del row["seconds"]
    checkpoint["callbacks"].get("Metrics", {}).pop("gone", None)  # seconds of the last epoch
    files = {path.name: path.read_bytes() for path in (*out.glob("*.safetensors"), *out.glob("*.png"))}
    if (out / "metrics.csv").is_file():
        lines = (out / "metrics.csv").read_text().splitlines()
        assert lines[0].endswith(",seconds")
        files["metrics.csv"] = [line.rpartition(",")[0] for line in lines]
    return files | dict(leaves("last.ckpt", checkpoint))


def leaves(path, value):
    """Yield the contents of a nested value, with their places."""
    if isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(f"{path}/{key}", inner)
        yield path, (type(value), len(value))
    elif isinstance(value, torch.Tensor):
        yield path, (value.dtype, value.shape, value.numpy().tobytes())
    else:
        yield path, repr(value)


def life(seconds, out, **options):
    """Run a fork for at most `seconds`. Return True if it was killed, False if it ended by itself."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resume = holds_a_run(out) or (out / "config.toml").is_file()  # as a job's script asks
            {"train": train, "fit": fitted}[options.pop("by", "train")](out, resume=resume, **options)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, "a life ended with an error"
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


CASES = (  # of 6 batches an epoch
    {"max_epochs": 3},
    {"max_epochs": 3, "accumulate_grad_batches": 3},
    {"schedule": "step", "max_steps": 15},
    {"max_epochs": 2, "workers": 1},
    {"by": "fit", "epochs": 3, "accumulate": 2},
)


def main(folder: Path, kills: int, seed: int, number: int) -> None:
    """Print how often the runs of a case were killed, and how many ended exactly like an uninterrupted one."""
    moments = random.Random(seed)
    fitted(folder / "first", data=Noisy(8, 0), epochs=1)  # what is imported late, and made once
    gc.collect()
    gc.freeze()  # a collection in a fork would copy what all share
    torch.set_num_threads(1)
    options = {"data": Noisy(44, 0), **CASES[number]}
    whole = folder / f"whole{number}"
    begun = time.monotonic()
    assert not life(600, whole, **options)
    length, killed, runs, same = time.monotonic() - begun, 0, 0, 0
    while killed < kills:
        parts, runs = folder / f"parts{number}-{runs}", runs + 1
        longer = 1.0
        while life(moments.uniform(0, length * longer), parts, minutes=moments.choice([0, 0.0005]), **options):
            killed += 1  # in a save too: with 0 minutes there is one at every batch
            longer *= 1.2  # a machine that became slow gets further, too
        wanted, found = state(whole), state(parts)
        differing = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
        for name in sorted(differing)[:20]:
            print(f"case {number} differs in {name}")
        same += not differing
    print(f"case {number} killed {killed} runs {runs} same {same}", flush=True)


if __name__ == "__main__":
    with sketched():
        main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
