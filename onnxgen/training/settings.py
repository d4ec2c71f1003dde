"""The settings of a training run: one dataclass for `fit`, the command line and the TOML file.

Messages name settings as options of `onnxgen train`. `python_words` changes them where Python
calls, and `run_words` where a run is asked, which has its settings already. `command_words` changes
arguments of Python into options where a command runs. The outermost of them counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from onnxgen.common.names import legible
from onnxgen.common.values import declared, options_of
from onnxgen.errors import OnnxgenError, Problem, Problems
from onnxgen.training.data.presets import PRESETS
from onnxgen.training.runs.folder import RUNS
from onnxgen.training.tasks import known as known_task

BATCH = 64  # samples, unless anything says another number
STRATEGIES = ("auto", "ddp", "fsdp")
LOGGERS = ("tensorboard", "csv", "wandb", "mlflow")
RESIZES = ("auto", "stretch", "letterbox", "corner", "line")
ORDERS = ("auto", "rgb", "bgr")
POOLINGS = ("auto", "mean", "cls", "max")
SAMPLERS = ("shuffle", "balanced")
RECIPES = ("fine-tune",)
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true")


_task = partial(declared, group="Task")
_data = partial(declared, group="Data")
_length = partial(declared, group="Length of the run")
_optimizer = partial(declared, group="Optimizer")
_finetuning = partial(declared, group="Fine-tuning")
DEVICES = "Devices and speed"
_devices = partial(declared, group=DEVICES)
_run = partial(declared, group="The run and its files")

# Settings, what their numbers must be, and what says that one is not.
_LIMITS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    (
        "epochs batch_size accumulate devices nodes max_steps replace_head early_stop lora max_length sample_rate "
        "shuffle_window chunk bptt",
        "at least 1",
        lambda x: x < 1,
    ),
    ("warmup label_smoothing blank head_first mixup cutmix context", "at least 0", lambda x: x < 0),
    ("lr max_hours layer_decay temperature noise largest_score", "more than 0", lambda x: not x > 0),
    ("label_smoothing", "less than 1", lambda x: not x < 1),
    ("ema", "between 0 and 1", lambda x: not 0 < x < 1),
    ("warmup head_first", "a whole number or a share below 1", lambda x: x > 1 and x != int(x)),
    ("beside", "a byte from 0 to 255", lambda x: not 0 <= x <= 255),
    ("teacher_weight", "from 0 to 1", lambda x: not 0 <= x <= 1),
)


@dataclass(frozen=True)
class Settings:
    """Settings of one run; docs/COMMANDS.md lists them.

    Each setting is declared once, here. The command's options, the keys of a configuration file and that page are made
    from these fields.
    """

    task: str = _task(
        "auto",
        "NAME",
        "What the model is trained for; outputs: a loss for each output with a target; auto: what the network is for "
        "if the data has what that needs, else outputs. Or module:function.",
    )
    metric: tuple[str, ...] = _task(
        (), "NAME", "Also compute this metric of torchmetrics in evaluations (F1Score); may be repeated."
    )
    blank: int | None = _task(
        None, "N", "Of --task ctc: the class that stands for no character. Default: the one that no target has."
    )
    largest_score: float | None = _task(
        None, "X", "Of --task embedding with scores of pairs: the score of equal ones. Default: the largest, or 1."
    )
    pooling: str = _task(
        "auto",
        "NAME",
        "Of --task embedding: make vectors of texts, of length 1, of those of their tokens: mean, cls (the first one) "
        "or max. auto: mean if no output has a vector of each text.",
    )
    noise: float | None = _task(
        None, "X", "Train on clean images to remove normal noise of this deviation, a share of white (0.1: 25 of 255)."
    )
    teacher: Path | None = _task(
        None, "FILE", "Learn the outputs of this network: an ONNX file, a generated module, or the folder of a run."
    )
    temperature: float = _task(4.0, "X", "Soften the class probabilities of teacher and student by this temperature.")
    teacher_weight: float = _task(
        0.5, "SHARE", "The teacher's share of the loss; the rest is that of the targets. Without targets it is 1."
    )
    teacher_features: Mapping[str, str] = _task(
        dict, "VALUE=MODULE,...", "Also train the results of these modules to be like these values of the teacher."
    )
    epochs: int = _length(10, "N", "Passes over the training data.")
    max_steps: int | None = _length(
        None, "N", "Stop after N optimizer steps, if that comes before the end of the last epoch."
    )
    max_hours: float | None = _length(None, "X", "Stop after X hours of training; a resumed run has X hours again.")
    recipe: str | None = _finetuning(
        None, "NAME", f"Other defaults for the settings that you do not give: {', '.join(RECIPES)}."
    )
    batch_size: int | None = _optimizer(
        None,
        "N",
        "Samples in a batch, in each process. Default: 64; for trained weights and few samples 8 to "
        "64 (docs/FINETUNING.md).",
    )
    accumulate: int = _optimizer(1, "N", "Sum the gradients of N batches before each step.")
    optimizer: str = _optimizer("adamw", "NAME", "A class of torch.optim, in upper or lower case.")
    optimizer_args: Mapping[str, Any] = _optimizer(
        dict, "NAME=VALUE", "An argument of the optimizer (momentum=0.5); may be repeated.", option="optimizer-arg"
    )
    lr: float | None = _optimizer(
        None,
        "X",
        "Learning rate. Default: the optimizer's own; for trained weights 0.3 of that of an Adam.",
    )
    find_lr: bool = _optimizer(False, "", "Measure the learning rate first, on a copy of the model.")
    weight_decay: float | None = _optimizer(
        None, "X", "Weight decay; norms and biases get none. Default: the optimizer's own."
    )
    schedule: str | None = _optimizer(None, "NAME", "A class of torch.optim.lr_scheduler.")
    schedule_args: Mapping[str, Any] = _optimizer(
        dict, "NAME=VALUE", "An argument of the schedule (step_size=10); may be repeated.", option="schedule-arg"
    )
    warmup: int | float | None = _optimizer(
        None,
        "N",
        "Raise the learning rate evenly over the first N steps; 0.1: over a tenth of the run. Default: 0; for "
        "trained weights without --lr the first epoch.",
    )
    head_lr: float = _optimizer(1.0, "X", "The classifier's learning rate as a multiple of --lr.")
    layer_decay: float | None = _optimizer(
        None, "X", "Each block's learning rate as a multiple of the next block's: 0.8 trains the first ones least."
    )
    clip: float | None = _optimizer(None, "X", "Scale gradients down if their norm together is larger.")
    ema: float | None = _optimizer(
        None, "DECAY", "Validate and keep the average of the weights, about that of the last 1/(1-DECAY) steps."
    )
    loss: str | Mapping[str, str] = _optimizer(
        "auto", "NAME", "A loss by its torch name (cross_entropy), or OUTPUT=NAME,...; auto: by how the model ends."
    )
    loss_weights: Mapping[str, Any] = _optimizer(dict, "OUTPUT=X,...", "Multiply the losses of outputs by these.")
    class_weights: str | Mapping[str, Any] = _optimizer(
        "none",
        "HOW",
        "Multiply each sample's training loss by its class's weight: none, balanced (rare classes count as much as "
        "common ones), or CLASS=X,...",
    )
    label_smoothing: float = _optimizer(
        0.0, "X", "Spread a share X of each target over all classes in the training loss."
    )
    mixup: float = _optimizer(
        0.0, "ALPHA", "Train a classifier on weighted means of two samples; the weights are Beta(ALPHA, ALPHA)."
    )
    cutmix: float = _optimizer(
        0.0, "ALPHA", "Train a classifier on images with a box of another one; its share is Beta(ALPHA, ALPHA)."
    )
    sampler: str = _data("shuffle", "HOW", "shuffle: each sample once an epoch; balanced: each class equally often.")
    shuffle_window: int = _data(
        1000, "N", "Of streamed data (see docs/DATA.md): read so many samples at a time, and shuffle them."
    )
    inputs: Mapping[str, str] = _data(dict, "INPUT=COLUMN,...", "The data's column for each input of the model.")
    const: Mapping[str, Any] = _data(
        dict, "INPUT=X,...", "Fill these inputs with a number, in place of data: sr=16000, state=0."
    )
    carry: Mapping[str, str] = _data(
        dict,
        "INPUT=OUTPUT,...",
        "These inputs hold a state, which goes on from these outputs: each sample is a sequence of steps. Default: "
        "as names and shapes say (state=stateN).",
    )
    chunk: int | None = _data(
        None, "N", "Of a carried state: a step is N numbers of a sound. Default: a sample has a row for each step."
    )
    context: int = _data(0, "N", "With --chunk: each step begins with the N numbers before its own.")
    bptt: int | None = _data(
        None, "N", "Of a carried state: the gradient reaches through N steps. Default: through all of a sample."
    )
    target: str | Mapping[str, str] | None = _data(None, "COLUMN", "The column with the target, or OUTPUT=COLUMN,...")
    classes: tuple[str, ...] = _data(
        (),
        "NAME,...",
        "The classes in the order of the model's outputs, or @FILE, which lists them. Default: the names in the data, "
        "sorted. A comma may be a name: a,,,b.",
    )
    tokenizer: Path | None = _data(
        None, "FILE", "tokenizer.json for texts, or its folder. Default: the one beside the module or its weights."
    )
    max_length: int | None = _data(
        None, "N", "Cut texts to N tokens; the blocks of a .txt file are as long. Default: what the tokenizer says."
    )
    decoder_start: str | None = _data(
        None, "TOKEN", "The token with which the decoder starts. Default: as generation_config.json says."
    )
    sample_rate: int | None = _data(None, "HZ", "Resample sounds to this rate. Default: that of most files.")
    device: str = _devices(
        "auto", "DEVICE", "auto, cpu, cuda:1, mps, xpu, directml, or a plug-in's (see: onnxgen devices)."
    )
    imports: tuple[str, ...] = _devices(
        (), "MODULE", "Import this module first: it registers a device; may be repeated.", option="import"
    )
    devices: int = _devices(1, "N", "Processes on each node.")
    nodes: int = _devices(1, "N", "Number of nodes.")
    strategy: str = _devices("auto", "NAME", f"How processes share the work: {', '.join(STRATEGIES)}.")
    precision: str = _devices("32-true", "NAME", f"{', '.join(PRECISIONS)}.")
    workers: int | str = _devices("auto", "N", "Processes that prepare batches; auto: as many as help.")
    freeze: tuple[str, ...] = _finetuning((), "PATTERN", "Do not train these modules (layer1.*); may be repeated.")
    head_first: int | float = _finetuning(
        0, "N", "Train the head alone for N epochs, then all; 0.1: for a tenth of the steps."
    )
    replace_head: int | None = _finetuning(None, "CLASSES", "Put in a new last layer for that many classes.")
    keep: bool = _finetuning(False, "", "With --replace-head: classes that the model has keep what they learned.")
    own_classes: Path | None = _finetuning(
        None,
        "FILE",
        "With --keep: the classes that the model has, one in each line or a JSON list, if its file has none.",
    )
    weights: Path | None = _finetuning(None, "FILE", "Start from your own checkpoint, which has the model's keys.")
    partial: bool = _finetuning(False, "", "Load what fits of the weights. New and other layers start fresh.")
    from_scratch: bool = _finetuning(False, "", "Start from fresh weights, not from those of the file.")
    lora: int | None = _finetuning(
        None, "RANK", "Train low-rank adapters of this rank, and leave the weights as they are."
    )
    lora_target: tuple[str, ...] = _finetuning(
        (), "PATTERN", "Adapt these layers (encoder.**.query); may be repeated. Default: all that are no embeddings."
    )
    dora: bool = _finetuning(False, "", "With --lora: also train the size of each row of the weights (DoRA).")
    early_stop: int | None = _length(None, "N", "Stop after N epochs without a new best.")
    monitor: str = _length(
        "auto", "METRIC", "The metric that decides what is best (val_loss); auto: accuracy of a classifier."
    )
    val: float = _data(0.1, "SHARE", "Share of the data for validation, if the data has no such part.")
    test: float = _data(0.0, "SHARE", "Share of the data for the test at the end, if the data has no such part.")
    table: str | Mapping[str, Any] = _data(
        "none", "HOW", "Columns of a table as inputs: none (as stored), auto, or COLUMN=HOW,... (age=median+scale)."
    )
    preprocess: str = _data(
        "auto",
        "NAME",
        f"Feed data as a known program does, where the settings leave it open: {', '.join(PRESETS)}; or none. "
        "auto: as the network's file says, if it does.",
    )
    size: str = _data("auto", "HxW", "Size of the images, for a model of any size; auto: the data's, or a usual one.")
    train_size: str | None = _data(
        None, "HxW", "Resize images to this in training steps alone: validation, predict and export keep --size."
    )
    resize: str = _data(
        "auto",
        "HOW",
        "How images get the model's size: stretch; or in their proportions, with gray beside them: letterbox (in the "
        "middle), corner (top left, as YOLOX), line (left, in full height, as PaddleOCR). auto: letterbox for boxes, "
        "line for texts, else stretch.",
    )
    beside: int | None = _data(None, "BYTE", "The gray beside such images, from 0 to 255. Default: 114.")
    channel_order: str = _data(
        "auto", "ORDER", "The order of colours that the model takes: rgb, or bgr as OpenCV reads. auto: rgb."
    )
    normalize: str = _data("auto", "HOW", "auto, none, or MEAN,STD (for several channels: joined by /).")
    augment: str = _data("none", "HOW", "none, auto, or some of flip,vflip,rotate,shift,crop,light,noise,erase.")
    strict: bool = _data(False, "", "End with an error if a sample can't be read. Otherwise it is skipped.")
    compile: bool = _devices(False, "", "torch.compile the model.")
    gradient_checkpointing: bool = _devices(
        False, "", "Keep less for the backward pass: each block is computed again. Less memory, about a third slower."
    )
    profile: bool = _devices(False, "", "Write to profile.txt how long each part of a step takes.")
    seed: int = _run(0, "N", "Seed of all random numbers.")
    checkpoint_minutes: float = _run(10.0, "X", "Write a checkpoint at least every X minutes, and after each epoch.")
    resume: bool = _run(False, "", "Go on from the last checkpoint in --out, or of the newest run, with its settings.")
    restartable: bool = _run(
        False, "", "For a job that is started again after a failure: go on if --out has a checkpoint, else begin."
    )
    out: Path = _run(RUNS, "FOLDER", "The folder that the run writes to. Without it, runs are numbered below runs/.")
    loggers: tuple[str, ...] = _run(
        ("tensorboard",),
        "NAME",
        f"Log the metrics to {', '.join(LOGGERS)} or none; may be repeated. Default: tensorboard.",
        option="logger",
    )
    name: str = _run("", "NAME", "The folder is runs/NAME-1, runs/NAME-2 and so on. Default: the ONNX file's name.")

    def __post_init__(self) -> None:
        problems = Problems()
        put = partial(object.__setattr__, self)
        for name in ("weights", "out", "tokenizer", "teacher", "own_classes"):  # paths may be given as text
            if isinstance(getattr(self, name), str):
                put(name, Path(getattr(self, name)))
            if "\0" in str(getattr(self, name)):
                problems.add(f"{name} is no path: it has a zero byte")
        for name in ("freeze", "imports", "lora_target", "metric", "loggers"):
            value = getattr(self, name)
            put(name, (value,) if isinstance(value, str) else tuple(value))
        with problems.gathered():
            put("classes", _names(self.classes))
        for name in ("loss_weights", "const", "class_weights"):
            if not isinstance(getattr(self, name), str):
                with problems.gathered():
                    put(name, _numbers(getattr(self, name), name))
        for problem in chain(self._wrong_numbers(), self._wrong_together(), self._wrong_words()):
            problems.add(problem)
        problems.raise_if_any()

    def _wrong_words(self) -> Iterator[Problem]:
        refused = known_task(self.task).refused
        yield from (Problem(what, help=way) for name, (what, way) in refused.items() if getattr(self, name))
        if self.keep and self.replace_head is None:
            what = "keep says which classes stay in a new head of a classifier"
            yield Problem(what, help="--replace-head 12 --keep")
        if self.own_classes is not None and not self.keep:
            what = "own_classes lists the classes of the old head, of which a new head keeps some"
            yield Problem(what, help="--replace-head 12 --keep --own-classes FILE")
        known = {"strategy": STRATEGIES, "precision": PRECISIONS, "sampler": SAMPLERS, "resize": RESIZES}
        known |= {"channel_order": ORDERS, "preprocess": ("auto", "none", *PRESETS), "pooling": POOLINGS}
        choices = [(name, getattr(self, name), words) for name, words in known.items()]
        choices += [("loggers", name, (*LOGGERS, "none")) for name in self.loggers]
        choices += [] if self.recipe is None else [("recipe", self.recipe, RECIPES)]
        for name, value, words in choices:
            if value not in words:
                yield Problem(f"{name} must be one of {', '.join(words)}, not {value!r}")
        if self.workers != "auto" and (not isinstance(self.workers, int) or self.workers < 0):
            yield Problem(f"workers must be a number or 'auto', not {self.workers!r}")
        if self.class_weights not in ("none", "balanced") and isinstance(self.class_weights, str):
            what = f"class_weights must be none, balanced or a weight for each class, not {self.class_weights!r}"
            yield Problem(what, help="give it like cat=1,dog=2.5")

    def _wrong_numbers(self) -> Iterator[Problem]:
        for names, words, is_wrong in _LIMITS:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and is_wrong(value):
                    yield Problem(f"{name} must be {words}, not {value}", help="--ema 0.999" if name == "ema" else "")
        if not (0 <= self.val < 1 and 0 <= self.test < 1 and self.val + self.test < 1):
            yield Problem("val and test must be shares of the data: each at least 0, together less than 1")

    def _wrong_together(self) -> Iterator[Problem]:
        one, base = "give one of them", "an adapter belongs to the file's own weights"
        several, shards = self.processes > 1, self.strategy == "fsdp"
        balanced = self.sampler == self.class_weights == "balanced"
        for clashing, names, why in (
            ((self.from_scratch, self.weights), "weights and from_scratch", one),
            ((self.from_scratch, self.partial), "partial and from_scratch", one),
            ((self.lora, self.freeze), "freeze and lora", base),
            ((self.lora, self.weights), "weights and lora", base),
            ((self.lora, self.partial), "partial and lora", base),
            ((self.lora, self.from_scratch), "from_scratch and lora", base),
            ((self.find_lr, self.lr is not None, not self.resume), "lr and find_lr", "the second finds the first"),
            ((self.find_lr, several), "find_lr and several processes", "find --lr with one, then give it to all"),
            ((self.head_first, several), "head_first and several processes", "they agree on what is trained once"),
            ((self.head_first, self.lora), "head_first and lora", "an adapter begins without an effect"),
            ((self.find_lr, shards), "find_lr and fsdp", "find --lr without it, then give it"),
            ((self.head_first, shards), "head_first and fsdp", "units are sharded once, for what is trained then"),
            ((self.ema, shards), "ema and fsdp", "no process has the whole weights"),
            ((self.precision == "16-mixed", shards), "16-mixed and fsdp", "Lightning scales no sharded gradients"),
            ((balanced,), "sampler and class_weights", "each alone balances the classes"),
        ):
            if all(clashing):
                yield Problem(f"{names} exclude each other: {why}")
        if self.context and not self.chunk:
            yield Problem("context is what a chunk has before its own numbers", help="--chunk 512 --context 64")
        if not self.lora and (self.lora_target or self.dora):
            yield Problem("lora_target and dora need lora: give the adapters' rank", help="--lora 8")
        if not self.teacher_features:
            return
        if self.teacher is None:
            yield Problem("teacher_features needs a teacher", help="--teacher FILE.onnx")
        for name in ("compile", "gradient_checkpointing"):
            if getattr(self, name):
                yield Problem(f"{name} and teacher_features exclude each other: {one}")
        if shards:
            yield Problem("strategy fsdp and teacher_features exclude each other", help="--strategy ddp")

    @property
    def batch(self) -> int:
        """The samples of a batch, in each process."""
        return self.batch_size or BATCH

    @property
    def processes(self) -> int:
        """The number of processes, on all nodes together."""
        return self.devices * self.nodes

    def loss_of(self, output: str) -> str:
        """Return the name of the loss for an output, or "auto"."""
        return self.loss if isinstance(self.loss, str) else self.loss.get(output, "auto")


def _numbers(weights: Mapping[str, Any], name: str) -> dict[str, float]:
    numbers, least, problems = {}, "" if name == "const" else "at least 0 and ", Problems()
    for key, value in weights.items():
        what = f"{name}: the {'weight' if least else 'value'} of {key}"
        try:
            numbers[str(key)] = float(value)
        except (TypeError, ValueError):
            problems.add(f"{what} must be a number, not {value!r}")
            continue
        if not math.isfinite(numbers[str(key)]) or (least and numbers[str(key)] < 0):
            problems.add(f"{what} must be {least}finite, not {value}")
    problems.raise_if_any()
    return numbers


def _names(classes: Iterable[str]) -> tuple[str, ...]:
    if isinstance(classes, str):
        raise OnnxgenError(
            f"classes must be a list of names, not the text {classes!r}", help="give it like classes=('cat', 'dog')"
        )
    names, problems = tuple(map(str, classes)), Problems()
    if "" in names:  # white space is a name: characters of texts are
        problems.add(f"classes has an empty name at place {names.index('') + 1} of {len(names)}")
    for name, count in Counter(names).items():
        if count > 1 and name:
            problems.add(f"classes has {legible(name)!r} twice")
    problems.raise_if_any()
    return names


SETTINGS = options_of(Settings)


spoken: ContextVar[Callable[[str], str]] = ContextVar("spoken", default=str)  # what a message becomes
# a value is a number, or a word that ends its part of the sentence: not that of "--monitor takes one of ..."
_OPTION = re.compile(r"(--[a-z][a-z-]*)(?: (?P<value>\d+(?= )|[^\s-]\S*?(?=[,;:)](?:\s|$)|$| or | and )))?")
_NAMED = re.compile(r"(?<![\w.-])([a-z][a-z_]*)=(?![^\s,;:)])")  # an argument without a value
_BY_OPTION = {about.option: name for name, about in SETTINGS.items()}
_BY_ARGUMENT = {name: name for name in SETTINGS}
# arguments of `onnxgen.surgery` that the command line has no option for
_PYTHON_ALONE = (
    (re.compile(r"name it with (output= or )?head="), "only Python can name it, when it calls replace_head"),
    (re.compile(r"give (another )?example=(, the arguments of forward \(.*\))?"), "only Python can give another input"),
)


@contextmanager
def python_words() -> Iterator[None]:
    """Change the advice of errors that are raised in this context, and of the lines of a run, by `in_python`."""
    with _words(in_python, lambda p: replace(p, what=in_python(p.what), help=in_python(p.help))):
        yield


@contextmanager
def command_words() -> Iterator[None]:
    """Change the advice of errors that are raised in this context by `in_command`."""
    with _words(in_command, lambda p: replace(p, what=in_command(p.what), help=in_command(p.help))):
        yield


@contextmanager
def run_words(takes: str) -> Iterator[None]:
    """Say what a run takes (`takes`) in place of advice that names settings of its training."""

    def change(problem: Problem) -> Problem:
        named = any(isinstance(part, Mention) for part in _parts(problem.help, _OPTION, _BY_OPTION))
        return replace(problem, help=takes) if named else problem

    with _words(in_python, change):
        yield


@contextmanager
def _words(lines: Callable[[str], str], change: Callable[[Problem], Problem]) -> Iterator[None]:
    if spoken.get() is not str:
        yield
        return
    before = spoken.set(lines)
    try:
        yield
    except OnnxgenError as error:
        error.problems = tuple(map(change, error.problems))
        error.args = ("\n".join(map(str, error.problems)),)
        raise
    finally:
        spoken.reset(before)


def in_python(text: str) -> str:
    """Return a text with arguments in place of the options of settings: `val=0` for `--val 0`."""
    if text.startswith("onnxgen "):  # a whole command stays one
        return text
    return "".join(part if isinstance(part, str) else part.argument for part in _parts(text, _OPTION, _BY_OPTION))


def in_command(text: str) -> str:
    """Return a text with options in place of arguments of Python: `--classes` for `classes=`."""
    for argument, instead in _PYTHON_ALONE:
        text = argument.sub(instead, text)
    return "".join(part if isinstance(part, str) else part.option for part in _parts(text, _NAMED, _BY_ARGUMENT))


def _parts(text: str, pattern: re.Pattern[str], names: Mapping[str, str]) -> Iterator[str | Mention]:
    """Yield the parts of a message: its plain text, and the settings that it names. Other options are text."""
    end = 0
    for match in pattern.finditer(text):
        if match[1] in names:
            yield text[end : match.start()]
            yield Mention(names[match[1]], match.groupdict().get("value"))
            end = match.end()
    yield text[end:]


@dataclass(frozen=True)
class Mention:
    """A setting that a message names, in its two forms.

    Attributes:
        value: as it stands behind an option (`5`, `mse`, `eps=1e-4`); None if the setting is named alone.
    """

    name: str
    value: str | None = None

    @property
    def option(self) -> str:
        """The option of the command."""
        return SETTINGS[self.name].option + ("" if self.value is None else f" {self.value}")

    @property
    def argument(self) -> str:
        """The argument of a function of Python."""
        if SETTINGS[self.name].like == "":  # what stands behind an option without a value is the next word
            return f"{self.name}=True" + ("" if self.value is None else f" {self.value}")
        if self.value is None:
            return self.name
        if "=" not in self.value:
            return f"{self.name}={_literal(self.value)}"
        pairs = dict(part.split("=", 1) for part in self.value.split(","))
        return f"{self.name}={{{', '.join(f'{key!r}: {_literal(value)}' for key, value in pairs.items())}}}"


def _literal(text: str) -> str:
    """Return a number as it is, and any other text in quotes."""
    with suppress(ValueError):
        float(text)
        return text
    return repr(text)
