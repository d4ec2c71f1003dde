"""German words in serif italics for PP-OCRv4's reader of lines, whose alphabet lacks four of their letters."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from samples.deployed.compare import Sample

# Words are made of two of these: "Öltür", "Straßenkönig". The file's alphabet has ä, ü and Ü, and lacks ö, Ä, Ö and ß.
FIRST = """Öl Öfen Äpfel Ärzte Straßen Größen König Möbel Brücken Türen Bücher Käse Löwen Füße Maß Schloß Grün Höhen Kör
Äcker Österreich Übung Spaß Söhne Töchter Fluß Gewürz Süß Weiß Bär Schön Frühlings Ähren Ösen Groß Röhren Müll Wörter
Stadt Garten Haus Winter""".split()
LAST = """öl ofen apfel ärztin straße größe könig möbel brücke tür bücher käse löwe fuß maß schloß körbe acker übung
spaß söhne töchter fluß gewürz soße bär schönheit frühling ähre öse röhre müll wörter städte gärten häuser
gefäß stößel gruß hörer""".split()
FONTS = ("STIXGeneralItalic.ttf", "DejaVuSerif-Italic.ttf", "STIXGeneralBolIta.ttf")
TEST, SEED = 80, 12345  # lines of the test, and their seed


def words(test: bool) -> list[str]:
    """Return the words of training, or those of the test, which no training has."""
    pairs = [(i, j) for i in range(len(FIRST)) for j in range(len(LAST))]
    return [FIRST[i] + LAST[j] for i, j in pairs if ((7 * i + 3 * j) % 5 == 0) == test]


def line(word: str, rng: random.Random) -> Image.Image:
    """Return a picture of a word, as a scan of print has it: dark on light, a little turned, with noise."""
    size = rng.randint(26, 32)
    font = ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / rng.choice(FONTS)), size)
    left, top, right, bottom = font.getbbox(word)
    paper, ink = rng.randint(190, 255), rng.randint(0, 70)
    picture = Image.new("L", (int(right - left) + 16, 48), paper)
    ImageDraw.Draw(picture).text((8 - left, (48 - bottom - top) / 2), word, ink, font)
    picture = picture.rotate(rng.uniform(-1.5, 1.5), Image.Resampling.BICUBIC, fillcolor=paper)
    noise = np.random.default_rng(rng.randrange(1 << 32)).normal(0, rng.uniform(4, 16), (picture.height, picture.width))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8)).convert("RGB")


def write(folder: Path, number: int, seed: int, test: bool) -> None:
    """Write pictures, and a list of them as PaddleOCR's: a path, a tab, and the text."""
    folder.mkdir(parents=True)
    rng, known = random.Random(seed), words(test)
    texts = [rng.choice(known) for _ in range(number)]
    for place, text in enumerate(texts):
        line(text, rng).save(folder / f"{place:04}.png")
    listed = "".join(f"{place:04}.png\t{text}\n" for place, text in enumerate(texts))
    (folder / "labels.txt").write_text(listed, encoding="utf-8")


def draw(folder: Path, amount: int, seed: int) -> None:
    write(folder / "data", amount, seed, test=False)
    write(folder / "test", TEST, SEED, test=True)


def score(file: Path, folder: Path) -> float:
    """Return the share of the test's lines that RapidOCR reads without an error, with this file as its reader."""
    from rapidocr_onnxruntime import RapidOCR

    reader = RapidOCR(rec_model_path=str(file)).text_rec
    rows = [row.split("\t") for row in (folder / "test" / "labels.txt").read_text(encoding="utf-8").splitlines()]
    pictures = [np.asarray(Image.open(folder / "test" / name))[..., ::-1] for name, _ in rows]  # BGR
    found, _ = reader(pictures)
    return sum(text == wanted for (text, _), (_, wanted) in zip(found, rows, strict=True)) / len(rows)


BODY = ("conv*", "bn*", "stages", "block", "layers", "norm")  # of the generated module: all but `fc`, the last layer

SAMPLE = Sample(
    file="rapidocr_onnxruntime/ch_PP-OCRv4_rec_infer.onnx",
    metric="lines without an error",
    amounts={50: ("--epochs", "6"), 150: ("--epochs", "2"), 400: ("--epochs", "1")},
    ways={
        "from scratch": ("--from-scratch", "--lr", "0.001"),
        "new head on the frozen network": (
            "--keep",
            *("--lr", "0.01"),
            *(word for part in BODY for word in ("--freeze", part)),
        ),
        "fine-tuned": ("--keep",),
    },
    # 6,625 classes of the file, and four letters
    train=("--replace-head", "6629", "--batch-size", "8"),
    draw=draw,
    score=score,
)
