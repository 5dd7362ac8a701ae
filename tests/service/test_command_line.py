"""The flags of `python -m service`."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.errors import StartupError
from service.settings.command_line import make_parser, read_settings
from service.settings.settings import DEFAULT_BUNDLE, Settings


def test_help_names_the_variable_and_the_default_of_every_flag(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    text = make_parser().format_help()
    for line in [
        "--port PORT TCP port to listen on. 0: any free port (HEED_PORT, default: 8000)",
        f"separated by commas (HEED_BUNDLES, default: {DEFAULT_BUNDLE})",
        "--attention, --no-attention Return attention weights.",
        "(HEED_ATTENTION, default: true)",
        "(HEED_TIMEOUT, default: 60)",
        "(HEED_API_KEYS, default: not set)",
        "--log-format auto|json|console ",
    ]:
        assert line in " ".join(text.split())
    assert all(f"({name})" in text.replace(", default:", ") ") for name in variables())


def variables():
    return [f"HEED_{name.upper()}" for name in Settings.model_fields]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_default_that_help_shows_may_be_typed(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    default, variable = getattr(Settings(), name), f"HEED_{name.upper()}"
    (shown,) = [
        line.rpartition("default: ")[2].rstrip(")")
        for line in make_parser().format_help().splitlines()
        if f"({variable}, " in line
    ]
    if shown == "not set":
        assert default in (None, [], "")
        return
    flag = f"--{name.replace('_', '-')}"
    typed = [flag] if shown == "true" else [flag, shown]
    assert getattr(read_settings(typed), name) == default
    monkeypatch.setenv(variable, shown)
    assert getattr(Settings(), name) == default


def test_flags_go_before_variables(monkeypatch):
    monkeypatch.setenv("HEED_PORT", "9000")
    monkeypatch.setenv("HEED_SCORE", "false")
    assert read_settings([]).port == 9000
    settings = read_settings(["--port", "9001", "--score", "--no-attention"])
    assert (settings.port, settings.score, settings.attention) == (9001, True, False)


def test_lists_are_separated_by_commas_or_by_repeating_the_flag():
    settings = read_settings(["--bundles", "a, b", "--bundles=c", "--allowed-hosts", ""])
    assert settings.bundles == [Path("a"), Path("b"), Path("c")]
    assert settings.allowed_hosts == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prot", "9000"], "the flag --prot is unknown: did you mean --port?"),
        (["--por=9000"], "the flag --por is unknown: did you mean --port?"),
        (["--no-atention"], "the flag --no-atention is unknown: did you mean --attention?"),
        (["--max_rows", "9"], "the flag --max_rows is unknown: did you mean --max-rows?"),
        (["serve"], "unexpected argument: give flags such as --port 9000"),
        (["-p", "9000"], "unexpected argument: give flags such as --port 9000"),
        (["--port"], "argument --port: expected one argument"),
        (["--score=0"], "argument --score/--no-score: ignored explicit argument"),
    ],
)
def test_wrong_flags_are_refused_and_the_nearest_is_named(arguments, said):
    with pytest.raises(StartupError) as refusal:
        read_settings(arguments)
    assert str(refusal.value).startswith(said)
    assert str(refusal.value).endswith("python -m service --help lists all flags")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-keys", "first", "SECRET"],
        ["--api-keys", "-SECRET"],
        ["--api-key=SECRET"],
        ["--api-key", "SECRET"],
        ["SECRET"],
        ["--", "SECRET"],
        ["-hSECRET"],
        ["--help=SECRET"],
        ["--attention=SECRET"],
        ["--attention=a 'SECRET"],
        ["--no-attention", "SECRET"],
    ],
)
def test_errors_do_not_quote_what_may_be_a_key(arguments):
    with pytest.raises(StartupError) as refusal:
        read_settings(arguments)
    assert "SECRET" not in str(refusal.value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--root-path", value) for value in ("heed", "/a b", "/%41", "//heed", "/heed?x")),
        *(("--cors-origins", value) for value in ("null", "example.com", "https://example.com/")),
        *(("--cors-origins", f"https://{host}") for host in ("*.example.com", "a?b")),
        *(("--cors-origins", value) for value in ("https://a.com:443", "http://a.com:80")),
    ],
)
def test_prefixes_and_origins_that_no_request_has_are_refused(flag, value):
    with pytest.raises(ValidationError, match="give "):
        read_settings([flag, value])


@pytest.mark.parametrize(("given", "kept"), [("/heed/", "/heed"), ("/", ""), ("/a/b.c", "/a/b.c")])
def test_a_prefix_ends_without_a_slash(given, kept):
    assert read_settings(["--root-path", given]).root_path == kept


def test_origins_are_compared_as_browsers_send_them():
    given = "HTTPS://Example.com, http://localhost:5173,http://[::1]:443"
    kept = ["https://example.com", "http://localhost:5173", "http://[::1]:443"]
    assert read_settings(["--cors-origins", given]).cors_origins == kept
