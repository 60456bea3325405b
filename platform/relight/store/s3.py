"""Object storage that speaks S3 (``s3://bucket/prefix``): AWS, MinIO, Ceph.

Everything about reaching it is read from where every other tool of AWS reads it: ``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``AWS_ACCESS_KEY_ID`` and the rest, ``~/.aws``, the pod's or the machine's role. An endpoint of one's own is addressed
path-style. Storage must support ``If-None-Match: *`` on writes (AWS does since 2024, MinIO, Ceph), for that is what
keeps two pushes apart.

The client is made at the first call: a model that is in the node's cache costs no import and no connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from relight.base.errors import BadInput, Conflict, NoSpace, PlatformError, StoreError, Unreachable
from relight.store.objects import Entry, Listing, clean_key
from relight.store.ranges import Broken, RangeReader, Refused, proxied
from relight.store.retrying import Backoff
from relight.store.uploading import tag_of, upload

log = logging.getLogger("relight.store")

CONNECT_TIMEOUT = 5.0
"""Seconds to reach a server that is there."""
READ_TIMEOUT = 30.0
"""Seconds without a byte. S3 throttles with 503, not with silence."""
SLOWEST = 600.0
"""Seconds for one ranged read in all; 8 MiB in that time are 14 kB/s."""
CLIENT_TRIES = 4
"""Of the client's own calls. It waits up to 1, 2 and 4 s in between: a server that is gone is told within 10 s."""
_SIGNED = 900.0
"""Seconds that a signed URL is good for; it is used for half of that."""
_TARGETS = 256
"""Signed URLs that are kept."""
_MISSING = {"NoSuchKey", "404", "NotFound"}
_EXISTS = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
_FULL = {"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientCapacity", "507"}
_PASSING = (429, 500, 502, 503, 504)
_BUSY = {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling", "ThrottlingException"}


@dataclass(frozen=True)
class _Session:
    """What belongs to one process: a client, and connections for ranged reads."""

    pid: int
    client: Any
    reader: RangeReader | None
    """None where a proxy stands between: the client reads then."""
    targets: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Signed URLs by key, with the time from which they are signed anew."""


class S3:
    """A prefix of a bucket as object storage."""

    def __init__(self, bucket: str, prefix: str, backoff: Backoff | None = None) -> None:
        self.bucket = bucket
        self.uri = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self.remote = True
        self._base = f"{prefix}/" if prefix else ""
        self._backoff = backoff or Backoff()
        self._opening = threading.Lock()
        self._opened: _Session | None = None

    def list(self, folder: str) -> Listing:
        base = self._base + (f"{clean_key(folder)}/" if folder else "")
        files, folders = [], []
        with self._calling("list", folder) as session:
            pages = session.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=base, Delimiter="/"):
                for item in page.get("Contents", ()):
                    # What ends with a slash is a folder's marker, as consoles make them.
                    if (name := item["Key"][len(base) :]) and self._usable(name, base):
                        files.append(Entry(name, item["Size"], item["ETag"].strip('"')))
                for item in page.get("CommonPrefixes", ()):
                    if self._usable(name := item["Prefix"][len(base) : -1], base):
                        folders.append(name)
        return Listing(tuple(sorted(files, key=lambda entry: entry.name)), tuple(sorted(folders)))

    def _usable(self, name: str, base: str) -> bool:
        try:
            return bool(clean_key(name))
        except BadInput:
            log.warning("store.unusable uri=s3://%s/%s%s: no file can have such a name", self.bucket, base, name)
            return False

    def place(self, key: str) -> Path | None:
        return None

    def size(self, key: str) -> int:
        with self._calling("read", key) as session:
            return int(session.client.head_object(Bucket=self.bucket, Key=self._key(key))["ContentLength"])

    def read(self, key: str) -> bytes:
        failures = 0
        while True:
            with self._calling("read", key) as session:
                answer = session.client.get_object(Bucket=self.bucket, Key=self._key(key))
            try:
                with self._calling("read", key), contextlib.closing(answer["Body"]) as body:
                    return bytes(body.read())
            except Unreachable:  # The client tries again until it has an answer, but not when that is cut short.
                failures += 1
                if not self._backoff.wait(failures):
                    raise

    def read_into(self, key: str, offset: int, buffer: memoryview, tag: str | None = None) -> int:
        """As the seam says. A read that breaks goes on from where it was; only tries without a single byte count."""
        filled = failures = 0
        while filled < len(buffer):
            try:
                return filled + self._read_once(key, offset + filled, buffer[filled:], tag)
            except Broken as error:
                filled += error.got
                failures = 1 if error.got else failures + 1
                log.info("store.broken uri=%s/%s reason=%s: it is read on from there", self.uri, key, error)
                if not self._backoff.wait(failures):
                    raise Unreachable(f"cannot read {self.uri}/{key}: {error}") from error
        return filled

    def _read_once(self, key: str, offset: int, buffer: memoryview, tag: str | None) -> int:
        session = self._session()
        if session.reader is not None:
            try:
                return session.reader.read_into(self._target(session, key), offset, buffer, tag)
            except Refused as error:
                if error.status in _PASSING:
                    raise Broken(f"the server answered {error.status}", 0) from None
                session.targets.pop(key, None)
        # The client says what it is, follows a bucket to its region, and gets through a proxy.
        return self._read_by_client(session, key, offset, buffer, tag)

    def _read_by_client(self, session: _Session, key: str, offset: int, buffer: memoryview, tag: str | None) -> int:
        options = {"IfMatch": f'"{tag}"'} if tag is not None else {}
        wanted = f"bytes={offset}-{offset + len(buffer) - 1}"
        got = 0
        try:
            with self._calling("read", key):
                answer = session.client.get_object(Bucket=self.bucket, Key=self._key(key), Range=wanted, **options)
                with contextlib.closing(answer["Body"]) as body:
                    if "ContentRange" not in answer and (offset or answer["ContentLength"] > len(buffer)):
                        raise StoreError(f"cannot read {self.uri}/{key}: the server does not answer ranged reads")
                    while got < len(buffer) and (read := body.readinto(buffer[got:])):
                        got += read
        except Unreachable as error:
            raise Broken(error.message, got) from error
        except _Range:
            return 0
        except Conflict as error:
            raise Conflict(f"{self.uri}/{key} is not the object any more that was listed there") from error
        return got

    def put(
        self,
        key: str,
        chunks: Iterable[bytes],
        *,
        create: bool = False,
        size: int | None = None,
        resume: bool = False,
    ) -> None:
        try:
            with self._calling("write", key) as session:
                where = {"Bucket": self.bucket, "Key": self._key(key)}
                upload(session.client, where, chunks, create=create, size=size, resume=resume, keep=_may_go_on)
        except Conflict as error:
            raise Conflict(f"{self.uri}/{key} exists already") from error

    def holds(self, key: str, chunks: Iterable[bytes], size: int) -> bool:
        with self._calling("read", key) as session:
            found = session.client.head_object(Bucket=self.bucket, Key=self._key(key))
        return int(found["ContentLength"]) == size and str(found["ETag"]).strip('"') == tag_of(chunks, size)

    def delete(self, key: str) -> None:
        with self._calling("delete", key) as session:
            session.client.delete_object(Bucket=self.bucket, Key=self._key(key))

    def clean(self, older_than: float) -> int:
        """Uploads in parts that nobody finished: they are in no listing, and are paid for."""
        before = datetime.now(UTC) - timedelta(seconds=older_than)
        cleaned = 0
        with self._calling("list", "") as session:
            pages = session.client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._base):
                for item in page.get("Uploads", ()):
                    if item["Initiated"] <= before:
                        where = {"Bucket": self.bucket, "Key": item["Key"], "UploadId": item["UploadId"]}
                        session.client.abort_multipart_upload(**where)
                        cleaned += 1
        return cleaned

    def _key(self, key: str) -> str:
        return self._base + clean_key(key)

    def _target(self, session: _Session, key: str) -> str:
        now = time.monotonic()
        until, target = session.targets.get(key, (0.0, ""))
        if now >= until:
            url = session.client.generate_presigned_url(
                "get_object", Params={"Bucket": self.bucket, "Key": self._key(key)}, ExpiresIn=int(_SIGNED)
            )
            parts = urlsplit(url)
            target = f"{parts.path}?{parts.query}"
            if len(session.targets) >= _TARGETS:
                session.targets.clear()
            session.targets[key] = (now + _SIGNED / 2, target)
        return target

    def _session(self) -> _Session:
        with self._opening:
            if self._opened is None or self._opened.pid != os.getpid():
                self._opened = self._open()
            return self._opened

    def _open(self) -> _Session:
        try:
            import boto3
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.httpsession import get_cert_path
        except ImportError:
            raise PlatformError("S3 cannot be spoken here: install relight[s3]") from None
        config = Config(
            signature_version="s3v4",
            retries={"mode": "standard", "total_max_attempts": min(self._backoff.tries, CLIENT_TRIES)},
            connect_timeout=CONNECT_TIMEOUT,
            read_timeout=READ_TIMEOUT,
            max_pool_connections=32,
            tcp_keepalive=True,
            # Contents are checked against the manifest's digests; older storage does not know other checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            core = botocore.session.get_session()
            client = boto3.session.Session(botocore_session=core).client("s3", config=config)
            ca_bundle = core.get_config_variable("ca_bundle")
            url = client.generate_presigned_url("get_object", Params={"Bucket": self.bucket, "Key": "x"})
        except (BotoCoreError, ValueError) as error:
            raise StoreError(f"cannot open {self.uri}: {error}") from error
        context = None
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=get_cert_path(ca_bundle or True))
        reader = None if proxied(url) else RangeReader(url, context, timeout=READ_TIMEOUT, slowest=SLOWEST)
        return _Session(os.getpid(), client, reader)

    @contextlib.contextmanager
    def _calling(self, verb: str, key: str) -> Iterator[_Session]:
        """The session; what a call with it raises leaves as the seam says."""
        session = self._session()
        from botocore.exceptions import BotoCoreError, ClientError

        uri = f"{self.uri}/{key}".rstrip("/")
        try:
            yield session
        except ClientError as error:
            raise self._known(error, verb, uri) from error
        except BotoCoreError as error:
            kind = Unreachable if _passes(error) else StoreError
            raise kind(f"cannot {verb} {uri}: {error}") from error
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise Unreachable(f"cannot {verb} {uri}: {error}") from error

    def _known(self, error: Any, verb: str, uri: str) -> Exception:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said = error.response.get("Error", {}).get("Message") or code or f"HTTP {status}"
        if code == "NoSuchBucket":
            return StoreError(f"cannot {verb} {uri}: there is no bucket {self.bucket!r}")
        if code in _MISSING:
            return FileNotFoundError(2, "no such object", uri)
        if code in _EXISTS:
            return Conflict(f"{uri}: {said}")
        if code in _FULL:
            return NoSpace(f"cannot {verb} {uri}: {said}")
        if code in ("InvalidRange", "416"):
            return _Range(uri)
        if code in _BUSY or status in _PASSING:
            return Unreachable(f"cannot {verb} {uri}: {said}")
        if status == 403:
            return StoreError(f"cannot {verb} {uri}: access denied to the credentials that were found ({said})")
        if status == 501:
            return StoreError(f"cannot {verb} {uri}: this storage does not support a header that is needed ({said})")
        return StoreError(f"cannot {verb} {uri}: {said}")


class _Range(Exception):
    """A range that begins behind the end."""


def _may_go_on(error: BaseException) -> bool:
    """Whether a later try may go on with what an upload has stored until this."""
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) in _PASSING
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, BotoCoreError) and _passes(error))


def _passes(error: Any) -> bool:
    """Whether an error of the client, not of the server, may be over the next time."""
    from botocore import exceptions

    return isinstance(
        error,
        exceptions.ConnectionError
        | exceptions.HTTPClientError
        | exceptions.IncompleteReadError
        | exceptions.ResponseStreamingError,
    )
