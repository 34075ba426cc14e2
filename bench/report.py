#!/usr/bin/env python3
"""Writes the tables and plots of docs/speed.md from bench/results/*.json, which bench/run makes; those of GPUs, which
scripts/device-check makes, into docs/gpu.md.

What stands between <!-- begin NAME --> and <!-- end NAME --> is replaced, the rest of the page is left as it is.
Plots are written beside the page, as PAGE-MACHINE-WHAT.svg (gnuplot).
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_report import gpu_results, on_gpus
from tables import spread, table

ROOT = Path(__file__).resolve().parent.parent
VOCAB = 128256  # the shape that comparisons are made at
ROWS = 64
DTYPES = ("bf16", "fp32")
PASSES = {"forward": "forward", "forward_backward": "forward+backward"}

LABELS = {
    "cross_entropy.eager": "F.cross_entropy, eager",
    "cross_entropy.compiled": "F.cross_entropy, torch.compile",
    "cross_entropy.one_graph": "F.cross_entropy, torch.compile, one graph",
    "cross_entropy_native.eager": "F.cross_entropy of bf16, eager",
    "cross_entropy_native.compiled": "F.cross_entropy of bf16, torch.compile",
    "softplus_recompute.eager": "softplus recompute, eager",
    "softplus_recompute.compiled": "softplus recompute, torch.compile",
    "loss_parallel.eager": "torch loss_parallel",
    "torchtitan.eager": "torchtitan, eager",
    "torchtitan.compiled": "torchtitan, torch.compile",
    "megatron.eager": "Megatron",
    "megatron.compiled": "Megatron, fused (torch.compile)",
}
VOCAB_PARALLEL = ("loss_parallel", "torchtitan", "megatron")


@dataclass(frozen=True)
class Shape:
    dtype: str
    threads: int = 1
    tp: int = 1
    vocab: int = VOCAB


class Results:
    """One machine's file."""

    def __init__(self, path: Path):
        self.name = path.stem
        try:
            self.json = json.loads(path.read_text())
            self.machine = self.json["machine"]
            self.tpce = self.json["tpce"]
        except (ValueError, KeyError, TypeError) as error:
            raise RuntimeError(f"{path}: got {error!r}, expected what bench/run writes") from error
        self.torch = self.json.get("torch", {})

    def ours(self, shape: Shape, what: str) -> dict | None:
        """tpce-bench's rate; its --quick names the one shape that it has by what differs from the usual."""
        rates = self.tpce["elements_per_ns"]
        name = f"{shape.dtype}_v{shape.vocab}_t{ROWS}_threads{shape.threads}_tp{shape.tp}/{what}"
        if name not in rates and shape.vocab == VOCAB:
            threads = f"_threads{shape.threads}" if shape.threads != 1 else ""
            tp = f"_tp{shape.tp}" if shape.tp != 1 else ""
            name = f"{shape.dtype}{threads}{tp}/{what}"
        return rates.get(name)

    def peers(self, shape: Shape, what: str) -> dict[str, dict]:
        """Each loss's rate at a shape, by METHOD.MODE."""
        found = {}
        for method, modes in self.torch.get("peers", {}).items():
            for mode, tree in modes.items():
                for key in (shape.dtype, f"v{shape.vocab}", f"threads{shape.threads}", f"tp{shape.tp}", what):
                    tree = tree.get(key, {})
                if tree:
                    found[f"{method}.{mode}"] = tree
        return found

    def vocabs(self) -> list[int]:
        """Those of which the full tpce-bench has a forward of 64 rows, on one thread."""
        names = [
            name.split("_") for name in self.tpce["elements_per_ns"] if name.endswith(f"_t{ROWS}_threads1_tp1/forward")
        ]
        return sorted({int(words[1][1:]) for words in names})


# What is asked for. Each entry: what, the least ratio (of AVX2, or of wider), and the ratios measured, by name.


def least(results: Results, avx2: float, wider: float) -> float:
    return avx2 if results.machine["isa"] == "avx2" else wider


def own_ratio(key: str) -> Callable[[Results], dict[str, float]]:
    return lambda results: {"": results.tpce[key]} if key in results.tpce else {}


def growth(results: Results) -> dict[str, float]:
    """The larger cost over the smaller, whichever it is."""
    ratio = results.tpce.get("v262144_vs_v4096")
    return {"": max(ratio, 1 / ratio)} if ratio else {}


def against(results: Results, shapes: list[tuple[Shape, Shape]], what: str, methods: tuple = ()) -> dict[str, float]:
    """Our rate at the first shape of each pair over the best peer's at the second."""
    ratios = {}
    for own, other in shapes:
        ours = results.ours(own, what)
        peers = [
            rate["median"]
            for name, rate in results.peers(other, what).items()
            if not methods or name.split(".")[0] in methods
        ]
        if ours and peers:
            where = f"tp {other.tp}" if methods else f"{other.threads} thread{'s' * (other.threads > 1)}"
            ratios[f"{other.dtype}, {where}"] = ours["median"] / max(peers)
    return ratios


def against_torch(what: str) -> Callable[[Results], dict[str, float]]:
    shapes = [(Shape(dtype, threads), Shape(dtype, threads)) for threads in (1, 2) for dtype in DTYPES]
    return lambda results: against(results, shapes, what)


def against_vocab_parallel(what: str) -> Callable[[Results], dict[str, float]]:
    # Two ranks of one thread have two cores, and so has one process of two shards and two threads.
    shapes = [(Shape(dtype, tp, tp), Shape(dtype, 1, tp)) for tp in (1, 2) for dtype in DTYPES]
    return lambda results: against(results, shapes, what, VOCAB_PARALLEL)


REACH = (
    ("order-free forward, bf16, of `plain`", (0.72, 0.72), own_ratio("forward_bf16_vs_plain")),
    ("order-free forward, fp32, of `plain`", (0.68, 0.68), own_ratio("forward_fp32_vs_plain")),
    ("the same on real logits", (0.80, 0.80), own_ratio("captures_vs_plain")),
    ("tp = 8 in one process, of tp = 1", (0.95, 0.95), own_ratio("tp8_vs_tp1")),
    ("fused forward+backward, bf16, of `plain` forward", (0.75, 0.75), own_ratio("fused_bf16_vs_plain")),
    ("forward, of the fastest torch loss", (1.7, 3), against_torch("forward")),
    ("forward+backward, of the fastest torch loss", (3, 5), against_torch("forward_backward")),
    ("forward, of the fastest vocab-parallel loss on gloo", (4, 4), against_vocab_parallel("forward")),
    (
        "forward+backward, of the fastest vocab-parallel loss on gloo",
        (5, 5),
        against_vocab_parallel("forward_backward"),
    ),
    ("2 threads, of 1", (1.85, 1.85), own_ratio("threads2_vs_1")),
    ("T = 1, V = 262144: 2 threads, of 1", (1.6, 1.6), own_ratio("one_row_threads2_vs_1")),
)
# Those that must stay below.
BOUNDS = (
    ("peak extra memory of a forward, of the logits", 0.01, own_ratio("extra_memory_share")),
    ("cost of an element at V = 4096 and at V = 262144, one over the other", 1.15, growth),
)


def measured(ratios: dict[str, float]) -> str:
    return "; ".join(f"{name}: {ratio:.3g}" if name else f"{ratio:.3g}" for name, ratio in ratios.items())


def reach(results: Results) -> str:
    rows = []
    for what, (avx2, wider), find in REACH:
        limit, ratios = least(results, avx2, wider), find(results)
        verdict = "" if not ratios else "yes" if min(ratios.values()) >= limit else "no"
        rows.append([what, f"at least {limit:g}", measured(ratios) or "not measured", verdict])
    for what, limit, find in BOUNDS:
        ratios = find(results)
        verdict = "" if not ratios else "yes" if max(ratios.values()) <= limit else "no"
        rows.append([what, f"at most {limit:g}", measured(ratios) or "not measured", verdict])
    return table(["ratio", "asked", "measured", "reached"], rows)


def rates(results: Results) -> str:
    kinds = {"forward": "forward", "forward_backward": "forward+backward", "plain": "`plain`, two passes",
             "plain_online": "`plain`, online", "read": "read", "copy": "copy"}  # fmt: skip
    rows = [
        [str(vocab), dtype] + [spread(results.ours(Shape(dtype, vocab=vocab), kind)) for kind in kinds]
        for vocab in results.vocabs() or [VOCAB]
        for dtype in DTYPES
    ]
    text = table(["V", "logits", *kinds.values()], rows) + onednn(results)
    clock = results.tpce.get("clock_ghz")
    return text + (f"\nCycles an element, at {spread(clock)} GHz:\n\n{cycles(results, clock['median'])}" if clock else "")


def onednn(results: Results) -> str:
    """Nothing where tpce-bench was built without it."""
    rows = []
    for dtype in DTYPES:
        for threads in (1, 2):
            shape = Shape(dtype, threads)
            ours, other = results.ours(shape, "forward"), results.ours(shape, "onednn")
            if ours and other:
                rows.append([dtype, str(threads), spread(other), f"{ours['median'] / other['median']:.3g}"])
    if not rows:
        return ""
    text = table(["logits", "threads", "`onednn`", "forward, of `onednn`"], rows)
    return f"\nLog-softmax of oneDNN {results.tpce['onednn']}, V = {VOCAB}:\n\n{text}"


def cycles(results: Results, ghz: float) -> str:
    kinds = {**PASSES, "plain": "`plain`, two passes"}

    def count(shape: Shape, kind: str) -> str:
        rate = results.ours(shape, kind)
        return f"{ghz / rate['median']:.3g}" if rate else ""

    rows = [
        [str(vocab), dtype] + [count(Shape(dtype, vocab=vocab), kind) for kind in kinds]
        for vocab in results.vocabs() or [VOCAB]
        for dtype in DTYPES
    ]
    return table(["V", "logits", *kinds.values()], rows)


def peers(results: Results) -> str:
    shapes = [(Shape(dtype, threads), what) for what in PASSES for dtype in DTYPES for threads in (1, 2)]
    found = {column: results.peers(*column) for column in shapes}
    names = [name for name in LABELS if any(name in rates for rates in found.values())]
    if not names:
        return "Not measured on this machine.\n"
    rows = [[LABELS[name]] + [spread(found[column].get(name)) for column in shapes] for name in names]
    rows.append(["**tpce**"] + [spread(results.ours(*column)) for column in shapes])
    header = [
        f"{PASSES[what]}, {shape.dtype}, {shape.threads} thread{'s' * (shape.threads > 1)}" for shape, what in shapes
    ]
    return table(["loss", *header], rows)


def ranks(results: Results) -> str:
    shapes = [(Shape(dtype, 1, tp), what) for what in PASSES for dtype in DTYPES for tp in (1, 2)]
    names = [name for name in LABELS if name.split(".")[0] in VOCAB_PARALLEL and results.peers(*shapes[0]).get(name)]
    if not names:
        return "Not measured on this machine.\n"
    rows = [[LABELS[name]] + [spread(results.peers(*column).get(name)) for column in shapes] for name in names]
    own = [(Shape(shape.dtype, shape.tp, shape.tp), what) for shape, what in shapes]
    rows.append(["**tpce**, as many threads as ranks"] + [spread(results.ours(*column)) for column in own])
    header = [f"{PASSES[what]}, {shape.dtype}, tp {shape.tp}" for shape, what in shapes]
    return table(["loss", *header], rows)


def memory(results: Results) -> str:
    columns = [(Shape(dtype), what) for what in PASSES for dtype in DTYPES]
    sizes = {"bf16": 2, "fp32": 4}

    def share(name: str, shape: Shape, what: str) -> str:
        peak = results.peers(shape, what).get(name, {}).get("peak_bytes")
        rows = results.torch.get("rows", ROWS)
        return "" if peak is None else f"{peak / (rows * shape.vocab * sizes[shape.dtype]):.2f}"

    rows = [[LABELS[name], *(share(name, *column) for column in columns)] for name in LABELS]
    rows = [row for row in rows if any(row[1:])]
    if not rows:
        return "Not measured on this machine.\n"
    return table(["loss", *(f"{PASSES[what]}, {shape.dtype}" for shape, what in columns)], rows)


def tuning(results: Results) -> str:
    found = results.torch.get("tuning", {})
    if "elements_per_ns" not in found:
        return "Not measured on this machine.\n"
    names = list(next(iter(found["elements_per_ns"].values())))
    losses_and_passes = [name.rpartition(".") for name in names]
    header = [f"{LABELS[loss]}: {PASSES[what]}" for loss, _, what in losses_and_passes]
    rows = [
        [tuning + (" (used)" if tuning == found["chosen"] else "")] + [f"{rates[name]:.3g}" for name in names]
        for tuning, rates in found["elements_per_ns"].items()
    ]
    return table(["allocator", *header], rows)


def machines(results: Results) -> str:
    machine, versions = results.machine, results.torch.get("versions", {})
    facts = [machine["cpu"], f"{machine['cpus']} CPUs", f"target {results.tpce.get('target', machine['isa'])}"]
    facts += [f"{name} {version}" for name, version in versions.items()]
    return ", ".join(facts) + f"; {results.json['rounds']} rounds of {results.json['repetitions']} repetitions.\n"


# Plots.


def gnuplot(script: str, path: Path) -> None:
    try:
        done = subprocess.run(["gnuplot"], input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError("gnuplot is not installed (Debian package gnuplot-nox)") from None
    if done.returncode:
        raise RuntimeError(f"gnuplot: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    write(path, done.stdout)


def peers_plot(results: Results) -> str | None:
    shape = Shape("bf16")
    bars = [
        (LABELS[name], [results.peers(shape, what).get(name) for what in PASSES])
        for name in LABELS
        if any(name in results.peers(shape, what) for what in PASSES)
    ]
    if not bars:
        return None
    bars.append(("tpce", [results.ours(shape, what) for what in PASSES]))
    data = "\n".join(
        f'"{label}" ' + " ".join(f"{rate['median']:.6g}" if rate else "NaN" for rate in found) for label, found in bars
    )
    height = 90 + 34 * len(bars)
    return f"""set terminal svg size 760,{height} font "sans,11" noenhanced
set xlabel "elements/ns, bf16, 1 thread"
set xrange [0:*]
set yrange [{len(bars)}:0]
set grid x
set key top right
set style fill solid 0.8 noborder
$rates << EOD
{data}
EOD
plot $rates using (0):($0 + 0.5):(0):2:($0 + 0.15):($0 + 0.5):ytic(1) with boxxyerror title "forward", \\
  "" using (0):($0 + 0.5):(0):3:($0 + 0.5):($0 + 0.85) with boxxyerror title "forward+backward"
"""


def vocab_plot(results: Results) -> str | None:
    vocabs = results.vocabs()
    if len(vocabs) < 2:
        return None
    series = [(f"{PASSES.get(kind, kind)}, {dtype}", kind, dtype) for kind in (*PASSES, "plain") for dtype in DTYPES]
    lines = []
    for vocab in vocabs:
        found = [results.ours(Shape(dtype, vocab=vocab), kind) for _, kind, dtype in series]
        lines.append(f"{vocab} " + " ".join(f"{rate['median']:.6g}" if rate else "NaN" for rate in found))
    plots = ", ".join(
        f'$rates using 1:{column + 2} with linespoints title "{title}"' for column, (title, _, _) in enumerate(series)
    )
    data = "\n".join(lines)
    ticks = ", ".join(map(str, vocabs))
    return f"""set terminal svg size 760,360 font "sans,11" noenhanced
set logscale x 2
set xlabel "V"
set ylabel "elements/ns, 1 thread"
set yrange [0:*]
set xtics ({ticks})
set grid
set key outside right
$rates << EOD
{data}
EOD
plot {plots}
"""


BLOCKS = {
    "machines": machines,
    "reach": reach,
    "rates": rates,
    "peers": peers,
    "ranks": ranks,
    "memory": memory,
    "tuning": tuning,
}
PLOTS = {"rates": ("vocab", vocab_plot), "peers": ("peers", peers_plot)}


def block(name: str, machines: list[Results], page: Path) -> str:
    """The generated text of one block, with each machine's table and plot. Writes the plot."""
    parts = []
    for results in machines:
        parts.append(f"**{results.name}**\n\n{BLOCKS[name](results)}")
        if name in PLOTS:
            what, plot = PLOTS[name]
            script = plot(results)
            if script:
                path = page.with_name(f"{page.stem}-{results.name}-{what}.svg")
                gnuplot(script, path)
                parts.append(f"![{what}, {results.name}]({path.name})\n")
    return "\n".join(parts)


def fill(text: str, name: str, generated: str) -> str:
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise RuntimeError(f"{marker.strip()}: got {text.count(marker)} of them, expected 1")
    before, rest = text.split(begin)
    if end not in rest:
        raise RuntimeError(f"{end}: got it before its begin, expected it after")
    return before + begin + "\n" + (generated + "\n" if generated else "") + end + rest.split(end)[1]


def write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results", help="folder of results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/speed.md", help="page to write them into")
    parser.add_argument("--gpu-page", type=Path, default=ROOT / "docs/gpu.md", help="page for those of GPUs")
    options = parser.parse_args()
    paths = sorted(options.results.glob("*.json"))
    gpus = {path.stem: found for path in paths if (found := gpu_results(path))}
    found = [Results(path) for path in paths if path.stem not in gpus]
    text = options.page.read_text()
    try:
        for name in BLOCKS:
            text = fill(text, name, block(name, found, options.page))
    except RuntimeError as error:
        raise RuntimeError(f"{options.page}: {error}") from error
    if measured_there := on_gpus(gpus):
        write(options.gpu_page, fill(options.gpu_page.read_text(), "measured", measured_there))
    write(options.page, text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError) as error:
        print(f"report.py: error: {error}", file=sys.stderr)
        sys.exit(2)
