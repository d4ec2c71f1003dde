"""A student is compared with Hinton's formula written by hand, and with both ways to run a teacher."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen import Options, generate
from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, load, onnx_teacher, open_model, teacher
from onnxgen.training.config import read_config
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.samples import Feeding
from onnxgen.training.goals.distil import DistilGoal, with_teacher
from onnxgen.training.onnx_teacher import OnnxNetwork
from onnxgen.training.prepare import prepare
from onnxgen.training.settings import Settings
from tests.zoo.export import quiet

CPU: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "batch_size": 16}
FEEDING = Feeding(("image",), {})


def net(width: int, *last: nn.Module, classes: int = 5, size: int = 6) -> nn.Module:
    flat = width * (size - 2) ** 2
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(flat, classes), *last)


def export(network: nn.Module, path: Path, size: int = 6, free: bool = True, name: str = "scores") -> Path:
    """Return an ONNX file, beside which its module lies."""
    axes = {"image": {0: "batch"}, name: {0: "batch"}} if free else None
    with quiet():
        torch.onnx.export(
            network.eval(), (torch.rand(2, 1, size, size),), path, dynamo=False, opset_version=17,
            input_names=["image"], output_names=[name], dynamic_axes=axes,
        )  # fmt: skip
    generate(path, path.with_suffix(".py"), force=True)
    return path


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("teachers")
    torch.manual_seed(0)
    teacher = net(6)
    for kind, last in {"logits": (), "softmax": (nn.Softmax(1),), "log_softmax": (nn.LogSoftmax(1),)}.items():
        export(nn.Sequential(*teacher, *last), tmp_path / f"{kind}.onnx")
    export(net(2), tmp_path / "student.onnx")
    return tmp_path


@pytest.fixture
def made(originals: Path, tmp_path: Path) -> Path:
    """Return a folder with teachers that end in each way, and a student."""
    shutil.copytree(originals, tmp_path, dirs_exist_ok=True)
    return tmp_path


def pixels(count: int = 48, size: int = 6) -> Tensor:
    return torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(3))


def samples(count: int = 8, size: int = 6) -> Columns:
    return Columns({"image": pixels(count, size)}, {})


def said(path: Path, x: Tensor) -> Tensor:
    """Return the teacher's first output, as onnxruntime computes it by itself."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"image": x.numpy()})[0])


def goal_of(student: nn.Module, **settings: Any) -> DistilGoal:
    (found,) = with_teacher([], student, samples(), FEEDING, Settings(**settings), "")
    assert isinstance(found, DistilGoal)
    return found


@pytest.mark.parametrize("kind", ["logits", "softmax", "log_softmax"])
@pytest.mark.parametrize("suffix", [".onnx", ".py"])
def test_the_loss_is_that_of_the_paper(made: Path, kind: str, suffix: str) -> None:
    """sum p_T log(p_T / p_S) T^2, with distributions softened by T, whatever the teacher ends in."""
    student, x, t = open_model(made / "student.py"), pixels(8), 3.0
    goal = goal_of(student, teacher=(made / kind).with_suffix(suffix), temperature=t)
    batch = {"image": x}
    loss = goal.mean_loss((student(x),), batch, True)
    p, q = (z.double().div(t).exp() for z in (said(made / "logits.onnx", x), student(x)))
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    assert loss.item() == pytest.approx(((p * (p / q).log()).sum() / 8 * t * t).item(), rel=1e-4)
    assert set(batch) == {"image", "teacher:scores"}


def test_a_module_and_a_file_give_the_same_loss(made: Path) -> None:
    student, x = open_model(made / "student.py"), pixels(8)
    losses = [
        goal_of(student, teacher=made / f"softmax{suffix}").mean_loss((student(x),), {"image": x}, True)
        for suffix in (".onnx", ".py")
    ]
    assert abs(losses[0].item() - losses[1].item()) < 1e-5
    assert losses[0].item() > 1e-4


def test_labels_and_numbers(tmp_path: Path) -> None:
    """A sigmoid's labels are two classes each; the numbers of a map have a squared error."""
    torch.manual_seed(0)
    export(net(3, nn.Sigmoid()), tmp_path / "labels.onnx")
    export(net(2), tmp_path / "student.onnx")
    student, x, t = open_model(tmp_path / "student.py"), pixels(8), 2.0
    made = student(x)
    goal = goal_of(student, teacher=tmp_path / "labels.onnx", temperature=t)
    p, q = (torch.sigmoid(z.double() / t) for z in (torch.logit(said(tmp_path / "labels.onnx", x)), made))
    by_hand = F.binary_cross_entropy(q, p) - F.binary_cross_entropy(p, p)
    assert goal.mean_loss((made,), {"image": x}, False).item() == pytest.approx((by_hand * t * t).item(), rel=1e-4)
    numbers = goal_of(student, teacher=tmp_path / "student.onnx", loss="mse")
    assert numbers.monitor == "loss" and numbers.scores() is None
    found = numbers.mean_loss((made + 1,), {"image": x}, False)
    assert found.item() == pytest.approx(1.0, rel=1e-4)


def test_no_gradient_reaches_the_teacher(made: Path) -> None:
    student, x = open_model(made / "student.py"), pixels(8)
    goal = goal_of(student, teacher=made / "logits.py")
    before = {name: tensor.clone() for name, tensor in goal.teacher.network.model.state_dict().items()}  # type: ignore[attr-defined]
    batch = {"image": x}
    goal.mean_loss((student(x),), batch, True).backward()  # type: ignore[no-untyped-call]
    teacher = goal.teacher.network.model  # type: ignore[attr-defined]
    assert not batch["teacher:scores"].requires_grad and not teacher.training
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert not list(goal.parameters())
    assert all(p.grad is not None for p in student.parameters())


def test_a_run_without_labels(made: Path) -> None:
    """It says how often student and teacher agree; its record names the teacher, and other data is predicted."""
    data = {"image": pixels()}
    result = fit(made / "student.py", data, teacher=made / "softmax.onnx", epochs=3, lr=0.02, out=made / "run", **CPU)
    last = result.history[result.best_epoch]
    assert {"val_agreement", "val_loss"} <= last.keys() and "val_accuracy" not in last
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    with torch.no_grad():
        same = result.model(data["image"]).argmax(1) == said(made / "softmax.onnx", data["image"]).argmax(1)
    found = evaluate(result.model, data, teacher=made / "softmax.onnx", **{k: CPU[k] for k in ("device", "workers")})
    assert found["agreement"] == pytest.approx(same.float().mean().item())
    learner = load(made / "run")
    assert Path(learner.record.teacher_sha256) != Path("") and learner.settings.teacher is not None
    assert learner.settings.teacher.samefile(made / "softmax.onnx")
    assert isinstance(learner.predict(data["image"][0])[0].label, str)
    assert read_config(made / "run" / "config.toml")["teacher"] == made / "softmax.onnx"


def test_the_share_of_the_labels(made: Path) -> None:
    """The loss is (1 - share) of the labels' and share of the teacher's; the labels decide what is best."""
    data = {"image": pixels(), "y": torch.arange(48) % 5}
    plan = prepare(made / "student.py", data, Settings(teacher=made / "logits.onnx", teacher_weight=0.3, device="cpu"))
    assert plan.monitor == "val_accuracy"
    batch = {"image": data["image"][:8], "y": data["y"][:8]}
    made_by = plan.model(batch["image"])
    labels, taught = (goal.factor * goal.compute((made_by,), batch, True)[0] for goal in plan.objectives)
    assert labels.item() == pytest.approx(0.7 * F.cross_entropy(made_by, batch["y"]).item(), rel=1e-5)
    whole = goal_of(plan.model, teacher=made / "logits.onnx").mean_loss((made_by,), batch, True)
    assert taught.item() == pytest.approx(0.3 * whole.item(), rel=1e-5)


def test_values_inside(made: Path) -> None:
    """A learned 1x1 convolution takes the student's two channels to the teacher's six; it is trained and saved."""
    student, x = open_model(made / "student.py"), pixels(8)
    path = next(name for name, module in student.named_modules() if isinstance(module, nn.Conv2d))
    value = next(node.output[0] for node in onnx.load(made / "logits.onnx").graph.node if node.op_type == "Conv")
    goal = goal_of(student, teacher=made / "logits.onnx", teacher_features={value: path})
    plain = goal_of(student, teacher=made / "logits.onnx")
    (weight, bias), outputs = list(goal.parameters()), (student(x),)
    batch = {"image": x}
    loss = goal.mean_loss(outputs, batch, True) - plain.mean_loss(outputs, {"image": x}, True)
    inner = student.get_submodule(path)(x)
    by_hand = F.mse_loss(F.conv2d(inner, weight[:, :, None, None], bias), batch[f"teacher:{value}"])
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-4)
    options = {**CPU, "teacher": made / "logits.onnx", "teacher_features": {value: path}, "out": made / "run"}
    fit(made / "student.py", {"image": pixels()}, epochs=1, **options)
    saved = torch.load(made / "run" / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"]
    projected = [tensor for name, tensor in saved.items() if name.startswith("goals.")]
    assert [tuple(tensor.shape) for tensor in projected] == [(6, 2), (6,)]
    result = fit(made / "student.py", {"image": pixels()}, epochs=2, resume=True, **options)
    gc.collect()
    assert not result.model.get_submodule(path)._forward_hooks


def test_parts_of_a_batch_add_up(made: Path) -> None:
    """A teacher asked for parts of a batch gives the loss of the whole batch."""
    student, x = open_model(made / "student.py"), pixels(7)
    goal, whole = goal_of(student, teacher=made / "softmax.onnx"), {"image": x}
    parts = [{"image": part} for part in x.split(3)]
    losses = [goal.mean_loss((student(p["image"]),), p, True) * goal.share(p, whole) for p in parts]
    assert sum(losses).item() == pytest.approx(goal.mean_loss((student(x),), whole, True).item(), rel=1e-5)  # type: ignore[union-attr]


def test_images_of_another_size(made: Path) -> None:
    """The student's images are resized for the teacher, as torch does it."""
    export(net(3, size=9), made / "large.onnx", size=9)
    student, batch = open_model(made / "student.py"), {"image": pixels(4)}
    goal_of(student, teacher=made / "large.onnx").mean_loss((student(batch["image"]),), batch, True)
    large = F.interpolate(batch["image"], (9, 9), mode="bilinear", antialias=True)
    assert torch.allclose(batch["teacher:scores"], said(made / "large.onnx", large), atol=1e-6)


def test_a_changed_teacher_is_not_resumed(made: Path) -> None:
    """It may lie elsewhere, but must be the same file."""
    data, options = {"image": pixels()}, {**CPU, "out": made / "run"}
    fit(made / "student.py", data, teacher=made / "logits.onnx", epochs=1, **options)
    (made / "moved").mkdir()
    moved = (made / "logits.onnx").rename(made / "moved" / "teacher.onnx")
    fit(made / "student.py", data, teacher=moved, epochs=2, resume=True, **options)
    with pytest.raises(OnnxgenError, match="teacher: [0-9a-f]{64} there, [0-9a-f]{64} here"):
        fit(made / "student.py", data, teacher=made / "softmax.onnx", epochs=3, resume=True, **options)


def test_a_quantised_student_stays_close_to_its_float_origin(made: Path) -> None:
    """An 8-bit file, opened with its roundings for training, learns the float file that it was made of.

    Its calibration has seen too narrow a range, so that it is far from the float file at first.
    """
    from onnxruntime import quantization as q

    class Images(q.CalibrationDataReader):  # type: ignore[misc]
        rows = iter([{"image": pixels(16).numpy() / 3}])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.rows, None)

    q.quantize_static(made / "logits.onnx", made / "int8.onnx", Images(), weight_type=q.QuantType.QInt8)
    generate(made / "int8.onnx", made / "int8.py", Options(quantized="qat"))
    options = {**CPU, "teacher": made / "logits.onnx", "val": 0.25, "loss": "mse"}
    result = fit(made / "int8.py", {"image": pixels(128)}, epochs=2, lr=1e-3, out=made / "run", **options)
    before = load(made / "run").record.result["before"]["val_loss"]
    assert result.history[result.best_epoch]["val_loss"] < 0.7 * before


BAD: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "no file": (lambda d: {"teacher": d / "none.onnx"}, "there is no teacher .*none.onnx"),
    "no ONNX": (lambda d: {"teacher": wrong(d)}, "the teacher .*wrong.onnx can't be read"),
    "classes": (lambda d: {"teacher": export(net(2, classes=4), d / "four.onnx")}, r"\[2, 5\], .* teacher \[2, 4\]"),
    "temperature": (lambda d: {"teacher": d / "logits.onnx", "temperature": 0}, "temperature must be more than 0"),
    "share": (lambda d: {"teacher": d / "logits.onnx", "teacher_weight": 2}, "teacher_weight must be from 0 to 1"),
    "alone": (lambda d: {"teacher_features": {"a": "b"}}, "teacher_features needs a teacher"),
    "value": (lambda d: {"teacher": d / "logits.onnx", "teacher_features": {"a": "b"}}, "has no value 'a'"),
    "compiled": (
        lambda d: {"teacher": d / "logits.onnx", "teacher_features": {"a": "b"}, "compile": True},
        "compile and teacher_features exclude each other",
    ),
    "fixed batch": (
        lambda d: {"teacher": export(net(2), d / "two.onnx", free=False)},
        r"\[2, 1, 6, 6\]: batches of 2 only",
    ),
    "loss": (lambda d: {"teacher": d / "logits.onnx", "loss": "nonsense"}, "no loss is called 'nonsense'"),
}


def wrong(folder: Path) -> Path:
    (folder / "wrong.onnx").write_bytes(b"no protobuf\xff")
    return folder / "wrong.onnx"


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_told_in_one_line(made: Path, case: str) -> None:
    settings, says = BAD[case]
    with pytest.raises(OnnxgenError, match=says) as told:
        goal_of(open_model(made / "student.py"), **settings(made))
    assert "\n" not in str(told.value)


def test_other_inputs_are_refused(made: Path) -> None:
    """A teacher of other columns, or of whole numbers."""
    from tests.training.small import network

    network(made, a=("float32", ["n", 3]), b=("float32", ["n", 3]))
    student = open_model(made / "student.py")
    with pytest.raises(OnnxgenError, match="takes 'a', 'b'|takes a, b"):
        goal_of(student, teacher=made / "small.onnx")
    network(made, ids=("int64", ["n", 3]))
    with pytest.raises(OnnxgenError, match="as int64, but column 'image' holds float32"):
        goal_of(student, teacher=made / "small.onnx")


def test_without_onnxruntime(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxgen.common.paths.find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(OnnxgenError, match="the module onnxruntime is not installed"):
        goal_of(open_model(made / "student.py"), teacher=made / "logits.onnx")


def test_images_without_classes(made: Path) -> None:
    """A folder of images alone trains; without a teacher it is refused."""
    from PIL import Image

    (made / "photos").mkdir()
    for number, image in enumerate((pixels(12)[:, 0].numpy() * 255).astype(np.uint8)):
        Image.fromarray(image).save(made / "photos" / f"{number}.png")
    options = {**CPU, "epochs": 1, "out": made / "run"}
    assert (
        "val_agreement" in fit(made / "student.py", made / "photos", teacher=made / "logits.py", **options).history[0]
    )
    with pytest.raises(OnnxgenError, match="no folder for each class"):
        fit(made / "student.py", made / "photos", **options)


def test_a_teacher_of_images_of_another_scale_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless one of the two scales is unknown."""
    x, inputs = pixels(4), {"x": "x"}
    network = OnnxNetwork(made / "logits.onnx", ())
    for scale, own in (("imagenet", "imagenet"), ("", "imagenet"), ("imagenet", ""), ("0.5,0.2", "imagenet")):
        monkeypatch.setattr(onnx_teacher, "OnnxNetwork", lambda *_, own=own: setattr(network, "scale", own) or network)
        said = pytest.raises(OnnxgenError, match=f"by {own}, and the student gets {scale} -> --normalize {own}")
        with said if scale == "0.5,0.2" else nullcontext():
            teacher.open_teacher(made / "logits.onnx", (), inputs, {"x": x}, scale)
