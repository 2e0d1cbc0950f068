"""Certificates as gRPC takes them, of listeners and of calls to peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import grpc

from store.serving.tls import Reloader, TlsFiles, authorities, read_pem, subject_names


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that demand client certificates if `files` names who signs them.

    Raises:
        TlsError: A file cannot be read or used.
    """
    source = Reloader(files, _configuration)
    return grpc.dynamic_ssl_server_credentials(
        source.current,
        # The stubs leave out that the library takes None for "no change".
        cast("Callable[[], grpc.ServerCertificateConfiguration]", source.fetch),
        require_client_authentication=files.client_ca is not None,
    )


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials of a caller that shows its certificate.

    ``client_ca`` signs whom it calls; without it, gRPC's own authorities do.

    Raises:
        TlsError: A file cannot be read or used.
    """
    subject_names(files.cert, files.key)
    roots = None if files.client_ca is None else authorities(files.client_ca)
    return grpc.ssl_channel_credentials(roots, read_pem(files.key), read_pem(files.cert))


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    subject_names(files.cert, files.key)
    roots = None if files.client_ca is None else authorities(files.client_ca)
    return grpc.ssl_server_certificate_configuration(
        [(read_pem(files.key), read_pem(files.cert))], root_certificates=roots
    )
