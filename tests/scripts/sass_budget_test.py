"""scripts/sass-budget counts what a person counts in stored machine code, and refuses what is above its limits."""

import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SASS = ROOT / "tests/data/sass"
# In place of a disassembler: what a cubin of the test holds is its disassembly.
STAND_IN = '#!/bin/sh\nexec cat "$2"\n'
# A loop that computes, and one that computes as much and stores, of fewer blocks than the first.
BOTH = """
\t.section\t.text.both,"ax",@progbits
.L_x_0:
        /*0010*/                   FFMA R2, R2, R3, C5 ;
        /*0020*/              @P1  BRA `(.L_x_1) ;
        /*0030*/                   FADD R2, R2, R3 ;
.L_x_1:
        /*0040*/              @P0  BRA `(.L_x_0) ;
.L_x_2:
        /*0050*/                   FFMA R2, R2, R3, C5 ;
        /*0060*/                   STG.E [R4], R2 ;
        /*0070*/              @P0  BRA `(.L_x_2) ;
        /*0080*/                   EXIT ;
"""


class SassBudgetTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.disassembler = self.folder / "nvdisasm"
        self.disassembler.write_text(STAND_IN)
        self.disassembler.chmod(0o755)
        for architecture in ("sm_90", "sm_100"):
            shutil.copy(SASS / f"sample.{architecture}.sass", self.cubin(architecture))
            shutil.copy(SASS / f"sample.{architecture}.log", f"{self.cubin(architecture)}.log")

    def cubin(self, architecture):
        return self.folder / f"sample.{architecture}.cubin"

    def edit(self, path, old, new):
        text = Path(path).read_text()
        self.assertTrue(old in text, f"not in {path}: {old}")
        Path(path).write_text(text.replace(old, new))

    def run_it(self, *words):
        command = [sys.executable, "-B", ROOT / "scripts/sass-budget", "--cubins", self.folder]
        return subprocess.run([*command, "--nvdisasm", self.disassembler, *words], capture_output=True, text=True)

    def measured(self):
        done = self.run_it("--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def check(self, budget, *words):
        path = self.folder / "budget.json"
        path.write_text(json.dumps(budget))
        done = self.run_it("--check", path, *words)
        return done.returncode, done.stderr

    def test_the_way_with_every_digit_and_no_flush_is_counted(self):
        hot = self.measured()["forked"]["sm_90"]["hot_loop"]
        # 0x170 to 0x260, 0x630 to 0xb70, 0xb80 to 0xbb0, 0xc80 to 0xc90: 16, 85, 4 and 2 instructions.
        self.assertEqual((hot["address"], hot["elements"], hot["instructions"]), ("0x0170", 4, 107))
        self.assertEqual(hot["per_element"], 26.75)
        self.assertTrue(hot["is_loop"])
        self.assertEqual((hot["kinds"]["FFMA"], hot["kinds"]["FADD"], hot["kinds"]["FMNMX"]), (36, 32, 4))
        # The flush multiplies by IMAD, and nothing else does.
        self.assertNotIn("IMAD", hot["kinds"])

    def test_other_architectures_are_read_too(self):
        hot = self.measured()["forked"]["sm_100"]["hot_loop"]
        self.assertEqual((hot["elements"], hot["kinds"]["FFMA"], hot["kinds"]["FADD"]), (4, 36, 32))

    def test_code_without_a_loop_counts_as_one(self):
        kernels = self.measured()
        hot = kernels["straight"]["sm_90"]["hot_loop"]
        # 0x000 to 0x370.
        self.assertEqual((hot["is_loop"], hot["elements"], hot["instructions"]), (False, 4, 56))
        self.assertIsNone(kernels["copy"]["sm_90"]["hot_loop"])

    def test_resources_are_those_of_ptxas(self):
        used = self.measured()["forked"]["sm_90"]
        self.assertEqual((used["registers"], used["shared_bytes"], used["spill_loads"]), (30, 0, 0))

    def test_unrolled_twice_is_seen_as_twice_the_elements(self):
        # Every instruction with an exponential's constants, twice.
        text = self.cubin("sm_90").read_text()
        doubled = re.sub(r"^(\s+/\*[0-9a-f]+)0(\*/ .*FFMA.*\n)", r"\g<1>0\2\g<1>8\2", text, flags=re.MULTILINE)
        self.cubin("sm_90").write_text(doubled)
        hot = self.measured()["forked"]["sm_90"]["hot_loop"]
        self.assertEqual((hot["elements"], hot["kinds"]["FFMA"]), (8, 72))

    def add_both(self):
        text = self.cubin("sm_90").read_text()
        constant = re.search(r"FFMA .*, (0\.\d{6,}) ;", text)[1]
        self.cubin("sm_90").write_text(text + BOTH.replace("C5", constant))
        log = Path(f"{self.cubin('sm_90')}.log")
        log.write_text(log.read_text() + "Compiling entry function 'both' for 'sm_90'\nUsed 9 registers\n")

    def test_losses_and_then_gradients_are_two_loops(self):
        self.add_both()
        kernels = self.measured()
        hot, gradient = (kernels["both"]["sm_90"][loop] for loop in ("hot_loop", "gradient_loop"))
        self.assertEqual((hot["address"], hot["elements"], hot["instructions"]), ("0x0010", 1, 3))
        self.assertEqual((gradient["address"], gradient["elements"], gradient["per_element"]), ("0x0050", 1, 3))
        self.assertEqual({kernels[name]["sm_90"]["gradient_loop"] for name in ("forked", "straight", "copy")}, {None})
        done = self.run_it("--counts")
        counts = json.loads(done.stdout)
        self.assertEqual((counts["both"], counts["forked"]["sm_90"]), ({"sm_90": 6}, 26.75))
        self.assertNotIn("copy", counts)
        self.assertEqual(self.check({"both": {"sm_90": 3}, "both, gradient": {"sm_90": 3}}), (0, ""))
        code, said = self.check({"both, gradient": {"sm_90": 2.9}})
        self.assertEqual((code, said), (1, "sass-budget: both, gradient sm_90: 3.0 instructions an element, expected at most 2.9\n"))
        self.assertEqual(self.check({"forked, gradient": {"sm_90": 99}})[0], 1)

    def test_one_launch_is_predicted_by_its_two_loops(self):
        loader = importlib.machinery.SourceFileLoader("sass_budget", str(ROOT / "scripts/sass-budget"))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("sass_budget", loader))
        sys.modules["sass_budget"] = module  # where its dataclasses look
        loader.exec_module(module)

        def cost(hot, gradient=None):
            loops = {"hot_loop": hot, "gradient_loop": gradient}
            loops = {name: {"per_element": n, "kinds_per_element": {"FFMA": n}} if n else None for name, n in loops.items()}
            return {"sm_90": loops}

        kernels = {"fused_bf16": cost(40, 10), "row_partials_bf16": cost(30), "gradient_bf16": cost(10)}
        line = module.one_launch_table(kernels).splitlines()[2]
        # 16384 x 128256 logits: 40 instructions each of 128 x 132 lanes at 1.98 GHz are 2.51 ms, 2 bytes each at 3.35 TB/s 1.25 ms;
        # apart 1.88 (issue) and 2.51 ms (memory).
        self.assertEqual(line, "| H100 SXM | 1.98 GHz | 2.51 | 2.51 (issue) | 1.25 (memory) | 3.77 | 4.39 |")

    def test_within_the_limits_is_well(self):
        self.assertEqual(self.check({"forked": {"sm_90": 26.75, "sm_100": 27}}), (0, ""))

    def test_above_a_limit_is_refused(self):
        self.assertEqual(
            self.check({"forked": {"sm_90": 26.7}}),
            (1, "sass-budget: forked sm_90: 26.75 instructions an element, expected at most 26.7\n"),
        )

    def test_one_instruction_more_in_the_loop_is_seen(self):
        line = "        /*0b60*/                   FADD R20, R20, 1.78813934326171875e-07 ;\n"
        self.edit(self.cubin("sm_90"), line, line + "        /*0b68*/                   MOV R1, R1 ;\n")
        self.assertEqual(self.check({"forked": {"sm_90": 26.75}})[0], 1)

    def test_a_spill_is_refused(self):
        self.edit(f"{self.cubin('sm_100')}.log", "0 bytes stack frame, 0 bytes spill stores",
                  "16 bytes stack frame, 8 bytes spill stores")  # fmt: skip
        code, said = self.check({})
        self.assertEqual(code, 1)
        self.assertIn("sass-budget: forked sm_100: spill_stores is 8, expected 0\n", said)
        self.assertIn("sass-budget: forked sm_100: stack_bytes is 16, expected 0\n", said)

    def test_a_limit_must_be_held_against_something(self):
        for budget in ({"gone": {"sm_90": 22}}, {"copy": {"sm_90": 22}}, {"forked": {"sm_70": 22}}):
            code, said = self.check(budget)
            self.assertEqual(code, 1)
            self.assertIn("no hot loop was found", said)

    def test_limits_of_architectures_that_are_not_built_are_passed_over(self):
        budget = {"forked": {"sm_80": 20, "sm_90": 26.75}}
        self.assertEqual(self.check(budget, "--architectures", "90", "100"), (0, ""))
        self.assertEqual(self.check({"forked": {"sm_90": 20}}, "--architectures", "90")[0], 1)
        # What was built once and is no more has no say, nor has what is built and has no limit.
        self.edit(f"{self.cubin('sm_100')}.log", "0 bytes spill loads", "4 bytes spill loads")
        self.assertEqual(self.check({"forked": {"sm_100": 20}}, "--architectures", "90"), (0, ""))
        self.assertEqual(self.check(budget, "--architectures", "90", "100"), (0, ""))
        self.assertEqual(self.check({"forked": {"sm_100": 30}}, "--architectures", "100")[0], 1)
        code, said = self.check(budget, "--architectures", "90", "80")
        self.assertEqual(code, 1)
        self.assertIn("holds no *.sm_80.cubin", said)

    def test_without_a_disassembler_spills_are_seen_all_the_same(self):
        nowhere = {"PATH": "/nonexistent"}
        words = [sys.executable, "-B", self.folder / "scripts/sass-budget", "--cubins", self.folder]
        # A copy elsewhere, beside no build/cuda.
        for path in ("scripts/sass-budget", "tpce/exp_split.h"):
            (self.folder / path).parent.mkdir()
            shutil.copy(ROOT / path, self.folder / path)
        done = subprocess.run(words, capture_output=True, text=True, env=nowhere)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("scripts/get-cuda --disassembler", done.stderr)
        self.edit(f"{self.cubin('sm_90')}.log", "0 bytes spill loads", "4 bytes spill loads")
        done = subprocess.run(words, capture_output=True, text=True, env=nowhere)
        self.assertEqual(done.returncode, 1)
        self.assertIn("spill_loads is 4, expected 0", done.stderr)

    def test_an_empty_folder_is_one_clear_message(self):
        for path in self.folder.glob("*.cubin"):
            path.unlink()
        done = self.run_it()
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1))
        self.assertIn("holds no *.cubin", done.stderr)


if __name__ == "__main__":
    unittest.main()
