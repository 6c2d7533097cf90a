"""The report's JSON schema is kept in the docs, and is the one of the code."""

from pathlib import Path

from tailkeeper.bench.report import schema_json

FILE = Path(__file__).parents[3] / "docs" / "reference" / "bench-report.schema.json"


def test_the_schema_in_the_docs_is_the_one_of_the_code() -> None:
    assert FILE.read_text() == schema_json(), "run: make generate"
