"""Alerts: if a figure breaks a rule, ROSE sends one message through Apprise. `alerts.json` lists active alerts."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import unquote

from pydantic import Field, ValidationError, model_validator

from rose.clock import iso, utc_us
from rose.config import PathText, Section, explain
from rose.errors import UserError, did_you_mean
from rose.ledger import verified
from rose.ledger.address import is_loopback
from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing import query
from rose.pricing.money import format_usd
from rose.pricing.period import month_at
from rose.pricing.stats.verdict import Promise
from rose.pricing.watch import budget
from rose.private_files import open_to_others

if TYPE_CHECKING:
    from apprise import NotifyBase

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

FILE = "alerts.json"
URLS_VARIABLE = "ROSE_ALERT_URLS"
_CLEAR = ("json", "xml", "form", "mailto")  # Clear text unless they end in `s`.
_ERROR_CHARACTERS_MAX = 300
_SECRET_CHARACTERS_MIN = 4  # A shorter part of a URL is no secret, and may be a word of an error.


class AlertsError(UserError):
    """The rules or the destinations of alerts cannot be used."""


class _Rule(Section):
    name: Name
    to: list[Name] = Field(min_length=1)


class BudgetRule(_Rule):
    kind: Literal["budget"]
    at: list[Annotated[float, Field(gt=0, le=10)]] = Field(default=[0.8, 1.0], min_length=1)
    forecast: bool = True


class ServingRule(_Rule):
    kind: Literal["serving"]
    target: Annotated[float, Field(gt=0, le=1)]
    hours: Annotated[int, Field(ge=1, le=720)] = 1


class LedgerRule(_Rule):
    kind: Literal["ledger"]
    hours: Annotated[int, Field(ge=1, le=8760)] = 26


AnyRule = BudgetRule | ServingRule | LedgerRule


class AlertsConfig(Section):
    """The contents of a rules file. `provenance` selects the figures that the rules check."""

    provenance: Literal["live", "replay", "simulated"] = "live"
    price_book: str | None = None
    urls_file: PathText | None = None
    rule: list[Annotated[AnyRule, Field(discriminator="kind")]] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> AlertsConfig:
        names = [rule.name for rule in self.rule]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two rules are named {repeated!r}; give each its own name")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An active alert. It is sent again when its `level` rises."""

    key: str
    title: str
    text: str
    level: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of one rule. If the rule could not be checked, `unknown` says why, and its alerts stay active."""

    rule: AnyRule
    alerts: tuple[Alert, ...] = ()
    unknown: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertRecord:
    rule: str
    to: str
    key: str
    title: str
    level: int | None  #: The level of the last message that arrived.
    at_us: int
    error: str | None = None  # Why the last message did not arrive.


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    outcomes: tuple[Outcome, ...]
    sent: int
    entries: tuple[AlertRecord, ...]

    @property
    def failed(self) -> list[AlertRecord]:
        return [entry for entry in self.entries if entry.error is not None]

    def to_json(self) -> dict[str, object]:
        unknown = {outcome.rule.name: outcome.unknown for outcome in self.outcomes if outcome.unknown is not None}
        return {"sent": self.sent, "alerts": [asdict(entry) for entry in self.entries], "unknown": unknown}


def load(path: Path) -> AlertsConfig:
    try:
        config = AlertsConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise AlertsError(f"alerts {path}:\n{explain(error, AlertsConfig)}") from None
    except (OSError, ValueError) as error:
        raise AlertsError(f"cannot read alerts {path}: {error}; docs/finance.md has an example") from None
    folder, book = path.resolve().parent, config.price_book
    if book is not None and book.endswith(".toml"):
        book = str(folder / Path(book).expanduser())
    urls = None if config.urls_file is None else folder / config.urls_file.expanduser()
    return config.model_copy(update={"price_book": book, "urls_file": urls})


def destinations(config: AlertsConfig) -> dict[str, NotifyBase]:
    """Return the alert destinations by name, from lines `NAME=URL`. The text of an AlertsError contains no URL."""
    from apprise import Apprise, AppriseAsset

    source, file = f"the environment variable {URLS_VARIABLE}", config.urls_file
    text = os.environ.get(URLS_VARIABLE, "")
    if file is not None:
        try:
            source, why, text = str(file), open_to_others(file), file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = f"cannot be read ({type(error).__name__}); write lines NAME=URL"
        if why is not None:
            raise AlertsError(f"urls_file {file} {why}")
    plugins: dict[str, NotifyBase] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, url = (part.strip() for part in line.partition("="))
        if not line.strip() or line.startswith("#"):
            continue
        if not equals or name in plugins:
            raise AlertsError(f"line {number} of {source} must be NAME=URL, with a name that no other line has")
        with _apprise_log():
            plugin = Apprise.instantiate(url, asset=AppriseAsset(http_redirects=False))
        if plugin is None:
            raise AlertsError(f"destination {name!r} of {source} is not an Apprise URL; see Apprise's documentation")
        scheme = url.partition("://")[0].lower()
        if scheme in _CLEAR and not plugin.secure and not is_loopback(plugin.host):
            raise AlertsError(f"destination {name!r} of {source} sends clear text to another host; use {scheme}s://")
        plugins[name] = plugin
    for rule in config.rule:
        if missing := next((name for name in rule.to if name not in plugins), None):
            raise AlertsError(
                f"rule {rule.name!r}: no destination {missing!r} in {source}{did_you_mean(missing, plugins)}"
            )
    return plugins


def evaluate(ledger: Ledger, config: AlertsConfig, now_us: int | None = None) -> tuple[Outcome, ...]:
    now_us = utc_us() if now_us is None else now_us
    return tuple(_look(ledger, config, rule, now_us) for rule in config.rule)


def send(ledger: Ledger, *, file: Path) -> Mapping[str, object]:
    """Check the rules in `file` and send new alerts, as a background job. Raises AlertsError if a message fails."""
    done = check(ledger, load(file))
    if done.failed:
        raise AlertsError("; ".join(f"{entry.title} -> {entry.to}: {entry.error}" for entry in done.failed))
    return done.to_json()


def check(ledger: Ledger, config: AlertsConfig, now_us: int | None = None) -> Round:
    now_us = utc_us() if now_us is None else now_us
    plugins = destinations(config)
    with ledger.lock("alerts"):
        known, outcomes = {(entry.to, entry.key): entry for entry in entries(ledger)}, evaluate(ledger, config, now_us)
        sender = _Sender(plugins, config.provenance)
        after = [entry for outcome in outcomes for entry in _settle(outcome, known, sender, now_us)]
        try:
            layout.write_file(ledger.folder / FILE, json.dumps([asdict(entry) for entry in after], indent=1).encode())
        except OSError as error:
            raise LedgerError(
                f"cannot write {ledger.folder / FILE}: {error.strerror}; the next round sends the alerts again"
            ) from None
    return Round(outcomes=outcomes, sent=sender.sent, entries=tuple(after))


def entries(ledger: Ledger) -> list[AlertRecord]:
    path = ledger.folder / FILE
    try:
        return [AlertRecord(**entry) for entry in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise LedgerError(f"cannot read {path}: {error}; if you remove the file, every alert is sent again") from None


def send_test(config: AlertsConfig, name: str) -> str | None:
    plugins = destinations(config)
    if name not in plugins:
        raise AlertsError(f"no destination is named {name!r}{did_you_mean(name, plugins)}")
    return _Sender(plugins, config.provenance).send(name, "test", "Messages to this destination arrive.")


class _Sender:
    def __init__(self, plugins: Mapping[str, NotifyBase], provenance: str) -> None:
        self.sent = 0
        self._plugins = plugins
        self._mark = "ROSE" if provenance == "live" else f"ROSE [{provenance.upper()}]"
        self._errors: dict[str, str] = {}

    def send(self, name: str, title: str, text: str) -> str | None:
        """Send a message. Return None if it arrived, or else the error, without secrets of the destination's URL."""
        if name in self._errors:
            return self._errors[name]
        plugin = self._plugins[name]
        with _apprise_log() as log:
            arrived = plugin.notify(title=f"{self._mark}: {title}", body=text)
        if arrived:
            self.sent += 1
            return None
        error = _without_secrets(" ".join(log.getvalue().split()), plugin) or "Apprise could not send it"
        self._errors[name] = error[:_ERROR_CHARACTERS_MAX]
        return self._errors[name]


@contextmanager
def _apprise_log() -> Iterator[io.StringIO]:
    """Yield Apprise's log. No other log handler receives that log, because it may contain a URL with secrets."""
    from apprise import LogCapture

    logging.getLogger("apprise").propagate = False
    with LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
        yield log


def _without_secrets(text: str, plugin: NotifyBase) -> str:
    parts = re.split("[/?&=:@]", plugin.url(privacy=False))
    secrets = {*parts, *map(unquote, parts)} - {plugin.host}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_CHARACTERS_MIN:
            text = text.replace(secret, "...")
    return text


def _settle(
    outcome: Outcome, known: Mapping[tuple[str, str], AlertRecord], sender: _Sender, now_us: int
) -> Iterable[AlertRecord]:
    for to in outcome.rule.to:
        if outcome.unknown is not None:
            yield from (entry for entry in known.values() if entry.to == to and entry.rule == outcome.rule.name)
        for alert in outcome.alerts:
            last = known.get((to, alert.key))
            level = None if last is None else last.level
            if last is not None and last.error is None and level is not None and alert.level <= level:
                yield last
                continue
            error = sender.send(to, alert.title, alert.text)
            yield AlertRecord(
                rule=outcome.rule.name,
                to=to,
                key=alert.key,
                title=alert.title,
                level=alert.level if error is None else level,
                at_us=now_us,
                error=error,
            )


def _budgets(ledger: Ledger, config: AlertsConfig, rule: BudgetRule, now_us: int) -> Iterator[Alert]:
    month = month_at(1000 * now_us)
    if not budget.budgets(ledger, month):
        return
    for row in budget.show(ledger, month, config.price_book, provenance=config.provenance, now_us=now_us):
        key = f"{rule.name}/{row.month}/{row.team}"
        whole_nano, spent_nano = int(row.budget.value or 0), int(row.spent.value or 0)
        whole, spent = (format_usd(nano) for nano in (whole_nano, spent_nano))
        text = f"Team {row.team} has spent {spent} of {whole} in {row.month} ({row.spent.view}; {row.spent.stamp})."
        # Any spending reaches a budget of nothing.
        if reached := [at for at in rule.at if 0 < spent_nano >= Fraction(str(at)) * whole_nano]:
            title = f"{row.team} has spent {max(reached):.0%} of its budget for {row.month}"
            yield Alert(key=f"{key}/spent", title=title, text=text, level=round(1000 * max(reached)))
        forecast_nano = int(row.forecast.value or 0)
        if rule.forecast and forecast_nano > whole_nano >= spent_nano:
            title = f"{row.team} is forecast to exceed its budget for {row.month}"
            text += f" The forecast for the month is {row.forecast.text}, 95% {row.forecast.short_interval}."
            yield Alert(key=f"{key}/forecast", title=title, text=text)


def _serving(ledger: Ledger, config: AlertsConfig, rule: ServingRule, now_us: int) -> Iterator[Alert]:
    from_us = now_us - rule.hours * 3_600_000_000
    with ledger.connect() as connection:
        query.set_variables(connection, provenance=config.provenance, from_ns=from_us * 1000, to_ns=now_us * 1000)
        (row,) = query.rows(connection, "alerts/serving")
    requests, kept, since = row["requests"], row["kept"], f"{iso(from_us)[:19]}Z"
    # The target as written: exactly the target is no miss.
    seen = Promise(late=requests - kept, requests=requests, target=Fraction(str(rule.target)))
    if seen.kept is None:
        raise AlertsError(f"since {since}, {seen.text}")
    if not seen.kept:
        title = f"serving kept {kept / requests:.2%} of its promises, target {rule.target:.2%}"
        yield Alert(key=f"{rule.name}/kept", title=title, text=f"Since {since}: {seen.text}.")


def _ledger(ledger: Ledger, rule: LedgerRule, now_us: int) -> Iterator[Alert]:
    last = verified.state(ledger.folder)
    if last is not None and last.problems:
        title, text = f"the ledger has {last.problems} problems", "Do not trust its figures. Run `rose ledger verify`."
        yield Alert(key=f"{rule.name}/problems", title=title, text=text, level=last.problems)
    if last is None or now_us - last.until_us > rule.hours * 3_600_000_000:
        since = "never" if last is None else f"not since {iso(last.until_us)[:19]}Z"
        text = "Run `rose ledger verify`, or `rose jobs serve`."
        yield Alert(key=f"{rule.name}/stale", title=f"the ledger was verified {since}", text=text)


def _look(ledger: Ledger, config: AlertsConfig, rule: AnyRule, now_us: int) -> Outcome:
    try:
        match rule:
            case BudgetRule():
                alerts = _budgets(ledger, config, rule, now_us)
            case ServingRule():
                alerts = _serving(ledger, config, rule, now_us)
            case LedgerRule():
                alerts = _ledger(ledger, rule, now_us)
        return Outcome(rule=rule, alerts=tuple(alerts))
    except UserError as error:
        return Outcome(rule=rule, unknown=str(error))
