"""What a host is, by its name or address alone."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """True when the host can only be this machine: ``localhost`` or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
