"""The paper's networks for 32 × 32 images: DenseNet-40, ResNet-110 with and without stochastic
depth, WideResNet-32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


def _convolution(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut without parameters (He et al. 2016, option A).

    With `survival` below one the two convolutions are left out of a whole mini-batch with that
    probability while training, and weighed by it afterwards (Huang et al. 2016, stochastic depth).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, survival: float = 1.0) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.second, self.second_norm = _convolution(outputs, outputs), nn.BatchNorm2d(outputs)
        self.stride, self.more, self.survival = stride, outputs - inputs, survival

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut + residual)."""
        shortcut = x[:, :, :: self.stride, :: self.stride] if self.stride > 1 else x
        if self.more:
            shortcut = functional.pad(
                shortcut, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2)
            )
        if self.training and self.survival < 1.0 and torch.rand(()).item() >= self.survival:
            return torch.relu(shortcut)
        residual = torch.relu(self.first_norm(self.first(x)))
        residual = self.second_norm(self.second(residual))
        if not self.training and self.survival < 1.0:
            residual = self.survival * residual
        return torch.relu(shortcut + residual)


class ResNet(nn.Module):
    """6n + 2 layers in three stages of 16, 32 and 64 channels; n = 18 gives ResNet-110 (He et al.
    2016).

    `last_survival` below one is stochastic depth with linear decay from 1 to it.
    """

    def __init__(self, n_classes: int, n: int = 18, last_survival: float = 1.0) -> None:
        super().__init__()
        self.stem, self.norm = _convolution(3, 16), nn.BatchNorm2d(16)
        blocks, inputs = [], 16
        for stage, outputs in enumerate((16, 32, 64)):
            for i in range(n):
                survival = 1.0 - (len(blocks) + 1) / (3 * n) * (1.0 - last_survival)
                blocks.append(BasicBlock(inputs, outputs, 2 if stage and not i else 1, survival))
                inputs = outputs
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(64, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


class WideBlock(nn.Module):
    """Norm, relu, convolution, twice, beside a shortcut (Zagoruyko & Komodakis 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.BatchNorm2d(inputs), _convolution(inputs, outputs, stride)
        self.second_norm, self.second = nn.BatchNorm2d(outputs), _convolution(outputs, outputs)
        self.shortcut = (
            _convolution(inputs, outputs, stride, size=1)
            if inputs != outputs or stride > 1
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shortcut + residual."""
        ready = torch.relu(self.first_norm(x))
        shortcut = x if self.shortcut is None else self.shortcut(ready)
        return shortcut + self.second(torch.relu(self.second_norm(self.first(ready))))


class WideResNet(nn.Module):
    """6n + 2 layers, `width` times as many channels as a ResNet; n = 5 gives WideResNet-32."""

    def __init__(self, n_classes: int, n: int = 5, width: int = 10) -> None:
        super().__init__()
        self.stem = _convolution(3, 16)
        blocks, inputs = [], 16
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for i in range(n):
                blocks.append(WideBlock(inputs, outputs, 2 if stage and not i else 1))
                inputs = outputs
        self.blocks, self.norm = nn.Sequential(*blocks), nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = torch.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


class DenseLayer(nn.Module):
    """Norm, relu, convolution; the output is put beside the input (Huang et al. 2017)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.convolution = nn.BatchNorm2d(inputs), _convolution(inputs, growth)

    def forward(self, x: Tensor) -> Tensor:
        """Input and new features."""
        return torch.cat([x, self.convolution(torch.relu(self.norm(x)))], dim=1)


class Transition(nn.Module):
    """Norm, relu, 1 × 1 convolution, then the mean of 2 × 2 pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.convolution = (
            nn.BatchNorm2d(channels),
            _convolution(channels, channels, size=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Half the size, as many channels."""
        return functional.avg_pool2d(self.convolution(torch.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """Three dense blocks; 12 layers each and a growth of 12 give DenseNet-40, without bottleneck or
    compression.
    """

    def __init__(self, n_classes: int, layers: int = 12, growth: int = 12) -> None:
        super().__init__()
        channels = 16
        parts: list[nn.Module] = [_convolution(3, channels)]
        for block in range(3):
            if block:
                parts.append(Transition(channels))
            for _ in range(layers):
                parts.append(DenseLayer(channels, growth))
                channels += growth
        self.features, self.norm = nn.Sequential(*parts), nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(torch.relu(self.norm(self.features(x))).mean(dim=(2, 3)))


#: Name -> the network for so many classes.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "densenet40": DenseNet,
    "resnet110": ResNet,
    "resnet110sd": lambda n_classes: ResNet(n_classes, last_survival=0.5),
    "wrn32": WideResNet,
}


def made(name: str, n_classes: int) -> nn.Module:
    """The network with the customary start: He's normal for convolutions, ones and zeros for
    norms.
    """
    network = NETWORKS[name](n_classes)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return network
