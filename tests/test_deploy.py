"""The manifests in deploy/ are valid, and name what there is in the code."""

import importlib.resources
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import kubernetes_validate
import pytest
import yaml

from benchmarks.fleet.scenarios import MOST_REPLICAS, NOTICED
from service.api.endpoints.metrics import ModelCollector
from service.app import create_app
from service.bundle.manifest import FORMAT_VERSION
from service.settings.settings import Settings
from tests.kserve_types import faults, kserve_types
from tests.kustomize import patch

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = DEPLOY / "compose"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OLDEST = "1.30"  # in which preStop can sleep
SPARE = 5  # seconds between the end of the service and its SIGKILL
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KSERVE = "kserve==0.21.0"


def read(path):
    return yaml.safe_load(path.read_text())


DEPLOYMENT = read(KUBERNETES / "base" / "deployment.yaml")
SERVICE = read(KUBERNETES / "base" / "service.yaml")
BUDGET = read(KUBERNETES / "base" / "disruption-budget.yaml")
AUTOSCALER = read(KUBERNETES / "base" / "autoscaler.yaml")
RUNTIME = read(DEPLOY / "kserve" / "runtime.yaml")
INFERENCE = read(DEPLOY / "kserve" / "service.yaml")
STACK = read(COMPOSE / "compose.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]
PREDICTOR = INFERENCE["spec"]["predictor"]
(CONTAINER,) = POD["containers"]
(SERVED,) = RUNTIME["spec"]["containers"]
PODS = [
    pytest.param(CONTAINER, POD, POD["securityContext"], id="kubernetes"),
    pytest.param(SERVED, PREDICTOR, SERVED["securityContext"], id="kserve"),
]
OVERLAY = KUBERNETES / "own-bundle"
(OWN,) = read(OVERLAY / "bundles.yaml")["spec"]["template"]["spec"]["containers"]


def variables(container):
    return {each["name"]: each["value"] for each in container["env"]}


def image_variables():
    return dict(re.findall(r"(HEED_\w+)=(\S+)", DOCKERFILE))


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize(
    "manifest", [DEPLOYMENT, SERVICE, BUDGET, AUTOSCALER], ids=lambda m: m["kind"]
)
def test_manifests_match_kubernetes_schemas(manifest, version):
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_mistyped_key_does_not_match():
    wrong = {**SERVICE, "spec": {**SERVICE["spec"], "selektor": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_the_parts_of_kserve_that_are_kubernetes_match_its_schemas():
    own = {"model", "minReplicas", "maxReplicas", "scaleMetric", "scaleTarget"}
    pod = {name: value for name, value in PREDICTOR.items() if name not in own}
    pod |= {"containers": RUNTIME["spec"]["containers"]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "heed"}, "spec": pod}
    kubernetes_validate.validate(manifest, OLDEST, strict=True)


@pytest.mark.long
def test_kserve_knows_every_key(tmp_path):
    """Read the types of KServe's SDK; installing it would need an older protobuf."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", KSERVE]
    subprocess.run([*command, "--dest", tmp_path], check=True, stderr=subprocess.DEVNULL)
    types = kserve_types(next(tmp_path.glob("*.whl")))
    assert faults(types, "V1alpha1ServingRuntime", RUNTIME) == []
    assert faults(types, "V1beta1InferenceService", INFERENCE) == []
    wrong = {"spec": {"predictor": {"minReplicas": "2", "modle": {}}}}
    assert faults(types, "V1beta1InferenceService", wrong) == [
        "V1beta1PredictorSpec.minReplicas is not int",
        "V1beta1PredictorSpec has no modle",
    ]


def test_the_stack_matches_the_schema_of_compose():
    vendor = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((vendor / "compose-spec.json").read_text())
    jsonschema.validate(STACK, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**STACK, "servises": {}}, schema)


def test_own_bundles_are_mounted_with_all_else():
    patched = patch(DEPLOYMENT, read(OVERLAY / "bundles.yaml"))
    kubernetes_validate.validate(patched, OLDEST, strict=True)
    pod = patched["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert variables(container) == variables(CONTAINER) | variables(OWN)
    (mount,) = container["volumeMounts"]
    assert mount["name"] in {volume["name"] for volume in pod["volumes"]}
    assert variables(OWN)["HEED_BUNDLES"].startswith(f"{mount['mountPath']}/")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here")
def test_kubectl_builds_the_overlay():
    command = ["kubectl", "kustomize", OVERLAY]
    built = subprocess.run(command, capture_output=True, text=True, check=True)
    manifests = {each["kind"]: each for each in yaml.safe_load_all(built.stdout)}
    patched = patch(DEPLOYMENT, read(OVERLAY / "bundles.yaml"))
    expected = [patched, SERVICE, BUDGET, AUTOSCALER]
    assert manifests == {each["kind"]: each for each in expected}


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(variables(CONTAINER), id="kubernetes"),
        pytest.param(variables(OWN), id="own-bundle"),
        pytest.param(variables(SERVED), id="kserve"),
        pytest.param(STACK["services"]["heed"]["environment"], id="compose"),
    ],
)
def test_variables_are_settings_with_valid_values(named):
    fields = {name.removeprefix("HEED_").lower(): value for name, value in named.items()}
    assert fields.keys() <= Settings.model_fields.keys()
    Settings(**fields)


@pytest.mark.parametrize(("container", "pod", "security"), PODS)
def test_probes_ask_paths_of_the_service_at_its_port(container, pod, security):
    paths = create_app(Settings()).openapi()["paths"]
    (port,) = container["ports"]
    listens = (image_variables() | variables(container))["HEED_PORT"]
    assert str(port["containerPort"]) == listens
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[name]["httpGet"]
        assert asked["path"] in paths
        assert asked["port"] in port.values()
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"


@pytest.mark.parametrize(("container", "pod", "security"), PODS)
def test_the_end_fits_into_the_grace_period(container, pod, security):
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    ends = float(variables(container)["HEED_SHUTDOWN_TIMEOUT"])
    assert pod["terminationGracePeriodSeconds"] >= waits + ends + SPARE
    # While preStop waits, the readiness probe has not failed: proxies learn it from the API server.
    assert waits >= 5


@pytest.mark.parametrize(("container", "pod", "security"), PODS)
def test_a_bundle_has_the_time_to_open(container, pod, security):
    probe = container["startupProbe"]
    opening = float(variables(container)["HEED_OPENING_TIMEOUT"])
    assert probe["periodSeconds"] * probe["failureThreshold"] > opening


@pytest.mark.parametrize(("container", "pod", "security"), PODS)
def test_the_image_is_this_version_and_runs_locked_down(container, pod, security):
    assert container["image"] == f"heed:{VERSION}"
    assert security["runAsNonRoot"]
    assert f"USER {security['runAsUser']}\n" in DOCKERFILE
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert not pod["enableServiceLinks"]  # a Service named heed would set HEED_PORT
    assert container["resources"]["limits"] == container["resources"]["requests"]


def test_a_dead_pod_is_noticed_as_soon_as_simulated():
    probe = CONTAINER["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == NOTICED


def test_service_budget_and_autoscaler_choose_the_pods():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    chosen = [each["spec"]["selector"]["matchLabels"] for each in (DEPLOYMENT, BUDGET)]
    chosen += [SERVICE["spec"]["selector"]]
    chosen += [each["labelSelector"]["matchLabels"] for each in POD["topologySpreadConstraints"]]
    assert all(each == labels for each in chosen)
    target = AUTOSCALER["spec"]["scaleTargetRef"]
    assert target == {
        "apiVersion": DEPLOYMENT["apiVersion"],
        "kind": DEPLOYMENT["kind"],
        "name": DEPLOYMENT["metadata"]["name"],
    }
    assert AUTOSCALER["spec"]["maxReplicas"] == MOST_REPLICAS  # as simulated in docs/scale.md
    # The budget lets one pod go at a time, and another one has to answer meanwhile.
    assert AUTOSCALER["spec"]["minReplicas"] > BUDGET["spec"]["maxUnavailable"]
    assert SERVICE["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]


def test_the_autoscaler_reads_metrics_that_the_adapter_makes_of_heeds():
    (rule,) = read(KUBERNETES / "prometheus-adapter.yaml")["rules"]["custom"]
    (series,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    labels = re.findall(r'(\w+)!=""', rule["seriesQuery"])
    assert rule["resources"]["overrides"].keys() == {*labels}
    metrics = ModelCollector(SimpleNamespace(served={})).collect()
    gauges = {metric.name for metric in metrics if metric.type == "gauge"}
    asked = {
        each["pods"]["metric"]["name"]
        for each in AUTOSCALER["spec"]["metrics"]
        if each["type"] == "Pods"
    }
    assert asked == {name for name in gauges if re.fullmatch(series, name)}
    assert "heed_queue_rows" in asked


def test_prometheus_finds_the_metrics_of_a_pod():
    notes = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/path"] in create_app(Settings()).openapi()["paths"]
    assert notes["prometheus.io/port"] == str(CONTAINER["ports"][0]["containerPort"])


def test_kserve_serves_the_format_and_protocol_of_its_runtime():
    (form,) = RUNTIME["spec"]["supportedModelFormats"]
    model = PREDICTOR["model"]
    assert form["version"] == str(FORMAT_VERSION)
    assert model["modelFormat"] == {"name": form["name"], "version": form["version"]}
    assert [model["protocolVersion"]] == RUNTIME["spec"]["protocolVersions"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert variables(SERVED)["HEED_BUNDLES"] == "/mnt/models"
    assert SERVED["name"] == "kserve-container"  # the one that KServe looks for


def test_the_stack_shows_the_dashboard():
    """Prometheus asks Heed, Grafana asks Prometheus, and the dashboard lies where Grafana looks."""
    services = STACK["services"]
    mounted = {}
    for service in ("prometheus", "grafana"):
        for volume in services[service]["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (COMPOSE / source).is_file()
                mounted[target] = (COMPOSE / source).resolve()
    (job,) = read(mounted["/etc/prometheus/prometheus.yml"])["scrape_configs"]
    assert job == {
        "job_name": "heed",
        "static_configs": [{"targets": [f"heed:{image_variables()['HEED_PORT']}"]}],
    }
    (source,) = read(COMPOSE / "grafana" / "datasource.yaml")["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read(COMPOSE / "grafana" / "dashboards.yaml")["providers"]
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert mounted[str(home)] == DEPLOY / "grafana" / "heed.json"
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_nobody_logs_in_to_the_dashboard():
    environment = STACK["services"]["grafana"]["environment"]
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert "GF_AUTH_ANONYMOUS_ORG_ROLE" not in environment  # the default is to look only


def test_the_stack_waits_for_the_end_of_the_service():
    heed = STACK["services"]["heed"]
    waits = int(heed["stop_grace_period"].removesuffix("s"))
    assert waits >= float(heed["environment"]["HEED_SHUTDOWN_TIMEOUT"]) + SPARE
    assert heed["image"] == CONTAINER["image"]
    assert heed["read_only"]
