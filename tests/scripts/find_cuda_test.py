"""cmake/TpceCuda.cmake takes the nvcc that was named, then PATH's, CUDA_HOME's and scripts/get-cuda's, never one that is too old."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(find_cuda LANGUAGES NONE)
include({ROOT}/cmake/TpceCuda.cmake)
message(STATUS "found [${{TPCE_NVCC}}] [${{TPCE_NVCC_VERSION}}] NCCL [${{TPCE_NCCL_VERSION}}]")
"""


class FindCudaTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        (self.folder / "CMakeLists.txt").write_text(PROJECT)

    def nvcc(self, folder, version="13.0.88", code=0):
        """One that says where its toolkit is, as nvcc --dryrun does: in a folder of its own, as behind a script on PATH."""
        toolkit = self.folder / "toolkits" / folder
        for part in ("bin/fatbinary", "include/cuda.h"):
            (toolkit / part).parent.mkdir(parents=True)
            (toolkit / part).touch()
        path = self.folder / folder / "nvcc"
        path.parent.mkdir(parents=True)
        says = f"Cuda compilation tools, release {version[:4]}, V{version}\n#$ TOP={toolkit}/bin/.."
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
        path.chmod(0o755)
        return path

    def configure(self, *words, path=(), **environment):
        # The machine's own nvcc, should there be one, stays out of sight.
        search = [str(self.folder / one) for one in path] + ["/usr/bin", "/bin"]
        known = {"PATH": ":".join(search), "HOME": os.environ.get("HOME", "/")}
        command = ["cmake", "-G", "Ninja", "-S", self.folder, "-B", self.folder / "out", "-DTPCE_CUDA_DEFAULT_FOLDER=/nonexistent", *words]
        return subprocess.run(command, capture_output=True, text=True, env=known | environment)

    def found(self, *words, **where):
        done = self.configure(*words, **where)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_order(self):
        scripts = self.nvcc("build/cuda/bin")
        self.assertIn(f"found [{scripts}] [13.0.88]", self.found())
        home = self.nvcc("home/bin")
        self.assertIn(f"found [{home}]", self.found(CUDA_HOME=str(self.folder / "home")))
        on_path = self.nvcc("path")
        self.assertIn(f"found [{on_path}]", self.found(path=["path"], CUDA_HOME=str(self.folder / "home")))
        named = self.nvcc("named")
        self.assertIn(f"found [{named}]", self.found(path=["path"], CUDACXX=str(named)))
        self.assertIn(f"found [{named}]", self.found(f"-DCMAKE_CUDA_COMPILER={named}", path=["path"]))
        broken = self.nvcc("broken", code=1)
        self.assertIn(f"found [{named}]", self.found(f"-DCMAKE_CUDA_COMPILER={broken}", CUDACXX=str(named)))

    def test_one_that_is_too_old_or_broken_is_passed_over(self):
        old = self.nvcc("path", version="11.8.89")
        broken = self.nvcc("home/bin", code=1)
        message = self.found(path=["path"], CUDA_HOME=str(self.folder / "home"))
        self.assertIn("found [] []", message)
        self.assertIn("scripts/get-cuda", message)
        self.assertIn(f"{old} is 11.8.89, needed is 12.8", message)
        self.assertIn(f"{broken} does not run", message)
        good = self.nvcc("build/cuda/bin")
        self.assertIn(f"found [{good}]", self.found(path=["path"], CUDA_HOME=str(self.folder / "home")))

    def test_one_whose_toolkit_is_not_whole_is_passed_over(self):
        nvcc = self.nvcc("path")
        (self.folder / "toolkits/path/include/cuda.h").unlink()
        self.assertIn(f"{nvcc} has no bin/fatbinary and include/cuda.h", self.found(path=["path"]))

    def test_on_needs_one_and_off_looks_for_none(self):
        done = self.configure("-DTPCE_CUDA=ON")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("scripts/get-cuda", done.stderr)
        self.nvcc("path")
        self.assertIn("found [] []", self.found("-DTPCE_CUDA=OFF", path=["path"]))

    def nccl(self, folder, version):
        path = self.folder / folder / "nccl.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        major, minor = version.split(".")
        path.write_text(f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH 7\n")

    def test_the_header_of_nccl(self):
        # One build folder: what was not there at first is found once it is. The machine's own stays out of sight.
        aside = [f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
                 "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF"]  # fmt: skip
        self.assertIn("NCCL []", self.found(*aside))
        self.nvcc("path")
        message = self.found(path=["path"])
        self.assertIn("NCCL []", message)
        self.assertIn("scripts/get-cuda --nccl", message)
        self.nccl("build/nccl/include", "2.27")
        self.assertIn("NCCL [2.27]", self.found(path=["path"]))
        self.nccl("build/nccl/include", "2.17")
        message = self.found(path=["path"])
        self.assertIn("NCCL []", message)
        self.assertIn("no nccl.h of 2.18 or later was found", message)
        (self.folder / "out/CMakeCache.txt").unlink()
        self.nccl("toolkits/path/include", "2.28")
        self.assertIn("NCCL [2.28]", self.found(*aside, path=["path"]))

    def test_a_build_for_another_machine_has_none(self):
        self.nvcc("path")
        self.assertIn("found [] []", self.found("-DCMAKE_SYSTEM_NAME=Generic", path=["path"]))


if __name__ == "__main__":
    unittest.main()
