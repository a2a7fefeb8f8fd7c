"""What the page "CuDNN low-level APIs in PyTorch" shows, in symdnn: one convolution by algorithm 1.

The page's fork sets `torch.backends.cudnn.conv_fwd_algo = 1`, and prints a profile of all
algorithms and the list of those that are supported once the convolution has run. Here the list is
known before, the table has the plans of cuDNN's newer API too, and both gradients have theirs.

    python pytorch_cudnn_lowlevel.py                the functions, on whatever this machine has
    python pytorch_cudnn_lowlevel.py --device cuda  on a GPU, with the tables
"""

import argparse

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import CudnnError
from symdnn.gpu import dnn

# The page does not say which convolution it ran: this one has much the same table.
IMAGES, KERNELS, PAD = (32, 64, 28, 28), (128, 64, 3, 3), 1
DIRECTIONS = {"fwd": "Fwd", "bwd_data": "BwdData", "bwd_filter": "BwdFilter"}


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s).astype("float32") for s in (IMAGES, KERNELS))


def convolution(algo: int | str) -> symdnn.compile.call.compiled_function.Function:
    """The convolution and its two gradients, each by an algorithm that is named or numbered."""
    x, w = T.tensor4("x"), T.tensor4("w")
    y = dnn.dnn_conv(x, w, border_mode=PAD, conv_mode="cross", algo=algo)
    loss = (y * y).sum() / 2
    return symdnn.function([x, w], [y, *T.grad(loss, [x, w])])


def algorithm_by_number(algo: int = 1) -> list[np.ndarray]:
    """`torch.backends.cudnn.conv_fwd_algo = 1`, and what was taken."""
    f = convolution(algo)
    results = f(*operands())
    print(f"Requested fwd algorithm ({algo}):")
    print(f.dnn_report())
    return results


def gradients_by_number(algo: int = 1) -> list[np.ndarray]:
    """The same for the gradients, which the fork leaves out: by flags."""
    names = {"dnn.conv.algo_bwd_data": "deterministic", "dnn.conv.algo_bwd_filter": "deterministic"}
    with config.change_flags({**names, "dnn.conv.algo_fwd": "small"}):  # 1 in all three enums
        x, w = T.tensor4("x"), T.tensor4("w")
        y = T.nnet.conv2d(x, w, border_mode=PAD, filter_flip=False)
        f = symdnn.function([x, w], [y, *T.grad((y * y).sum() / 2, [x, w])])
        results = f(*operands())
        print(f.dnn_report())
    return results


def profile(direction: str, time: bool = True) -> list[int]:
    """The page's profile of a direction and the numbers that are supported, by time."""
    from symdnn.gpu.conv_table import algorithms, conv

    table = algorithms(conv(IMAGES, KERNELS, PAD, direction=direction), time)
    legacy = [row for row in table.rows if row.api == "legacy"]
    print(f"{DIRECTIONS[direction]}Algorithms profile results:\nAlgo,   time,      memory")
    for row in legacy:
        ms = -1 if row.ms is None else row.ms
        print(f"{row.number},      {ms:<10.6g} {row.workspace_bytes}")
    supported = [row.number for row in legacy if row.supported]
    print(f"Supported {DIRECTIONS[direction]}Algorithms: {',  '.join(map(str, supported))}")
    plans = [row for row in table.supported() if row.api == "graph"]
    best = min((row.ms for row in plans if row.ms is not None), default=None)
    print(f"and {len(plans)} plans of the graph API, the fastest in {best} ms\n")
    return supported


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=str(config.device), help="cpu, cuda or auto")
    device = parser.parse_args(argv).device
    with config.change_flags(device=device):
        algorithm_by_number()
        gradients_by_number()
        try:
            for direction in DIRECTIONS:
                profile(direction)
        except (CudnnError, RuntimeError) as error:
            print(f"no table without a GPU: {str(error).splitlines()[0]}")
            return 0 if device != "cuda" else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
