"""Files that look like secrets: kept like others, never shown in a diff."""

from __future__ import annotations

from collections.abc import Iterable

from pathspec import GitIgnoreSpec

__all__ = ["DEFAULT_SECRETS", "Secrets"]

DEFAULT_SECRETS = (
    ".env",
    ".env.*",
    "!.env.example",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "credentials",
    "credentials.*",
    "*secret*",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".htpasswd",
    "*.tfstate",
    ".ssh/",
    ".gnupg/",
    ".aws/",
    ".kube/",
)


class Secrets:
    """Whether a path looks like a secret; patterns as in .gitignore (None: the built-in list).

    Upper and lower case are the same: a secret that is called .ENV is one.
    """

    def __init__(self, patterns: Iterable[str] | None = None) -> None:
        given = DEFAULT_SECRETS if patterns is None else patterns
        self._spec = GitIgnoreSpec.from_lines(pattern.lower() for pattern in given)

    def __call__(self, path: bytes) -> bool:
        return self._spec.match_file(path.decode("utf-8", "surrogateescape").lower())
