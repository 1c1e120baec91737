"""Train one network by the recipe of the Meta-Cal paper and write the logits of 15,000 images that
it never saw.

    python -m benchmarks.train.train resnet110 cifar-10-python.tar.gz -o logits --seed 2101

SGD with momentum 0.9, batches of 128, 200 epochs, weight decay 1e-4, learning rate 0.1, then 0.01
from epoch 80 and 0.001 from epoch 150, random flips and crops (padding 4), cross-entropy. 45,000
training images; 5,000 are held out and, with the 10,000 test images, give the rows.
`cifar_images.py` says where the images are found.

Written are NAME.npz (`logits`, `labels`, `is_test`, `source`: what `python -m benchmarks paper
--data` reads) and NAME.json, its card: recipe, seed, how the images were checked, accuracy, NLL,
ECE and best temperature.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

import metacal as mc
from benchmarks.train.cifar_images import Images, colours, read_images
from benchmarks.train.networks import NETWORKS, made


@dataclass(frozen=True)
class Recipe:
    """The paper's settings (its supplement, "Training details")."""

    epochs: int = 200
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 1e-4
    rates: tuple[float, ...] = (0.1, 0.01, 0.001)
    changes: tuple[int, ...] = (80, 150)
    padding: int = 4
    held_out: int = 5000
    seed: int = 0
    bfloat16: bool = True
    most_steps: int | None = None

    def steps(self, n_images: int) -> int:
        """Mini-batches in all."""
        steps = math.ceil(self.epochs * n_images / self.batch)
        return steps if self.most_steps is None else min(steps, self.most_steps)

    def rate(self, step: int, n_images: int) -> float:
        """Learning rate of a step."""
        epoch = step * self.batch / n_images
        return self.rates[sum(epoch >= change for change in self.changes)]


def batches(n_images: int, recipe: Recipe, generator: torch.Generator) -> Iterator[Tensor]:
    """Numbers of images, 128 at a time, every image once per epoch in a new order; batches run on
    over epochs.
    """
    waiting = torch.empty(0, dtype=torch.int64)
    for _ in range(recipe.steps(n_images)):
        while len(waiting) < recipe.batch:
            waiting = torch.cat([waiting, torch.randperm(n_images, generator=generator)])
        yield waiting[: recipe.batch]
        waiting = waiting[recipe.batch :]


def augmented(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Each image flipped or not and cropped anywhere from its padded self, all at once on the
    device.
    """
    n, size = len(images), images.shape[-1]
    padded = functional.pad(images, (padding,) * 4)
    corner = torch.randint(0, 2 * padding + 1, (2, n), generator=generator).to(images.device)
    flip = (torch.rand(n, generator=generator) < 0.5).to(images.device)
    span = torch.arange(size, device=images.device)
    rows = corner[0, :, None] + span
    columns = corner[1, :, None] + torch.where(flip[:, None], span.flip(0), span)
    which = torch.arange(n, device=images.device)
    return padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def train(
    network: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe, device: torch.device
) -> None:
    """Run the recipe; `images` are normalised floats on the device."""
    generator = torch.Generator().manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed + 1)  # stochastic depth draws from the global one
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=recipe.rates[0],
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
    )
    network.train()
    bar = tqdm(
        batches(len(images), recipe, generator),
        total=recipe.steps(len(images)),
        disable=None,
        unit="step",
    )
    for step, rows in enumerate(bar):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step, len(images))
        rows = rows.to(device)
        batch = augmented(images[rows], recipe.padding, generator).contiguous(
            memory_format=torch.channels_last
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.bfloat16):
            loss = functional.cross_entropy(network(batch), labels[rows])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if step % 100 == 0:
            value = loss.item()
            bar.set_postfix_str(f"loss {value:.3f}", refresh=False)
            if not math.isfinite(value):
                raise SystemExit(
                    f"the loss is {value} at step {step}; try another seed or --float32."
                )


@torch.inference_mode()
def logits_of(network: nn.Module, images: Tensor) -> np.ndarray:
    """Logits in float32, without augmentation."""
    network.eval()
    parts = [
        network(part.contiguous(memory_format=torch.channels_last)) for part in images.split(500)
    ]
    return torch.cat(parts).float().cpu().numpy()


def split(images: Images, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the training images to train on and of those held out."""
    if not 0 < recipe.held_out < len(images.train):
        raise SystemExit(f"{recipe.held_out} of {len(images.train)} images cannot be held out.")
    order = np.random.default_rng(recipe.seed).permutation(len(images.train))
    return np.sort(order[recipe.held_out :]), np.sort(order[: recipe.held_out])


def run(name: str, images: Images, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Train, and return the arrays of the logits file."""
    used, kept = split(images, recipe)
    mean, deviation = colours(images.train[used])
    shape = (1, 3, 1, 1)

    def normalised(part: np.ndarray) -> Tensor:
        scaled = torch.from_numpy(np.ascontiguousarray(part)).to(device).float() / 255.0
        return (scaled - _tensor(mean, shape, device)) / _tensor(deviation, shape, device)

    torch.manual_seed(recipe.seed)
    network = made(name, images.n_classes).to(device, memory_format=torch.channels_last)
    train(
        network,
        normalised(images.train[used]),
        torch.from_numpy(images.train_labels[used]).to(device),
        recipe,
        device,
    )
    logits = [logits_of(network, normalised(part)) for part in (images.train[kept], images.test)]
    return {
        "logits": np.concatenate(logits),
        "labels": np.concatenate([images.train_labels[kept], images.test_labels]),
        "is_test": np.repeat([False, True], [len(kept), len(images.test)]),
        "source": f"{images.name} {name}, recipe of Ma & Blaschko (2021), seed {recipe.seed}",
    }


def card(
    name: str, images: Images, recipe: Recipe, arrays: dict[str, Any], device: torch.device
) -> dict[str, Any]:
    """What the logits file is, and what its rows look like."""
    logits, labels, is_test = arrays["logits"], arrays["labels"], arrays["is_test"]
    correct = logits.argmax(axis=1) == labels
    table = logits.astype(np.float64)
    proba = np.exp(table - table.max(axis=1, keepdims=True))
    proba /= proba.sum(axis=1, keepdims=True)
    return {
        "network": name,
        "images": images.name,
        "images_checked": images.checked,
        "recipe": asdict(recipe),
        "steps": recipe.steps(len(images.train) - recipe.held_out),
        "rows": len(labels),
        "classes": images.n_classes,
        "accuracy_held_out": float(correct[~is_test].mean()),
        "accuracy_test": float(correct[is_test].mean()),
        "nll": mc.metrics.nll(proba, labels),
        "ece": mc.metrics.ece(proba, labels),
        "temperature": float(mc.TemperatureScaling().fit(logits, labels).temperature_),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def main() -> None:
    """Read the images, train, write the logits and the card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument(
        "images", type=Path, help="cifar-10-python.tar.gz, cifar-100-python.tar.gz or an npz"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("logits"),
        help="folder of the logits and the card",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--epochs", type=int, default=200, help="the changes of the rate move along"
    )
    parser.add_argument(
        "--batch", type=int, default=128, help="images per step; the paper's is 128"
    )
    parser.add_argument(
        "--held-out", type=int, default=5000, help="training images that are not trained on"
    )
    parser.add_argument(
        "--float32", action="store_true", help="train in float32 instead of bfloat16"
    )
    parser.add_argument(
        "--most-steps", type=int, help="stop after so many mini-batches, to try it out"
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="take images that are not CIFAR's; the card says so",
    )
    options = parser.parse_args()
    recipe = replace(
        Recipe(), epochs=options.epochs, changes=tuple(round(0.005 * c * options.epochs) for c in (80, 150)),
        batch=options.batch, held_out=options.held_out, seed=options.seed, bfloat16=not options.float32,
        most_steps=options.most_steps,
    )  # fmt: skip
    try:
        images = read_images(options.images, unchecked=options.unchecked)
    except mc.InputError as error:
        raise SystemExit(f"Error: {error}") from None
    device, started = torch.device(options.device), time.monotonic()
    arrays = run(options.network, images, recipe, device)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{images.name}-{options.network}.npz"
    np.savez_compressed(path, **arrays)
    told = card(options.network, images, recipe, arrays, device) | {
        "seconds": round(time.monotonic() - started, 1)
    }
    path.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=1))
    print(f"Saved to {path} and {path.with_suffix('.json').name}.", file=sys.stderr)


def _tensor(values: np.ndarray, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).reshape(shape)


if __name__ == "__main__":
    main()
