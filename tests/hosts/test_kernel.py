"""What the kernel is asked for, and what is said where it says no."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.hosts import HostsError, World, kernel


@pytest.fixture(autouse=True)
def asked_anew() -> None:
    kernel.why_not.cache_clear()


def test_where_namespaces_are_forbidden_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> int:
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(kernel, "leave_network", forbidden)
    reason = kernel.why_not()
    kernel.why_not.cache_clear()
    assert reason is not None
    assert "unshare: Operation not permitted" in reason
    with pytest.raises(HostsError, match="unshare: Operation not permitted"):
        World.build(2)


def test_elsewhere_than_on_linux_there_are_no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert kernel.why_not() == "network namespaces need Linux, this is darwin"


def test_a_missing_device_node_is_made_for_a_moment(build: Callable[..., World], tmp_path: Path) -> None:
    def on_a_new_network() -> list[str]:
        os.close(kernel.leave_network())
        tun = kernel.open_tun(tmp_path / "no" / "tun")
        try:
            return kernel.raise_interfaces(["10.1.2.3/24"], mtu=1500, queue=100)
        finally:
            os.close(tun)

    try:
        given = kernel.in_thread(on_a_new_network)
    except PermissionError:
        pytest.skip("device nodes in the folder for temporary files cannot be opened here")
    assert given == ["10.1.2.3/24"]


def test_a_thread_hands_on_what_its_function_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        kernel.in_thread(lambda: 1 / 0)
