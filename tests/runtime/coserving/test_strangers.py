import os
from dataclasses import replace

import pytest

from rose import private_files
from rose.runtime.coserving.attach import attaching
from rose.runtime.coserving.attach.attaching import pages_in_use
from rose.runtime.coserving.hooks import serving
from rose.runtime.coserving.hooks.serving import ServingPlugin
from rose.runtime.coserving.page import ArbiterPage, Field, PageError, Party
from rose.runtime.policy.slack import LeaseTerms
from tests import strangers
from tests.runtime.coserving.hooks.test_serving import looks_now
from tests.runtime.coserving.made_scheduler import Scheduler
from tests.runtime.coserving.parties import OtherParty

pytestmark = strangers.needs_another_user

LEASE = replace(LeaseTerms(), number=3, expires_ns=1 << 62, compute_share=0.5)


@pytest.fixture
def home(monkeypatch):
    with strangers.everybodys_folder() as folder:
        monkeypatch.setattr(attaching, "FOLDERS", (folder,))
        yield folder


@pytest.fixture
def page(home):
    private_files.make(home / "rose-fleet")
    page = ArbiterPage.create(home / "rose-fleet" / "gpu-0" / "page")
    page.set_lease(LEASE)
    yield page
    page.close()


def test_another_user_can_do_nothing_to_a_page_and_its_engine_lives_on(page):
    fleet, device = page.path.parents[1], page.path.parent
    with OtherParty(page.path, Party.SERVING) as engine:
        for attempt in (
            f"cat {page.path}",
            f"ls {fleet}",
            f"ls {device}",
            f"dd if=/dev/zero of={page.path} bs=8 count=64 conv=notrunc",
            f"truncate -s 0 {page.path}",
            f": > {page.path}",
            f"rm -f {page.path}",
            f"mv {fleet} {fleet}-away",
            f"rmdir {fleet}",
            f"ln {page.path} {fleet}-link",
            f"ln -sf /etc/passwd {page.path}",
            f"ln -sfn /tmp {fleet}",
            f"mkdir {fleet}/gpu-1",
            f"touch {device}/page.serving.json",
            f"touch {device}/page.detached",
        ):
            assert not strangers.succeeds(attempt), attempt
        engine.do("assert page.lease().number == 3")
        engine.do("page.set(me, Field.WAITING, 7)")
        assert not page.replaced()
        assert page.lease() == LEASE
        assert page.get(Party.SERVING, Field.WAITING) == 7


def test_an_agent_never_takes_up_a_page_that_another_user_may_write_to(page):
    path = page.path
    size = path.stat().st_size

    def give_away():
        os.chown(path, strangers.UID, strangers.UID)

    def link():
        other = path.with_name("other")
        path.rename(other)
        path.symlink_to(other)

    for spoil in (give_away, lambda: path.chmod(0o666), link, lambda: path.with_name("second").hardlink_to(path)):
        page.close()
        spoil()
        spoiled = path.stat().st_ino
        with pytest.raises(PageError, match="A page must belong to the user of this process, or to ROSE_PAGE_USER"):
            ArbiterPage.attach(path, Party.SERVING)
        page = ArbiterPage.create(path)
        assert page.inode != spoiled
        assert page.lease() == LeaseTerms()
        assert (path.lstat().st_size, path.lstat().st_uid) == (size, 0)
    page.close()


def test_serving_lends_nothing_by_a_page_of_another_user_and_lives_when_that_is_cut_off(home, page, monkeypatch):
    forged = home / "rose-forged" / "gpu-0" / "page"
    assert strangers.succeeds(f"mkdir -p {forged.parent} && truncate -s {page.path.stat().st_size} {forged}")
    for owned in (forged.parents[1], forged.parent, forged):
        assert strangers.succeeds(f"chmod go= {owned}")
    plugin = ServingPlugin(Scheduler(), forged, None)
    plugin.received()
    assert strangers.succeeds(f"truncate -s 0 {forged}")
    looks_now(plugin)
    assert (plugin.state.attached, plugin.state.page) == (False, str(forged))
    assert f"{forged.parent} belongs to user {strangers.UID}" in plugin.state.reason
    # Nor one that is linked in the place of what a number names.
    monkeypatch.setattr(serving, "PAGE_LINK", f"{home}/rose-page-")
    assert strangers.succeeds(f"ln -s {forged} {home}/rose-page-7")
    plugin.attach(7)
    plugin.received()
    assert not plugin.state.attached
    assert f"{forged.parent} belongs to user {strangers.UID}" in plugin.state.reason
    assert [use.page for use in pages_in_use()] == [str(page.path)]
    # The same engine takes the page of its own user.
    (home / "rose-page-8").symlink_to(page.path)
    plugin.attach(8)
    plugin.received()
    assert plugin.state.attached
    plugin.attach(serving.RELEASE)


@pytest.mark.parametrize("user", [str(strangers.UID), "nobody"])
def test_an_engine_takes_the_page_of_the_user_that_it_is_told_of(home, page, monkeypatch, user):
    page.close()
    for owned in (page.path, page.path.parent, page.path.parents[1]):
        os.chown(owned, strangers.UID, strangers.UID)
    plugin = ServingPlugin(Scheduler(), page.path, None)
    plugin.received()
    assert not plugin.state.attached
    assert pages_in_use() == []
    monkeypatch.setenv("ROSE_PAGE_USER", user)
    looks_now(plugin)
    assert plugin.state.attached
    assert [use.page for use in pages_in_use()] == [str(page.path)]
    plugin.attach(serving.RELEASE)
