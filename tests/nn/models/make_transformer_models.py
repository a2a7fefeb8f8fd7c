"""Outputs and gradients of other libraries' transformers, kept in transformer_models.npz.

    python -m tests.nn.models.make_transformer_models

It needs PyTorch and Hugging Face's transformers, the tests do not. Weights are those of
drawn_weights.py, by the names of the state dict. For each network of :func:`small`:
``name/y0``, ..., its outputs in evaluation; ``name/loss``; ``name/gradients``, for each parameter
in the order of names the gradient's length and its product with a fixed direction.
"""

from pathlib import Path

import numpy as np
import torch
import transformers as hf
from torch import nn

from tests.nn.drawn_weights import direction, drawn, images

OUT = Path(__file__).parent / "transformer_models.npz"
WORDS, CONTEXT, WIDTH, LAYERS = 40, 16, 24, 2


def tokens() -> np.ndarray:
    """Two texts of seven tokens."""
    return np.random.RandomState(1).randint(0, WORDS, (2, 7))


def mask() -> np.ndarray:
    """1 where the texts have tokens; the first has padding."""
    return np.array([[1] * 5 + [0] * 2, [1] * 7])


class Block(nn.Module):
    """A block of the vision transformer, with torchvision's names."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0), nn.Linear(hidden, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Vision(nn.Module):
    """The vision transformer (Dosovitskiy et al. 2020) by its paper, with torchvision's names."""

    def __init__(self, classes: int, image: int, patch: int, width: int, hidden: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.encoder = nn.Module()
        patches = (image // patch) ** 2 + 1
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, patches, width))
        self.encoder.layers = nn.Module()
        for i in range(LAYERS):
            setattr(self.encoder.layers, f"encoder_layer_{i}", Block(width, 3, hidden))
        self.encoder.ln = nn.LayerNorm(width, 1e-6)
        self.heads = nn.Module()
        self.heads.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv_proj(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.class_token.expand(len(x), -1, -1), y], 1) + self.encoder.pos_embedding
        for block in self.encoder.layers.children():
            y = block(y)
        return self.heads.head(self.encoder.ln(y)[:, 0])


def small() -> dict:
    """Networks with a function of their outputs."""
    t, m = torch.tensor(tokens()), torch.tensor(mask())
    sizes = {"vocab_size": WORDS, "bos_token_id": None, "eos_token_id": None}
    plain = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    gpt2 = hf.GPT2Config(
        n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=3, **sizes, **plain
    )
    common = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    llama = hf.LlamaConfig(
        intermediate_size=40, num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-5,
        **common, **sizes,
    )  # fmt: skip
    bert = hf.BertConfig(
        vocab_size=WORDS, num_attention_heads=3, intermediate_size=32,
        max_position_embeddings=CONTEXT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **common,
    )  # fmt: skip

    def of_bert(net: nn.Module) -> list[torch.Tensor]:
        y = net(t, attention_mask=m, token_type_ids=(t > 20).long())
        return [y.last_hidden_state, y.pooler_output]

    pictures = torch.tensor(images(2, 3, 16, 16)).double()
    return {
        "gpt2": (hf.GPT2LMHeadModel(gpt2), lambda net: [net(t).logits]),
        "llama": (hf.LlamaForCausalLM(llama), lambda net: [net(t).logits]),
        "bert_base": (hf.BertModel(bert), of_bert),
        "vit_b_16": (Vision(10, 16, 8, WIDTH, 32), lambda net: [net(pictures)]),
    }


def case(name: str, net: nn.Module, outputs_of, kept: dict) -> None:
    """Keep outputs and gradients, computed in float64."""
    state = {k: v for k, v in net.state_dict().items() if v.is_floating_point()}
    new = {k: torch.tensor(drawn(k, tuple(v.shape))) for k, v in state.items()}
    net.load_state_dict(new, strict=False)
    outputs = outputs_of(net.double().eval())
    for i, y in enumerate(outputs):
        kept[f"{name}/y{i}"] = y.detach().numpy().astype("float32")
    loss = sum((y * torch.tensor(direction(f"y{i}", y.shape))).sum() for i, y in enumerate(outputs))
    loss.backward()
    kept[f"{name}/loss"] = np.float64(loss.item())
    rows = []
    for k, p in sorted(net.named_parameters()):
        g = p.grad.numpy()
        rows.append((np.linalg.norm(g), (g * direction(k, g.shape)).sum()))
    kept[f"{name}/gradients"] = np.array(rows)


if __name__ == "__main__":
    found: dict = {}
    for key, (model, outputs) in small().items():
        case(key, model, outputs, found)
    np.savez_compressed(OUT, **found)
    print(f"{OUT.stat().st_size} bytes, {len(found)} arrays")
