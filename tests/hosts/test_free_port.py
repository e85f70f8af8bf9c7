import socket

import pytest
from torchserve_process import free_ports

from torchserve_neuron_lstm.hosts.free_port import check_free
from torchserve_neuron_lstm.inference.errors import ArchiveError


def test_a_free_port_stays_free() -> None:
    (port,) = free_ports(1)
    check_free("127.0.0.1", port)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))

        assert server.getsockname()[1] == port


def test_a_port_that_is_taken_is_refused_by_its_number() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(
            ArchiveError, match=rf"127\.0\.0\.1:{port} cannot be used \(Addr.*: give another port; of 7$"
        ):
            check_free("127.0.0.1", port, "; of 7")


@pytest.mark.parametrize("host", ["192.0.2.1", "nobody.invalid", "a..b", "x" * 300])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    """Another port would not help."""
    with pytest.raises(ArchiveError, match=r"cannot be used \(.*\): give another host"):
        check_free(host, 80)
