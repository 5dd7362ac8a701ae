"""python -m tests.write_notebook: run examples/attention.ipynb with the default model, and store
what its cells print and plot.

Run it after a cell or the default model has changed; tests/test_notebook.py compares the output.
"""

import base64
import io
import os
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import matplotlib.pyplot as plt
import nbformat
from nbformat.v4 import new_output

from tests.conftest import serving

NOTEBOOK = Path(__file__).parent.parent / "examples" / "attention.ipynb"
DPI = 72


def read_notebook():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def run(notebook, address):
    """Run the cells with the service at this address, set their outputs, and return their names.

    A fault in a cell is raised."""
    names = {}
    plt.switch_backend("agg")
    with patch.dict(os.environ, SERVICE_URL=address):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = run_cell(cell, names)
    return names


def run_cell(cell, names):
    """Return the text that a cell prints, then the figures that it shows."""
    printed, figures = io.StringIO(), []
    with redirect_stdout(printed), patch.object(plt, "show", lambda: figures.append(drawn())):
        exec(compile(cell.source, cell.id, "exec"), names)
    texts = [printed.getvalue()] if printed.getvalue() else []
    return [
        *(new_output("stream", text=text) for text in texts),
        *(new_output("display_data", {"image/png": figure}) for figure in figures),
    ]


def drawn():
    """Return the current figure as PNG in base64, and close it."""
    png = io.BytesIO()
    plt.savefig(png, dpi=DPI, metadata={"Software": None})
    plt.close()
    return base64.b64encode(png.getvalue()).decode()


def main():
    notebook = read_notebook()
    with serving() as address:
        run(notebook, address)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
