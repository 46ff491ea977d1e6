"""What reaches a terminal cannot steer it."""

from blockswarm.cli.output import for_terminal


def test_control_characters_are_shown_instead_of_obeyed():
    assert for_terminal("\x1b]0;mine\x07 \x9b2J\r") == "\\x1b]0;mine\\x07 \\x9b2J\\x0d"


def test_text_lines_tabs_and_other_alphabets_stay_as_they_are():
    text = "def f():\n\treturn 'Straße, 東京, � – ok'\n"
    assert for_terminal(text) == text
