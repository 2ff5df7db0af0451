#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a page as a newcomer would, and writes down what they say.

  transcript.py PAGE SOURCE     SOURCE: the git repository that is cloned

Every block of sh of the page is run, those marked skip too, in one shell after the other, each in the
folder and with the exports that the one before it left. They begin in an empty folder with nothing but
HOME, PATH and TERM; CC, CONFIGURE_FLAGS, CCACHE_* and JOBS are passed on. The block of text that follows a block of sh
becomes its output. Numbers are this machine's; `make installcheck` holds the exit codes.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCKS = re.compile(r"^```sh (?P<mark>[^\n]*)\n(?P<commands>.*?)^```\n\n```text\n(?P<output>.*?)^```$",
                    re.DOTALL | re.MULTILINE)
KEPT = ("CC", "CONFIGURE_FLAGS", "JOBS", "CCACHE_DIR", "CCACHE_BASEDIR", "CCACHE_NOHASHDIR")


def clean_environment(folder):
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {"HOME": str(folder / "home"), "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb", **kept}


def run(commands, mark, folder):
    """What the commands say; the folder and exports that they leave are in `state`."""
    script = f". '{folder}/state'\n{commands}\n" + \
        f"status=$?; {{ export -p; printf 'cd \"%s\"\\n' \"$PWD\"; }} >'{folder}/state'; exit $status"
    done = subprocess.run(["sh", "-c", script], env=clean_environment(folder), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    expected = int((re.findall(r"exit=(\d+)", mark) or [0])[0])
    if done.returncode != expected:
        sys.exit(f"{commands}ended with {done.returncode}, expected {expected}:\n{done.stdout}")
    return done.stdout.replace(str(folder / "home"), "/home/new").replace(str(folder / "work"), "/home/new")


def main():
    page, source = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in ("home", "work"):
            (folder / part).mkdir(mode=0o755)
        folder.chmod(0o755)
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(source), str(folder / "work/attnhost")],
                       check=True)
        (folder / "state").write_text(f"umask 022; cd '{folder}/work/attnhost'\n", encoding="utf-8")

        def again(block):
            print(block["commands"], end="", flush=True)
            output = run(block["commands"], block["mark"], folder).rstrip() + "\n"
            return f"```sh {block['mark']}\n{block['commands']}```\n\n```text\n{output.lstrip(chr(10))}```"

        text = BLOCKS.sub(again, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
