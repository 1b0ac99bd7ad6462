"""Does a built archive keep what the README promises? In a fresh environment, from an empty folder.

    python tests/readme.py dist/transformer_book-0.3.0-py3-none-any.whl

Installs the archive alone and runs the README's programs; then the extra for text, and the README's
translation. Set as the package index sets it, the description has no link that only a repository can follow.
Needs `readme_renderer[md]`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from readme_renderer import markdown

ROOT = Path(__file__).resolve().parents[1]


def promises() -> tuple[str, str, str]:
    """The README's Python programs, the sentence that it has translated, and what it says comes out."""
    text = (ROOT / "README.md").read_text(encoding="utf8")
    programs = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    translation = re.search(r'^transformer-book translate "([^"]+)" +# (.+)$', text, flags=re.MULTILINE)
    return "\n".join(programs), translation[1], translation[2]


def main(archive: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["version"]
    programs, sentence, translated = promises()
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        venv = Path(folder) / "venv"
        tools = venv / ("Scripts" if os.name == "nt" else "bin")
        environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}

        def run(*words: str | Path) -> str:
            line = [str(word) for word in words]
            ran = subprocess.run(line, cwd=folder, env=environment, capture_output=True, encoding="utf8")
            if ran.returncode:
                sys.exit(f"{' '.join(line)[:200]}\n{ran.stdout}{ran.stderr}")
            return ran.stdout + ran.stderr

        def check(what: str, holds: bool, said: str) -> None:
            print(f"{what}: {'yes' if holds else 'NO'}", flush=True)
            if not holds:
                sys.exit(said)

        run(sys.executable, "-m", "venv", venv)
        run(tools / "python", "-m", "pip", "install", "--quiet", archive)
        said = run(tools / "python", "-c", "import transformer; print(transformer.__version__)")
        check("imports without a word beside its version", said == f"{version}\n", said)
        show = "from importlib.metadata import metadata as of; print(of('transformer-book')['Description'])"
        page = markdown.render(run(tools / "python", "-c", show))
        links = re.findall(r'(?:href|src|srcset)="([^"]*)"', page)
        dead = [link for link in links if not link.startswith(("https://", "#"))]
        check(f"the {len(links)} links of the description are absolute", bool(links) and not dead, f"{dead}")
        said = run(tools / "python", "-c", programs)
        check("the README's programs run", "->" in said and ", 0 FAIL" in said, said)
        run(tools / "python", "-m", "pip", "install", "--quiet", f"{archive}[text]")
        said = run(tools / "transformer-book", "translate", sentence)
        check("the extra for text suffices to translate", said == f"{translated}\n", said)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
