"""A Ray cluster on this machine, with Heed on it as deploy/ray/heed.yaml describes it."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.kit.memory import family

ROOT = Path(__file__).parents[2]
SERVE_CONFIG = ROOT / "deploy" / "ray" / "heed.yaml"
BIN = Path(sys.executable).parent
LATEST = 120  # seconds until a deployment must have an outcome
# Prints the status of all applications, and Ray's messages, once all are deployed or have failed.
OUTCOME = """
import json, sys, time, ray
from ray import serve
ray.init(sys.argv[1], namespace="serve", log_to_driver=False)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    found = serve.status().applications.values()
    if {each.status for each in found} <= {"RUNNING", "DEPLOY_FAILED"}:
        break
    time.sleep(0.2)
told = [each.message for one in found for each in (one, *one.deployments.values())]
print(json.dumps([" ".join(sorted({each.status for each in found})), " ".join(told)]))
"""

Application = dict[str, Any]  # an application of Ray's configuration


class Cluster:
    """`cores` cores for Ray, in processes that end with `close`. Its files go to `folder`."""

    def __init__(self, folder: Path, cores: int) -> None:
        self._folder = folder
        self.port = free_port()  # of Ray's HTTP proxy
        port = free_port()
        self._address = f"127.0.0.1:{port}"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(),
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.ray.proxy:middleware",
        }
        flags = ["--head", "--block", "--include-dashboard=false", f"--num-cpus={cores}"]
        flags += ["--node-ip-address=127.0.0.1", f"--port={port}"]
        flags += [f"--ray-client-server-port={free_port()}"]
        self._process = subprocess.Popen(
            [BIN / "ray", "start", *flags],
            cwd=ROOT,
            env=self._environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, *applications: Application) -> tuple[str, str]:
        """Deploy these, and return their status and Ray's messages once they have an outcome."""
        config = yaml.safe_load(SERVE_CONFIG.read_text())
        config["http_options"]["port"] = self.port
        config["applications"] = applications
        file = self._folder / "heed.yaml"
        file.write_text(json.dumps(config))
        self._run([BIN / "serve", "run", "--non-blocking", "--address", self._address, file])
        printed = self._run([sys.executable, "-c", OUTCOME, self._address, str(LATEST)])
        status, messages = json.loads(printed.splitlines()[-1])
        return status, messages

    def _run(self, command: list[str | Path]) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} exits with {done.returncode}: {done.stderr}")
        return done.stdout

    def processes(self) -> list[int]:
        """Return all processes of the cluster."""
        return family(self._process.pid)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def application(deployment: dict[str, Any], **arguments: Any) -> Application:
    """Return the application of heed.yaml with these settings. `deployment` holds Ray's options, as
    num_replicas, in the place of those for autoscaling."""
    (found,) = yaml.safe_load(SERVE_CONFIG.read_text())["applications"]
    (heed,) = found["deployments"]
    del heed["autoscaling_config"]
    return {**found, "args": arguments, "deployments": [heed | deployment]}


def free_port() -> int:
    """Return a port that is free now. Ray cannot take one that is reserved."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
