"""Makes a certificate authority and a server's certificate for the loopback interface, with the openssl command."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from storeds.errors import MissingDependencyError, UnavailableError

__all__ = ["Certificates", "make_certificates"]

# Sections of our own, because what /etc/ssl/openssl.cnf adds differs between systems. The name is random so that two
# authorities are told apart by it, as real ones are.
_CONFIG = """
[req]
distinguished_name = name
prompt = no
x509_extensions = authority
[name]
CN = storeds tests {number}
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = IP:127.0.0.1,DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
_DAYS = "2"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Paths of what a server and its clients need.

    Attributes
    ----------
    authority : pathlib.Path
        The certificate of the authority, which a client is told to trust.
    server : pathlib.Path
        The server's certificate and its private key, for 127.0.0.1 and localhost.
    """

    authority: Path
    server: Path

    def server_arguments(self) -> tuple[str, ...]:
        """Return mongod's arguments: TLS alone, from clients without a certificate too."""
        return (
            *("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(self.server)),
            *("--tlsCAFile", str(self.authority), "--tlsAllowConnectionsWithoutCertificates"),
        )


def make_certificates(folder: Path) -> Certificates:
    """Make an authority of its own and a certificate that it signed.

    Parameters
    ----------
    folder : pathlib.Path
        For the files; made if need be.

    Returns
    -------
    Certificates
        Valid for two days.

    Raises
    ------
    MissingDependencyError
        There is no openssl command.
    UnavailableError
        It failed; the message ends with what it said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config"
    config.write_text(_CONFIG.format(number=secrets.token_hex(4)))
    key, authority, request = folder / "authority.key", folder / "authority.pem", folder / "server.csr"
    server_key, signed, server = folder / "server.key", folder / "server.crt", folder / "server.pem"
    _openssl("req", "-x509", *_NEW_KEY, "-config", config, "-days", _DAYS, "-keyout", key, "-out", authority)
    _openssl("req", *_NEW_KEY, "-config", config, "-subj", "/CN=127.0.0.1", "-keyout", server_key, "-out", request)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", key, "-CAcreateserial"),
        *("-days", _DAYS, "-extfile", config, "-extensions", "server", "-out", signed),
    )
    server.touch(mode=0o600)
    server.write_bytes(signed.read_bytes() + server_key.read_bytes())
    return Certificates(authority, server)


def _openssl(*arguments: str | Path) -> None:
    executable = shutil.which("openssl")
    if executable is None:
        raise MissingDependencyError("certificates are made with the openssl command: `apt-get install openssl`")
    ended = subprocess.run([executable, *arguments], capture_output=True, text=True, check=False)  # noqa: S603  # ours
    if ended.returncode:
        raise UnavailableError(f"openssl {arguments[0]} ended with status {ended.returncode}:\n{ended.stderr}")
