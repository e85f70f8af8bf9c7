"""TLS in front of a server without TLS, with certificates made for the test."""

import select
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accepting import accepting


def certificate(directory: Path, host: str) -> tuple[Path, Path]:
    """A self-signed certificate for `host`, a name or an IPv4 address, and its private key."""
    kind = "IP" if host.replace(".", "").isdigit() else "DNS"
    names = directory / f"{host}.crt", directory / f"{host}.key"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}",
            "-addext", f"subjectAltName={kind}:{host}", "-out", names[0], "-keyout", names[1],
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return names


@contextmanager
def tls_in_front(port: int, certificate_file: Path, key_file: Path) -> Iterator[int]:
    """A port of this machine with TLS that forwards to `port`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    with accepting(lambda plain: _relay(plain, context, port)) as front:
        yield front


def _relay(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """Serve one connection: a client may close it at any time, and refuse an untrusted certificate."""
    with (
        plain,
        suppress(OSError),
        context.wrap_socket(plain, server_side=True) as client,
        socket.create_connection(("127.0.0.1", port)) as server,
    ):
        other = {client: server, server: client}
        while True:
            for ready in [client] if client.pending() else select.select([*other], [], [])[0]:
                if not (received := ready.recv(1 << 16)):
                    return
                other[ready].sendall(received)
