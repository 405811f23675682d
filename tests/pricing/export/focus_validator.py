"""FOCUS's own validator in a virtual environment of its own. Made once, in about a minute and 650 MB, by

    .venv/bin/python tests/pricing/export/focus_validator.py

Files named behind it are validated: exit code 1 where a rule is broken that is not among KNOWN_FALSE. Its rules come
with it: nothing is fetched when it runs. The validator itself exits 0 whatever it finds, so its output is read.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[3]
REQUIREMENTS = ROOT / "requirements" / "focus-validator.txt"
COMMAND = f".venv/bin/python {Path(__file__).relative_to(ROOT)}"

#: What a fleet that is bought by the hour and lent out supports, of the validator's criteria. Not PUBLIC_PRICE_LIST:
#: with it the validator demands the columns of providers that price in a virtual currency.
CRITERIA = (
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "COMMITMENT_DISCOUNT_SUPPORTED",
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
)

#: Rules of the validator that contradict FOCUS's own text, and what is wrong with each. FOCUS 1.2 wants an InvoiceId
#: for what is on an invoice, issued or provisional, and none for what is on none; of this pair one fails for any row.
KNOWN_FALSE = {
    "InvoiceId-C-004-C": "wants every InvoiceId null: it leaves out the condition that there is no invoice",
    "InvoiceId-C-005-C": "wants an InvoiceId in every row: it leaves out the condition that there is an invoice",
    "CommitmentDiscountStatus-C-004-C": "wants a status where there is no CommitmentDiscountId; C-003 wants none there",
    "CommitmentDiscountStatus-C-002-C": "holds if C-004 does",
    "CommitmentDiscountStatus-C-000-C": "holds if C-002 does",
}

#: A backslash inside an f-string, which Python allows from 3.12 on.
_BROKEN = """", ".join(f"'{k.replace('\\"', '\\"\\"')}'" for k in ignore_keys)"""
_MENDED = """", ".join("'" + k.replace('"', '""') + "'" for k in ignore_keys)"""


def home() -> Path:
    pins = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rose" / f"focus-validator-{pins}"


def set_up() -> Path:
    """Make the environment unless it is there; returns its folder."""
    folder = home()
    if (folder / "ready").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python", "-r", str(REQUIREMENTS)]
    subprocess.run([folder / "bin" / "python", *install], check=True)
    converter = _packages(folder) / "focus_validator" / "config_objects" / "focus_to_duckdb_converter.py"
    text = converter.read_text(encoding="utf-8")
    assert text.count(_BROKEN) == 1, f"{converter} is not what it was"
    converter.write_text(text.replace(_BROKEN, _MENDED), encoding="utf-8")
    (folder / "ready").touch()
    return folder


def failures(file: Path) -> dict[str, str]:
    """Return rules of FOCUS 1.2 that the validator finds broken, with its reasons. Raises ValueError if it did not
    finish.
    """
    command = [home() / "bin" / "python", "-m", "focus_validator.main", "--data-file", file.resolve()]
    command += ["--validate-version", "1.2", "--block-download", "--applicability-criteria", ",".join(CRITERIA)]
    # It opens a file of its own by a path relative to where it is installed.
    done = subprocess.run(command, cwd=_packages(home()), capture_output=True, text=True, check=False)
    total = re.search(r"^Total: (\d+) \| Pass: (\d+) \| Fail: (\d+)", done.stdout, re.MULTILINE)
    if done.returncode or total is None or int(total[2]) < 200:
        raise ValueError(f"the validator did not validate {file}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    failed = dict(re.findall(r"^\S+ (\S+): FAIL +\((.*)\)$", done.stdout, re.MULTILINE))
    assert len(failed) == int(total[3]), done.stdout
    return failed


def _packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def main(files: list[Path]) -> int:
    """Set up, and validate the files; returns 1 for a broken rule that is not in KNOWN_FALSE."""
    print(f"the FOCUS validator is in {set_up()}")
    new = 0
    for file in files:
        for rule, reason in sorted(failures(file).items()):
            new += rule not in KNOWN_FALSE
            print(f"{file.name}: {rule}: {KNOWN_FALSE.get(rule) or f'NEW: {reason}'}")
    return min(new, 1)


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
