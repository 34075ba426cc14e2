"""One rank of one measurement; torch_peers.py starts it. Prints one line of JSON from rank 0.

All losses of a shape are measured in one process and take turns, so that all of them see the same noise.
"""

import argparse
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from losses import Call, Loss, Ranks, losses  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Clock = Callable[[], float]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def start_ranks(options: argparse.Namespace) -> Ranks:
    store = dist.FileStore(options.store, options.tp)
    dist.init_process_group("gloo", store=store, rank=options.rank, world_size=options.tp)
    mesh = dist.init_device_mesh("cpu", (options.tp,), mesh_dim_names=("tp",))
    return Ranks(options.tp, options.vocab, mesh)


class Problem:
    """Normal logits of standard deviation 3 and random labels: the same numbers whatever tp is."""

    def __init__(self, options: argparse.Namespace):
        generator = torch.Generator().manual_seed(1)
        whole = torch.randn(options.rows, options.vocab, generator=generator).mul_(3).to(DTYPES[options.dtype])
        self.labels = torch.randint(options.vocab, (options.rows,), generator=generator)
        exact = torch.zeros((), dtype=torch.float64)
        for row, label in zip(whole, self.labels, strict=True):
            exact += torch.logsumexp(row.double(), 0) - row[label].double()
        self.exact = exact.item()
        first = options.vocab // options.tp * options.rank
        self.logits = whole[:, first : first + options.vocab // options.tp].clone()
        self.saved = self.logits.clone()

    def restore(self) -> None:
        self.logits.copy_(self.saved)


def check(loss: Loss, problem: Problem) -> None:
    """Refuses to time what is not a loss. bf16 log-probabilities are good to two digits, others to five."""
    name = f"{loss.method}.{loss.mode}"
    tolerance = 2e-2 if loss.method == "cross_entropy_native" else 1e-5
    values = []
    if loss.forward:
        values.append(loss.forward(problem.logits, problem.labels))
        problem.restore()
    total, gradient = loss.forward_backward(problem.logits, problem.labels)
    for value in [*values, total]:
        if not abs(value.item() - problem.exact) <= tolerance * problem.exact:
            raise SystemExit(f"{name}: got a loss of {value.item()}, expected {problem.exact}")
    if gradient.shape != problem.logits.shape or gradient.dtype != problem.logits.dtype:
        raise SystemExit(f"{name}: got a gradient of {gradient.dtype} {tuple(gradient.shape)}")
    # A row's gradient is p - 1 at the target, and the rest adds to 1 - p; p is small in most rows here.
    sizes = gradient.float().abs().sum()
    dist.all_reduce(sizes)
    expected = 2.0 * len(problem.labels)
    if not 0.9 * expected <= sizes.item() <= 1.01 * expected:
        raise SystemExit(f"{name}: got gradients whose sizes add to {sizes.item()}, expected about {expected}")
    del gradient
    problem.restore()


@dataclass(frozen=True)
class Turn:
    name: str  # METHOD.MODE.forward or METHOD.MODE.forward_backward
    call: Call
    overwrites_logits: bool


def turns_of(found: list[Loss]) -> list[Turn]:
    return [
        Turn(f"{loss.method}.{loss.mode}.{name}", call, loss.overwrites_logits)
        for loss in found
        for name, call in (("forward", loss.forward), ("forward_backward", loss.forward_backward))
        if call
    ]


def seconds(turn: Turn, problem: Problem, times: int, clock: Clock) -> float:
    """Of one call, of the slowest rank."""
    # Logits that a call overwrites are restored before the next, outside of what is timed.
    stretches = [1] * times if turn.overwrites_logits else [times]
    spent = 0.0
    for calls in stretches:
        if turn.overwrites_logits:
            problem.restore()
        dist.barrier()
        start = clock()
        for _ in range(calls):
            turn.call(problem.logits, problem.labels)
        spent += clock() - start
    slowest = torch.tensor(spent / times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def status_bytes(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def peak_bytes(call: Call, problem: Problem) -> int:
    """What a call holds at most beyond the logits, its result included, of all ranks together. The allocator must
    return freed memory at once (torch_peers.py sees to it)."""
    # What torch.compile holds is no part of the loss.
    call(problem.logits, problem.labels)
    problem.restore()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = status_bytes("VmRSS")
    call(problem.logits, problem.labels)
    peak = torch.tensor(max(0, status_bytes("VmHWM") - before))
    dist.all_reduce(peak)
    problem.restore()
    return int(peak.item())


def measure_memory(turns: list[Turn], problem: Problem) -> dict:
    return {turn.name: peak_bytes(turn.call, problem) for turn in turns}


def measure_speed(turns: list[Turn], problem: Problem, options: argparse.Namespace) -> dict:
    clock = CLOCKS[options.clock]
    times = {}
    for turn in turns:
        seconds(turn, problem, 1, clock)
        times[turn.name] = max(1, min(1000, round(options.min_time / seconds(turn, problem, 2, clock))))
    rates = {turn.name: [] for turn in turns}
    turns = list(turns)
    shuffle = random.Random(1).shuffle  # every rank takes the same order
    for _ in range(options.repetitions):
        shuffle(turns)
        for turn in turns:
            took = seconds(turn, problem, times[turn.name], clock)
            rates[turn.name].append(options.rows * options.vocab / took * 1e-9)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=("speed", "memory"), required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    for name in ("rows", "vocab", "threads", "tp", "rank", "repetitions"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--min-time", type=float, required=True)
    parser.add_argument("--clock", choices=CLOCKS, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--only", help="method.mode, several with commas between them")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    # What libraries print must not get between the lines of JSON.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    ranks = start_ranks(options)
    problem = Problem(options)
    found = losses(DTYPES[options.dtype], ranks, options.only.split(",") if options.only else [])
    for loss in found:
        check(loss, problem)
    if options.what == "memory":
        result = measure_memory(turns_of(found), problem)
    else:
        result = measure_speed(turns_of(found), problem, options)
    if options.rank == 0:
        print(json.dumps(result), file=out, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
