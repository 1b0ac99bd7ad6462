"""Does every notebook run in Colab? Each one alone, in an empty folder, with Colab's versions.

    python tests/colab.py                            all notebooks; writes _build/reports/colab.json
    python tests/colab.py 03 07                      some
    python tests/colab.py --python python3.13        the interpreter that the environment is made with

The environment of tests/colab-requirements.txt is made once, in `.venv-colab`. Each notebook gets a fresh
layer on top of it, so that no other can use what it installs. Its first cell runs as it stands, only that the
package comes from this repository, as it is committed, instead of from its address.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book"))

import execute  # noqa: E402
import repository  # noqa: E402

REQUIREMENTS = ROOT / "tests" / "colab-requirements.txt"
REPORT = ROOT / "_build" / "reports" / "colab.json"
WANTED_PYTHON = "3.13"
KERNEL = "colab"


def python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def asked(python: Path | str, program: str) -> str:
    """What a Python program prints."""
    ran = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def make_environment(venv: Path, python: str) -> Path:
    """The interpreter of an environment with Colab's versions; it is made where it does not exist yet."""
    stamp, wanted = venv / ".colab", REQUIREMENTS.read_text(encoding="utf8")
    if stamp.is_file() and stamp.read_text(encoding="utf8") == wanted:
        return python_of(venv)
    if not shutil.which(python):
        raise SystemExit(
            f"Colab has Python {WANTED_PYTHON}, and {python} is not on the PATH: name one by --python"
        )
    found = asked(python, "import sys; print('{}.{}'.format(*sys.version_info))")
    if found != WANTED_PYTHON:
        raise SystemExit(
            f"Colab has Python {WANTED_PYTHON}, and {python} is {found}: name another by --python"
        )
    print(f"making {venv}, once; this takes some minutes and gigabytes", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", venv], check=True)
    install = [python_of(venv), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--requirement", REQUIREMENTS], check=True)
    stamp.write_text(wanted, encoding="utf8")
    return python_of(venv)


def add_layer(base: Path, folder: Path) -> Path:
    """An environment that has all that `base` has, and keeps to itself what is installed in it."""
    packages = "import sysconfig; print(sysconfig.get_path('purelib'))"
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    layer = python_of(folder)
    below, own = asked(base, packages), Path(asked(layer, packages))
    (own / "below.pth").write_text(f"{below}\n", encoding="utf8")
    return layer


def as_in_colab(path: Path, source: str) -> nbformat.NotebookNode:
    """The notebook without its outputs, its first cell installing from `source`."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    address = f"git+{repository.current()}@{repository.ref(repository.project()['version'])}"
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if first.source.count(address) != 1:
        raise SystemExit(f"{path.name}: the first code cell does not install {address}")
    first.source = first.source.replace(address, source)
    return notebook


def failure(notebook: nbformat.NotebookNode, error: Exception) -> str:
    """Which cell failed, and by what."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                said = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(output.traceback))
                arrow = re.search(r"^-+> *\d+ (.*)$", said, flags=re.MULTILINE)
                return f"{cell.id}: {output.ename}: {output.evalue or (arrow and arrow[1])}"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def run_alone(path: Path, base: Path, source: str, timeout: int) -> dict:
    """Run one notebook in a folder and an environment of its own; returns seconds and what failed."""
    with tempfile.TemporaryDirectory(prefix="colab-") as name:
        folder, kernels = Path(name) / "content", Path(name) / "kernels" / KERNEL
        folder.mkdir()
        kernels.mkdir(parents=True)
        layer = add_layer(base, Path(name) / "layer")
        start = [str(layer), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": start, "display_name": KERNEL, "language": "python"}
        (kernels / "kernel.json").write_text(json.dumps(spec), encoding="utf8")
        os.environ["JUPYTER_PATH"] = name
        notebook = as_in_colab(path, source)
        client = NotebookClient(
            notebook,
            timeout=timeout,
            kernel_name=KERNEL,
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        )
        begun, failed = time.perf_counter(), ""
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            failed = failure(notebook, error)
    return {"seconds": round(time.perf_counter() - begun, 1), "failure": failed}


def git(*arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", help="paths or chapter numbers; all if none is given")
    parser.add_argument("--python", default=f"python{WANTED_PYTHON}", help=f"a Python {WANTED_PYTHON}")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-colab", help="where the environment lies")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds that one cell may take (1800)")
    options = parser.parse_args(arguments)
    notebooks = execute.find_notebooks(options.notebooks)
    changed = git("status", "--porcelain", "--", "transformer", "pyproject.toml")
    if changed:
        raise SystemExit(f"what is not committed would not be installed:\n{changed}")
    for name in ("PYTHONPATH", "PYTHONHOME"):  # nothing of this environment may reach the notebooks
        os.environ.pop(name, None)
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # a debugger's remark about Python 3.13
    commit = git("rev-parse", "HEAD")
    base = make_environment(options.venv.resolve(), options.python)
    results = {}
    for path in notebooks:
        result = run_alone(path, base, f"git+file://{ROOT}@{commit}", options.timeout)
        results[path.stem] = result
        print(f"{path.stem:<24}{result['seconds']:>8} s  {result['failure'] or 'ran through'}", flush=True)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf8")
    failed = sum(bool(result["failure"]) for result in results.values())
    print(f"{len(notebooks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
