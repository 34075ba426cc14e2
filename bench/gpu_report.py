"""What scripts/device-check found on a GPU, as tables of docs/gpu.md: what was asked for and reached, and every part."""

import json
import statistics
from pathlib import Path

from tables import spread, table

ISSUE_LANES = 128  # instructions a clock and multiprocessor, by thread: four warp schedulers, a warp of 32 each
# How often a kernel reads or writes each logit. Others handle rows: tens of bytes each, beside kilobytes of logits.
PASSES = {"row_partials": 1, "gradient": 2, "fused": 2}
# One rank's share of the problem that others published, and torch's loss at that shape.
PUBLISHED = (16384, 64128, "bf16")
TORCH = "softplus_recompute, compiled: forward+backward"


def gpu_results(path: Path) -> dict | None:
    """What scripts/device-check wrote, or None where the file is another's."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return None
    return found if isinstance(found, dict) and "device" in found else None


def on_gpus(machines: dict[str, dict]) -> str:
    """Of each device, but for what was made with --quick."""
    parts = []
    for name, found in machines.items():
        try:
            if not found["quick"]:
                parts += on_gpu(found)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise RuntimeError(f"{name}.json: got {error!r}, expected what scripts/device-check writes") from error
    return "\n".join(parts)


def on_gpu(found: dict) -> list[str]:
    checks = ", ".join(f"{what}: {how}" for what, how in found["checks"].items())
    parts = [f"**{found['device']}**, by tpce {found['version']}\n\n{checks}.\n"]
    if found["benchmark"] is not None:
        parts.append(machine(found["benchmark"]))
    parts.append(table(["target", "logits", "asked", "measured", "reached"], targets(found)))
    if found["benchmark"] is not None:
        parts.append(every_part(found))
    return parts


def machine(benchmark: dict) -> str:
    device, copy = benchmark["device"], benchmark["copy_bytes_per_second"]
    clocks = [clock for shape in benchmark["shapes"] for clock in clocks_of(shape)]
    known = f"{device['clock_hz'] / 1e9:.4g} GHz by its properties" if device["clock_hz"] else "a clock that it does not tell"
    read = f"{min(clocks) / 1e9:.4g} to {max(clocks) / 1e9:.4g} GHz read while parts ran" if clocks else "not read while parts ran"
    return (
        f"{device['multiprocessors']} multiprocessors of sm_{device['compute_capability']}, {known}, {read}. "
        f"A copy on the device moves {copy / 1e12:.2f} TB/s, read and write together.\n"
    )


def every_part(found: dict) -> str:
    """How long each takes, and how near it comes to a copy of as many bytes."""
    copy = found["benchmark"]["copy_bytes_per_second"]
    rows = [
        [shape_text(shape), what, spread(part["milliseconds"]), f"{rate(part) / copy:.0%}", gib(part["peak_bytes"])]
        for shape in found["benchmark"]["shapes"] + peers_of(found)
        for what, part in shape["parts"].items()
    ]
    return table(["logits", "what", "ms", "of the copy's rate", "peak GiB"], rows)


def peers_of(found: dict) -> list[dict]:
    return (found["peers"] or {"shapes": []})["shapes"]


def shape_text(shape: dict) -> str:
    return f"{shape['rows']} x {shape['columns']} {shape['dtype']}"


def milliseconds(part: dict) -> float:
    return part["milliseconds"]["median"]


def rate(part: dict) -> float:
    return part["bytes"] / milliseconds(part) * 1e3


def gib(count: int) -> str:
    return f"{count / 2**30:.2f}"


# Targets: rows of what is asked of what, where, and whether that was reached.


def targets(found: dict) -> list[list[str]]:
    shapes = found["benchmark"]["shapes"] if found["benchmark"] else []
    return [bits(found["checks"]), *(row for shape in shapes for row in targets_of_shape(found, shape))]


def targets_of_shape(found: dict, shape: dict) -> list[list[str]]:
    parts, copy = shape["parts"], found["benchmark"]["copy_bytes_per_second"]
    text = shape_text(shape)
    rows = []
    for what in ("gradient", "gradient, in place"):
        rows.append(at_least(f"{what}: of the copy's rate", text, 0.85, rate(parts[what]) / copy))
    for what in ("forward+backward", "one call", "driver: forward+backward", "driver: one call"):
        floor = least_milliseconds(found, shape, parts[what])
        times = milliseconds(parts[what]) / floor if floor else None
        rows.append(at_most(f"{what}: time, of what its kernels must take", text, 1.15, times))
    if (shape["rows"], shape["columns"], shape["dtype"]) != PUBLISHED:
        return rows
    torch = [other["parts"][TORCH] for other in peers_of(found) if TORCH in other["parts"] and shape_text(other) == text]
    for what in ("driver: forward+backward", "driver: one call"):
        faster = milliseconds(torch[0]) / milliseconds(parts[what]) if torch else None
        rows.append(at_least(f"{what}: times as fast as softplus recompute, torch.compile", text, 3, faster))
    once = shape["rows"] * shape["columns"] * {"bf16": 2}[shape["dtype"]]
    for what, times in (("driver: forward+backward", 2), ("driver: forward+backward, in place", 1)):
        peak = parts[what]["peak_bytes"]
        rows.append([
            f"{what}: memory, of the logits'", text, f"at most {times}.00 ({gib(times * once)} GiB)",
            f"{peak / once:.2f} ({gib(peak)} GiB)", "yes" if round(peak / once, 2) <= times else "no",
        ])  # fmt: skip
    return rows


def at_least(what: str, where: str, limit: float, value: float | None) -> list[str]:
    return row(what, where, f"at least {limit:g}", (value, value is not None and value >= limit))


def at_most(what: str, where: str, limit: float, value: float | None) -> list[str]:
    return row(what, where, f"at most {limit:g}", (value, value is not None and value <= limit))


def row(what: str, where: str, asked: str, found: tuple[float | None, bool]) -> list[str]:
    value, reached = found
    if value is None:
        return [what, where, asked, "not measured", ""]
    return [what, where, asked, f"{value:.3g}", "yes" if reached else "no"]


def clocks_of(shape: dict) -> list[float]:
    """Those that were read while the shape's parts ran. A driver's call returns when its work is done, and its clock is one of
    a device that waits."""
    return [part["clock_hz"] for what, part in shape["parts"].items() if part["clock_hz"] and not what.startswith("driver: ")]


def bits(checks: dict[str, str]) -> list[str]:
    """Those checks that hold results against the CPU's, bit for bit: none may be missing."""
    parity = [name for name in checks if name.startswith("parity of ") and "gpu/" not in name]
    names = ["fingerprint", "tests", "conformance", *(parity or ["parity"])]
    how = {name: checks.get(name, "not run") for name in names}
    found = [name for name in names if how[name] == "failed"]
    missing = [name for name in names if how[name] not in ("passed", "failed")]
    measured = f"some, by: {', '.join(found)}" if found else f"not measured: {', '.join(missing)}" if missing else "0"
    return ["bits that differ from the CPU's", "those of the tests, and real ones", "0", measured, "no" if found else "" if missing else "yes"]


def least_milliseconds(found: dict, shape: dict, part: dict) -> float | None:
    """What the part's kernels must take, one after another: each the longer of its bytes at the copy's rate and its instructions
    at the rate at which they are issued. None where that is not known."""
    benchmark = found["benchmark"]
    device, clocks = benchmark["device"], clocks_of(shape)
    clock = statistics.median(clocks) if clocks else device["clock_hz"]
    passes = {f"{kernel}_{shape['dtype']}": count for kernel, count in PASSES.items()}
    logits = shape["rows"] * shape["columns"]
    total = 0.0
    for kernel in part["kernels"]:
        if kernel not in passes:
            continue
        instructions = instructions_of(found["instructions"], kernel, device["compute_capability"])
        if not instructions or not clock:
            return None
        once = logits * {"bf16": 2, "fp16": 2, "fp32": 4}[shape["dtype"]]
        moving = passes[kernel] * once / benchmark["copy_bytes_per_second"]
        total += max(moving, logits * instructions / (ISSUE_LANES * device["multiprocessors"] * clock))
    return total * 1e3


def instructions_of(counts: dict | None, kernel: str, capability: int) -> float | None:
    """A logit's, in the machine code that the device takes: the newest of its generation that is not newer than it."""
    built = {int(name.removeprefix("sm_")): n for name, n in (counts or {}).get(kernel, {}).items()}
    usable = [number for number in built if number // 10 == capability // 10 and number <= capability]
    return built[max(usable)] if usable else None
