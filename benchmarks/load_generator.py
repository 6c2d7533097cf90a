"""How much one sending process of `tailkeeper bench` sends in time, to a server that answers at once.

    python benchmarks/load_generator.py [--seconds 5] [--rates 500,1000,...] [--keep]

The server (a bare protocol on uvloop, a process of its own) answers at once, so what is measured is the generator: how
late requests leave, what share of a core they take, what it adds to a latency. The limit is the highest rate at which
99 % leave within 1 ms. Both ask for real-time priority, so that what else the machine does matters less; they share
its cores, so the figures are a floor."""

import argparse
import asyncio
import multiprocessing
import socket
import time

import uvloop
from results_file import keep

from tailkeeper.bench.plan import Plan, Target
from tailkeeper.bench.run import run_load
from tailkeeper.bench.sender import go_before_others
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.loads import Poisson

ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"server-timing: hold;dur=0.00, busy;dur=0.00, slot;dur=0.00, exec;dur=0.01\r\n"
    b'content-length: 12\r\n\r\n{"data": []}'
)
IN_TIME_MS = 1.0


class AnswersAtOnce(asyncio.Protocol):
    """One whole request a read, as the generator sends them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)  # type: ignore[attr-defined]


def serve(sock: socket.socket) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(AnswersAtOnce, sock=sock, backlog=4096)
        await server.serve_forever()

    go_before_others()
    uvloop.run(run())


async def at_rate(port: int, rate_per_s: float, seconds: float) -> dict[str, object]:
    target = Target(f"http://127.0.0.1:{port}/v1/embeddings", model="nothing")
    loads = (TierLoad("interactive", Poisson(rate_per_s)),)
    report = await run_load(Plan(target, loads, duration_s=seconds, warmup_s=1, max_send_lag_ms=IN_TIME_MS))
    generator, latency = report.generator, report.total.latency_ms
    assert latency is not None
    return {
        "rate_per_s": rate_per_s,
        "answered_per_s": report.total.answered_per_s,
        "in_time": generator.kept_up and report.total.error_ratio == 0,
        "send_lag_p50_ms": generator.send_lag_ms.p50,
        "send_lag_p99_ms": generator.send_lag_ms.p99,
        "send_lag_max_ms": generator.send_lag_ms.max,
        "latency_p50_ms": latency.p50,
        "latency_p99_ms": latency.p99,
        "cores": generator.cpu_fraction,
        "cpu_us_per_request": round(1e6 * generator.cpu_fraction / rate_per_s, 1),
        "connections": generator.connections,
        "realtime": generator.realtime,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rates", default="500,1000,2000,4000,8000,10000,12000,14000,16000")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/load_generator.json")
    arguments = parser.parse_args()
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(sock,), daemon=True)
    server.start()
    time.sleep(1)
    try:
        rates = [float(rate) for rate in arguments.rates.split(",")]
        runs = [asyncio.run(at_rate(sock.getsockname()[1], rate, arguments.seconds)) for rate in rates]
    finally:
        server.terminate()
    in_time = [float(str(run["rate_per_s"])) for run in runs if run["in_time"]]
    figures = {"limit_per_s": max(in_time, default=None), "runs": runs}
    if arguments.keep:
        keep("load_generator", f"python benchmarks/load_generator.py --seconds {arguments.seconds:g}", figures)
    else:
        print(figures)


if __name__ == "__main__":
    main()
