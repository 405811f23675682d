import pytest


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Commands look for `ledger` in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("ROSE_LEDGER", "ROSE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def check_refused(done, says):
    """Exit code 2, one message on stderr, nothing on stdout."""
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.startswith("rose: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
