"""Every setting: a flag of `python -m service`, or an environment variable HEED_..."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import (
    DirectoryPath,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.settings.cpu import usable_cores
from service.settings.types import Folders, HostNames, Networks, Origins, Protocols, RootPath
from service.settings.variables import LINKS, PREFIX, check_environment

DEFAULT_BUNDLE = Path(__file__).parents[1] / "bundles" / "g2p-en"

MECHANISMS = Path(__file__).parents[1] / "bundles" / "attend"

WEB = Path(__file__).parents[1] / "web"


class Provider(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    tensorrt = "tensorrt"


class Precision(StrEnum):
    auto = "auto"
    fp32 = "fp32"
    int8 = "int8"
    fp16 = "fp16"


class LogFormat(StrEnum):
    auto = "auto"
    json = "json"
    console = "console"


class Settings(BaseSettings):
    """Settings from arguments, else from variables, else their defaults."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        hide_input_in_errors=True,  # it may be a key
    )

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. 127.0.0.1: this machine only; 0.0.0.0: every interface",
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="TCP port to listen on. 0: any free port"
    )
    allowed_hosts: HostNames = Field(
        default=[],
        description="Host names that requests may be for, separated by commas; *.example.com for"
        " subdomains, * for all. IP addresses are always allowed. By default localhost if only this"
        " machine can reach the service, else all",
    )
    trusted_proxies: Networks = Field(
        default=[],
        description="Addresses or networks of the proxies whose X-Forwarded-For and"
        " X-Forwarded-Proto are trusted, separated by commas",
    )
    root_path: RootPath = Field(
        default="",
        description="Prefix of all paths behind a proxy, such as /heed. The proxy may pass it on or"
        " strip it",
    )
    cors_origins: Origins = Field(
        default=[],
        description="Origins of other sites whose pages may send requests, such as"
        " https://example.com, separated by commas; * for all",
    )
    protocols: Protocols = Field(
        default=[],
        description="Protocols of other services to speak as well, separated by commas:"
        " open-inference, openai, libretranslate, hugging-face",
    )
    api_keys: SecretStr | None = Field(
        default=None,
        description="Keys, separated by commas, of which clients must send one, as Authorization:"
        " Bearer KEY. Set the variable: other users may read a flag in the list of processes",
    )
    api_keys_file: Path | None = Field(
        default=None, description="File of such keys, one a line, read at the start"
    )
    admin_key: SecretStr | None = Field(
        default=None,
        description="Key for loading, reloading and unloading models at run time. It also opens all"
        " that API keys open. Set the variable, as for api-keys",
    )
    models: DirectoryPath | None = Field(
        default=None,
        description="Folder with more bundles that may be loaded at run time",
    )
    bundles: Folders = Field(
        default=[DEFAULT_BUNDLE],
        min_length=1,
        description="Folders of the bundles to serve, separated by commas",
    )
    provider: Provider = Field(
        default=Provider.auto,
        description="Where to compute. auto: CUDA if available, else the CPU; it never chooses"
        " tensorrt",
    )
    precision: Precision = Field(
        default=Precision.auto,
        description="Precision of the weights. auto: the first of int8, fp32 and fp16 that the"
        " bundle has, on a CPU; of fp16, fp32 and int8 elsewhere",
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="CPU threads to compute with, capped at the cores this process may use."
        " 0: all of them",
    )
    workers: int = Field(
        default=0,
        ge=0,
        description="CPU workers per model, each with its own batch, at most as many as threads."
        " 0: one per thread if a step reads at most 16 MiB of weights, or 128 with two threads;"
        " else one in all",
    )
    attention: bool = Field(
        default=True,
        description="Return attention weights. Their graphs are opened by the first request that"
        " asks for them, and need memory from then on",
    )
    score: bool = Field(
        default=True,
        description="Serve /v1/score. Its graph is opened by the first request, and needs memory"
        " from then on",
    )
    self_check: bool = Field(
        default=True,
        description="Compare the outputs of each graph with the reference outputs in its bundle"
        " (parity.npz): before serving, or when a request first needs the graph",
    )
    opening_timeout: float = Field(
        default=300.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a bundle may take to open and to pass the self-check. A disk that"
        " reads 10 MB a second needs 250 for 600 million weights at fp32",
    )
    max_body_bytes: int = Field(default=1 << 20, ge=1, description="Largest request body, in bytes")
    max_sources: int = Field(
        default=256,
        ge=1,
        description="Most sources, or sentences of split ones, in one request; at most max-rows",
    )
    max_answer_bytes: int = Field(
        default=128 << 20,
        ge=1,
        description="Most bytes in one answer: weights and vectors as float32, plus the"
        " generated tokens",
    )
    max_held_bytes: int = Field(
        default=256 << 20,
        ge=1,
        description="Most bytes of answers that are computed or being read at once, at least"
        " max-answer-bytes; bodies may take a quarter more. Beyond it large answers wait for up to"
        " 10 seconds. Answers and bodies of up to 64 KiB are not counted",
    )
    max_rows: int = Field(
        default=4096,
        ge=1,
        description="Most rows of one request. A source takes one row for each of its beams or"
        " samples",
    )
    max_batch_tokens: int = Field(
        default=16384,
        ge=1,
        description="Largest batch per model, in positions: rows times the longest row",
    )
    max_pass_tokens: int = Field(
        default=0,
        ge=0,
        description="Most positions that a worker encodes or attends to at once; half as many while"
        " rows are decoded. Lower values make streams smoother. 0: 1024 on a CPU, where larger"
        " passes are no faster, else 4096",
    )
    max_requests: int = Field(
        default=200,
        ge=1,
        description="Most POST requests in progress: their answers have not begun. More are"
        " accepted if they will wait less than 0.25 seconds; this rate is known above about 64",
    )
    timeout: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds for a whole request, for its body to arrive, and for a client that"
        " reads nothing of its answer",
    )
    idle_timeout: float = Field(
        default=10.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a new connection may stay open without a request, and that the"
        " headers of a request may take to arrive",
    )
    keep_alive_timeout: float = Field(
        default=75.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a connection may stay open after an answer. Behind a proxy or a"
        " load balancer: more than its own idle time-out, which is often 60 seconds",
    )
    shutdown_timeout: float = Field(
        default=25.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds from SIGTERM until the service has ended. Requests in progress have"
        " seven tenths of it. Kubernetes kills a container after 30 seconds",
    )
    log_format: LogFormat = Field(
        default=LogFormat.auto,
        description="Format of the log. auto: console on a terminal, else json, one object a line",
    )

    def opens(self, graph: str) -> bool:
        """Return whether to load a graph of a bundle, if the bundle has it."""
        optional = {
            "attention": self.attention,
            "encoder_attention": self.attention,
            "score": self.score,
        }
        return optional.get(graph, True)

    @property
    def cores(self) -> int:
        """Number of threads to compute with: `threads`, or all usable cores."""
        return self.threads or usable_cores()

    @field_validator("host")
    @classmethod
    def check_host(cls, host: str) -> str:
        """Raise ValueError for "", with which a socket would listen on every interface."""
        if not host.strip():
            raise ValueError(
                "must not be empty: give 127.0.0.1 for this machine only, or 0.0.0.0 for every"
                " interface"
            )
        return host

    @field_validator("port", mode="before")
    @classmethod
    def ignore_service_link(cls, value: object) -> object:
        """Kubernetes sets HEED_PORT to tcp://... for a Service named heed: keep the default."""
        is_link = isinstance(value, str) and value.startswith(LINKS)
        return cls.model_fields["port"].default if is_link else value

    @field_validator("threads")
    @classmethod
    def cap_threads(cls, threads: int) -> int:
        """Cap threads at the usable cores: more would wait for each other."""
        return min(threads, usable_cores())

    @field_validator("workers")
    @classmethod
    def cap_workers(cls, workers: int, info: ValidationInfo) -> int:
        return min(workers, info.data.get("threads") or usable_cores())

    @model_validator(mode="before")
    @classmethod
    def check_variables(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Refuse to start with a mistyped variable, which would be ignored otherwise."""
        check_environment(os.environ, [PREFIX + name.upper() for name in cls.model_fields])
        return values

    @model_validator(mode="after")
    def check_rows(self) -> Self:
        if self.max_sources > self.max_rows:
            raise ValueError(
                f"max_sources is {self.max_sources} but max_rows is {self.max_rows}: lower"
                " max_sources or raise max_rows, since every source takes a row"
            )
        return self
