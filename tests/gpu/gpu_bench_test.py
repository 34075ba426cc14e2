"""gpu_bench_test.py PROGRAM FOLDER OTHER: tpce-gpu-bench over stand-ins for the driver (fake_cuda_that_measures.cc), whose clock
says 1 ms whatever is timed and which refuses to load the kernels twice, and for the library that tells the multiprocessors'
clock. The driver of the second folder has no clock."""

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
            r"^tpce-gpu-bench: gpu: NVIDIA's driver has no function cuEventSynchronize, expected that of CUDA 1[0-9]\.[0-9] "
            r"or later\n$",
        )

    def measured(self, *words, failure=""):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            done = self.run_it("--rows", "3", "--columns", "1000", "--json", path, *words, failure=failure)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(path.read_text())

    def test_measures_every_part(self):
        result = self.measured()
        known = {"name": "Fake GPU", "multiprocessors": 132, "compute_capability": 90, "clock_hz": 1.98e9}
        self.assertEqual(result["device"], known)
        (shape,) = result["shapes"]
        self.assertEqual((shape["rows"], shape["columns"], shape["dtype"]), (3, 1000, "bf16"))
        bytes_of = {what: part["bytes"] for what, part in shape["parts"].items()}
        logits = 3 * 1000 * 2
        fp32 = 2 * logits
        expected = {
            "forward": logits,
            "gradient, in place": 2 * logits,
            "one call, in place": 2 * logits,
            "driver: forward": logits,
            "driver: forward+backward, in place": 3 * logits,
            "driver: one call, in place": 2 * logits,
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
            "driver: forward+backward": 3 * logits,
            "driver: one call": 2 * logits,
            "copy": 2 * logits,
        }
        self.assertEqual(bytes_of, expected)
        for part in shape["parts"].values():
            self.assertEqual(part["milliseconds"], {"median": 1.0, "min": 1.0, "max": 1.0})
            self.assertEqual(part["clock_hz"], 1.755e9)
        # 12000 bytes in 1 ms.
        self.assertAlmostEqual(result["copy_bytes_per_second"], 1.2e7)

    def test_a_loss_is_one_that_is_summed(self):
        (shape,) = self.measured()["shapes"]
        kernels = {what: set(part["kernels"]) for what, part in shape["parts"].items()}
        forward = {"row_partials_bf16", "finalize_rows", "reduce_losses"}
        for prefix in ("", "driver: "):
            self.assertEqual(kernels[f"{prefix}forward"], forward)
            self.assertEqual(kernels[f"{prefix}forward+backward"], forward | {"gradient_bf16"})
            self.assertEqual(kernels[f"{prefix}one call"], {"fused_bf16", "reduce_losses"})
        self.assertEqual(kernels["gradient"], {"gradient_bf16"})
        # What is launched to restore the logits does not count.
        self.assertEqual(kernels["log_softmax: backward, in place"], {"log_softmax_gradient_fp32"})
        self.assertEqual(kernels["copy"], set())

    def test_memory_is_what_was_asked_for(self):
        (shape,) = self.measured()["shapes"]
        peak = {what: part["peak_bytes"] for what, part in shape["parts"].items()}
        logits, labels, saved = 3 * 1000 * 2, 3 * 8, 3 * 24
        # Both passes in the user's memory, and what backward keeps; a workspace, whatever the shape, of at most 64 KiB here.
        apart, in_place = peak["driver: forward+backward"], peak["driver: forward+backward, in place"]
        self.assertEqual(apart - in_place, logits)
        self.assertGreater(in_place, logits + labels + saved)
        self.assertLess(in_place, logits + labels + saved + 2**16)
        self.assertEqual(peak["gradient"] - peak["gradient, in place"], logits)
        # Log-probabilities are kept in fp32.
        self.assertGreater(peak["log_softmax: forward"], 3 * logits)

    def test_a_clock_that_is_not_told_is_null(self):
        result = self.measured(failure="no clock")
        self.assertIsNone(result["device"]["clock_hz"])
        self.assertEqual({part["clock_hz"] for part in result["shapes"][0]["parts"].values()}, {None})

    def test_a_file_that_cannot_be_written_is_found_first(self):
        done = self.run_it("--rows", "3", "--columns", "1000", "--json", "/nonexistent/results.json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("/nonexistent/results.json", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
