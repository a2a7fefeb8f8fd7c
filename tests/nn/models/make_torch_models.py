"""Outputs and gradients of PyTorch's networks, kept in torch_models.npz.

    python -m tests.nn.models.make_torch_models

It needs PyTorch and torchvision (CPU), the tests do not. Weights and images are those of
drawn_weights.py. For each of torchvision's networks at full size ``name/state`` is a hash of the
names and shapes of its state dict. For each network of :func:`small`: ``name/y``, its output in
evaluation; ``name/loss``, the loss in training without dropout; ``name/gradients``, for each
parameter in the order of names the gradient's length and its product with a fixed direction.
"""

from pathlib import Path

import numpy as np
import torch
import torchvision.models as tv
from torch import nn

from tests.nn.drawn_weights import direction, drawn, images, names_hash

OUT = Path(__file__).parent / "torch_models.npz"
CLASSES, HIDDEN, WORDS = 10, 24, 30
kept = {}


def state_hashes() -> None:
    """Names and shapes of whole networks; nothing is computed."""
    nets = {
        n: (getattr(tv, n), {}) for n in (
            "alexnet", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn", "resnet18", "resnet34",
            "resnet50", "resnet101", "resnet152", "densenet121", "mobilenet_v2",
            "mobilenet_v3_large", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny",
        )
    }  # fmt: skip
    nets["googlenet_aux"] = (tv.googlenet, {"init_weights": False})
    nets["googlenet"] = (tv.googlenet, {"init_weights": False, "aux_logits": False})
    with torch.device("meta"):
        for name, (make, options) in nets.items():
            state = make(**options).state_dict()
            shapes = {k: v.shape for k, v in state.items() if "num_batches" not in k}
            kept[f"{name}/state"] = np.uint32(names_hash(shapes))


def narrow(net: nn.Module, inputs: int) -> nn.Module:
    """AlexNet's and VGG's head with fewer units, at the same places."""
    dense = [i for i, m in enumerate(net.classifier) if isinstance(m, nn.Linear)]
    for i, (a, b) in zip(dense, [(inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)]):
        net.classifier[i] = nn.Linear(a, b)
    return net


class Double(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        steps = []
        for a in (i, o):
            steps += [nn.Conv2d(a, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
        self.double_conv = nn.Sequential(*steps)

    def forward(self, x):
        return self.double_conv(x)


class Wrapped(nn.Module):
    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        setattr(self, name, inner)
        self.inner = (inner,)

    def forward(self, x):
        return self.inner[0](x)


class Up(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(i, i // 2, 2, 2), Double(i, i // 2)

    def forward(self, x, across):
        return self.conv(torch.cat([across, self.up(x)], 1))


class UNet(nn.Module):
    def __init__(self, w: int) -> None:
        super().__init__()
        self.inc = Double(3, w)
        for i in range(4):
            step = nn.Sequential(nn.MaxPool2d(2), Double(w << i, w << (i + 1)))
            setattr(self, f"down{i + 1}", Wrapped("maxpool_conv", step))
            setattr(self, f"up{i + 1}", Up(w << (4 - i)))
        self.outc = Wrapped("conv", nn.Conv2d(w, 2, 1))

    def forward(self, x):
        left = [self.inc(x)]
        for i in range(4):
            left.append(getattr(self, f"down{i + 1}")(left[-1]))
        x = left.pop()
        for i in range(4):
            x = getattr(self, f"up{i + 1}")(x, left.pop())
        return self.outc(x)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(WORDS, 8), nn.LSTM(8, HIDDEN, 2)
        self.decoder = nn.Linear(HIDDEN, WORDS)

    def forward(self, x):
        return self.decoder(self.rnn(self.encoder(x))[0])


def grouped() -> nn.Module:
    """The two columns of AlexNet, narrow behind the convolutions."""

    def c(i, o, k, **options):
        return [nn.Conv2d(i, o, k, **options), nn.ReLU()]

    def n():
        return [nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)]

    return nn.Sequential(
        *c(3, 96, 11, stride=4), *n(), *c(96, 256, 5, padding=2, groups=2), *n(),
        *c(256, 384, 3, padding=1), *c(384, 384, 3, padding=1, groups=2),
        *c(384, 256, 3, padding=1, groups=2), nn.MaxPool2d(3, 2),
    )  # fmt: skip


def thin_efficientnet(**options) -> nn.Module:
    """EfficientNet with a quarter of the planes."""
    kind = tv.efficientnet
    settings, last = kind._efficientnet_conf("efficientnet_b0", width_mult=0.25, depth_mult=1.0)
    return kind.EfficientNet(settings, 0.0, 0.0, last_channel=last, **options)


def thin_convnext(**options) -> nn.Module:
    """ConvNeXt of few planes and blocks."""
    sizes = ((8, 16, 1), (16, 24, 1), (24, 32, 2), (32, None, 1))
    return tv.convnext.ConvNeXt([tv.convnext.CNBlockConfig(*s) for s in sizes], **options)


def small() -> dict:
    """Networks with their input, small enough for a test."""
    options = {"num_classes": CLASSES}
    google = {**options, "init_weights": False, "dropout": 0.0, "dropout_aux": 0.0}
    x = images(4, 3, 64, 64)
    tokens = np.random.RandomState(1).randint(0, WORDS, (5, 3))
    return {
        "alexnet": (narrow(tv.alexnet(dropout=0.0, **options), 9216), x),
        "alexnet_grouped": (grouped(), images(2, 3, 99, 99)),
        "vgg16": (narrow(tv.vgg16(dropout=0.0, **options), 25088), images(2, 3, 32, 32)),
        "vgg19_bn": (narrow(tv.vgg19_bn(dropout=0.0, **options), 25088), images(4, 3, 32, 32)),
        # With 64x64 the last maps are 2x2: all windows have one maximum, and what follows has ties,
        # whose gradient PyTorch gives to the first element, symdnn to each.
        "googlenet": (tv.googlenet(**google), images(2, 3, 96, 96)),
        "resnet18": (tv.resnet18(**options), x),
        "resnet50": (tv.resnet50(**options), x),
        "densenet121": (tv.densenet121(**options), x),
        "mobilenet_v2": (tv.mobilenet_v2(width_mult=0.25, dropout=0.0, **options), x),
        "mobilenet_v3_large": (tv.mobilenet_v3_large(width_mult=0.25, dropout=0.0, **options), x),
        "mobilenet_v3_small": (tv.mobilenet_v3_small(width_mult=0.25, dropout=0.0, **options), x),
        "efficientnet_b0": (thin_efficientnet(**options), x),
        "convnext_tiny": (thin_convnext(**options), x),
        "unet": (UNet(4), images(2, 3, 32, 32)),
        "lstm_lm": (Words(), tokens),
    }


def loss_of(outputs) -> torch.Tensor:
    """The sum of the outputs times fixed numbers, that of all heads."""
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum((y * torch.tensor(direction(f"y{i}", y.shape))).sum() for i, y in enumerate(found))


def case(name: str, net: nn.Module, x: np.ndarray) -> None:
    """Keep outputs and gradients, computed in float64."""
    state = net.state_dict()
    new = {k: torch.tensor(drawn(k, v.shape)) for k, v in state.items() if "num_b" not in k}
    net.load_state_dict({**state, **new})
    net.double()
    given = torch.tensor(x) if x.dtype.kind == "i" else torch.tensor(x).double()
    with torch.no_grad():
        kept[f"{name}/y"] = net.eval()(given).numpy().astype("float32")
    loss = loss_of(net.train()(given))
    loss.backward()
    kept[f"{name}/loss"] = np.float64(loss.item())
    rows = []
    for k, p in sorted(net.named_parameters()):
        g = p.grad.numpy()
        rows.append((np.linalg.norm(g), (g * direction(k, g.shape)).sum()))
    kept[f"{name}/gradients"] = np.array(rows)
    moved = dict(net.named_buffers())
    rows = [v.numpy().sum() for k, v in sorted(moved.items()) if "num_b" not in k]
    kept[f"{name}/statistics"] = np.array(rows)


if __name__ == "__main__":
    state_hashes()
    for key, (model, value) in small().items():
        case(key, model, value)
    np.savez_compressed(OUT, **kept)
    print(f"{OUT.stat().st_size} bytes, {len(kept)} arrays")
