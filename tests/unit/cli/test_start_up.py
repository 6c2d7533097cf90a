"""`--help` and `status` start at once: nothing heavy is imported."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "pandas", "kubernetes", "matplotlib", "numpy", "aiohttp", "requests", "rich", "transformers")
EVERY = ("status", "set", "pause", "lint", "plan")


def imported(*arguments: str) -> set[str]:
    program = (
        "import sys\nfrom tailkeeper.cli import main\n"
        f"sys.argv = ['tailkeeper', *{arguments!r}]\n"
        "try:\n    main.main()\nexcept SystemExit:\n    pass\n"
        "print('MODULES', *sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("arguments", [("--help",), *((name, "--help") for name in EVERY)], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert not imported(*arguments) & set(HEAVY)


def test_status_does_not_even_build_the_models_of_the_contract() -> None:
    """They take 150 ms; it shows what the server says as it says it."""
    found = imported("status", "--kubeconfig", "/nowhere")
    assert not found & {*HEAVY, "tailkeeper.api.base"}
    assert "tailkeeper.cli.status_rows" in found
