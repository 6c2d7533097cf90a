"""Many policies applied at once: how long until all are reconciled, at how many API writes each, and then: peace?

usage: python -m benchmarks.ground_operator [--policies 200] [--rest-minutes 10]

A real API server of its own with kube-controller-manager (nothing runs the pods), and the operator as a process with
exactly the chart's role. Writes and their times are from the server's audit log, not from what the operator says.
Time counts from the first policy's creation; `objects` ends when the last Deployment was made (it is made last), `all`
with the last write of any kind, status included. Last, somebody edits a Deployment and deletes a Service of each of
50 policies: how long until both are put back."""

import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks.results_file import keep, percentile
from tailkeeper.reconcile.kinds import DEPLOYMENT, SERVICE
from tests.integration.control_plane import ControlPlane
from tests.integration.operators import (
    HOME,
    WRITES,
    Field,
    OperatorProcess,
    eventually,
    grant_chart_role,
    one_instance,
    running,
)

CRDS = Path(__file__).parents[1] / "crds"
NAMESPACE = "default"
REPAIRS = 50
QUIET_S = 60.0
"""All is written when nothing was for this long: a condition settles before it is written."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=int, default=200)
    parser.add_argument("--rest-minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(Path(folder))
        try:
            plane.kubectl("apply", "--server-side", "-f", str(CRDS))
            plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
            grant_chart_role(plane, Path(folder))
            controllers = plane.start_controllers()
            with running(OperatorProcess(plane, Path(folder), "--tick-seconds=5")) as operator:
                figures = measure(plane, operator, arguments.policies, arguments.rest_minutes)
            controllers.stop()
        finally:
            plane.stop()
    command = f"python -m benchmarks.ground_operator --policies {arguments.policies}"
    keep("ground-operator", f"{command} --rest-minutes {arguments.rest_minutes:g}", figures)


def measure(plane: ControlPlane, operator: OperatorProcess, policies: int, rest_minutes: float) -> dict[str, object]:
    """Applies the policies and watches what is written, then watches that nothing is."""
    field = Field(plane, NAMESPACE)
    names = [f"p{number}" for number in range(policies)]
    cpu_before_s = cpu_s(operator)
    began = datetime.datetime.now(datetime.UTC)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: field.apply(name, one_instance()), names))
    applied = datetime.datetime.now(datetime.UTC)
    eventually(lambda: len(deployments(writes(plane))) >= policies, within_s=600, every_s=1)
    eventually(lambda: seconds_since_last(plane) > QUIET_S, within_s=600, every_s=1)
    assert all(field.condition("Accepted", name).get("status") == "True" for name in names)
    busy = writes(plane)
    cpu_busy_s = cpu_s(operator) - cpu_before_s

    time.sleep(rest_minutes * 60)
    at_rest = writes(plane)[len(busy) :]
    cpu_rest_s = cpu_s(operator) - cpu_before_s - cpu_busy_s
    repaired_s = [repair_s(field, name) for name in names[:REPAIRS]]
    made = sorted((at - began).total_seconds() for at in deployments(busy))
    by_resource = collections.Counter(f"{verb} {resource}" for _, verb, resource in busy)
    return {
        "policies": policies,
        "applied_by_client_s": seconds(began, applied),
        "reconciled_s": {
            "first_object": round(made[0], 2),
            "median": round(percentile(made, 50), 2),
            "objects": round(made[-1], 2),
            "all": seconds(began, busy[-1][0]),
        },
        "writes_per_policy": round(len(busy) / policies, 2),
        "writes": dict(sorted(by_resource.items())),
        "operator_cpu_s": round(cpu_busy_s, 2),
        "rest_minutes": rest_minutes,
        "writes_at_rest": len(at_rest),
        "operator_cpu_share_at_rest": round(cpu_rest_s / (rest_minutes * 60), 4),
        "repairs": len(repaired_s),
        "repaired_s": {"median": percentile(repaired_s, 50), "max": max(repaired_s)},
        "operator_resident_mib": resident_mib(operator),
        "loop_lag_s": operator.metric("tailkeeper_operator_loop_lag_seconds"),
    }


def repair_s(field: Field, policy: str) -> float:
    """From the answer to somebody's edit of a Deployment and deletion of a Service until both are as they should be."""
    name = f"{policy}-small"
    field.edit(DEPLOYMENT, {"spec": {"replicas": 7}}, name)
    field.delete(SERVICE, name)
    began_s = time.monotonic()

    def repaired() -> bool:
        deployment = field.get(DEPLOYMENT, name)
        return deployment is not None and deployment["spec"]["replicas"] == 1 and field.get(SERVICE, name) is not None

    eventually(repaired, every_s=0.01)
    return round(time.monotonic() - began_s, 3)


Write = tuple[datetime.datetime, str, str]
"""When it was answered, verb, resource."""


def writes(plane: ControlPlane) -> list[Write]:
    """What the operator wrote, in the order in which the server answered."""
    found = []
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        if entry["user"]["username"] == f"system:serviceaccount:{HOME}:tailkeeper" and entry["verb"] in WRITES:
            reference = entry["objectRef"]
            resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            found.append((datetime.datetime.fromisoformat(entry["stageTimestamp"]), entry["verb"], resource))
    return sorted(found)


def deployments(found: list[Write]) -> list[datetime.datetime]:
    """When Deployments were written; each is written once."""
    return [at for at, _, resource in found if resource == "deployments"]


def seconds_since_last(plane: ControlPlane) -> float:
    return (datetime.datetime.now(datetime.UTC) - writes(plane)[-1][0]).total_seconds()


def seconds(began: datetime.datetime, ended: datetime.datetime) -> float:
    return round((ended - began).total_seconds(), 2)


def cpu_s(operator: OperatorProcess) -> float:
    """Processor time of the operator so far."""
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(operator: OperatorProcess) -> float:
    """Memory of the operator."""
    pages = int(Path(f"/proc/{operator.process.pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


if __name__ == "__main__":
    main()
