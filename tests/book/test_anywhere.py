"""`make anywhere` notices what fails under a condition."""

from __future__ import annotations

import anywhere
import nbformat
import pytest


@pytest.mark.slow
def test_what_fails_under_a_condition_is_found(tmp_path, monkeypatch):
    cells = {
        "global-seed": "import torch\ntorch.manual_seed(5)\nassert torch.initial_seed() == 5",
        "own-seed": "assert torch.Generator().manual_seed(5).initial_seed() == 5",
        "type": "assert isinstance(torch.default_generator, torch.Generator)",
        "draw": "assert torch.rand(3, generator=torch.Generator().manual_seed(1)).sum() > 0",
        "child": "import subprocess, sys\n"
        "program = 'import torch; torch.manual_seed(5); print(torch.initial_seed())'\n"
        "assert subprocess.check_output([sys.executable, '-c', program], text=True) == '5\\n'",
        "threads": "assert torch.get_num_threads() == 1",
        "kernels": "assert torch.backends.cpu.get_cpu_capability() != 'DEFAULT'",
        "text": "print('new')",
        "meant": "raise ValueError",
        "skipped": "raise ValueError",
    }
    notebook = nbformat.v4.new_notebook()
    for name, source in cells.items():
        tags = {"meant": ["raises-exception"], "skipped": ["nbval-skip"]}.get(name, [])
        notebook.cells.append(nbformat.v4.new_code_cell(source, id=name, metadata={"tags": tags}))
    chapter = tmp_path / "chapter.ipynb"
    nbformat.write(notebook, chapter)

    def failed(**changes):
        condition = anywhere.Condition("tried", **changes)
        return set(anywhere.failures(chapter, condition, timeout=120))

    assert failed(shift=3) == {"global-seed", "own-seed", "child"}
    assert failed(threads=2, capability="default") == {"text", "threads", "kernels"}
