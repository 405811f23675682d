from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing.alerts.config import (
    AlertsError,
    BudgetRule,
    EmailChannel,
    UnverifiedRule,
    WebhookChannel,
    load,
    parse,
)

HOOK = '[[channel]]\nname = "hook"\nkind = "webhook"\nurl = "https://example.com/rose"\nsecret_env = "S"\n'
MAIL = (
    '[[channel]]\nname = "mail"\nkind = "email"\nhost = "smtp.example.com"\nfrom = "rose@example.com"\n'
    'to = ["ann@example.com"]\n'
)
RULE = '[[rule]]\nname = "budgets"\nkind = "budget"\nchannels = ["hook"]\n'
REPORT = '[[report]]\nname = "weekly"\nchannels = ["hook"]\nevery = "week"\non = "monday"\nat = "08:00"\n'


def test_a_whole_file() -> None:
    text = f'{HOOK}{MAIL}{RULE}repeat_after = "never"\n[[rule]]\nname = "v"\nkind = "unverified"\nchannels = ["mail"]\n'
    made = parse(text + REPORT, "alerts.toml")
    hook, mail = made.channel
    assert isinstance(hook, WebhookChannel)
    assert isinstance(mail, EmailChannel)
    assert (mail.sender, mail.security, mail.port) == ("rose@example.com", "starttls", 587)
    budget, unverified = made.rule
    assert isinstance(budget, BudgetRule)
    assert isinstance(unverified, UnverifiedRule)
    assert (budget.at, budget.repeat_after) == ([0.8, 1.0], None)
    assert (unverified.after, unverified.repeat_after) == (26 * 3600, 86_400)
    assert (made.provenance, made.report[0].by) == ("live", "team")


def test_paths_are_from_the_file_s_folder(tmp_path: Path) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text(f'price_book = "prices.toml"\n{HOOK}'.replace('secret_env = "S"', 'secret_file = "secrets/hook"'))
    made = load(file)
    assert isinstance(made.channel[0], WebhookChannel)
    assert made.channel[0].secret_file == tmp_path / "secrets/hook"
    assert made.price_book == str(tmp_path / "prices.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "channel: Field required"),
        ("x = [", "is not valid TOML"),
        (HOOK.replace("webhook", "pager"), "channel.0: Input tag 'pager'"),
        (HOOK.replace("https://example.com/rose", "ftp://example.com"), "must be a URL such as https://"),
        (HOOK.replace("https://", "http://"), "must be https beyond this host"),
        (HOOK.replace("https://", "https://ann:pw@"), "must have no user or password in it"),
        (HOOK.replace('secret_env = "S"', ""), "give one of secret_file and secret_env, got none"),
        (HOOK + 'secret_file = "x"\n', "got secret_file and secret_env"),
        (HOOK + 'url_env = "U"\n', "give one of url and url_file and url_env, got url and url_env"),
        (HOOK.replace("url", "link"), "channel.0.webhook.link: no such field; there is ca_file, kind, name, secret_"),
        (HOOK.replace("https://example.com/rose", "https://[x"), "must be a URL such as https://"),
        (HOOK + 'secret = "x"\n', "channel.0.webhook.secret: no such field; did you mean 'secret_env'?"),
        (MAIL + 'form = "x"\n', "channel.0.email.form: no such field; did you mean 'from'?"),
        (HOOK + REPORT + "evry = 1\n", "report.0.evry: no such field; did you mean 'every'?"),
        ("colour = 1\n" + HOOK, "colour: no such field; there is channel, price_book, provenance, report, rule"),
        (HOOK + "timeout_s = 600\n", "channel.0.webhook.timeout_s: Input should be less than or equal to 60"),
        (HOOK + HOOK, "two [[channel]] are named 'hook'"),
        (HOOK.replace('"hook"', '"a b"'), "channel.0.webhook.name: String should match pattern"),
        (MAIL.replace("ann@example.com", "ann"), "must be one e-mail address, such as finance@example.com (got 'ann')"),
        (MAIL.replace("ann@example.com", "a@b, c@d"), "must be one e-mail address"),
        (MAIL.replace("rose@example.com", "rose@example.com\\r\\nBcc: eve@example.com"), "must be one e-mail address"),
        (MAIL + 'security = "none"\n', "is for a server on this host, and host is 'smtp.example.com'"),
        (MAIL + 'username = "rose"\n', "give one of password_file and password_env, got none"),
        (MAIL + 'password_env = "P"\n', "a password needs a username"),
        (HOOK + RULE.replace('["hook"]', '["hoook"]'), "rule 'budgets': no channel is named 'hoook'; did you mean"),
        (HOOK + RULE.replace('["hook"]', "[]"), "rule.0.budget.channels: List should have at least 1 item"),
        (HOOK + RULE + 'repeat_after = "1 day"\n', "must be a number followed by s, m, h or d, such as 30m"),
        (HOOK + RULE + 'repeat_after = "0h"\n', "must be a number followed by s, m, h or d"),
        (HOOK + RULE + "at = [0]\n", "rule.0.budget.at.0: Input should be greater than 0"),
        (HOOK + RULE + 'at = ["80%"]\n', "rule.0.budget.at.0: Input should be a valid number (got '80%')"),
        (HOOK + RULE.replace('"budget"', '"slo"'), "rule.0.slo.target: Field required"),
        (HOOK + REPORT.replace("monday", "mon"), "on must be one of monday, tuesday"),
        (HOOK + REPORT.replace('"week"', '"day"'), 'on must be left out where every is "day"'),
        (HOOK + REPORT.replace('"week"', '"month"'), "on must be a day from 1 to 28"),
        (HOOK + REPORT.replace("08:00", "8:00"), "must be a time of day such as \"08:00\" (got '8:00')"),
        (HOOK + REPORT + 'time_zone = "Mars"\n', "time zone 'Mars' is not known"),
        (HOOK + REPORT + 'time_zone = "Asia/Kolkata"\n', "charges are of whole UTC hours"),
        (HOOK + REPORT + 'by = "colour"\n', "must be one of team, run"),
        ('provenance = "both"\n' + HOOK, "provenance: Input should be 'live'"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(text: str, says: str) -> None:
    with pytest.raises(AlertsError) as raised:
        parse(text, "alerts.toml")
    assert str(raised.value).startswith("alerts alerts.toml")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [HOOK.replace("https://", "https://ann:hunter2@"), HOOK + 'secret = "hunter2"\n', MAIL + 'password = "hunter2"\n'],
)
def test_a_secret_is_never_in_an_error(text: str) -> None:
    with pytest.raises(AlertsError) as raised:
        parse(text, "alerts.toml")
    assert "hunter2" not in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(AlertsError, match=r"cannot read alerts .*: No such file or directory; docs/alerts.md"):
        load(tmp_path / "alerts.toml")
    (tmp_path / "alerts.toml").write_bytes(b"\xff")
    with pytest.raises(AlertsError, match="is not UTF-8 text"):
        load(tmp_path / "alerts.toml")
