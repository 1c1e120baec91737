"""benchmarks/train: the recipe, the networks and the images, for a few steps on the processor with
made images.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts():
    """The three modules of the folder, as the script itself imports them."""
    from benchmarks.train import cifar_images, networks, train

    return cifar_images, networks, train


def made_batch(n, rng, n_classes=10):
    return {
        b"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8),
        b"labels": rng.integers(0, n_classes, n).tolist(),
    }


def made_archive(path, batches):
    """A tarball with the members of cifar-10-python.tar.gz."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in batches.items():
            data = content if isinstance(content, bytes) else pickle.dumps(content, 2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def archive(tmp_path):
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return made_archive(tmp_path / "made.tar.gz", {name: made_batch(12, rng) for name in names})


@pytest.mark.long
def test_a_few_steps_from_the_archive_to_the_logits_and_their_card(archive, tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.train.train",
        "densenet40",
        str(archive),
        "-o",
        str(tmp_path / "out"),
    ]
    options = [
        "--unchecked",
        "--most-steps",
        "2",
        "--batch",
        "8",
        "--held-out",
        "20",
        "--device",
        "cpu",
        "--float32",
    ]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "out" / "cifar10-densenet40.json").read_text())
    assert json.loads(done.stdout) == card
    assert card["images_checked"] == "not checked"
    assert card["steps"] == 2
    assert card["recipe"]["weight_decay"] == 1e-4
    with np.load(tmp_path / "out" / "cifar10-densenet40.npz") as arrays:
        assert arrays["logits"].shape == (32, 10)
        assert arrays["logits"].dtype == np.float32
        assert np.isfinite(arrays["logits"]).all()
        assert arrays["is_test"].tolist() == [False] * 20 + [True] * 12
        correct = arrays["logits"].argmax(axis=1) == arrays["labels"]
    assert card["accuracy_test"] == pytest.approx(correct[20:].mean())


def test_images_that_are_not_cifars_are_refused(archive, tmp_path, scripts):
    cifar_images, _, _ = scripts
    with pytest.raises(ValueError, match=r"has MD5 .* known are c58f30108f718f92721af3b95e74349a"):
        cifar_images.read_images(archive)
    with pytest.raises(ValueError, match="there is no file"):
        cifar_images.read_images(tmp_path / "none.tar.gz")
    (tmp_path / "text.tar.gz").write_text("no archive")
    with pytest.raises(ValueError, match="is not a CIFAR archive"):
        cifar_images.read_images(tmp_path / "text.tar.gz", unchecked=True)


def test_hostile_archives(tmp_path, scripts):
    cifar_images, _, _ = scripts

    class Calls:
        def __reduce__(self):
            return (Path(tmp_path / "touched").touch, ())

    for name, content in {
        "calls": {b"data": Calls()},
        "short": {b"data": np.zeros((2, 9), np.uint8), b"labels": [0, 1]},
        "floats": {b"data": np.zeros((2, 3072)), b"labels": [0, 1]},
        "list": [1, 2],
        "none": b"",
    }.items():
        path = made_archive(
            tmp_path / f"{name}.tar.gz", {"data_batch_1": content, "test_batch": content}
        )
        with pytest.raises(ValueError, match=r"pickle|images"):
            cifar_images.read_images(path, unchecked=True)
    assert not (tmp_path / "touched").exists()


def test_an_npz_is_checked_by_its_contents(tmp_path, scripts):
    cifar_images, _, _ = scripts
    rng = np.random.default_rng(0)
    small = {
        "train_images": rng.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8), "train_labels": np.arange(100) % 10,
        "test_images": rng.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8), "test_labels": np.arange(20) % 10,
    }  # fmt: skip
    np.savez(tmp_path / "made.npz", **small)
    with pytest.raises(ValueError, match="this is not CIFAR"):
        cifar_images.read_images(tmp_path / "made.npz")
    images = cifar_images.read_images(tmp_path / "made.npz", unchecked=True)
    assert images.train.shape == (100, 3, 32, 32)
    del small["test_labels"]
    np.savez(tmp_path / "less.npz", **small)
    with pytest.raises(ValueError, match="must hold"):
        cifar_images.read_images(tmp_path / "less.npz")


def test_colours(scripts):
    cifar_images, _, _ = scripts
    images = np.random.default_rng(0).integers(0, 256, (12_000, 3, 4, 4), dtype=np.uint8)
    mean, deviation = cifar_images.colours(images)
    np.testing.assert_allclose(mean, images.mean(axis=(0, 2, 3)) / 255)
    np.testing.assert_allclose(deviation, images.std(axis=(0, 2, 3)) / 255)


@pytest.mark.parametrize(
    ("name", "millions", "layers"),
    [
        ("densenet40", 1.0, 40),
        ("resnet110", 1.7, 110),
        ("resnet110sd", 1.7, 110),
        ("wrn32", 46.2, 32),
    ],
)
def test_networks_have_the_published_size(name, millions, layers, scripts):
    """Parameters as in the papers (1.0 M for DenseNet-40, 1.7 M for ResNet-110); depth counted in
    weight layers.
    """
    _, networks, _ = scripts
    network = networks.made(name, 10)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, rel=0.04)
    weighted = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    shortcuts = sum(
        isinstance(m, networks.WideBlock) and m.shortcut is not None for m in network.modules()
    )
    assert len(weighted) - shortcuts == layers


def test_logits_come_out_and_gradients_flow(scripts):
    _, networks, _ = scripts
    for make in (
        lambda: networks.ResNet(7, n=2, last_survival=0.5), lambda: networks.WideResNet(7, n=1, width=1),
        lambda: networks.DenseNet(7, layers=2),
    ):  # fmt: skip
        network = make()
        out = network(torch.randn(3, 3, 32, 32))
        assert out.shape == (3, 7)
        out.square().sum().backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in network.parameters())


def test_stochastic_depth_is_linear_and_weighed(scripts):
    _, networks, _ = scripts
    network = networks.made("resnet110sd", 10)
    survival = [block.survival for block in network.blocks]
    np.testing.assert_allclose(survival, 1 - 0.5 * np.arange(1, 55) / 54)
    block, x = networks.BasicBlock(4, 4, 1, survival=0.25), torch.rand(1, 4, 4, 4)
    block.eval()
    residual = block.second_norm(block.second(torch.relu(block.first_norm(block.first(x)))))
    torch.testing.assert_close(block(x), torch.relu(x + 0.25 * residual))
    block.train()
    torch.manual_seed(0)
    skipped = sum(torch.equal(block(x), x) for _ in range(400))
    assert abs(skipped / 400 - 0.75) < 3 * (0.75 * 0.25 / 400) ** 0.5


def test_the_recipe(scripts):
    _, _, train = scripts
    recipe = train.Recipe()
    assert recipe.steps(45_000) == 70_313
    changes = [
        step
        for step in range(1, 70_313)
        if recipe.rate(step, 45_000) != recipe.rate(step - 1, 45_000)
    ]
    assert changes == [28_125, 52_735]
    assert [recipe.rate(step, 45_000) for step in (0, 28_125, 70_312)] == [0.1, 0.01, 0.001]


def test_batches_take_every_image_once_per_epoch(scripts):
    _, _, train = scripts
    recipe = train.Recipe(epochs=3, batch=8)
    rows = torch.cat(list(train.batches(20, recipe, torch.Generator().manual_seed(0))))
    assert len(rows) == 64
    for epoch in range(3):
        assert sorted(rows[20 * epoch : 20 * (epoch + 1)].tolist()) == list(range(20))


def test_augmentation_crops_and_flips(scripts):
    _, _, train = scripts
    images = torch.arange(1, 1 + 64 * 3 * 32 * 32, dtype=torch.float32).reshape(64, 3, 32, 32)
    out = train.augmented(images, 4, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images, (4,) * 4)
    seen = set()
    for image, whole in zip(out, padded):
        views = {
            (top, left, flip): view.flip(-1) if flip else view
            for top in range(9) for left in range(9) for flip in (False, True)
            for view in [whole[:, top : top + 32, left : left + 32]]
        }  # fmt: skip
        seen |= {key for key, view in views.items() if torch.equal(view, image)}
    assert len(seen) > 40
    assert {flip for _, _, flip in seen} == {False, True}


def test_training_learns_and_is_reproducible(scripts):
    cifar_images, networks, train = scripts
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 96)
    images = (rng.integers(0, 100, (96, 3, 32, 32)) + 120 * labels[:, None, None, None]).astype(
        np.uint8
    )
    networks.NETWORKS["tiny"] = lambda n_classes: networks.ResNet(n_classes, n=1)
    made = cifar_images.Images("made", 2, images, labels, images[:32], labels[:32], "not checked")
    recipe = train.Recipe(epochs=8, batch=16, held_out=32, bfloat16=False)
    try:
        one, two = (train.run("tiny", made, recipe, torch.device("cpu")) for _ in range(2))
    finally:
        del networks.NETWORKS["tiny"]
    np.testing.assert_array_equal(one["logits"], two["logits"])
    assert (one["logits"].argmax(axis=1) == one["labels"]).mean() > 0.9
