"""Every setting: a flag of `python -m service`, or a variable HEED_…"""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

DEFAULT_BUNDLE = Path(__file__).parent / "bundles" / "g2p-en"

MECHANISMS = Path(__file__).parent / "bundles" / "attend"

WEB = Path(__file__).parent / "web"


class Provider(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    tensorrt = "tensorrt"


class Precision(StrEnum):
    auto = "auto"
    fp32 = "fp32"
    int8 = "int8"


def cpu_limit() -> int:
    """Cores that a container may use (cgroup v2), or all where nothing limits it."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return os.cpu_count() or 1


class Settings(BaseSettings):
    """Serve encoder-decoder Transformers and show what they attend to."""

    model_config = SettingsConfigDict(
        env_prefix="HEED_",
        frozen=True,
        cli_prog_name="python -m service",
        cli_kebab_case=True,
        cli_implicit_flags=True,
    )

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535)
    bundles: Annotated[list[Path], NoDecode] = Field(
        default=[DEFAULT_BUNDLE], min_length=1, description="folders to serve, by commas"
    )
    provider: Provider = Field(
        default=Provider.auto,
        description="auto is CUDA where there is one, else CPU; TensorRT only by name",
    )
    precision: Precision = Field(
        default=Precision.auto,
        description="auto is int8 on a CPU where the bundle has it, else fp32",
    )
    threads: int = Field(
        default=0, ge=0, description="cores to compute on; 0 is all that this process may use"
    )
    workers: int = Field(
        default=0,
        ge=0,
        description="that decode a batch each, for each model, on a CPU; the other threads help"
        " them all; 0 is one a thread for a small model, one in all for a large one",
    )
    attention: bool = Field(
        default=True,
        description="open the graphs that show attention, which keep weights of their own",
    )
    score: bool = Field(
        default=True, description="open the graph of /v1/score, which keeps weights of its own"
    )
    self_check: bool = Field(default=True, description="recompute parity.npz before serving")
    max_body_bytes: int = Field(default=1 << 20, ge=1, description="of one request")
    max_sources: int = Field(default=256, ge=1, description="in one request")
    max_answer_bytes: int = Field(
        default=128 << 20, ge=1, description="of float32 weights or vectors in one answer"
    )
    max_queue: int = Field(
        default=4096,
        ge=1,
        description="rows (sources, times their beams or samples) that may wait, a model; in one"
        " request no more can be sent",
    )
    max_batch_tokens: int = Field(
        default=16384, ge=1, description="positions decoded at once, rows x the longest, a model"
    )
    max_pass_tokens: int = Field(
        default=4096,
        ge=1,
        description="positions encoded, or attended to, between two decoding steps of a worker",
    )
    timeout: float = Field(default=60.0, gt=0, description="seconds a request may take")

    def opens(self, graph: str) -> bool:
        optional = {
            "attention": self.attention,
            "encoder_attention": self.attention,
            "score": self.score,
        }
        return optional.get(graph, True)

    @property
    def cores(self) -> int:
        """How many to compute on: at most those this process may use."""
        return self.threads or min(len(os.sched_getaffinity(0)), cpu_limit())

    @field_validator("bundles", mode="before")
    @classmethod
    def split(cls, value: object) -> object:
        return [path for path in value.split(",") if path] if isinstance(value, str) else value

    @model_validator(mode="after")
    def check_queue(self) -> Self:
        if self.max_sources > self.max_queue:
            raise ValueError(f"max_sources {self.max_sources} is above max_queue {self.max_queue}")
        return self
