"""bench/report.py writes what it was given into the page, and nothing else."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/bench/results/sample.json"


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.results = self.folder / "results"
        self.results.mkdir()
        self.page = self.folder / "speed.md"
        # The page as it is before any result.
        page = (ROOT / "docs/speed.md").read_text()
        self.page.write_text(re.sub(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", r"\1\3", page, flags=re.DOTALL))
        self.gpu_page = self.folder / "gpu.md"
        self.gpu_page.write_text("before\n<!-- begin measured -->\nnothing\n<!-- end measured -->\nafter\n")

    def give(self, change=lambda sample: None, name="sample"):
        sample = json.loads(SAMPLE.read_text())
        change(sample)
        (self.results / f"{name}.json").write_text(json.dumps(sample))

    def report(self, **environment):
        words = [sys.executable, "-B", ROOT / "bench/report.py", "--results", self.results, "--page", self.page, "--gpu-page", self.gpu_page]
        return subprocess.run(words, capture_output=True, text=True, env=os.environ | environment)

    def written(self, block):
        done = self.report()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = self.page.read_text()
        return text.split(f"<!-- begin {block} -->")[1].split(f"<!-- end {block} -->")[0]

    def line(self, block, first):
        lines = [line for line in self.written(block).splitlines() if line.startswith(f"| {first} |")]
        self.assertEqual(len(lines), 1, f"lines that begin with {first}")
        return [cell.strip() for cell in lines[0].strip("|").split("|")][1:]

    def refused(self, **environment):
        before = self.page.read_text()
        done = self.report(**environment)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertEqual(self.page.read_text(), before)
        return done.stderr

    def test_ratios_of_tpce_bench_are_judged(self):
        self.give()
        self.assertEqual(self.line("reach", "order-free forward, bf16, of `plain`"), ["at least 0.72", "0.75", "yes"])
        self.assertEqual(self.line("reach", "order-free forward, fp32, of `plain`"), ["at least 0.68", "0.6", "no"])
        memory = "peak extra memory of a forward, of the logits"
        self.assertEqual(self.line("reach", memory), ["at most 0.01", "0.004", "yes"])
        # A rate of 0.8 is a cost of 1.25.
        growth = "cost of an element at V = 4096 and at V = 262144, one over the other"
        self.assertEqual(self.line("reach", growth), ["at most 1.15", "1.25", "no"])

    def test_what_was_not_measured_is_said_to_be_so(self):
        self.give()
        self.assertEqual(self.line("reach", "the same on real logits"), ["at least 0.8", "not measured", ""])

    def test_the_fastest_loss_of_any_mode_is_the_one_compared_with(self):
        self.give()
        # bf16: 6 / 1.5 on one thread, 12 / 6 on two; fp32: 5 / 2.
        forward = ["at least 1.7", "bf16, 1 thread: 4; fp32, 1 thread: 2.5; bf16, 2 threads: 2", "yes"]
        self.assertEqual(self.line("reach", "forward, of the fastest torch loss"), forward)
        # bf16: 3 / 0.625, that of one graph; fp32: 2.5 / 1. One ratio below is enough for a no.
        both = ["at least 3", "bf16, 1 thread: 4.8; fp32, 1 thread: 2.5", "no"]
        self.assertEqual(self.line("reach", "forward+backward, of the fastest torch loss"), both)

    def test_vocab_parallel_losses_are_compared_with_vocab_parallel_losses(self):
        self.give()
        # 6 / 0.25 and 12 / 0.5: F.cross_entropy is faster and does not count.
        ranks = ["at least 4", "bf16, tp 1: 24; bf16, tp 2: 24", "yes"]
        self.assertEqual(self.line("reach", "forward, of the fastest vocab-parallel loss on gloo"), ranks)

    def test_more_is_asked_for_on_wide_registers(self):
        self.give(lambda sample: sample["machine"].update(isa="avx512"))
        forward = self.line("reach", "forward, of the fastest torch loss")
        self.assertEqual((forward[0], forward[2]), ("at least 3", "no"))

    def test_rates_have_their_spread(self):
        self.give()
        self.assertEqual(
            self.written("rates").count("\n| 32000 | bf16 | 3 (1.5 to 6) | 1.5 (0.75 to 3) | 4 (2 to 8) |"), 1
        )
        self.assertEqual(
            self.line("peers", "F.cross_entropy, torch.compile")[:3], ["1.5 (0.75 to 3)", "6 (3 to 12)", "2 (1 to 4)"]
        )

    def test_cycles_are_the_clock_over_the_rate(self):
        self.give(lambda sample: sample["tpce"].update(clock_ghz={"median": 3.0, "min": 2.5, "max": 3.5}))
        written = self.written("rates")
        self.assertIn("Cycles an element, at 3 (2.5 to 3.5) GHz:", written)
        self.assertIn("| 32000 | bf16 | 1 | 2 | 0.75 |", written)

    def test_no_cycles_without_a_clock(self):
        self.give()
        self.assertNotIn("Cycles", self.written("rates"))

    def test_onednn_is_shown_where_it_was_measured(self):
        def measured(sample):
            sample["tpce"]["onednn"] = "2.6.3"
            rate = {"median": 1.5, "min": 1.0, "max": 2.0}
            sample["tpce"]["elements_per_ns"]["fp32_v128256_t64_threads1_tp1/onednn"] = rate

        self.give()
        self.assertNotIn("oneDNN", self.written("rates"))
        self.give(measured)
        written = self.written("rates")
        self.assertIn("Log-softmax of oneDNN 2.6.3, V = 128256:", written)
        # 5 / 1.5; bf16 has no line.
        lines = "| --- | --- | --- | --- |\n| fp32 | 1 | 1.5 (1 to 2) | 3.33 |\n\n"
        self.assertIn(lines, written)

    def test_memory_is_in_multiples_of_the_logits(self):
        self.give()
        # 4 bytes an element beside logits of 2, and twice that with backward.
        self.assertEqual(self.line("memory", "F.cross_entropy, eager"), ["2.00", "", "4.00", ""])

    def part(self, bytes_moved, milliseconds, **known):
        spread = {"median": milliseconds, "min": milliseconds / 2, "max": milliseconds * 2}
        return {"bytes": bytes_moved, "milliseconds": spread, "peak_bytes": 2**32, "kernels": [], "clock_hz": 1.5e9} | known

    def gpu(self):
        """Made up: of no device."""
        once = 16384 * 64128 * 2
        two_kernels = ["finalize_rows", "gradient_bf16", "reduce_losses", "row_partials_bf16"]
        parts = {
            "gradient": self.part(2 * once, 1.2),
            "gradient, in place": self.part(2 * once, 1.3),
            "forward+backward": self.part(3 * once, 2.0, kernels=two_kernels),
            "one call": self.part(2 * once, 1.7, kernels=["fused_bf16", "reduce_losses"]),
            "driver: forward+backward": self.part(3 * once, 2.5, kernels=two_kernels, peak_bytes=2 * once + 2**21),
            "driver: forward+backward, in place": self.part(3 * once, 2.5, peak_bytes=once + 2**25),
            "driver: one call": self.part(2 * once, 2.0, kernels=["fused_bf16", "reduce_losses"]),
        }
        shape = {"rows": 16384, "columns": 64128, "dtype": "bf16"}
        torch = {"softplus_recompute, compiled: forward+backward": self.part(3 * once, 7.0)}
        passed = ["fingerprint", "tests", "conformance", "parity of a.safetensors", "parity of gpu/log_softmax on a.safetensors"]
        return {
            "device": "Some GPU",
            "version": "0.1.0 (git 782eae41b9c2)",
            "quick": False,
            "checks": dict.fromkeys(passed, "passed") | {"memcheck": "not run"},
            "instructions": {"row_partials_bf16": {"sm_80": 30.0, "sm_90": 20.0}, "gradient_bf16": {"sm_80": 15.0, "sm_90": 15.0},
                             "fused_bf16": {"sm_80": 50.0, "sm_90": 38.0}},
            "benchmark": {
                "device": {"name": "Some GPU", "multiprocessors": 100, "compute_capability": 90, "clock_hz": 2e9},
                "copy_bytes_per_second": 4e12,
                "shapes": [shape | {"parts": parts}],
            },
            "peers": {"shapes": [shape | {"parts": torch}]},
        }  # fmt: skip

    def gpu_report(self, change=lambda found: None):
        self.give()
        found = self.gpu()
        change(found)
        (self.results / "some-gpu.json").write_text(json.dumps(found))
        done = self.report()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.gpu_page.read_text()

    def targets(self, change=lambda found: None):
        lines = [line for line in self.gpu_report(change).splitlines() if line.startswith("| ")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return {row[0]: row[2:] for row in rows if len(row) == 5}

    def test_a_gpu_has_a_page_of_its_own(self):
        self.give()
        before = self.report() and self.page.read_text()
        written = self.gpu_report()
        self.assertEqual(self.page.read_text(), before)
        self.assertIn("**Some GPU**, by tpce 0.1.0 (git 782eae41b9c2)\n\nfingerprint: passed, ", written)
        self.assertIn("memcheck: not run.\n", written)
        self.assertIn("100 multiprocessors of sm_90, 2 GHz by its properties, 1.5 to 1.5 GHz read while parts ran.", written)
        self.assertIn("moves 4.00 TB/s", written)
        # 4.2 GB in 1.2 ms are 3.5 TB/s.
        self.assertIn("| 16384 x 64128 bf16 | gradient | 1.2 (0.6 to 2.4) | 88% | 4.00 |\n", written)
        self.assertIn("| softplus_recompute, compiled: forward+backward | 7 (3.5 to 14) |", written)
        self.assertNotIn("nothing", written)
        self.assertTrue(written.startswith("before\n") and written.endswith("after\n"))

    def test_targets_on_a_gpu_are_judged(self):
        targets = self.targets()
        self.assertEqual(targets["gradient: of the copy's rate"], ["at least 0.85", "0.876", "yes"])
        self.assertEqual(targets["gradient, in place: of the copy's rate"], ["at least 0.85", "0.808", "no"])
        # 1.05e9 logits. At 1.5 GHz 1.92e13 instructions/s: row_partials 1.094 ms (memory 0.525), gradient 1.051 ms by memory
        # (issue 0.821), fused 2.079 ms (memory 1.051).
        times = "time, of what its kernels must take"
        self.assertEqual(targets[f"forward+backward: {times}"], ["at most 1.15", "0.932", "yes"])
        self.assertEqual(targets[f"driver: forward+backward: {times}"], ["at most 1.15", "1.17", "no"])
        self.assertEqual(targets[f"one call: {times}"], ["at most 1.15", "0.818", "yes"])
        torch = "times as fast as softplus recompute, torch.compile"
        self.assertEqual(targets[f"driver: forward+backward: {torch}"], ["at least 3", "2.8", "no"])
        self.assertEqual(targets[f"driver: one call: {torch}"], ["at least 3", "3.5", "yes"])
        memory = "memory, of the logits'"
        self.assertEqual(targets[f"driver: forward+backward: {memory}"], ["at most 2.00 (3.91 GiB)", "2.00 (3.92 GiB)", "yes"])
        in_place = targets[f"driver: forward+backward, in place: {memory}"]
        self.assertEqual(in_place, ["at most 1.00 (1.96 GiB)", "1.02 (1.99 GiB)", "no"])
        self.assertEqual(targets["bits that differ from the CPU's"], ["0", "0", "yes"])

    def test_the_clock_of_the_properties_serves_where_none_was_read(self):
        def unread(found):
            for part in found["benchmark"]["shapes"][0]["parts"].values():
                part["clock_hz"] = None

        # At 2 GHz row_partials takes 0.821 ms.
        self.assertEqual(self.targets(unread)["forward+backward: time, of what its kernels must take"][1], "1.07")
        self.assertIn("2 GHz by its properties, not read while parts ran.", self.gpu_page.read_text())

    def test_the_clock_of_a_device_that_waits_is_not_used(self):
        def idle(found):
            for what, part in found["benchmark"]["shapes"][0]["parts"].items():
                if what.startswith("driver: "):
                    part["clock_hz"] = 5e8

        times = "time, of what its kernels must take"
        self.assertEqual(self.targets(idle)[f"driver: forward+backward: {times}"], ["at most 1.15", "1.17", "no"])
        self.assertNotIn("0.5 to", self.gpu_page.read_text())

    def test_a_check_that_ran_out_of_time_found_no_bit(self):
        def ended(found):
            found["checks"]["conformance"] = "ended before it was done"

        self.assertEqual(self.targets(ended)["bits that differ from the CPU's"], ["0", "not measured: conformance", ""])

    def test_what_a_gpu_was_not_asked_has_no_verdict(self):
        def less(found):
            found["peers"] = None
            found["instructions"] = None
            found["checks"]["conformance"] = "not begun"

        targets = self.targets(less)
        for what in ("one call: time, of what its kernels must take",
                     "driver: one call: times as fast as softplus recompute, torch.compile"):  # fmt: skip
            self.assertEqual(targets[what][1:], ["not measured", ""])
        self.assertEqual(targets["bits that differ from the CPU's"][1:], ["not measured: conformance", ""])

    def test_a_check_of_bits_that_failed_is_a_no(self):
        targets = self.targets(lambda found: found["checks"].update({"parity of a.safetensors": "failed"}))
        self.assertEqual(targets["bits that differ from the CPU's"][1:], ["some, by: parity of a.safetensors", "no"])
        # Production kernels need not have the CPU's bits.
        targets = self.targets(lambda found: found["checks"].update({"parity of gpu/log_softmax on a.safetensors": "failed"}))
        self.assertEqual(targets["bits that differ from the CPU's"][1:], ["0", "yes"])
        targets = self.targets(lambda found: found["checks"].pop("parity of a.safetensors"))
        self.assertEqual(targets["bits that differ from the CPU's"][1:], ["not measured: parity", ""])

    def test_the_machine_code_is_the_one_that_the_device_takes(self):
        # sm_86 takes that of sm_80, and sm_120 takes neither.
        times = "one call: time, of what its kernels must take"
        older = self.targets(lambda found: found["benchmark"]["device"].update(compute_capability=86))
        self.assertEqual(older[times][1], f"{1.7 / (16384 * 64128 * 50 / 1.92e13 * 1e3):.3g}")
        newer = self.targets(lambda found: found["benchmark"]["device"].update(compute_capability=120))
        self.assertEqual(newer[times][1:], ["not measured", ""])

    def test_a_gpu_whose_benchmark_failed_shows_its_checks(self):
        targets = self.targets(lambda found: found.update(benchmark=None))
        self.assertEqual(list(targets), ["target", "---", "bits that differ from the CPU's"])

    def test_a_gpu_of_another_form_is_refused(self):
        self.give()
        for key in ("version", "quick", "checks", "instructions", "benchmark", "peers"):
            found = self.gpu()
            del found[key]
            (self.results / "some-gpu.json").write_text(json.dumps(found))
            self.assertIn("some-gpu.json", self.refused())

    def test_quick_results_of_a_gpu_are_not_shown(self):
        self.give()
        before = self.gpu_page.read_text()
        (self.results / "some-gpu-quick.json").write_text(json.dumps(self.gpu() | {"quick": True}))
        self.assertEqual(self.report().returncode, 0)
        self.assertEqual(self.gpu_page.read_text(), before)

    def test_without_a_gpu_its_page_stays_as_it_is(self):
        self.give()
        before = self.gpu_page.read_text()
        self.assertEqual(self.report().returncode, 0)
        self.assertEqual(self.gpu_page.read_text(), before)

    def test_quick_results_are_enough(self):
        def quick(sample):
            rates = sample["tpce"]["elements_per_ns"]
            sample["tpce"]["elements_per_ns"] = {name: rate for name, rate in rates.items() if "_v" not in name}

        self.give(quick)
        self.assertEqual(
            self.line("reach", "forward, of the fastest torch loss")[1:],
            ["bf16, 1 thread: 4; fp32, 1 thread: 2.5; bf16, 2 threads: 2", "yes"],
        )
        self.assertIn("| 128256 | bf16 | 6 (3 to 12) | 4 (2 to 8) |", self.written("rates"))

    def test_results_without_peers_are_enough(self):
        self.give(lambda sample: sample.pop("torch"))
        self.assertIn("Not measured on this machine.", self.written("peers"))
        self.assertEqual(self.line("reach", "forward, of the fastest torch loss")[1:], ["not measured", ""])

    def test_each_machine_has_its_tables(self):
        self.give()
        self.give(lambda sample: sample["machine"].update(cpu="Another CPU"), name="another")
        text = self.written("machines")
        self.assertLess(text.index("**another**\n\nAnother CPU"), text.index("**sample**\n\nSample CPU"))

    def test_plots_are_beside_the_page_and_linked(self):
        self.give()
        for block, what in (("peers", "peers"), ("rates", "vocab")):
            name = f"speed-sample-{what}.svg"
            self.assertIn(f"]({name})", self.written(block))
            root = xml.etree.ElementTree.parse(self.folder / name).getroot()
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            self.assertLess((self.folder / name).stat().st_size, 40000)
        self.assertIn("torchtitan, eager", (self.folder / "speed-sample-peers.svg").read_text())

    def test_text_by_hand_stays_and_a_second_run_changes_nothing(self):
        before = self.page.read_text().replace("## Rates\n", "## Rates\n\nWritten by hand.\n")
        self.page.write_text(before)
        self.give()
        self.written("rates")
        once = self.page.read_text()
        self.assertIn("## Rates\n\nWritten by hand.\n", once)
        self.written("rates")
        self.assertEqual(self.page.read_text(), once)
        # Without results the page is again what it was.
        (self.results / "sample.json").unlink()
        self.written("rates")
        self.assertEqual(
            [line for line in self.page.read_text().split("\n") if line], [line for line in before.split("\n") if line]
        )

    def test_a_page_without_a_marker_is_refused(self):
        self.give()
        self.page.write_text(self.page.read_text().replace("<!-- end peers -->", ""))
        self.assertIn("<!-- end peers -->: got 0 of them, expected 1", self.refused())

    def test_markers_in_the_wrong_order_are_refused(self):
        self.give()
        text = self.page.read_text().replace("<!-- end peers -->", "")
        self.page.write_text(text.replace("<!-- begin peers -->", "<!-- end peers -->\n<!-- begin peers -->"))
        self.assertIn("<!-- end peers -->: got it before its begin", self.refused())

    def test_another_file_is_refused(self):
        (self.results / "other.json").write_text('{"machine": {}}')
        self.assertIn("other.json: got KeyError('tpce'), expected what bench/run writes", self.refused())
        (self.results / "other.json").write_text("{")
        self.assertIn("other.json: got JSONDecodeError", self.refused())

    def test_the_package_of_gnuplot_is_named(self):
        self.give()
        self.assertIn("gnuplot is not installed (Debian package gnuplot-nox)", self.refused(PATH=str(self.folder)))


if __name__ == "__main__":
    unittest.main()
