"""`make mutants`: each mutant in a copy of the tree, with the tests that must kill it; prints who survived.

python -m tests.mutations
python -m tests.mutations "gamma forgotten" "architectures mixed"
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutations.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
FAILED = 1  # pytest's exit code where a test failed; anything else is no kill


def copied(target: Path) -> None:
    """The tracked files, and those that are new."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def killed(mutant: Mutant, tree: Path) -> str:
    """How it ended: "killed", or why not."""
    path = tree / mutant.file
    whole = path.read_text()
    if whole.count(mutant.before) != 1:
        return f"its line stands {whole.count(mutant.before)} times in {mutant.file}"
    path.write_text(whole.replace(mutant.before, mutant.after))
    files, _, chosen = mutant.killers.partition(" -k ")
    words = [*files.split(), *(["-k", chosen] if chosen else [])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *words],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        path.write_text(whole)
    if done.returncode == FAILED:
        return "killed"
    return "SURVIVED" if done.returncode == 0 else f"pytest ended with {done.returncode}: {done.stdout[-300:]}"


def main() -> int:
    """Exit code 1 where one survived."""
    chosen = sys.argv[1:] or list(MUTANTS)
    alive = []
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        for name in chosen:
            began = time.monotonic()
            outcome = killed(MUTANTS[name], Path(folder))
            print(f"{outcome:10} {time.monotonic() - began:5.0f} s  {name}", flush=True)
            if outcome != "killed":
                alive.append(name)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
