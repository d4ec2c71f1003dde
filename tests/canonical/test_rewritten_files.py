"""Whole files of other networks as a person wrote them again, by hand: `rewritten/real` and `rewritten/zoo`."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxgen
from tests.canonical.sources import OURS, REAL, written

REWRITTEN = Path(__file__).with_name("rewritten")
NOT_YET = {  # no proof is found, and no difference
    "attention_past_no_unidir": "keys are joined before they are turned, or after it",
    "bert_3d_attention": "attention on a batch of one",
    "image_norms": "a variance as the mean of squares less the square of the mean, of what may be undefined",
    "llama": "rotary positions by halves",
    "sequence_norms": "a variance as the mean of squares less the square of the mean",
    "swin": "windows, at a batch of one",
    "translator": "one head after the other",
}
WRONG = {  # a small mistake in each: what is replaced in the text
    "real/cnn_mnist_pytorch": ("logsumexp(scores, dim=1", "logsumexp(scores, dim=0"),
    "real/conv1d_small_keras": ("ConstantPad1d((1, 2), 0.0)", "ConstantPad1d((2, 1), 0.0)"),
    "real/conv2d_small_mp_keras": ("eps=1e-6", "eps=1e-5"),
    "real/conv_add_mul_1d": ("* -0.14273734", "* -0.1427374"),
    "real/dtln_model_1": ("(state[..., 0], state[..., 1])", "(state[..., 1], state[..., 0])"),
    "real/gh_issue_9671": ("->eac", "->eca"),
    "real/gpt2_megatron": ("- 10000.0 *", "+ 10000.0 *"),
    "real/gpt2_one_layer": ("/ math.sqrt(shape[-1])", "/ shape[-1]"),
    "real/hf_encoder_self_attention": ("hidden + 1.0", "hidden - 1.0"),
    "real/mscn_128d": ("/ there.sum(dim=1)", "/ members.shape[1]"),
    "real/nhwc_conv_clip_relu": (".clamp(0, 6)", ".clamp(0, 6.5)"),
    "real/pensieve_small_simple": ("rows[4][:, :6]", "rows[4][:, 1:7]"),
    "real/tll_bench": ("(value > 0)", "(value > 1e-6)"),
    "real/voice_commands": (".mean(dim=1)", ".sum(dim=1)"),
    "zoo/audio_cnn": ("F.avg_pool1d(x, 3, 2, 1)", "F.avg_pool1d(x, 3, 2, 1, count_include_pad=False)"),
    "zoo/cross_attention": ("bq, bk, bv =", "bk, bq, bv ="),
    "zoo/gru_last": ("unbiased=False", "unbiased=True"),
    "zoo/image_norms": ("(2, 3), 1e-5) * self.instance_weight", "(1, 2, 3), 1e-5) * self.instance_weight"),
    "zoo/lstm_state": ("torch.cat((h0, h1))", "torch.cat((h1, h0))"),
    "zoo/super_resolution": ("permute(0, 1, 4, 2, 5, 3)", "permute(0, 1, 4, 3, 5, 2)"),
    "zoo/two_tower": ("1 - 2 / (e + 1)", "1 - 2 / (e + 2)"),
    "zoo/vit": ("(d // self.heads) ** -0.5", "d**-0.5"),
}


def model_of(name: str, folder: Path, request: pytest.FixtureRequest) -> Path:
    """Return the file of a network. The test is skipped if there is none."""
    kind, _, name = name.partition("/")
    if kind == "real":
        return Path(request.getfixturevalue("shared")) / "models" / REAL[name]
    written(name, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize("name", [*(f"real/{n}" for n in sorted(REAL)), *(f"zoo/{n}" for n in sorted(OURS))])
def test_a_file_that_was_written_again_is_proved(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    proof = onnxgen.prove(model_of(name, tmp_path, request), REWRITTEN / f"{name}.py", runs=1)
    if name.partition("/")[2] in NOT_YET:
        assert proof.verdict == "not proved" and proof.counterexample is None
    else:
        assert (proof.verdict, proof.why, proof.places) == ("proved", "", [])


@pytest.mark.parametrize("name", WRONG)
def test_a_small_mistake_in_it_is_not_proved(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = (REWRITTEN / f"{name}.py").read_text(encoding="utf-8")
    old, new = WRONG[name]
    assert text.count(old) == 1
    (tmp_path / "model.py").write_text(text.replace(old, new), encoding="utf-8")
    proof = onnxgen.prove(model_of(name, tmp_path, request), tmp_path / "model.py", runs=1)
    assert proof.verdict != "proved" and (proof.why or proof.counterexample is not None)
