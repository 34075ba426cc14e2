#!/usr/bin/env python3
"""Speed and peak memory of other projects' losses on this CPU, in elements/ns, for tpce-bench to be compared with.

Run it in the environment that make-venv makes. Losses are called on rows of synthetic logits, normal with standard
deviation 3. "forward" runs without autograd, "forward_backward" returns the gradient too. Every call makes its own
output; a tuned allocator gives it the memory that the call before gave back.

Written to the file are, for each loss, peers.METHOD.MODE.DTYPE.vV.threadsN.tpN.{forward,forward_backward}: median,
min, max and the values themselves, with peak_bytes beyond the logits, all ranks together. threadsN is of each rank.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent

NEVER = 1 << 40
JEMALLOC = next((str(path) for path in sorted(Path("/usr/lib").glob("*/libjemalloc.so.2"))), None)

# How freed memory is kept, and in huge pages: a page that is mapped anew is a page fault.
TUNINGS = {
    "untuned": {},
    "glibc": {
        "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={NEVER}"
        f":glibc.malloc.trim_threshold={NEVER}:glibc.malloc.top_pad={1 << 30}"
    },
}
if JEMALLOC:
    # jemalloc unmaps what is above oversize_threshold at once, unless told not to.
    TUNINGS["jemalloc"] = {
        "LD_PRELOAD": JEMALLOC,
        "MALLOC_CONF": "thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0",
    }
# Large blocks go back to the system at once, so that a process's peak is what is held at one time.
FOR_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

# What the tunings are compared by: losses that need memory for copies, and one that needs it for the gradient alone.
PROBES = ("cross_entropy.eager", "softplus_recompute.eager", "softplus_recompute.compiled")


@dataclass(frozen=True)
class Shape:
    dtype: str
    vocab: int
    threads: int
    tp: int

    def key(self) -> list[str]:
        return [self.dtype, f"v{self.vocab}", f"threads{self.threads}", f"tp{self.tp}"]


def versions() -> dict:
    return {name: version(name) for name in ("torch", "torchtitan", "megatron-core")}


def run_worker(shape: Shape, what: str, environment: dict, options: argparse.Namespace) -> dict:
    """Starts the ranks of one measurement and returns what rank 0 printed."""
    with tempfile.TemporaryDirectory() as folder:
        ranks, logs = [], []
        for rank in range(shape.tp):
            words = {
                "what": what,
                "dtype": shape.dtype,
                "rows": options.rows,
                "vocab": shape.vocab,
                "threads": shape.threads,
                "tp": shape.tp,
                "rank": rank,
                "repetitions": options.repetitions,
                "min-time": options.min_time,
                "clock": options.clock,
                "store": f"{folder}/store",
                "only": ",".join(options.only),
            }
            logs.append(open(f"{folder}/log{rank}", "w+"))
            ranks.append(
                subprocess.Popen(
                    [sys.executable, HERE / "worker.py"] + [f"--{name}={value}" for name, value in words.items()],
                    env=os.environ
                    | {"OMP_NUM_THREADS": str(shape.threads), "TORCHINDUCTOR_CACHE_DIR": str(options.cache)}
                    | environment,
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    stderr=logs[rank],
                    text=True,
                )
            )
        try:
            # A rank that failed leaves the others waiting for it.
            while any(process.poll() is None for process in ranks) and not any(process.poll() for process in ranks):
                time.sleep(0.05)
            for rank, process in enumerate(ranks):
                if status := process.poll():
                    logs[rank].seek(0)
                    lines = logs[rank].read().strip().splitlines() or ["no message"]
                    raise RuntimeError(f"{'.'.join(shape.key())}: rank {rank}: status {status}: {lines[-1]}")
            return json.loads(ranks[0].stdout.read())
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            ranks[0].stdout.close()
            for log in logs:
                log.close()


def summary(values: list[float]) -> dict:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": values,
    }


def probe_tunings(options: argparse.Namespace) -> dict:
    """Rates under each tuning, and the tuning whose rates have the largest geometric mean. By CPU time of one
    thread: it contains the page faults, and little of the noise that processes in turns would have to average out."""
    probe = argparse.Namespace(**vars(options) | {"repetitions": 5, "clock": "cpu", "only": PROBES})
    rates = {}
    for tuning, environment in TUNINGS.items():
        found = run_worker(Shape("bf16", 128256, 1, 1), "speed", environment, probe)
        rates[tuning] = {name: statistics.median(values) for name, values in found.items()}
    chosen = max(rates, key=lambda tuning: statistics.geometric_mean(rates[tuning].values()))
    return {"chosen": chosen, "environment": TUNINGS[chosen], "elements_per_ns": rates}


def shapes(quick: bool) -> list[Shape]:
    return [
        Shape(dtype, vocab, threads, tp)
        for vocab in ((128256,) if quick else (32000, 128256, 262144))
        for dtype in ("bf16", "fp32")
        for threads, tp in ((1, 1), (2, 1), (1, 2))
    ]


def put(tree: dict, path: list[str], values: dict) -> None:
    for name in path:
        tree = tree.setdefault(name, {})
    tree.update(values)


def measure(options: argparse.Namespace) -> dict:
    result = {"versions": versions(), "rows": options.rows}
    if options.tuning == "auto":
        result["tuning"] = probe_tunings(options)
    else:
        result["tuning"] = {"chosen": options.tuning, "environment": TUNINGS[options.tuning]}
    print(f"tuning: {result['tuning']['chosen']}", file=sys.stderr)
    result["peers"] = {}
    for shape in shapes(options.quick):
        rates = run_worker(shape, "speed", result["tuning"]["environment"], options)
        peaks = {}
        if options.memory:
            one_thread = Shape(shape.dtype, shape.vocab, 1, shape.tp)
            peaks = run_worker(one_thread, "memory", FOR_MEMORY, options) if shape.threads == 1 else {}
        for name, values in rates.items():
            method, mode, what = name.split(".")
            leaf = summary(values) | ({"peak_bytes": peaks[name]} if name in peaks else {})
            put(result["peers"], [method, mode, *shape.key(), what], leaf)
            print(f"{name}.{'.'.join(shape.key())}: {leaf['median']:.3f} elements/ns", file=sys.stderr)
    return result


def write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--quick", action="store_true", help="V = 128256 alone: about 3 minutes on 2 cores")
    parser.add_argument("--rows", type=int, default=64, help="rows of logits (64)")
    parser.add_argument("--repetitions", type=int, default=7, help="times that each loss has its turn (7)")
    parser.add_argument("--min-time", type=float, default=0.06, help="seconds that a turn lasts at least (0.06)")
    parser.add_argument("--tuning", choices=("auto", *TUNINGS), default="auto", help="auto: the best of all, measured")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave peak memory out")
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "build/peers-cache", help="compiled code")
    parser.add_argument("--versions", action="store_true", help="print the versions of the packages and stop")
    parser.set_defaults(clock="wall", only=[])
    options = parser.parse_args()
    if options.versions:
        print(json.dumps(versions()))
        return 0
    if options.json is None:
        parser.error("--json: got nothing, expected a file to write")
    for name in ("rows", "repetitions"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: got {getattr(options, name)}, expected 1 or more")
    result = measure(options)
    write(options.json, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError) as error:
        print(f"torch_peers.py: error: {error}", file=sys.stderr)
        sys.exit(2)
