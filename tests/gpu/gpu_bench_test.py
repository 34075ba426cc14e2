"""gpu_bench_test.py PROGRAM FOLDER OTHER: tpce-gpu-bench over a stand-in for the driver (fake_cuda.cc), whose clock says
1 ms whatever is timed. That of the second folder has no clock."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM, DRIVER, DRIVER_WITHOUT_CLOCK = sys.argv[1:4]


class GpuBenchTest(unittest.TestCase):
    def run_it(self, *words, failure="", driver=DRIVER):
        known = os.environ | {"LD_LIBRARY_PATH": driver, "FAKE_CUDA": failure}
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=known)

    def test_names_the_device(self):
        done = self.run_it("--device-name")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "Fake GPU\n", ""))

    def test_no_device_is_one_line(self):
        done = self.run_it("--device-name", failure="no device")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "tpce-gpu-bench: gpu: NVIDIA's driver is here, but it knows no device\n")

    def test_only_measuring_needs_a_clock(self):
        self.assertEqual(self.run_it("--device-name", driver=DRIVER_WITHOUT_CLOCK).returncode, 0)
        done = self.run_it("--rows", "3", "--columns", "1000", driver=DRIVER_WITHOUT_CLOCK)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(
            done.stderr,
            r"^tpce-gpu-bench: gpu: NVIDIA's driver has no function cuMemGetInfo_v2, expected that of CUDA 1[0-9]\.[0-9] "
            r"or later\n$",
        )

    def test_measures_every_part(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            done = self.run_it("--rows", "3", "--columns", "1000", "--json", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(path.read_text())
        self.assertEqual(result["device"], {"name": "Fake GPU", "multiprocessors": 132, "compute_capability": 90})
        (shape,) = result["shapes"]
        self.assertEqual((shape["rows"], shape["columns"], shape["dtype"]), (3, 1000, "bf16"))
        bytes_of = {what: part["bytes"] for what, part in shape["parts"].items()}
        logits = 3 * 1000 * 2
        fp32 = 2 * logits
        expected = {
            "forward": logits,
            "gradient, in place": 2 * logits,
            "one call, in place": 2 * logits,
            "log_softmax: forward": 3 * logits + fp32,
            "log_softmax: backward, in place": 2 * fp32,
            "softplus_recompute: forward": 2 * logits,
            "softplus_recompute: backward, in place": 2 * logits,
            "log_softmax: backward": fp32 + logits,
            "log_softmax: forward+backward": 4 * logits + 2 * fp32,
            "softplus_recompute: backward": 2 * logits,
            "softplus_recompute: forward+backward": 4 * logits,
            "gradient": 2 * logits,
            "forward+backward": 3 * logits,
            "one call": 2 * logits,
            "copy": 2 * logits,
        }
        self.assertEqual(bytes_of, expected)
        for part in shape["parts"].values():
            self.assertEqual(part["milliseconds"], {"median": 1.0, "min": 1.0, "max": 1.0})
        # 12000 bytes in 1 ms.
        self.assertAlmostEqual(result["copy_bytes_per_second"], 1.2e7)

    def test_a_file_that_cannot_be_written_is_found_first(self):
        done = self.run_it("--rows", "3", "--columns", "1000", "--json", "/nonexistent/results.json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("/nonexistent/results.json", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
