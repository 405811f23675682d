"""S3 Object Lock: what is written cannot be overwritten or removed before its time, by anybody or by all but a few.

A bucket with Object Lock keeps versions. Removing a locked file there hides it behind a marker, and writing it again
puts another version before it; the locked version stays until its time is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from rose.ledger.layout import LedgerError

#: Compliance: nobody, the account's owner included, ends it early. Governance: those with the right to bypass it do.
Mode = Literal["compliance", "governance"]
_DAYS_MAX = 36_500
#: A store keeps whole seconds, and its clock is another one.
_SLACK = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class ObjectLock:
    """For how long each file is locked from when it is written, and how strictly."""

    days: float
    mode: Mode = "compliance"

    def __post_init__(self) -> None:
        """Raises LedgerError for what is no lock."""
        if self.mode not in get_args(Mode):
            raise LedgerError(f"lock mode {self.mode!r} is not one of {', '.join(get_args(Mode))}")
        if not 0 < self.days <= _DAYS_MAX:
            raise LedgerError(f"a lock of {self.days:g} days cannot be set; give up to {_DAYS_MAX} days, such as 2557d")

    def headers(self, now: datetime) -> dict[str, Any]:
        """What S3 is told with a file that is written `now`."""
        return {"ObjectLockMode": self.mode.upper(), "ObjectLockRetainUntilDate": now + timedelta(days=self.days)}


def check_place(fs: Any, path: str) -> None:
    """Raises LedgerError unless `path` lies in a bucket with Object Lock."""
    if "s3" not in fs.protocol:
        raise LedgerError(
            f"{fs.unstrip_protocol(path)}: only S3 has Object Lock; name a place such as s3://bucket/prefix"
        )
    bucket, _, _ = fs.split_path(path)
    try:
        configuration = fs.call_s3("get_object_lock_configuration", Bucket=bucket)
        enabled = configuration["ObjectLockConfiguration"].get("ObjectLockEnabled") == "Enabled"
    except OSError as error:
        if "ObjectLockConfigurationNotFound" not in str(error):
            raise LedgerError(f"cannot ask s3://{bucket} whether it has Object Lock: {error}") from error
        enabled = False
    if not enabled:
        raise LedgerError(
            f"bucket {bucket!r} has no Object Lock. Make one that has: `aws s3api create-bucket --bucket NAME "
            "--object-lock-enabled-for-bucket`; or leave --object-lock out"
        )


def hold(fs: Any, path: str, lock: ObjectLock) -> datetime:
    """Make sure that the file at `path` is locked from when it was written; returns until when it is, as S3 says.

    Raises LedgerError if S3 then says otherwise, and OSError.
    """
    bucket, key, _ = fs.split_path(path)
    held = fs.call_s3("head_object", Bucket=bucket, Key=key)
    until = held["LastModified"] + timedelta(days=lock.days)
    if not _holds(held, lock, until):
        # It was copied before without a lock, or with a shorter one.
        retention = {"Mode": lock.mode.upper(), "RetainUntilDate": until}
        fs.call_s3("put_object_retention", Bucket=bucket, Key=key, Retention=retention)
        held = fs.call_s3("head_object", Bucket=bucket, Key=key)
        if not _holds(held, lock, until):
            raise LedgerError(
                f"{fs.unstrip_protocol(path)} is there, but not locked for {lock.days:g} days in {lock.mode} mode: the "
                f"store says {held.get('ObjectLockMode')} until {held.get('ObjectLockRetainUntilDate')}"
            )
    stands_until: datetime = held["ObjectLockRetainUntilDate"]
    return stands_until


def _holds(held: dict[str, Any], lock: ObjectLock, until: datetime) -> bool:
    """Whether a file's lock lasts until then, and is no weaker than `lock`."""
    strict = held.get("ObjectLockMode") in {"COMPLIANCE", lock.mode.upper()}
    retained_until = held.get("ObjectLockRetainUntilDate")
    return strict and retained_until is not None and retained_until >= until - _SLACK
