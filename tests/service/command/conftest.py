import pytest
import structlog
from click.testing import CliRunner

from service.command.__main__ import main


@pytest.fixture
def heed():
    """Run a command in this process: (*arguments, stdin) -> its result."""

    def run(*arguments, stdin=""):
        return CliRunner().invoke(main, [*map(str, arguments)], input=stdin)

    before = structlog.get_config()
    yield run
    structlog.configure(**before)
