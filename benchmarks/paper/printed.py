"""What the paper prints in its Tables 1 and 2, to stand beside what comes out here.

Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021. Means of 40
runs; the standard errors of Table 1 are stated to be below 5e-4. A dash in the paper ("NA") is None
here.
"""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """One row of a table, by the paper's method names."""

    uncal: float
    ts: float
    ets: float
    gpc: float | None
    meta_mis: float
    meta_acc: float


#: The paper's column -> the method here that reproduces it.
REPRODUCES = {
    "uncal": "uncal", "ts": "ts", "ets": "ets", "gpc": "gpc", "meta-mis-paper": "meta_mis", "meta-acc-paper": "meta_acc"
}  # fmt: skip

#: Accuracy on the official test rows, the third column of Table 1.
ACCURACY = {
    ("CIFAR-10", "DenseNet-40"): 0.9242, ("CIFAR-10", "ResNet-110"): 0.9356,
    ("CIFAR-10", "ResNet-110 SD"): 0.9404, ("CIFAR-10", "WideResNet-32"): 0.9393,
    ("CIFAR-100", "DenseNet-40"): 0.7000, ("CIFAR-100", "ResNet-110"): 0.7148,
    ("CIFAR-100", "ResNet-110 SD"): 0.7283, ("CIFAR-100", "WideResNet-32"): 0.7382,
    ("ImageNet", "DenseNet-161"): 0.7705, ("ImageNet", "ResNet-152"): 0.7620,
}  # fmt: skip

#: Table 1: ECE.
ECE = {
    ("CIFAR-10", "DenseNet-40"): Printed(0.05105, 0.00510, 0.00567, 0.00634, 0.00434, 0.00355),
    ("CIFAR-10", "ResNet-110"): Printed(0.04475, 0.00781, 0.00809, 0.00684, 0.00391, 0.00441),
    ("CIFAR-10", "ResNet-110 SD"): Printed(0.04022, 0.00439, 0.00509, 0.00364, 0.00350, 0.00315),
    ("CIFAR-10", "WideResNet-32"): Printed(0.04396, 0.00706, 0.00712, 0.00684, 0.00485, 0.00532),
    ("CIFAR-100", "DenseNet-40"): Printed(0.21107, 0.01067, 0.01104, 0.01298, 0.01093, 0.00793),
    ("CIFAR-100", "ResNet-110"): Printed(0.18182, 0.02037, 0.02130, 0.01348, 0.01815, 0.01441),
    ("CIFAR-100", "ResNet-110 SD"): Printed(0.15496, 0.01043, 0.01057, 0.01265, 0.01109, 0.00733),
    ("CIFAR-100", "WideResNet-32"): Printed(0.18425, 0.01332, 0.01351, 0.00993, 0.01332, 0.01189),
    ("ImageNet", "DenseNet-161"): Printed(0.05531, 0.02053, 0.02064, None, 0.01388, 0.01248),
    ("ImageNet", "ResNet-152"): Printed(0.06290, 0.02023, 0.02004, None, 0.01360, 0.01138),
}

#: Table 2: seconds.
SECONDS = {
    ("CIFAR-10", "DenseNet-40"): Printed(0.004, 0.074, 0.143, 4.722, 0.102, 0.094),
    ("CIFAR-10", "ResNet-110"): Printed(0.004, 0.066, 0.050, 5.255, 0.127, 0.084),
    ("CIFAR-10", "ResNet-110 SD"): Printed(0.004, 0.075, 0.148, 5.401, 0.101, 0.090),
    ("CIFAR-10", "WideResNet-32"): Printed(0.004, 0.078, 0.133, 5.116, 0.105, 0.093),
    ("CIFAR-100", "DenseNet-40"): Printed(0.014, 0.492, 0.492, 40.218, 0.470, 0.336),
    ("CIFAR-100", "ResNet-110"): Printed(0.026, 0.426, 1.404, 42.118, 0.408, 0.299),
    ("CIFAR-100", "ResNet-110 SD"): Printed(0.015, 0.357, 0.931, 40.867, 0.421, 0.327),
    ("CIFAR-100", "WideResNet-32"): Printed(0.014, 0.431, 0.708, 44.882, 0.467, 0.353),
    ("ImageNet", "DenseNet-161"): Printed(0.304, 12.707, 99.488, None, 13.573, 9.903),
    ("ImageNet", "ResNet-152"): Printed(0.309, 15.624, 111.589, None, 12.581, 8.426),
}


def printed(
    table: dict[tuple[str, str], Printed], family: str, network: str, method: str
) -> float | None:
    """The paper's figure for a method of ours, or None where it has none.

    Examples
    --------
    >>> printed(ECE, "CIFAR-10", "DenseNet-40", "meta-mis-paper")
    0.00434
    >>> printed(ECE, "CIFAR-10", "DenseNet-40", "meta-mis") is None
    True
    """
    row = table.get((family, network))
    column = REPRODUCES.get(method)
    return None if row is None or column is None else getattr(row, column)
