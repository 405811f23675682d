from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rose.pricing.answers import probes
from rose.pricing.answers.probes import Probe
from rose.pricing.money import PricingError

GOOD = "verifier,probe,probability,correct,accepted\nv,p1,0.5,TRUE,1\nv,p2,0.49,0,False\n"


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


def test_a_parquet_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "probes.parquet"
    frame = pl.DataFrame({"probe": ["p1", "p2"], "verifier": "v", "probability": [0.5, 0.49], "correct": [True, False]})
    frame = frame.with_columns(accepted="correct")
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
        ("v,p3,1.01,true,0", "row 3: probability '1.01' cannot be used"),
        ("v,p3,-0.1,true,0", "row 3: probability '-0.1' cannot be used"),
        ("v,p3,nan,true,0", "row 3: probability 'nan' cannot be used"),
        ("v,p3,high,true,0", "row 3: probability 'high' cannot be used"),
        ("v,p3,,true,0", "row 3: probability '' cannot be used"),
        ("v,p3,0.5,,0", "row 3: correct '' cannot be used"),
        ("v,p3,0.5", "row 3: correct '', accepted '' cannot be used"),
        ("v,p3,0.5,yes,0", "row 3: correct 'yes' cannot be used"),
        (",,0.5,true,0", "row 3: probe '', verifier '' cannot be used"),
        ("v,p1,0.5,true,0", "row 3: probe 'p1' of verifier 'v' is already at row 1"),
        ("w,p1,0.5,false,0", "row 3: `correct` of probe 'p1' differs from that at row 1"),
        ("v,p3,0.5,true,1,1", "cannot read probes"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, row: str, says: str) -> None:
    with pytest.raises(PricingError, match="probes") as raised:
        probes.from_file(written(tmp_path, GOOD + row + "\n"))
    assert says in str(raised.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    rows = "".join(f"v,q{n},2,true,0\n" for n in range(12))
    with pytest.raises(PricingError, match=r"row 3: .*\n.*row 4: .*(\n.*){9}and 2 more"):
        probes.from_file(written(tmp_path, GOOD + rows))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("probe,verifier,correct,accepted\n", "correct, accepted; it has probe, verifier, correct, acc"),
        ("", "it has none"),
        ("probe,verifier,probability,correct,acepted\n", "it has .*acepted"),
    ],
)
def test_columns_and_files_that_cannot_be_used_are_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PricingError, match=says):
        probes.from_file(written(tmp_path, text))
    with pytest.raises(PricingError, match="No such file"):
        probes.from_file(tmp_path / "nowhere.csv")


def verdict(**changed: Any) -> dict[str, Any]:
    row = {"probe": "t", "verifier": "v", "reward": 0.25, "accepted": True, "correct": False, "group_id": "g"}
    return row | changed


def test_a_verdict_s_reward_is_its_probability() -> None:
    assert probes.from_ledger([verdict()]) == [Probe("t", "v", 0.25, correct=False, accepted=True, group="g")]
    for reward in (-1.0, 1.5, float("nan"), None):
        with pytest.raises(PricingError, match=r"trajectory t: reward .* of verifier 'v' is not a probability"):
            probes.from_ledger([verdict(reward=reward)])
