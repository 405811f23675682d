import pytest

from rose.runtime import serving as serving_module
from rose.runtime.coserving.attach.attaching import AttachError, OwnedEngine
from rose.runtime.coserving.hooks.serving import DETACH, RELEASE
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.engines.ports import free_port
from rose.runtime.serving import AttachedEngine, answers
from tests.runtime.coserving.owned_server import Owner, served


@pytest.fixture
def page(tmp_path):
    with_agent = ArbiterPage.create(tmp_path / "device" / "page")
    yield with_agent
    with_agent.close()


@pytest.fixture
def looking(monkeypatch):
    monkeypatch.setattr(serving_module, "_LOOK_S", 0.0)


def test_an_owner_s_engine_is_attached_and_let_go_and_goes_on(page, tmp_path):
    owner = Owner()
    with served(owner) as url:
        assert answers(url)
        lent = AttachedEngine(url, page.path)
        lent.check()  # before there is anything to attach to
        assert not page.alive(Party.SERVING)
        lent.attach()
        assert page.alive(Party.SERVING)
        lent.stop()
        assert owner.numbers[1:] == [RELEASE]
        assert answers(url)


def test_an_engine_that_its_owner_started_again_is_attached_again(page, looking):
    owner = Owner()
    with served(owner) as url:
        lent = AttachedEngine(url, page.path)
        lent.attach()
        lent.check()
        assert len(owner.numbers) == 1
        owner.let_go()
        owner.path = None
        lent.check()
        assert len(owner.numbers) == 2
        assert page.alive(Party.SERVING)


def test_an_engine_that_its_owner_detached_is_left_alone_until_the_next_run(page, looking):
    with served(Owner()) as url:
        lent = AttachedEngine(url, page.path)
        lent.attach()
        OwnedEngine(url).detach()
        lent.check()
        assert not page.alive(Party.SERVING)
        lent.stop()
        AttachedEngine(url, page.path).attach()
        assert page.alive(Party.SERVING)


def test_a_server_with_two_keys_is_left_alone_too_when_its_owner_detached_it(page, looking, monkeypatch):
    monkeypatch.setenv("ROSE_SERVING_TOKEN", "b")
    owner = Owner(keys=("a", "b"))
    with served(owner) as url:
        lent = AttachedEngine(url, page.path)
        lent.attach()
        OwnedEngine(url, "b").detach()
        lent.check()
        assert owner.numbers[1:] == [DETACH]
        assert not page.alive(Party.SERVING)


def test_an_engine_that_its_owner_detached_and_started_again_is_left_alone_until_it_is_attached(page, looking):
    owner, again = Owner(), Owner()
    with served(owner) as url:
        lent = AttachedEngine(url, page.path)
        lent.attach()
        OwnedEngine(url).detach()
    with served(again, int(url.rpartition(":")[2])):
        lent.check()
        assert again.numbers == []
        OwnedEngine(url).attach(page.path)
        again.let_go()
        again.path = None  # As when it is started once more.
        lent.check()
        assert page.alive(Party.SERVING)


def test_an_engine_that_its_owner_gave_another_page_keeps_it_when_the_run_ends(page, tmp_path):
    owner = Owner()
    other = ArbiterPage.create(tmp_path / "other")
    with served(owner) as url:
        lent = AttachedEngine(url, page.path)
        lent.attach()
        OwnedEngine(url).detach()
        OwnedEngine(url).attach(other.path)
        lent.stop()
        assert other.alive(Party.SERVING)
    other.close()


def test_a_key_is_taken_from_the_environment(page, monkeypatch):
    with served(Owner(keys=("secret", "secret"))) as url:
        with pytest.raises(AttachError, match="ROSE_SERVING_TOKEN"):
            AttachedEngine(url, page.path).attach()
        monkeypatch.setenv("ROSE_SERVING_TOKEN", "secret")
        AttachedEngine(url, page.path).attach()
        assert page.alive(Party.SERVING)


def test_an_engine_that_knows_no_pages_is_named_with_the_way_out(page, tmp_path):
    with served(Owner(has_plugin=False)) as url:
        with pytest.raises(AttachError, match=f"{url} runs without ROSE's plugin"):
            AttachedEngine(url, page.path).attach()


def test_an_engine_that_is_away_is_an_error_at_first_and_waited_for_later(page, looking):
    url = f"http://127.0.0.1:{free_port()}"
    assert not answers(url)
    lent = AttachedEngine(url, page.path)
    with pytest.raises(AttachError, match="no SGLang server answers"):
        lent.attach()
    lent.check()
    lent.stop()
