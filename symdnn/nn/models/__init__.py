"""Known networks as modules, with the names and the numbers of parameters that were published.

Functions, such as ``nn.models.resnet50(classes=10)``; the names of parameters are torchvision's
or Hugging Face's where these have the network, so :func:`symdnn.nn.load_torch` takes their state
dicts unchanged.
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.nn.models.alexnet import alexnet, alexnet_grouped
from symdnn.nn.models.bert import Bert, bert_base, bert_large
from symdnn.nn.models.convnext import convnext, convnext_tiny
from symdnn.nn.models.densenet import densenet, densenet121
from symdnn.nn.models.efficientnet import efficientnet, efficientnet_b0
from symdnn.nn.models.generate import Generator, sample
from symdnn.nn.models.googlenet import GoogLeNet, googlenet
from symdnn.nn.models.gpt2 import GPT2, gpt2, gpt2_large, gpt2_medium, gpt2_xl
from symdnn.nn.models.lenet import lenet, lenet5
from symdnn.nn.models.llama import Llama, llama, llama2_7b, tinyllama
from symdnn.nn.models.lstm_lm import LanguageModel, lstm_lm
from symdnn.nn.models.mobilenet import mobilenet_v2, mobilenet_v3_large, mobilenet_v3_small
from symdnn.nn.models.resnet import ResNet, resnet18, resnet34, resnet50, resnet101, resnet152
from symdnn.nn.models.unet import UNet, unet
from symdnn.nn.models.vgg import vgg16, vgg19
from symdnn.nn.models.vit import VisionTransformer, vit_b_16

__all__ = [
    "Bert", "GPT2", "Generator", "GoogLeNet", "LanguageModel", "Llama", "ResNet", "UNet",
    "VisionTransformer", "alexnet", "alexnet_grouped", "bert_base", "bert_large", "convnext",
    "convnext_tiny", "densenet", "densenet121", "efficientnet", "efficientnet_b0", "googlenet",
    "gpt2", "gpt2_large", "gpt2_medium", "gpt2_xl", "lenet", "lenet5", "llama", "llama2_7b",
    "lstm_lm", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "resnet101",
    "resnet152", "resnet18", "resnet34", "resnet50", "sample", "tinyllama", "unet", "vgg16",
    "vgg19", "vit_b_16",
]  # fmt: skip

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "MODELS")
