"""Known networks as modules, with the names and the numbers of parameters that were published.

Functions, such as ``nn.models.resnet50(classes=10)``; the names of parameters are torchvision's
where it has the network, so :func:`symdnn.nn.load_torch` takes its state dicts unchanged.
"""

from symdnn.nn.models.alexnet import alexnet, alexnet_grouped
from symdnn.nn.models.densenet import densenet, densenet121
from symdnn.nn.models.googlenet import GoogLeNet, googlenet
from symdnn.nn.models.lenet import lenet, lenet5
from symdnn.nn.models.lstm_lm import LanguageModel, lstm_lm
from symdnn.nn.models.resnet import ResNet, resnet18, resnet34, resnet50, resnet101, resnet152
from symdnn.nn.models.unet import UNet, unet
from symdnn.nn.models.vgg import vgg16, vgg19

__all__ = [
    "GoogLeNet", "LanguageModel", "ResNet", "UNet", "alexnet", "alexnet_grouped", "densenet",
    "densenet121", "googlenet", "lenet", "lenet5", "lstm_lm", "resnet101", "resnet152", "resnet18",
    "resnet34", "resnet50", "unet", "vgg16", "vgg19",
]  # fmt: skip
