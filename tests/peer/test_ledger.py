"""What becomes of local work at a commit: nothing is lost, nothing is counted twice."""

import numpy as np
import pytest

from blockswarm.peer.ledger import Ledger, correction, kept_share

RNG = np.random.default_rng(0)
OLD, DELTA, LATER, MEAN = (RNG.standard_normal(100).astype(np.float32) for _ in range(4))
NEW = OLD + MEAN


def live_after(sent: np.ndarray | None, kept: float) -> np.ndarray:
    """Live weights after the commit of ``NEW``: a snapshot was taken at OLD + DELTA, training went on by LATER."""
    return OLD + DELTA + LATER + correction(OLD, NEW, DELTA, sent, kept)


def test_an_accepted_update_leaves_the_new_state_plus_what_was_trained_since():
    np.testing.assert_allclose(live_after(DELTA, 0.0), NEW + LATER, atol=1e-6)


def test_what_the_encoding_lost_stays_in_the_live_weights_for_the_next_round():
    sent = DELTA.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(live_after(sent, 0.0), NEW + LATER + (DELTA - sent), atol=1e-6)


def test_a_part_that_was_left_out_stays_wholly_ours():
    sent = DELTA.copy()
    sent[50:] = 0.0
    new = NEW.copy()
    new[50:] = OLD[50:]
    live = OLD + DELTA + LATER + correction(OLD, new, DELTA, sent, 0.0)
    np.testing.assert_allclose(live[50:], (OLD + DELTA + LATER)[50:], atol=1e-6)


@pytest.mark.parametrize(("late", "expected"), [("carry", 0.5), ("drop", 0.0)])
def test_an_update_that_was_not_accepted_is_carried_at_a_discount_or_dropped(late, expected: float):
    kept = kept_share(False, late, 0.5)
    assert kept == expected
    np.testing.assert_allclose(live_after(None, kept), NEW + LATER + kept * DELTA, atol=1e-6)


def test_samples_are_counted_once_whatever_becomes_of_the_rounds():
    ledger = Ledger()
    assert ledger.snapshot(160) == 160
    assert ledger.snapshot(200) == 200  # the first round did not commit: its work is still pending
    ledger.settle(200, kept=0.0)
    assert ledger.pending == 0
    assert ledger.snapshot(296) == 96
    ledger.settle(96, kept=0.5)  # committed without us
    assert ledger.snapshot(296) == 48


def test_work_done_while_a_round_was_averaged_belongs_to_the_next_one():
    ledger = Ledger()
    first = ledger.snapshot(100)
    ledger.snapshot(130)  # training goes on; another snapshot comes before the first is settled
    ledger.settle(first, kept=0.0)
    assert ledger.pending == 30


def test_taking_over_foreign_weights_starts_from_nothing():
    ledger = Ledger()
    ledger.snapshot(500)
    ledger.restart(520)
    assert ledger.snapshot(536) == 16
