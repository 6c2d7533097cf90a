"""The load generator: an open-loop load on a URL, and the tail of its latency counted from the intended send times.

`tailkeeper.bench.run.run_load` runs a `tailkeeper.bench.plan.Plan` and returns a `tailkeeper.bench.report.Report`.
"""
