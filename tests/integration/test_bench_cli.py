"""`tailkeeper bench` as people call it: what it prints, what it writes, how it ends."""

import asyncio
import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from tailkeeper.bench.report import Report
from tests.integration.bench_servers import EMBEDDING, Server, polite, sse

TAILKEEPER = str(Path(sys.executable).with_name("tailkeeper"))
DOCS = Path(__file__).parents[2] / "docs" / "bench.md"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Answers embeddings after 10 ms, and chats with the tokens asked for; knows some tiers."""

    async def tokens(wanted: int):  # type: ignore[no-untyped-def]
        for _ in range(wanted):
            yield 'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
        yield "data: [DONE]\n\n"

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if request.headers["x-tailkeeper-tier"] not in ("interactive", "batch", "standard"):
            return web.json_response({"error": {"message": "unknown tier; there are interactive, batch"}}, status=400)
        await asyncio.sleep(0.01)
        if "chat" in request.path:
            return await sse(request, tokens(json.loads(await request.read())["max_tokens"]))
        return web.json_response(EMBEDDING, headers={"server-timing": "hold;dur=2, busy;dur=1, slot;dur=0, exec;dur=6"})

    with polite(answer) as running:
        yield running


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TAILKEEPER, "bench", *arguments], capture_output=True, text=True, timeout=60, check=False)


def embeddings(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return bench(server.url, "--api", "embeddings", "-d", "1", *arguments)


def test_a_table_for_people(server: Server) -> None:
    ran = embeddings(server, "-t", "interactive:poisson:40", "-t", "batch:gamma:30,2", "--sla-ms", "interactive=500")
    assert ran.returncode == 0, ran.stderr
    rows = {line.split()[0]: line for line in ran.stdout.splitlines() if line[:3] in ("int", "bat", "all")}
    assert set(rows) == {"interactive", "batch", "all", "interactive:", "batch:"}
    assert "batch wait" in ran.stdout
    assert "sent on time" in ran.stdout
    assert ran.stderr == ""


def test_json_for_programs(server: Server) -> None:
    ran = embeddings(server, "-t", "interactive:constant:50", "--sla-ms", "500", "--warmup", "500ms", "-o", "json")
    report = Report.model_validate_json(ran.stdout)
    tier = report.tier("interactive")
    assert tier.sent == 50
    assert tier.late_ratio == 0
    assert report.warmup_s == 0.5
    assert [series.bucket_s for series in tier.series] == [1, 5]
    assert json.loads(ran.stdout)["schema"] == "tailkeeper.bench/v1"


def test_yaml_says_the_same(server: Server) -> None:
    ran = embeddings(server, "-t", "interactive:constant:20", "-o", "yaml")
    assert Report.model_validate(yaml.safe_load(ran.stdout)).tier("interactive").sent == 20


def test_a_line_for_logs(server: Server) -> None:
    ran = embeddings(server, "-t", "interactive:constant:20", "--sla-ms", "500", "-o", "line")
    assert re.fullmatch(
        r"tier=interactive sent=20 avg=\S+ms p95=\S+ms p99=\S+ms timeout_rate=0.00% sla_breached=false kept_up=true\n",
        ran.stdout,
    )


def test_a_threshold_that_is_crossed_is_exit_code_1(server: Server) -> None:
    ran = embeddings(server, "-t", "interactive:constant:20", "--fail-if", "p99>1", "--fail-if", "timeout_ratio>0.5")
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("failed: p99>1: interactive p99 = ")
    assert embeddings(server, "-t", "interactive:constant:20", "--fail-if", "p99>5000").returncode == 0


def test_a_load_that_could_not_be_sent_in_time_is_not_judged(server: Server) -> None:
    lag = "--max-send-lag-ms", "0.000001"
    ran = embeddings(server, "-t", "interactive:constant:20", *lag, "--fail-if", "p99>5000")
    assert ran.returncode == 3
    assert "NOT THE LOAD ASKED FOR" in ran.stdout
    assert "not the load asked for" in ran.stderr


def test_files_are_written(server: Server, tmp_path: Path) -> None:
    picture, raw = tmp_path / "p.png", tmp_path / "raw.csv"
    ran = embeddings(
        server, "-t", "interactive:constant:20", "--sla-ms", "5", "--plot", str(picture), "--raw", str(raw)
    )
    assert ran.returncode == 0, ran.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    with raw.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    assert {(row["tier"], row["outcome"], row["status"], row["hold_ms"], row["late"]) for row in rows} == {
        ("interactive", "answered", "200", "2.000", "1")
    }


def test_a_trace_is_sent_as_recorded(server: Server, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,tier,prompt_tokens,output_tokens,deadline_ms,tenant\n"
        + "".join(f"{100 + n / 10},{'batch' if n % 2 else 'interactive'},{n + 1}00,7,90,me\n" for n in range(10))
    )
    before = len(server.seen)
    ran = bench(
        *(server.url, "--api", "chat", "--trace", str(trace), "--speed", "2", "--scale-tokens", "0.1", "-o", "json")
    )
    report = Report.model_validate_json(ran.stdout)
    assert {tier.tier: tier.sent for tier in report.tiers} == {"interactive": 5, "batch": 5}
    assert report.duration_s == pytest.approx(0.451)
    sent = [json.loads(seen.body) for seen in server.seen[before + 2 :]]
    assert sorted(len(body["messages"][0]["content"].split()) for body in sent) == list(range(10, 101, 10))
    assert {body["max_tokens"] for body in sent} == {1}
    assert {seen.headers["x-tailkeeper-tenant"] for seen in server.seen[before + 2 :]} == {"me"}


def test_inputs_of_a_file_are_sent(server: Server, tmp_path: Path) -> None:
    texts, bodies = tmp_path / "t.txt", tmp_path / "b.jsonl"
    texts.write_text('first "one"\n\nsecond\n')
    bodies.write_text('{"input": [1, 2]}\n{"input": [3]}\n')
    for path, wanted in (texts, {'"first \\"one\\""', '"second"'}), (bodies, {"[1, 2]", "[3]"}):
        before = len(server.seen)
        ran = embeddings(server, "-t", "interactive:constant:10", "--input", str(path))
        assert ran.returncode == 0, ran.stderr
        assert {json.dumps(json.loads(seen.body)["input"]) for seen in server.seen[before:]} == wanted


def for_an_hour(server: Server) -> list[str]:
    return [server.url, "--api", "embeddings", "-t", "interactive:constant:50", "-d", "1h"]


def test_ctrl_c_gives_what_it_has(server: Server) -> None:
    process = subprocess.Popen(
        [
            TAILKEEPER,
            "bench",
            server.url,
            "--api",
            "embeddings",
            "-t",
            "interactive:constant:50",
            "-d",
            "1h",
            "-o",
            "json",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    before = len(server.seen)
    while len(server.seen) < before + 50:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    report = Report.model_validate_json(out)
    assert process.returncode == 0
    assert report.interrupted
    assert report.tier("interactive").outcomes.ok >= 40


def test_killed_it_leaves_nothing_behind(server: Server) -> None:
    process = subprocess.Popen(
        [TAILKEEPER, "bench", *for_an_hour(server)],
        stdout=subprocess.DEVNULL,
    )
    before = len(server.seen)
    while len(server.seen) < before + 20:
        time.sleep(0.05)
    process.kill()
    process.wait()
    time.sleep(0.5)
    quiet = len(server.seen)
    time.sleep(0.5)
    assert len(server.seen) == quiet


URL = ["{url}", "--api", "embeddings"]
GOOD = [*URL, "-t", "interactive:poisson:1"]
WRONG = [
    (["ftp://x", "--api", "chat", "-t", "a:poisson:1"], "is no URL that can be sent to"),
    (["{url}", "-t", "interactive:poisson:1"], "which API"),
    ([*URL], "no load: give at least one tier or a trace"),
    ([*URL, "-t", "interactive"], "write NAME:ARRIVALS"),
    ([*URL, "-t", "interactive:poisson:many"], "'many' is not a number"),
    (
        [*URL, "-t", "nope:poisson:1"],
        "tier 'nope' got 400: unknown tier; there are interactive",
    ),
    ([*GOOD, "--sla-ms", "batch=5"], "no tier 'batch'"),
    ([*GOOD, "--sla-ms", "5s"], "'5s' is not a number"),
    ([*GOOD, "-d", "soon"], "write seconds"),
    ([*GOOD, "-d", "1e9"], "at most 86400 s"),
    ([*GOOD, "--fail-if", "p98>1"], "no metric 'p98'"),
    ([*GOOD, "--prompt-tokens", "few"], "size 'few'"),
    ([*GOOD, "-H", "nothing"], "write NAME:VALUE"),
    ([*GOOD, "--plot", "/no/where.png"], "No such file"),
    ([*GOOD, "--plot", "p.bmp"], "a picture is .png"),
    ([*GOOD, "--input", "/no/where"], "No such file"),
    ([*URL, "--trace", "/no/where.csv"], "/no/where.csv: No such file"),
    ([*URL, "--trace", "{trace}"], "trace.csv:3: prompt_tokens 'x' is not a whole number"),
    (["http://no.such.host.invalid", "--api", "chat", "-t", "a:poisson:1"], "is not known"),
    (["http://127.0.0.1:1", "--api", "chat", "-t", "a:poisson:1"], "connection refused"),
]


@pytest.mark.parametrize(("arguments", "why"), WRONG, ids=[why for _, why in WRONG])
def test_wrong_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str], why: str, server: Server, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,tier,prompt_tokens,output_tokens\n0,interactive,1,1\n1,interactive,x,1\n")
    ran = bench(*(a.format(url=server.url, trace=trace) for a in arguments))
    assert ran.returncode == 2
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: ")
    assert why in line


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tailkeeper.cli.main import main\nsys.argv = ['tailkeeper', '--help']\n"
        "try: main()\nexcept SystemExit as e: assert not e.code\n"
        "heavy = {'numpy', 'torch', 'pandas', 'rich', 'aiohttp', 'matplotlib', 'uvloop'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "bench" in ran.stdout


def documented() -> list[str]:
    text = DOCS.read_text().replace("\\\n", " ")
    return re.findall(r"^tailkeeper bench .*$", text, re.MULTILINE)


@pytest.mark.parametrize("command", documented())
def test_the_examples_of_the_docs_run(command: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,tier,prompt_tokens,output_tokens\n0.5,interactive,9,2\n")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    arguments = shlex.split(command.replace("http://localhost:8000", server.url))[2:]
    ran = subprocess.run(
        [TAILKEEPER, "bench", *arguments, "-d", "1", "--warmup", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TOKEN": "secret"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
