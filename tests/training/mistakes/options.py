"""Options with values that people may give by mistake, alone and in pairs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import click

from onnxgen.cli.app import app

# They would start processes by the name of this program, compile for minutes, or reach for a server.
LEFT = {"--runs", "--devices", "--nodes", "--compile", "--verbose"}
NOT_VALUES = {"fsdp", "ddp", "wandb", "mlflow"}
MOST_WORKERS = 2
NUMBERS = (
    "-1", "0", "1", "2", "3", "0.5", "1.5", "7", "1e-400", "1e999", "nan", "inf", "-inf", "-0", "0x10", "1_0", "1e3",
    str(10**30), str(1 << 31), str(1 << 63), "-9223372036854775809", "9" * 5000, "١",
)  # fmt: skip
WORDS = (
    "", " ", "x", "none", "None", "auto", "true", "a=b", "a=", "=b", "=", ",", "a,b", "a,a", "x=1,x=2", "x=-1", "x=nan",
    "\udcff", "\x00", "a\nb", "é", "日本", "*", "**", "[", "(", "(.*", "%s", "{0}", "{", "'", '"', "\\", "x" * 5000,
    "--", "-", "module:function", "json:loads", "os:getcwd", "os:nothing", ":", "a:", ":b", "small:Small", "small.py:f",
    "scores", "x=x", "scores=target", "target", "x=3", "n=2", "0", "0.5", "0/1", "0,1", "0.1,0.2,0.3/1,1,1", "8x8",
    "0x0", "-1x8", "8x", "100000x100000", "[1,3]", "1,3", "x=1,3,8,8", "x:1x3x8x8", "fc", "fc.*", "scores=x,y",
    "a=1,b=2,c=3",
)  # fmt: skip
PATHS = (
    "", ".", "..", "a/b/c", "d.csv", "d.csv/x", "d", "small.py", "small.onnx", "small.safetensors", "run",
    "run/run.json",
    "run/best.safetensors", "run/checkpoints/last.ckpt", "nothing.py", "nothing", "\x00", "x" * 300, "é/ü", "runs",
    "empty.py", "list.csv", "tokenizer.json", "link", "loop", "\udcff.py", "new.py", "new.onnx", "new.csv", "new.npz",
)  # fmt: skip
# Of a program's own words, some that exist.
KNOWN = {
    "--task": "classification regression ctc multilabel detection language-model contrastive keypoints texts "
    "denoising ranking",
    "--optimizer": "sgd adam adamw lbfgs rmsprop adagrad sparseadam rprop asgd adadelta adamax nadam radam adafactor "
    "muon "
    "optimizer lr_scheduler",
    "--schedule": "steplr cosineannealinglr onecyclelr reducelronplateau lambdalr sequentiallr multisteplr cycliclr "
    "exponentiallr chainedscheduler cosineannealingwarmrestarts linearlr polynomiallr lrscheduler",
    "--loss": "mse cross_entropy bce l1 smooth_l1 nll huber kl_div cosine_embedding_loss ctc_loss scores=mse",
    "--metric": "accuracy Accuracy F1Score AUROC ConfusionMatrix MeanSquaredError R2Score BLEUScore Dice "
    "FrechetInceptionDistance",
    "--precision": "bf16-mixed 16-mixed bf16-true 64-true 16-true transformer-engine 32",
    "--augment": "flip vflip rotate shift crop light noise erase auto flip,flip",
    "--recipe": "fine-tune from-scratch",
    "--schedule-arg": "step_size=1 T_max=0 T_max=10 max_lr=0.1 lr_lambda=1 gamma=nan step_size=0 step_size=-1 "
    "last_epoch=5",
    "--optimizer-arg": "momentum=0.9 betas=1 betas=0.9,0.99 lr=1 params=1 weight_decay=-1 foreach=true fused=true "
    "nesterov=true",
    "--table": "auto p=scale p=median+scale p=drop p=onehot target=scale auto,p=scale",
    "--class-weights": "balanced a=1 a=1,b=2,c=3 a=0,b=0,c=0 a=nan",
    "--sampler": "shuffle balanced",
    "--resize": "stretch letterbox corner line",
    "--beside": "0 127 255 256 -1",
    "--channel-order": "rgb bgr auto BGR",
    "--classes": "a,b a,,,b , ,, a,b,c =,,, a",
    "--monitor": "val_loss val_accuracy train_loss accuracy loss",
    "--logger": "csv tensorboard none",
    "--import": "json math os.path a.b.c .x json:loads",
    "--freeze": "fc fc.* ** * fc.weight embed conv",
    "--inputs": "x=p ids=text x=x y=z scores small.npz all_mean",
    "--outputs": "scores all nothing scores,scores x",
    "--trainable": "fc.weight fc.* * one x",
    "--frozen": "fc.weight fc.* * one x",
    "--tied": "fc.weight=fc.bias a=b fc.weight",
    "--untied": "fc.weight fc.bias",
    "--dropout": "0.5 fc=0.5 x=0.5 all=0.1",
    "--limit": "bytes=1 nodes=1 seconds=0 nodes=x memory=1K a=b elements=1",
    "--input-shape": "x=1,3,8,8 x=2,4 x=n,4 x=0,4 x=-1,4 [2,4] 2,4 x=? y=1",
    "--batch-axis": "x=0 x=1 x=9 x=-1 x=none x",
    "--shard-size": "1 1KB 1MB 0 -1 1XB 5GB",
    "--part": "train val test all",
    "--device": "cpu cuda cuda:1 mps xpu directml meta cpu:1 cuda:x gpu",
    "--sizes": "n=2 n=0 n=-1 x=1 n=nan",
    "--const": "x=1 x=0 x=-1 one=2 x=1,2 x=nan",
}  # fmt: skip
FIRST = {  # the arguments that come first, and what a command always needs
    "train": (("small.py",), ("small.onnx",), ("run",), ("nothing.py",), ("empty.py",), ()),
    "evaluate": (("run",), ("run",), ("small.py",), ("d",), (".",), ()),
    "predict": (("run", "d.csv"), ("run", "d"), ("run",), ("d.csv",), ("run", "nothing"), ("run", "small.py")),
    "export": (("run",), ("small.py",), ("small.onnx",), ("d",), ("nothing.py",)),
    "runs": ((".",), ("run",), ("nothing",), ("small.py",), ()),
    "inspect": (("small.onnx",), ("small.py",), ("run",), ("d.csv",), ("empty.py",)),
    "verify": (("small.onnx", "small.py"), ("small.onnx", "run"), ("small.py", "small.onnx"), ("small.onnx",
    "empty.py")),
    "generate": (("small.onnx", "-o", "new.py"), ("small.onnx",), ("small.py",), ("empty.py",), ("small.onnx", "-o",
    "run")),
    "view": (("small.onnx", "-o", "new.html"), ("small.py", "-o", "new.html"), ("d.csv", "-o", "new.html")),
}  # fmt: skip


def value(option: str, draw: random.Random, param: click.Parameter) -> str:
    """Draw a value for an option: of its own words, a number, a path or anything else."""
    way = draw.random()
    known = KNOWN.get(option, "").split()
    if isinstance(param.type, click.Choice):
        known = [*map(str, param.type.choices)]
    if known and way < 0.5:
        return draw.choice(known)
    found = draw.choice(NUMBERS if way < 0.65 else PATHS if way < 0.8 else WORDS)
    if option == "--workers" and found.isdecimal() and (len(found) > 9 or int(found) > MOST_WORKERS):
        return "0"
    return "x" if found in NOT_VALUES else found


def drawn(world: str, data: Sequence[str], given: Mapping[str, Sequence[str]], draw: random.Random) -> list[str]:
    """Draw a command for a world."""
    name = draw.choice([*FIRST, "train", "train", "train"])
    command = [name, *draw.choice(FIRST[name][:3] if draw.random() < 0.8 else FIRST[name])]
    if name == "train":
        if draw.random() < 0.95:
            command += ["--data", draw.choice(data)]
        command += given.get(world, ())
    elif name == "evaluate" and draw.random() < 0.4:
        command += ["--data", draw.choice(data)]
    options = [p for p in app.commands[name].params if isinstance(p, click.Option) and p.opts[-1] not in LEFT]
    for param in draw.sample(options, draw.choice((1, 1, 2, 2, 3))):
        if param.is_flag:
            command.append(draw.choice([*param.opts, *param.secondary_opts]))
        else:
            command += [param.opts[-1], value(param.opts[-1], draw, param)]
    if name == "train":
        command += ["-q", *(["--workers", "0"] if "--workers" not in command else [])]
        command += ["--max-steps", "2"] if not {"--max-steps", "--epochs"} & {*command} or draw.random() < 0.8 else []
        command += ["--out", "new"] if "--out" not in command and draw.random() < 0.7 else []
        command += ["--device", "cpu"] if "--device" not in command else []
    return command
