"""What a contributor signs: that an update of its own may enter one round (docs/protocol.md §6)."""

from __future__ import annotations

from dataclasses import dataclass

from blockswarm.dht.identity import Identity
from blockswarm.swarm.signed import Statement, StatementError, field, make, open_statement

MAX_CONTRIBUTION_BYTES = 512
"""Signed statement of a contributor; `MAX_GUESTS` of them leave a list of 256 members under its limit."""


@dataclass(frozen=True)
class Contribution:
    """A contributor's word that an update may enter one round, and no other: nobody can bring it in twice."""

    subject: int
    round: int
    """The round it is for."""
    base_round: int
    base: bytes
    """Digest of the certified state that it was trained from."""
    samples: int
    values: bytes
    """SHA-256 of the encoded update; 32 bytes."""
    statement: Statement

    @property
    def peer_id(self) -> str:
        """The contributor."""
        return self.statement.signer

    @classmethod
    def make(
        cls,
        identity: Identity,
        run_digest: bytes,
        *,
        subject: int,
        round_number: int,
        base_round: int,
        base: bytes,
        samples: int,
        values: bytes,
    ) -> Contribution:
        """Sign a contribution."""
        payload = {
            "subject": subject,
            "round": round_number,
            "base_round": base_round,
            "base": base,
            "samples": samples,
            "values": values,
        }
        return cls.parse(make("contribution", run_digest, payload, identity))

    @classmethod
    def open(cls, raw: object, run_digest: bytes) -> Contribution:
        """Check size, form and signature of one received from anyone, and read it; raises `StatementError`."""
        if isinstance(raw, bytes) and len(raw) > MAX_CONTRIBUTION_BYTES:
            raise StatementError(f"a contribution must be at most {MAX_CONTRIBUTION_BYTES} bytes")
        return cls.parse(open_statement("contribution", run_digest, raw))

    @classmethod
    def parse(cls, statement: Statement) -> Contribution:
        """Read and check a contribution's content; raises `StatementError`."""
        payload = statement.payload
        numbers = {name: field(payload, name, int) for name in ("round", "base_round", "samples")}
        if not all(0 <= number < 2**48 for number in numbers.values()):
            raise StatementError("a contribution's numbers are out of range")
        return cls(
            subject=field(payload, "subject", int),
            **numbers,
            base=field(payload, "base", bytes, length=32),
            values=field(payload, "values", bytes, length=32),
            statement=statement,
        )
