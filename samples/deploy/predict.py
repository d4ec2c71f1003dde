"""Ask an exported network without onnxgen: python predict.py tuned.onnx FILE, a picture, a .wav, a .csv or a .txt

`onnxgen.preprocessing` in the file's metadata says what comes before and after the network; docs/EXPORT.md has its
fields. Needs numpy, onnxruntime and Pillow. Text also needs tokenizers, and a sound of another rate scipy.
"""

import argparse
import csv
import json
import wave

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # in a column of numbers; in one of text only ""

# ---- before the network ----------------------------------------------------------------------------------------------


def upright(path, least=None):
    """Return a picture as a viewer shows it."""
    picture = Image.open(path)
    picture.draft(None, least)  # a JPEG of more than this size is decoded smaller
    return ImageOps.exif_transpose(picture)


def place(how, size):
    """Return where a picture of this width and height lies in the input: width, height, left, top."""
    frame = how["width"], how["height"]
    if how["beside"] is None:
        return *frame, 0, 0
    if how["at"] == "line":
        return min(-(-frame[1] * size[0] // size[1]), frame[0]), frame[1], 0, 0
    ratio = min(most / side for most, side in zip(frame, size))
    width, height = (max(1, min(round(side * ratio), most)) for side, most in zip(size, frame))
    left, top = ((most - side) // 2 if how["at"] == "middle" else 0 for most, side in zip(frame, (width, height)))
    return width, height, left, top


def widened(how, path):
    """Return how a line of text is fed: one that is longer than the input may get the width that it needs."""
    step, (width, height) = how.get("width_step", 0), upright(path).size
    needed = -(-how["height"] * width // height)
    if not step or needed <= how["width"]:
        return how
    wide = -(-needed // step) * step
    shape = [wide if axis == "W" else size for axis, size in zip(how["axes"], how["shape"])]
    return {**how, "width": wide, "shape": shape}


def image(how, path):
    picture = upright(path, (2 * how["width"], 2 * how["height"]))
    if picture.mode.startswith("I"):  # 16 bits
        picture = Image.fromarray((np.asarray(picture).clip(0, 65535) / 257).round().astype(np.uint8))
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    picture = picture.convert(MODES[how["channels"]])
    width, height, left, top = place(how, picture.size)
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    whole = Image.new(picture.mode, (how["width"], how["height"]), tuple(how["beside"] or [0] * how["channels"]))
    whole.paste(picture, (left, top))
    x = np.asarray(whole, np.float32).reshape(how["height"], how["width"], -1)
    x = x[..., [2, 1, 0, *range(3, x.shape[2])]] if how["order"] == "BGR" else x
    x = (x / how["white"] - np.float32(how["mean"])) / np.float32(how["std"])
    x = x if how["dtype"].startswith("float") else x.round()
    return x if how["axes"] == "HWC" else x.transpose(2, 0, 1)


def table(how, row):
    found = []
    for column in how["columns"]:
        cell, categories = row[column["name"]].strip(), column["categories"]
        is_text = any(isinstance(value, str) for value in [column["fill"], *(categories or [])])
        value = cell if is_text else {"true": 1.0, "false": 0.0}.get(cell.lower(), cell)
        if cell == "" or not is_text and cell.lower() in MISSING:
            value = column["fill"]
        value = value if is_text or value is None else float(value)
        if categories is None:
            found.append((value - column["mean"]) / column["scale"])
        elif column["onehot"] and (value in categories or column["zeros"]):
            found += [float(value == category) for category in categories]
        else:
            found.append(categories.index(value))
    return np.array(found)


def numbers(how, row):
    return np.array(row[how["column"]], np.float64)


def sound(how, path):
    with wave.open(str(path)) as file:
        assert file.getsampwidth() == 2, "samples of another size: read the file with soundfile"
        x = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels()) / 32768
        x, rate = x.mean(1, dtype=np.float32), file.getframerate()
    if rate != how["rate"]:
        from scipy.signal import resample_poly

        divisor = np.gcd(rate, how["rate"])
        x = resample_poly(x, how["rate"] // divisor, rate // divisor)
    return np.pad(x[: how["length"]], (0, max(0, (how["length"] or 0) - len(x))))


def pieces(how, x):
    """Return the steps of a sample, of a network that carries a state from step to step."""
    cut, axis = how["steps"], min(how["steps"]["axis"], x.ndim - 1)
    if not cut["chunk"]:
        return list(np.moveaxis(x, axis, 0))
    count, sides = -(-x.shape[axis] // cut["chunk"]), np.zeros((x.ndim, 2), int)
    sides[axis] = cut["context"], count * cut["chunk"] - x.shape[axis]
    x, size = np.pad(x, sides), cut["context"] + cut["chunk"]
    return [x.take(range(n * cut["chunk"], n * cut["chunk"] + size), axis) for n in range(count)]


def text(how, row, port, tokenizer):
    """Return token ids, or what else an input of text takes: a mask, positions, an empty past."""
    if how["most"] is not None:
        tokenizer.enable_truncation(how["most"])
    found = tokenizer.encode(*(row[column] for column in how["columns"]))
    start = tokenizer.token_to_id(str(how["start"]))
    ones = [1] * len(found.ids)
    made = {"input_ids": found.ids, "attention_mask": ones, "token_type_ids": found.type_ids}
    made |= {"position_ids": range(len(ones)), "decoder_input_ids": [start], "decoder_attention_mask": [1]}
    if how["role"] in ("past", "use_cache_branch"):  # no tokens before these
        return np.zeros([size if isinstance(size, int) else 0 for size in port.shape[1:]])
    x, size = np.array(made[how["role"]]), port.shape[-1]
    fill = {"input_ids": how["pad"], "decoder_input_ids": how["pad"], "position_ids": len(ones) - 1}
    return np.pad(x, (0, size - len(x)), constant_values=fill.get(how["role"], 0)) if isinstance(size, int) else x


def run(session, inputs, feeds):
    """Return the outputs by name; of a network that carries a state those of all steps, along the second axis."""
    names, states = [port.name for port in session.get_outputs()], [how for how in inputs if how["kind"] == "state"]
    if not states:
        return dict(zip(names, session.run(None, feeds)))
    cut, found = [how["name"] for how in inputs if "steps" in how], []
    for step in zip(*(feeds[name] for name in cut)):
        found.append(dict(zip(names, session.run(None, feeds | dict(zip(cut, step))))))
        feeds = feeds | {how["name"]: found[-1][how["from"]] for how in states}
    return {name: np.stack([outputs[name] for outputs in found], 1) for name in names}


# ---- behind the network ----------------------------------------------------------------------------------------------


def probabilities(how, y):
    if how["apply"] == "softmax":
        y = np.exp(y - y.max(how["axis"], keepdims=True))
        return y / y.sum(how["axis"], keepdims=True)
    return np.exp(y) if how["apply"] == "exp" else 1 / (1 + np.exp(-y)) if how["apply"] == "sigmoid" else y


def classes(how, y):
    if y.ndim > 2:  # a class at each place
        return y.argmax(how["axis"])[0]
    label = how["names"][y[0].argmax()]
    return label if how["apply"] == "none" else (label, dict(zip(how["names"], probabilities(how, y)[0].tolist())))


def labels(how, y):
    p, names = probabilities(how, y)[0], how["names"]
    if p.size == 1 and not how["stepwise"]:  # of the second of two classes
        names = names if len(names) == 2 else ("0", "1")
        return names[int(p.item() > 0.5)], {names[0]: 1 - p.item(), names[1]: p.item()}
    if y.ndim > 2:
        return (p > 0.5).astype(int)
    names = names if len(names) == p.size else [str(number) for number in range(p.size)]
    return [name for name, value in zip(names, p) if value > 0.5], dict(zip(names, p.tolist()))


def characters(how, y):
    best = y.argmax(how["axis"]).ravel()
    kept = [best[i] for i in range(len(best)) if best[i] != how["blank"] and (i == 0 or best[i] != best[i - 1])]
    if not how["characters"]:
        return " ".join(map(str, kept))
    places = [number - (number > how["blank"]) for number in kept]
    return "".join(how["characters"][i] if i < len(how["characters"]) else f"<{n}>" for i, n in zip(places, kept))


def heatmaps(how, y):
    """Return x, y (as shares) and the peak of each map."""
    found = []
    for m in y[0]:
        row, column = np.unravel_index(m.argmax(), m.shape)
        x, y = column + 0.5, row + 0.5
        if 0 < column < m.shape[1] - 1:
            x += 0.25 * np.sign(m[row, column + 1] - m[row, column - 1])
        if 0 < row < m.shape[0] - 1:
            y += 0.25 * np.sign(m[row + 1, column] - m[row - 1, column])
        found.append((x / m.shape[1], y / m.shape[0], m.max()))
    return np.array(found)


def picture(how, y):
    y = np.moveaxis(y, how["axis"], 3)[0] if how["axis"] else y[0, ..., None]
    y = (y * np.float32(how["std"]) + np.float32(how["mean"])).clip(0, 1) * 255
    y = y[..., ::-1] if how["order"] == "BGR" else y
    return y.round().astype(np.uint8).squeeze(2) if y.shape[2] == 1 else y.round().astype(np.uint8)


def vector(how, y, mask):
    """Return the vector of a text, of length 1, of those of its tokens."""
    if how["pooling"] == "cls":
        y = y[0]
    else:
        y = y[mask[0] != 0]
        y = y.mean(0) if how["pooling"] == "mean" else y.max(0)
    return y / max(np.linalg.norm(y), 1e-12)


def boxes(how, outputs, frame, size):
    """Return class, score, x1, y1, x2, y2 of each box, in pixels of a picture of this width and height."""
    if not how.get("boxes"):
        raise SystemExit("its metadata does not say where its boxes are: read its outputs as the network's author says")
    taken = {}
    for part in ("boxes", "scores", "objects"):
        if where := how[part]:
            y = np.moveaxis(outputs[where["output"]][0], where["axis"] - 1, -1)
            taken[part] = probabilities(where, y[:, where["first"] :][:, : where["count"]])
    low, high = taken["boxes"][:, :2], taken["boxes"][:, 2:]
    if how["layout"] == "offsets":  # from the cell's corner, and logarithms of sizes, in strides
        levels = [(g["stride"], *np.indices((g["height"], g["width"])).reshape(2, -1)) for g in how["grid"]]
        strides = np.concatenate([np.full((len(rows), 1), stride) for stride, rows, _ in levels])
        cells = np.concatenate([np.stack([columns, rows], 1) for _, rows, columns in levels])
        low, high = (low + cells) * strides, np.exp(high) * strides
    if how["layout"] in ("centres", "offsets"):
        low, high = low - high / 2, low + high / 2
    if how["layout"] == "corner":
        high = low + high
    corners = np.concatenate([low, high], 1) * (np.tile([frame["width"], frame["height"]], 2) if how["shares"] else 1)
    width, height, left, top = place(frame, size)
    pixels = ((corners - [left, top] * 2) / ([width, height] * 2)).clip(0, 1) * ([*size] * 2)
    scores = taken["scores"] * taken.get("objects", 1)
    points, kinds = (scores > how["score"]).nonzero()
    order = np.argsort(-scores[points, kinds], kind="stable")[: how["candidates"]]
    kept = []
    for point, kind in zip(points[order], kinds[order]):
        if all(other != kind or overlap(corners[point], corners[p]) <= how["overlap"] for p, other in kept):
            kept.append((point, kind))
    return [(how["names"][k], float(scores[p, k]), *pixels[p].tolist()) for p, k in kept[: how["most"]]]


def overlap(one, other):
    shared = (np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])).clip(0).prod()
    return shared / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - shared + 1e-7)


# ---- all of it -------------------------------------------------------------------------------------------------------


def predict(session, path, score=None):
    """Yield what the network says of each sample in a file, by the name of the output.

    `score`: boxes with a greater one are found; by default those that `onnxgen predict` finds.
    """
    facts = session.get_modelmeta().custom_metadata_map
    contract, ports = json.loads(facts["onnxgen.preprocessing"]), {port.name: port for port in session.get_inputs()}
    tokenizer = None
    if "onnxgen.tokenizer" in facts:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(facts["onnxgen.tokenizer"])
        tokenizer.no_padding(), tokenizer.no_truncation()
    for sample in samples(path, contract["inputs"]):
        feeds = {how["name"]: made(how, sample, ports[how["name"]], tokenizer) for how in contract["inputs"]}
        outputs = run(session, contract["inputs"], feeds)
        listed = contract["outputs"] or [{"name": name, "kind": "numbers"} for name in outputs]
        outputs |= feeds
        listed = listed if score is None else [{**how, "score": score} for how in listed]
        yield {how["name"]: said(how, outputs, contract["inputs"], path) for how in listed}


def samples(path, inputs):
    """Return the rows of a table or of a text; a picture or a sound is one sample."""
    if str(path).endswith(".csv"):
        with open(path, newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))
    if str(path).endswith(".txt"):
        column = next(how["columns"][0] for how in inputs if how["kind"] == "text")
        with open(path, encoding="utf-8") as file:
            return [{column: line.rstrip("\n")} for line in file]
    if str(path).endswith(".npz"):
        arrays = dict(np.load(path))
        return [dict(zip(arrays, row)) for row in zip(*arrays.values())]
    return [path]


def made(how, sample, port, tokenizer):
    """Return an input with its batch axis, if it has one, in its dtype."""
    dtype = {"float": "float32", "double": "float64"}.get(kind := port.type[len("tensor(") : -1], kind)
    if how["kind"] in ("constant", "state"):
        return np.full([size if isinstance(size, int) else 1 for size in port.shape], how["value"], dtype)
    if how["kind"] == "image":
        how = widened(how, sample)
    if how["kind"] == "text":
        parts = [text(how, sample, port, tokenizer)]
    else:
        makers = {"image": image, "table": table, "sound": sound, "numbers": numbers}
        x = makers[how["kind"]](how, sample)
        parts = [part.reshape(how["shape"]) for part in (pieces(how, x) if "steps" in how else [x])]
    parts = [(part if how["batch"] is None else np.expand_dims(part, how["batch"])).astype(dtype) for part in parts]
    return parts if "steps" in how else parts[0]


def said(how, outputs, inputs, path):
    if how["kind"] == "boxes":
        return boxes(how, outputs, next(i for i in inputs if i["kind"] == "image"), upright(path).size)
    y = outputs[how["name"]]
    y = y[None] if how.get("batch", 0) is None else y
    y = y.astype(np.float32) if y.dtype == np.float16 else y
    how = how | {"stepwise": any("steps" in one for one in inputs)}
    if how["kind"] == "numbers":
        return y[0]
    if how["kind"] == "vectors":
        return vector(how, y[0], outputs.get(how["mask"]))
    return {"classes": classes, "labels": labels, "text": characters, "heatmaps": heatmaps, "image": picture}[
        how["kind"]
    ](how, y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask an exported network about a file.")
    parser.add_argument("network", metavar="tuned.onnx", help="what onnxgen exported after training")
    parser.add_argument("file", metavar="FILE", help="a picture, a .wav, a .csv or a .txt")
    given = parser.parse_args()
    network = onnxruntime.InferenceSession(given.network, providers=["CPUExecutionProvider"])
    for answer in predict(network, given.file):
        print(answer)
