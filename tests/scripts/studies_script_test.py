"""scripts/studies makes a page again by the command that its study.json notes, word for word; with stand-ins for its programs."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TPCE = """if [[ $2 == --list ]]; then
  printf '%s\\n' 'growth    how does it grow?' '          --set logits=FILE' 'plain     what is it?'
else
  printf '[%s]' "$@" >>calls
  echo >>calls
fi"""


class StudiesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path in ("scripts/common.sh", "scripts/studies"):
            (self.folder / path).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / path, self.folder / path)
        self.script("scripts/install-packages", "")
        self.script("tools/cmake", "")
        self.script("build/release/bin/tpce", TPCE)

    def script(self, name, body):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def note(self, name, text):
        folder = self.folder / "docs/studies" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.json").write_text(text)

    def studies(self, *words):
        known = os.environ | {"PATH": f"{self.folder}/tools:{os.environ['PATH']}"}
        command = ["bash", self.folder / "scripts/studies", *words]
        return subprocess.run(command, capture_output=True, text=True, env=known)

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def test_a_noted_command_is_read_word_for_word(self):
        command = """tpce study plain --set 'logits=a "b" \\c.npy' --set note='it'\\''s' --seed 1"""
        self.note("plain", json.dumps({"study": "plain", "command": command, "version": "1"}, indent=1))
        done = self.studies("plain")
        self.assertEqual(done.returncode, 0, done.stderr)
        words = """[study][plain][--set][logits=a "b" \\c.npy][--set][note=it's][--seed][1][--out][docs/studies/plain]"""
        self.assertEqual(self.calls(), [words, "[report][docs/studies][--out][build/report.html]"])

    def test_a_command_that_cannot_be_read_is_the_end(self):
        for text, reason in (
            ('{"command": "tpce study plain --set \'logits=a --seed 1"}', "No closing quotation"),
            ('{"study": "plain"}', "'command'"),
            ('{"command": "rm study plain"}', "got 'rm', expected tpce"),
            ('{"command": ""}', "not enough values"),
            ("{", "Expecting property name"),
        ):
            with self.subTest(text):
                self.note("plain", text)
                done = self.studies("plain")
                self.assertEqual(done.returncode, 1)
                self.assertIn("docs/studies/plain/study.json: command: ", done.stderr)
                self.assertIn(reason, done.stderr)
                self.assertEqual(self.calls(), [])

    def test_a_new_study_gets_the_files_that_it_takes(self):
        done = self.studies()
        self.assertEqual(done.returncode, 0, done.stderr)
        logits = "logits=data/smollm2_repeat12_bf16.safetensors"
        growth = f"[study][growth][--set][{logits}][--out][docs/studies/growth]"
        self.assertEqual(self.calls()[:2], [growth, "[study][plain][--out][docs/studies/plain]"])


if __name__ == "__main__":
    unittest.main()
