"""A soak's figures as a page for people, to be kept as a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.soak.judge import failures

MEBIBYTE = 1 << 20


def markdown(report: Mapping[str, Any]) -> str:
    """The page that ``--report`` writes beside the JSON."""
    settings, machine = report["settings"], report["machine"]
    problems = failures(report) + ([report["stopped_short"]] if report["stopped_short"] else [])
    lines = [
        "# Soak",
        "",
        f"{settings['rounds']} rounds of {settings['round_seconds']:g} s with {settings['replicas']} replicas, a fault "
        f"in {settings['fault_share']:.2f} of them, seed {settings['seed']}; {report['seconds'] / 60:.0f} minutes on "
        f"{machine['cpus']} cores, Python {machine['python']}. **{'Passed' if not problems else 'Not passed'}.**",
        "",
        *(f"* {problem}" for problem in problems),
        *([""] if problems else []),
        "| | |",
        "|---|---|",
        *_summary(report),
        "",
        "Resident memory of volunteers that lived throughout, with their `p2pd`; growth is that after 100 rounds:",
        "",
        "| volunteer | first round, MiB | last round, MiB | growth |",
        "|---|---|---|---|",
        *(
            f"| {name} | {_mebibytes(found['first'])} | {_mebibytes(found['last'])} | {_percent(found['growth'])} |"
            for name, found in report["memory"].items()
        ),
        "",
        "| fault | rounds | committed by all others |",
        "|---|---|---|",
        *(
            f"| {name} | {found['rounds']} | {_percent(found['commit_rate'])} |"
            for name, found in report["faults"].items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _summary(report: Mapping[str, Any]) -> list[str]:
    rows = {
        f"rounds, {kind}": f"{count}, {_percent(report['commit_rate'][kind])} committed by everyone it is expected of"
        for kind, count in report["rounds"].items()
    }
    rows["states committed"] = str(report["states_committed"])
    rows["divergent digests"] = _listed(report["forks"])
    rows["the same, of a line cut in the meeting (protocol §10)"] = _listed(
        report["forks_by_a_line_cut_in_the_meeting"]
    )
    rows["reports more than 2 s after the close"] = _listed(report["late_reports"])
    rows["faults whose culprit nobody named"] = _listed(report["bad_updates_nobody_named"])
    rows["processes and files left over"] = _listed(report["left_over"])
    if (matrix := report.get("matrix")) is not None:
        rate = matrix["commit_rate"]
        rows["fault matrix"] = (
            f"{matrix['cells']} cells, not kept: {_listed(sorted(matrix['broken']))}; {_percent(rate['fault'])} of the "
            f"faulty rounds and {_percent(rate['calm'])} of the others committed"
        )
    return [f"| {name} | {value} |" for name, value in rows.items()]


def _listed(found: list[str]) -> str:
    return f"{len(found)}: {'; '.join(found)}" if found else "0"


def _mebibytes(size: float) -> str:
    return f"{size / MEBIBYTE:.0f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
