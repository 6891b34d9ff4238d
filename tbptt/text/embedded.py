"""Default corpora without a download: the English and the source code that every full CPython installation carries.

Files are read and parsed as text; none is imported or executed.
"""

import ast
import contextlib
import hashlib
import os
import platform
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from tbptt.errors import UserError
from tbptt.text.prose import paragraphs, tokenise

TOPICS = "pydoc_data/topics.py"
MINIMUM_CHARACTERS = 100_000

# Levels whose default text is English; the others read source code.
ENGLISH_LEVELS = ("word", "bpe")

# Folders without English prose, or with text that is not the standard library's own. The graphical packages and
# those that some systems ship apart (or that later versions of Python dropped) are left out as well, so that the
# text depends little on how Python was installed.
SKIPPED_FOLDERS = frozenset(
    {
        "__phello__", "__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idle_test", "idlelib",
        "lib-dynload", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "tkinter", "turtledemo",
    }
)  # fmt: skip

# Every one of these exists in Python 3.11 to 3.14.
SOURCE_FILES = (
    "_collections_abc.py", "bdb.py", "calendar.py", "codecs.py", "collections/__init__.py", "configparser.py",
    "contextlib.py", "csv.py", "dataclasses.py", "difflib.py", "email/message.py", "enum.py", "fractions.py",
    "ftplib.py", "functools.py", "gettext.py", "heapq.py", "ipaddress.py", "json/decoder.py", "json/encoder.py",
    "logging/__init__.py", "pickle.py", "pprint.py", "random.py", "shutil.py", "smtplib.py",
    "statistics.py", "tempfile.py", "textwrap.py", "threading.py", "urllib/parse.py",
)  # fmt: skip


def english(stdlib: Path | None = None) -> str:
    """Return English prose: the language reference, and the docstrings and comments of the standard library.

    One paragraph a line, every line newline-terminated, tokens separated by single spaces, case kept. A module that
    cannot be decoded or parsed is left out.

    Args:
        stdlib: the standard library's folder; by default that of the running Python.

    Raises:
        UserError: the installation lacks the source files.
    """
    folder = _folder(stdlib)
    documents = _topics(folder) | _modules(folder)
    texts = (text for name in sorted(documents, key=_place) for text in documents[name])
    lines = dict.fromkeys(tokenise(paragraph) for text in texts for paragraph in paragraphs(text))
    result = "".join(line + "\n" for line in lines)
    if len(result) < MINIMUM_CHARACTERS:
        raise _missing(folder, f"nearly all modules' .py files (their English is only {len(result)} characters)")
    return result


def source_code(stdlib: Path | None = None) -> str:
    """Return the text of `SOURCE_FILES`, one after the other, each line ended by a newline.

    Args:
        stdlib: the standard library's folder; by default that of the running Python.

    Raises:
        UserError: the installation lacks one of the source files, or it cannot be decoded.
    """
    folder = _folder(stdlib)
    return "".join(_read(folder, name) for name in sorted(SOURCE_FILES, key=_place))


def fingerprint(level: str, stdlib: Path | None = None) -> str:
    """Return the SHA-256 digest of all that `english` ("word" and "bpe") or `source_code` (other levels) is made of.

    Raises:
        UserError: the installation lacks the source files.
    """
    folder = _folder(stdlib)
    digest = hashlib.sha256(platform.python_version().encode())
    for name in [TOPICS, *_module_names(folder)] if level in ENGLISH_LEVELS else SOURCE_FILES:
        try:
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        except OSError as error:
            raise _missing(folder, f"a readable {name} ({error})") from error
    return digest.hexdigest()


def _place(name: str) -> str:
    # A fixed shuffle: validation and test text are cut off the end, and in alphabetical order they would hold only
    # the last few packages, so that the losses of the parts would differ by subject.
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _folder(stdlib: Path | None) -> Path:
    return Path(sysconfig.get_path("stdlib")) if stdlib is None else stdlib


def _missing(folder: Path, what: str) -> UserError:
    return UserError(
        f"data.path must be given, because this Python cannot supply the built-in text: {folder} lacks {what}; "
        "install the full Python with its .py files, or give data.path=FILE."
    )


def _read(folder: Path, name: str) -> str:
    try:
        with tokenize.open(str(folder / name)) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeError) as error:
        raise _missing(folder, f"a readable {name} ({error})") from error


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a doubtful escape in a module is no concern of who trains on it
        return ast.parse(source)


def _topics(folder: Path) -> dict[str, list[str]]:
    try:
        statements = _parse(_read(folder, TOPICS)).body
    except (SyntaxError, ValueError) as error:
        raise _missing(folder, f"a readable {TOPICS} ({error})") from error
    tables = [node.value for node in statements if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    pairs = [pair for table in tables for pair in zip(table.keys, table.values, strict=True)]
    topics = {
        f"topic {key.value!r}": [value.value]
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    }
    if not topics:
        raise _missing(folder, f"the table of topics in {TOPICS}")
    return topics


def _modules(folder: Path) -> dict[str, list[str]]:
    modules = {}
    for name in _module_names(folder):
        with contextlib.suppress(UserError, SyntaxError, ValueError, RecursionError):
            modules[name] = _documentation(_read(folder, name))
    return modules


def _module_names(folder: Path) -> list[str]:
    names = []
    for place, subfolders, files in os.walk(folder):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        names += [(Path(place) / file).relative_to(folder).as_posix() for file in files if file.endswith(".py")]
    return sorted(names)


def _documentation(source: str) -> list[str]:
    """Return the docstrings and the comment blocks of a module in the order of its lines."""
    found: list[tuple[int, str]] = []
    lines = source.split("\n")
    for node in _docstrings(_parse(source)):
        end = node.end_lineno or node.lineno
        found.append((node.lineno, str(node.value)))
        lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)  # a # in a docstring starts no comment
    return [text for _, text in sorted([*found, *_comments(lines)])]


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    # Statements only are visited: expressions, by far the most nodes, hold no docstrings.
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            nodes.extend(getattr(node, field, ()))


def _comments(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of each run of lines that are only a comment."""
    block: list[str] = []
    for number, line in enumerate([*lines, ""]):
        stripped = line.lstrip()
        if stripped.startswith("#"):
            block.append(stripped.lstrip("#"))
        elif block:
            yield number, "\n".join(["", *block])
            block = []
