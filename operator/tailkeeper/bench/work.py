"""What a sending process is given to do."""

import array
import ssl
from dataclasses import dataclass

from tailkeeper.bench.wire import Bodies, Kind


@dataclass(frozen=True)
class Work:
    """What one process has to send. The arrays run over its requests, in order of intended time."""

    addresses: tuple[tuple[str, int], ...]
    server_name: str
    tls: bool
    verify_tls: bool
    streams: bool
    gaps_from_s: float
    """Times between tokens are kept of requests meant for then or later: not of the warm-up."""
    kinds: tuple[Kind, ...]
    bodies: Bodies
    index: "array.array[int]"
    arrival_s: "array.array[float]"
    kind: "array.array[int]"
    prompt_tokens: "array.array[int]"
    output_tokens: "array.array[int]"


def tls_context(verify: bool) -> ssl.SSLContext:
    """What the target's certificate is checked against."""
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
