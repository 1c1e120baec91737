"""DenseNet-161 and ResNet-152 for 224 × 224 images, with torchvision's parameter names: its weight
files load.

Huang et al., "Densely connected convolutional networks", CVPR 2017; He et al., "Deep residual
learning for image recognition", CVPR 2016, with the stride in the 3 × 3 convolution as torchvision
has it. Written anew, so that no torchvision of the right build is needed to use its weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class _DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = (
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, 4 * growth, 1, bias=False),
        )
        self.norm2, self.conv2 = (
            nn.BatchNorm2d(4 * growth),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """What is known so far, and what this layer adds to it."""
        added = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(functional.relu(self.norm2(added)))], dim=1)


def _transition(inputs: int) -> nn.Sequential:
    halves = nn.Conv2d(inputs, inputs // 2, 1, bias=False)
    parts = {
        "norm": nn.BatchNorm2d(inputs),
        "relu": nn.ReLU(),
        "conv": halves,
        "pool": nn.AvgPool2d(2, 2),
    }
    return nn.Sequential(OrderedDict(parts))


class DenseNet(nn.Module):
    """Blocks in which every layer sees all layers before it, halved in between.

    `blocks` are the layers of each block, `growth` what a layer adds, `first` the channels of the
    first convolution.
    """

    def __init__(
        self,
        n_classes: int = 1000,
        blocks: tuple[int, ...] = (6, 12, 36, 24),
        growth: int = 48,
        first: int = 96,
    ) -> None:
        super().__init__()
        parts: dict[str, nn.Module] = {
            "conv0": nn.Conv2d(3, first, 7, 2, 3, bias=False), "norm0": nn.BatchNorm2d(first), "relu0": nn.ReLU(),
            "pool0": nn.MaxPool2d(3, 2, 1),
        }  # fmt: skip
        channels = first
        for number, layers in enumerate(blocks, start=1):
            inside = {
                f"denselayer{k + 1}": _DenseLayer(channels + k * growth, growth)
                for k in range(layers)
            }
            parts[f"denseblock{number}"] = nn.Sequential(OrderedDict(inside))
            channels += layers * growth
            if number < len(blocks):
                parts[f"transition{number}"] = _transition(channels)
                channels //= 2
        parts["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(OrderedDict(parts))
        self.classifier = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        found = functional.relu(self.features(x))
        return self.classifier(functional.adaptive_avg_pool2d(found, 1).flatten(1))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut + residual)."""
        found = functional.relu(self.bn1(self.conv1(x)))
        found = self.bn3(self.conv3(functional.relu(self.bn2(self.conv2(found)))))
        return functional.relu(found + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Bottleneck blocks in four stages, each of half the size and twice the width of the one
    before.
    """

    def __init__(
        self, n_classes: int = 1000, blocks: tuple[int, ...] = (3, 8, 36, 3), width: int = 64
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        channels = width
        for stage, count in enumerate(blocks):
            made = []
            for block in range(count):
                made.append(
                    _Bottleneck(channels, width * 2**stage, 2 if stage and not block else 1)
                )
                channels = 4 * width * 2**stage
            self.add_module(f"layer{stage + 1}", nn.Sequential(*made))
        self.n_stages = len(blocks)
        self.fc = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        found = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(self.n_stages):
            found = getattr(self, f"layer{stage + 1}")(found)
        return self.fc(functional.adaptive_avg_pool2d(found, 1).flatten(1))


NETWORKS: dict[str, Callable[..., nn.Module]] = {"densenet161": DenseNet, "resnet152": ResNet}
