"""Who is kept out, and for how long."""

from __future__ import annotations

from blockswarm.swarm.policy.standing import FORGIVEN, LONGEST, MOST_PEERS, Standing, is_fault


def test_the_first_refusal_is_forgiven_and_every_further_one_doubles_the_time() -> None:
    standing, number, waits = Standing(), 10, []
    for _ in range(5):
        standing.note(number, ["good"], {"bad": "not finite"})
        waits.append(standing.out(number + 1).get("bad", number + 1) - (number + 1))
        number += 1 + waits[-1]
    assert waits == [0, 1, 2, 4, 8]


def test_nobody_stays_out_for_ever() -> None:
    standing = Standing()
    for number in range(100):
        standing.note(number, [], {"bad": "wrong length: 3 bytes instead of 4"})
    assert standing.out(100) == {"bad": 100 + LONGEST}
    assert standing.out(100 + LONGEST) == {}


def test_an_update_that_is_accepted_clears_the_name() -> None:
    standing = Standing()
    for number in range(FORGIVEN + 1):
        standing.note(number, [], {"bad": "norm 9 is over 10 times its peers' 0.1"})
    standing.note(7, ["bad"], {})
    standing.note(8, [], {"bad": "not finite"})
    assert standing.out(9) == {}


def test_being_late_is_no_fault() -> None:
    assert is_fault("wrong shape: 3 values instead of 4")
    for reason in ("late", "nothing arrived", "no samples"):
        assert not is_fault(reason)


def test_strangers_cannot_fill_the_book() -> None:
    standing = Standing()
    standing.note(1, [], {f"peer {number}": "not finite" for number in range(MOST_PEERS + 5)})
    standing.note(2, [], {f"peer {MOST_PEERS + 4}": "not finite", "peer 0": "not finite"})
    assert list(standing.out(3)) == [f"peer {MOST_PEERS + 4}"]  # the first ones had been forgotten
