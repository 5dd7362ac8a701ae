"""docs/operations.md and the Grafana dashboard name the metrics that there are."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "heed.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]


@pytest.fixture(scope="module")
def metrics(client):
    """The type of each metric, by its name."""
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", client.get("/metrics").text, re.M))


def test_the_page_names_every_metric_and_no_other(metrics):
    assert set(re.findall(r"heed_\w+", PAGE)) == metrics.keys()


def test_the_dashboard_shows_every_metric_and_no_other(metrics):
    series = {
        name + suffix: name
        for name, kind in metrics.items()
        for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    asked = {
        name
        for panel in PANELS
        for target in panel["targets"]
        for name in re.findall(r"heed_\w+", target["expr"])
    }
    assert asked <= series.keys()
    assert {series[name] for name in asked} == metrics.keys()


def test_the_dashboard_asks_the_data_source_that_is_picked_for_labels_that_exist(client):
    body = {"model": "tiny", "source": "red", "stream": True, "attention": {}}
    client.post("/v1/decode", json=body)
    client.post("/v1/decode", json={"model": "tiny", "source": 5})
    client.post("/v1/decode", json={"model": "tiny", "source": "red", "draft": "blue"})
    text = client.get("/metrics").text
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["model"]["query"]["query"] == "label_values(heed_model_info, model)"
    for panel in PANELS:
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            expression = target["expr"]
            assert expression.count("(") == expression.count(")")
            (name, *_) = re.findall(r"heed_\w+", expression)
            labels = re.findall(r"by \(([\w, ]+)\)", expression)
            for label in {each for group in labels for each in group.split(", ")}:
                assert re.search(rf"^{name}\{{.*\b{label}=", text, re.M), (name, label)


def test_panels_do_not_overlap():
    places = [panel["gridPos"] for panel in PANELS]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
