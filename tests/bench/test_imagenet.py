"""benchmarks/train/imagenet.py: from a folder of images to logits that `benchmarks paper` knows;
random weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts():
    from benchmarks.train import imagenet, imagenet_networks

    return imagenet, imagenet_networks


@pytest.fixture
def folder(tmp_path):
    """Three classes of two small images each, a folder per class."""
    rng = np.random.default_rng(0)
    for kind in ("n01440764", "n01443537", "n01484850"):
        (tmp_path / "val" / kind).mkdir(parents=True)
        for k in range(2):
            pixels = rng.integers(0, 256, (60 + 10 * k, 80, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "val" / kind / f"ILSVRC2012_val_{k:08}.JPEG")
    return tmp_path / "val"


@pytest.mark.long
def test_from_the_folder_to_the_logits_and_their_card(folder, tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.train.imagenet",
        "densenet161",
        folder,
        "--weights",
        "random",
    ]
    options = ["-o", tmp_path / "out", "--batch", "4", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command + options)], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "out" / "imagenet-densenet161.json").read_text())
    assert json.loads(done.stdout) == card
    assert (card["weights"], card["weights_sha256"], card["rows"], card["classes"]) == (
        "random",
        None,
        6,
        1000,
    )
    with np.load(tmp_path / "out" / "imagenet-densenet161.npz") as arrays:
        assert arrays["logits"].shape == (6, 1000)
        assert arrays["logits"].dtype == np.float32
        assert np.isfinite(arrays["logits"]).all()
        assert len(np.unique(arrays["logits"][:, 0])) == 6
        assert arrays["labels"].tolist() == [0, 0, 1, 1, 2, 2]


def test_the_logits_are_known_to_the_experiments(tmp_path):
    from benchmarks.experiments import logits_files
    from benchmarks.paper.printed import ECE, printed

    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "imagenet-resnet152.npz",
        logits=rng.normal(size=(30, 4)),
        labels=np.arange(30) % 4,
    )
    (found,) = [
        item for item in logits_files.find([tmp_path])[0] if item.name == "imagenet-resnet152"
    ]
    assert (found.file.family.fit_rows, found.file.family.beta) == (25_000, 0.85)
    assert not found.file.of_the_paper
    assert printed(ECE, found.file.family.title, found.file.network, "ts") == 0.02023
    with pytest.raises(ValueError, match="more than 25,000 rows"):
        logits_files.read(found)


@pytest.mark.parametrize(
    ("name", "parameters", "digest"),
    [
        ("densenet161", 28_681_000, "82d337d48f910d3a"),
        ("resnet152", 60_192_808, "685c66205bc823aa"),
    ],
)
def test_networks_are_torchvisions(name, parameters, digest, scripts):
    """Names, order and shapes of all tensors as in torchvision 0.29.2, from which these numbers
    were taken.

    With its tensors in ours the logits of random images were the same to the last bit, DenseNet-161
    and ResNet-152.
    """
    with torch.device("meta"):
        network = scripts[1].NETWORKS[name]()
    assert sum(p.numel() for p in network.parameters()) == parameters
    names = "\n".join(f"{key} {tuple(value.shape)}" for key, value in network.state_dict().items())
    assert hashlib.sha256(names.encode()).hexdigest().startswith(digest)


def test_weights_are_read_by_their_former_names_too(scripts, tmp_path, monkeypatch):
    imagenet, networks = scripts

    def tiny(n_classes=5):
        return networks.DenseNet(n_classes, blocks=(2, 1), growth=4, first=8)

    monkeypatch.setitem(imagenet.NETWORKS, "densenet161", tiny)
    torch.manual_seed(1)
    saved = tiny().eval()
    former = {
        key.replace("norm1.", "norm.1.")
        .replace("norm2.", "norm.2.")
        .replace("conv1.", "conv.1.")
        .replace("conv2.", "conv.2."): value
        for key, value in saved.state_dict().items()
        if "num_batches" not in key  # a file of 2017 has none
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in former
    for state in (saved.state_dict(), former):
        torch.save(state, tmp_path / "weights.pth")
        loaded = imagenet.network_of("densenet161", str(tmp_path / "weights.pth"), 5)
        x = torch.randn(2, 3, 64, 64)
        with torch.inference_mode():
            assert torch.equal(loaded(x), saved(x))
    torch.save({"fc.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="holds no weights of densenet161"):
        imagenet.network_of("densenet161", str(tmp_path / "other.pth"), 5)


@pytest.mark.slow
def test_weights_that_run_code_are_refused(scripts, tmp_path):
    class Calls:
        def __reduce__(self):
            return (Path(tmp_path / "touched").touch, ())

    torch.save({"x": Calls()}, tmp_path / "evil.pth")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        scripts[0].network_of("resnet152", str(tmp_path / "evil.pth"))
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (100, 80), (224, 900)])
def test_an_image_is_scaled_cropped_and_normalised(size, scripts, tmp_path):
    """As torchvision 0.29.2 does, to the last bit on images of noise of these sizes; here, where
    the middle stays.
    """
    imagenet, _ = scripts
    width, height = size
    across = np.linspace(0, 255, width)[None, :, None]
    down = np.linspace(0, 255, height)[:, None, None]
    pixels = np.concatenate(
        [np.broadcast_to(c, (height, width, 1)) for c in (across, down, 0 * down + 51)], axis=2
    )
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "image.png")
    found = imagenet.prepared(tmp_path / "image.png").numpy()
    assert found.shape == (3, 224, 224)
    assert found.dtype == np.float32
    shown = (
        found * np.float32(imagenet.DEVIATION)[:, None, None]
        + np.float32(imagenet.MEAN)[:, None, None]
    )
    np.testing.assert_allclose(shown[2], 0.2, atol=1e-6)
    for colour, axis, long in ((0, 0, width / min(size)), (1, 1, height / min(size))):
        profile = shown[colour].mean(axis=axis)
        half = 224 / 256 / long / 2  # the crop's share of that side
        np.testing.assert_allclose(profile[[0, -1]], [0.5 - half, 0.5 + half], atol=0.01)
        np.testing.assert_allclose(profile.mean(), 0.5, atol=0.005)


def test_labels_from_a_file_and_what_is_refused(scripts, folder, tmp_path):
    imagenet, _ = scripts
    flat = tmp_path / "flat"
    flat.mkdir()
    for k, path in enumerate(sorted(folder.rglob("*.JPEG"))):
        (flat / f"{k}.JPEG").write_bytes(path.read_bytes())
    (tmp_path / "val.txt").write_text("2 0 1 5 4 3")
    paths, labels, n_classes = imagenet.found_images(flat, tmp_path / "val.txt")
    assert [path.name for path in paths] == [f"{k}.JPEG" for k in range(6)]
    assert (labels.tolist(), n_classes) == ([2, 0, 1, 5, 4, 3], 6)
    (tmp_path / "short.txt").write_text("2 0 1")
    (tmp_path / "words.txt").write_text("cat dog")
    for wrong, says in (
        ("short.txt", "3 labels for 6 images"),
        ("words.txt", "one class number per image"),
    ):
        with pytest.raises(ValueError, match=says):
            imagenet.found_images(flat, tmp_path / wrong)
    with pytest.raises(ValueError, match="no folder per class"):
        imagenet.found_images(flat, None)
    with pytest.raises(ValueError, match="there is no folder"):
        imagenet.found_images(tmp_path / "nowhere", None)
