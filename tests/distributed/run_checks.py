"""Run by each of several processes: all checks of the modules named, one after the other.

With ``SYMDNN_LEAST_REGISTERED=0`` small operands lie in registered memory, too, if any do.

Each rank writes ``{check: error or ""}`` and what checks returned to a JSON file, rank 0 also the
seconds that each took to its standard output. After the first error the processes can't go on
together.
"""

import importlib
import json
import os
import sys
import time
import traceback

import symdnn.distributed as dist
from symdnn.gpu.nccl import kernels


def main(out, only, modules):
    dist.init()
    kernels._LEAST_REGISTERED_BYTES = int(os.environ.get("SYMDNN_LEAST_REGISTERED", 64 << 10))
    errors, values = {}, {}
    for module in modules:
        found = importlib.import_module(f"tests.distributed.{module}")
        names = [n for n in vars(found) if n.startswith("check_")]
        for name in [n for n in names if n in only.split(",") or not only]:
            began = time.monotonic()
            try:
                values[name] = getattr(found, name)()
                dist.barrier()
                errors[name] = ""
                if dist.is_main():
                    print(f"{name} {time.monotonic() - began:.1f} s", flush=True)
            except Exception:
                errors[name] = f"rank {dist.rank()}: {traceback.format_exc()}"
                with open(f"{out}.{dist.rank()}", "w") as file:
                    json.dump({"errors": errors, "values": {}}, file)
                raise
    with open(f"{out}.{dist.rank()}", "w") as file:
        json.dump({"errors": errors, "values": values}, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
