#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a page as a newcomer would, and writes down what they say.

  transcript.py PAGE SOURCE     SOURCE: the git repository that $REPOSITORY is a copy of

debootstrap makes a bare Debian in a folder, as a container of it would be: the packages that every
Debian has, and nothing else. In it every block of sh of the page is run, those marked skip too, in one
shell after the other, each in the folder and with the exports that the one before it left. They begin
in root's home with HOME, PATH, TERM, REPOSITORY and, where it is set, JOBS. The block of text that
follows a block of sh becomes its output, in which the home folder is ~. Numbers are this machine's; `make installcheck` holds the exit
codes. To be run as root, where Debian's archive can be reached.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SUITE = "bookworm"
BLOCKS = re.compile(r"^```sh (?P<mark>[^\n]*)\n(?P<commands>.*?)^```\n\n```text\n(?P<output>.*?)^```$",
                    re.DOTALL | re.MULTILINE)
# Mounts and processes are this namespace's: they are gone when the commands have ended.
ENTER = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
         'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" sh -c "$1"']
ENVIRONMENT = {"HOME": "/root", "TERM": "dumb", "REPOSITORY": "/srv/attnhost.git",
               "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def bare_root(root, source):
    subprocess.run(["debootstrap", "--variant=minbase", SUITE, root], check=True, stdout=sys.stderr)
    subprocess.run(["git", "clone", "-q", "--bare", source, root / "srv/attnhost.git"], check=True)
    (root / "root/.state").write_text("cd\n", encoding="utf-8")


def run(commands, mark, root):
    """What the commands say; the folder and exports that they leave are in ~/.state."""
    script = f". ~/.state\n{commands}\n" \
        "status=$?; { export -p; printf 'cd \"%s\"\\n' \"$PWD\"; } >~/.state; exit $status"
    environment = ENVIRONMENT | ({"JOBS": os.environ["JOBS"]} if "JOBS" in os.environ else {})
    done = subprocess.run([*ENTER, root, script], env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    expected = int((re.findall(r"exit=(\d+)", mark) or [0])[0])
    if done.returncode != expected:
        sys.exit(f"{commands}ended with {done.returncode}, expected {expected}:\n{done.stdout}")
    return done.stdout.replace(f"{ENVIRONMENT['HOME']}/", "~/")


def main():
    page, source = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        root.chmod(0o755)
        bare_root(root, source)

        def again(block):
            print(block["commands"], end="", flush=True)
            output = run(block["commands"], block["mark"], root).rstrip() + "\n"
            return f"```sh {block['mark']}\n{block['commands']}```\n\n```text\n{output.lstrip(chr(10))}```"

        text = BLOCKS.sub(again, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
