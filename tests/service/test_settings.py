"""Settings: what they accept from flags and variables, and what they refuse."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.app import PROTOCOLS
from service.settings import types as setting_types
from service.settings.settings import Settings


def test_the_service_starts_where_no_affinity_can_be_read(monkeypatch):
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert 1 <= Settings().cores <= os.cpu_count()


def test_an_affinity_limits_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert Settings().cores == 1


def test_more_threads_and_workers_than_cores_are_capped():
    cores = Settings().cores
    many = Settings(threads=100_000, workers=100_000)
    assert (many.cores, many.threads, many.workers) == (cores, cores, cores)
    assert Settings(threads=1, workers=100_000).workers == 1
    assert Settings(workers=100_000).workers == cores


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("HEED_PROT", "HEED_PORT"),
        ("heed_max_source", "HEED_MAX_SOURCES"),
        ("HEED_BUNDLE", "HEED_BUNDLES"),
        ("HEED_API_KEI", "HEED_API_KEYS"),
        ("HEED_API_KEY_FILE", "HEED_API_KEYS_FILE"),
        ("heed_api_key", "HEED_API_KEYS"),  # commands read it in capitals
    ],
)
def test_a_mistyped_variable_is_refused_and_the_nearest_is_named(monkeypatch, name, nearest):
    monkeypatch.setenv(name, "9000")
    with pytest.raises(ValidationError, match=rf"variable {name} is unknown: .* {nearest}\?"):
        Settings()


def test_every_unknown_variable_is_named_but_nothing_unlike_it_is_guessed(monkeypatch):
    for name in ("HEED_GPU", "HEED_PROT", "HEED_"):
        monkeypatch.setenv(name, "9000")
    with pytest.raises(ValidationError) as refused:
        Settings()
    for part in ("HEED_GPU is unknown;", "HEED_PROT is unknown: did you mean HEED_PORT?"):
        assert part in str(refused.value)
    assert "variable HEED_ is unknown;" in str(refused.value)


def test_the_key_of_clients_is_not_a_mistyped_setting(monkeypatch):
    """The same shell may ask a service by --url, decode by itself and serve."""
    monkeypatch.setenv("HEED_API_KEY", "a key")
    assert Settings().api_keys is None


def test_variables_that_kubernetes_sets_for_a_service_are_not_settings(monkeypatch):
    """Of services named heed and heed-api in the same namespace."""
    for name, value in {
        "HEED_SERVICE_HOST": "10.0.0.1",
        "HEED_SERVICE_PORT_HTTP": "8000",
        "HEED_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "HEED_PORT_8000_TCP_ADDR": "10.0.0.1",
        "HEED_API_SERVICE_PORT": "8000",
        "HEED_API_PORT": "tcp://10.0.0.1:8000",
        "HEED_PORT": "tcp://10.0.0.1:8000",
    }.items():
        monkeypatch.setenv(name, value)
    assert Settings().port == 8000


@pytest.mark.parametrize("name", ["HEED_PORT", "heed_port"])
def test_a_variable_sets_a_setting(monkeypatch, name):
    monkeypatch.setenv(name, "9000")
    assert Settings().port == 9000


@pytest.mark.parametrize("timeout", ["inf", "nan", "0", "-1"])
def test_a_timeout_that_never_ends_is_refused(timeout):
    with pytest.raises(ValidationError):
        Settings(timeout=timeout)


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_refused_and_two_others_are_named(host):
    with pytest.raises(ValidationError, match=r"127\.0\.0\.1.*0\.0\.0\.0"):
        Settings(host=host)


@pytest.mark.parametrize(
    ("given", "near"),
    [("opnai", "openai"), ("OpenAI", "openai"), ("openai,LibreTranslate", "libretranslate")],
)
def test_a_mistyped_protocol_is_refused_and_the_nearest_and_all_are_named(given, near):
    every = "open-inference, openai, libretranslate, hugging-face"
    with pytest.raises(ValidationError, match=f"has .*did you mean {near}.*{every}"):
        Settings(protocols=given)


def test_a_setting_names_every_protocol_of_the_service():
    assert list(PROTOCOLS) == list(setting_types.PROTOCOL_NAMES)


def test_every_setting_is_described():
    assert all(field.description for field in Settings.model_fields.values())


def test_spaces_around_the_commas_between_bundles_are_not_part_of_them(monkeypatch):
    monkeypatch.setenv("HEED_BUNDLES", " a, b c ,, ")
    assert Settings().bundles == [Path("a"), Path("b c")]
