"""The file of alerts, such as `alerts.toml`: channels, rules and scheduled reports, validated at the edge."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from rose.config_errors import explain
from rose.config_hosts import PathText, Section
from rose.errors import UserError, did_you_mean
from rose.ledger.address import is_loopback
from rose.pricing.answers import changes
from rose.pricing.money import PricingError
from rose.pricing.spend.calendar import Calendar

_DURATION = re.compile(r"([1-9]\d{0,5})([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_ADDRESS = re.compile(r"[^\s@<>,;:\"()\[\]\\]+@[^\s@<>,;:\"()\[\]\\]+")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class AlertsError(UserError):
    """A file of alerts that cannot be used; the message names the file, the field, the value and the way out."""


def _seconds(text: object) -> object:
    """Seconds of `90s`, `30m`, `26h` or `7d`."""
    if not isinstance(text, str) or (match := _DURATION.fullmatch(text)) is None:
        raise ValueError("must be a number followed by s, m, h or d, such as 30m, 26h or 7d")
    return int(match[1]) * _UNITS_S[match[2]]


def _address(text: str) -> str:
    if not (text.isprintable() and text.isascii() and _ADDRESS.fullmatch(text)):
        raise ValueError("must be one e-mail address, such as finance@example.com")
    return text


def _safe_url(url: str) -> str:
    """Raises ValueError, which has nothing of the URL: it may be a secret."""
    try:
        parts = urlsplit(url)
        hostname = parts.hostname
    except ValueError:
        raise ValueError("must be a URL such as https://hooks.example.com/rose") from None
    if parts.scheme not in ("http", "https") or not hostname or not url.isprintable() or " " in url:
        raise ValueError("must be a URL such as https://hooks.example.com/rose")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must have no user or password in it: the message is signed with the secret")
    if parts.scheme == "http" and not is_loopback(hostname):
        raise ValueError("must be https beyond this host: the message names teams and amounts")
    return url


Seconds = Annotated[int, BeforeValidator(_seconds)]
#: Of the environment; what is none of its names may be the secret itself.
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Address = Annotated[str, AfterValidator(_address)]
Timeout = Annotated[float, Field(gt=0, le=60)]
Share = Annotated[float, Field(gt=0, le=1)]


class WebhookChannel(Section):
    """A URL that messages are posted to as JSON, signed with a secret. One that is a secret itself has its own file."""

    kind: Literal["webhook"]
    name: Name
    url: str | None = None
    url_file: PathText | None = None
    url_env: Variable | None = None
    secret_file: PathText | None = None
    secret_env: Variable | None = None
    ca_file: PathText | None = None
    timeout_s: Timeout = 10.0

    @field_validator("url")
    @classmethod
    def _is_safe(cls, url: str | None) -> str | None:
        return None if url is None else _safe_url(url)

    @model_validator(mode="after")
    def _has_secret(self) -> WebhookChannel:
        _one_of(
            self, "url", "url_file", "url_env", why="a URL that lets anyone post stands in no file that others read"
        )
        _one_of(self, "secret_file", "secret_env")
        return self

    def address(self) -> str:
        """Where messages are posted. Raises AlertsError where it is kept elsewhere, and is not there or no URL."""
        if self.url is not None:
            return self.url
        text = secret(self.name, self.url_file, self.url_env)
        try:
            return _safe_url(text)
        except ValueError as error:
            place = self.url_file or f"the environment variable {self.url_env}"
            raise AlertsError(f"channel {self.name!r}: what {place} holds {error}") from None


class EmailChannel(Section):
    """A mail server, and the addresses that messages go to."""

    kind: Literal["email"]
    name: Name
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:-]+$")]
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str | None = None
    password_file: PathText | None = None
    password_env: Variable | None = None
    ca_file: PathText | None = None
    sender: Address = Field(alias="from")
    to: list[Address] = Field(min_length=1)
    timeout_s: Timeout = 20.0

    @model_validator(mode="after")
    def _can_log_in(self) -> EmailChannel:
        if self.username is not None:
            _one_of(self, "password_file", "password_env")
        elif self.password_file is not None or self.password_env is not None:
            raise ValueError("a password needs a username")
        if self.security == "none" and not is_loopback(self.host):
            raise ValueError(f'security "none" is for a server on this host, and host is {self.host!r}')
        return self


class Rule(Section):
    """What every rule has: its name, where its messages go, and when one that still holds is sent again."""

    name: Name
    channels: list[Name] = Field(min_length=1)
    #: None: never.
    repeat_after: Annotated[Seconds | None, BeforeValidator(lambda text: None if text == "never" else text)] = 86_400


class BudgetRule(Rule):
    """A team's spending of the month reached a share of its budget, or is forecast to exceed it."""

    kind: Literal["budget"]
    at: list[Annotated[float, Field(gt=0, le=10)]] = Field(default=[0.8, 1.0], min_length=1)
    forecast: bool = True


class AnomalyRule(Rule):
    """One of the last days cost other than the days before it."""

    kind: Literal["anomaly"]
    days: Annotated[int, Field(ge=1, le=28)] = 3


class SloRule(Rule):
    """Of the requests of the last hours, fewer than the target kept their promises."""

    kind: Literal["slo"]
    target: Share
    window: Seconds = 3600
    requests_min: Annotated[int, Field(ge=1)] = 100


class UnverifiedRule(Rule):
    """The ledger has problems, or was not verified for too long."""

    kind: Literal["unverified"]
    after: Seconds = 26 * 3600


class MeterRule(Rule):
    """A device whose power was metered works without readings."""

    kind: Literal["meter"]
    after: Seconds = 3600


class ReportConfig(Section):
    """A report that is sent every day, week or month at a time of day."""

    name: Name
    channels: list[Name] = Field(min_length=1)
    every: Literal["day", "week", "month"]
    #: A weekday of `week`, a day from 1 to 28 of `month`.
    on: str | int | None = None
    at: str
    time_zone: str = "UTC"
    by: str = "team"

    @field_validator("at")
    @classmethod
    def _is_time(cls, text: str) -> str:
        if _TIME.fullmatch(text) is None:
            raise ValueError('must be a time of day such as "08:00"')
        return text

    @field_validator("by")
    @classmethod
    def _is_dimension(cls, text: str) -> str:
        if text not in changes.BY:
            raise ValueError(f"must be one of {', '.join(changes.BY)}")
        return text

    @field_validator("time_zone")
    @classmethod
    def _is_zone(cls, text: str) -> str:
        try:
            # A zone that is half an hour off has no day that is made of whole UTC hours.
            Calendar(text).period("2026-01-01", 0)
        except PricingError as error:
            raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _fits(self) -> ReportConfig:
        wanted = {"day": "left out", "week": f"one of {', '.join(WEEKDAYS)}", "month": "a day from 1 to 28"}[self.every]
        fits = {
            "day": self.on is None,
            "week": self.on in WEEKDAYS,
            "month": isinstance(self.on, int) and 1 <= self.on <= 28,
        }[self.every]
        if not fits:
            raise ValueError(f'on must be {wanted} where every is "{self.every}", got {self.on!r}')
        return self


Channel = WebhookChannel | EmailChannel
AnyRule = BudgetRule | AnomalyRule | SloRule | UnverifiedRule | MeterRule


class AlertsConfig(Section):
    """The whole file. `provenance` is that of the figures: live ones are never mixed with others."""

    provenance: Literal["live", "replay", "simulated"] = "live"
    price_book: str | None = None
    channel: list[Annotated[Channel, Field(discriminator="kind")]] = Field(min_length=1)
    rule: list[Annotated[AnyRule, Field(discriminator="kind")]] = Field(default_factory=list)
    report: list[ReportConfig] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_fit(self) -> AlertsConfig:
        names = {channel.name for channel in self.channel}
        for table, entries in (("channel", self.channel), ("rule", self.rule), ("report", self.report)):
            counted = Counter(entry.name for entry in entries)
            if again := [name for name, count in counted.items() if count > 1]:
                raise ValueError(f"two [[{table}]] are named {again[0]!r}: give each a name of its own")
        for table, user in [("rule", rule) for rule in self.rule] + [("report", report) for report in self.report]:
            for name in user.channels:
                if name not in names:
                    raise ValueError(f"{table} {user.name!r}: no channel is named {name!r}{did_you_mean(name, names)}")
        return self


def load(path: Path) -> AlertsConfig:
    """Read and validate a file of alerts. Raises AlertsError naming the file and every wrong field with its value."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise AlertsError(f"cannot read alerts {path}: {error.strerror}; docs/alerts.md has an example") from None
    except UnicodeDecodeError as error:
        raise AlertsError(f"alerts {path} is not UTF-8 text: {error}") from None
    return parse(text, str(path), path.resolve().parent)


def parse(text: str, source: str, folder: Path | None = None) -> AlertsConfig:
    """Validate the text of a file of alerts, whose paths are from `folder`. Raises AlertsError."""
    try:
        config = AlertsConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise AlertsError(f"alerts {source} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise AlertsError(f"alerts {source}:\n{explain(error, AlertsConfig)}") from None
    if folder is None:
        return config
    book = config.price_book
    if book is not None and book.endswith(".toml"):
        book = str(folder / Path(book).expanduser())
    channels = [channel.model_copy(update=_from_folder(channel, folder)) for channel in config.channel]
    return config.model_copy(update={"channel": channels, "price_book": book})


def secret(channel: str, file: Path | None, variable: str | None) -> str:
    """A secret from its file, else from the environment. Raises AlertsError naming the channel where there is none."""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise AlertsError(f"channel {channel!r}: its secret cannot be read from {file}: {why}") from None
        if not text:
            raise AlertsError(f"channel {channel!r}: {file} is empty; put the secret into it")
        return text
    text = os.environ.get(variable or "", "")
    if not text:
        raise AlertsError(f"channel {channel!r}: the environment variable {variable} is not set")
    return text


def _one_of(table: Section, *fields: str, why: str = "no secret stands in this file") -> None:
    given = [name for name in fields if getattr(table, name) is not None]
    if len(given) != 1:
        raise ValueError(f"give one of {_words(fields)}, got {_words(given) or 'none'}: {why}")


def _words(names: Iterable[str]) -> str:
    return " and ".join(names)


def _from_folder(channel: Channel, folder: Path) -> dict[str, Any]:
    paths = {name: getattr(channel, name, None) for name in ("url_file", "secret_file", "password_file", "ca_file")}
    return {name: folder / path.expanduser() for name, path in paths.items() if path is not None}
