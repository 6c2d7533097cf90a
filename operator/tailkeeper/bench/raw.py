"""Every request of a run as CSV, for whoever wants to compute for themselves."""

import csv
import math
from typing import Final, TextIO

from tailkeeper.bench.measured import Measured, columns
from tailkeeper.bench.outcome import Outcome
from tailkeeper.bench.plan import Plan

HEADER: Final = (
    "index",
    "tier",
    "tenant",
    "intended_s",
    "warmup",
    "send_lag_ms",
    "outcome",
    "status",
    "late",
    "answer_ms",
    "latency_ms",
    "first_token_ms",
    "hold_ms",
    "busy_ms",
    "slot_ms",
    "exec_ms",
    "prompt_tokens",
    "output_tokens",
    "attempts",
)


def write_raw(plan: Plan, measured: Measured, file: TextIO) -> None:
    """Write one line a request, in order of intended send time. An empty cell is not known."""
    out = csv.writer(file, lineterminator="\n")
    out.writerow(HEADER)
    every = columns(plan, measured)
    for n in range(len(every)):
        request = measured.schedule[every.index[n]]
        out.writerow(
            (
                every.index[n],
                request.tier,
                request.tenant or "",
                f"{request.arrival_s:.6f}",
                int(request.arrival_s < plan.warmup_s),
                _cell(every.lag_ms[n]),
                Outcome(every.outcome[n]).name.lower(),
                every.status[n] or "",
                int(every.late[n]),
                _cell(every.answer_ms[n]),
                _cell(every.latency_ms[n]),
                _cell(every.first_token_ms[n]),
                _cell(every.hold_ms[n]),
                _cell(every.busy_ms[n]),
                _cell(every.slot_ms[n]),
                _cell(every.exec_ms[n]),
                request.prompt_tokens,
                every.output_tokens[n],
                every.attempts[n],
            )
        )


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
