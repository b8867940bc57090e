"""`python -m harness recover RUN …`: saves what a killed run recorded.

A live run writes a journal while it lasts (`harness.records.journal`). This command makes
requests.parquet and events.parquet from the journal, and marks the run as aborted in its manifest.
There is no summary, since the run did not end. Exit status: 0 done, 2 the folder is not that
of a killed run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.configuration.command_line import ends_in_order, parser
from harness.errors import UsageError
from harness.files import PARTIAL
from harness.records.closed_loop import concurrency_of
from harness.records.folder_lock import locked
from harness.records.journal import JOURNAL, replay
from harness.records.manifest import ended
from harness.records.record import Recorder
from harness.records.run_folder import RunFolder
from harness.records.tables import events_table, requests_table
from harness.schedule import Schedule

KILLED = "killed: its process ended without a word"


def recover(path: Path) -> Recorder:
    """What was recorded until the run in `path` was killed, now in its files. Raises UsageError
    where none was, or where it still runs."""
    if not (path / "manifest.json").is_file():
        raise UsageError(f"{path} is no run's folder: it has no manifest.json")
    with locked(path, wait=False):
        folder = RunFolder(path)
        manifest = folder.manifest()
        for key in ("status", "engine"):
            if key not in manifest:
                raise UsageError(f"{path / 'manifest.json'} is damaged: it has no {key}")
        journal = path / JOURNAL
        if manifest["status"] != "begun" and not journal.is_file():
            if manifest.get("reason") == KILLED:
                raise UsageError(f"{path} has been recovered before: nothing is left to recover")
            raise UsageError(f"{path} was not killed: its manifest says {manifest['status']}")
        recorder = Recorder([])
        last = journal if journal.is_file() else path / "manifest.json"
        at = datetime.fromtimestamp(last.stat().st_mtime, UTC)
        if journal.is_file():  # a simulation has none, nor has a run that was not yet served
            recorder = Recorder(Schedule.load(path / "schedule.parquet").requests())
            replay(journal, recorder)
            closed = concurrency_of(recorder.events) is not None
            for record in recorder.records.values():  # a request arrived when it was sent
                request, turn = record.request, record.request.turn
                request.generated_tokens = sum(each.num_tokens for each in record.segments)
                if turn is not None and turn.previous is not None and record.sent_s is not None:
                    request.prompt_tokens = turn.previous.known_tokens + turn.new_tokens
                follows = closed or (turn is not None and turn.earlier)
                if follows and record.sent_s is not None:
                    record.request.arrival_s = record.sent_s
            folder.write_requests(requests_table(recorder))
            folder.write_events(events_table(recorder))
        if manifest["status"] == "begun":  # else it could still say why, but not write its records
            resolved = manifest["engine"]
            folder.write_manifest(
                ended(manifest, "aborted", reason=KILLED, resolved=resolved, gpu=None, at=at)
            )
        for left in (journal, *path.glob(PARTIAL)):
            left.unlink(missing_ok=True)
    return recorder


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("recover", __doc__)
    about.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the run's folder")
    for path in about.parse_args(arguments).runs:
        found = recover(path)
        print(f"{path}: {found.num_tokens} tokens of {found.num_started} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
