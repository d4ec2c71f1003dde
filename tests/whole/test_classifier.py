"""What `benchmarks.authors.classifier` counts in a text is what one counts by hand; its AUC is that of two heaps."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.authors.classifier import FEATURES, STRUCTURE, WORDS, WRITING, Text, aucs, layers, tells

TEXT = '''
def twice(x: Tensor) -> Tensor:
    """Two of it."""
    return torch.cat([x, x], dim=1)


class Part(nn.Module):
    def __init__(self, k, width=8):
        super().__init__()
        self.k, self.width = k, width
        self.conv = nn.Conv2d(width, 16, kernel_size=3)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(16, width) if k else nn.Identity()

    def forward(self, x):
        B, C = x.shape[:2]
        h = F.relu(self.conv(x))  # [2, 16]

        # one after the other
        for h1 in h.unflatten(1, (2, 8)):
            x = x + h1
        return x


class Whole(nn.Sequential):
    """Parts."""

    def __init__(self):
        sizes = [3, 4]
        super().__init__(*[Part(size) for size in sizes])
'''
BY_HAND = {
    "annotated arguments": 1 / 4,  # x of `twice`; k, width, x of Part
    "annotated results": 1 / 4,
    "comments of shapes per 100 lines of forward": 100 / 8,
    "other comments per 100 lines of forward": 100 / 8,
    "classes with a docstring": 1 / 2,
    "functions with a docstring": 1 / 4,
    "empty lines per 100 lines of forward": 100 / 8,
    "`forward` returns a name": 1,
    "calls in one statement of forward": 2 / 4,  # none in three of four; a loop's head is no statement here
    "`kernel_size=` by name": 1,
    "`dim=` by name": 1 / 4,  # cat, relu, conv, unflatten
    "`inplace=True`": 1 / 2,  # ReLU, F.relu
    "numbered names": 1 / 5,  # B, C, h, h1, x
    "locals that are x": 1 / 5,
    "locals that are h": 1 / 5,
    "letters of a name": 6 / 5,
    "several attributes in one statement": 1 / 4,
    "unpacked arguments": 1 / 2,
    "layers with a literal width": 1 / 2,  # 16 and width
    "arguments of a constructor": 1,
    "constructors without arguments": 1 / 2,
    "`self.k = k`": 1 / 2,
    "`if` in a constructor": 1 / 2,
    "local variables in a constructor": 1 / 2,
    "loops in a constructor": 1 / 2,
    "`nn.Identity()`": 1 / 2,
    "activations that are layers": 1 / 2,
    "`.unflatten`": 1 / 2,
    "`B, N, C = x.shape`": 1 / 2,
    "sizes read from a tensor": 1 / 2,
    "loops in forward": 1,
    "statements of forward": 4,
    "functions beside the classes": 1 / 2,
}


def test_features_are_what_one_counts_by_hand() -> None:
    text = Text(TEXT)
    assert {name: FEATURES[name](text) for name in BY_HAND} == BY_HAND


def test_every_feature_of_an_empty_text_is_a_number() -> None:
    assert all(np.isfinite(count(Text("x = 1\n"))) for count in FEATURES.values())
    assert len(FEATURES) == len(WORDS) + len(WRITING) + len(STRUCTURE)


def test_layers_have_both_methods() -> None:
    (part,) = layers(TEXT)
    assert part.startswith("class Part(nn.Module)")


@pytest.mark.parametrize(("other", "least", "most"), [(TEXT, 0.3, 0.7), (TEXT.replace("k, width=8", "width=8"), 1, 1)])
def test_equal_texts_are_not_told_apart_and_others_are(
    other: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.authors.classifier.ROUNDS", 1)
    monkeypatch.setattr("benchmarks.authors.classifier.FOLDS", 2)
    texts = [Text(TEXT), Text(other)] * 6
    groups = [str(i // 2) for i in range(12)]
    assert all(least <= row["trees"] <= most for row in aucs(texts, [False, True] * 6, groups, seed=0))
    assert (tells(texts, [False, True] * 6)[0]["auc"] == 0.5) == (other == TEXT)
