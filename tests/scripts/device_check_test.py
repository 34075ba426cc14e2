"""scripts/device-check runs what it should, says what failed, and writes one file of JSON; with stand-ins for its programs."""

import json
import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = """case $1 in
--device-name) echo 'NVIDIA H200 (x1)' ;;
*) for file; do :; done; echo '{"shapes": []}' >"$file" ;;
esac"""


class DeviceCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path in ("scripts/common.sh", "scripts/device-check"):
            (self.folder / path).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / path, self.folder / path)
        (self.folder / "tests/data").mkdir(parents=True)
        (self.folder / "tests/data/fingerprint.txt").write_text("bits\n")
        (self.folder / "build/device-check/bin").mkdir(parents=True)
        (self.folder / "build/device-check/libc").write_text("glibc 2.36\n")
        (self.folder / "build/device-check/version").write_text("tpce 0.1.0 (git 782eae41b9c2)\n")
        (self.folder / "build/device-check/instructions.json").write_text('{"fused_bf16": {"sm_90": 38.2}}\n')
        self.program("tpce-gpu-bench", BENCH)
        self.program("tpce", "echo bits")
        for name in ("gpu_device_test", "production_method_test", "backends_agree_test"):
            self.program(name, "echo '[       OK ] Some.Test/gpu (1 ms)'")
        # Neither another project's losses nor NVIDIA's tools of this machine.
        self.tool("python3", "exit 1")
        self.tool("compute-sanitizer", 'shift 4; exec "$@"')

    def script(self, path, body):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def program(self, name, body):
        self.script(self.folder / "build/device-check/bin" / name, body)

    def tool(self, name, body):
        self.script(self.folder / "tools" / name, body)

    def check(self, *words):
        known = os.environ | {"PATH": f"{self.folder}/tools:{os.environ['PATH']}"}
        command = ["bash", self.folder / "scripts/device-check", *words]
        return subprocess.run(command, capture_output=True, text=True, env=known)

    def written(self, name="nvidia-h200-x1"):
        return json.loads((self.folder / f"bench/results/{name}.json").read_text())

    def test_all_is_well(self):
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stderr)
        result = self.written()
        self.assertEqual(result["device"], "NVIDIA H200 (x1)")
        self.assertEqual((result["version"], result["quick"]), ("0.1.0 (git 782eae41b9c2)", False))
        self.assertNotIn("WARNING", done.stderr)
        self.assertEqual(result["checks"].pop("other projects' losses"), "not run")
        self.assertEqual(set(result["checks"].values()), {"passed"})
        on_file = "on smollm2_repeat12_bf16.safetensors"
        for name in ("fingerprint", "tests", "tests of production kernels", f"parity of gpu/log_softmax {on_file}",
                     f"parity of gpu/softplus_recompute {on_file}", "conformance", "memcheck", "racecheck",
                     "memcheck of production kernels", "racecheck of production kernels", "benchmark"):  # fmt: skip
            self.assertIn(name, result["checks"])
        self.assertEqual((result["benchmark"], result["peers"]), ({"shapes": []}, None))
        self.assertEqual(result["instructions"], {"fused_bf16": {"sm_90": 38.2}})

    def test_quick_leaves_the_whole_result_alone(self):
        self.assertEqual(self.check().returncode, 0)
        whole = self.written()
        self.program("tpce-gpu-bench", BENCH.replace('"shapes": []', '"shapes": [1]'))
        self.assertEqual(self.check("--quick").returncode, 0)
        self.assertEqual(self.written(), whole)
        quick = self.written("nvidia-h200-x1-quick")
        self.assertEqual((quick["quick"], quick["benchmark"]), (True, {"shapes": [1]}))

    def git(self, *words):
        command = ["git", "-C", self.folder, "-c", "user.name=A", "-c", "user.email=a@example.org", *words]
        known = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null"}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=known).stdout.strip()

    def test_a_bundle_of_other_sources_is_told(self):
        self.git("init", "--quiet")
        self.git("commit", "--quiet", "--allow-empty", "-m", "One")
        head = self.git("rev-parse", "HEAD")[:12]
        bundle = self.folder / "build/device-check/version"
        for version, warned in ((f"0.1.0 (git {head})", False), (f"0.1.0 (git {head}-dirty)", True),
                                ("0.1.0 (git 782eae41b9c2)", True), ("0.1.0", True)):  # fmt: skip
            bundle.write_text(f"tpce {version}\n")
            done = self.check()
            self.assertEqual(done.returncode, 0, done.stderr)
            warning = f"WARNING: build/device-check is of {version}, the sources here are of {head}; "
            self.assertEqual(warning in done.stderr, warned, done.stderr)
            self.assertEqual(self.written()["version"], version)

    def test_a_bundle_older_than_the_build_is_told(self):
        built = self.folder / "build/release/tests/gpu_device_test"
        self.script(built, "exit 1")
        bundle = self.folder / "build/device-check/version"
        os.utime(bundle, (2e9, 2e9))
        self.assertNotIn("WARNING", self.check().stderr)
        os.utime(bundle, (1e9, 1e9))
        warning = "WARNING: build/release/tests/gpu_device_test is newer than build/device-check, which is of 0.1.0 (git 782eae41b9c2)"
        self.assertIn(warning, self.check().stderr)

    def test_a_bundle_without_a_version_is_refused(self):
        (self.folder / "build/device-check/version").unlink()
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not say its version", done.stderr)

    def test_pack_notes_the_version_and_what_kernels_cost(self):
        shutil.rmtree(self.folder / "build/device-check")
        self.script(self.folder / "scripts/sass-budget", "[[ $1 == --counts ]] && echo '{}'")
        programs = ("bin/tpce-gpu-bench", "tests/gpu_device_test", "tests/production_method_test", "tests/backends_agree_test")
        for name in ("bin/tpce", *programs):
            self.script(self.folder / "build/release" / name, "echo 'tpce 0.1.0 (git 0123456789ab)'")
        self.tool("ldd", "echo 'libstdc.so.6 => /bin/true (0x7f00)'")
        done = self.check("pack")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "build/device-check/version").read_text(), "tpce 0.1.0 (git 0123456789ab)\n")
        self.assertEqual((self.folder / "build/device-check/instructions.json").read_text(), "{}\n")
        # A machine without a disassembler.
        self.script(self.folder / "scripts/sass-budget", "exit 3")
        done = self.check("pack")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the machine code could not be read", done.stderr)
        self.assertEqual((self.folder / "build/device-check/instructions.json").read_text(), "null\n")

    def test_other_bits_are_a_failure(self):
        self.program("tpce", "echo other")
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.written()["checks"]["fingerprint"], "failed")
        self.assertIn("failed: fingerprint", done.stderr)

    def test_a_failing_test_is_named_and_the_rest_is_run(self):
        self.program("gpu_device_test", "exit 1")
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.written()["checks"]["tests"], "failed")
        self.assertEqual(self.written()["benchmark"], {"shapes": []})

    def test_production_kernels_are_tested(self):
        self.program("production_method_test", "exit 1")
        self.assertEqual(self.check().returncode, 1)
        self.assertEqual(self.written()["checks"]["tests of production kernels"], "failed")

    def test_tests_that_find_no_device_are_a_failure(self):
        for said in ("[  SKIPPED ] Some.Test/gpu (0 ms)", "[  PASSED  ] 0 tests."):
            self.program("backends_agree_test", f"echo '{said}'")
            self.assertEqual(self.check().returncode, 1)
            self.assertEqual(self.written()["checks"]["conformance"], "failed")

    def test_small_cases_run_under_both_sanitizers(self):
        self.tool("compute-sanitizer", f"echo \"$2 ${{5##*/}} $6\" >>'{self.folder}/said'; shift 4; exec \"$@\"")
        self.assertEqual(self.check().returncode, 0)
        said = (self.folder / "said").read_text().splitlines()
        small = [f"{tool} {test} --gtest_filter=*Small*/gpu"
                 for tool in ("memcheck", "racecheck") for test in ("gpu_device_test", "production_method_test")]  # fmt: skip
        self.assertEqual([line for line in said if "filter" in line], small)

    def test_a_sanitizer_that_refuses_the_device_is_not_run(self):
        self.tool("compute-sanitizer", "echo '========= Error: Device not supported.'; exit 1")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.written()["checks"]["racecheck"], "not run")
        self.assertIn("memcheck: NOT RUN, compute-sanitizer does not support the device here", done.stdout)

    def test_libraries_of_the_bundle_are_for_its_programs_alone(self):
        self.program("tpce", f"[[ $LD_LIBRARY_PATH == {self.folder}/build/device-check/lib* ]] && echo bits")
        self.tool("python3", f"echo \"$LD_LIBRARY_PATH\" >'{self.folder}/seen'; exit 1")
        self.assertEqual(self.check().returncode, 0)
        self.assertNotIn("device-check/lib", (self.folder / "seen").read_text())

    def test_a_benchmark_that_fails_is_a_failure(self):
        self.program("tpce-gpu-bench", "[[ $1 == --device-name ]] && echo 'NVIDIA H200 (x1)'")
        self.assertEqual(self.check().returncode, 1)
        self.assertIsNone(self.written()["benchmark"])
        self.assertEqual(self.written()["checks"]["benchmark"], "failed")

    def test_other_projects_losses_that_fail_are_a_failure(self):
        self.tool("python3", "[[ $1 == -c ]]")
        self.assertEqual(self.check().returncode, 1)
        self.assertEqual(self.written()["checks"]["other projects' losses"], "failed")

    def edit(self, *changes):
        script = self.folder / "scripts/device-check"
        text = script.read_text()
        for old, new in changes:
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        script.write_text(text)

    def test_nothing_is_begun_after_the_time(self):
        self.edit(('echo "$device"\n', 'echo "$device"\nbudget=0\n'))
        for tool in ("compute-sanitizer", "python3"):
            self.tool(tool, f"touch '{self.folder}/begun'")
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(set(self.written()["checks"].values()), {"not begun"})
        self.assertFalse((self.folder / "begun").exists())
        self.assertIn("device-check: memcheck: not begun, no time was left\n", done.stderr)
        self.assertIn("other projects' losses: not begun, no time was left\n", done.stderr)
        self.assertNotIn("exit status", done.stderr)

    def test_what_takes_too_long_is_ended(self):
        self.edit(("budget=460", "budget=2"))
        for name in ("compute-sanitizer", "python3"):
            self.tool(name, "exec sleep 300")
        self.program("tpce", "exec sleep 300")
        begun = time.monotonic()
        done = self.check()
        self.assertLess(time.monotonic() - begun, 200)
        self.assertEqual(done.returncode, 1)
        self.assertIn("fingerprint: it took longer than its 40 s, or than what was left of the time\n", done.stderr)
        self.assertEqual(self.written()["checks"]["fingerprint"], "ended before it was done")

    def test_probes_that_take_too_long_are_ended(self):
        self.edit(("within 20", "within 1"), ("within 30", "within 1"))
        for name in ("compute-sanitizer", "python3"):
            self.tool(name, "exec sleep 300")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("memcheck: NOT RUN, compute-sanitizer did not end in time", done.stdout)
        self.assertIn("other projects' losses: NOT RUN, python3 did not import torch in time", done.stdout)

    def test_no_device_is_one_clear_end(self):
        self.program("tpce-gpu-bench", "echo 'tpce-gpu-bench: gpu: no NVIDIA driver was found' >&2; exit 2")
        done = self.check()
        self.assertEqual(done.returncode, 2)
        self.assertIn("no NVIDIA driver was found", done.stderr)
        self.assertFalse((self.folder / "bench").exists())

    def test_unknown_words_are_refused(self):
        self.assertEqual(self.check("now").returncode, 1)

    def test_help_is_the_text_at_the_start(self):
        said = self.check("--help").stdout
        self.assertTrue(said.startswith("scripts/device-check [pack | --quick]: "), said)
        self.assertTrue(said.endswith("which no table shows\n"), said)


if __name__ == "__main__":
    unittest.main()
