#!/usr/bin/env python3
"""Times other projects' losses on a GPU, for scripts/device-check: torch's, and those of Liger and QuACK where they are
installed. Writes JSON of the form that tpce-gpu-bench writes, so that bench/report.py shows both in one table.

    bench/peers/gpu_peers.py --json FILE [--rows T --vocab V]

A loss that does not run here is left out, with the reason on stderr: some need a compiler on the machine.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

WARM_UP = 3


def others(dtype) -> dict:
    """Losses beyond losses.py's, by name: functions of logits that require a gradient, and labels."""
    found = {}
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

        def liger(logits, labels):
            # Of a release whose function returns more than the loss, the first is the loss.
            result = LigerCrossEntropyFunction.apply(logits, labels, None, -100, 0.0, 0.0, "sum")
            return result[0] if isinstance(result, tuple) else result

        found["liger"] = liger
    except ImportError as error:
        print(f"gpu_peers: liger: not measured, {error}", file=sys.stderr)
    try:
        from quack import cross_entropy

        found["quack"] = lambda logits, labels: cross_entropy(logits, labels, reduction="sum")
    except ImportError as error:
        print(f"gpu_peers: quack: not measured, {error}", file=sys.stderr)
    return found


class Timer:
    """Milliseconds of a call, by the device's own clock where there is one."""

    def __init__(self, torch, device: str):
        self.torch, self.cuda = torch, device == "cuda"

    def __call__(self, call) -> float:
        if not self.cuda:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last)


def summary(values: list) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(options: argparse.Namespace) -> dict:
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_peers: torch finds no CUDA device")
    from losses import Ranks, losses

    torch.manual_seed(1)
    logits = torch.randn(options.rows, options.vocab, device=options.device, dtype=torch.bfloat16) * 3
    labels = torch.randint(options.vocab, (options.rows,), device=options.device)
    names = [f"{loss}.{mode}" for loss in ("cross_entropy", "softplus_recompute") for mode in ("eager", "compiled")]
    calls = {}
    for loss in losses(logits.dtype, Ranks(1, options.vocab, None), names):
        calls[f"{loss.method}, {loss.mode}"] = lambda loss=loss: loss.forward_backward(logits, labels)
    for name, function in others(logits.dtype).items():

        def both(function=function):
            # Some write the gradient over the logits they are given.
            leaf = logits.detach().clone().requires_grad_()
            return torch.autograd.grad(function(leaf, labels), leaf)

        calls[f"{name}, with a copy of the logits"] = both

    timer = Timer(torch, options.device)
    shapes = []
    for name, call in calls.items():
        try:
            for _ in range(WARM_UP):
                call()
            if timer.cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            times = [timer(call) for _ in range(options.repetitions)]
        except Exception as error:  # noqa: BLE001: whatever another project's loss raises, the others count
            print(f"gpu_peers: {name}: not measured, {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        peak = torch.cuda.max_memory_allocated() if timer.cuda else 0
        part = {"bytes": 3 * logits.numel() * logits.element_size(), "milliseconds": summary(times), "peak_bytes": peak}
        shape = {"rows": options.rows, "columns": options.vocab, "dtype": "bf16"}
        shapes.append(shape | {"parts": {f"{name}: forward+backward": part}})
    return {"torch": torch.__version__, "shapes": shapes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--vocab", type=int, default=64128)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only shows that this works")
    options = parser.parse_args()
    result = measure(options)
    part = options.json.with_name(options.json.name + ".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
