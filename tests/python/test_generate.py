# SPDX-License-Identifier: Apache-2.0
"""The structs of the package are those of the headers it is built with, whatever they are."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from attnhost import _abi

from harness import SOURCE, cases

PYTHON = os.path.join(SOURCE, "python")


class Tree:
    """The headers, and the package's own files, to change."""

    def __init__(self, folder):
        self.include, self.package = os.path.join(folder, "include"), os.path.join(folder, "attnhost")
        shutil.copytree(os.path.join(SOURCE, "include"), self.include)
        os.mkdir(self.package)
        shutil.copy(os.path.join(PYTHON, "attnhost/_struct.py"), self.package)
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)

    def change(self, header, old, new):
        path = os.path.join(self.include, header)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        assert text.count(old) == 1, f"{old} in {header}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))

    def generate(self):
        done = subprocess.run([sys.executable, os.path.join(PYTHON, "generate.py"), self.include,
                               self.package], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with open(os.path.join(self.package, "_abi.py"), encoding="utf-8") as file:
            return file.read()

    def compile(self):
        command = os.environ.get("CC", "cc").split() + [
            "-std=gnu11", "-fsyntax-only", "-I", self.include, "-I", self.package,
            os.path.join(PYTHON, "src/layout.c")]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_function_of_the_header_is_there():
    with open(os.path.join(SOURCE, "include/attnhost.h"), encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.DOTALL)
    declared = set(re.findall(r"\b(attnhost_\w+)\s*\([^()]*\)\s*;", text))
    assert declared and declared == {f for f in _abi.FUNCTIONS if f.startswith("attnhost_")}


def test_a_member_that_is_appended():
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder)
        before = tree.generate()
        tree.change("attn_problem.h", "} attn_bounds;", "int32_t first_new; float more[3];\n"
                    "} attn_bounds;")
        after = tree.generate()
        assert '("first_new", c_int32)' in after and '("more", c_float * 3)' in after
        assert '"first_new"' not in before
        assert tree.compile().returncode == 0


def test_a_name_that_is_appended():
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder)
        tree.change("attn_problem.h", 'X(DRAFT_EXTEND, 5, "draft_extend")',
                    'X(DRAFT_EXTEND, 5, "draft_extend") X(NEW, 6, "new, as it is")')
        text = tree.generate()
        assert "ATTN_MODE_NEW = 6" in text and "['NEW', '6', 'new, as it is']" in text


@cases(("uint32_t granularity;", "uint64_t granularity;"), ("uint32_t count;", ""))
def test_headers_that_are_not_those_it_was_made_from(old, new):
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder)
        tree.generate()
        assert tree.compile().returncode == 0
        header = os.path.join(tree.include, "attn_batch.h")
        with open(header, encoding="utf-8") as file:
            text = file.read()
        start = text.index("typedef struct attn_scale {")
        with open(header, "w", encoding="utf-8") as file:
            file.write(text[:start] + text[start:].replace(old, new, 1))
        done = tree.compile()
        assert done.returncode != 0 and "attn_scale" in done.stderr
