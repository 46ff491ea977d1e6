from __future__ import annotations

import torch

from blockswarm.model.ngram_rows import ngram_rows


def test_a_row_depends_on_the_last_bytes_and_on_nothing_before_them() -> None:
    text = torch.tensor(list(b"xxabc yyabc zzabd"))
    rows = ngram_rows(text.unfold(0, 4, 1), tables=3, rows=1000, salt=0)  # row i: after byte i + 3
    first, second, third = 5 - 4, 11 - 4, 17 - 4  # after "abc", "abc", "abd"
    assert rows[first, :2].tolist() == rows[second, :2].tolist()  # "bc" and "abc"
    assert rows[first, 2] != rows[second, 2]  # "xabc" and "yabc"
    assert (rows[first] != rows[third]).all()


def test_each_table_has_rows_of_its_own() -> None:
    window = torch.randint(0, 257, (4000, 5))
    rows = ngram_rows(window, tables=4, rows=64, salt=0)
    for table in range(4):
        assert set(rows[:, table].tolist()) == set(range(64 * table, 64 * (table + 1)))


def test_rows_are_the_same_on_every_machine() -> None:
    # A promise like that of the genesis: peers that looked elsewhere would train different tables.
    window = torch.tensor([[256, 256, 256, 84], [84, 104, 101, 32], [0, 255, 0, 255]])
    assert ngram_rows(window, tables=3, rows=16384, salt=0).tolist() == [
        [9685, 28022, 34447],
        [11312, 23494, 41445],
        [10239, 29429, 41708],
    ]


def test_n_grams_spread_evenly() -> None:
    pairs = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    counts = torch.bincount(ngram_rows(pairs, tables=1, rows=16384, salt=0)[:, 0], minlength=16384).float()
    # Four pairs a row on average; thrown at random their variance would be four as well.
    assert counts.var() < 5


def test_those_that_share_a_row_in_one_block_are_apart_in_another() -> None:
    pairs = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    first, second = (ngram_rows(pairs, tables=1, rows=16384, salt=number)[:, 0] for number in (0, 1))
    together = first == first[1234]
    assert together.sum() > 1
    assert second[together].unique().numel() == together.sum()
