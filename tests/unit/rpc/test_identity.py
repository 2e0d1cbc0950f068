import pytest

from store.serving.remote import Remote, remote


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ipv4:127.0.0.1:4000", Remote("host 127.0.0.1", loopback=True)),
        ("ipv4:10.1.2.3:4000", Remote("host 10.1.2.3", loopback=False)),
        ("ipv6:%5B::1%5D:4000", Remote("host ::1", loopback=True)),
        ("ipv6:[::1]:4000", Remote("host ::1", loopback=True)),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:9", Remote("host 2001:db8:1:2::/64", loopback=False)),
        ("ipv6:[fe80::1%25eth0]:9", Remote("host fe80::/64", loopback=False)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:9", Remote("host 10.0.0.1", loopback=False)),
        ("ipv6:%5B::ffff:127.0.0.1%5D:9", Remote("host 127.0.0.1", loopback=True)),
        ("unix:", Remote("host unix", loopback=True)),
        ("unix:/run/node.sock", Remote("host unix", loopback=True)),
        ("ipv4:nonsense", Remote("host unknown", loopback=False)),
        ("", Remote("host ", loopback=False)),
    ],
)
def test_where_a_call_comes_from(address: str, expected: Remote) -> None:
    assert remote(address) == expected


def test_the_port_does_not_matter() -> None:
    assert remote("ipv4:10.0.0.1:1").name == remote("ipv4:10.0.0.1:2").name
