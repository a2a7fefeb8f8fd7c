"""Tokens a second of GPT-2 that continues texts, beside Hugging Face's with a static cache.

    python -m benchmarks.gpu.decoding [--batches 1,32] [--peers compile,eager] [--small] [--cpu]

Both have the same weights in bfloat16, a prompt of 128 tokens, room for 1024, and take the
likeliest token. The peer's step is compiled by ``torch.compile(mode="reduce-overhead")``. Each
line has milliseconds of a step, tokens a second, the share of the step in which the weights could
be copied, the most memory that the allocator had given out, the prompt's included, and how many
tokens of the first text agree with the first peer's (argmax turns ties by rounding).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.device import Device, facts, set_flags
from benchmarks.gpu.transformers import Case, alone, symdnn_net, torch_net

__all__ = ["main"]

PROMPT, ROOM, STEPS = 128, 1024, 256


def live_bytes(device: Device) -> int:
    """What symdnn holds beside its arena."""
    return int(device.runtime.memory_use().live) if device.on_gpu else 0


def timed(
    generate: Callable[[int], np.ndarray], steps: int, lock: Path | None
) -> tuple[float, np.ndarray]:
    """Milliseconds of a step, and the texts."""
    times = []
    with alone(lock):
        for count in (steps // 2, steps):
            begin = time.perf_counter()
            text = generate(count)
            times.append(time.perf_counter() - begin)
    return (times[1] - times[0]) / (steps - steps // 2) * 1e3, text


def run_symdnn(
    net: Any, prompt: np.ndarray, steps: int, room: int, lock: Path | None
) -> tuple[float, np.ndarray, int]:
    """As :func:`timed`, and the bytes of the largest plan's arena."""
    from symdnn import nn

    generate = nn.models.Generator(net, len(prompt), room, temperature=0)
    generate(prompt, steps)
    ms, text = timed(lambda count: generate(prompt, count), steps, lock)
    functions = generate._begin, generate._next
    return ms, text, max(f.memory_report().arena for f in functions)


def run_torch(
    net: Any, prompt: np.ndarray, steps: int, room: int, how: str, place: str, lock: Path | None
) -> tuple[float, np.ndarray]:
    """As :func:`timed`."""
    import torch
    from transformers import StaticCache

    ids = torch.from_numpy(prompt).to(place)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(token: Any, at: Any, cache: Any) -> Any:
        scores = net(token, past_key_values=cache, cache_position=at, use_cache=True).logits
        return scores[:, -1].argmax(-1, keepdim=True)

    fast = torch.compile(step, mode="reduce-overhead") if how == "compile" else step

    def generate(count: int) -> np.ndarray:
        cache = StaticCache(config=net.config, max_cache_len=room)
        token = step(ids, torch.arange(ids.shape[1], device=place), cache)
        found = [token.clone()]
        at = torch.tensor([ids.shape[1]], device=place)
        for _ in range(count - 1):
            token = fast(token, at, cache).clone()
            found.append(token)
            at = at + 1
        return torch.cat([ids, *found], 1).cpu().numpy()

    generate(8)
    return timed(generate, steps, lock)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--peers", default="eager,compile", help="of PyTorch")
    parser.add_argument("--small", action="store_true", help="a small network, to check it")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--lock", type=Path, help="a file that is locked while a step is timed")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to add to")
    options = parser.parse_args()
    set_flags(not options.cpu)
    device = Device(not options.cpu, 0.1)
    with alone(options.lock):
        about = facts(device)
    device.cleanup()
    print(json.dumps(about))
    prompt_length, room, steps = (4, 32, 16) if options.small else (PROMPT, ROOM, STEPS)
    for batch in map(int, options.batches.split(",")):
        held = live_bytes(device)
        net = symdnn_net(Case("gpt2", "infer", batch, room), options.small)
        state = {k: np.asarray(v, np.float32) for k, v in net.state_dict().items()}
        words = net.transformer.wte.weight.type.shape[0]
        prompt = np.random.default_rng(6).integers(0, words, (batch, prompt_length))
        nbytes = 2 * sum(v.size for k, v in state.items() if "wpe" not in k)
        copied = nbytes / (float(about.get("copy_gbs") or "nan") * 1e6)
        wanted = None
        for who in [*options.peers.split(","), "symdnn"]:
            memory = 0.0
            try:
                if who == "symdnn":
                    ms, text, arena = run_symdnn(net, prompt, steps, room, options.lock)
                    memory = (live_bytes(device) - held + arena) / 1e9
                elif who:
                    import torch

                    place = "cuda" if device.on_gpu else "cpu"
                    before = torch.cuda.memory_allocated() if device.on_gpu else 0
                    if device.on_gpu:
                        torch.cuda.reset_peak_memory_stats()
                    case = Case("gpt2", "infer", batch, room)
                    peer = torch_net(case, state, options.small, place).eval().to(torch.bfloat16)
                    ms, text = run_torch(peer, prompt, steps, room, who, place, options.lock)
                    if device.on_gpu:
                        memory = (torch.cuda.max_memory_allocated() - before) / 1e9
                else:
                    continue
            except Exception as error:  # one side must not hide the others
                print(f"b{batch} {who}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            wanted = text if wanted is None else wanted
            new = text[0, prompt_length:] == wanted[0, prompt_length:]
            same = int(np.argmin(new)) if not new.all() else len(new)
            print(
                f"gpt2 decode b{batch:<3} {who:8} {ms:8.3f} ms/step {batch / ms * 1e3:10.0f} "
                f"tokens/s  weights' copy {copied / ms:5.2f}  {memory:5.2f} GB  "
                f"{same} of {len(new)} tokens as the first",
                flush=True,
            )
            if options.out:
                record = {"case": f"gpt2/decode/b{batch}", "who": who, "ms": ms}
                record |= {"memory_gb": memory, "facts": about}
                with options.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            device.cleanup()


if __name__ == "__main__":
    main()
