import pytest
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Commands look for `ledger` in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("ROSE_LEDGER", "ROSE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def invoke(app, *arguments, stdin=None):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def check_refused(done, says):
    """Exit code 2, one message on stderr, nothing on stdout."""
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.startswith("rose: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
