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

    GPU = {
        "device": "Some GPU",
        "version": "0.1.0 (git 782eae41b9c2)",
        "quick": False,
        "checks": {"fingerprint": "passed", "memcheck": "not run"},
        "benchmark": {
            "copy_bytes_per_second": 4e12,
            "shapes": [
                {
                    "rows": 16384, "columns": 64128, "dtype": "bf16",
                    "parts": {"forward": {"bytes": 2e9, "milliseconds": {"median": 1.0, "min": 0.5, "max": 2.0},
                                          "peak_bytes": 2**32}},
                }
            ],
        },
    }  # fmt: skip

    def test_a_gpu_has_a_page_of_its_own(self):
        self.give()
        before = self.report() and self.page.read_text()
        peers = json.loads(json.dumps(self.GPU["benchmark"]).replace("forward", "theirs"))
        (self.results / "some-gpu.json").write_text(json.dumps(self.GPU | {"peers": peers}))
        self.assertEqual(self.report().returncode, 0)
        self.assertEqual(self.page.read_text(), before)
        written = self.gpu_page.read_text()
        self.assertIn("**Some GPU**, by tpce 0.1.0 (git 782eae41b9c2)\n\nfingerprint: passed, memcheck: not run.", written)
        self.assertIn("moves 4.00 TB/s", written)
        # 2 GB in 1 ms are 2 TB/s.
        self.assertIn("| 16384 x 64128 | bf16 | forward | 1 (0.5 to 2) | 50% | 4.00 |\n", written)
        self.assertIn("| bf16 | theirs | 1 (0.5 to 2) |", written)
        self.assertNotIn("nothing", written)
        self.assertTrue(written.startswith("before\n") and written.endswith("after\n"))

    def test_a_gpu_of_another_form_is_refused(self):
        self.give()
        (self.results / "some-gpu.json").write_text(json.dumps(self.GPU | {"benchmark": {"shapes": []}}))
        self.assertIn("some-gpu.json", self.refused())

    def test_quick_results_of_a_gpu_are_not_shown(self):
        self.give()
        before = self.gpu_page.read_text()
        (self.results / "some-gpu-quick.json").write_text(json.dumps(self.GPU | {"quick": True}))
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
