"""examples/attention.ipynb runs, and its numbers and stored outputs are those of the service."""

import copy

import httpx2
import nbformat
import numpy as np
import pytest

from tests.documentation import split_decimals
from tests.write_notebook import NOTEBOOK, read_notebook, run


@pytest.fixture(scope="module")
def stored():
    return read_notebook()


@pytest.fixture(scope="module")
def executed(stored, server):
    """The notebook with new outputs, and the names that its cells have defined."""
    notebook = copy.deepcopy(stored)
    return notebook, run(notebook, server)


def outputs(notebook):
    """Return the text that all cells print, and the number of figures of each cell."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    printed = "".join(each.get("text", "") for cell in cells for each in cell)
    return printed, [sum("data" in each for each in cell) for cell in cells]


def test_it_prints_and_plots_what_is_stored(stored, executed):
    """Up to the rounding of another processor."""
    (shown, shown_figures), (found, figures) = outputs(stored), outputs(executed[0])
    assert (split_decimals(found)[0], figures) == (split_decimals(shown)[0], shown_figures)
    np.testing.assert_allclose(split_decimals(found)[1], split_decimals(shown)[1], atol=0.05)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_its_arrays_are_those_of_the_json(executed, server, kind):
    names = executed[1]
    body = {"source": names["word"], "attention": {"kinds": [kind]}}
    (result,) = httpx2.post(f"{server}/v1/attention", json=body).json()["results"]
    np.testing.assert_allclose(names[kind], result["attention"][0]["data"], atol=1e-6)


def test_it_names_no_machine_and_stays_small(stored):
    nbformat.validate(stored)
    assert stored.metadata.keys() == {"kernelspec", "language_info"}
    assert stored.metadata.kernelspec.name == "python3"
    assert not any(cell.metadata or cell.get("execution_count") for cell in stored.cells)
    assert NOTEBOOK.stat().st_size < 300_000
