from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from rose.ledger.evidence.anchor import AnchorError, anchor, anchor_of, keep
from rose.ledger.layout import LedgerError

#: A time stamping authority as `openssl ts` wants it described.
_TSA = """
[tsa]
default_tsa = tsa_config
[tsa_config]
serial = {folder}/serial
crypto_device = builtin
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
default_policy = 1.2.3.4.1
digests = sha256
signer_digest = sha256
ess_cert_id_alg = sha256
[extensions]
extendedKeyUsage = critical,timeStamping
"""


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    path = tmp_path / "receipt.json"
    path.write_bytes(b"what was signed")
    return path


def test_the_command_gets_the_path_and_the_hash_and_what_it_prints_is_kept(receipt: Path) -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['ROSE_RECEIPT_SHA256'], 'two words'[4])"
    kept = anchor(receipt, f'{sys.executable} -c "{code}" "an option"')
    assert kept == receipt.with_name("receipt.json.anchor")
    sha256 = hashlib.sha256(b"what was signed").hexdigest()
    assert kept.read_text() == f"['an option', '{receipt}'] {sha256} w\n"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("false", "the anchor command 'false' failed with exit code 1"),
        ("sh -c 'exit 7'", "failed with exit code 7"),
        ("true", "printed nothing"),
        ("no-such-command", "'no-such-command' cannot be run: No such file"),
    ],
)
def test_a_command_that_fails_leaves_the_receipt(receipt: Path, command: str, says: str) -> None:
    with pytest.raises(AnchorError, match=says) as caught:
        anchor(receipt, command)
    assert str(receipt) in str(caught.value)
    assert receipt.read_bytes() == b"what was signed"
    assert not receipt.with_name("receipt.json.anchor").exists()


def test_an_anchor_that_lies_beside_a_receipt_is_of_this_one(receipt: Path) -> None:
    anchor(receipt, "echo first")
    with pytest.raises(LedgerError, match=r"receipt\.json exists; name another file by --out"):
        keep(receipt, b"second")
    assert (receipt.read_bytes(), anchor_of(receipt).read_bytes()) == (
        b"what was signed",
        b"first " + bytes(receipt) + b"\n",
    )
    keep(receipt, b"second", force=True)
    with pytest.raises(AnchorError):
        anchor(receipt, "false")
    assert receipt.read_bytes() == b"second"
    assert not anchor_of(receipt).exists()
    anchor(receipt, "echo second")
    receipt.unlink()
    with pytest.raises(LedgerError, match=r"receipt\.json\.anchor exists"):
        keep(receipt, b"third")


@pytest.mark.parametrize("command", ["", "'unclosed"])
def test_what_is_no_command_is_refused(receipt: Path, command: str) -> None:
    with pytest.raises(LedgerError, match="--anchor"):
        anchor(receipt, command)


def _openssl(*arguments: str | Path) -> str:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_time_stamp_of_rfc_3161_is_kept_and_proves_the_receipt(receipt: Path, tmp_path: Path) -> None:
    """With an authority made here; a public one is asked over HTTP instead of by `openssl ts -reply`."""
    described = tmp_path / "tsa.cnf"
    described.write_text(_TSA.format(folder=tmp_path))
    (tmp_path / "serial").write_text("01")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority", "-days", "2")
    made = (*made, "-keyout", tmp_path / "tsa.key", "-out", tmp_path / "tsa.pem")
    _openssl(
        *made, "-addext", "extendedKeyUsage=critical,timeStamping", "-addext", "keyUsage=critical,digitalSignature"
    )
    stamp = tmp_path / "stamp"
    stamp.write_text(
        "#!/bin/sh\nset -e\n"
        'openssl ts -query -data "$1" -sha256 -cert -out "$1.query" 2> /dev/null\n'
        f"openssl ts -reply -config {described} -section tsa_config "
        '-queryfile "$1.query" -out "$1.reply" 2> /dev/null\n'
        'cat "$1.reply"\n'
    )
    stamp.chmod(0o700)
    kept = anchor(receipt, str(stamp))
    verification = ("ts", "-verify", "-in", kept, "-CAfile", tmp_path / "tsa.pem", "-data")
    assert "Verification: OK" in _openssl(*verification, receipt)
    receipt.write_bytes(b"what was changed")
    done = subprocess.run(["openssl", *map(str, verification), receipt], capture_output=True, check=False)
    assert done.returncode != 0
