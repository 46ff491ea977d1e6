"""The matrix is whole: every combination has an expectation, or a reason why it means nothing."""

from __future__ import annotations

from tests.faults.alterations import ALTERATIONS
from tests.faults.injection import FAULTS, PHASES, ROLES, SIGNALS
from tests.faults.table import CELLS, SUITE, TABLE, name_of


def test_every_fault_in_every_phase_by_a_member_and_by_the_leader_is_in_the_table() -> None:
    assert len(FAULTS) == 13 and len(TABLE) == len(FAULTS) * len(PHASES) * len(ROLES) == 130
    reasons = [entry for entry in TABLE.values() if isinstance(entry, str)]
    assert len(CELLS) == 115 and all(reasons)


def test_the_cells_of_the_suite_have_every_fault_every_phase_and_both_roles() -> None:
    chosen = [fault for fault in CELLS if name_of(fault) in SUITE]
    assert len(chosen) == len(SUITE)
    assert {fault.kind for fault in chosen} == {*SIGNALS, "slow link", "cut link", *ALTERATIONS}
    assert {(fault.phase, fault.role) for fault in chosen} == {(phase, role) for phase in PHASES for role in ROLES}


def test_only_a_leader_that_lies_of_the_outcome_costs_a_round() -> None:
    assert [name_of(fault) for fault, expected in CELLS.items() if not expected.commits] == [
        "wrong-digest-commit-leader"
    ]
