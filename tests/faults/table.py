"""The fault matrix as data: what each fault in each phase is expected to cost, or why there is no such thing."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.injection import FAULTS, PHASES, ROLES, Fault


@dataclass(frozen=True)
class Expected:
    """What is expected of the honest replicas, beside what always holds: one digest afterwards, and nobody waits."""

    named: str
    """Regular expression: what the report or log of one of them says of the culprit (of either end, for a cut line).

    Empty where the fault costs nothing, so that the round is over before anybody could miss something.
    """
    commits: bool = True
    """Whether they commit this very round."""
    may_fork: bool = False
    """Whether two states may be certified, of which the heavier wins when they meet (docs/protocol.md §10)."""


Entry = Expected | str
"""A text says why the combination means nothing."""

NO_FRACTION = "the message has whole numbers only; another type of number is a wrong shape"
NO_NORM = "the message speaks of no vector; what it says of samples is bounded by the decision's weights"
SETTLED = (
    "what a round builds on is settled with its list; later messages name the list, and another one is wrong digest"
)
HARMLESS = Expected("")

_LIST = Expected("refused its round.list")
_DECISION = Expected("refused its round.decision")
_REPORT = Expected("refused its round.report")
_RESULT = Expected("refused its round.result")
_VOTE = Expected("refused its round.vote")
_OUTCOME = Expected("refused its round.outcome")
_LATE = Expected("^late")
_UNMET = Expected("did not answer the meeting|round.meet: ")
_NO_REPORT = Expected("did not report on its part")
_NO_DECISION = Expected("did not decide in time")
_NO_PART = Expected("did not bring its averaged part|did not report on its part")
_NO_OUTCOME = Expected("did not propose the outcome")
_GONE: dict[str, tuple[Entry, Entry]] = {
    "meet": (_UNMET, _UNMET),
    "scatter": (_LATE, _LATE),
    "reduce": (
        Expected("did not report on its part|did not bring"),
        Expected("did not decide in time|did not propose"),
    ),
    "gather": (_NO_PART, _NO_OUTCOME),
    "commit": (HARMLESS, _NO_OUTCOME),  # nobody needs its vote
}

_ROWS: dict[str, dict[str, tuple[Entry, Entry]]] = {
    "kill": _GONE,
    "stop": _GONE,
    "slow link": {
        "meet": (HARMLESS, _LIST),  # whom others can ask, they list
        "scatter": (_LATE, _LATE),
        "reduce": (_NO_REPORT, HARMLESS),  # a decision travels with what was reduced under it, too
        "gather": (_NO_PART, HARMLESS),  # who proposes the outcome has all parts; the others ask for the late one
        "commit": (HARMLESS, HARMLESS),  # an outcome travels with the votes for it
    },
    "cut link": {
        "meet": (Expected("^late"), Expected("round.list|late|did not answer", may_fork=True)),
        "scatter": (_LATE, Expected("late|did not report on its part|round.part")),
        "reduce": (HARMLESS, Expected("did not report on its part")),
        "gather": (HARMLESS, Expected("did not bring its averaged part|round.result")),
        "commit": (HARMLESS, HARMLESS),
    },
    "nan": {
        "meet": (NO_FRACTION, NO_FRACTION),
        "scatter": (Expected("^not finite"), Expected("^not finite")),
        "reduce": (_REPORT, _DECISION),
        "gather": (Expected("mean that is not finite"), Expected("mean that is not finite")),
        "commit": (NO_FRACTION, _OUTCOME),
    },
    "wrong shape": {
        "meet": (Expected("refused its round.meet"), _LIST),
        "scatter": (Expected("^wrong shape"), Expected("^wrong shape")),
        "reduce": (_REPORT, _DECISION),
        "gather": (_RESULT, _RESULT),
        "commit": (_VOTE, _OUTCOME),
    },
    "wrong length": {
        "meet": (Expected("refused its round.meet"), _LIST),
        "scatter": (Expected("^wrong length"), Expected("^wrong length")),
        "reduce": (_REPORT, _DECISION),
        "gather": (_RESULT, _RESULT),
        "commit": (_VOTE, _OUTCOME),
    },
    "oversize": {
        "meet": (Expected("refused its round.meet.*bytes"), _LIST),
        "scatter": (Expected("^wrong length"), Expected("^wrong length")),
        "reduce": (_REPORT, _DECISION),
        "gather": (_RESULT, _RESULT),
        "commit": (_VOTE, _OUTCOME),
    },
    "absurd norm": {
        "meet": (NO_NORM, NO_NORM),
        "scatter": (Expected("^norm "), Expected("^norm ")),
        # A reducer that says so of another one is believed: that one is left out, and this round only (§12).
        "reduce": (HARMLESS, _DECISION),
        "gather": (Expected("longer than any update"), Expected("longer than any update")),
        "commit": (NO_NORM, NO_NORM),
    },
    "wrong digest": {
        "meet": (Expected("takes part from another state"), _LIST),
        "scatter": (Expected("refused its round.part"), Expected("refused its round.part")),
        "reduce": (_REPORT, _DECISION),
        "gather": (Expected("is not the one in the outcome"), Expected("is not the one in the outcome")),
        # Bytes that nobody has can be asked for and not be got: the leader's lie costs the round, and only that.
        "commit": (_VOTE, Expected("is not the one in the outcome", commits=False)),
    },
    "stale base": {
        "meet": (Expected("takes part from another state"), _LIST),
        "scatter": (SETTLED, SETTLED),
        "reduce": (SETTLED, SETTLED),
        "gather": (SETTLED, SETTLED),
        "commit": (SETTLED, SETTLED),
    },
    "duplicate": {
        "meet": (Expected("takes part twice"), _LIST),
        "scatter": (Expected("refused its round.part"), Expected("refused its round.part")),
        "reduce": (_REPORT, _DECISION),
        "gather": (_RESULT, _RESULT),
        "commit": (_VOTE, _OUTCOME),
    },
    "replay": {
        "meet": (HARMLESS, _LIST),  # the right message follows, and the last word counts
        "scatter": (Expected("refused its round.part"), Expected("refused its round.part")),
        "reduce": (HARMLESS, _DECISION),  # a report that repeats an old one says nothing new about the old round
        "gather": (_RESULT, _RESULT),
        "commit": (_VOTE, _OUTCOME),
    },
}

TABLE: dict[Fault, Entry] = {
    Fault(kind, phase, role): _ROWS[kind][phase][ROLES.index(role)]
    for kind in FAULTS
    for phase in PHASES
    for role in ROLES
}
"""Every combination."""

CELLS: dict[Fault, Expected] = {fault: entry for fault, entry in TABLE.items() if isinstance(entry, Expected)}
"""Those that mean something."""


def name_of(fault: Fault) -> str:
    """How a cell is named on a command line and in test ids: ``cut-link-scatter-leader``."""
    return f"{fault.kind} {fault.phase} {fault.role}".replace(" ", "-")


SUITE = (
    "kill-scatter-leader",
    "kill-commit-leader",
    "stop-meet-member",
    "stop-reduce-leader",
    "slow-link-meet-leader",
    "slow-link-scatter-member",
    "cut-link-meet-member",
    "cut-link-scatter-leader",
    "nan-scatter-member",
    "nan-reduce-leader",
    "nan-gather-leader",
    "wrong-shape-scatter-leader",
    "wrong-shape-commit-member",
    "wrong-length-meet-leader",
    "oversize-meet-member",
    "oversize-scatter-leader",
    "absurd-norm-scatter-member",
    "absurd-norm-gather-member",
    "wrong-digest-gather-leader",
    "wrong-digest-commit-leader",
    "stale-base-meet-member",
    "stale-base-meet-leader",
    "duplicate-meet-leader",
    "duplicate-reduce-member",
    "replay-scatter-member",
    "replay-commit-leader",
)
"""Names of the cells that the test suite runs; all of them are run by ``python -m tests.faults`` and ``make soak``."""
