"""Who may decide what runs: the rule itself, without a disk."""

from __future__ import annotations

import stat

import pytest

from flowckpt.core.system.filesystem import why_untrusted

DIRECTORY, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK
ME, OTHER, ROOT = 1000, 1001, 0


@pytest.mark.parametrize("owner", [ME, ROOT])
@pytest.mark.parametrize("mode", [FILE | 0o644, FILE | 0o600, DIRECTORY | 0o755, DIRECTORY | 0o1755, LINK | 0o777])
def test_what_only_the_user_and_root_can_change_is_trusted(owner, mode):
    assert why_untrusted(owner, mode, ME) == ""


@pytest.mark.parametrize("mode", [FILE | 0o644, FILE | 0o400, DIRECTORY | 0o700, DIRECTORY | 0o1777, LINK | 0o777])
@pytest.mark.parametrize("uid", [ME, ROOT])
@pytest.mark.parametrize("is_on_the_way", [True, False])
def test_what_another_user_owns_is_not(mode, uid, is_on_the_way):
    assert why_untrusted(OTHER, mode, uid, is_on_the_way=is_on_the_way) == "belongs to user 1001"


@pytest.mark.parametrize("bits", [0o002, 0o020, 0o022])
@pytest.mark.parametrize("kind", [FILE, DIRECTORY])
def test_what_others_may_write_to_is_not(bits, kind):
    assert "can be changed by other users" in why_untrusted(ME, kind | 0o700 | bits, ME)
    assert "can be changed by other users" in why_untrusted(ME, kind | 0o700 | bits, ME, is_on_the_way=True)


def test_a_sticky_directory_is_trusted_on_the_way_alone():
    assert why_untrusted(ROOT, DIRECTORY | 0o1777, ME, is_on_the_way=True) == ""
    assert why_untrusted(ROOT, DIRECTORY | 0o1777, ME) != ""
    assert why_untrusted(ROOT, FILE | 0o1777, ME, is_on_the_way=True) != ""
