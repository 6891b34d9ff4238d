"""The files of a named corpus: downloaded once, checked always, put in place by hand where there is no network."""

import logging
from collections.abc import Mapping
from pathlib import Path

from tbptt.errors import UserError
from tbptt.text.download.archive import extract
from tbptt.text.download.checksum import file_checksum
from tbptt.text.download.origin import Origin, read_origins
from tbptt.text.download.transfer import FinalError, Transfer
from tbptt.text.lock import alone

log = logging.getLogger(__name__)

RETRIES = 2


def fetch(corpus: str, sources: Mapping[str, Mapping[str, object]], folder: Path) -> dict[str, Path]:
    """Return where the text of each part of a corpus is, after downloading and unpacking what is missing.

    A file that is there is checked and taken, whoever put it there; without `member_hash` the text unpacked from an
    archive is taken as it is. Several processes may call this at once: one downloads, the others wait for it.

    Args:
        corpus: the name, and the folder below `folder`.
        sources: part -> `url`, `hash` ("sha256:...", "sha1:...", "md5:..."), and for a file in a zip or tar archive
            `member` and perhaps `member_hash`. Parts with one `url` share one download.
        folder: where corpora are kept; made if need be.

    Raises:
        UserError: a source of the wrong form (`read_origins`), a download that fails, a file with another checksum
            than its own, an archive without the member, or a folder that cannot be written.
    """
    parts = read_origins(corpus, sources, Path(folder))
    home = parts["train"].file.parent
    try:
        # Without the lock first: a folder that is complete may be one that nobody may write to.
        if not all(_is_there(source) for source in parts.values()):
            home.mkdir(parents=True, exist_ok=True)
            with alone(home / ".lock", f"gets the corpus {corpus}"):
                for source in parts.values():
                    _provide(source)
    except OSError as error:
        raise UserError(
            f"corpus {corpus} must have a folder for its files, but {home} does not serve ({error}); "
            f"give a folder that can be read and written and has room."
        ) from error
    return {part: source.text for part, source in parts.items()}


def _is_there(source: Origin) -> bool:
    """Whether the text is in place; the wrong one is refused."""
    if not source.text.exists():
        return False
    if source.text_hash is not None:
        _check(source, source.text, source.text_hash)
    return True


def _check(source: Origin, path: Path, checksum: str) -> None:
    found = file_checksum(path, checksum)
    if found != checksum:
        again = f"downloads {source.url}" if path == source.file else f"unpacks it from {source.file}"
        raise UserError(
            f"corpus {source.corpus} must have the file {path} with the checksum {checksum}, but it has {found}; "
            f"put the right one in its place, or delete it, and the next start {again}."
        )


def _provide(source: Origin) -> None:
    # Asked again: another process may have brought it while this one waited.
    if _is_there(source):
        return
    if source.file.exists():
        _check(source, source.file, source.hash)
    else:
        _download(source)
    if source.member is not None:
        extract(source.file, source.member, source.text, source.member_hash)


def _download(source: Origin) -> None:
    import pooch  # with requests a quarter of a second that only a download needs

    name = source.file.name
    log.info("corpus %s: downloading %s to %s", source.corpus, source.url, source.file)
    pooch.get_logger().setLevel(logging.ERROR)  # it writes to stderr by itself
    store = pooch.create(
        path=source.file.parent,
        base_url="",
        registry={name: source.hash},
        urls={name: source.url},
        retry_if_failed=RETRIES,
    )
    try:
        store.fetch(name, downloader=Transfer(source.file.with_name(name + ".part"), source.hash))
    except (OSError, ValueError, FinalError) as error:
        raise UserError(
            f"corpus {source.corpus} must have the file {name} with the checksum {source.hash}, but downloading "
            f"{source.url} failed ({_reason(error)}); get it elsewhere and put it at {source.file}, where the next "
            f"start takes it, or start again to go on with the download."
        ) from error


def _reason(error: BaseException) -> str:
    """What lies at the bottom of it: libraries wrap "connection refused" in three layers of their own."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return str(error) or type(error).__name__
