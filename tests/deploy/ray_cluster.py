"""A Ray cluster on this machine for tests, with Heed on it as deploy/ray/heed.yaml describes it."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy" / "ray" / "heed.yaml"
BIN = Path(sys.executable).parent
LATEST = 90  # seconds until a deployment must have an outcome
# Prints the status of the application, and Ray's message, once it is deployed or has failed.
OUTCOME = """
import json, sys, time, ray
from ray import serve
ray.init(sys.argv[1], namespace="serve", log_to_driver=False)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    heed = serve.status().applications["heed"]
    if heed.status not in ("DEPLOYING", "NOT_STARTED"):
        break
    time.sleep(0.2)
messages = [heed.message, *(each.message for each in heed.deployments.values())]
print(json.dumps([heed.status, " ".join(messages)]))
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Cluster:
    """Two cores for Ray, in processes that end with `close`. `url` is that of Ray's HTTP proxy."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(),
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.ray.proxy:middleware",
        }
        port = self.address.partition(":")[2]
        flags = ["--head", "--block", "--include-dashboard=false", "--num-cpus=2"]
        self.process = subprocess.Popen(
            [BIN / "ray", "start", *flags, "--node-ip-address=127.0.0.1", f"--port={port}"],
            cwd=ROOT,
            env=self.environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def deploy(self, deployment=None, **arguments):
        """Deploy with these options of Ray and settings of Heed. Return status and message."""
        config = yaml.safe_load(CONFIG.read_text())
        config["http_options"]["port"] = self.port
        (application,) = config["applications"]
        (heed,) = application["deployments"]
        if "autoscaling_config" not in (deployment or {}):
            del heed["autoscaling_config"]
            heed["num_replicas"] = 2
        heed |= deployment or {}
        application["args"] = arguments
        file = self.folder / "heed.yaml"
        file.write_text(yaml.safe_dump(config))
        self._run([BIN / "serve", "run", "--non-blocking", "--address", self.address, file])
        printed = self._run([sys.executable, "-c", OUTCOME, self.address, str(LATEST)])
        return json.loads(printed.splitlines()[-1])

    def _run(self, command):
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def processes(self):
        """Return the replicas that run, and for each its engines: {replica: [engine]}."""
        parents, lines = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                lines[int(folder.name)] = (folder / "cmdline").read_bytes()
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(folder.name)] = int(stat[1])

        def is_ours(pid):
            return pid == self.process.pid or (pid in parents and is_ours(parents[pid]))

        replicas = [pid for pid in lines if b"ServeReplica" in lines[pid] and is_ours(pid)]
        return {
            replica: [
                pid
                for pid, parent in parents.items()
                if parent == replica and b"service.engine" in lines[pid]
            ]
            for replica in replicas
        }

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def until(holds, seconds=LATEST):
    """Wait until `holds()`, at most so many seconds, and return whether it does."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.1)
    return held


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
