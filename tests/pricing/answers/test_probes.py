from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rose.pricing.answers import probes
from rose.pricing.answers.probes import Probe
from rose.pricing.money import PricingError

GOOD = "probe,verifier,probability,correct\np1,v,0.5,true\np2,v,0.49,0\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "probes.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_file(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff" + GOOD)
    assert probes.from_file(path) == [
        Probe("p1", "v", 0.5, correct=True, accepted=True, group="p1"),
        Probe("p2", "v", 0.49, correct=False, accepted=False, group="p2"),
    ]
    assert [probe.accepted for probe in probes.from_file(path, 0.6)] == [False, False]


def test_the_file_s_own_decisions_go_before_a_threshold(tmp_path: Path) -> None:
    path = written(tmp_path, "verifier,probe,correct,accepted,probability\nv,p1,TRUE,0,0.9\n")
    assert probes.from_file(path) == [Probe("p1", "v", 0.9, correct=True, accepted=False, group="p1")]
    with pytest.raises(PricingError, match="has a column accepted"):
        probes.from_file(path, 0.5)


def test_a_parquet_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "probes.parquet"
    frame = pl.DataFrame({"probe": ["p1", "p2"], "verifier": "v", "probability": [0.5, 0.49], "correct": [True, False]})
    frame.write_parquet(path)
    assert probes.from_file(path) == probes.from_file(written(tmp_path, GOOD))
    frame.with_columns(probability=pl.Series([0.5, 1.5])).write_parquet(path)
    with pytest.raises(PricingError, match=r"row 2: probability '1\.5' cannot be used"):
        probes.from_file(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(PricingError, match="cannot read probes"):
        probes.from_file(path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("p3,v,1.01,true", "row 3: probability '1.01' cannot be used"),
        ("p3,v,-0.1,true", "row 3: probability '-0.1' cannot be used"),
        ("p3,v,nan,true", "row 3: probability 'nan' cannot be used"),
        ("p3,v,high,true", "row 3: probability 'high' cannot be used"),
        ("p3,v,,true", "row 3: probability '' cannot be used"),
        ("p3,v,0.5,", "row 3: correct '' cannot be used"),
        ("p3,v,0.5", "row 3: correct '' cannot be used"),
        ("p3,v,0.5,yes", "row 3: correct 'yes' cannot be used"),
        (",,0.5,true", "row 3: probe '', verifier '' cannot be used"),
        ("p1,v,0.5,true", "row 3: probe 'p1' of verifier 'v' is at row 1 already"),
        ("p1,w,0.5,false", "row 3: correct of probe 'p1' differs from that at row 1"),
        ("p3,v,0.5,true,1", "cannot read probes"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, row: str, says: str) -> None:
    with pytest.raises(PricingError, match="probes") as raised:
        probes.from_file(written(tmp_path, GOOD + row + "\n"))
    assert says in str(raised.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    rows = "".join(f"q{n},v,2,true\n" for n in range(12))
    with pytest.raises(PricingError, match=r"row 3: .*\n.*row 4: .*(\n.*){9}and 2 more"):
        probes.from_file(written(tmp_path, GOOD + rows))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("probe,verifier,correct\n", "has no column probability"),
        ("", r"has no column probe, verifier, probability, correct \(it has none\)"),
        ("probe,verifier,probability,correct,acepted\n", "unknown column acepted"),
    ],
)
def test_columns_files_and_thresholds_that_cannot_be_used_are_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PricingError, match=says):
        probes.from_file(written(tmp_path, text))
    with pytest.raises(PricingError, match="No such file"):
        probes.from_file(tmp_path / "nowhere.csv")
    with pytest.raises(PricingError, match=r"--threshold 1\.5 is not a probability"):
        probes.from_file(written(tmp_path, GOOD), 1.5)


def verdict(**changed: Any) -> dict[str, Any]:
    row = {"probe": "t", "verifier": "v", "reward": 0.25, "accepted": True, "correct": False, "group_id": "g"}
    return row | changed


def test_a_verdict_s_reward_is_its_probability() -> None:
    assert probes.from_ledger([verdict()]) == [Probe("t", "v", 0.25, correct=False, accepted=True, group="g")]
    for reward in (-1.0, 1.5, float("nan"), None):
        with pytest.raises(PricingError, match=r"trajectory t: reward .* of verifier 'v' is not a probability"):
            probes.from_ledger([verdict(reward=reward)])
