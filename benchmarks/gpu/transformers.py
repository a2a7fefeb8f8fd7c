"""Networks on a GPU beside Hugging Face's and torchvision's, with the same weights, in bfloat16.

    python -m benchmarks.gpu.transformers [CASE ...] [--peers compile,eager] [--profile] [--small]

Training is a step of AdamW with float32 parameters (``amp=bf16``, ``torch.autocast``), inference
has parameters in bfloat16. Each line has milliseconds, tokens or images a second, the rate of the
products' FLOPs, peak memory, and the loss of the first steps, or the error of the result relative
to PyTorch's eager one. ``--profile`` adds the kernels of a step, ``--small`` checks the programs on
small networks, also without a GPU. The peer ``graph`` is the compiled step of training as
one CUDA graph, captured by hand; ``jax`` is a program of JAX (GPT-2, BERT, ViT and Llama), see
``transformers_jax.py``. Processes with the same ``--lock`` may run side by side: they compile at
once, and are timed in turn.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.device import Device, facts, set_flags

__all__ = ["CASES", "Case", "alone", "main"]

RATE = 1e-4
STEPS_COMPARED = 3


class Case(NamedTuple):
    """A network, what is done with it, the batch, and tokens of a text (or 0: images)."""

    net: str
    mode: str
    batch: int
    length: int

    @property
    def id(self) -> str:
        """The case's name."""
        text = f"x{self.length}" if self.length else ""
        return f"{self.net}/{self.mode}/b{self.batch}{text}"


CASES = [
    Case("gpt2", "train", 8, 1024), Case("gpt2", "infer", 1, 1024), Case("bert", "infer", 32, 128),
    Case("bert", "train", 32, 128), Case("vit", "infer", 64, 0), Case("vit", "train", 64, 0),
    Case("llama", "train", 1, 4096), Case("convnext", "infer", 64, 0),
    Case("convnext", "train", 64, 0), Case("mobilenet", "infer", 64, 0),
    Case("mobilenet", "train", 64, 0), Case("t5", "train", 16, 512),
    Case("t5", "infer", 16, 512), Case("unet", "train", 32, 0), Case("unet", "infer", 32, 0),
]  # fmt: skip

#: Pixels of a side of the images, where they are not 224.
_PIXELS = {"unet": 64}
#: Networks of convolutions, whose peers run with channels last.
_CONVOLUTIONAL = ("convnext", "mobilenet", "unet")

#: Networks as keywords of ``nn.models``; the second of each pair is for ``--small``.
_SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt2": ({"dropout": 0.0}, {"words": 99, "width": 64, "layers": 2, "heads": 2, "dropout": 0.0}),
    "bert": ({"dropout": 0.0}, {"words": 99, "width": 64, "layers": 2, "heads": 2, "dropout": 0.0}),
    "vit": ({}, {"layers": 1}),
    "convnext": ({"depth_dropout": 0.0}, {"depth_dropout": 0.0}),
    "mobilenet": ({"dropout": 0.0}, {"dropout": 0.0}),
    "llama": ({}, {"words": 99, "width": 64, "layers": 2, "heads": 4, "groups": 2, "hidden": 96}),
    "t5": ({}, {"words": 99, "width": 64, "layers": 2, "heads": 2, "hidden": 96}),
    "unet": ({}, {"width": 16}),
}


def batches(case: Case, words: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of inputs and labels, drawn with a fixed seed."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(count):
        if case.length:
            x = rng.integers(0, words, (case.batch, case.length + 1))
            found.append((x[:, :-1].copy(), x[:, 1:].copy()))
        else:
            x = rng.standard_normal(images(case), np.float32)
            noise = rng.standard_normal(images(case), np.float32) if case.net == "unet" else None
            found.append((x, rng.integers(0, 1000, (case.batch,)) if noise is None else noise))
    return found


def images(case: Case) -> tuple[int, ...]:
    """The shape of a batch of images."""
    side = _PIXELS.get(case.net, 224)
    return case.batch, 3, side, side


# -- symdnn ---------------------------------------------------------------------------------------


def symdnn_net(case: Case, small: bool) -> Any:
    """The network, with weights of a fixed seed."""
    from benchmarks.gpu import transformer_nets as own_nets
    from symdnn import nn

    nn.init.seed(3)
    make: dict[str, Any] = {
        "gpt2": nn.models.gpt2, "bert": nn.models.bert_base, "vit": nn.models.vit_b_16,
        "llama": nn.models.llama, "convnext": nn.models.convnext_tiny,
        "mobilenet": nn.models.mobilenet_v2, "t5": own_nets.T5, "unet": own_nets.DiffusionUNet,
    }  # fmt: skip
    net = make[case.net](**_SIZES[case.net][small])
    if case.net == "vit":
        head = net.heads.head.weight
        drawn = np.random.default_rng(4).normal(0, 0.02, head.type.shape)
        head.set_value(drawn.astype(np.float32))
    if case.mode == "infer":
        return net.evaluate().astype("bfloat16")
    return net.train()


def symdnn_function(case: Case, net: Any) -> Any:
    """(inputs, labels) -> loss, with an update; or inputs -> the result."""
    import symdnn
    import symdnn.tensor as T
    from symdnn import nn

    shape = (case.batch, case.length) if case.length else images(case)
    dtype = "int64" if case.length else "float32" if case.mode == "train" else "bfloat16"
    x = T.tensor(dtype, shape, name="x")
    y = net(x)
    if case.net == "bert":
        y = y[0]
        if case.mode == "train":
            y = T.dot(y, net.embeddings.word_embeddings.weight.T)
    if case.mode == "infer":
        return symdnn.function([symdnn.In(x, borrow=True)], symdnn.Out(y, borrow=True))
    if case.net == "unet":
        labels = T.tensor("float32", shape, name="noise")
        loss = T.sqr(y - labels).mean()
    else:
        labels = T.tensor("int64", shape if case.length else shape[:1], name="labels")
        loss = nn.CrossEntropyCriterion()(y.reshape((-1, y.shape[y.ndim - 1])), labels.flatten())
    updates = nn.optim.adamw(loss, net, lr=RATE)
    inputs = [symdnn.In(x, borrow=True), symdnn.In(labels, borrow=True)]
    return symdnn.function(inputs, symdnn.Out(loss, borrow=True), updates=updates)


def _held_bytes(f: Any, device: Device) -> int:
    """What the allocator has given out, as ``torch.cuda.max_memory_allocated`` counts."""
    use = f.device_memory() if device.on_gpu else None
    return use.arena + use.live if use else 0


def run_symdnn(case: Case, net: Any, given: Any, device: Device, options: Any) -> dict[str, Any]:
    """Time, memory, and what the first calls gave."""
    before = device.used_bytes()
    begin = time.perf_counter()
    f = symdnn_function(case, net)
    held = _held_bytes(f, device)
    train = case.mode == "train"
    dtype = None if case.length or train else net.parameters()[0].get_value().dtype
    calls = [
        (device.put(x if dtype is None else x.astype(dtype)), *([device.put(y)] if train else []))
        for x, y in given
    ]
    compiled = time.perf_counter() - begin
    first = [device.get(f(*calls[0])) for _ in range(STEPS_COMPARED if train else 1)]
    record = {"compile_s": round(compiled, 2), "first_s": round(time.perf_counter() - begin, 2)}
    print("compiled", flush=True)
    with alone(options.lock):
        ms = float(device.time(_rotating(f, calls))["ms"])
    record |= {
        "ms": ms, "first": first, "memory_gb": (_held_bytes(f, device) - held) / 1e9,
        "driver_gb": (device.used_bytes() - before) / 1e9,
    }  # fmt: skip
    if options.profile and device.on_gpu:
        from benchmarks.gpu import profile_case as profiles

        step = _rotating(f, calls)
        print(profiles.show(case.id, profiles.measure(step, device.sync, 8), options.top))
        ops = profiles.by_op(f, step, device.sync, 2, True)
        total = sum(us for _, us in ops.values()) / 1e3
        print(profiles.show("by op, uncaptured", (0.0, total, ops), options.top), flush=True)
    return record


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Wait until no other process holds the file's lock, and hold it."""
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _rotating(f: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Callable[[], Any]:
    at = [0]

    def call() -> Any:
        at[0] = (at[0] + 1) % len(calls)
        return f(*calls[at[0]])

    return call


# -- Hugging Face on PyTorch ----------------------------------------------------------------------


def torch_net(case: Case, state: dict[str, np.ndarray], small: bool, device: str) -> Any:
    """The same network with the weights ``state``, float32."""
    import torch

    sizes = _SIZES[case.net][small]
    net = _torch_models()[case.net](sizes)
    own = {k: torch.from_numpy(np.asarray(v, np.float32)) for k, v in state.items()}
    missing, unknown = net.load_state_dict(own, strict=False)
    known = (
        "lm_head.weight", "position_ids", "attn.bias", "inv_freq", "masked_bias",
        "embed_tokens.weight",
    )  # fmt: skip
    if unknown or any(not k.endswith(known) for k in missing):
        raise ValueError(f"{case.net}: no weights for {missing}, no place for {unknown}")
    if case.length:
        net.tie_weights()
    return net.to(device)


def _torch_models() -> dict[str, Callable[[dict[str, Any]], Any]]:
    import transformers

    def gpt2(own: dict[str, Any]) -> Any:
        config = transformers.GPT2Config(
            vocab_size=own.get("words", 50257), n_embd=own.get("width", 768),
            n_layer=own.get("layers", 12), n_head=own.get("heads", 12),
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)

    def bert(own: dict[str, Any]) -> Any:
        config = transformers.BertConfig(
            vocab_size=own.get("words", 30522), hidden_size=own.get("width", 768),
            num_hidden_layers=own.get("layers", 12), num_attention_heads=own.get("heads", 12),
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return transformers.BertModel(config)

    def llama(own: dict[str, Any]) -> Any:
        config = transformers.LlamaConfig(
            vocab_size=own.get("words", 32000), hidden_size=own.get("width", 2048),
            num_hidden_layers=own.get("layers", 22), num_attention_heads=own.get("heads", 32),
            num_key_value_heads=own.get("groups", 4), intermediate_size=own.get("hidden", 5632),
            rms_norm_eps=1e-5, max_position_embeddings=4096, use_cache=False,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config)

    def vit(own: dict[str, Any]) -> Any:
        from torchvision.models.vision_transformer import VisionTransformer

        return VisionTransformer(224, 16, own.get("layers", 12), 12, 768, 3072)

    def convnext(own: dict[str, Any]) -> Any:
        import torchvision

        return torchvision.models.convnext_tiny(stochastic_depth_prob=0.0)

    def mobilenet(own: dict[str, Any]) -> Any:
        import torchvision

        return torchvision.models.mobilenet_v2(dropout=0.0)

    def t5(own: dict[str, Any]) -> Any:
        width, heads = own.get("width", 512), own.get("heads", 8)
        config = transformers.T5Config(
            vocab_size=own.get("words", 32128), d_model=width, d_kv=width // heads,
            d_ff=own.get("hidden", 2048), num_layers=own.get("layers", 6), num_heads=heads,
            dropout_rate=0.0, use_cache=False,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(config)

    def unet(own: dict[str, Any]) -> Any:
        from benchmarks.gpu.transformer_nets import torch_unet

        return torch_unet(**own)

    return {
        "gpt2": gpt2, "bert": bert, "llama": llama, "vit": vit, "convnext": convnext,
        "mobilenet": mobilenet, "t5": t5, "unet": unet,
    }  # fmt: skip


def torch_step(case: Case, net: Any, how: str) -> Callable[..., Any]:
    """(inputs, labels) -> loss, or inputs -> the result."""
    import torch
    import torch.nn.functional as F

    def result(x: Any) -> Any:
        y = net(input_ids=x, decoder_input_ids=x) if case.net == "t5" else net(x)
        if not case.length:
            return y
        y = y.logits if hasattr(y, "logits") else y.last_hidden_state
        if case.net == "bert" and case.mode == "train":
            y = y @ net.embeddings.word_embeddings.weight.T
        return y

    if case.mode == "infer":
        net.eval().to(torch.bfloat16)
        run = torch.compile(result, mode="reduce-overhead") if how == "compile" else result

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def infer(x: Any) -> Any:
            return run(x)

        return infer

    net.train()
    kind = next(net.parameters()).device.type

    def loss_of(x: Any, labels: Any) -> Any:
        with torch.autocast(kind, torch.bfloat16):
            y = result(x)
            if case.net == "unet":
                return F.mse_loss(y.float(), labels)
            return F.cross_entropy(y.reshape(-1, y.shape[-1]), labels.reshape(-1))

    run = loss_of if how == "eager" else torch.compile(loss_of)
    on_gpu = kind == "cuda"
    optimiser = torch.optim.AdamW(net.parameters(), lr=RATE, fused=on_gpu, capturable=on_gpu)

    def step(x: Any, labels: Any) -> Any:
        loss = run(x, labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    return _captured(step) if how == "graph" and on_gpu else step


def _captured(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step as one graph, to which inputs are copied; the first calls are those before it."""
    import torch

    side, calls = torch.cuda.Stream(), [0]
    graph = torch.cuda.CUDAGraph()
    held: list[Any] = []

    def call(*inputs: Any) -> Any:
        calls[0] += 1
        if calls[0] <= STEPS_COMPARED:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = step(*inputs).clone()
            torch.cuda.current_stream().wait_stream(side)
            return loss
        if not held:
            held.extend(x.clone() for x in inputs)
            with torch.cuda.graph(graph):
                held.append(step(*held))
        for own, given in zip(held, inputs):
            own.copy_(given)
        graph.replay()
        return held[-1]

    return call


def run_torch(
    case: Case, state: dict[str, np.ndarray], given: Any, device: Device, how: str, options: Any
) -> dict[str, Any]:
    """As :func:`run_symdnn`."""
    import torch

    torch.set_float32_matmul_precision("high")
    place = "cuda" if device.on_gpu else "cpu"
    if device.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device.on_gpu else 0
    used = device.used_bytes()
    net = torch_net(case, state, options.small, place)
    if case.net in _CONVOLUTIONAL:
        net = net.to(memory_format=torch.channels_last)
    begin = time.perf_counter()
    step = torch_step(case, net, how)
    train = case.mode == "train"
    kind = torch.bfloat16 if not case.length and not train else None
    calls = [
        (
            _put(torch.from_numpy(x).to(place, kind), case),
            *([torch.from_numpy(y).to(place)] if train else []),
        )
        for x, y in given
    ]
    first = [
        step(*calls[0]).float().cpu().numpy().astype(np.float64)
        for _ in range(STEPS_COMPARED if train else 1)
    ]
    record: dict[str, Any] = {"first_s": round(time.perf_counter() - begin, 2), "first": first}
    print("compiled", flush=True)
    with alone(options.lock):
        record["ms"] = float(device.time(_rotating(step, calls))["ms"])
    if device.on_gpu:
        record["memory_gb"] = (torch.cuda.max_memory_allocated() - before) / 1e9
        record["driver_gb"] = (device.used_bytes() - used) / 1e9
    return record


def run_peer(
    case: Case, state: dict[str, np.ndarray], given: Any, device: Device, how: str, options: Any
) -> dict[str, Any]:
    """As :func:`run_symdnn`."""
    if how != "jax":
        return run_torch(case, state, given, device, how, options)
    from benchmarks.gpu.transformers_jax import run_jax

    own, usual = _SIZES[case.net][options.small], 32 if case.net == "llama" else 12
    heads = own.get("heads", usual), own.get("groups", 4)
    with alone(options.lock):  # XLA chooses by times, too
        return run_jax(case, state, given, heads, options, STEPS_COMPARED, RATE)


def _put(x: Any, case: Case) -> Any:
    import torch

    return x.to(memory_format=torch.channels_last) if case.net in _CONVOLUTIONAL else x


# -- together -------------------------------------------------------------------------------------


#: Of an image of 224 x 224, as published: Liu et al. 2022, Sandler et al. 2018.
_IMAGE_FLOPS = {"convnext": 2 * 4.5e9, "mobilenet": 2 * 0.3e9}

#: Parts of the U-Net that compute at the size of the images, others at half of it.
_FULL_SIZE = ("enter", "down1", "up1", "after", "leave")


def flops(case: Case, net: Any) -> float:
    """Of the products in a step: 2 for each weight and token, and those of attention."""
    if case.net in _IMAGE_FLOPS:
        return _IMAGE_FLOPS[case.net] * case.batch * (3 if case.mode == "train" else 1)
    named = net.named_parameters()
    if case.net == "unet":
        work = sum(
            2 * int(np.prod(v.type.shape)) * (4096 if k.startswith(_FULL_SIZE) else 1024)
            for k, v in named.items() if v.type.ndim == 4
        )  # fmt: skip
        looks = 3 * 4 * 1024**2 * 256
        return float((work + looks) * case.batch * (3 if case.mode == "train" else 1))
    positions = case.batch * (case.length or 197)
    tables = ("wte", "wpe", "embed", "pos_embedding")
    weights = sum(
        int(np.prod(v.type.shape)) for k, v in named.items()
        if v.type.ndim >= 2 and not any(t in k for t in tables)
    )  # fmt: skip
    if case.net == "gpt2" or (case.net, case.mode) == ("bert", "train"):
        weights += next(int(np.prod(v.type.shape)) for k, v in named.items() if "w" in k)
    width, layers = {"llama": (2048, 22), "t5": (512, 18)}.get(case.net, (768, 12))
    seen = (case.length or 197) / (2 if case.net in ("gpt2", "llama") else 1)
    forward = positions * (2 * weights + 4 * seen * width * layers)
    return forward * (3 if case.mode == "train" else 1)


def _line(case: Case, who: str, r: dict[str, Any], work: float, best: Any) -> str:
    if "error" in r:
        return f"{case.id:20} {who:8} {r['error']}"
    units = case.batch * (case.length or 1)
    if case.mode == "train":
        shown = " ".join(f"{float(v):.4f}" for v in r["first"])
    else:
        gap = np.linalg.norm(r["first"][0] - best) / np.linalg.norm(best) if best is not None else 0
        shown = f"{gap:.1e}"
    return (
        f"{case.id:20} {who:8} {r['ms']:9.3f} ms {units / r['ms'] * 1e3:10.0f}/s "
        f"{work / r['ms'] / 1e9:6.0f} TFLOP/s {r.get('memory_gb', 0):6.2f} GB "
        f"first {r['first_s']:5.1f} s  {shown}"
    )


def measure(case: Case, device: Device, options: Any) -> list[dict[str, Any]]:
    """The records of symdnn and of the peers, printed as they come."""
    net = symdnn_net(case, options.small)
    state = net.state_dict()
    words = next(iter(net.named_parameters().values())).type.shape[0]
    given = batches(case, words if case.length else 0, 3)
    if case.length:
        given = [(x.astype(np.int64), y.astype(np.int64)) for x, y in given]
    work = flops(case, net)
    found: dict[str, dict[str, Any]] = {}
    peers = [p for p in options.peers.split(",") if p]
    runs: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        (p, lambda p=p: run_peer(case, state, given, device, p, options))  # type: ignore[misc]
        for p in reversed(peers)
    ]
    if not options.no_symdnn:
        runs.append(("symdnn", lambda: run_symdnn(case, net, given, device, options)))
    best = None
    for who, run in runs:
        try:
            found[who] = run()
        except Exception as error:  # one case must not hide the others
            found[who] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        r = found[who]
        if best is None and who != "symdnn" and "first" in r:
            best = r["first"][0]
        print(_line(case, who, r, work, best), flush=True)
        device.cleanup()
    keep = ("ms", "memory_gb", "peak_gb", "first_s", "compile_s", "error")
    return [
        {"case": case.id, "who": who, "tflops": work / r["ms"] / 1e9 if "ms" in r else None}
        | {k: r[k] for k in keep if k in r}
        | ({"losses": [float(v) for v in r["first"]]} if case.mode == "train" and "ms" in r else {})
        for who, r in found.items()
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="parts of names; all if none")
    parser.add_argument("--peers", default="compile,eager", help="of PyTorch, graph, or jax")
    parser.add_argument("--no-symdnn", action="store_true")
    parser.add_argument("--profile", action="store_true", help="the kernels of a step")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--small", action="store_true", help="small networks, to check it")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--lock", type=Path, help="a file that is locked while a step is timed")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to add to")
    options = parser.parse_args()
    own = os.environ.get("SYMDNN_FLAGS", "")
    os.environ["SYMDNN_FLAGS"] = ",".join(g for g in ("amp=bf16", own) if g)
    set_flags(not options.cpu)
    device = Device(not options.cpu, 0.01 if options.small else 0.6)
    with alone(options.lock):
        about = facts(device)
    device.cleanup()
    print(json.dumps(about))
    for case in CASES:
        if options.cases and not any(part in case.id for part in options.cases):
            continue
        one = case._replace(batch=2, length=min(case.length, 32)) if options.small else case
        records = measure(one, device, options)
        if options.out:
            with options.out.open("a") as file:
                file.writelines(json.dumps({**r, "facts": about}) + "\n" for r in records)


if __name__ == "__main__":
    main()
