import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.transfer import made_up
from benchmarks.transfer.__main__ import main
from benchmarks.transfer.cases import OTHERS
from benchmarks.transfer.ways import SMALL, Way


@pytest.mark.parametrize("way", [*OTHERS, SMALL], ids=lambda way: way.name)
def test_every_way_is_lossless_over_several_blocks(way: Way) -> None:
    base, new = made_up.pair((2 << 20) + 5, 0.03)
    sent = way.encode(base, new)
    way.apply(base, sent)
    assert np.array_equal(base, new)


def test_the_command_writes_its_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--quick", "--only", "cases", "--only", "pause"]
    monkeypatch.setattr(
        "sys.argv", ["benchmarks.transfer", *given, "--folder", str(tmp_path), "--json", str(tmp_path / "report.json")]
    )
    main()
    assert "skipped by --quick" in capsys.readouterr().err
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["quick"], report["provenance"]) == (True, "simulated")
    units = {claim["name"]: claim["unit"] for claim in report["claims"]}
    assert units["time at 0.1 Gbit/s against the best of the others, worst case of large tensors"] == "x"
    signs = report["detail"]["cases"]["all signs"]
    assert signs["chosen"]["0.1 Gbit/s"] == ["planes"]
    assert signs["ways"]["0.1 Gbit/s"]["bytes"] <= signs["ways"]["XOR + zstd-1"]["bytes"] + 32
    assert not list(tmp_path.glob("transfer-benchmark-*")), "it leaves nothing but its report"
