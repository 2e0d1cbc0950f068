"""Runs the code of a notebook from top to bottom in this process, as a kernel does:
``python -m tests.integration.pipeline.notebook FILE``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(file: Path) -> None:
    """Run it; what the last line of a cell is worth is not shown."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(file), "exec"), names)
    names["spark"].stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
