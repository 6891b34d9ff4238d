"""Bytes of a file -> text in pieces: decoded strictly, with a message that says where it is something else."""

import codecs
from collections.abc import Iterable, Iterator

from tbptt.errors import UserError, refusal

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark begins this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (b"\x1f\x8b", "gz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bz2"),
)


def check_encoding(encoding: object) -> None:
    """Refuse a name that no text encoding of Python has.

    Raises:
        UserError: naming `data.encoding`.
    """
    remedy = "give the name of a text encoding, for example data.encoding=utf-8 or data.encoding=cp1252"
    if not isinstance(encoding, str):
        raise refusal("data.encoding", "be the name of a text encoding", encoding, remedy)
    try:
        b"a".decode(encoding)
    except UnicodeError:
        return
    except (LookupError, ValueError) as error:
        raise refusal("data.encoding", "be the name of a text encoding", encoding, remedy) from error


def decoded(key: str, name: str, blocks: Iterable[bytes], encoding: str) -> Iterator[str]:
    """Yield the text of the file `name`, without a leading byte order mark and otherwise exactly as it is.

    Args:
        key: the option that gave the name, for messages.
        name: of the file.
        blocks: its bytes, in order.
        encoding: decoded strictly; a name that `check_encoding` lets pass.

    Raises:
        UserError: the bytes are not in this encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    offset = lines = 0
    head = b""
    begun = False
    for block in _and_end(blocks):
        head = head or block[:8]
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            lines += error.object[: error.start].decode(encoding, "replace").count("\n")
            # What it complains of begins with bytes that waited, and ends with the block.
            before = offset + len(block) - len(error.object)
            raise _undecodable(key, name, head, encoding, error, before, lines + 1) from error
        except UnicodeError as error:
            rule = f"name a file in {encoding}"
            raise refusal(key, rule, name, f"it is not ({error}): give another {_option(key)}") from error
        offset += len(block)
        lines += text.count("\n")
        shown = text if begun else text.removeprefix("\ufeff")
        begun = begun or bool(text)
        if shown:
            yield shown


def _and_end(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks that hold anything, and an empty one as their end."""
    yield from (block for block in blocks if block)
    yield b""


def _undecodable(
    key: str, name: str, head: bytes, encoding: str, error: UnicodeDecodeError, before: int, line: int
) -> UserError:
    marked = next((other for mark, other in _MARKS if head.startswith(mark)), None)
    if marked is None:
        remedy = f"give the encoding it was written in, for example {_option(key)}=cp1252, or mend the file"
    elif marked.startswith("utf"):
        remedy = f"its byte order mark shows {_option(key)}={marked}"
    else:
        remedy = f"it is packed: let its name end in .{marked}"
    return UserError(
        f"{key} must name a file in {_option(key)}={encoding}, but {name!r} has byte 0x{error.object[error.start]:02x} "
        f"at byte offset {before + error.start}, line {line} ({error.reason}); {remedy}."
    )


def _option(key: str) -> str:
    """The option beside `key` that names the encoding."""
    return key.rpartition(".")[0] + ".encoding" if "." in key else "encoding"
