# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of docs/PYTHON.md, in one session from top to bottom: they run, and print what
stands in the block of text after them."""
import contextlib
import io
import os
import re
import tempfile

import attnhost

from harness import SOURCE

BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """[(code, what it prints or None)]"""
    found = BLOCK.findall(text)
    return [(body, found[i + 1][1] if i + 1 < len(found) and found[i + 1][0] == "text" else None)
            for i, (kind, body) in enumerate(found) if kind == "python"]


def run_blocks(text):
    scope, here = {"__name__": "tutorial"}, os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, (code, expected) in enumerate(blocks(text), 1):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, f"docs/PYTHON.md, block {number}", "exec"), scope)
                if expected is not None:
                    assert printed.getvalue() == expected, \
                        f"block {number} printed:\n{printed.getvalue()}"
        finally:
            os.chdir(here)


def chapters():
    """Up to the chapters that need PyTorch, and from there."""
    with open(os.path.join(SOURCE, "docs/PYTHON.md"), encoding="utf-8") as file:
        text = file.read()
    first, mark, second = text.partition("\n## Engines with their own tables")
    return first, mark + second


def test_the_tutorial():
    first, _ = chapters()
    assert len(blocks(first)) >= 5
    run_blocks(first)


def test_what_is_public_has_a_docstring():
    public = [getattr(attnhost, name) for name in attnhost.__all__ if name not in attnhost._LAZY]
    bare = [thing for thing in public if not thing.__doc__]
    assert not bare, bare
