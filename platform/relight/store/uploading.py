"""Writing one object of S3: small ones at once, large ones in parts, several at a time.

What S3 calls an object's or a part's ETag is the MD5 of its bytes, of objects in parts that of their MD5s, unless the
storage encrypts with keys of its own. Where it is, it tells which parts of an upload that was cut off need not be sent
again; where it is not, nothing is found to be equal, and all is sent.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import Any

THREADS = 8
"""Parts on their way at once."""
MAX_PARTS = 9_000
"""S3 takes 10,000; the margin is for a file that grew since its size was taken."""
PART = 8 * 2**20
"""Bytes of a part: a chunk of the manifest, which is then sent as it was read, without a copy."""


def upload(
    client: Any,
    where: dict[str, str],
    chunks: Iterable[bytes],
    *,
    create: bool,
    size: int | None,
    resume: bool,
    keep: Callable[[BaseException], bool],
) -> None:
    """Write ``chunks`` as one object or nothing; what the client raises is let through.

    ``where``: the bucket and the key. ``resume``: go on with what an earlier upload has stored. ``keep``: whether to
    leave that to a later one, for an error.
    """
    condition = {"IfNoneMatch": "*"} if create else {}
    parts = _parts(chunks, size or 0)
    first, second = next(parts, b""), next(parts, None)
    if second is None:
        _put(client, where, first, condition)
        return
    upload_id, stored = _earlier(client, where) if resume else ("", {})
    where = {**where, "UploadId": upload_id or client.create_multipart_upload(**where)["UploadId"]}
    try:
        tags = _send(client, where, chain((first, second), parts), stored)
        done = [{"PartNumber": number, "ETag": tag} for number, tag in sorted(tags.items())]
        client.complete_multipart_upload(**where, MultipartUpload={"Parts": done}, **condition)
    except BaseException as error:
        if not keep(error):
            # What is told is what failed first; parts that stay are found by ``clean``.
            with contextlib.suppress(Exception):
                client.abort_multipart_upload(**where)
        raise


def tag_of(chunks: Iterable[bytes], size: int) -> str:
    """The ETag that an object of these bytes has if ``upload`` wrote it."""
    digests = [_md5(part) for part in _parts(chunks, size)]
    if len(digests) <= 1:
        return (digests or [_md5(b"")])[0].hex()
    return f"{_md5(b''.join(digests)).hex()}-{len(digests)}"


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _earlier(client: Any, where: dict[str, str]) -> tuple[str, dict[int, tuple[int, str]]]:
    """The newest upload of this key that was not ended, and its parts: number to size and ETag. Others are ended."""
    found = []
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=where["Bucket"], Prefix=where["Key"]):
        found += [item for item in page.get("Uploads", ()) if item["Key"] == where["Key"]]
    found.sort(key=lambda item: item["Initiated"])
    for item in found[:-1]:
        client.abort_multipart_upload(**where, UploadId=item["UploadId"])
    if not found:
        return "", {}
    upload_id = str(found[-1]["UploadId"])
    stored: dict[int, tuple[int, str]] = {}
    for page in client.get_paginator("list_parts").paginate(**where, UploadId=upload_id):
        stored |= {part["PartNumber"]: (part["Size"], part["ETag"]) for part in page.get("Parts", ())}
    return upload_id, stored


def _put(client: Any, where: dict[str, str], data: bytes, condition: dict[str, str]) -> None:
    try:
        client.put_object(**where, Body=data, **condition)
    except client.exceptions.ClientError as error:
        if not condition or error.response["ResponseMetadata"]["HTTPStatusCode"] not in (409, 412):
            raise
        # The client asks again when an answer is lost: then what stands in the way is what we wrote.
        if client.get_object(**where)["Body"].read() != data:
            raise


def _parts(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Chunks, put together to larger parts of equal size where there would be too many of them."""
    wanted = max(PART, -(-size // MAX_PARTS))
    held: list[bytes] = []
    for chunk in chunks:
        held.append(chunk)
        if sum(map(len, held)) >= wanted:
            yield b"".join(held)
            held = []
    if held:
        yield b"".join(held)


def _send(
    client: Any, where: dict[str, Any], parts: Iterable[bytes], stored: Mapping[int, tuple[int, str]]
) -> dict[int, str]:
    """Upload parts as they come, with a bounded number in memory; returns their tags by number."""
    tags: dict[int, str] = {}

    def send(number: int, data: bytes) -> None:
        size, tag = stored.get(number, (-1, ""))
        if size == len(data) and tag.strip('"') == _md5(data).hex():
            tags[number] = tag
            return
        tags[number] = client.upload_part(**where, PartNumber=number, Body=data)["ETag"]

    with ThreadPoolExecutor(THREADS, thread_name_prefix="push") as pool:
        sending: set[Future[None]] = set()
        try:
            for number, data in enumerate(parts, 1):
                sending.add(pool.submit(send, number, data))
                if len(sending) >= THREADS:
                    done, sending = wait(sending, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            done, _ = wait(sending, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return tags
