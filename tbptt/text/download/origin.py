"""Where one part of a named corpus comes from, where it is kept, and how it is known."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from tbptt.errors import UserError, check_choice, refusal
from tbptt.text.download.checksum import normal_checksum
from tbptt.text.options import PARTS

KEYS = ("url", "hash", "member", "member_hash")


@dataclass(frozen=True)
class Origin:
    """One part of a corpus: the file that is downloaded, and the text, which is that file or a member of it.

    Several sources may have one `file`, an archive. The text of a member lies where unpacking the archive beside
    itself would put it. Checksums are normal ones (`normal_checksum`); `member_hash` may be None.
    """

    corpus: str
    url: str
    hash: str
    file: Path
    text: Path
    member: str | None = None
    member_hash: str | None = None

    @property
    def text_hash(self) -> str | None:
        """The checksum of the text, None where it is not known."""
        return self.hash if self.member is None else self.member_hash


def read_origins(corpus: str, sources: Mapping[str, Mapping[str, object]], folder: Path) -> dict[str, Origin]:
    """Check what a configuration says of the parts of a corpus.

    Args:
        corpus: its name, which is a folder in `folder` too.
        sources: for "train" and perhaps "validation" and "test", a mapping with `url` and `hash`, and `member` and
            `member_hash` for a file in an archive.
        folder: of all corpora.

    Raises:
        UserError: a key that is missing, unknown or of the wrong form, a member that leaves the folder, or two parts
            that would be written to one place.
    """
    if not isinstance(corpus, str) or not re.fullmatch(r"\w[\w.-]*", corpus):
        rule = "be a name of letters, digits, '_', '-' and '.'"
        raise refusal("data.corpus.name", rule, corpus, "it names a folder: give another")
    if "train" not in sources:
        raise refusal("data.corpus.sources", "have a part train", list(sources), "add where the training text is")
    home = folder.expanduser().absolute() / corpus
    found = {part: _read_source(corpus, part, values, home) for part, values in sources.items()}
    _check_places(list(found.values()))
    return found


def _read_source(corpus: str, part: str, values: Mapping[str, object], home: Path) -> Origin:
    check_choice("data.corpus.sources", part, PARTS)
    key = f"data.corpus.sources.{part}"
    for name in values:
        check_choice(key, name, KEYS)
    url, member = values.get("url"), values.get("member")
    name = PurePosixPath(unquote(urlsplit(url).path)).name if isinstance(url, str) else ""
    if not isinstance(url, str) or not re.match(r"https?://", url) or not _inside(name):
        raise refusal(f"{key}.url", "be an address of a file that starts with http:// or https://", url, "correct it")
    if member is not None and not _inside(member):
        rule = "be the path of a file in the archive, with '/' and without '..'"
        raise refusal(f"{key}.member", rule, member, "nothing is unpacked outside the folder of a corpus: correct it")
    return Origin(
        corpus,
        url,
        _read_hash(f"{key}.hash", values.get("hash")),
        home / name,
        home / (name if member is None else str(member)),
        None if member is None else str(member),
        None if values.get("member_hash") is None else _read_hash(f"{key}.member_hash", values["member_hash"]),
    )


def _inside(path: object) -> bool:
    """Whether a path of an archive names a file below the folder it is unpacked in, on every system."""
    steps = path.split("/") if isinstance(path, str) else [""]
    return not any(step in ("", ".", "..") or re.search(r"[\\:\0]", step) for step in steps)


def _read_hash(key: str, value: object) -> str:
    checksum = normal_checksum(value)
    if checksum is None:
        rule = "be md5:, sha1:, sha256: or sha512: and the hexadecimal digits of that checksum"
        raise refusal(key, rule, value, "correct it: no file is taken unchecked")
    return checksum


def _check_places(sources: list[Origin]) -> None:
    """Refuse two parts with one text, and two files with one name."""
    texts = [source.text for source in sources]
    files = {source.file for source in sources}
    if len(set(texts)) < len(texts) or len({(source.file, source.url, source.hash) for source in sources}) > len(files):
        raise UserError(
            "data.corpus.sources must name a file of its own for each part, but two have one file name; give "
            "addresses or members with different names."
        )
