"""bench/run, with a tpce-bench and peers that print made-up numbers."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load():
    loader = importlib.machinery.SourceFileLoader("bench_run", str(ROOT / "bench/run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    loader.exec_module(module)
    return module


run = load()

# Each call adds its words to a file, and finds the next number in it.
FAKE = """#!{python}
import json, sys
words = sys.argv[1:]
with open("{log}", "a+") as log:
    log.write("{name} " + " ".join(words) + "\\n")
    log.seek(0)
    number = sum(line.startswith("{name} ") for line in log)
if number == {fails_at}:
    sys.exit(3)
open(words[words.index("--json") + 1], "w").write(json.dumps({result}))
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.page = self.folder / "speed.md"
        self.page.write_text((ROOT / "docs/speed.md").read_text())

    def install(self, name, path, result, fails_at=0):
        path.parent.mkdir(parents=True, exist_ok=True)
        log = self.folder / "calls"
        path.write_text(FAKE.format(python=sys.executable, log=log, name=name, result=result, fails_at=fails_at))
        path.chmod(0o755)

    def install_tpce_bench(self, **options):
        rate = '{"median": number, "min": number - 0.5, "max": number + 0.5}'
        result = f'{{"tp8_vs_tp1": number / 4, "target": "AVX2", "elements_per_ns": {{"bf16/forward": {rate}}}}}'
        self.install("ours", self.folder / "bin/tpce-bench", result, **options)

    def install_peers(self):
        # As the environment's Python: its first word is the program.
        rate = '{"median": 0, "min": 0, "max": 0, "values": [number, 10 * number], "peak_bytes": 7}'
        leaf = '"bf16": {"v128256": {"threads1": {"tp1": {"forward": %s}}}}' % rate
        peers = '{"cross_entropy": {"eager": {%s}}}' % leaf
        result = '{"versions": {"torch": "9"}, "tuning": {"chosen": "glibc"}, "peers": %s}' % peers
        self.install("peers", self.folder / "venv/bin/python", result)

    def start(self, *words):
        command = [sys.executable, "-B", ROOT / "bench/run", "--build", self.folder, "--venv", self.folder / "venv"]
        command += ["--results", self.folder / "results", "--page", self.page, "--force", *words]
        return subprocess.run(command, capture_output=True, text=True)

    def test_rounds_take_turns_and_are_merged(self):
        self.install_tpce_bench()
        self.install_peers()
        done = self.start("--quick", "--name", "mine")
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual([call.split()[0] for call in calls], ["ours", "peers"] * 3)
        self.assertTrue(all("--quick" in call for call in calls))
        # The first round has found the tuning and the memory.
        self.assertNotIn("--tuning", calls[1])
        self.assertIn("--tuning glibc --no-memory", calls[3])

        found = json.loads((self.folder / "results/mine.json").read_text())
        self.assertEqual(found["tpce"]["tp8_vs_tp1"], 0.5)
        self.assertEqual(found["tpce"]["target"], "AVX2")
        self.assertEqual(found["tpce"]["elements_per_ns"]["bf16/forward"], {"median": 2, "min": 0.5, "max": 3.5})
        peer = found["torch"]["peers"]["cross_entropy"]["eager"]["bf16"]["v128256"]["threads1"]["tp1"]["forward"]
        # Of 1, 2, 3, 10, 20, 30.
        self.assertEqual(peer, {"median": 6.5, "min": 1, "max": 30, "peak_bytes": 7})
        self.assertIn("**mine**", self.page.read_text())

    def test_peers_are_left_out_where_they_are_not_installed(self):
        self.install_tpce_bench()
        done = self.start("--name", "mine", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("there are no peers; bench/peers/make-venv", done.stderr)
        self.assertNotIn("torch", json.loads((self.folder / "results/mine.json").read_text()))

    def test_a_failed_round_leaves_no_result(self):
        self.install_tpce_bench(fails_at=2)
        done = self.start("--name", "mine")
        self.assertEqual(done.returncode, 2)
        self.assertIn("bin/tpce-bench: failed with status 3", done.stderr)
        self.assertFalse((self.folder / "results").exists())

    def test_a_missing_tpce_bench_is_named(self):
        done = self.start()
        self.assertEqual(done.returncode, 2)
        self.assertIn("bin/tpce-bench: not found; configure with -DTPCE_BENCH=ON", done.stderr)

    def test_no_rounds_are_refused(self):
        done = self.start("--rounds", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--rounds: got 0, expected 1 or more", done.stderr)

    def test_a_machine_that_is_busy_is_refused(self):
        self.assertIsNone(run.busy(0.5))
        self.assertIn("the load average is 0.51, expected at most 0.5", run.busy(0.51))


class MachineTest(unittest.TestCase):
    def name(self, *lines, cpus=2):
        return run.machine("\n".join(f"processor\t: {cpu}\n" + "\n".join(lines) + "\n" for cpu in range(cpus)))["name"]

    def test_names(self):
        xeon = ("model name\t: Intel(R) Xeon(R) Processor @ 2.10GHz", "flags\t\t: fpu avx2 avx512f avx512bw")
        self.assertEqual(self.name(*xeon), "intel-xeon-avx512-2cpu")
        epyc = ("model name\t: AMD EPYC 7763 64-Core Processor", "flags\t\t: fpu avx avx2")
        self.assertEqual(self.name(*epyc, cpus=4), "amd-epyc-7763-avx2-4cpu")
        core = ("model name\t: Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", "flags\t\t: fpu avx avx2")
        self.assertEqual(self.name(*core), "intel-core-i7-8700-avx2-2cpu")
        arm = ("Features\t: fp asimd sve sve2", "CPU part\t: 0xd4f")
        self.assertRegex(self.name(*arm), "part-0xd4f-sve2-2cpu$")


if __name__ == "__main__":
    unittest.main()
