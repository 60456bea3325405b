"""Writing one object of S3: small ones at once, large ones in parts, several at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import Any

THREADS = 8
"""Parts on their way at once."""
MAX_PARTS = 9_000
"""S3 takes 10,000; the margin is for a file that grew since its size was taken."""
PART = 8 * 2**20
"""Bytes of a part: a chunk of the manifest, which is then sent as it was read, without a copy."""


def upload(client: Any, bucket: str, key: str, chunks: Iterable[bytes], *, create: bool, size: int | None) -> None:
    """Write ``chunks`` as one object or nothing; what the client raises is let through."""
    condition = {"IfNoneMatch": "*"} if create else {}
    parts = _parts(chunks, size or 0)
    first, second = next(parts, b""), next(parts, None)
    if second is None:
        _put(client, bucket, key, first, condition)
        return
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = client.create_multipart_upload(**where)["UploadId"]
    try:
        tags = _send(client, where, chain((first, second), parts))
        done = [{"PartNumber": number, "ETag": tag} for number, tag in sorted(tags.items())]
        client.complete_multipart_upload(**where, MultipartUpload={"Parts": done}, **condition)
    except BaseException:
        # What is told is what failed first; parts that stay are found by ``clean``.
        with contextlib.suppress(Exception):
            client.abort_multipart_upload(**where)
        raise


def _put(client: Any, bucket: str, key: str, data: bytes, condition: dict[str, str]) -> None:
    try:
        client.put_object(Bucket=bucket, Key=key, Body=data, **condition)
    except client.exceptions.ClientError as error:
        if not condition or error.response["ResponseMetadata"]["HTTPStatusCode"] not in (409, 412):
            raise
        # The client asks again when an answer is lost: then what stands in the way is what we wrote.
        if client.get_object(Bucket=bucket, Key=key)["Body"].read() != data:
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


def _send(client: Any, where: dict[str, Any], parts: Iterable[bytes]) -> dict[int, str]:
    """Upload parts as they come, with a bounded number in memory; returns their tags by number."""
    tags: dict[int, str] = {}

    def send(number: int, data: bytes) -> None:
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
