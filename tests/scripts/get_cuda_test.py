"""scripts/get-cuda asks pip for what it should, and keeps of it what is needed; with a stand-in for pip."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# python3 -m venv FOLDER, whose pip installs every package as empty files.
PYTHON = """mkdir -p "$3/bin"
cat >"$3/bin/pip" <<'END'
#!/bin/bash
while (($#)); do
  case $1 in
    --requirement) cat "$2" >>asked ;;
    --target) into=$2/nvidia ;;
  esac
  shift
done
grep -q nccl "${into%/packages/nvidia}/requirements.txt" && parts=nccl/{include/nccl.h,lib/libnccl.so.2}
grep -q nvcc "${into%/packages/nvidia}/requirements.txt" && parts=cu13/{bin/nvcc,bin/nvdisasm,lib/libcudart.so}
for part in $(eval echo "$parts"); do
  mkdir -p "$(dirname "$into/$part")"
  printf '#!/bin/sh\necho V13.0.88\n' >"$into/$part"
  chmod +x "$into/$part"
done
END
chmod +x "$3/bin/pip"
"""


class GetCudaTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("common.sh", "get-cuda", "cuda-requirements.txt"):
            (self.folder / "scripts").mkdir(exist_ok=True)
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts" / name)
        (self.folder / "tools").mkdir()
        tool = self.folder / "tools/python3"
        tool.write_text(f"#!/bin/bash\n{PYTHON}")
        tool.chmod(0o755)

    def get(self, *words):
        known = os.environ | {"PATH": f"{self.folder}/tools:{os.environ['PATH']}"}
        done = subprocess.run(["bash", self.folder / "scripts/get-cuda", *words], capture_output=True, text=True, env=known)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def asked(self):
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        for line in lines:
            self.assertEqual(line.count("--hash=sha256:"), 2, line)
        return [line.split("==")[0] for line in lines]

    def kept(self, folder):
        return sorted(str(path.relative_to(self.folder)) for path in (self.folder / folder).rglob("*") if path.is_file())

    def test_of_nccl_the_header_is_kept(self):
        self.get("--nccl")
        self.assertEqual(self.asked(), ["nvidia-nccl-cu13"])
        self.assertEqual(self.kept("build"), ["build/nccl/include/nccl.h", "build/nccl/requirements.txt"])
        self.assertIn("All of it is there.", self.get("--nccl"))
        self.assertEqual(self.asked(), [])

    def test_the_toolkit_is_without_nccl(self):
        self.get()
        asked = self.asked()
        self.assertIn("nvidia-cuda-nvcc", asked)
        self.assertIn("nvidia-nvvm", asked)
        self.assertNotIn("nvidia-nccl-cu13", asked)
        self.assertTrue((self.folder / "build/cuda/lib64/libcudart.so").exists())
        self.assertIn("All of it is there.", self.get())
        # Neither takes the other away.
        self.get("--nccl")
        self.assertTrue((self.folder / "build/cuda/bin/nvcc").exists())


if __name__ == "__main__":
    unittest.main()
