"""cmake/commit.cmake names the commit that the sources are of, and writes nothing where that has not changed."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class CommitTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.sources = self.folder / "sources"
        self.sources.mkdir()
        self.output = self.folder / "commit.cc"

    def run_command(self, *command, **environment):
        known = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CEILING_DIRECTORIES": str(self.folder.parent)} | environment
        return subprocess.run(command, check=True, capture_output=True, text=True, env=known).stdout.strip()

    def git(self, *words):
        return self.run_command("git", "-C", self.sources, "-c", "user.name=A", "-c", "user.email=a@example.org", *words)

    def make_checkout(self):
        self.git("init", "--quiet")
        (self.sources / "a.cc").write_text("int a;\n")
        self.git("add", "a.cc")
        self.git("commit", "--quiet", "-m", "One")
        return self.git("rev-parse", "HEAD")

    def commit(self, sources=None, **environment):
        script = ROOT / "cmake/commit.cmake"
        self.run_command("cmake", f"-DSOURCE_DIR={sources or self.sources}", f"-DOUTPUT={self.output}", "-P", script, **environment)
        return self.output.read_text().split('kCommit = "')[1].split('"')[0]

    def test_a_clean_checkout(self):
        head = self.make_checkout()
        (self.sources / "untracked").touch()
        self.assertEqual(self.commit(), head[:12])

    def test_a_changed_file(self):
        head = self.make_checkout()
        (self.sources / "a.cc").write_text("int b;\n")
        self.assertEqual(self.commit(), head[:12] + "-dirty")

    def test_no_checkout(self):
        self.assertEqual(self.commit(), "")
        self.git("init", "--quiet")
        self.assertEqual(self.commit(), "")

    def test_sources_within_another_project(self):
        self.make_checkout()
        (self.sources / "vendor").mkdir()
        self.assertEqual(self.commit(self.sources / "vendor"), "")

    def test_the_environment_of_a_hook(self):
        head = self.make_checkout()
        self.assertEqual(self.commit(GIT_DIR="/nonexistent"), head[:12])

    def test_git_that_is_missing(self):
        self.make_checkout()
        (self.folder / "bin").mkdir()
        (self.folder / "bin/cmake").symlink_to(self.run_command("which", "cmake"))
        self.assertEqual(self.commit(PATH=str(self.folder / "bin")), "")

    def test_what_has_not_changed_is_not_written(self):
        self.make_checkout()
        self.commit()
        os.utime(self.output, (1, 1))
        self.commit()
        self.assertEqual(self.output.stat().st_mtime, 1)
        self.git("commit", "--quiet", "--allow-empty", "-m", "Two")
        self.commit()
        self.assertNotEqual(self.output.stat().st_mtime, 1)


if __name__ == "__main__":
    unittest.main()
