"""Options are called as the user writes them."""

from __future__ import annotations

import threading

from blockswarm.naming import option, options_as_flags


def test_in_python_an_option_is_an_argument() -> None:
    assert option("max_bytes") == "max_bytes"
    assert option("max_bytes", 5) == "max_bytes=5"
    assert option("run", "ID") == 'run="ID"'
    assert option("best_effort", True) == "best_effort=True"


def test_on_the_command_line_it_is_a_flag() -> None:
    with options_as_flags():
        assert option("max_bytes") == "--max-bytes"
        assert option("max_bytes", 5) == "--max-bytes 5"
        assert option("run_id", "ID", flag="--run") == "--run ID"
        assert option("best_effort", True) == "--best-effort"
    assert option("max_bytes") == "max_bytes"


def test_messages_made_in_other_threads_agree() -> None:
    said: list[str] = []
    with options_as_flags():
        thread = threading.Thread(target=lambda: said.append(option("top_p")))
        thread.start()
        thread.join()
    assert said == ["--top-p"]
