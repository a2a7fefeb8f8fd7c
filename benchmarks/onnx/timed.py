"""Exports networks of the sizes that people use, with random weights and an open batch, as ONNX.

python benchmarks/onnx/timed.py FOLDER [NAME ...] [--dtype float16]

where torch, torchvision, timm and transformers are installed. FOLDER gets NAME.onnx, and inputs of
a batch of 1 in NAME.npz. speed.py times them. With ``--dtype`` all that is float32 in the file is
of that type; images in NAME.npz stay float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

TOKENS = 128
Network = tuple[nn.Module, tuple[torch.Tensor, ...]]


def of_torchvision(name: str) -> Callable[[], Network]:
    def make() -> Network:
        import torchvision.models as models

        return getattr(models, name)(weights=None), (torch.randn(1, 3, 224, 224),)

    return make


def of_timm(name: str) -> Callable[[], Network]:
    def make() -> Network:
        import timm

        return timm.create_model(name, pretrained=False), (torch.randn(1, 3, 224, 224),)

    return make


class _Named(nn.Module):
    """A network of transformers with inputs in order and its first output."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner, self.names = inner, names

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.inner(**dict(zip(self.names, args)), return_dict=False)[0]


def _tokens(words: int) -> torch.Tensor:
    return torch.randint(3, words, (1, TOKENS))


_MASKED = ("input_ids", "attention_mask")


def _masked() -> tuple[torch.Tensor, ...]:
    return _tokens(8000), torch.ones(1, TOKENS, dtype=torch.int64)


def bert() -> Network:
    """Six layers of the size of BERT base (DistilBERT's), with a mask."""
    import transformers as t

    config = t.BertConfig(vocab_size=8000, num_hidden_layers=6)
    config._attn_implementation = "eager"
    return _Named(t.BertModel(config), _MASKED), _masked()


def gpt2() -> Network:
    """Six layers of the size of GPT-2 small, with scores of 8000 words."""
    import transformers as t

    config = t.GPT2Config(vocab_size=8000, n_layer=6, use_cache=False)
    config._attn_implementation = "eager"
    return _Named(t.GPT2LMHeadModel(config), _MASKED), _masked()


def llama() -> Network:
    """Eight layers of 512 features, heads in groups, gated feed-forward networks."""
    import transformers as t

    config = t.LlamaConfig(
        vocab_size=8000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return _Named(t.LlamaForCausalLM(config), _MASKED), _masked()


class _Tagger(nn.Module):
    """Words, two bidirectional recurrent layers, classes."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words = nn.Embedding(8000, 256)
        self.net = kind(256, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.net(self.words(x))[0])


NETWORKS: dict[str, Callable[[], Network]] = {
    **{n: of_torchvision(n) for n in (
        "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0",
        "densenet121", "regnet_y_400mf", "shufflenet_v2_x1_0", "squeezenet1_1", "convnext_tiny",
        "vit_b_32", "swin_t")},
    **{n: of_timm(n) for n in ("deit_tiny_patch16_224", "ghostnet_100", "mixer_s32_224")},
    "bert_6": bert, "gpt2_6": gpt2, "llama_8": llama,
    "lstm": lambda: (_Tagger(nn.LSTM), (_tokens(8000),)),
    "gru": lambda: (_Tagger(nn.GRU), (_tokens(8000),)),
}  # fmt: skip


def network(name: str) -> Network:
    """A network by name, ready for inference, and its inputs; equal in every process."""
    torch.manual_seed(0)
    net, args = NETWORKS[name]()
    for p in net.parameters():
        if p.ndim > 1 and not p.any():  # a head of zeros, whose result says nothing
            nn.init.normal_(p, std=0.02)
    return net.eval(), args


def export(folder: Path, name: str, dtype: str = "float32") -> None:
    torch.backends.mha.set_fastpath_enabled(False)  # its op has no form in ONNX
    net, wide = network(name)
    kind = getattr(torch, dtype)
    net, args = net.to(kind), tuple(a.to(kind) if a.is_floating_point() else a for a in wide)
    names = [f"i{k}" for k in range(len(args))]
    options: dict[str, Any] = {"opset_version": 18, "dynamo": False, "input_names": names}
    with torch.no_grad():
        torch.onnx.export(
            net, args, str(folder / f"{name}.onnx"),
            dynamic_axes={n: {0: "batch"} for n in names}, **options,
        )  # fmt: skip
    arrays = {n: a.numpy() for n, a in zip(names, wide)}
    np.savez(folder / f"{name}.npz", **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        export(args.folder, name, args.dtype)
        print(name, flush=True)


if __name__ == "__main__":
    main()
