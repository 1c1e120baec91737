"""Logits of DenseNet-161 or ResNet-152 on a folder of ImageNet's validation images: the paper's last two rows.

    python -m benchmarks.train.imagenet densenet161 val --weights densenet161-8d451a50.pth -o logits
    python -m benchmarks.train.imagenet resnet152 val --weights resnet152-394f9c45.pth --labels val.txt -o logits

VAL holds the images in a folder per class (n01440764/ILSVRC2012_val_00000293.JPEG, ...; the classes are the folders in
alphabetical order), or all in one folder with --labels, a text with the class number 0 … 999 of each image in the order
of their names. An image becomes what torchvision's weights expect: the shorter side 256, the middle 224 × 224, colours
less their mean over their deviation.

The weights are torchvision's own files (https://download.pytorch.org/models/NAME), read as tensors and nothing else;
torchvision itself is not needed (`imagenet_networks.py` has its networks' names and numbers). --weights random tries
the script out, and the card says so. Written are imagenet-NETWORK.npz and its card, for
`python -m benchmarks paper --data`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

import metacal as mc
from benchmarks.train.imagenet_networks import NETWORKS

#: What torchvision's weights were trained with.
SHORTER, SIDE = 256, 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ENDINGS = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
RANDOM = "random"


def found_images(folder: Path, labels: Path | None) -> tuple[list[Path], NDArray[np.int64], int]:
    """Every image, its class, and how many classes there are."""
    if not folder.is_dir():
        raise mc.InputError(
            f"there is no folder {str(folder)!r}; give the one that holds the validation images."
        )
    if labels is not None:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
        try:
            numbers = np.array(
                [int(word) for word in labels.read_text(encoding="utf-8").split()], dtype=np.int64
            )
        except ValueError:
            raise mc.InputError(
                f"{labels} must hold one class number per image, counted from 0."
            ) from None
        if len(numbers) != len(paths) or not len(paths):
            raise mc.InputError(
                f"{labels} has {len(numbers):,} labels for {len(paths):,} images in {folder}."
            )
        return paths, numbers, int(numbers.max()) + 1
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    inside = [
        sorted(path for path in kind.rglob("*") if path.suffix.lower() in ENDINGS)
        for kind in classes
    ]
    if len(classes) < 2 or not all(inside):
        raise mc.InputError(
            f"{folder} has no folder per class with images in each; sort the images so, or give"
            " --labels."
        )
    labelled = np.repeat(np.arange(len(classes)), [len(kind) for kind in inside])
    return [path for kind in inside for path in kind], labelled, len(classes)


def prepared(path: Path) -> Tensor:
    """An image as the networks want it: 3 × 224 × 224, normalised."""
    from PIL import Image

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    scale = SHORTER / min(image.size)
    size = (max(SHORTER, int(image.width * scale)), max(SHORTER, int(image.height * scale)))
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((image.width - SIDE) / 2), round((image.height - SIDE) / 2)
    pixels = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), dtype=np.float32) / 255.0
    return torch.from_numpy((pixels - np.float32(MEAN)) / np.float32(DEVIATION)).permute(2, 0, 1)


def network_of(name: str, weights: str, n_classes: int = 1000) -> nn.Module:
    """The network with weights from a file of torchvision's, or random ones."""
    torch.manual_seed(0)
    network = NETWORKS[name](n_classes=n_classes).eval()
    if weights == RANDOM:
        return network
    state = torch.load(weights, map_location="cpu", weights_only=True)
    # DenseNet's file is of 2017: norm.1 there is norm1 now.
    state = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", key): value
        for key, value in state.items()
    }
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise mc.InputError(f"{weights} holds no weights of {name}: {said}") from None
    return network


@torch.inference_mode()
def logits_of(
    network: nn.Module, paths: list[Path], batch: int, device: torch.device
) -> NDArray[np.float32]:
    """Logits of every image, in the order of `paths`."""
    network.to(device)
    rows = []
    with tqdm(total=len(paths), disable=None, unit="image") as bar:
        for part in _parts(paths, batch):
            images = torch.stack([prepared(path) for path in part]).to(device)
            rows.append(network(images).float().cpu().numpy())
            bar.update(len(part))
    return np.concatenate(rows)


def _parts(paths: list[Path], size: int) -> Iterator[list[Path]]:
    for start in range(0, len(paths), size):
        yield paths[start : start + size]


def card(
    name: str, weights: str, logits: NDArray[np.float32], labels: NDArray[np.int64]
) -> dict[str, Any]:
    """What the logits file is, and what its rows look like."""
    plain = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
    plain /= plain.sum(axis=1, keepdims=True)
    digest = None if weights == RANDOM else hashlib.sha256(Path(weights).read_bytes()).hexdigest()
    return {
        "network": name,
        "weights": Path(weights).name,
        "weights_sha256": digest,
        "rows": len(labels),
        "classes": int(logits.shape[1]),
        "accuracy": float((logits.argmax(axis=1) == labels).mean()),
        "nll": mc.metrics.nll(plain, labels),
        "ece": mc.metrics.ece(plain, labels),
        "temperature": float(mc.TemperatureScaling().fit(logits, labels).temperature_),
        "torch": torch.__version__,
    }


def main() -> None:
    """Read the images, run the network, write the logits and the card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("images", type=Path, help="folder of the validation images")
    parser.add_argument("--weights", required=True, help="torchvision's .pth file, or random")
    parser.add_argument(
        "--labels", type=Path, help="class numbers, where the images are not in a folder per class"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("logits"),
        help="folder of the logits and the card",
    )
    parser.add_argument("--batch", type=int, default=50, help="images at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        paths, labels, n_classes = found_images(options.images, options.labels)
        network = network_of(options.network, options.weights)
        if n_classes > 1000:
            raise mc.InputError(
                f"{options.images} has {n_classes:,} classes; these networks know 1,000."
            )
        logits = logits_of(network, paths, options.batch, torch.device(options.device))
    except (mc.InputError, FileNotFoundError) as error:
        raise SystemExit(f"Error: {error}") from None
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"imagenet-{options.network}.npz"
    source = f"ImageNet {options.network}, weights {Path(options.weights).name}"
    np.savez(
        path, logits=logits, labels=labels, is_test=np.ones(len(labels), dtype=bool), source=source
    )
    told = card(options.network, options.weights, logits, labels) | {
        "seconds": round(time.monotonic() - started, 1)
    }
    path.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=1))
    print(f"Saved to {path} and {path.with_suffix('.json').name}.", file=sys.stderr)


if __name__ == "__main__":
    main()
