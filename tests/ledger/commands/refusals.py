"""What every command does with what it cannot carry out."""


def check_refused(done, says):
    """Exit code 2, one message on stderr, nothing on stdout."""
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.startswith("rose: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
