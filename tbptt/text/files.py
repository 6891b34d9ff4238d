"""Reading a text file whole, with a message of its own for each way in which that can fail."""

import codecs
from pathlib import Path

from tbptt.errors import UserError, refusal

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark begins this one
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
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


def read_text(key: str, name: str, encoding: str) -> str:
    """Return the text of the file `name`, without a leading byte order mark and otherwise exactly as it is.

    Args:
        key: the option that gave the name, for messages.
        name: relative to the current folder; `~` is expanded.
        encoding: decoded strictly; a name that `check_encoding` lets pass.

    Raises:
        UserError: the file is missing, a folder, unreadable, empty or not in this encoding.
    """
    data = _read_bytes(key, name)
    if not data:
        raise refusal(key, "name a file with text in it", name, "that file is empty: give another")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise _undecodable(key, name, data, encoding, error) from error
    except UnicodeError as error:
        raise refusal(key, f"name a file in {encoding}", name, f"it is not ({error}): give {_option(key)}=") from error
    return text.removeprefix("\ufeff")


def _read_bytes(key: str, name: str) -> bytes:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            raise refusal(key, "name a file", name, "that is a folder: give the path of a text file in it")
        return path.read_bytes()
    except FileNotFoundError as error:
        remedy = f"no such file was found from the current folder {Path.cwd()}: correct the path"
        raise refusal(key, "name an existing file", name, remedy) from error
    except PermissionError as error:
        raise refusal(key, "name a file that may be read", name, "permission was denied: change its mode") from error
    except (OSError, RuntimeError) as error:
        raise refusal(key, "name a readable file", name, f"reading it failed ({error})") from error


def _undecodable(key: str, name: str, data: bytes, encoding: str, error: UnicodeDecodeError) -> UserError:
    line = data[: error.start].decode(encoding, "replace").count("\n") + 1
    marked = next((other for mark, other in _MARKS if data.startswith(mark)), None)
    if marked:
        remedy = f"its byte order mark shows {_option(key)}={marked}"
    else:
        remedy = f"give the encoding it was written in, for example {_option(key)}=cp1252, or mend the file"
    return UserError(
        f"{key} must name a file in {_option(key)}={encoding}, but {name!r} has byte 0x{data[error.start]:02x} at byte "
        f"offset {error.start}, line {line} ({error.reason}); {remedy}."
    )


def _option(key: str) -> str:
    """The option beside `key` that names the encoding."""
    return key.rpartition(".")[0] + ".encoding" if "." in key else "encoding"
