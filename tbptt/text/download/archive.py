"""One file out of a zip or tar archive."""

import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tbptt.errors import UserError
from tbptt.text.download.checksum import file_checksum

_SHOWN = 10


def extract(archive: Path, member: str, target: Path, checksum: str | None) -> None:
    """Write a member of an archive to `target`, whole or not at all, and nothing else of the archive.

    Args:
        archive: a zip file, or a tar file in any compression that Python knows.
        member: its path in the archive. Only `target` says where it is written.
        target: in a folder that is made if need be; one process at a time.
        checksum: a normal one that the member must have, or None.

    Raises:
        UserError: no archive, no such regular file in it, or another checksum.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".part")
    try:
        with _opened(archive, member) as source, unfinished.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        found = checksum and file_checksum(unfinished, checksum)
        if found != checksum:
            raise UserError(
                f"data.corpus: {member} in {archive} must have the checksum {checksum}, but it has {found}; the "
                f"archive is the right one, so correct member_hash."
            )
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """A reader of the member."""
    # A tar file may end in a zip file and pass for one, so it is asked first.
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            if member not in tar.getnames() or not tar.getmember(member).isreg():
                raise _no_member(archive, member, [item.name for item in tar.getmembers() if item.isreg()])
            file = tar.extractfile(member)
            assert file is not None
            yield file
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as box:
            if member not in box.namelist():
                raise _no_member(archive, member, box.namelist())
            with box.open(member) as file:
                yield file
    else:
        raise UserError(
            f"data.corpus: {archive} must be a zip or tar archive with {member} in it, but it is neither; correct the "
            f"url, or leave out member where the file itself is the text."
        )


def _no_member(archive: Path, member: str, names: list[str]) -> UserError:
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return UserError(
        f"data.corpus: member must be a file in {archive}, but it is {member!r}; the archive has {shown or 'no file'}."
    )
