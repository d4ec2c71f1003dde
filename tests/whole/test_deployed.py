"""The figures of `benchmarks.deployed`: those of a text are counted by hand, and a small file gets a row."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from benchmarks.deployed import measure, page, text_row

TEXT = '''
class Small(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.part = nn.Module()  # filled from outside
        self.part.weights = [1, 2, 3, 4, 5, 6, 7, 8, -9]
        self.scale = [1, 2]

    # a comment
    def forward(self, x):
        b, c = x.shape
        size = torch.tensor([c], device=x.device)
        if size == 1:
            x = x + 1
        if c == 2:
            x = x + 2
        if x.sum() > 3 + b:
            x = x + size.item()
        return x

    @classmethod
    def from_pretrained(cls):
        return [1, 2, 3, 4, 5, 6, 7, 8, 9].item()


class First(nn.Module):
    """One."""

    def forward(self, x):
        return x + 1


class Second(nn.Module):
    """Two."""

    def forward(self, x):
        return x + 2.5


class Third(nn.Module):
    def forward(self, x):
        return x - 1
'''


def test_the_figures_of_a_text() -> None:
    row = text_row(TEXT)
    assert row["lines"] == 16 + 3 + 3 + 3
    assert (row["classes"], row["twins"]) == (4, 1)
    assert (row["forward"], row["init"]) == ("10 (9)", "5 (4)")
    assert (row["literals"], row["conditions"], row["items"], row["filled"]) == (1, 1, 1, 1)


def test_tables_of_a_page_have_their_headings() -> None:
    one = page("", "Before", [{"file": "a", "lines": 3}])
    two = page(one, "After", [{"file": "a", "lines": 2}])
    assert "1 files; 3 class lines." in one and one.count("## ") == 1
    assert two.startswith(one.rstrip("\n")) and "2 class lines" in two
    assert page(two, "After", [{"file": "a", "lines": 1}]) == two.replace("2 class", "1 class").replace(
        "a     2", "a     1"
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[1, 4] x, bool b) => (float[1, 4] y)
        <float[1] blocks_0_scale = {1.5}, float[4] bias = {1, 2, 3, 4}> {
            h = Mul(x, blocks_0_scale)
            y = If(b) <
                then_branch = one () => (float[1, 4] p) { p = Add(h, bias) },
                else_branch = two () => (float[1, 4] q) { q = Sub(h, bias) }
            >
        }
    """)
    onnx.save(model, tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def test_the_row_of_a_file_whose_branches_use_outer_values(small: Path, tmp_path: Path) -> None:
    row = measure(small, "small", tmp_path, nameless=True, run=True)
    assert isinstance(row["nameless"], int) and row["lines"] / row["nameless"] == pytest.approx(row["ratio"], abs=0.01)
    assert row["verify"] == 0 and row["back"] == "yes" and row["scalars"] >= 0
    assert row["compile"] == "Unsupported"  # a branch on a tensor
