"""python -m tests.write_notebook: run examples/attention.ipynb with the default model, and store
what its cells print and plot.

Run it after a cell or the default model has changed; tests/test_notebook.py compares the output.
"""

import ast
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
    """Return the text that a cell prints, then what it shows: its figures, and the value of an
    expression at its end, as HTML."""
    printed, figures = io.StringIO(), []
    with redirect_stdout(printed), patch.object(plt, "show", lambda: figures.append(drawn())):
        *statements, last = ast.parse(cell.source).body
        shown = (
            [last] if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call) else []
        )
        body = statements if shown else [*statements, last]
        exec(compile(ast.Module(body, []), cell.id, "exec"), names)
        values = [
            eval(compile(ast.Expression(each.value), cell.id, "eval"), names) for each in shown
        ]
    texts = [printed.getvalue()] if printed.getvalue() else []
    return [
        *(new_output("stream", text=text) for text in texts),
        *(new_output("display_data", {"image/png": figure}) for figure in figures),
        *(new_output("display_data", {"text/html": each._repr_html_()}) for each in values),
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
